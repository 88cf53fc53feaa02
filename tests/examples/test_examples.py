"""Tests that run every example in a process of its own and check its output."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
MAX_OUTPUT_LINES = 40


def run(example: Path, folder: Path) -> str:
    """Run an example in an empty folder and return its standard output."""
    process = subprocess.run(
        [sys.executable, str(example)], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 0, process.stderr
    assert not process.stderr, process.stderr
    return process.stdout


def test_the_readme_lists_every_example() -> None:
    page = (ROOT / "examples" / "README.md").read_text("utf-8")
    assert {path.name for path in EXAMPLES} == set(re.findall(r"\[`(\w+\.py)`\]", page))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs_as_is_and_prints_a_few_lines(example: Path, tmp_path: Path) -> None:
    output = run(example, tmp_path)
    assert len(output.splitlines()) < MAX_OUTPUT_LINES
    if example.name == "crash_and_resume.py":
        _check_crash_and_resume(output)
    if example.name == "rewind_an_agent.py":
        _check_rewind(output)


def _check_crash_and_resume(output: str) -> None:
    first, second = output.split("The second process:")
    assert "ended with -9" in first, "the first process was killed"
    assert first.count("[tool] ordering") == 1
    assert "[tool] ordering" not in second, "an at-most-once call is not repeated"
    assert "[tool] counting" not in second, "a finished call is not repeated"
    assert "asked for step 2" in first
    assert "asked for step 2" not in second, "a recorded reply is not requested again"
    assert "step 2: order unknown, started 1 time" in second
    assert "completed: There were 2 screws" in second
    assert output.rstrip().endswith("The supplier received 1 order.")


def _check_rewind(output: str) -> None:
    states = re.findall(r"^(.+): step (\d+), (\d+) messages, (.*)$", output, re.MULTILINE)
    ruined, rewound, improved, restored = (state for _, *state in states)
    assert [title for title, *_ in states] == ["Now", "Rewound", "Now", "First attempt, restored"]
    assert ruined == ["4", "8", "main.py, tests/test_main.py"]
    assert "step 3 removed: config/settings.toml" in output, "the diff shows the mistake"
    assert rewound == ["2", "5", "config/settings.toml, main.py, tests/test_main.py"], "files and conversation together"
    assert improved == ["4", "9", "README, config/settings.toml, main.py, tests/test_main.py"]
    assert restored == ruined, "a redo restores the first attempt"
