"""Runs, leases and tool calls in plain Python: dictionaries, without transactions or concurrency.

It knows one tenant and sessions that are never deleted. Every method does what the method of the same name promises, as slowly
and as plainly as possible, and raises the same kind of error. Nothing is shared with the stores but the types of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from holdfast import FixedClock, Limits, NewMessage, NewToolCall, ToolOutcome, Usage
from holdfast.clock import from_us
from holdfast.errors import Conflict, Fenced, LimitExceeded, NotFound
from holdfast.types import PendingCall, Run, Step, ToolCall
from tests.contract.cases.values import same

OVER = ("completed", "failed", "cancelled")
UNFINISHED = ("held", "ready", "begun")
AFTER_A_CRASH = {"idempotent": "run", "at_most_once": "report", "ask": "ask"}


class RunModel:
    """A model of the required behavior, without a database."""

    def __init__(self, clock: FixedClock, limits: Limits) -> None:
        self.clock, self.limits = clock, limits
        self.runs: dict[str, Run] = {}
        self.look: dict[str, tuple[str, datetime]] = {}
        """When a worker may claim a run: at any time if it is ``ready``, otherwise from a given time on."""
        self.steps: dict[str, list[tuple[Any, Step, list[Any]]]] = {}
        self.calls: dict[str, dict[str, ToolCall]] = {}
        self.log: dict[str, list[Any]] = {}

    @property
    def now(self) -> datetime:
        return from_us(self.clock.now_us())

    # Runs

    def start(self, session_id: str, *, id: str, parent: str | None = None, max_attempts: int = 3) -> Run:
        depth = 0
        if parent is not None:
            above = self._run(parent)
            if above.status in OVER:
                raise Conflict
            depth = above.depth + 1
            if depth > self.limits.run_depth:
                raise LimitExceeded
        if id in self.runs:
            existing = self.runs[id]
            if (existing.session_id, existing.parent_run_id) != (session_id, parent):
                raise Conflict
            return existing
        run = Run(
            id=id, session_id=session_id, agent="", status="pending", iteration=0, epoch=0, attempts=0,
            max_attempts=max_attempts, holder="", lease_ms=0, lease_until=None, doubted_at=None, pause_until=None,
            stop_reason=None, error=None, parent_run_id=parent, parent_call_id=None, depth=depth, input_tokens=0,
            output_tokens=0, metadata={}, started_at=self.now, checkpointed_at=None, finished_at=None,
        )  # fmt: skip
        self.steps[id], self.calls[id] = [], {}
        return self._keep(run)

    def get(self, run_id: str) -> Run:
        return self._run(run_id)

    def load(self, run_id: str) -> Any:
        run = self._run(run_id)
        step = self.steps[run_id][-1][1] if self.steps[run_id] else None
        return run, step, [call for call in self._calls(run_id) if call.step is None]

    def list(self) -> Any:
        return sorted(self.runs.values(), key=lambda run: (run.started_at, run.id), reverse=True)

    def step(
        self,
        run_id: str,
        *,
        epoch: int,
        iteration: int,
        state: Any,
        messages: Sequence[NewMessage] = (),
        tool_calls: Sequence[ToolOutcome] = (),
        usage: Usage | None = None,
        stop_reason: str | None = None,
        pause_until: datetime | None = None,
    ) -> Any:
        run, given = self._run(run_id), (state, messages, tool_calls, usage, stop_reason, pause_until)
        existing = self.steps[run_id][iteration - 1] if iteration <= len(self.steps[run_id]) else None
        if existing is not None and existing[1].epoch == epoch and same(_plain(existing[0]), _plain(given)):
            return existing[1], existing[2]
        self._check(run, epoch)
        if existing is not None or iteration != run.iteration + 1:
            raise Conflict
        self._check_outcomes(self.calls[run_id], tool_calls, ends=stop_reason is not None)
        usage = usage or Usage()
        log = self.log.setdefault(run.session_id, [])
        first = len(log) + 1
        log += [message.content for message in messages]
        made = [(first + place, message.content) for place, message in enumerate(messages)]
        step = Step(
            run_id=run_id, iteration=iteration, epoch=epoch, state=state, last_tool_result=None,
            first_seq=made[0][0] if made else None, last_seq=made[-1][0] if made else None,
            input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, snapshot=None, created_at=self.now,
        )  # fmt: skip
        self.steps[run_id].append((given, step, made))
        self._settle(self.calls[run_id], tool_calls, iteration)
        run = replace(
            run, iteration=iteration, attempts=0, checkpointed_at=self.now, doubted_at=None, lease_until=self._until(run),
            input_tokens=run.input_tokens + usage.input_tokens, output_tokens=run.output_tokens + usage.output_tokens,
        )  # fmt: skip
        self.runs[run_id] = run
        if stop_reason is not None:
            self._keep(_left(run, "completed", stop_reason=stop_reason, finished_at=self.now))
        elif pause_until is not None:
            self._keep(_left(run, "paused", pause_until=pause_until))
        return step, made

    def _check_outcomes(self, calls: dict[str, ToolCall], outcomes: Sequence[ToolOutcome], *, ends: bool) -> None:
        if any(outcome.id not in calls or calls[outcome.id].step is not None for outcome in outcomes):
            raise Conflict
        left = {call.id for call in calls.values() if call.status in UNFINISHED}
        if ends and left - {outcome.id for outcome in outcomes}:
            raise Conflict

    def _settle(self, calls: dict[str, ToolCall], outcomes: Sequence[ToolOutcome], iteration: int) -> None:
        for outcome in outcomes:
            if calls[outcome.id].status in UNFINISHED:
                status = outcome.status or ("finished" if outcome.error is None else "failed")
                calls[outcome.id] = replace(
                    calls[outcome.id], status=status, result=outcome.result, error=outcome.error, finished_at=self.now
                )
        for call in list(calls.values()):
            if call.status not in UNFINISHED and call.step is None:
                calls[call.id] = replace(call, step=iteration)

    def pause(self, run_id: str, *, epoch: int, until: datetime | None) -> Run:
        return self._leave(run_id, epoch, "waiting" if until is None else "paused", pause_until=until, attempts=0)

    def finish(self, run_id: str, *, epoch: int, stop_reason: str) -> Run:
        return self._leave(run_id, epoch, "completed", stop_reason=stop_reason, attempts=0)

    def fail(self, run_id: str, *, epoch: int, error: str) -> Run:
        return self._leave(run_id, epoch, "failed", stop_reason="error", error=error)

    def resume(self, run_id: str) -> Run:
        run = self._run(run_id)
        if run.status in ("pending", "running"):
            return run
        if run.status in ("completed", "cancelled"):
            raise Conflict
        return self._keep(_left(run, "pending", attempts=0))

    def cancel(self, run_id: str, *, reason: str | None = None) -> Run:
        run = self._run(run_id)
        if run.status == "cancelled":
            return run
        if run.status in OVER:
            raise Conflict
        self._cancel(run, reason)
        return self.runs[run_id]

    # Leases

    def claim(self, holder: str, *, ttl_ms: int, run_id: str | None = None) -> Run | None:
        if run_id is not None:
            return self._take(self._run(run_id), holder, ttl_ms)
        far = self.now + timedelta(milliseconds=2 * self.limits.lease_ms)
        due = [
            (at, id)
            for id, (kind, at) in self.look.items()
            if kind == "ready" or at <= self.now or (kind == "leased" and at > far)
        ]
        for _, id in sorted(due):
            taken = self._take(self.runs[id], holder, ttl_ms)
            if taken is not None:
                return taken
        return None

    def renew(self, run_id: str, *, epoch: int, ttl_ms: int | None = None) -> Run:
        run = self._run(run_id)
        self._check(run, epoch)
        run = replace(run, lease_ms=ttl_ms or run.lease_ms, doubted_at=None)
        self.runs[run_id] = replace(run, lease_until=self._until(run))
        return self.runs[run_id]

    def release(self, run_id: str, *, epoch: int) -> Run:
        run = self._run(run_id)
        if (run.status, run.epoch) == ("pending", epoch):
            return run
        self._check(run, epoch)
        return self._keep(_left(run, "pending", attempts=max(0, run.attempts - 1)))

    # Tool calls

    def intend(self, run_id: str, *, epoch: int, calls: Sequence[NewToolCall]) -> Any:
        run = self._run(run_id)
        self._check(run, epoch)
        existing = self.calls[run_id]
        begun = [call for call in calls if call.id in existing and self._begins(existing[call.id], call, epoch)]
        new = [(place, call) for place, call in enumerate(calls) if call.id not in existing]
        if len([call for call in existing.values() if call.step is None]) + len(new) > self.limits.open_tool_calls:
            raise LimitExceeded
        for _, call in new:
            existing[call.id] = ToolCall(
                id=call.id, run_id=run_id, tool_name=call.tool_name, tool_input=call.tool_input, safety=call.safety,
                status="held" if call.hold else "begun", iteration=run.iteration + 1, epoch=epoch,
                attempts=0 if call.hold else 1, pause_until=None, result=None, error=None, step=None,
                started_at=self.now, finished_at=None,
            )  # fmt: skip
        for call in begun:
            was = existing[call.id]
            existing[call.id] = replace(
                was, status="begun", attempts=was.attempts + 1, epoch=epoch, pause_until=None, started_at=self.now
            )
        self.runs[run_id] = replace(run, doubted_at=None, lease_until=self._until(run))
        return [existing[call.id] for call in calls]

    def pending(self, run_id: str) -> Any:
        run = self._run(run_id)
        return [
            PendingCall(call, self._action(run, call))  # type: ignore[arg-type]
            for call in self._calls(run_id)
            if call.status in UNFINISHED
        ]

    def snooze(self, run_id: str, id: str, *, epoch: int, until: datetime) -> ToolCall:
        self._check(self._run(run_id), epoch)
        call = self._call(run_id, id)
        if call.status not in ("ready", "begun"):
            raise Conflict
        attempts = call.attempts - (call.status == "begun")
        return self._put(replace(call, status="ready", attempts=attempts, pause_until=until, error=None))

    def allow(self, run_id: str, id: str) -> ToolCall:
        run, call = self._run(run_id), self._call(run_id, id)
        if call.status == "ready" and call.pause_until is None:
            return call
        under_way = run.status == "running" and call.epoch == run.epoch
        if call.status == "held" or (call.status == "begun" and call.safety != "at_most_once" and not under_way):
            return self._put(replace(call, status="ready", pause_until=None, error=None))
        raise Conflict

    def end(self, run_id: str, id: str, status: str) -> ToolCall:
        self._run(run_id)
        call = self._call(run_id, id)
        if call.status == status:
            return call
        if call.status not in UNFINISHED:
            raise Conflict
        return self._put(replace(call, status=status, pause_until=None, error=None, finished_at=self.now))  # type: ignore[arg-type]

    # Helpers

    def _run(self, run_id: str) -> Run:
        if run_id not in self.runs:
            raise NotFound
        return self.runs[run_id]

    def _call(self, run_id: str, id: str) -> ToolCall:
        if id not in self.calls[run_id]:
            raise NotFound
        return self.calls[run_id][id]

    def _calls(self, run_id: str) -> Any:
        order = {id: place for place, id in enumerate(self.calls[run_id])}
        return sorted(self.calls[run_id].values(), key=lambda call: (call.iteration, order[call.id]))

    def _put(self, call: ToolCall) -> ToolCall:
        self.calls[call.run_id][call.id] = call
        return call

    def _check(self, run: Run, epoch: int) -> None:
        if epoch < run.epoch:
            raise Fenced
        if epoch > run.epoch or run.status != "running":
            raise Conflict

    def _until(self, run: Run) -> datetime:
        return self.now + timedelta(milliseconds=run.lease_ms)

    def _keep(self, run: Run) -> Run:
        """Store a run and the time from which it can be claimed."""
        self.runs[run.id] = run
        self.look.pop(run.id, None)
        if run.status == "pending":
            self.look[run.id] = ("ready", self.now)
        elif run.status == "paused":
            assert run.pause_until is not None
            self.look[run.id] = ("paused", run.pause_until)
        elif run.status == "running":
            assert run.lease_until is not None
            self.look[run.id] = ("leased", run.lease_until)
        return run

    def _leave(self, run_id: str, epoch: int, status: str, **how: Any) -> Run:
        run = self._run(run_id)
        told = (how.get("pause_until"), how.get("stop_reason"), how.get("error"))
        if (run.status, run.epoch) == (status, epoch) and told == (run.pause_until, run.stop_reason, run.error):
            return run
        self._check(run, epoch)
        if status == "completed" and any(call.status in UNFINISHED for call in self.calls[run_id].values()):
            raise Conflict
        if status in OVER:
            how["finished_at"] = self.now
        return self._keep(_left(run, status, **how))

    def _cancel(self, run: Run, reason: str | None) -> None:
        if run.status not in OVER:
            ended = _left(run, "cancelled", stop_reason="cancelled", error=reason, finished_at=self.now, attempts=0)
            self._keep(replace(ended, epoch=run.epoch + 1))
            for call in list(self.calls[run.id].values()):
                if call.status in UNFINISHED:
                    self._put(replace(call, status="cancelled", error=reason, finished_at=self.now))
        for child in [other for other in self.runs.values() if other.parent_run_id == run.id]:
            self._cancel(child, reason)

    def _take(self, run: Run, holder: str, ttl_ms: int) -> Run | None:
        if run.status in OVER or run.status == "waiting":
            self.look.pop(run.id, None)
            return None
        if run.status == "paused" and run.pause_until is not None and run.pause_until > self.now:
            self.look[run.id] = ("paused", run.pause_until)
            return None
        if run.status == "running" and not self._gone(run):
            return None
        if run.attempts >= run.max_attempts:
            error = (
                f"claimed {run.attempts} times in a row without a step; the last holder was {run.holder or 'nobody'}"
            )
            failed = _left(run, "failed", stop_reason="attempts", error=error, finished_at=self.now)
            self._keep(replace(failed, epoch=run.epoch + 1))
            return None
        taken = _left(run, "running", holder=holder, lease_ms=ttl_ms, attempts=run.attempts + 1)
        return self._keep(replace(taken, epoch=run.epoch + 1, lease_until=self._until(taken)))

    def _gone(self, run: Run) -> bool:
        """Return whether the holder's lease has expired for certain; also record the observation."""
        assert run.lease_until is not None
        lasts = timedelta(milliseconds=run.lease_ms)
        grace = timedelta(microseconds=run.lease_ms * 1_000 // 2)
        if self.now < run.lease_until <= self.now + 2 * lasts:
            self.look[run.id] = ("leased", run.lease_until)
            return False
        if run.doubted_at is None or run.doubted_at > self.now:
            self.runs[run.id] = replace(run, doubted_at=self.now)
            self.look[run.id] = ("leased", self.now + grace)
            return False
        self.look[run.id] = ("leased", run.doubted_at + grace)
        return run.doubted_at + grace <= self.now

    def _begins(self, existing: ToolCall, call: NewToolCall, epoch: int) -> bool:
        alike = (existing.tool_name, existing.safety) == (call.tool_name, call.safety) and same(
            existing.tool_input, call.tool_input
        )
        if not alike or existing.status not in UNFINISHED:
            raise Conflict
        if existing.status == "held":
            if call.hold:
                return False
            raise Conflict
        if existing.status == "ready":
            if existing.pause_until is not None and existing.pause_until > self.now:
                raise Conflict
            return True
        if existing.epoch == epoch:
            return False
        if existing.safety != "idempotent":
            raise Conflict
        return True

    def _action(self, run: Run, call: ToolCall) -> str:
        if call.status == "held":
            return "ask"
        if call.status == "ready":
            return "wait" if call.pause_until is not None and call.pause_until > self.now else "run"
        if run.status == "running" and call.epoch == run.epoch:
            return "wait"
        return AFTER_A_CRASH[call.safety]


def _left(run: Run, status: str, **how: Any) -> Run:
    """Return a run in another status, without the fields of its lease, its pause or its end."""
    nothing: dict[str, Any] = {
        "holder": "", "lease_ms": 0, "lease_until": None, "doubted_at": None, "pause_until": None, "stop_reason": None,
        "error": None, "finished_at": None,
    }  # fmt: skip
    return replace(run, **{**nothing, "status": status, **how})


def _plain(given: tuple[Any, ...]) -> Any:
    state, messages, calls, usage, stop_reason, pause_until = given
    told = [(message.id, message.role, message.content) for message in messages]
    done = [(call.id, call.result, call.error, call.status) for call in calls]
    used = usage or Usage()
    until = None if pause_until is None else pause_until.isoformat()
    return [state, told, done, used.input_tokens, used.output_tokens, stop_reason, until]
