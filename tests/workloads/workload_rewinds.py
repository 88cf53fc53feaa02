"""Makers for rewinds of runs. ``workloads`` defines a maker."""

from __future__ import annotations

from holdfast.stores.execution.runs.states import Run
from tests.workloads.workloads import Arguments, World, maker


@maker("rewinds.begin", before="tool_calls.intend")
def _begin(world: World) -> Arguments | None:
    """Usually rewind the run with the most calls after its last step."""
    actual = [run for run in world.tenant.runs.list() if _lost(world, run) and not _is_busy(world, run)]
    if not actual:
        return None
    run = max(actual, key=lambda run: (run.iteration, _lost(world, run)))
    kwargs = {"to_step": max(0, run.iteration - 1), "path": f"/{world.name('tree')}", "snapshot": "then"}
    if run.status == "running":
        kwargs["epoch"] = run.epoch
    return (run.id,), kwargs


@maker("rewinds.redo", before="rewinds.finish")
def _redo(world: World) -> Arguments | None:
    """Choose a rewind while another one exists."""
    existing = [
        rewind
        for run in world.tenant.runs.list()
        for rewind in world.tenant.rewinds.list(run.id)
        if rewind.status == "rewound"
    ]
    for run in world.tenant.runs.list():
        rewound = [rewind for rewind in world.tenant.rewinds.list(run.id) if rewind.status == "rewound"]
        calls = [call for call in world.tenant.tool_calls.list(run.id) if call.iteration > run.iteration]
        if (
            rewound
            and rewound[0].to_step == run.iteration
            and not calls
            and not _is_busy(world, run)
            and len(existing) > 2
        ):
            return (run.id,), {"id": rewound[0].id} | ({"epoch": run.epoch} if run.status == "running" else {})
    return None


@maker("rewinds.finish", before="rewinds.begin")
def _finish(world: World) -> Arguments | None:
    existing = world.tenant.rewinds.pending()
    return None if not existing else ((existing[0].id,), {})


def _lost(world: World, run: Run) -> int:
    """Return the number of tool calls of the last step of a run."""
    return sum(call.iteration >= run.iteration for call in world.tenant.tool_calls.list(run.id))


def _is_busy(world: World, run: Run) -> bool:
    """Return whether a run cannot be rewound: its session has another active run, a child run is open, or a rewind has begun."""
    others = [item for item in world.tenant.runs.list(session=run.session_id) if item.id != run.id]
    below = [item for item in world.tenant.runs.list(parent=run.id) if item.finished_at is None]
    moving = world.tenant.rewinds.pending(run.id)
    return bool(moving or below or any(other.status == "running" for other in others))
