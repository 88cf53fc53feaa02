"""Makers for checkpoints and objects: threads grow, are forked, copied and pruned, with pieces of all sizes."""

from __future__ import annotations

from holdfast.stores.execution.checkpoints.reader import Checkpoint
from holdfast.stores.execution.checkpoints.task_writes import Write
from tests.workloads.workloads import Arguments, World, maker

THREADS = ("chat", "work", "copy")


@maker("checkpoints.put")
def _put(world: World) -> Arguments:
    """Usually the next step of a thread with one more piece; sometimes a fork or a new thread."""
    thread = world.random.choice((*THREADS, *THREADS[:1] * 2))
    checkpoints = world.tenant.checkpoints.list(thread, namespace="")
    parent = world.random.choice([*checkpoints[:1] * 4, *checkpoints]) if checkpoints else None
    initial = list(range(1, 3)) if parent and parent.positions and parent.positions[0][1] >= 2 else []
    kwargs = {
        "id": world.name(f"{len(checkpoints):04}"),
        "parent": parent.id if parent else None,
        "state": world.text().encode()[:300],
        "pieces": [*initial, *_pieces(parent), *_bodies(world)],
        "stamp": parent.stamp if parent else None,
        "metadata": {"step": len(checkpoints), "run_id": f"run-{len(checkpoints) // 3}"},
        "leans": ["messages"] if parent and world.random.random() < 0.3 else [],
    }
    return (thread,), kwargs


@maker("checkpoints.put_writes")
def _put_writes(world: World) -> Arguments:
    thread = world.random.choice(THREADS)
    existing = _some(world, thread)
    new = [
        Write(0, "messages", b"", _bodies(world)),
        Write(1, "n", world.text().encode()[:50]),
        Write(-1, "__error__", world.text().encode()[:50]),
    ]
    kwargs = {
        "id": existing.id if existing else "0000",
        "task_id": world.random.choice("abc"),
        "task_path": "~a",
        "new": new,
    }
    return (thread,), kwargs


@maker("checkpoints.copy")
def _copy(world: World) -> Arguments | None:
    existing = [thread for thread in THREADS if _some(world, thread)]
    return ((world.random.choice(existing), world.name("copy")), {}) if existing else None


@maker("checkpoints.prune")
def _prune(world: World) -> Arguments:
    return (list(THREADS[:2]),), {"keep": world.random.choice((1, 1, 2))}


@maker("checkpoints.delete_runs")
def _delete_runs(world: World) -> Arguments:
    return ([f"run-{world.random.randrange(4)}"],), {}


@maker("checkpoints.delete")
def _delete(world: World) -> Arguments:
    threads = sorted(
        {checkpoint.thread_id for checkpoint in world.tenant.checkpoints.list(limit=50)} - set(THREADS[:2])
    )
    return (world.random.choice(threads or ["nothing"]),), {}


@maker("objects.put")
def _put_objects(world: World) -> Arguments:
    contents = [world.random.randbytes(world.random.choice((10, 9_000))), world.text().encode()]
    return (contents,), {"holder": world.random.choice(("ada", "grace"))}


@maker("objects.release")
def _release(world: World) -> Arguments:
    return (world.random.choice(("ada", "grace")),), {}


@maker("objects.prune")
def _prune_objects(world: World) -> Arguments:
    return (), {"grace_s": world.random.choice((0, 0, 60))}


def _some(world: World, thread: str) -> Checkpoint | None:
    checkpoints = world.tenant.checkpoints.list(thread, namespace="")
    return world.random.choice(checkpoints) if checkpoints else None


def _pieces(parent: Checkpoint | None) -> list[bytes]:
    return [piece for piece in parent.pieces if piece is not None][-5:] if parent else []


def _bodies(world: World) -> list[bytes]:
    """One or two bodies: usually text, sometimes incompressible data that is stored as an object."""
    large = [world.random.randbytes(9_000)] if world.random.random() < 0.2 else []
    return [world.text().encode(), *large]
