"""The operations. Some are written out, one module for each resource; the others are made from the methods of the stores by a
table. Docstrings are the words of the OpenAPI document."""

from __future__ import annotations

from ..operations import Operation, collect
from . import conversation, execution, keys, messages, platform, server, sessions, streaming, tenants, workspaces

OPERATIONS: list[Operation] = [
    *collect(server, tenants, keys, sessions, messages, streaming, workspaces),
    *conversation.ROUTES,
    *execution.ROUTES,
    *workspaces.ROUTES,
    *platform.ROUTES,
]
"""Everything the server can do."""
