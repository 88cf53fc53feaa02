"""A tenant is registered by its first write."""

from __future__ import annotations

from ..engines.protocol import Connection
from .queries import Params, Queries

queries = Queries(__package__, "registration.sql")


async def register_tenant(connection: Connection, params: Params) -> None:
    """Register the tenant ``tenant_id`` at the time ``now_at``, unless it is registered.

    Citus keeps a copy of the tenants on every machine, and writes to all copies or to none. So there a tenant is looked up
    first: one that is registered can be written to while the machines of other tenants are down.
    """
    if connection.distributed and await queries.is_registered.one(connection, params) is not None:
        return
    await queries.register.all(connection, params)
