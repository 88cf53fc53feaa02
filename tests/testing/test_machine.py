"""The simulated machine: dead processes write nothing, and a power cut leaves a state that a disk may have."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import apsw
import pytest

from holdfast.engines.sqlite.errors import Busy
from holdfast.engines.sqlite.writer import WriteJob, Writer
from holdfast.errors import OutcomeUnknown, StorageFull, Unavailable
from holdfast.testing.sim.faults import Fault, Faults
from holdfast.testing.sim.machine import DATABASE, Machine, ProcessDisk, ProcessFile, template
from holdfast.testing.sim.observer import Observer

LOG_HEADER_BYTES, FRAME_BYTES = 32, 4_096 + 24


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def machine(said: list[str]) -> Iterator[Machine]:
    made = Machine(Faults((), Random(1)), Random(1), said.append)
    yield made
    made.close()


class User:
    """A process with one connection."""

    def __init__(self, machine: Machine) -> None:
        self.disk = ProcessDisk(machine, "process")
        self.disk.__enter__()
        self.file = ProcessFile(machine, self.disk, log_pages=1_000, durability="full")
        self.connection = self.file.connect()

        self.insert("first")  # which also makes the log and flushes its header

    def insert(self, name: str) -> None:
        sql = "INSERT INTO tenants (id, created_at, updated_at) VALUES (?, 1, 1) ON CONFLICT DO NOTHING"
        self.connection.execute(sql, (name,))

    def die(self) -> None:
        self.disk.is_dead = self.disk.is_torn_down = True
        self.file.abandon()
        self.disk.__exit__(None, None, None)


def names(machine: Machine) -> list[str]:
    observer = Observer(machine.path)
    result = [name for (name,) in observer.select("SELECT id FROM tenants ORDER BY id")]
    observer.close()
    return result


def fail(machine: Machine, *rules: Fault) -> None:
    machine.faults = Faults(rules, Random(1))


def test_commits_outlive_their_process(machine: Machine) -> None:
    user = User(machine)
    user.insert("a")
    user.die()
    assert names(machine) == ["a", "first"]


def test_uncommitted_writes_of_a_dead_process_are_lost_and_hold_no_lock(machine: Machine) -> None:
    dead, living = User(machine), User(machine)
    dead.connection.execute("BEGIN IMMEDIATE")
    dead.insert("a")
    dead.die()
    living.insert("b")  # would wait for half a minute if the lock were held
    assert names(machine) == ["b", "first"]
    living.die()


def test_a_dead_process_writes_nothing(machine: Machine) -> None:
    user = User(machine)
    user.disk.is_dead = True
    before = machine.wreck.files("kept", Random(1))
    with pytest.raises(Unavailable):
        user.insert("a")
    assert machine.wreck.files("kept", Random(1)) == before
    user.die()
    assert names(machine) == ["first"]


@pytest.mark.parametrize(
    ("name", "on", "there"), [("CrashBeforeWrite", "sync", ["first"]), ("CrashAfterWrite", "sync", ["a", "first"])]
)
def test_a_crash_before_and_after_the_flush(machine: Machine, name: str, on: str, there: list[str]) -> None:
    user = User(machine)
    fail(machine, Fault(name, 1, on=f"{on} {DATABASE}-wal"))  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        user.insert("a")
    assert user.disk.is_dead
    user.die()
    machine.cut_power("LostWrites")
    machine.come_back()
    assert names(machine) == there


def test_a_write_is_torn_in_the_middle(machine: Machine) -> None:
    user = User(machine)
    fail(machine, Fault("TornWrite", 1, on=f"write {DATABASE}-wal", after=2))
    with pytest.raises(Unavailable):
        user.insert("a")
    user.die()
    log = machine.wreck.files("kept", Random(1))[f"{DATABASE}-wal"]
    assert (len(log) - LOG_HEADER_BYTES) % FRAME_BYTES, "half of a write is there"
    assert names(machine) == ["first"]


def test_a_full_disk_recovers_after_its_duration(machine: Machine) -> None:
    user = User(machine)
    fail(machine, Fault("DiskFull", 1, at_most=1, ms=(500, 500)))
    for _ in range(2):
        with pytest.raises(StorageFull):
            user.insert("a")
    machine.spend(501)
    user.insert("a")
    assert names(machine) == ["a", "first"]
    user.die()


def test_latency_advances_the_simulated_time(machine: Machine) -> None:
    user = User(machine)
    fail(machine, Fault("StorageLatency", 1, on="sync", ms=(700, 700)))
    before = machine.now_us
    user.insert("a")
    assert machine.now_us - before >= 700_000
    user.die()


def test_a_busy_database_is_waited_for_in_simulated_time(machine: Machine) -> None:
    user = User(machine)
    fail(machine, Fault("StorageBusy", 1, at_most=1, ms=(30_000, 30_000)))
    before = machine.now_us
    with pytest.raises(Busy):
        user.connection.execute("BEGIN IMMEDIATE")
    assert machine.now_us - before == 30_000_000
    user.connection.execute("BEGIN IMMEDIATE")
    user.die()


def test_a_power_cut_affects_all_processes(machine: Machine) -> None:
    first, second = User(machine), User(machine)
    fail(machine, Fault("LostWrites", 1, on="write", at_most=1))
    with pytest.raises(Unavailable):
        first.insert("a")
    with pytest.raises(Unavailable):
        second.insert("b")
    for item in (first, second):
        item.die()
    assert machine.come_back() == "dropped"
    with machine.copy() as path:
        observer = Observer(path)
        assert observer.select("PRAGMA integrity_check") == [("ok",)]
        observer.close()
    assert names(machine) == ["first"]


def test_an_unflushed_commit_is_tracked_until_the_log_is_flushed(machine: Machine) -> None:
    """A write of a process that died before the flush may be visible to the next process and still be lost in a power cut."""
    dead = User(machine)
    fail(machine, Fault("CrashBeforeWrite", 1, on=f"sync {DATABASE}-wal"))
    with pytest.raises(Unavailable):
        dead.insert("ghost")
    dead.die()
    fail(machine)
    machine.has_unflushed_commit = True
    assert names(machine) == ["first", "ghost"]
    living = User(machine)
    assert machine.has_unflushed_commit
    living.insert("b")
    assert not machine.has_unflushed_commit
    living.die()
    machine.cut_power("LostWrites")
    machine.come_back()
    assert names(machine) == ["b", "first", "ghost"], "the flush has made it certain"


def test_a_disk_error_reports_an_unknown_outcome(machine: Machine) -> None:
    user = User(machine)
    fail(machine, Fault("StorageSyncFail", 1, on="wal", at_most=1))
    job = WriteJob(call=lambda connection: connection.fetch("DELETE FROM tenants", ()))
    Writer(user.connection).run([job])
    assert isinstance(job.error, OutcomeUnknown)
    user.die()


def test_every_simulation_begins_with_the_same_file() -> None:
    assert template() is template()
    assert template().startswith(b"SQLite format 3")


def test_faults_are_written_to_the_trace(machine: Machine, said: list[str]) -> None:
    user = User(machine)
    fail(machine, Fault("StorageLatency", 1, on="sync", ms=(3, 3)))
    user.insert("a")
    assert said == [f"process meets StorageLatency at sync {DATABASE}-wal, 3 ms"]
    user.die()


def test_a_failed_connection_is_closed_immediately(machine: Machine) -> None:
    """Otherwise the garbage collector closes it at any time, and it writes to the file then."""
    user = User(machine)
    before, failed = len(apsw.connections()), 0
    for after in range(12):
        fail(machine, Fault("StorageReadFail", 1, after=after, at_most=1))
        try:
            user.file.connect().raw.close()
        except Unavailable:
            failed += 1
        assert len(apsw.connections()) == before, f"after {after} reads"
    assert failed > 2
    user.die()
