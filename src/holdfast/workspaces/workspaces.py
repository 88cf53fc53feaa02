"""Workspaces: the directories that agents work in, captured as snapshots.

``trees`` works on files and knows no database; this package connects it with the stores. Work on files runs in a thread
if the caller has an event loop, and in the caller's own thread otherwise (``offload``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..core.blocking import Blocking, blocking
from ..core.store import TenantStore, only_reads
from ..ids import Id
from ..stores.workspace.rewind_rows import Rewind
from ..stores.workspace.snapshot_rows import SnapshotKind
from ..trees.restore import RestoreResult
from . import capture
from .archives import Archiver, TreeChange
from .capture import Capturer, CaptureResult
from .restore import Advance, Restorer
from .rewind import Rewinder, RewindResult


class AsyncWorkspaces(TenantStore):
    """The workspaces of one tenant's runs."""

    async def capture(
        self,
        run_id: Id,
        path: str | os.PathLike[str],
        *,
        step: int | None = None,
        kind: SnapshotKind = "step",
        ignore: Sequence[str] = (),
        ignore_defaults: bool = True,
        id: str | None = None,
    ) -> CaptureResult:
        """Capture a directory as a snapshot: files, directories and links, with modes and times.

        The snapshot is whole or absent. Only changes since the last capture of this directory are read and stored.
        ``ignore`` are patterns in gitignore syntax, added to ``DEFAULT_IGNORE`` and to those of a file
        ``.holdfastignore`` in the root. With a caller-supplied ``id`` the call can be repeated: it returns the
        existing snapshot.

        Raises:
            NotFound: the run does not exist in a live session, or the directory does not exist.
            InvalidInput: an argument is invalid.
            LimitExceeded: the tree is over ``tree_entries`` or ``tree_depth``, or the tenant's objects over
                ``object_bytes``.
            Unavailable: the storage of packs cannot be reached.
        """
        request = capture.capture_request(
            self._scope,
            run_id,
            path,
            step=step,
            kind=kind,
            ignore=ignore,
            ignore_defaults=ignore_defaults,
            id=id,
        )
        return await Capturer(self._engine, self._scope).capture(request)

    async def capture_upper(
        self,
        run_id: Id,
        path: str | os.PathLike[str],
        *,
        base: str,
        step: int | None = None,
        ignore: Sequence[str] = (),
        ignore_defaults: bool = True,
        id: str | None = None,
    ) -> CaptureResult:
        """Capture the upper directory of an overlay file system, based on ``base``, a snapshot of the lower one.

        Only the upper directory is read, with its whiteouts and opaque directories.

        Raises:
            NotFound: the run does not exist in a live session, or the snapshot or directory does not exist.
            InvalidInput: an argument is invalid, or a directory was renamed or a file copied up in a way that only
                the overlay file system itself can follow.
            LimitExceeded: the tree is over ``tree_entries`` or ``tree_depth``, or the tenant's objects over
                ``object_bytes``.
            Unavailable: the storage of packs cannot be reached.
        """
        request = capture.capture_request(
            self._scope,
            run_id,
            path,
            step=step,
            kind="step",
            ignore=ignore,
            ignore_defaults=ignore_defaults,
            id=id,
        )
        return await Capturer(self._engine, self._scope).capture_upper(request, base)

    @only_reads
    async def restore(
        self,
        snapshot_id: Id,
        path: str | os.PathLike[str],
        *,
        replace: bool = False,
        on_progress: Advance = lambda count: None,
    ) -> RestoreResult:
        """Restore a directory to a snapshot. It is created if it does not exist; if it is not empty, ``replace`` is
        required.

        Only differences are written; paths that are not in the snapshot are removed, unless they are ignored. Nothing
        is ever written outside of the directory.

        Raises:
            NotFound: the snapshot does not exist.
            Conflict: the directory is not empty.
            InvalidInput: the snapshot contains entries that must not be written.
            Stale: another process keeps changing the directory.
            Corrupt: the snapshot is damaged.
        """
        restorer = Restorer(self._engine, self._scope)
        return await restorer.into(snapshot_id, capture.root_of(path), replace=replace, advance=on_progress)

    async def rewind(
        self,
        run_id: Id,
        to_step: int,
        path: str | os.PathLike[str] | None,
        *,
        files: bool = True,
        epoch: int | None = None,
        keep_snapshots_for: int | None = None,
        on_progress: Advance = lambda count: None,
    ) -> RewindResult:
        """Take a run, its conversation and its workspace back to a step; 0 is before the first. ``redo`` undoes it.

        The directory is captured first. Then one commit takes the run and its conversation back, and the directory is
        restored to its state after the step. An interrupted rewind is finished by the next call, by
        ``finish_rewinds``, or by a loop that drives the run here. The run waits until it is resumed. Without a
        ``path`` the rewind stays pending, and the worker that next claims the run restores its workspace to the
        step's snapshot; with ``files=False`` the files stay unchanged. With ``keep_snapshots_for``, the run's
        snapshots are kept for that number of days after it ends, 90 at most.

        Raises:
            NotFound: the run does not exist in a live session, or the step, its snapshot or the directory does not
                exist.
            Conflict: a worker drives the run and ``epoch`` is not its epoch, another run of its session is being
                driven, or the session no longer shows the messages of that step.
            Fenced: another worker has claimed the run since.
        """
        rewinder = Rewinder(self._engine, self._scope)
        return await rewinder.rewind(
            run_id,
            to_step,
            path,
            files=files,
            epoch=epoch,
            keep_snapshots_for=keep_snapshots_for,
            advance=on_progress,
        )

    async def redo(
        self,
        run_id: Id,
        path: str | os.PathLike[str] | None = None,
        *,
        id: str | None = None,
        later: bool = False,
        epoch: int | None = None,
        on_progress: Advance = lambda count: None,
    ) -> RewindResult:
        """Undo the last rewind that led to a run's current step, or the one with this ``id``, with state, messages
        and files.

        Without a ``path`` the directory that was rewound is restored. It is captured first. With ``later``, no
        directory is changed here: the worker that next claims the run restores its workspace.

        Raises:
            NotFound: the run does not exist in a live session, or the rewind or directory does not exist.
            Conflict: there is nothing to redo, the run has continued since, or a worker drives it.
            Fenced: another worker has claimed the run since.
        """
        rewinder = Rewinder(self._engine, self._scope)
        return await rewinder.redo(run_id, path, id=id, later=later, epoch=epoch, advance=on_progress)

    async def finish_rewinds(
        self, run_id: Id | None = None, path: str | os.PathLike[str] | None = None
    ) -> Sequence[Rewind]:
        """Restore the files of pending rewinds and redos, of a run or of all; return those that are now finished.

        A rewind that waits for a worker is left pending, unless this is called for its run with the worker's
        directory, ``path``. If the files cannot be restored, the rewind's ``pending_reason`` says why.

        Raises:
            NotFound: a directory or a snapshot does not exist.
        """
        return await Rewinder(self._engine, self._scope).finish(run_id, path)

    @only_reads
    async def diff(self, before: Id, after: Id, *, text: bool = True) -> Sequence[TreeChange]:
        """Return the differences between two snapshots, in order of paths; with ``text``, each as a unified diff.

        Times are not compared. For files over ``diff_bytes``, binary files, and files after ``diff_total_bytes``, the
        text only states that they differ. A diff that takes more than ``diff_steps`` shows the remaining lines as
        replaced.

        Raises:
            NotFound: a snapshot does not exist.
            Corrupt: a snapshot is damaged.
        """
        return await Archiver(self._engine, self._scope).diff(before, after, text=text)

    @only_reads
    async def export(
        self,
        snapshot_id: Id,
        path: str | os.PathLike[str],
        *,
        replace: bool = False,
        on_progress: Advance = lambda count: None,
    ) -> int:
        """Write a snapshot to a file as an archive, ``tar.zst``; return the number of entries. Equal trees make equal
        archives.

        The file appears when it is complete, and only its owner may read it. An existing file is overwritten only
        with ``replace``.

        Raises:
            InvalidInput: the file exists already, or cannot be written.
            NotFound: the snapshot or the directory of the file does not exist.
            Corrupt: the snapshot is damaged.
        """
        return await Archiver(self._engine, self._scope).export(snapshot_id, path, replace=replace, advance=on_progress)

    async def import_archive(
        self,
        run_id: Id,
        path: str | os.PathLike[str],
        *,
        step: int | None = None,
        outside_links: bool = False,
        id: str | None = None,
    ) -> CaptureResult:
        """Record the content of an archive, ``tar.zst``, as a snapshot of a run. Nothing is written to any directory.

        ``outside_links`` allows symbolic links that lead out of the tree.

        Raises:
            NotFound: the run does not exist in a live session, or the file does not exist.
            InvalidInput: the file is not an archive, or contains entries that would leave the root, appear twice, or
                have set-uid or set-gid.
            LimitExceeded: it is over ``tree_entries``, ``tree_bytes``, ``tree_depth``, ``tree_path_bytes``,
                ``tree_names_bytes`` or ``archive_ratio``.
        """
        request = capture.capture_request(
            self._scope, run_id, os.curdir, step=step, kind="imported", ignore=(), ignore_defaults=False, id=id
        )
        return await Archiver(self._engine, self._scope).import_archive(request, path, outside_links=outside_links)


class Workspaces(Blocking[AsyncWorkspaces]):
    """The workspaces of one tenant's runs."""

    capture = blocking(AsyncWorkspaces.capture)
    capture_upper = blocking(AsyncWorkspaces.capture_upper)
    restore = blocking(AsyncWorkspaces.restore)
    rewind = blocking(AsyncWorkspaces.rewind)
    redo = blocking(AsyncWorkspaces.redo)
    finish_rewinds = blocking(AsyncWorkspaces.finish_rewinds)
    diff = blocking(AsyncWorkspaces.diff)
    export = blocking(AsyncWorkspaces.export)
    import_archive = blocking(AsyncWorkspaces.import_archive)
