"""Group commit: every call that waits for the writer shares the next commit, and so the next flush of the disk.

Each call runs in a savepoint of its own, so one that fails takes nobody with it, and is acknowledged only after the
shared commit. If the commit itself fails, the calls are run again one by one, so that only the guilty one fails; after a
failed flush nothing is run again at all, because nobody can know what is on the disk.
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
from .file_location import Place

MAX_GROUP = 512
"""Calls that share one commit at most; more wait for the next."""


class Job:
    """One call waiting for the writer, and its result or error once it is settled."""

    __slots__ = ("call", "error", "group", "item", "result")

    def __init__(self, call: Call[Any] | None = None, group: Group[Any, Any] | None = None, item: Any = None) -> None:
        self.call, self.group, self.item = call, group, item
        self.result: Any = None
        self.error: BaseException | None = None

    def start(self, connection: SqliteConnection) -> Coroutine[Any, Any, Any]:
        """The job by itself, on a connection."""
        if self.call is not None:
            return self.call(connection)
        assert self.group is not None
        return run_one(self.group, connection, self.item)

    def fail(self, error: BaseException) -> None:
        """Settle it with an error, unless it has met one itself: then it knows best what it was.

        Each is told the id of its own with which it can ask again, if nobody knows what became of it.
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
    """The one connection that writes. Not for several threads at once: its owner sees to that.

    ``committed`` is told after each commit how long it waited for the disk, and for how many calls. ``place`` is looked at
    before commits: what is committed to a file that was removed is lost.
    """

    def __init__(
        self,
        connection: SqliteConnection,
        committed: Callable[[float, int], None] | None = None,
        place: Place | None = None,
    ) -> None:
        self._connection = connection
        self._committed = committed
        self._place = place
        self._poison: str | None = None
        self._patient = True

    def run(self, jobs: Sequence[Job], *, patient: bool = True) -> bool:
        """Settle all jobs: afterwards each has its result, durably, or its error, without a trace.

        While another process is writing, this waits for it; or, if not ``patient``, returns ``False`` with nothing done. So it
        does if a shared commit failed: to run the calls one by one may mean to wait.
        """
        if self._poison is not None:
            for job in jobs:
                job.fail(Unavailable(self._poison))
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

    def _commit(self, jobs: Sequence[Job]) -> None:
        try:
            self._begin()
            if len(jobs) == 1:
                step(self._run_only(jobs[0]))
            else:
                step(self._run_all(jobs))
            if not self._connection.raw.in_transaction:
                raise _Undone  # SQLite undid everything, not only the job that failed, as it does on a full disk
            if self._place is not None:
                self._place.look_if_due()
            if self._committed is None:
                self._connection.execute("COMMIT")
            else:
                watch = Stopwatch()
                self._connection.execute("COMMIT")
                self._committed(watch.waited_s(), len(jobs))
        except DiskFailed as error:
            self._poison = f"a flush failed, so nothing more is written through this handle; open it again ({error})"
            self._roll_back()
            raise OutcomeUnknown(f"the disk failed while committing: {error}") from error
        except BaseException:
            self._roll_back()
            raise

    def _begin(self) -> None:
        self._roll_back()  # what was tried in vain, or what somebody left open who was interrupted right after BEGIN
        if self._patient:
            self._connection.execute("BEGIN IMMEDIATE")
            return
        self._connection.raw.set_busy_timeout(0)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        finally:
            self._connection.raw.set_busy_timeout(BUSY_TIMEOUT_MS)

    async def _run_only(self, job: Job) -> None:
        """A job alone in its transaction needs no savepoint: if it fails, the transaction does."""
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

    async def _run_all(self, jobs: Sequence[Job]) -> None:
        """Run the jobs inside the open transaction, those of one group and key together."""
        units: dict[object, list[Job]] = {}
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

    async def _run_group(self, jobs: Sequence[Job], *, alone: bool) -> bool:
        """Do the items of one group with one run; ``False``, and nothing done, if that cannot be.

        A group alone in its transaction needs no savepoint, for which SQLite would copy every page before it is changed.
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

    async def _run_job(self, job: Job) -> None:
        if not self._connection.raw.in_transaction:
            return  # undone from below: `_commit` will see it
        try:
            async with self._connection.savepoint():
                job.result = await job.start(self._connection)
        except Exception as error:
            job.error = error

    def _roll_back(self) -> None:
        if self._connection.raw.in_transaction:
            self._connection.execute("ROLLBACK")


class _Undone(Unavailable):
    """The transaction was undone as a whole; nothing was changed, and a retry is safe."""
