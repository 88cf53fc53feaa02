"""Makers for workspaces: small, constant directories of this package, captured in sequence."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.stores.workspace.snapshot_rows import Snapshot
from tests.workloads.workloads import Arguments, World, maker

_PACKAGE = Path(holdfast.__file__).parent
TREES = ("erasure", "stores/agents", "adapters/a2a")


@maker("workspaces.capture", before="runs.start")
def _capture(world: World) -> Arguments | None:
    runs = world.tenant.runs.list(limit=10)
    if not runs:
        return None
    run = world.random.choice(runs)
    ignore = world.random.choice(([], ["*_*.py"], ["/[a-m]*"]))
    return (run.id, _tree(world)), {"step": world.random.randrange(5), "ignore": ignore}


@maker("workspaces.capture_upper", before="workspaces.capture")
def _capture_upper(world: World) -> Arguments | None:
    base = _some(world)
    return None if base is None else ((base.run_id, _tree(world)), {"base": base.id, "step": world.random.randrange(5)})


@maker("snapshots.delete", before="workspaces.capture")
def _delete(world: World) -> Arguments | None:
    existing = _some(world)
    return None if existing is None else (([existing.id],), {"reason": world.text()[:50]})


@maker("snapshots.collect", before="workspaces.capture")
def _collect(world: World) -> Arguments:
    return (), {}


def _some(world: World) -> Snapshot | None:
    snapshots = world.tenant.snapshots.list(limit=10)
    return world.random.choice(snapshots) if snapshots else None


def _tree(world: World) -> str:
    return str(_PACKAGE / world.random.choice(TREES))
