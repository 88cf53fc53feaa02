"""Runs: executions of an agent in a session, that go on where they were however often whoever drives them dies.

A run is driven by whoever holds its lease (``leases``). Each iteration is committed as one *step*: the state, the messages, the
outcomes of tool calls and the usage become visible together, or not at all. Going on after a crash means to claim the run,
to ``load`` it and to do the next step.

Every write of a holder brings the epoch that its claim gave. What is repeated because its answer was lost returns the first
result; what comes too late, too early or from somebody who no longer holds the run is refused and changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from ....clock import to_us
from ....core import scope as scopes
from ....core.blocking import Blocking, blocking
from ....core.filters import Filter, FilterColumns, equal_metadata, filter_list
from ....core.paging import Page, after_clause, encode_cursor, page, rows_to_read
from ....core.rows import mapper
from ....core.store import TenantStore, reads, writes
from ....engines.protocol import Connection
from ....errors import AlreadyExists, Conflict, InvalidInput, Unavailable
from ....ids import Id
from ....ids import parse as parse_id
from ...conversation.messages import NewMessage
from . import ledger, starting
from .ledger import OPEN, ToolCall, ToolOutcome, Unusual
from .states import (
    FINAL,
    Run,
    Status,
    Verb,
    check_epoch,
    check_holder,
    left_before,
    lock_hidden,
    lock_run,
    missing,
    moment,
    move,
    put_in_queue,
    queries,
    run_of,
)
from .step_log import CommittedStep, NewStep, Step, Usage, find_committed, find_step, new_step, step_group, write_steps
from .tool_calls import open_calls

FILTERS = FilterColumns(
    {
        "id": ("id", "id"),
        "session_id": ("session_id", "id"),
        "agent": ("agent_id", "text"),
        "status": ("status", "text"),
        "iteration": ("iteration", "number"),
        "parent_run_id": ("parent_run_id", "id"),
        "depth": ("depth", "number"),
        "started_at": ("started_at", "time"),
        "finished_at": ("finished_at", "time"),
    },
    metadata="metadata",
)
_MAX_LOADS = 10
"""How often a run is looked at again because it went on while it was loaded."""


class LoadedRun(Struct, frozen=True):
    """All that is needed to go on with a run: what it is, its last step, and the tool calls that no step has taken in yet."""

    run: Run
    step: Step | None
    tool_calls: list[ToolCall]


class AsyncRuns(TenantStore):
    """The runs of one tenant."""

    @writes
    async def start(
        self,
        connection: Connection,
        session_id: Id,
        *,
        agent: str | None = None,
        id: str | None = None,
        parent: Id | None = None,
        parent_call: str | None = None,
        parent_epoch: int | None = None,
        max_attempts: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Run:
        """A new run, ready to be claimed. Without an ``agent`` it is the session's.

        With an ``id`` of the caller's the call can be repeated and returns the run that is there; and a tool call of a
        ``parent`` starts one run, however often it is tried. With ``parent_epoch``, only if the parent is still held so.

        Raises:
            NotFound: there is no such live session, parent or call.
            Conflict: there is another run with this id or for this call, or the parent has ended.
            Fenced: somebody else has claimed the parent since.
            LimitExceeded: the parent is ``run_depth`` deep already.
        """
        new = starting.new_run(self._scope, session_id, agent, id, max_attempts, metadata)
        new.update(await starting.below(connection, self._scope, parent, parent_call, parent_epoch))
        row = await queries.create.one(connection, new)
        if row is None:
            return await starting.find_started(connection, new)
        run = run_of(connection, row)
        await put_in_queue(connection, self._scope, run, new["now_at"])
        return run

    @reads
    async def get(self, connection: Connection, run_id: Id) -> Run:
        """One run.

        Raises:
            NotFound: there is none in a live session.
        """
        return await self._get(connection, run_id)

    @reads
    async def load(self, connection: Connection, run_id: Id) -> LoadedRun:
        """A run as of one moment, with what is needed to go on; it costs the same however many steps there are.

        Raises:
            NotFound: there is none in a live session.
        """
        for _ in range(_MAX_LOADS):
            run = await self._get(connection, run_id)
            params = self._scope.params(run_id=run.id, iteration=run.iteration)
            step = await find_step(connection, params) if run.iteration else None
            progress, calls = await open_calls(connection, params)
            if (progress.iteration, progress.epoch) == (run.iteration, run.epoch):
                return LoadedRun(run, step, calls)
        raise Unavailable(f"run {run_id} went on each time it was loaded; try again")

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        session: Id | None = None,
        agent: str | None = None,
        status: Status | None = None,
        parent: Id | None = None,
        metadata: Mapping[str, Any] | None = None,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Run]:
        """Runs, the one started last first. With ``limit``, a page; its ``next`` is the cursor of the one after.

        Raises:
            InvalidFilter: a filter or the cursor is not understood.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(limit=rows_to_read(limit, limits))
        plain = (("session_id", session), ("agent", agent), ("status", status), ("parent_run_id", parent))
        filters = [Filter("eq", value, column=name) for name, value in plain if value is not None]
        filters += [*equal_metadata(metadata), *filter_list(where)]
        clause = FILTERS.compile(filters, params, connection.dialect, limits) + after_clause(
            cursor, "runs", {"started_at": "time", "id": "id"}, params, connection.dialect
        )
        index = "runs_by_session" if session else "runs_by_status" if status else "runs_by_start"
        index = "runs_by_parent" if parent else index
        runs = mapper(Run, connection.dialect)(await queries.list.all(connection, params, clause, index))
        return page(runs, limit, limits, "runs", lambda last: encode_cursor("runs", to_us(last.started_at), last.id))

    async def step(
        self,
        run_id: Id,
        *,
        epoch: int,
        iteration: int,
        state: Any,
        messages: Sequence[NewMessage] = (),
        tool_calls: Sequence[ToolOutcome] = (),
        usage: Usage | None = None,
        last_tool_result: str | None = None,
        snapshot: str | None = None,
        stop_reason: str | None = None,
        pause_until: datetime | None = None,
    ) -> CommittedStep:
        """Commit one iteration, all of it or nothing; it also renews the lease. ``iteration`` is the last one plus 1.

        ``tool_calls`` says what calls came to that were intended before; what a person has decided meanwhile stands. With a
        ``stop_reason`` the run is finished in the same commit, with ``pause_until`` it is paused. The same step again, with the
        same content, returns the first result.

        Raises:
            NotFound: there is no such run in a live session.
            Fenced: somebody else has claimed the run since.
            Conflict: the caller does not hold the run, it is at another iteration, this iteration was committed with another
                content, a tool call is not open, or a message with one of the ids is there.
        """
        check_epoch(epoch)
        ends = _ends(self._scope, stop_reason, pause_until)
        new = new_step(
            self._scope,
            parse_id(run_id, "run id"),
            epoch=epoch,
            iteration=iteration,
            state=state,
            messages=messages,
            tool_calls=tool_calls,
            usage=usage,
            last_tool_result=last_tool_result,
            snapshot=snapshot,
            ends=[*ends.values()],
        )
        if not ends:
            try:
                return await self._engine.grouped(step_group, new)
            except Unusual:
                pass  # whatever it is, it is looked at below
        return await self._engine.write(lambda connection: self._step(connection, new, ends))

    @writes
    async def pause(self, connection: Connection, run_id: Id, *, epoch: int, until: datetime | None = None) -> Run:
        """Let go of a run until a time, from which on it can be claimed; or, without one, until it is resumed.

        Raises:
            NotFound: there is no such run in a live session.
            Fenced: somebody else has claimed the run since.
            Conflict: the caller does not hold it.
        """
        until_us = None if until is None else moment(until, "until")
        return await self._leave(
            connection, run_id, epoch, "wait" if until is None else "pause", pause_until_at=until_us
        )

    @writes
    async def resume(self, connection: Connection, run_id: Id) -> Run:
        """Have a run that is paused, waits or has failed be claimed again, as if it had never been tried. Needs no lease.

        One that is pending or running already is returned as it is.

        Raises:
            NotFound: there is no such run in a live session.
            Conflict: it is completed or cancelled.
        """
        run = await lock_run(connection, self._scope, run_id)
        if run.status in ("pending", "running"):
            return run
        return await move(connection, self._scope, run, "resume", now_us=self._scope.clock.now_us(), attempts=0)

    @writes
    async def finish(self, connection: Connection, run_id: Id, *, epoch: int, stop_reason: str) -> Run:
        """The run has come to its end.

        Raises:
            NotFound: there is no such run in a live session.
            Fenced: somebody else has claimed the run since.
            Conflict: the caller does not hold it, or a tool call of it is still open.
        """
        reason = scopes.name(stop_reason, "stop_reason", self._scope.limits)
        return await self._leave(connection, run_id, epoch, "finish", stop_reason=reason)

    @writes
    async def fail(self, connection: Connection, run_id: Id, *, epoch: int, error: str) -> Run:
        """The run cannot go on. ``resume`` can have it tried again.

        Raises:
            NotFound: there is no such run in a live session.
            Fenced: somebody else has claimed the run since.
            Conflict: the caller does not hold it.
        """
        said = scopes.free_text(error, "error", self._scope.limits)
        return await self._leave(connection, run_id, epoch, "fail", stop_reason="error", error=said)

    @writes
    async def cancel(self, connection: Connection, run_id: Id, *, reason: str | None = None) -> Run:
        """End a run from outside, with all that it has started: its holder can write no more, and its open tool calls and the
        runs below it are cancelled too. Needs no lease. Repeating it is fine.

        Raises:
            NotFound: there is no such run in a live session.
            Conflict: it has completed or failed.
        """
        error = None if reason is None else scopes.free_text(reason, "reason", self._scope.limits)
        run = await lock_run(connection, self._scope, run_id)
        if run.status == "cancelled":
            return run
        cancelled = await self._cancel(connection, run, error)
        below = await self._children(connection, run.id)
        while below:
            child_id, is_open = below.popleft()
            if is_open:
                child, _ = await lock_hidden(connection, self._scope, child_id)
                if child.status not in FINAL:  # it may have ended while it was waited for
                    await self._cancel(connection, child, error)
            below += await self._children(connection, child_id)
        return cancelled

    async def _cancel(self, connection: Connection, run: Run, error: str | None) -> Run:
        now = self._scope.clock.now_us()
        params = self._scope.params(run_id=run.id, error=error, now_at=now)
        cancelled = await move(
            connection, self._scope, run, "cancel", now_us=now, stop_reason="cancelled", error=error, attempts=0
        )
        await ledger.queries.cancel_open.all(connection, params)
        return cancelled

    async def _children(self, connection: Connection, run_id: str) -> deque[tuple[str, bool]]:
        rows = await queries.children.all(connection, self._scope.params(run_id=run_id), index="runs_by_parent")
        return deque((row[0], bool(row[1])) for row in rows)

    async def _get(self, connection: Connection, run_id: str) -> Run:
        row = await queries.get.one(connection, self._scope.params(run_id=parse_id(run_id, "run id")))
        if row is None:
            raise missing(run_id)
        return run_of(connection, row)

    async def _leave(self, connection: Connection, run_id: str, epoch: int, verb: Verb, **changes: Any) -> Run:
        """A holder gives its run up, one way or another; the same again is fine."""
        check_epoch(epoch)
        run = await lock_run(connection, self._scope, run_id)
        if left_before(run, epoch, verb, changes):
            return run
        check_holder(run, epoch)
        return await self._end(connection, run, verb, **changes)

    async def _end(self, connection: Connection, run: Run, verb: Verb, **changes: Any) -> Run:
        if verb == "finish":
            _, calls = await open_calls(connection, self._scope.params(run_id=run.id))
            there = [call.id for call in calls if call.status in OPEN]
            if there:
                raise Conflict(f"run {run.id} has open tool calls: {', '.join(there[:5])}; finish or cancel them first")
        attempts = run.attempts if verb == "fail" else 0
        return await move(
            connection, self._scope, run, verb, now_us=self._scope.clock.now_us(), attempts=attempts, **changes
        )

    async def _step(self, connection: Connection, new: NewStep, ends: Mapping[str, Any]) -> CommittedStep:
        """What is unusual about a step: that it ends the run, that it is there already, or a reason to refuse it."""
        run = await lock_run(connection, self._scope, new.run_id)
        found = await find_committed(connection, new, run.session_id)
        if found is not None and found[0]:
            return found[1]
        check_holder(run, new.epoch)
        if found is not None:
            raise Conflict(f"step {new.iteration} of run {run.id} was committed with another content")
        if new.iteration != run.iteration + 1:
            raise Conflict(
                f"run {run.id} is at step {run.iteration}; the next is {run.iteration + 1}, not {new.iteration}"
            )
        try:
            async with connection.savepoint():
                (done,) = await write_steps(connection, [new])
        except AlreadyExists:
            raise Conflict("a message with one of the ids of this step is there already") from None
        if done is None:
            raise Conflict(f"a tool call that step {new.iteration} of run {run.id} finishes is not open")
        if ends:
            verb: Verb = "finish" if "stop_reason" in ends else "pause"
            await self._end(connection, run, verb, **ends)
        return done


class Runs(Blocking[AsyncRuns]):
    """The runs of one tenant."""

    start = blocking(AsyncRuns.start)
    get = blocking(AsyncRuns.get)
    load = blocking(AsyncRuns.load)
    list = blocking(AsyncRuns.list)
    step = blocking(AsyncRuns.step)
    pause = blocking(AsyncRuns.pause)
    resume = blocking(AsyncRuns.resume)
    finish = blocking(AsyncRuns.finish)
    fail = blocking(AsyncRuns.fail)
    cancel = blocking(AsyncRuns.cancel)


def _ends(scope: scopes.Scope, stop_reason: str | None, pause_until: datetime | None) -> dict[str, Any]:
    """What a step does to its run besides, as the changes of a move."""
    if stop_reason is not None and pause_until is not None:
        raise InvalidInput("a step finishes the run or pauses it, not both")
    if stop_reason is not None:
        return {"stop_reason": scopes.name(stop_reason, "stop_reason", scope.limits)}
    return {} if pause_until is None else {"pause_until_at": moment(pause_until, "pause_until")}
