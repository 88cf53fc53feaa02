"""The checks of the simulation by themselves: each illegal change of the rows is refused, with an error that names it."""

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

RUN, SESSION = "run", "session"
KEY, LOG = ("acme", RUN), ("acme", SESSION)


def rows() -> Rows:
    """One run with one step of one message and one tool call, and an appended message."""
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
    """The requested writes that make these rows legal."""
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


def a_run_that_is_gone(now: Rows) -> None:
    now.runs = {}


def an_epoch_that_falls(now: Rows) -> None:
    now.runs[KEY] = now.runs[KEY]._replace(epoch=1)


def too_many_attempts(now: Rows) -> None:
    now.runs[KEY] = now.runs[KEY]._replace(attempts=6)


def a_step_that_changes(now: Rows) -> None:
    now.steps[KEY] = [now.steps[KEY][0]._replace(state="{}")]


def a_step_that_is_gone(now: Rows) -> None:
    now.steps[KEY] = []


def a_gap_in_the_steps(now: Rows) -> None:
    now.runs[KEY] = now.runs[KEY]._replace(iteration=3)
    now.steps[KEY].append(now.steps[KEY][0]._replace(iteration=3))


def a_stale_step(now: Rows) -> None:
    now.runs[KEY] = now.runs[KEY]._replace(iteration=2)
    now.steps[KEY].append(now.steps[KEY][0]._replace(iteration=2, epoch=1))


def a_step_that_nobody_asked_for(now: Rows) -> None:
    now.runs[KEY] = now.runs[KEY]._replace(iteration=2)
    now.steps[KEY].append(StepRow("acme", RUN, 2, 2, "{}", None, None, 0, 0))


def usage_that_does_not_add_up(now: Rows) -> None:
    now.runs[KEY] = now.runs[KEY]._replace(input_tokens=4)


def a_call_that_is_gone(now: Rows) -> None:
    now.calls[KEY] = {}


def a_call_that_is_finished_otherwise(now: Rows) -> None:
    now.calls[KEY]["c1"] = now.calls[KEY]["c1"]._replace(status="failed")


def a_call_begun_twice(now: Rows) -> None:
    now.calls[KEY]["c1"] = now.calls[KEY]["c1"]._replace(attempts=2)


def a_call_of_a_stale_epoch(now: Rows) -> None:
    now.calls[KEY]["c2"] = CallRow("acme", RUN, "c2", "idempotent", "begun", 1, 1, None, None)


def a_completed_run_with_open_calls(now: Rows) -> None:
    now.runs[KEY] = now.runs[KEY]._replace(status="completed")
    now.calls[KEY]["c2"] = CallRow("acme", RUN, "c2", "idempotent", "begun", 2, 1, None, None)


def a_message_that_is_gone(now: Rows) -> None:
    now.messages[LOG] = now.messages[LOG][:1]


def a_gap_in_the_log(now: Rows) -> None:
    now.messages[LOG].append(now.messages[LOG][0]._replace(seq=4, id="m4"))


def a_message_that_nobody_asked_for(now: Rows) -> None:
    now.messages[LOG].append(MessageRow("acme", SESSION, 3, "m3", "user", '[{"type":"text","text":"spam"}]', 0))


def a_wrong_count(now: Rows) -> None:
    now.messages[LOG].append(now.messages[LOG][0]._replace(seq=3, id="m3"))


def a_session_that_is_gone(now: Rows) -> None:
    now.sessions = {}


def an_agent_that_is_gone(now: Rows) -> None:
    now.agents = {}


def an_agent_that_changes_without_a_version(now: Rows) -> None:
    now.agents[("acme", "helper")] = ("Other", 3)


CHANGES: dict[Callable[[Rows], None], str] = {
    a_run_that_is_gone: "run run is gone",
    an_epoch_that_falls: "went back",
    too_many_attempts: "6 times in a row",
    a_step_that_changes: "has changed or is gone",
    a_step_that_is_gone: "has changed or is gone",
    a_gap_in_the_steps: r"has \[1, 3\]",
    a_stale_step: "epoch 1, stale since 2",
    a_step_that_nobody_asked_for: "is not one that was asked for",
    usage_that_does_not_add_up: "has used",
    a_call_that_is_gone: "gone from the ledger",
    a_call_that_is_finished_otherwise: "was finished and became failed",
    a_call_begun_twice: "was begun 2 times",
    a_call_of_a_stale_epoch: "intended by epoch 1, stale since 2",
    a_completed_run_with_open_calls: "completed and has open calls",
    a_message_that_is_gone: "has changed or is gone",
    a_gap_in_the_log: r"has gaps: \[1, 2, 4\]",
    a_message_that_nobody_asked_for: "is not one that was asked for",
    a_wrong_count: "counts wrong",
    a_session_that_is_gone: "session session is gone",
    an_agent_that_is_gone: "agent helper is gone",
    an_agent_that_changes_without_a_version: "at version 3 and is",
}


@pytest.mark.parametrize(("change", "said"), CHANGES.items(), ids=[change.__name__ for change in CHANGES])
def test_an_illegal_change_is_refused(change: Callable[[Rows], None], said: str) -> None:
    now = rows()
    change(now)
    with pytest.raises(Violation, match=said):
        check_change(rows(), now, attempts())


def test_a_step_without_all_of_its_messages_or_calls_is_refused() -> None:
    for change, output in ((without_message, "is not one that was asked for"), (without_end_of_call, "is not")):
        now = rows()
        change(now)
        with pytest.raises(Violation, match=output):
            check_change(Rows(), now, attempts())


def without_message(now: Rows) -> None:
    now.messages[LOG][1] = now.messages[LOG][1]._replace(content='[{"type":"text","text":"h"}]')


def without_end_of_call(now: Rows) -> None:
    now.calls[KEY]["c1"] = now.calls[KEY]["c1"]._replace(status="begun", step=None)


def test_a_decision_made_in_the_meantime_is_kept() -> None:
    asked, now = attempts(), rows()
    now.calls[KEY]["c1"] = now.calls[KEY]["c1"]._replace(status="cancelled", result=None)
    with pytest.raises(Violation):
        check_change(Rows(), now, asked)
    asked.add(call("tool_calls.cancel", run_id=RUN, id="c1"))
    check_change(Rows(), now, asked)


def test_logs_changed_by_untracked_calls_are_not_checked() -> None:
    asked, now = attempts(), rows()
    asked.add(call("compactions.compact", session_id=SESSION))
    a_message_that_nobody_asked_for(now)
    check_change(rows(), now, asked)


def test_a_list_must_be_the_whole_log_in_order() -> None:
    log = rows().messages[LOG]
    texts: list[Any] = [[{"type": "text", "text": "hello"}], [{"type": "text", "text": "hi"}]]
    check_list_result(log, [(1, "m1", texts[0]), (2, "m2", texts[1])], 2)
    for displayed, output in (
        ([(2, "m2", texts[1]), (1, "m1", texts[0])], "were listed in the order"),
        ([(1, "m1", texts[0])], "1 messages were listed"),
        ([(1, "m1", texts[1]), (2, "m2", texts[0])], "was listed as"),
    ):
        with pytest.raises(Violation, match=output):
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
    with pytest.raises(Violation, match="at_most_once and made again"):
        promises.perform((*KEY, "open"), 2)
    for before in range(2):
        assert promises.perform((*KEY, "again"), 2) == before
        promises.performed[(*KEY, "again")].append("sent")
    with pytest.raises(Violation, match="is made 3 times"):
        promises.perform((*KEY, "again"), 2)
    with pytest.raises(Violation, match="finished since epoch 1"):
        promises.perform((*KEY, "done"), 2)
    with pytest.raises(Violation, match="was not recorded before"):
        promises.perform((*KEY, "unknown"), 2)
    with pytest.raises(Violation, match="was not recorded before"):
        promises.perform((*KEY, "open"), 3)


def test_a_result_that_no_call_gave_is_refused() -> None:
    promises = Promises()
    promises.attempts = attempts()
    promises.performed[(*KEY, "c1")] = ["sent"]
    promises.see(rows())
    other = Promises()
    other.attempts = attempts()
    other.performed[(*KEY, "c1")] = ["something else"]
    with pytest.raises(Violation, match="which no call of it gave"):
        other.see(rows())


def test_answers_of_the_dead_are_lost_and_not_checked() -> None:
    promises = Promises()
    made = call("runs.start", session_id=SESSION)
    promises.begin(made)
    promises.lose("process", 2)
    assert made.outcome == "open"
    promises.lose("process", 1)
    assert made.outcome == "lost"
    promises.settle()


def test_calls_are_told_shortly() -> None:
    assert short("018bcfe5-6801-7b9d-b0c2-7c8eed4d43d6") == "..4d43d6"
    assert short("worker-1") == "worker-1"
    displayed = str(call("runs.step", run_id="018bcfe5-6801-7b9d-b0c2-7c8eed4d43d6", epoch=2, iteration=3, state={}))
    assert displayed == "runs.step run_id=..4d43d6 epoch=2 iteration=3"
