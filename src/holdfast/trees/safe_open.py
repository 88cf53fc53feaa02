"""Reading a file of a tree through the handle of its directory, so that its content is consistent.

A file that changes while it is read is read again, up to ``TRIES`` times; after that the last content is used and
reported.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from .contents import CHUNK
from .walk import Stat

TRIES = 4
"""How often a file is read that changes while it is being read."""
# Non-blocking, because a pipe may have replaced the file.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class OpenFile:
    """An open file, with its state when it was opened. Leaving ``with`` closes it."""

    __slots__ = ("blocks", "handle", "stat")

    def __init__(self, handle: int) -> None:
        now = os.fstat(handle)
        if not stat.S_ISREG(now.st_mode):
            raise OSError(errno.EINVAL, "it is no longer a regular file")
        self.handle, self.stat, self.blocks = handle, stat_of(now), now.st_blocks

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self.handle)


def open_file(folder: int, name: str) -> OpenFile:
    """Open a file in an open directory.

    Raises:
        OSError: the file was removed, is not readable, or is not a regular file.
    """
    handle = os.open(name, _FILE, dir_fd=folder)
    try:
        return OpenFile(handle)
    except BaseException:
        os.close(handle)
        raise


def is_same(file: OpenFile) -> bool:
    """Return whether a file is unchanged since it was opened."""
    return stat_of(os.fstat(file.handle)) == file.stat


def stat_of(now: os.stat_result) -> Stat:
    """Return the state of a file that is kept for comparison."""
    return now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino


def content(file: OpenFile) -> bytes:
    """Return the whole content of a file no longer than a chunk. If its length differs from the stat, the file has
    changed.
    """
    size = file.stat[1]
    read = os.read(file.handle, size + 1)
    return read if len(read) >= size else read + _read_fully(file.handle, size - len(read))


def chunks(file: OpenFile) -> Iterator[bytes | int]:
    """Yield a file in chunks, up to its size when it was opened. For a hole, yields the number of zeros."""
    size, at = file.stat[1], 0
    is_sparse = file.blocks * 512 < size
    while at < size:
        hole = _hole(file.handle, at, size) if is_sparse else 0
        if hole:
            yield hole
            at += hole
            continue
        os.lseek(file.handle, at, os.SEEK_SET)
        read = _read_fully(file.handle, min(CHUNK, size - at))
        if not read:
            return
        yield read
        at += len(read)


def _read_fully(handle: int, length: int) -> bytes:
    """Read ``length`` bytes, unless the file ends before."""
    first = os.read(handle, length)
    if len(first) == length or not first:
        return first
    parts = [first]
    length -= len(first)
    while length and (more := os.read(handle, length)):
        parts.append(more)
        length -= len(more)
    return b"".join(parts)


def _hole(handle: int, at: int, size: int) -> int:
    """Return the number of zeros from here on that need not be read: whole chunks, or all up to the end."""
    try:
        data = os.lseek(handle, at, os.SEEK_DATA)
    except OSError as error:
        # Only zeros up to the end; or a file system without SEEK_DATA.
        return size - at if error.errno == errno.ENXIO else 0
    return (min(data, size) - at) // CHUNK * CHUNK
