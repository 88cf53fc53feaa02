"""Capturing the upper directory of an overlay file system: the changes on top of a known tree.

Only the upper directory is read. Paths missing in it are unchanged from below, with these exceptions:

* a *whiteout* marks a removed path: a character device with the numbers 0 and 0, a file ``.wh.NAME`` beside it, or an
  empty file with the attribute ``overlay.whiteout``;
* an *opaque* directory hides everything it contained below: by the attribute ``overlay.opaque``, or by a file
  ``.wh..wh..opq``.

The attributes start with ``trusted.``, which only a privileged process sees, or with ``user.`` (mount option
``userxattr``). Renamed directories, and files of which only the metadata was copied up, refer to the lower tree in
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
from .walk import ChangedDirectory, ChangedPath

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
_ATTRIBUTES = ("trusted.overlay.", "user.overlay.")


class UpperScan(Scan):
    """One capture of an upper directory, as a difference to the tree below it. Takes the arguments of ``Scan``."""

    def __init__(self, root: str, **arguments: Any) -> None:
        super().__init__(root, **arguments)
        self._whiteouts: set[str] = set()
        self._opaque: set[str] = set()

    def _enter(self, folder: ChangedDirectory) -> None:
        attributes = _attributes(folder.handle)
        if "redirect" in attributes:
            raise InvalidInput(
                f"{folder.prefix or '.'!r} was renamed as a whole: mount with redirect_dir=off to capture it",
                field="redirect_dir",
            )
        if attributes.get("opaque") == b"y":
            self._opaque.add(folder.prefix)

    def _take(self, folder: ChangedDirectory, changed: ChangedPath) -> Iterator[list[Packed]]:
        if changed.name.startswith(WHITEOUT):
            self._removed_paths.add(changed.path)
            if changed.name == OPAQUE:
                self._opaque.add(folder.prefix)
            elif not changed.name.startswith(WHITEOUT * 2):
                self._whiteouts.add(folder.prefix + changed.name.removeprefix(WHITEOUT))
        elif _is_whiteout(folder, changed):
            self._removed_paths.add(changed.path)
            self._whiteouts.add(changed.path)
        else:
            yield from super()._take(folder, changed)

    def _removed(self) -> list[str]:
        present = set(self._seen) - self._removed_paths
        # A path that was replaced by something of another kind keeps none of its former content.
        replaced = {entry.path for entry in self._entries if entry.kind != "dir"} | {file.path for file in self._files}
        hidden = {f"{path}/" for path in self._whiteouts | replaced} | self._opaque
        return [
            path
            for path in self._before
            if path not in present and (path in self._whiteouts or not hidden.isdisjoint(folders_of(path)))
        ]


def _is_whiteout(folder: ChangedDirectory, changed: ChangedPath) -> bool:
    mode = changed.stat[0]
    if stat.S_ISCHR(mode):
        return os.stat(changed.name, dir_fd=folder.handle, follow_symlinks=False).st_rdev == 0
    if not stat.S_ISREG(mode):
        return False
    try:
        with safe_open.open_file(folder.handle, changed.name) as file:
            attributes = _attributes(file.handle)
    except OSError:
        return False  # the error is reported when the file is read
    if "metacopy" in attributes:
        raise InvalidInput(
            f"of {changed.path!r} only the metadata was copied up: mount with metacopy=off to capture it",
            field="metacopy",
        )
    return "whiteout" in attributes and changed.stat[1] == 0


def _attributes(handle: int) -> dict[str, bytes]:
    """Return the attributes set by the overlay file system, without their prefix."""
    try:
        names = os.listxattr(handle)
    except OSError:  # a file system without attributes
        return {}
    attributes = {}
    for name in names:
        for start in _ATTRIBUTES:
            if name.startswith(start):
                attributes[name.removeprefix(start)] = os.getxattr(handle, name)
    return attributes
