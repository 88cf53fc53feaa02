"""Makers for the requests for access to MCP servers."""

from __future__ import annotations

from tests.workloads.workloads import Arguments, World, maker


@maker("mcp_requests.create", before="mcp_servers.create")
def _create(world: World) -> Arguments | None:
    """Return a request for a grant to a user, or to an agent if there is one."""
    servers, agents = world.tenant.mcp_servers.list(), world.tenant.agents.list()
    if not servers:
        return None
    scope = world.random.choice(("agent", "user") if agents else ("user",))
    subject = world.random.choice(agents).id if scope == "agent" else world.random.choice(("ada", "bob"))
    tools = world.random.choice((None, [], ["read"], ["read", world.text() or "write"]))
    values = {"scope": scope, scope: subject, "tool_allow": tools, "reason": world.text()}
    return (world.random.choice(servers).id,), values


@maker("mcp_requests.review", before="mcp_requests.create")
def _review(world: World) -> Arguments | None:
    """Return the review of a request, usually of a pending one."""
    request = _request(world)
    approved = world.random.random() < 0.7
    return None if request is None else ((request,), {"approved": approved, "by": "root", "note": world.text()})


@maker("mcp_requests.cancel", before="mcp_requests.create")
def _cancel(world: World) -> Arguments | None:
    request = _request(world)
    return None if request is None else ((request,), {})


def _request(world: World) -> str | None:
    status = world.random.choice(("pending", "pending", "pending", None))
    requests = world.tenant.mcp_requests.list(status=status)
    return world.random.choice(requests).id if requests else None
