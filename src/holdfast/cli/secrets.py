"""``holdfast secrets``: the keys that encrypt what is stored as a secret."""

from __future__ import annotations

import click

from holdfast.encryption import new_key as made_key
from holdfast.encryption import rotate_secrets

from .database import database_option, open_there
from .output import json_option, print_json, print_line, progress_bar


@click.group()
def secrets() -> None:
    """Make encryption keys and change over to a new one."""


@secrets.command("new-key")
@json_option
def new_key(as_json: bool) -> None:
    """Print a new encryption key: 64 hexadecimal digits, for HOLDFAST_ENCRYPTION_KEY or a key file. It is stored nowhere."""
    key = made_key()
    if as_json:
        print_json({"key": key})
    else:
        print_line(key)


@secrets.command()
@database_option
@json_option
def rotate(database: str, as_json: bool) -> None:
    """Encrypt every stored secret with the first key.

    The keys are those in HOLDFAST_ENCRYPTION_KEY, separated by commas, or in encryption.key beside a SQLite database, one in a
    line: the new one first, the older ones behind it. Older keys can go when every secret is encrypted with the new one. A
    rotation that was stopped goes on when it is started again; servers can run beside it.
    """
    with open_there(database) as hf, progress_bar("encrypting") as advance:
        done = rotate_secrets(hf, on_progress=advance)
        key_id = hf.encryption.key_ids[0]
    if as_json:
        print_json({"key_id": key_id, "rotation": done})
    else:
        print_line(f"{done.renewed:,} secrets are encrypted with the key {key_id} now.")
        for each in done.failures:
            print_line(f"  {each}")
        if done.failed:
            print_line(f"{done.failed:,} could not be decrypted and are as they were: add the keys that they need.")
    if done.failed:
        raise click.exceptions.Exit(1)
