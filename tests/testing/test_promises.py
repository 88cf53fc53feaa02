"""The checks of a simulation: each illegal change of the rows is refused with an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import NewMessage, ToolOutcome, Usage
from holdfast.testing.sim import Violation
from holdfast.testing.sim.call_log import CallLog
from holdfast.testing.sim.changes import check_change, check_list_result
from holdfast.testing.sim.observer import CallRow, MessageRow, Rows, RunRow, SessionRow, StepRow
from holdfast.testing.sim.promises import Promises
from holdfast.testing.sim.recorder import RecordedCall, short
from tests.errors import raises

RUN, SESSION = "run", "session"
KEY, LOG = ("acme", RUN), ("acme", SESSION)


def rows() -> Rows:
    """Return the rows of a run with one step of one message and one tool call, and an appended message."""
    made = Rows()
    made.runs = {KEY: RunRow("acme", RUN, SESSION, "running", 1, 2, 0, 5, None, None, 3, 4)}
    made.steps = {KEY: [StepRow("acme", RUN, 1, 1, '{"n":1}', 2, 2, 3, 4)]}
    made.calls = {KEY: {"c1": CallRow("acme", RUN, "c1", "at_most_once", "finished", 1, 1, 1, '"sent"')}}
    made.messages = {
        LOG: [
            MessageRow("acme", SESSION, 1, "m1", "user", '[{"type":"text","text":"hello"}]', 0),
            MessageRow("acme", SESSION, 2, "m2", "assistant", '[{"type":"text","text":"hi"}]', 5),
        ]
    }
    made.sessions = {LOG: SessionRow("acme", SESSION, 3, 2, 5)}
    made.agents = {("acme", "helper"): ("Helper", 3)}
    return made


def call(method: str, **arguments: Any) -> RecordedCall:
    return RecordedCall(1, "process", 1, "acme", method, arguments)


def attempts() -> CallLog:
    """Return the requested writes that make these rows legal."""
    made = CallLog()
    made.add(call("messages.append", session_id=SESSION, role="user", content="hello"))
    made.add(
        call(
            "runs.step",
            run_id=RUN,
            epoch=1,
            iteration=1,
            state={"n": 1},
            messages=[NewMessage(role="assistant", content="hi")],
            tool_calls=[ToolOutcome(id="c1", result="sent")],
            usage=Usage(input_tokens=3, output_tokens=4),
        )
    )
    return made


def test_requested_writes_may_be_committed() -> None:
    check_change(Rows(), rows(), attempts())
    check_change(rows(), rows(), attempts())


def remove_the_run(now: Rows) -> None:
    now.runs = {}


def lower_the_epoch(now: Rows) -> None:
    now.runs[KEY] = now.runs[KEY]._replace(epoch=1)


def exceed_the_attempts(now: Rows) -> None:
    now.runs[KEY] = now.runs[KEY]._replace(attempts=6)


def change_a_step(now: Rows) -> None:
    now.steps[KEY] = [now.steps[KEY][0]._replace(state="{}")]


def remove_the_steps(now: Rows) -> None:
    now.steps[KEY] = []


def leave_a_gap_in_the_steps(now: Rows) -> None:
    now.runs[KEY] = now.runs[KEY]._replace(iteration=3)
    now.steps[KEY].append(now.steps[KEY][0]._replace(iteration=3))


def add_a_stale_step(now: Rows) -> None:
    now.runs[KEY] = now.runs[KEY]._replace(iteration=2)
    now.steps[KEY].append(now.steps[KEY][0]._replace(iteration=2, epoch=1))


def add_an_unrequested_step(now: Rows) -> None:
    now.runs[KEY] = now.runs[KEY]._replace(iteration=2)
    now.steps[KEY].append(StepRow("acme", RUN, 2, 2, "{}", None, None, 0, 0))


def miscount_the_usage(now: Rows) -> None:
    now.runs[KEY] = now.runs[KEY]._replace(input_tokens=4)


def remove_the_calls(now: Rows) -> None:
    now.calls[KEY] = {}


def fail_a_finished_call(now: Rows) -> None:
    now.calls[KEY]["c1"] = now.calls[KEY]["c1"]._replace(status="failed")


def begin_a_call_twice(now: Rows) -> None:
    now.calls[KEY]["c1"] = now.calls[KEY]["c1"]._replace(attempts=2)


def add_a_call_of_a_stale_epoch(now: Rows) -> None:
    now.calls[KEY]["c2"] = CallRow("acme", RUN, "c2", "idempotent", "begun", 1, 1, None, None)


def complete_a_run_with_open_calls(now: Rows) -> None:
    now.runs[KEY] = now.runs[KEY]._replace(status="completed")
    now.calls[KEY]["c2"] = CallRow("acme", RUN, "c2", "idempotent", "begun", 2, 1, None, None)


def remove_a_message(now: Rows) -> None:
    now.messages[LOG] = now.messages[LOG][:1]


def leave_a_gap_in_the_log(now: Rows) -> None:
    now.messages[LOG].append(now.messages[LOG][0]._replace(seq=4, id="m4"))


def add_an_unrequested_message(now: Rows) -> None:
    now.messages[LOG].append(MessageRow("acme", SESSION, 3, "m3", "user", '[{"type":"text","text":"spam"}]', 0))


def miscount_the_messages(now: Rows) -> None:
    now.messages[LOG].append(now.messages[LOG][0]._replace(seq=3, id="m3"))


def remove_the_session(now: Rows) -> None:
    now.sessions = {}


def remove_the_agent(now: Rows) -> None:
    now.agents = {}


def change_an_agent_but_not_its_version(now: Rows) -> None:
    now.agents[("acme", "helper")] = ("Other", 3)


CHANGES: dict[Callable[[Rows], None], tuple[str, str]] = {
    remove_the_run: ("lost_run", RUN),
    lower_the_epoch: ("run_went_back", RUN),
    exceed_the_attempts: ("too_many_claims", RUN),
    change_a_step: ("step_changed", RUN),
    remove_the_steps: ("step_changed", RUN),
    leave_a_gap_in_the_steps: ("gap_in_steps", RUN),
    add_a_stale_step: ("stale_step", RUN),
    add_an_unrequested_step: ("unknown_step", RUN),
    miscount_the_usage: ("wrong_usage", RUN),
    remove_the_calls: ("lost_call", "c1"),
    fail_a_finished_call: ("ended_call_changed", "c1"),
    begin_a_call_twice: ("begun_again", "c1"),
    add_a_call_of_a_stale_epoch: ("stale_call", "c2"),
    complete_a_run_with_open_calls: ("open_calls", RUN),
    remove_a_message: ("message_changed", SESSION),
    leave_a_gap_in_the_log: ("gap_in_log", SESSION),
    add_an_unrequested_message: ("unknown_message", SESSION),
    miscount_the_messages: ("wrong_counts", SESSION),
    remove_the_session: ("lost_session", SESSION),
    remove_the_agent: ("lost_agent", "helper"),
    change_an_agent_but_not_its_version: ("agent_changed", "helper"),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.items(), ids=[change.__name__ for change in CHANGES])
def test_an_illegal_change_is_refused(change: Callable[[Rows], None], expected: tuple[str, str]) -> None:
    now = rows()
    change(now)
    with pytest.raises(Violation) as caught:
        check_change(rows(), now, attempts())
    assert (caught.value.kind, caught.value.subject) == expected


def test_a_step_without_all_of_its_messages_or_calls_is_refused() -> None:
    for change, kind in ((shorten_a_message, "unknown_step"), (reopen_a_call, "incomplete_step")):
        now = rows()
        change(now)
        with raises(Violation, kind=kind, subject=RUN):
            check_change(Rows(), now, attempts())


def shorten_a_message(now: Rows) -> None:
    now.messages[LOG][1] = now.messages[LOG][1]._replace(content='[{"type":"text","text":"h"}]')


def reopen_a_call(now: Rows) -> None:
    now.calls[KEY]["c1"] = now.calls[KEY]["c1"]._replace(status="begun", step=None)


def test_a_concurrent_decision_about_a_call_is_legal() -> None:
    asked, now = attempts(), rows()
    now.calls[KEY]["c1"] = now.calls[KEY]["c1"]._replace(status="cancelled", result=None)
    with pytest.raises(Violation):
        check_change(Rows(), now, asked)
    asked.add(call("tool_calls.cancel", run_id=RUN, id="c1"))
    check_change(Rows(), now, asked)


def test_logs_changed_by_untracked_calls_are_not_checked() -> None:
    asked, now = attempts(), rows()
    asked.add(call("compactions.compact", session_id=SESSION))
    add_an_unrequested_message(now)
    check_change(rows(), now, asked)


def test_a_list_must_be_the_whole_log_in_order() -> None:
    log = rows().messages[LOG]
    texts: list[Any] = [[{"type": "text", "text": "hello"}], [{"type": "text", "text": "hi"}]]
    check_list_result(log, [(1, "m1", texts[0]), (2, "m2", texts[1])], 2)
    for displayed, kind in (
        ([(2, "m2", texts[1]), (1, "m1", texts[0])], "wrong_order"),
        ([(1, "m1", texts[0])], "incomplete_list"),
        ([(1, "m1", texts[1]), (2, "m2", texts[0])], "wrong_list"),
    ):
        with raises(Violation, kind=kind):
            check_list_result(log, displayed, 2)


def test_a_tool_is_called_only_according_to_the_ledger() -> None:
    promises = Promises()
    promises.rows = rows()
    promises.rows.calls[KEY] = {
        "open": CallRow("acme", RUN, "open", "at_most_once", "begun", 2, 1, None, None),
        "again": CallRow("acme", RUN, "again", "idempotent", "begun", 2, 2, None, None),
        "done": CallRow("acme", RUN, "done", "idempotent", "finished", 2, 5, 1, None),
    }
    assert promises.perform((*KEY, "open"), 2) == 0
    promises.performed[(*KEY, "open")].append("sent")
    with raises(Violation, kind="tool_called_again", subject="open"):
        promises.perform((*KEY, "open"), 2)
    for before in range(2):
        assert promises.perform((*KEY, "again"), 2) == before
        promises.performed[(*KEY, "again")].append("sent")
    with raises(Violation, kind="tool_called_too_often", subject="again"):
        promises.perform((*KEY, "again"), 2)
    with raises(Violation, kind="tool_called_after_end", subject="done"):
        promises.perform((*KEY, "done"), 2)
    with raises(Violation, kind="tool_not_recorded", subject="unknown"):
        promises.perform((*KEY, "unknown"), 2)
    with raises(Violation, kind="tool_not_recorded", subject="open"):
        promises.perform((*KEY, "open"), 3)


def test_a_result_that_no_execution_returned_is_refused() -> None:
    promises = Promises()
    promises.attempts = attempts()
    promises.performed[(*KEY, "c1")] = ["sent"]
    promises.see(rows())
    other = Promises()
    other.attempts = attempts()
    other.performed[(*KEY, "c1")] = ["something else"]
    with raises(Violation, kind="foreign_result", subject="c1"):
        other.see(rows())


def test_answers_to_a_dead_process_are_not_checked() -> None:
    promises = Promises()
    made = call("runs.start", session_id=SESSION)
    promises.begin(made)
    promises.lose("process", 2)
    assert made.outcome == "open"
    promises.lose("process", 1)
    assert made.outcome == "lost"
    promises.settle()


def test_calls_are_displayed_with_short_ids() -> None:
    assert short("018bcfe5-6801-7b9d-b0c2-7c8eed4d43d6") == "..4d43d6"
    assert short("worker-1") == "worker-1"
    displayed = str(call("runs.step", run_id="018bcfe5-6801-7b9d-b0c2-7c8eed4d43d6", epoch=2, iteration=3, state={}))
    assert displayed == "runs.step run_id=..4d43d6 epoch=2 iteration=3"
