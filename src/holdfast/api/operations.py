"""Declares operations: typed functions with a method and a path.

The signature describes the request. The first parameter is the ``Service``. A parameter that is named in the path is taken from
there; ``body`` is the JSON body, and ``upload`` is a body of another type; a parameter annotated with ``Header`` is taken from
that header; every other one is a query parameter, which is encoded as JSON unless it is a plain value. The function returns the
response body::

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
"""The permission that an operation requires: none, one of the scopes, or, of a key for all tenants, ``read`` (``watch``) or
``admin`` (``root``)."""

AREAS = {
    "server": "The server itself.",
    "keys": "API keys: their tenants and scopes.",
    "tenants": "Isolated spaces: data of one tenant is never visible to another.",
    "sessions": "Conversations, found by id or by key.",
    "messages": "The message log of each session.",
    "branches": "Alternative continuations of a session: forks, rewinds, and switching between them.",
    "compactions": "Reducing a session's context, and undoing that.",
    "pending-messages": "Group chat messages that the agent has not been asked to answer yet.",
    "contacts": "The people an agent has met on its channels.",
    "feedback": "Users' ratings of answers.",
    "agents": "Agent definitions, with their core memory blocks, context files and users.",
    "runs": "Executions of an agent: leases, steps and tool calls.",
    "checkpoints": "Saved graph states.",
    "objects": "Large contents, stored once each.",
    "flows": "Saved flow states.",
    "memories": "Memories of crews and agents.",
    "tasks": "Tasks between agents (A2A), and their push notification settings.",
    "channels": "Connections of agents to chat platforms, with their credentials.",
    "pairing": "Senders on channels who wait for approval, and those who are paired.",
    "providers": "Model providers, with their keys.",
    "models": "The models of providers, with sizes and prices.",
    "secrets": "Other secrets of a tenant, by name.",
    "tools": "MCP servers, their tools, and who may use them.",
    "declared-resources": "Resources that manifests declare, and applying them.",
    "custom-tools": "Tools that are commands with parameters.",
    "builtin-tools": "Tools that a program brings along, and their settings.",
    "secure-cli": "Programs that agents may start, with their credentials and rules.",
    "workspaces": "Directory trees, captured and restored.",
    "activity": "The activity log: each action with its actor and reason.",
    "retention": "Retention policies, holds and sweeps.",
    "erasures": "Permanent erasure of tenants.",
    "diagnostics": "Finding inconsistencies and repairing them.",
}
"""The areas of the API: tags of the OpenAPI document, and the part before the colon of a scope."""
KAGENT = "kagent"
"""The area in scopes of all requests of kagent's clients, regardless of the resource."""


class Header(Struct, frozen=True):
    """Annotation of a parameter that is taken from a header."""

    name: str


class Operation(Struct, frozen=True):
    """One function with its method, path and responses."""

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
        """The tag: the explicit area, else the last word of the path that is an area, else ``server``."""
        words = [word for word in self.path.split("/") if word in AREAS]
        return self.area or (words[-1] if words else "server")

    @property
    def has_body(self) -> bool:
        return "body" in self.function.__annotations__ or self.takes_upload

    @property
    def takes_upload(self) -> bool:
        """Whether the body is an archive instead of JSON."""
        return "upload" in self.function.__annotations__

    @property
    def errors(self) -> tuple[type[HoldfastError], ...]:
        """All errors that it can answer with: its own, and those that every request of its kind can cause."""
        kinds = _ALWAYS + self.raises + (_WITH_BODY if self.has_body else ())
        if self.need != "open":
            kinds += _WITH_KEY
        if self.path.startswith("/v1"):
            kinds += _WITH_DATABASE + (_WHEN_WRITING if self.method != "GET" else ())
        return kinds

    @property
    def statuses(self) -> list[int]:
        """All statuses that it can answer with, the successful one first."""
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
    """Declare a function as an operation; ``collect`` finds it.

    Args:
        need: the required permission; by default ``read`` for GET and ``write`` for other methods.
        area: the area for scopes and the document; by default it is derived from the path.
        streams: whether it may take longer than ``answer_s``: it streams events, or transfers an archive.
    """
    permission: Need = need or ("read" if method == "GET" else "write")

    def mark(function: F) -> F:
        function.operation = Operation(  # type: ignore[attr-defined]
            method, path, function, status, tuple(raises), etag, permission, area, streams
        )
        return function

    return mark


def check_scopes(scopes: Sequence[str]) -> None:
    """Check that the areas in scopes exist: a key for an unknown one would permit nothing. The store checks the rest.

    Raises:
        InvalidInput: an area does not exist.
    """
    for scope in scopes:
        area, colon, _ = scope.partition(":")
        if colon and area not in AREAS and area != KAGENT:
            areas = ", ".join(sorted([*AREAS, KAGENT]))
            raise InvalidInput(f"the scope {scope!r} has an unknown area; areas: {areas}", field="scopes")


def collect(*modules: object) -> list[Operation]:
    """Return the operations of these modules, in the order of their definition."""
    candidates = [getattr(member, "operation", None) for module in modules for member in vars(module).values()]
    return [candidate for candidate in candidates if isinstance(candidate, Operation)]
