"""The summary of a test run: how many tests ran on each leg, and that no test was skipped without a declared reason.

A *leg* is an engine with a driver and a style of calling. Tests name theirs with the marker ``leg("...")`` or, when they only
know it inside, with the fixture ``record_leg``. A skip fails the run unless its reason is declared in ``tests/skips.py``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from tests.skips import DECLARED_SKIPS

_UNALARMED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
_RUN: pytest.StashKey[Run] = pytest.StashKey()


class Run:
    """Counters of a test run."""

    def __init__(self) -> None:
        self.legs: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.declared: Counter[str] = Counter()
        self.undeclared: list[str] = []
        self.notes: list[str] = []

    def count(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Record the result of one test."""
        if report.outcome == "skipped":
            self._note_skip(report)
        if isinstance(report, pytest.TestReport) and (report.when == "call" or report.outcome != "passed"):
            for name, value in report.user_properties:
                if name == "leg":
                    self.legs[str(value)][report.outcome] += 1
                elif name == "note":
                    self.notes.append(str(value))

    def _note_skip(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = _reason(report)
        pattern = next((skip for skip in DECLARED_SKIPS if re.fullmatch(skip, reason)), None)
        if pattern is None:
            self.undeclared.append(f"{report.nodeid}: {reason}")
        else:
            self.declared[f"{reason}: {DECLARED_SKIPS[pattern]}"] += 1


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    expected = getattr(report, "wasxfail", None)
    if expected is not None:
        return f"expected to fail: {expected}"
    text = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else str(report.longrepr)
    return str(text).removeprefix("Skipped: ")


@pytest.fixture
def record_leg(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Count the running test for a leg."""
    return lambda name: request.node.user_properties.append(("leg", name))


@pytest.fixture
def record_note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a note at the end of the run."""
    return lambda text: request.node.user_properties.append(("note", text))


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_RUN] = Run()
    config.pluginmanager.register(_Counter(config.stash[_RUN]))


class _Counter:
    def __init__(self, run: Run) -> None:
        self._run = run

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._run.count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._run.count(report)


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.user_properties += [("leg", mark.args[0]) for mark in item.iter_markers("leg")]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash[_RUN].undeclared and session.exitstatus in _UNALARMED:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    run = config.stash[_RUN]
    if run.legs:
        terminalreporter.section("legs")
        width = max(len(name) for name in run.legs)
        for name, counts in sorted(run.legs.items()):
            outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items(), reverse=True))
            terminalreporter.line(f"{name:<{width}}  {sum(counts.values()):>5} tests: {outcomes}")
    for text in sorted(run.notes):
        terminalreporter.line(text)
    for text, count in sorted(run.declared.items()):
        terminalreporter.line(f"{count} skipped, as declared: {text}", yellow=True)
    if run.undeclared:
        terminalreporter.section("undeclared skips", red=True)
        for line in run.undeclared:
            terminalreporter.line(line, red=True)
        terminalreporter.line("The run fails. Make the tests run, or declare the reason in tests/skips.py.", red=True)
