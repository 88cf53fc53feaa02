"""Captures that die at any point: a snapshot is whole or absent, and leftovers are found and removed."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Holdfast, Limits, PackStorage, TenantHandle
from holdfast.drivers.apsw import ApswConnection
from holdfast.errors import NotFound, StorageFull
from tests.workspaces.conftest import SMALL
from tests.workspaces.worlds import World, make, on_disk


class Died(BaseException):
    """The process has died: nothing after this happens."""


class Dying:
    """Dies before or after the n-th thing that is done to the database or to a pack."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.left, self.after, self.is_on = at, after, False

    def before(self) -> None:
        self.left -= self.is_on
        if self.left == 0 and self.is_on and not self.after:
            raise Died

    def done(self) -> None:
        if self.left == 0 and self.is_on and self.after:
            raise Died


class DyingPlace(PackStorage):
    """A place for packs whose user dies."""

    def __init__(self, where: Path, dying: Dying) -> None:
        super().__init__(where)
        self._dying = dying

    async def _do(self, name: str, blocking: bool, *args: Any, **kwargs: Any) -> Any:
        self._dying.before()
        result = await super()._do(name, blocking, *args, **kwargs)
        self._dying.done()
        return result


@pytest.fixture
def two_trees(tmp_path: Path) -> tuple[Path, Path]:
    """A tree, and the same after a step."""
    random = Random(2)
    first = {f"src/{number}.py": random.randbytes(2_000) for number in range(4)}
    make(tmp_path / "one", first)
    make(tmp_path / "two", {**first, "src/1.py": random.randbytes(3_000), "new": random.randbytes(500)})
    return tmp_path / "one", tmp_path / "two"


@pytest.fixture
def begun(tmp_path: Path, two_trees: tuple[Path, Path]) -> tuple[Path, str]:
    """A database with a snapshot of the first tree, and its run."""
    folder = tmp_path / "begun"
    folder.mkdir()
    world = World(str(folder / "w.db"), packs=folder / "packs", limits=SMALL)
    world.capture(two_trees[0], step=1)
    world.close()
    return folder, world.run_id


def die_during_capture(
    folder: Path, run_id: str, tree: Path, dying: Dying, patch: pytest.MonkeyPatch, limits: Limits = SMALL
) -> bool:
    """Die while a tree is captured; return whether that happened."""
    execute = ApswConnection.execute

    def executed(self: ApswConnection, sql: str, args: Any = ()) -> Any:
        dying.before()
        result = execute(self, sql, args)
        dying.done()
        return result

    with Holdfast(str(folder / "w.db"), packs=DyingPlace(folder / "packs", dying), limits=limits) as holdfast:
        patch.setattr(ApswConnection, "execute", executed)
        dying.is_on = True
        try:
            holdfast.tenant("acme").workspaces.capture(run_id, tree, step=2)
        except Died:
            return True
        finally:
            dying.is_on = False
            patch.undo()
    return False


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_death_at_any_point_leaves_a_whole_snapshot_or_none(
    begun: tuple[Path, str],
    two_trees: tuple[Path, Path],
    after: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = set()
    for at in range(1, 200):
        folder = Path(shutil.copytree(begun[0], tmp_path / f"{at}"))
        has_died = die_during_capture(folder, begun[1], two_trees[1], Dying(at, after=after), monkeypatch)
        result.add(check_after_death(folder, two_trees))
        if not has_died:
            assert at > 20, "too few steps were played"
            assert result == {1, 2}
            return
    raise AssertionError("it never came to an end")


def check_after_death(folder: Path, trees: tuple[Path, Path]) -> int:
    """Check that snapshots are whole and usable and leftovers removable; return the number of snapshots."""
    place = PackStorage(folder / "packs")
    world = World(str(folder / "w.db"), packs=place, limits=SMALL)
    acme: TenantHandle = world.acme
    existing = sorted(acme.snapshots.list(), key=lambda snapshot: snapshot.step or 0)
    for snapshot, tree in zip(existing, trees, strict=False):
        assert world.described(snapshot) == on_disk(tree)
    assert acme.objects.verify().damaged == []
    again = world.capture(trees[1], run_id=existing[0].run_id, step=3)
    assert world.described(again.snapshot) == on_disk(trees[1])
    acme.objects.prune(grace_s=0)
    acme.objects.prune(grace_s=0)
    for snapshot, tree in zip([*existing, again.snapshot], [*trees[: len(existing)], trees[1]], strict=True):
        assert world.described(snapshot) == on_disk(tree)
    acme.snapshots.delete([snapshot.id for snapshot in [*existing, again.snapshot]], reason="test")
    check_nothing_is_left(acme, place)
    world.close()
    return len(existing)


def check_nothing_is_left(acme: TenantHandle, place: PackStorage) -> None:
    assert acme.snapshots.usage().layers == 0
    acme.objects.prune(grace_s=0)
    acme.objects.prune(grace_s=0)
    assert acme.objects.usage().stored_bytes == 0
    assert asyncio.run(place.names("", blocking=False)) == []


def test_a_full_disk_leaves_nothing_and_the_next_capture_works(
    tmp_path: Path, two_trees: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(str(tmp_path / "w.db"), packs=tmp_path / "packs", limits=SMALL)
    world.capture(two_trees[0])
    write = PackStorage.write

    async def full(self: PackStorage, path: str, content: bytes, *, blocking: bool) -> None:
        await write(self, path, content[: len(content) // 2], blocking=blocking)
        raise StorageFull

    monkeypatch.setattr(PackStorage, "write", full)
    with pytest.raises(StorageFull):
        world.capture(two_trees[1])
    monkeypatch.undo()
    assert len(world.acme.snapshots.list()) == 1
    captured = world.capture(two_trees[1])
    assert world.described(captured.snapshot) == on_disk(two_trees[1])
    world.acme.objects.prune(grace_s=0)
    assert world.described(captured.snapshot) == on_disk(two_trees[1])
    world.close()


def test_a_pack_removed_before_sealing_is_written_again(tmp_path: Path, two_trees: tuple[Path, Path]) -> None:
    path, packs = str(tmp_path / "w.db"), tmp_path / "packs"

    class Slow(PackStorage):
        turns = 0

        async def write(self, name: str, content: bytes, *, blocking: bool) -> None:
            await super().write(name, content, blocking=blocking)
            self.turns += 1
            if self.turns == 1:
                with Holdfast(path, packs=packs, limits=SMALL) as other:
                    assert other.tenant("acme").objects.prune(grace_s=0).packs == 1

    world = World(path, packs=Slow(packs), limits=SMALL)
    captured = world.capture(two_trees[0])
    assert world.described(captured.snapshot) == on_disk(two_trees[0])
    assert world.acme.objects.verify().damaged == []
    world.close()


def test_captures_deletions_and_prunes_at_once_lose_nothing(url: str, tmp_path: Path) -> None:
    """Several threads write and remove snapshots of similar trees, while another prunes without a grace period."""
    place = tmp_path / "packs"
    worlds = [World(url, packs=place, limits=SMALL) for _ in range(3)]
    shared = {f"shared/{number}": Random(number).randbytes(1_500) for number in range(6)}

    def work(number: int) -> list[tuple[Any, Any]]:
        world, root, random = worlds[number], tmp_path / f"tree {number}", Random(number)
        make(root, shared)
        kept: list[tuple[Any, Any]] = []
        for turn in range(8):
            make(root, {f"{random.randrange(4)}": random.randbytes(1_200), "turn": b"%d" % turn})
            kept.append((world.capture(root).snapshot, on_disk(root)))
            if random.random() < 0.5:
                removed, _ = kept.pop(random.randrange(len(kept)))
                world.acme.snapshots.delete([removed.id], reason="test")
            for snapshot, existing in kept[-2:]:
                assert world.described(snapshot) == existing
        return kept

    with ThreadPoolExecutor(3) as pool:
        working = [pool.submit(work, number) for number in range(2)]
        while not all(future.done() for future in working):
            worlds[2].acme.objects.prune(grace_s=0)
    kept = [pair for future in working for pair in future.result()]
    for snapshot, existing in kept:
        assert worlds[2].described(snapshot) == existing
    worlds[2].acme.snapshots.delete([snapshot.id for snapshot, _ in kept], reason="test")
    check_nothing_is_left(worlds[2].acme, PackStorage(place))
    for world in worlds:
        world.close()


KILLED = """
    import sys
    from pathlib import Path
    from random import Random
    from holdfast import Holdfast, Limits
    root, random = Path(sys.argv[1]) / "tree", Random(int(sys.argv[2]))
    with Holdfast(sys.argv[1] + "/w.db", packs=sys.argv[1] + "/packs", limits=Limits(pack_from_bytes=1_000)) as hf:
        acme = hf.tenant("acme")
        run = acme.runs.start(acme.sessions.create().id)
        for number in range(10_000):
            (root / f"{number % 5}").write_bytes(random.randbytes(4_000))
            print(acme.workspaces.capture(run.id, root, step=number).snapshot.id, flush=True)
"""


def test_killed_processes_keep_acknowledged_snapshots(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    message: list[str] = []
    for turn, count in enumerate((3, 8)):
        command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), str(turn)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            message += [next(process.stdout).strip() for _ in range(count)]
            process.send_signal(signal.SIGKILL)
            message += [line.strip() for line in process.stdout if line.endswith("\n")]
    world = World(str(tmp_path / "w.db"), packs=tmp_path / "packs", limits=SMALL)
    world.acme.objects.prune(grace_s=0)
    assert {snapshot.id for snapshot in world.acme.snapshots.list()} >= set(message)
    for id in message:
        assert all(len(entry[3]) in (0, 4_000) for entry in world.described(id).values())
    assert world.acme.objects.verify().damaged == []
    world.close()


def test_a_removed_run_removes_its_snapshots(url: str, tmp_path: Path, two_trees: tuple[Path, Path]) -> None:
    world = World(url, packs=tmp_path / "packs", limits=SMALL)
    acme: TenantHandle = world.acme
    first = world.capture(two_trees[0]).snapshot
    other = acme.runs.start(acme.sessions.create().id).id
    second = world.capture(two_trees[0], run_id=other).snapshot
    acme.sessions.delete(world.session.id)
    for call in (acme.snapshots.get, acme.snapshots.tree):
        with pytest.raises(NotFound):
            call(first.id)
    assert acme.snapshots.list() == [second]
    acme.sessions.purge(world.session.id)
    assert acme.snapshots.usage().count == 1
    acme.snapshots.collect()
    acme.objects.prune(grace_s=0)
    assert world.described(second) == on_disk(two_trees[0])
    acme.snapshots.delete([second.id], reason="test")
    acme.snapshots.collect()
    check_nothing_is_left(acme, PackStorage(tmp_path / "packs"))
    world.close()
