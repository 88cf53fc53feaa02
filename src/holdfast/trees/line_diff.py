"""Unified diffs of two lists of lines, with a bound on the work.

The algorithm is that of Myers, on what is left after common lines at both ends and lines that only one side has are taken out.
Its cost grows with the square of the differences, so each comparison spends steps from a budget. Once the budget is spent, all
lines that are left count as replaced: the diff is longer than it could be, and still right.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

MAX_EDITS = 2_000
"""Lines removed and added that are looked for in one file: what is remembered on the way grows with their square."""
_NO_NEWLINE = "\\ No newline at end of file\n"

Region = tuple[int, int, int, int]
"""Lines of the old list, from and to, that are replaced by lines of the new list, from and to."""


class StepBudget:
    """A budget of steps that several diffs share."""

    def __init__(self, most: int) -> None:
        self.left = most

    def spend(self, count: int) -> bool:
        """Take so many steps; whether any are left."""
        self.left -= count
        return self.left > 0


def unified(old: Sequence[str], new: Sequence[str], names: tuple[str, str], *, context: int, steps: StepBudget) -> str:
    """The unified diff of two lists of lines, each with its newline except perhaps the last; empty if they are the same."""
    found = regions(old, new, steps)
    if not found:
        return ""
    parts = [f"--- {names[0]}\n+++ {names[1]}\n"]
    for hunk in _hunks(found, context):
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
    """What to replace in one list to make it the other, in order."""
    start, end, new_end = _common_ends(old, new)
    steps.spend(len(old) + len(new))
    removed, added = bytearray(len(old)), bytearray(len(new))
    in_old, in_new = set(old[start:end]), set(new[start:new_end])
    numbers: dict[str, int] = {}
    kept_old = _kept(old, start, end, in_new, removed)
    kept_new = _kept(new, start, new_end, in_old, added)
    ids_old = [numbers.setdefault(old[at], len(numbers)) for at in kept_old]
    ids_new = [numbers.setdefault(new[at], len(numbers)) for at in kept_new]
    found = _edits(ids_old, ids_new, steps)
    if found is None:
        found = list(range(len(kept_old))), list(range(len(kept_new)))
    for at in found[0]:
        removed[kept_old[at]] = 1
    for at in found[1]:
        added[kept_new[at]] = 1
    return _regions(removed, added)


def _common_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int, int]:
    """Where the lists begin to differ, and where each ends to."""
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and old[start] == new[start]:
        start += 1
    end, new_end = len(old), len(new)
    while end > start and new_end > start and old[end - 1] == new[new_end - 1]:
        end, new_end = end - 1, new_end - 1
    return start, end, new_end


def _kept(lines: Sequence[str], start: int, end: int, others: set[str], changed: bytearray) -> list[int]:
    """The lines that the other side has as well; the rest is marked as changed."""
    kept = []
    for at in range(start, end):
        if lines[at] in others:
            kept.append(at)
        else:
            changed[at] = 1
    return kept


def _edits(old: Sequence[int], new: Sequence[int], steps: StepBudget) -> tuple[list[int], list[int]] | None:
    """Which to remove and which to add, as few as possible; ``None`` if that takes too long to find out."""
    n, m = len(old), len(new)
    if not n or not m:
        return list(range(n)), list(range(m))
    most = min(n + m, MAX_EDITS)
    furthest = [0] * (2 * most + 3)  # by diagonal, from the middle
    trace: list[array[int]] = []
    for d in range(most + 1):
        walked = d + 1
        for k in range(-d, d + 1, 2):
            down = k == -d or (k != d and furthest[most + k] < furthest[most + k + 2])
            x = furthest[most + k + 2] if down else furthest[most + k] + 1
            begun, y = x, x - k
            while x < n and y < m and old[x] == new[y]:
                x, y = x + 1, y + 1
            walked += x - begun
            furthest[most + 1 + k] = x
            if x >= n and y >= m:
                return _traced(trace, d, n, m)
        if not steps.spend(walked):
            return None
        trace.append(array("i", furthest[most + 1 - d : most + 2 + d : 2]))
    return None


def _traced(trace: Sequence[array[int]], d: int, x: int, y: int) -> tuple[list[int], list[int]]:
    """Go back from the end along the way that led there."""
    removed, added = [], []
    while d:
        before, k = trace[d - 1], x - y
        # before[i] is how far the diagonal 2 * i - (d - 1) led.
        at = (k + d) // 2  # the diagonal above, k + 1
        down = k == -d or (k != d and before[at - 1] < before[at])
        if down:
            x = before[at]
            y = x - (k + 1)
            added.append(y)
        else:
            x = before[at - 1]
            y = x - (k - 1)
            removed.append(x)
        d -= 1
    return removed, added


def _regions(removed: bytearray, added: bytearray) -> list[Region]:
    found: list[Region] = []
    at = there = 0
    while at < len(removed) or there < len(added):
        start, new_start = at, there
        while at < len(removed) and removed[at]:
            at += 1
        while there < len(added) and added[there]:
            there += 1
        if (start, new_start) != (at, there):
            found.append((start, at, new_start, there))
        at, there = at + 1, there + 1
    return found


def _hunks(found: Sequence[Region], context: int) -> Iterator[list[Region]]:
    """Regions, those together whose context would overlap."""
    hunk = [found[0]]
    for region in found[1:]:
        if region[0] - hunk[-1][1] > 2 * context:
            yield hunk
            hunk = []
        hunk.append(region)
    yield hunk


def _range(start: int, end: int) -> str:
    """Lines as a hunk counts them: from 1 on, and how many unless it is one; none are before the next."""
    length = end - start
    return str(start + 1) if length == 1 else f"{start + (length > 0)},{length}"


def _line(mark: str, line: str) -> str:
    return f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n{_NO_NEWLINE}"
