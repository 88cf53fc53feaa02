"""``holdfast keys``: create, list and revoke the API keys of the server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import click

from holdfast import Holdfast, SystemClock, new_api_key
from holdfast.clock import from_us
from holdfast.types import ApiKey

from .database import database_option, open_existing, store_per_run
from .output import json_option, print_json, print_line, print_table
from .parameters import option

MAX_DAYS = 36_500
"""Maximum lifetime of a key that expires."""
_WHEN = "%Y-%m-%d %H:%M"


@click.group()
def keys() -> None:
    """Create, list and revoke the API keys that the server requires of its callers."""


@keys.command()
@database_option
@click.option("--name", required=True, help="A name that says what the key is for.")
@option(
    "--tenant",
    default="",
    show_default=False,
    envvar="HOLDFAST_TENANT",
    help="The only tenant that the key can access. Default: all tenants.",
)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    default=("read", "write"),
    show_default=True,
    help="read, write, one of these for a resource (such as runs:read), or admin; repeatable.",
)
@click.option("--days", type=click.IntRange(1, MAX_DAYS), help="Days until the key expires. Default: never.")
@json_option
def create(database: str, name: str, tenant: str, scopes: Sequence[str], days: int | None, as_json: bool) -> None:
    """Create a key and print it. It is printed only once: the database stores only its digest."""
    from holdfast.api.operations import check_scopes  # imported here because it loads the libraries of the server

    check_scopes(scopes)
    key = new_api_key()
    expires_at = None if days is None else from_us(SystemClock().now_us()) + timedelta(days=days)
    with Holdfast(database) as hf:
        store_per_run(hf)
        record = hf.api_keys.create(key, name=name, tenant=tenant, scopes=list(scopes), expires_at=expires_at)
    if as_json:
        print_json({"key": key, "kept": record})
        return
    tenants = f"the tenant {tenant}" if tenant else "all tenants"
    print_line(
        f"{key}\nThis key is shown only once. It gives access to {tenants}: {', '.join(record.scopes)} (id {record.id})."
    )


@keys.command("list")
@database_option
@option("--tenant", envvar="HOLDFAST_TENANT", help="Only keys of this tenant.")
@json_option
def list_keys(database: str, tenant: str | None, as_json: bool) -> None:
    """List all keys, without their secret part."""
    with open_existing(database) as hf:
        records = list(hf.api_keys.list(tenant=tenant))
    if as_json:
        print_json({"keys": records})
        return
    columns = ["id", "begins", "name", "tenant", "scopes", "last used", "state"]
    print_table("Keys", columns, [_row(record) for record in records])


@keys.command()
@database_option
@click.option("--id", "key_id", metavar="ID", required=True, help="The id of the key, as `list` prints it.")
@json_option
def revoke(database: str, key_id: str, as_json: bool) -> None:
    """Revoke a key. Running servers reject it within a second."""
    with open_existing(database) as hf:
        revoked = hf.api_keys.revoke(key_id)
    if as_json:
        print_json({"key": revoked})
    else:
        print_line(f"{revoked.name} ({revoked.prefix}...) is revoked.")


def _row(key: ApiKey) -> list[str]:
    used = "never" if key.last_used_at is None else key.last_used_at.strftime(_WHEN)
    return [key.id, key.prefix, key.name, key.tenant or "(all)", " ".join(key.scopes), used, _state(key)]


def _state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return f"revoked {key.revoked_at.strftime(_WHEN)}"
    if key.expires_at is None:
        return "valid"
    is_expired = key.expires_at <= from_us(SystemClock().now_us())
    return f"{'expired' if is_expired else 'valid until'} {key.expires_at.strftime(_WHEN)}"
