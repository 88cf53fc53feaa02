"""Named queries: how the text of a .sql file becomes statements."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Struct

import holdfast
from holdfast.core.queries import Query, Statement, parse
from holdfast.core.rows import Column
from holdfast.engines.dialect import Dialect
from holdfast.engines.protocol import Row
from holdfast.ids import Id
from holdfast.stores.conversation import message_log
from holdfast.sync_runner import step

SQLITE, POSTGRES = Dialect.SQLITE, Dialect.POSTGRES


class Thing(Struct, frozen=True):
    id: Id
    owner: Annotated[str, Column("owner_id")]
    extra: dict[str, Any]
    size: int


class Recorder:
    """A connection that records the statements it runs."""

    def __init__(self, dialect: Dialect, rows: list[Row] | None = None) -> None:
        self.dialect, self.rows, self.ran = dialect, rows or [], []

    ran: list[tuple[str, Any]]

    async def fetch(self, sql: str, args: Any) -> list[Row]:
        self.ran.append((sql, args))
        return self.rows

    async def many(self, sql: str, rows: Any) -> None:
        self.ran.append((sql, rows))


def test_parameters_are_numbered_in_the_order_of_their_first_use() -> None:
    statement = Statement("SELECT :b, :a, :b WHERE x = :a;\n", SQLITE)
    assert statement.sql == "SELECT ?1, ?2, ?1 WHERE x = ?2"
    assert statement.names == ("b", "a")
    assert tuple(statement.bind({"a": 1, "b": 2, "more": 3})) == (2, 1)
    assert Statement("SELECT :b, :a, :b", POSTGRES).sql == "SELECT $1, $2, $1"


def test_a_colon_elsewhere_is_not_a_parameter() -> None:
    text = "SELECT ':no', 'it''s :no', x::text, :yes::jsonb -- :no\n/* :no */ FROM t"
    statement = Statement(text, POSTGRES)
    assert statement.names == ("yes",)
    assert statement.sql == "SELECT ':no', 'it''s :no', x::text, $1::jsonb -- :no\n/* :no */ FROM t"


def test_a_missing_parameter_is_an_error_and_not_null() -> None:
    for text in ("SELECT :a", "SELECT :a, :b"):
        with pytest.raises(KeyError):
            Statement(text, SQLITE).bind({"b": 1})
    assert Statement("SELECT 1", SQLITE).bind({}) == ()


def test_times_are_microseconds_above_and_native_below() -> None:
    statement = Statement("SELECT :now_at, :many_at, :none_at, :n", POSTGRES)
    params = {"now_at": 1_000_000, "many_at": [0, 1], "none_at": None, "n": 5}
    first = datetime(1970, 1, 1, tzinfo=UTC)
    assert statement.bind(params) == [
        first.replace(second=1),
        [first, first.replace(microsecond=1)],
        None,
        5,
    ]
    assert tuple(Statement("SELECT :now_at", SQLITE).bind(params)) == (1_000_000,)


def test_a_file_contains_named_queries() -> None:
    parsed = parse("-- name: one\n-- Its purpose.\nSELECT 1;\n\n-- name: two\nSELECT :a;\n")
    assert [*parsed] == ["one", "two"]
    assert parsed["one"].statement(SQLITE).sql == "SELECT 1"
    assert parsed["two"].statement(POSTGRES).sql == "SELECT $1"


def test_variants_belong_to_one_engine() -> None:
    parsed = parse("-- name: q @sqlite\nSELECT 'lite';\n-- name: q @postgres\nSELECT 'post';\n")
    assert parsed["q"].statement(SQLITE).sql == "SELECT 'lite'"
    assert parsed["q"].statement(POSTGRES).sql == "SELECT 'post'"
    only = parse("-- name: q @postgres\nSELECT 1;\n")["q"]
    with pytest.raises(KeyError):
        only.statement(SQLITE)


@pytest.mark.parametrize("second", ["-- name: q\n", "-- name: q @sqlite\n"])
def test_a_query_defined_twice_is_an_error(second: str) -> None:
    with pytest.raises(ValueError, match=r"\bq\b.*sqlite"):
        parse(f"-- name: q\nSELECT 1;\n{second}SELECT 2;\n")


def test_queries_share_a_part() -> None:
    parsed = parse(
        "-- part: head\n-- Its purpose.\nWITH a AS (SELECT :x)\n\n"
        "-- name: one\n/*part head*/\nSELECT 1;\n\n-- name: two @sqlite\n/*part head*/ SELECT :y;\n"
    )
    assert sorted(parsed) == ["one", "two"]
    assert parsed["one"].statement(Dialect.POSTGRES).sql == "WITH a AS (SELECT $1)\nSELECT 1"
    assert parsed["two"].statement(Dialect.SQLITE).names == ("x", "y")
    with pytest.raises(ValueError, match="tail"):
        parse("-- part: head\nSELECT 1\n-- name: q\n/*part tail*/;\n")


def test_a_clause_for_postgres_only() -> None:
    parsed = parse("-- name: q\nSELECT 1 FROM t /*pg FOR UPDATE\n SKIP LOCKED*/;\n")["q"]
    assert parsed.statement(SQLITE).sql.strip() == "SELECT 1 FROM t"
    assert parsed.statement(POSTGRES).sql == "SELECT 1 FROM t FOR UPDATE\n SKIP LOCKED"


def test_columns_of_a_row_type() -> None:
    parsed = parse(
        "-- name: q\nSELECT /*columns Thing*/ * FROM t;\n-- name: r\nSELECT /*columns Thing t*/ * FROM t;\n", Thing
    )
    assert parsed["q"].statement(SQLITE).sql == "SELECT id, owner_id, extra, size FROM t"
    assert parsed["q"].statement(POSTGRES).sql == "SELECT id::text, owner_id, extra::text, size FROM t"
    assert parsed["r"].statement(SQLITE).sql == "SELECT t.id, t.owner_id, t.extra, t.size FROM t"


def test_filters_are_inserted_at_their_comment() -> None:
    query = parse("-- name: q\nSELECT 1 FROM t WHERE a = :a/*where*/ LIMIT :n;\n")["q"]
    assert query.statement(SQLITE).sql == "SELECT 1 FROM t WHERE a = ?1 LIMIT ?2"
    statement = query.statement(SQLITE, " AND b = :b")
    assert statement.sql == "SELECT 1 FROM t WHERE a = ?1 AND b = ?2 LIMIT ?3"
    assert statement.names == ("a", "b", "n")
    assert query.statement(SQLITE, " AND b = :b") is statement


def test_only_sqlite_gets_the_index() -> None:
    query = parse("-- name: q\nSELECT 1 FROM t/*index*/ WHERE a = 1;\n")["q"]
    assert query.statement(SQLITE, index="by_a").sql == "SELECT 1 FROM t INDEXED BY by_a WHERE a = 1"
    assert query.statement(POSTGRES, index="by_a").sql == "SELECT 1 FROM t WHERE a = 1"
    assert query.statement(SQLITE).sql == "SELECT 1 FROM t WHERE a = 1"


@pytest.mark.parametrize(
    ("text", "writes"),
    [
        ("SELECT 1", False),
        ("INSERT INTO t VALUES (1)", True),
        ("UPDATE t SET a = 1", True),
        ("DELETE FROM t", True),
        ("WITH x AS (UPDATE t SET a = 1 RETURNING a) SELECT a FROM x", True),
        ("SELECT updated_at FROM t", False),
    ],
)
def test_a_query_knows_whether_it_writes(text: str, writes: bool) -> None:
    assert Query("q", {SQLITE: text}).writes is writes


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRES])
def test_a_query_runs_with_its_arguments_in_order(dialect: Dialect) -> None:
    query = parse("-- name: q\nSELECT :a, :b;\n")["q"]
    connection = Recorder(dialect, [(1,), (2,)])
    assert step(query.all(connection, {"b": "B", "a": "A"})) == [(1,), (2,)]  # type: ignore[arg-type]
    assert step(query.one(connection, {"b": "B", "a": "A"})) == (1,)  # type: ignore[arg-type]
    mark = dialect.placeholder
    assert connection.ran == [(f"SELECT {mark}1, {mark}2", ("A", "B"))] * 2
    assert step(query.one(Recorder(dialect), {"b": 1, "a": 2})) is None  # type: ignore[arg-type]


def test_many_binds_each_row() -> None:
    connection = Recorder(SQLITE)
    step(
        parse("-- name: q\nINSERT INTO t VALUES (:a, :b);\n")["q"].many(
            connection, [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        )
    )  # type: ignore[arg-type]
    assert connection.ran == [("INSERT INTO t VALUES (?1, ?2)", [(1, 2), (3, 4)])]


def test_a_list_is_json_on_sqlite_and_an_array_on_postgres() -> None:
    texts = parse("-- name: q\nSELECT 1 FROM t WHERE id /*in ids uuid*/;\n")["q"].texts
    assert texts[SQLITE].strip() == "SELECT 1 FROM t WHERE id IN (SELECT value FROM json_each(:ids));"
    assert texts[POSTGRES].strip() == "SELECT 1 FROM t WHERE id = ANY(:ids::uuid[]);"


def test_a_file_can_include_the_parts_of_another() -> None:
    other = "-- part: whole\nSELECT 2\n-- part: own\nSELECT 3\n-- name: not_taken\nSELECT 4;\n"
    parsed = parse("-- part: own\nSELECT 1\n-- name: q\n/*part own*/ UNION /*part whole*/;\n", parts=other)
    assert parsed.keys() == {"q"}
    assert parsed["q"].statement(SQLITE).sql == "SELECT 1 UNION SELECT 2"


def test_only_one_file_inserts_messages() -> None:
    sources = [*Path(holdfast.__file__).parent.rglob("*.sql"), *Path(holdfast.__file__).parent.rglob("*.py")]
    inserting = [source.name for source in sources if "INSERT INTO messages" in source.read_text("utf-8")]
    assert inserting == ["message_log.sql"]
    assert Path(message_log.__file__).with_suffix(".sql").read_text("utf-8").count("INSERT INTO messages") == 1


def test_an_unknown_query_is_an_attribute_error() -> None:
    from holdfast.stores.conversation.sessions import queries

    assert queries.get.name == "get"
    with pytest.raises(AttributeError, match="nothing_like_that"):
        _ = queries.nothing_like_that
