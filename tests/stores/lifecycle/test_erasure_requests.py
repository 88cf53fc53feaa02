"""Erasure requests: how they are recorded and listed, and what carrying them out leaves."""

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
from tests.errors import raises
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
    """A Holdfast that is empty after each test."""
    with Holdfast(":memory:", limits=LIMITS) as opened:
        yield opened


def run_of(holdfast: Holdfast, tenant: str = "acme") -> str:
    existing = holdfast.tenant(tenant)
    return existing.runs.start(existing.sessions.create().id).id


def test_a_request_is_due_a_day_after_it_was_made(holdfast: Holdfast, clock: FixedClock) -> None:
    asked = holdfast.erasures.request("acme")
    now = from_us(clock.now_us())
    assert asked == Erasure("acme", "by hand", True, now, now + timedelta(seconds=WINDOW_S), None)
    assert WINDOW_S == 24 * 60 * 60


def test_a_request_creates_no_tenant(holdfast: Holdfast) -> None:
    holdfast.erasures.request("acme")
    assert holdfast.tenants.list() == []


def test_a_repeated_request_returns_the_first_one(holdfast: Holdfast, clock: FixedClock) -> None:
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
def test_any_time_in_range_is_stored_and_listed(holdfast: Holdfast, moment: datetime) -> None:
    asked = holdfast.erasures.request("acme", requested_at=moment)
    assert (asked.requested_at, asked.due_at) == (moment, moment + timedelta(days=1))
    assert holdfast.erasures.list(only_open=True) == [asked], "an unlisted request would never be carried out"


@pytest.mark.parametrize(
    ("moment", "value"),
    [
        (datetime(1969, 12, 31, tzinfo=UTC), "1970"), (datetime.min.replace(tzinfo=UTC), "1970"),
        (datetime(9999, 1, 1, tzinfo=UTC), "9998"), (datetime.max.replace(tzinfo=UTC), "9998"),
        (AT.replace(tzinfo=None), ""), (AT.date(), ""), ("2026-01-01", ""), (7, ""),
    ],
    ids=["before", "first", "after", "last", "no-zone", "day", "text", "number"],
)  # fmt: skip
def test_a_time_out_of_range_is_refused(empty: Holdfast, moment: Any, value: str) -> None:
    with raises(InvalidInput, field="requested_at") as caught:
        empty.erasures.request("acme", requested_at=moment)
    assert value in str(caught.value)
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
def test_an_invalid_request_is_not_recorded(empty: Holdfast, given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        empty.erasures.request(**{"tenant": "acme", **given})
    assert empty.erasures.list() == []


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_pages_list_the_most_urgent_first_for_any_tenant_names(holdfast: Holdfast, size: int) -> None:
    names = ["b", "a", "\x00", "\ud800", "名", "Z"]
    for number, name in enumerate(names):
        holdfast.erasures.request(name, event_id=name, requested_at=AT - timedelta(hours=number // 2))
    result: list[Erasure] = []
    cursor = None
    while not result or cursor is not None:
        page = holdfast.erasures.list(limit=size, cursor=cursor)
        result += page
        cursor = page.next
    assert [erasure.tenant for erasure in result] == ["Z", "名", "\ud800", "\x00", "a", "b"]
    assert [erasure.event_id for erasure in result] == [erasure.tenant for erasure in result]


def test_pages_agree_on_postgres(postgres_url: str) -> None:
    names = ["b", "B", "a", "\x00", "\ud800", "名", "é", "e\u0301", "_", "-", "1"]
    listed = []
    for address in (postgres_url, ":memory:"):
        with Holdfast(address) as holdfast:
            for name in names:
                holdfast.erasures.request(name, event_id=name, requested_at=AT)
            result: list[str] = []
            cursor = None
            while not result or cursor is not None:
                page = holdfast.erasures.list(limit=2, cursor=cursor)
                result += [erasure.tenant for erasure in page]
                cursor = page.next
            listed.append(result)
    assert listed[0] == listed[1]
    assert sorted(listed[0]) == sorted(names)


def test_a_list_without_limit_is_complete_or_refused(holdfast: Holdfast) -> None:
    for number in range(4):
        holdfast.erasures.request(f"t{number}")
    assert len(holdfast.erasures.list()) == 4
    holdfast.erasures.request("one more")
    for only_open in (True, False):
        with raises(LimitExceeded, limit="list_rows", maximum=4):
            holdfast.erasures.list(only_open=only_open)
    assert len(holdfast.erasures.list(limit=5)) == 5


@pytest.mark.parametrize(
    "cursor",
    [encode_cursor("holds", 1, "a", "b"), encode_cursor("erasures", 1, "a"), encode_cursor("erasures", -1, "a", "b"), "x"],
)  # fmt: skip
def test_a_cursor_of_another_list_is_refused(empty: Holdfast, cursor: str) -> None:
    with raises(InvalidFilter, field="cursor"):
        empty.erasures.list(limit=1, cursor=cursor)


@pytest.mark.parametrize("tenant", ["absent", "\x00", "acme "])
def test_a_tenant_without_a_request_is_not_erased(holdfast: Holdfast, tenant: str) -> None:
    holdfast.erasures.request("acme")
    with raises(NotFound, noun="erasure", key=tenant):
        holdfast.erasures.carry_out(tenant)


def test_erasing_an_unknown_tenant_leaves_only_the_record(holdfast: Holdfast, clock: FixedClock) -> None:
    holdfast.erasures.request("ghost")
    clock.advance(10)
    result = holdfast.erasures.carry_out("ghost")
    assert (result.is_finished, result.swept) == (True, SweepResult())
    assert holdfast.tenants.list() == []
    (proof,) = holdfast.erasures.list()
    assert proof.finished_at == from_us(clock.now_us())
    assert holdfast.erasures.list(only_open=True) == []


def test_a_finished_erasure_is_never_carried_out_again(holdfast: Holdfast) -> None:
    holdfast.erasures.request("acme", event_id="e")
    holdfast.erasures.carry_out("acme")
    holdfast.tenant("acme").sessions.create()
    (before,) = holdfast.erasures.list()
    assert holdfast.erasures.request("acme", event_id="e") == before
    with raises(NotFound, noun="erasure", key="acme"):
        holdfast.erasures.carry_out("acme")
    assert len(holdfast.tenant("acme").sessions.list()) == 1
    holdfast.erasures.request("acme", event_id="another")
    assert holdfast.erasures.carry_out("acme").is_finished, "a new request is carried out again"
    assert holdfast.tenants.list() == []


def test_all_requests_of_one_tenant_are_finished_together(holdfast: Holdfast) -> None:
    for event in ("1", "2", "3"):
        holdfast.erasures.request("acme", event_id=event, whole=event == "2")
    holdfast.erasures.request("zenith")
    assert holdfast.erasures.carry_out("acme").is_finished
    assert [erasure.tenant for erasure in holdfast.erasures.list(only_open=True)] == ["zenith"]
    assert len({erasure.finished_at for erasure in holdfast.erasures.list() if erasure.tenant == "acme"}) == 1


def test_an_erasure_of_snapshots_keeps_all_other_data(holdfast: Holdfast) -> None:
    acme, run = holdfast.tenant("acme"), run_of(holdfast)
    for number in range(3):
        forge(acme, run, [body(number, 50)])
    acme.retention.set_policy(per_run=5)
    (kept,) = acme.objects.put([b"mine"], holder="me")
    holdfast.erasures.request("acme", whole=False)
    result = holdfast.erasures.carry_out("acme")
    assert (result.is_finished, result.swept.erasure.count, result.swept.count) == (True, 3, 3)
    assert (acme.snapshots.list(), acme.objects.usage().count) == ([], 1)
    assert (acme.objects.get([kept]), acme.runs.get(run).id) == ([b"mine"], run)
    assert acme.retention.policy() == RetentionPolicy(5, 500, 7 * 86_400)
    reasons = [deed.reason for deed in acme.activity.list(action="checkpoint.deleted", limit=10)]
    assert reasons == ["erasure"] * 3


@pytest.mark.parametrize("whole", [True, False])
def test_a_hold_keeps_the_request_open_and_the_rest_is_removed(holdfast: Holdfast, whole: bool) -> None:
    acme, held, free = holdfast.tenant("acme"), run_of(holdfast), run_of(holdfast)
    kept = forge(acme, held, [body(1, 50)])
    forge(acme, free, [body(2, 50)])
    hold = acme.retention.hold("case", run_id=held)
    holdfast.erasures.request("acme", whole=whole)
    result = holdfast.erasures.carry_out("acme")
    assert (result.is_finished, result.swept.erasure.count) == (False, 1)
    assert [snapshot.id for snapshot in acme.snapshots.list()] == [kept.id]
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


def test_an_erasure_waits_for_another_sweep_and_then_continues(holdfast: Holdfast, clock: FixedClock) -> None:
    holdfast.tenant("acme").sessions.create()
    holdfast.erasures.request("acme")
    step(Sweep(holdfast._engine, Scope("acme", holdfast._setting)).claim("another"))
    with raises(Conflict, reason="being_swept"):
        holdfast.erasures.carry_out("acme")
    assert len(holdfast.erasures.list(only_open=True)) == 1
    clock.advance(LEASE_S)
    assert holdfast.erasures.carry_out("acme").is_finished


@pytest.mark.parametrize(("holder", "error"), [("", InvalidInput), (7, InvalidInput), ("x" * 61, LimitExceeded)])
def test_the_holder_of_an_erasure_needs_a_valid_name(holdfast: Holdfast, holder: Any, error: type[Exception]) -> None:
    holdfast.erasures.request("acme")
    with raises(error, field="holder"):
        holdfast.erasures.carry_out("acme", holder=holder)
    assert len(holdfast.erasures.list(only_open=True)) == 1


def test_an_erasure_removes_the_api_keys_of_the_tenant(holdfast: Holdfast) -> None:
    for tenant in ("acme", "zenith", ""):
        holdfast.api_keys.create(new_api_key(), name="x", tenant=tenant)
    holdfast.erasures.request("acme")
    holdfast.erasures.carry_out("acme")
    assert [api_key.tenant for api_key in holdfast.api_keys.list()] == ["zenith", ""]


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
def test_an_entry_with_any_id_can_be_recorded(holdfast: Holdfast, entry: str, moment: datetime | None) -> None:
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
def test_the_first_non_empty_subject_of_an_entry_counts(fields: dict[str, str], expected: tuple[str, str]) -> None:
    result = read_event("1-0", fields, EVENT)
    assert result is not None
    assert (result.tenant, result.event_id) == expected


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(["type", "event", "tenant", "data", "payload", "id"]), st.text(max_size=12)))
def test_an_entry_of_another_kind_is_never_a_request(fields: dict[str, str]) -> None:
    assert read_event("1-0", fields, EVENT) is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, []), ([], []), ({}, []),
        ([("s", [("1-0", {"a": "b"})])], [("s", [("1-0", {"a": "b"})])]),
        ({"s": [[("1-0", {"a": "b"})]]}, [("s", [("1-0", {"a": "b"})])]),
        ({"s": []}, [("s", [])]),
    ],
)  # fmt: skip
def test_redis_answers_are_read_in_both_protocols(answer: Any, expected: Any) -> None:
    assert list(_by_stream(answer)) == expected


def test_tenants_that_cannot_be_erased_yet_do_not_delay_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.retention_worker.PAGE", 2)

    async def use() -> list[str]:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as holdfast:
            for number in range(7):
                await holdfast.tenant(f"t{number}").sessions.create()
                await holdfast.erasures.request(f"t{number}")
            for number in range(5):
                await holdfast.tenant(f"t{number}").retention.hold("case")
            assert await ErasureConsumer(holdfast, None, consumer="me").carry_out() == 2
            return [tenant.id for tenant in await holdfast.tenants.list()]

    assert asyncio.run(use()) == [f"t{number}" for number in range(5)]


def test_a_consumer_without_redis_executes_stored_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> tuple[int, list[str]]:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as holdfast:
            for name in ("free", "held", "busy"):
                await holdfast.tenant(name).sessions.create()
                await holdfast.erasures.request(name)
            await holdfast.erasures.request("free", event_id="again")
            await holdfast.tenant("held").retention.hold("case")
            await Sweep(holdfast._engine, Scope("busy", holdfast._setting)).claim("another")
            result = await ErasureConsumer(holdfast, None, consumer="me").carry_out()
            return result, [erasure.tenant for erasure in await holdfast.erasures.list(only_open=True)]

    caplog.set_level("INFO", "holdfast.erasure")
    result, left = asyncio.run(use())
    assert (result, sorted(left)) == (1, ["busy", "held"])
    (record,) = [record for record in caplog.records if record.name == "holdfast.erasure"]
    assert record.levelname == "INFO", "a sweep by another process is no reason for a warning"
    assert record.getMessage().startswith("the erasure of tenant busy ")
    assert "another is sweeping the tenant 'busy'" in record.getMessage()
