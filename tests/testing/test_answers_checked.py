"""The checks of a simulation: wrong answers are refused, and correct answers are accepted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Holdfast, NewMessage, NewToolCall, ToolOutcome
from holdfast.errors import NotFound
from holdfast.sync_runner import step
from holdfast.tenant_handles import AsyncTenantHandle
from holdfast.testing.sim import Violation
from holdfast.testing.sim.call_log import CallLog, MessageAttempt
from holdfast.testing.sim.observer import CallRow, MessageRow, Rows, RunRow, StepRow
from holdfast.testing.sim.promises import Promises
from holdfast.testing.sim.recorder import Outcome, RecordedCall, record_stores
from tests.errors import raises

RUN, SESSION = "run", "session"
KEY, LOG = ("acme", RUN), ("acme", SESSION)


def text(said: str) -> str:
    return f'[{{"type":"text","text":"{said}"}}]'


def rows() -> Rows:
    """Return the rows of a run at its first step, with one finished and one open call, and two messages."""
    made = Rows()
    made.runs = {KEY: RunRow("acme", RUN, SESSION, "running", 1, 2, 0, 5, None, None, 3, 4)}
    made.steps = {KEY: [StepRow("acme", RUN, 1, 2, '{"n":1}', 2, 2, 3, 4)]}
    made.calls = {
        KEY: {
            "done": CallRow("acme", RUN, "done", "at_most_once", "finished", 2, 1, 1, '"sent"'),
            "open": CallRow("acme", RUN, "open", "idempotent", "begun", 2, 1, None, None),
        }
    }
    made.messages = {
        LOG: [
            MessageRow("acme", SESSION, 1, "m1", "user", text("hello"), 0),
            MessageRow("acme", SESSION, 2, "m2", "assistant", text("hi"), 5),
        ]
    }
    made.agents = {("acme", "helper"): ("Helper", 3)}
    return made


def answered(
    method: str, result: Any, *, tenant: str = "acme", process: str = "p", now_us: int = 0, **given: Any
) -> RecordedCall:
    return RecordedCall(1, process, 1, tenant, method, given, "answered", result, now_us=now_us)


def settle(*calls: RecordedCall) -> None:
    """Check these answers, one after the other, against the rows."""
    promises = Promises()
    promises.rows = rows()
    for call in calls:
        promises.begin(call)
        promises.end(call)
        promises.settle()


def run(id: str = RUN, epoch: int = 2, iteration: int = 1) -> SimpleNamespace:
    return SimpleNamespace(id=id, epoch=epoch, iteration=iteration)


def loaded(iteration: int, step: Any, epoch: int = 2) -> SimpleNamespace:
    return SimpleNamespace(run=run(iteration=iteration, epoch=epoch), step=step)


def stepped(*places: int) -> SimpleNamespace:
    return SimpleNamespace(messages=[SimpleNamespace(seq=place) for place in places])


def step_call(result: Any, **given: Any) -> RecordedCall:
    return answered("runs.step", result, **{"run_id": RUN, "epoch": 2, "iteration": 1, "state": {"n": 1}, **given})


def pending(id: str, action: str, *, epoch: int = 2, status: str = "begun", safety: str = "idempotent") -> Any:
    return SimpleNamespace(call=SimpleNamespace(id=id, epoch=epoch, status=status, safety=safety), action=action)


def message(seq: int, id: str, said: str = "") -> SimpleNamespace:
    return SimpleNamespace(seq=seq, id=id, content=[{"type": "text", "text": said}])


STEP = SimpleNamespace(iteration=1, epoch=2, state={"n": 1})
HELPER = SimpleNamespace(id="helper", version=3)
CORRECT: dict[str, RecordedCall] = {
    "a run that is there": answered("runs.start", run()),
    "a step that is there": step_call(stepped(2)),
    "a step without messages": step_call(stepped()),
    "a load of an existing run": answered("runs.load", loaded(1, STEP), run_id=RUN),
    "a claim of nothing": answered("leases.claim", None),
    "a claim of an existing run": answered("leases.claim", run()),
    "a claim of any tenant": answered("run_queue.claim", SimpleNamespace(tenant="acme", run=run()), tenant=""),
    "an intended call": answered("tool_calls.intend", [], run_id=RUN, calls=[SimpleNamespace(id="open")]),
    "an open call that is offered": answered("tool_calls.pending", [pending("open", "run")], run_id=RUN),
    "a stale call that is reported": answered(
        "tool_calls.pending", [pending("x", "report", epoch=1, safety="at_most_once")], run_id=RUN
    ),
    "all messages": answered("messages.list", [message(1, "m1", "hello"), message(2, "m2", "hi")], session_id=SESSION),
    "some messages": answered("messages.list", [message(2, "m2", "hi")], session_id=SESSION, limit=1),
    "an appended message": answered("messages.append", message(2, "m2"), session_id=SESSION, content="hi"),
    "an agent": answered("agents.upsert", HELPER),
    "agents in order": answered("agents.list", [SimpleNamespace(id=id) for id in "abc"]),
    "agents in an order that was asked for": answered(
        "agents.list", [SimpleNamespace(id=id) for id in "ba"], order="x"
    ),
    "an unchecked method": answered("sessions.get", None, session_id=SESSION),
}


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_answer_is_accepted(name: str) -> None:
    settle(CORRECT[name])


WRONG: dict[str, tuple[RecordedCall, tuple[str, str]]] = {
    "a run that is not there": (answered("runs.start", run("other")), ("lost_run", "other")),
    "a run of another tenant": (answered("runs.start", run(), tenant="zenith"), ("lost_run", RUN)),
    "a step that is not there": (step_call(stepped(), iteration=2), ("lost_step", RUN)),
    "a step of another epoch": (step_call(stepped(), epoch=1), ("lost_step", RUN)),
    "a step with another state": (step_call(stepped(), state={"n": 2}), ("other_step", RUN)),
    "a step with messages elsewhere": (step_call(stepped(1, 2)), ("lost_messages", RUN)),
    "a last step after which it goes on": (step_call(stepped(2), stop_reason="end_turn"), ("wrong_status", RUN)),
    "a run that is not finished": (answered("runs.finish", None, run_id=RUN), ("wrong_status", RUN)),
    "a load of an older step": (
        answered("runs.load", loaded(0, None), run_id=RUN),
        ("stale_load", RUN),
    ),
    "a load of an older epoch": (answered("runs.load", loaded(1, STEP, epoch=1), run_id=RUN), ("stale_load", RUN)),
    "a load without its step": (answered("runs.load", loaded(1, None), run_id=RUN), ("wrong_load", RUN)),
    "a load with another step": (
        answered("runs.load", loaded(1, SimpleNamespace(iteration=1, epoch=2, state={})), run_id=RUN),
        ("other_step", RUN),
    ),
    "a claim that is not committed": (answered("leases.claim", run(epoch=3)), ("wrong_claim", RUN)),
    "a claim of a run that never was": (answered("leases.claim", run("other")), ("wrong_claim", "other")),
    "a call that was not recorded": (
        answered("tool_calls.intend", [], run_id=RUN, calls=[SimpleNamespace(id="c9")]),
        ("lost_call", "c9"),
    ),
    "a finished call": (
        answered("tool_calls.pending", [pending("done", "run")], run_id=RUN),
        ("finished_call_offered", "done"),
    ),
    "a call that may have happened": (
        answered("tool_calls.pending", [pending("x", "run", epoch=1, safety="at_most_once")], run_id=RUN),
        ("unsafe_call_offered", "x"),
    ),
    "a message that is missing": (
        answered("messages.list", [message(1, "m1", "hello")], session_id=SESSION),
        ("incomplete_list", ""),
    ),
    "another message": (
        answered("messages.list", [message(1, "m1", "hello"), message(2, "m9", "hi")], session_id=SESSION),
        ("wrong_list", ""),
    ),
    "a message that was not appended": (
        answered("messages.append", message(3, "m3"), session_id=SESSION, content="x"),
        ("lost_message", "m3"),
    ),
    "one of many messages elsewhere": (
        answered("messages.append_many", [message(1, "m1"), message(2, "m9")], session_id=SESSION, messages=[]),
        ("lost_message", "m9"),
    ),
    "an agent of a later version": (
        answered("agents.update", SimpleNamespace(id="helper", version=4)),
        ("stale_agent", "helper"),
    ),
    "an agent that is not there": (
        answered("agents.create", SimpleNamespace(id="new", version=1)),
        ("stale_agent", "new"),
    ),
    "agents out of order": (answered("agents.list", [SimpleNamespace(id=id) for id in "ba"]), ("wrong_order", "")),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_refused(name: str) -> None:
    call, expected = WRONG[name]
    with pytest.raises(Violation) as caught:
        settle(call)
    assert (caught.value.kind, caught.value.subject) == expected


def test_a_failed_or_lost_answer_is_not_checked() -> None:
    outcomes: tuple[Outcome, ...] = ("failed", "lost", "open")
    for outcome in outcomes:
        call, _ = WRONG["a run that is not there"]
        settle(RecordedCall(1, "p", 1, "acme", call.method, {}, outcome, call.result))


def test_two_claims_do_not_share_an_epoch() -> None:
    with raises(Violation, kind="epoch_shared", subject=RUN):
        settle(answered("leases.claim", run(), process="one"), answered("leases.claim", run(), process="two"))


def test_a_run_is_claimed_before_its_pause_ends_only_if_it_was_resumed() -> None:
    promises = Promises()
    promises.rows = rows()
    promises.rows.runs[KEY] = promises.rows.runs[KEY]._replace(status="paused", pause_until=1_000)
    promises.end(answered("leases.claim", run(epoch=3), now_us=1_000))
    early = answered("leases.claim", run(epoch=3), now_us=999)
    with raises(Violation, kind="claimed_too_early", subject=RUN):
        promises.end(early)
    promises.end(answered("leases.claim", run(epoch=2), now_us=0))  # an answer that came late
    promises.begin(answered("runs.resume", None, run_id=RUN))
    promises.end(early)


def test_an_agent_may_be_missing_after_a_delete_without_a_response() -> None:
    removed = answered("agents.create", SimpleNamespace(id="new", version=1))
    settle(answered("agents.delete", None, key=("new",)), removed)


# Requested writes


def test_a_message_is_identified_by_content_role_and_id() -> None:
    row = rows().messages[LOG][0]
    assert MessageAttempt(None, "user", "hello").is_at(row)
    assert MessageAttempt("m1", "user", [{"type": "text", "text": "hello"}]).is_at(row)
    others: list[tuple[str | None, str, Any]] = [
        ("m2", "user", "hello"),
        (None, "assistant", "hello"),
        (None, "user", "Hello"),
        (None, "user", []),
    ]
    for other in others:
        assert not MessageAttempt(*other).is_at(row)


def test_a_step_reports_its_calls_as_finished_failed_or_another_status() -> None:
    asked = CallLog()
    outcomes = [ToolOutcome(id="a"), ToolOutcome(id="b", error="no"), ToolOutcome(id="c", status="unknown", error="?")]
    asked.add(step_call(None, tool_calls=outcomes, messages=[NewMessage(role="user", content="x")]))
    (actual,) = asked.steps[KEY]
    assert actual.outcomes == {"a": "finished", "b": "failed", "c": "unknown"}
    assert (actual.input_tokens, actual.output_tokens, len(actual.messages)) == (0, 0, 1)


@pytest.mark.parametrize(
    ("method", "loose"),
    [
        ("messages.append", False),
        ("messages.list", False),
        ("messages.delete", True),
        ("branches.fork", True),
        ("branches.list", False),
        ("compactions.compact", True),
        ("sessions.update", False),
        ("sessions.delete", True),
        ("agents.upsert", False),
        ("runs.cancel", False),
    ],
)
def test_a_log_changed_by_an_untracked_call_is_not_checked(method: str, loose: bool) -> None:
    asked = CallLog()
    asked.add(answered(method, None, session_id=SESSION, content="x"))
    assert (asked.loose == {"acme"}) is loose


def test_intents_are_collected_per_run_and_tenant() -> None:
    asked = CallLog()
    for tenant, ids in (("acme", "ab"), ("acme", "bc"), ("zenith", "d")):
        calls = [NewToolCall(id=id, tool_name="mail") for id in ids]
        asked.add(answered("tool_calls.intend", None, tenant=tenant, run_id=RUN, calls=calls))
    assert asked.intents == {KEY: {"a", "b", "c"}, ("zenith", RUN): {"d"}}


# Recording


class Listening:
    def __init__(self) -> None:
        self.told: list[RecordedCall] = []
        self.ended: list[RecordedCall] = []

    def begin(self, tenant: str, method: str, arguments: Any) -> RecordedCall:
        self.told.append(RecordedCall(len(self.told), "p", 1, tenant, method, dict(arguments)))
        return self.told[-1]

    def end(self, call: RecordedCall) -> None:
        self.ended.append(call)


def test_every_call_is_recorded_with_its_named_arguments_and_outcome() -> None:
    listening = Listening()
    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        handle = AsyncTenantHandle(acme._engine, acme._scope)
        record_stores(handle, "acme", listening)
        made = step(handle.sessions.create(key="k"))
        with pytest.raises(NotFound):
            step(handle.sessions.get("00000000-0000-7000-8000-000000000000"))
        with pytest.raises(TypeError):
            step(handle.sessions.get())  # type: ignore[call-arg]
    first, second = listening.told
    assert (first.method, first.arguments, first.outcome, first.result) == (
        "sessions.create",
        {"key": "k"},
        "answered",
        made,
    )
    assert (second.outcome, second.error, second.reads, first.reads) == ("failed", "NotFound", True, False)
    assert listening.ended == listening.told
