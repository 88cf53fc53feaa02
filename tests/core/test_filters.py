"""The compilation of filters; their results are tested in tests/differential."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Filter, Limits, column, meta
from holdfast.core.filters import FilterColumns, equal_metadata
from holdfast.core.text import escape
from holdfast.engines.dialect import Dialect
from holdfast.errors import InvalidFilter, LimitExceeded
from tests.contract.cases.values import TEXTS
from tests.errors import raises

TABLE = FilterColumns(
    {
        "name": ("name_column", "text"),
        "count": ("count_column", "number"),
        "done": ("done_column", "bool"),
        "at": ("at_column", "time"),
        "id": ("id_column", "id"),
    },
    metadata="extra",
)
DIALECTS = list(Dialect)
OPERATORS = ("eq", "ne", "lt", "le", "gt", "ge", "in", "contains")


def compiled(
    *filters: Any, dialect: Dialect = Dialect.SQLITE, limits: Limits | None = None
) -> tuple[str, dict[str, Any]]:
    params: dict[str, Any] = {}
    return TABLE.compile(filters, params, dialect, limits or Limits()), params


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**15), 10**15), st.text(max_size=5), st.sampled_from(TEXTS)
)
values = st.one_of(
    scalars, st.lists(scalars, max_size=3), st.floats(), st.dictionaries(st.text(max_size=2), scalars, max_size=1)
)
filters = st.builds(
    lambda op, value, target: Filter(op, value, **target),
    st.sampled_from([*OPERATORS, "like", ""]),
    values,
    st.one_of(
        st.sampled_from(["name", "count", "done", "at", "id", "nothing"]).map(lambda name: {"column": name}),
        st.one_of(st.text(max_size=5), st.sampled_from(TEXTS)).map(lambda key: {"meta": key}),
        st.just({}),
        st.just({"column": "name", "meta": "key"}),
    ),
)


@given(filters, st.sampled_from(DIALECTS))
def test_a_filter_compiles_or_is_rejected(f: Filter, dialect: Dialect) -> None:
    try:
        sql, params = compiled(f, dialect=dialect)
    except (InvalidFilter, LimitExceeded):
        return
    assert sql.startswith("\n  AND ")
    assert all(name.startswith("filter_0") for name in params)


def shape(value: Any) -> Any:
    """Return the part of a value that may determine the SQL: its type, and for true, false and null the value."""
    if isinstance(value, (list, tuple)):
        return ("list", any(item is None for item in value), any(item is not None for item in value))
    return (
        value
        if value is None or isinstance(value, bool)
        else "number"
        if isinstance(value, (int, float))
        else type(value)
    )


@given(filters, filters, st.sampled_from(DIALECTS))
def test_the_text_of_a_statement_never_depends_on_a_value_or_a_key(
    one: Filter, other: Filter, dialect: Dialect
) -> None:
    other = msgspec.structs.replace(
        other, op=one.op, column=one.column, meta=one.meta if one.meta is msgspec.UNSET else "other"
    )
    if shape(one.value) != shape(other.value):
        return
    try:
        first, second = compiled(one, dialect=dialect)[0], compiled(other, dialect=dialect)[0]
    except (InvalidFilter, LimitExceeded):
        return
    assert first == second


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("text", TEXTS)
def test_keys_and_values_are_parameters(text: str, dialect: Dialect) -> None:
    marked = f"marker{text}"
    for f in (
        meta(marked).eq(marked),
        meta(marked).is_in([marked]),
        meta(marked).gt(marked),
        column("name").contains(marked),
    ):
        sql, params = compiled(f, dialect=dialect)
        assert "marker" not in sql
        assert any("marker" in str(value) for value in params.values())
    assert compiled(meta(text).eq(1))[1]["filter_0_key"] == escape(text)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_long_list_is_one_parameter(dialect: Dialect) -> None:
    for target in (column("name"), meta("key")):
        short, _ = compiled(target.is_in(["a"]), dialect=dialect)
        long, params = compiled(target.is_in([str(n) for n in range(1_000)]), dialect=dialect)
        assert long == short
        assert len(params) <= 2


@pytest.mark.parametrize("dialect", DIALECTS)
def test_parameters_of_times_end_in_at(dialect: Dialect) -> None:
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    for f in (column("at").eq(moment), column("at").lt(moment), column("at").is_in([moment])):
        _, params = compiled(f, dialect=dialect)
        assert [name for name in params if name.endswith("_at")] == [*params]


def test_each_filter_has_its_own_parameters() -> None:
    sql, params = compiled(*[meta("a").eq(n) for n in range(12)])
    assert len(params) == 24
    assert sql.count("AND EXISTS") == 0
    assert all(f":{name}" in sql for name in params)


def test_filters_have_limits() -> None:
    limits = Limits(filters=2, filter_values=2)
    compiled(*[meta("a").eq(1)] * 2, limits=limits)
    with raises(LimitExceeded, limit="filters", maximum=2):
        compiled(*[meta("a").eq(1)] * 3, limits=limits)
    with raises(LimitExceeded, limit="filter_values", maximum=2):
        compiled(meta("a").is_in([1, 2, 3]), limits=limits)


def test_a_table_without_metadata_rejects_metadata_filters() -> None:
    plain = FilterColumns({"name": ("name", "text")})
    for f in (meta("a").eq(1), meta("a").is_in([1])):
        with raises(InvalidFilter, field="meta"):
            plain.compile([f], {}, Dialect.SQLITE, Limits())


def test_the_error_for_an_unknown_column_lists_the_columns() -> None:
    with raises(InvalidFilter, field="column") as caught:
        compiled(column("colour").eq(1))
    assert str(caught.value).endswith("name, count, done, at, id")
    assert "'colour'" in str(caught.value)


def test_a_dictionary_is_compiled_to_equalities() -> None:
    assert equal_metadata({"a": 1, "b": None}) == [meta("a").eq(1), meta("b").eq(None)]
    assert equal_metadata(None) == []
    for wrong in ("a", [1], 7):
        with pytest.raises(InvalidFilter):
            equal_metadata(wrong)  # type: ignore[arg-type]


def test_the_functions_of_the_language_create_these_filters() -> None:
    target = column("name")
    created = [
        target.eq(1),
        target.ne(1),
        target.lt(1),
        target.le(1),
        target.gt(1),
        target.ge(1),
        target.is_in((1,)),
        target.contains(1),
    ]
    assert [f.op for f in created] == ["eq", "ne", "lt", "le", "gt", "ge", "in", "contains"]
    assert created[6].value == [1]
    assert target.is_in("text").value == "text"


json_filter = msgspec.json.Decoder(Filter).decode


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda text: text.encode(errors="replace"))))
def test_decoding_anything_gives_a_filter_or_a_documented_error(data: bytes) -> None:
    try:
        f = json_filter(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    with pytest.raises(InvalidFilter):
        compiled(f, "not a filter")


@given(filters, st.data())
def test_a_tampered_filter_is_valid_or_rejected(f: Filter, data: st.DataObject) -> None:
    try:
        encoded = msgspec.json.encode(f)
    except UnicodeEncodeError:
        return
    place = data.draw(st.integers(0, len(encoded)))
    changed = encoded[:place] + data.draw(st.binary(max_size=2)) + encoded[place + data.draw(st.integers(0, 2)) :]
    try:
        compiled(json_filter(changed))
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidFilter, LimitExceeded):
        return


@pytest.mark.parametrize("extra", [{"sql": "1=1"}, {"columns": "name"}, {"op": "eq", "value": 1, "table": "x"}])
def test_unknown_fields_in_a_decoded_filter_are_rejected(extra: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        json_filter(msgspec.json.encode({"op": "eq", "value": 1, "column": "name", **extra}))
