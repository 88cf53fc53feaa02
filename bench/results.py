"""Results on disk, one JSON object per line, and queries over them. The latest run of a group replaces earlier runs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .case import Result


class Results:
    """The latest results of every group."""

    def __init__(self, records: Iterable[Result], facts: dict[str, dict[str, Any]]) -> None:
        self.facts = facts
        latest: dict[str, list[Result]] = {}
        for record in records:
            kept = latest.setdefault(record["group"], [])
            if kept and kept[0]["run"] != record["run"]:
                kept.clear()
            kept.append(record)
        self._groups = latest

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read a file of results; a missing file has none."""
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        facts = {line["run"]: line["facts"] for line in lines if "facts" in line}
        return cls([line for line in lines if "group" in line], facts)

    def runs(self) -> list[str]:
        """Return the runs with the latest results of at least one group."""
        return sorted({self.run_of(group) for group in self._groups})

    def run_of(self, group: str) -> str:
        """Return the run of a group's latest results."""
        return str(self._groups[group][0]["run"])

    def groups(self) -> list[str]:
        """Return the groups with results."""
        return list(self._groups)

    def contenders(self, group: str) -> list[str]:
        """Return the contenders of a group."""
        return list(dict.fromkeys(record["contender"] for record in self._groups.get(group, [])))

    def repeats(self, group: str) -> int:
        """Return how often each case of a group was measured."""
        return len({record["repeat"] for record in self._groups.get(group, [])})

    def series(self, group: str, contender: str, metric: str, **params: int) -> dict[int, float]:
        """Return the values of a metric by repeat."""
        return {
            record["repeat"]: record[metric] for record in self._select(group, contender, params) if metric in record
        }

    def middle(self, group: str, contender: str, metric: str, **params: int) -> float | None:
        """Return the median of a metric over the repeats, or ``None`` without results."""
        values = self.series(group, contender, metric, **params).values()
        return statistics.median(values) if values else None

    def errors(self, group: str) -> list[str]:
        """Return the distinct errors of a group."""
        result = [
            f"{record['contender']}{_params(record)}: {record['error']}"
            for record in self._groups.get(group, [])
            if "error" in record
        ]
        return list(dict.fromkeys(result))

    def _select(self, group: str, contender: str, params: dict[str, int]) -> list[Result]:
        return [
            record
            for record in self._groups.get(group, [])
            if record["contender"] == contender and all(record.get(name) == value for name, value in params.items())
        ]


def ratios(ours: dict[int, float], theirs: Sequence[dict[int, float]], *, largest: bool) -> list[float]:
    """Return our value divided by the best of theirs for each repeat, in which both ran under the same conditions."""
    result = []
    for repeat, value in ours.items():
        others = [series[repeat] for series in theirs if repeat in series]
        if others:
            result.append(value / (max if largest else min)(others))
    return result


def _params(record: Result) -> str:
    return f", {record['writers']} writers" if "writers" in record else ""
