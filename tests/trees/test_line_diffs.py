"""Line diffs: correct for any input, minimal with enough steps, and within the given steps."""

from __future__ import annotations

import difflib
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.trees import line_diff
from holdfast.trees.line_diff import StepBudget, regions, unified_diff

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n"]), max_size=12)


def apply_regions(old: list[str], new: list[str], steps: StepBudget) -> list[str]:
    """Apply the regions of a diff to the old list."""
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
def test_a_diff_is_correct_with_any_number_of_steps(old: list[str], new: list[str], most: int) -> None:
    assert apply_regions(old, new, StepBudget(most)) == new


@given(LINES, LINES)
def test_a_diff_with_enough_steps_is_minimal(old: list[str], new: list[str]) -> None:
    region = regions(old, new, StepBudget(100_000))
    assert sum(change[1] - change[0] for change in region) == len(old) - longest_common(old, new)


@given(st.integers(0, 30), st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_hunks_are_written_as_difflib_writes_them(count: int, removed: set[int], added: set[int]) -> None:
    """With all lines different there is only one possible diff."""
    old = [f"{number}\n" for number in range(count)]
    new = [
        line
        for number in range(31)
        for line in [f"{number}\n"] * (number < count and number not in removed)
        + [f"new {number}\n"] * (number in added)
    ]
    expected = "".join(difflib.unified_diff(old, new, "a", "b"))
    assert unified_diff(old, new, ("a", "b"), context=3, steps=StepBudget(100_000)) == expected


def test_dissimilar_files_are_compared_within_the_step_limit() -> None:
    """Lines that both files have, in another order, so that none can be removed before the comparison."""
    random = Random(7)
    old = [f"{random.randrange(500)}\n" for _ in range(20_000)]
    new = random.sample(old, len(old))
    steps = StepBudget(1_000_000)
    assert apply_regions(old, new, steps) == new
    assert -100_000 < steps.left <= 0, "all steps were spent, and few more"
    steps = StepBudget(100_000_000)
    assert apply_regions(old, new, steps) == new
    assert 100_000_000 - steps.left < 20 * line_diff.MAX_EDITS**2, "a single file is given up earlier"


def test_lines_of_only_one_file_cost_no_steps() -> None:
    old, new = [f"old {number}\n" for number in range(50_000)], [f"new {number}\n" for number in range(50_000)]
    old[25_000] = new[100] = "common\n"
    steps = StepBudget(1_000_000)
    assert regions(old, new, steps) == [(0, 25_000, 0, 100), (25_001, 50_000, 101, 50_000)]
    assert 1_000_000 - steps.left <= 100_010
