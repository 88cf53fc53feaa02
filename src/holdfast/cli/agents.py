"""``holdfast agents``: the definitions of agents, and who may use them."""

from __future__ import annotations

from typing import Any

import click
from msgspec import structs

from holdfast.types import AsyncAgents, AsyncAgentShares

from .agent_users import messages, users
from .database import open_tenant, tenant_option
from .grant_commands import add_grants
from .output import json_option, print_json, print_table
from .record_commands import MAX_ROWS, cell, record_commands

agents = record_commands(
    "agents",
    AsyncAgents,
    columns=["key", "display_name", "owner", "agent_type", "status", "is_default", "model", "id"],
    about="Manage agents and who may use them.",
)


def agent_id(handle: Any, key: str) -> str:
    """Return the id of the agent with this key, or the argument itself, which is an id then."""
    agent = handle.agents.find(key)
    return key if agent is None else str(agent.id)


add_grants(
    agents, "agent_shares", AsyncAgentShares, grant="share", revoke="revoke-share", list="shares", key_of=agent_id
)
agents.add_command(messages)
agents.add_command(users)


@agents.command("access")
@tenant_option
@click.argument("agent")
@click.option("--user", required=True, help="The user whose access is checked.")
@json_option
def access(database: str, tenant: str, agent: str, user: str, as_json: bool) -> None:
    """Tell whether a user may use AGENT, in which role, and which step decided.

    The exit code is 0 in any case.
    """
    with open_tenant(database, tenant) as handle:
        decided = handle.agents.access(agent_id(handle, agent), user)
    if as_json:
        print_json({"access": decided})
        return
    rows = [[field, cell(value)] for field, value in structs.asdict(decided).items()]
    print_table(f"Access of {user} to {agent}", ["field", "value"], rows)


@agents.command("accessible")
@tenant_option
@click.argument("user")
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, MAX_ROWS), help="Maximum number of rows."
)
@click.option("--cursor", help="The cursor of the next page, which the JSON of a page has as `next`.")
@json_option
def accessible(database: str, tenant: str, user: str, limit: int, cursor: str | None, as_json: bool) -> None:
    """List the agents that the user USER may use."""
    with open_tenant(database, tenant) as handle:
        page = handle.agents.list_accessible(user, limit=limit, cursor=cursor)
    if as_json:
        print_json({"agents": [*page], "next": page.next})
        return
    names = ["key", "display_name", "owner", "is_default", "id"]
    rows = [[cell(getattr(agent, name)) for name in names] for agent in page]
    print_table(f"Agents that {user} may use", [name.replace("_", " ") for name in names], rows)
