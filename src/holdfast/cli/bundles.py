"""``holdfast export`` and ``holdfast import bundle``: a tenant as one file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from holdfast.bundles import Bundle, check_bundle, export_tenant, import_tenant

from .database import database_of_environment, packs_option, tenant_option
from .output import json_option, print_json, print_progress, print_table

_BUNDLE = click.Path(dir_okay=False, path_type=Path)


@click.command("export")
@tenant_option
@packs_option
@click.option("--to", "file", required=True, type=_BUNDLE, help="The file to write; it must not be there yet.")
@json_option
def exporting(database: str, tenant: str, packs: str | None, file: Path, as_json: bool) -> None:
    """Write everything of a tenant, as it is at one moment, to one file. API keys and secrets stay where they are."""
    bundle = export_tenant(database, tenant, file, packs=packs, on_progress=_progress)
    _print(bundle, as_json, f"{file} holds")


@click.command("bundle")
@click.option(
    "--database",
    metavar="URL",
    envvar="HOLDFAST_DATABASE_URL",
    show_envvar=True,
    help="Where to: a path, sqlite:///path or postgresql://...; not needed with --check.",
)
@click.option("--from", "file", required=True, type=_BUNDLE, help="What `holdfast export` wrote.")
@click.option("--as", "tenant", metavar="NAME", help="Another name for the tenant than it had.")
@click.option("--check", is_flag=True, help="Only read the whole file and say whether it is what was written.")
@json_option
def bundle(database: str | None, file: Path, tenant: str | None, check: bool, as_json: bool) -> None:
    """Bring a tenant that was exported into this database, all of it or nothing."""
    if check:
        _print(check_bundle(file), as_json, f"{file} is whole and holds")
        return
    database = database or database_of_environment()
    if database is None:
        raise click.UsageError("--database (HOLDFAST_DATABASE_URL) says where to; only --check needs none")
    _print(import_tenant(database, file, tenant=tenant, on_progress=_progress), as_json, "Imported")


def _progress(table: str, count: int) -> None:
    """One line that is written over, where somebody is looking."""
    if sys.stderr.isatty():
        print_progress(f"{table}: {count:,}", err=True)


def _print(bundle: Bundle, as_json: bool, what: str) -> None:
    if sys.stderr.isatty():
        print_progress("", err=True)
    if as_json:
        print_json({"bundle": bundle})
        return
    rows = [[name, f"{count:,}"] for name, count in bundle.rows.items() if count]
    print_table(f"{what} the tenant {bundle.tenant}", ["table", "rows"], rows)
