"""SQLite for asyncio.

A store call runs as a whole, with all its statements, in one place, and everything that asked in the same turn of the loop
shares one commit. Where that place is depends on the disk. While the calls hardly wait for it, they run right in the event
loop: handing a call to a thread and back costs more time than a quick disk needs to flush, and more of the interpreter lock. As
soon as calls do wait, they go to threads, one that writes and a few that read, and the loop stays free. What is measured is
waiting, not work: decoding a long history takes the interpreter lock wherever it runs.

A call that is marked as ``Heavy`` always goes to a thread. So does a read whose statements turn out to take long: it is
interrupted and starts again in a thread. A read whose caller was cancelled is interrupted, or never starts.
"""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum, auto
from queue import SimpleQueue
from typing import Any, TypeVar

from ...clock import Stopwatch, monotonic_s
from ...errors import Closed
from ...sync_runner import step
from .. import fork_safety
from ..dialect import Dialect
from ..loop_affinity import refuse_other_loop
from ..offload import Heavy
from ..protocol import Call, Group, Row
from .disk_latency import BUSY_WAIT_S, Pace
from .errors import Interrupted
from .file import SqliteConnection, SqliteFile
from .wal import Checkpoints
from .writer import MAX_GROUP, Job, Writer

T = TypeVar("T")
Item = TypeVar("Item")

READERS = 4
"""Threads that read, each with a connection of its own."""
INLINE_WAIT_EACH_S = 0.000025
"""A shared commit may wait this much longer for each call that shares it; a thread would cost each as much."""

INLINE_READ_S = 0.02
"""Seconds after which a read in the event loop is interrupted and starts again in a thread."""
INLINE_BYTES = 2 * 1024 * 1024
"""Bytes of texts up to which what a read has found is decoded in the event loop."""
WEIGHED_S = 0.001
"""Seconds after which it is looked how many bytes a read has found: so many are not found in less."""
INTERRUPT_STEPS = 5_000
"""Instructions of SQLite's virtual machine, well under a millisecond, between two looks at whether to interrupt a read."""
INLINE_INTERRUPT_STEPS = 100
"""The same for a read in the event loop. One instruction may read a whole content of 16 MiB, so few of them are run at a time."""

TURNS_MORE = 3
"""Turns of the loop that are waited for those who shared the last commit. They come back over a few of them, since some have a
connection to answer first; without them, one commit of all is followed by one of a single call. Who was alone never waits."""


class AsyncSqliteEngine:
    """An asynchronous engine for one event loop."""

    dialect = Dialect.SQLITE
    distributed: bool | None = False
    blocking = False
    joined = False

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._closed = True
        self._opening = asyncio.Lock()  # held by whoever opens or closes

    async def open(self) -> bool:
        """Open the file and start the writing thread; ``False`` if that was done already."""
        async with self._opening:
            if self._closed:
                await self._start()
                return True
            return False

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = await self._connect()
        # All of it anew each time: what is left of an earlier opening must not be taken for threads that run.
        self._turn: list[_FutureJob] = []
        self._came_last = 0
        self._writes: SimpleQueue[_FutureJob | _Order] = SimpleQueue()
        self._reads: SimpleQueue[_FutureJob | None] = SimpleQueue()
        self._readers: list[threading.Thread] = []
        self._read_pace, self._write_pace = Pace(), Pace()
        self._connected = threading.Lock()  # held by whoever uses the writing connection
        self._writer = Writer(self._connection, self._committed, self._file.place)
        self._reader: SqliteConnection | None = None
        self._checkpoints = Checkpoints(self._file, self._connection)
        self._write_thread = _start(self._write_loop, "holdfast-writer")
        self._closed = False
        fork_safety.opened(self)

    async def _connect(self) -> SqliteConnection:
        connecting = self._loop.run_in_executor(None, self._file.connect)
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(self._let_go)  # the thread goes on, and nobody takes what it opens
            raise

    def _let_go(self, connecting: asyncio.Future[SqliteConnection]) -> None:
        if not connecting.cancelled() and connecting.exception() is None:
            connecting.result().raw.close()
        self._file.let_go()

    async def read(self, call: Call[T]) -> T:
        if self._closed:
            raise Closed
        refuse_other_loop(self._loop)
        if self._file.in_memory:
            with self._connected:
                return step(call(self._connection))
        if self._read_pace.quick() and type(call) is not Heavy:
            try:
                return self._read_inline(call)
            except Interrupted:
                pass  # it takes long, so it continues where it stalls nothing
        if len(self._readers) < READERS and self._reads.qsize() >= len(self._readers):
            self._readers.append(_start(self._read_loop, "holdfast-reader"))
        job = _FutureJob(call)
        future = job.expected(self._loop)
        self._reads.put(job)
        result: T = await future
        return result

    def write(self, call: Call[T]) -> Coroutine[Any, Any, T]:
        return self._submit(call)

    def grouped(self, group: Group[Item, T], item: Item) -> Coroutine[Any, Any, T]:
        return self._submit(None, group, item)

    async def exclusive(self, call: Call[T]) -> T:
        """Run a call on the writing connection with nobody else, outside any transaction; for migrations."""
        return await asyncio.to_thread(self._run_exclusively, call)

    async def close(self) -> None:
        """Finish what was accepted, then close every connection. Closing twice is fine."""
        async with self._opening:
            if self._closed:
                return
            self._closed = True
            self._flush_turn()
            self._writes.put(_Order.STOP)
            for _ in self._readers:
                self._reads.put(None)
            await asyncio.to_thread(self._join)
            fork_safety.closed(self)

    def _join(self) -> None:
        for thread in (self._write_thread, *self._readers):
            thread.join()
        if self._reader is not None:
            self._reader.raw.close()
        if not self._connected.acquire(blocking=False):
            # A migration whose caller was cancelled goes on in its thread. Otherwise nothing is interrupted: it would keep the
            # log from being moved into the file by the last one who closes it.
            self._connection.raw.interrupt()
            self._connected.acquire()
        try:
            self._connection.raw.close()
        finally:
            self._connected.release()
        self._file.let_go()

    def _run_exclusively(self, call: Call[T]) -> T:
        with self._connected:
            return step(call(self._connection))

    def _read_inline(self, call: Call[T]) -> T:
        watch = Stopwatch()
        if self._reader is None:
            self._reader = self._file.connect(reader=True)
            self._reader.raw.set_progress_handler(self._inline_took_long, INLINE_INTERRUPT_STEPS)
        now_s = monotonic_s()
        self._inline_until_s = now_s + INLINE_READ_S
        try:
            return step(call(_Inline(self._reader, now_s + WEIGHED_S)))
        finally:
            self._read_pace.observe(watch.waited_s())

    def _inline_took_long(self) -> bool:
        return monotonic_s() > self._inline_until_s

    async def _submit(self, call: Call[Any] | None, group: Group[Any, Any] | None = None, item: Any = None) -> Any:
        if self._closed:
            raise Closed
        refuse_other_loop(self._loop)
        job = _FutureJob(call, group, item)
        is_heavy = type(call) is Heavy or getattr(item, "is_heavy", False)
        if is_heavy or not (self._write_pace.quick() or self._file.in_memory):
            future = job.expected(self._loop)
            self._writes.put(job)
            return await future
        self._turn.append(job)
        if len(self._turn) > 1:
            return await job.expected(self._loop)
        return await self._lead(job)

    async def _lead(self, job: _FutureJob) -> Any:
        """Whoever is first in a turn of the loop lets the others ask, and commits for all of them. Being called back for that,
        and then once more with the answer, would take a lone writer as long as its statements."""
        try:
            await _next_turn()
            for _ in range(TURNS_MORE):
                if len(self._turn) >= self._came_last:
                    break
                await _next_turn()
        except BaseException:
            # Cancelled: what was asked for is done all the same, as it is for everybody who no longer waits.
            self._loop.call_soon(self._flush_turn)
            raise
        self._flush_turn()
        if not job.settled:
            return await job.expected(self._loop)
        if job.error is not None:
            raise job.error
        return job.result

    def _flush_turn(self) -> None:
        """Commit what was asked for in this turn of the loop; if the writing thread is busy, leave it to that."""
        jobs, self._turn = self._turn, []
        self._came_last = len(jobs)
        if jobs and self._connected.acquire(blocking=False):
            try:
                done = self._run(jobs, patient=False)
            finally:
                self._connected.release()
            if done:
                _resolve(jobs)
                if self._checkpoints.due():
                    self._writes.put(_Order.CHECKPOINT)
                return
            self._write_pace.observe(BUSY_WAIT_S)
        for job in jobs:
            self._writes.put(job)

    def _run(self, jobs: Sequence[_FutureJob], *, patient: bool) -> bool:
        try:
            done = self._writer.run(jobs, patient=patient)
        except Exception as error:  # a defect of ours must not leave callers waiting for ever
            for job in jobs:
                job.fail(error)
            return True
        return done

    def _committed(self, waited_s: float, calls: int) -> None:
        self._write_pace.observe(waited_s - INLINE_WAIT_EACH_S * calls)

    def _write_loop(self) -> None:
        going = True
        while going:
            waiting = [self._writes.get()]
            waiting += [self._writes.get() for _ in range(min(self._writes.qsize(), MAX_GROUP - 1))]
            going = _Order.STOP not in waiting
            jobs = [job for job in waiting if isinstance(job, _FutureJob)]
            if jobs:
                with self._connected:
                    self._run(jobs, patient=True)
                self._answer(jobs)
            if self._checkpoints.due() or _Order.CHECKPOINT in waiting:
                with self._connected:
                    self._checkpoints.run()

    def _read_loop(self) -> None:
        connection: SqliteConnection | None = None
        while (job := self._reads.get()) is not None:
            if job.abandoned():
                continue
            watch = Stopwatch()
            try:
                connection = connection or self._file.connect(reader=True)
                connection.raw.set_progress_handler(job.abandoned, INTERRUPT_STEPS)
                job.result = step(job.start(connection))
            except Exception as error:
                job.error = error
            self._read_pace.observe(watch.waited_s())
            self._answer([job])
        if connection is not None:
            connection.raw.close()

    def _answer(self, jobs: Sequence[_FutureJob]) -> None:
        try:
            self._loop.call_soon_threadsafe(_resolve, jobs)
        except RuntimeError:
            return  # the loop is gone, and with it everybody who could hear the answer


class _Inline:
    """The reading connection, in an event loop: a read that finds too much to be decoded there is interrupted."""

    __slots__ = ("_connection", "_weighed_s")
    dialect, distributed = Dialect.SQLITE, False

    def __init__(self, connection: SqliteConnection, weighed_s: float) -> None:
        self._connection, self._weighed_s = connection, weighed_s

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        rows = self._connection.execute(sql, args)
        if rows and monotonic_s() > self._weighed_s and _weight(rows) > INLINE_BYTES:
            raise Interrupted("what was found is decoded in a thread")
        return rows

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        await self._connection.many(sql, rows)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return self._connection.savepoint()


def _weight(rows: Sequence[Row]) -> int:
    return sum([len(value) for row in rows for value in row if isinstance(value, (str, bytes))])


class _Order(Enum):
    """What the writing thread is told besides calls."""

    CHECKPOINT = auto()
    STOP = auto()


class _FutureJob(Job):
    """A job answered in the event loop: through a future, unless whoever asked did it."""

    __slots__ = ("future", "settled")

    def __init__(self, call: Call[Any] | None, group: Group[Any, Any] | None = None, item: Any = None) -> None:
        # What ``Job`` does, without a call more: one is made for every write.
        self.call, self.group, self.item = call, group, item
        self.result = self.error = None
        self.future: asyncio.Future[Any] | None = None
        self.settled = False

    def expected(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        """What the answer will be; asked for before anybody can have settled the job."""
        self.future = loop.create_future()
        return self.future

    def abandoned(self) -> bool:
        """Whether the caller was cancelled and no longer waits for an answer."""
        return self.future is not None and self.future.cancelled()

    def settle(self) -> None:
        """Hand over the result or the error, if somebody still waits for it."""
        self.settled, future = True, self.future
        if future is None or future.done():
            return  # who asked looks by itself, or was cancelled
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.result)


@types.coroutine
def _next_turn() -> Generator[None, None, None]:
    """Let everybody else go on once; what ``asyncio.sleep(0)`` does, without a call more."""
    yield


def _start(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def _resolve(jobs: Sequence[_FutureJob]) -> None:
    for job in jobs:
        job.settle()
