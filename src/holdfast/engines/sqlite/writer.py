"""Group commit: all calls that wait for the writer share the next commit, and with it one flush of the disk.

Each call runs in its own savepoint, so a failed call does not affect the others, and is acknowledged only after the
shared commit. A call, or a group of calls that run together, needs no savepoint if it is alone in its transaction. If
the commit itself fails, the calls are retried one by one, so that only the call that caused it fails. After a failed
flush nothing is retried, because the state of the disk is unknown: the handle refuses all further writes, and the
caller must open a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ...clock import Stopwatch
from ...errors import AlreadyExists, HoldfastError, OutcomeUnknown, Unavailable
from ...sync_runner import step
from ..protocol import Call, Group, run_one
from .errors import Busy, DiskFailed
from .file import BUSY_TIMEOUT_MS, SqliteConnection
from .file_location import FileLocation

MAX_GROUP = 512
"""Calls that share one commit; further calls wait for the next one."""


class WriteJob:
    """A call that waits for the writer, with its result or error once it is settled."""

    __slots__ = ("call", "error", "group", "item", "result")

    def __init__(self, call: Call[Any] | None = None, group: Group[Any, Any] | None = None, item: Any = None) -> None:
        self.call, self.group, self.item = call, group, item
        self.result: Any = None
        self.error: BaseException | None = None

    def start(self, connection: SqliteConnection) -> Coroutine[Any, Any, Any]:
        """Return the coroutine that runs this job alone on a connection."""
        if self.call is not None:
            return self.call(connection)
        assert self.group is not None
        return run_one(self.group, connection, self.item)

    def fail(self, error: BaseException) -> None:
        """Settle the job with an error, unless it already has a more specific error of its own.

        If the outcome is unknown, the error contains the id with which this job's caller can retry.
        """
        if self.error is not None:
            return
        if isinstance(error, OutcomeUnknown) and self.group is not None:
            id = self.group.id_of(self.item)
            own = OutcomeUnknown(f"{error}; retry with id={id!r} to settle it", id=id)
            own.__cause__ = error.__cause__
            error = own
        self.error = error


class Writer:
    """Runs jobs on the only writing connection. Not thread-safe: the owner ensures that one thread at a time uses it.

    ``committed`` is called after each commit with the time it waited for the disk and the number of calls. ``location`` is
    verified before commits, because commits to a deleted file are lost.
    """

    def __init__(
        self,
        connection: SqliteConnection,
        committed: Callable[[float, int], None] | None = None,
        location: FileLocation | None = None,
    ) -> None:
        self._connection = connection
        self._committed = committed
        self._location = location
        self._failure: str | None = None
        self._patient = True

    def run(self, jobs: Sequence[WriteJob], *, patient: bool = True) -> bool:
        """Settle all jobs: afterwards each has a durable result, or an error and no effect.

        Wait while another process is writing or, if not ``patient``, return ``False`` without executing anything. Without
        ``patient``, also return ``False`` after a failed shared commit, because retrying the calls one by one may block.
        """
        if self._failure is not None:
            for job in jobs:
                job.fail(Unavailable(self._failure))
            return True
        self._patient = patient
        try:
            self._commit(jobs)
        except Exception as error:
            if not patient and not isinstance(error, OutcomeUnknown) and (isinstance(error, Busy) or len(jobs) > 1):
                for job in jobs:
                    job.result = job.error = None
                return False
            if isinstance(error, OutcomeUnknown) or len(jobs) == 1:
                for job in jobs:
                    job.fail(error)
                return True
            for job in jobs:
                job.result = job.error = None
                self.run([job])
        return True

    def _commit(self, jobs: Sequence[WriteJob]) -> None:
        try:
            self._begin()
            if len(jobs) == 1:
                step(self._run_only(jobs[0]))
            else:
                step(self._run_all(jobs))
            if not self._connection.raw.in_transaction:
                raise _RolledBack  # SQLite rolled back the whole transaction, as it does on a full disk
            if self._location is not None:
                self._location.verify_if_due()
            if self._committed is None:
                self._connection.execute("COMMIT")
            else:
                watch = Stopwatch()
                self._connection.execute("COMMIT")
                self._committed(watch.waited_s(), len(jobs))
        except DiskFailed as error:
            self._failure = f"a flush failed, so this handle accepts no more writes: open a new one ({error})"
            self._roll_back()
            raise OutcomeUnknown(f"the disk failed while committing: {error}") from error
        except BaseException:
            self._roll_back()
            raise

    def _begin(self) -> None:
        self._roll_back()  # a failed attempt, or a transaction left open by an interruption right after BEGIN
        if self._patient:
            self._connection.execute("BEGIN IMMEDIATE")
            return
        self._connection.raw.set_busy_timeout(0)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        finally:
            self._connection.raw.set_busy_timeout(BUSY_TIMEOUT_MS)

    async def _run_only(self, job: WriteJob) -> None:
        """Run the only job of a transaction. It needs no savepoint: if the job fails, the transaction is rolled back."""
        if job.group is None:
            job.result = await job.start(self._connection)
            return
        try:
            (outcome,) = await job.group.run(self._connection, [job.item], careful=False)
        except AlreadyExists:
            self._begin()
            outcome = await job.start(self._connection)
        if isinstance(outcome, Exception):
            raise outcome
        job.result = outcome

    async def _run_all(self, jobs: Sequence[WriteJob]) -> None:
        """Run the jobs in the open transaction; those of one group and key run together."""
        units: dict[object, list[WriteJob]] = {}
        for job in jobs:
            group = job.group
            key = job if group is None else (group, None if group.mixes_keys else group.key(job.item))
            unit = units.get(key)
            if unit is None:
                units[key] = [job]
            else:
                unit.append(job)
        for unit in units.values():
            if len(unit) == 1 or not await self._run_group(unit, alone=len(units) == 1):
                for job in unit:
                    await self._run_job(job)

    async def _run_group(self, jobs: Sequence[WriteJob], *, alone: bool) -> bool:
        """Execute the items of one group in one run; return ``False`` without any change if that is not possible.

        A group alone in its transaction needs no savepoint, which would make SQLite copy every page before changing it.
        """
        group = jobs[0].group
        assert group is not None
        items = [job.item for job in jobs]
        try:
            if alone:
                outcomes = await group.run(self._connection, items, careful=False)
            else:
                async with self._connection.savepoint():
                    outcomes = await group.run(self._connection, items, careful=False)
        except HoldfastError:
            if alone:
                self._begin()
            return False
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, Exception):
                job.error = outcome
            else:
                job.result = outcome
        return True

    async def _run_job(self, job: WriteJob) -> None:
        if not self._connection.raw.in_transaction:
            return  # SQLite rolled the transaction back; ``_commit`` detects it
        try:
            async with self._connection.savepoint():
                job.result = await job.start(self._connection)
        except Exception as error:
            job.error = error

    def _roll_back(self) -> None:
        if self._connection.raw.in_transaction:
            self._connection.execute("ROLLBACK")


class _RolledBack(Unavailable):
    """The whole transaction was rolled back; nothing was changed, and a retry is safe."""
