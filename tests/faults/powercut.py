"""Enumerated power cuts: after every operation of a workload, with every way in which a disk may lose unflushed writes.

A workload is run twice: in memory, to learn the exact state after each call, and on a recording disk, to learn which
operations it makes and after which of them each call was acknowledged. Then the power goes after operation 0, 1, 2 ... to the
end; the real engine opens the remaining files, and the state must be exactly the one after some number of calls: at least all
acknowledged ones, at most all that were begun. Anything else is a problem, and its place and seed replay it.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from blake3 import blake3
from msgspec import Struct

from holdfast.clock import FixedClock
from holdfast.engines.factory import OwnEngine
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.file import Durability, SqliteFile
from holdfast.errors import HoldfastError
from holdfast.handles import Holdfast
from holdfast.ids import SeededIds
from holdfast.testing.disk import CrashImage, Disk, DiskOperation, Variant
from holdfast.testing.sqlite_state import DatabaseDamaged, SmallWalFile, State, quick_folder, read_state, state_of
from tests.workloads.workloads import World, calls, on_engine

DATABASE = "cut.db"


class Recording(Struct, frozen=True):
    """The operations of a workload on the disk, and the answers it got."""

    operations: list[DiskOperation]
    methods: list[str]
    begun: list[int]
    """For each call, the operations there were when it began."""
    acknowledged: list[int]
    """For each call, the operations there were when it returned."""
    states: list[State]
    """The state before the first call, and after each."""
    files: dict[str, bytes] = {}
    """The files on the disk before the workload."""

    def legal(self, cut: int) -> range:
        """Return how many calls may be committed if the power is cut after operation ``cut``."""
        certain = bisect_right(self.acknowledged, cut)
        return range(certain, max(certain, bisect_left(self.begun, cut)) + 1)


class Cut(Struct, frozen=True):
    """One power cut."""

    after: int
    variant: Variant
    seed: int
    files: dict[str, bytes]

    def __str__(self) -> str:
        return f"cut after operation {self.after}, unflushed writes {self.variant}, seed {self.seed}"


class Problem(Struct, frozen=True):
    """A power cut that was not survived as promised."""

    cut: str
    what: str


class Report(Struct):
    """What an enumeration found."""

    points: int = 0
    wrecks: int = 0
    """Points that left the disk in a state no other point had."""
    problems: list[Problem] = []


def record(
    seed: int,
    *,
    count: int,
    durability: Durability = "full",
    log_pages: int = 1_000,
    engine: Callable[[SqliteFile], OwnEngine] = SqliteEngine,
    stores: Collection[str] | None = None,
) -> Recording:
    """Run a workload of ``count`` calls, of all stores or of some, on a recording disk, from the creation of the file to its
    closing."""
    states, answers, methods = _in_memory(seed, count, stores)
    begun: list[int] = []
    acknowledged: list[int] = []
    with tempfile.TemporaryDirectory(dir=quick_folder()) as folder, Disk() as disk:
        path = os.path.join(folder, DATABASE)
        handle = on_engine(engine(SmallWalFile(path, pages=log_pages, durability=durability, vfs=disk.name)))
        for call, expected in zip(calls(World(handle, Random(seed)), count, stores), answers, strict=True):
            begun.append(disk.position)
            answer = call.make(handle)
            acknowledged.append(disk.position)
            if repr(answer) != repr(expected):
                raise AssertionError(f"{call.method} answered {answer!r} on disk and {expected!r} in memory")
        handle.close()
    return Recording(disk.operations, methods, begun, acknowledged, states)


def operations_of(recording: Recording, methods: Collection[str], *, most: int = 2) -> dict[int, str]:
    """Return the operations of the first calls of each of these methods that changed a row, each with its method."""
    result: dict[int, str] = {}
    times: Counter[str] = Counter()
    for number, method in enumerate(recording.methods):
        changed = recording.states[number] != recording.states[number + 1]
        if method in methods and changed and times[method] < most:
            times[method] += 1
            result |= dict.fromkeys(range(recording.begun[number], recording.acknowledged[number] + 1), method)
    return result


def cuts(recording: Recording, *, seed: int, rounds: int = 1, within: Collection[int] | None = None) -> Iterator[Cut]:
    """Return every cut of a recording, or those after some of its operations.

    The variants that depend on chance are drawn ``rounds`` times each.
    """
    wreck = CrashImage(recording.files)
    if within is None or 0 in within:
        yield Cut(0, "dropped", seed, wreck.files("dropped", Random(seed)))
    for after, operation in enumerate(recording.operations, 1):
        wreck.apply(operation)
        if within is not None and after not in within:
            continue
        for variant in wreck.variants():
            for turn in range(rounds if variant in ("torn", "scattered", "noise") else 1):
                drawn = seed + turn
                yield Cut(after, variant, drawn, wreck.files(variant, Random(f"{drawn} {after} {variant}")))


def enumerate_cuts(
    recording: Recording, *, seed: int, rounds: int = 1, within: Collection[int] | None = None
) -> Report:
    """Cut the power after every operation of a recording, or after some of them, and check the result each time."""
    report = Report()
    seen: dict[bytes, State | str] = {}
    with tempfile.TemporaryDirectory(dir=quick_folder()) as folder:
        for cut in cuts(recording, seed=seed, rounds=rounds, within=within):
            digest = _digest(cut.files)
            if digest not in seen:
                seen[digest] = recover(cut.files, Path(folder))
            report.points += 1
            if what := judge(recording, cut.after, seen[digest]):
                report.problems.append(Problem(str(cut), what))
    report.wrecks = len(seen)
    return report


def judge(recording: Recording, after: int, found: State | str) -> str | None:
    """Return the error in the state after a cut, or ``None``."""
    if isinstance(found, str):
        return found
    legal = recording.legal(after)
    if any(recording.states[calls_made] == found for calls_made in legal):
        return None
    initial = [number for number, state in enumerate(recording.states) if state == found]
    if not initial:
        return f"half done: not the state after any call; legal are those after {legal}"
    methods = recording.methods[initial[-1] : legal.start]
    return f"lost: the state after {initial[-1]} calls, but {legal.start} were acknowledged; missing {methods}"


def recover(files: Mapping[str, bytes], folder: Path) -> State | str:
    """Open the files after a power cut, as a program would, and return all rows or the error."""
    path = folder / DATABASE
    for name, content in files.items():
        (folder / name).write_bytes(content)
    try:
        with Holdfast(str(path), clock=FixedClock(), ids=SeededIds(2)) as hf:
            state = read_state(path)
            hf.tenants.create("after the cut")  # the recovered database accepts writes
        return state
    except HoldfastError as error:
        return f"cannot be opened: {type(error).__name__}: {error}"
    except DatabaseDamaged as error:
        return str(error)
    finally:
        for left in folder.iterdir():
            left.unlink()


def _in_memory(seed: int, count: int, stores: Collection[str] | None) -> tuple[list[State], list[Any], list[str]]:
    handle = on_engine(SqliteEngine(SqliteFile(":memory:")))
    raw = handle.engine._connection.raw  # type: ignore[attr-defined]  # the only connection that sees this database
    states = [state_of(raw)]
    answers: list[Any] = []
    methods: list[str] = []
    for call in calls(World(handle, Random(seed)), count, stores):
        methods.append(call.method)
        answers.append(call.make(handle))
        states.append(state_of(raw))
    handle.close()
    return states, answers, methods


def _digest(files: Mapping[str, bytes]) -> bytes:
    digest = blake3()
    for name, content in files.items():
        digest.update(f"{name} {len(content)} ".encode())
        digest.update(content)
    return digest.digest()
