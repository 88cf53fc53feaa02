"""``holdfast migrate``: migrate the schema of a database."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast import Holdfast, schema
from holdfast.schema import MigrationStatus

from .database import database_option, describe, per_run, store_per_run
from .output import json_option, one_line, print_json, print_line, print_table, print_text


@click.group()
def migrate() -> None:
    """Apply, revert and inspect the migrations of a database.

    SQLite files are migrated automatically when they are opened. PostgreSQL databases are only migrated by these commands.
    """


@migrate.command()
@database_option
@click.option("--to", type=click.IntRange(min=0), help="Migrate up to this version only.")
@json_option
def up(database: str, to: int | None, as_json: bool) -> None:
    """Apply the missing migrations. Safe to run twice, and on several machines at once."""
    applied = schema.migrate_up(database, to=to)
    if to is None and per_run() is not None:
        with Holdfast(database) as hf:
            store_per_run(hf)
    _report(database, applied, as_json, nothing="The schema is up to date.", title="Applied")


@migrate.command()
@database_option
@click.option(
    "--to", type=click.IntRange(min=0), help="Revert all migrations above this version. Default: only the newest."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def down(database: str, to: int | None, yes: bool, as_json: bool) -> None:
    """Revert migrations, newest first. The data in the tables that they created is lost."""
    applied = [migration for migration in schema.migration_status(database) if migration.applied]
    target = max(len(applied) - 1, 0) if to is None else to
    names = [_name(migration) for migration in applied if migration.version > target]
    if names and not yes:
        question = f"Revert {', '.join(reversed(names))} in {describe(database)} and delete the data in their tables?"
        click.confirm(one_line(question), abort=True, err=True)
    reverted = schema.migrate_down(database, to=target)
    _report(database, reverted, as_json, nothing="No migration to revert.", title="Reverted")


@migrate.command()
@database_option
@json_option
def status(database: str, as_json: bool) -> None:
    """List every migration of this release and whether it is applied. Changes nothing."""
    migrations = schema.migration_status(database)
    _report(database, migrations, as_json, nothing="No migrations.", title="Migrations")


@migrate.command("print")
@click.option("--engine", type=click.Choice(schema.ENGINES), required=True, help="The SQL dialect.")
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only migrations above this version.")
def print_sql(engine: str, after: int) -> None:
    """Print the migrations as plain SQL, for psql -f or the sqlite3 shell. Afterwards, run `holdfast migrate adopt`."""
    print_text(schema.migration_sql(engine, after=after))


@migrate.command()
@database_option
@json_option
def adopt(database: str, as_json: bool) -> None:
    """Record a schema created from `holdfast migrate print` as migrated, if it equals the schema that migrations create."""
    _report(database, schema.adopt(database), as_json, nothing="The schema is already recorded.", title="Adopted")


@migrate.command()
@database_option
@json_option
def distribute(database: str, as_json: bool) -> None:
    """Distribute the tables over the nodes of a Citus cluster, by tenant. Distributed tables are left unchanged."""
    statements = schema.distribute(database)
    if as_json:
        print_json({"statements": statements})
    elif statements:
        rows = [[" ".join(statement.split())] for statement in statements]
        print_table(f"Run in {describe(database)}", ["statement"], rows)
    else:
        print_line("All tables are already distributed.")


def _report(database: str, migrations: Sequence[MigrationStatus], as_json: bool, *, nothing: str, title: str) -> None:
    if as_json:
        print_json({"migrations": migrations})
    elif not migrations:
        print_line(nothing)
    else:
        rows = [
            [f"{migration.version:04}", migration.name, "applied" if migration.applied else "not applied"]
            for migration in migrations
        ]
        print_table(f"{title} in {describe(database)}", ["version", "name", "status"], rows)


def _name(migration: MigrationStatus) -> str:
    return f"{migration.version:04}_{migration.name}"
