"""Which snapshots each rule removes, decided without a database."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from holdfast import FixedClock, Holdfast, Limits, RetentionPolicy
from holdfast.core.scope import Scope
from holdfast.stores.lifecycle.retention.sweeps import SweepCounts, SweepResult
from holdfast.stores.workspace import retention_rules as rules
from holdfast.stores.workspace.retention_rules import RunSnapshots
from tests.stores.lifecycle.conftest import Lines

DAY = 86_400
NOW = 1_700_000_000
POLICY = RetentionPolicy(per_run=10, quota_mib=500, grace_s=7 * DAY)


@pytest.fixture(scope="module")
def scope() -> Scope:
    with Holdfast(":memory:", clock=FixedClock(NOW * 1_000_000)) as holdfast:
        return Scope("acme", holdfast._setting)


def run(count: int, ended_s: int | None = None, **more: Any) -> RunSnapshots:
    """A run with so many snapshots that ended so many seconds ago."""
    fields: dict[str, Any] = {"per_run": None, "keep_s": None, "is_held": False, **more}
    finished = None if ended_s is None else (NOW - ended_s) * 1_000_000
    return RunSnapshots("a run", count, finished, **fields)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (run(0), None),
        (run(1), None),
        (run(10), None),
        (run(11), ("per_run_cap", 1)),
        (run(500), ("per_run_cap", 490)),
        (run(11, is_held=True), None),
        (run(11, per_run=11), None),
        (run(12, per_run=11), ("per_run_cap", 1)),
        (run(3, per_run=1), ("per_run_cap", 2)),
        (run(3, ended_s=0), None),
        (run(3, ended_s=7 * DAY - 1), None),
        (run(3, ended_s=7 * DAY), ("grace_expired", 3)),
        (run(30, ended_s=7 * DAY), ("grace_expired", 30)),
        (run(30, ended_s=DAY), ("per_run_cap", 20)),
        (run(3, ended_s=70 * DAY, is_held=True), None),
        (run(0, ended_s=70 * DAY), None),
        (run(3, ended_s=8 * DAY, keep_s=9 * DAY), None),
        (run(3, ended_s=9 * DAY, keep_s=9 * DAY), ("grace_expired", 3)),
        (run(3, ended_s=6 * DAY, keep_s=DAY), None),
        (run(3, ended_s=7 * DAY, keep_s=0), ("grace_expired", 3)),
        (run(3, ended_s=89 * DAY, keep_s=1_000 * DAY), None),
        (run(3, ended_s=90 * DAY, keep_s=1_000 * DAY), ("grace_expired", 3)),
        (run(3, ended_s=-DAY), None),
    ],
)
def test_the_rules_decide_about_every_run(scope: Scope, given: RunSnapshots, expected: object) -> None:
    assert rules.decide(POLICY, given, scope) == expected


@pytest.mark.parametrize(("grace_s", "keep_s", "expected"), [
    (7 * DAY, None, 7 * DAY), (0, None, 0), (0, 5, 5), (100 * DAY, 90 * DAY, 100 * DAY), (0, 91 * DAY, 90 * DAY),
    (7 * DAY, 10**12, 90 * DAY),
])  # fmt: skip
def test_a_grace_period_is_extended_up_to_ninety_days_and_never_shortened(
    scope: Scope, grace_s: int, keep_s: int | None, expected: int
) -> None:
    policy = RetentionPolicy(10, 500, grace_s)
    assert rules.of_run(policy, run(1, keep_s=keep_s), scope).grace_s == expected


def test_the_defaults_are_limits_that_can_be_changed() -> None:
    limits = Limits(snapshots_per_run=2, snapshot_quota_mib=3, snapshot_grace_s=4, snapshot_keep_s=5)
    with Holdfast(":memory:", limits=limits) as holdfast:
        acme = holdfast.tenant("acme")
        assert acme.retention.policy() == RetentionPolicy(2, 3, 4)
        existing = acme.runs.start(acme.sessions.create().id)
        assert acme.retention.keep_snapshots_for(existing.id, seconds=100).grace_s == 5
        holdfast.tenants.set_quota("acme", snapshot_quota_mib=0)
        assert acme.retention.policy().quota_mib == 0
        assert holdfast.tenants.get("acme").snapshot_quota_mib == 0
        assert holdfast.tenants.set_quota("acme", snapshot_quota_mib=None).snapshot_quota_mib is None
        assert acme.retention.policy().quota_mib == 3


class Gone:
    id, run_id, size_bytes = "s", "r", 7


@pytest.mark.parametrize("tenant", ["acme", 'a "quote"\n', "\ud800 half", "名前", "\x00"])
def test_every_line_is_one_json_object_for_any_tenant_name(tenant: str, lines: Lines) -> None:
    with Holdfast(":memory:") as holdfast:
        rules.log_removals(Scope(tenant, holdfast._setting), [Gone(), Gone()], "erasure")
    assert len(lines.raw) == 2
    for raw in lines.raw:
        assert "\n" not in raw
        assert raw.isascii()
        load = json.loads(raw)
        assert list(load) == ["event", "run_id", "checkpoint_id", "koder_user_id", "size_bytes", "reason"]
        assert (load["koder_user_id"], load["size_bytes"], load["reason"]) == (tenant, 7, "erasure")


def test_the_retention_log_has_only_removals() -> None:
    """Its JSON lines must not contain log messages of a worker."""
    import holdfast.erasure.consumer
    import holdfast.retention_worker

    for log in (holdfast.retention_worker.log, holdfast.erasure.consumer.log):
        assert not f"{log.name}.".startswith(f"{rules.LOGGER}.")
    assert logging.getLogger(rules.LOGGER).name == "holdfast.retention"


def test_a_sweep_is_counted_by_reason() -> None:
    swept = (
        SweepResult().with_removed("per_run_cap", 2, 10).with_removed("erasure", 1, 5).with_removed("per_run_cap", 1, 1)
    )
    assert (swept.per_run_cap, swept.erasure, swept.grace_expired) == (
        SweepCounts(3, 11),
        SweepCounts(1, 5),
        SweepCounts(),
    )
    assert swept.count == 4
    assert SweepResult().count == 0
