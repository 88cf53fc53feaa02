"""Many seeds: no fault breaks a promise, and every run ends."""

from __future__ import annotations

import pytest

from holdfast.testing.sim import explore

SEEDS_IN_TESTS = 200
SEEDS_IN_SOAK = 20_000
EACH = 10
EACH_IN_SOAK = 100


def simulate_all(first: int, count: int) -> None:
    for report in explore(first, seeds=count):
        if report.violation:
            pytest.fail(
                f"holdfast sim --seed {report.seed}\n{report.violation}\n\n{report.trace[-4_000:]}", pytrace=False
            )


@pytest.mark.parametrize("first", range(0, SEEDS_IN_TESTS, EACH))
def test_no_promise_is_broken_under(first: int) -> None:
    simulate_all(first, EACH)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS_IN_TESTS, SEEDS_IN_TESTS + SEEDS_IN_SOAK, EACH_IN_SOAK))
def test_no_promise_is_broken_under_many_more(first: int) -> None:
    simulate_all(first, EACH_IN_SOAK)
