"""The floor of the disk: how fast it makes a few kilobytes durable with sequential flushes."""

from __future__ import annotations

import os
from pathlib import Path

from .case import Case, Job, Result
from .workload import Message, write_for

PAGE = 4_096
COMMIT = 5 * PAGE
"""About the number of bytes that one append adds to the write-ahead log: pages of two tables and three indexes."""
_FILE = 4 * 1_024 * 1_024


def cases(group: str) -> list[Case]:
    """Return the cases for a write of one page and for a write of the size of an append."""
    return [Case(group, "fdatasync", params={"bytes": size}) for size in (PAGE, COMMIT)]


def run(job: Job) -> Result:
    """Overwrite an existing file, as SQLite does with its write-ahead log."""
    size = job.params["bytes"]
    block = os.urandom(size)
    file = os.open(Path(job.place) / "floor", os.O_RDWR | os.O_CREAT)
    os.pwrite(file, os.urandom(_FILE), 0)
    os.fsync(file)
    at = 0

    def append(_writer: int, _message: Message) -> None:
        nonlocal at
        os.pwrite(file, block, at)
        os.fdatasync(file)
        at = (at + size) % (_FILE - size)

    return write_for(job.seconds, append)
