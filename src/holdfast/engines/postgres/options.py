"""How many connections to PostgreSQL are kept, and for how long."""

from __future__ import annotations

from math import inf
from typing import Any

from msgspec import Struct

from ...errors import InvalidInput

_PREFIX = "pool_"
"""How the options of the pool begin in an address."""
_MOST = 10**9
NOT_UNDERSTOOD = "PostgreSQL's driver does not understand this address: look at the options behind its question mark"
"""What is said instead of the driver's own words about an address: those can repeat the password that is in it."""


class PoolOptions(Struct, frozen=True, kw_only=True):
    """Sizes and times of a pool of connections. The defaults suit one service in production.

    Raises:
        InvalidInput: a pool without connections, or a deadline that is no time.
    """

    max_connections: int = 25
    """Connections at most."""
    min_connections: int = 5
    """Connections kept open; never more than there may be."""
    max_lifetime_s: float = 3_600.0
    """Age at which a connection is replaced, so that none outlives a change of address or of server."""
    max_idle_s: float = 1_800.0
    """Time without use after which a connection beyond the minimum is closed."""
    health_check_s: float = 60.0
    """Time without use after which a connection is tried before it is used."""
    connect_timeout_s: float = 10.0
    """Longest wait for a connection, new or from the pool. Of several hosts, each gets its part of it to answer in, unless the
    address says ``connect_timeout``, which is the time for each host."""
    statement_deadline_s: float = 60.0
    """Longest wait for the answer to a statement or a commit, 0 for no limit. A server that stops without closing its connections
    would otherwise stop its callers for ever. A write that was sent by then is ``OutcomeUnknown``; anything else is
    ``Unavailable``. Migrations have no deadline."""

    def __post_init__(self) -> None:
        if self.max_connections < 1 or self.min_connections < 0:
            raise InvalidInput("max_connections must be 1 or more, and min_connections 0 or more")
        if not 0 <= self.statement_deadline_s < inf:
            raise InvalidInput(
                f"statement_deadline_s={self.statement_deadline_s}: it must be a time in seconds, or 0 for none"
            )

    @property
    def kept(self) -> int:
        """How many connections are kept open."""
        return min(self.min_connections, self.max_connections)


def split_pool(url: str, given: PoolOptions | None) -> tuple[str, PoolOptions]:
    """An address without the options of the pool that it names, such as ``?pool_max_connections=50``, and the pool. Options that
    the caller has ``given`` win over those of the address.

    Raises:
        InvalidInput: there is no such option, or its value is no number from 0 on.
    """
    place, _, query = url.partition("?")
    parts = query.split("&") if query else []
    ours = [each for each in parts if each.startswith(_PREFIX)]
    rest = "&".join(each for each in parts if not each.startswith(_PREFIX))
    named = PoolOptions(**dict(map(_option, ours)))
    return f"{place}?{rest}" if rest else place, given or named


def _option(written: str) -> tuple[str, Any]:
    name, _, value = written.partition("=")
    field = name.removeprefix(_PREFIX)
    if field not in PoolOptions.__struct_fields__:
        options = ", ".join(_PREFIX + each for each in PoolOptions.__struct_fields__)
        raise InvalidInput(f"there is no option {name} of the pool; there are {options}")
    kind = type(getattr(PoolOptions(), field))
    try:
        number = kind(value)
    except ValueError:
        number = -1
    if not 0 <= number < _MOST:
        raise InvalidInput(f"{name} is a {'whole ' if kind is int else ''}number from 0 on, not {value!r}")
    return field, number
