"""Workspaces: the directory trees that agents work in, captured as snapshots."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..core.blocking import Blocking, blocking
from ..core.store import TenantStore
from ..stores.workspace.snapshots import SnapshotKind
from . import capturing
from .capturing import Capture, Capturing


class AsyncWorkspaces(TenantStore):
    """The workspaces of one tenant's runs."""

    async def capture(
        self,
        run_id: str,
        path: str | os.PathLike[str],
        *,
        step: int | None = None,
        kind: SnapshotKind = "step",
        ignore: Sequence[str] = (),
        ignore_defaults: bool = True,
        id: str | None = None,
    ) -> Capture:
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
        wanted = capturing.request(
            self._scope,
            run_id,
            path,
            step=step,
            kind=kind,
            ignore=ignore,
            ignore_defaults=ignore_defaults,
            id=id,
        )
        return await Capturing(self._engine, self._scope).capture(wanted)


class Workspaces(Blocking[AsyncWorkspaces]):
    """The workspaces of one tenant's runs."""

    capture = blocking(AsyncWorkspaces.capture)
