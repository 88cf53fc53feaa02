"""What is in a directory now, as far as it must be known to make another tree of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from hmac import compare_digest

from ..core.objects import digest_of
from ..limits import Limits
from . import reading
from .contents import CHUNK
from .entries import MODE_BITS, Entry
from .walking import Folder, Found, Walk

DEPTH_MOST = 2_000
"""Directories in each other that are looked into: more than a path can name."""
OTHER = b"other"
"""In the place of a digest: a content that is another than the one wanted, whichever it is."""


def look(
    root: str, wanted: Mapping[str, Entry], *, ignores: Callable[[str, bool], bool], limits: Limits
) -> dict[str, Entry]:
    """Everything in a directory that is wanted, or not ignored. Files are read only where they may be what is wanted.

    Something that is neither file, directory nor link is given as a file of another content.

    Raises:
        NotFound: there is no such directory.
        LimitExceeded: there is too much in it.
    """

    def is_ignored(path: str, is_folder: bool) -> bool:
        return path not in wanted and ignores(path, is_folder)

    walk = Walk(root, known={}, ignores=is_ignored, depth_most=DEPTH_MOST, entries_most=limits.tree_entries)
    found: dict[str, Entry] = {}
    for folder in walk.folders():
        for each in folder.found:
            entry = _entry(folder, each, wanted.get(each.path))
            if entry is not None:
                found[each.path] = entry
    return found


def _entry(folder: Folder, found: Found, wanted: Entry | None) -> Entry | None:
    mode, size, mtime_ns, _, _ = found.stat
    bits = mode & MODE_BITS
    if stat.S_ISDIR(mode):
        return Entry(found.path, "dir", bits, mtime_ns)
    try:
        if stat.S_ISLNK(mode):
            return Entry(found.path, "symlink", bits, mtime_ns, 0, os.readlink(found.name, dir_fd=folder.handle))
        if stat.S_ISREG(mode) and wanted is not None and wanted.kind == "file" and wanted.size == size:
            with reading.opened(folder.handle, found.name) as file:
                if _holds(file.handle, wanted):
                    return Entry(found.path, "file", bits, mtime_ns, size, "", wanted.digest)
    except FileNotFoundError:
        return None
    except OSError:
        pass  # what cannot be read is written anew
    return Entry(found.path, "file", bits, mtime_ns, size, "", OTHER)


def _holds(handle: int, wanted: Entry) -> bool:
    """Whether an open file holds just what an entry says."""
    if wanted.size <= CHUNK:
        content = _read(handle, wanted.size)
        return len(content) == wanted.size and compare_digest(digest_of(content), wanted.digest)
    for piece in wanted.pieces:
        left = piece.length
        while left:
            chunk = _read(handle, min(CHUNK, left))
            left -= len(chunk)
            if not chunk or (not piece.object and chunk.strip(b"\0")):
                return False
            if piece.object and not compare_digest(digest_of(chunk), piece.object):
                return False
    return True


def _read(handle: int, length: int) -> bytes:
    content = os.read(handle, length)
    while content and len(content) < length and (more := os.read(handle, length - len(content))):
        content += more
    return content
