"""What is done about each call of a reply, decided by plain functions out of what the ledger says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import ToolOutcome
from holdfast.errors import Conflict, Fenced
from holdfast.loop import Event, Loop, Tool, ToolRequest, tool
from holdfast.loop.call_plan import OPEN_STATUSES, UNKNOWN, CallPlan, plan_calls
from holdfast.loop.config import LoopConfig
from holdfast.loop.replies import RequestedCall
from holdfast.stores.execution.runs import ledger
from holdfast.stores.execution.runs.ledger import CallStatus, Safety
from holdfast.stores.execution.runs.states import Status
from holdfast.types import Run, ToolCall

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CALL = ToolCall(
    id="c", run_id="r", tool_name="mail", tool_input={}, safety="at_most_once", status="begun", iteration=1, epoch=1,
    attempts=1, pause_until=None, result=None, error=None, step=None, started_at=NOW, finished_at=None,
)  # fmt: skip
RUN = Run(
    id="r", session_id="s", agent="a", status="running", iteration=0, epoch=1, attempts=1, max_attempts=5, holder="h",
    lease_ms=1_000, lease_until=NOW, doubted_at=None, pause_until=None, stop_reason=None, error=None, parent_run_id=None,
    parent_call_id=None, depth=0, input_tokens=0, output_tokens=0, metadata={}, started_at=NOW, checkpointed_at=None,
    finished_at=None,
)  # fmt: skip
MAIL = RequestedCall("c", "mail", {})
CLOSED: list[CallStatus] = [each for each in get_args(CallStatus) if each not in OPEN_STATUSES]
ENDED: list[Status] = ["completed", "failed", "cancelled"]
UNDER_WAY: list[Status] = ["pending", "running", "paused", "waiting"]


def silent(turn: object) -> str:
    return ""


def plan_of(*tools: Tool, **options: Any) -> LoopConfig:
    return Loop(silent, tools=tools, **options).config


@tool
def mail() -> None:
    """A tool that says nothing about its safety."""


def sort_one(call: ToolCall | None, child: Run | None = None, now: datetime | None = NOW) -> CallPlan:
    known = {} if call is None else {call.id: call}
    return plan_calls(plan_of(mail), [MAIL], known, {} if child is None else {"c": child}, now=now)


def piles(found: CallPlan) -> dict[str, int]:
    """How many calls lie where; what is empty is not named."""
    names = (
        "outcomes",
        "recorded_ids",
        "to_make",
        "to_hold",
        "awaiting_people",
        "wake_times",
        "open_children",
        "ended_children",
    )
    return {name: len(getattr(found, name)) for name in names if getattr(found, name)}


# ----------------------------------------------------------------------------------------- what the ledger does not know


def test_a_reply_without_calls_leaves_nothing_to_do() -> None:
    assert piles(plan_calls(plan_of(mail), [], {}, {}, now=NOW)) == {}


def test_a_call_that_the_ledger_does_not_know_is_made() -> None:
    assert sort_one(None).to_make == [MAIL]


def test_a_tool_that_must_be_allowed_is_held_before_it_is_recorded() -> None:
    held = tool(name="mail", hold=True)(lambda: None)
    found = plan_calls(plan_of(held), [MAIL], {}, {}, now=NOW)
    assert (found.to_hold, found.to_make) == ([MAIL], [])


def test_a_call_of_a_tool_that_is_not_there_is_made_so_that_the_model_is_told() -> None:
    found = plan_calls(plan_of(hold=lambda request: True), [MAIL], {}, {}, now=NOW)
    assert (found.to_hold, found.to_make) == ([], [MAIL])


def test_once_the_ledger_knows_the_reply_nothing_is_held_anew() -> None:
    held = tool(name="mail", hold=True)(lambda: None)
    other = RequestedCall("other", "mail", {})
    known = {"c": replace(CALL, status="finished")}
    found = plan_calls(plan_of(held), [MAIL, other], known, {}, now=NOW)
    assert (found.to_hold, found.to_make) == ([], [other]), "a person was asked when the reply was recorded"


def test_calls_keep_the_order_in_which_they_were_asked_for() -> None:
    requests = [RequestedCall(f"c{number}", "mail", number) for number in (3, 1, 2)]
    assert plan_calls(plan_of(mail), requests, {}, {}, now=NOW).to_make == requests


# --------------------------------------------------------------------------------------------------- what is finished


@pytest.mark.parametrize("status", CLOSED)
def test_what_is_finished_is_taken_as_the_ledger_has_it_and_settled_by_no_step_again(status: CallStatus) -> None:
    found = sort_one(replace(CALL, status=status, result={"n": 1}, error="why"))
    assert found.outcomes == {"c": ToolOutcome(id="c", result={"n": 1}, error="why", status=status)}  # type: ignore[arg-type]
    assert found.new_outcomes() == []
    assert piles(found) == {"outcomes": 1, "recorded_ids": 1}


@pytest.mark.parametrize("status", CLOSED)
def test_what_is_finished_is_not_asked_of_the_run_below(status: CallStatus) -> None:
    found = sort_one(replace(CALL, status=status), replace(RUN, id="child", status="completed"))
    assert piles(found) == {"outcomes": 1, "recorded_ids": 1}


@pytest.mark.parametrize("status", sorted(OPEN_STATUSES))
def test_what_is_open_is_never_taken_for_an_outcome(status: CallStatus) -> None:
    with pytest.raises(Conflict, match=f"call 'c' of run r is {status}"):
        CallPlan().take_outcome("r", replace(CALL, status=status))


def test_the_loop_and_the_ledger_mean_the_same_by_open() -> None:
    assert OPEN_STATUSES == ledger.OPEN_STATUSES


def test_fresh_is_what_the_ledger_did_not_have() -> None:
    found = CallPlan()
    found.take_outcome("r", replace(CALL, status="failed", error="no"))
    new = ToolOutcome(id="new", result=1, status="finished")
    found.outcomes["new"] = new
    assert found.new_outcomes() == [new]


# ------------------------------------------------------------------------------------- what somebody never came back from


@pytest.mark.parametrize(
    ("safety", "pile"), [("idempotent", "to_make"), ("ask", "awaiting_people"), ("at_most_once", "outcomes")]
)
def test_a_call_that_was_begun_goes_the_way_of_its_safety(safety: Safety, pile: str) -> None:
    assert piles(sort_one(replace(CALL, safety=safety))) == {pile: 1}


def test_an_unknown_outcome_is_said_in_words_and_left_to_the_step() -> None:
    found = sort_one(CALL)
    assert found.new_outcomes() == [ToolOutcome(id="c", status="unknown", error=UNKNOWN)]


@pytest.mark.parametrize("safety", get_args(Safety))
def test_what_is_held_waits_for_a_person_whatever_its_safety(safety: Safety) -> None:
    assert piles(sort_one(replace(CALL, status="held", safety=safety))) == {"awaiting_people": 1}


@pytest.mark.parametrize("safety", get_args(Safety))
def test_what_a_person_has_allowed_is_made_whatever_its_safety(safety: Safety) -> None:
    assert piles(sort_one(replace(CALL, status="ready", safety=safety))) == {"to_make": 1}


@pytest.mark.parametrize(
    ("after_s", "pile"),
    [(-1.0, "to_make"), (0.0, "to_make"), (0.000001, "wake_times"), (3_600.0, "wake_times")],
    ids=["past", "now", "a microsecond", "an hour"],
)
def test_a_snoozed_call_is_made_from_its_moment_on(after_s: float, pile: str) -> None:
    until = NOW + timedelta(seconds=after_s)
    found = sort_one(replace(CALL, status="ready", pause_until=until))
    assert piles(found) == {pile: 1}
    assert found.wake_times == ([until] if pile == "wake_times" else [])


def test_without_a_clock_a_snoozed_call_is_made() -> None:
    later = replace(CALL, status="ready", pause_until=NOW + timedelta(days=1))
    assert piles(sort_one(later, now=None)) == {"to_make": 1}


# ------------------------------------------------------------------------------------------------------ what runs below do


@pytest.mark.parametrize("status", ENDED)
def test_a_run_below_that_has_ended_answers_the_call(status: Status) -> None:
    child = replace(RUN, id="child", status=status)
    assert sort_one(CALL, child).ended_children == [("c", child)]


@pytest.mark.parametrize("status", UNDER_WAY)
def test_a_run_below_that_is_under_way_is_waited_for(status: Status) -> None:
    found = sort_one(CALL, replace(RUN, id="child", status=status))
    assert (found.open_children, found.ended_children, found.outcomes) == (["child"], [], {})


def test_every_status_of_a_run_is_one_or_the_other() -> None:
    assert {*ENDED, *UNDER_WAY} == {*get_args(Status)}


@pytest.mark.parametrize("status", sorted(OPEN_STATUSES))
def test_what_a_run_below_does_is_never_called_here_as_well(status: CallStatus) -> None:
    found = sort_one(replace(CALL, status=status, safety="idempotent"), replace(RUN, id="child", status="paused"))
    assert piles(found) == {"open_children": 1}


CALLS = st.builds(
    lambda status, safety, late: replace(
        CALL, status=status, safety=safety, pause_until=None if late is None else NOW + timedelta(seconds=late)
    ),
    st.sampled_from(get_args(CallStatus)),
    st.sampled_from(get_args(Safety)),
    st.none() | st.integers(-2, 2),
)
CHILDREN = st.none() | st.sampled_from(get_args(Status)).map(lambda status: replace(RUN, id="child", status=status))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.none() | CALLS, CHILDREN), max_size=6))
def test_every_call_lies_on_exactly_one_pile(given: list[tuple[ToolCall | None, Run | None]]) -> None:
    requests = [RequestedCall(f"c{number}", "mail", {}) for number in range(len(given))]
    known = {f"c{number}": replace(call, id=f"c{number}") for number, (call, _) in enumerate(given) if call is not None}
    children = {f"c{number}": child for number, (_, child) in enumerate(given) if child is not None}
    found = plan_calls(plan_of(mail), requests, known, children, now=NOW)
    counted = piles(found)
    assert counted.pop("recorded_ids", 0) == sum(call.status not in OPEN_STATUSES for call in known.values())
    assert sum(counted.values()) == len(given)


# ------------------------------------------------------------------------------------------------------------- the plan


@pytest.mark.parametrize(
    ("says_tool", "says_plan", "held"),
    [(False, None, False), (True, None, True), (False, True, True), (True, False, True), (False, False, False)],
)
def test_a_call_is_held_if_the_tool_or_the_loop_says_so(says_tool: bool, says_plan: bool | None, held: bool) -> None:
    made = tool(name="mail", hold=says_tool)(lambda: None)
    asked: Callable[[ToolRequest], bool] | None = None if says_plan is None else lambda request: bool(says_plan)
    assert plan_of(made, hold=asked).must_hold(MAIL) is held


def test_who_is_asked_whether_to_hold_is_told_the_name_the_input_and_the_id() -> None:
    asked: list[ToolRequest] = []

    def ask(request: ToolRequest) -> bool:
        asked.append(request)
        return False

    assert plan_of(mail, hold=ask).must_hold(RequestedCall("7", "mail", {"to": "Ä"})) is False
    assert asked == [ToolRequest("mail", {"to": "Ä"}, "7")]


@pytest.mark.parametrize("given", [None, "here", Path("there")])
def test_a_workspace_is_what_was_given(given: Any) -> None:
    assert plan_of(workspace=given).workspace_of(RUN) == given


def test_a_workspace_can_depend_on_the_run() -> None:
    config = plan_of(workspace=lambda run: Path(run.id) if run.agent == "a" else None)
    assert config.workspace_of(RUN) == Path("r")
    assert config.workspace_of(replace(RUN, agent="b")) is None


def test_nobody_need_listen() -> None:
    plan_of().tell(Event("step", "r", 1))


@pytest.mark.parametrize("error", [ValueError("no"), Fenced("no"), KeyError()])
def test_what_a_listener_raises_is_logged_and_goes_no_further(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def listen(event: Event) -> None:
        raise error

    with caplog.at_level(logging.ERROR, "holdfast.loop"):
        plan_of(on_event=listen).tell(Event("reply", "r", 1))
    assert [each.message for each in caplog.records] == ["on_event raised for reply of run r"]


def test_a_listener_can_stop_the_process() -> None:
    def listen(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan_of(on_event=listen).tell(Event("reply", "r", 1))
