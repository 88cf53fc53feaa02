"""Makers for agents, their blocks, and runs with their leases and tool calls. ``workloads`` defines a maker.

Between two calls 7 seconds pass, so a lease of a minute and a half outlives a dozen of them; then another worker gets the run.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.clock import from_us
from holdfast.stores.agents.agents import Agent
from holdfast.stores.agents.blocks import NewBlock
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.stores.execution.runs.ledger import NewToolCall, PendingCall, Safety, ToolOutcome
from holdfast.stores.execution.runs.states import Run, Status
from holdfast.stores.execution.runs.step_log import Usage
from tests.workloads.workloads import Arguments, World, maker

TTL_MS = 90_000
SAFETY: tuple[Safety, ...] = ("idempotent", "at_most_once", "ask")


# Agents and blocks


@maker("agents.share", before="agents.create")
def _share(world: World) -> Arguments | None:
    existing = _agent(world)
    role = world.random.choice(("user", "admin", "operator"))
    return None if existing is None else ((existing.id, world.random.choice("abc")), {"role": role})


@maker("agents.revoke_share", before="agents.share")
def _revoke_share(world: World) -> Arguments | None:
    agents = world.tenant.agents.list()
    shares = [share for agent in agents for share in world.tenant.agents.list_shares(agent.id)]
    if not shares:
        return None
    share = world.random.choice(shares)
    return (share.agent, share.user), {}


@maker("blocks.save", before="agents.create")
def _save_blocks(world: World) -> Arguments | None:
    existing = _agent(world)
    blocks = [NewBlock(label=label, value=world.text()) for label in ("human", "persona")]
    return None if existing is None else ((existing.id, blocks), {})


@maker("blocks.set", before="agents.create")
def _set_block(world: World) -> Arguments | None:
    existing = _agent(world)
    return None if existing is None else ((existing.id, world.random.choice(("persona", "goals")), world.text()), {})


@maker("blocks.append", before="agents.create")
def _append_block(world: World) -> Arguments | None:
    existing = _agent(world)
    return None if existing is None else ((existing.id, "persona", world.name("line")), {})


@maker("blocks.delete", before="blocks.set")
def _delete_block(world: World) -> Arguments | None:
    existing = [block for agent in world.tenant.agents.list() for block in world.tenant.blocks.list(agent.id)]
    if not existing:
        return None
    block = world.random.choice(existing)
    return (block.agent, block.label), {}


def _agent(world: World) -> Agent | None:
    agents = world.tenant.agents.list()
    return world.random.choice(agents) if agents else None


# Runs


@maker("runs.start")
def _start(world: World) -> Arguments | None:
    """Usually a top-level run, sometimes a child run."""
    existing = world.session()
    if existing is None:
        return None
    above = _run(world, "running", "paused")
    kwargs = {"agent": "helper", "metadata": {"text": world.text()}}
    if above is not None and above.depth < 2 and world.random.random() < 0.3:
        kwargs["parent"] = above.id
    return (existing.id,), kwargs


@maker("runs.step", before="leases.claim")
def _step(world: World) -> Arguments | None:
    run = _run(world, "running")
    if run is None:
        return None
    pending = [item for item in world.tenant.tool_calls.pending(run.id) if item.call.status == "begun"]
    kwargs = {
        "epoch": run.epoch,
        "iteration": run.iteration + 1,
        "state": {"text": world.text()},
        "messages": [
            NewMessage(role="assistant", content=world.text(), token_count=3),
            NewMessage(role="user", content="ok"),
        ],
        "tool_calls": [ToolOutcome(id=item.call.id, result={"text": world.text()}) for item in pending],
        "usage": Usage(input_tokens=11, output_tokens=7),
    }
    if not world.tenant.tool_calls.pending(run.id) and world.random.random() < 0.2:
        kwargs["stop_reason"] = "end_turn"
    return (run.id,), kwargs


@maker("runs.pause", before="leases.claim")
def _pause(world: World) -> Arguments | None:
    run = _run(world, "running")
    if run is None:
        return None
    until = world.random.choice((None, _now(world) + timedelta(seconds=60)))
    return (run.id,), {"epoch": run.epoch, "until": until}


@maker("runs.resume", before="runs.pause")
def _resume(world: World) -> Arguments | None:
    run = _run(world, "paused", "waiting", "failed")
    return None if run is None else ((run.id,), {})


@maker("runs.finish", before="leases.claim")
def _finish(world: World) -> Arguments | None:
    runs = [run for run in world.tenant.runs.list(status="running") if not world.tenant.tool_calls.pending(run.id)]
    if not runs:
        return None
    run = world.random.choice(runs)
    return (run.id,), {"epoch": run.epoch, "stop_reason": "end_turn"}


@maker("runs.fail", before="leases.claim")
def _fail(world: World) -> Arguments | None:
    run = _run(world, "running")
    return None if run is None else ((run.id,), {"epoch": run.epoch, "error": world.text()})


@maker("runs.cancel", before="runs.start")
def _cancel(world: World) -> Arguments | None:
    run = _run(world, "pending", "running", "paused", "waiting")
    return None if run is None else ((run.id,), {"reason": "not wanted"})


@maker("runs.delete", before="runs.cancel")
def _delete(world: World) -> Arguments | None:
    run = _run(world, "completed", "failed", "cancelled")
    return None if run is None else ((run.id,), {})


@maker("leases.claim", before="runs.start")
def _claim(world: World) -> Arguments | None:
    return (("worker",), {"ttl_ms": TTL_MS}) if _run(world, "pending", "paused", "running") else None


@maker("leases.renew", before="leases.claim")
def _renew(world: World) -> Arguments | None:
    run = _run(world, "running")
    return None if run is None else ((run.id,), {"epoch": run.epoch})


@maker("leases.release", before="leases.claim")
def _release(world: World) -> Arguments | None:
    run = _run(world, "running")
    return None if run is None else ((run.id,), {"epoch": run.epoch})


@maker("run_queue.claim")
def _claim_of_any(world: World) -> Arguments | None:
    return ("any",), {"ttl_ms": TTL_MS}


def _run(world: World, *statuses: Status) -> Run | None:
    actual = [run for status in statuses for run in world.tenant.runs.list(status=status)]
    return world.random.choice(actual) if actual else None


def _now(world: World) -> datetime:
    return from_us(world.tenant._scope.clock.now_us())


# Tool calls


@maker("tool_calls.intend", before="leases.claim")
def _intend(world: World) -> Arguments | None:
    run = _run(world, "running")
    if run is None:
        return None
    calls = [
        NewToolCall(
            id=world.name("call"),
            tool_name="mail",
            tool_input={"text": world.text()},
            safety=world.random.choice(SAFETY),
            hold=world.random.random() < 0.3,
        )
        for _ in range(2)
    ]
    return (run.id,), {"epoch": run.epoch, "calls": calls}


@maker("tool_calls.snooze", before="tool_calls.intend")
def _snooze(world: World) -> Arguments | None:
    for run in world.tenant.runs.list(status="running"):
        for item in world.tenant.tool_calls.pending(run.id):
            if item.call.status == "begun":
                until = _now(world) + timedelta(seconds=30)
                return (run.id, item.call.id), {"epoch": run.epoch, "until": until}
    return None


@maker("tool_calls.allow", before="tool_calls.intend")
def _allow(world: World) -> Arguments | None:
    held = [item for item in _pending(world) if item.call.status == "held"]
    return None if not held else ((held[0].call.run_id, held[0].call.id), {})


@maker("tool_calls.cancel", before="tool_calls.intend")
def _cancel_call(world: World) -> Arguments | None:
    existing = _pending(world)
    return None if not existing else ((existing[-1].call.run_id, existing[-1].call.id), {"reason": "too late"})


@maker("tool_calls.discard", before="tool_calls.intend")
def _discard_call(world: World) -> Arguments | None:
    existing = _pending(world)
    return None if not existing else ((existing[0].call.run_id, existing[0].call.id), {})


def _pending(world: World) -> list[PendingCall]:
    return [item for run in world.tenant.runs.list() for item in world.tenant.tool_calls.pending(run.id)]
