"""Append-only logs: entries are appended once, listed newest first, filtered, counted and pruned by age."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Struct

from holdfast.core.filters import column, meta
from holdfast.core.logs import AsyncLog, Log, LogTable
from holdfast.core.records import Limited
from holdfast.errors import Conflict, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.ids import Id
from holdfast.sync_runner import step
from tests.core.table_databases import TableDatabase, check_statements, database, detects, pages, with_defect
from tests.errors import raises

FIRST = "01900000-0000-7000-8000-000000000000"


class NewEvent(Struct, frozen=True, kw_only=True):
    kind: str
    data: dict[str, Any] = {}


class Event(Struct, frozen=True):
    id: Id
    kind: Annotated[str, Limited("name_bytes", empty=False)]
    data: Annotated[dict[str, Any], Limited("metadata_bytes")]
    created_at: datetime


class AsyncEvents(AsyncLog[Event, NewEvent]):
    """Events."""

    log = LogTable("events", Event, noun="event", indexes={"kind": "events_by_kind", "": "events_by_time"})


class Events(Log[Event, NewEvent]):
    """The same for synchronous programs."""


TABLE = """CREATE TABLE events (tenant_id {text} NOT NULL, id {id} NOT NULL, kind {text} NOT NULL, data {json} NOT NULL,
    created_at {time} NOT NULL, PRIMARY KEY (tenant_id, id))"""
INDEXES = [
    "CREATE INDEX events_by_time ON events (tenant_id, created_at, id)",
    "CREATE INDEX events_by_kind ON events (tenant_id, kind, created_at, id)",
]


@pytest.fixture(params=["sqlite", "postgres"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableDatabase]:
    with database(request, tmp_path, "events", TABLE, *INDEXES) as result:
        yield result


def events(here: TableDatabase, tenant: str = "acme") -> Events:
    return here.store(AsyncEvents, Events, tenant)


Open = Callable[..., Events]


def an_entry_is_added_once(here: TableDatabase, open: Open) -> None:
    acme = open(here)
    first = acme.append(NewEvent(kind="a\x00", data={"n": 1, "é": [None]}), id=FIRST)
    assert (first.kind, first.data) == ("a\x00", {"n": 1, "é": [None]})
    here.clock.advance(1)
    assert acme.append(NewEvent(kind="a\x00", data={"n": 1, "é": [None]}), id=FIRST.upper()) == first
    for other in (
        NewEvent(kind="b", data=first.data),
        NewEvent(kind="a\x00"),
        NewEvent(kind="a\x00", data={"n": True}),
    ):
        with raises(Conflict, reason="other_content") as refused:
            acme.append(other, id=FIRST)
        assert FIRST in str(refused.value)
    assert acme.get(FIRST) == first
    assert acme.list() == [first]
    with pytest.raises(NotFound):
        acme.get("01900000-0000-7000-8000-000000000001")


def entries_are_listed_newest_first_and_in_pages(here: TableDatabase, open: Open) -> None:
    acme = open(here)
    added = []
    for number in range(6):
        added.append(acme.append(NewEvent(kind="xyz"[number % 3])))
        here.clock.advance(number % 2)
    newest = sorted(added, key=lambda row: (row.created_at, row.id), reverse=True)
    assert acme.list() == newest
    for limit in (1, 4):
        assert pages(acme.list, limit) == newest


def filters_are_exact_and_count_agrees(here: TableDatabase, open: Open) -> None:
    acme = open(here)
    one = acme.append(NewEvent(kind="a", data={"n": 1}))
    two = acme.append(NewEvent(kind="A", data={"n": 2}))
    for where, rows in (
        ([column("kind").eq("a")], [one]),
        ([meta("n").eq(2)], [two]),
        ([column("kind").is_in(["a", "A"]), meta("n").ge(1)], [two, one]),
        ([column("kind").eq("b")], []),
    ):
        assert acme.list(where=where) == rows
        assert acme.count(where=where) == len(rows)
    assert acme.count() == 2


def only_older_entries_are_pruned(here: TableDatabase, open: Open) -> None:
    acme, zenith = open(here), open(here, "zenith")
    old, theirs = acme.append(NewEvent(kind="old"), id=FIRST), zenith.append(NewEvent(kind="old"), id=FIRST)
    here.clock.advance(10)
    new = acme.append(NewEvent(kind="new"))
    assert acme.prune(before=old.created_at) == 0
    assert acme.prune(before=new.created_at) == 1
    assert acme.prune(before=new.created_at) == 0
    assert acme.list() == [new]
    assert zenith.list() == [theirs]


def logs_of_tenants_are_separate(here: TableDatabase, open: Open) -> None:
    acme, zenith = open(here), open(here, "zenith")
    mine, theirs = acme.append(NewEvent(kind="a"), id=FIRST), zenith.append(NewEvent(kind="b"), id=FIRST)
    assert (acme.get(FIRST), zenith.get(FIRST)) == (mine, theirs)
    assert (acme.list(), zenith.list()) == ([mine], [theirs])
    assert (acme.count(), zenith.count()) == (1, 1)


PROMISES = [
    an_entry_is_added_once,
    entries_are_listed_newest_first_and_in_pages,
    filters_are_exact_and_count_agrees,
    only_older_entries_are_pruned,
    logs_of_tenants_are_separate,
]


@pytest.mark.parametrize("promise", PROMISES)
def test_a_log(here: TableDatabase, promise: Callable[[TableDatabase, Open], None]) -> None:
    promise(here, events)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WHERE tenant_id = :tenant_id AND id = :id", "WHERE id = :id"),
        ("WHERE tenant_id = :tenant_id/*where*/", "WHERE TRUE/*where*/"),
        ("WHERE tenant_id = :tenant_id AND id IN", "WHERE id IN"),
        ("created_at < :before_at", "created_at <= :before_at"),
        ("ORDER BY created_at DESC, id DESC", "ORDER BY id"),
        ("/*where*/", ""),
        ("DO NOTHING", "DO UPDATE SET kind = excluded.kind"),
    ],
)
def test_a_defect_is_detected(here: TableDatabase, old: str, new: str) -> None:
    wrong = type("Wrong", (AsyncEvents,), {"log": with_defect(AsyncEvents.log, old, new)})
    assert detects(here, PROMISES, lambda database, tenant="acme": database.store(wrong, Events, tenant), "events")


def test_pruning_is_done_in_batches(here: TableDatabase) -> None:
    acme = events(here)
    newest = [acme.append(NewEvent(kind=str(number))) for number in range(4)][-1]
    store = acme._async
    later = newest.created_at + timedelta(seconds=1)
    prune = partial(store.log.prune, scope=store._scope, before=later, limit=3)
    assert [step(store._engine.write(prune)) for _ in range(3)] == [3, 1, 0]


def test_invalid_arguments_are_rejected(here: TableDatabase) -> None:
    acme = events(here)
    calls: list[Callable[[], Any]] = [
        lambda: acme.append(NewEvent(kind="")),
        lambda: acme.append(NewEvent(kind="x" * 41)),
        lambda: acme.append(NewEvent(kind="x", data={1: 2})),  # type: ignore[dict-item]
        lambda: acme.append(NewEvent(kind="x"), id="no id"),
        lambda: acme.get("no id"),
        lambda: acme.prune(before=datetime(2026, 1, 1)),  # noqa: DTZ001
        lambda: acme.list(limit=0),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    for where in ([column("tenant_id").eq("x")], [column("data").eq(1)]):
        with pytest.raises(InvalidFilter):
            acme.list(where=where)
    with pytest.raises(InvalidFilter):
        acme.list(limit=1, cursor="x")
    for _ in range(7):
        acme.append(NewEvent(kind="x"))
    with raises(LimitExceeded, limit="list_rows", maximum=6):
        acme.list()


def test_the_statements_follow_the_rules(here: TableDatabase, request: pytest.FixtureRequest) -> None:
    check_statements(here, AsyncEvents.log, request)
