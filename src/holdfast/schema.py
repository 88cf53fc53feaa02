"""The schema of a database, for deployment scripts and the command line: apply, undo, report, print, adopt, distribute.

A program that only opens a ``Holdfast`` needs none of this on SQLite, where the schema is brought up to date when the file is
opened. On PostgreSQL it is brought up to date when told::

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
    """Every migration of this release and whether it is applied. Nothing is changed, and no file is made.

    Raises:
        SchemaMismatch: the database is newer than this release, or an applied file was edited.
        Unavailable: the database cannot be reached, or the file is not there.
    """
    return _look(url, runner.status)


def migrate_up(url: str, *, to: int | None = None) -> list[MigrationStatus]:
    """Apply what is missing, up to version ``to``, and return what was applied. Two processes may do it at once.

    Raises:
        InvalidInput: there is no such version.
        SchemaMismatch: the database is newer than this release, or an applied file was edited.
        Unavailable: the database cannot be reached.
    """
    return _now(_on(address.parse(url), lambda connection: runner.up(connection, SystemClock(), to=to)), applied=True)


def migrate_down(url: str, *, to: int) -> list[MigrationStatus]:
    """Undo what is above version ``to``, newest first, and return what was undone. What those tables held is gone.

    Raises:
        InvalidInput: there is no such version.
        Unavailable: the database cannot be reached, or the file is not there.
    """
    migration_status(url)  # a file that is not there must not be made only to be emptied
    return _now(_on(address.parse(url), lambda connection: runner.down(connection, to=to)), applied=False)


def migration_sql(engine: str, *, after: int = 0) -> str:
    """The migrations above version ``after`` as plain SQL for ``sqlite`` or ``postgres``, to be run with ``psql -f`` or the like.

    Raises:
        InvalidInput: there is no such engine or version.
    """
    if engine not in ENGINES:
        raise InvalidInput(f"there is no engine {engine!r}: choose one of {', '.join(ENGINES)}")
    return plain_sql(Dialect(engine), after=after)


def adopt(url: str) -> list[MigrationStatus]:
    """Record a schema that was made from ``migration_sql`` as migrated, and return what was recorded. No table is touched.

    Raises:
        SchemaMismatch: the schema is not what the migrations of this release make; the message names every difference.
        Unavailable: the database cannot be reached, or the file is not there.
    """
    address.check_there(url)
    return _now(_on(address.parse(url), lambda connection: runner.adopt(connection, SystemClock())), applied=True)


def distribute(url: str) -> list[str]:
    """Spread every table over the machines of a Citus cluster, by tenant; all of them or none. What is spread stays so.

    Returns:
        The statements that were run.

    Raises:
        InvalidInput: this is not PostgreSQL, it has no citus extension, or the cluster does not know its coordinator.
        SchemaMismatch: the migrations of this release are not all applied.
    """
    return _look(url, runner.distribute)


def check_integrity(url: str) -> list[str]:
    """What is wrong with the database as such, in the words of its engine; nothing if all is well. Nothing is changed.

    SQLite looks at every page, index and foreign key. PostgreSQL looks after its pages itself: indexes are named that are not
    complete.

    Raises:
        SchemaMismatch: the database is newer than this release, or an applied file was edited.
        Unavailable: the database cannot be reached, or the file is not there.
    """
    try:
        missing = [f"migration {each.version} is not applied" for each in migration_status(url) if not each.applied]
        return [*missing, *_look(url, _look_over)]
    except Corrupt as error:
        return [str(error)]  # so damaged that it could not even be looked at


async def _look_over(connection: Connection) -> list[str]:
    if connection.dialect is Dialect.POSTGRES:
        return [f"the index {row[0]} is not complete" for row in await connection.fetch(_INCOMPLETE, ())]
    pages = [str(row[0]) for row in await connection.fetch("PRAGMA integrity_check", ())]
    keys = [
        f"{row[0]}: a row points to no row of {row[2]}"
        for row in await connection.fetch("PRAGMA foreign_key_check", ())
    ]
    return [*(each for each in pages if each != "ok"), *dict.fromkeys(keys)]


def _look(url: str, call: Call[T]) -> T:
    address.check_there(url)
    return _on(address.parse(url), call, read_only=True)


def _on(where: address.Address, call: Call[T], *, read_only: bool = False) -> T:
    if read_only and where.engine == "sqlite":
        where = address.Address(where.engine, where.place, read_only=True, library=where.library)
    engine = factory.blocking(where, durability="full", pool=_ONE_CONNECTION)
    try:
        return step(engine.exclusive(call))
    finally:
        step(engine.close())


def _now(migrations: Sequence[Migration], *, applied: bool) -> list[MigrationStatus]:
    return [MigrationStatus(each.version, each.name, applied) for each in migrations]


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
