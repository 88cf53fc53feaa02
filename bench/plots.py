"""Plots of the report: small SVG files that change only when the results do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import append_postgres, append_sqlite
from .figures import TITLES
from .results import Results

_OURS, _OTHERS = ("#0b6e4f", "#2f9e77", "#8fd0b4"), ("#5b6470", "#8d96a3", "#c4cad2")


def draw(results: Results, folder: Path) -> dict[str, str]:
    """Draw what there is; the file of each group."""
    drawn = {}
    for group in (append_sqlite.GROUP, append_sqlite.SLOW_GROUP, append_postgres.GROUP):
        if group in results.groups():
            drawn[group] = _bars(results, group, folder, _append_bars(results, group), "appends per second")
    if "history" in results.groups():
        drawn["history"] = _bars(results, "history", folder, _history_bars(results), "µs to load")
    return drawn


Bars = tuple[Sequence[str], dict[str, list[float]]]


def _append_bars(results: Results, group: str) -> Bars:
    """One bar for each number of writers."""
    legend = [f"{writers} writer{'s' * (writers > 1)}" for writers in append_sqlite.MANY]
    found: dict[str, list[float]] = {}
    for contender in results.contenders(group):
        rates = [results.middle(group, contender, "rate", writers=writers) for writers in append_sqlite.MANY]
        if contender == "fdatasync":
            rates[0] = results.middle(group, contender, "rate", bytes=4_096)
        found[contender] = [rate or 0.0 for rate in rates]
    return legend, dict(sorted(found.items(), key=lambda item: max(item[1])))


def _history_bars(results: Results) -> Bars:
    found = {
        name: [results.middle("history", name, metric) or 0.0 for metric in ("last_50_us", "all_1000_us")]
        for name in results.contenders("history")
    }
    return ["last 50", "all 1,000"], dict(sorted(found.items(), key=lambda item: -item[1][1]))


def _bars(results: Results, group: str, folder: Path, bars: Bars, label: str) -> str:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Without these, every drawing would differ in its ids and its date.
    matplotlib.rcParams.update({"svg.hashsalt": "holdfast", "svg.fonttype": "none", "font.size": 9})
    legend, rows = bars
    figure, axes = pyplot.subplots(figsize=(8, 0.6 + 0.22 * len(rows) * len(legend)))
    _fill(axes, legend, rows)
    axes.set_xlabel(f"{label}, logarithmic; median of {results.repeats(group)}")
    axes.set_title(TITLES[group], loc="left")
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{group}.svg"
    figure.savefig(folder / name, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    return name


def _fill(axes: Any, legend: Sequence[str], rows: dict[str, list[float]]) -> None:
    height = 0.8 / len(legend)
    for place, (name, values) in enumerate(rows.items()):
        colours = _OURS if name.startswith("Holdfast") else _OTHERS
        for part, value in enumerate(values):
            if value:
                at = place + 0.4 - height * (part + 0.5)
                axes.barh(at, value, height, color=colours[part])
                axes.text(value, at, f" {value:,.0f} ({legend[part]})", va="center", fontsize=6.5)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xscale("log")
    axes.set_xlim(right=axes.get_xlim()[1] * 3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
