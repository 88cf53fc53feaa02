"""Handles on a recording disk, for tests that count or delay its operations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.engine_async import AsyncSqliteEngine
from holdfast.engines.sqlite.file import Durability, SqliteFile
from holdfast.testing.disk import Disk
from tests.faults.powercut import DATABASE
from tests.workloads.workloads import OnEngine, on_engine


def on_disk(folder: Path, disk: Disk, *, durability: Durability = "full") -> OnEngine:
    """Return a handle for synchronous callers."""
    return on_engine(SqliteEngine(SqliteFile(str(folder / DATABASE), vfs=disk.name, durability=durability)))


async def on_disk_async(folder: Path, disk: Disk) -> OnEngine:
    """Return a handle for asyncio."""
    engine = AsyncSqliteEngine(SqliteFile(str(folder / DATABASE), vfs=disk.name))
    await engine.open()
    handle = OnEngine(engine)
    await handle.migrate()
    return handle


def in_threads(work: Sequence[Callable[[], Any]], *, patience_s: float = 60.0) -> list[Any]:
    """Run each function in its own thread; return the results, or the exceptions.

    Raises:
        AssertionError: one of them hangs.
    """
    answers: list[Any] = [AssertionError("hangs")] * len(work)

    def answer(place: int) -> None:
        try:
            answers[place] = work[place]()
        except BaseException as error:
            answers[place] = error

    threads = [threading.Thread(target=answer, args=(place,), daemon=True) for place in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience_s)
        assert not thread.is_alive(), "a call hangs"
    return answers
