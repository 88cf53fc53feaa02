"""``holdfast secrets rotate``, killed before every statement, on every encrypted column of every store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.rotations import NEW, OLD
from tests.migrations.processes import KILLED

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_rotation_that_is_killed_at_any_statement_is_completed_by_the_next_one(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = str(tmp_path / "a.db") if engine == "sqlite" else request.getfixturevalue("postgres_url")
    script = [sys.executable, "-m", "tests.cli.rotations", url]
    process = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    expected, keys = result["before"]
    assert {place for place, *_ in expected} == {*result["columns"]}, "every encrypted column has values"
    assert {key for *_, key in keys} == {OLD}
    assert set(result["exits"][:-1]) == {KILLED}
    assert result["exits"][-1] == 0
    assert len(result["tries"]) > 2 * len(expected), "one statement reads a value, another one replaces it"
    seen = Counter()
    for killed in result["tries"]:
        for revealed, _ in (killed["killed"], killed["other_order"]):
            assert revealed == expected, "both keys are valid meanwhile"
        current = sum(key == NEW for *_, key in killed["killed"][1])
        seen[current] += 1
        assert killed["written"] == "written during the rotation"
        assert killed["rotation"] == {"renewed": len(expected) - current, "failed": 0, "failures": []}
        assert killed["after"][0] == expected
        assert {key for *_, key in killed["after"][1]} == {NEW}
    assert sorted(seen) == [*range(len(expected) + 1)], "it was killed after every transaction"
