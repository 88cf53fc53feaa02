"""Makers for what is kept and for how long: the log of what was done."""

from __future__ import annotations

from .workloads import Arguments, World, maker

ACTIONS = ("checkpoint.deleted", "access.denied", "hold.placed")


@maker("activity.record")
def _record(world: World) -> Arguments:
    subject = {"subject_kind": "run", "subject_id": world.name("run")} if world.random.random() < 0.7 else {}
    details = {"text": world.text()} if world.random.random() < 0.5 else {}
    return (world.random.choice(ACTIONS),), {"actor": "ada", "reason": world.text(), "details": details, **subject}
