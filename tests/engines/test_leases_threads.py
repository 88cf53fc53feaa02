"""Sixteen workers on one database that die at every possible point: each step is done once, and no effect happens twice."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Holdfast, PoolOptions
from tests.engines.run_workers import STEPS, Died, Worker, judge, start_runs
from tests.engines.sqlite_handles import in_threads

WORKERS = 16
TENANTS = ("acme", "zenith")
PLACES = ("claimed", "intended", "called", "before the step", "after the step")


class Deaths:
    """Kills a worker now and then, at places drawn from a seed."""

    def __init__(self, seed: int, one_in: int) -> None:
        self._random, self._one_in, self._lock = Random(seed), one_in, threading.Lock()
        self.places: Counter[str] = Counter()

    def at(self, place: str) -> None:
        with self._lock:
            dies = self._random.randrange(self._one_in) == 0
            self.places[place] += dies
        if dies:
            raise Died(place)


def drive_to_the_end(url: str, *, runs: int, seed: int) -> Deaths:
    effects: list[str] = []
    deaths = Deaths(seed, one_in=9)
    pool = PoolOptions(min_connections=2, max_connections=WORKERS)
    with Holdfast(url, pool=pool) as hf:
        started = start_runs(hf, TENANTS, runs // 2)
        workers = [Worker(hf, f"worker {number}", effects.append, deaths.at) for number in range(WORKERS)]
        work: list[Any] = [lambda worker=worker: worker.work(TENANTS) for worker in workers]
        assert in_threads(work) == [None] * WORKERS
        committed = [item for worker in workers for item in worker.committed]
        assert len(committed) == len(set(committed)) == runs * STEPS
        judge(hf, started, effects, committed)
        assert hf.run_queue.claim("late") is None
    return deaths


def test_sixteen_workers_on_postgres_do_each_step_once(postgres_url: str) -> None:
    deaths = drive_to_the_end(postgres_url, runs=24, seed=1)
    assert sum(deaths.places.values()) >= 10, "hardly anybody died, so hardly anything was shown"


def test_sixteen_workers_on_sqlite_do_each_step_once(tmp_path: Path) -> None:
    deaths = drive_to_the_end(str(tmp_path / "a.db"), runs=24, seed=2)
    assert set(deaths.places) == set(PLACES)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8))
def test_sixteen_workers_on_postgres_do_thousands_of_steps(postgres_url: str, seed: int) -> None:
    drive_to_the_end(postgres_url, runs=500, seed=seed)
