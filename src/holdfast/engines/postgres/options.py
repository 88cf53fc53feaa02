"""How many connections to PostgreSQL are kept, and for how long."""

from __future__ import annotations

from msgspec import Struct

from ...errors import InvalidInput

NOT_UNDERSTOOD = "PostgreSQL's driver does not understand this address: look at the options behind its question mark"
"""What is said instead of the driver's own words about an address: those can repeat the password that is in it."""


class PoolOptions(Struct, frozen=True, kw_only=True):
    """Sizes and times of a pool of connections. The defaults suit one service in production.

    Raises:
        InvalidInput: a pool without connections.
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
    """Longest wait for a connection, new or from the pool."""

    def __post_init__(self) -> None:
        if self.max_connections < 1 or self.min_connections < 0:
            raise InvalidInput("max_connections must be 1 or more, and min_connections 0 or more")

    @property
    def kept(self) -> int:
        """How many connections are kept open."""
        return min(self.min_connections, self.max_connections)
