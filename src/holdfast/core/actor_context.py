"""Who is acting: said once, around a piece of work, instead of at every call in it.

::

    with acme.acting(user="-100123", agent="helper", sender="386246614", channel="telegram"):
        acme.sessions.upsert("support:42")      # the session of that user, made for that agent

It is kept in a context variable: concurrent tasks and threads never see each other's, and what a task starts inside the block
goes on acting as it does. It belongs to one tenant of one ``Holdfast``: calls for another tenant do not see it.

What it does is filled in where something is *made* and the caller said nothing; see ``core.store.writes_acting``. Nothing is
ever looked up or filtered by it: a list that silently showed less would be a trap. What it does not fill in by itself (the
sender of a message, say) programs can ask for: ``acme.acting_now()``.
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


class Acting(Struct, frozen=True, kw_only=True):
    """Who acts, for whom and where. What nobody said is ``None``."""

    user: str | None = None
    """Whose data it is; in a group chat, the group's."""
    agent: str | None = None
    agent_type: AgentType | None = None
    sender: str | None = None
    """The person who spoke, in a group chat as well."""
    channel: str | None = None
    chat: str | None = None
    peer_kind: PeerKind | None = None


_NOBODY = Acting()
_KINDS: dict[str, tuple[str, ...]] = {"agent_type": get_args(AgentType), "peer_kind": get_args(PeerKind)}


class _Frame:
    """A block that was entered and not left, and those around it."""

    __slots__ = ("acting", "block", "outer")

    def __init__(self, block: ActingBlock, acting: Acting, outer: _Frame | None) -> None:
        self.block, self.acting, self.outer = block, acting, outer


_innermost: ContextVar[_Frame | None] = ContextVar("holdfast_acting", default=None)


def now(scope: Scope) -> Acting:
    """Who acts for a tenant, here and now. Ask where the caller is: the body of a store method may run in another thread."""
    frame = _innermost.get()
    while frame is not None:
        if frame.block.is_for(scope):
            return frame.acting
        frame = frame.outer
    return _NOBODY


class ActingBlock:
    """What ``acting`` returns: a block for ``with`` and for ``async with``. It gives back who acts inside.

    Raises:
        InvalidInput: a value is not a name, or none of its kind.
    """

    def __init__(self, scope: Scope, **named: str | None) -> None:
        self._shared, self._tenant = scope.shared, scope.tenant
        self._scope = scope
        self._named = {name: _checked(scope, name, value) for name, value in named.items() if value is not None}

    def is_for(self, scope: Scope) -> bool:
        """Whether it is about this tenant of this Holdfast."""
        return self._shared is scope.shared and self._tenant == scope.tenant

    def __enter__(self) -> Acting:
        named: dict[str, Any] = self._named
        acting = replace(now(self._scope), **named)
        _innermost.set(_Frame(self, acting, _innermost.get()))
        return acting

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _innermost.set(_without(_innermost.get(), self))

    async def __aenter__(self) -> Acting:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, at)


def _without(frame: _Frame | None, block: ActingBlock) -> _Frame | None:
    """All frames but the innermost of a block: generators may leave their blocks in another order, or another context."""
    if frame is None:
        return None
    if frame.block is block:
        return frame.outer
    return _Frame(frame.block, frame.acting, _without(frame.outer, block))


def _checked(scope: Scope, name: str, value: str) -> str:
    kinds = _KINDS.get(name)
    if kinds is None:
        scopes.name(value, name, scope.limits)
    elif value not in kinds:
        raise InvalidInput(f"{name} must be one of {', '.join(kinds)}, not {value!r}")
    return value
