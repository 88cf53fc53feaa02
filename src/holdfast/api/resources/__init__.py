"""The operations. Some are written out, one module for each resource; the others are made from the methods of the stores by a
table. Docstrings are the words of the OpenAPI document."""

from __future__ import annotations

from ..operations import Operation, collect
from . import (
    a2a,
    conversation,
    execution,
    keys,
    messages,
    objects,
    pending,
    platform,
    server,
    sessions,
    shares,
    snapshots,
    streaming,
    tenants,
    workspaces,
)

OPERATIONS: list[Operation] = [
    *collect(
        server,
        tenants,
        keys,
        sessions,
        messages,
        streaming,
        shares,
        pending,
        workspaces,
        snapshots,
        objects,
        a2a,
        platform,
    ),
    *conversation.ROUTES,
    *execution.ROUTES,
    *objects.ROUTES,
    *snapshots.ROUTES,
    *a2a.ROUTES,
    *platform.ROUTES,
]
"""Everything the server can do."""
