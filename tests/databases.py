"""Databases for tests: each test gets one that is migrated, empty and its own.

Making a database and dropping it costs a quarter of a second, so one that a test leaves with its schema unchanged is emptied
and handed to the next test of the same worker.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from holdfast import Holdfast
from tests.servers import PostgresServer

TEMPLATE = "holdfast_template"
BARE = "template1"

_CATALOGS = {
    "pg_attribute": "attrelid",
    "pg_class": "oid",
    "pg_constraint": "oid",
    "pg_index": "indexrelid",
    "pg_policy": "oid",
    "pg_proc": "oid",
    "pg_rewrite": "oid",
    "pg_trigger": "oid",
}
"""Catalogs with the column that holds the id of an object. Any change of the schema writes rows of theirs, with a new xmin."""
_COUNTED = "SELECT '{0}', count(*), sum(xmin::text::bigint) FROM {0} WHERE {1} >= 16384"
_SHAPE = f"""
SELECT string_agg(format('%s %s %s', name, rows, changes), ', ' ORDER BY name) FROM (
    {" UNION ALL ".join(_COUNTED.format(*catalog) for catalog in _CATALOGS.items())}
    UNION ALL SELECT 'schemas', count(*), sum(oid::bigint) FROM pg_namespace WHERE nspname !~ '^pg_(toast|temp)'
    UNION ALL SELECT 'extensions', count(*), sum(oid::bigint) FROM pg_extension
    UNION ALL SELECT 'settings', count(*), sum(xmin::text::bigint) FROM pg_db_role_setting
        WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
    UNION ALL SELECT 'migrations', count(*), sum(xmin::text::bigint) FROM schema_migrations
) AS catalogs (name, rows, changes)
"""
_DISCONNECT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_SIZES = """
SELECT quote_ident(relname), pg_table_size(oid) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND relname <> 'schema_migrations'
"""
MAX_REUSED_BYTES = 80 * 1024
"""Size of a table from which on it is truncated. Smaller ones are emptied by DELETE, which is twenty times faster for all tables
of a schema; the planner treats a table of up to ten pages like an empty one."""

SHARED = {"autovacuum": "off", "fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}
"""Plans would depend on which tables the server has come by to look at, and when. Its machine never loses power: where that is
tried, a test has a server of its own."""

_STARTED: list[PostgresServer] = []
"""Kept until this process ends: the server outlives it, which is not the accident it looks like to the interpreter."""


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Lock out the other workers."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def shared_server(session: Path) -> PostgresServer:
    """The PostgreSQL of this test session, with a migrated template; started by whichever worker comes first."""
    note = session / "postgres"
    with alone(session / "postgres.lock"):
        if note.exists():
            return PostgresServer(Path(note.read_text()))
        server = PostgresServer(owner=session / "owner", settings=SHARED)
        server.start()
        with Holdfast(server.create_database(TEMPLATE), auto_migrate=True):
            pass
        note.write_text(str(server.folder))
        _STARTED.append(server)
        return server


class Databases:
    """The databases of one worker."""

    def __init__(self, server: PostgresServer, worker: str) -> None:
        self._server, self._worker = server, worker
        self._made = 0
        self._free: list[str] = []
        self._shapes: dict[str, str] = {}

    def take(self) -> str:
        """Return the name of a migrated, empty database."""
        if self._free:
            return self._free.pop()
        name = self.make(TEMPLATE)
        with psycopg.connect(self._server.url(name), autocommit=True) as connection:
            self._shapes[name] = self._shape_of(connection)
        return name

    def make(self, template: str) -> str:
        """Return the name of a new database."""
        self._made += 1
        name = f"{self._worker}_{self._made}"
        # Another worker may be copying the template at this moment: that is allowed, being connected to it is not.
        self._server.create_database(name, template=template)
        return name

    def give_back(self, name: str) -> None:
        """Empty a database for the next test, or drop it if its schema has changed."""
        try:
            with psycopg.connect(self._server.url(name), autocommit=True) as connection:
                is_same = self._empty(connection, name)
        except psycopg.Error:
            is_same = False
        if is_same:
            self._free.append(name)
        else:
            self._server.drop_database(name)

    def _empty(self, connection: psycopg.Connection, name: str) -> bool:
        """Delete every row; return whether the schema is unchanged."""
        connection.execute(_DISCONNECT)
        if self._shape_of(connection) != self._shapes[name]:
            return False
        sizes = dict(connection.execute(_SIZES).fetchall())
        large = [table for table, size in sizes.items() if size > MAX_REUSED_BYTES]
        if large:
            connection.execute(f"TRUNCATE {', '.join(large)} CASCADE".encode())
            self._shapes[name] = self._shape_of(connection)
        # Without triggers, foreign keys among them: the order of the tables does not matter.
        deletions = ["SET session_replication_role = replica", *(f"DELETE FROM {table}" for table in sizes)]
        connection.execute("; ".join(deletions).encode())
        return True

    @staticmethod
    def _shape_of(connection: psycopg.Connection) -> str:
        (shape,) = connection.execute(_SHAPE.encode()).fetchone() or ("",)
        return str(shape)
