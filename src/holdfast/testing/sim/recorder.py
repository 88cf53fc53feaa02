"""Record every call of a store in a simulation, with its time, arguments and outcome."""

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
    """The process of this coroutine is dead. Do not catch this exception."""


class RecordedCall(Struct, eq=False):
    """One call of a store's method. ``outcome`` is ``lost`` if its process died before it got the answer."""

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
    """When the call ended, by the clock of its process."""
    seen: Any = None
    """State that the checks recorded when the call was made."""

    @property
    def reads(self) -> bool:
        """Whether the method changes nothing."""
        return self.method.rpartition(".")[2] in READING

    def __str__(self) -> str:
        arguments = [f"{name}={short(self.arguments[name])}" for name in _SHOWN if self.arguments.get(name) is not None]
        return " ".join([self.method, *arguments])


class CallListener(Protocol):
    """Receives the calls of recorded stores."""

    def begin(self, tenant: str, method: str, arguments: Mapping[str, Any]) -> RecordedCall:
        """Handle a call that is about to be made; may raise ``ProcessDied``."""

    def end(self, call: RecordedCall) -> None:
        """Handle a call that was answered or has failed; may raise ``ProcessDied``."""


class RecordedStore:
    """A proxy of a store that reports every call to a listener."""

    def __init__(self, store: Store, name: str, tenant: str, listener: CallListener) -> None:
        self._store, self._name, self._tenant, self._listener = store, name, tenant, listener

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name.startswith("_") or not callable(attribute):
            return attribute
        recorded = self._record(attribute, f"{self._name}.{name}")
        setattr(self, name, recorded)  # later lookups bypass __getattr__
        return recorded

    def _record(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        signature = inspect.signature(method)

        async def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs).arguments
            store_call = self._listener.begin(self._tenant, name, bound)
            try:
                store_call.result = await method(*args, **kwargs)
                store_call.outcome = "answered"
            except HoldfastError as error:
                store_call.outcome, store_call.error = "failed", type(error).__name__
                self._listener.end(store_call)
                raise
            self._listener.end(store_call)
            return store_call.result

        return call


def record_stores(handle: Any, tenant: str, listener: CallListener) -> None:
    """Report every call through a handle to the listener."""
    for name in store_names(type(handle)):
        store = getattr(handle, name)
        if isinstance(store, Store):
            setattr(handle, name, RecordedStore(store, name, tenant, listener))


def short(value: Any) -> str:
    """Return a value as shown in the trace; ids are shortened to their last characters."""
    text = value if isinstance(value, str) else str(value)
    return f"..{text[-6:]}" if len(text) == 36 and text.count("-") == 4 else text[:40]
