"""Scopes: the tenant whose data a call may see, and its dependencies such as the clock, ids and limits. Every store has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..clock import MINUTE_US, Clock
from ..errors import InvalidInput
from ..ids import IdSource
from ..limits import Limits
from . import text
from .crypto import KeyRing
from .packs import PackStorage

if TYPE_CHECKING:
    from .session_dependents import SessionDependent


class Setting:
    """The dependencies of every call, apart from the tenant.

    ``count_tokens`` is the caller's token counter, ``packs`` the storage for large objects, if there is one, and
    ``caches`` a directory for data that can be computed again. ``session_dependents`` are the parts of the stores that follow a
    session. ``keys`` encrypts secrets. ``shared`` holds what cannot be stored but belongs to all handles of one Holdfast, such as
    a function that was attached to a session: each store keeps its own under its name. ``reopen`` opens the database a second
    time, where that is possible.
    """

    __slots__ = (
        "caches",
        "clock",
        "count_tokens",
        "ids",
        "keys",
        "limits",
        "packs",
        "reopen",
        "session_dependents",
        "shared",
    )

    def __init__(
        self,
        *,
        clock: Clock,
        ids: IdSource,
        limits: Limits,
        session_dependents: Sequence[SessionDependent],
        count_tokens: Callable[[Any], int] | None = None,
        packs: PackStorage | None = None,
        caches: Path | None = None,
        shared: dict[str, Any] | None = None,
        keys: KeyRing | None = None,
        reopen: Any = None,
    ) -> None:
        self.clock, self.ids, self.limits, self.count_tokens = clock, ids, limits, count_tokens
        self.packs, self.caches, self.session_dependents = packs, caches, session_dependents
        self.shared: dict[str, Any] = {} if shared is None else shared
        self.keys = KeyRing() if keys is None else keys
        self.reopen = reopen


class Scope(Setting):
    """A setting with one tenant.

    Raises:
        InvalidInput: the tenant's name is empty.
    """

    __slots__ = ("stored_tenant", "tenant")

    def __init__(self, tenant: str, setting: Setting) -> None:
        super().__init__(
            clock=setting.clock,
            ids=setting.ids,
            limits=setting.limits,
            session_dependents=setting.session_dependents,
            count_tokens=setting.count_tokens,
            packs=setting.packs,
            caches=setting.caches,
            shared=setting.shared,
            keys=setting.keys,
            reopen=setting.reopen,
        )
        self.tenant = tenant
        self.stored_tenant = name(tenant, "tenant", setting.limits, limit="tenant_bytes")

    def params(self, **values: Any) -> dict[str, Any]:
        """Return query parameters, with the tenant added."""
        values["tenant_id"] = self.stored_tenant
        return values

    def params_now(self, **values: Any) -> dict[str, Any]:
        """Return ``params`` with the current time and its minute added."""
        now = self.clock.now_us()
        return self.params(now_at=now, now_minute=now // MINUTE_US, **values)


def name(value: object, what: str, limits: Limits, *, limit: str = "name_bytes") -> str:
    """Check a name and return its stored form.

    Raises:
        InvalidInput: it is empty or not a string.
        LimitExceeded: it is too long.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a string, not {type(value).__name__}", field=what)
    if not value:
        raise InvalidInput(f"{what} must not be empty", field=what)
    escaped = text.escape(value)
    limits.check(limit, text.size(escaped), what)
    return escaped


def free_text(value: object, what: str, limits: Limits, *, limit: str = "text_bytes") -> str:
    """Check a text that may be empty and return its stored form.

    Raises:
        InvalidInput: it is not a string.
        LimitExceeded: it is too long.
    """
    return "" if value == "" else name(value, what, limits, limit=limit)


def metadata(value: object, limits: Limits) -> str:
    """Check a metadata object and return its stored form.

    Raises:
        InvalidInput: it is not a dictionary with string keys.
        LimitExceeded: it is too large.
    """
    if not value and (value is None or isinstance(value, dict)):
        return "{}"
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput("metadata must be a dictionary with string keys", field="metadata")
    dumped = text.dump(dict(value), depth=limits.json_depth)
    limits.check("metadata_bytes", text.size(dumped), "metadata")
    return dumped
