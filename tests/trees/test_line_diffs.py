"""Diffs of lines: right whatever they are given, as short as they can be, and never more work than they may take."""

from __future__ import annotations

import difflib
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.trees import line_diff
from holdfast.trees.line_diff import StepBudget, regions, unified

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n"]), max_size=12)


def applied(old: list[str], new: list[str], steps: StepBudget) -> list[str]:
    """The new list, made of the old one and of what is said to be replaced in it."""
    made, at = [], 0
    for from_old, to_old, from_new, to_new in regions(old, new, steps):
        made += old[at:from_old] + new[from_new:to_new]
        at = to_old
    return made + old[at:]


def longest_common(old: list[str], new: list[str]) -> int:
    lengths = [0] * (len(new) + 1)
    for line in old:
        before = 0
        for at, other in enumerate(new, 1):
            before, lengths[at] = lengths[at], before + 1 if line == other else max(lengths[at], lengths[at - 1])
    return lengths[-1]


@given(LINES, LINES, st.integers(0, 100))
def test_a_diff_makes_the_one_of_the_other_however_few_steps_it_has(old: list[str], new: list[str], most: int) -> None:
    assert applied(old, new, StepBudget(most)) == new


@given(LINES, LINES)
def test_a_diff_with_steps_enough_is_as_short_as_it_can_be(old: list[str], new: list[str]) -> None:
    found = regions(old, new, StepBudget(100_000))
    assert sum(each[1] - each[0] for each in found) == len(old) - longest_common(old, new)


@given(st.integers(0, 30), st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_hunks_are_written_as_difflib_writes_them(count: int, removed: set[int], added: set[int]) -> None:
    """Where all lines are different there is one way to say it."""
    old = [f"{number}\n" for number in range(count)]
    new = [
        line
        for number in range(31)
        for line in [f"{number}\n"] * (number < count and number not in removed)
        + [f"new {number}\n"] * (number in added)
    ]
    wanted = "".join(difflib.unified_diff(old, new, "a", "b"))
    assert unified(old, new, ("a", "b"), context=3, steps=StepBudget(100_000)) == wanted


def test_unlike_files_are_compared_within_the_steps_they_may_take() -> None:
    """Lines that both files have, in another order: nothing could be left out beforehand."""
    random = Random(7)
    old = [f"{random.randrange(500)}\n" for _ in range(20_000)]
    new = random.sample(old, len(old))
    steps = StepBudget(1_000_000)
    assert applied(old, new, steps) == new
    assert -100_000 < steps.left <= 0, "all were spent, and hardly more"
    steps = StepBudget(100_000_000)
    assert applied(old, new, steps) == new
    assert 100_000_000 - steps.left < 20 * line_diff.MAX_EDITS**2, "one file is given up before all are spent"


def test_lines_that_one_file_alone_has_cost_nothing() -> None:
    old, new = [f"old {number}\n" for number in range(50_000)], [f"new {number}\n" for number in range(50_000)]
    old[25_000] = new[100] = "common\n"
    steps = StepBudget(1_000_000)
    assert regions(old, new, steps) == [(0, 25_000, 0, 100), (25_001, 50_000, 101, 50_000)]
    assert 1_000_000 - steps.left <= 100_010
