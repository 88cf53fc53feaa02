"""The actor context: who acts, stated once around a block of code instead of at every call in it.

::

    with acme.acting(user="-100123", agent="helper", sender="386246614", channel="telegram"):
        acme.sessions.upsert("support:42")      # the session of that user, made for that agent

It is kept in a context variable: concurrent tasks and threads never see each other's context, and a task started inside the block
inherits it. A context belongs to one tenant of one ``Holdfast``: calls for another tenant do not see it.

Its values are defaults for writes that *create* something; see ``core.store.writes_with_actor``. No lookup or filter uses them:
a list that silently left out rows would be a trap. Programs read the values that are not filled in automatically (the
sender of a message, for example) with ``acme.acting_now()``.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from ..errors import InvalidInput
from . import scope as scopes
from .scope import Scope

AgentType = Literal["open", "predefined"]
PeerKind = Literal["direct", "group"]


class ActorContext(Struct, frozen=True, kw_only=True):
    """The user, agent and place of the calls inside a block. A field that was not given is ``None``."""

    user: str | None = None
    """The owner of the data; in a group chat, the group."""
    agent: str | None = None
    agent_type: AgentType | None = None
    sender: str | None = None
    """The person who spoke; set in a group chat too."""
    channel: str | None = None
    chat: str | None = None
    peer_kind: PeerKind | None = None
    api_key: str | None = None
    """The name of the API key of an HTTP request."""
    address: str | None = None
    """The network address that a request came from."""
    workspace: str | None = None
    sandbox_key: str | None = None
    """The sandbox in which tools run."""
    async_callback: Any = None
    """Called with the result of a tool that finishes later. Holdfast only carries it to the code inside the block."""

    def actor(self) -> tuple[str, str]:
        """Return the type and the name of the actor: user, agent or api_key; ``("system", "")`` if none is set."""
        for kind, name in (("user", self.user), ("agent", self.agent), ("api_key", self.api_key)):
            if name:
                return kind, name
        return "system", ""


_NO_ACTOR = ActorContext()
_KINDS: dict[str, tuple[str, ...]] = {"agent_type": get_args(AgentType), "peer_kind": get_args(PeerKind)}


class _Frame:
    """One ``acting`` block that is still open, with a link to the block around it."""

    __slots__ = ("acting", "block", "outer")

    def __init__(self, block: ActingBlock, acting: ActorContext, outer: _Frame | None) -> None:
        self.block, self.acting, self.outer = block, acting, outer


_innermost: ContextVar[_Frame | None] = ContextVar("holdfast_acting", default=None)


def now(scope: Scope) -> ActorContext:
    """Return the context of a tenant. Call it in the caller's thread: the body of a store method may run in another one."""
    frame = _innermost.get()
    while frame is not None:
        if frame.block.is_for(scope):
            return frame.acting
        frame = frame.outer
    return _NO_ACTOR


class ActingBlock:
    """The result of ``acting``: a context manager for ``with`` and ``async with`` that yields the ``ActorContext`` inside it.

    Raises:
        InvalidInput: a value is not a valid name, or not one of the allowed values.
    """

    def __init__(self, scope: Scope, **values: Any) -> None:
        self._shared, self._tenant = scope.shared, scope.tenant
        self._scope = scope
        self._named = {name: _checked(scope, name, value) for name, value in values.items() if value is not None}

    def is_for(self, scope: Scope) -> bool:
        """Return whether the block belongs to this tenant of this Holdfast."""
        return self._shared is scope.shared and self._tenant == scope.tenant

    def __enter__(self) -> ActorContext:
        named: dict[str, Any] = self._named
        acting = replace(now(self._scope), **named)
        _innermost.set(_Frame(self, acting, _innermost.get()))
        return acting

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _innermost.set(_without(_innermost.get(), self))

    async def __aenter__(self) -> ActorContext:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, at)


def _without(frame: _Frame | None, block: ActingBlock) -> _Frame | None:
    """Remove the innermost frame of a block: generators may leave their blocks in another order, or in another context."""
    if frame is None:
        return None
    if frame.block is block:
        return frame.outer
    return _Frame(frame.block, frame.acting, _without(frame.outer, block))


def _checked(scope: Scope, name: str, value: Any) -> Any:
    if name == "async_callback":
        return value
    allowed = _KINDS.get(name)
    if allowed is None:
        scopes.name(value, name, scope.limits)
    elif value not in allowed:
        raise InvalidInput(f"{name} must be one of {', '.join(allowed)}, not {value!r}", field=name)
    return value
