"""Commands about the users and the messages of an agent, added to the groups of record stores."""

from __future__ import annotations

from datetime import datetime

import click

from .database import open_tenant, tenant_option
from .output import json_option, print_json, print_table
from .sessions import preview

_limit = click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 1_000), help="Maximum number of rows."
)
_cursor = click.option("--cursor", help="The cursor of the next page, which the JSON of a page has as `next`.")


@click.command()
@tenant_option
@click.argument("agent")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M:%S%z"]),
    help="Only messages from this time on, with its offset from UTC: 2026-01-31T12:00:00+00:00.",
)
@_limit
@_cursor
@json_option
def messages(
    database: str, tenant: str, agent: str, since: datetime | None, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List the messages of AGENT over all of its sessions, the newest first."""
    with open_tenant(database, tenant) as handle:
        page = handle.agent_messages.list(agent, since=since, limit=limit, cursor=cursor)
    if as_json:
        print_json({"messages": list(page), "next": page.next})
        return
    rows = [
        [f"{item.created_at:%Y-%m-%d %H:%M:%S}", item.session_id, str(item.seq), item.role or item.kind, preview(item)]
        for item in page
    ]
    print_table(f"Messages of {agent}", ["created", "session", "seq", "role", "message"], rows)


@click.command()
@tenant_option
@click.argument("agent")
@_limit
@_cursor
@json_option
def users(database: str, tenant: str, agent: str, limit: int, cursor: str | None, as_json: bool) -> None:
    """List the users of AGENT, the one seen last first."""
    with open_tenant(database, tenant) as handle:
        page = handle.profiles.users(agent, limit=limit, cursor=cursor)
    if as_json:
        print_json({"users": list(page), "next": page.next})
        return
    rows = [
        [
            item.profile.user,
            item.profile.workspace,
            str(item.file_count),
            f"{item.profile.last_seen_at:%Y-%m-%d %H:%M:%S}",
        ]
        for item in page
    ]
    print_table(f"Users of {agent}", ["user", "workspace", "files", "last seen"], rows)
