"""Snapshots whose content is stored in packs, in a directory and on S3."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from random import Random

import pytest

from holdfast import AsyncHoldfast, Limits, PackStorage
from holdfast.errors import Corrupt, PackStorageMissing, Unavailable
from tests.stores.objects.conftest import SMALL, Opens
from tests.workspaces.worlds import World, make, on_disk

RANDOM = Random(11)
FILES = {f"src/{number}": RANDOM.randbytes(3_000) for number in range(5)} | {"large": RANDOM.randbytes(2_500_000)}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    make(tmp_path / "tree", FILES)
    return tmp_path / "tree"


def test_content_is_stored_in_packs_and_restored(address: str, place: PackStorage, tree: Path) -> None:
    world = World(address, packs=place, limits=SMALL)
    first = world.capture(tree).snapshot
    original = on_disk(tree)
    make(tree, {"src/1": RANDOM.randbytes(5_000), "new": b"small"})
    second = world.capture(tree).snapshot
    assert world.acme.objects.usage().packs == 2
    assert world.described(first) == original
    assert world.described(second) == on_disk(tree)
    world.acme.snapshots.delete([first.id], reason="test")
    world.acme.objects.prune(grace_s=0)
    world.acme.objects.prune(grace_s=0)
    assert world.described(second) == on_disk(tree)
    world.acme.snapshots.delete([second.id], reason="test")
    world.acme.objects.prune(grace_s=0)
    world.acme.objects.prune(grace_s=0)
    assert asyncio.run(place.names("", blocking=False)) == []
    world.close()


def test_content_is_stored_in_packs_from_an_event_loop(address: str, place: PackStorage, tree: Path) -> None:
    world = World(address, packs=place, limits=SMALL, is_async=True)
    snapshot = world.capture(tree).snapshot
    assert world.described(snapshot) == on_disk(tree)
    assert world.do(world.acme.objects.usage()).packs == 1
    world.close()


def test_a_flipped_bit_is_detected_when_a_file_is_read(tmp_path: Path, tree: Path) -> None:
    world = World(str(tmp_path / "a.db"), limits=SMALL)
    snapshot = world.capture(tree).snapshot
    (pack,) = [path for path in (tmp_path / "a.db.packs").rglob("*") if path.is_file()]
    whole = bytearray(pack.read_bytes())
    for offset in range(100, len(whole), len(whole) // 20):
        whole[offset] ^= 4
        pack.write_bytes(whole)
        with pytest.raises(Corrupt):
            [world.acme.snapshots.read(snapshot.id, path) for path in FILES]
        whole[offset] ^= 4
    pack.unlink()
    with pytest.raises(Corrupt, match=pack.name):
        world.acme.snapshots.read(snapshot.id, "large")
    world.close()


def test_an_unreachable_pack_storage_leaves_no_snapshot(tmp_path: Path, tree: Path) -> None:
    unreachable = {"config": {"aws_endpoint": "http://127.0.0.1:9", "aws_region": "us-east-1", "aws_access_key_id": "x",
                              "aws_secret_access_key": "x"},
                   "client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}  # fmt: skip
    world = World(str(tmp_path / "a.db"), packs=PackStorage("s3://missing/packs", unreachable), limits=SMALL)
    with pytest.raises(Unavailable):
        world.capture(tree)
    assert world.acme.snapshots.list() == []
    assert world.acme.objects.usage().count == 0
    world.close()


def open_files() -> list[str]:
    """Return the paths of the files that this process has open."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if link.is_symlink()]


def test_a_cancelled_capture_leaves_no_snapshot(tmp_path: Path, tree: Path) -> None:
    async def cancelled() -> int:
        async with AsyncHoldfast(str(tmp_path / "a.db"), limits=Limits(pack_from_bytes=1_000)) as holdfast:
            acme = holdfast.tenant("acme")
            run = await acme.runs.start((await acme.sessions.create()).id)
            for turns in (0, 1, 3, 5, 8, 13, 40):
                capture = asyncio.create_task(acme.workspaces.capture(run.id, tree))
                for _ in range(turns):
                    await asyncio.sleep(0)
                is_cancelled = capture.cancel()
                await asyncio.wait([capture])
                assert capture.cancelled() or not is_cancelled
                assert [path for path in open_files() if path.startswith(str(tree))] == []
            for snapshot in await acme.snapshots.list():
                assert (await acme.snapshots.tree(snapshot.id)).entries.keys() >= FILES.keys()
            last = (await acme.workspaces.capture(run.id, tree)).snapshot
            await acme.objects.prune(grace_s=0)
            return len((await acme.snapshots.tree(last.id)).entries)

    assert asyncio.run(cancelled()) == len(FILES) + 1


def test_files_in_packs_cannot_be_read_without_pack_storage(
    opens: Opens, address: str, tmp_path: Path, tree: Path
) -> None:
    world = World(address, packs=tmp_path / "packs", limits=SMALL)
    snapshot = world.capture(tree).snapshot
    world.close()
    with pytest.raises(PackStorageMissing):
        opens(None).tenant("acme").snapshots.read(snapshot.id, "large")
