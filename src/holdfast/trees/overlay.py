"""Capturing the upper directory of an overlay file system: what was changed on top of a tree that is known already.

Only the upper directory is read. What is missing in it is as it was below, except where it says otherwise:

* a *whiteout* says that something is gone: a character device with the numbers 0 and 0, a file ``.wh.NAME`` beside it, or an
empty
  file with the attribute ``overlay.whiteout``;
* an *opaque* directory hides everything that was in it: by the attribute ``overlay.opaque``, or by a file ``.wh..wh..opq``.

Attributes are those that begin with ``trusted.``, which only a privileged process sees, or with ``user.`` (mount option
``userxattr``). Directories that were renamed, and files of which only the metadata was copied up, refer to what is below in
ways that a snapshot cannot follow; they are refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any

from ..core.objects import Packed
from ..errors import InvalidInput
from . import safe_open
from .entries import folders_of
from .scan import Scan
from .walk import ChangedPath, OpenDirectory

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
_ATTRIBUTES = ("trusted.overlay.", "user.overlay.")


class UpperScan(Scan):
    """One capture of an upper directory, as a difference to the tree below it. The arguments are those of ``Scan``."""

    def __init__(self, root: str, **arguments: Any) -> None:
        super().__init__(root, **arguments)
        self._whiteouts: set[str] = set()
        self._opaque: set[str] = set()

    def _enter(self, folder: OpenDirectory) -> None:
        said = _attributes(folder.handle)
        if "redirect" in said:
            raise InvalidInput(
                f"{folder.prefix or '.'!r} was renamed as a whole: mount with redirect_dir=off to capture it"
            )
        if said.get("opaque") == b"y":
            self._opaque.add(folder.prefix)

    def _take(self, folder: OpenDirectory, found: ChangedPath) -> Iterator[list[Packed]]:
        if found.name.startswith(WHITEOUT):
            self._gone.add(found.path)
            if found.name == OPAQUE:
                self._opaque.add(folder.prefix)
            elif not found.name.startswith(WHITEOUT * 2):
                self._whiteouts.add(folder.prefix + found.name.removeprefix(WHITEOUT))
        elif _is_whiteout(folder, found):
            self._gone.add(found.path)
            self._whiteouts.add(found.path)
        else:
            yield from super()._take(folder, found)

    def _removed(self) -> list[str]:
        there = set(self._taken) - self._gone
        # What is no directory any longer, or was none and is one now, has nothing left in it of what it had.
        replaced = {entry.path for entry in self._entries if entry.kind != "dir"} | {file.path for file in self._files}
        hidden = {f"{path}/" for path in self._whiteouts | replaced} | self._opaque
        return [
            path
            for path in self._before
            if path not in there and (path in self._whiteouts or not hidden.isdisjoint(folders_of(path)))
        ]


def _is_whiteout(folder: OpenDirectory, found: ChangedPath) -> bool:
    mode = found.stat[0]
    if stat.S_ISCHR(mode):
        return os.stat(found.name, dir_fd=folder.handle, follow_symlinks=False).st_rdev == 0
    if not stat.S_ISREG(mode):
        return False
    try:
        with safe_open.open_file(folder.handle, found.name) as file:
            said = _attributes(file.handle)
    except OSError:
        return False  # whatever is wrong with it is found out when it is read
    if "metacopy" in said:
        raise InvalidInput(f"of {found.path!r} only the metadata was copied up: mount with metacopy=off to capture it")
    return "whiteout" in said and found.stat[1] == 0


def _attributes(handle: int) -> dict[str, bytes]:
    """What the overlay file system has noted, without the first part of the names."""
    try:
        names = os.listxattr(handle)
    except OSError:  # a file system without attributes
        return {}
    found = {}
    for name in names:
        for start in _ATTRIBUTES:
            if name.startswith(start):
                found[name.removeprefix(start)] = os.getxattr(handle, name)
    return found
