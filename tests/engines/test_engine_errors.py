"""Database errors: how every code of both engines is converted, and which errors are retried."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import errors as ours
from holdfast.drivers.apsw import ApswConnection
from holdfast.drivers.sqlite3 import Sqlite3Connection
from holdfast.engines.postgres import errors as postgres
from holdfast.engines.postgres import retries
from holdfast.engines.postgres.options import PoolOptions
from holdfast.engines.protocol import Connection
from holdfast.engines.sqlite import errors as sqlite
from holdfast.errors import (
    AlreadyExists,
    Closed,
    Corrupt,
    Forbidden,
    HoldfastError,
    InvalidInput,
    InvalidText,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    ReadOnly,
    SchemaMismatch,
    StorageFull,
    Unavailable,
)
from holdfast.sync_runner import step
from tests.errors import raises

Kind = type[HoldfastError]


# PostgreSQL

BY_STATE: list[tuple[str, Kind]] = [
    ("23505", AlreadyExists),
    ("23503", NotFound),
    ("23502", InvalidInput),
    ("23514", InvalidInput),
    ("22021", InvalidText),
    ("22P05", InvalidText),
    ("25006", ReadOnly),
    ("25P02", postgres.FailedTransaction),
    ("25P03", postgres.ConnectionLost),
    ("25P04", postgres.ConnectionLost),
    ("40001", postgres.Serialization),
    ("40P01", postgres.Serialization),
    ("55P03", postgres.Serialization),
    ("42501", ReadOnly),
    ("42P01", SchemaMismatch),
    ("42703", SchemaMismatch),
    ("53100", StorageFull),
    ("53200", Unavailable),
    ("53300", Unavailable),
    ("54000", LimitExceeded),
    ("28P01", Unavailable),
    ("28000", Unavailable),
    ("3D000", Unavailable),
    ("08006", postgres.ConnectionLost),
    ("08P01", postgres.ConnectionLost),
    ("57P01", postgres.ConnectionLost),
    ("57P02", postgres.ConnectionLost),
    ("57P03", postgres.ConnectionLost),
    ("57P05", postgres.ConnectionLost),
    ("57014", Unavailable),
    ("58030", postgres.NodeLost),
    ("XX000", Corrupt),
    ("XX001", Corrupt),
    ("22012", HoldfastError),
    ("", HoldfastError),
]


@pytest.mark.parametrize(("state", "kind"), BY_STATE, ids=[state or "none" for state, _ in BY_STATE])
def test_each_sqlstate_becomes_one_error(state: str, kind: Kind) -> None:
    actual = postgres.translate(state, "its own words")
    assert type(actual) is kind
    assert f"PostgreSQL reported {state}: its own words" in str(actual)
    assert str(actual).startswith((kind.__doc__ or "").splitlines()[0])


def test_an_error_without_sqlstate_means_a_lost_connection() -> None:
    actual = postgres.translate(None, "server closed the connection unexpectedly")
    assert type(actual) is postgres.ConnectionLost
    assert str(actual).endswith("(server closed the connection unexpectedly)")
    assert "PostgreSQL reported" not in str(actual)


CONTEXT = "while executing command on 10.0.0.2:5432"
ABOUT_A_WORKER: list[tuple[str, str, str | None, Kind]] = [
    ("08006", "ERROR", None, postgres.NodeLost),
    ("57P01", "ERROR", CONTEXT, postgres.NodeLost),
    ("58030", "ERROR", None, postgres.NodeLost),
    ("XX000", "ERROR", CONTEXT, postgres.NodeLost),
    ("XX001", "ERROR", CONTEXT, Corrupt),
    ("XX000", "ERROR", "SQL statement", Corrupt),
    ("23505", "ERROR", CONTEXT, AlreadyExists),
    ("57P01", "FATAL", None, postgres.ConnectionLost),
    ("08P01", "ERROR", None, postgres.ConnectionLost),
]


@pytest.mark.parametrize(("state", "severity", "context", "kind"), ABOUT_A_WORKER)
def test_a_coordinator_that_reports_a_lost_worker_is_itself_not_lost(
    state: str, severity: str, context: str | None, kind: Kind
) -> None:
    assert type(postgres.translate(state, "its own words", severity=severity, context=context)) is kind


def test_a_worker_lost_in_a_transaction_is_recognised_by_the_message() -> None:
    words = "failure on connection marked as essential: 10.0.0.2:5432"
    assert type(postgres.translate("XX000", words, severity="ERROR")) is postgres.NodeLost


def test_only_a_schema_mismatch_advises_to_migrate() -> None:
    told = {state for state, _ in BY_STATE if "holdfast migrate up" in str(postgres.translate(state, "x"))}
    assert told == {"42P01", "42703"}


def test_only_errors_without_effect_are_retryable() -> None:
    again = {state for state, _ in BY_STATE if isinstance(postgres.translate(state, "x"), retries.AGAIN)}
    assert again == {"40001", "40P01", "55P03", "08006", "08P01", "57P01", "57P02", "57P03", "57P05"} | {
        "25P03",
        "25P04",
    }


def test_errors_of_an_engine_are_subclasses_of_unavailable() -> None:
    for kind in (postgres.ConnectionLost, postgres.NodeLost, postgres.Serialization, sqlite.Busy, sqlite.DiskFailed):
        assert issubclass(kind, Unavailable)
        assert not hasattr(ours, kind.__name__)


# SQLite

BY_CODE: list[tuple[int, Kind]] = [
    (apsw.SQLITE_CONSTRAINT_PRIMARYKEY, AlreadyExists),
    (apsw.SQLITE_CONSTRAINT_UNIQUE, AlreadyExists),
    (apsw.SQLITE_CONSTRAINT_FOREIGNKEY, NotFound),
    (apsw.SQLITE_CONSTRAINT_CHECK, InvalidInput),
    (apsw.SQLITE_CONSTRAINT_NOTNULL, InvalidInput),
    (apsw.SQLITE_BUSY, sqlite.Busy),
    (apsw.SQLITE_BUSY_SNAPSHOT, sqlite.OldSnapshot),
    (apsw.SQLITE_BUSY_RECOVERY, sqlite.Busy),
    (apsw.SQLITE_LOCKED, Unavailable),
    (apsw.SQLITE_NOMEM, Unavailable),
    (apsw.SQLITE_READONLY, ReadOnly),
    (apsw.SQLITE_READONLY_DBMOVED, ReadOnly),
    (apsw.SQLITE_IOERR, sqlite.DiskFailed),
    (apsw.SQLITE_IOERR_FSYNC, sqlite.DiskFailed),
    (apsw.SQLITE_IOERR_SHORT_READ, sqlite.DiskFailed),
    (apsw.SQLITE_CORRUPT, Corrupt),
    (apsw.SQLITE_CORRUPT_INDEX, Corrupt),
    (apsw.SQLITE_NOTADB, Corrupt),
    (apsw.SQLITE_FULL, StorageFull),
    (apsw.SQLITE_CANTOPEN, Unavailable),
    (apsw.SQLITE_CANTOPEN_ISDIR, Unavailable),
    (apsw.SQLITE_TOOBIG, InvalidInput),
    (apsw.SQLITE_ERROR, HoldfastError),
    (apsw.SQLITE_MISUSE, HoldfastError),
    (apsw.SQLITE_CONSTRAINT_TRIGGER, HoldfastError),
    (0, HoldfastError),
]


@pytest.mark.parametrize(("code", "kind"), BY_CODE, ids=[str(code) for code, _ in BY_CODE])
def test_each_sqlite_code_becomes_one_error(code: int, kind: Kind) -> None:
    actual = sqlite.translate(code, "its own words")
    assert type(actual) is kind
    assert str(actual).endswith("(SQLite reported: its own words)")


@pytest.mark.parametrize(
    ("message", "kind", "says"),
    [
        ("no such table: sessions", SchemaMismatch, "no Holdfast schema, or that of another release"),
        ("no such column: depth", SchemaMismatch, "no such column: depth"),
        ("no such module: fts5", InvalidInput, "built without FTS5"),
        ("no such function: nothing", HoldfastError, "no such function"),
    ],
)
def test_sqlites_message_decides_if_its_code_is_ambiguous(message: str, kind: Kind, says: str) -> None:
    actual = sqlite.translate(apsw.SQLITE_ERROR, message)
    assert type(actual) is kind
    assert says in str(actual)


SCHEMA = """CREATE TABLE t (id TEXT PRIMARY KEY, name TEXT UNIQUE, n INTEGER NOT NULL CHECK (n < 10)) STRICT;
CREATE TABLE u (t TEXT NOT NULL REFERENCES t (id)) STRICT;
INSERT INTO t VALUES ('a', 'ada', 1);"""
FAILING: dict[str, tuple[str, Kind]] = {
    "the same key": ("INSERT INTO t VALUES ('a', 'bob', 1)", AlreadyExists),
    "the same name": ("INSERT INTO t VALUES ('b', 'ada', 1)", AlreadyExists),
    "a missing value": ("INSERT INTO t VALUES ('b', 'bob', NULL)", InvalidInput),
    "a number that is too large": ("INSERT INTO t VALUES ('b', 'bob', 10)", InvalidInput),
    "a dangling reference": ("INSERT INTO u VALUES ('missing')", NotFound),
    "no such table": ("SELECT * FROM nowhere", SchemaMismatch),
    "no such column": ("SELECT colour FROM t", SchemaMismatch),
    "no SQL": ("SELEKT", HoldfastError),
    "too large a value": ("SELECT zeroblob(3000000000)", InvalidInput),
}


def through_apsw() -> ApswConnection:
    raw = apsw.Connection(":memory:")
    raw.execute("PRAGMA foreign_keys = ON").fetchall()
    for _ in raw.execute(SCHEMA):
        pass
    return ApswConnection(raw)


def through_sqlite3() -> Sqlite3Connection:
    raw = sqlite3.connect(":memory:", isolation_level=None)
    raw.execute("PRAGMA foreign_keys = ON")
    raw.executescript(SCHEMA)
    return Sqlite3Connection(raw)


Opening = Callable[[], ApswConnection | Sqlite3Connection]
LIBRARIES = pytest.mark.parametrize("connect", [through_apsw, through_sqlite3])


@LIBRARIES
@pytest.mark.parametrize("name", FAILING)
def test_both_libraries_raise_the_same_errors(name: str, connect: Opening) -> None:
    sql, kind = FAILING[name]
    connection = connect()
    with pytest.raises(HoldfastError) as caught:
        connection.execute(sql)
    assert type(caught.value) is kind
    assert isinstance(caught.value.__cause__, apsw.Error | sqlite3.Error), "what the library said is kept"
    connection.raw.close()


@LIBRARIES
def test_one_refused_row_of_many_raises_the_same_error(connect: Opening) -> None:
    connection = connect()
    with pytest.raises(AlreadyExists):
        step(connection.many("INSERT INTO t VALUES (?1, ?2, 1)", [("b", "bob"), ("a", "eve")]))
    connection.raw.close()


@LIBRARIES
def test_a_closed_connection_raises_closed(connect: Opening) -> None:
    connection = connect()
    connection.raw.close()
    with raises(Closed):
        connection.execute("SELECT 1")
    with pytest.raises(Closed):
        step(_in_savepoint(connection, "SELECT 1"))


@LIBRARIES
def test_a_failure_in_a_savepoint_rolls_back_only_that_savepoint(connect: Opening) -> None:
    connection = connect()
    connection.execute("BEGIN")
    step(_in_savepoint(connection, "INSERT INTO t VALUES ('b', 'bob', 1)"))
    with pytest.raises(AlreadyExists):
        step(_in_savepoint(connection, "INSERT INTO t VALUES ('c', 'cy', 1)", "INSERT INTO t VALUES ('a', 'x', 1)"))
    connection.execute("COMMIT")
    assert [*connection.execute("SELECT id FROM t ORDER BY id")] == [("a",), ("b",)]
    connection.raw.close()


@LIBRARIES
def test_a_savepoint_outside_of_a_transaction_begins_one(connect: Opening) -> None:
    connection = connect()
    step(_in_savepoint(connection, "INSERT INTO t VALUES ('b', 'bob', 1)"))
    assert not connection.raw.in_transaction
    with pytest.raises(InvalidInput):
        step(_in_savepoint(connection, "INSERT INTO t VALUES ('c', 'cy', 1)", "INSERT INTO t VALUES ('d', 'dan', 11)"))
    assert not connection.raw.in_transaction
    assert [*connection.execute("SELECT id FROM t ORDER BY id")] == [("a",), ("b",)]
    connection.raw.close()


async def _in_savepoint(connection: Connection, *statements: str) -> None:
    async with connection.savepoint():
        for statement in statements:
            await connection.fetch(statement, ())


def test_a_concurrent_writer_raises_busy_which_is_retryable(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    holder = apsw.Connection(path)
    holder.execute("BEGIN IMMEDIATE")
    with raises(sqlite.Busy):
        ApswConnection(apsw.Connection(path)).execute("BEGIN IMMEDIATE")
    holder.close()


# Trying again


class Appending:
    """A group of one item that answers as its script says."""

    mixes_keys = False

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.careful: list[bool] = []

    def key(self, item: str) -> object:
        return item

    def id_of(self, item: str) -> str:
        return f"id of {item}"

    async def run(self, connection: Connection, items: Sequence[str], *, careful: bool) -> Sequence[str | Exception]:
        self.careful.append(careful)
        answer = self.answers.pop(0)
        if isinstance(answer, tuple):
            raise answer[0]
        return [answer]


TRANSACTION = pytest.mark.parametrize("transaction", [False, True])


def alone(group: Appending, *, transaction: bool) -> str:
    connection = through_apsw()
    try:
        return step(retries.run_alone(group, connection, "it", transaction=transaction))
    finally:
        assert not connection.raw.in_transaction
        connection.raw.close()


@TRANSACTION
def test_a_new_item_is_written_at_the_first_attempt(transaction: bool) -> None:
    group = Appending("done")
    assert alone(group, transaction=transaction) == "done"
    assert group.careful == [False]


@TRANSACTION
def test_an_item_that_may_exist_is_looked_up(transaction: bool) -> None:
    group = Appending((AlreadyExists(),), "found")
    assert alone(group, transaction=transaction) == "found"
    assert group.careful == [False, True]


@TRANSACTION
def test_a_second_concurrent_write_is_detected_by_the_next_attempt(transaction: bool) -> None:
    group = Appending((AlreadyExists("first"),), (AlreadyExists("second"),), "found")
    assert alone(group, transaction=transaction) == "found"
    assert group.careful == [False, True, True]


@TRANSACTION
def test_a_conflict_in_every_attempt_is_raised_to_the_caller(transaction: bool) -> None:
    group = Appending(*((AlreadyExists(name),) for name in ("first", "second", "third")))
    with pytest.raises(AlreadyExists, match="third"):
        alone(group, transaction=transaction)
    assert group.answers == []


@pytest.mark.parametrize(
    ("lost", "transaction"),
    [(postgres.ConnectionLost("gone"), False), (OutcomeUnknown("gone"), False), (OutcomeUnknown("gone"), True)],
)
def test_a_lost_answer_names_the_id_that_settles_it(lost: HoldfastError, transaction: bool) -> None:
    with raises(OutcomeUnknown, id="id of it") as caught:
        alone(Appending((lost,)), transaction=transaction)
    assert caught.value.id == "id of it"
    assert caught.value.__cause__ is lost


@pytest.mark.parametrize(
    ("lost", "transaction"), [(postgres.NotSent("gone"), False), (postgres.ConnectionLost("gone"), True)]
)
def test_a_connection_lost_before_the_write_has_a_known_outcome(lost: HoldfastError, transaction: bool) -> None:
    with pytest.raises(postgres.ConnectionLost) as caught:
        alone(Appending((lost,)), transaction=transaction)
    assert caught.value is lost


@TRANSACTION
def test_an_error_of_an_item_is_raised_and_not_retried(transaction: bool) -> None:
    group = Appending(Forbidden("not yours"))
    with pytest.raises(Forbidden, match="not yours"):
        alone(group, transaction=transaction)
    assert group.careful == [False]


@TRANSACTION
def test_a_retryable_failure_is_raised_unchanged(transaction: bool) -> None:
    with pytest.raises(postgres.Serialization):
        alone(Appending((postgres.Serialization(),)), transaction=transaction)


def test_pauses_double_and_stay_short() -> None:
    pauses = [retries.pause_s(attempt) for attempt in range(retries.TRIES)]
    assert pauses[0] == retries.PAUSE_S
    assert all(later == 2 * earlier for earlier, later in pairwise(pauses))
    assert sum(pauses) < 1


@pytest.mark.parametrize("error", [postgres.ConnectionLost("gone"), postgres.Serialization("in the way")])
def test_a_call_out_of_attempts_is_unavailable_and_reports_their_number(error: HoldfastError) -> None:
    actual = retries.final_error(error)
    assert type(actual) is Unavailable
    assert str(actual) == f"gave up after {retries.TRIES} tries: {error}"


@pytest.mark.parametrize("error", [NotFound("x"), StorageFull("x"), OutcomeUnknown("x", id="i"), Unavailable("x")])
def test_any_other_error_is_raised_unchanged(error: HoldfastError) -> None:
    assert retries.final_error(error) is error


def test_a_pool_keeps_fewer_connections_than_its_maximum() -> None:
    options = PoolOptions()
    assert 0 < options.min_connections <= options.max_connections
    assert options.health_check_s < options.max_idle_s < options.max_lifetime_s
    with pytest.raises(AttributeError):
        options.max_connections = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        PoolOptions(25)  # type: ignore[call-arg]


def test_a_small_pool_keeps_no_more_than_its_maximum_and_an_empty_one_is_refused() -> None:
    assert (PoolOptions(max_connections=2).kept, PoolOptions(max_connections=2, min_connections=1).kept) == (2, 1)
    for wrong in ({"max_connections": 0}, {"max_connections": -1}, {"min_connections": -1}):
        with raises(InvalidInput, field=next(iter(wrong))):
            PoolOptions(**wrong)
