"""A schema made by running the printed SQL is recognised, and one that differs is refused with every difference."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.drivers.psycopg import PsycopgConnection
from holdfast.engines.dialect import Dialect
from holdfast.errors import InvalidInput, SchemaMismatch, Unavailable
from holdfast.migrations.adoption import differences
from holdfast.migrations.files import migrations
from holdfast.schema import adopt, migrate_down, migrate_up, migration_sql, migration_status
from holdfast.sync_runner import step
from tests.errors import raises
from tests.migrations import catalogue


class Place:
    """A database, and the shell of its engine."""

    def __init__(self, engine: str, url: str) -> None:
        self.engine, self.url = engine, url

    def execute(self, script: str) -> None:
        """Run a script as psql or the sqlite3 shell would."""
        if self.engine == "sqlite":
            connection = sqlite3.connect(self.url, isolation_level=None)
            connection.executescript(script)
            connection.close()
        else:
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute(script.encode())

    def refused(self) -> str:
        """Adopt the schema, which must be refused and change nothing; return the differences."""
        before = catalogue.everything(self.url)
        with pytest.raises(SchemaMismatch) as error:
            adopt(self.url)
        assert catalogue.everything(self.url) == before
        assert not any(item.applied for item in migration_status(self.url))
        return str(error.value).partition(": ")[2]


@pytest.fixture(params=["sqlite", "postgres"])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A database with nothing in it."""
    if request.param == "postgres":
        return Place("postgres", request.getfixturevalue("bare_postgres_url"))
    (tmp_path / "a.db").touch()
    return Place("sqlite", str(tmp_path / "a.db"))


@pytest.fixture
def printed(bare: Place) -> Place:
    """A database with the schema that was printed, and no ledger."""
    bare.execute(migration_sql(bare.engine))
    return bare


def test_a_printed_schema_is_adopted_and_works_like_a_migrated_one(printed: Place) -> None:
    with pytest.raises(SchemaMismatch, match="`holdfast migrate adopt`"):
        Holdfast(printed.url, auto_migrate=False)
    adopted = adopt(printed.url)
    assert adopted == migration_status(printed.url)
    assert all(item.applied for item in adopted)
    assert adopt(printed.url) == []
    assert migrate_up(printed.url) == []
    with Holdfast(printed.url, auto_migrate=False) as hf:
        hf.tenant("acme").sessions.create(key="k")
        assert hf.tenant("acme").sessions.count() == 1
    migrate_down(printed.url, to=0)
    assert [line for line in catalogue.everything(printed.url) if "schema_migrations" not in line] == []


def test_printing_makes_the_same_schema_as_migrating(printed: Place, tmp_path: Path, request: Any) -> None:
    adopt(printed.url)
    if printed.engine == "sqlite":
        migrated = str(tmp_path / "b.db")
        migrate_up(migrated)
    else:
        migrated = request.getfixturevalue("postgres_url")
    assert catalogue.everything(printed.url) == catalogue.everything(migrated)


def test_only_new_migrations_can_be_printed_and_adopted(bare: Place) -> None:
    migrate_up(bare.url, to=2)
    bare.execute(migration_sql(bare.engine, after=2))
    assert [item.version for item in adopt(bare.url)] == [*range(3, len(migrations(Dialect.SQLITE)) + 1)]
    assert all(item.applied for item in migration_status(bare.url))


def test_tables_of_other_programs_are_ignored(printed: Place) -> None:
    printed.execute("CREATE TABLE theirs (id INTEGER PRIMARY KEY); CREATE INDEX theirs_by_id ON theirs (id)")
    assert len(adopt(printed.url)) == len(migration_status(printed.url))


DIFFERENCES = [
    ("ALTER TABLE feedback DROP COLUMN metadata", "column feedback.metadata is missing"),
    ("ALTER TABLE feedback ADD COLUMN more TEXT", "column feedback.more is not part of the schema"),
    ("CREATE INDEX more ON feedback (tenant_id, metadata)", "index feedback.more is not part of the schema"),
    ("DROP INDEX feedback_by_user", "index feedback.feedback_by_user is missing"),
    (
        "DROP INDEX feedback_by_user; CREATE INDEX feedback_by_user ON feedback (tenant_id, user_id)",
        "index feedback.feedback_by_user is 'CREATE INDEX feedback_by_user ON feedback",
    ),
    ("DROP TABLE general_feedback", "table general_feedback is missing"),
]


@pytest.mark.parametrize(("change", "says"), DIFFERENCES)
def test_a_schema_that_differs_is_refused_with_the_difference(change: str, says: str, tmp_path: Path) -> None:
    place = Place("sqlite", str(tmp_path / "a.db"))
    place.execute(migration_sql("sqlite"))
    place.execute(change)
    actual = place.refused()
    assert actual.startswith(says), actual
    assert "; " not in actual, "one difference is reported once"


def test_every_difference_is_named(printed: Place) -> None:
    for change, _ in (DIFFERENCES[0], DIFFERENCES[1], DIFFERENCES[3], DIFFERENCES[5]):
        printed.execute(change)
    actual = printed.refused().split("; ")
    assert actual == [
        "column feedback.metadata is missing",
        "index feedback.feedback_by_user is missing",
        "table general_feedback is missing",
        "column feedback.more is not part of the schema",
    ]


OTHERS = [
    (
        "    agent_id         TEXT ",
        "    agent_id         BLOB ",
        "column sessions.agent_id is 'BLOB NOT NULL DEFAULT ''",
    ),
    ("DEFAULT 'message'", "DEFAULT 'event'", "column messages.kind is 'TEXT NOT NULL DEFAULT 'event''"),
    (
        "CHECK (scope = 'session' OR scope = 'agent')",
        "CHECK (scope = 'session')",
        "constraint compaction_policies: CHECK (scope = 'session' OR scope = 'agent') is missing",
    ),
    (
        "REFERENCES mcp_servers (tenant_id, id) ON DELETE CASCADE",
        "REFERENCES mcp_servers (tenant_id, id)",
        "constraint mcp_tools: FOREIGN KEY",
    ),
    (") STRICT, WITHOUT ROWID;", ") STRICT;", "table sessions is 'STRICT', not 'STRICT, WITHOUT ROWID'"),
    ("tokenize = 'ascii'", "tokenize = 'unicode61'", "table message_index is 'CREATE VIRTUAL TABLE"),
    (
        "CREATE TRIGGER messages_deleted BEFORE",
        "CREATE TRIGGER messages_deleted AFTER",
        "trigger messages.messages_del",
    ),
]


@pytest.mark.parametrize(("original", "instead", "says"), OTHERS)
def test_another_definition_is_refused_on_sqlite(original: str, instead: str, says: str, tmp_path: Path) -> None:
    script = migration_sql("sqlite")
    assert original in script
    place = Place("sqlite", str(tmp_path / "a.db"))
    place.execute(script.replace(original, instead, 1))
    assert says in place.refused()


ALTERED = [
    (
        "ALTER TABLE sessions ALTER agent_id TYPE VARCHAR(40)",
        "column sessions.agent_id is 'character varying(40) NOT NULL",
    ),
    ("ALTER TABLE sessions ALTER agent_id TYPE TEXT", "column sessions.agent_id is 'text NOT NULL"),
    ("ALTER TABLE sessions ALTER agent_id DROP NOT NULL", "column sessions.agent_id is 'text COLLATE C DEFAULT"),
    ("ALTER TABLE sessions ALTER agent_id DROP DEFAULT", "column sessions.agent_id is 'text COLLATE C NOT NULL', not"),
    (
        "ALTER TABLE objects ALTER body SET STORAGE MAIN",
        "column objects.body is 'bytea STORAGE m', not 'bytea STORAGE e'",
    ),
    ("ALTER TABLE sessions RESET (fillfactor)", "table sessions is '', not 'fillfactor=70'"),
    (
        "ALTER TABLE general_feedback DROP CONSTRAINT general_feedback_issue_type_check",
        "constraint general_feedback.general_feedback_issue_type_check is miss",
    ),
    (
        "ALTER TABLE general_feedback DROP CONSTRAINT general_feedback_pkey",
        "constraint general_feedback.general_feedback_pkey is missing",
    ),
    (
        (
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; "
            "CREATE TRIGGER t BEFORE UPDATE ON sessions FOR EACH ROW EXECUTE FUNCTION f()"
        ),
        "trigger sessions.t is not part of the schema",
    ),
]


def test_another_definition_is_refused_on_postgres(postgres_url: str) -> None:
    initial = migrations(Dialect.POSTGRES)
    with psycopg.connect(postgres_url, autocommit=True) as raw:
        for change, says in [*DIFFERENCES, *ALTERED]:
            with raw.transaction(force_rollback=True):
                raw.execute(change.encode())
                (actual,) = step(differences(PsycopgConnection(raw), initial))
                assert actual.startswith(says), actual
        assert step(differences(PsycopgConnection(raw), initial)) == []


def test_an_empty_database_is_missing_every_table(bare: Place) -> None:
    actual = bare.refused().split("; ")
    assert all(line.startswith("table ") and line.endswith(" is missing") for line in actual)
    assert {"table tenants is missing", "table sessions is missing"} <= {*actual}


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        adopt(str(tmp_path / "not.there"))
    assert [*tmp_path.iterdir()] == []


def test_sql_for_an_unknown_engine_is_rejected() -> None:
    with raises(InvalidInput, field="engine"):
        migration_sql("oracle")
