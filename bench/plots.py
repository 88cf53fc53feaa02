"""Plots of the report: SVG files that depend only on the results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import append_postgres, append_sqlite, graphs
from .figures import TITLES
from .results import Results

_OURS, _OTHERS = ("#0b6e4f", "#2f9e77", "#8fd0b4"), ("#5b6470", "#8d96a3", "#c4cad2")


def draw(results: Results, folder: Path) -> dict[str, str]:
    """Draw a plot for each group that has one and has results; return the file name per group."""
    drawn = {}
    for group in (append_sqlite.GROUP, append_sqlite.SLOW_GROUP, append_postgres.GROUP):
        if group in results.groups():
            drawn[group] = _bars(results, group, folder, _append_bars(results, group), "appends per second")
    if "history" in results.groups():
        drawn["history"] = _bars(results, "history", folder, _history_bars(results), "µs to load")
    if graphs.GROUP in results.groups():
        drawn[graphs.GROUP] = _curves(results, folder)
    return drawn


def _curves(results: Results, folder: Path) -> str:
    """Plot bytes on disk and time per turn over the number of turns."""
    pyplot = _pyplot()
    figure, sides = pyplot.subplots(1, 2, figsize=(10, 4.2))
    panels = (
        ("bytes", 1e6, "MB on disk (log scale)"),
        ("turn_us", 1e3, "ms per turn (log scale)"),
    )
    for axes, (metric, unit, label) in zip(sides, panels, strict=True):
        for number, name in enumerate(results.contenders(graphs.GROUP)):
            _curve(axes, results, name, metric, unit, number)
        axes.set_yscale("log")
        axes.set_xlabel("turns")
        axes.set_title(label, loc="left", fontsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    sides[1].legend(fontsize=6.5, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle(TITLES[graphs.GROUP], x=0.02, ha="left", fontsize=10)
    return _save(figure, pyplot, folder, graphs.GROUP)


def _curve(axes: Any, results: Results, name: str, metric: str, unit: float, number: int) -> None:
    result = [(turns, results.middle(graphs.GROUP, name, f"{metric}_{turns}")) for turns in graphs.MARKS]
    points = [(turns, value / unit) for turns, value in result if value]
    ours, style = name.startswith("Holdfast"), "--" if "Postgre" in name else ":" if "Delta" in name else "-"
    colour = (_OURS if ours else _OTHERS)[number % 3]
    width = 2 if ours else 1
    axes.plot(
        *zip(*points, strict=True),
        style,
        color=colour,
        linewidth=width,
        marker=_MARKERS[number % 11],
        markersize=3,
        label=name,
    )


_MARKERS = "osv^Dx+*pPd"


Bars = tuple[Sequence[str], dict[str, list[float]]]


def _append_bars(results: Results, group: str) -> Bars:
    """Return one bar per number of writers for each contender, slowest contender first."""
    legend = [f"{writers} writer{'s' * (writers > 1)}" for writers in append_sqlite.MANY]
    result: dict[str, list[float]] = {}
    for contender in results.contenders(group):
        rates = [results.middle(group, contender, "rate", writers=writers) for writers in append_sqlite.MANY]
        if contender == "fdatasync":
            rates[0] = results.middle(group, contender, "rate", bytes=4_096)
        result[contender] = [rate or 0.0 for rate in rates]
    return legend, dict(sorted(result.items(), key=lambda item: max(item[1])))


def _history_bars(results: Results) -> Bars:
    result = {
        name: [results.middle("history", name, metric) or 0.0 for metric in ("last_50_us", "all_1000_us")]
        for name in results.contenders("history")
    }
    return ["last 50", "all 1,000"], dict(sorted(result.items(), key=lambda item: -item[1][1]))


def _bars(results: Results, group: str, folder: Path, bars: Bars, label: str) -> str:
    pyplot = _pyplot()
    legend, rows = bars
    figure, axes = pyplot.subplots(figsize=(8, 0.6 + 0.22 * len(rows) * len(legend)))
    _fill(axes, legend, rows)
    axes.set_xlabel(f"{label} (log scale), median of {results.repeats(group)} repeats")
    axes.set_title(TITLES[group], loc="left")
    return _save(figure, pyplot, folder, group)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # A fixed salt keeps element ids equal, so that equal results produce an equal file.
    matplotlib.rcParams.update({"svg.hashsalt": "holdfast", "svg.fonttype": "none", "font.size": 9})
    return pyplot


def _save(figure: Any, pyplot: Any, folder: Path, group: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{group}.svg"
    figure.savefig(folder / name, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    return name


def _fill(axes: Any, legend: Sequence[str], rows: dict[str, list[float]]) -> None:
    height = 0.8 / len(legend)
    for row, (name, values) in enumerate(rows.items()):
        colours = _OURS if name.startswith("Holdfast") else _OTHERS
        for part, value in enumerate(values):
            if value:
                at = row + 0.4 - height * (part + 0.5)
                axes.barh(at, value, height, color=colours[part])
                axes.text(value, at, f" {value:,.0f} ({legend[part]})", va="center", fontsize=6.5)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xscale("log")
    axes.set_xlim(right=axes.get_xlim()[1] * 3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
