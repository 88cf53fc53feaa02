"""Faults and their rules: each occurs as its rule specifies, and has the documented effect."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import get_args

import pytest

from holdfast.errors import InvalidInput
from holdfast.testing.sim import AgentScenario, Fault, FaultName, Simulation, faults, mixed
from holdfast.testing.sim.faults import KINDS, USUAL_MS, Faults
from tests.errors import raises

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "simulation.md").read_text("utf-8")
NAMES: tuple[FaultName, ...] = get_args(FaultName)


def rules(*given: Fault, seed: int = 1) -> Faults:
    return Faults(given, Random(seed))


def struck(which: Faults, times: int, what: str = "sim.db-wal") -> list[bool]:
    return [which.at("write", what) is not None for _ in range(times)]


def test_a_rule_applies_with_its_probability() -> None:
    hits = sum(struck(rules(Fault("StorageWriteFail", 0.2)), 10_000))
    assert 1_800 < hits < 2_200
    assert not any(struck(rules(Fault("StorageWriteFail", 0)), 100))
    assert all(struck(rules(Fault("StorageWriteFail", 1)), 100))


def test_a_rule_skips_some_operations_and_then_applies_to_a_number_of_them() -> None:
    assert struck(rules(Fault("StorageWriteFail", 1, after=2, at_most=3)), 7) == [False] * 2 + [True] * 3 + [False] * 2


def test_a_rule_counts_only_its_own_operations() -> None:
    only = rules(Fault("StorageWriteFail", 1, on="write sim.db-wal", after=1))
    assert only.at("write", "sim.db") is None
    assert only.at("write", "sim.db-wal") is None
    assert only.at("write", "sim.db-wal") is not None
    assert only.at("sync", "sim.db-wal") is None


def test_the_first_matching_rule_applies_and_every_fault_is_counted() -> None:
    both = rules(Fault("CrashBeforeWrite", 1, at_most=1), Fault("StorageWriteFail", 1))
    names = [actual.name for actual in (both.at("write", "a"), both.at("write", "a")) if actual is not None]
    assert names == ["CrashBeforeWrite", "StorageWriteFail"]
    assert both.happened == {"CrashBeforeWrite": 1, "StorageWriteFail": 1}


def test_no_fault_occurs_after_the_stop() -> None:
    stopped = rules(Fault("StorageWriteFail", 1))
    stopped.stop()
    assert not any(struck(stopped, 10))


def test_the_duration_of_a_fault_is_in_the_range_of_its_rule() -> None:
    drawn = rules(Fault("StorageLatency", 1, ms=(5, 9)))
    actual = {number.ms for number in (drawn.at("read", "a") for _ in range(200)) if number is not None}
    assert actual == {5, 6, 7, 8, 9}
    assert all(name in USUAL_MS for name in NAMES if "Latency" in name or "Clock" in name)


def test_an_unknown_fault_and_an_invalid_probability_are_refused() -> None:
    with raises(InvalidInput, field="name"):
        Fault("Flood")  # type: ignore[arg-type]
    with raises(InvalidInput, field="probability"):
        Fault("PowerCut", 20)


def test_every_fault_has_a_description_and_operations() -> None:
    assert {*KINDS} == {*NAMES}
    for name in NAMES:
        assert f"``{name}``" in str(faults.__doc__)
        assert f"| `{name}` |" in PAGE


def test_mixed_faults_can_be_limited_to_some() -> None:
    assert [fault.name for fault in mixed(0.1)] == [*NAMES]
    some = [tuple(fault.name for fault in mixed(0.1, Random(seed))) for seed in range(20)]
    assert len({*some}) > 15
    assert {name for names in some for name in names} == {*NAMES}


ON = {"CrashBeforeWrite": "sync", "CrashAfterWrite": "write"}
SAID = {
    "ProcessDeath": "dies",
    "ClockSkew": "has a clock that is wrong",
    "PowerCut": "the power is cut",
    "LostWrites": "unflushed data is dropped",
    "TornWrites": "unflushed data is torn",
    "ReorderedWrites": "unflushed data is scattered",
    "StorageSyncFail": "OutcomeUnknown",
    "StorageWriteFail": "OutcomeUnknown",
    "DiskFull": "StorageFull",
    "StorageBusy": ": Busy",
}
"""What the trace says of a fault besides its name."""


@pytest.mark.parametrize("name", NAMES)
def test_each_fault_alone_breaks_no_promise(name: FaultName) -> None:
    often = {"start": 1.0, "tool": 1.0, "sync": 0.2, "lock": 0.2}.get(ON.get(name, KINDS[name][0]), 0.02)
    rule = Fault(name, often, on=ON.get(name, ""), at_most=4)
    report = Simulation(11, AgentScenario(11, runs=2, processes=2), faults=[rule]).run()
    assert report.violation is None, report.trace
    assert 1 <= report.faults[name] <= 4
    assert SAID.get(name, name) in report.trace


def test_without_faults_no_call_fails_or_is_repeated() -> None:
    report = Simulation(12, AgentScenario(12), faults=[]).run()
    assert report.violation is None
    assert report.faults == {}
    for word in ("meets", "dies", "Fenced", "Unavailable", "starts again"):
        assert word not in report.trace
    assert report.trace.count("the power is cut") == 1, "only the last one"
