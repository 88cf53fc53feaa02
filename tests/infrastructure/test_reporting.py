"""A test run reports its legs, and fails if a test was skipped without a declared reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = 'pytest_plugins = ["tests.reporting"]\n'


def run(folder: Path, *texts: str, workers: int = 0, **surroundings: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = leg(name): x\n")
    for number, text in enumerate(texts):
        (folder / f"test_{number}.py").write_text(f"import pytest\nfrom tests.skips import without\n{text}\n")
    # Nothing that happens to be installed is loaded: it only costs time.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **surroundings}
    for name in [name for name in environment if name.startswith("PYTEST_XDIST")]:
        del environment[name]
    spread = ["-p", "xdist", "-n", str(workers)] if workers else []
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *spread]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


LEGS = """
@pytest.mark.leg("sqlite, sync")
@pytest.mark.parametrize("n", range(3))
def test_marked(n): pass

def test_recorded(record_leg): record_leg("postgres, async")

@pytest.mark.leg("postgres, async")
def test_failing(): assert False

def test_noted(record_note): record_note("something worth saying")
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_legs_are_counted(tmp_path: Path, workers: int) -> None:
    completed = run(tmp_path, LEGS, workers=workers)
    assert "sqlite, sync         3 tests: 3 passed" in completed.stdout
    assert "postgres, async      2 tests: 1 passed, 1 failed" in completed.stdout
    assert "something worth saying" in completed.stdout
    assert completed.returncode == 1


SKIPS = {
    "mark": "@pytest.mark.skip(reason='no time')\ndef test_x(): pass",
    "call": "def test_x(): pytest.skip('no time')",
    "fixture": "@pytest.fixture\ndef f(): pytest.skip('no time')\ndef test_x(f): pass",
    "module": "pytest.skip('no time', allow_module_level=True)",
    "import": "pytest.importorskip('nothing_by_this_name')",
    "xfail": "@pytest.mark.xfail(reason='no time')\ndef test_x(): assert False",
}


@pytest.mark.parametrize("workers", [0, 1])
def test_silent_skip_fails_the_run(tmp_path: Path, workers: int) -> None:
    completed = run(tmp_path, "def test_passes(): pass", *SKIPS.values(), workers=workers)
    _, _, undeclared = completed.stdout.partition("undeclared skips")
    for number, kind in enumerate(SKIPS, 1):
        assert f"test_{number}.py" in undeclared, kind
    assert "test_0.py" not in undeclared
    assert completed.returncode == 1


NEEDY = "def test_x(): without('pgbouncer', 'pgbouncer is not here')"


def test_missing_program_fails_the_test_that_needs_it(tmp_path: Path) -> None:
    completed = run(tmp_path, NEEDY, HOLDFAST_WITHOUT="")
    assert "HOLDFAST_WITHOUT=pgbouncer leaves out the tests that need it" in completed.stdout
    assert completed.returncode == 1


def test_missing_program_may_be_declared(tmp_path: Path) -> None:
    completed = run(tmp_path, NEEDY, HOLDFAST_WITHOUT="pgbouncer,other")
    assert "1 skipped, as declared: HOLDFAST_WITHOUT=pgbouncer" in completed.stdout
    assert completed.returncode == 0
