"""All operations. Some are defined as functions, one module per resource; the others are derived from store methods by ``route``.
Docstrings become the descriptions in the OpenAPI document."""

from __future__ import annotations

from ..operations import Operation, collect
from . import (
    a2a,
    agent_context,
    config,
    conversation,
    declared,
    execution,
    keys,
    mcp,
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
    tools,
    workspaces,
)

OPERATIONS: list[Operation] = [
    *collect(
        server,
        tenants,
        keys,
        sessions,
        messages,
        agent_context,
        streaming,
        shares,
        pending,
        workspaces,
        snapshots,
        objects,
        a2a,
        config,
        platform,
        declared,
    ),
    *conversation.ROUTES,
    *execution.ROUTES,
    *agent_context.ROUTES,
    *mcp.ROUTES,
    *objects.ROUTES,
    *snapshots.ROUTES,
    *a2a.ROUTES,
    *config.ROUTES,
    *platform.ROUTES,
    *declared.ROUTES,
    *tools.ROUTES,
]
"""All operations of the server."""
