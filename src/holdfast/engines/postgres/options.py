"""How many connections to PostgreSQL are kept, and for how long."""

from __future__ import annotations

from msgspec import Struct


class PoolOptions(Struct, frozen=True, kw_only=True):
    """Sizes and times of a pool of connections. The defaults suit one service in production."""

    max_connections: int = 25
    """Connections at most."""
    min_connections: int = 5
    """Connections kept open."""
    max_lifetime_s: float = 3_600.0
    """Age at which a connection is replaced, so that none outlives a change of address or of server."""
    max_idle_s: float = 1_800.0
    """Time without use after which a connection beyond the minimum is closed."""
    health_check_s: float = 60.0
    """Time without use after which a connection is tried before it is used."""
    connect_timeout_s: float = 10.0
    """Longest wait for a connection, new or from the pool."""
