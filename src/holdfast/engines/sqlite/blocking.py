"""SQLite for synchronous callers, from any number of threads.

A lone caller writes in its own thread: no hand-over, no event. When several threads write at once, the first becomes the
leader and commits for all that wait; whoever is still waiting then leads next.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, TypeVar

from ...drivers.apsw import ApswConnection
from ...errors import Closed, OutcomeUnknown
from ..dialect import Dialect
from ..protocol import Call, Group
from .file import SqliteFile
from .writer import GROUP_MOST, Job, Writer

T = TypeVar("T")
Item = TypeVar("Item")


class SqliteEngine:
    """A blocking engine: its methods never suspend."""

    dialect = Dialect.SQLITE

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._connection = file.connect()
        self._writer = Writer(self._connection)
        self._leading = threading.RLock()  # knows its owner, so that a release is exact after an interruption
        self._waiting: deque[_WaitingJob] = deque()
        self._readers: deque[ApswConnection] = deque()
        self._closed = False

    async def read(self, call: Call[T]) -> T:
        if self._closed:
            raise Closed
        if self._file.in_memory:
            with self._leading:
                return await call(self._connection)
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
        with self._leading:
            return await call(self._connection)

    async def close(self) -> None:
        """Wait for the writer, then close every connection. Closing twice is fine."""
        with self._leading:
            if self._closed:
                return
            self._closed = True
            while self._readers:
                self._readers.pop().raw.close()
            self._connection.raw.close()

    def _take_reader(self) -> ApswConnection:
        try:
            return self._readers.pop()
        except IndexError:
            return self._file.connect(reader=True)

    def _give_back(self, reader: ApswConnection) -> None:
        if self._closed:  # while it was reading
            reader.raw.close()
        else:
            self._readers.append(reader)

    def _settle(self, job: _WaitingJob) -> Any:
        self._waiting.append(job)
        try:
            while not job.settled:
                if self._leading.acquire(blocking=False):
                    self._lead()
                    self._stop_leading()
                else:
                    job.signal.acquire()
        except BaseException:
            # Interrupted, perhaps by Ctrl-C: a call nobody waits for any more must not be run with somebody else's.
            self._withdraw(job)
            raise
        finally:
            self._stop_leading()
        if job.error is not None:
            raise job.error
        return job.result

    def _withdraw(self, job: _WaitingJob) -> None:
        try:
            self._waiting.remove(job)
        except ValueError:
            return  # a leader has it already

    def _stop_leading(self) -> None:
        """Let the next one lead, if this thread does; it may come here twice, or interrupted at any point."""
        try:
            self._leading.release()
        except RuntimeError:
            pass
        self._wake_next()

    def _lead(self) -> None:
        jobs = [self._waiting.popleft() for _ in range(min(len(self._waiting), GROUP_MOST))]
        try:
            if self._closed:
                for job in jobs:
                    job.error = Closed()
            elif jobs:
                self._writer.run(jobs)
        except BaseException:
            # The leader was interrupted; what it did for the others is anybody's guess.
            for job in jobs:
                job.error = job.error or OutcomeUnknown()
            raise
        finally:
            for job in jobs:
                job.settled = True
                job.wake()

    def _wake_next(self) -> None:
        """Whoever queued while the leader was busy could not lead; now it can."""
        try:
            self._waiting[0].wake()
        except IndexError:
            return


class _WaitingJob(Job):
    """A job whose thread sleeps on ``signal`` until it is settled or may lead."""

    __slots__ = ("settled", "signal")

    def __init__(
        self, call: Call[Any] | None = None, group: Group[Any, Any] | None = None, item: Any = None
    ) -> None:
        super().__init__(call, group, item)
        self.settled = False
        self.signal = threading.Lock()
        self.signal.acquire()

    def wake(self) -> None:
        try:
            self.signal.release()
        except RuntimeError:
            return  # it was awake already
