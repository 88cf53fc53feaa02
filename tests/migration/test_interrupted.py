"""A migration is wholly done or wholly undone wherever its process is killed, and two that start at once do it once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Holdfast
from holdfast.engines.dialect import Dialect
from holdfast.migrations.runner import migrations, statements
from tests.migration import catalogue
from tests.migration.processes import KILLED

ROOT = Path(__file__).parent.parent.parent
ENGINES = ["sqlite", "postgres"]


def run(*arguments: str) -> Any:
    """What the script answers."""
    command = [sys.executable, "-m", "tests.migration.processes", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """A database that has never been migrated."""

    def of(engine: str) -> str:
        return str(tmp_path / "a.db") if engine == "sqlite" else request.getfixturevalue("bare_postgres_url")

    return of


def _everything(url: str) -> list[str]:
    if url.startswith("postgresql"):
        with psycopg.connect(url) as connection:
            return catalogue.everything_of_postgres(connection)
    raw = apsw.Connection(url)
    found = catalogue.everything_of_sqlite(raw)
    raw.close()
    return found


@pytest.fixture
def finished(tmp_path: Path) -> list[str]:
    """The schema as it is when nothing went wrong."""
    path = str(tmp_path / "finished.db")
    Holdfast(path).close()
    return _everything(path)


@pytest.fixture
def finished_on_postgres(postgres_url: str) -> list[str]:
    """The same on PostgreSQL."""
    return _everything(postgres_url)


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_before_any_statement_an_upgrade_is_whole_or_absent_and_goes_on(
    engine: str, place: Callable[[str], str], finished: list[str], finished_on_postgres: list[str]
) -> None:
    known = migrations(Dialect(engine))
    tries = run("kill", place(engine), "up")
    # Each migration is at least its own statements, the row that records it, a begin and a commit.
    assert len(tries) > sum(len(statements(each.up)) + 3 for each in known)
    assert [each["exit"] for each in tries] == [KILLED] * (len(tries) - 1) + [0]
    for each in tries:
        then = each["then"]
        applied = then["found"].count(True)
        assert then["found"] == [True] * applied + [False] * (len(known) - applied)
        assert then["did"] == [str(migration) for migration in known[applied:]]
        assert then["left"] == [True] * len(known)
        assert engine == "postgres" or _everything(each["place"]) == finished
    if engine == "postgres":
        assert _everything(tries[-1]["place"]) == finished_on_postgres


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_before_any_statement_a_downgrade_is_whole_or_absent_and_goes_on(
    engine: str, place: Callable[[str], str]
) -> None:
    known = migrations(Dialect(engine))
    tries = run("kill", place(engine), "down")
    assert len(tries) > sum(len(statements(each.down)) + 3 for each in known)
    assert [each["exit"] for each in tries] == [KILLED] * (len(tries) - 1) + [0]
    for each in tries:
        then = each["then"]
        applied = then["found"].count(True)
        assert then["found"] == [True] * applied + [False] * (len(known) - applied)
        assert then["did"] == [str(migration) for migration in reversed(known[:applied])]
        assert then["left"] == [False] * len(known)


@pytest.mark.parametrize("engine", ENGINES)
def test_processes_that_start_at_once_on_a_new_database_all_work(engine: str, place: Callable[[str], str]) -> None:
    url = place(engine)
    assert run("start", url, "6") == [f"k{number}" for number in range(6)]
    with Holdfast(url) as hf:
        assert hf.tenant("acme").sessions.count() == 6


def test_a_new_file_can_be_made_by_many_at_once_again_and_again(tmp_path: Path) -> None:
    """Switching a new file to its write-ahead log is the moment at which SQLite is least patient."""
    for turn in range(8):
        assert run("start", str(tmp_path / f"{turn}.db"), "4") == [f"k{number}" for number in range(4)]
