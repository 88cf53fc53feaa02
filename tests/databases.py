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

# Everything that tells one schema from another: what there is, its columns, rules, rights, and the migrations it has had.
_SHAPE = """
SELECT md5(string_agg(line, chr(10) ORDER BY line)) FROM (
    SELECT format('%s %s %s %s %s', relname, relkind, relrowsecurity, relacl, reloptions) AS line FROM pg_class
        WHERE relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT format('%s %s %s %s %s %s', relname, attnum, attname, atttypid, attnotnull, attisdropped)
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT format('%s %s', conname, pg_get_constraintdef(oid)) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace
    UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
        WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT format('%s %s', proname, prosrc) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT format('%s %s %s', tgrelid::regclass, tgname, tgenabled) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT format('%s %s', polrelid::regclass, polname) FROM pg_policy
    UNION ALL SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_(toast|temp)'
    UNION ALL SELECT extname FROM pg_extension
    UNION ALL SELECT setconfig::text FROM pg_db_role_setting
        WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
    UNION ALL SELECT format('%s %s', version, checksum) FROM schema_migrations
) AS lines
"""
_TABLES = """
SELECT string_agg(format('%I', relname), ', ') FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND relname <> 'schema_migrations'
"""

SHARED = {"autovacuum": "off", "fsync": "off", "full_page_writes": "off"}
"""Plans would depend on which tables the server has come by to look at, and when. Its machine never loses power: where that is
tried, a test has a server of its own."""

_STARTED: list[PostgresServer] = []
"""Kept until this process ends: the server outlives it, which is not the accident it looks like to the interpreter."""


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep the other workers out."""
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
        self._shape = self._shape_of(TEMPLATE)

    def take(self) -> str:
        """The name of a database that is migrated and empty."""
        return self._free.pop() if self._free else self.make(TEMPLATE)

    def make(self, template: str) -> str:
        """The name of a new database."""
        self._made += 1
        name = f"{self._worker}_{self._made}"
        # Another worker may be copying the template at this moment: that is allowed, being connected to it is not.
        self._server.create_database(name, template=template)
        return name

    def give_back(self, name: str) -> None:
        """Empty a database for the next test, or drop it if its schema was changed."""
        self._server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        try:
            same = self._shape_of(name) == self._shape
        except psycopg.Error:
            same = False
        if not same:
            self._server.drop_database(name)
            return
        ((tables,),) = self._server.execute(_TABLES, database=name)
        self._server.execute(f"TRUNCATE {tables}", database=name)
        self._free.append(name)

    def _shape_of(self, name: str) -> str:
        ((shape,),) = self._server.execute(_SHAPE, database=name)
        return str(shape)
