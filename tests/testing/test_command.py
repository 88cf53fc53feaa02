"""``holdfast sim`` explores seeds, reports its progress, and prints the command that replays a failure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.commands import root

BROKEN = """
from holdfast.testing.sim import AgentScenario, Violation

class Unlucky(AgentScenario):
    def check(self, observer):
        if observer.select("SELECT 1 FROM runs WHERE status = 'completed'") and self.seed == 5:
            raise Violation("seed 5 is not wanted")

def scenario(seed):
    made = Unlucky(seed, runs=1, processes=1)
    made.seed = seed
    return made
"""


def sim(*args: str) -> Result:
    return CliRunner().invoke(root, ["sim", *args])


def test_one_seed_prints_its_result() -> None:
    completed = sim("--seed", "3")
    assert completed.exit_code == 0
    assert re.fullmatch(r"seed 3: [\d,]+ events, \d\.\d hours, [\d,]+ faults\n", completed.output)


def test_the_trace_is_printed_on_request() -> None:
    first, second = sim("--seed", "3", "--trace"), sim("--seed", "3", "--trace")
    assert "faults begin" in first.output
    assert first.output == second.output


def test_it_runs_for_the_requested_time() -> None:
    completed = sim("--seed", "7", "--minutes", "0.01")
    assert completed.exit_code == 0
    assert re.search(r"^seeds? 7", completed.output)


def test_a_failure_prints_the_command_that_replays_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_to_simulate.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    completed = sim("--seed", "3", "--minutes", "10", "--scenario", "mine_to_simulate:scenario")
    assert completed.exit_code == 1
    assert "seed 5: seed 5 is not wanted" in completed.stderr
    line = completed.stderr.splitlines()[-1]
    assert line == "replay: holdfast sim --seed 5 --scenario mine_to_simulate:scenario"
    again = sim(*line.split()[3:])
    assert again.exit_code == 1
    assert again.stdout.splitlines()[-2].endswith("VIOLATION seed 5 is not wanted")


@pytest.mark.parametrize("wrong", ["nothing", "no_such_module_here:x", "holdfast:NoSuchName"])
def test_a_missing_scenario_is_refused(wrong: str) -> None:
    completed = sim("--scenario", wrong)
    assert completed.exit_code == 2
    assert wrong.split(":")[0] in completed.stderr
