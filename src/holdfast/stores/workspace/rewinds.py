"""Rewinds: a run taken back to an earlier step, with its conversation, as one commit; and back again.

A tree of files cannot be part of a commit. So a rewind is *begun*: in one transaction the run's later steps and tool calls are
laid aside, the session shows a branch that ends where the step's messages end, and the rewind is noted. Then the tree is brought
to the step's snapshot and the rewind is *finished*: by the process that began it, if it named a directory, otherwise by the
worker that next claims the run (``holdfast.workspaces``). A process that dies in between leaves a pending rewind, and repeating
the rest does no harm. The run waits until it is resumed; a loop brings its workspace to the snapshot before anything else, and
other drivers ask ``pending`` first.

A pending rewind without a directory has changed no files. So another rewind or a redo may follow it at once: it takes its place,
and the worker brings the workspace straight to where the run is then.

::

    begin -> rewinding -> finish -> rewound -> redo -> redoing -> finish -> redone

A redo is the same the other way round. What was laid aside is put back as it was: states, outcomes, messages, numbers. Rewinds
nest: a run can be taken back several times, and each redo undoes the last that led to where it is. A run that has gone on
since is not where the rewind left it; it is taken back there first, and then that rewind is redone by its id.

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
from ...core.queries import Queries
from ...core.rows import mapper
from ...core.store import TenantStore, reads, writes
from ...engines.protocol import Connection, Row
from ...errors import Conflict, NotFound
from ...ids import Id
from ...ids import parse as parse_id
from ..conversation.branches import AsyncBranches, rewind_to, switch_branch
from ..execution.runs.states import Run, check_holder, lock_run, run_of, update_queue
from . import retention_rules, snapshots
from . import rewind_rows as rows
from .rewind_rows import OPEN, Rewind, RewindStatus, RunBefore, StoredRewind

_LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_MAX_REASON = 1_000
"""Characters of the reason why a rewind is pending."""

queries = Queries(__package__, "rewinds.sql", Rewind, Run)


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
        """Take a run and its conversation back to a step; 0 is before the first. The run then waits until it is resumed.

        With a ``path`` the caller brings that directory to ``snapshot`` and then calls ``finish``; with a ``snapshot`` alone, the
        worker that next claims the run does. With an ``epoch`` the caller holds the run, and goes on holding it. With
        ``keep_s``, the snapshots of the run are kept for so many seconds after it ends, if that is longer. With an ``id`` of
        the caller's the call can be repeated and returns the first result.

        Raises:
            NotFound: there is no such run in a live session, it has no such step, or there is no such snapshot.
            Fenced: somebody else has claimed the run since.
            Conflict: somebody drives the run, or another one of its session; a run below it is under way; an earlier
                rewind is not finished; or the session no longer shows the messages of that step.
        """
        step = rows.parse_step(to_step)
        run = await lock_run(connection, self._scope, run_id)
        new_id = self._scope.ids.new() if id is None else parse_id(id, "rewind id")
        found = await self._find(connection, new_id)
        if found is not None:
            return rows.check_same(found.rewind, run.id, step)
        new: dict[str, Any] = {
            "rewind_id": new_id,
            "to_step": step,
            "path": None if path is None else self._text(path, "path"),
            "snapshot": None if snapshot is None else self._text(snapshot, "snapshot"),
            "pending_reason": rows.pending_reason(path, snapshot),
        }
        is_for_worker = path is None and snapshot is not None
        waiting = await self._may_move(connection, run, epoch, after_waiting=is_for_worker)
        if is_for_worker:
            await self._must_stay(connection, snapshot)
        if waiting is not None:
            await self._end(connection, waiting)
            dirty = waiting.wanted
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
        """Undo the last rewind that led to where the run is, or the one with this ``id``: steps, calls and messages are back.

        Raises:
            NotFound: there is no such run in a live session, or no such rewind of it.
            Fenced: somebody else has claimed the run since.
            Conflict: there is nothing to redo, the run has gone on since, somebody drives it, or a rewind is not finished.
        """
        run = await lock_run(connection, self._scope, run_id)
        wanted = None if id is None else await self._get(connection, id)
        if wanted is not None:
            if wanted.rewind.run_id != run.id:
                raise NotFound(f"run {run.id} has no rewind {id}")
            if wanted.rewind.status in ("redoing", "redone"):
                return wanted.rewind
        waiting = await self._may_move(connection, run, epoch, after_waiting=path is None)
        found = wanted or await self._last(connection, run)
        await self._is_there(connection, run, found)
        if waiting is not None and waiting.id != found.rewind.id:
            await self._end(connection, waiting)
        return await self._bring_back(connection, run, epoch, found, path)

    @writes
    async def finish(self, connection: Connection, rewind_id: Id) -> Rewind:
        """The tree is where the run is. After a redo the run now has the status it had. Repeating it is fine.

        Raises:
            NotFound: there is no such rewind.
        """
        found = await self._get(connection, rewind_id)
        run = await lock_run(connection, self._scope, found.rewind.run_id)
        found = await self._get(connection, rewind_id)
        rewind, before = found.rewind, found.before
        if rewind.status not in OPEN:
            return rewind
        if rewind.status == "redoing" and rows.regains_status(run, before):
            await self._put(connection, run, None, **rows.changes(before), status=before.status)
        return await self._end(connection, rewind)

    @reads
    async def get(self, connection: Connection, rewind_id: Id) -> Rewind:
        """One rewind.

        Raises:
            NotFound: there is none.
        """
        return (await self._get(connection, rewind_id)).rewind

    @reads
    async def list(
        self, connection: Connection, run_id: Id, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[Rewind]:
        """The rewinds of a run, the last one first. With ``limit``, a page.

        Raises:
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        before = _LAST_ID if cursor is None else parse_id(decode_cursor(cursor, "rewinds", str)[0], "cursor")
        params = self._scope.params(
            run_id=parse_id(run_id, "run id"), before_id=before, limit=rows_to_read(limit, limits)
        )
        found = mapper(Rewind, connection.dialect)(await queries.list.all(connection, params))
        return page(found, limit, limits, "rewinds", lambda last: encode_cursor("rewinds", last.id))

    @reads
    async def pending(self, connection: Connection, run_id: Id | None = None) -> Page[Rewind]:
        """The rewinds whose tree is still to be brought to where the run is, of a run or of all, the oldest first.

        ``list_rows`` of them at most: when those are done, ask again.
        """
        params = self._scope.params(limit=self._scope.limits.list_rows)
        if run_id is None:
            return Page(mapper(Rewind, connection.dialect)(await queries.pending.all(connection, params)))
        params["run_id"] = parse_id(run_id, "run id")
        return Page(mapper(Rewind, connection.dialect)(await queries.pending_of.all(connection, params)))

    # Going back

    async def _take_back(self, connection: Connection, run: Run, epoch: int | None, new: dict[str, Any]) -> Rewind:
        now = self._scope.clock.now_us()
        params = self._scope.params(
            run_id=run.id, session_id=run.session_id, from_step=run.iteration, now_at=now, **new
        )
        params["anchor"], params["step_at"] = await self._anchor(connection, run, new["to_step"])
        children = await self._let_children_go(connection, params)
        branches = await self._conversation_back(connection, run, params)
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
        await self._put(
            connection,
            run,
            epoch,
            iteration=new["to_step"],
            input_tokens=run.input_tokens - int(tokens[0]),
            output_tokens=run.output_tokens - int(tokens[1]),
            checkpointed_at=params["step_at"],
        )
        return mapper(Rewind, connection.dialect)([row])[0]

    async def _anchor(self, connection: Connection, run: Run, step: int) -> tuple[str, int | None]:
        """What tells a step of a run from any other, and when it was committed."""
        if step == 0:
            return "", None
        row = await queries.step.one(connection, self._scope.params(run_id=run.id, to_step=step))
        if row is None or step > run.iteration:
            raise NotFound(f"run {run.id} has no step {step}; it is at step {run.iteration}")
        at = row[2] if isinstance(row[2], int) else to_us(row[2])
        return f"{row[0]}.{at}.{row[1]}", at

    async def _let_children_go(self, connection: Connection, params: dict[str, Any]) -> Sequence[tuple[str, str]]:
        """The runs below that calls of later steps have started, which stay and are nobody's result any longer."""
        children = await queries.children.all(connection, params)
        for child_id, _, is_open in children:
            if is_open:
                raise Conflict(f"run {child_id}, which a later step has started, is under way: cancel it first")
        for child_id, _, _ in children:
            await queries.attach_child.all(connection, {**params, "child_id": child_id, "call_id": None})
        return [(child_id, text.unescape(call_id)) for child_id, call_id, _ in children]

    async def _conversation_back(self, connection: Connection, run: Run, params: dict[str, Any]) -> tuple[int, int]:
        row = await queries.last_place.one(connection, params)
        if row is not None:
            return await rewind_to(connection, self._branches, run.session_id, after=int(row[0]))
        row = await queries.first_place.one(connection, params)
        return await rewind_to(connection, self._branches, run.session_id, before=None if row is None else int(row[0]))

    # And back again

    async def _last(self, connection: Connection, run: Run) -> StoredRewind:
        anchor, _ = await self._anchor(connection, run, run.iteration)
        params = self._scope.params(run_id=run.id, iteration=run.iteration, anchor=anchor)
        row = await queries.to_redo.one(connection, params)
        if row is None:
            raise Conflict(f"no rewind led run {run.id} to step {run.iteration}, where it is: see rewinds.list")
        return _stored(connection, row)

    async def _is_there(self, connection: Connection, run: Run, found: StoredRewind) -> None:
        """Refuse to redo a rewind after which the run has gone on: what it did since would be lost."""
        rewind = found.rewind
        anchor, _ = await self._anchor(connection, run, run.iteration)
        params = self._scope.params(run_id=run.id, to_step=rewind.to_step)
        moved = run.iteration != rewind.to_step or anchor != found.anchor
        if moved or await queries.newer_calls.one(connection, params) is not None:
            raise Conflict(
                f"run {run.id} has gone on since rewind {rewind.id}: rewind it to step {rewind.to_step} first, "
                "then redo that one by its id"
            )

    async def _bring_back(
        self, connection: Connection, run: Run, epoch: int | None, found: StoredRewind, path: str | None
    ) -> Rewind:
        rewind = found.rewind
        params = self._scope.params(run_id=run.id, rewind_id=rewind.id)
        await queries.make_room.all(connection, params)
        for query in (queries.bring_steps, queries.bring_calls, queries.forget_steps, queries.forget_calls):
            await query.all(connection, params)
        for child_id, call_id in found.children:
            attached = {**params, "child_id": child_id, "call_id": text.escape(call_id)}
            await queries.attach_child.all(connection, attached)
        if rewind.branch_before != rewind.branch_after:
            await switch_branch(connection, self._branches, run.session_id, rewind.branch_before)
        await self._put(connection, run, epoch, **rows.changes(found.before))
        return await self._move(connection, rewind, "redoing", path, rows.pending_reason(path, rewind.dirty))

    # What both need

    @writes
    async def _explain(self, connection: Connection, rewind_id: str, reason: str) -> None:
        """Say why a pending rewind could not be finished."""
        params = self._scope.params(rewind_id=rewind_id, pending_reason=text.escape(reason[:_MAX_REASON]))
        await queries.explain.all(connection, params)

    @writes
    async def _keep_dirty(self, connection: Connection, rewind: Rewind, dirty: str) -> None:
        """Record what the tree was before a worker changes it, so that a redo can bring it back."""
        await queries.keep_dirty.all(connection, self._scope.params(run_id=rewind.run_id, dirty=dirty))

    async def _must_stay(self, connection: Connection, snapshot: str | None) -> None:
        """See that a snapshot is there, and that no rule removes it before the rewind that needs it is committed."""
        await retention_rules.lock(connection, self._scope)
        found = await snapshots.find(connection, self._scope, parse_id(snapshot, "snapshot id"))
        if found is None:
            raise NotFound(f"the snapshot {snapshot} is gone: rewind to a later step, or without files")

    async def _end(self, connection: Connection, rewind: Rewind) -> Rewind:
        """The tree of a pending rewind or redo is where it should be, or another takes its place."""
        status: RewindStatus = "rewound" if rewind.status == "rewinding" else "redone"
        return await self._move(connection, rewind, status, rewind.path, None)

    @property
    def _branches(self) -> AsyncBranches:
        return AsyncBranches(self._engine, self._scope)

    async def _may_move(
        self, connection: Connection, run: Run, epoch: int | None, *, after_waiting: bool
    ) -> Rewind | None:
        """See that a run can be moved; the rewind that waits for a worker, if that is no obstacle (``after_waiting``)."""
        if epoch is not None:
            check_holder(run, epoch)
        elif run.status == "running":
            raise Conflict(f"run {run.id} is held by {run.holder}: pause or cancel it first, or give its epoch")
        params = self._scope.params(run_id=run.id, session_id=run.session_id)
        pending = mapper(Rewind, connection.dialect)(await queries.pending_of.all(connection, params))
        waiting = pending[0] if pending and after_waiting and pending[0].waits_for_worker else None
        if pending and waiting is None:
            raise Conflict(
                f"rewind {pending[0].id} of run {run.id} is not finished: bring its tree to where it is first"
            )
        other = await queries.others.one(connection, params)
        if other is not None:
            raise Conflict(f"run {other[0]} of the same session is being driven: pause or cancel it first")
        return waiting

    async def _put(self, connection: Connection, run: Run, epoch: int | None, **changes: Any) -> Run:
        """The run at another step. It goes on being held by whoever holds it; otherwise it waits, in nobody's hands."""
        held = epoch is not None
        new = {
            "status": "running" if held else "waiting",
            "new_epoch": run.epoch if held else run.epoch + 1,
            "attempts": 0,
            "lease_holder": text.escape(run.holder) if held else "",
            "lease_ms": run.lease_ms if held else 0,
            "lease_until_at": to_us(run.lease_until) if held and run.lease_until else None,
            "pause_until_at": None,
            "stop_reason": None,
            "error": None,
            "finished_at": None,
            **changes,
        }
        if new["status"] in ("running", "waiting"):  # it has not ended, whatever it had come to
            new |= {"pause_until_at": None, "stop_reason": None, "error": None, "finished_at": None}
        row = await queries.put_run.one(connection, self._scope.params(run_id=run.id, epoch=run.epoch, **new))
        assert row is not None  # it is held until the transaction ends
        put = run_of(connection, row)
        if not held:
            await retention_rules.keep_end(connection, self._scope, run, put.epoch)
        await update_queue(connection, self._scope, put, self._scope.clock.now_us())
        return put

    async def _move(
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
        return None if row is None else _stored(connection, row)

    async def _get(self, connection: Connection, rewind_id: str) -> StoredRewind:
        found = await self._find(connection, rewind_id)
        if found is None:
            raise NotFound(f"there is no rewind {rewind_id} here")
        return found

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


def _stored(connection: Connection, row: Row) -> StoredRewind:
    (rewind,) = mapper(Rewind, connection.dialect)([row[:-2]])
    kept = text.load(row[-1])
    children = [(child_id, call_id) for child_id, call_id in kept["children"]]
    return StoredRewind(rewind, row[-2], RunBefore(**kept["run"]), children)
