"""Workspaces: the directory trees that agents work in, captured as snapshots."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..core.blocking import Blocking, blocking
from ..core.store import TenantStore, only_reads
from ..ids import Id
from ..stores.workspace.rewind_rows import Rewind
from ..stores.workspace.snapshots import SnapshotKind
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
        """Take a snapshot of a directory tree: files, directories and links, their modes and times.

        It is whole or absent. Only what changed since the last capture of this directory is read and stored. ``ignore`` are
        patterns in the syntax of gitignore, after those of ``DEFAULT_IGNORE`` and of a file ``.holdfastignore`` in the root.
        With an ``id`` of the caller's the call can be repeated: what is there under it is returned.

        Raises:
            NotFound: there is no such run in a live session, or no such directory.
            InvalidInput: an argument cannot be used.
            LimitExceeded: the tree is over ``tree_entries`` or ``tree_depth``, or the tenant's objects over ``object_bytes``.
            Unavailable: the place where packs are kept cannot be reached.
        """
        wanted = capture.capture_request(
            self._scope,
            run_id,
            path,
            step=step,
            kind=kind,
            ignore=ignore,
            ignore_defaults=ignore_defaults,
            id=id,
        )
        return await Capturer(self._engine, self._scope).capture(wanted)

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
        """Take a snapshot of an overlay file system: of its upper directory, on ``base``, a snapshot of what is below it.

        Only the upper directory is read, with its whiteouts and opaque directories.

        Raises:
            NotFound: there is no such run in a live session, no such snapshot, or no such directory.
            InvalidInput: an argument cannot be used, or a directory was renamed or a file copied up in a way that only the
                overlay file system itself can follow.
            LimitExceeded: the tree is over ``tree_entries`` or ``tree_depth``, or the tenant's objects over ``object_bytes``.
            Unavailable: the place where packs are kept cannot be reached.
        """
        wanted = capture.capture_request(
            self._scope,
            run_id,
            path,
            step=step,
            kind="step",
            ignore=ignore,
            ignore_defaults=ignore_defaults,
            id=id,
        )
        return await Capturer(self._engine, self._scope).capture_upper(wanted, base)

    @only_reads
    async def restore(
        self,
        snapshot_id: Id,
        path: str | os.PathLike[str],
        *,
        replace: bool = False,
        on_progress: Advance = lambda count: None,
    ) -> RestoreResult:
        """Bring a directory to a snapshot. It is made if it is not there; if something is in it, only with ``replace``.

        Only what differs is touched; what is not in the snapshot goes away, unless it is ignored. Nothing is ever written
        outside of the directory.

        Raises:
            NotFound: there is no such snapshot.
            Conflict: there is something in the directory.
            InvalidInput: the snapshot has something in it that must not be written.
            Stale: somebody goes on changing the directory.
            Corrupt: the snapshot is not what was captured.
        """
        restoring = Restorer(self._engine, self._scope)
        return await restoring.into(snapshot_id, capture.root_of(path), replace=replace, advance=on_progress)

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

        The directory is captured first, whatever is in it. Then one commit takes the run and its conversation back, and the
        directory is brought to what it was after the step. A rewind that was broken off in between is finished by the next
        call, by ``finish_rewinds``, or by a loop that drives it here. The run waits until it is resumed. Without a ``path`` the
        rewind stays pending, and the worker that next claims the run brings its workspace to the step's snapshot; with
        ``files=False`` the files stay as they are. For ``keep_snapshots_for`` days, 90 at most (more is cut down), the run's
        snapshots are kept after it ends.

        Raises:
            NotFound: there is no such run in a live session, no such step, no snapshot of it, or no such directory.
            Conflict: somebody drives the run and ``epoch`` is not theirs, another run of its session is driven, or the session
                no longer shows the messages of that step.
            Fenced: somebody else has claimed the run since.
        """
        rewinding = Rewinder(self._engine, self._scope)
        return await rewinding.rewind(
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
        """Undo the last rewind that led to where a run is, or the one with this ``id``: state, messages and files are back.

        Without a ``path`` it is the directory that was rewound. It is captured first, as it is now. With ``later``, no directory
        is changed here: the worker that next claims the run brings its workspace back.

        Raises:
            NotFound: there is no such run in a live session, no such rewind, or no such directory.
            Conflict: there is nothing to redo, the run has gone on since, or somebody drives it.
            Fenced: somebody else has claimed the run since.
        """
        rewinding = Rewinder(self._engine, self._scope)
        return await rewinding.redo(run_id, path, id=id, later=later, epoch=epoch, advance=on_progress)

    async def finish_rewinds(
        self, run_id: Id | None = None, path: str | os.PathLike[str] | None = None
    ) -> Sequence[Rewind]:
        """Bring the files of pending rewinds and redos, of a run or of all, to where the run is; those that are now finished.

        A rewind that waits for a worker is left pending, unless this is called for its run with the worker's directory,
        ``path``. If the files cannot be brought there, the rewind's ``pending_reason`` says why.

        Raises:
            NotFound: a directory or a snapshot is not there.
        """
        return await Rewinder(self._engine, self._scope).finish(run_id, path)

    @only_reads
    async def diff(self, before: Id, after: Id, *, text: bool = True) -> Sequence[TreeChange]:
        """What is different between two snapshots, in the order of paths; with ``text``, each as a unified diff.

        Times are not looked at. Of files over ``diff_bytes``, of what is no text, and of files after ``diff_total_bytes``, only
        that they differ is said. A diff that takes more than ``diff_steps`` shows what is left as replaced.

        Raises:
            NotFound: there is no such snapshot.
            Corrupt: one is not what was captured.
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
        """Write a snapshot as an archive, ``tar.zst``, to a file; how many entries. The same tree makes the same archive.

        The file is there when it is whole, and only its owner may read it. One that is there already is only overwritten
        with ``replace``.

        Raises:
            InvalidInput: the file is there already, or cannot be written.
            NotFound: there is no such snapshot, or no directory for the file.
            Corrupt: the snapshot is not what was captured.
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
        """Record what is in an archive, ``tar.zst``, as a snapshot of a run. Nothing is written to any directory.

        ``outside_links`` lets symbolic links pass that lead out of the tree.

        Raises:
            NotFound: there is no such run in a live session, or no such file.
            InvalidInput: the file is no archive, or has something in it that would leave the root, be there twice, or run as
                somebody else.
            LimitExceeded: it is over ``tree_entries``, ``tree_bytes``, ``tree_depth``, ``tree_path_bytes``,
                ``tree_names_bytes`` or ``archive_ratio``.
        """
        wanted = capture.capture_request(
            self._scope, run_id, os.curdir, step=step, kind="imported", ignore=(), ignore_defaults=False, id=id
        )
        return await Archiver(self._engine, self._scope).take_in(wanted, path, outside_links=outside_links)


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
