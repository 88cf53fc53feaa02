"""Rewinds: take a run back to an earlier step, with its conversation, as one commit; and undo it.

A directory cannot be part of a commit. So a rewind is *begun*: in one transaction the run's later steps and tool
calls are archived, the session shows a branch that ends with the step's last message, and the rewind is recorded.
Then the directory is restored to the step's snapshot and the rewind is *finished*: by the process that began it, if
it gave a directory, otherwise by the worker that next claims the run (``holdfast.workspaces``). A process that dies
in between leaves a pending rewind, and repeating the remaining work is harmless. The run waits until it is resumed; a
loop restores its workspace to the snapshot before anything else, and other drivers call ``pending`` first.

A pending rewind without a directory has changed no files. So another rewind or a redo may follow it at once: it
replaces the pending one, and the worker restores the workspace directly to the run's new step.

::

    begin -> rewinding -> finish -> rewound -> redo -> redoing -> finish -> redone

A redo is the reverse. The archived state is restored unchanged: states, outcomes, messages, numbers. Rewinds nest: a
run can be taken back several times, and each redo undoes the last rewind that led to its current step. A run that has
continued since is no longer at the step the rewind led to: rewind it to that step first, and then redo the earlier
rewind by its id.

Calls that were open at the step a run goes back to are open again, as after a crash: they may have happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from ...clock import to_us
from ...core import scope as scopes
from ...core import text
from ...core.blocking import Blocking, blocking
from ...core.paging import Page, decode_cursor, encode_cursor, page, rows_to_read
from ...core.rows import mapper
from ...core.store import TenantStore, reads, writes
from ...engines.protocol import Connection, Row
from ...errors import Conflict, NotFound
from ...ids import Id
from ...ids import parse as parse_id
from ..conversation.branches import AsyncBranches, rewind_to, switch_branch
from ..execution.runs.states import Run, lock_run
from . import retention_rules, run_moves, snapshots
from . import rewind_rows as rows
from .rewind_rows import OPEN, Rewind, RewindStatus, RunBefore, StoredRewind, queries

_LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_MAX_REASON = 1_000
"""Characters stored of the reason why a rewind is pending."""


class AsyncRewinds(TenantStore):
    """The rewinds of one tenant's runs."""

    @writes
    async def begin(
        self,
        connection: Connection,
        run_id: Id,
        *,
        to_step: int,
        id: str | None = None,
        epoch: int | None = None,
        path: str | None = None,
        snapshot: str | None = None,
        dirty: str | None = None,
        keep_s: int | None = None,
    ) -> Rewind:
        """Take a run and its conversation back to a step; 0 is before the first. The run then waits until it is
        resumed.

        With a ``path`` the caller restores that directory to ``snapshot`` and then calls ``finish``; with a
        ``snapshot`` alone, the worker that next claims the run does. With an ``epoch`` the caller holds the run's
        lease, and keeps it. With ``keep_s``, the snapshots of the run are kept for that number of seconds after it
        ends, if that is longer. With a caller-supplied ``id`` the call can be repeated and returns the first result.

        Raises:
            NotFound: the run does not exist in a live session, it has no such step, or the snapshot does not exist.
            Fenced: another worker has claimed the run since.
            Conflict: a worker drives the run, or another run of its session; a child run is active; an earlier rewind
                is not finished; or the session no longer shows the messages of that step.
        """
        step = rows.parse_step(to_step)
        run = await lock_run(connection, self._scope, run_id)
        new_id = self._scope.ids.new() if id is None else parse_id(id, "rewind id")
        existing = await self._find(connection, new_id)
        if existing is not None:
            return rows.check_same(existing.rewind, run.id, step)
        new: dict[str, Any] = {
            "rewind_id": new_id,
            "to_step": step,
            "path": None if path is None else self._text(path, "path"),
            "snapshot": None if snapshot is None else self._text(snapshot, "snapshot"),
            "pending_reason": rows.pending_reason(path, snapshot),
        }
        is_for_worker = path is None and snapshot is not None
        waiting = await run_moves.check_movable(connection, self._scope, run, epoch, after_waiting=is_for_worker)
        if is_for_worker:
            await self._keep_snapshot(connection, snapshot)
        if waiting is not None:
            await self._end(connection, waiting)
            dirty = waiting.target_snapshot
        if keep_s is not None:
            await retention_rules.keep_for(connection, self._scope, run.id, keep_s)
        new["dirty"] = None if dirty is None else self._text(dirty, "dirty")
        return await self._take_back(connection, run, epoch, new)

    @writes
    async def redo(
        self,
        connection: Connection,
        run_id: Id,
        *,
        id: str | None = None,
        epoch: int | None = None,
        path: str | None = None,
    ) -> Rewind:
        """Undo the last rewind that led to the run's current step, or the one with this ``id``, restoring steps,
        calls and messages.

        Raises:
            NotFound: the run does not exist in a live session, or it has no such rewind.
            Fenced: another worker has claimed the run since.
            Conflict: there is nothing to redo, the run has continued since, a worker drives it, or a rewind is not
                finished.
        """
        run = await lock_run(connection, self._scope, run_id)
        requested = None if id is None else await self._get(connection, id)
        if requested is not None:
            if requested.rewind.run_id != run.id:
                raise NotFound(f"run {run.id} has no rewind {id}", noun="rewind", key=str(id))
            if requested.rewind.status in ("redoing", "redone"):
                return requested.rewind
        waiting = await run_moves.check_movable(connection, self._scope, run, epoch, after_waiting=path is None)
        target = requested or await self._last(connection, run)
        await self._check_current(connection, run, target)
        if waiting is not None and waiting.id != target.rewind.id:
            await self._end(connection, waiting)
        return await self._put_back(connection, run, epoch, target, path)

    @writes
    async def finish(self, connection: Connection, rewind_id: Id) -> Rewind:
        """Record that the directory matches the run. After a redo, the run regains its former status. Repeating the
        call is harmless.

        Raises:
            NotFound: the rewind does not exist.
        """
        stored_rewind = await self._get(connection, rewind_id)
        run = await lock_run(connection, self._scope, stored_rewind.rewind.run_id)
        stored_rewind = await self._get(connection, rewind_id)
        rewind, before = stored_rewind.rewind, stored_rewind.before
        if rewind.status not in OPEN:
            return rewind
        if rewind.status == "redoing" and rows.regains_status(run, before):
            await run_moves.move(connection, self._scope, run, None, **rows.changes(before), status=before.status)
        return await self._end(connection, rewind)

    @reads
    async def get(self, connection: Connection, rewind_id: Id) -> Rewind:
        """Return a rewind.

        Raises:
            NotFound: the rewind does not exist.
        """
        return (await self._get(connection, rewind_id)).rewind

    @reads
    async def list(
        self, connection: Connection, run_id: Id, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[Rewind]:
        """List the rewinds of a run, the latest first. With ``limit``, return a page.

        Raises:
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        before = _LAST_ID if cursor is None else parse_id(decode_cursor(cursor, "rewinds", str)[0], "cursor")
        params = self._scope.params(
            run_id=parse_id(run_id, "run id"), before_id=before, limit=rows_to_read(limit, limits)
        )
        rewinds = mapper(Rewind, connection.dialect)(await queries.list.all(connection, params))
        return page(rewinds, limit, limits, "rewinds", lambda last: encode_cursor("rewinds", last.id))

    @reads
    async def pending(self, connection: Connection, run_id: Id | None = None) -> Page[Rewind]:
        """List the rewinds whose directory has not been restored yet, of a run or of all, the oldest first.

        Returns at most ``list_rows``: when those are finished, call it again.
        """
        params = self._scope.params(limit=self._scope.limits.list_rows)
        if run_id is None:
            return Page(mapper(Rewind, connection.dialect)(await queries.pending.all(connection, params)))
        params["run_id"] = parse_id(run_id, "run id")
        return Page(mapper(Rewind, connection.dialect)(await queries.pending_of.all(connection, params)))

    # Rewinding

    async def _take_back(self, connection: Connection, run: Run, epoch: int | None, new: dict[str, Any]) -> Rewind:
        now = self._scope.clock.now_us()
        params = self._scope.params(
            run_id=run.id, session_id=run.session_id, from_step=run.iteration, now_at=now, **new
        )
        params["anchor"], params["step_at"] = await self._anchor(connection, run, new["to_step"])
        children = await self._detach_children(connection, params)
        branches = await self._rewind_conversation(connection, run, params)
        tokens = await queries.tokens.one(connection, params)
        assert tokens is not None
        params |= {"branch_before": branches[0], "branch_after": branches[1]}
        params["run_before"] = text.dump({"run": structs.asdict(rows.run_before(run)), "children": children})
        (row,) = await queries.create.all(connection, params)
        for query in (queries.keep_steps, queries.drop_steps, queries.keep_calls, queries.drop_calls):
            await query.all(connection, params)
        if params["step_at"] is not None:
            await queries.settled_calls.all(connection, params)
        await queries.open_calls.all(connection, params)
        await run_moves.move(
            connection,
            self._scope,
            run,
            epoch,
            iteration=new["to_step"],
            input_tokens=run.input_tokens - int(tokens[0]),
            output_tokens=run.output_tokens - int(tokens[1]),
            checkpointed_at=params["step_at"],
        )
        return mapper(Rewind, connection.dialect)([row])[0]

    async def _anchor(self, connection: Connection, run: Run, step: int) -> tuple[str, int | None]:
        """Return what identifies a step of a run, and when it was committed."""
        if step == 0:
            return "", None
        row = await queries.step.one(connection, self._scope.params(run_id=run.id, to_step=step))
        if row is None or step > run.iteration:
            raise NotFound(
                f"run {run.id} has no step {step}; it is at step {run.iteration}", noun="step", key=str(step)
            )
        at = row[2] if isinstance(row[2], int) else to_us(row[2])
        return f"{row[0]}.{at}.{row[1]}", at

    async def _detach_children(self, connection: Connection, params: dict[str, Any]) -> Sequence[tuple[str, str]]:
        """Detach the child runs that calls of later steps have started; they stay, but are no longer a call's result."""
        children = await queries.children.all(connection, params)
        for child_id, _, is_open in children:
            if is_open:
                raise Conflict(
                    f"child run {child_id}, which a later step has started, is active: cancel it first",
                    reason="child_active",
                )
        for child_id, _, _ in children:
            await queries.attach_child.all(connection, {**params, "child_id": child_id, "call_id": None})
        return [(child_id, text.unescape(call_id)) for child_id, call_id, _ in children]

    async def _rewind_conversation(self, connection: Connection, run: Run, params: dict[str, Any]) -> tuple[int, int]:
        row = await queries.last_place.one(connection, params)
        if row is not None:
            return await rewind_to(connection, self._branches, run.session_id, after=int(row[0]))
        row = await queries.first_place.one(connection, params)
        return await rewind_to(connection, self._branches, run.session_id, before=None if row is None else int(row[0]))

    # Redoing

    async def _last(self, connection: Connection, run: Run) -> StoredRewind:
        anchor, _ = await self._anchor(connection, run, run.iteration)
        params = self._scope.params(run_id=run.id, iteration=run.iteration, anchor=anchor)
        row = await queries.to_redo.one(connection, params)
        if row is None:
            raise Conflict(
                f"no rewind led run {run.id} to its current step {run.iteration}: see rewinds.list",
                reason="nothing_to_redo",
            )
        return _stored_rewind(connection, row)

    async def _check_current(self, connection: Connection, run: Run, stored_rewind: StoredRewind) -> None:
        """Refuse to redo a rewind after which the run has continued: its work since would be lost."""
        rewind = stored_rewind.rewind
        anchor, _ = await self._anchor(connection, run, run.iteration)
        params = self._scope.params(run_id=run.id, to_step=rewind.to_step)
        has_moved = run.iteration != rewind.to_step or anchor != stored_rewind.anchor
        if has_moved or await queries.newer_calls.one(connection, params) is not None:
            raise Conflict(
                f"run {run.id} has continued since rewind {rewind.id}: rewind it to step {rewind.to_step} first, "
                "then redo that one by its id",
                reason="run_continued",
            )

    async def _put_back(
        self, connection: Connection, run: Run, epoch: int | None, stored_rewind: StoredRewind, path: str | None
    ) -> Rewind:
        rewind = stored_rewind.rewind
        params = self._scope.params(run_id=run.id, rewind_id=rewind.id)
        await queries.make_room.all(connection, params)
        for query in (queries.bring_steps, queries.bring_calls, queries.forget_steps, queries.forget_calls):
            await query.all(connection, params)
        for child_id, call_id in stored_rewind.children:
            attached = {**params, "child_id": child_id, "call_id": text.escape(call_id)}
            await queries.attach_child.all(connection, attached)
        if rewind.branch_before != rewind.branch_after:
            await switch_branch(connection, self._branches, run.session_id, rewind.branch_before)
        await run_moves.move(connection, self._scope, run, epoch, **rows.changes(stored_rewind.before))
        return await self._update(connection, rewind, "redoing", path, rows.pending_reason(path, rewind.dirty))

    # Used by both

    @writes
    async def _explain(self, connection: Connection, rewind_id: str, reason: str) -> None:
        """Record why a pending rewind could not be finished."""
        params = self._scope.params(rewind_id=rewind_id, pending_reason=text.escape(reason[:_MAX_REASON]))
        await queries.explain.all(connection, params)

    @writes
    async def _keep_dirty(self, connection: Connection, rewind: Rewind, dirty: str) -> None:
        """Record the state of a directory before a worker changes it, so that a redo can restore it."""
        await queries.keep_dirty.all(connection, self._scope.params(run_id=rewind.run_id, dirty=dirty))

    async def _keep_snapshot(self, connection: Connection, snapshot: str | None) -> None:
        """Check that a snapshot exists, and keep any rule from removing it before the rewind that needs it is
        committed.
        """
        await retention_rules.lock(connection, self._scope)
        row = await snapshots.find(connection, self._scope, parse_id(snapshot, "snapshot id"))
        if row is None:
            raise NotFound(
                f"snapshot {snapshot} does not exist any more: rewind to a later step, or without files",
                noun="snapshot",
                key=str(snapshot),
            )

    async def _end(self, connection: Connection, rewind: Rewind) -> Rewind:
        """Finish a pending rewind or redo: its directory is restored, or another rewind replaces it."""
        status: RewindStatus = "rewound" if rewind.status == "rewinding" else "redone"
        return await self._update(connection, rewind, status, rewind.path, None)

    @property
    def _branches(self) -> AsyncBranches:
        return AsyncBranches(self._engine, self._scope)

    async def _update(
        self, connection: Connection, rewind: Rewind, status: RewindStatus, path: str | None, reason: str | None
    ) -> Rewind:
        params = self._scope.params(
            rewind_id=rewind.id,
            status=status,
            path=None if path is None else self._text(path, "path"),
            pending_reason=reason,
            finished_at=None if status in OPEN else self._scope.clock.now_us(),
        )
        return mapper(Rewind, connection.dialect)(await queries.move.all(connection, params))[0]

    async def _find(self, connection: Connection, rewind_id: str) -> StoredRewind | None:
        row = await queries.find.one(connection, self._scope.params(rewind_id=parse_id(rewind_id, "rewind id")))
        return None if row is None else _stored_rewind(connection, row)

    async def _get(self, connection: Connection, rewind_id: str) -> StoredRewind:
        stored_rewind = await self._find(connection, rewind_id)
        if stored_rewind is None:
            raise NotFound(f"rewind {rewind_id} does not exist", noun="rewind", key=rewind_id)
        return stored_rewind

    def _text(self, value: str, what: str) -> str:
        return scopes.name(value, what, self._scope.limits, limit="path_bytes")


class Rewinds(Blocking[AsyncRewinds]):
    """The rewinds of one tenant's runs."""

    begin = blocking(AsyncRewinds.begin)
    redo = blocking(AsyncRewinds.redo)
    finish = blocking(AsyncRewinds.finish)
    get = blocking(AsyncRewinds.get)
    list = blocking(AsyncRewinds.list)
    pending = blocking(AsyncRewinds.pending)


def _stored_rewind(connection: Connection, row: Row) -> StoredRewind:
    (rewind,) = mapper(Rewind, connection.dialect)([row[:-2]])
    run_before = text.load(row[-1])
    children = [(child_id, call_id) for child_id, call_id in run_before["children"]]
    return StoredRewind(rewind, row[-2], RunBefore(**run_before["run"]), children)
