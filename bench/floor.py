"""The floor: how quickly this disk makes a few kilobytes durable, one flush after another."""

from __future__ import annotations

import os
from pathlib import Path

from .case import Case, Job, Result
from .workload import Message, write_for

PAGE = 4_096
COMMIT = 5 * PAGE
"""About what one append adds to the write-ahead log: the pages of two tables and three indexes."""
_FILE = 4 * 1_024 * 1_024


def cases(group: str) -> list[Case]:
    """One page, and as much as one append writes."""
    return [Case(group, "fdatasync", params={"bytes": size}) for size in (PAGE, COMMIT)]


def run(job: Job) -> Result:
    """Overwrite a file that is already there, as a reused write-ahead log is."""
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
