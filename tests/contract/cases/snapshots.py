"""Snapshots: a directory is captured, read and removed, on any engine."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.errors import InvalidFilter, InvalidInput, NotFound
from holdfast.stores.workspace.snapshot_rows import Snapshot
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of

_PACKAGE = Path(holdfast.__file__).parent
TREE, OTHER = _PACKAGE / "engines" / "sqlite", _PACKAGE / "engines" / "postgres"
"""Directories that no process changes."""


async def started(acme: AsyncTenantHandle) -> str:
    """A run to capture for."""
    return (await acme.runs.start((await acme.sessions.create()).id)).id


async def taken(acme: AsyncTenantHandle, world: World, run_id: str, tree: Path, step: int) -> Snapshot:
    """A snapshot, later than those before."""
    world.clock.advance(1)
    return (await acme.workspaces.capture(run_id, tree, step=step)).snapshot


@contract()
async def a_captured_tree_is_read_back(world: World) -> None:
    acme = world.tenant()
    run_id = await started(acme)
    captured = await acme.workspaces.capture(run_id, TREE, step=1)
    tree = await acme.snapshots.tree(captured.snapshot.id)
    existing = sorted(path.name for path in TREE.iterdir() if path.name != "__pycache__")
    assert sorted(tree.entries) == existing
    assert captured.snapshot.entry_count == captured.changed == len(existing)
    assert captured.snapshot.tree_bytes == sum((TREE / name).stat().st_size for name in existing)
    for name in existing[:3]:
        assert await acme.snapshots.read(captured.snapshot.id, name) == (TREE / name).read_bytes()
    for call in (acme.snapshots.get, acme.snapshots.tree):
        with raises(NotFound):
            await call(uuid_of("nothing"))
    with raises(NotFound, noun="file", key="nothing"):
        await acme.snapshots.read(captured.snapshot.id, "nothing")


@contract()
async def snapshots_are_listed_from_the_newest_on(world: World) -> None:
    acme = world.tenant()
    run_id, other = await started(acme), await started(acme)
    made = [await taken(acme, world, run_id, (TREE, OTHER)[step % 2], step) for step in range(4)]
    theirs = await taken(acme, world, other, TREE, 1)
    assert await acme.snapshots.list() == [theirs, *reversed(made)]
    assert await acme.snapshots.list(run_id=run_id) == made[::-1]
    assert await acme.snapshots.list(step=1) == [theirs, made[1]]
    assert await acme.snapshots.list(kind="dirty") == []
    first = await acme.snapshots.list(run_id=run_id, limit=3)
    assert [*first, *await acme.snapshots.list(run_id=run_id, limit=3, cursor=first.next)] == made[::-1]
    assert await acme.snapshots.find(run_id) == made[3]
    assert await acme.snapshots.find(run_id, step=2) == made[2]
    assert await acme.snapshots.find(run_id, step=7) is None
    for bad in ("nonsense", (await acme.sessions.list(limit=1)).next):
        with raises(InvalidFilter):
            await acme.snapshots.list(cursor=bad or "")
    with raises(InvalidInput):
        await acme.snapshots.list(kind="nonsense")  # type: ignore[arg-type]


@contract()
async def layers_needed_by_others_survive_a_deletion(world: World) -> None:
    acme = world.tenant()
    run_id = await started(acme)
    base = await taken(acme, world, run_id, TREE, 1)
    again = await taken(acme, world, run_id, TREE, 2)
    other = (await acme.workspaces.capture_upper(run_id, OTHER, base=base.id, step=3)).snapshot
    before = {snapshot.id: await acme.snapshots.tree(snapshot.id) for snapshot in (again, other)}
    with raises(InvalidInput, field="reason"):
        await acme.snapshots.delete([base.id], reason="")
    assert await acme.snapshots.delete([base.id, uuid_of("nothing")], reason="too old") == [base]
    assert await acme.snapshots.delete([base.id], reason="too old") == []
    (noted,) = await acme.activity.list(subject_kind="snapshot")
    assert (noted.action, noted.subject_id, noted.reason) == ("checkpoint.deleted", base.id, "too old")
    await acme.objects.prune(grace_s=0)
    await acme.objects.prune(grace_s=0)
    for id, tree in before.items():
        assert await acme.snapshots.tree(id) == tree
    name = sorted(path.name for path in OTHER.glob("*.py"))[0]
    assert await acme.snapshots.read(other.id, name) == (OTHER / name).read_bytes()
    await acme.snapshots.delete([again.id, other.id], reason="too old")
    assert (await acme.snapshots.usage()).layers == 0
    await acme.objects.prune(grace_s=0)
    await acme.objects.prune(grace_s=0)
    assert (await acme.objects.usage()).stored_bytes == 0
