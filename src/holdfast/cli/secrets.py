"""``holdfast secrets``: a tenant's secrets by name, encryption keys, and re-encryption with a new key."""

from __future__ import annotations

import click

from holdfast.encryption import new_key as generate_key
from holdfast.encryption import rotate_secrets
from holdfast.errors import NotFound

from .database import database_option, open_existing, open_tenant, tenant_option
from .output import json_option, print_json, print_line, print_text, progress_bar
from .record_commands import MAX_ROWS, acting_option, as_user
from .record_options import decorate, secret_options, secret_text


@click.group()
def secrets() -> None:
    """Manage the secrets of a tenant, create encryption keys, and re-encrypt stored secrets with a new key."""


@secrets.command("set")
@tenant_option
@click.argument("key")
@decorate(secret_options("value", "The value"))
@acting_option
@json_option
def set_secret(
    database: str,
    tenant: str,
    key: str,
    value_file: str | None,
    value_env: str | None,
    acting: str | None,
    as_json: bool,
) -> None:
    """Store a secret, or replace the one named KEY.

    Its value is never an argument, because every user of the machine can read the arguments of a process. Without an option it
    is read from standard input.
    """
    value = secret_text("value", "-" if value_file is None and value_env is None else value_file, value_env)
    assert value is not None  # one of the two is given
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        handle.secrets.set(key, value)
    if as_json:
        print_json({"set": key})
    else:
        print_line(f"Stored {key}.")


@secrets.command("get")
@tenant_option
@click.argument("key")
@acting_option
@json_option
def get_secret(database: str, tenant: str, key: str, acting: str | None, as_json: bool) -> None:
    """Print the value of the secret named KEY, and log that."""
    with open_tenant(database, tenant) as handle, as_user(handle, acting):
        value = handle.secrets.get(key)
    if as_json:
        print_json({"key": key, "value": value.reveal()})
    else:
        print_text(f"{value.reveal()}\n")


@secrets.command("list")
@tenant_option
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, MAX_ROWS), help="Maximum number of names."
)
@click.option("--cursor", help="The cursor of the next page, which the JSON of a page has as `next`.")
@json_option
def list_secrets(database: str, tenant: str, limit: int, cursor: str | None, as_json: bool) -> None:
    """List the names of the secrets."""
    with open_tenant(database, tenant) as handle:
        names = handle.secrets.list(limit=limit, cursor=cursor)
    if as_json:
        print_json({"secrets": list(names), "next": names.next})
        return
    for name in names:
        print_line(name)


@secrets.command("delete")
@tenant_option
@click.argument("key")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@acting_option
@json_option
def delete_secret(database: str, tenant: str, key: str, yes: bool, acting: str | None, as_json: bool) -> None:
    """Permanently delete the secret named KEY."""
    with open_tenant(database, tenant) as handle:
        if not yes:
            click.confirm(f"Permanently delete secret {key}?", abort=True, err=True)
        with as_user(handle, acting):
            if not handle.secrets.delete(key):
                raise NotFound(f"secret {key!r} does not exist", noun="secret", key=key)
    if as_json:
        print_json({"deleted": key})
    else:
        print_line(f"Deleted secret {key}.")


@secrets.command("new-key")
@json_option
def new_key(as_json: bool) -> None:
    """Print a new encryption key: 64 hexadecimal digits, for HOLDFAST_ENCRYPTION_KEY or a key file. It is not stored."""
    key = generate_key()
    if as_json:
        print_json({"key": key})
    else:
        print_line(key)


@secrets.command()
@database_option
@json_option
def rotate(database: str, as_json: bool) -> None:
    """Re-encrypt every stored secret with the first key.

    The keys are read from HOLDFAST_ENCRYPTION_KEY, separated by commas, or from the file encryption.key next to a SQLite
    database, one on each line: the new key first, followed by the older ones. Older keys can be removed once every secret is
    encrypted with the new key. To resume an interrupted rotation, run it again. Servers can keep running meanwhile.
    """
    with open_existing(database) as hf, progress_bar("encrypting") as advance:
        rotation = rotate_secrets(hf, on_progress=advance)
        key_id = hf.encryption.key_ids[0]
    if as_json:
        print_json({"key_id": key_id, "rotation": rotation})
    else:
        print_line(f"{rotation.renewed:,} secrets were encrypted with key {key_id}.")
        for failure in rotation.failures:
            print_line(f"  {failure}")
        if rotation.failed:
            print_line(
                f"{rotation.failed:,} could not be decrypted and are unchanged: add the keys that encrypted them."
            )
    if rotation.failed:
        raise click.exceptions.Exit(1)
