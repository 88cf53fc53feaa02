"""A disk that fails at any operation: each call raises one typed error or succeeds, and no write is lost or incomplete.

A history explains a run if making just the calls that were not refused, in memory, gives the same answers and leaves the same
state; a call whose outcome is unknown may have happened or not. Every run must have one.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import Struct

from holdfast.clock import FixedClock
from holdfast.engines.sqlite import wal
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.file import SqliteFile
from holdfast.engines.sqlite.writer import WriteJob, Writer
from holdfast.errors import Corrupt, HoldfastError, NotFound, NothingToCompact, OutcomeUnknown, StorageFull, Unavailable
from holdfast.handles import Holdfast
from holdfast.sync_runner import step
from holdfast.testing.disk import Attempt, CrashImage, Disk, DiskFault, DiskOperation, Error
from holdfast.testing.sqlite_state import State
from tests.faults import powercut
from tests.faults.failing import FailingFile
from tests.faults.powercut import DATABASE
from tests.faults.turns import shared_turn, turns_in_tasks, turns_in_threads
from tests.workloads.workloads import Call, OnEngine, World, calls, on_engine

SLOWEST_S = 60.0
BEFORE = 16
"""Calls that fill the file before the disk begins to fail."""
KINDS: dict[Error, frozenset[Attempt]] = {
    "EIO": frozenset({"open", "read", "write", "truncate", "sync", "delete"}),
    "ENOSPC": frozenset({"open", "write"}),
    "short": frozenset({"read"}),
}
REFUSALS = (Unavailable, Corrupt, OutcomeUnknown)


@cache
def work(during: int) -> tuple[list[Call], list[Call]]:
    """Return the calls before and while the disk fails, including reads. They do not depend on each other's results."""
    handle = on_engine(SqliteEngine(SqliteFile(":memory:")))
    world = World(handle, Random(7))
    chosen: list[Call] = []
    for call in calls(world, BEFORE + during):
        call.make(handle)
        chosen.append(call)
        if call.number > BEFORE and call.number % 4 == 0 and (existing := world.session()):
            chosen.append(Call(call.number, "messages.list", world.tenant_name, (existing.id,), {}))
            chosen.append(Call(call.number, "sessions.list", world.tenant_name, (), {}))
    handle.close()
    return [call for call in chosen if call.number <= BEFORE], [call for call in chosen if call.number > BEFORE]


@cache
def filled() -> dict[str, bytes]:
    """Return the file before the disk begins to fail."""
    with tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as folder:
        handle = on_engine(SqliteEngine(SqliteFile(os.path.join(folder, DATABASE))))
        for call in work(1)[0]:
            call.make(handle)
        handle.close()
        return files_in(folder)


def files_in(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if not path.name.endswith("-shm")}


@cache
def model(during: int, happened: tuple[bool, ...]) -> tuple[list[str | None], State]:
    """Return the results and the final state of the successful calls, without the others."""
    handle = on_engine(SqliteEngine(SqliteFile(":memory:")))
    before, then = work(during)
    for call in before:
        call.make(handle)
    answers = [repr(call.make(handle)) if made else None for call, made in zip(then, happened, strict=True)]
    state = powercut.state_of(handle.engine._connection.raw)  # type: ignore[attr-defined]
    handle.close()
    return answers, state


class Run(Struct):
    """What became of the calls while the disk failed, and of the disk."""

    during: int
    answers: list[Any]
    attempts: list[Attempt]
    operations: list[DiskOperation]
    """Up to the last answer; the handle is closed afterwards."""
    found: State | str
    """What opens afterwards."""
    seconds: float

    def histories(self) -> Iterator[State]:
        """Return the states of all histories that explain the results."""
        unknown = [place for place, answer in enumerate(self.answers) if isinstance(answer, OutcomeUnknown)]
        refused = [isinstance(answer, REFUSALS) for answer in self.answers]
        for guess in itertools.product((False, True), repeat=len(unknown)):
            happened = [not item for item in refused]
            for place, is_made in zip(unknown, guess, strict=True):
                happened[place] = is_made
            expected, state = model(self.during, tuple(happened))
            seen = [None if no else repr(answer) for answer, no in zip(self.answers, refused, strict=True)]
            if all(one == other for one, other, no in zip(seen, expected, refused, strict=True) if not no):
                yield state

    def problem(self) -> str | None:
        """Return the error of this run, or ``None``."""
        errors = [answer for answer in self.answers if isinstance(answer, Exception)]
        if self.seconds > SLOWEST_S:
            return f"took {self.seconds:.1f} s"
        if strangers := [error for error in errors if not isinstance(error, HoldfastError)]:
            return f"not errors of ours: {strangers}"
        if isinstance(self.found, str):
            return self.found
        if not any(state == self.found for state in self.histories()):
            return f"no history explains it: {errors}"
        return None


@contextmanager
def failing_disk() -> Iterator[tuple[str, Disk]]:
    """A disk with the filled file on it."""
    with tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as folder, Disk() as disk:
        for name, content in filled().items():
            Path(folder, name).write_bytes(content)
        yield folder, disk


def run(
    during: int,
    fault: Callable[[int], DiskFault] | None,
    engine: Callable[[SqliteFile], SqliteEngine] = SqliteEngine,
) -> Run:
    """Make the calls on a disk that fails by a rule; ``fault`` gets the number of earlier attempts."""
    with failing_disk() as (folder, disk), tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as scratch:
        handle = OnEngine(engine(FailingFile(os.path.join(folder, DATABASE), disk)))
        opened = len(disk.attempts)
        if fault is not None:
            disk.fail(fault(opened))
        started = time.monotonic()
        answers = [call.make(handle) for call in work(during)[1]]
        seconds = time.monotonic() - started
        operations = list(disk.operations)
        disk.repair()
        handle.close()
        actual = powercut.recover(files_in(folder), Path(scratch))
    return Run(during, answers, disk.attempts[opened:], operations, actual, seconds)


def once(error: Error, number: int, files: str = "") -> Callable[[int], DiskFault]:
    return lambda opened: DiskFault(error=error, first=opened + number, last=opened + number, files=files)


def enumerate_errors(during: int, error: Error) -> tuple[int, list[str]]:
    """Fail at every attempt in turn; return the number of attempts and the problems."""
    problems: list[str] = []
    tried = 0
    # SQLite takes a short read of the database itself for the end of the file; no disk does that without saying so.
    files = "-wal" if error == "short" else ""
    for number, kind in enumerate(run(during, None).attempts, 1):
        if kind in KINDS[error]:
            tried += 1
            if what := run(during, once(error, number, files)).problem():
                problems.append(f"{error} at attempt {number} ({kind}): {what}")
    return tried, problems


def test_without_a_fault_every_call_has_the_result_of_memory() -> None:
    result = run(26, None)
    assert result.problem() is None
    assert not any(isinstance(answer, REFUSALS) for answer in result.answers)
    assert {"read", "write", "sync"} <= set(result.attempts)
    assert any(operation.file == DATABASE and operation.kind == "sync" for operation in result.operations), (
        "no checkpoint"
    )


@pytest.mark.parametrize("error", list(KINDS))
def test_one_failing_operation_raises_one_typed_error_and_damages_nothing(error: Error) -> None:
    tried, problems = enumerate_errors(13, error)
    assert problems == []
    assert tried > 50


@pytest.mark.soak
@pytest.mark.parametrize("error", list(KINDS))
def test_one_failing_operation_among_many_damages_nothing(error: Error) -> None:
    _, problems = enumerate_errors(120, error)
    assert problems == []


class DeafWriter(Writer):
    """Answers as if its commit had not failed."""

    def run(self, jobs: Sequence[WriteJob], **options: Any) -> Any:
        answer = super().run(jobs, **options)
        for job in jobs:
            if isinstance(job.error, REFUSALS) and job.result is not None:
                job.error = None
        return answer


class DeafEngine(SqliteEngine):
    def __init__(self, file: SqliteFile) -> None:
        super().__init__(file)
        self._writer = DeafWriter(self._connection)


def test_the_harness_detects_an_engine_that_hides_a_failure() -> None:
    attempts = run(13, None).attempts
    writes = [number for number, kind in enumerate(attempts, 1) if kind == "write"]
    assert any(run(13, once("ENOSPC", number), engine=DeafEngine).problem() for number in writes)
    assert run(13, once("EIO", attempts.index("sync") + 1), engine=DeafEngine).problem() is not None


def test_a_failed_flush_is_never_retried_and_later_writes_survive_a_power_cut() -> None:
    """After a failed flush the system discards the data it could not write, so later writes would build on lost data."""
    during = 26
    syncs = [number for number, kind in enumerate(run(during, None).attempts, 1) if kind == "sync"]
    poisoned = 0
    with tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as scratch:
        for number in syncs:
            result = run(during, once("EIO", number))
            assert result.problem() is None
            poisoned += check_poison(result)
            wreck = CrashImage(filled())
            for operation in result.operations:
                wreck.apply(operation)
            for variant in wreck.variants():
                actual = powercut.recover(wreck.files(variant, Random(number)), Path(scratch))
                assert any(state == actual for state in result.histories()), f"sync {number}, then a cut: {variant}"
    assert poisoned > 10


READ_FIRST = {"workspaces.capture": NotFound, "compactions.compact": NothingToCompact}


def check_poison(result: Run) -> bool:
    """Return whether a commit's flush failed, and check that the engine did not try another."""
    unknown = [place for place, answer in enumerate(result.answers) if isinstance(answer, OutcomeUnknown)]
    if not unknown:
        return False  # it was moving the log into the file, which needs no answer: the log still has everything
    assert len(unknown) == 1
    writes = [made for made in made_after(result, unknown[0]) if not made[0].method.endswith(".list")]
    for call, answer in writes:
        # These read before they write: a capture does not find a run, and a compaction no message, whose commit was the lost one.
        lost = isinstance(answer, READ_FIRST.get(call.method, ()))
        assert lost or (isinstance(answer, Unavailable) and "open a new one" in str(answer)), call.method
    reads = [answer for call, answer in made_after(result, unknown[0]) if call.method.endswith(".list")]
    assert not any(isinstance(answer, REFUSALS) for answer in reads)
    failed = next(place for place, item in enumerate(result.operations) if item.kind == "failed_sync")
    assert not any(operation.kind == "sync" for operation in result.operations[failed:])
    return True


def made_after(result: Run, place: int) -> Sequence[tuple[Call, Any]]:
    return list(zip(work(result.during)[1], result.answers, strict=True))[place + 1 :]


@pytest.mark.parametrize("number", [1, 8, 25, 60])
def test_a_full_disk_refuses_writes_serves_reads_and_work_resumes_when_space_returns(number: int) -> None:
    full = frozenset({"write"})
    with failing_disk() as (folder, disk), tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as scratch:
        handle = OnEngine(SqliteEngine(FailingFile(os.path.join(folder, DATABASE), disk)))
        writes = [call for call in work(26)[1] if not call.method.endswith(".list")]
        sessions = handle.tenant("acme").sessions.list()
        disk.fail(DiskFault(error="ENOSPC", first=len(disk.attempts) + number, last=None, kinds=full))
        while_full = [call.make(handle) for call in writes]
        assert any(isinstance(answer, StorageFull) for answer in while_full)
        assert not any(isinstance(answer, OutcomeUnknown) for answer in while_full)
        assert len(handle.tenant("acme").sessions.list()) >= len(sessions) - len(writes)  # it can still be read
        disk.repair()
        after = [call.make(handle) for call in writes]
        assert not any(isinstance(answer, REFUSALS) for answer in after)
        handle.close()
        assert isinstance(powercut.recover(files_in(folder), Path(scratch)), dict)


def test_calls_of_a_refused_commit_succeed_once_the_caller_repeats_them() -> None:
    with failing_disk() as (folder, disk):
        handle = OnEngine(SqliteEngine(FailingFile(os.path.join(folder, DATABASE), disk)))
        session = handle.tenant("acme").sessions.create()
        disk.fail(DiskFault(error="ENOSPC", first=1, last=None, kinds=frozenset({"write"})))
        with pytest.raises(StorageFull):
            handle.tenant("acme").messages.append(session.id, role="user", content="x", id=session.id)
        disk.repair()
        message = handle.tenant("acme").messages.append(session.id, role="user", content="x", id=session.id)
        assert message.seq == 1
        handle.close()


TURNS = 4


@pytest.mark.parametrize("engine", ["async", "threads"])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_calls_that_share_a_failing_commit_each_get_their_own_result(engine: str, error: Error) -> None:
    problems: list[str] = []
    for number, kind in enumerate(shared(engine, None)[2], 1):
        if kind in KINDS[error]:
            answers, actual, _ = shared(engine, once(error, number))
            if what := shared_problem(answers, actual):
                problems.append(f"{error} at attempt {number} ({kind}): {what}")
    assert problems == []


def test_a_disk_error_during_a_wal_checkpoint_affects_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wal, "CHECKPOINT_PAGES", 6)
    monkeypatch.setattr(wal, "CHECKPOINT_COMMITS", 1)
    problems: list[str] = []
    for number, kind in enumerate(shared("async", None)[2], 1):
        answers, actual, _ = shared("async", once("EIO", number))
        if what := shared_problem(answers, actual):
            problems.append(f"EIO at attempt {number} ({kind}): {what}")
    assert problems == []


@cache
def migrated() -> dict[str, bytes]:
    """Return the files of a database with an empty schema."""
    with tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as folder:
        on_engine(SqliteEngine(SqliteFile(os.path.join(folder, DATABASE)))).close()
        return files_in(folder)


def shared(engine: str, fault: Callable[[int], DiskFault] | None) -> tuple[list[Any], State | str, list[Attempt]]:
    """Run turns of calls that share commits on a failing disk; return their results, the state afterwards, and the attempts."""
    groups = [shared_turn(turn) for turn in range(TURNS)]
    answers: list[Any] = []
    opened: int | None = None
    with tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as folder, Disk() as disk:
        for name, content in migrated().items():
            Path(folder, name).write_bytes(content)
        file = FailingFile(os.path.join(folder, DATABASE), disk)
        turns = turns_in_threads(file, groups) if engine == "threads" else turns_in_tasks(file, groups)
        for group, arguments in turns:
            if opened is None:
                opened = len(disk.attempts)
                if fault is not None:
                    disk.fail(fault(opened))
            answers += arguments or []
            if group is groups[-1] and arguments:
                attempts = disk.attempts[opened:]
                disk.repair()
        with tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as scratch:
            return answers, powercut.recover(files_in(folder), Path(scratch)), attempts


def shared_problem(answers: list[list[Any]], found: State | str) -> str | None:
    if isinstance(found, str):
        return found
    refused = [isinstance(answer, REFUSALS) for answer in answers]
    for guess in (False, True):  # calls that shared a commit share its unknown fate
        made = [
            (isinstance(answer, OutcomeUnknown) and guess) or not no
            for answer, no in zip(answers, refused, strict=True)
        ]
        expected, state = shared_model(tuple(made))
        same = all(repr(a) == b for a, b, no in zip(answers, expected, refused, strict=True) if not no)
        if same and state == found:
            return None
    return f"no history explains it: {[answer for answer in answers if isinstance(answer, Exception)]}"


@cache
def shared_model(made: tuple[bool, ...]) -> tuple[list[str | None], State]:
    handle = on_engine(SqliteEngine(SqliteFile(":memory:")))
    every = [call for turn in range(TURNS) for call in shared_turn(turn)]
    answers = [repr(call.make(handle)) if is_made else None for call, is_made in zip(every, made, strict=True)]
    state = powercut.state_of(handle.engine._connection.raw)  # type: ignore[attr-defined]
    handle.close()
    return answers, state


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_opening_on_a_failing_disk_raises_one_typed_error_and_can_be_repeated(error: Error) -> None:
    """Including the schema: a new file fails at every sixth operation until it is open; the two errors alternate."""
    with tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as scratch:
        fresh = powercut.recover({}, Path(scratch))
    refused = 0
    for number in itertools.count(4 if error == "EIO" else 1, 6):
        with tempfile.TemporaryDirectory(dir=powercut.quick_folder()) as folder, Disk() as disk:
            disk.fail(DiskFault(error=error, first=number, last=number, kinds=KINDS[error]))
            refusal = refusal_to_open(os.path.join(folder, DATABASE), disk)
            with Holdfast(os.path.join(folder, DATABASE), clock=FixedClock()):
                assert powercut.read_state(Path(folder, DATABASE)) == fresh, f"{error} at attempt {number}"
        assert refusal is None or isinstance(refusal, REFUSALS)
        refused += refusal is not None
        if len(disk.attempts) < number:
            break
    assert refused > 20


def refusal_to_open(path: str, disk: Disk) -> HoldfastError | None:
    """Open and close on a failing disk; return the error, if there was one."""
    try:
        handle = OnEngine(SqliteEngine(FailingFile(path, disk)))
    except HoldfastError as error:
        return error
    try:
        step(handle.migrate())
    except HoldfastError as error:
        return error
    finally:
        disk.repair()
        handle.close()
    return None
