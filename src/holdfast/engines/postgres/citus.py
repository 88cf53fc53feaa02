"""Detection of tables that Citus distributes over several nodes.

The server is queried once, when a handle is opened or, if it only joins connections, at its first call. On distributed
tables each change is a statement of its own, inside one transaction: Citus sends a statement with several changes to
every node, and a single node that is down would stop all tenants.
"""

from __future__ import annotations

from ..dialect import Dialect
from ..protocol import Connection

INSTALLED = "SELECT 1 FROM pg_catalog.pg_extension WHERE extname = 'citus'"
_DISTRIBUTED = "SELECT 1 FROM pg_dist_partition WHERE logicalrelid = to_regclass('sessions')"


async def is_distributed(connection: Connection) -> bool:
    """Return whether the tables a connection sees are distributed. Without Citus this takes one catalogue query."""
    if connection.dialect is not Dialect.POSTGRES or not await connection.fetch(INSTALLED, ()):
        return False
    return bool(await connection.fetch(_DISTRIBUTED, ()))
