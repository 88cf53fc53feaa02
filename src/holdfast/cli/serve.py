"""``holdfast serve``."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from .database import describe

FILE = "holdfast.db"


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port",
    default=8420,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Where to listen; 0 for any free port.",
)
@click.option(
    "--data-dir",
    default="data",
    show_default=True,
    envvar="HOLDFAST_DATA_DIR",
    show_envvar=True,
    type=click.Path(file_okay=False, path_type=Path),
    help=f"The folder that holds {FILE}; made if it is not there.",
)
@click.option(
    "--database",
    metavar="URL",
    envvar="HOLDFAST_DATABASE_URL",
    show_envvar=True,
    help="Another database instead: a path, sqlite:///path or postgresql://...",
)
@click.option(
    "--allow-remote",
    is_flag=True,
    help="Let other machines in. There is no authentication: everybody who can reach the server may do everything.",
)
def serve(host: str, port: int, data_dir: Path, database: str | None, allow_remote: bool) -> None:
    """Serve Holdfast over HTTP until stopped.

    Without --database, everything is kept in one SQLite file in the data folder. What was accepted when the server is told to
    stop is finished first.
    """
    from holdfast import api

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    place = database or str(_file(data_dir))
    api.serve(
        place,
        host=host,
        port=port,
        allow_remote=allow_remote,
        on_ready=lambda address: _announce(address, place),
    )


def _file(data_dir: Path) -> Path:
    """The database file in a folder that, if it is made here, only its owner can read."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return data_dir.resolve() / FILE


def _announce(address: str, place: str) -> None:
    click.echo(f"Holdfast is ready at {address}  (database: {describe(place)}; stop with Ctrl-C)")
    click.echo("Start a session:")
    body = '{"user": "ada", "agent": "helper"}'
    click.echo(f"  curl -s {address}/v1/tenants/demo/sessions -H 'Content-Type: application/json' -d '{body}'")
