"""The same seed gives the same simulation, byte for byte, also in another folder or process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from holdfast.testing.sim import AgentScenario, Fault, Simulation, machine, simulate

SCRIPT = """
import hashlib
from holdfast.testing.sim import simulate
for seed in (1, 2):
    print(hashlib.sha256(simulate(seed).trace.encode()).hexdigest())
"""


def digest(trace: str) -> str:
    return hashlib.sha256(trace.encode()).hexdigest()


@pytest.mark.parametrize("seed", [4, 9])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert simulate(seed) == simulate(seed)


def test_another_seed_gives_another_trace() -> None:
    assert simulate(4).trace != simulate(5).trace


def test_the_trace_does_not_depend_on_the_folder(tmp_path: Path) -> None:
    here = simulate(6)
    deep = tmp_path / "a folder" / ("with a long name " * 3)
    deep.mkdir(parents=True)
    with mock.patch.object(machine, "quick_folder", return_value=str(deep)):
        existing = simulate(6)
    assert [*deep.iterdir()] == [], "it has left something"
    assert here == existing


def test_the_trace_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    actual = []
    for hash_seed in ("1", "4242"):
        folder = tmp_path / hash_seed
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "TMPDIR": str(folder), "TZ": f"UTC{hash_seed[0]}"}
        completed = subprocess.run(
            [sys.executable, "-c", SCRIPT], cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        actual.append(completed.stdout.split())
    assert actual[0] == actual[1] == [digest(simulate(seed).trace) for seed in (1, 2)]


class Careless(AgentScenario):
    """Workers whose database does not wait for the disk."""

    durability = "normal"


def test_a_failure_is_replayed_every_time() -> None:
    cuts = [Fault("LostWrites", 0.01)]
    reports = (Simulation(seed, Careless(seed), faults=cuts).run() for seed in range(20))
    failed = next(report for report in reports if report.violation)
    again = [Simulation(failed.seed, Careless(failed.seed), faults=cuts).run() for _ in range(3)]
    assert again == [failed] * 3
    assert failed.trace.splitlines()[-1].endswith(f"VIOLATION {failed.violation}")
