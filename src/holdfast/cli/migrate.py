"""``holdfast migrate``: the schema of a database."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast import Holdfast, schema
from holdfast.schema import MigrationStatus

from .database import database_option, describe, per_run, store_per_run
from .output import json_option, one_line, print_json, print_line, print_table, print_text


@click.group()
def migrate() -> None:
    """Bring the schema of a database up to date, take it back, or look at it.

    SQLite files are brought up to date whenever they are opened; PostgreSQL only when told, which is what this is for.
    """


@migrate.command()
@database_option
@click.option("--to", type=click.IntRange(min=0), help="Stop at this version.")
@json_option
def up(database: str, to: int | None, as_json: bool) -> None:
    """Apply the migrations that are missing. Safe to run twice, and from several machines at once."""
    applied = schema.migrate_up(database, to=to)
    if to is None and per_run() is not None:
        with Holdfast(database) as hf:
            store_per_run(hf)
    _report(database, applied, as_json, nothing="The schema is up to date.", title="Applied")


@migrate.command()
@database_option
@click.option(
    "--to", type=click.IntRange(min=0), help="Undo everything above this version; without it, the newest one only."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def down(database: str, to: int | None, yes: bool, as_json: bool) -> None:
    """Undo migrations, newest first. What the tables they made hold is lost."""
    applied = [each for each in schema.migration_status(database) if each.applied]
    target = max(len(applied) - 1, 0) if to is None else to
    doomed = [_name(each) for each in applied if each.version > target]
    if doomed and not yes:
        question = f"Undo {', '.join(reversed(doomed))} in {describe(database)} and lose what their tables hold?"
        click.confirm(one_line(question), abort=True, err=True)
    undone = schema.migrate_down(database, to=target)
    _report(database, undone, as_json, nothing="There is nothing to undo.", title="Undone")


@migrate.command()
@database_option
@json_option
def status(database: str, as_json: bool) -> None:
    """Show every migration of this release and whether it is applied. Nothing is changed."""
    found = schema.migration_status(database)
    _report(database, found, as_json, nothing="There are no migrations.", title="Migrations")


@migrate.command("print")
@click.option("--engine", type=click.Choice(schema.ENGINES), required=True, help="Which SQL to write.")
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only migrations above this version.")
def print_sql(engine: str, after: int) -> None:
    """Write the migrations as plain SQL, for psql -f or the sqlite3 shell. Then run `holdfast migrate adopt`."""
    print_text(schema.migration_sql(engine, after=after))


@migrate.command()
@database_option
@json_option
def adopt(database: str, as_json: bool) -> None:
    """Record a schema that was made from `holdfast migrate print` as migrated, if it is exactly what the migrations make."""
    _report(database, schema.adopt(database), as_json, nothing="The schema is recorded already.", title="Adopted")


@migrate.command()
@database_option
@json_option
def distribute(database: str, as_json: bool) -> None:
    """Spread the tables over the machines of a Citus cluster, by tenant. What is spread already stays as it is."""
    statements = schema.distribute(database)
    if as_json:
        print_json({"statements": statements})
    elif statements:
        print_table(f"Run in {describe(database)}", ["statement"], [[" ".join(each.split())] for each in statements])
    else:
        print_line("Every table is distributed already.")


def _report(database: str, migrations: Sequence[MigrationStatus], as_json: bool, *, nothing: str, title: str) -> None:
    if as_json:
        print_json({"migrations": migrations})
    elif not migrations:
        print_line(nothing)
    else:
        rows = [[f"{each.version:04}", each.name, "applied" if each.applied else "not applied"] for each in migrations]
        print_table(f"{title} in {describe(database)}", ["version", "name", "now"], rows)


def _name(migration: MigrationStatus) -> str:
    return f"{migration.version:04}_{migration.name}"
