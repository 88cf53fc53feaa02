"""Plain records, on a table of the test's own, on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import apsw
import psycopg
import pytest
from msgspec import Struct

from holdfast.clock import from_us
from holdfast.core import text
from holdfast.core.paging import Page, encode_cursor
from holdfast.core.records import Records
from holdfast.core.rows import Column
from holdfast.drivers.apsw import ApswConnection
from holdfast.drivers.psycopg import PsycopgConnection
from holdfast.engines.dialect import Dialect
from holdfast.engines.protocol import Connection
from holdfast.errors import AlreadyExists, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stepping import step
from tests.contract.cases.values import GARBAGE_CURSORS, TEXTS

NOW = 1_700_000_000_000_000


class Gadget(Struct, frozen=True):
    """A record with one field of every kind."""

    tenant: Annotated[str, Column("tenant_id")]
    name: str
    colour: str
    extra: dict[str, Any]
    active: bool
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None


TABLE = """CREATE TABLE {name} (tenant_id TEXT {c} NOT NULL, name TEXT {c} NOT NULL, colour TEXT NOT NULL DEFAULT 'red',
    extra {json} NOT NULL DEFAULT '{{}}', active {bool} NOT NULL, created_at {time} NOT NULL, updated_at {time} NOT NULL,
    deleted_at {time})"""
TYPES = {
    Dialect.SQLITE: {"json": "TEXT", "bool": "INTEGER", "time": "INTEGER", "c": ""},
    Dialect.POSTGRES: {"json": "JSONB", "bool": "BOOLEAN", "time": "TIMESTAMPTZ", "c": 'COLLATE "C"'},
}
HARD = Records("gadgets", Gadget, key=["tenant", "name"], editable=["colour", "extra", "active"])
SOFT = Records("soft_gadgets", Gadget, key=["tenant", "name"], editable=["colour", "extra"], soft_delete="deleted_at")


@pytest.fixture(params=["sqlite", "postgres"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    if request.param == "sqlite":
        raw: Any = apsw.Connection(":memory:")
        found: Connection = ApswConnection(raw)
    else:
        raw = psycopg.connect(request.getfixturevalue("bare_postgres_url"), autocommit=True)
        found = PsycopgConnection(raw)
    for name, live in (("gadgets", ""), ("soft_gadgets", " WHERE deleted_at IS NULL")):
        raw.execute(TABLE.format(name=name, **TYPES[found.dialect]))
        raw.execute(f"CREATE UNIQUE INDEX {name}_key ON {name} (tenant_id, name){live}")
    yield found
    raw.close()


def values(name: str = "g", tenant: str = "acme", **more: Any) -> dict[str, Any]:
    plain = {"extra": "{}", "active": True, "created_at": NOW, "updated_at": NOW}
    return {"tenant": tenant, "name": text.escape(name), **plain, **more}


def key(name: str = "g", tenant: str = "acme") -> dict[str, Any]:
    return {"tenant": tenant, "name": text.escape(name)}


def listed(connection: Connection, records: Records[Gadget] = HARD, **how: Any) -> Page[Gadget]:
    limits = how.pop("limits", Limits())
    return step(records.list(connection, {"tenant": "acme"}, limits, **how))


@pytest.mark.parametrize("records", [HARD, SOFT])
def test_a_record_comes_back_as_it_was_made(connection: Connection, records: Records[Gadget]) -> None:
    made = step(records.create(connection, values(colour="blue", extra=text.dump({"a": "\x00"}))))
    moment = from_us(NOW)
    assert made == Gadget("acme", "g", "blue", {"a": "\x00"}, True, moment, moment, None)
    assert step(records.get(connection, key())) == made
    assert step(records.find(connection, key())) == made
    assert listed(connection, records) == [made]


def test_a_column_that_is_not_given_has_its_default(connection: Connection) -> None:
    assert step(HARD.create(connection, values())).colour == "red"


@pytest.mark.parametrize("records", [HARD, SOFT])
def test_a_name_is_taken_once_in_a_scope(connection: Connection, records: Records[Gadget]) -> None:
    step(records.create(connection, values(colour="first")))
    with pytest.raises(AlreadyExists, match="there is already 'g'"):
        step(records.create(connection, values(colour="second")))
    step(records.create(connection, values(tenant="zenith")))
    step(records.create(connection, values("G")))
    assert step(records.get(connection, key())).colour == "first"


@pytest.mark.parametrize("records", [HARD, SOFT])
def test_what_is_not_there_is_not_found(connection: Connection, records: Records[Gadget]) -> None:
    step(records.create(connection, values(tenant="zenith")))
    assert step(records.find(connection, key())) is None
    with pytest.raises(NotFound, match="there is no 'g'"):
        step(records.get(connection, key()))
    with pytest.raises(NotFound):
        step(records.update(connection, key(), {"colour": "blue"}))
    with pytest.raises(NotFound):
        step(records.delete(connection, key(), now_us=NOW))
    assert step(records.get(connection, key(tenant="zenith"))).colour == "red"


def test_an_error_names_the_record_as_the_caller_does(connection: Connection) -> None:
    for name in TEXTS:
        with pytest.raises(NotFound) as caught:
            step(HARD.get(connection, key(name)))
        assert repr(name) in str(caught.value)


def test_update_changes_only_what_may_be_edited(connection: Connection) -> None:
    made = step(HARD.create(connection, values()))
    changed = step(HARD.update(connection, key(), {"colour": "blue", "active": False, "updated_at": NOW + 1}))
    assert (changed.colour, changed.active, changed.extra) == ("blue", False, {})
    assert (changed.created_at, changed.updated_at) == (made.created_at, from_us(NOW + 1))
    for fixed in ("name", "tenant", "created_at"):
        with pytest.raises(InvalidInput, match=f"{fixed} cannot be changed; active, colour, extra can"):
            step(HARD.update(connection, key(), {fixed: "x", "colour": "green"}))
    assert step(HARD.get(connection, key())) == changed


@pytest.mark.parametrize("records", [HARD, SOFT])
def test_upsert_makes_or_changes_and_keeps_what_makes_it_what_it_is(
    connection: Connection, records: Records[Gadget]
) -> None:
    made = step(records.upsert(connection, values(colour="blue")))
    again = step(records.upsert(connection, values(colour="green", created_at=NOW + 5, updated_at=NOW + 5)))
    assert (again.colour, again.created_at, again.updated_at) == ("green", made.created_at, from_us(NOW + 5))
    assert listed(connection, records) == [again]


def test_upsert_with_nothing_to_change_returns_what_is_there(connection: Connection) -> None:
    made = step(SOFT.create(connection, values(colour="blue")))
    bare = {field: value for field, value in values().items() if field not in ("extra", "updated_at")}
    names_only = Records("soft_gadgets", Gadget, key=["tenant", "name"], editable=[], soft_delete="deleted_at")
    assert step(names_only.upsert(connection, {**bare, "extra": "{}", "updated_at": NOW})) == made


def test_a_hard_deletion_is_for_good(connection: Connection) -> None:
    step(HARD.create(connection, values()))
    step(HARD.delete(connection, key(), now_us=NOW))
    assert step(HARD.find(connection, key())) is None
    with pytest.raises(NotFound):
        step(HARD.delete(connection, key(), now_us=NOW))
    step(HARD.create(connection, values()))


def test_a_soft_deletion_hides_and_frees_the_name(connection: Connection) -> None:
    step(SOFT.create(connection, values(colour="old")))
    step(SOFT.delete(connection, key(), now_us=NOW + 7))
    assert step(SOFT.find(connection, key())) is None
    assert listed(connection, SOFT) == []
    for call in (SOFT.get(connection, key()), SOFT.update(connection, key(), {"colour": "x"})):
        with pytest.raises(NotFound):
            step(call)
    with pytest.raises(NotFound):
        step(SOFT.delete(connection, key(), now_us=NOW))
    assert step(SOFT.create(connection, values(colour="new"))).colour == "new"
    step(SOFT.delete(connection, key(), now_us=NOW + 8))
    assert step(SOFT.upsert(connection, values(colour="newest"))).colour == "newest"
    rows = step(connection.fetch("SELECT colour FROM soft_gadgets WHERE deleted_at IS NOT NULL ORDER BY colour", ()))
    assert [row[0] for row in rows] == ["new", "old"]


def test_pages_go_by_name_within_the_scope(connection: Connection) -> None:
    for name in TEXTS:
        step(HARD.create(connection, values(name)))
        step(HARD.create(connection, values(name, tenant="zenith")))
    whole = [*listed(connection)]
    assert [gadget.name for gadget in whole] == sorted(TEXTS, key=text.escape)
    for limit in (1, 7, len(TEXTS), len(TEXTS) + 1):
        page = listed(connection, limit=limit)
        found = [*page]
        while page.next is not None:
            page = listed(connection, limit=limit, cursor=page.next)
            found += page
        assert found == whole


def test_a_list_and_a_page_have_limits_and_cursors_of_their_own(connection: Connection) -> None:
    limits = Limits(list_rows=2, page_rows=2)
    for name in ("a", "b"):
        step(HARD.create(connection, values(name)))
    assert len(listed(connection, limits=limits)) == 2
    with pytest.raises(LimitExceeded, match="page_rows = 2"):
        listed(connection, limits=limits, limit=3)
    step(HARD.create(connection, values("c")))
    with pytest.raises(LimitExceeded, match="list_rows = 2"):
        listed(connection, limits=limits)
    for cursor in (*GARBAGE_CURSORS, encode_cursor("soft_gadgets", "a"), encode_cursor("gadgets", 1)):
        with pytest.raises(InvalidFilter):
            listed(connection, limit=1, cursor=cursor)


def test_unknown_fields_are_refused_before_anything_is_sent(connection: Connection) -> None:
    for call in (
        HARD.find(connection, {**key(), "colour; DROP TABLE gadgets": 1}),
        HARD.get(connection, {**key(), "tenant_id": "acme"}),
        HARD.delete(connection, {**key(), "x": 1}, now_us=NOW),
    ):
        with pytest.raises(InvalidInput, match="gadgets has no field"):
            step(call)


def test_a_statement_is_written_once(connection: Connection) -> None:
    records = Records("gadgets", Gadget, key=["tenant", "name"], editable=["colour"])
    for name in ("a", "b", "c"):
        step(records.create(connection, values(name)))
        step(records.get(connection, key(name)))
        step(records.update(connection, key(name), {"colour": name}))
    assert sorted(query.name for query in records.all_queries()) == ["gadgets.create", "gadgets.find", "gadgets.update"]
