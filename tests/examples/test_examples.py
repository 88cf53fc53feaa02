"""Every example runs as it stands, in a process of its own, and ends right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


def run(example: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(example)], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def test_the_page_names_every_example() -> None:
    page = (ROOT / "examples" / "README.md").read_text("utf-8")
    assert {path.name for path in EXAMPLES} == set(re.findall(r"\[`(\w+\.py)`\]", page))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_example_runs_as_it_stands(example: Path, tmp_path: Path) -> None:
    printed = run(example, tmp_path)
    assert len(printed.splitlines()) < 40, "a few readable lines"
    if example.name == "crash_and_resume.py":
        _check_crash_and_resume(printed)
    if example.name == "rewind_an_agent.py":
        _check_rewind(printed)


def _check_crash_and_resume(printed: str) -> None:
    first, second = printed.split("The second process:")
    assert "ended with -9" in first, "it was really killed"
    assert first.count("[tool] ordering") == 1
    assert "[tool] ordering" not in second, "what must happen at most once has not happened again"
    assert "[tool] counting" not in second, "what was finished is not done again"
    assert "asked for step 2" in first
    assert "asked for step 2" not in second, "the model is not asked again for what it has answered"
    assert "step 2: order unknown, begun 1 time" in second
    assert "completed: There were 2 screws" in second
    assert printed.rstrip().endswith("The supplier got 1 order.")


def _check_rewind(printed: str) -> None:
    shown = dict(re.findall(r"^(Now|Rewound|As it was the first time): (.*)$", printed, re.MULTILINE))
    states = re.findall(
        r"^(?:Now|Rewound|As it was the first time): step (\d+), (\d+) messages, (.*)$", printed, re.MULTILINE
    )
    (ruined, rewound, good, again) = states
    assert ruined == ("4", "8", "main.py, tests/test_main.py")
    assert "step 3 removed: config/settings.toml" in printed, "what went wrong is seen"
    assert rewound == ("2", "5", "config/settings.toml, main.py, tests/test_main.py"), "files and conversation together"
    assert good == ("4", "9", "README, config/settings.toml, main.py, tests/test_main.py")
    assert again == ruined, "a redo brings all of it back"
    assert len(shown) == 3
