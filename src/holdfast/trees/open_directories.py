"""Directories below a root, each opened through the handle of its parent, so that no link can lead out of the root."""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict

from ..errors import Stale
from .walk import open_root

MAX_HANDLES = 64
"""Maximum number of directories kept open."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OpenDirectories:
    """Handles of directories below a root; the most recently used ones stay open."""

    def __init__(self, root: str) -> None:
        self._root = open_root(root)
        self._open: OrderedDict[str, int] = OrderedDict()
        self.opened_up: set[str] = set()
        """Directories that were made writable."""

    def at(self, path: str) -> int:
        """Return the handle of a directory.

        Raises:
            FileNotFoundError: it does not exist.
            Stale: something else is in its place.
        """
        if not path:
            return self._root
        handle = self._open.get(path)
        if handle is not None:
            self._open.move_to_end(path)
            return handle
        parent, _, name = path.rpartition("/")
        try:
            handle = os.open(name, _FOLDER, dir_fd=self.at(parent))
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise Stale(f"{path!r} is no longer a directory") from error
            raise
        self._keep(path, handle)
        return handle

    def _keep(self, path: str, handle: int) -> None:
        mode = os.fstat(handle).st_mode
        if mode & 0o700 != 0o700:
            os.fchmod(handle, stat.S_IMODE(mode) | 0o700)
            self.opened_up.add(path)
        self._open[path] = handle
        if len(self._open) > MAX_HANDLES:
            os.close(self._open.popitem(last=False)[1])

    def forget(self) -> None:
        """Close all handles but the root's, because the directories may be replaced."""
        while self._open:
            os.close(self._open.popitem()[1])

    def close(self) -> None:
        """Close all handles."""
        self.forget()
        os.close(self._root)
