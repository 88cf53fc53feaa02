"""SQLite for asyncio: one thread writes, a few threads read, the event loop never waits for the disk.

A store call crosses to its thread once, as a whole, with all its statements. Everything that queued up while the writer
was flushing shares its next commit, and all of it is answered with one wake-up of the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

from ...drivers.apsw import ApswConnection
from ...errors import Closed, HoldfastError
from ...stepping import step
from ..dialect import Dialect
from ..protocol import Call, Group
from .file import SqliteFile
from .writer import GROUP_MOST, Job, Writer

T = TypeVar("T")
Item = TypeVar("Item")

READERS = 4
"""Threads that read, each with a connection of its own."""


class AsyncSqliteEngine:
    """An asynchronous engine for one event loop."""

    dialect = Dialect.SQLITE

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writes: SimpleQueue[_FutureJob | None] = SimpleQueue()
        self._reads: SimpleQueue[_FutureJob | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = True

    async def open(self) -> None:
        """Open the file and start the threads."""
        self._loop = asyncio.get_running_loop()
        connection = await asyncio.to_thread(self._file.connect)
        self._start(lambda: self._write_loop(connection), "holdfast-writer")
        self._closed = False

    async def read(self, call: Call[T]) -> T:
        if self._file.in_memory:
            return await self.exclusive(call)
        if len(self._threads) <= READERS and self._reads.qsize() >= len(self._threads) - 1:
            self._start(self._read_loop, "holdfast-reader")
        result: T = await self._submit(self._reads, _FutureJob(call=call))
        return result

    async def write(self, call: Call[T]) -> T:
        result: T = await self._submit(self._writes, _FutureJob(call=call))
        return result

    async def grouped(self, group: Group[Item, T], item: Item) -> T:
        result: T = await self._submit(self._writes, _FutureJob(group=group, item=item))
        return result

    async def exclusive(self, call: Call[T]) -> T:
        """Run a call on the writing connection with nobody else, outside any transaction; for migrations."""
        job = _FutureJob(call=call)
        job.alone = True
        result: T = await self._submit(self._writes, job)
        return result

    async def close(self) -> None:
        """Finish what was accepted, then close every connection. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._writes.put(None)
        for _ in self._threads[1:]:
            self._reads.put(None)
        await asyncio.to_thread(lambda: [thread.join() for thread in self._threads])

    def _start(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    async def _submit(self, queue: SimpleQueue[_FutureJob | None], job: _FutureJob) -> Any:
        if self._closed or self._loop is None:
            raise Closed
        job.future = self._loop.create_future()
        queue.put(job)
        return await job.future

    def _write_loop(self, connection: ApswConnection) -> None:
        writer = Writer(connection)
        going = True
        while going:
            waiting = [self._writes.get()]
            waiting += [self._writes.get() for _ in range(min(self._writes.qsize(), GROUP_MOST - 1))]
            going = None not in waiting
            jobs = [job for job in waiting if job is not None]
            together = [job for job in jobs if not job.alone]
            try:
                writer.run(together)
            except Exception as error:  # a defect of ours must not leave callers waiting for ever
                for job in together:
                    job.error = job.error or error
            for job in jobs:
                if job.alone:
                    _run_alone(job, connection)
            self._answer(jobs)
        connection.raw.close()

    def _read_loop(self) -> None:
        connection: ApswConnection | None = None
        while (job := self._reads.get()) is not None:
            try:
                connection = connection or self._file.connect(reader=True)
                _run_alone(job, connection)
            except HoldfastError as error:
                job.error = error
            self._answer([job])
        if connection is not None:
            connection.raw.close()

    def _answer(self, jobs: Sequence[_FutureJob]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_resolve, jobs)
        except RuntimeError:
            return  # the loop is gone, and with it everybody who could hear the answer


class _FutureJob(Job):
    """A job answered through a future of the event loop."""

    __slots__ = ("alone", "future")

    future: asyncio.Future[Any]

    def __init__(
        self, call: Call[Any] | None = None, group: Group[Any, Any] | None = None, item: Any = None
    ) -> None:
        super().__init__(call, group, item)
        self.alone = False


def _run_alone(job: _FutureJob, connection: ApswConnection) -> None:
    assert job.call is not None
    try:
        job.result = step(job.call(connection))
    except Exception as error:
        job.error = error


def _resolve(jobs: Sequence[_FutureJob]) -> None:
    for job in jobs:
        if job.future.cancelled():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)
