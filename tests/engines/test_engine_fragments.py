"""The SQL fragments that differ between the engines have the same results on both."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import apsw
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Filter
from holdfast.core.queries import Statement
from holdfast.engines import sql_fragments
from holdfast.engines.dialect import Dialect
from tests.models import oracle

Ask = Callable[[str, dict[str, Any]], bool]
"""Whether a condition on the column ``document`` holds, with these parameters."""


def on_sqlite(condition: str, parameters: dict[str, Any]) -> bool:
    connection = apsw.Connection(":memory:")
    try:
        sql = f"SELECT ({condition}) FROM (SELECT :document AS document)"
        ((actual,),) = connection.execute(sql, parameters).fetchall()
        return bool(actual)
    finally:
        connection.close()


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "text" if isinstance(value, str) else "number"


def argument(value: Any, dialect: Dialect) -> Any:
    """A scalar as the stores send it."""
    if dialect is Dialect.POSTGRES:
        return json.dumps(value)
    kind = kind_of(value)
    return kind if kind in ("true", "false", "null") else value


class Engine:
    """The fragments of one dialect, run."""

    def __init__(self, dialect: Dialect, ask: Ask) -> None:
        self.dialect, self._ask = dialect, ask

    def ask(self, condition: str, document: Any, **parameters: Any) -> bool:
        return self._ask(condition, {"document": json.dumps(document), **parameters})

    def equals(self, document: Any, key: str, value: Any) -> bool:
        condition = sql_fragments.key_equals(self.dialect, "document", "key", "value", kind_of(value))
        return self.ask(condition, document, key=key, value=argument(value, self.dialect))

    def among(self, document: Any, key: str, values: Sequence[Any]) -> bool:
        condition = sql_fragments.key_in(self.dialect, "document", "key", "values")
        return self.ask(condition, document, key=key, values=json.dumps(values))

    def compares(self, document: Any, key: str, sign: str, value: Any) -> bool:
        kind = kind_of(value)
        condition = sql_fragments.key_compares(self.dialect, "document", "key", "value", kind, sign)
        sent = json.dumps(value) if self.dialect is Dialect.POSTGRES and kind != "text" else value
        return self.ask(condition, document, key=key, value=sent)

    def contains(self, document: Any, key: str, value: Any) -> bool:
        condition = sql_fragments.key_contains(self.dialect, "document", "key", "value", kind_of(value))
        return self.ask(condition, document, key=key, value=argument(value, self.dialect))


SQLITE = Engine(Dialect.SQLITE, on_sqlite)


@pytest.fixture(scope="module")
def postgres_engine(postgres_server: Any) -> Any:
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as connection:

        def ask(condition: str, parameters: dict[str, Any]) -> bool:
            for name in sorted(parameters, key=len, reverse=True):
                condition = condition.replace(f":{name}::", f"%({name})s::")
            sql = f"SELECT ({condition}) FROM (SELECT %(document)s::text::jsonb AS document) AS given"
            row = connection.execute(sql.encode(), parameters).fetchone()
            assert row is not None
            return bool(row[0])

        yield Engine(Dialect.POSTGRES, ask)


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> Engine:
    result: Engine = SQLITE if request.param == "sqlite" else request.getfixturevalue("postgres_engine")
    return result


SAME: list[tuple[Any, Any, bool]] = [
    ("a", "a", True),
    ("a", "A", False),
    ("a", "a ", False),
    ("", "", True),
    ("1", 1, False),
    (1, "1", False),
    (1, 1.0, True),
    (1.5, 1.5, True),
    (0, False, False),
    (1, True, False),
    (True, True, True),
    (True, 1, False),
    (False, False, True),
    (True, False, False),
    (None, None, True),
    (None, False, False),
    (None, "null", False),
    ("true", True, False),
    ("null", None, False),
    ([], None, False),
    ([1], 1, False),
    ({"a": 1}, 1, False),
    ("é", "é", True),
    ("é", "e\u0301", False),
    ("\U0001f600", "\U0001f600", True),
]


@pytest.mark.parametrize(("stored", "value", "same"), SAME, ids=[f"{stored!r}={value!r}" for stored, value, _ in SAME])
def test_a_scalar_is_equal_in_value_and_in_type(stored: Any, value: Any, same: bool, engine: Engine) -> None:
    assert engine.equals({"k": stored}, "k", value) is same
    assert engine.among({"k": stored}, "k", [value]) is same
    assert engine.among({"k": stored}, "k", ["other", 77, value]) is same
    assert engine.contains({"k": [stored]}, "k", value) is same


@pytest.mark.parametrize("key", ["a.b", "$", "$.a", "'", '"', "", "#", "[0]", "a'b", "%s", ":value", "\\", "漢", "a b"])
def test_a_key_is_compared_and_never_read_as_a_path(key: str, engine: Engine) -> None:
    assert engine.equals({key: "x"}, key, "x")
    assert engine.contains({key: ["x"]}, key, "x")
    assert engine.among({key: "x"}, key, ["x"])
    assert engine.compares({key: "x"}, key, "<", "y")
    assert not engine.equals({"a": {"b": "x"}, "0": "x"}, key, "x")


def test_a_missing_key_equals_nothing_not_even_null(engine: Engine) -> None:
    assert not engine.equals({}, "k", None)
    assert not engine.among({}, "k", [None])
    assert not engine.contains({}, "k", None)
    assert not engine.compares({}, "k", "<", 1)
    assert not engine.among({"k": 1}, "k", [])


COMPARED: list[tuple[Any, str, Any, bool]] = [
    (1, "<", 2, True),
    (2, "<", 2, False),
    (2, "<=", 2, True),
    (2, ">", 1.5, True),
    (2, ">=", 2.0, True),
    (-1, "<", 0, True),
    (10, ">", 9, True),
    ("10", ">", "9", False),
    ("a", "<", "b", True),
    ("B", "<", "a", True),
    ("é", ">", "z", True),
    ("", "<", "a", True),
    ("1", "<", 2, False),
    (1, "<", "2", False),
    (True, ">=", 0, False),
    (None, "<", 1, False),
    ([1], "<", 2, False),
]


@pytest.mark.parametrize(
    ("stored", "sign", "value", "holds"),
    COMPARED,
    ids=[f"{stored!r}{sign}{value!r}" for stored, sign, value, _ in COMPARED],
)
def test_numbers_are_compared_with_numbers_and_text_with_text_by_code_point(
    stored: Any, sign: str, value: Any, holds: bool, engine: Engine
) -> None:
    assert engine.compares({"k": stored}, "k", sign, value) is holds


CONTAINED: list[tuple[Any, Any, bool]] = [
    ("needle in hay", "needle", True),
    ("needle", "needle in hay", False),
    ("Needle", "needle", False),
    ("100%", "%", True),
    ("abc", "a_c", False),
    ("abc", "", True),
    ("a\\b", "\\", True),
    ("x1", 1, False),
    (11, "1", False),
    (11, 1, False),
    (["a", "b"], "b", True),
    (["ab"], "a", False),
    ([["a"]], "a", False),
    ([{"a": 1}], 1, False),
    ({"a": "b"}, "b", False),
    ([], "", False),
    ([None], None, True),
    ([False], False, True),
    ([0], False, False),
    ([1.0], 1, True),
]


@pytest.mark.parametrize(("stored", "value", "holds"), CONTAINED, ids=[f"{f!r} has {v!r}" for f, v, _ in CONTAINED])
def test_an_array_contains_elements_and_a_text_substrings(stored: Any, value: Any, holds: bool, engine: Engine) -> None:
    assert engine.contains({"k": stored}, "k", value) is holds


def test_a_list_of_ids_is_one_argument_on_both_engines(engine: Engine) -> None:
    condition = sql_fragments.any_of(engine.dialect, "'b'", "ids")
    for expected, holds in ((["a", "b"], True), (["a"], False), ([], False), (["B"], False), (["b"] * 1_000, True)):
        sent = json.dumps(expected) if engine.dialect is Dialect.SQLITE else expected
        assert engine.ask(condition, {}, ids=sent) is holds


def test_ids_are_cast_only_on_postgres() -> None:
    assert sql_fragments.any_of(Dialect.POSTGRES, "id", "ids", "uuid") == "id = ANY(:ids::uuid[])"
    assert "uuid" not in sql_fragments.any_of(Dialect.SQLITE, "id", "ids", "uuid")


def test_every_fragment_can_be_part_of_a_statement_of_its_dialect() -> None:
    for dialect in Dialect:
        parts = [
            sql_fragments.any_of(dialect, "id", "ids"),
            sql_fragments.key_equals(dialect, "document", "key", "value", "text"),
            sql_fragments.key_in(dialect, "document", "key", "values"),
            sql_fragments.key_compares(dialect, "document", "key", "value", "number", "<"),
            sql_fragments.key_contains(dialect, "document", "key", "value", "text"),
        ]
        statement = Statement("SELECT 1 FROM t WHERE " + " AND ".join(parts), dialect)
        assert {*statement.names} == {"ids", "key", "value", "values"}
        assert f"{dialect.placeholder}1" in statement.sql


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, 1.0, -2.5]),
    st.text("abéA1", max_size=3),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3))


class Row:
    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata


@settings(max_examples=60)
@given(VALUES, SCALARS)
def test_sqlite_agrees_with_plain_python(stored: Any, value: Any) -> None:
    row = Row({"k": stored})
    assert SQLITE.equals(row.metadata, "k", value) is oracle.matches(row, [Filter("eq", value, meta="k")])
    assert SQLITE.contains(row.metadata, "k", value) is oracle.matches(row, [Filter("contains", value, meta="k")])
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        expected = oracle.matches(row, [Filter("le", value, meta="k")])
        assert SQLITE.compares(row.metadata, "k", "<=", value) is expected


def test_the_two_dialects_have_these_properties() -> None:
    assert [(item.placeholder, item.native_time, item.changes_in_ctes) for item in Dialect] == [
        ("?", False, False),
        ("$", True, True),
    ]
    assert {Dialect.SQLITE: 1, Dialect.POSTGRES: 2}[Dialect("postgres")] == 2
