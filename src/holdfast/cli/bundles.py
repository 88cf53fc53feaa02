"""``holdfast export`` and ``holdfast import bundle``: export a tenant to one file and import it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from holdfast.bundles import Bundle, check_bundle, export_tenant, import_tenant

from .database import database_from_environment, packs_option, tenant_option
from .output import json_option, print_json, print_progress, print_table
from .parameters import option

_BUNDLE = click.Path(dir_okay=False, path_type=Path)


@click.command("export")
@tenant_option
@packs_option
@click.option("--to", "file", required=True, type=_BUNDLE, help="The file to write; it must not exist.")
@json_option
def export(database: str, tenant: str, packs: str | None, file: Path, as_json: bool) -> None:
    """Write a consistent copy of a tenant to one file. API keys and secrets are not included."""
    bundle = export_tenant(database, tenant, file, packs=packs, on_progress=_progress)
    _print(bundle, as_json, f"{file} contains")


@click.command("bundle")
@option(
    "--database",
    metavar="URL",
    envvar="HOLDFAST_DATABASE_URL",
    help="The target database: a path, sqlite:///path or postgresql://...; not needed with --check.",
)
@click.option("--from", "file", required=True, type=_BUNDLE, help="A file written by `holdfast export`.")
@click.option("--as", "tenant", metavar="NAME", help="Import the tenant under this name instead of its own.")
@click.option("--check", is_flag=True, help="Only verify the file; import nothing.")
@json_option
def bundle(database: str | None, file: Path, tenant: str | None, check: bool, as_json: bool) -> None:
    """Import an exported tenant, in one transaction."""
    if check:
        _print(check_bundle(file), as_json, f"{file} is complete and contains")
        return
    database = database or database_from_environment()
    if database is None:
        raise click.UsageError("--database (HOLDFAST_DATABASE_URL) is required unless --check is given")
    _print(import_tenant(database, file, tenant=tenant, on_progress=_progress), as_json, "Imported")


def _progress(table: str, count: int) -> None:
    """Overwrite the progress line, if standard error is a terminal."""
    if sys.stderr.isatty():
        print_progress(f"{table}: {count:,}", err=True)


def _print(bundle: Bundle, as_json: bool, title: str) -> None:
    if sys.stderr.isatty():
        print_progress("", err=True)
    if as_json:
        print_json({"bundle": bundle})
        return
    rows = [[name, f"{count:,}"] for name, count in bundle.rows.items() if count]
    print_table(f"{title} tenant {bundle.tenant}", ["table", "rows"], rows)
