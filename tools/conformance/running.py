"""Run one suite of a framework with pytest, in the environment of the framework's lane, and count the results."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

from suites import Suite, Variant

ROOT = Path(__file__).resolve().parents[2]


class Outcome(NamedTuple):
    """The result of one run: how many tests passed or were skipped, and which failed."""

    passed: int
    skipped: int
    failed: list[str]


def environment(name: str) -> str:
    """Return the interpreter of one of our environments."""
    command = [sys.executable, str(ROOT / "tools" / "environment.py"), name]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def run_variant(
    suite: Suite, variant: Variant, checkout: Path, *, database: str = "", options: tuple[str, ...] = ()
) -> Outcome:
    """Run pytest once, in the environment of the framework's lane."""
    path = [ROOT / "tools" / "conformance", ROOT / "src", *(checkout / package for package in suite.packages)]
    variables = {
        **os.environ,
        **suite.settings,
        **variant.settings,
        "HOLDFAST_DATABASE": database,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        always = [
            "-p",
            suite.plugin,
            "-p",
            "no:cacheprovider",
            "-q",
            "--tb=line",
            f"--junitxml={report}",
            "-o",
            "addopts=",
        ]
        # The tests may write into the current folder, and their warnings are not ours to fix.
        command = [environment(suite.environment), "-m", "pytest", *always, *suite.options, *options, *suite.tests]
        process = subprocess.run(
            command,
            cwd=suite.folder_in(checkout),
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        outcome = read(report) if report.exists() else Outcome(0, 0, [])
    if process.returncode not in (0, 1) or not outcome.passed:
        raise SystemExit(f"{suite.name} did not run:\n{process.stdout[-8_000:]}")
    return outcome


def read(report: Path) -> Outcome:
    """Count the results in a JUnit report."""
    passed, skipped, failed = 0, 0, []
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {element.tag for element in case}
        if kinds & {"failure", "error"}:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return Outcome(passed, skipped, sorted(set(failed)))


def show(suite: Suite, variant: Variant, engine: str, outcome: Outcome) -> set[str]:
    """Print an outcome and return the failed tests that are not on the suite's list."""
    print(f"{suite.name}, {variant.title}, {engine}: {outcome.passed} of {outcome.passed + len(outcome.failed)} passed")
    for name in outcome.failed:
        print(f"  failed: {name}: {suite.reason(name) or 'NOT EXPECTED'}", flush=True)
    return {name for name in outcome.failed if not suite.reason(name)}
