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
from collections.abc import Generator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID, uuid5

from msgspec import UNSET, Struct

from holdfast import NewToolCall, ToolOutcome, Usage
from holdfast.errors import Conflict, Fenced, HoldfastError, InvalidInput, NotFound
from holdfast.types import Block, CaptureResult, CommittedStep, LoadedRun, Message, Run, ToolCall

from . import commands as do
from .call_plan import OPEN_STATUSES, REPLY, CallPlan, plan_calls
from .commands import Command
from .config import LoopConfig, StepProgress
from .events import BegunCall, Ending, EndStatus, Event, EventKind, ModelFailure
from .messages import messages_of, text_of
from .pending_rewinds import finish_pending_rewind
from .replies import ModelTurn, NormalizedReply, RequestedCall, decode_reply, normalize_reply
from .tools import CallAnswer, Completed, Delegated, Failed, Snoozed, TimedOut, truncate_error

T = TypeVar("T")
CommandGenerator = Generator[Command, Any, T]
_BEFORE_THE_STEP = frozenset({"asking", "reply", "calling", "called"})
"""Events that belong to the step that is not committed yet."""
MAX_CHANGES = 10
"""How often people may change calls of one reply between planning and recording them."""
ANSWER_MESSAGES = 10
"""Messages at the end of a child run's session that are searched for its answer."""


class CallsChanged(Exception):
    """A person changed a call that was about to be made."""


class PendingReply(Struct, frozen=True):
    """A reply to carry out, and its records in the ledger."""

    reply: NormalizedReply
    record: ToolCall | None = None
    """The ledger row that contains the reply, if it was recorded."""
    calls: dict[str, ToolCall] = {}
    """The recorded calls, by id."""
    children: dict[str, Run] = {}
    """The child runs, by the id of the call they answer."""


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
        pending: PendingReply | Ending | None = yield from self._load_pending(loaded.tool_calls)
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
        yield from self._wake_parent()
        return self._ending("failed", stop_reason="error", error=error)

    def _load_pending(self, open_calls: Sequence[ToolCall]) -> CommandGenerator[PendingReply | None]:
        """Load the reply of an iteration that an earlier process left unfinished, if there is one."""
        record = next((call for call in open_calls if call.tool_name == REPLY and call.status in OPEN_STATUSES), None)
        if record is None:
            return None
        reply = decode_reply(record.tool_input)
        calls = {call.id: call for call in open_calls}
        if record.iteration <= self.iteration:  # a step contains the outcomes of some of its calls
            for request in reply.requests:
                if request.id not in calls:
                    try:
                        calls[request.id] = yield do.GetCall(self.run.id, request.id)
                    except NotFound:
                        pass
        children = yield do.ListChildren(self.run.id)
        return PendingReply(reply, record, calls, {run.parent_call_id: run for run in children if run.parent_call_id})

    def _ask(self) -> CommandGenerator[PendingReply | Ending]:
        exhausted = self._exhausted_limit(self.iteration, self.usage)
        if exhausted is not None:
            yield do.FinishRun(self.run.id, self.epoch, exhausted)
            yield from self._wake_parent()
            return self._ending("completed", stop_reason=exhausted)
        turn = yield from self._turn()
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

    def _turn(self) -> CommandGenerator[ModelTurn]:
        context = yield do.BuildContext(self.run.session_id, self.config.context_tokens)
        agent = (yield do.FindAgent(self.run.agent)) if self.run.agent else None
        blocks: Sequence[Block] = ()
        if agent is not None:
            try:
                blocks = yield do.ListBlocks(agent.id)
            except NotFound:
                pass  # the agent was removed between the two reads
        iteration = self.iteration + 1
        say = partial(_emit_token, self.config, self.run.id, iteration)
        return ModelTurn(self.run, iteration, self.state, context, agent, blocks, [*self.config.tools.values()], say)

    def _carry_out(self, pending: PendingReply) -> CommandGenerator[Ending | None]:
        """Carry out a reply, and start over each time a person changes its calls."""
        for _ in range(MAX_CHANGES):
            try:
                return (yield from self._try_carry_out(pending))
            except CallsChanged:
                loaded: LoadedRun = yield do.LoadRun(self.run.id)
                reloaded = yield from self._load_pending(loaded.tool_calls)
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
            plan.outcomes[call_id] = yield from self._outcome_of(call_id, child)
        pause_s = yield from self._make_calls(pending, plan)
        if plan.wake_times or plan.open_children:
            return (yield from self._interim(plan))
        return (yield from self._step(pending, plan.outcomes, pause_s))

    def _record_intents(
        self, pending: PendingReply, requests: Sequence[RequestedCall], *, hold: bool = False
    ) -> CommandGenerator[list[ToolCall]]:
        """Make the first commit: the reply, if it is not recorded yet, and the calls that are about to be made."""
        calls = [self._new_call(request, pending.calls.get(request.id), hold) for request in requests]
        if pending.record is None:
            calls.insert(0, self._reply_record(pending.reply))
        recorded: Sequence[ToolCall] = yield do.RecordIntents(self.run.id, self.epoch, calls)
        return [call for call in recorded if call.tool_name != REPLY]

    def _reply_record(self, reply: NormalizedReply) -> NewToolCall:
        id = f"{REPLY}:{self.iteration + 1}"
        return NewToolCall(id=id, tool_name=REPLY, tool_input=reply.to_json(), safety="idempotent")

    def _new_call(self, request: RequestedCall, call: ToolCall | None, hold: bool) -> NewToolCall:
        if call is not None:  # the recorded fields apply, even if the tool has changed since
            return NewToolCall(id=call.id, tool_name=call.tool_name, tool_input=call.tool_input, safety=call.safety)
        tool = self.config.tools.get(request.name)
        safety = "idempotent" if tool is None else tool.safety
        return NewToolCall(id=request.id, tool_name=request.name, tool_input=request.input, safety=safety, hold=hold)

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
                child = yield from self._start_child(call, answer)
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

    def _start_child(self, call: BegunCall, answer: Delegated) -> CommandGenerator[Run]:
        """Start a child run. Each step can be repeated, because the call's id identifies the session, the task and the run."""
        child, session_id = answer.child, answer.child.session_id
        if session_id is None:
            session = yield do.OpenSession(f"run:{self.run.id}:{call.id}", child.agent)
            session_id = session.id
        yield do.AppendTask(session_id, str(uuid5(UUID(self.run.id), call.id)), child.task)
        started: Run = yield do.StartChild(session_id, child.agent, self.run.id, call.id, self.epoch, child.metadata)
        return started

    def _outcome_of(self, call_id: str, child: Run) -> CommandGenerator[ToolOutcome]:
        """Return the outcome of a call from the ended child run that answers it."""
        if child.status == "cancelled":
            return ToolOutcome(id=call_id, status="cancelled", error=child.error or "its run was cancelled")
        if child.status == "failed":
            return ToolOutcome(id=call_id, status="failed", error=f"its run failed: {child.error or child.stop_reason}")
        messages: Sequence[Message] = yield do.ReadLastMessages(child.session_id, ANSWER_MESSAGES)
        replies = (message for message in reversed(messages) if message.role == "assistant")
        text = next((NormalizedReply(message.content).text for message in replies), "")
        return ToolOutcome(id=call_id, result=text, status="finished")

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
        reason = self._stop_reason(progress)
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
            tool_calls=self._unrecorded_outcomes(pending, outcomes),
            usage=usage,
            last_tool_result=text_of(outcomes[-1]) if outcomes else None,
            snapshot=self.snapshot,
            stop_reason=reason,
            pause_until=until,
        )
        self.iteration, self.state, self.usage = self.iteration + 1, state, total
        yield from self.tell("step", step)
        return (yield from self._after_step(step, reason, until))

    def _unrecorded_outcomes(self, pending: PendingReply, outcomes: Sequence[ToolOutcome]) -> list[ToolOutcome]:
        """Return the outcomes that the ledger does not contain yet, and the outcome of the reply's own row."""
        if not outcomes:
            return []
        reply_id = f"{REPLY}:{self.iteration + 1}" if pending.record is None else pending.record.id
        calls = pending.calls
        unrecorded = [
            outcome for outcome in outcomes if outcome.id not in calls or calls[outcome.id].status in OPEN_STATUSES
        ]
        return [ToolOutcome(id=reply_id, status="finished"), *unrecorded]

    def _after_step(
        self, step: CommittedStep, reason: str | None, until: datetime | None
    ) -> CommandGenerator[Ending | None]:
        if reason is not None:
            yield from self._wake_parent()
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

    def _stop_reason(self, progress: StepProgress) -> str | None:
        reply = progress.reply
        if reply.stop is not None:
            return reply.stop
        reason = None if self.config.stop is None else self.config.stop(progress)
        if reason is None and not reply.requests and not reply.continue_run and reply.pause_s is None:
            reason = "end_turn"
        return reason or self._exhausted_limit(progress.iteration, progress.usage)

    def _exhausted_limit(self, iteration: int, usage: Usage) -> str | None:
        if iteration >= self.config.max_iterations:
            return "max_iterations"
        budget = self.config.budget_tokens
        return "budget" if budget is not None and usage.input_tokens + usage.output_tokens >= budget else None

    def _wake_parent(self) -> CommandGenerator[None]:
        """Resume the parent run, if there is one. If that is lost, the parent polls after a while."""
        if self.run.parent_run_id is not None:
            try:
                yield do.ResumeRun(self.run.parent_run_id)
            except (Conflict, NotFound):
                pass  # the parent has ended in the meantime

    def _in(self, seconds: float) -> CommandGenerator[datetime]:
        now: datetime = yield do.Now()
        return now + timedelta(seconds=seconds)

    def _ending(self, status: EndStatus, **more: Any) -> Ending:
        return Ending(status, self.run.id, self.iteration, text=self.last_text, **more)


def _longer(one: float | None, other: float | None) -> float | None:
    return max((seconds for seconds in (one, other) if seconds is not None), default=None)


def _usage(run: Run) -> Usage:
    return Usage(input_tokens=run.input_tokens, output_tokens=run.output_tokens)


def _emit_token(config: LoopConfig, run_id: str, iteration: int, piece: str) -> None:
    config.tell(Event("token", run_id, iteration, piece))
