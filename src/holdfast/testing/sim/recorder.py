"""Every call of a store, as a simulation sees it: when it was made, with what, and what came of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from msgspec import Struct

from ...core.store import Store
from ...errors import HoldfastError
from ...store_lists import store_names

Outcome = Literal["open", "answered", "failed", "lost"]

READING = frozenset(
    "get find list load pending last context count search around attached children acting effective".split()
)
"""Methods that change nothing, by their names."""
_SHOWN = ("run_id", "session_id", "agent_id", "epoch", "iteration", "id", "holder", "until", "stop_reason")


class ProcessDied(BaseException):
    """The process that this coroutine belongs to is dead. Do not catch it."""


class StoreCall(Struct, eq=False):
    """One call of a store's method. ``outcome`` is ``lost`` if its process died before it heard the answer."""

    number: int
    process: str
    incarnation: int
    tenant: str
    method: str
    arguments: dict[str, Any]
    outcome: Outcome = "open"
    result: Any = None
    error: str = ""
    now_us: int = 0
    """When it came to its end, by the clock of its process."""
    seen: Any = None
    """What the checks noted when the call was made."""

    @property
    def reads(self) -> bool:
        """Whether the method changes nothing."""
        return self.method.rpartition(".")[2] in READING

    def __str__(self) -> str:
        shown = [f"{name}={short(self.arguments[name])}" for name in _SHOWN if self.arguments.get(name) is not None]
        return " ".join([self.method, *shown])


class Listener(Protocol):
    """Who is told about calls."""

    def begin(self, tenant: str, method: str, arguments: Mapping[str, Any]) -> StoreCall:
        """A call is about to be made; may raise ``ProcessDied``."""

    def end(self, call: StoreCall) -> None:
        """A call was answered or has failed; may raise ``ProcessDied``."""


class RecordedStore:
    """A store whose calls are told to a listener; otherwise it is the store."""

    def __init__(self, store: Store, name: str, tenant: str, listener: Listener) -> None:
        self._store, self._name, self._tenant, self._listener = store, name, tenant, listener

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name.startswith("_") or not callable(found):
            return found
        recorded = self._recorded(found, f"{self._name}.{name}")
        setattr(self, name, recorded)  # from now on it is found without coming here
        return recorded

    def _recorded(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        signature = inspect.signature(method)

        async def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs).arguments
            made = self._listener.begin(self._tenant, name, bound)
            try:
                made.result = await method(*args, **kwargs)
                made.outcome = "answered"
            except HoldfastError as error:
                made.outcome, made.error = "failed", type(error).__name__
                self._listener.end(made)
                raise
            self._listener.end(made)
            return made.result

        return call


def record_stores(handle: Any, tenant: str, listener: Listener) -> None:
    """Report every call through a handle to the listener."""
    for name in store_names(type(handle)):
        store = getattr(handle, name)
        if isinstance(store, Store):
            setattr(handle, name, RecordedStore(store, name, tenant, listener))


def short(value: Any) -> str:
    """A value as the trace shows it: of an id, the end."""
    text = value if isinstance(value, str) else str(value)
    return f"..{text[-6:]}" if len(text) == 36 and text.count("-") == 4 else text[:40]
