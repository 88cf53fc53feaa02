"""Whether Citus distributes our tables over several machines."""

from __future__ import annotations

from ..dialect import Dialect
from ..protocol import Connection

INSTALLED = "SELECT 1 FROM pg_catalog.pg_extension WHERE extname = 'citus'"
_DISTRIBUTED = "SELECT 1 FROM pg_dist_partition WHERE logicalrelid = to_regclass('sessions')"


async def is_distributed(connection: Connection) -> bool:
    """Ask whether the tables that a connection sees are distributed. Without Citus this is one query of the catalogue."""
    if connection.dialect is not Dialect.POSTGRES or not await connection.fetch(INSTALLED, ()):
        return False
    return bool(await connection.fetch(_DISTRIBUTED, ()))
