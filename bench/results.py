"""Results on disk, one JSON object a line, and questions about them. The latest run of a group replaces earlier ones."""

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
        """All there is in a file."""
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        facts = {line["run"]: line["facts"] for line in lines if "facts" in line}
        return cls([line for line in lines if "group" in line], facts)

    def runs(self) -> list[str]:
        """The runs that are still shown."""
        return sorted({self.run_of(group) for group in self._groups})

    def run_of(self, group: str) -> str:
        """The run a group's results are from."""
        return str(self._groups[group][0]["run"])

    def groups(self) -> list[str]:
        """The groups there are."""
        return list(self._groups)

    def contenders(self, group: str) -> list[str]:
        """Who took part."""
        return list(dict.fromkeys(record["contender"] for record in self._groups.get(group, [])))

    def repeats(self, group: str) -> int:
        """How often each case was measured."""
        return len({record["repeat"] for record in self._groups.get(group, [])})

    def series(self, group: str, contender: str, metric: str, **params: int) -> dict[int, float]:
        """A figure by repeat."""
        return {
            record["repeat"]: record[metric] for record in self._select(group, contender, params) if metric in record
        }

    def middle(self, group: str, contender: str, metric: str, **params: int) -> float | None:
        """The median over the repeats."""
        values = self.series(group, contender, metric, **params).values()
        return statistics.median(values) if values else None

    def errors(self, group: str) -> list[str]:
        """What went wrong, once each."""
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
    """Ours over the best of theirs, within each repeat, where both met the same moments of the machine."""
    result = []
    for repeat, value in ours.items():
        others = [series[repeat] for series in theirs if repeat in series]
        if others:
            result.append(value / (max if largest else min)(others))
    return result


def _params(record: Result) -> str:
    return f", {record['writers']} writers" if "writers" in record else ""
