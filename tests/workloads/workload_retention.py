"""Makers for retention: the activity log, policies, holds and erasure requests."""

from __future__ import annotations

from holdfast.stores.execution.runs.states import Run
from tests.workloads.workloads import Arguments, World, maker

ACTIONS = ("checkpoint.deleted", "access.denied", "hold.placed")


@maker("activity.record")
def _record(world: World) -> Arguments:
    subject = {"subject_kind": "run", "subject_id": world.name("run")} if world.random.random() < 0.7 else {}
    details = {"text": world.text()} if world.random.random() < 0.5 else {}
    return (world.random.choice(ACTIONS),), {"actor": "ada", "reason": world.text(), "details": details, **subject}


@maker("retention.set_policy", before="runs.start")
def _set_policy(world: World) -> Arguments | None:
    run = _run(world)
    if run is not None and world.random.random() < 0.5:
        return (), {"per_run": world.random.randrange(1, 4), "run_id": run.id}
    return (), {"per_run": world.random.randrange(1, 4), "grace_s": world.random.choice((0, 60, 7 * 86_400))}


@maker("retention.clear_policy", before="runs.start")
def _clear_policy(world: World) -> Arguments:
    run = _run(world) if world.random.random() < 0.5 else None
    return (), {} if run is None else {"run_id": run.id}


@maker("retention.keep_snapshots_for", before="runs.start")
def _keep(world: World) -> Arguments | None:
    run = _run(world)
    return None if run is None else ((run.id,), {"seconds": world.random.choice((0, 86_400, 10**9))})


@maker("retention.hold", before="runs.start")
def _hold(world: World) -> Arguments | None:
    run = _run(world)
    return None if run is None else ((world.name("a case"),), {"run_id": run.id, "placed_by": "ada"})


@maker("retention.release", before="retention.hold")
def _release(world: World) -> Arguments | None:
    """Release one of several holds, so that one always remains."""
    existing = world.tenant.retention.holds()
    return ((world.random.choice(existing).id,), {"reason": "closed"}) if len(existing) > 1 else None


@maker("erasures.request")
def _request(world: World) -> Arguments:
    return (world.random.choice((world.tenant_name, "unknown")),), {"event_id": world.name("event"), "whole": False}


def _run(world: World) -> Run | None:
    runs = world.tenant.runs.list(limit=10)
    return world.random.choice(runs) if runs else None
