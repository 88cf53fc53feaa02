"""Makers for the context files and the profiles of agents. ``workloads`` defines a maker."""

from __future__ import annotations

from holdfast.stores.agents.agents import Agent
from holdfast.stores.agents.context_files import USER_FILE
from tests.workloads.workloads import Arguments, World, maker

FILES = ("SOUL.md", USER_FILE)
USERS = ("ada", "ben")


@maker("context_files.set", before="agents.create")
def _set(world: World) -> Arguments | None:
    """Usually the agent's own file, so that there are templates."""
    agent = _agent(world)
    user = {"user": world.random.choice(USERS)} if world.random.random() < 0.4 else {}
    return None if agent is None else ((agent.id, world.random.choice(FILES), world.text()), user)


@maker("context_files.delete", before="context_files.set")
def _delete(world: World) -> Arguments | None:
    files = [file for agent in world.tenant.agents.list() for file in world.tenant.context_files.list(agent.id)]
    if not files:
        return None
    file = world.random.choice(files)
    return (file.agent, file.file_name), {}


@maker("context_files.seed", before="context_files.set")
def _seed(world: World) -> Arguments | None:
    """Usually for a user who has no copies yet."""
    files = [file for agent in world.tenant.agents.list() for file in world.tenant.context_files.list(agent.id)]
    templates = [file.agent for file in files if file.file_name == USER_FILE]
    user = world.random.choice((*USERS, *(f"user {number}" for number in range(20))))
    return ((world.random.choice(templates), user), {}) if templates else None


@maker("profiles.get_or_create", before="agents.create")
def _visit(world: World) -> Arguments | None:
    agent = _agent(world)
    if agent is None:
        return None
    more = {"workspace": "/ws", "channel": "telegram", "seed": world.random.random() < 0.5}
    return (agent.id, world.random.choice(USERS)), more


def _agent(world: World) -> Agent | None:
    agents = world.tenant.agents.list()
    return world.random.choice(agents) if agents else None
