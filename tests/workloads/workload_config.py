"""Makers for secrets and pairing. ``workloads`` defines a maker."""

from __future__ import annotations

from holdfast.core.crypto import Secret
from tests.workloads.workloads import Arguments, World, maker

SENDERS = 6
"""Few senders and names, so that many calls concern an existing one."""


@maker("secrets.set")
def _set_secret(world: World) -> Arguments:
    return (f"key {world.random.randrange(SENDERS)}", Secret(world.text())), {}


@maker("secrets.get", before="secrets.set")
def _get_secret(world: World) -> Arguments | None:
    return _existing_secret(world)


@maker("secrets.delete", before="secrets.set")
def _delete_secret(world: World) -> Arguments | None:
    return _existing_secret(world)


def _existing_secret(world: World) -> Arguments | None:
    names = world.tenant.secrets.list()
    return ((world.random.choice(names),), {}) if names else None


@maker("pairing.request")
def _request(world: World) -> Arguments:
    sender = f"s{world.random.randrange(SENDERS)}"
    account = world.random.choice(("one", "other"))
    return (sender, "telegram"), {"account": account, "metadata": {"text": world.text()}}


@maker("pairing.approve", before="pairing.request")
def _approve(world: World) -> Arguments | None:
    code = _code(world)
    return None if code is None else ((code,), {"by": "ada"})


@maker("pairing.deny", before="pairing.request")
def _deny(world: World) -> Arguments | None:
    code = _code(world)
    return None if code is None else ((code,), {})


@maker("pairing.revoke", before="pairing.approve")
def _revoke(world: World) -> Arguments | None:
    devices = world.tenant.pairing.paired()
    if not devices:
        return None
    device = world.random.choice(devices)
    return (device.sender, device.channel), {}


def _code(world: World) -> str | None:
    requests = world.tenant.pairing.pending()
    return world.random.choice(requests).code if requests else None
