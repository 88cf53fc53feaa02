"""The log of what was done: every edge of recording, listing, counting and noting, and whose it is."""

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

NOBODY = "01900000-0000-7000-8000-000000000000"
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
    """A tenant of the test's own."""
    return holdfast.tenant(f"tenant {next(NAMES)}")


def walk(there: TenantHandle, size: int, **named: Any) -> list[Activity]:
    """All pages of a list, one after the other."""
    found: list[Activity] = []
    cursor = None
    while True:
        page = there.activity.list(limit=size, cursor=cursor, **named)
        assert len(page) <= size
        found += page
        cursor = page.next
        if cursor is None:
            return found


def put_down(there: TenantHandle, deeds: Sequence[NewActivity]) -> None:
    scope = Scope(there.name, there._scope)
    step(there._engine.write(lambda connection: activity.record_all(connection, scope, deeds)))


def test_the_first_thing_recorded_makes_the_tenant_known(holdfast: Holdfast, acme: TenantHandle) -> None:
    with pytest.raises(NotFound):
        holdfast.tenants.get(acme.name)
    acme.activity.record("looked")
    assert holdfast.tenants.get(acme.name).id == acme.name


def test_what_is_refused_does_not_make_the_tenant_known(holdfast: Holdfast, acme: TenantHandle) -> None:
    with pytest.raises(InvalidInput, match="action of an activity must not be empty"):
        acme.activity.record("")
    with pytest.raises(NotFound):
        holdfast.tenants.get(acme.name)


@pytest.mark.parametrize(
    ("most", "given"),
    [
        (20, {"action": "x" * 20}),
        (20, {"action": "x", "actor": "é" * 10}),
        (20, {"action": "x", "subject_kind": "名" * 6 + "ab"}),
        (24, {"action": "x", "subject_id": "😀" * 6}),
        (30, {"action": "x", "reason": "\x00" * 7 + "ab"}),
    ],
    ids=["action", "actor", "subject_kind", "subject_id", "reason"],
)
def test_a_text_of_the_largest_size_is_kept_and_a_byte_more_is_refused(
    acme: TenantHandle, most: int, given: dict[str, str]
) -> None:
    field, value = list(given.items())[-1]
    made = acme.activity.record(**given)  # type: ignore[arg-type]
    assert getattr(acme.activity.get(made.id), field) == value
    with pytest.raises(LimitExceeded, match=f"{field} of an activity: {most + 1}"):
        acme.activity.record(**{**given, field: value + "x"})  # type: ignore[arg-type]
    assert acme.activity.count() == 1


def test_details_may_take_as_many_bytes_as_the_limit_says(acme: TenantHandle) -> None:
    largest = {"a": "b" * (60 - len('{"a":""}'))}
    assert acme.activity.record("x", details=largest).details == largest
    with pytest.raises(LimitExceeded, match="metadata_bytes = 60"):
        acme.activity.record("x", details={"a": largest["a"] + "b"})


def test_details_may_be_nested_as_deep_as_the_limit_says(acme: TenantHandle) -> None:
    assert acme.activity.record("x", details={"a": [[1]]}).details == {"a": [[1]]}
    with pytest.raises(LimitExceeded, match="json_depth"):
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
def test_details_that_are_no_json_object_are_refused(acme: TenantHandle, details: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        acme.activity.record("x", details=details)
    assert acme.activity.count() == 0


def test_details_may_be_any_mapping_and_come_back_as_a_dictionary(acme: TenantHandle) -> None:
    made = acme.activity.record("x", details=MappingProxyType({"a": (1, 2)}))
    assert made.details == {"a": [1, 2]}
    assert type(acme.activity.get(made.id).details) is dict


@pytest.mark.parametrize("field", ["actor", "subject_kind", "subject_id", "reason"])
@pytest.mark.parametrize("wrong", [b"x", 7, ["x"]], ids=["bytes", "number", "list"])
def test_what_is_no_text_is_refused_by_name(acme: TenantHandle, field: str, wrong: object) -> None:
    with pytest.raises(InvalidInput, match=f"{field} of an activity must be a string, not {type(wrong).__name__}"):
        acme.activity.record("x", **{field: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        {"actor": "bob"}, {"subject_kind": "run"}, {"subject_id": "8"}, {"reason": ""}, {"reason": "Why"},
        {"details": {}}, {"details": {"n": 1.0}}, {"details": {"n": "1"}}, {"details": {"n": 1, "m": None}},
    ],
    ids=lambda other: "-".join(f"{name}" for name in other),
)  # fmt: skip
def test_an_id_that_comes_again_with_anything_else_is_a_conflict(acme: TenantHandle, other: dict[str, Any]) -> None:
    first: dict[str, Any] = {"actor": "ada", "subject_kind": "session", "subject_id": "7", "reason": "why"}
    first |= {"details": {"n": 1}, "id": NOBODY}
    made = acme.activity.record("x", **first)
    with pytest.raises(Conflict, match=NOBODY):
        acme.activity.record("x", **{**first, **other})
    with pytest.raises(Conflict, match=NOBODY):
        acme.activity.record("y", **first)
    assert acme.activity.list() == [made]


def test_the_same_id_in_another_form_is_the_same_and_the_first_time_stays(
    acme: TenantHandle, clock: FixedClock
) -> None:
    made = acme.activity.record("x\x00\ud800", details={"\ud800": "\x00"}, id=NOBODY)
    clock.advance(1)
    for form in (NOBODY.upper(), NOBODY.replace("-", ""), f"{{{NOBODY}}}"):
        assert acme.activity.record("x\x00\ud800", details={"\ud800": "\x00"}, id=form) == made


def test_two_tenants_may_use_the_same_id_for_different_things(holdfast: Holdfast, acme: TenantHandle) -> None:
    other = holdfast.tenant(f"{acme.name} other")
    mine, theirs = acme.activity.record("x", id=NOBODY), other.activity.record("y", id=NOBODY)
    assert (acme.activity.get(NOBODY), other.activity.get(NOBODY)) == (mine, theirs)
    assert (acme.activity.list(), other.activity.list()) == ([mine], [theirs])


@pytest.mark.parametrize("wrong", ["", "7", NOBODY[:-1], NOBODY + "0", "\x00", "\ud800", None, 7, b"x"])
def test_an_id_that_is_none_is_refused_and_not_looked_for(acme: TenantHandle, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="activity id must be a UUID"):
        acme.activity.get(wrong)


def test_an_actor_that_is_given_counts_more_than_who_is_acting(holdfast: Holdfast, acme: TenantHandle) -> None:
    other = holdfast.tenant(f"{acme.name} other")
    with acme.acting(user="grace"):
        assert acme.activity.record("x").actor == "grace"
        assert acme.activity.record("x", actor="ada").actor == "ada"
        assert acme.activity.record("x", actor="").actor == "", "nobody in particular, if that is said"
        assert other.activity.record("x").actor == "", "who acts here does not act elsewhere"


def test_acting_again_with_the_same_id_as_somebody_else_is_a_conflict(acme: TenantHandle) -> None:
    with acme.acting(user="grace"):
        acme.activity.record("x", id=NOBODY)
    with acme.acting(user="ada"), pytest.raises(Conflict):
        acme.activity.record("x", id=NOBODY)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_pages_of_every_size_are_the_whole_log_newest_first(acme: TenantHandle, clock: FixedClock, size: int) -> None:
    made = []
    for number in range(8):
        made.append(acme.activity.record("x", subject_id=str(number)))
        clock.advance(number % 2)
    newest = sorted(made, key=lambda each: (each.created_at, each.id), reverse=True)
    assert walk(acme, size) == newest
    assert walk(acme, size, action="x") == newest
    assert walk(acme, size, where=[column("subject_id").ge("4")]) == [each for each in newest if each.subject_id >= "4"]


def test_a_full_last_page_has_no_next(acme: TenantHandle) -> None:
    for _ in range(4):
        acme.activity.record("x")
    first = acme.activity.list(limit=2)
    second = acme.activity.list(limit=2, cursor=first.next)
    assert (len(second), second.next) == (2, None)
    assert acme.activity.list(limit=4).next is None


def test_what_is_recorded_while_somebody_pages_does_not_come_twice(acme: TenantHandle, clock: FixedClock) -> None:
    made = [acme.activity.record("x", reason=str(number)) for number in range(4)]
    page = acme.activity.list(limit=2)
    clock.advance(1)
    acme.activity.record("x", reason="new")
    rest = acme.activity.list(limit=4, cursor=page.next)
    assert sorted(each.id for each in [*page, *rest]) == sorted(each.id for each in made)


def test_a_list_without_limit_is_all_or_nothing(acme: TenantHandle) -> None:
    for _ in range(5):
        acme.activity.record("x")
    assert (len(acme.activity.list()), acme.activity.list().next) == (5, None)
    acme.activity.record("y")
    with pytest.raises(LimitExceeded, match="list_rows = 5"):
        acme.activity.list()
    assert len(acme.activity.list(action="x")) == 5, "what is asked for counts, and not what is there"
    assert acme.activity.count() == 6, "a count has no such limit"


@pytest.mark.parametrize(
    ("limit", "error"),
    [(0, InvalidInput), (-1, InvalidInput), (True, InvalidInput), ("1", InvalidInput), (5, LimitExceeded)],
)
def test_a_page_has_a_size_from_one_to_the_limit(acme: TenantHandle, limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="limit"):
        acme.activity.list(limit=limit)


@pytest.mark.parametrize(
    "cursor",
    [
        encode_cursor("holds", 1, NOBODY),
        encode_cursor("activity", NOBODY, 1),
        encode_cursor("activity", -1, NOBODY),
        encode_cursor("activity", 2**63, NOBODY),
        encode_cursor("activity", 1),
        encode_cursor("activity", True, NOBODY),
        encode_cursor("activity", 1, NOBODY) + "\ud800",
        7,
    ],
    ids=["other-list", "swapped", "negative", "too-late", "short", "boolean", "surrogate", "number"],
)
def test_a_cursor_of_anything_else_is_refused(acme: TenantHandle, cursor: Any) -> None:
    with pytest.raises(InvalidFilter, match="cursor"):
        acme.activity.list(limit=1, cursor=cursor)


def test_a_forged_cursor_whose_id_is_none_is_refused(acme: TenantHandle) -> None:
    with pytest.raises(InvalidInput, match="cursor must be a UUID"):
        acme.activity.list(limit=1, cursor=encode_cursor("activity", 1, "7"))


def test_a_cursor_of_another_tenant_shows_nothing_of_it(holdfast: Holdfast, acme: TenantHandle) -> None:
    other = holdfast.tenant(f"{acme.name} other")
    for there in (acme, other):
        for _ in range(3):
            there.activity.record("x", reason=there.name)
    cursor = other.activity.list(limit=1).next
    assert {each.reason for each in acme.activity.list(limit=4, cursor=cursor)} <= {acme.name}


@pytest.mark.parametrize("by", [{"actor": "a"}, {"action": "a"}, {"subject_kind": "a"}, {"subject_id": "a"}])
def test_what_is_asked_for_by_name_is_all_of_it(acme: TenantHandle, by: dict[str, str]) -> None:
    fields = {"actor": "b", "action": "b", "subject_kind": "b", "subject_id": "b"}
    for _ in range(2):
        acme.activity.record(**{**fields, **by})  # type: ignore[arg-type]
        acme.activity.record(**fields)  # type: ignore[arg-type]
    found = acme.activity.list(**by)  # type: ignore[arg-type]
    assert [{name: getattr(each, name) for name in by} for each in found] == [by, by]
    assert acme.activity.count(**by, where=[column("created_at").ge(found[0].created_at)]) == 2


def test_an_empty_name_asks_for_what_has_none(acme: TenantHandle) -> None:
    acme.activity.record("x", actor="ada", subject_kind="run")
    bare = acme.activity.record("x")
    assert acme.activity.list(actor="") == [bare] == acme.activity.list(subject_kind="")


def test_details_are_found_by_what_lies_in_them(acme: TenantHandle) -> None:
    one = acme.activity.record("x", details={"a": "\x00"})
    acme.activity.record("x", details={"a": "0"})
    assert acme.activity.list(where=[meta("a").eq("\x00")]) == [one]
    assert acme.activity.count(where=[meta("b").eq("\x00")]) == 0


@pytest.mark.parametrize("where", [7, "actor", [7], [None]], ids=["number", "text", "numbers", "nothing"])
def test_what_is_no_list_of_filters_is_refused(acme: TenantHandle, where: Any) -> None:
    for call in (acme.activity.list, acme.activity.count):
        with pytest.raises(InvalidFilter):
            call(where=where)


def test_what_stores_note_comes_in_one_piece_or_not_at_all(acme: TenantHandle, clock: FixedClock) -> None:
    acme.activity.record("first")
    put_down(acme, [])
    assert acme.activity.count() == 1
    put_down(acme, [NewActivity(action="a", details={"n": 1}), NewActivity(action="b", actor="ada", reason="\x00")])
    found = {each.action: each for each in acme.activity.list()}
    assert (found["a"].details, found["b"].actor, found["b"].reason) == ({"n": 1}, "ada", "\x00")
    assert found["a"].created_at - found["b"].created_at == timedelta(0)
    with pytest.raises(InvalidInput, match="action of an activity must not be empty"):
        put_down(acme, [NewActivity(action="c"), NewActivity(action="")])
    assert acme.activity.count() == 3


def test_many_threads_with_one_id_make_one_entry(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db")) as holdfast:
        there = holdfast.tenant("acme")
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda _: there.activity.record("x", id=NOBODY), range(12)))
        assert {each.id for each in made} == {NOBODY}
        assert there.activity.list() == made[:1]


def test_the_log_goes_with_its_tenant(holdfast: Holdfast, acme: TenantHandle) -> None:
    made = acme.activity.record("x")
    holdfast.tenants.delete(acme.name, cascade=True)
    assert (acme.activity.list(), acme.activity.count()) == ([], 0)
    with pytest.raises(NotFound, match=made.id):
        acme.activity.get(made.id)


def test_from_an_event_loop_the_log_is_the_same(tmp_path: Path) -> None:
    async def write() -> Activity:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as holdfast:
            there = holdfast.tenant("acme")
            made = await there.activity.record("x", details={"a": "\ud800"})
            assert await there.activity.list() == [made]
            assert await there.activity.count(action="x") == 1
            return made

    made = asyncio.run(write())
    with Holdfast(str(tmp_path / "a.db")) as holdfast:
        assert holdfast.tenant("acme").activity.get(made.id) == made


TEXTS = st.text(st.characters(codec=None, categories=None), max_size=4)


@settings(max_examples=25)
@given(st.lists(st.tuples(TEXTS.filter(bool), TEXTS, TEXTS), min_size=1, max_size=4), st.integers(1, 4))
def test_any_texts_come_back_and_are_found_by_them(
    holdfast: Holdfast, deeds: list[tuple[str, str, str]], size: int
) -> None:
    there = holdfast.tenant(f"t{next(NAMES)}")
    made = [there.activity.record(action, actor=actor, subject_id=subject) for action, actor, subject in deeds]
    assert [(each.action, each.actor, each.subject_id) for each in made] == deeds
    assert sorted(each.id for each in walk(there, size)) == sorted(each.id for each in made)
    for action, actor, _ in deeds:
        wanted = [each for each in deeds if each[:2] == (action, actor)]
        assert there.activity.count(action=action, actor=actor) == len(wanted)
