"""Faults of packs: crashes at any point, concurrent writers and pruners, and flipped bits."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from holdfast import Holdfast, PackStorage
from holdfast.core.objects import digest_of
from holdfast.errors import HoldfastError
from holdfast.stores.execution.checkpoints.task_writes import Write
from tests.stores.objects.conftest import SMALL, Opens


class Died(BaseException):
    """The simulated process has died."""


class Dying(PackStorage):
    """A storage whose process dies before or after its n-th operation."""

    def __init__(self, where: Path, at: int, *, after: bool) -> None:
        super().__init__(where)
        self.left, self._after = at, after

    async def _do(self, name: str, blocking: bool, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self._after:
            raise Died
        result = await super()._do(name, blocking, *args, **kwargs)
        if self.left == 0:
            raise Died
        return result


def bodies(seed: int, count: int, size: int = 3_000) -> list[bytes]:
    source = Random(seed)
    return [source.randbytes(size) for _ in range(count)]


def work(holdfast: Holdfast) -> Iterator[tuple[str, list[bytes]]]:
    """Write packs, empty, rewrite and remove them; yield the expected objects after each call."""
    acme, first, second = holdfast.tenant("acme"), bodies(1, 4), bodies(2, 2)
    acme.objects.put(first, holder="a")
    yield "put", first
    acme.objects.put(first[:1], holder="b")
    acme.objects.put(second, holder="c")
    yield "put more", [*first, *second]
    acme.objects.release("a")
    yield "release", [first[0], *second]
    acme.objects.prune(grace_s=0)
    yield "prune and rewrite", [first[0], *second]
    acme.checkpoints.put("t", id="1", state=b"", pieces=bodies(3, 2, 9_000))
    yield "checkpoint", [first[0], *second, *bodies(3, 2, 9_000)]
    acme.objects.release("c")
    acme.checkpoints.delete("t")
    acme.objects.prune(grace_s=0)
    yield "prune", [first[0]]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_point_loses_nothing_and_leaves_no_garbage(tmp_path: Path, after: bool) -> None:
    for at in range(1, 60):
        folder = tmp_path / f"{after} {at}"
        folder.mkdir()
        dying = Dying(folder / "packs", at, after=after)
        with Holdfast(str(folder / "a.db"), packs=dying, limits=SMALL) as holdfast:
            try:
                list(work(holdfast))
            except Died:
                pass
        check_after_death(folder)
        if dying.left > 0:
            assert at > 8, "too few crash points"
            return
    raise AssertionError("the process never survived")


def check_after_death(folder: Path) -> None:
    place = PackStorage(folder / "packs")
    with Holdfast(str(folder / "a.db"), packs=place, limits=SMALL) as holdfast:
        acme = holdfast.tenant("acme")
        assert acme.objects.verify().damaged == []
        assert acme.checkpoints.verify().damaged == []
        (again,) = acme.objects.put(bodies(1, 1), holder="again")
        acme.objects.prune(grace_s=0)
        acme.objects.prune(grace_s=0)
        usage = acme.objects.usage()
        assert acme.objects.get([again]) == bodies(1, 1)
        assert len(asyncio.run(place.names("", blocking=False))) == usage.packs
        assert acme.objects.verify().count == usage.count
        for holder in ("a", "b", "c", "again"):
            acme.objects.release(holder)
        acme.checkpoints.delete("t")
        acme.objects.prune(grace_s=0)
        assert asyncio.run(place.names("", blocking=False)) == []
        assert acme.objects.usage().stored_bytes == 0


def test_acknowledged_objects_survive_a_crash(tmp_path: Path) -> None:
    """The same, checked before anything is cleaned up."""
    for at in range(1, 40):
        folder = tmp_path / str(at)
        folder.mkdir()
        dying = Dying(folder / "packs", at, after=bool(at % 2))
        acknowledged: list[bytes] = []
        with Holdfast(str(folder / "a.db"), packs=dying, limits=SMALL) as holdfast:
            try:
                for action, expected in work(holdfast):
                    if action in ("put", "put more"):
                        acknowledged = expected
                    elif action == "release":
                        break
            except Died:
                pass
        with Holdfast(str(folder / "a.db"), packs=folder / "packs", limits=SMALL) as holdfast:
            objects = holdfast.tenant("acme").objects
            assert objects.get([digest_of(content).hex() for content in acknowledged]) == acknowledged
        if dying.left > 0:
            return
    raise AssertionError("the process never survived")


def test_a_pack_that_is_sealed_too_late_is_stored_in_the_database(tmp_path: Path) -> None:
    """A pruner condemns a pack while its writer is still busy; the writer stores the bodies in the database."""
    path, packs = str(tmp_path / "a.db"), tmp_path / "packs"

    class Slow(PackStorage):
        async def write(self, path_in: str, content: bytes, *, blocking: bool) -> None:
            await super().write(path_in, content, blocking=blocking)
            with Holdfast(path, packs=packs, limits=SMALL) as other:
                assert other.tenant("acme").objects.prune(grace_s=0).packs == 1

    with Holdfast(path, packs=Slow(packs), limits=SMALL) as holdfast:
        objects = holdfast.tenant("acme").objects
        digests = objects.put(bodies(1, 3), holder="me")
        assert objects.get(digests) == bodies(1, 3)
        assert objects.usage().packs == 0
        assert objects.verify().damaged == []


def test_concurrent_writers_and_pruners_lose_nothing(opens: Opens, tmp_path: Path) -> None:
    shared = bodies(7, 5)
    handles = [opens(tmp_path / "packs").tenant("acme").objects for _ in range(3)]

    def put(writer: int) -> None:
        objects, source = handles[writer % 2], Random(writer)
        for number in range(12):
            sample = source.sample(shared, 3)
            digests = objects.put(sample, holder=f"{writer} {number}")
            assert objects.get(digests) == sample
            objects.release(f"{writer} {number}")

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(put, writer) for writer in range(3)]
        while not all(future.done() for future in writing):
            handles[2].prune(grace_s=0)
    for future in writing:
        future.result()
    (digest,) = handles[0].put(shared[:1], holder="last")
    handles[2].prune(grace_s=0)
    handles[2].prune(grace_s=0)
    assert handles[1].get([digest]) == shared[:1]
    assert handles[1].verify().count == 1


KILLED = """
    import sys
    from random import Random
    from holdfast import Holdfast, Limits
    source = Random(int(sys.argv[2]))
    with Holdfast(sys.argv[1] + "/a.db", packs=sys.argv[1] + "/packs", limits=Limits(pack_from_bytes=1_000)) as hf:
        objects = hf.tenant("acme").objects
        for number in range(10_000):
            (digest,) = objects.put([source.randbytes(4_000)], holder=f"{sys.argv[2]} {number}")
            print(digest, flush=True)
            if number % 3 == 2:
                objects.release(f"{sys.argv[2]} {number - 1}")
                print("-", flush=True)
                objects.prune(grace_s=0)
"""


def test_killed_processes_keep_acknowledged_objects(tmp_path: Path) -> None:
    kept: list[str] = []
    for turn, lines in enumerate((4, 11, 23)):
        command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), str(turn)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            printed = [next(process.stdout).strip() for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
            printed += [line.strip() for line in process.stdout if line.endswith("\n")]
        digests = [line for line in printed if line != "-"]
        # The second of every three is released, possibly before that was printed.
        kept += [digest for number, digest in enumerate(digests) if number % 3 != 1]
    place = PackStorage(tmp_path / "packs")
    with Holdfast(str(tmp_path / "a.db"), packs=place, limits=SMALL) as holdfast:
        objects = holdfast.tenant("acme").objects
        assert all(len(content) == 4_000 for content in objects.get(kept))
        assert objects.verify().damaged == []
        objects.prune(grace_s=0)
        objects.prune(grace_s=0)
        assert len(asyncio.run(place.names("", blocking=False))) == objects.usage().packs


FLIPS = 1_000
COLUMNS = {
    "objects": ("body", "digest"),
    "lg_piece": ("body", "digest"),
    "lg_checkpoint": ("checkpoint", "pieces"),
    "lg_checkpoint_write": ("writes", "pieces"),
}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Objects and checkpoints, in the database and in packs."""
    source = Random(7)
    with Holdfast(str(tmp_path / "a.db"), packs=tmp_path / "packs", limits=SMALL) as holdfast:
        acme = holdfast.tenant("acme")
        acme.objects.put([source.randbytes(2_000), b"words " * 60, b"small", source.randbytes(900)], holder="me")
        for step in range(3):
            pieces = [b"text %d " % step * 40, source.randbytes(200), source.randbytes(9_000)]
            acme.checkpoints.put("t", id=f"{step}", state=source.randbytes(40), pieces=pieces)
            writes = [Write(0, "c", b"v" * 30, [b"piece %d " % step * 20])]
            acme.checkpoints.put_writes("t", id=f"{step}", task_id="x", new=writes)
    return tmp_path


def test_a_thousand_flipped_bits_are_detected_and_the_affected_data_is_named(filled: Path) -> None:
    source = Random(20_240)
    with Holdfast(str(filled / "a.db"), packs=filled / "packs", limits=SMALL) as holdfast:
        acme = holdfast.tenant("acme")
        assert affected_names(acme) == set()
        raw = apsw.Connection(str(filled / "a.db"))
        targets = [(table, column) for table, columns in COLUMNS.items() for column in columns]
        packs = sorted(path for path in (filled / "packs").rglob("*") if path.is_file())
        affected: set[str] = set()
        for number in range(FLIPS):
            if number % 3 == 0:
                reported = flip_in_file(source.choice(packs), source, acme)
            else:
                reported = flip_in_row(raw, *source.choice(targets), source, acme)
            assert reported, f"flip {number} was not detected"
            affected |= reported
        assert affected_names(acme) == set(), "every bit was restored"
        raw.close()
    assert {"me", "lg_log:1", "t 0", "t 1", "t 2"} <= affected


def affected_names(acme: Any) -> set[str]:
    """Return the affected holders of damaged objects, and the damaged checkpoints."""
    damaged = acme.objects.verify().damaged
    holders = {holder for damage in damaged for holder in [*damage.holders, *([] if damage.holders else ["no holder"])]}
    return holders | {f"{damage.thread_id} {damage.id}" for damage in acme.checkpoints.verify().damaged}


def flip_in_file(path: Path, source: Random, acme: Any) -> set[str]:
    whole = path.read_bytes()
    path.write_bytes(flip_bit(whole, source))
    try:
        return affected_names(acme)
    finally:
        path.write_bytes(whole)


def flip_in_row(raw: apsw.Connection, table: str, column: str, source: Random, acme: Any) -> set[str]:
    rows = raw.execute(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY 1").fetchall()
    (before,) = source.choice([row for row in rows if row[0]])
    after = flip_bit(before, source)
    change = f"UPDATE {table} SET {column} = ? WHERE {column} = ?"
    raw.execute(change, (after, before))
    try:
        return affected_names(acme)
    except HoldfastError as error:
        return {str(error)}
    finally:
        raw.execute(change, (before, after))


def flip_bit(content: bytes, source: Random) -> bytes:
    bit = source.randrange(len(content) * 8)
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_missing_or_truncated_pack_is_reported(filled: Path) -> None:
    with Holdfast(str(filled / "a.db"), packs=filled / "packs", limits=SMALL) as holdfast:
        acme = holdfast.tenant("acme")
        for path in sorted(path for path in (filled / "packs").rglob("*") if path.is_file()):
            whole = path.read_bytes()
            for cut in (len(whole) - 1, 0):
                path.write_bytes(whole[:cut])
                assert affected_names(acme)
            path.unlink()
            reported = affected_names(acme)
            path.write_bytes(whole)
            assert reported & {"me", "t 0", "t 1", "t 2"}
        assert affected_names(acme) == set()
