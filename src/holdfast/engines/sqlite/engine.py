"""SQLite for synchronous callers, from any number of threads.

A lone caller writes in its own thread: no hand-over, no event. When several threads write at once, the first becomes the
leader and commits for all that wait; whoever is still waiting then leads next.
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
from .writer import MAX_GROUP, Job, Writer

T = TypeVar("T")
Item = TypeVar("Item")


class SqliteEngine:
    """A blocking engine: its methods never suspend."""

    dialect = Dialect.SQLITE
    distributed: bool | None = False
    blocking = True
    joined = False

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._connection = file.connect()
        self._writer = Writer(self._connection, place=file.place)
        self._leading = threading.RLock()  # knows its owner, so that a release is exact after an interruption
        self._waiting: deque[_WaitingJob] = deque()
        self._readers: deque[SqliteConnection] = deque()
        self._led: list[_WaitingJob] = []
        self._inside: set[int] = set()  # threads that write or wait for it, or were interrupted doing so
        self._ran = False
        self._closed = False
        fork_safety.opened(self)

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
        """Run a call on the writing connection with nobody else, outside any transaction; for migrations."""
        with self._leadership():
            return await call(self._connection)

    async def close(self) -> None:
        """Wait for the writer, then close every connection. Closing twice is fine."""
        with self._leadership():
            if self._closed:
                return
            self._closed = True
            fork_safety.closed(self)
            while self._readers:
                self._readers.pop().raw.close()
            self._connection.raw.close()
            self._file.let_go()

    def _take_reader(self) -> SqliteConnection:
        try:
            return self._readers.pop()
        except IndexError:
            return self._file.connect(reader=True)

    def _give_back(self, reader: SqliteConnection) -> None:
        if self._closed:  # while it was reading
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
                # Interrupted, perhaps by Ctrl-C: a call nobody waits for any more must not be run with somebody else's.
                self._withdraw(job)
            self._stop_leading()
        if job.error is not None:
            raise job.error
        return job.result

    @contextmanager
    def _leadership(self) -> Iterator[None]:
        """The writing connection for this thread alone; whoever queues meanwhile is woken at the end."""
        self._refuse_if_inside()
        try:
            self._leading.acquire()
            yield
        finally:
            self._stop_leading()

    def _refuse_if_inside(self) -> None:
        """Refuse a call that a signal handler or a finalizer makes while this thread is in another one.

        Going on, it would end the other's transaction, or wait for a turn that only the other can be given. That it leads
        is no proof: whoever was interrupted twice may still have the lock, and comes again.
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
        """Take a job out of the queue, unless a leader has it already."""
        try:
            self._waiting.remove(job)
        except ValueError:
            return

    def _stop_leading(self) -> None:
        """Answer everybody led for and let the next one lead; nothing, if this thread does not lead.

        A leader may be interrupted on any line, here too. Whatever was not done is done when it comes here again.
        """
        if self._leading._is_owned():  # type: ignore[attr-defined]
            while self._led:
                job = self._led[-1]
                if not self._ran:  # interrupted: what it did for the others is anybody's guess
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
            # Never in neither of the two, so that an interruption between the lines loses nobody; and taken out by
            # name, because whoever is interrupted meanwhile takes itself out.
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
        """Whoever queued while the leader was busy could not lead; now it can."""
        if self._waiting:
            try:
                self._waiting[0].wake()
            except IndexError:
                return  # it has just been taken


_HOLDING = {id(method.__code__) for method in (SqliteEngine._settle, SqliteEngine.exclusive, SqliteEngine.close)}
"""The code that waits for the writing connection or has it; by identity, because a code object is slow to hash."""
_INSIDE = (
    "this thread is in the middle of a write: a signal handler or callback cannot use the same handle; "
    "nothing was changed by it"
)


class _WaitingJob(Job):
    """A job whose thread sleeps on ``signal`` until it is settled or may lead."""

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
            return  # it was awake already
