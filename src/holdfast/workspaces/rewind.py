"""Rewinding a run: its files, its state and its conversation, all to the same step.

The tree is captured first, whatever it is like, so that nothing is lost that way. Then one commit takes the run and its
conversation back and records what the tree is to become; then the tree is brought there, and the rewind is finished. A process
that dies in between leaves a pending rewind, and the next call, or ``finish``, does the rest. Until then the run waits.

A caller without a directory, such as one over HTTP, only makes the commit. The worker that next claims the run captures its
workspace, records the capture, and brings the workspace to the wanted snapshot before anything else.
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
from ..stores.workspace.snapshots import AsyncSnapshots, Snapshot
from ..trees.ignore_rules import DEFAULT_IGNORE, in_root
from ..trees.restore import RestoreResult
from . import capture
from .capture import Capturer, root_of
from .restore import TRIES, Advance, Restorer
from .snapshot_tree import SnapshotTree, SnapshotTrees

DAY_S = 86_400
LOOKED_AT = 100
"""Steps that are looked at in one go for the last that has a snapshot."""


class RewindResult(Struct, frozen=True):
    """What a rewind or a redo came to: what was noted, what was done to the tree, and what the tree was before."""

    rewind: Rewind
    restored: RestoreResult
    dirty: Snapshot | None = None


class Rewinder:
    """Rewinds for one tenant."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._rewinds = AsyncRewinds(engine, scope)
        self._snapshots = AsyncSnapshots(engine, scope)
        self._targets = SnapshotTrees(engine, self._snapshots)
        self._capturing = Capturer(engine, scope)
        self._restoring = Restorer(engine, scope)

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
        """Take a run and its tree back to a step."""
        keep_s = None if keep_snapshots_for is None else _days(keep_snapshots_for) * DAY_S
        if path is None:
            wanted = await self._snapshot_if_any(run_id, to_step) if files else None
            begun = await self._rewinds.begin(run_id, to_step=to_step, epoch=epoch, snapshot=wanted, keep_s=keep_s)
            return RewindResult(begun if wanted is not None else await self._rewinds.finish(begun.id), RestoreResult())
        await self.finish(run_id, path)
        root = root_of(path)
        # Read first: what is captured now may be one too many, and then the oldest goes.
        snapshot = await self._snapshot_of(run_id, to_step)
        target = await self._targets.of(snapshot)
        dirty = await self._captured(run_id, root, target)
        begun = await self._rewinds.begin(
            run_id,
            to_step=to_step,
            epoch=epoch,
            path=root,
            snapshot=snapshot,
            dirty=dirty.id,
            keep_s=keep_s,
        )
        restored = await self._bring(begun.run_id, root, target, dirty, advance)
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
            # Without a capture no worker has changed the files: they are as they were before the rewind.
            is_there = begun.wanted is None
            return RewindResult(await self._rewinds.finish(begun.id) if is_there else begun, RestoreResult())
        target = await self._targets.of(last.dirty)
        dirty = await self._captured(run_id, where, target)
        begun = await self._rewinds.redo(run_id, id=last.id, epoch=epoch, path=where)
        restored = await self._bring(run_id, where, target, dirty, advance)
        return RewindResult(await self._rewinds.finish(begun.id), restored, dirty)

    async def finish(self, run_id: str | None, path: object | None = None) -> Sequence[Rewind]:
        """Do the rest of pending rewinds. Those that wait for a worker stay pending, unless its directory is given."""
        done = []
        for each in await self._rewinds.pending(run_id):
            where = each.path if path is None or run_id is None else root_of(path)
            if where is None and each.wanted is not None:
                continue
            if where is not None and each.wanted is not None:
                try:
                    await self._finish_files(each, each.wanted, where)
                except HoldfastError as error:
                    await self._rewinds._explain(each.id, f"{type(error).__name__}: {error}")
                    raise
            done.append(await self._rewinds.finish(each.id))
        return done

    async def _finish_files(self, rewind: Rewind, wanted: str, where: str) -> None:
        target = await self._targets.of(wanted)
        dirty = await self._captured(rewind.run_id, where, target)
        await self._rewinds._keep_dirty(rewind, dirty.id)
        await self._bring(rewind.run_id, where, target, dirty, lambda count: None)

    async def _bring(
        self, run_id: str, root: str, target: SnapshotTree, dirty: Snapshot, advance: Advance
    ) -> RestoreResult:
        """Bring a tree that was just captured to another; captured again, if somebody changes it meanwhile."""
        for _ in range(TRIES):
            picture = self._capturing.remembered(root)
            if picture is None or picture.snapshot_id != dirty.id:  # another thread has captured it since
                return await self._restoring.bring(root, target, advance=advance)
            try:
                return await self._restoring.bring_from(root, target, picture, advance=advance)
            except Stale as error:
                stale = error
            dirty = await self._captured(run_id, root, target)
        raise stale

    async def _captured(self, run_id: str, root: str, target: SnapshotTree) -> Snapshot:
        """The tree as it is, by the same rules as another of it."""
        step = (await AsyncRuns(self._engine, self._scope).get(run_id)).iteration
        ignore, defaults = await work(self._engine, lambda: _rules(root, target.tree.ignore))
        wanted = capture.capture_request(
            self._scope, run_id, root, step=step, kind="dirty", ignore=ignore, ignore_defaults=defaults, id=None
        )
        return (await self._capturing.capture(wanted)).snapshot

    async def _snapshot_if_any(self, run_id: str, to_step: int) -> str | None:
        """The snapshot of a step; ``None`` if no workspace of the run was ever captured here."""
        if await self._snapshots.find(run_id) is None:
            return None
        found = await self._snapshot_of(run_id, to_step)
        try:
            return parse_id(found)
        except InvalidInput:
            return None  # a name that its driver gave to a tree that is kept elsewhere

    async def _snapshot_of(self, run_id: str, to_step: int) -> str:
        """The snapshot of a step: the one it was committed with, one that was taken for it, or that of the step before."""
        steps, cursor = AsyncSteps(self._engine, self._scope), None
        most = self._scope.limits.page(LOOKED_AT)
        while True:
            page = await steps.list(run_id, newest_first=True, limit=most, cursor=cursor)
            found = await self._last_snapshot([step for step in page if step.iteration <= to_step])
            cursor = page.next
            if found is not None:
                return found
            if cursor is None:
                break
        first = await self._snapshots.find(run_id, step=0, kind="step")
        if first is None:
            raise NotFound(
                f"run {run_id} has no snapshot of step {to_step} or before; without files only the run goes back"
            )
        return first.id

    async def _last_snapshot(self, steps: Sequence[Step]) -> str | None:
        """The snapshot of the first of these steps that has one."""
        for step in steps:
            if step.snapshot is not None:
                return step.snapshot
            found = await self._snapshots.find(step.run_id, step=step.iteration, kind="step")
            if found is not None:
                return found.id
        return None

    async def _to_redo(self, run_id: str, id: str | None) -> Rewind:
        if id is not None:
            return await self._rewinds.get(id)
        run = await AsyncRuns(self._engine, self._scope).get(run_id)
        for each in await self._rewinds.list(run_id, limit=self._scope.limits.page(LOOKED_AT)):
            if (each.status == "rewound" or each.waits_for_worker) and each.to_step == run.iteration:
                return each
        raise Conflict(f"no rewind led run {run_id} to step {run.iteration}, where it is: see rewinds.list")


def _rules(root: str, patterns: Sequence[str]) -> tuple[Sequence[str], bool]:
    """What was said to be ignored, besides the defaults and what a file in the root says; and whether the defaults were."""
    rest = list(patterns)
    defaults = rest[: len(DEFAULT_IGNORE)] == list(DEFAULT_IGNORE)
    if defaults:
        rest = rest[len(DEFAULT_IGNORE) :]
    now = in_root(root)
    return (rest[len(now) :] if rest[: len(now)] == now else rest), defaults


def _days(days: int) -> int:
    if not isinstance(days, int) or isinstance(days, bool) or not 0 <= days < 2**31:
        raise InvalidInput(f"keep_snapshots_for is a whole number of days from 0 on, not {days!r}")
    return days
