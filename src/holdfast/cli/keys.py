"""``holdfast keys``: who is let into the server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import click

from holdfast import Holdfast, SystemClock, new_api_key
from holdfast.clock import from_us
from holdfast.types import ApiKey

from .database import database_option, open_there, store_per_run
from .output import json_option, print_json, print_line, print_table

MAX_DAYS = 36_500
"""Days that a key can be good for; who needs more says nothing."""
_WHEN = "%Y-%m-%d %H:%M"


@click.group()
def keys() -> None:
    """Make, list and revoke API keys, which the server asks everybody for."""


@keys.command()
@database_option
@click.option("--name", required=True, help="What it is for.")
@click.option(
    "--tenant",
    default="",
    envvar="HOLDFAST_TENANT",
    show_envvar=True,
    help="The only tenant it is good for; without it, all.",
)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    default=("read", "write"),
    show_default=True,
    help="read, write, either of a kind of thing (runs:read), or admin; may be said several times.",
)
@click.option(
    "--days", type=click.IntRange(1, MAX_DAYS), help="After so many days it is no longer good; without it, never."
)
@json_option
def create(database: str, name: str, tenant: str, scopes: Sequence[str], days: int | None, as_json: bool) -> None:
    """Draw a key and show it, this once: only its digest is kept."""
    from holdfast.api.operations import check_scopes  # here and not above: it brings the server's libraries along

    check_scopes(scopes)
    key = new_api_key()
    until = None if days is None else from_us(SystemClock().now_us()) + timedelta(days=days)
    with Holdfast(database) as hf:
        store_per_run(hf)
        kept = hf.api_keys.create(key, name=name, tenant=tenant, scopes=list(scopes), expires_at=until)
    if as_json:
        print_json({"key": key, "kept": kept})
        return
    whose = f"the tenant {tenant}" if tenant else "all tenants"
    print_line(
        f"{key}\nThis is the only time it is shown. It is good for {whose}: {', '.join(kept.scopes)} (id {kept.id})."
    )


@keys.command("list")
@database_option
@click.option("--tenant", envvar="HOLDFAST_TENANT", show_envvar=True, help="Only keys of this tenant.")
@json_option
def list_keys(database: str, tenant: str | None, as_json: bool) -> None:
    """List the keys there are, without what makes them keys."""
    with open_there(database) as hf:
        found = list(hf.api_keys.list(tenant=tenant))
    if as_json:
        print_json({"keys": found})
        return
    columns = ["id", "begins", "name", "tenant", "scopes", "last used", "state"]
    print_table("Keys", columns, [_row(each) for each in found])


@keys.command()
@database_option
@click.option("--id", "key_id", metavar="ID", required=True, help="Which, as `list` shows it.")
@json_option
def revoke(database: str, key_id: str, as_json: bool) -> None:
    """Let nobody in with this key any more. Servers that run hear of it within a second."""
    with open_there(database) as hf:
        revoked = hf.api_keys.revoke(key_id)
    if as_json:
        print_json({"key": revoked})
    else:
        print_line(f"{revoked.name} ({revoked.prefix}...) lets nobody in any more.")


def _row(key: ApiKey) -> list[str]:
    used = "never" if key.last_used_at is None else key.last_used_at.strftime(_WHEN)
    return [key.id, key.prefix, key.name, key.tenant or "(all)", " ".join(key.scopes), used, _state(key)]


def _state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return f"revoked {key.revoked_at.strftime(_WHEN)}"
    if key.expires_at is None:
        return "good"
    over = key.expires_at <= from_us(SystemClock().now_us())
    return f"{'expired' if over else 'good until'} {key.expires_at.strftime(_WHEN)}"
