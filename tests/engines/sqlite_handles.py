"""Handles on a recording disk, for tests that count or hold up what reaches it."""

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
    """A handle for synchronous callers."""
    return on_engine(SqliteEngine(SqliteFile(str(folder / DATABASE), vfs=disk.name, durability=durability)))


async def on_disk_async(folder: Path, disk: Disk) -> OnEngine:
    """A handle for asyncio: the asynchronous store is behind each store's ``_async``."""
    engine = AsyncSqliteEngine(SqliteFile(str(folder / DATABASE), vfs=disk.name))
    await engine.open()
    handle = OnEngine(engine)
    await handle.migrate()
    return handle


def in_threads(work: Sequence[Callable[[], Any]], *, patience_s: float = 60.0) -> list[Any]:
    """Run each in a thread of its own; the answers, an exception for each that raised.

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
