"""The loop itself, without any input or output: a generator that says what it wants done and is sent what came of it.

::

    claim -> load -> [ build context -> ask the model -> record intents -> call tools -> commit the step ] -> ... -> end
                       ^                                                                              |
                       +------------------------------------------------------------------------------+

An iteration makes two durable commits: the *intent* before its tools are called, and the *step* with everything that came of it;
without tools, only the step. Whoever dies in between leaves one of two situations:

* No intent is there. Nothing happened that anybody could see: the iteration is done again, the model asked again.
* An intent is there. The model's whole reply is in it, as the first row that is recorded (``REPLY``), beside the calls. So the
  reply is taken from there and the model is not asked a second time: its answer might differ, and then the calls that may have
  happened would stand in no conversation. The calls go on by what the ledger says of each.

The reply is kept in the ledger and not in the session's log, because the log must never show a call without its result, and
whoever else reads or writes the session must not see half of an iteration.

Some calls cannot be answered now: they wait for a person, are snoozed, or are done by a run below this one. Then what the others
came to is committed in a step of its own, without messages, and the run is paused; the reply stays in the ledger until all
are answered.
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
from .call_plan import OPEN, REPLY, Sorted, sort_calls
from .commands import Command
from .events import Ending, EndStatus, Event, EventKind, Failure, ToMake
from .messages import messages_of, text_of
from .pending_rewinds import bring_files
from .plan import Plan, Progress
from .replies import Requested, Said, Turn, recorded_reply, said_of
from .tools import Answer, Below, Done, Failed, Lost, Snoozed, shortened

T = TypeVar("T")
Driving = Generator[Command, Any, T]
_BEFORE_THE_STEP = frozenset({"asking", "reply", "calling", "called"})
"""Events that belong to the step that is not there yet."""
MAX_CHANGES = 10
"""How often people may decide about calls that are about to be made."""
ANSWER_MESSAGES = 10
"""Messages from the end of a session among which the last words of a run are looked for."""


class Decided(Exception):
    """Somebody has decided about a call that was about to be made."""


class Asked(Struct, frozen=True):
    """A reply that is to be carried out, and what the ledger already says about it."""

    said: Said
    recorded: ToolCall | None = None
    """Where the reply is kept, if it was recorded."""
    known: dict[str, ToolCall] = {}
    children: dict[str, Run] = {}


def claim_and_drive(plan: Plan, run_id: str, *, holder: str, ttl_ms: int) -> Driving[Ending]:
    """Claim a run and drive it until it ends, pauses, waits or is taken away."""
    run = yield do.ClaimRun(run_id, holder, ttl_ms)
    if run is not None:
        return (yield from drive(plan, run))
    run = yield do.GetRun(run_id)
    status: EndStatus = "busy" if run.status in ("pending", "running") else run.status
    return Ending(status, run.id, run.iteration, run.stop_reason, run.error, run.pause_until)


def drive(plan: Plan, run: Run) -> Driving[Ending]:
    """Drive a run that was claimed until it ends, pauses, waits or is taken away."""
    driver = Driver(plan, run)
    try:
        try:
            ending = yield from driver.go()
        except Fenced:
            raise
        except (InvalidInput, Conflict) as error:
            # What cannot be stored now cannot be stored by the next process either.
            ending = yield from driver.fail(f"{type(error).__name__}: {error}")
        except HoldfastError:
            raise
        except Exception as error:  # of a function that the loop was given
            ending = yield from driver.fail(f"{type(error).__name__}: {error}")
    except Fenced as error:
        there = yield do.GetRun(run.id)
        status: EndStatus = "cancelled" if there.status == "cancelled" else "fenced"
        ending = Ending(status, run.id, there.iteration, there.stop_reason, there.error or str(error))
    yield from driver.tell("ended", ending)
    return ending


class Driver:
    """One run, as far as this process has brought it."""

    def __init__(self, plan: Plan, run: Run) -> None:
        self.plan, self.run, self.epoch = plan, run, run.epoch
        self.iteration, self.state = run.iteration, plan.first_state
        self.usage = _usage(run)
        self.said = ""
        self.path: str | os.PathLike[str] | None = None
        self.snapshot: str | None = None

    def go(self) -> Driving[Ending]:
        """Iteration after iteration, from where the last step or intent left it."""
        self.path = self.plan.workspace_of(self.run)
        why_not = yield from bring_files(self.run, self.path)
        if why_not is not None:
            return self._ending("waiting", error=why_not)
        loaded: LoadedRun = yield do.LoadRun(self.run.id)
        if loaded.run.epoch != self.epoch:
            raise Fenced(f"run {self.run.id} was taken while it was loaded")
        self.iteration, self.usage = loaded.run.iteration, _usage(loaded.run)
        if loaded.step is not None:
            self.state, self.snapshot = loaded.step.state, loaded.step.snapshot
        if self.path is not None and self.iteration == 0:
            yield from self._first_capture()
        asked: Asked | Ending | None = yield from self._interrupted(loaded.tool_calls)
        while True:
            if asked is None:
                asked = yield from self._ask()
            ending = asked if isinstance(asked, Ending) else (yield from self._persist(asked))
            if ending is not None:
                return ending
            if not (yield do.GoOn()):
                yield do.ReleaseRun(self.run.id, self.epoch)
                return self._ending("released")
            asked = None

    def tell(self, kind: EventKind, data: Any = None) -> Driving[None]:
        """An event, if anybody listens."""
        if self.plan.on_event is not None:
            iteration = self.iteration + (kind in _BEFORE_THE_STEP)
            yield do.Tell(Event(kind, self.run.id, iteration, data))

    def fail(self, error: str) -> Driving[Ending]:
        """The run cannot go on."""
        error = shortened(error)
        yield do.FailRun(self.run.id, self.epoch, error)
        yield from self._wake_parent()
        return self._ending("failed", stop_reason="error", error=error)

    def _interrupted(self, calls: Sequence[ToolCall]) -> Driving[Asked | None]:
        """The iteration that an earlier process has left half done, if there is one."""
        recorded = next((call for call in calls if call.tool_name == REPLY and call.status in OPEN), None)
        if recorded is None:
            return None
        said = recorded_reply(recorded.tool_input)
        known = {call.id: call for call in calls}
        if recorded.iteration <= self.iteration:  # a step has taken some of its calls in
            for request in said.requests:
                if request.id not in known:
                    try:
                        known[request.id] = yield do.GetCall(self.run.id, request.id)
                    except NotFound:
                        pass
        below = yield do.ListChildren(self.run.id)
        return Asked(said, recorded, known, {child.parent_call_id: child for child in below if child.parent_call_id})

    def _ask(self) -> Driving[Asked | Ending]:
        over = self._over(self.iteration, self.usage)
        if over is not None:
            yield do.FinishRun(self.run.id, self.epoch, over)
            yield from self._wake_parent()
            return self._ending("completed", stop_reason=over)
        turn = yield from self._turn()
        tried = 0
        while True:
            yield from self.tell("asking", turn)
            answer = yield do.AskModel(turn)
            if not isinstance(answer, Failure):
                said = said_of(answer, turn.iteration)
                yield from self.tell("reply", said)
                return Asked(said)
            tried += 1
            delay = None if self.plan.retry is None else self.plan.retry(answer.error, tried)
            if delay is None:
                return (yield from self.fail(f"the model raised {type(answer.error).__name__}: {answer.error}"))
            yield do.Sleep(delay)

    def _turn(self) -> Driving[Turn]:
        context = yield do.BuildContext(self.run.session_id, self.plan.context_tokens)
        agent = (yield do.FindAgent(self.run.agent)) if self.run.agent else None
        blocks: Sequence[Block] = ()
        if agent is not None:
            try:
                blocks = yield do.ListBlocks(agent.id)
            except NotFound:
                pass  # it was removed between the two
        iteration = self.iteration + 1
        say = partial(_say, self.plan, self.run.id, iteration)
        return Turn(self.run, iteration, self.state, context, agent, blocks, [*self.plan.tools.values()], say)

    def _persist(self, asked: Asked) -> Driving[Ending | None]:
        """Carry out a reply, however often people decide about its calls meanwhile."""
        for _ in range(MAX_CHANGES):
            try:
                return (yield from self._carry_out(asked))
            except Decided:
                loaded: LoadedRun = yield do.LoadRun(self.run.id)
                again = yield from self._interrupted(loaded.tool_calls)
                if again is None:
                    raise Conflict(f"what run {self.run.id} was about to do is no longer in the ledger") from None
                asked = again
        raise Conflict(
            f"the calls of run {self.run.id} were changed {MAX_CHANGES} times while they were about to be made"
        )

    def _carry_out(self, asked: Asked) -> Driving[Ending | None]:
        """Make the calls of a reply and commit the step; ``None`` means that the run goes on."""
        self.said = asked.said.text
        requests = asked.said.requests
        if not requests:
            return (yield from self._step(asked, {}, None))
        now = (yield do.Now()) if any(call.pause_until for call in asked.known.values()) else None
        found = sort_calls(self.plan, requests, asked.known, asked.children, now=now)
        if asked.recorded is None and found.held:
            yield from self._intend(asked, found.held, hold=True)
        if found.held or found.asked:
            return (yield from self._wait_for_people([*found.held, *found.asked]))
        for call, child in found.ended:
            found.settled[call] = yield from self._outcome_of(call, child)
        pause_s = yield from self._make(asked, found)
        if found.waits or found.below:
            return (yield from self._interim(found))
        return (yield from self._step(asked, found.settled, pause_s))

    def _intend(self, asked: Asked, requests: Sequence[Requested], *, hold: bool = False) -> Driving[list[ToolCall]]:
        """The first commit: the reply, if it is not there yet, and the calls that are about to be made."""
        calls = [self._call(request, asked.known.get(request.id), hold) for request in requests]
        if asked.recorded is None:
            calls.insert(0, self._record(asked.said))
        done: Sequence[ToolCall] = yield do.Intend(self.run.id, self.epoch, calls)
        return [call for call in done if call.tool_name != REPLY]

    def _record(self, said: Said) -> NewToolCall:
        id = f"{REPLY}:{self.iteration + 1}"
        return NewToolCall(id=id, tool_name=REPLY, tool_input=said.recorded(), safety="idempotent")

    def _call(self, request: Requested, there: ToolCall | None, hold: bool) -> NewToolCall:
        if there is not None:  # what it was recorded as is what it is, whatever the tool says today
            return NewToolCall(id=there.id, tool_name=there.tool_name, tool_input=there.tool_input, safety=there.safety)
        tool = self.plan.tools.get(request.name)
        safety = "idempotent" if tool is None else tool.safety
        return NewToolCall(id=request.id, tool_name=request.name, tool_input=request.input, safety=safety, hold=hold)

    def _make(self, asked: Asked, found: Sorted) -> Driving[float | None]:
        """Make the calls that can be made now. Seconds that a tool wants the run to sleep for afterwards."""
        if not found.to_make:
            return None
        try:
            begun = yield from self._intend(asked, found.to_make)
        except Fenced:
            raise
        except Conflict:
            if asked.recorded is None:
                raise
            raise Decided from None
        making = [ToMake(call.id, call.tool_name, call.tool_input, call.attempts) for call in begun]
        yield from self.tell("calling", making)
        answers: Sequence[Answer] = yield do.CallTools(making)
        yield from self.tell("called", answers)
        for call, answer in zip(making, answers, strict=True):
            yield from self._take(call, answer, found)
        return max(
            (each.pause_s for each in answers if isinstance(each, Done) and each.pause_s is not None), default=None
        )

    def _take(self, call: ToMake, answer: Answer, found: Sorted) -> Driving[None]:
        if isinstance(answer, Done):
            found.settled[call.id] = ToolOutcome(id=call.id, result=answer.result, status="finished")
        elif isinstance(answer, Failed):
            found.settled[call.id] = ToolOutcome(id=call.id, error=answer.error, status="failed")
        elif isinstance(answer, Lost):
            found.settled[call.id] = ToolOutcome(id=call.id, error=answer.error, status="unknown")
        elif isinstance(answer, Snoozed):
            yield from self._snooze(call.id, answer.seconds, found)
        else:
            try:
                child = yield from self._start_child(call, answer)
            except Fenced:
                raise
            except (InvalidInput, NotFound, Conflict) as error:  # too deep, say: that is for the model to know
                said = f"{type(error).__name__}: {error}"
                found.settled[call.id] = ToolOutcome(id=call.id, error=said, status="failed")
            else:
                found.below.append(child.id)

    def _snooze(self, call_id: str, seconds: float, found: Sorted) -> Driving[None]:
        until = yield from self._in(seconds)
        try:
            yield do.SnoozeCall(self.run.id, call_id, self.epoch, until)
        except Fenced:
            raise
        except Conflict:  # a person has ended it meanwhile
            found.settle(self.run.id, (yield do.GetCall(self.run.id, call_id)))
        else:
            found.waits.append(until)

    def _start_child(self, call: ToMake, below: Below) -> Driving[Run]:
        """A run below this one. Every part of it can be repeated: the call is what it is known by."""
        child, session_id = below.child, below.child.session_id
        if session_id is None:
            session = yield do.OpenSession(f"run:{self.run.id}:{call.id}", child.agent)
            session_id = session.id
        yield do.GiveTask(session_id, str(uuid5(UUID(self.run.id), call.id)), child.task)
        started: Run = yield do.StartChild(session_id, child.agent, self.run.id, call.id, self.epoch, child.metadata)
        return started

    def _outcome_of(self, call_id: str, child: Run) -> Driving[ToolOutcome]:
        """What a run that has ended means for the call it was started for."""
        if child.status == "cancelled":
            return ToolOutcome(id=call_id, status="cancelled", error=child.error or "its run was cancelled")
        if child.status == "failed":
            return ToolOutcome(id=call_id, status="failed", error=f"its run failed: {child.error or child.stop_reason}")
        last: Sequence[Message] = yield do.ReadLast(child.session_id, ANSWER_MESSAGES)
        said = next((Said(each.content).text for each in reversed(last) if each.role == "assistant"), "")
        return ToolOutcome(id=call_id, result=said, status="finished")

    def _first_capture(self) -> Driving[None]:
        """The files as they are before anything is done."""
        found = yield do.FindSnapshot(self.run.id, 0)
        if found is None:
            yield from self._capture(0)

    def _capture(self, step: int) -> Driving[None]:
        if self.path is not None:
            captured: CaptureResult = yield do.CaptureFiles(self.run.id, self.path, step)
            self.snapshot = captured.snapshot.id

    def _interim(self, found: Sorted) -> Driving[Ending]:
        """Some calls cannot be answered yet: keep what the others came to, and come back when it may be time."""
        waits = [*found.waits]
        if found.below:
            waits.append((yield from self._in(self.plan.child_poll_s)))
        until = min(waits)
        fresh = found.fresh()
        if not fresh:
            return (yield from self._wait(until, found.below))
        yield from self._capture(self.iteration + 1)
        yield do.CommitStep(
            run_id=self.run.id,
            epoch=self.epoch,
            iteration=self.iteration + 1,
            state=self.state,
            tool_calls=fresh,
            snapshot=self.snapshot,
            pause_until=until,
        )
        self.iteration += 1
        yield from self.tell("waiting", found.below)
        return self._ending("paused", pause_until=until)

    def _wait_for_people(self, asked: Sequence[Requested]) -> Driving[Ending]:
        """Let go of the run until somebody resumes it."""
        ending = yield from self._wait(None, asked)
        # Who has decided and resumed it before it waited has woken nobody.
        loaded: LoadedRun = yield do.LoadRun(self.run.id)
        ids = {request.id for request in asked}
        open_calls = [call for call in loaded.tool_calls if call.id in ids and call.status in ("held", "begun")]
        if open_calls or loaded.run.status != "waiting":
            return ending
        yield do.ResumeRun(self.run.id)
        return self._ending("released")

    def _wait(self, until: datetime | None, what: Sequence[Any]) -> Driving[Ending]:
        yield do.PauseRun(self.run.id, self.epoch, until)
        yield from self.tell("waiting", what)
        return self._ending("waiting" if until is None else "paused", pause_until=until)

    def _step(
        self, asked: Asked, settled: dict[str, ToolOutcome], tool_pause_s: float | None
    ) -> Driving[Ending | None]:
        """The second commit: messages, outcomes, state and usage together, and whether the run ends or pauses with it."""
        said, outcomes = asked.said, [settled[request.id] for request in asked.said.requests]
        state = self.state if said.state is UNSET else said.state
        used = Usage(input_tokens=said.input_tokens, output_tokens=said.output_tokens)
        total = Usage(
            input_tokens=self.usage.input_tokens + said.input_tokens,
            output_tokens=self.usage.output_tokens + said.output_tokens,
        )
        progress = Progress(self.iteration + 1, state, said, outcomes, total)
        reason = self._stop_reason(progress)
        pause_s = _longer(said.pause_s, tool_pause_s)
        until = (yield from self._in(pause_s)) if reason is None and pause_s is not None else None
        if outcomes:
            yield from self._capture(self.iteration + 1)
        done: CommittedStep = yield do.CommitStep(
            run_id=self.run.id,
            epoch=self.epoch,
            iteration=self.iteration + 1,
            state=state,
            messages=messages_of(said, outcomes),
            tool_calls=self._to_settle(asked, outcomes),
            usage=used,
            last_tool_result=text_of(outcomes[-1]) if outcomes else None,
            snapshot=self.snapshot,
            stop_reason=reason,
            pause_until=until,
        )
        self.iteration, self.state, self.usage = self.iteration + 1, state, total
        yield from self.tell("step", done)
        return (yield from self._after(done, reason, until))

    def _to_settle(self, asked: Asked, outcomes: Sequence[ToolOutcome]) -> list[ToolOutcome]:
        """The calls that the step finishes: those that nobody has finished before, and the reply's own row."""
        if not outcomes:
            return []
        kept = f"{REPLY}:{self.iteration + 1}" if asked.recorded is None else asked.recorded.id
        known = asked.known
        fresh = [each for each in outcomes if each.id not in known or known[each.id].status in OPEN]
        return [ToolOutcome(id=kept, status="finished"), *fresh]

    def _after(self, done: CommittedStep, reason: str | None, until: datetime | None) -> Driving[Ending | None]:
        if reason is not None:
            yield from self._wake_parent()
            return self._ending("completed", stop_reason=reason)
        if until is not None:
            return self._ending("paused", pause_until=until)
        if done.compaction_due and self.plan.summarize is not None:
            yield from self._compact()
        return None

    def _compact(self) -> Driving[None]:
        """Make the session smaller. Whether that works or not, the run goes on: what is shown to the model fits anyway."""
        try:
            policy = yield do.FindPolicy(self.run.session_id)
            assert self.plan.summarize is not None
            event = yield do.Compact(self.run.session_id, policy, self.plan.summarize)
        except Fenced:
            raise
        except (InvalidInput, Conflict) as error:
            event = error
        yield from self.tell("compacted", event)

    def _stop_reason(self, progress: Progress) -> str | None:
        said = progress.reply
        if said.stop is not None:
            return said.stop
        reason = None if self.plan.stop is None else self.plan.stop(progress)
        if reason is None and not said.requests and not said.go_on and said.pause_s is None:
            reason = "end_turn"
        return reason or self._over(progress.iteration, progress.usage)

    def _over(self, iteration: int, usage: Usage) -> str | None:
        if iteration >= self.plan.max_iterations:
            return "max_iterations"
        budget = self.plan.budget_tokens
        return "budget" if budget is not None and usage.input_tokens + usage.output_tokens >= budget else None

    def _wake_parent(self) -> Driving[None]:
        """Whoever waits for this run is woken; if that is lost, it looks by itself after a while."""
        if self.run.parent_run_id is not None:
            try:
                yield do.ResumeRun(self.run.parent_run_id)
            except (Conflict, NotFound):
                pass  # it has ended meanwhile

    def _in(self, seconds: float) -> Driving[datetime]:
        now: datetime = yield do.Now()
        return now + timedelta(seconds=seconds)

    def _ending(self, status: EndStatus, **more: Any) -> Ending:
        return Ending(status, self.run.id, self.iteration, text=self.said, **more)


def _longer(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _usage(run: Run) -> Usage:
    return Usage(input_tokens=run.input_tokens, output_tokens=run.output_tokens)


def _say(plan: Plan, run_id: str, iteration: int, piece: str) -> None:
    plan.tell(Event("token", run_id, iteration, piece))
