"""Runs, leases and tool calls on SQLite and on PostgreSQL, compared with a plain model by a state machine."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from holdfast import FixedClock, Holdfast, Limits, NewMessage, NewToolCall, PoolOptions, ToolOutcome, Usage
from holdfast.clock import from_us
from holdfast.errors import HoldfastError
from holdfast.types import CommittedStep, LoadedRun, Run
from tests.contract.cases.values import same
from tests.contract.cases.world import uuid_of
from tests.differential.run_model import RunModel
from tests.differential.sides import shape

LIMITS = Limits(open_tool_calls=4, run_depth=2, lease_ms=60_000)
SESSIONS = [uuid_of("one"), uuid_of("two")]
RUNS = [uuid_of(f"run {number}") for number in range(8)]
CALLS = ["a", "b", "c"]
NUMBER = st.integers(0, 1_000)
TTLS = st.sampled_from([1, 1_000, 10_000, 60_000])
WORDS = {
    **dict.fromkeys(("start", "get", "load", "step", "pause", "finish", "fail", "resume", "cancel", "list"), "runs"),
    **dict.fromkeys(("claim", "renew", "release"), "leases"),
    **dict.fromkeys(("intend", "pending", "snooze", "allow", "end"), "tool_calls"),
}
"""The methods of the model, with their stores."""
ANSWERED: Counter[str] = Counter()
"""How often each method succeeded."""


class Side:
    """An engine with the methods of the model."""

    def __init__(self, url: str, clock: FixedClock) -> None:
        pool = PoolOptions(min_connections=1, max_connections=2)
        self._opened = Holdfast(url, clock=clock, limits=LIMITS, pool=pool)
        self._acme = self._opened.tenant("acme")
        for session in SESSIONS:
            self._acme.sessions.create(id=session)

    def close(self) -> None:
        self._opened.close()

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "end":
            return self._end(*args, **kwargs)
        return getattr(getattr(self._acme, WORDS[name]), name)(*args, **kwargs)

    def log(self, session: str) -> Any:
        return [message.content[0]["text"] for message in self._acme.messages.list(session)]

    def _end(self, run_id: str, id: str, status: str) -> Any:
        ended = self._acme.tool_calls.cancel if status == "cancelled" else self._acme.tool_calls.discard
        return ended(run_id, id)


class Machine(RuleBasedStateMachine):
    """Runs of one tenant that are claimed, taken over, paused and ended in random order."""

    def __init__(self, *urls: str) -> None:
        super().__init__()
        self.clock = FixedClock()
        self.model = RunModel(self.clock, LIMITS)
        self.sides = [Side(url, self.clock) for url in urls]
        self.last: dict[str, Any] | None = None
        self.differed = False
        self.move_in()

    def move_in(self) -> None:
        """Create some rows, so that the first calls find data."""
        for run in RUNS[:3]:
            self.call("start", SESSIONS[0], id=run, max_attempts=2)
        for safety in ("idempotent", "ask"):
            run = self.call("claim", "first", ttl_ms=10_000)
            calls = [NewToolCall(id=id, tool_name=id, tool_input=0, safety=safety, hold=id == "a") for id in CALLS]  # type: ignore[arg-type]
            self.call("intend", run.id, epoch=run.epoch, calls=calls)

    def teardown(self) -> None:
        try:
            if not self.differed:
                self.call("list")
                for session in SESSIONS:
                    for side in self.sides:
                        assert side.log(session) == self.model.log.get(session, [])
        finally:
            for side in self.sides:
                side.close()

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        answer = self.compare(name, *args, **kwargs)
        if not isinstance(answer, Exception):
            ANSWERED[name] += 1
        return answer

    def compare(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.differed = True
        expected = outcome(getattr(self.model, name), *args, **kwargs)
        for side in self.sides:
            found = outcome(side.call, name, *args, **kwargs)
            what = f"{name} {args!r} {kwargs!r}\nmodel:  {told(expected)}\nengine: {told(found)}"
            assert same(told(found), told(expected)), what
        self.differed = False
        return expected

    def run_of(self, number: int) -> Run:
        """Return a run, usually one with a lease."""
        runs = sorted(self.model.runs.values(), key=lambda run: (run.status != "running", run.id))
        return runs[number % len(runs) if number % 3 == 0 else number % max(1, self.held())]

    def held(self) -> int:
        return sum(run.status == "running" for run in self.model.runs.values())

    def epoch_of(self, run: Run, number: int) -> int:
        """Return usually the current epoch."""
        return max(0, run.epoch + {7: -1, 8: 1}.get(number % 11, 0))

    @rule(seconds=st.sampled_from([0.0005, 0.001, 0.5, 1, 5, 15, 30, 59, 61, 3_600, -1, -30, -86_400]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(number=NUMBER, session=st.sampled_from(SESSIONS), below=st.booleans(), attempts=st.integers(1, 3))
    def start(self, number: int, session: str, below: bool, attempts: int) -> None:
        parent = self.run_of(number).id if below else None
        self.call("start", session, id=RUNS[number % len(RUNS)], parent=parent, max_attempts=attempts)

    @rule(ttl_ms=TTLS)
    def claim(self, ttl_ms: int) -> None:
        self.call("claim", "any", ttl_ms=ttl_ms)

    @rule(number=NUMBER, ttl_ms=TTLS)
    def claim_one(self, number: int, ttl_ms: int) -> None:
        run = uuid_of("unknown") if number % 13 == 12 else RUNS[number % len(RUNS)]
        self.call("claim", "one", ttl_ms=ttl_ms, run_id=run)

    @rule(number=NUMBER, ttl_ms=st.none() | TTLS)
    def renew(self, number: int, ttl_ms: int | None) -> None:
        run = self.run_of(number)
        self.call("renew", run.id, epoch=self.epoch_of(run, number), ttl_ms=ttl_ms)

    @rule(number=NUMBER)
    def release(self, number: int) -> None:
        run = self.run_of(number)
        self.call("release", run.id, epoch=self.epoch_of(run, number))

    @rule(
        number=NUMBER,
        state=st.sampled_from([None, 1, 1.0, True, {"a": [1]}]),
        texts=st.lists(st.sampled_from(["hi", "ho"]), max_size=3),
        outcomes=st.lists(st.sampled_from(CALLS), max_size=2, unique=True),
        result=st.sampled_from([None, 1, {"ok": True}]),
        ends=st.sampled_from([None, None, None, "stop", "pause"]),
    )
    def step(
        self, number: int, state: Any, texts: list[str], outcomes: list[str], result: Any, ends: str | None
    ) -> None:
        run = self.run_of(number)
        existing = self.model.calls[run.id]
        done = [id for id in outcomes if number % 5 == 4 or (id in existing and existing[id].step is None)]
        self.last = {
            "run_id": run.id,
            "epoch": self.epoch_of(run, number),
            "iteration": max(1, run.iteration + 1 + {9: -1, 10: 1}.get(number % 12, 0)),
            "state": state,
            "messages": [NewMessage(role="user", content=text, token_count=2) for text in texts],
            "tool_calls": [ToolOutcome(id=id, result=result, error="e" if number % 2 else None) for id in done],
            "usage": Usage(input_tokens=number % 3, output_tokens=1),
            "stop_reason": "end_turn" if ends == "stop" else None,
            "pause_until": from_us(self.clock.now_us()) + timedelta(seconds=20) if ends == "pause" else None,
        }
        self.call("step", **self.last)

    @rule(change=st.sampled_from([None, None, "state", "epoch"]))
    def step_again(self, change: str | None) -> None:
        """Repeat a call whose response was lost, or make it with wrong arguments."""
        if self.last is not None:
            changed = {} if change is None else {change: 99}
            self.call("step", **{**self.last, **changed})

    @rule(number=NUMBER, seconds=st.sampled_from([None, -5, 0, 10, 100]))
    def pause(self, number: int, seconds: int | None) -> None:
        run = self.run_of(number)
        until = None if seconds is None else from_us(self.clock.now_us()) + timedelta(seconds=seconds)
        self.call("pause", run.id, epoch=self.epoch_of(run, number), until=until)
        self.call("pause", run.id, epoch=self.epoch_of(run, number), until=until)

    @rule(number=NUMBER, what=st.sampled_from(["finish", "fail"]))
    def end(self, number: int, what: str) -> None:
        run = self.run_of(number)
        how = {"stop_reason": "end_turn"} if what == "finish" else {"error": "broke"}
        self.call(what, run.id, epoch=self.epoch_of(run, number), **how)

    @rule()
    def finish_what_is_held(self) -> None:
        """Complete a run, because few do by chance."""
        held = [run for run in self.model.runs.values() if run.status == "running"]
        if held:
            self.call("finish", held[0].id, epoch=held[0].epoch, stop_reason="end_turn")

    @rule(number=NUMBER)
    def resume(self, number: int) -> None:
        self.call("resume", RUNS[number % len(RUNS)])

    @rule(number=NUMBER, reason=st.sampled_from([None, "enough"]))
    def cancel(self, number: int, reason: str | None) -> None:
        if number % 3 == 0:  # rarely, so that rows remain
            self.call("cancel", RUNS[number % len(RUNS)], reason=reason)

    @rule(
        number=NUMBER,
        ids=st.lists(st.sampled_from([*CALLS, "d", "e"]), min_size=1, max_size=3, unique=True),
        safety=st.sampled_from(["idempotent", "at_most_once", "ask"]),
        hold=st.booleans(),
    )
    def intend(self, number: int, ids: list[str], safety: Any, hold: bool) -> None:
        run = self.run_of(number)
        calls = [NewToolCall(id=id, tool_name=id, tool_input=number % 2, safety=safety, hold=hold) for id in ids]
        self.call("intend", run.id, epoch=self.epoch_of(run, number), calls=calls)
        self.call("intend", run.id, epoch=self.epoch_of(run, number), calls=calls)

    @rule(number=NUMBER)
    def intend_again(self, number: int) -> None:
        """Load a run, as after a crash."""
        run = self.run_of(number)
        existing = list(self.model.calls[run.id].values())
        if existing:
            call = existing[number % len(existing)]
            again = NewToolCall(id=call.id, tool_name=call.tool_name, tool_input=call.tool_input, safety=call.safety)
            self.call("intend", run.id, epoch=self.epoch_of(run, number), calls=[again])

    @rule(number=NUMBER, id=st.sampled_from(CALLS), what=st.sampled_from(["snooze", "allow", "cancelled", "discarded"]))
    def decide(self, number: int, id: str, what: str) -> None:
        """Act on a tool call, usually on an open one."""
        run = self.run_of(number)
        existing = [call for calls in self.model.calls.values() for call in calls.values() if call.step is None]
        if existing and number % 4:
            run, id = self.model.runs[existing[number % len(existing)].run_id], existing[number % len(existing)].id
        if what == "snooze":
            until = from_us(self.clock.now_us()) + timedelta(seconds=number % 7)
            self.call("snooze", run.id, id, epoch=self.epoch_of(run, number), until=until)
        elif what == "allow":
            self.call("allow", run.id, id)
        else:
            self.call("end", run.id, id, what)

    @rule(number=NUMBER)
    def look(self, number: int) -> None:
        run = self.run_of(number)
        self.call("load", run.id)
        self.call("pending", run.id)
        self.call("get", run.id)

    @invariant()
    def a_run_is_what_its_status_says(self) -> None:
        for run in self.model.runs.values():
            assert (run.lease_until is not None) == (run.status == "running") == (run.holder != "")
            assert (run.finished_at is not None) == (run.status in ("completed", "failed", "cancelled"))
            assert run.iteration == len(self.model.steps[run.id])


def outcome(call: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return call(*args, **kwargs)
    except HoldfastError as error:
        return error


def told(answer: Any) -> Any:
    """Return a result in the format of the model."""
    if isinstance(answer, CommittedStep):
        answer = (answer.step, [(message.seq, message.content[0]["text"]) for message in answer.messages])
    if isinstance(answer, LoadedRun):
        answer = (answer.run, answer.step, answer.tool_calls)
    if isinstance(answer, tuple):
        return [shape(list(item) if isinstance(item, list) else item) for item in answer]
    return shape(list(answer) if isinstance(answer, list) else answer)


def _run(*urls: str, **effort: int) -> None:
    bounds = settings(deadline=None, suppress_health_check=[*HealthCheck], **effort)  # type: ignore[arg-type]

    def machine() -> Machine:
        for url in urls:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("TRUNCATE tenants, sessions, run_queue CASCADE")
        return Machine(":memory:", *urls)

    run_state_machine_as_test(machine, settings=bounds)


def test_runs_on_sqlite_equal_the_model() -> None:
    _run(max_examples=150, stateful_step_count=50)
    seldom = [name for name in WORDS if not ANSWERED[name]]
    assert not seldom, f"the machine proves nothing about {seldom}: {ANSWERED}"


@pytest.mark.leg("model, sqlite and postgres together")
def test_runs_on_both_engines_equal_the_model(postgres_url: str) -> None:
    _run(postgres_url, max_examples=15, stateful_step_count=40)


@pytest.mark.soak
@pytest.mark.leg("model, sqlite and postgres together")
@pytest.mark.timeout(7_200)
def test_runs_on_both_engines_equal_the_model_for_a_long_time(postgres_url: str) -> None:
    _run(postgres_url, max_examples=1_500, stateful_step_count=100)
