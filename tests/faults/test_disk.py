"""The fault-injecting disk: it loses exactly the data that a real disk may lose, and fails exactly when requested."""

from __future__ import annotations

from pathlib import Path
from random import Random

import apsw
import pytest

from holdfast.testing.disk import SECTOR_BYTES, VARIANTS, CrashImage, Disk, DiskFault, DiskOperation, Variant

OLD = bytes(4 * SECTOR_BYTES)
NEW = bytes(range(256)) * 8  # as long as four sectors, and no byte of it is like its neighbour


def a_wreck(*operations: DiskOperation, files: dict[str, bytes] | None = None) -> CrashImage:
    wreck = CrashImage(files)
    for operation in operations:
        wreck.apply(operation)
    return wreck


def content(wreck: CrashImage, variant: Variant, seed: int = 0) -> bytes:
    return wreck.files(variant, Random(seed))["f"]


WRITE = DiskOperation("write", "f", 0, NEW)
SYNC = DiskOperation("sync", "f")


@pytest.mark.parametrize("variant", VARIANTS)
def test_flushed_data_survives_every_kind_of_cut(variant: Variant) -> None:
    wreck = a_wreck(WRITE, SYNC, files={"f": OLD})
    assert {content(wreck, variant, seed) for seed in range(20)} == {NEW}


def test_the_variant_decides_if_an_unflushed_write_is_lost() -> None:
    wreck = a_wreck(WRITE, files={"f": OLD})
    assert content(wreck, "dropped") == OLD
    assert content(wreck, "kept") == NEW


def test_a_torn_write_ends_between_two_sectors() -> None:
    wreck = a_wreck(WRITE, files={"f": OLD})
    actual = {content(wreck, "torn", seed) for seed in range(60)}
    assert actual == {NEW[:n] + OLD[n:] for n in range(0, len(NEW) + 1, SECTOR_BYTES)}


def test_scattered_writes_lose_any_sectors_and_never_part_of_one() -> None:
    wreck = a_wreck(WRITE, files={"f": OLD})
    actual = {content(wreck, "scattered", seed) for seed in range(300)}
    assert len(actual) == 16  # each of four sectors there or not
    for item in actual:
        for at in range(0, len(item), SECTOR_BYTES):
            sector = slice(at, at + SECTOR_BYTES)
            assert item[sector] in (OLD[sector], NEW[sector])


def test_overlapping_writes_may_arrive_in_the_other_order() -> None:
    wreck = a_wreck(
        DiskOperation("write", "f", 0, b"first" * 4),
        DiskOperation("write", "f", 0, b"later" * 4),
        files={"f": bytes(20)},
    )
    assert {b"first" * 4, b"later" * 4} <= {content(wreck, "scattered", seed) for seed in range(50)}


def test_noise_stays_inside_the_interrupted_writes() -> None:
    wreck = a_wreck(DiskOperation("write", "f", 600, NEW[:100]), files={"f": OLD})
    actual = {content(wreck, "noise", seed) for seed in range(100)}
    assert any(item[600:700] not in (OLD[600:700], NEW[:100]) for item in actual)
    assert {item[:600] + item[700:] for item in actual} == {OLD[:600] + OLD[700:]}


def test_a_flush_covers_only_its_own_file() -> None:
    wreck = a_wreck(
        DiskOperation("write", "f", 0, b"f"), DiskOperation("write", "g", 0, b"g"), SYNC, files={"f": b"-", "g": b"-"}
    )
    assert wreck.files("dropped", Random(0)) == {"f": b"f", "g": b"-"}


def test_a_later_flush_does_not_write_data_lost_by_a_failed_one() -> None:
    wreck = a_wreck(
        WRITE, DiskOperation("failed_sync", "f"), DiskOperation("write", "f", 0, b"x"), SYNC, files={"f": OLD}
    )
    assert content(wreck, "kept") == b"x" + OLD[1:]


def test_created_and_deleted_files_are_durable_only_after_the_folder_is_flushed() -> None:
    made = DiskOperation("create", "new"), DiskOperation("delete", "old")
    wreck = a_wreck(*made, files={"old": b"old"})
    assert wreck.files("entries", Random(0)) == {"old": b"old"}
    assert wreck.files("dropped", Random(0)) == {"new": b""}
    wreck.apply(DiskOperation("sync", "new", folder=True))
    assert wreck.files("entries", Random(0)) == {"new": b""}


def test_an_unflushed_truncation_may_be_lost() -> None:
    wreck = a_wreck(DiskOperation("truncate", "f", 10), files={"f": OLD})
    assert content(wreck, "dropped") == OLD
    assert {len(content(wreck, "scattered", seed)) for seed in range(20)} == {10, len(OLD)}


def open_on(disk: Disk, path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path), vfs=disk.name)
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute("CREATE TABLE IF NOT EXISTS t (x)").fetchall()
    return connection


def test_a_recording_replays_to_the_same_files(tmp_path: Path) -> None:
    with Disk() as disk:
        connection = open_on(disk, tmp_path / "a.db")
        for n in range(50):
            connection.execute("INSERT INTO t VALUES (?)", (str(n) * 500,)).fetchall()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        actual = a_wreck(*disk.operations).files("kept", Random(0))
        existing = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.endswith("-shm")}
        connection.close()
    assert actual == existing


def test_the_log_is_a_wal_shared_between_connections(tmp_path: Path) -> None:
    with Disk() as disk:
        writer, reader = open_on(disk, tmp_path / "a.db"), open_on(disk, tmp_path / "a.db")
        assert writer.pragma("journal_mode") == "wal"
        writer.execute("BEGIN IMMEDIATE").fetchall()
        writer.execute("INSERT INTO t VALUES (1)").fetchall()
        assert reader.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
        writer.execute("COMMIT").fetchall()
        assert reader.execute("SELECT count(*) FROM t").fetchall() == [(1,)]
        reader.close()
        writer.close()


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        ("ENOSPC", "write", apsw.SQLITE_FULL),
        ("EIO", "write", apsw.SQLITE_IOERR_WRITE),
        ("EIO", "sync", apsw.SQLITE_IOERR_FSYNC),
    ],
)
def test_a_rule_fails_its_attempts_until_it_is_removed(tmp_path: Path, error, kind, code) -> None:
    with Disk() as disk:
        connection = open_on(disk, tmp_path / "a.db")
        disk.fail(DiskFault(error=error, first=1, last=None, kinds=frozenset({kind})))
        with pytest.raises(apsw.Error) as caught:
            connection.execute("INSERT INTO t VALUES (1)").fetchall()
        assert caught.value.extendedresult == code
        disk.repair()
        connection.execute("INSERT INTO t VALUES (2)").fetchall()
        assert connection.execute("SELECT x FROM t").fetchall() == [(2,)]
        connection.close()


def test_a_rule_for_one_attempt_fails_only_that_attempt(tmp_path: Path) -> None:
    with Disk() as disk:
        connection = open_on(disk, tmp_path / "a.db")
        disk.fail(DiskFault(error="ENOSPC", first=len(disk.attempts) + 1, last=len(disk.attempts) + 1))
        with pytest.raises(apsw.FullError):
            connection.execute("INSERT INTO t VALUES (1)").fetchall()
        connection.execute("INSERT INTO t VALUES (2)").fetchall()
        connection.close()


def test_a_short_read_is_seen_by_sqlite(tmp_path: Path) -> None:
    with Disk() as disk:
        connection = open_on(disk, tmp_path / "a.db")
        connection.execute("INSERT INTO t VALUES (1)").fetchall()
        connection.close()
        disk.fail(DiskFault(error="short", first=len(disk.attempts) + 1, last=None, kinds=frozenset({"read"})))
        again = apsw.Connection(str(tmp_path / "a.db"), vfs=disk.name)
        with pytest.raises(apsw.Error):
            again.execute("SELECT * FROM t").fetchall()
        again.close()
