"""Makers for the data of other frameworks' agents: A2A tasks, shares and expiring memories."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast.stores.memory.agent_memories import NewAgentMemory
from tests.workloads.workloads import Arguments, World, maker

TASKS = ("task-1", "task-2", "task-3")
AGENTS = ("helper", "writer")


@maker("a2a_tasks.save")
def _save(world: World) -> Arguments:
    """Return a task that is longer or shorter than before."""
    id = world.random.choice(TASKS)
    a2a_task = world.tenant.a2a_tasks.find(id)
    history: list[Any] = [] if a2a_task is None else list(a2a_task.task["history"])[-world.random.randrange(1, 6) :]
    parts = [{"kind": "text", "text": world.text()} for _ in range(world.random.randrange(3))]
    task = {
        "id": id,
        "history": [*history, {"messageId": str(len(history)), "parts": [{"text": world.text()}]}],
        "artifacts": [{"artifactId": "a", "parts": parts}] if parts else None,
    }
    return (id, task), {"context_id": world.text() or "c", "state": world.random.choice(("working", "completed"))}


@maker("a2a_tasks.delete", before="a2a_tasks.save")
def _delete(world: World) -> Arguments | None:
    a2a_tasks = world.tenant.a2a_tasks.list()
    return ((world.random.choice(a2a_tasks).id,), {}) if a2a_tasks else None


@maker("a2a_tasks.restore", before="a2a_tasks.delete")
def _restore(world: World) -> Arguments:
    return (world.random.choice(TASKS),), {}


@maker("a2a_tasks.purge", before="a2a_tasks.save")
def _purge(world: World) -> Arguments:
    return (world.random.choice((*TASKS, "absent")),), {}


@maker("a2a_push_configs.clear", before="a2a_push_configs.upsert")
def _clear_configs(world: World) -> Arguments | None:
    a2a_push_configs = world.tenant.a2a_push_configs.list()
    return (
        ((a2a_push_configs[0].task_id,), {"user": a2a_push_configs[0].user, "id": world.random.choice((None, "other"))})
        if a2a_push_configs
        else None
    )


@maker("session_shares.create", before="sessions.create")
def _share(world: World) -> Arguments | None:
    sessions = world.tenant.sessions.list()
    token = f"{world.random.getrandbits(128):032x}"
    read_only = world.random.random() < 0.5
    return (
        ((world.random.choice(sessions).id,), {"token": token, "read_only": read_only, "shows_token": True})
        if sessions
        else None
    )


@maker("session_shares.use", before="session_shares.create")
def _use(world: World) -> Arguments | None:
    token = _token(world)
    return None if token is None else ((token[1],), {"user": world.random.choice(("ada", "bob"))})


@maker("session_shares.delete", before="session_shares.create")
def _unshare(world: World) -> Arguments | None:
    token = _token(world)
    return None if token is None else ((token[0],), {"token": token[1]})


@maker("agent_memories.add")
def _remember(world: World) -> Arguments:
    new = [
        NewAgentMemory(
            content=world.text(),
            embedding=[world.random.random() for _ in range(4)],
            metadata={"text": world.text()},
            ttl_days=world.random.choice((None, 1)),
        )
        for _ in range(2)
    ]
    return (new,), {"agent": world.random.choice(AGENTS)}


@maker("agent_memories.search", before="agent_memories.add")
def _search(world: World) -> Arguments:
    return ([1.0, 0.5, 0.0, 0.25],), {"agent": "helper", "limit": 2}


@maker("agent_memories.delete", before="agent_memories.add")
def _forget(world: World) -> Arguments:
    return (), {"agent": world.random.choice(AGENTS)}


@maker("agent_memories.prune", before="agent_memories.add")
def _prune(world: World) -> Arguments | None:
    """Expire rows as of two days later: rows with a lifetime of one day are deleted, the others remain."""
    existing = [memory for agent in AGENTS for memory in world.tenant.agent_memories.list(agent=agent)]
    return ((), {"by": max(item.created_at for item in existing) + timedelta(days=2)}) if existing else None


def _token(world: World) -> tuple[str, str] | None:
    """Return the session and the token of a share."""
    for session in world.tenant.sessions.list():
        if links := world.tenant.session_shares.list(session.id):
            return session.id, world.random.choice(links).token or ""
    return None
