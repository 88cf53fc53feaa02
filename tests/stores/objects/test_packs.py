"""Large objects in packs: stored, read, pruned and verified like objects in the database."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from holdfast import AsyncHoldfast, Holdfast, Limits, PackStorage
from holdfast.clock import FixedClock
from holdfast.errors import InvalidInput, LimitExceeded, NotFound, PackStorageMissing, Unavailable
from holdfast.stores.execution.checkpoints.task_writes import Write
from tests.errors import raises
from tests.stores.objects.conftest import SMALL, Opens

SOURCE = Random(5)
SHORT = b"a short one"
LARGE, OTHER, THIRD = (SOURCE.randbytes(size) for size in (5_000, 3_000, 20_000))


def files(place: PackStorage) -> list[str]:
    """Return the paths of all packs."""
    return asyncio.run(place.names("", blocking=False))


def test_large_bodies_are_stored_in_one_pack(opens: Opens, place: PackStorage) -> None:
    objects = opens(place).tenant("acme").objects
    digests = objects.put([SHORT, LARGE, OTHER, LARGE], holder="me")
    assert len(files(place)) == 1
    assert objects.get([digests[2], digests[0], digests[1]]) == [OTHER, SHORT, LARGE]
    usage = objects.usage()
    assert (usage.count, usage.size_bytes, usage.packs) == (3, len(SHORT + LARGE + OTHER), 1)
    assert objects.verify().damaged == []
    objects.put([LARGE, OTHER], holder="another")
    assert len(files(place)) == 1, "stored bodies are not written again"


def test_another_handle_and_asyncio_read_the_same_objects(opens: Opens, address: str, place: PackStorage) -> None:
    (digest,) = opens(place).tenant("acme").objects.put([LARGE], holder="me")

    async def both() -> None:
        async with AsyncHoldfast(address, packs=place, limits=SMALL) as holdfast:
            objects = holdfast.tenant("acme").objects
            assert await objects.get([digest]) == [LARGE]
            more = await objects.put([OTHER, THIRD], holder="you")
            assert await objects.get(more) == [OTHER, THIRD]
            assert (await objects.verify()).count == 3
            await objects.release("you")
            assert (await objects.prune(grace_s=0)).packs == 1

    asyncio.run(both())
    assert len(files(place)) == 1


def test_a_pack_is_removed_with_its_last_object(opens: Opens, place: PackStorage) -> None:
    clock = FixedClock()
    objects = opens(place, clock=clock).tenant("acme").objects
    one, other = objects.put([LARGE, OTHER], holder="a")
    objects.put([OTHER], holder="b")
    objects.release("a")
    assert objects.prune().packs == 0
    clock.advance(3_600)
    pruned = objects.prune()
    assert (pruned.removed, pruned.removed_bytes, pruned.packs) == (1, len(LARGE), 1)
    assert len(files(place)) == 1, "less than half of it was used, so it was rewritten"
    assert objects.get([other]) == [OTHER]
    assert objects.verify().damaged == []
    with raises(NotFound, noun="object", key=one):
        objects.get([one])
    objects.release("b")
    objects.prune(grace_s=0)
    assert (files(place), objects.usage().packs) == ([], 0)


def test_pieces_of_checkpoints_are_stored_in_packs(opens: Opens, place: PackStorage) -> None:
    acme = opens(place).tenant("acme")
    big, written = SOURCE.randbytes(30_000), SOURCE.randbytes(12_000)
    acme.checkpoints.put("t", id="1", state=b"s", pieces=[SHORT, big])
    acme.checkpoints.put_writes("t", id="1", task_id="x", new=[Write(0, "c", b"v", [written, SHORT])])
    acme.checkpoints.put("t", id="2", parent="1", state=b"s", pieces=[big, SHORT])
    assert len(files(place)) == 2
    checkpoint = acme.checkpoints.find("t", id="1")
    assert checkpoint is not None
    assert (list(checkpoint.pieces), checkpoint.tasks[0].writes[0].pieces) == ([SHORT, big], (written, SHORT))
    assert [list(listed.pieces) for listed in acme.checkpoints.list("t")] == [[big, SHORT], [SHORT, big]]
    assert [list(listed.pieces) for listed in acme.checkpoints.history("t", id="2")] == [[big, SHORT], [SHORT, big]]
    acme.checkpoints.delete("t")
    assert acme.objects.prune(grace_s=0).removed == 2
    assert files(place) == []


def test_a_tenants_packs_are_removed_with_it(opens: Opens, place: PackStorage) -> None:
    holdfast = opens(place)
    for name in ("acme", "../acme", "zenith"):
        holdfast.tenant(name).objects.put([LARGE], holder="me")
    folders = {path.split("/")[0] for path in files(place)}
    assert (len(files(place)), len(folders)) == (3, 3)
    holdfast.tenants.delete("../acme", cascade=True)
    assert len(files(place)) == 2
    assert holdfast.tenant("zenith").objects.verify() == holdfast.tenant("acme").objects.verify()


def test_quotas_are_counted_in_stored_bytes(opens: Opens, place: PackStorage) -> None:
    limits = Limits(pack_from_bytes=1_000, object_bytes=9_000)
    holdfast = opens(place, limits=limits)
    objects = holdfast.tenant("acme").objects
    objects.put([LARGE, b"z" * 100_000], holder="me")
    assert objects.usage().stored_bytes < 6_000
    for _ in range(2):
        with raises(LimitExceeded, limit="object_bytes", maximum=9_000):
            objects.put([SOURCE.randbytes(4_500)], holder="you")
        with raises(LimitExceeded, limit="object_bytes"):
            holdfast.tenant("acme").checkpoints.put("t", id="1", state=b"", pieces=[SOURCE.randbytes(9_500)])
    assert (objects.usage().count, objects.release("you")) == (2, 0)
    assert holdfast.tenant("acme").checkpoints.find("t") is None
    objects.put([LARGE, OTHER], holder="you")
    holdfast.tenant("zenith").objects.put([OTHER, LARGE], holder="theirs")
    objects.release("me")
    objects.release("you")
    objects.prune(grace_s=0)
    assert objects.usage().stored_bytes == 0
    objects.put([SOURCE.randbytes(8_000)], holder="you")
    assert len(files(place)) == 2, "packs that no object needs are removed"


def test_without_pack_storage_checkpoints_in_packs_cannot_be_read(opens: Opens, tmp_path: Path) -> None:
    with_packs = opens(tmp_path / "p").tenant("acme").checkpoints
    with_packs.put("small", id="1", state=b"", pieces=[SHORT])
    with_packs.put("large", id="1", state=b"", pieces=[SHORT, THIRD])
    with_packs.put("written", id="1", state=b"", pieces=[SHORT])
    with_packs.put_writes("written", id="1", task_id="x", new=[Write(0, "c", b"", [THIRD])])
    checkpoints = opens(None).tenant("acme").checkpoints
    checkpoint = checkpoints.find("small")
    assert checkpoint is not None
    assert checkpoint.pieces == [SHORT]
    for thread in ("large", "written"):
        for call in (checkpoints.find, checkpoints.history, checkpoints.list):
            with pytest.raises(PackStorageMissing):
                call(thread)


def test_without_pack_storage_objects_in_packs_cannot_be_read(opens: Opens, tmp_path: Path) -> None:
    large, small = opens(tmp_path / "p").tenant("acme").objects.put([LARGE, SHORT], holder="me")
    objects = opens(None).tenant("acme").objects
    assert objects.get([small]) == [SHORT]
    with pytest.raises(PackStorageMissing):
        objects.get([large])
    with pytest.raises(PackStorageMissing):
        objects.verify()
    objects.put([LARGE], holder="also")
    objects.release("me")
    objects.prune(grace_s=0)
    assert opens(str(tmp_path / "p")).tenant("acme").objects.get([large]) == [LARGE]


def test_in_a_joined_transaction_bodies_are_stored_in_the_database(tmp_path: Path) -> None:
    import apsw

    with Holdfast(str(tmp_path / "a.db"), packs=tmp_path / "p", limits=SMALL) as holdfast:
        acme = holdfast.tenant("acme")
        (before,) = acme.objects.put([OTHER], holder="me")
        connection = apsw.Connection(str(tmp_path / "a.db"))
        connection.execute("BEGIN IMMEDIATE")
        joined = acme.join(connection).objects
        (digest,) = joined.put([LARGE], holder="me")
        assert joined.get([digest, before]) == [LARGE, OTHER]
        connection.execute("ROLLBACK")
        connection.close()
        assert acme.objects.has([digest]) == [False]
        assert acme.objects.prune(grace_s=0).packs == 0


@pytest.mark.parametrize("where", ["", "ftp://host/folder", "s3://", 7, None])
def test_an_invalid_pack_storage_is_refused(where: object) -> None:
    with raises(InvalidInput, field="packs"):
        PackStorage(where)  # type: ignore[arg-type]


def test_an_unreachable_server_is_unavailable(tmp_path: Path) -> None:
    keys = {"aws_region": "x", "aws_access_key_id": "x", "aws_secret_access_key": "x"}
    options = {
        "config": {"aws_endpoint": "http://127.0.0.1:9", **keys},
        "client_options": {"allow_http": True},
        "retry_config": {"max_retries": 0},
    }  # fmt: skip
    place = PackStorage("s3://bucket/folder", options)
    with Holdfast(str(tmp_path / "a.db"), packs=place, limits=SMALL) as holdfast:
        objects = holdfast.tenant("acme").objects
        with pytest.raises(Unavailable, match="packs"):
            objects.put([LARGE], holder="me")
        assert objects.usage().count == 0
        objects.put([SHORT], holder="me")


def test_the_library_is_loaded_only_if_packs_are_used() -> None:
    code = "import sys, holdfast; holdfast.Holdfast(':memory:').close(); print('obstore' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "False\n"
    missing = "import sys; sys.modules['obstore'] = None; import holdfast; holdfast.Holdfast(':memory:', packs='p')"
    process = subprocess.run([sys.executable, "-c", missing], capture_output=True, text=True, check=False)
    assert "pip install 'holdfast[packs]'" in process.stderr


def test_a_pack_and_its_directories_are_flushed_before_a_row_refers_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with Holdfast(str(tmp_path / "a.db"), packs=tmp_path / "new" / "packs", limits=SMALL) as holdfast:
        holdfast.tenant("acme").objects.put([LARGE], holder="me")
    (pack,) = (path for path in (tmp_path / "new" / "packs").rglob("*") if path.is_file())
    created = [str(tmp_path / "new"), str(tmp_path)]
    assert flushed == [*created, str(pack), str(pack.parent), str(pack.parent.parent)]
