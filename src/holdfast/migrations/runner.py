"""Numbered migrations: apply, undo, report, adopt, and distribute what they made.

Both engines have the same numbers and names. Each migration is one transaction together with the row that records it, so a
process killed at any statement leaves the migration wholly done or wholly undone, and the next start goes on from there.
Two processes may start at once: the first takes a lock, the other waits and then finds nothing left to do. A file that was
edited after it was applied is an error. Where Citus distributes the tables, a migration distributes those it adds.
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
"""Our number among PostgreSQL's advisory locks."""

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
    """Where one migration stands."""

    version: int
    name: str
    applied: bool


async def status(connection: Connection) -> list[Status]:
    """Every migration of this release and whether it is applied.

    Raises:
        SchemaMismatch: the database is newer than this release, or an applied file was edited.
    """
    applied = await _applied(connection)
    known = migrations(connection.dialect)
    _check(applied, known)
    return [Status(each.version, each.name, each.version in applied) for each in known]


async def up(connection: Connection, clock: Clock, *, to: int | None = None) -> list[Migration]:
    """Apply what is missing, up to version ``to``, and return it. Where nothing is, nobody is locked out or waited for."""
    known = migrations(connection.dialect)
    if to is not None and not 0 <= to <= len(known):
        raise InvalidInput(f"there is no version {to} to go up to; there are 0 to {len(known)}")
    missing = [each.version for each in await status(connection) if not each.applied]
    done: list[Migration] = []
    for migration in known:
        if to is not None and migration.version > to:
            break
        if migration.version in missing and await _apply(connection, clock, migration):
            done.append(migration)
    return done


async def down(connection: Connection, *, to: int) -> list[Migration]:
    """Undo what is above version ``to``, newest first, and return it. What those tables held is gone."""
    known = migrations(connection.dialect)
    if to < 0 or to > len(known):
        raise InvalidInput(f"there is no version {to} to go down to; there are 0 to {len(known)}")
    done: list[Migration] = []
    for migration in reversed(known):
        if migration.version > to and await _undo(connection, migration):
            done.append(migration)
    return done


async def adopt(connection: Connection, clock: Clock) -> list[Migration]:
    """Record the migrations whose schema was made in another way, such as by ``psql -f``, and return them. No table is touched.

    Raises:
        SchemaMismatch: the schema is not what the migrations of this release make; the message names every difference.
    """
    async with connection.savepoint():
        known, applied = await _begin(connection)
        found = await adoption.differences(connection, known)
        if found:
            raise SchemaMismatch(
                f"the schema is not what the migrations of this release make, so nothing was recorded: {'; '.join(found)}"
            )
        missing = [migration for migration in known if migration.version not in applied]
        for migration in missing:
            await _record(connection, clock, migration)
    return missing


async def distribute(connection: Connection) -> list[str]:
    """Distribute every table that is not yet, all of them or none, and return the statements that did it.

    Raises:
        InvalidInput: this is not PostgreSQL, it has no citus extension, or the cluster does not know its coordinator.
        SchemaMismatch: the migrations of this release are not all applied.
    """
    await check(connection)
    return await distribution.distribute(connection, created_tables())


def created_tables() -> list[str]:
    """The names of all tables that the migrations and their ledger make on PostgreSQL."""
    return ["schema_migrations", *tables_of(migrations(Dialect.POSTGRES))]


async def check(connection: Connection) -> None:
    """Refuse a schema that is older or newer than this release.

    Raises:
        SchemaMismatch: it is.
    """
    missing = [each for each in await status(connection) if not each.applied]
    if missing:
        raise SchemaMismatch(
            f"{len(missing)} migrations are not applied: run `holdfast migrate up`, or open with auto_migrate=True; "
            "if the schema was made from `holdfast migrate print`, run `holdfast migrate adopt`"
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
    """Lock the ledger, which is created if necessary; return the migrations of this release and those applied."""
    await _lock(connection)
    await connection.fetch(_LEDGER[connection.dialect], ())
    known, applied = migrations(connection.dialect), await _applied(connection)
    _check(applied, known)
    return known, applied


async def _record(connection: Connection, clock: Clock, migration: Migration) -> None:
    now = clock.now_us()
    applied_at = from_us(now) if connection.dialect.native_time else now
    marks = ", ".join(f"{connection.dialect.placeholder}{n}" for n in range(1, 5))
    await connection.fetch(
        f"INSERT INTO schema_migrations (version, name, checksum, applied_at) VALUES ({marks})",
        (migration.version, migration.name, migration.checksum, applied_at),
    )


async def _lock(connection: Connection) -> None:
    # On SQLite the transaction itself is the lock: it begins as a writer.
    if connection.dialect is Dialect.POSTGRES:
        # Whatever the default of the database is: whoever waited for the lock must see what the other has done.
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
