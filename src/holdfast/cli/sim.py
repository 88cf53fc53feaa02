"""``holdfast sim``: run the simulator."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from holdfast.clock import monotonic_s

from .output import print_line, print_progress, print_text

REPORT_S = 2.0
"""Seconds between two progress lines."""


@click.command()
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="The first seed.")
@click.option(
    "--minutes", type=click.FloatRange(0), help="Continue with further seeds for this long. Default: one seed."
)
@click.option(
    "--scenario",
    metavar="MODULE:NAME",
    help="A function that takes a seed and returns a Scenario. Default: agents at work.",
)
@click.option("--trace", is_flag=True, help="Print every event, even if no guarantee was violated.")
def sim(seed: int, minutes: float | None, scenario: str | None, trace: bool) -> None:
    """Simulate agents on a machine with injected faults, and check that every guarantee holds.

    The simulation is deterministic: the same seed produces the same events. If a guarantee is violated, the last line is the
    command that reproduces it.
    """
    progress = SimProgress(seed)
    for report in _reports(seed, minutes, scenario):
        if trace or (report.violation and minutes is None):
            print_text(report.trace)
        progress.add(report)
        if report.violation:
            progress.show(is_last=True)
            print_line(f"seed {report.seed}: {report.violation}", err=True)
            option = f" --scenario {scenario}" if scenario else ""
            print_line(f"replay: holdfast sim --seed {report.seed}{option}", err=True)
            raise click.exceptions.Exit(1)
    progress.show(is_last=True)


class SimProgress:
    """Counts the simulated events and prints them periodically as one line."""

    def __init__(self, seed: int) -> None:
        self._first = self._last = seed
        self._seeds = self._events = self._faults = 0
        self._seconds = 0.0
        self._shown_s = monotonic_s()

    def add(self, report: Any) -> None:
        """Add the report of one seed."""
        self._last, self._seeds = report.seed, self._seeds + 1
        self._events += report.events
        self._seconds += report.seconds
        self._faults += sum(report.faults.values())
        if monotonic_s() - self._shown_s > REPORT_S:
            self._shown_s = monotonic_s()
            self.show()

    def show(self, *, is_last: bool = False) -> None:
        """Print the line. The last one is not overwritten."""
        seeds = f"seed {self._first}" if self._seeds == 1 else f"seeds {self._first} to {self._last}"
        line = f"{seeds}: {self._events:,} events, {self._seconds / 3_600:,.1f} hours, {self._faults:,} faults"
        if sys.stdout.isatty():
            print_progress(line)
        if is_last or not sys.stdout.isatty():
            print_line("" if sys.stdout.isatty() else line)


def _reports(seed: int, minutes: float | None, scenario: str | None) -> Iterator[Any]:
    # Imported here because only this command needs the testing package.
    from holdfast.testing.sim import exploration

    make_scenario = exploration.usual_scenario if scenario is None else _load(scenario)
    until_s = monotonic_s() + (minutes or 0) * 60
    for report in exploration.explore(seed, scenario=make_scenario):
        yield report
        if monotonic_s() >= until_s:
            return


def _load(scenario: str) -> Any:
    """Import ``module:name``, with the current directory on the path."""
    module, colon, name = scenario.partition(":")
    if not (module and colon and name):
        raise click.BadParameter(f"{scenario!r} is not of the form MODULE:NAME", param_hint="--scenario")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise click.BadParameter(f"{scenario!r} cannot be imported: {error}", param_hint="--scenario") from error
