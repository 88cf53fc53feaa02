"""Runs: executions of an agent in a session that resume where they stopped, however often their process dies.

The holder of a run's lease drives it (see ``leases``). Each iteration is committed as one *step*: the state, the messages, the
outcomes of tool calls and the usage become visible together, or not at all. To resume after a crash, claim the run,
``load`` it and commit the next step.

Every write of a holder carries the epoch of its claim. A write that is repeated because its answer was lost returns the first
result; a write that is out of order, or of a process that no longer holds the run, is refused and changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from ....clock import to_us
from ....core import actor_context
from ....core import scope as scopes
from ....core.blocking import Blocking, blocking
from ....core.filters import Filter, equal_metadata, filter_list
from ....core.paging import Page, after_clause, encode_cursor, page, rows_to_read
from ....core.rows import mapper
from ....core.store import TenantStore, reads, writes
from ....engines.heavy_calls import HeavyCall
from ....engines.protocol import Connection
from ....errors import AlreadyExists, Conflict, InvalidInput, Unavailable
from ....ids import Id
from ....ids import parse as parse_id
from ...conversation.new_entries import NewMessage
from . import deletion, ledger, starting
from .ledger import OPEN_STATUSES, NeedsTransaction, ToolCall, ToolOutcome
from .run_lists import FILTERS, equal_columns, index_for
from .states import (
    FINAL,
    Run,
    Status,
    Verb,
    check_epoch,
    check_holder,
    is_repeated_exit,
    lock_any_run,
    lock_run,
    move,
    queries,
    run_not_found,
    run_of,
    time_us,
    update_queue,
)
from .step_log import CommittedStep, NewStep, Step, Usage, find_committed, find_step, new_step, step_group, write_steps
from .tool_calls import open_calls

_MAX_LOADS = 10
"""How often a run is read again because it changed while it was loaded."""


class LoadedRun(Struct, frozen=True):
    """All data needed to resume a run: the run, its last step, and the tool calls that no step contains yet."""

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
        """Start a run, ready to be claimed. ``agent`` defaults to the session's agent.

        With an ``id`` chosen by the caller, the call can be repeated and returns the existing run; likewise, a tool call of a
        ``parent`` starts one run, however often it is tried. With ``parent_epoch``, the parent must still be held under it.

        Raises:
            NotFound: the session, parent or call does not exist, or the session is deleted.
            Conflict: another run has this id or was started for this call, or the parent has ended.
            Fenced: another holder has claimed the parent since.
            LimitExceeded: the parent is ``run_depth`` deep already.
        """
        new = starting.new_run(self._scope, session_id, agent, id, max_attempts, metadata)
        new.update(await starting.parent_params(connection, self._scope, parent, parent_call, parent_epoch))
        row = await queries.create.one(connection, new)
        if row is None:
            return await starting.find_started(connection, new)
        run = run_of(connection, row)
        await update_queue(connection, self._scope, run, new["now_at"])
        return run

    @reads
    async def get(self, connection: Connection, run_id: Id) -> Run:
        """Return one run.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
        """
        return await self._get(connection, run_id)

    @reads
    async def load(self, connection: Connection, run_id: Id) -> LoadedRun:
        """Return a consistent view of a run with all data needed to resume it. The cost does not depend on the number of steps.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            Unavailable: the run changed each time it was read; try again.
        """
        for _ in range(_MAX_LOADS):
            run = await self._get(connection, run_id)
            params = self._scope.params(run_id=run.id, iteration=run.iteration)
            step = await find_step(connection, params) if run.iteration else None
            progress, calls = await open_calls(connection, params)
            if (progress.iteration, progress.epoch) == (run.iteration, run.epoch):
                return LoadedRun(run, step, calls)
        raise Unavailable(f"run {run_id} changed each time it was loaded; try again")

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
        """List runs, the one started last first. With ``limit``, one page; its ``next`` is the cursor of the next page.

        Raises:
            InvalidFilter: a filter or the cursor is invalid.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(limit=rows_to_read(limit, limits))
        columns = {"session_id": session, "agent": agent, "status": status, "parent_run_id": parent}
        filters = [*equal_columns(columns), *equal_metadata(metadata), *filter_list(where)]
        clause = FILTERS.compile(filters, params, connection.dialect, limits) + after_clause(
            cursor, "runs", {"started_at": "time", "id": "id"}, params, connection.dialect
        )
        runs = mapper(Run, connection.dialect)(await queries.list.all(connection, params, clause, index_for(columns)))
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
        """Commit one iteration, all of it or nothing; this also renews the lease. ``iteration`` is the last one plus 1.

        ``tool_calls`` are the outcomes of calls that were intended before; a person's decision in the meantime takes precedence.
        With a ``stop_reason`` the run is finished in the same commit, with ``pause_until`` it is paused. Repeating a step with
        the same content returns the first result.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            Fenced: another holder has claimed the run since.
            Conflict: the caller does not hold the run, it is at another iteration, this iteration was committed with other
                content, a tool call is not open, or a message with one of the ids exists.
        """
        check_epoch(epoch)
        exit = _exit_changes(self._scope, stop_reason, pause_until)
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
            exit=[*exit.values()],
        )
        if not exit:
            try:
                return await self._engine.grouped(step_group, new)
            except NeedsTransaction:
                pass  # handled in a transaction below
        return await self._engine.write(lambda connection: self._step(connection, new, exit))

    @writes
    async def pause(self, connection: Connection, run_id: Id, *, epoch: int, until: datetime | None = None) -> Run:
        """Pause a run and release it, until a time from which it can be claimed; or, without one, until it is resumed.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            Fenced: another holder has claimed the run since.
            Conflict: the caller does not hold it.
        """
        until_us = None if until is None else time_us(until, "until")
        return await self._leave(
            connection, run_id, epoch, "wait" if until is None else "pause", pause_until_at=until_us
        )

    @writes
    async def resume(self, connection: Connection, run_id: Id) -> Run:
        """Make a paused, waiting or failed run claimable again, with no attempts counted. Needs no lease.

        A pending or running run is returned unchanged.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            Conflict: it is completed or cancelled.
        """
        run = await lock_run(connection, self._scope, run_id)
        if run.status in ("pending", "running"):
            return run
        return await move(connection, self._scope, run, "resume", now_us=self._scope.clock.now_us(), attempts=0)

    @writes
    async def finish(self, connection: Connection, run_id: Id, *, epoch: int, stop_reason: str) -> Run:
        """End a run as completed.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            Fenced: another holder has claimed the run since.
            Conflict: the caller does not hold it, or it has an open tool call.
        """
        reason = scopes.name(stop_reason, "stop_reason", self._scope.limits)
        return await self._leave(connection, run_id, epoch, "finish", stop_reason=reason)

    @writes
    async def fail(self, connection: Connection, run_id: Id, *, epoch: int, error: str) -> Run:
        """End a run as failed. ``resume`` can make it claimable again.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            Fenced: another holder has claimed the run since.
            Conflict: the caller does not hold it.
        """
        message = scopes.free_text(error, "error", self._scope.limits)
        return await self._leave(connection, run_id, epoch, "fail", stop_reason="error", error=message)

    @writes
    async def cancel(self, connection: Connection, run_id: Id, *, reason: str | None = None) -> Run:
        """End a run from outside, with everything it has started. Needs no lease. Can be repeated.

        Its holder can no longer write, and its open tool calls and its child runs are cancelled, too.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            Conflict: it has completed or failed.
        """
        error = None if reason is None else scopes.free_text(reason, "reason", self._scope.limits)
        run = await lock_run(connection, self._scope, run_id)
        if run.status == "cancelled":
            return run
        cancelled = await self._cancel(connection, run, error)
        children = await self._children(connection, run.id)
        while children:
            child_id, is_open = children.popleft()
            if is_open:
                child, _ = await lock_any_run(connection, self._scope, child_id)
                if child.status not in FINAL:  # it may have ended before it could be locked
                    await self._cancel(connection, child, error)
            children += await self._children(connection, child_id)
        return cancelled

    async def delete(self, run_id: Id) -> None:
        """Delete a run that has ended, permanently: its steps, tool calls, rewinds and snapshots. The messages stay in the
        session, and the runs that it has started stay as runs without a parent.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            Conflict: it has not ended, or the run that has started it has not; cancel that first. Or a hold protects it, or a
                rewind is not finished.
        """
        acting = actor_context.now(self._scope)
        await self._engine.write(HeavyCall(lambda connection: deletion.delete(connection, self._scope, acting, run_id)))

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
            raise run_not_found(run_id)
        return run_of(connection, row)

    async def _leave(self, connection: Connection, run_id: str, epoch: int, verb: Verb, **changes: Any) -> Run:
        """Make a move with which a holder gives up its run. Can be repeated."""
        check_epoch(epoch)
        run = await lock_run(connection, self._scope, run_id)
        if is_repeated_exit(run, epoch, verb, changes):
            return run
        check_holder(run, epoch)
        return await self._end(connection, run, verb, **changes)

    async def _end(self, connection: Connection, run: Run, verb: Verb, **changes: Any) -> Run:
        if verb == "finish":
            _, calls = await open_calls(connection, self._scope.params(run_id=run.id))
            open_ids = [call.id for call in calls if call.status in OPEN_STATUSES]
            if open_ids:
                raise Conflict(
                    f"run {run.id} has open tool calls: {', '.join(open_ids[:5])}; finish or cancel them first",
                    reason="open_calls",
                )
        attempts = run.attempts if verb == "fail" else 0
        return await move(
            connection, self._scope, run, verb, now_us=self._scope.clock.now_us(), attempts=attempts, **changes
        )

    async def _step(self, connection: Connection, new: NewStep, exit: Mapping[str, Any]) -> CommittedStep:
        """Commit a step that the grouped path cannot: it ends the run, was committed before, or must be refused."""
        run = await lock_run(connection, self._scope, new.run_id)
        committed = await find_committed(connection, new, run.session_id)
        if committed is not None and committed[0]:
            return committed[1]
        check_holder(run, new.epoch)
        if committed is not None:
            raise Conflict(
                f"step {new.iteration} of run {run.id} was committed with other content", reason="other_content"
            )
        if new.iteration != run.iteration + 1:
            raise Conflict(
                f"run {run.id} is at step {run.iteration}; the next is {run.iteration + 1}, not {new.iteration}",
                reason="wrong_step",
            )
        try:
            async with connection.savepoint():
                (step,) = await write_steps(connection, [new])
        except AlreadyExists:
            raise Conflict(
                f"a message with an id of step {new.iteration} of run {run.id} already exists",
                reason="message_id_taken",
            ) from None
        if step is None:
            raise Conflict(
                f"a tool call that step {new.iteration} of run {run.id} finishes is not open", reason="call_not_open"
            )
        if exit:
            verb: Verb = "finish" if "stop_reason" in exit else "pause"
            await self._end(connection, run, verb, **exit)
        return step


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
    delete = blocking(AsyncRuns.delete)


def _exit_changes(scope: scopes.Scope, stop_reason: str | None, pause_until: datetime | None) -> dict[str, Any]:
    """Return the changes of the move with which a step finishes or pauses its run; empty if the run continues."""
    if stop_reason is not None and pause_until is not None:
        raise InvalidInput("a step finishes the run or pauses it, not both: pass stop_reason or pause_until")
    if stop_reason is not None:
        return {"stop_reason": scopes.name(stop_reason, "stop_reason", scope.limits)}
    return {} if pause_until is None else {"pause_until_at": time_us(pause_until, "pause_until")}
