"""``holdfast pairing``: approve the senders who wait on channels, and revoke paired ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from msgspec import Struct

from .database import open_tenant, tenant_option
from .output import json_option, print_json, print_line, print_table
from .record_commands import MAX_ROWS, acting_option, as_user, cell

_REQUEST = ["code", "sender", "channel", "account", "created_at", "expires_at"]
_DEVICE = ["sender", "channel", "chat", "paired_by", "paired_at", "expires_at"]


@click.group()
def pairing() -> None:
    """Pair senders on channels: an unknown sender has a code, which an operator approves or denies."""


def _listing(command: Callable[..., None]) -> Any:
    """Add the options of a list."""
    cursor = click.option("--cursor", help="The cursor of the next page, which the JSON of a page has as `next`.")
    rows = click.IntRange(1, MAX_ROWS)
    limit = click.option("--limit", default=20, show_default=True, type=rows, help="Maximum number of rows.")
    return tenant_option(limit(cursor(json_option(command))))


@pairing.command("list")
@_listing
def list_requests(database: str, tenant: str, limit: int, cursor: str | None, as_json: bool) -> None:
    """List the senders who wait for approval, with their codes."""
    with open_tenant(database, tenant) as handle:
        page = handle.pairing.pending(limit=limit, cursor=cursor)
    _print("pairing_requests", f"Pairing requests of {tenant}", _REQUEST, page, page.next, as_json)


@pairing.command("devices")
@_listing
def list_devices(database: str, tenant: str, limit: int, cursor: str | None, as_json: bool) -> None:
    """List the paired senders."""
    with open_tenant(database, tenant) as handle:
        page = handle.pairing.paired(limit=limit, cursor=cursor)
    _print("paired_devices", f"Paired devices of {tenant}", _DEVICE, page, page.next, as_json)


@pairing.command("approve")
@tenant_option
@click.argument("code")
@acting_option
@json_option
def approve(database: str, tenant: str, code: str, acting: str | None, as_json: bool) -> None:
    """Pair the sender who has CODE."""
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        device = handle.pairing.approve(code)
    if as_json:
        print_json({"paired_device": device})
    else:
        print_line(f"Paired {device.sender} on {device.channel} until {cell(device.expires_at)}.")


@pairing.command("deny")
@tenant_option
@click.argument("code")
@acting_option
@json_option
def deny(database: str, tenant: str, code: str, acting: str | None, as_json: bool) -> None:
    """Remove the request with CODE."""
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        handle.pairing.deny(code)
    if as_json:
        print_json({"denied": code})
    else:
        print_line(f"Denied {code}.")


@pairing.command("revoke")
@tenant_option
@click.argument("sender")
@click.argument("channel")
@acting_option
@json_option
def revoke(database: str, tenant: str, sender: str, channel: str, acting: str | None, as_json: bool) -> None:
    """End the pairing of SENDER on CHANNEL."""
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        handle.pairing.revoke(sender, channel)
    if as_json:
        print_json({"revoked": {"sender": sender, "channel": channel}})
    else:
        print_line(f"{sender} is no longer paired on {channel}.")


def _print(
    name: str, title: str, columns: Sequence[str], rows: Sequence[Struct], following: str | None, as_json: bool
) -> None:
    if as_json:
        print_json({name: list(rows), "next": following})
        return
    cells = [[cell(getattr(row, column)) for column in columns] for row in rows]
    print_table(title, [column.replace("_", " ") for column in columns], cells)
