"""Apply, undo, report and adopt numbered migrations, and distribute their tables.

Both engines have the same numbers and names. Each migration and the row that records it are one transaction, so a process
killed at any statement leaves the migration applied or not applied, and the next start continues from there. Two processes may
start at once: the first takes a lock, the other waits and then has nothing left to do. A file that was edited after it was
applied is an error. If Citus distributes the tables, a migration also distributes those that it creates.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..clock import Clock, from_us
from ..engines.dialect import Dialect
from ..engines.postgres.citus import is_distributed
from ..engines.protocol import Connection
from ..errors import InvalidInput, SchemaMismatch
from . import adoption, distribution
from .files import Migration, migrations, statements, tables_of

_LOCK = 7_421_836_550
"""Key of our PostgreSQL advisory lock."""

_LEDGER = {
    Dialect.SQLITE: """CREATE TABLE IF NOT EXISTS schema_migrations (
    version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT""",
    Dialect.POSTGRES: """CREATE TABLE IF NOT EXISTS schema_migrations (
    version BIGINT NOT NULL PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at TIMESTAMPTZ NOT NULL)""",
}
_EXISTS = {
    Dialect.SQLITE: "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_migrations'",
    Dialect.POSTGRES: "SELECT 1 WHERE to_regclass('schema_migrations') IS NOT NULL",
}


class Status(Struct, frozen=True):
    """Whether a migration is applied."""

    version: int
    name: str
    applied: bool


async def status(connection: Connection) -> list[Status]:
    """Return every migration of this release and whether it is applied.

    Raises:
        SchemaMismatch: the database is newer than this release, or an applied file was edited.
    """
    applied = await _applied(connection)
    initial = migrations(connection.dialect)
    _check(applied, initial)
    return [Status(migration.version, migration.name, migration.version in applied) for migration in initial]


async def up(connection: Connection, clock: Clock, *, to: int | None = None) -> list[Migration]:
    """Apply missing migrations up to version ``to`` and return them. If none is missing, no lock is taken."""
    initial = migrations(connection.dialect)
    if to is not None and not 0 <= to <= len(initial):
        raise InvalidInput(f"schema version {to} does not exist; versions are 0 to {len(initial)}", field="to")
    missing = [entry.version for entry in await status(connection) if not entry.applied]
    applied: list[Migration] = []
    for migration in initial:
        if to is not None and migration.version > to:
            break
        if migration.version in missing and await _apply(connection, clock, migration):
            applied.append(migration)
    return applied


async def down(connection: Connection, *, to: int) -> list[Migration]:
    """Undo the migrations above version ``to``, newest first, and return them. The data of their tables is lost."""
    initial = migrations(connection.dialect)
    if to < 0 or to > len(initial):
        raise InvalidInput(f"schema version {to} does not exist; versions are 0 to {len(initial)}", field="to")
    undone: list[Migration] = []
    for migration in reversed(initial):
        if migration.version > to and await _undo(connection, migration):
            undone.append(migration)
    return undone


async def adopt(connection: Connection, clock: Clock) -> list[Migration]:
    """Record the migrations of a schema created in another way, such as by ``psql -f``, and return them. Tables are unchanged.

    Raises:
        SchemaMismatch: the schema differs from that of this release; the message lists every difference.
    """
    async with connection.savepoint():
        initial, applied = await _begin(connection)
        differences = await adoption.differences(connection, initial)
        if differences:
            raise SchemaMismatch(
                f"the schema differs from that of this release, so nothing was recorded: {'; '.join(differences)}"
            )
        missing = [migration for migration in initial if migration.version not in applied]
        for migration in missing:
            await _record(connection, clock, migration)
    return missing


async def distribute(connection: Connection) -> list[str]:
    """Distribute the tables that are not distributed yet, all or none, and return the executed statements.

    Raises:
        InvalidInput: this is not PostgreSQL, the citus extension is missing, or the cluster has no coordinator address.
        SchemaMismatch: the migrations of this release are not all applied.
    """
    await check(connection)
    return await distribution.distribute(connection, created_tables())


def created_tables() -> list[str]:
    """Return the names of all tables that the migrations create on PostgreSQL, and of the migrations' own table."""
    return ["schema_migrations", *tables_of(migrations(Dialect.POSTGRES))]


async def check(connection: Connection) -> None:
    """Check that the schema is that of this release.

    Raises:
        SchemaMismatch: the schema is older or newer than this release, or an applied file was edited.
    """
    missing = [entry for entry in await status(connection) if not entry.applied]
    if missing:
        raise SchemaMismatch(
            f"{len(missing)} migrations are not applied: run `holdfast migrate up`, or open with auto_migrate=True; "
            "if the schema was created with `holdfast migrate print`, run `holdfast migrate adopt`"
        )


async def _apply(connection: Connection, clock: Clock, migration: Migration) -> bool:
    async with connection.savepoint():
        _, applied = await _begin(connection)
        if migration.version in applied:
            return False
        distributed = await is_distributed(connection)
        if distributed:
            await distribution.run_in_sequence(connection)
        for statement in statements(migration.up):
            await connection.fetch(statement, ())
        if distributed:
            await distribution.distribute(connection, created_tables())
        await _record(connection, clock, migration)
        return True


async def _undo(connection: Connection, migration: Migration) -> bool:
    async with connection.savepoint():
        await _lock(connection)
        if migration.version not in await _applied(connection):
            return False
        for statement in statements(migration.down):
            await connection.fetch(statement, ())
        mark = connection.dialect.placeholder
        await connection.fetch(f"DELETE FROM schema_migrations WHERE version = {mark}1", (migration.version,))
        return True


async def _begin(connection: Connection) -> tuple[Sequence[Migration], dict[int, tuple[str, str]]]:
    """Lock the table of migrations, creating it if necessary; return the migrations of this release and those applied."""
    await _lock(connection)
    await connection.fetch(_LEDGER[connection.dialect], ())
    initial, applied = migrations(connection.dialect), await _applied(connection)
    _check(applied, initial)
    return initial, applied


async def _record(connection: Connection, clock: Clock, migration: Migration) -> None:
    now = clock.now_us()
    applied_at = from_us(now) if connection.dialect.native_time else now
    marks = ", ".join(f"{connection.dialect.placeholder}{n}" for n in range(1, 5))
    await connection.fetch(
        f"INSERT INTO schema_migrations (version, name, checksum, applied_at) VALUES ({marks})",
        (migration.version, migration.name, migration.checksum, applied_at),
    )


async def _lock(connection: Connection) -> None:
    # On SQLite the transaction itself is the lock, because it begins with BEGIN IMMEDIATE.
    if connection.dialect is Dialect.POSTGRES:
        # Overrides the database's default: a process that waited for the lock must see the other process's commits.
        await connection.fetch("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", ())
        await connection.fetch("SELECT pg_advisory_xact_lock($1)", (_LOCK,))


async def _applied(connection: Connection) -> dict[int, tuple[str, str]]:
    if not await connection.fetch(_EXISTS[connection.dialect], ()):
        return {}
    rows = await connection.fetch("SELECT version, name, checksum FROM schema_migrations ORDER BY version", ())
    return {row[0]: (row[1], row[2]) for row in rows}


def _check(applied: dict[int, tuple[str, str]], known: Sequence[Migration]) -> None:
    by_version = {migration.version: migration for migration in known}
    for version, (name, checksum) in applied.items():
        migration = by_version.get(version)
        if migration is None:
            raise SchemaMismatch(
                f"the database has migration {version:04}_{name}, which this release does not know: upgrade Holdfast"
            )
        if migration.checksum != checksum:
            raise SchemaMismatch(f"migration {migration} was edited after it was applied; restore the file")
