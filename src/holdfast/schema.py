"""Schema management for deployment scripts and the command line: apply, revert, report, print, adopt, distribute.

A program that opens a ``Holdfast`` on SQLite does not need this module: the schema is migrated when the file is opened. A
PostgreSQL schema is only migrated explicitly::

    from holdfast.schema import migrate_up

    migrate_up("postgresql:///agents")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from . import address
from .clock import SystemClock
from .engines import factory
from .engines.dialect import Dialect
from .engines.postgres.options import PoolOptions
from .engines.protocol import Call, Connection
from .errors import Corrupt, InvalidInput
from .migrations import runner
from .migrations.files import Migration, plain_sql
from .migrations.runner import Status as MigrationStatus
from .sync_runner import step

T = TypeVar("T")

_INCOMPLETE = """SELECT c.relname::text FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
WHERE NOT i.indisvalid AND c.relnamespace = current_schema()::regnamespace ORDER BY 1"""
ENGINES = tuple(dialect.value for dialect in Dialect)
_ONE_CONNECTION = PoolOptions(min_connections=1, max_connections=1)


def migration_status(url: str) -> list[MigrationStatus]:
    """Return every migration of this release and whether it is applied. Changes nothing and creates no file.

    Raises:
        SchemaMismatch: the database is newer than this release, or an applied migration was edited.
        Unavailable: the database cannot be reached, or the file does not exist.
    """
    return _run_read_only(url, runner.status)


def migrate_up(url: str, *, to: int | None = None) -> list[MigrationStatus]:
    """Apply the missing migrations up to version ``to``, and return them. Two processes may do so at once.

    Raises:
        InvalidInput: version ``to`` does not exist.
        SchemaMismatch: the database is newer than this release, or an applied migration was edited.
        Unavailable: the database cannot be reached.
    """
    applied = _run(address.parse(url), lambda connection: runner.up(connection, SystemClock(), to=to))
    return _statuses(applied, applied=True)


def migrate_down(url: str, *, to: int) -> list[MigrationStatus]:
    """Revert the migrations above version ``to``, newest first, and return them. The data of dropped tables is lost.

    Raises:
        InvalidInput: version ``to`` does not exist.
        Unavailable: the database cannot be reached, or the file does not exist.
    """
    migration_status(url)  # raises if the file does not exist, so that it is not created only to be emptied
    reverted = _run(address.parse(url), lambda connection: runner.down(connection, to=to))
    return _statuses(reverted, applied=False)


def migration_sql(engine: str, *, after: int = 0) -> str:
    """Return the migrations above version ``after`` as plain SQL for ``sqlite`` or ``postgres``, for tools such as ``psql -f``.

    Raises:
        InvalidInput: the engine or the version does not exist.
    """
    if engine not in ENGINES:
        raise InvalidInput(f"engine must be one of {', '.join(ENGINES)}, not {engine!r}", field="engine")
    return plain_sql(Dialect(engine), after=after)


def adopt(url: str) -> list[MigrationStatus]:
    """Record a schema that was created from ``migration_sql`` as migrated, and return the recorded migrations.

    No table is changed.

    Raises:
        SchemaMismatch: the schema differs from that of this release's migrations; the message lists every difference.
        Unavailable: the database cannot be reached, or the file does not exist.
    """
    address.check_exists(url)
    recorded = _run(address.parse(url), lambda connection: runner.adopt(connection, SystemClock()))
    return _statuses(recorded, applied=True)


def distribute(url: str) -> list[str]:
    """Distribute every table over the nodes of a Citus cluster, by tenant, all or none. Distributed tables are left unchanged.

    Returns:
        The statements that were run.

    Raises:
        InvalidInput: the database is not PostgreSQL, has no citus extension, or the cluster's coordinator is not configured.
        SchemaMismatch: some migrations of this release are not applied.
    """
    return _run_read_only(url, runner.distribute)


def check_integrity(url: str) -> list[str]:
    """Return the faults that the database engine reports; an empty list means none. Changes nothing.

    SQLite checks every page, index and foreign key. PostgreSQL verifies its pages itself, so only invalid indexes are reported.

    Raises:
        SchemaMismatch: the database is newer than this release, or an applied migration was edited.
        Unavailable: the database cannot be reached, or the file does not exist.
    """
    try:
        missing = [
            f"migration {migration.version} is not applied"
            for migration in migration_status(url)
            if not migration.applied
        ]
        return [*missing, *_run_read_only(url, _engine_faults)]
    except Corrupt as error:
        return [str(error)]  # too damaged to be checked


async def _engine_faults(connection: Connection) -> list[str]:
    if connection.dialect is Dialect.POSTGRES:
        return [f"index {row[0]} is invalid" for row in await connection.fetch(_INCOMPLETE, ())]
    pages = [str(row[0]) for row in await connection.fetch("PRAGMA integrity_check", ())]
    keys = [
        f"{row[0]}: a row refers to a row of {row[2]} that does not exist"
        for row in await connection.fetch("PRAGMA foreign_key_check", ())
    ]
    return [*(page for page in pages if page != "ok"), *dict.fromkeys(keys)]


def _run_read_only(url: str, call: Call[T]) -> T:
    address.check_exists(url)
    return _run(address.parse(url), call, read_only=True)


def _run(database: address.Address, call: Call[T], *, read_only: bool = False) -> T:
    """Run a call on a connection of its own."""
    if read_only and database.engine == "sqlite":
        database = address.Address(database.engine, database.place, read_only=True, library=database.library)
    engine = factory.blocking(database, durability="full", pool=_ONE_CONNECTION)
    try:
        return step(engine.exclusive(call))
    finally:
        step(engine.close())


def _statuses(migrations: Sequence[Migration], *, applied: bool) -> list[MigrationStatus]:
    return [MigrationStatus(migration.version, migration.name, applied) for migration in migrations]


__all__ = [
    "ENGINES",
    "MigrationStatus",
    "adopt",
    "check_integrity",
    "distribute",
    "migrate_down",
    "migrate_up",
    "migration_sql",
    "migration_status",
]
