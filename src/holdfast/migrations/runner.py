"""Numbered migrations: apply, undo, report, and distribute what they made.

Both engines have the same numbers and names. Each migration is one transaction together with the row that records it, so a
process killed at any statement leaves the migration wholly done or wholly undone, and the next start goes on from there.
Two processes may start at once: the first takes a lock, the other waits and then finds nothing left to do. A file that was
edited after it was applied is an error. Where Citus distributes the tables, a migration distributes those it adds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import apsw
from msgspec import Struct

from ..clock import Clock, from_us
from ..engines.dialect import Dialect
from ..engines.postgres.citus import is_distributed
from ..engines.protocol import Connection
from ..errors import InvalidInput, SchemaMismatch
from . import distribution

_CREATED = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?(\w+)", re.IGNORECASE | re.MULTILINE)
_FILE = re.compile(r"(\d{4})_(\w+)\.up\.sql")
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


class Migration(Struct, frozen=True):
    """One numbered pair of files."""

    version: int
    name: str
    up: str
    down: str
    checksum: str

    def __str__(self) -> str:
        return f"{self.version:04}_{self.name}"


class Status(Struct, frozen=True):
    """Where one migration stands."""

    version: int
    name: str
    applied: bool


@cache
def migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """All migrations of this release, in order. The files are read once: they are part of the program."""
    folder = Path(__file__).with_name(dialect.value)
    found: list[Migration] = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if match := _FILE.fullmatch(file.name):
            up, down = (file.with_name(f"{match[1]}_{match[2]}.{way}.sql").read_text("utf-8") for way in ("up", "down"))
            found.append(Migration(int(match[1]), match[2], up, down, hashlib.sha256(up.encode()).hexdigest()))
    return tuple(found)


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
    scripts = [migration.up for migration in migrations(Dialect.POSTGRES)]
    return ["schema_migrations", *(name for script in scripts for name in _CREATED.findall(script))]


async def check(connection: Connection) -> None:
    """Refuse a schema that is older or newer than this release.

    Raises:
        SchemaMismatch: it is.
    """
    missing = [each for each in await status(connection) if not each.applied]
    if missing:
        raise SchemaMismatch(
            f"{len(missing)} migrations are not applied: run `holdfast migrate up`, or open with auto_migrate=True"
        )


def statements(script: str) -> list[str]:
    """The statements of a script, in order."""
    found: list[str] = []
    current = ""
    for line in script.splitlines(keepends=True):
        if not current and (not line.strip() or line.lstrip().startswith("--")):
            continue
        current += line
        if apsw.complete(current):
            found.append(current.strip())
            current = ""
    return found


async def _apply(connection: Connection, clock: Clock, migration: Migration) -> bool:
    async with connection.savepoint():
        await _lock(connection)
        await connection.fetch(_LEDGER[connection.dialect], ())
        applied = await _applied(connection)
        _check(applied, migrations(connection.dialect))
        if migration.version in applied:
            return False
        distributed = await is_distributed(connection)
        if distributed:
            await distribution.run_in_sequence(connection)
        for statement in statements(migration.up):
            await connection.fetch(statement, ())
        if distributed:
            await distribution.distribute(connection, created_tables())
        now = clock.now_us()
        row = (
            migration.version,
            migration.name,
            migration.checksum,
            from_us(now) if connection.dialect.native_time else now,
        )
        await connection.fetch(_insert_sql(connection.dialect), row)
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


def _insert_sql(dialect: Dialect) -> str:
    marks = ", ".join(f"{dialect.placeholder}{n}" for n in range(1, 5))
    return f"INSERT INTO schema_migrations (version, name, checksum, applied_at) VALUES ({marks})"


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
