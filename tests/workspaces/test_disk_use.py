"""Disk use of snapshots: objects that a run no longer needs are freed by the capture that removes their snapshot."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Holdfast, Limits, PackStorage
from holdfast.stores.workspace.squash import Squasher
from tests.workspaces.test_capture_crashes import Dying, check_nothing_is_left, die_during_capture
from tests.workspaces.worlds import World, make, on_disk

CAPTURES, SIZE, KEPT, BOUND = 30, 300_000, 10, 15


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0


@pytest.mark.parametrize("with_packs", [True, False], ids=["packs", "database"])
@pytest.mark.parametrize("way", ["one file", "many files", "new names"])
def test_objects_are_freed_by_the_capture_that_removes_their_snapshot(
    url: str, tmp_path: Path, with_packs: bool, way: str
) -> None:
    random, root = Random(7), tmp_path / "tree"
    (tmp_path / "empty").mkdir()
    Holdfast(str(tmp_path / "empty" / "a.db")).close()
    limits = Limits(snapshots_per_run=KEPT, pack_from_bytes=1_000 if with_packs else 10**9)
    world = World(url, limits=limits, packs=tmp_path / "packs")
    make(root, {"README": b"stays"})
    last = []
    for number in range(CAPTURES):
        if way == "new names":
            shutil.rmtree(root)
        parts = 1 if way != "many files" else 30
        name = f"{number}-" if way == "new names" else ""
        make(root, {f"{name}{part}": random.randbytes(SIZE // parts) for part in range(parts)})
        last = [*last[1 - KEPT :], (world.capture(root, step=number).snapshot, on_disk(root))]
        used = world.acme.objects.usage()
        assert used.stored_bytes < BOUND * SIZE, number
        assert bytes_in(tmp_path / "packs") < BOUND * SIZE, number
    if with_packs:
        assert bytes_in(tmp_path / "packs") > KEPT * SIZE * 0.9, "the packs are in that directory"
    assert world.acme.snapshots.usage().count == KEPT
    assert world.acme.objects.verify().damaged == []
    for snapshot, existing in last:
        assert world.described(snapshot) == existing
    world.close()
    if "://" not in url:
        empty = bytes_in(tmp_path / "empty")
        assert bytes_in(tmp_path) - bytes_in(root) - 2 * empty < BOUND * SIZE, "everything, after a WAL checkpoint"


def test_small_changes_do_not_store_a_large_tree_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squashed: list[Any] = []
    squash = Squasher._squash

    async def counted(self: Squasher, *args: Any, **kwargs: Any) -> int:
        squashed.append(args)
        return await squash(self, *args, **kwargs)

    monkeypatch.setattr(Squasher, "_squash", counted)
    random, root = Random(7), tmp_path / "tree"
    world = World(str(tmp_path / "w.db"), limits=Limits(snapshots_per_run=2))
    make(root, {f"{number}": random.randbytes(2_000) for number in range(100)})
    for number in range(30):
        make(root, {f"{number}": random.randbytes(2_000)})
        world.capture(root, step=number)
    assert len(squashed) <= 30 * 8 // 100 + 1
    world.close()


FEW = Limits(pack_from_bytes=1_000, snapshots_per_run=2)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_death_while_freeing_leaves_whole_snapshots_and_no_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    random, begun, root = Random(7), tmp_path / "begun", tmp_path / "tree"
    begun.mkdir()
    world = World(str(begun / "w.db"), packs=begun / "packs", limits=FEW)
    then = {}
    for number in range(2):
        make(root, {f"{part}": random.randbytes(2_000) for part in range(number, 3)})
        then[world.capture(root, step=number).snapshot.id] = on_disk(root)
    world.close()
    make(root, {"0": random.randbytes(2_000), "2": random.randbytes(2_000)})
    for at in range(1, 400):
        folder = Path(shutil.copytree(begun, tmp_path / f"{at}"))
        has_died = die_during_capture(folder, world.run_id, root, Dying(at, after=after), monkeypatch, FEW)
        place = PackStorage(folder / "packs")
        heir = World(str(folder / "w.db"), packs=place, limits=FEW)
        existing = {snapshot.id: snapshot for snapshot in heir.acme.snapshots.list(run_id=world.run_id)}
        assert len(existing) == 2, at
        for id in existing:
            assert heir.described(id) == then.get(id, on_disk(root)), at
        assert heir.acme.objects.verify().damaged == []
        heir.capture(root, run_id=world.run_id)
        heir.acme.snapshots.delete([snapshot.id for snapshot in heir.acme.snapshots.list()], reason="test")
        check_nothing_is_left(heir.acme, place)
        heir.close()
        shutil.rmtree(folder)
        if not has_died:
            assert at > 60, "too few steps were played"
            return
    raise AssertionError("it never came to an end")


def test_concurrent_captures_free_nothing_another_run_needs(url: str, tmp_path: Path) -> None:
    """Their trees consist of the same few bodies, so what one run lets go of is what another is about to hold."""
    bodies = [Random(number).randbytes(1_500) for number in range(5)]
    worlds = [World(url, packs=tmp_path / "packs", limits=FEW) for _ in range(3)]

    def work(number: int) -> list[tuple[Any, Any]]:
        world, root, random = worlds[number], tmp_path / f"tree {number}", Random(number)
        kept: list[tuple[Any, Any]] = []
        for turn in range(10):
            make(root, {f"{part}": random.choice(bodies) for part in range(2)} | {"turn": b"%d" % turn})
            kept = [*kept[-1:], (world.capture(root).snapshot, on_disk(root))]
            for snapshot, existing in kept:
                assert world.described(snapshot) == existing
        return kept

    with ThreadPoolExecutor(3) as pool:
        kept = [pair for future in [pool.submit(work, number) for number in range(3)] for pair in future.result()]
    for snapshot, existing in kept:
        assert worlds[0].described(snapshot) == existing
    assert worlds[0].acme.objects.verify().damaged == []
    worlds[0].acme.snapshots.delete([snapshot.id for snapshot, _ in kept], reason="test")
    check_nothing_is_left(worlds[0].acme, PackStorage(tmp_path / "packs"))
    for world in worlds:
        world.close()
