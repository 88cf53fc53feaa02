"""Edge cases of runs: limits, odd texts, repetitions, and a queue with many hidden runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from typing import Any, NamedTuple

import pytest

from holdfast import FixedClock, Holdfast, Limits, NewMessage, NewToolCall, TenantHandle, ToolOutcome, Usage
from holdfast.clock import from_us
from holdfast.errors import Conflict, Fenced, HoldfastError, InvalidInput, LimitExceeded, NotFound
from holdfast.stores.execution.runs.leases import CANDIDATE_BATCH, HIDDEN_S
from holdfast.types import Run
from tests.errors import raises

MESSAGE_ID = "01900000-0000-7000-8000-000000000000"
ODD = "nul \0, lone \udcff, Ünïcode 🙂"
NUMBERS = count(1)
LIMITS = Limits(
    state_bytes=40, tool_result_bytes=20, tool_input_bytes=20, batch_rows=3, open_tool_calls=3, text_bytes=30,
    name_bytes=40, json_depth=4, lease_ms=60_000, filter_values=4, run_depth=2,
)  # fmt: skip


class RunFixture(NamedTuple):
    """A tenant with a run that the test holds, and another tenant."""

    acme: TenantHandle
    zenith: TenantHandle
    clock: FixedClock
    run: Run

    def now(self) -> Run:
        return self.acme.runs.get(self.run.id)

    def step(self, iteration: int = 1, state: Any = 0, **more: Any) -> Any:
        return self.acme.runs.step(self.run.id, epoch=self.run.epoch, iteration=iteration, state=state, **more)

    def intend(self, *calls: NewToolCall) -> Any:
        return self.acme.tool_calls.intend(self.run.id, epoch=self.run.epoch, calls=calls)


@pytest.fixture(scope="module")
def _open() -> Iterator[tuple[Holdfast, FixedClock]]:
    """One database for all tests: each has its own tenants."""
    clock = FixedClock()
    with Holdfast(":memory:", clock=clock, limits=LIMITS) as hf:
        yield hf, clock


@pytest.fixture
def fixture(_open: tuple[Holdfast, FixedClock]) -> RunFixture:
    hf, clock = _open
    number = next(NUMBERS)
    acme = hf.tenant(f"acme {number}")
    run = acme.leases.claim("me", run_id=acme.runs.start(acme.sessions.create().id).id)
    assert run is not None
    return RunFixture(acme, hf.tenant(f"zenith {number}"), clock, run)


def call(id: str, **more: Any) -> NewToolCall:
    return NewToolCall(id=id, tool_name="t", **more)


def message(content: str = "x", **more: Any) -> NewMessage:
    return NewMessage(role="assistant", content=content, **more)


# ------------------------------------------------------------------------------------------------------ as large as may be

FITTING: dict[str, dict[str, Any]] = {
    "state": {"state": "x" * 38},
    "state in bytes": {"state": "é" * 19},
    "depth": {"state": [[[[1]]]]},
    "messages": {"messages": [message(), message(), message()]},
    "result": {"tool_calls": [ToolOutcome(id="a", result="x" * 18)]},
    "error": {"tool_calls": [ToolOutcome(id="a", error="x" * 30)]},
    "last result": {"last_tool_result": "x" * 20},
    "snapshot": {"snapshot": "s" * 40},
    "stop reason": {"stop_reason": "s" * 40, "tool_calls": [ToolOutcome(id="a")]},
    "tokens": {"usage": Usage(input_tokens=2**53 - 1, output_tokens=0)},
}
TOO_LARGE: dict[str, dict[str, Any]] = {
    "state": {"state": "x" * 39},
    "state in bytes": {"state": "é" * 20},
    "depth": {"state": [[[[[1]]]]]},
    "messages": {"messages": [message()] * 4},
    "result": {"tool_calls": [ToolOutcome(id="a", result="x" * 19)]},
    "error": {"tool_calls": [ToolOutcome(id="a", error="x" * 31)]},
    "last result": {"last_tool_result": "x" * 21},
    "snapshot": {"snapshot": "s" * 41},
    "stop reason": {"stop_reason": "s" * 41, "tool_calls": [ToolOutcome(id="a")]},
    "tokens": {"usage": Usage(input_tokens=2**53)},
}


@pytest.mark.parametrize("case", FITTING)
def test_a_step_may_be_as_large_as_its_limits(fixture: RunFixture, case: str) -> None:
    fixture.intend(call("a"))
    fixture.step(**FITTING[case])
    assert fixture.now().iteration == 1


@pytest.mark.parametrize("case", TOO_LARGE)
def test_a_step_over_a_limit_is_refused_and_changes_nothing(fixture: RunFixture, case: str) -> None:
    fixture.intend(call("a"))
    before = fixture.acme.runs.load(fixture.run.id)
    with pytest.raises((LimitExceeded, InvalidInput)):
        fixture.step(**{"messages": [message()], **TOO_LARGE[case]})
    assert fixture.acme.runs.load(fixture.run.id) == before
    assert fixture.acme.messages.count(fixture.run.session_id) == 0


def test_the_number_of_open_calls_is_limited(fixture: RunFixture) -> None:
    fixture.intend(call("a"), call("b"))
    fixture.intend(call("c"))
    with raises(LimitExceeded, limit="open_tool_calls"):
        fixture.intend(call("d"))
    fixture.step(tool_calls=[ToolOutcome(id="b")])
    fixture.intend(call("d"))
    assert [pending.call.id for pending in fixture.acme.tool_calls.pending(fixture.run.id)] == ["a", "c", "d"]


@pytest.mark.parametrize("tool_input", ["x" * 18, "é" * 9, [], {}, None, 0], ids=repr)
def test_the_input_of_a_call_is_stored_unchanged(fixture: RunFixture, tool_input: Any) -> None:
    (recorded,) = fixture.intend(call("a", tool_input=tool_input))
    assert recorded.tool_input == tool_input
    assert fixture.acme.tool_calls.get(fixture.run.id, "a") == recorded


# --------------------------------------------------------------------------------------------------------- any text


def test_every_part_of_a_step_can_contain_any_text(fixture: RunFixture) -> None:
    fixture.intend(NewToolCall(id=ODD, tool_name=ODD))
    fixture.step(
        state={ODD[:5]: 1}, tool_calls=[ToolOutcome(id=ODD, error=ODD[:20])], snapshot=ODD, last_tool_result=ODD[:9]
    )
    step = fixture.acme.steps.get(fixture.run.id, 1)
    assert (step.state, step.snapshot, step.last_tool_result) == ({ODD[:5]: 1}, ODD, ODD[:9])
    (recorded,) = fixture.acme.tool_calls.list(fixture.run.id)
    assert (recorded.id, recorded.tool_name, recorded.error, recorded.status) == (ODD, ODD, ODD[:20], "failed")


def test_a_holder_can_have_any_name(fixture: RunFixture) -> None:
    fixture.acme.leases.release(fixture.run.id, epoch=fixture.run.epoch)
    claimed = fixture.acme.leases.claim(ODD)
    assert claimed is not None
    assert (claimed.holder, fixture.now().holder) == (ODD, ODD)


def test_runs_can_be_claimed_by_an_agent_of_any_name(fixture: RunFixture) -> None:
    mine = fixture.acme.runs.start(fixture.run.session_id, agent=ODD)
    fixture.acme.runs.start(fixture.run.session_id, agent="nul ")
    held = fixture.acme.leases.claim("me", agents=[ODD])
    assert held is not None
    assert held.id == mine.id
    assert fixture.acme.leases.claim("me", agents=[ODD]) is None


# ------------------------------------------------------------------------------------------------------ the same thing twice

STEP: dict[str, Any] = {"state": {"n": 1}, "usage": Usage(input_tokens=1), "last_tool_result": "r", "snapshot": "s"}
OTHERS: dict[str, dict[str, Any]] = {
    "another state": {"state": {"n": 2}},
    "a number of another kind": {"state": {"n": 1.0}},
    "true for one": {"state": {"n": True}},
    "text for a number": {"state": {"n": "1"}},
    "no state": {"state": None},
    "other tokens": {"usage": Usage(output_tokens=1)},
    "another result": {"last_tool_result": "R"},
    "no result": {"last_tool_result": None},
    "an empty result": {"last_tool_result": ""},
    "another snapshot": {"snapshot": "S"},
    "no snapshot": {"snapshot": None},
    "a message": {"messages": [message()]},
    "an end": {"stop_reason": "done"},
    "a pause": {"pause_until": datetime(2100, 1, 1, tzinfo=UTC)},
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_step_with_other_content_is_a_conflict(fixture: RunFixture, other: str) -> None:
    fixture.step(**STEP)
    before = fixture.now()
    with raises(Conflict, reason="other_content"):
        fixture.step(**{**STEP, **OTHERS[other]})
    assert fixture.now() == before


def test_a_repeated_step_changes_nothing_and_does_not_renew_the_lease(fixture: RunFixture) -> None:
    first = fixture.step(**STEP)
    before = fixture.now()
    fixture.clock.advance(1)
    assert fixture.step(**STEP) == first
    assert fixture.now() == before


def test_a_message_with_an_id_differs_from_one_without(fixture: RunFixture) -> None:
    fixture.step(messages=[message(id=MESSAGE_ID)])
    with raises(Conflict, reason="other_content"):
        fixture.step(messages=[message()])


LEAVING: dict[str, Callable[[RunFixture], Run]] = {
    "release": lambda fixture: fixture.acme.leases.release(fixture.run.id, epoch=fixture.run.epoch),
    "wait": lambda fixture: fixture.acme.runs.pause(fixture.run.id, epoch=fixture.run.epoch),
    "pause": lambda fixture: fixture.acme.runs.pause(
        fixture.run.id, epoch=fixture.run.epoch, until=datetime(2100, 1, 1, tzinfo=UTC)
    ),
    "finish": lambda fixture: fixture.acme.runs.finish(fixture.run.id, epoch=fixture.run.epoch, stop_reason=ODD),
    "fail": lambda fixture: fixture.acme.runs.fail(fixture.run.id, epoch=fixture.run.epoch, error=ODD[:20]),
    "cancel": lambda fixture: fixture.acme.runs.cancel(fixture.run.id, reason=ODD[:20]),
}


@pytest.mark.parametrize("how", LEAVING)
def test_leaving_a_run_can_be_repeated(fixture: RunFixture, how: str) -> None:
    first = LEAVING[how](fixture)
    fixture.clock.advance(1)
    assert LEAVING[how](fixture) == first == fixture.now()


@pytest.mark.parametrize("how", LEAVING)
def test_a_former_holder_can_no_longer_write(fixture: RunFixture, how: str) -> None:
    LEAVING[how](fixture)
    writes: list[Callable[[], object]] = [
        fixture.step,
        lambda: fixture.intend(call("a")),
        lambda: fixture.acme.leases.renew(fixture.run.id, epoch=fixture.run.epoch),
    ]
    for write in writes:
        with pytest.raises((Conflict, Fenced)):
            write()
    assert (fixture.now().iteration, fixture.acme.tool_calls.list(fixture.run.id)) == (0, [])


def test_a_pause_in_another_time_zone_is_the_same_time(fixture: RunFixture) -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    until = datetime(2100, 1, 1, 5, 30, tzinfo=zone)
    paused = fixture.acme.runs.pause(fixture.run.id, epoch=fixture.run.epoch, until=until)
    assert paused.pause_until == datetime(2100, 1, 1, tzinfo=UTC)
    assert LEAVING["pause"](fixture) == paused


# -------------------------------------------------------------------------------------------------------------- leases


@pytest.mark.parametrize("ttl_ms", [1, 59_999, 60_000])
def test_a_lease_lasts_for_its_requested_duration(fixture: RunFixture, ttl_ms: int) -> None:
    now_us = fixture.clock.now_us()
    held = fixture.acme.leases.renew(fixture.run.id, epoch=fixture.run.epoch, ttl_ms=ttl_ms)
    assert (held.lease_ms, held.lease_until) == (ttl_ms, from_us(now_us + ttl_ms * 1_000))
    fixture.clock.advance(0.0005)
    again = fixture.acme.leases.renew(fixture.run.id, epoch=fixture.run.epoch)
    assert again.lease_until == from_us(fixture.clock.now_us() + ttl_ms * 1_000), "the duration is kept"


@pytest.mark.parametrize(
    ("ttl_ms", "error"), [(0, InvalidInput), (True, InvalidInput), ("1", InvalidInput), (60_001, LimitExceeded)]
)
def test_an_invalid_lease_changes_nothing(fixture: RunFixture, ttl_ms: Any, error: type[HoldfastError]) -> None:
    before = fixture.now()
    with raises(error, field="ttl_ms"):
        fixture.acme.leases.renew(fixture.run.id, epoch=fixture.run.epoch, ttl_ms=ttl_ms)
    assert fixture.now() == before


def test_another_tenant_can_neither_renew_nor_release_nor_claim_a_run(fixture: RunFixture) -> None:
    theirs = fixture.zenith.leases
    calls: list[Callable[[], object]] = [
        lambda: theirs.renew(fixture.run.id, epoch=fixture.run.epoch),
        lambda: theirs.release(fixture.run.id, epoch=fixture.run.epoch),
        lambda: theirs.claim("thief", run_id=fixture.run.id),
    ]
    for attempt in calls:
        with raises(NotFound, noun="run", key=fixture.run.id):
            attempt()
    assert theirs.claim("thief") is None


def test_a_released_claim_does_not_count_as_an_attempt(fixture: RunFixture) -> None:
    for _ in range(2 * fixture.run.max_attempts):
        run = fixture.now()
        fixture.acme.leases.release(run.id, epoch=run.epoch)
        assert fixture.acme.leases.claim("me", run_id=run.id) is not None
    assert (fixture.now().status, fixture.now().attempts) == ("running", 1)


def test_a_claim_for_too_many_agents_is_refused(fixture: RunFixture) -> None:
    assert fixture.acme.leases.claim("me", agents=["a", "b", "c", "d"]) is None
    with raises(LimitExceeded, limit="filter_values"):
        fixture.acme.leases.claim("me", agents=["a", "b", "c", "d", "e"])


def test_a_run_behind_many_hidden_runs_is_claimed(fixture: RunFixture) -> None:
    for _ in range(2 * CANDIDATE_BATCH + 1):
        hidden = fixture.acme.sessions.create()
        fixture.acme.runs.start(hidden.id)
        fixture.acme.sessions.delete(hidden.id)
    fixture.clock.advance(1)
    last = fixture.acme.runs.start(fixture.run.session_id)
    held = fixture.acme.leases.claim("me")
    assert held is not None
    assert held.id == last.id


def test_a_run_of_a_restored_session_is_claimed_within_a_minute(fixture: RunFixture) -> None:
    session = fixture.acme.sessions.create()
    run = fixture.acme.runs.start(session.id)
    fixture.acme.sessions.delete(session.id)
    assert fixture.acme.leases.claim("me") is None
    fixture.acme.sessions.restore(session.id)
    fixture.acme.leases.renew(fixture.run.id, epoch=fixture.run.epoch)
    fixture.clock.advance(HIDDEN_S)
    held = fixture.acme.leases.claim("me")
    assert held is not None
    assert held.id == run.id


# ----------------------------------------------------------------------------------------------------------- tool calls


def test_a_step_contains_a_person_s_concurrent_decision(fixture: RunFixture) -> None:
    fixture.intend(call("a"), call("b"))
    fixture.acme.tool_calls.cancel(fixture.run.id, "a", reason="not that one")
    fixture.step(tool_calls=[ToolOutcome(id="a", result=1), ToolOutcome(id="b", result=2)])
    calls = {
        recorded.id: (recorded.status, recorded.result, recorded.error, recorded.step)
        for recorded in fixture.acme.tool_calls.list(fixture.run.id)
    }
    assert calls == {"a": ("cancelled", None, "not that one", 1), "b": ("finished", 2, None, 1)}


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        ({}, "finished"),
        ({"result": 0}, "finished"),
        ({"error": ""}, "failed"),
        ({"error": "no", "result": 1}, "failed"),
        ({"error": "no", "status": "finished"}, "finished"),
        ({"status": "unknown"}, "unknown"),
    ],
    ids=["nothing", "a result", "an empty error", "both", "as message", "unknown"],
)
def test_the_status_of_an_outcome_is_explicit_or_derived(
    fixture: RunFixture, outcome: dict[str, Any], status: str
) -> None:
    fixture.intend(call("a"))
    fixture.step(tool_calls=[ToolOutcome(id="a", **outcome)])
    recorded = fixture.acme.tool_calls.get(fixture.run.id, "a")
    assert (recorded.status, recorded.result, recorded.error) == (status, outcome.get("result"), outcome.get("error"))


def test_the_depth_of_nested_runs_is_limited(fixture: RunFixture) -> None:
    parent = fixture.run
    for depth in (1, 2):
        parent = fixture.acme.runs.start(fixture.run.session_id, parent=parent.id)
        assert parent.depth == depth
    with raises(LimitExceeded, limit="run_depth"):
        fixture.acme.runs.start(fixture.run.session_id, parent=parent.id)
