"""The mapping between database rows and row types."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Annotated, Any, Literal, Optional

import pytest
from msgspec import Struct

from holdfast.core import text
from holdfast.core.rows import Column, column_names, columns, kind_of, mapper
from holdfast.engines.dialect import Dialect
from holdfast.errors import Corrupt
from holdfast.ids import Id
from tests.contract.cases.values import TEXTS, documents, same

SQLITE, POSTGRES = Dialect.SQLITE, Dialect.POSTGRES
MOMENT = datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
MOMENT_US = 1_700_000_000_123_456


class Everything(Struct, frozen=True):
    id: Id
    name: Annotated[str, Column("its_name")]
    note: str | None
    kind: Annotated[str, "plain"]
    role: Literal["a", "b"] | None
    extra: dict[str, Any]
    items: list[Any] | None
    anything: Any
    flag: bool
    maybe: bool | None
    made_at: datetime
    gone_at: datetime | None
    size: int
    ratio: float
    data: bytes


def row(dialect: Dialect, **changes: Any) -> tuple[Any, ...]:
    native = dialect is POSTGRES
    values = {
        "id": "0" * 36,
        "name": text.escape("\x00\ud800"),
        "note": None,
        "kind": "plain",
        "role": "a",
        "extra": text.dump({"k": "\x00"}),
        "items": None,
        "anything": "1.0",
        "flag": True if native else 1,
        "maybe": None,
        "made_at": MOMENT if native else MOMENT_US,
        "gone_at": None,
        "size": 3,
        "ratio": 0.5,
        "data": b"\x00",
    }
    return tuple({**values, **changes}.values())


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRES])
def test_a_row_becomes_an_object_of_its_type(dialect: Dialect) -> None:
    (result,) = mapper(Everything, dialect)([row(dialect)])
    expected = Everything(
        "0" * 36, "\x00\ud800", None, "plain", "a", {"k": "\x00"}, None, 1.0, True, None, MOMENT, None, 3, 0.5, b"\x00"
    )
    assert result == expected
    assert type(result.flag) is bool
    assert result.made_at.tzinfo is UTC


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRES])
def test_a_column_may_contain_nulls_and_values(dialect: Dialect) -> None:
    native = dialect is POSTGRES
    full = {"note": "é", "items": "[1]", "maybe": False if native else 0, "gone_at": MOMENT if native else MOMENT_US}
    rows = [row(dialect), row(dialect, **full), row(dialect), row(dialect, **full)]
    objects = mapper(Everything, dialect)(rows)
    assert [item.note for item in objects] == [None, "é", None, "é"]
    assert [item.items for item in objects] == [None, [1], None, [1]]
    assert [item.maybe for item in objects] == [None, False, None, False]
    assert [item.gone_at for item in objects] == [None, MOMENT, None, MOMENT]


def test_no_rows_give_no_objects() -> None:
    assert mapper(Everything, SQLITE)([]) == []


def test_times_are_returned_in_utc_whatever_the_zone_of_the_connection() -> None:
    elsewhere = MOMENT.astimezone(timezone(timedelta(hours=-7)))
    (result,) = mapper(Everything, POSTGRES)([row(POSTGRES, made_at=elsewhere)])
    assert result.made_at == MOMENT
    assert result.made_at.utcoffset() == timedelta(0)


def test_rows_do_not_share_metadata_objects() -> None:
    one, other = mapper(Everything, SQLITE)([row(SQLITE, extra="{}"), row(SQLITE, extra="{}")])
    one.extra["changed"] = True
    assert other.extra == {}


def test_damaged_json_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        mapper(Everything, SQLITE)([row(SQLITE), row(SQLITE, extra="{")])


def test_every_text_and_document_round_trips_among_others() -> None:
    rows = [row(SQLITE, name=text.escape(value), extra=text.dump({value: value})) for value in TEXTS]
    rows.append(row(SQLITE, extra=text.dump(documents())))
    objects = mapper(Everything, SQLITE)(rows)
    assert [item.name for item in objects[:-1]] == [*TEXTS]
    assert [item.extra for item in objects[:-1]] == [{value: value} for value in TEXTS]
    assert same(objects[-1].extra, documents())


def test_columns_are_the_fields_unless_named_otherwise() -> None:
    assert column_names(Everything)["name"] == "its_name"
    assert column_names(Everything)["size"] == "size"
    assert columns(Everything, SQLITE).startswith("id, its_name, note, ")
    assert columns(Everything, POSTGRES).startswith("id::text, its_name, note, ")
    assert "extra::text" in columns(Everything, POSTGRES)
    assert columns(Everything, SQLITE, "t").startswith("t.id, t.its_name, ")


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (str, "text"),
        (str | None, "text"),
        (Optional[str], "text"),  # noqa: UP045
        (Id, "id"),
        (Annotated[str, "plain"], "plain"),
        (Annotated[str, Column("x")], "text"),
        (Annotated[str | None, Column("x")], "text"),
        (Literal["a"], "plain"),
        (Literal["a"] | None, "plain"),
        (datetime, "time"),
        (datetime | None, "time"),
        (bool, "bool"),
        (int, "number"),
        (float, "number"),
        (bytes, "plain"),
        (dict[str, Any], "json"),
        (list[str], "json"),
        (Any, "json"),
    ],
    ids=str,
)
def test_a_type_determines_how_its_values_are_stored(hint: Any, kind: str) -> None:
    assert kind_of(hint) == kind
