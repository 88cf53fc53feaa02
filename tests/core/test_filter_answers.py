"""The rows that compiled filters find in a table with every kind of column, compared with a Python model; and invalid filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Filter, Limits, column, meta
from holdfast.clock import to_us
from holdfast.core import text
from holdfast.core.filters import FilterColumns, filter_list, id_list
from holdfast.core.queries import Statement
from holdfast.engines.dialect import Dialect
from holdfast.errors import InvalidFilter, LimitExceeded
from tests.errors import raises

TABLE = FilterColumns(
    {name: (f"{name}_column", kind) for name, kind in (("name", "text"), ("count", "number"), ("done", "bool"),
                                                       ("at", "time"), ("id", "id"))},
    metadata="extra",
)  # fmt: skip
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
IDS = [f"00000000-0000-7000-8000-00000000000{n}" for n in range(3)]
Values = dict[str, Any]
ROWS: list[Values] = [
    {"name": "a", "count": 1, "done": True, "at": MOMENT, "id": IDS[0], "extra": {"k": 1, "tags": ["a", 1]}},
    {
        "name": "ab",
        "count": 2,
        "done": False,
        "at": MOMENT + timedelta(microseconds=1),
        "id": IDS[1],
        "extra": {"k": 1.5},
    },
    {"name": "", "count": -5, "done": True, "at": MOMENT - timedelta(days=1), "id": IDS[2], "extra": {"k": "1"}},
    {"name": "\x00", "count": 0, "done": None, "at": None, "id": None, "extra": {"k": True, "tags": "a b"}},
    {"name": "é", "count": 10**15, "done": False, "at": MOMENT, "id": IDS[0], "extra": {"k": None}},
    {"name": None, "count": None, "done": None, "at": None, "id": None, "extra": {}},
    {
        "name": "\ud800",
        "count": 2,
        "done": True,
        "at": MOMENT,
        "id": IDS[1],
        "extra": {"k": "\x00", "tags": [None, True]},
    },
    {"name": "A", "count": 1, "done": False, "at": MOMENT, "id": IDS[2], "extra": {"k": [1], "tags": {"a": 1}}},
]


def stored(row: Values) -> tuple[Any, ...]:
    name, at, result = row["name"], row["at"], row["done"]
    return (
        None if name is None else text.escape(name),
        row["count"],
        None if result is None else int(result),
        None if at is None else to_us(at),
        row["id"],
        text.dump(row["extra"]),
    )


@pytest.fixture(scope="module")
def answers() -> Iterator[Callable[..., list[int]]]:
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, name_column TEXT, count_column INTEGER, "
                       "done_column INTEGER, at_column INTEGER, id_column TEXT, extra TEXT)")  # fmt: skip
    for number, row in enumerate(ROWS):
        connection.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?)", (number, *stored(row)))

    def ask(*filters: Filter) -> list[int]:
        params: Values = {}
        clause = TABLE.compile(filters, params, Dialect.SQLITE, Limits())
        statement = Statement(f"SELECT n FROM t WHERE 1 = 1{clause} ORDER BY n", Dialect.SQLITE)
        return [row[0] for row in connection.execute(statement.sql, tuple(statement.bind(params)))]

    yield ask
    connection.close()


def comparable(value: Any) -> Any:
    """Return a value for comparison: texts are compared in their stored form."""
    return text.escape(value) if isinstance(value, str) else value


COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "lt": lambda one, other: one < other,
    "le": lambda one, other: one <= other,
    "gt": lambda one, other: one > other,
    "ge": lambda one, other: one >= other,
}


def column_fits(there: Any, op: str, value: Any) -> bool:
    if op == "eq":
        return bool(there == value)
    if op == "ne":
        return bool(there != value)
    if op == "in":
        return there in value
    if there is None:
        return False
    return value in there if op == "contains" else COMPARED[op](comparable(there), comparable(value))


def kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return repr(value)
    return "number" if isinstance(value, (int, float)) else type(value).__name__


def alike(one: Any, other: Any) -> bool:
    return kind(one) == kind(other) and bool(one == other)


def meta_fits(extra: Values, key: str, op: str, value: Any) -> bool:
    if op == "ne":
        return not meta_fits(extra, key, "eq", value)
    if key not in extra:
        return False
    existing = extra[key]
    if op == "eq":
        return alike(existing, value)
    if op == "in":
        return any(alike(existing, item) for item in value)
    if op == "contains":
        inside = isinstance(existing, str) and isinstance(value, str) and value in existing
        return inside or (isinstance(existing, list) and any(alike(item, value) for item in existing))
    return kind(existing) == kind(value) and COMPARED[op](comparable(existing), comparable(value))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    name: st.sampled_from([row[name] for row in ROWS if row[name] is not None])
    for name in ("name", "count", "done", "at", "id")
}
OPERATORS = {"name": ["contains"], "count": [], "at": [], "done": None, "id": []}


@st.composite
def on_columns(draw: st.DrawFn) -> Filter:
    name = draw(st.sampled_from(sorted(VALUES)))
    more = OPERATORS[name]
    op = draw(st.sampled_from(["eq", "ne", "in"] if more is None else ["eq", "ne", "in", *COMPARED, *more]))
    value = VALUES[name]
    if op == "in":
        return Filter("in", draw(st.lists(value | st.none(), max_size=3)), column=name)
    return Filter(op, draw(value | st.none() if op in ("eq", "ne") else value), column=name)  # type: ignore[arg-type]


@st.composite
def on_metadata(draw: st.DrawFn) -> Filter:
    key = draw(st.sampled_from(["k", "tags", "$.k", "absent", "\x00"]))
    scalar = st.sampled_from([None, True, False, 1, 1.0, 1.5, 0, "1", "a", "", "\x00", "a b"])
    op = draw(st.sampled_from(["eq", "ne", "in", "contains", *COMPARED]))
    if op == "in":
        return Filter("in", draw(st.lists(scalar, max_size=3)), meta=key)
    return Filter(
        op, draw(scalar.filter(lambda value: op not in COMPARED or kind(value) in ("number", "str"))), meta=key
    )  # type: ignore[arg-type]


def fits(row: Values, f: Filter) -> bool:
    if isinstance(f.column, str):
        return column_fits(row[f.column], f.op, f.value)
    return meta_fits(row["extra"], str(f.meta), f.op, f.value)


@given(filters=st.lists(on_columns() | on_metadata(), min_size=1, max_size=2))
@settings(max_examples=80)
def test_a_filter_finds_what_the_model_finds(answers: Callable[..., list[int]], filters: list[Filter]) -> None:
    expected = [number for number, row in enumerate(ROWS) if all(fits(row, filter_) for filter_ in filters)]
    assert answers(*filters) == expected


def test_no_filter_finds_every_row_and_an_empty_list_none(answers: Callable[..., list[int]]) -> None:
    assert answers() == list(range(len(ROWS)))
    assert answers(column("name").is_in([])) == answers(meta("k").is_in([])) == []
    assert answers(column("id").is_in([None])) == [3, 5]


@pytest.mark.parametrize("spelled", [IDS[0].upper(), IDS[0].replace("-", ""), f"{{{IDS[0]}}}"])
def test_an_id_is_found_in_any_spelling(answers: Callable[..., list[int]], spelled: str) -> None:
    assert answers(column("id").eq(spelled)) == answers(column("id").is_in([spelled])) == [0, 4]


def test_a_time_is_the_same_in_every_zone(answers: Callable[..., list[int]]) -> None:
    elsewhere = MOMENT.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert answers(column("at").eq(elsewhere)) == [0, 4, 6, 7]
    assert answers(column("at").gt(elsewhere)) == [1]


@pytest.mark.parametrize(
    ("f", "field"),
    [
        (column("count").eq("1"), "count"),
        (column("count").eq(1.0), "count"),
        (column("count").eq(True), "count"),
        (column("count").lt(None), "count"),
        (column("count").eq(10**16), "count"),
        (column("count").eq(-(10**5000)), "count"),
        (column("count").contains(1), "count"),
        (column("count").is_in([1, "2"]), "count"),
        (column("done").eq(1), "done"),
        (column("done").lt(True), "done"),
        (column("at").eq(MOMENT.replace(tzinfo=None)), "at"),
        (column("at").eq(5), "at"),
        (column("at").eq(datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))), "at"),
        (column("name").eq(b"a"), "name"),
        (column("name").contains(None), "name"),
        (column("name").is_in("ab"), "value"),
        (column("name").is_in(b"ab"), "value"),
        (column("id").eq("1"), "id"),
        (column("id").contains(IDS[0]), "id"),
        (column("id").eq(7), "id"),
        (column("").eq(1), "column"),
        (column("extra").eq(1), "column"),
        (column("name_column").eq("a"), "column"),
        (meta("k").lt(True), "value"),
        (meta("k").ge(None), "value"),
        (meta("k").eq([1]), "value"),
        (meta("k").eq({}), "value"),
        (meta("k").contains(b"a"), "value"),
        (meta("k").is_in([1, [2]]), "value"),
        (meta("k").eq(float("nan")), "value"),
        (meta("k").eq(float("-inf")), "value"),
        (meta("k").eq(1e16), "value"),
        (Filter("like", "a", column="name"), "op"),  # type: ignore[arg-type]
        (Filter("eq", 1), "where"),
        (Filter("eq", 1, column="name", meta="k"), "where"),
        ({"column": "name", "op": "eq", "value": 1}, "where"),
        (None, "where"),
    ],
)
@pytest.mark.parametrize("dialect", list(Dialect), ids=lambda value: value.value)
def test_invalid_filters_are_rejected_for_both_engines(f: Any, field: str, dialect: Dialect) -> None:
    with raises(InvalidFilter, field=field) as caught:
        TABLE.compile([f], {}, dialect, Limits())
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "filters", ["name", b"name", {"name": 1}, 7, None, {1}, iter([])], ids=lambda value: type(value).__name__
)
def test_filters_must_be_a_list(filters: Any) -> None:
    if isinstance(filters, bytes):
        with pytest.raises(InvalidFilter):
            TABLE.compile(filters, {}, Dialect.SQLITE, Limits())  # type: ignore[arg-type]
        return
    with raises(InvalidFilter, field="where"):
        filter_list(filters)


def test_a_list_of_exactly_the_maximum_length_is_accepted(answers: Callable[..., list[int]]) -> None:
    most = Limits().filter_values
    assert answers(column("count").is_in(range(most))) == [0, 1, 3, 6, 7]
    with raises(LimitExceeded, limit="filter_values", maximum=1000):
        answers(column("count").is_in(range(most + 1)))


@pytest.mark.parametrize("value", ["plain", "\x00", "\ud800", "\U0010f801", "é"], ids=repr)
def test_id_list_does_not_escape_stored_ids_again(value: str) -> None:
    given_ids = [text.escape(value)]
    assert id_list(given_ids, Dialect.POSTGRES) == given_ids
    rows = apsw.Connection(":memory:").execute("SELECT value FROM json_each(?)", (id_list(given_ids, Dialect.SQLITE),))
    assert [row[0] for row in rows] == given_ids
