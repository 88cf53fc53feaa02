"""Requests to be forgotten: what is written down, in which order it is listed, and what carrying it out leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import AsyncHoldfast, FixedClock, Holdfast, Limits, RetentionPolicy, SeededIds, new_api_key
from holdfast.clock import from_us
from holdfast.core.paging import encode_cursor
from holdfast.core.scope import Scope
from holdfast.erasure import ErasureConsumer, ErasureRequest, read_event
from holdfast.erasure.consumer import _by_stream
from holdfast.errors import Conflict, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.stores.lifecycle.erasures import WINDOW_S
from holdfast.stores.lifecycle.retention.sweeps import LEASE_S, Sweep
from holdfast.sync_runner import step
from holdfast.types import Erasure, SweepResult
from tests.stores.lifecycle.forging import body, forge

EVENT = "identity.user.erased"
AT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
LIMITS = Limits(list_rows=4, page_rows=1_000, tenant_bytes=20, name_bytes=60)


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def holdfast(clock: FixedClock) -> Iterator[Holdfast]:
    with Holdfast(":memory:", clock=clock, limits=LIMITS, ids=SeededIds(6)) as opened:
        yield opened


@pytest.fixture(scope="module")
def empty() -> Iterator[Holdfast]:
    """One for tests after which nothing is in it."""
    with Holdfast(":memory:", limits=LIMITS) as opened:
        yield opened


def run_of(holdfast: Holdfast, tenant: str = "acme") -> str:
    there = holdfast.tenant(tenant)
    return there.runs.start(there.sessions.create().id).id


def test_a_request_is_due_a_day_after_it_was_made(holdfast: Holdfast, clock: FixedClock) -> None:
    asked = holdfast.erasures.request("acme")
    now = from_us(clock.now_us())
    assert asked == Erasure("acme", "by hand", True, now, now + timedelta(seconds=WINDOW_S), None)
    assert WINDOW_S == 24 * 60 * 60


def test_a_request_makes_no_tenant(holdfast: Holdfast) -> None:
    holdfast.erasures.request("acme")
    assert holdfast.tenants.list() == []


def test_the_same_request_again_is_the_first_one(holdfast: Holdfast, clock: FixedClock) -> None:
    first = holdfast.erasures.request("acme", event_id="e", whole=False)
    clock.advance(60)
    assert holdfast.erasures.request("acme", event_id="e", whole=True, requested_at=AT) == first
    assert holdfast.erasures.list() == [first]


def test_one_event_about_two_tenants_and_two_about_one_are_kept_apart(holdfast: Holdfast) -> None:
    made = [holdfast.erasures.request(tenant, event_id=event) for tenant in ("a", "b") for event in ("1", "2")]
    assert holdfast.erasures.list() == made


@pytest.mark.parametrize(
    "moment",
    [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(9998, 12, 31, 23, tzinfo=timezone(-timedelta(hours=12))),
        AT.astimezone(timezone(timedelta(hours=5, minutes=45))),
    ],
    ids=["first", "first-east", "last", "last-west", "elsewhere"],
)
def test_any_moment_that_can_be_meant_is_kept_and_listed(holdfast: Holdfast, moment: datetime) -> None:
    asked = holdfast.erasures.request("acme", requested_at=moment)
    assert (asked.requested_at, asked.due_at) == (moment, moment + timedelta(days=1))
    assert holdfast.erasures.list(only_open=True) == [asked], "what is not listed is never carried out"


@pytest.mark.parametrize(
    ("moment", "saying"),
    [
        (datetime(1969, 12, 31, tzinfo=UTC), "1970"), (datetime.min.replace(tzinfo=UTC), "1970"),
        (datetime(9999, 1, 1, tzinfo=UTC), "9998"), (datetime.max.replace(tzinfo=UTC), "9998"),
        (AT.replace(tzinfo=None), "time zone"), (AT.date(), "time zone"), ("2026-01-01", "time zone"), (7, "time zone"),
    ],
    ids=["before", "first", "after", "last", "no-zone", "day", "text", "number"],
)  # fmt: skip
def test_a_moment_that_cannot_be_meant_is_refused(empty: Holdfast, moment: Any, saying: str) -> None:
    with pytest.raises(InvalidInput, match=saying):
        empty.erasures.request("acme", requested_at=moment)
    assert empty.erasures.list() == []


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"tenant": ""}, InvalidInput), ({"tenant": 7}, InvalidInput), ({"tenant": "x" * 21}, LimitExceeded),
        ({"event_id": ""}, InvalidInput), ({"event_id": None}, InvalidInput), ({"event_id": "é" * 31}, LimitExceeded),
        ({"whole": None}, InvalidInput), ({"whole": 1}, InvalidInput), ({"whole": "yes"}, InvalidInput),
    ],
    ids=repr,
)  # fmt: skip
def test_a_request_that_is_none_is_not_written_down(
    empty: Holdfast, given: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        empty.erasures.request(**{"tenant": "acme", **given})
    assert empty.erasures.list() == []


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_pages_are_the_most_urgent_first_whatever_anybody_is_called(holdfast: Holdfast, size: int) -> None:
    names = ["b", "a", "\x00", "\ud800", "名", "Z"]
    for number, name in enumerate(names):
        holdfast.erasures.request(name, event_id=name, requested_at=AT - timedelta(hours=number // 2))
    found: list[Erasure] = []
    cursor = None
    while not found or cursor is not None:
        page = holdfast.erasures.list(limit=size, cursor=cursor)
        found += page
        cursor = page.next
    assert [each.tenant for each in found] == ["Z", "名", "\ud800", "\x00", "a", "b"]
    assert [each.event_id for each in found] == [each.tenant for each in found]


def test_pages_agree_on_postgres(postgres_url: str) -> None:
    names = ["b", "B", "a", "\x00", "\ud800", "名", "é", "e\u0301", "_", "-", "1"]
    listed = []
    for address in (postgres_url, ":memory:"):
        with Holdfast(address) as holdfast:
            for name in names:
                holdfast.erasures.request(name, event_id=name, requested_at=AT)
            found: list[str] = []
            cursor = None
            while not found or cursor is not None:
                page = holdfast.erasures.list(limit=2, cursor=cursor)
                found += [each.tenant for each in page]
                cursor = page.next
            listed.append(found)
    assert listed[0] == listed[1]
    assert sorted(listed[0]) == sorted(names)


def test_a_list_without_limit_is_all_or_nothing(holdfast: Holdfast) -> None:
    for number in range(4):
        holdfast.erasures.request(f"t{number}")
    assert len(holdfast.erasures.list()) == 4
    holdfast.erasures.request("one more")
    for only_open in (True, False):
        with pytest.raises(LimitExceeded, match="list_rows = 4"):
            holdfast.erasures.list(only_open=only_open)
    assert len(holdfast.erasures.list(limit=5)) == 5


@pytest.mark.parametrize(
    "cursor",
    [encode_cursor("holds", 1, "a", "b"), encode_cursor("erasures", 1, "a"), encode_cursor("erasures", -1, "a", "b"), "x"],
)  # fmt: skip
def test_a_cursor_of_another_list_is_refused(empty: Holdfast, cursor: str) -> None:
    with pytest.raises(InvalidFilter, match="cursor"):
        empty.erasures.list(limit=1, cursor=cursor)


@pytest.mark.parametrize("tenant", ["nobody", "\x00", "acme "])
def test_who_has_not_asked_is_not_forgotten(holdfast: Holdfast, tenant: str) -> None:
    holdfast.erasures.request("acme")
    with pytest.raises(NotFound, match="nobody has requested"):
        holdfast.erasures.carry_out(tenant)


def test_who_was_never_here_is_forgotten_and_leaves_no_trace_but_the_proof(
    holdfast: Holdfast, clock: FixedClock
) -> None:
    holdfast.erasures.request("ghost")
    clock.advance(10)
    done = holdfast.erasures.carry_out("ghost")
    assert (done.is_finished, done.swept) == (True, SweepResult())
    assert holdfast.tenants.list() == []
    (proof,) = holdfast.erasures.list()
    assert proof.finished_at == from_us(clock.now_us())
    assert holdfast.erasures.list(only_open=True) == []


def test_what_is_finished_is_never_done_again(holdfast: Holdfast) -> None:
    holdfast.erasures.request("acme", event_id="e")
    holdfast.erasures.carry_out("acme")
    holdfast.tenant("acme").sessions.create()
    (before,) = holdfast.erasures.list()
    assert holdfast.erasures.request("acme", event_id="e") == before
    with pytest.raises(NotFound, match="or it is done"):
        holdfast.erasures.carry_out("acme")
    assert len(holdfast.tenant("acme").sessions.list()) == 1
    holdfast.erasures.request("acme", event_id="another")
    assert holdfast.erasures.carry_out("acme").is_finished, "another request is another"
    assert holdfast.tenants.list() == []


def test_all_requests_of_one_tenant_are_finished_together(holdfast: Holdfast) -> None:
    for event in ("1", "2", "3"):
        holdfast.erasures.request("acme", event_id=event, whole=event == "2")
    holdfast.erasures.request("zenith")
    assert holdfast.erasures.carry_out("acme").is_finished
    assert [each.tenant for each in holdfast.erasures.list(only_open=True)] == ["zenith"]
    assert len({each.finished_at for each in holdfast.erasures.list() if each.tenant == "acme"}) == 1


def test_snapshots_alone_go_and_everything_else_stays(holdfast: Holdfast) -> None:
    acme, run = holdfast.tenant("acme"), run_of(holdfast)
    for number in range(3):
        forge(acme, run, [body(number, 50)])
    acme.retention.set_policy(per_run=5)
    (kept,) = acme.objects.put([b"mine"], holder="me")
    holdfast.erasures.request("acme", whole=False)
    done = holdfast.erasures.carry_out("acme")
    assert (done.is_finished, done.swept.erasure.count, done.swept.count) == (True, 3, 3)
    assert (acme.snapshots.list(), acme.objects.usage().count) == ([], 1)
    assert (acme.objects.get([kept]), acme.runs.get(run).id) == ([b"mine"], run)
    assert acme.retention.policy() == RetentionPolicy(5, 500, 7 * 86_400)
    reasons = [each.reason for each in acme.activity.list(action="checkpoint.deleted", limit=10)]
    assert reasons == ["erasure"] * 3


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_held_keeps_the_request_open_and_the_rest_goes(holdfast: Holdfast, whole: bool) -> None:
    acme, held, free = holdfast.tenant("acme"), run_of(holdfast), run_of(holdfast)
    kept = forge(acme, held, [body(1, 50)])
    forge(acme, free, [body(2, 50)])
    hold = acme.retention.hold("case", run_id=held)
    holdfast.erasures.request("acme", whole=whole)
    done = holdfast.erasures.carry_out("acme")
    assert (done.is_finished, done.swept.erasure.count) == (False, 1)
    assert [each.id for each in acme.snapshots.list()] == [kept.id]
    assert not holdfast.erasures.carry_out("acme").is_finished
    acme.retention.release(hold.id)
    assert holdfast.erasures.carry_out("acme").is_finished
    assert len(holdfast.tenants.list()) == (0 if whole else 1)


def test_a_hold_that_keeps_no_snapshot_keeps_the_tenant_too(holdfast: Holdfast) -> None:
    acme = holdfast.tenant("acme")
    acme.sessions.create()
    acme.retention.hold("all of it")
    holdfast.erasures.request("acme")
    assert not holdfast.erasures.carry_out("acme").is_finished
    assert len(acme.sessions.list()) == 1


def test_while_somebody_sweeps_an_erasure_waits_and_then_goes_on(holdfast: Holdfast, clock: FixedClock) -> None:
    holdfast.tenant("acme").sessions.create()
    holdfast.erasures.request("acme")
    step(Sweep(holdfast._engine, Scope("acme", holdfast._setting)).claim("somebody"))
    with pytest.raises(Conflict, match="somebody sweeps"):
        holdfast.erasures.carry_out("acme")
    assert len(holdfast.erasures.list(only_open=True)) == 1
    clock.advance(LEASE_S)
    assert holdfast.erasures.carry_out("acme").is_finished


@pytest.mark.parametrize(("holder", "error"), [("", InvalidInput), (7, InvalidInput), ("x" * 61, LimitExceeded)])
def test_whoever_carries_it_out_has_a_name(holdfast: Holdfast, holder: Any, error: type[Exception]) -> None:
    holdfast.erasures.request("acme")
    with pytest.raises(error, match="holder"):
        holdfast.erasures.carry_out("acme", holder=holder)
    assert len(holdfast.erasures.list(only_open=True)) == 1


def test_the_keys_of_who_is_forgotten_go_too(holdfast: Holdfast) -> None:
    for tenant in ("acme", "zenith", ""):
        holdfast.api_keys.create(new_api_key(), name="x", tenant=tenant)
    holdfast.erasures.request("acme")
    holdfast.erasures.carry_out("acme")
    assert [each.tenant for each in holdfast.api_keys.list()] == ["zenith", ""]


@pytest.mark.parametrize(
    ("entry", "moment"),
    [
        ("0-1", None),
        ("1-0", datetime(1970, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC)),
        ("253370764799999-0", datetime(9998, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        ("253370764800000-0", None),
        ("253402300799998-0", None),
        ("1700000000000", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("+1-0", None),
        (" 1-0", None),
        ("1_0-0", None),
        ("²-0", None),
    ],
)
def test_an_entry_of_any_id_asks_for_what_can_be_written_down(
    holdfast: Holdfast, entry: str, moment: datetime | None
) -> None:
    asked = read_event(entry, {"type": EVENT, "tenant": "acme"}, EVENT)
    assert asked == ErasureRequest("acme", entry, moment)
    made = holdfast.erasures.request("acme", event_id=asked.event_id, requested_at=asked.requested_at)
    assert moment in (None, made.requested_at)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"type": EVENT, "koder_user_id": "a", "tenant": "b", "user_id": "c"}, ("a", "1-0")),
        ({"type": EVENT, "koder_user_id": "", "tenant": "b", "user_id": "c"}, ("b", "1-0")),
        ({"type": EVENT, "user_id": "c", "event_id": "", "id": "i"}, ("c", "i")),
        ({"type": EVENT, "user_id": "c", "event_id": "e", "id": "i"}, ("c", "e")),
        ({"type": "other", "event": EVENT, "tenant": "a"}, ("a", "1-0")),
        ({"type": EVENT, "data": "7", "payload": '{"tenant": "p"}'}, ("p", "1-0")),
        ({"type": EVENT, "data": '{"tenant": "d"}', "payload": '{"tenant": "p"}'}, ("d", "1-0")),
        ({"type": EVENT, "data": '{"tenant": "d", "id": 7}'}, ("d", "1-0")),
        ({"type": EVENT, "data": "[" * 100_000, "tenant": "a"}, ("a", "1-0")),
        ({"type": EVENT, "data": '{"tenant": "\\u0000"}'}, ("\x00", "1-0")),
    ],
    ids=["first", "empty", "empty-id", "id", "kind", "payload", "data", "number", "deep", "nul"],
)
def test_of_several_things_an_entry_says_the_first_that_says_something_counts(
    fields: dict[str, str], expected: tuple[str, str]
) -> None:
    found = read_event("1-0", fields, EVENT)
    assert found is not None
    assert (found.tenant, found.event_id) == expected


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(["type", "event", "tenant", "data", "payload", "id"]), st.text(max_size=12)))
def test_an_entry_of_another_kind_is_never_a_request(fields: dict[str, str]) -> None:
    assert read_event("1-0", fields, EVENT) is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, []), ([], []), ({}, []),
        ([("s", [("1-0", {"a": "b"})])], [("s", [("1-0", {"a": "b"})])]),
        ({"s": [[("1-0", {"a": "b"})]]}, [("s", [("1-0", {"a": "b"})])]),
        ({"s": []}, [("s", [])]),
    ],
)  # fmt: skip
def test_what_redis_answers_is_read_in_both_protocols(found: Any, expected: Any) -> None:
    assert list(_by_stream(found)) == expected


def test_those_who_cannot_be_forgotten_yet_keep_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.retention_worker.PAGE", 2)

    async def use() -> list[str]:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as holdfast:
            for number in range(7):
                await holdfast.tenant(f"t{number}").sessions.create()
                await holdfast.erasures.request(f"t{number}")
            for number in range(5):
                await holdfast.tenant(f"t{number}").retention.hold("case")
            assert await ErasureConsumer(holdfast, None, consumer="me").carry_out() == 2
            return [each.id for each in await holdfast.tenants.list()]

    assert asyncio.run(use()) == [f"t{number}" for number in range(5)]


def test_a_consumer_without_redis_carries_out_what_it_can_and_leaves_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use() -> tuple[int, list[str]]:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as holdfast:
            for name in ("free", "held", "busy"):
                await holdfast.tenant(name).sessions.create()
                await holdfast.erasures.request(name)
            await holdfast.erasures.request("free", event_id="again")
            await holdfast.tenant("held").retention.hold("case")
            await Sweep(holdfast._engine, Scope("busy", holdfast._setting)).claim("somebody")
            done = await ErasureConsumer(holdfast, None, consumer="me").carry_out()
            return done, [each.tenant for each in await holdfast.erasures.list(only_open=True)]

    caplog.set_level("INFO", "holdfast.erasure")
    done, left = asyncio.run(use())
    assert (done, sorted(left)) == (1, ["busy", "held"])
    said = [(each.levelname, each.getMessage()) for each in caplog.records if each.name == "holdfast.erasure"]
    left_to = "busy is left to somebody else: somebody sweeps the tenant 'busy'; try again later"
    assert said == [("INFO", left_to)], "that somebody else is at it is nothing to warn of"
