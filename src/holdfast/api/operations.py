"""What an operation is: a typed function with a method and a path.

The signature says everything. The first parameter is the ``Service``. A parameter named in the path comes from there; ``body`` is
the JSON body, and ``upload`` one that is not JSON; one annotated with ``Header`` comes from that header; every other one is a
query parameter, and one that is not a plain value is written there as JSON. The return type is the body of the answer::

    @operation("GET", "/v1/tenants/{tenant}/sessions/{session_id}", raises=[NotFound], etag=session_etag)
    async def get_session(service: Service, *, tenant: str, session_id: Uuid) -> Session:
        \"\"\"One session.\"\"\"
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, TypeVar

from msgspec import Struct

from holdfast.errors import (
    Forbidden,
    HoldfastError,
    InvalidInput,
    LimitExceeded,
    OutcomeUnknown,
    StorageFull,
    Unavailable,
)

from .problems import (
    BodyTooLarge,
    NotAuthenticated,
    TooManyRequests,
    TooSlow,
    WrongContentType,
    status_of,
)

Function = Callable[..., Coroutine[Any, Any, Any]]
F = TypeVar("F", bound=Function)

_ALWAYS: tuple[type[HoldfastError], ...] = (InvalidInput, Forbidden, HoldfastError)
_WITH_DATABASE: tuple[type[HoldfastError], ...] = (LimitExceeded, Unavailable)
_WHEN_WRITING: tuple[type[HoldfastError], ...] = (StorageFull, OutcomeUnknown)
_WITH_BODY: tuple[type[HoldfastError], ...] = (BodyTooLarge, WrongContentType, TooSlow)
_WITH_KEY: tuple[type[HoldfastError], ...] = (NotAuthenticated, TooManyRequests)

Need = Literal["open", "read", "write", "admin", "watch", "root"]
"""What an operation asks of a caller: nothing, one of the scopes, or, of a key that is good for all tenants, ``read`` (``watch``)
or ``admin`` (``root``)."""

AREAS = {
    "server": "The server itself.",
    "keys": "API keys: who is let in, to which tenant, and to do what.",
    "tenants": "The walls: nothing of one tenant can be seen from another.",
    "sessions": "Conversations, found by id or by key.",
    "messages": "One log per session.",
    "branches": "Other ways a conversation could go on: forks, rewinds, and the way back.",
    "compactions": "Making a session's context smaller, and taking that back.",
    "pending-messages": "What was said in a group chat while nobody was asked.",
    "contacts": "The people an agent has met on its channels.",
    "feedback": "What users think of what was said.",
    "agents": "Definitions, and the core blocks of memory that belong to them.",
    "runs": "Executions of an agent: claims, steps and tool calls.",
    "checkpoints": "Saved states of graphs.",
    "objects": "Large contents, each kept once.",
    "flows": "Saved states of flows.",
    "memories": "What crews and agents remember.",
    "tasks": "Tasks of agents that speak to each other, and whom to tell about them.",
    "tools": "Servers that have tools, and the tools they have.",
    "workspaces": "Directory trees, captured and restored.",
    "activity": "What was done, by whom and why.",
    "retention": "How long things are kept.",
    "erasures": "Tenants who are to be forgotten.",
    "diagnostics": "What is not as it should be, and its repair.",
}
"""The kinds of things there are: the groups of the document, and what stands before the colon of a scope."""
KAGENT = "kagent"
"""What stands there for everything that kagent's clients ask for, whatever it is about."""


class Header(Struct, frozen=True):
    """Says which header a parameter comes from."""

    name: str


class Operation(Struct, frozen=True):
    """One function, and where it is found."""

    method: str
    path: str
    function: Function
    status: int
    raises: tuple[type[HoldfastError], ...]
    etag: Callable[[Any], str] | None
    need: Need = "read"
    area: str = ""
    streams: bool = False

    @property
    def tag(self) -> str:
        """The group it stands in: what it was given, or the last word of the path that is one, or ``server``."""
        words = [word for word in self.path.split("/") if word in AREAS]
        return self.area or (words[-1] if words else "server")

    @property
    def has_body(self) -> bool:
        return "body" in self.function.__annotations__ or self.takes_upload

    @property
    def takes_upload(self) -> bool:
        """Whether the body is an archive and not JSON."""
        return "upload" in self.function.__annotations__

    @property
    def errors(self) -> tuple[type[HoldfastError], ...]:
        """Everything that can go wrong: what it raises, and what can happen to every request of its sort."""
        kinds = _ALWAYS + self.raises + (_WITH_BODY if self.has_body else ())
        if self.need != "open":
            kinds += _WITH_KEY
        if self.path.startswith("/v1"):
            kinds += _WITH_DATABASE + (_WHEN_WRITING if self.method != "GET" else ())
        return kinds

    @property
    def statuses(self) -> list[int]:
        """Every status it can be answered with, the good one first."""
        return [self.status, *sorted({status_of(kind) for kind in self.errors})]


def operation(
    method: str,
    path: str,
    *,
    status: int = 200,
    raises: Sequence[type[HoldfastError]] = (),
    etag: Callable[[Any], str] | None = None,
    need: Need | None = None,
    area: str = "",
    streams: bool = False,
) -> Callable[[F], F]:
    """Mark a function as an operation; ``collect`` finds it.

    Args:
        need: what it asks of a caller; without a word, ``read`` for GET and ``write`` for everything else.
        area: the kind of thing it is about, for scopes and the document; without a word, what the path says.
        streams: whether it may take longer than one request: an iterator of events, or something large that comes or goes.
    """
    needed: Need = need or ("read" if method == "GET" else "write")

    def mark(function: F) -> F:
        function.operation = Operation(  # type: ignore[attr-defined]
            method, path, function, status, tuple(raises), etag, needed, area, streams
        )
        return function

    return mark


def check_scopes(scopes: Sequence[str]) -> None:
    """Whether the kinds of things in scopes exist: a key for one that does not would open nothing. The rest the store checks.

    Raises:
        InvalidInput: one does not.
    """
    for scope in scopes:
        kind, colon, _ = scope.partition(":")
        if colon and kind not in AREAS and kind != KAGENT:
            kinds = ", ".join(sorted([*AREAS, KAGENT]))
            raise InvalidInput(f"the scope {scope!r} is for no kind of thing there is; there are {kinds}")


def collect(*modules: object) -> list[Operation]:
    """The operations of these modules, in the order they are written."""
    found = [getattr(each, "operation", None) for module in modules for each in vars(module).values()]
    return [each for each in found if isinstance(each, Operation)]
