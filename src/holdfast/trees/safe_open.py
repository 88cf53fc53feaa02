"""Reading one file of a tree, by the handle of its directory, so that what is read is what was there at one moment.

A file that changed while it was read is read again, a few times; then it is taken as it was read last, and reported.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from .contents import CHUNK
from .walk import Stat

TRIES = 4
"""How often a file is read that changes while it is read."""
# Not blocking, because what was a file may be a pipe by now.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class OpenFile:
    """A file that is open, as it was when it was opened. Leaving ``with`` closes it."""

    __slots__ = ("blocks", "handle", "stat")

    def __init__(self, handle: int) -> None:
        now = os.fstat(handle)
        if not stat.S_ISREG(now.st_mode):
            raise OSError(errno.EINVAL, "it was no file any longer when it was to be read")
        self.handle, self.stat, self.blocks = handle, stat_of(now), now.st_blocks

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self.handle)


def open_file(folder: int, name: str) -> OpenFile:
    """A file in a directory that is open.

    Raises:
        OSError: it is gone, must not be read, or is no file any longer.
    """
    handle = os.open(name, _FILE, dir_fd=folder)
    try:
        return OpenFile(handle)
    except BaseException:
        os.close(handle)
        raise


def is_same(file: OpenFile) -> bool:
    """Whether a file is as it was when it was opened."""
    return stat_of(os.fstat(file.handle)) == file.stat


def stat_of(now: os.stat_result) -> Stat:
    """What is remembered of a file."""
    return now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino


def content(file: OpenFile) -> bytes:
    """All of a file that is no longer than a chunk. If it is not as long as it was, it has changed meanwhile."""
    size = file.stat[1]
    read = os.read(file.handle, size + 1)
    return read if len(read) >= size else read + _filled(file.handle, size - len(read))


def chunks(file: OpenFile) -> Iterator[bytes | int]:
    """A file in chunks, as far as it reached when it was opened. Where nothing was ever written, the number of zeros."""
    size, at = file.stat[1], 0
    is_sparse = file.blocks * 512 < size
    while at < size:
        hole = _hole(file.handle, at, size) if is_sparse else 0
        if hole:
            yield hole
            at += hole
            continue
        os.lseek(file.handle, at, os.SEEK_SET)
        read = _filled(file.handle, min(CHUNK, size - at))
        if not read:
            return
        yield read
        at += len(read)


def _filled(handle: int, length: int) -> bytes:
    """So many bytes, unless the file ends before."""
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
    """Zeros from here on that need not be read: whole chunks of them, or all to the end."""
    try:
        data = os.lseek(handle, at, os.SEEK_DATA)
    except OSError as error:
        # Nothing but zeros until the end; or a file system that does not tell.
        return size - at if error.errno == errno.ENXIO else 0
    return (min(data, size) - at) // CHUNK * CHUNK
