"""Workers in separate processes, killed and stopped for longer than their lease: no step is lost, repeated or incomplete."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from random import Random

import pytest

from holdfast import Holdfast
from holdfast.types import RunStatus
from tests.engines.run_workers import STEPS, judge, read_effects, start_runs

ROOT = Path(__file__).parents[2]
TENANTS = ("acme", "zenith")
PATIENCE_S = 60.0
ROUNDS_PER_STOP = 4
FEW = 10
"""Runs up to which workers are left alone in the end."""
Step = tuple[str, int, int]


class Fleet:
    """Workers, what they have told, and what became of them."""

    def __init__(self, url: str, effects: Path) -> None:
        self._url, self._effects, self._number = url, effects, 0
        self.alive: list[subprocess.Popen[str]] = []
        self.told: list[Step] = []
        self._lines: Queue[Step] = Queue()
        self.stopped: Queue[Step] = Queue()
        """The worker that has stopped itself: its run, and its process."""
        self._ears: list[threading.Thread] = []

    def start(self) -> None:
        """One more worker."""
        self._number += 1
        command = [sys.executable, "-m", "tests.engines.run_workers"]
        command += [self._url, f"worker-{self._number}", str(self._effects), *TENANTS]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._ears.append(threading.Thread(target=self._listen, args=(process,)))
        self._ears[-1].start()
        self.alive.append(process)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if not line.endswith("\n"):
                    continue  # it died in the middle of a word
                output, run_id, iteration, epoch = line.split()
                (self._lines if output == "step" else self.stopped).put((run_id, int(iteration), int(epoch)))

    def hear(self, steps: int) -> None:
        """Wait until a number of further steps were acknowledged."""
        for _ in range(steps):
            self.told.append(self._lines.get(timeout=PATIENCE_S))

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill one worker."""
        process.kill()
        process.wait()
        self.alive.remove(process)

    def finish(self) -> None:
        """Wait until all other workers have ended."""
        for process in self.alive:
            assert process.wait(PATIENCE_S) == 0, "a worker came to a bad end; it has said why"

    def close(self) -> None:
        """Kill all workers and read their remaining output."""
        for process in self.alive:
            process.kill()
            process.wait()
        for ear in self._ears:
            ear.join()
        while not self._lines.empty():
            self.told.append(self._lines.get())


@contextmanager
def fleet(url: str, effects: Path, workers: int) -> Iterator[Fleet]:
    made = Fleet(url, effects)
    try:
        for _ in range(workers):
            made.start()
        yield made
    finally:
        made.close()


def until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "the condition did not become true in time"


def lose_and_replace(url: str, folder: Path, *, workers: int, runs: int, kills: int, seed: int) -> None:
    """Kill workers while they record steps, pause some until others have taken over their runs, and check the final state."""
    random, effects = Random(seed), folder / "effects"
    # While one is waited for, the others may do all there is to do: where that is much, some are killed before.
    stops_at = 0 if runs <= FEW else ROUNDS_PER_STOP - 1
    with Holdfast(url) as hf:
        started = start_runs(hf, TENANTS, runs // 2)
        killed = rounds = 0
        with fleet(url, effects, workers) as existing:
            while not _is_over(hf) and (killed < kills or runs > FEW):
                if rounds % ROUNDS_PER_STOP == stops_at:
                    _stop_until_taken_over(hf, existing, effects)
                rounds += 1
                existing.hear(random.randrange(1, 4))
                for victim in random.sample(existing.alive, max(1, workers // 4)):
                    existing.kill(victim)
                    existing.start()
                    killed += 1
            existing.finish()
        judge(hf, started, read_effects(effects), existing.told)
        assert len(existing.told) <= runs * STEPS
        assert killed >= kills or runs <= FEW, "all was over before much could go wrong"


def _is_over(hf: Holdfast) -> bool:
    open_ones: tuple[RunStatus, ...] = ("pending", "running", "paused")
    return not any(hf.tenant(tenant).runs.list(status=status, limit=1) for tenant in TENANTS for status in open_ones)


def _stop_until_taken_over(hf: Holdfast, there: Fleet, effects: Path) -> None:
    """Stop a worker in the middle of a tool call: when it resumes, another worker has its run, and it must not write any more."""
    effects.with_name(f"{effects.name}.stop").touch()
    until(lambda: not there.stopped.empty() or _is_over(hf))
    if there.stopped.empty():
        return
    run_id, process, _ = there.stopped.get()
    try:
        tenant = next(item for item in map(hf.tenant, TENANTS) if any(run.id == run_id for run in item.runs.list()))
        holder = tenant.runs.get(run_id).holder
        until(lambda: tenant.runs.get(run_id).holder != holder)
    finally:
        os.kill(process, signal.SIGCONT)


def test_workers_in_processes_on_one_sqlite_file(tmp_path: Path) -> None:
    lose_and_replace(str(tmp_path / "a.db"), tmp_path, workers=4, runs=8, kills=3, seed=1)


def test_workers_in_processes_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    lose_and_replace(postgres_url, tmp_path, workers=3, runs=6, kills=2, seed=2)


# 20,000 steps in all, each done once.


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_many_killed_workers_on_one_sqlite_file(tmp_path: Path, seed: int) -> None:
    lose_and_replace(str(tmp_path / "a.db"), tmp_path, workers=8, runs=800, kills=6, seed=seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_many_killed_workers_on_postgres(postgres_url: str, tmp_path: Path, seed: int) -> None:
    lose_and_replace(postgres_url, tmp_path, workers=16, runs=800, kills=10, seed=seed)
