"""Unified diffs of two lists of lines, with bounded work.

The algorithm is that of Myers, applied after removing common lines at both ends and lines that only one side has. Its
cost grows with the square of the differences, so each comparison spends steps from a budget. Once the budget is
spent, all remaining lines count as replaced: the diff is longer than necessary, and still correct.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

MAX_EDITS = 2_000
"""Maximum number of removed and added lines searched for in one file: the memory needed grows with its square."""
_NO_NEWLINE = "\\ No newline at end of file\n"

Region = tuple[int, int, int, int]
"""Lines of the old list, from and to, that are replaced by lines of the new list, from and to."""


class StepBudget:
    """A budget of steps shared by several diffs."""

    def __init__(self, maximum: int) -> None:
        self.left = maximum

    def spend(self, count: int) -> bool:
        """Spend steps; return whether any are left."""
        self.left -= count
        return self.left > 0


def unified_diff(
    old: Sequence[str], new: Sequence[str], names: tuple[str, str], *, context: int, steps: StepBudget
) -> str:
    """Return the unified diff of two lists of lines, each with its newline except perhaps the last; empty if they are
    equal.
    """
    changed_regions = regions(old, new, steps)
    if not changed_regions:
        return ""
    parts = [f"--- {names[0]}\n+++ {names[1]}\n"]
    for hunk in _hunks(changed_regions, context):
        start, end = max(0, hunk[0][0] - context), min(len(old), hunk[-1][1] + context)
        new_start, new_end = hunk[0][2] - (hunk[0][0] - start), hunk[-1][3] + (end - hunk[-1][1])
        parts.append(f"@@ -{_range(start, end)} +{_range(new_start, new_end)} @@\n")
        at = start
        for from_old, to_old, from_new, to_new in hunk:
            parts += [_line(" ", line) for line in old[at:from_old]]
            parts += [_line("-", line) for line in old[from_old:to_old]]
            parts += [_line("+", line) for line in new[from_new:to_new]]
            at = to_old
        parts += [_line(" ", line) for line in old[at:end]]
    return "".join(parts)


def regions(old: Sequence[str], new: Sequence[str], steps: StepBudget) -> list[Region]:
    """Return the regions to replace in one list to get the other, in order."""
    start, end, new_end = _common_ends(old, new)
    steps.spend(len(old) + len(new))
    removed, added = bytearray(len(old)), bytearray(len(new))
    in_old, in_new = set(old[start:end]), set(new[start:new_end])
    numbers: dict[str, int] = {}
    kept_old = _kept(old, start, end, in_new, removed)
    kept_new = _kept(new, start, new_end, in_old, added)
    ids_old = [numbers.setdefault(old[at], len(numbers)) for at in kept_old]
    ids_new = [numbers.setdefault(new[at], len(numbers)) for at in kept_new]
    edits = _edits(ids_old, ids_new, steps)
    if edits is None:
        edits = list(range(len(kept_old))), list(range(len(kept_new)))
    for at in edits[0]:
        removed[kept_old[at]] = 1
    for at in edits[1]:
        added[kept_new[at]] = 1
    return _regions(removed, added)


def _common_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int, int]:
    """Return where the lists start to differ, and where the difference ends in each."""
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and old[start] == new[start]:
        start += 1
    end, new_end = len(old), len(new)
    while end > start and new_end > start and old[end - 1] == new[new_end - 1]:
        end, new_end = end - 1, new_end - 1
    return start, end, new_end


def _kept(lines: Sequence[str], start: int, end: int, others: set[str], changed: bytearray) -> list[int]:
    """Return the indexes of lines that the other side has as well; mark the rest as changed."""
    kept = []
    for at in range(start, end):
        if lines[at] in others:
            kept.append(at)
        else:
            changed[at] = 1
    return kept


def _edits(old: Sequence[int], new: Sequence[int], steps: StepBudget) -> tuple[list[int], list[int]] | None:
    """Return which lines to remove and to add, as few as possible; ``None`` if the budget does not suffice."""
    n, m = len(old), len(new)
    if not n or not m:
        return list(range(n)), list(range(m))
    maximum = min(n + m, MAX_EDITS)
    furthest = [0] * (2 * maximum + 3)  # by diagonal, from the middle
    trace: list[array[int]] = []
    for d in range(maximum + 1):
        walked = d + 1
        for k in range(-d, d + 1, 2):
            down = k == -d or (k != d and furthest[maximum + k] < furthest[maximum + k + 2])
            x = furthest[maximum + k + 2] if down else furthest[maximum + k] + 1
            start_x, y = x, x - k
            while x < n and y < m and old[x] == new[y]:
                x, y = x + 1, y + 1
            walked += x - start_x
            furthest[maximum + 1 + k] = x
            if x >= n and y >= m:
                return _trace_back(trace, d, n, m)
        if not steps.spend(walked):
            return None
        trace.append(array("i", furthest[maximum + 1 - d : maximum + 2 + d : 2]))
    return None


def _trace_back(trace: Sequence[array[int]], d: int, x: int, y: int) -> tuple[list[int], list[int]]:
    """Trace the path back from the end."""
    removed, added = [], []
    while d:
        previous, k = trace[d - 1], x - y
        # before[i] is how far the diagonal 2 * i - (d - 1) led.
        at = (k + d) // 2  # the diagonal above, k + 1
        down = k == -d or (k != d and previous[at - 1] < previous[at])
        if down:
            x = previous[at]
            y = x - (k + 1)
            added.append(y)
        else:
            x = previous[at - 1]
            y = x - (k - 1)
            removed.append(x)
        d -= 1
    return removed, added


def _regions(removed: bytearray, added: bytearray) -> list[Region]:
    regions: list[Region] = []
    at = new_at = 0
    while at < len(removed) or new_at < len(added):
        start, new_start = at, new_at
        while at < len(removed) and removed[at]:
            at += 1
        while new_at < len(added) and added[new_at]:
            new_at += 1
        if (start, new_start) != (at, new_at):
            regions.append((start, at, new_start, new_at))
        at, new_at = at + 1, new_at + 1
    return regions


def _hunks(regions: Sequence[Region], context: int) -> Iterator[list[Region]]:
    """Group regions whose context would overlap."""
    hunk = [regions[0]]
    for region in regions[1:]:
        if region[0] - hunk[-1][1] > 2 * context:
            yield hunk
            hunk = []
        hunk.append(region)
    yield hunk


def _range(start: int, end: int) -> str:
    """Return a range of lines as in a hunk header: counted from 1, with the length unless it is one."""
    length = end - start
    return str(start + 1) if length == 1 else f"{start + (length > 0)},{length}"


def _line(mark: str, line: str) -> str:
    return f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n{_NO_NEWLINE}"
