"""Parts of the SQLite engine: opening files, claims of a file by a library, connection locks, and the choice of a driver."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import sqlite3
import threading
from pathlib import Path
from typing import Any, get_args

import apsw
import pytest

from holdfast.address import Library
from holdfast.drivers import connection_lock, join
from holdfast.drivers.apsw import ApswConnection
from holdfast.drivers.sqlite3 import Sqlite3Connection
from holdfast.engines.dialect import Dialect
from holdfast.engines.sqlite import file as sqlite_file
from holdfast.engines.sqlite import library_claims, stdlib
from holdfast.engines.sqlite.file import SqliteFile
from holdfast.engines.sqlite.library_claims import Claim
from holdfast.errors import Corrupt, HoldfastError, InvalidInput, Unavailable
from holdfast.sync_runner import step
from tests.errors import raises

LIBRARIES = pytest.mark.parametrize("library", get_args(Library))


# Opening


@LIBRARIES
@pytest.mark.parametrize(
    ("pragma", "value"),
    [
        ("foreign_keys", 1),
        ("trusted_schema", 0),
        ("cache_size", -sqlite_file.WRITER_CACHE_KIB),
        ("journal_mode", "wal"),
        ("synchronous", 2),
        ("cache_spill", sqlite_file.SPILL_PAGES),
        ("wal_autocheckpoint", sqlite_file.CHECKPOINT_PAGES),
        ("busy_timeout", sqlite_file.BUSY_TIMEOUT_MS),
        ("query_only", 0),
    ],
)
def test_a_writer_is_opened_with_these_settings(pragma: str, value: Any, library: Library, tmp_path: Path) -> None:
    file = SqliteFile(str(tmp_path / "a.db"), library=library)
    connection = file.connect()
    assert [*connection.execute(f"PRAGMA {pragma}")] == [(value,)]
    connection.raw.close()
    file.release_claim()


@LIBRARIES
def test_a_reader_reads_and_cannot_write(library: Library, tmp_path: Path) -> None:
    file = SqliteFile(str(tmp_path / "a.db"), library=library)
    writer = file.connect()
    writer.execute("CREATE TABLE t (x)")
    reader = file.connect(reader=True)
    assert [*reader.execute("SELECT count(*) FROM t")] == [(0,)]
    assert [*reader.execute("PRAGMA cache_size")] == [(-sqlite_file.READER_CACHE_KIB,)]
    with pytest.raises(HoldfastError):
        reader.execute("INSERT INTO t VALUES (1)")
    for item in (reader, writer):
        item.raw.close()
    file.release_claim()


@LIBRARIES
def test_a_read_only_file_is_not_modified(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    raw = apsw.Connection(str(path))
    raw.execute("CREATE TABLE t (x)")
    raw.close()
    before = path.read_bytes()
    file = SqliteFile(str(path), read_only=True, library=library)
    connection = file.connect()
    with pytest.raises(HoldfastError):
        connection.execute("INSERT INTO t VALUES (1)")
    connection.raw.close()
    file.release_claim()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.db"]


@LIBRARIES
def test_each_connection_to_memory_has_a_separate_database(library: Library) -> None:
    file = SqliteFile(":memory:", library=library)
    assert file.in_memory
    first, second = file.connect(), file.connect()
    first.execute("CREATE TABLE t (x)")
    assert [*second.execute("SELECT count(*) FROM sqlite_master")] == [(0,)]
    for item in (first, second):
        item.raw.close()


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"durability": "none"}, "durability", "none"),
        ({"durability": "FULL"}, "durability", "FULL"),
        ({"library": "sqlite3"}, "sqlite", "sqlite3"),
        ({"library": None}, "sqlite", None),
    ],
)
def test_an_invalid_option_is_refused_before_anything_is_opened(
    options: dict[str, Any], field: str, value: object, tmp_path: Path
) -> None:
    with raises(InvalidInput, field=field) as caught:
        SqliteFile(str(tmp_path / "a.db"), **options)
    assert repr(value) in str(caught.value)
    assert os.listdir(tmp_path) == []


@LIBRARIES
def test_a_file_name_may_contain_any_character(library: Library, tmp_path: Path) -> None:
    for name in ("a b.db", "100%.db", "a?mode=ro.db", "#.db", "漢字.db", "file:x.db"):
        file = SqliteFile(str(tmp_path / name), library=library)
        connection = file.connect()
        connection.execute("CREATE TABLE t (x)")
        connection.raw.close()
        file.release_claim()
        assert (tmp_path / name).is_file(), name
        again = SqliteFile(str(tmp_path / name), read_only=True, library=library)
        reader = again.connect()
        assert [*reader.execute("SELECT count(*) FROM t")] == [(0,)], name
        reader.raw.close()
        again.release_claim()


@LIBRARIES
def test_a_connection_that_cannot_be_prepared_is_closed_and_releases_its_claim(
    library: Library, tmp_path: Path
) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(Corrupt):
        SqliteFile(str(path), library=library).connect()
    other: Library = "stdlib" if library == "apsw" else "apsw"
    gc.collect()
    Claim([str(path)], other).release()


@LIBRARIES
def test_the_error_for_a_missing_folder_names_it(library: Library, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=re.escape(str(tmp_path / "no"))):
        SqliteFile(str(tmp_path / "no" / "a.db"), library=library).connect()


def test_a_python_with_an_old_sqlite_is_refused_with_the_required_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 39, 9))
    with raises(InvalidInput, field="sqlite"):
        stdlib.connect(str(tmp_path / "a.db"), read_only=False, create=True, statements=1)
    assert os.listdir(tmp_path) == []


# Which library has a file


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = tmp_path / "a.db"
    made.touch()
    return str(made)


def test_a_library_can_claim_a_file_repeatedly(path: str) -> None:
    claims = [Claim([path], "apsw") for _ in range(3)]
    with raises(InvalidInput, field="library"):
        Claim([path], "stdlib")
    for claim in claims[:2]:
        claim.release()
    with raises(InvalidInput, field="library"):
        Claim([path], "stdlib")
    claims[2].release()
    Claim([path], "stdlib").release()


@pytest.mark.parametrize(
    ("held", "wanted"),
    [("apsw", "stdlib"), ("stdlib", "apsw")],
)
def test_the_error_of_a_rejected_claim_names_the_file_and_the_solution(
    held: Library, wanted: Library, path: str
) -> None:
    claim = Claim([path], held)
    with raises(InvalidInput, field="library") as caught:
        Claim([path], wanted)
    assert f"Holdfast({path!r}, sqlite='stdlib')" in str(caught.value)
    claim.release()


def test_a_claim_of_several_files_fails_completely_if_one_is_taken(path: str, tmp_path: Path) -> None:
    (other := tmp_path / "b.db").touch()
    held = Claim([path], "apsw")
    with raises(InvalidInput, field="library") as caught:
        Claim([str(other), path], "stdlib")
    assert path in str(caught.value)
    Claim([str(other)], "apsw").release()
    held.release()


def test_a_file_that_does_not_exist_cannot_be_claimed(tmp_path: Path) -> None:
    nothing = [None, "", ":memory:", str(tmp_path / "nowhere.db")]
    one, two = Claim(nothing, "apsw"), Claim(nothing, "stdlib")
    assert one is not two


def test_an_unreferenced_claim_or_a_closed_connection_releases_its_files(path: str) -> None:
    kept = Claim([path], "apsw", raw=(raw := apsw.Connection(path)))
    with pytest.raises(InvalidInput):
        Claim([path], "stdlib")
    raw.close()
    Claim([path], "stdlib").release()
    assert kept is not None
    forgotten = Claim([path], "apsw")
    del forgotten
    gc.collect()
    Claim([path], "stdlib").release()


def test_releasing_a_claim_twice_is_harmless(path: str) -> None:
    claim = Claim([path], "apsw")
    claim.release()
    claim.release()
    Claim([path], "stdlib").release()


def test_a_connection_of_either_library_is_open_until_it_is_closed() -> None:
    for raw in (apsw.Connection(":memory:"), sqlite3.connect(":memory:")):
        assert library_claims._is_open(raw)
        raw.close()
    assert library_claims._is_open(None)
    assert not library_claims._is_open(object())


# Turns


def test_each_connection_has_its_own_lock() -> None:
    one, other = object(), object()
    mine, theirs = connection_lock.for_threads(one), connection_lock.for_threads(other)
    assert connection_lock.for_threads(one) is mine is not theirs
    assert connection_lock.for_tasks(one) is not mine


def test_a_thread_waits_for_the_connection_lock_and_can_reenter_it() -> None:
    turn = connection_lock.for_threads(shared := object())
    order: list[str] = []

    async def take(name: str) -> None:
        async with turn, turn:
            order.append(f"{name} in")
            order.append(f"{name} out")

    step(turn.__aenter__())
    waiting = threading.Thread(target=lambda: step(take("second")))
    waiting.start()
    step(take("first"))
    order.append("first lets go")
    step(turn.__aexit__(None, None, None))
    waiting.join(60)
    assert order == ["first in", "first out", "first lets go", "second in", "second out"]
    assert shared is not None


def test_a_connection_lock_is_released_after_a_failed_call() -> None:
    turn = connection_lock.for_threads(shared := object())

    async def fail() -> None:
        async with turn:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step(fail())
    taken = threading.Thread(target=lambda: step(turn.__aenter__()))
    taken.start()
    taken.join(60)
    assert not taken.is_alive()
    assert shared is not None


def test_tasks_get_the_connection_lock_in_order_of_arrival() -> None:
    order: list[int] = []

    async def take(connection: object, number: int) -> None:
        async with connection_lock.for_tasks(connection):
            await asyncio.sleep(0)
            order.append(number)

    async def run() -> None:
        connection = object()
        kept = connection_lock.for_tasks(connection)
        await asyncio.gather(*(take(connection, number) for number in range(5)))
        assert connection_lock.for_tasks(connection) is kept

    asyncio.run(run())
    assert order == [0, 1, 2, 3, 4]


# Joining


class Theirs(sqlite3.Connection):
    """A caller's subclass of a connection."""


def test_a_driver_is_selected_by_the_connections_type_or_base_class() -> None:
    for raw, kind in (
        (apsw.Connection(":memory:"), ApswConnection),
        (sqlite3.connect(":memory:"), Sqlite3Connection),
        (sqlite3.connect(":memory:", factory=Theirs), Sqlite3Connection),
    ):
        wrapped = join.blocking(raw, Dialect.SQLITE)
        assert isinstance(wrapped, kind)
        assert wrapped.raw is raw
        raw.close()


def test_a_connection_to_the_other_engine_is_refused_with_both_names() -> None:
    raw = apsw.Connection(":memory:")
    with raises(InvalidInput, field="dialect"):
        join.blocking(raw, Dialect.POSTGRES)
    raw.close()


def test_a_blocking_connection_is_rejected_by_async_holdfast() -> None:
    raw = sqlite3.connect(":memory:", factory=Theirs)
    with raises(InvalidInput, field="style"):
        join.asynchronous(raw, Dialect.SQLITE)
    raw.close()


@pytest.mark.parametrize(
    "thing", [None, 7, "a.db", sqlite3.Connection, object()], ids=lambda thing: type(thing).__name__
)
def test_an_unsupported_object_is_refused_with_the_supported_types(thing: Any) -> None:
    with raises(InvalidInput, field="connection") as caught:
        join.asynchronous(thing, Dialect.SQLITE)
    assert "asyncpg.connection.Connection" in str(caught.value)
    with raises(InvalidInput, field="connection") as caught:
        join.blocking(thing, Dialect.SQLITE)
    for kind in ("psycopg.Connection", "sqlite3.Connection"):
        assert kind in str(caught.value)
