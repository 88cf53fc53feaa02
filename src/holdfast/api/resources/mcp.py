"""Routes of MCP servers, with their tools, grants and access requests."""

from __future__ import annotations

from holdfast.types import AsyncMcpGrants, AsyncMcpRequests, AsyncMcpServers, McpRequest

from ..grant_routes import grants
from ..record_routes import records
from ..store_routes import route
from .conversation import T

_MR = T + "/mcp-requests"

ROUTES = [
    *records(T + "/mcp-servers", "mcp_servers", AsyncMcpServers, area="tools"),
    route("GET", T + "/mcp-tools", "mcp_servers", AsyncMcpServers.tools, "list_mcp_tools", area="tools"),
    route(
        "GET",
        T + "/mcp-access",
        "mcp_servers",
        AsyncMcpServers.list_accessible,
        "list_accessible_mcp_servers",
        area="tools",
    ),
    *grants(T + "/mcp-grants", "mcp_grants", AsyncMcpGrants, area="tools"),
    route("GET", _MR, "mcp_requests", AsyncMcpRequests.list, "list_mcp_requests", area="tools", row=McpRequest),
    route(
        "GET",
        _MR + "/count",
        "mcp_requests",
        AsyncMcpRequests.count,
        "count_mcp_requests",
        area="tools",
        row=McpRequest,
    ),
    route("POST", _MR, "mcp_requests", AsyncMcpRequests.create, "create_mcp_request", area="tools"),
    route("GET", _MR + "/{id}", "mcp_requests", AsyncMcpRequests.get, "get_mcp_request", area="tools", row=McpRequest),
    route("POST", _MR + "/{id}/review", "mcp_requests", AsyncMcpRequests.review, "review_mcp_request", area="tools"),
    route("POST", _MR + "/{id}/cancel", "mcp_requests", AsyncMcpRequests.cancel, "cancel_mcp_request", area="tools"),
]
