"""Options of the PostgreSQL connection pool: sizes, lifetimes and timeouts."""

from __future__ import annotations

from math import inf
from typing import Any

from msgspec import Struct

from ...errors import InvalidInput

_PREFIX = "pool_"
"""Prefix of pool options in an address."""
_MAX_VALUE = 10**9
NOT_UNDERSTOOD = "PostgreSQL's driver does not understand this address: check the options after its question mark"
"""Replaces the driver's own message, which may repeat the password in the address."""


class PoolOptions(Struct, frozen=True, kw_only=True):
    """Sizes and timeouts of a connection pool. The defaults suit one service in production.

    Raises:
        InvalidInput: the pool would have no connections, or the deadline is negative or not finite.
    """

    max_connections: int = 25
    """Maximum number of connections."""
    min_connections: int = 5
    """Connections kept open, at most ``max_connections``."""
    max_lifetime_s: float = 3_600.0
    """Age at which a connection is replaced, so that a changed DNS entry or server takes effect."""
    max_idle_s: float = 1_800.0
    """Idle time after which a connection above the minimum is closed."""
    health_check_s: float = 60.0
    """Idle time after which a connection is checked before it is used."""
    connect_timeout_s: float = 10.0
    """Longest wait for a connection, new or from the pool. Several hosts share this time equally, unless the address
    contains ``connect_timeout``, which then applies to each host."""
    statement_deadline_s: float = 60.0
    """Longest wait for the result of a statement or a commit, or 0 for no limit. Without it, a server that hangs without
    closing its connections would block its callers forever. A write that was already sent raises ``OutcomeUnknown``;
    everything else raises ``Unavailable``. Migrations have no deadline."""

    def __post_init__(self) -> None:
        if self.max_connections < 1 or self.min_connections < 0:
            raise InvalidInput(
                f"max_connections={self.max_connections} must be at least 1, and min_connections={self.min_connections} "
                "at least 0",
                field="max_connections" if self.max_connections < 1 else "min_connections",
            )
        if not 0 <= self.statement_deadline_s < inf:
            raise InvalidInput(
                f"statement_deadline_s={self.statement_deadline_s} must be a finite number of seconds, or 0 for no deadline",
                field="statement_deadline_s",
            )

    @property
    def kept(self) -> int:
        """The number of connections kept open."""
        return min(self.min_connections, self.max_connections)


def split_pool(url: str, options: PoolOptions | None) -> tuple[str, PoolOptions]:
    """Split pool options such as ``?pool_max_connections=50`` from an address; return the rest of the address and the options.

    ``options`` passed by the caller take precedence over those in the address.

    Raises:
        InvalidInput: an option is unknown, or its value is negative or not a number.
    """
    base, _, query = url.partition("?")
    parts = query.split("&") if query else []
    pool_parts = [part for part in parts if part.startswith(_PREFIX)]
    rest = "&".join(part for part in parts if not part.startswith(_PREFIX))
    from_url = PoolOptions(**dict(map(_parse_option, pool_parts)))
    return f"{base}?{rest}" if rest else base, options or from_url


def _parse_option(part: str) -> tuple[str, Any]:
    name, _, value = part.partition("=")
    field = name.removeprefix(_PREFIX)
    if field not in PoolOptions.__struct_fields__:
        options = ", ".join(_PREFIX + initial for initial in PoolOptions.__struct_fields__)
        raise InvalidInput(f"unknown pool option {name!r}; known options: {options}", field=name)
    kind = type(getattr(PoolOptions(), field))
    try:
        number = kind(value)
    except ValueError:
        number = -1
    if not 0 <= number < _MAX_VALUE:
        raise InvalidInput(
            f"{name}={value!r} must be a {'whole ' if kind is int else ''}number of 0 or more", field=name
        )
    return field, number
