"""Rewinding a run: its files, its state and its conversation, all to the same step.

The directory is captured first, so that nothing is lost. Then one commit takes the run and its conversation back and
records the target of the directory; then the directory is restored, and the rewind is finished. A process that dies
in between leaves a pending rewind, and the next call, or ``finish``, completes it. Until then the run waits.

A caller without a directory, such as one over HTTP, only makes the commit. The worker that next claims the run
captures its workspace, records the capture, and restores the workspace to the wanted snapshot before anything else.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..core.scope import Scope
from ..engines.protocol import Engine
from ..errors import Conflict, HoldfastError, InvalidInput, NotFound, Stale
from ..ids import parse as parse_id
from ..offload import work
from ..stores.execution.runs.runs import AsyncRuns
from ..stores.execution.runs.step_log import Step
from ..stores.execution.runs.steps import AsyncSteps
from ..stores.workspace.rewind_rows import Rewind
from ..stores.workspace.rewinds import AsyncRewinds
from ..stores.workspace.snapshot_rows import Snapshot
from ..stores.workspace.snapshots import AsyncSnapshots
from ..trees.ignore_rules import DEFAULT_IGNORE, in_root
from ..trees.restore import RestoreResult
from . import capture
from .cached_trees import CachedTrees
from .capture import Capturer, root_of
from .restore import TRIES, Advance, Restorer
from .snapshot_tree import SnapshotTree, SnapshotTrees

DAY_S = 86_400
PAGE_STEPS = 100
"""Steps read at once when searching for the last one with a snapshot."""


class RewindResult(Struct, frozen=True):
    """The result of a rewind or redo: its record, the changes to the directory, and the snapshot of the directory
    before.
    """

    rewind: Rewind
    restored: RestoreResult
    dirty: Snapshot | None = None


class Rewinder:
    """Rewinds for one tenant."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._rewinds = AsyncRewinds(engine, scope)
        self._snapshots = AsyncSnapshots(engine, scope)
        self._trees = SnapshotTrees(engine, self._snapshots)
        self._capturer = Capturer(engine, scope)
        self._cached_trees = CachedTrees(engine, scope)
        self._restorer = Restorer(engine, scope)

    async def rewind(
        self,
        run_id: str,
        to_step: int,
        path: object,
        *,
        files: bool,
        epoch: int | None,
        keep_snapshots_for: int | None,
        advance: Advance,
    ) -> RewindResult:
        """Take a run and its directory back to a step."""
        keep_s = None if keep_snapshots_for is None else _check_days(keep_snapshots_for) * DAY_S
        if path is None:
            snapshot_id = await self._snapshot_if_any(run_id, to_step) if files else None
            begun = await self._rewinds.begin(run_id, to_step=to_step, epoch=epoch, snapshot=snapshot_id, keep_s=keep_s)
            return RewindResult(
                begun if snapshot_id is not None else await self._rewinds.finish(begun.id), RestoreResult()
            )
        await self.finish(run_id, path)
        root = root_of(path)
        # Read the target first: the capture may exceed the run's number of snapshots, and then the oldest is removed.
        snapshot = await self._snapshot_of(run_id, to_step)
        target = await self._trees.of(snapshot)
        dirty = await self._capture(run_id, root, target)
        begun = await self._rewinds.begin(
            run_id,
            to_step=to_step,
            epoch=epoch,
            path=root,
            snapshot=snapshot,
            dirty=dirty.id,
            keep_s=keep_s,
        )
        restored = await self._restore(begun.run_id, root, target, dirty, advance)
        return RewindResult(await self._rewinds.finish(begun.id), restored, dirty)

    async def redo(
        self, run_id: str, path: object | None, *, id: str | None, later: bool, epoch: int | None, advance: Advance
    ) -> RewindResult:
        """Undo a rewind."""
        if not later:
            await self.finish(run_id, path)
        last = await self._to_redo(run_id, id)
        where = None if later else last.path if path is None else root_of(path)
        if where is None or last.dirty is None:
            begun = await self._rewinds.redo(run_id, id=id, epoch=epoch)
            # Without a capture no worker has changed the files: they are still in their state before the rewind.
            is_there = begun.target_snapshot is None
            return RewindResult(await self._rewinds.finish(begun.id) if is_there else begun, RestoreResult())
        target = await self._trees.of(last.dirty)
        dirty = await self._capture(run_id, where, target)
        begun = await self._rewinds.redo(run_id, id=last.id, epoch=epoch, path=where)
        restored = await self._restore(run_id, where, target, dirty, advance)
        return RewindResult(await self._rewinds.finish(begun.id), restored, dirty)

    async def finish(self, run_id: str | None, path: object | None = None) -> Sequence[Rewind]:
        """Finish pending rewinds; return them. Those that wait for a worker stay pending, unless its directory is
        given.
        """
        finished = []
        for rewind in await self._rewinds.pending(run_id):
            where = rewind.path if path is None or run_id is None else root_of(path)
            if where is None and rewind.target_snapshot is not None:
                continue
            if where is not None and rewind.target_snapshot is not None:
                try:
                    await self._finish_files(rewind, rewind.target_snapshot, where)
                except HoldfastError as error:
                    await self._rewinds._explain(rewind.id, f"{type(error).__name__}: {error}")
                    raise
            finished.append(await self._rewinds.finish(rewind.id))
        return finished

    async def _finish_files(self, rewind: Rewind, wanted: str, where: str) -> None:
        target = await self._trees.of(wanted)
        dirty = await self._capture(rewind.run_id, where, target)
        await self._rewinds._keep_dirty(rewind, dirty.id)
        await self._restore(rewind.run_id, where, target, dirty, lambda count: None)

    async def _restore(
        self, run_id: str, root: str, target: SnapshotTree, dirty: Snapshot, advance: Advance
    ) -> RestoreResult:
        """Restore a directory that was just captured; capture it again if another process changes it in the meantime."""
        for _ in range(TRIES):
            cached_tree = self._cached_trees.in_memory(root)
            if cached_tree is None or cached_tree.snapshot_id != dirty.id:  # another thread has captured it since then
                return await self._restorer.restore_to(root, target, advance=advance)
            try:
                return await self._restorer.restore_from(root, target, cached_tree, advance=advance)
            except Stale as error:
                stale = error
            dirty = await self._capture(run_id, root, target)
        raise stale

    async def _capture(self, run_id: str, root: str, target: SnapshotTree) -> Snapshot:
        """Capture the directory in its current state, with the ignore rules of the target."""
        step = (await AsyncRuns(self._engine, self._scope).get(run_id)).iteration
        ignore, defaults = await work(self._engine, lambda: _rules(root, target.tree.ignore))
        request = capture.capture_request(
            self._scope, run_id, root, step=step, kind="dirty", ignore=ignore, ignore_defaults=defaults, id=None
        )
        return (await self._capturer.capture(request)).snapshot

    async def _snapshot_if_any(self, run_id: str, to_step: int) -> str | None:
        """Return the snapshot of a step; ``None`` if no workspace of the run was ever captured here."""
        if await self._snapshots.find(run_id) is None:
            return None
        snapshot_id = await self._snapshot_of(run_id, to_step)
        try:
            return parse_id(snapshot_id)
        except InvalidInput:
            return None  # the driver's own name for a tree stored elsewhere

    async def _snapshot_of(self, run_id: str, to_step: int) -> str:
        """Return the snapshot of a step: the one committed with it, one captured for it, or that of an earlier step."""
        steps, cursor = AsyncSteps(self._engine, self._scope), None
        page_rows = self._scope.limits.page(PAGE_STEPS)
        while True:
            page = await steps.list(run_id, newest_first=True, limit=page_rows, cursor=cursor)
            snapshot_id = await self._last_snapshot([step for step in page if step.iteration <= to_step])
            cursor = page.next
            if snapshot_id is not None:
                return snapshot_id
            if cursor is None:
                break
        first = await self._snapshots.find(run_id, step=0, kind="step")
        if first is None:
            raise NotFound(
                f"run {run_id} has no snapshot of step {to_step} or before: pass files=False to rewind only the run",
                noun="snapshot",
                key=str(to_step),
            )
        return first.id

    async def _last_snapshot(self, steps: Sequence[Step]) -> str | None:
        """Return the snapshot of the first of these steps that has one."""
        for step in steps:
            if step.snapshot is not None:
                return step.snapshot
            snapshot = await self._snapshots.find(step.run_id, step=step.iteration, kind="step")
            if snapshot is not None:
                return snapshot.id
        return None

    async def _to_redo(self, run_id: str, id: str | None) -> Rewind:
        if id is not None:
            return await self._rewinds.get(id)
        run = await AsyncRuns(self._engine, self._scope).get(run_id)
        for rewind in await self._rewinds.list(run_id, limit=self._scope.limits.page(PAGE_STEPS)):
            if (rewind.status == "rewound" or rewind.waits_for_worker) and rewind.to_step == run.iteration:
                return rewind
        raise Conflict(
            f"no rewind led run {run_id} to its current step {run.iteration}: see rewinds.list",
            reason="nothing_to_redo",
        )


def _rules(root: str, patterns: Sequence[str]) -> tuple[Sequence[str], bool]:
    """Return the caller's ignore patterns, without the defaults and those of the ignore file; and whether defaults
    were used.
    """
    rest = list(patterns)
    defaults = rest[: len(DEFAULT_IGNORE)] == list(DEFAULT_IGNORE)
    if defaults:
        rest = rest[len(DEFAULT_IGNORE) :]
    now = in_root(root)
    return (rest[len(now) :] if rest[: len(now)] == now else rest), defaults


def _check_days(days: int) -> int:
    if not isinstance(days, int) or isinstance(days, bool) or not 0 <= days < 2**31:
        raise InvalidInput(
            f"keep_snapshots_for must be a non-negative integer of days, not {days!r}", field="keep_snapshots_for"
        )
    return days
