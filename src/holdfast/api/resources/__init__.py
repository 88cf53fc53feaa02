"""The operations, one module for each resource. Their docstrings are the words of the OpenAPI document."""

from __future__ import annotations

from ..operations import Operation, collect
from . import messages, server, sessions, tenants

OPERATIONS: list[Operation] = collect(server, tenants, sessions, messages)
"""Everything the server can do."""
