"""Blocking SQLite engine for any number of threads.

A single caller writes in its own thread, without a handover. When several threads write at once, the first becomes the
leader and commits for all that wait; one of the threads still waiting then becomes the next leader.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ...errors import Closed, OutcomeUnknown, Unavailable
from .. import fork_safety
from ..dialect import Dialect
from ..protocol import Call, Group
from .file import SqliteConnection, SqliteFile
from .writer import MAX_GROUP, WriteJob, Writer

T = TypeVar("T")
Item = TypeVar("Item")


class SqliteEngine:
    """Blocking engine: its methods never suspend."""

    dialect = Dialect.SQLITE
    distributed: bool | None = False
    blocking = True
    joined = False

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._connection = file.connect()
        self._writer = Writer(self._connection, location=file.location)
        self._leading = (
            threading.RLock()
        )  # an RLock has an owner, so it can be released correctly after an interruption
        self._waiting: deque[_WaitingJob] = deque()
        self._readers: deque[SqliteConnection] = deque()
        self._led: list[_WaitingJob] = []
        self._inside: set[int] = set()  # threads that write, wait to write, or were interrupted in either
        self._ran = False
        self._closed = False
        fork_safety.register(self)

    async def read(self, call: Call[T]) -> T:
        if self._closed:
            raise Closed
        if self._file.in_memory:
            return await self.exclusive(call)
        reader = self._take_reader()
        try:
            return await call(reader)
        finally:
            self._give_back(reader)

    async def write(self, call: Call[T]) -> T:
        result: T = self._settle(_WaitingJob(call=call))
        return result

    async def grouped(self, group: Group[Item, T], item: Item) -> T:
        result: T = self._settle(_WaitingJob(group=group, item=item))
        return result

    async def exclusive(self, call: Call[T]) -> T:
        """Run a call exclusively on the writing connection, outside any transaction. Used by migrations."""
        with self._leadership():
            return await call(self._connection)

    async def close(self) -> None:
        """Wait for the writer, then close every connection. Closing again has no effect."""
        with self._leadership():
            if self._closed:
                return
            self._closed = True
            fork_safety.unregister(self)
            while self._readers:
                self._readers.pop().raw.close()
            self._connection.raw.close()
            self._file.release_claim()

    def _take_reader(self) -> SqliteConnection:
        try:
            return self._readers.pop()
        except IndexError:
            return self._file.connect(reader=True)

    def _give_back(self, reader: SqliteConnection) -> None:
        if self._closed:  # the engine was closed during the read
            reader.raw.close()
        else:
            self._readers.append(reader)

    def _settle(self, job: _WaitingJob) -> Any:
        self._refuse_if_inside()
        try:
            self._inside.add(job.thread)
            self._waiting.append(job)
            while not job.settled:
                if self._leading.acquire(blocking=False):
                    self._lead()
                    self._stop_leading()
                else:
                    job.signal.acquire()
        finally:
            self._inside.discard(job.thread)
            if self._waiting:
                # Interrupted, for example by Ctrl-C: a call without a caller must not run in another thread's commit.
                self._withdraw(job)
            self._stop_leading()
        if job.error is not None:
            raise job.error
        return job.result

    @contextmanager
    def _leadership(self) -> Iterator[None]:
        """Hold the writing connection for this thread; a thread that queued in the block is woken at its end."""
        self._refuse_if_inside()
        try:
            self._leading.acquire()
            yield
        finally:
            self._stop_leading()

    def _refuse_if_inside(self) -> None:
        """Refuse a call from a signal handler or finalizer while this thread is inside another call.

        It would end the other call's transaction, or wait for a lock that the other call holds. Owning the lock does not
        prove that: a thread that was interrupted twice may still own it when it makes its next call.
        """
        if not (threading.get_ident() in self._inside or self._leading._is_owned()):  # type: ignore[attr-defined]
            return
        frame, inside = sys._getframe(), 0
        while frame.f_back is not None:
            frame = frame.f_back
            inside += id(frame.f_code) in _HOLDING and frame.f_locals.get("self") is self
        if inside > 1:
            raise Unavailable(_INSIDE)

    def _withdraw(self, job: _WaitingJob) -> None:
        """Remove a job from the queue, unless a leader has already taken it."""
        try:
            self._waiting.remove(job)
        except ValueError:
            return

    def _stop_leading(self) -> None:
        """Settle the jobs of this leader and wake the next one; do nothing if this thread does not lead.

        A leader may be interrupted on any line, including these. The next call of this method finishes the rest.
        """
        if self._leading._is_owned():  # type: ignore[attr-defined]
            while self._led:
                job = self._led[-1]
                if not self._ran:  # interrupted: the jobs may or may not have been committed
                    job.fail(OutcomeUnknown())
                job.settled = True
                job.wake()
                self._led.pop()
            self._ran = False
            self._leading.release()
        self._wake_next()

    def _lead(self) -> None:
        led = self._led
        while self._waiting and len(led) < MAX_GROUP:
            # A job is always in at least one of the two lists, so an interruption between the lines cannot lose it. It is
            # removed by value, not by position, because an interrupted thread withdraws its own job.
            try:
                job = self._waiting[0]
            except IndexError:
                break
            led.append(job)
            self._withdraw(job)
        jobs = [job for job in led if not job.settled]
        if self._closed:
            for job in jobs:
                job.error = Closed()
        elif jobs:
            self._writer.run(jobs)
        self._ran = True

    def _wake_next(self) -> None:
        """Wake the first thread that queued while the leader was busy, so that it can lead."""
        if self._waiting:
            try:
                self._waiting[0].wake()
            except IndexError:
                return  # another leader has just taken the job


_HOLDING = {id(method.__code__) for method in (SqliteEngine._settle, SqliteEngine.exclusive, SqliteEngine.close)}
"""Code objects that wait for or hold the writing connection, by identity, because code objects are slow to hash."""
_INSIDE = (
    "this thread is already inside a write: a signal handler or callback cannot use the same handle; "
    "the refused call changed nothing"
)


class _WaitingJob(WriteJob):
    """A job whose thread sleeps on ``signal`` until the job is settled or the thread may lead."""

    __slots__ = ("settled", "signal", "thread")

    def __init__(self, call: Call[Any] | None = None, group: Group[Any, Any] | None = None, item: Any = None) -> None:
        super().__init__(call, group, item)
        self.settled = False
        self.thread = threading.get_ident()
        self.signal = threading.Lock()
        self.signal.acquire()

    def wake(self) -> None:
        try:
            self.signal.release()
        except RuntimeError:
            return  # the thread was already awake
