"""Registration of tenants: the first write of a tenant inserts its row."""

from __future__ import annotations

from ..engines.protocol import Connection
from .queries import Params, Queries

queries = Queries(__package__, "registration.sql")


async def register_tenant(connection: Connection, params: Params) -> None:
    """Register the tenant ``tenant_id`` at the time ``now_at``, unless it is registered.

    Citus keeps a copy of the table on every node and writes to all copies or to none. So the tenant is looked up first on
    Citus: a registered tenant can be written to while the nodes of other tenants are down.
    """
    if connection.distributed and await queries.is_registered.one(connection, params) is not None:
        return
    await queries.register.all(connection, params)
