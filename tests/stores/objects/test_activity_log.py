"""Edge cases of the activity log: recording, listing, counting, and the isolation of tenants."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import AsyncHoldfast, FixedClock, Holdfast, Limits, SeededIds, TenantHandle
from holdfast.core.filters import column, meta
from holdfast.core.paging import encode_cursor
from holdfast.core.scope import Scope
from holdfast.errors import Conflict, InvalidFilter, InvalidInput, InvalidText, LimitExceeded, NotFound
from holdfast.stores.objects import activity
from holdfast.stores.objects.activity import NewActivity
from holdfast.sync_runner import step
from holdfast.types import Activity
from tests.errors import raises

ENTRY_ID = "01900000-0000-7000-8000-000000000000"
NAMES = itertools.count()
SMALL = Limits(list_rows=5, page_rows=4, name_bytes=20, key_bytes=24, text_bytes=30, metadata_bytes=60, json_depth=3)


@pytest.fixture(scope="module")
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture(scope="module")
def holdfast(clock: FixedClock) -> Iterator[Holdfast]:
    with Holdfast(":memory:", clock=clock, ids=SeededIds(4), limits=SMALL) as opened:
        yield opened


@pytest.fixture
def acme(holdfast: Holdfast) -> TenantHandle:
    """A tenant of its own for each test."""
    return holdfast.tenant(f"tenant {next(NAMES)}")


def walk(tenant: TenantHandle, size: int, **named: Any) -> list[Activity]:
    """Return all pages of a list, one after the other."""
    entries: list[Activity] = []
    cursor = None
    while True:
        page = tenant.activity.list(limit=size, cursor=cursor, **named)
        assert len(page) <= size
        entries += page
        cursor = page.next
        if cursor is None:
            return entries


def record_all(tenant: TenantHandle, activities: Sequence[NewActivity]) -> None:
    scope = Scope(tenant.name, tenant._scope)
    step(tenant._engine.write(lambda connection: activity.record_all(connection, scope, activities)))


def test_the_first_entry_registers_the_tenant(holdfast: Holdfast, acme: TenantHandle) -> None:
    with pytest.raises(NotFound):
        holdfast.tenants.get(acme.name)
    acme.activity.record("looked")
    assert holdfast.tenants.get(acme.name).id == acme.name


def test_an_invalid_entry_does_not_register_the_tenant(holdfast: Holdfast, acme: TenantHandle) -> None:
    with raises(InvalidInput, field="action of an activity"):
        acme.activity.record("")
    with pytest.raises(NotFound):
        holdfast.tenants.get(acme.name)


@pytest.mark.parametrize(
    ("maximum", "arguments"),
    [
        (20, {"action": "x" * 20}),
        (20, {"action": "x", "actor": "é" * 10}),
        (20, {"action": "x", "subject_kind": "名" * 6 + "ab"}),
        (24, {"action": "x", "subject_id": "😀" * 6}),
        (30, {"action": "x", "reason": "\x00" * 7 + "ab"}),
    ],
    ids=["action", "actor", "subject_kind", "subject_id", "reason"],
)
def test_texts_are_limited_in_bytes(acme: TenantHandle, maximum: int, arguments: dict[str, str]) -> None:
    field, value = list(arguments.items())[-1]
    entry = acme.activity.record(**arguments)  # type: ignore[arg-type]
    assert getattr(acme.activity.get(entry.id), field) == value
    with raises(LimitExceeded, field=f"{field} of an activity", maximum=maximum):
        acme.activity.record(**{**arguments, field: value + "x"})  # type: ignore[arg-type]
    assert acme.activity.count() == 1


def test_details_are_limited_in_bytes(acme: TenantHandle) -> None:
    largest = {"a": "b" * (60 - len('{"a":""}'))}
    assert acme.activity.record("x", details=largest).details == largest
    with raises(LimitExceeded, limit="metadata_bytes", maximum=60):
        acme.activity.record("x", details={"a": largest["a"] + "b"})


def test_details_are_limited_in_depth(acme: TenantHandle) -> None:
    assert acme.activity.record("x", details={"a": [[1]]}).details == {"a": [[1]]}
    with raises(LimitExceeded, limit="json_depth"):
        acme.activity.record("x", details={"a": [[[1]]]})


@pytest.mark.parametrize(
    ("details", "error"),
    [
        ([1], InvalidInput), ("text", InvalidInput), ({1: 2}, InvalidInput), (7, InvalidInput),
        ({"a": float("nan")}, InvalidText), ({"a": float("-inf")}, InvalidText), ({"a": b"x"}, InvalidText),
        ({"a": {1: 2}}, InvalidText), ({"a": {1, 2}}, InvalidText),
    ],
    ids=["list", "text", "keys", "number", "nan", "infinite", "bytes", "inner-keys", "set"],
)  # fmt: skip
def test_details_must_be_a_json_object(acme: TenantHandle, details: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        acme.activity.record("x", details=details)
    assert acme.activity.count() == 0


def test_details_can_be_any_mapping_and_are_read_as_a_dictionary(acme: TenantHandle) -> None:
    entry = acme.activity.record("x", details=MappingProxyType({"a": (1, 2)}))
    assert entry.details == {"a": [1, 2]}
    assert type(acme.activity.get(entry.id).details) is dict


@pytest.mark.parametrize("field", ["actor", "subject_kind", "subject_id", "reason"])
@pytest.mark.parametrize("wrong", [b"x", 7, ["x"]], ids=["bytes", "number", "list"])
def test_fields_must_be_text(acme: TenantHandle, field: str, wrong: object) -> None:
    with raises(InvalidInput, field=f"{field} of an activity"):
        acme.activity.record("x", **{field: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        {"actor": "bob"}, {"subject_kind": "run"}, {"subject_id": "8"}, {"reason": ""}, {"reason": "Why"},
        {"details": {}}, {"details": {"n": 1.0}}, {"details": {"n": "1"}}, {"details": {"n": 1, "m": None}},
    ],
    ids=lambda other: "-".join(f"{name}" for name in other),
)  # fmt: skip
def test_a_repeated_id_with_other_content_is_a_conflict(acme: TenantHandle, other: dict[str, Any]) -> None:
    first: dict[str, Any] = {"actor": "ada", "subject_kind": "session", "subject_id": "7", "reason": "why"}
    first |= {"details": {"n": 1}, "id": ENTRY_ID}
    entry = acme.activity.record("x", **first)
    with raises(Conflict, reason="other_content"):
        acme.activity.record("x", **{**first, **other})
    with raises(Conflict, reason="other_content"):
        acme.activity.record("y", **first)
    assert acme.activity.list() == [entry]


def test_a_repeated_id_in_another_form_returns_the_first_entry(acme: TenantHandle, clock: FixedClock) -> None:
    entry = acme.activity.record("x\x00\ud800", details={"\ud800": "\x00"}, id=ENTRY_ID)
    clock.advance(1)
    for form in (ENTRY_ID.upper(), ENTRY_ID.replace("-", ""), f"{{{ENTRY_ID}}}"):
        assert acme.activity.record("x\x00\ud800", details={"\ud800": "\x00"}, id=form) == entry


def test_two_tenants_can_use_the_same_id(holdfast: Holdfast, acme: TenantHandle) -> None:
    other = holdfast.tenant(f"{acme.name} other")
    mine, theirs = acme.activity.record("x", id=ENTRY_ID), other.activity.record("y", id=ENTRY_ID)
    assert (acme.activity.get(ENTRY_ID), other.activity.get(ENTRY_ID)) == (mine, theirs)
    assert (acme.activity.list(), other.activity.list()) == ([mine], [theirs])


@pytest.mark.parametrize("wrong", ["", "7", ENTRY_ID[:-1], ENTRY_ID + "0", "\x00", "\ud800", None, 7, b"x"])
def test_an_invalid_id_is_refused(acme: TenantHandle, wrong: Any) -> None:
    with raises(InvalidInput, field="activity id"):
        acme.activity.get(wrong)


def test_an_explicit_actor_overrides_the_acting_user(holdfast: Holdfast, acme: TenantHandle) -> None:
    other = holdfast.tenant(f"{acme.name} other")
    with acme.acting(user="grace"):
        assert acme.activity.record("x").actor == "grace"
        assert acme.activity.record("x", actor="ada").actor == "ada"
        assert acme.activity.record("x", actor="").actor == "", "an empty actor is explicit"
        assert other.activity.record("x").actor == "", "the acting user belongs to one tenant's handle"


def test_a_repeated_id_by_another_acting_user_is_a_conflict(acme: TenantHandle) -> None:
    with acme.acting(user="grace"):
        acme.activity.record("x", id=ENTRY_ID)
    with acme.acting(user="ada"), pytest.raises(Conflict):
        acme.activity.record("x", id=ENTRY_ID)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_pages_of_every_size_add_up_to_the_log_newest_first(acme: TenantHandle, clock: FixedClock, size: int) -> None:
    entries = []
    for number in range(8):
        entries.append(acme.activity.record("x", subject_id=str(number)))
        clock.advance(number % 2)
    newest = sorted(entries, key=lambda entry: (entry.created_at, entry.id), reverse=True)
    assert walk(acme, size) == newest
    assert walk(acme, size, action="x") == newest
    from_4 = [entry for entry in newest if entry.subject_id >= "4"]
    assert walk(acme, size, where=[column("subject_id").ge("4")]) == from_4


def test_a_full_last_page_has_no_next(acme: TenantHandle) -> None:
    for _ in range(4):
        acme.activity.record("x")
    first = acme.activity.list(limit=2)
    second = acme.activity.list(limit=2, cursor=first.next)
    assert (len(second), second.next) == (2, None)
    assert acme.activity.list(limit=4).next is None


def test_new_entries_do_not_shift_later_pages(acme: TenantHandle, clock: FixedClock) -> None:
    entries = [acme.activity.record("x", reason=str(number)) for number in range(4)]
    page = acme.activity.list(limit=2)
    clock.advance(1)
    acme.activity.record("x", reason="new")
    rest = acme.activity.list(limit=4, cursor=page.next)
    assert sorted(entry.id for entry in [*page, *rest]) == sorted(entry.id for entry in entries)


def test_a_list_without_limit_is_complete_or_refused(acme: TenantHandle) -> None:
    for _ in range(5):
        acme.activity.record("x")
    assert (len(acme.activity.list()), acme.activity.list().next) == (5, None)
    acme.activity.record("y")
    with raises(LimitExceeded, limit="list_rows", maximum=5):
        acme.activity.list()
    assert len(acme.activity.list(action="x")) == 5, "the limit applies to the filtered entries"
    assert acme.activity.count() == 6, "a count has no such limit"


@pytest.mark.parametrize(
    ("limit", "error"),
    [(0, InvalidInput), (-1, InvalidInput), (True, InvalidInput), ("1", InvalidInput), (5, LimitExceeded)],
)
def test_the_size_of_a_page_is_limited(acme: TenantHandle, limit: Any, error: type[Exception]) -> None:
    with raises(error, field="limit"):
        acme.activity.list(limit=limit)


@pytest.mark.parametrize(
    "cursor",
    [
        encode_cursor("holds", 1, ENTRY_ID),
        encode_cursor("activity", ENTRY_ID, 1),
        encode_cursor("activity", -1, ENTRY_ID),
        encode_cursor("activity", 2**63, ENTRY_ID),
        encode_cursor("activity", 1),
        encode_cursor("activity", True, ENTRY_ID),
        encode_cursor("activity", 1, ENTRY_ID) + "\ud800",
        7,
    ],
    ids=["other-list", "swapped", "negative", "too-late", "short", "boolean", "surrogate", "number"],
)
def test_a_cursor_of_another_list_is_refused(acme: TenantHandle, cursor: Any) -> None:
    with raises(InvalidFilter, field="cursor"):
        acme.activity.list(limit=1, cursor=cursor)


def test_a_forged_cursor_with_an_invalid_id_is_refused(acme: TenantHandle) -> None:
    with raises(InvalidInput, field="cursor"):
        acme.activity.list(limit=1, cursor=encode_cursor("activity", 1, "7"))


def test_a_cursor_of_another_tenant_shows_none_of_its_entries(holdfast: Holdfast, acme: TenantHandle) -> None:
    other = holdfast.tenant(f"{acme.name} other")
    for tenant in (acme, other):
        for _ in range(3):
            tenant.activity.record("x", reason=tenant.name)
    cursor = other.activity.list(limit=1).next
    assert {entry.reason for entry in acme.activity.list(limit=4, cursor=cursor)} <= {acme.name}


@pytest.mark.parametrize("by", [{"actor": "a"}, {"action": "a"}, {"subject_kind": "a"}, {"subject_id": "a"}])
def test_lists_and_counts_are_filtered_by_field(acme: TenantHandle, by: dict[str, str]) -> None:
    fields = {"actor": "b", "action": "b", "subject_kind": "b", "subject_id": "b"}
    for _ in range(2):
        acme.activity.record(**{**fields, **by})  # type: ignore[arg-type]
        acme.activity.record(**fields)  # type: ignore[arg-type]
    entries = acme.activity.list(**by)  # type: ignore[arg-type]
    assert [{name: getattr(entry, name) for name in by} for entry in entries] == [by, by]
    assert acme.activity.count(**by, where=[column("created_at").ge(entries[0].created_at)]) == 2


def test_an_empty_filter_matches_empty_fields(acme: TenantHandle) -> None:
    acme.activity.record("x", actor="ada", subject_kind="run")
    bare = acme.activity.record("x")
    assert acme.activity.list(actor="") == [bare] == acme.activity.list(subject_kind="")


def test_entries_can_be_filtered_by_details(acme: TenantHandle) -> None:
    one = acme.activity.record("x", details={"a": "\x00"})
    acme.activity.record("x", details={"a": "0"})
    assert acme.activity.list(where=[meta("a").eq("\x00")]) == [one]
    assert acme.activity.count(where=[meta("b").eq("\x00")]) == 0


@pytest.mark.parametrize("where", [7, "actor", [7], [None]], ids=["number", "text", "numbers", "nothing"])
def test_filters_must_be_a_list_of_filters(acme: TenantHandle, where: Any) -> None:
    for call in (acme.activity.list, acme.activity.count):
        with pytest.raises(InvalidFilter):
            call(where=where)


def test_entries_of_stores_are_recorded_all_or_none(acme: TenantHandle, clock: FixedClock) -> None:
    acme.activity.record("first")
    record_all(acme, [])
    assert acme.activity.count() == 1
    record_all(acme, [NewActivity(action="a", details={"n": 1}), NewActivity(action="b", actor="ada", reason="\x00")])
    entries = {entry.action: entry for entry in acme.activity.list()}
    assert (entries["a"].details, entries["b"].actor, entries["b"].reason) == ({"n": 1}, "ada", "\x00")
    assert entries["a"].created_at - entries["b"].created_at == timedelta(0)
    with raises(InvalidInput, field="action of an activity"):
        record_all(acme, [NewActivity(action="c"), NewActivity(action="")])
    assert acme.activity.count() == 3


def test_concurrent_records_with_one_id_make_one_entry(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db")) as holdfast:
        tenant = holdfast.tenant("acme")
        with ThreadPoolExecutor(4) as pool:
            entries = list(pool.map(lambda _: tenant.activity.record("x", id=ENTRY_ID), range(12)))
        assert {entry.id for entry in entries} == {ENTRY_ID}
        assert tenant.activity.list() == entries[:1]


def test_the_log_is_removed_with_its_tenant(holdfast: Holdfast, acme: TenantHandle) -> None:
    entry = acme.activity.record("x")
    holdfast.tenants.delete(acme.name, cascade=True)
    assert (acme.activity.list(), acme.activity.count()) == ([], 0)
    with raises(NotFound, noun="activity", key=entry.id):
        acme.activity.get(entry.id)


def test_the_log_is_the_same_from_an_event_loop(tmp_path: Path) -> None:
    async def write() -> Activity:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as holdfast:
            tenant = holdfast.tenant("acme")
            entry = await tenant.activity.record("x", details={"a": "\ud800"})
            assert await tenant.activity.list() == [entry]
            assert await tenant.activity.count(action="x") == 1
            return entry

    entry = asyncio.run(write())
    with Holdfast(str(tmp_path / "a.db")) as holdfast:
        assert holdfast.tenant("acme").activity.get(entry.id) == entry


TEXTS = st.text(st.characters(codec=None, categories=None), max_size=4)


@settings(max_examples=25)
@given(st.lists(st.tuples(TEXTS.filter(bool), TEXTS, TEXTS), min_size=1, max_size=4), st.integers(1, 4))
def test_any_texts_are_stored_and_can_be_filtered(
    holdfast: Holdfast, activities: list[tuple[str, str, str]], size: int
) -> None:
    tenant = holdfast.tenant(f"t{next(NAMES)}")
    entries = [tenant.activity.record(action, actor=actor, subject_id=subject) for action, actor, subject in activities]
    assert [(entry.action, entry.actor, entry.subject_id) for entry in entries] == activities
    assert sorted(entry.id for entry in walk(tenant, size)) == sorted(entry.id for entry in entries)
    for action, actor, _ in activities:
        matching = [values for values in activities if values[:2] == (action, actor)]
        assert tenant.activity.count(action=action, actor=actor) == len(matching)
