"""The plan for the calls of a reply, made by pure functions from the ledger."""

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
from tests.errors import raises

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
CLOSED: list[CallStatus] = [status for status in get_args(CallStatus) if status not in OPEN_STATUSES]
ENDED: list[Status] = ["completed", "failed", "cancelled"]
UNDER_WAY: list[Status] = ["pending", "running", "paused", "waiting"]


def silent(turn: object) -> str:
    return ""


def config_of(*tools: Tool, **options: Any) -> LoopConfig:
    return Loop(silent, tools=tools, **options).config


@tool
def mail() -> None:
    """A tool without a declared safety."""


def plan_one(call: ToolCall | None, child: Run | None = None, now: datetime | None = NOW) -> CallPlan:
    recorded = {} if call is None else {call.id: call}
    return plan_calls(config_of(mail), [MAIL], recorded, {} if child is None else {"c": child}, now=now)


def group_sizes(plan: CallPlan) -> dict[str, int]:
    """Return the size of each non-empty group."""
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
    return {name: len(getattr(plan, name)) for name in names if getattr(plan, name)}


# ----------------------------------------------------------------------------------------- unrecorded calls


def test_a_reply_without_calls_leaves_nothing_to_do() -> None:
    assert group_sizes(plan_calls(config_of(mail), [], {}, {}, now=NOW)) == {}


def test_an_unrecorded_call_is_made() -> None:
    assert plan_one(None).to_make == [MAIL]


def test_an_unrecorded_call_of_a_held_tool_is_held() -> None:
    held = tool(name="mail", hold=True)(lambda: None)
    plan = plan_calls(config_of(held), [MAIL], {}, {}, now=NOW)
    assert (plan.to_hold, plan.to_make) == ([MAIL], [])


def test_a_call_of_an_unknown_tool_is_made_so_that_the_model_gets_the_error() -> None:
    plan = plan_calls(config_of(hold=lambda request: True), [MAIL], {}, {}, now=NOW)
    assert (plan.to_hold, plan.to_make) == ([], [MAIL])


def test_no_call_is_held_once_the_reply_is_recorded() -> None:
    held = tool(name="mail", hold=True)(lambda: None)
    other = RequestedCall("other", "mail", {})
    recorded = {"c": replace(CALL, status="finished")}
    plan = plan_calls(config_of(held), [MAIL, other], recorded, {}, now=NOW)
    assert (plan.to_hold, plan.to_make) == ([], [other]), "holds are decided when the reply is recorded"


def test_calls_keep_their_requested_order() -> None:
    requests = [RequestedCall(f"c{number}", "mail", number) for number in (3, 1, 2)]
    assert plan_calls(config_of(mail), requests, {}, {}, now=NOW).to_make == requests


# --------------------------------------------------------------------------------------------------- recorded outcomes


@pytest.mark.parametrize("status", CLOSED)
def test_a_recorded_outcome_is_used_and_not_recorded_again(status: CallStatus) -> None:
    plan = plan_one(replace(CALL, status=status, result={"n": 1}, error="why"))
    assert plan.outcomes == {"c": ToolOutcome(id="c", result={"n": 1}, error="why", status=status)}  # type: ignore[arg-type]
    assert plan.new_outcomes() == []
    assert group_sizes(plan) == {"outcomes": 1, "recorded_ids": 1}


@pytest.mark.parametrize("status", CLOSED)
def test_a_recorded_outcome_takes_precedence_over_a_child_run(status: CallStatus) -> None:
    plan = plan_one(replace(CALL, status=status), replace(RUN, id="child", status="completed"))
    assert group_sizes(plan) == {"outcomes": 1, "recorded_ids": 1}


@pytest.mark.parametrize("status", sorted(OPEN_STATUSES))
def test_an_open_call_has_no_outcome(status: CallStatus) -> None:
    with raises(Conflict, reason="status") as refused:
        CallPlan().take_outcome("r", replace(CALL, status=status))
    assert "'c'" in str(refused.value)
    assert status in str(refused.value)


def test_the_loop_and_the_ledger_have_the_same_open_statuses() -> None:
    assert OPEN_STATUSES == ledger.OPEN_STATUSES


def test_new_outcomes_are_those_that_the_ledger_lacks() -> None:
    plan = CallPlan()
    plan.take_outcome("r", replace(CALL, status="failed", error="no"))
    new = ToolOutcome(id="new", result=1, status="finished")
    plan.outcomes["new"] = new
    assert plan.new_outcomes() == [new]


# ------------------------------------------------------------------------------------- interrupted calls


@pytest.mark.parametrize(
    ("safety", "pile"), [("idempotent", "to_make"), ("ask", "awaiting_people"), ("at_most_once", "outcomes")]
)
def test_an_interrupted_call_is_grouped_by_its_safety(safety: Safety, pile: str) -> None:
    assert group_sizes(plan_one(replace(CALL, safety=safety))) == {pile: 1}


def test_an_unknown_outcome_is_a_new_outcome_with_an_explanation() -> None:
    plan = plan_one(CALL)
    assert plan.new_outcomes() == [ToolOutcome(id="c", status="unknown", error=UNKNOWN)]


@pytest.mark.parametrize("safety", get_args(Safety))
def test_a_held_call_waits_for_approval_at_any_safety(safety: Safety) -> None:
    assert group_sizes(plan_one(replace(CALL, status="held", safety=safety))) == {"awaiting_people": 1}


@pytest.mark.parametrize("safety", get_args(Safety))
def test_an_approved_call_is_executed_at_any_safety(safety: Safety) -> None:
    assert group_sizes(plan_one(replace(CALL, status="ready", safety=safety))) == {"to_make": 1}


@pytest.mark.parametrize(
    ("after_s", "pile"),
    [(-1.0, "to_make"), (0.0, "to_make"), (0.000001, "wake_times"), (3_600.0, "wake_times")],
    ids=["past", "now", "a microsecond", "an hour"],
)
def test_a_snoozed_call_is_made_from_its_time_on(after_s: float, pile: str) -> None:
    until = NOW + timedelta(seconds=after_s)
    plan = plan_one(replace(CALL, status="ready", pause_until=until))
    assert group_sizes(plan) == {pile: 1}
    assert plan.wake_times == ([until] if pile == "wake_times" else [])


def test_without_a_clock_a_snoozed_call_is_made() -> None:
    later = replace(CALL, status="ready", pause_until=NOW + timedelta(days=1))
    assert group_sizes(plan_one(later, now=None)) == {"to_make": 1}


# ------------------------------------------------------------------------------------------------------ child runs


@pytest.mark.parametrize("status", ENDED)
def test_an_ended_child_run_answers_the_call(status: Status) -> None:
    child = replace(RUN, id="child", status=status)
    assert plan_one(CALL, child).ended_children == [("c", child)]


@pytest.mark.parametrize("status", UNDER_WAY)
def test_an_open_child_run_is_awaited(status: Status) -> None:
    plan = plan_one(CALL, replace(RUN, id="child", status=status))
    assert (plan.open_children, plan.ended_children, plan.outcomes) == (["child"], [], {})


def test_every_run_status_is_ended_or_open() -> None:
    assert {*ENDED, *UNDER_WAY} == {*get_args(Status)}


@pytest.mark.parametrize("status", sorted(OPEN_STATUSES))
def test_a_call_of_an_open_child_run_is_never_made(status: CallStatus) -> None:
    plan = plan_one(replace(CALL, status=status, safety="idempotent"), replace(RUN, id="child", status="paused"))
    assert group_sizes(plan) == {"open_children": 1}


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
def test_every_call_is_in_exactly_one_group(calls: list[tuple[ToolCall | None, Run | None]]) -> None:
    requests = [RequestedCall(f"c{number}", "mail", {}) for number in range(len(calls))]
    recorded = {
        f"c{number}": replace(call, id=f"c{number}") for number, (call, _) in enumerate(calls) if call is not None
    }
    children = {f"c{number}": child for number, (_, child) in enumerate(calls) if child is not None}
    plan = plan_calls(config_of(mail), requests, recorded, children, now=NOW)
    sizes = group_sizes(plan)
    assert sizes.pop("recorded_ids", 0) == sum(call.status not in OPEN_STATUSES for call in recorded.values())
    assert sum(sizes.values()) == len(calls)


# ------------------------------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("by_tool", "by_loop", "held"),
    [(False, None, False), (True, None, True), (False, True, True), (True, False, True), (False, False, False)],
)
def test_a_call_is_held_if_the_tool_or_the_loop_requires_it(by_tool: bool, by_loop: bool | None, held: bool) -> None:
    mail_tool = tool(name="mail", hold=by_tool)(lambda: None)
    hold: Callable[[ToolRequest], bool] | None = None if by_loop is None else lambda request: bool(by_loop)
    assert config_of(mail_tool, hold=hold).must_hold(MAIL) is held


def test_the_hold_callback_gets_the_name_the_input_and_the_id() -> None:
    requests: list[ToolRequest] = []

    def ask(request: ToolRequest) -> bool:
        requests.append(request)
        return False

    assert config_of(mail, hold=ask).must_hold(RequestedCall("7", "mail", {"to": "Ä"})) is False
    assert requests == [ToolRequest("mail", {"to": "Ä"}, "7")]


@pytest.mark.parametrize("path", [None, "here", Path("there")])
def test_a_workspace_can_be_a_path(path: Any) -> None:
    assert config_of(workspace=path).workspace_of(RUN) == path


def test_a_workspace_can_depend_on_the_run() -> None:
    config = config_of(workspace=lambda run: Path(run.id) if run.agent == "a" else None)
    assert config.workspace_of(RUN) == Path("r")
    assert config.workspace_of(replace(RUN, agent="b")) is None


def test_a_listener_is_optional() -> None:
    config_of().tell(Event("step", "r", 1))


@pytest.mark.parametrize("error", [ValueError("no"), Fenced("no"), KeyError()])
def test_an_error_of_a_listener_is_only_logged(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def listen(event: Event) -> None:
        raise error

    with caplog.at_level(logging.ERROR, "holdfast.loop"):
        config_of(on_event=listen).tell(Event("reply", "r", 1))
    assert [record.message for record in caplog.records] == ["on_event raised for reply of run r"]


def test_a_listener_can_stop_the_process() -> None:
    def listen(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        config_of(on_event=listen).tell(Event("reply", "r", 1))
