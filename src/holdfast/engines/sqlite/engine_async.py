"""Asynchronous SQLite engine.

A store call runs with all its statements in one place, and all writes submitted in the same iteration of the event loop
share one commit. The place depends on the disk. While calls hardly wait for the disk, they run in the event loop
itself: a thread switch takes longer than a fast disk needs to flush, and holds the GIL for longer. As soon as calls
wait, they run in threads, one for writes and a few for reads, and the loop stays free. ``disk_latency`` has the
threshold. Only waiting is measured, not work: decoding a long history holds the GIL in any thread. A write that finds
another process writing moves to the writing thread and waits there.

A ``HeavyCall`` always runs in a thread. A read whose statements take too long in the event loop is interrupted and
restarted in a thread. A read whose caller was cancelled is interrupted, or never starts. Interruptions use SQLite's
progress handler.
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
from ..heavy_calls import HeavyCall
from ..loop_affinity import refuse_other_loop
from ..protocol import Call, Group, Row
from .disk_latency import BUSY_WAIT_S, DiskLatency
from .errors import Interrupted
from .file import SqliteConnection, SqliteFile
from .wal import WalCheckpointer
from .writer import MAX_GROUP, WriteJob, Writer

T = TypeVar("T")
Item = TypeVar("Item")

READERS = 4
"""Reading threads, each with its own connection."""
INLINE_WAIT_EACH_S = 0.000025
"""Additional wait that a shared commit may take for each of its calls; a thread would cost each call as much."""

INLINE_READ_S = 0.02
"""Seconds after which a read in the event loop is interrupted and restarted in a thread."""
INLINE_BYTES = 2 * 1024 * 1024
"""Bytes of result rows up to which a read is decoded in the event loop."""
WEIGH_AFTER_S = 0.001
"""Seconds after which the size of a read's result is checked; a faster read cannot have exceeded ``INLINE_BYTES``."""
INTERRUPT_STEPS = 5_000
"""Instructions of SQLite's virtual machine between two checks for interruption, well under a millisecond."""
INLINE_INTERRUPT_STEPS = 100
"""The same for a read in the event loop. Fewer, because a single instruction may read a content of 16 MiB."""

MAX_EXTRA_TURNS = 3
"""Loop iterations for which a leader waits for the callers of the last commit. These return over several iterations, because
some first answer a connection; without the wait, a commit for a single call would follow each shared one. After a commit for
one call the leader does not wait."""


class AsyncSqliteEngine:
    """Asynchronous engine for one event loop."""

    dialect = Dialect.SQLITE
    distributed: bool | None = False
    blocking = False
    joined = False

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._closed = True
        self._opening = asyncio.Lock()  # held while the engine is opened or closed

    async def open(self) -> bool:
        """Open the file and start the writing thread. Return ``False`` if the engine was already open."""
        async with self._opening:
            if self._closed:
                await self._start()
                return True
            return False

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = await self._connect()
        # All state is reset here, so that leftovers of an earlier opening are not mistaken for running threads.
        self._turn: list[_FutureJob] = []
        self._came_last = 0
        self._writes: SimpleQueue[_FutureJob | _Command] = SimpleQueue()
        self._reads: SimpleQueue[_FutureJob | None] = SimpleQueue()
        self._readers: list[threading.Thread] = []
        self._read_pace, self._write_pace = DiskLatency(), DiskLatency()
        self._connected = threading.Lock()  # held while the writing connection is in use
        self._writer = Writer(self._connection, self._committed, self._file.location)
        self._reader: SqliteConnection | None = None
        self._checkpointer = WalCheckpointer(self._file, self._connection)
        self._write_thread = _start(self._write_loop, "holdfast-writer")
        self._closed = False
        fork_safety.register(self)

    async def _connect(self) -> SqliteConnection:
        connecting = self._loop.run_in_executor(None, self._file.connect)
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(
                self._discard_connection
            )  # the thread continues and still opens the connection
            raise

    def _discard_connection(self, connecting: asyncio.Future[SqliteConnection]) -> None:
        if not connecting.cancelled() and connecting.exception() is None:
            connecting.result().raw.close()
        self._file.release_claim()

    async def read(self, call: Call[T]) -> T:
        if self._closed:
            raise Closed
        refuse_other_loop(self._loop)
        if self._file.in_memory:
            with self._connected:
                return step(call(self._connection))
        if self._read_pace.quick() and type(call) is not HeavyCall:
            try:
                return self._read_inline(call)
            except Interrupted:
                pass  # the read takes long: restart it in a thread
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
        """Run a call exclusively on the writing connection, outside any transaction. Used by migrations."""
        return await asyncio.to_thread(self._run_exclusively, call)

    async def close(self) -> None:
        """Finish accepted calls, then close every connection. Closing again has no effect."""
        async with self._opening:
            if self._closed:
                return
            self._closed = True
            self._flush_turn()
            self._writes.put(_Command.STOP)
            for _ in self._readers:
                self._reads.put(None)
            await asyncio.to_thread(self._join)
            fork_safety.unregister(self)

    def _join(self) -> None:
        for thread in (self._write_thread, *self._readers):
            thread.join()
        if self._reader is not None:
            self._reader.raw.close()
        if not self._connected.acquire(blocking=False):
            # A migration whose caller was cancelled is still running in its thread. In all other cases nothing is interrupted,
            # because that would prevent the WAL checkpoint of the last connection to close.
            self._connection.raw.interrupt()
            self._connected.acquire()
        try:
            self._connection.raw.close()
        finally:
            self._connected.release()
        self._file.release_claim()

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
            return step(call(_InlineConnection(self._reader, now_s + WEIGH_AFTER_S)))
        finally:
            self._read_pace.observe(watch.waited_s())

    def _inline_took_long(self) -> bool:
        return monotonic_s() > self._inline_until_s

    async def _submit(self, call: Call[Any] | None, group: Group[Any, Any] | None = None, item: Any = None) -> Any:
        if self._closed:
            raise Closed
        refuse_other_loop(self._loop)
        job = _FutureJob(call, group, item)
        is_heavy = type(call) is HeavyCall or getattr(item, "is_heavy", False)
        if is_heavy or not (self._write_pace.quick() or self._file.in_memory):
            future = job.expected(self._loop)
            self._writes.put(job)
            return await future
        self._turn.append(job)
        if len(self._turn) > 1:
            return await job.expected(self._loop)
        return await self._lead(job)

    async def _lead(self, job: _FutureJob) -> Any:
        """Wait for the other writes of this loop iteration, then commit for all of them.

        The first caller of an iteration leads. A callback for the commit and another for the result would cost a single
        writer as much as its statements.
        """
        try:
            await _next_turn()
            for _ in range(MAX_EXTRA_TURNS):
                if len(self._turn) >= self._came_last:
                    break
                await _next_turn()
        except BaseException:
            # Cancelled: the submitted writes are still executed, as for every other cancelled caller.
            self._loop.call_soon(self._flush_turn)
            raise
        self._flush_turn()
        if not job.settled:
            return await job.expected(self._loop)
        if job.error is not None:
            raise job.error
        return job.result

    def _flush_turn(self) -> None:
        """Commit the writes of this loop iteration; if the writing thread is busy, hand them to it."""
        jobs, self._turn = self._turn, []
        self._came_last = len(jobs)
        if jobs and self._connected.acquire(blocking=False):
            try:
                settled = self._run(jobs, patient=False)
            finally:
                self._connected.release()
            if settled:
                _resolve(jobs)
                if self._checkpointer.due():
                    self._writes.put(_Command.CHECKPOINT)
                return
            self._write_pace.observe(BUSY_WAIT_S)
        for job in jobs:
            self._writes.put(job)

    def _run(self, jobs: Sequence[_FutureJob], *, patient: bool) -> bool:
        try:
            return self._writer.run(jobs, patient=patient)
        except Exception as error:  # a bug in Holdfast must not leave callers waiting forever
            for job in jobs:
                job.fail(error)
            return True

    def _committed(self, waited_s: float, calls: int) -> None:
        self._write_pace.observe(waited_s - INLINE_WAIT_EACH_S * calls)

    def _write_loop(self) -> None:
        going = True
        while going:
            waiting = [self._writes.get()]
            waiting += [self._writes.get() for _ in range(min(self._writes.qsize(), MAX_GROUP - 1))]
            going = _Command.STOP not in waiting
            jobs = [job for job in waiting if isinstance(job, _FutureJob)]
            if jobs:
                with self._connected:
                    self._run(jobs, patient=True)
                self._answer(jobs)
            if self._checkpointer.due() or _Command.CHECKPOINT in waiting:
                with self._connected:
                    self._checkpointer.run()

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
            return  # the loop is closed, and no caller can receive the result


class _InlineConnection:
    """The reading connection in the event loop; interrupts a read whose result is too large to decode there."""

    __slots__ = ("_connection", "_weighed_s")
    dialect, distributed = Dialect.SQLITE, False

    def __init__(self, connection: SqliteConnection, weighed_s: float) -> None:
        self._connection, self._weighed_s = connection, weighed_s

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        rows = self._connection.execute(sql, args)
        if rows and monotonic_s() > self._weighed_s and _weight(rows) > INLINE_BYTES:
            raise Interrupted("the result is too large to decode in the event loop")
        return rows

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        await self._connection.many(sql, rows)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return self._connection.savepoint()


def _weight(rows: Sequence[Row]) -> int:
    return sum([len(value) for row in rows for value in row if isinstance(value, (str, bytes))])


class _Command(Enum):
    """A command for the writing thread, which it receives in the same queue as jobs."""

    CHECKPOINT = auto()
    STOP = auto()


class _FutureJob(WriteJob):
    """A job settled in the event loop; through a future, unless its own caller leads and reads the result directly."""

    __slots__ = ("future", "settled")

    def __init__(self, call: Call[Any] | None, group: Group[Any, Any] | None = None, item: Any = None) -> None:
        # Repeats ``WriteJob.__init__`` to save a call: a job is created for every write.
        self.call, self.group, self.item = call, group, item
        self.result = self.error = None
        self.future: asyncio.Future[Any] | None = None
        self.settled = False

    def expected(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        """Create the future for the result; must be called before the job can be settled."""
        self.future = loop.create_future()
        return self.future

    def abandoned(self) -> bool:
        """Return whether the caller was cancelled and no longer waits for the result."""
        return self.future is not None and self.future.cancelled()

    def settle(self) -> None:
        """Set the result or the error of the future, if a caller still waits for it."""
        self.settled, future = True, self.future
        if future is None or future.done():
            return  # the caller leads and reads the result itself, or was cancelled
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.result)


@types.coroutine
def _next_turn() -> Generator[None, None, None]:
    """Yield to the event loop once, like ``asyncio.sleep(0)`` but with one call less."""
    yield


def _start(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def _resolve(jobs: Sequence[_FutureJob]) -> None:
    for job in jobs:
        job.settle()
