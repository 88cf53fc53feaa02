"""A migration is complete or absent wherever its process is killed, and concurrent processes apply it once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.engines.dialect import Dialect
from holdfast.migrations.files import migrations, statements
from tests.migrations.processes import KILLED

ROOT = Path(__file__).parents[2]
ENGINES = ["sqlite", "postgres"]


def run(*arguments: str) -> Any:
    """Return the output of the script."""
    command = [sys.executable, "-m", "tests.migrations.processes", *arguments]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """A database that has never been migrated."""

    def of(engine: str) -> str:
        return str(tmp_path / "a.db") if engine == "sqlite" else request.getfixturevalue("bare_postgres_url")

    return of


@pytest.mark.parametrize(
    ("engine", "way"),
    [
        ("sqlite", "up"),
        ("sqlite", "down"),
        ("postgres", "up"),
        pytest.param("postgres", "down", marks=pytest.mark.soak),  # over a minute, for a rare operation
    ],
)
def test_a_migration_killed_before_any_statement_is_complete_or_absent(
    engine: str, way: str, place: Callable[[str], str]
) -> None:
    initial = migrations(Dialect(engine))
    tries = run("kill", place(engine), way)
    # Each migration is at least its own statements, the row that records it, a begin and a commit.
    assert len(tries) > sum(len(statements(item.up if way == "up" else item.down)) + 3 for item in initial)
    assert [item["exit"] for item in tries] == [KILLED] * (len(tries) - 1) + [0]
    assert all(item["is_whole"] for item in tries)
    counts = [item["applied"].count(True) for item in tries]
    for applied, item in zip(counts, tries, strict=True):
        assert item["applied"] == [True] * applied + [False] * (len(initial) - applied)
    assert counts == sorted(counts, reverse=way == "down"), "nothing that was done is ever undone"
    assert set(counts) >= set(range(1, len(initial))), "each migration was cut off by itself"
    assert counts[-1] == (len(initial) if way == "up" else 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_processes_that_start_together_on_a_new_database_all_work(engine: str, place: Callable[[str], str]) -> None:
    url = place(engine)
    assert run("start", url, "6") == [f"k{number}" for number in range(6)]
    with Holdfast(url) as hf:
        assert hf.tenant("acme").sessions.count() == 6


def test_a_new_file_can_be_created_by_many_processes_at_once(tmp_path: Path) -> None:
    """SQLite does not wait for a lock when it switches a new file to WAL mode."""
    for turn in range(8):
        assert run("start", str(tmp_path / f"{turn}.db"), "4") == [f"k{number}" for number in range(4)]
