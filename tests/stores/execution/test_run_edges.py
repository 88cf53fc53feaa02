"""Runs at their edges: the largest that may be and one more, any text, the same thing twice, and a queue with many in front."""

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

NOBODY = "01900000-0000-7000-8000-000000000000"
ODD = "nul \0, lone \udcff, Ünïcode 🙂"
NUMBERS = count(1)
LIMITS = Limits(
    state_bytes=40, tool_result_bytes=20, tool_input_bytes=20, batch_rows=3, open_tool_calls=3, text_bytes=30,
    name_bytes=40, json_depth=4, lease_ms=60_000, filter_values=4, run_depth=2,
)  # fmt: skip


class Place(NamedTuple):
    """A tenant with a run that somebody holds, and another tenant."""

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
    """One database for all: each test has tenants of its own."""
    clock = FixedClock()
    with Holdfast(":memory:", clock=clock, limits=LIMITS) as hf:
        yield hf, clock


@pytest.fixture
def place(_open: tuple[Holdfast, FixedClock]) -> Place:
    hf, clock = _open
    number = next(NUMBERS)
    acme = hf.tenant(f"acme {number}")
    run = acme.leases.claim("me", run_id=acme.runs.start(acme.sessions.create().id).id)
    assert run is not None
    return Place(acme, hf.tenant(f"zenith {number}"), clock, run)


def call(id: str, **more: Any) -> NewToolCall:
    return NewToolCall(id=id, tool_name="t", **more)


def said(content: str = "x", **more: Any) -> NewMessage:
    return NewMessage(role="assistant", content=content, **more)


# ------------------------------------------------------------------------------------------------------ as large as may be

FITTING: dict[str, dict[str, Any]] = {
    "state": {"state": "x" * 38},
    "state in bytes": {"state": "é" * 19},
    "depth": {"state": [[[[1]]]]},
    "messages": {"messages": [said(), said(), said()]},
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
    "messages": {"messages": [said()] * 4},
    "result": {"tool_calls": [ToolOutcome(id="a", result="x" * 19)]},
    "error": {"tool_calls": [ToolOutcome(id="a", error="x" * 31)]},
    "last result": {"last_tool_result": "x" * 21},
    "snapshot": {"snapshot": "s" * 41},
    "stop reason": {"stop_reason": "s" * 41, "tool_calls": [ToolOutcome(id="a")]},
    "tokens": {"usage": Usage(input_tokens=2**53)},
}


@pytest.mark.parametrize("what", FITTING)
def test_a_step_may_be_as_large_as_its_limits(place: Place, what: str) -> None:
    place.intend(call("a"))
    place.step(**FITTING[what])
    assert place.now().iteration == 1


@pytest.mark.parametrize("what", TOO_LARGE)
def test_one_more_than_that_is_refused_and_nothing_of_the_step_is_there(place: Place, what: str) -> None:
    place.intend(call("a"))
    before = place.acme.runs.load(place.run.id)
    with pytest.raises((LimitExceeded, InvalidInput)):
        place.step(**{"messages": [said()], **TOO_LARGE[what]})
    assert place.acme.runs.load(place.run.id) == before
    assert place.acme.messages.count(place.run.session_id) == 0


def test_as_many_calls_may_be_open_as_the_limit_says_and_no_more(place: Place) -> None:
    place.intend(call("a"), call("b"))
    place.intend(call("c"))
    with pytest.raises(LimitExceeded, match="open_tool_calls"):
        place.intend(call("d"))
    place.step(tool_calls=[ToolOutcome(id="b")])
    place.intend(call("d"))
    assert [each.call.id for each in place.acme.tool_calls.pending(place.run.id)] == ["a", "c", "d"]


@pytest.mark.parametrize("given", ["x" * 18, "é" * 9, [], {}, None, 0], ids=repr)
def test_the_input_of_a_call_is_kept_as_it_was(place: Place, given: Any) -> None:
    (made,) = place.intend(call("a", tool_input=given))
    assert made.tool_input == given
    assert place.acme.tool_calls.get(place.run.id, "a") == made


# --------------------------------------------------------------------------------------------------------- any text


def test_any_text_can_be_in_every_part_of_a_step(place: Place) -> None:
    place.intend(NewToolCall(id=ODD, tool_name=ODD))
    place.step(
        state={ODD[:5]: 1}, tool_calls=[ToolOutcome(id=ODD, error=ODD[:20])], snapshot=ODD, last_tool_result=ODD[:9]
    )
    step = place.acme.steps.get(place.run.id, 1)
    assert (step.state, step.snapshot, step.last_tool_result) == ({ODD[:5]: 1}, ODD, ODD[:9])
    (there,) = place.acme.tool_calls.list(place.run.id)
    assert (there.id, there.tool_name, there.error, there.status) == (ODD, ODD, ODD[:20], "failed")


def test_a_holder_may_have_any_name(place: Place) -> None:
    place.acme.leases.release(place.run.id, epoch=place.run.epoch)
    held = place.acme.leases.claim(ODD)
    assert held is not None
    assert (held.holder, place.now().holder) == (ODD, ODD)


def test_an_agent_of_any_name_is_claimed_by_it(place: Place) -> None:
    mine = place.acme.runs.start(place.run.session_id, agent=ODD)
    place.acme.runs.start(place.run.session_id, agent="nul ")
    held = place.acme.leases.claim("me", agents=[ODD])
    assert held is not None
    assert held.id == mine.id
    assert place.acme.leases.claim("me", agents=[ODD]) is None


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
    "a message": {"messages": [said()]},
    "an end": {"stop_reason": "done"},
    "a pause": {"pause_until": datetime(2100, 1, 1, tzinfo=UTC)},
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_step_of_another_content_is_not_the_same_step(place: Place, other: str) -> None:
    place.step(**STEP)
    before = place.now()
    with pytest.raises(Conflict, match="was committed with another content"):
        place.step(**{**STEP, **OTHERS[other]})
    assert place.now() == before


def test_the_same_step_twice_is_one_step_and_does_not_renew_the_lease(place: Place) -> None:
    first = place.step(**STEP)
    before = place.now()
    place.clock.advance(1)
    assert place.step(**STEP) == first
    assert place.now() == before


def test_a_message_with_an_id_of_its_own_is_another_than_one_without(place: Place) -> None:
    place.step(messages=[said(id=NOBODY)])
    with pytest.raises(Conflict, match="another content"):
        place.step(messages=[said()])


LEAVING: dict[str, Callable[[Place], Run]] = {
    "release": lambda place: place.acme.leases.release(place.run.id, epoch=place.run.epoch),
    "wait": lambda place: place.acme.runs.pause(place.run.id, epoch=place.run.epoch),
    "pause": lambda place: place.acme.runs.pause(
        place.run.id, epoch=place.run.epoch, until=datetime(2100, 1, 1, tzinfo=UTC)
    ),
    "finish": lambda place: place.acme.runs.finish(place.run.id, epoch=place.run.epoch, stop_reason=ODD),
    "fail": lambda place: place.acme.runs.fail(place.run.id, epoch=place.run.epoch, error=ODD[:20]),
    "cancel": lambda place: place.acme.runs.cancel(place.run.id, reason=ODD[:20]),
}


@pytest.mark.parametrize("how", LEAVING)
def test_a_run_can_be_left_twice_in_the_same_way(place: Place, how: str) -> None:
    done = LEAVING[how](place)
    place.clock.advance(1)
    assert LEAVING[how](place) == done == place.now()


@pytest.mark.parametrize("how", LEAVING)
def test_whoever_has_left_a_run_can_write_no_more(place: Place, how: str) -> None:
    LEAVING[how](place)
    writes: list[Callable[[], object]] = [
        place.step,
        lambda: place.intend(call("a")),
        lambda: place.acme.leases.renew(place.run.id, epoch=place.run.epoch),
    ]
    for write in writes:
        with pytest.raises((Conflict, Fenced)):
            write()
    assert (place.now().iteration, place.acme.tool_calls.list(place.run.id)) == (0, [])


def test_a_pause_in_another_time_zone_is_the_same_moment(place: Place) -> None:
    there = timezone(timedelta(hours=5, minutes=30))
    until = datetime(2100, 1, 1, 5, 30, tzinfo=there)
    done = place.acme.runs.pause(place.run.id, epoch=place.run.epoch, until=until)
    assert done.pause_until == datetime(2100, 1, 1, tzinfo=UTC)
    assert LEAVING["pause"](place) == done


# -------------------------------------------------------------------------------------------------------------- leases


@pytest.mark.parametrize("ttl_ms", [1, 59_999, 60_000])
def test_a_lease_lasts_as_long_as_was_said(place: Place, ttl_ms: int) -> None:
    now_us = place.clock.now_us()
    held = place.acme.leases.renew(place.run.id, epoch=place.run.epoch, ttl_ms=ttl_ms)
    assert (held.lease_ms, held.lease_until) == (ttl_ms, from_us(now_us + ttl_ms * 1_000))
    place.clock.advance(0.0005)
    again = place.acme.leases.renew(place.run.id, epoch=place.run.epoch)
    assert again.lease_until == from_us(place.clock.now_us() + ttl_ms * 1_000), "and as long again"


@pytest.mark.parametrize(
    ("ttl_ms", "error"), [(0, InvalidInput), (True, InvalidInput), ("1", InvalidInput), (60_001, LimitExceeded)]
)
def test_a_lease_that_cannot_be_changes_nothing(place: Place, ttl_ms: Any, error: type[HoldfastError]) -> None:
    before = place.now()
    with pytest.raises(error, match="ttl_ms"):
        place.acme.leases.renew(place.run.id, epoch=place.run.epoch, ttl_ms=ttl_ms)
    assert place.now() == before


def test_another_tenant_can_neither_renew_nor_release_nor_claim(place: Place) -> None:
    theirs = place.zenith.leases
    calls: list[Callable[[], object]] = [
        lambda: theirs.renew(place.run.id, epoch=place.run.epoch),
        lambda: theirs.release(place.run.id, epoch=place.run.epoch),
        lambda: theirs.claim("thief", run_id=place.run.id),
    ]
    for each in calls:
        with pytest.raises(NotFound):
            each()
    assert theirs.claim("thief") is None


def test_a_claim_that_is_given_back_does_not_count(place: Place) -> None:
    for _ in range(2 * place.run.max_attempts):
        run = place.now()
        place.acme.leases.release(run.id, epoch=run.epoch)
        assert place.acme.leases.claim("me", run_id=run.id) is not None
    assert (place.now().status, place.now().attempts) == ("running", 1)


def test_a_claim_for_more_agents_than_may_be_is_refused(place: Place) -> None:
    assert place.acme.leases.claim("me", agents=["a", "b", "c", "d"]) is None
    with pytest.raises(LimitExceeded, match="filter_values"):
        place.acme.leases.claim("me", agents=["a", "b", "c", "d", "e"])


def test_a_run_behind_many_of_deleted_sessions_is_found(place: Place) -> None:
    for _ in range(2 * CANDIDATE_BATCH + 1):
        hidden = place.acme.sessions.create()
        place.acme.runs.start(hidden.id)
        place.acme.sessions.delete(hidden.id)
    place.clock.advance(1)
    last = place.acme.runs.start(place.run.session_id)
    held = place.acme.leases.claim("me")
    assert held is not None
    assert held.id == last.id


def test_a_run_of_a_session_that_comes_back_is_claimed_a_minute_later_at_most(place: Place) -> None:
    session = place.acme.sessions.create()
    run = place.acme.runs.start(session.id)
    place.acme.sessions.delete(session.id)
    assert place.acme.leases.claim("me") is None
    place.acme.sessions.restore(session.id)
    place.acme.leases.renew(place.run.id, epoch=place.run.epoch)
    place.clock.advance(HIDDEN_S)
    held = place.acme.leases.claim("me")
    assert held is not None
    assert held.id == run.id


# ----------------------------------------------------------------------------------------------------------- tool calls


def test_a_step_takes_in_what_a_person_has_decided_meanwhile(place: Place) -> None:
    place.intend(call("a"), call("b"))
    place.acme.tool_calls.cancel(place.run.id, "a", reason="not that one")
    place.step(tool_calls=[ToolOutcome(id="a", result=1), ToolOutcome(id="b", result=2)])
    found = {
        each.id: (each.status, each.result, each.error, each.step) for each in place.acme.tool_calls.list(place.run.id)
    }
    assert found == {"a": ("cancelled", None, "not that one", 1), "b": ("finished", 2, None, 1)}


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
    ids=["nothing", "a result", "an empty error", "both", "as said", "unknown"],
)
def test_an_outcome_is_what_it_says_or_what_it_has(place: Place, outcome: dict[str, Any], status: str) -> None:
    place.intend(call("a"))
    place.step(tool_calls=[ToolOutcome(id="a", **outcome)])
    there = place.acme.tool_calls.get(place.run.id, "a")
    assert (there.status, there.result, there.error) == (status, outcome.get("result"), outcome.get("error"))


def test_runs_below_each_other_are_as_many_as_the_limit_says(place: Place) -> None:
    above = place.run
    for depth in (1, 2):
        above = place.acme.runs.start(place.run.session_id, parent=above.id)
        assert above.depth == depth
    with pytest.raises(LimitExceeded, match="run_depth"):
        place.acme.runs.start(place.run.session_id, parent=above.id)
