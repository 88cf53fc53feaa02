"""``holdfast sim``."""

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
"""Seconds between two lines of progress."""


@click.command()
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="The seed, or the first of many.")
@click.option(
    "--minutes", type=click.FloatRange(0), help="Go on with the next seeds for so long; without it, one seed."
)
@click.option(
    "--scenario",
    metavar="MODULE:NAME",
    help="What to simulate: a function from a seed to a Scenario. Without it, agents at work.",
)
@click.option("--trace", is_flag=True, help="Print what happened, event by event, also if nothing went wrong.")
def sim(seed: int, minutes: float | None, scenario: str | None, trace: bool) -> None:
    """Simulate agents on a machine on which anything may go wrong, and look for a promise that does not hold.

    Everything follows from the seed: the same seed is the same simulation, event by event. If a promise is broken, the last line
    says how to see it again.
    """
    progress = Progress(seed)
    for report in _reports(seed, minutes, scenario):
        if trace or (report.violation and minutes is None):
            print_text(report.trace)
        progress.add(report)
        if report.violation:
            progress.show(done=True)
            print_line(f"seed {report.seed}: {report.violation}", err=True)
            option = f" --scenario {scenario}" if scenario else ""
            print_line(f"replay: holdfast sim --seed {report.seed}{option}", err=True)
            raise click.exceptions.Exit(1)
    progress.show(done=True)


class Progress:
    """What has been simulated so far, told in one line now and then."""

    def __init__(self, seed: int) -> None:
        self._first = self._last = seed
        self._seeds = self._events = self._faults = 0
        self._seconds = 0.0
        self._shown_s = monotonic_s()

    def add(self, report: Any) -> None:
        """One more seed."""
        self._last, self._seeds = report.seed, self._seeds + 1
        self._events += report.events
        self._seconds += report.seconds
        self._faults += sum(report.faults.values())
        if monotonic_s() - self._shown_s > REPORT_S:
            self._shown_s = monotonic_s()
            self.show()

    def show(self, *, done: bool = False) -> None:
        """Print the line; the last one stays."""
        seeds = f"seed {self._first}" if self._seeds == 1 else f"seeds {self._first} to {self._last}"
        line = f"{seeds}: {self._events:,} events, {self._seconds / 3_600:,.1f} hours, {self._faults:,} faults"
        if sys.stdout.isatty():
            print_progress(line)
        if done or not sys.stdout.isatty():
            print_line("" if sys.stdout.isatty() else line)


def _reports(seed: int, minutes: float | None, scenario: str | None) -> Iterator[Any]:
    # Here and not above: only this command needs what is shipped for tests.
    from holdfast.testing.sim import exploration

    chosen = exploration.usual_scenario if scenario is None else _named(scenario)
    until_s = monotonic_s() + (minutes or 0) * 60
    for report in exploration.explore(seed, scenario=chosen):
        yield report
        if monotonic_s() >= until_s:
            return


def _named(scenario: str) -> Any:
    """What ``module:name`` means, seen from the folder that is here."""
    module, colon, name = scenario.partition(":")
    if not (module and colon and name):
        raise click.BadParameter(f"{scenario!r} is not MODULE:NAME", param_hint="--scenario")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise click.BadParameter(f"{scenario!r} cannot be imported: {error}", param_hint="--scenario") from error
