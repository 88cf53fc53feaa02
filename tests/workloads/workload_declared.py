"""Makers for declared resources. ``workloads`` defines a maker."""

from __future__ import annotations

from typing import Any

from holdfast import NewAgent
from holdfast.encryption import Secret
from holdfast.types import NewMcpServer, NewModel, NewProvider, ResourceToApply
from tests.workloads.workloads import Arguments, World, maker

NAMES = 4
"""Few names, so that calls concern the same resources."""


@maker("declared.apply")
def _apply(world: World) -> Arguments:
    """Apply some of the resources of a source, and delete the others."""
    numbers = world.random.sample(range(NAMES), world.random.randrange(NAMES))
    resources = [resource for number in numbers for resource in _resources(world, number)]
    prune = world.random.choice([(), ("Agent", "MCPServer", "ModelConfig")])
    return (resources,), {"source": "workload", "prune": prune, "take_over": True}


def _resources(world: World, number: int) -> list[ResourceToApply]:
    text = world.name("text")
    provider = NewProvider(name=f"declared {number}", settings={"text": text}, api_key=Secret(text))
    model = NewModel(provider=provider.name, name=f"model {number}", is_default=True)
    server = NewMcpServer(name=f"declared {number}", transport="sse", url="https://example.com", description=text)
    agent = NewAgent(id=f"declared-{number}", system=text)
    common: dict[str, Any] = {"namespace": "workload", "name": str(number), "spec": {"text": text}}
    return [
        ResourceToApply(kind="ModelConfig", secrets=Secret({"key": text}), rows=[provider, model], **common),
        ResourceToApply(kind="MCPServer", rows=[server], **common),
        ResourceToApply(kind="Agent", rows=[agent], **common),
    ]


@maker("declared.remove", before="declared.apply")
def _remove(world: World) -> Arguments | None:
    rows = world.tenant.declared.list()
    return (([world.random.choice(rows).ref],), {}) if rows else None
