"""The loop's logic without any input or output: a generator that yields commands and receives their results.

::

    claim -> load -> [ build context -> ask the model -> record intents -> call tools -> commit the step ] -> ... -> end
                       ^                                                                              |
                       +------------------------------------------------------------------------------+

An iteration makes two durable commits: the *intent* before its tools are called, and the *step* with all results; without
tools, only the step. A process that dies in between leaves one of two situations:

* There is no intent. Nothing visible happened: the iteration starts again from scratch and the model is asked again.
* There is an intent. It contains the model's whole reply as its first row (``REPLY``), beside the calls. The reply is read from
  there and the model is not asked a second time: its answer might differ, and then calls that may have happened would appear in
  no conversation. The calls continue from their status in the ledger.

The reply is kept in the ledger and not in the session's log, because the log must never show a call without its result, and
other readers and writers of the session must not see half of an iteration.

Some calls cannot be answered immediately: they wait for a person, are snoozed, or are answered by a child run. Then the
outcomes of the other calls are committed in a step of their own, without messages, and the run is paused; the reply stays in
the ledger until all calls are answered.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET

from holdfast import ToolOutcome, Usage
from holdfast.errors import Conflict, Fenced, HoldfastError, InvalidInput, NotFound
from holdfast.types import CaptureResult, CommittedStep, LoadedRun, Run, ToolCall

from . import child_runs, intents
from . import commands as do
from .call_plan import CallPlan, plan_calls
from .commands import CommandGenerator
from .config import LoopConfig, StepProgress
from .events import BegunCall, Ending, EndStatus, Event, EventKind, ModelFailure
from .intents import PendingReply
from .messages import messages_of, text_of
from .model_turns import build_turn
from .pending_rewinds import finish_pending_rewind
from .replies import RequestedCall, normalize_reply
from .tools import CallAnswer, Completed, Failed, Snoozed, TimedOut, truncate_error

_BEFORE_THE_STEP = frozenset({"asking", "reply", "calling", "called"})
"""Events that belong to the step that is not committed yet."""
MAX_CHANGES = 10
"""How often people may change calls of one reply between planning and recording them."""


class CallsChanged(Exception):
    """A person changed a call that was about to be made."""


def claim_and_drive(config: LoopConfig, run_id: str, *, holder: str, ttl_ms: int) -> CommandGenerator[Ending]:
    """Claim a run and drive it until it ends, pauses, waits or is fenced."""
    run = yield do.ClaimRun(run_id, holder, ttl_ms)
    if run is not None:
        return (yield from drive(config, run))
    run = yield do.GetRun(run_id)
    status: EndStatus = "busy" if run.status in ("pending", "running") else run.status
    return Ending(status, run.id, run.iteration, run.stop_reason, run.error, run.pause_until)


def drive(config: LoopConfig, run: Run) -> CommandGenerator[Ending]:
    """Drive a claimed run until it ends, pauses, waits or is fenced."""
    driver = RunDriver(config, run)
    try:
        try:
            ending = yield from driver.iterate()
        except Fenced:
            raise
        except (InvalidInput, Conflict) as error:
            # The next process could not store it either.
            ending = yield from driver.fail(f"{type(error).__name__}: {error}")
        except HoldfastError:
            raise
        except Exception as error:  # raised by a callback of the loop
            ending = yield from driver.fail(f"{type(error).__name__}: {error}")
    except Fenced as error:
        current = yield do.GetRun(run.id)
        status: EndStatus = "cancelled" if current.status == "cancelled" else "fenced"
        ending = Ending(status, run.id, current.iteration, current.stop_reason, current.error or str(error))
    yield from driver.tell("ended", ending)
    return ending


class RunDriver:
    """One run that is driven by this process: its state, iteration and usage."""

    def __init__(self, config: LoopConfig, run: Run) -> None:
        self.config, self.run, self.epoch = config, run, run.epoch
        self.iteration, self.state = run.iteration, config.first_state
        self.usage = _usage(run)
        self.last_text = ""
        self.path: str | os.PathLike[str] | None = None
        self.snapshot: str | None = None

    def iterate(self) -> CommandGenerator[Ending]:
        """Run iterations from the last step or intent on."""
        self.path = self.config.workspace_of(self.run)
        obstacle = yield from finish_pending_rewind(self.run, self.path)
        if obstacle is not None:
            return self._ending("waiting", error=obstacle)
        loaded: LoadedRun = yield do.LoadRun(self.run.id)
        if loaded.run.epoch != self.epoch:
            raise Fenced(f"run {self.run.id} was claimed by another process while it was loaded")
        self.iteration, self.usage = loaded.run.iteration, _usage(loaded.run)
        if loaded.step is not None:
            self.state, self.snapshot = loaded.step.state, loaded.step.snapshot
        if self.path is not None and self.iteration == 0:
            yield from self._first_capture()
        pending: PendingReply | Ending | None = yield from intents.load_pending(
            self.run.id, self.iteration, loaded.tool_calls
        )
        while True:
            if pending is None:
                pending = yield from self._ask()
            ending = pending if isinstance(pending, Ending) else (yield from self._carry_out(pending))
            if ending is not None:
                return ending
            if not (yield do.ShouldContinue()):
                yield do.ReleaseRun(self.run.id, self.epoch)
                return self._ending("released")
            pending = None

    def tell(self, kind: EventKind, data: Any = None) -> CommandGenerator[None]:
        """Emit an event if the loop has a listener."""
        if self.config.on_event is not None:
            iteration = self.iteration + (kind in _BEFORE_THE_STEP)
            yield do.EmitEvent(Event(kind, self.run.id, iteration, data))

    def fail(self, error: str) -> CommandGenerator[Ending]:
        """End the run as failed."""
        error = truncate_error(error)
        yield do.FailRun(self.run.id, self.epoch, error)
        yield from child_runs.wake_parent(self.run)
        return self._ending("failed", stop_reason="error", error=error)

    def _ask(self) -> CommandGenerator[PendingReply | Ending]:
        exhausted = self.config.exhausted_limit(self.iteration, self.usage)
        if exhausted is not None:
            yield do.FinishRun(self.run.id, self.epoch, exhausted)
            yield from child_runs.wake_parent(self.run)
            return self._ending("completed", stop_reason=exhausted)
        turn = yield from build_turn(self.config, self.run, self.iteration + 1, self.state)
        failures = 0
        while True:
            yield from self.tell("asking", turn)
            answer = yield do.AskModel(turn)
            if not isinstance(answer, ModelFailure):
                reply = normalize_reply(answer, turn.iteration)
                yield from self.tell("reply", reply)
                return PendingReply(reply)
            failures += 1
            delay = None if self.config.retry is None else self.config.retry(answer.error, failures)
            if delay is None:
                return (yield from self.fail(f"the model raised {type(answer.error).__name__}: {answer.error}"))
            yield do.Sleep(delay)

    def _carry_out(self, pending: PendingReply) -> CommandGenerator[Ending | None]:
        """Carry out a reply, and start over each time a person changes its calls."""
        for _ in range(MAX_CHANGES):
            try:
                return (yield from self._try_carry_out(pending))
            except CallsChanged:
                loaded: LoadedRun = yield do.LoadRun(self.run.id)
                reloaded = yield from intents.load_pending(self.run.id, self.iteration, loaded.tool_calls)
                if reloaded is None:
                    raise Conflict(
                        f"the pending reply of run {self.run.id} is no longer in the ledger", reason="changed"
                    ) from None
                pending = reloaded
        raise Conflict(
            f"the calls of run {self.run.id} were changed {MAX_CHANGES} times while they were about to be made",
            reason="changed",
        )

    def _try_carry_out(self, pending: PendingReply) -> CommandGenerator[Ending | None]:
        """Make the calls of a reply and commit the step; ``None`` means that the run continues."""
        self.last_text = pending.reply.text
        requests = pending.reply.requests
        if not requests:
            return (yield from self._step(pending, {}, None))
        now = (yield do.Now()) if any(call.pause_until for call in pending.calls.values()) else None
        plan = plan_calls(self.config, requests, pending.calls, pending.children, now=now)
        if pending.record is None and plan.to_hold:
            yield from self._record_intents(pending, plan.to_hold, hold=True)
        if plan.to_hold or plan.awaiting_people:
            return (yield from self._wait_for_people([*plan.to_hold, *plan.awaiting_people]))
        for call_id, child in plan.ended_children:
            plan.outcomes[call_id] = yield from child_runs.outcome_of(call_id, child)
        pause_s = yield from self._make_calls(pending, plan)
        if plan.wake_times or plan.open_children:
            return (yield from self._interim(plan))
        return (yield from self._step(pending, plan.outcomes, pause_s))

    def _record_intents(
        self, pending: PendingReply, requests: Sequence[RequestedCall], *, hold: bool = False
    ) -> CommandGenerator[list[ToolCall]]:
        iteration = self.iteration + 1
        return intents.record_intents(self.config, self.run, iteration, pending, requests, hold=hold)

    def _make_calls(self, pending: PendingReply, plan: CallPlan) -> CommandGenerator[float | None]:
        """Make the calls that can be made now, and return the seconds that a tool wants the run to pause afterwards."""
        if not plan.to_make:
            return None
        try:
            recorded = yield from self._record_intents(pending, plan.to_make)
        except Fenced:
            raise
        except Conflict:
            if pending.record is None:
                raise
            raise CallsChanged from None
        begun = [BegunCall(call.id, call.tool_name, call.tool_input, call.attempts) for call in recorded]
        yield from self.tell("calling", begun)
        answers: Sequence[CallAnswer] = yield do.CallTools(begun)
        yield from self.tell("called", answers)
        for call, answer in zip(begun, answers, strict=True):
            yield from self._take_answer(call, answer, plan)
        pauses = [answer.pause_s for answer in answers if isinstance(answer, Completed) and answer.pause_s is not None]
        return max(pauses, default=None)

    def _take_answer(self, call: BegunCall, answer: CallAnswer, plan: CallPlan) -> CommandGenerator[None]:
        if isinstance(answer, Completed):
            plan.outcomes[call.id] = ToolOutcome(id=call.id, result=answer.result, status="finished")
        elif isinstance(answer, Failed):
            plan.outcomes[call.id] = ToolOutcome(id=call.id, error=answer.error, status="failed")
        elif isinstance(answer, TimedOut):
            plan.outcomes[call.id] = ToolOutcome(id=call.id, error=answer.error, status="unknown")
        elif isinstance(answer, Snoozed):
            yield from self._snooze(call.id, answer.seconds, plan)
        else:
            try:
                child = yield from child_runs.start_child(self.run, call, answer)
            except Fenced:
                raise
            except (InvalidInput, NotFound, Conflict) as error:  # for example nested too deeply: the model must know
                message = f"{type(error).__name__}: {error}"
                plan.outcomes[call.id] = ToolOutcome(id=call.id, error=message, status="failed")
            else:
                plan.open_children.append(child.id)

    def _snooze(self, call_id: str, seconds: float, plan: CallPlan) -> CommandGenerator[None]:
        until = yield from self._in(seconds)
        try:
            yield do.SnoozeCall(self.run.id, call_id, self.epoch, until)
        except Fenced:
            raise
        except Conflict:  # a person has ended the call in the meantime
            plan.take_outcome(self.run.id, (yield do.GetCall(self.run.id, call_id)))
        else:
            plan.wake_times.append(until)

    def _first_capture(self) -> CommandGenerator[None]:
        """Capture the files before the first step, unless an earlier process already did."""
        snapshot = yield do.FindSnapshot(self.run.id, 0)
        if snapshot is None:
            yield from self._capture(0)

    def _capture(self, step: int) -> CommandGenerator[None]:
        if self.path is not None:
            captured: CaptureResult = yield do.CaptureFiles(self.run.id, self.path, step)
            self.snapshot = captured.snapshot.id

    def _interim(self, plan: CallPlan) -> CommandGenerator[Ending]:
        """Commit the outcomes known so far and pause the run until the next call may be answered."""
        wake_times = [*plan.wake_times]
        if plan.open_children:
            wake_times.append((yield from self._in(self.config.child_poll_s)))
        until = min(wake_times)
        outcomes = plan.new_outcomes()
        if not outcomes:
            return (yield from self._wait(until, plan.open_children))
        yield from self._capture(self.iteration + 1)
        yield do.CommitStep(
            run_id=self.run.id,
            epoch=self.epoch,
            iteration=self.iteration + 1,
            state=self.state,
            tool_calls=outcomes,
            snapshot=self.snapshot,
            pause_until=until,
        )
        self.iteration += 1
        yield from self.tell("waiting", plan.open_children)
        return self._ending("paused", pause_until=until)

    def _wait_for_people(self, requests: Sequence[RequestedCall]) -> CommandGenerator[Ending]:
        """Pause the run until a person resumes it."""
        ending = yield from self._wait(None, requests)
        # A person who decided and resumed the run before it was paused has woken no worker: resume it now.
        loaded: LoadedRun = yield do.LoadRun(self.run.id)
        ids = {request.id for request in requests}
        open_calls = [call for call in loaded.tool_calls if call.id in ids and call.status in ("held", "begun")]
        if open_calls or loaded.run.status != "waiting":
            return ending
        yield do.ResumeRun(self.run.id)
        return self._ending("released")

    def _wait(self, until: datetime | None, awaited: Sequence[Any]) -> CommandGenerator[Ending]:
        yield do.PauseRun(self.run.id, self.epoch, until)
        yield from self.tell("waiting", awaited)
        return self._ending("waiting" if until is None else "paused", pause_until=until)

    def _step(
        self, pending: PendingReply, outcomes_by_id: dict[str, ToolOutcome], tool_pause_s: float | None
    ) -> CommandGenerator[Ending | None]:
        """Make the second commit: messages, outcomes, state and usage together, and end or pause the run with it."""
        reply, outcomes = pending.reply, [outcomes_by_id[request.id] for request in pending.reply.requests]
        state = self.state if reply.state is UNSET else reply.state
        usage = Usage(input_tokens=reply.input_tokens, output_tokens=reply.output_tokens)
        total = Usage(
            input_tokens=self.usage.input_tokens + reply.input_tokens,
            output_tokens=self.usage.output_tokens + reply.output_tokens,
        )
        progress = StepProgress(self.iteration + 1, state, reply, outcomes, total)
        reason = self.config.stop_reason(progress)
        pause_s = _longer(reply.pause_s, tool_pause_s)
        until = (yield from self._in(pause_s)) if reason is None and pause_s is not None else None
        if outcomes:
            yield from self._capture(self.iteration + 1)
        step: CommittedStep = yield do.CommitStep(
            run_id=self.run.id,
            epoch=self.epoch,
            iteration=self.iteration + 1,
            state=state,
            messages=messages_of(reply, outcomes),
            tool_calls=intents.unrecorded_outcomes(pending, outcomes, self.iteration + 1),
            usage=usage,
            last_tool_result=text_of(outcomes[-1]) if outcomes else None,
            snapshot=self.snapshot,
            stop_reason=reason,
            pause_until=until,
        )
        self.iteration, self.state, self.usage = self.iteration + 1, state, total
        yield from self.tell("step", step)
        return (yield from self._after_step(step, reason, until))

    def _after_step(
        self, step: CommittedStep, reason: str | None, until: datetime | None
    ) -> CommandGenerator[Ending | None]:
        if reason is not None:
            yield from child_runs.wake_parent(self.run)
            return self._ending("completed", stop_reason=reason)
        if until is not None:
            return self._ending("paused", pause_until=until)
        if step.compaction_due and self.config.summarize is not None:
            yield from self._compact()
        return None

    def _compact(self) -> CommandGenerator[None]:
        """Compact the session. The run continues even if that fails, because the context is cut to fit the model anyway."""
        try:
            policy = yield do.FindPolicy(self.run.session_id)
            assert self.config.summarize is not None
            event = yield do.Compact(self.run.session_id, policy, self.config.summarize)
        except Fenced:
            raise
        except (InvalidInput, Conflict) as error:
            event = error
        yield from self.tell("compacted", event)

    def _in(self, seconds: float) -> CommandGenerator[datetime]:
        now: datetime = yield do.Now()
        return now + timedelta(seconds=seconds)

    def _ending(self, status: EndStatus, **more: Any) -> Ending:
        return Ending(status, self.run.id, self.iteration, text=self.last_text, **more)


def _longer(one: float | None, other: float | None) -> float | None:
    return max((seconds for seconds in (one, other) if seconds is not None), default=None)


def _usage(run: Run) -> Usage:
    return Usage(input_tokens=run.input_tokens, output_tokens=run.output_tokens)
