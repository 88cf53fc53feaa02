"""``holdfast secrets``: create encryption keys and re-encrypt stored secrets."""

from __future__ import annotations

import click

from holdfast.encryption import new_key as generate_key
from holdfast.encryption import rotate_secrets

from .database import database_option, open_existing
from .output import json_option, print_json, print_line, progress_bar


@click.group()
def secrets() -> None:
    """Create encryption keys, and re-encrypt stored secrets with a new key."""


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
