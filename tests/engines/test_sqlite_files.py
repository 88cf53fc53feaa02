"""Opening SQLite files: their durability, and one typed error for each problem."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast import AsyncHoldfast, Holdfast, NewMessage
from holdfast.engines.sqlite import file_location
from holdfast.engines.sqlite.file import WRITER_CACHE_KIB
from holdfast.errors import (
    Closed,
    Corrupt,
    Forbidden,
    HoldfastError,
    InvalidInput,
    ReadOnly,
    SchemaMismatch,
    Unavailable,
)
from holdfast.testing.disk import Disk
from tests.engines.scripts import run_script
from tests.engines.sqlite_handles import on_disk, on_disk_async
from tests.errors import raises
from tests.faults.powercut import DATABASE

both_libraries = pytest.mark.parametrize("library", ["apsw", "stdlib"])
WAL_SYNC = ("sync", f"{DATABASE}-wal")


@both_libraries
@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("normal", 1)])
def test_every_connection_has_the_requested_durability(tmp_path: Path, library, durability, level) -> None:
    with Holdfast(str(tmp_path / "a.db"), durability=durability, sqlite=library) as hf:
        engine = hf._engine
        for connection in (engine._connection, engine._take_reader()):
            assert connection.execute("PRAGMA synchronous") == [(level,)]
            assert connection.execute("PRAGMA journal_mode") == [("wal",)]
            assert connection.execute("PRAGMA foreign_keys") == [(1,)]


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with raises(InvalidInput, field="durability"):
        Holdfast(str(tmp_path / "a.db"), durability="off")  # type: ignore[arg-type]
    assert not (tmp_path / "a.db").exists()


def test_full_is_the_default_and_flushes_the_log_before_each_call_returns(tmp_path: Path) -> None:
    with Disk() as disk:
        handle = on_disk(tmp_path, disk)
        session = handle.tenant("acme").sessions.create()
        for _ in range(10):
            before = disk.position
            handle.tenant("acme").messages.append(session.id, role="user", content="x")
            assert (disk.operations[-1].kind, disk.operations[-1].file) == WAL_SYNC
            assert sum(operation.kind == "sync" for operation in disk.operations[before:]) == 1
        handle.close()


def test_normal_does_not_flush_for_each_call(tmp_path: Path) -> None:
    with Disk() as disk:
        handle = on_disk(tmp_path, disk, durability="normal")
        session = handle.tenant("acme").sessions.create()
        before = disk.count("sync")
        for _ in range(10):
            handle.tenant("acme").messages.append(session.id, role="user", content="x")
        assert disk.count("sync") == before
        handle.close()


def test_the_asynchronous_engine_flushes_before_each_call_returns(tmp_path: Path) -> None:
    async def main() -> None:
        with Disk() as disk:
            handle = await on_disk_async(tmp_path, disk)
            session = await handle.tenant("acme").sessions._async.create()
            for _ in range(10):
                before = disk.count("sync")
                await handle.tenant("acme").messages._async.append(session.id, role="user", content="x")
                assert disk.count("sync") == before + 1
            await handle.engine.close()

    asyncio.run(main())


@both_libraries
def test_readers_reject_every_write(tmp_path: Path, library) -> None:
    with Holdfast(str(tmp_path / "a.db"), sqlite=library) as hf:
        with pytest.raises(ReadOnly):
            hf._engine._take_reader().execute("DELETE FROM sessions")


@both_libraries
def test_a_file_deleted_while_open_is_unavailable_and_not_recreated(tmp_path: Path, library) -> None:
    path = tmp_path / "a.db"
    with Holdfast(str(path), sqlite=library) as hf:
        session = hf.tenant("acme").sessions.create()
        hf._engine._readers.clear()
        path.unlink()
        with pytest.raises(Unavailable, match=path.name) as caught:
            hf.tenant("acme").sessions.get(session.id)
        assert isinstance(caught.value.__cause__, FileNotFoundError)
        assert not path.exists()


@both_libraries
def test_a_missing_folder_raises_unavailable_with_its_path(tmp_path: Path, library) -> None:
    with pytest.raises(Unavailable, match="no/such"):
        Holdfast(str(tmp_path / "no/such/a.db"), sqlite=library)


@both_libraries
def test_a_directory_instead_of_a_file_raises_unavailable(tmp_path: Path, library) -> None:
    with pytest.raises(Unavailable):
        Holdfast(str(tmp_path), sqlite=library)


@both_libraries
def test_a_file_that_is_not_a_database_is_corrupt_and_stays_unchanged(tmp_path: Path, library) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary, " * 1_000)
    with pytest.raises(Corrupt):
        Holdfast(str(path), sqlite=library)
    assert path.read_text() == "Dear diary, " * 1_000


def test_a_database_of_another_program_keeps_its_tables(tmp_path: Path) -> None:
    theirs = apsw.Connection(str(tmp_path / "a.db"))
    theirs.execute("CREATE TABLE users (id)").fetchall()
    with Holdfast(str(tmp_path / "a.db")) as hf:
        hf.tenant("acme").sessions.create()
    assert theirs.execute("SELECT count(*) FROM users").fetchall() == [(0,)]
    theirs.close()


def filled(path: Path, *, messages: int = 400) -> str:
    """Create a database with one long session, without a WAL; return the session's id."""
    with Holdfast(str(path)) as hf:
        session = hf.tenant("acme").sessions.create()
        for number in range(messages):
            hf.tenant("acme").messages.append(session.id, role="user", content=f"{number} " * 300)
    return session.id


@both_libraries
def test_reading_a_damaged_page_raises_only_corrupt(tmp_path: Path, library) -> None:
    path = tmp_path / "a.db"
    session = filled(path)
    content = bytearray(path.read_bytes())
    pages = len(content) // 4096
    for page in range(pages * 3 // 4, pages - 1):  # the schema, which is read when the file is opened, comes before
        content[page * 4096 : page * 4096 + 200] = bytes(200)
    path.write_bytes(content)
    with Holdfast(str(path), sqlite=library) as hf, pytest.raises(Corrupt):
        hf.tenant("acme").messages.list(session)


@both_libraries
def test_a_damaged_header_is_corrupt(tmp_path: Path, library) -> None:
    path = tmp_path / "a.db"
    filled(path, messages=1)
    content = bytearray(path.read_bytes())
    content[:16] = bytes(16)
    path.write_bytes(content)
    with pytest.raises(Corrupt):
        Holdfast(str(path), sqlite=library)


@both_libraries
def test_a_truncated_file_is_corrupt_when_the_lost_part_is_read(tmp_path: Path, library) -> None:
    path = tmp_path / "a.db"
    session = filled(path)
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)
    with pytest.raises(Corrupt), Holdfast(str(path), sqlite=library) as hf:
        hf.tenant("acme").messages.list(session)


@both_libraries
def test_a_file_opened_read_only_refuses_writes(tmp_path: Path, library) -> None:
    session = filled(tmp_path / "a.db", messages=3)
    with Holdfast(f"sqlite:///{tmp_path}/a.db?mode=ro", sqlite=library) as hf:
        assert len(hf.tenant("acme").messages.list(session)) == 3
        with pytest.raises(ReadOnly):
            hf.tenant("acme").messages.append(session, role="user", content="x")
        with pytest.raises(ReadOnly):
            hf.tenant("acme").sessions.create()
        assert len(hf.tenant("acme").messages.list(session)) == 3


@both_libraries
def test_a_file_opened_read_only_must_exist(tmp_path: Path, library) -> None:
    with pytest.raises(Unavailable):
        Holdfast(f"sqlite:///{tmp_path}/a.db?mode=ro", sqlite=library)
    assert not (tmp_path / "a.db").exists()


def test_an_asynchronous_read_only_handle_refuses_writes(tmp_path: Path) -> None:
    session = filled(tmp_path / "a.db", messages=3)

    async def main() -> None:
        async with AsyncHoldfast(f"sqlite:///{tmp_path}/a.db?mode=ro") as hf:
            assert len(await hf.tenant("acme").messages.list(session)) == 3
            with pytest.raises(ReadOnly):
                await hf.tenant("acme").messages.append(session, role="user", content="x")

    asyncio.run(main())


PERMISSIONS = """
    import os, pwd, sys
    from holdfast import Holdfast
    from holdfast.errors import HoldfastError

    path, session = sys.argv[1:]
    Holdfast(":memory:").close()  # everything is imported before the rights are given up
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)
    try:
        with Holdfast(path) as hf:
            print("read", len(hf.tenant("acme").messages.list(session)))
            hf.tenant("acme").messages.append(session, role="user", content="x")
            print("written")
    except HoldfastError as error:
        print(",".join(kind.__name__ for kind in type(error).__mro__), error)
"""


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user can read and write."""
    with tempfile.TemporaryDirectory(dir=tempfile.gettempdir()) as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.mark.parametrize("closed_folder", [False, True])
def test_a_user_without_write_permission_gets_one_typed_error(shared_folder: Path, closed_folder: bool) -> None:
    """The test runs as another user if it was started by root, because root may write everywhere."""
    path = shared_folder / "a.db"
    session = filled(path, messages=3)
    before = path.read_bytes()
    path.chmod(0o444)
    shared_folder.chmod(0o555 if closed_folder else 0o777)
    try:
        output = run_script(PERMISSIONS, str(path), session).splitlines()
    finally:
        shared_folder.chmod(0o777)
    assert ReadOnly.__name__ in output[-1]
    assert Forbidden.__name__ in output[-1]
    assert path.read_bytes() == before


@pytest.mark.parametrize("url", ["file.db", ":memory:"])
def test_a_closed_handle_raises_and_can_be_closed_again(tmp_path: Path, url: str) -> None:
    hf = Holdfast(url if url == ":memory:" else str(tmp_path / url))
    acme = hf.tenant("acme")
    session = acme.sessions.create()
    hf.close()
    hf.close()
    for call in (
        lambda: acme.sessions.get(session.id),
        lambda: acme.messages.list(session.id),
        acme.sessions.create,
        lambda: acme.messages.append(session.id, role="user", content="x"),
        hf.tenants.list,
    ):
        with pytest.raises(Closed):
            call()


@pytest.mark.parametrize("url", ["file.db", ":memory:"])
def test_a_closed_asynchronous_handle_raises_and_can_be_closed_again(tmp_path: Path, url: str) -> None:
    async def main() -> None:
        hf = await AsyncHoldfast(url if url == ":memory:" else str(tmp_path / url)).open()
        acme = hf.tenant("acme")
        session = await acme.sessions.create()
        await hf.close()
        await hf.close()
        for call in (
            lambda: acme.sessions.get(session.id),
            lambda: acme.messages.list(session.id),
            acme.sessions.create,
            lambda: acme.messages.append(session.id, role="user", content="x"),
        ):
            with pytest.raises(Closed):
                await call()

    asyncio.run(main())


def test_a_missing_schema_is_a_mismatch_without_auto_migrate(tmp_path: Path) -> None:
    apsw.Connection(str(tmp_path / "a.db")).execute("CREATE TABLE x (y)").fetchall()
    with pytest.raises(SchemaMismatch):
        Holdfast(str(tmp_path / "a.db"), auto_migrate=False)
    with pytest.raises(SchemaMismatch):
        Holdfast(f"sqlite:///{tmp_path}/a.db?mode=ro")


def test_errors_contain_sqlites_message_and_its_exception_as_the_cause(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError) as caught:
        Holdfast(str(tmp_path / "no/such/a.db"))
    assert "unable to open database file" in str(caught.value)
    assert isinstance(caught.value.__cause__, apsw.Error)


def test_a_large_transaction_is_written_once_and_does_not_grow_the_cache(tmp_path: Path) -> None:
    """No page is written to the WAL before the commit, because it might change and be written again."""
    with Disk() as disk:
        handle = on_disk(tmp_path, disk)
        acme, writer = handle.tenant("acme"), handle.engine._connection
        session = acme.sessions.create()
        acme.messages.append_many(session.id, [NewMessage(role="user", content="x" * 3_000) for _ in range(1_000)])
        writer.execute("BEGIN IMMEDIATE")
        before = disk.position
        writer.execute("UPDATE messages SET token_count = 1")
        assert not [operation for operation in disk.operations[before:] if operation.kind == "write"]
        used_bytes, _ = writer.raw.status(apsw.SQLITE_DBSTATUS_CACHE_USED)
        assert used_bytes > 2 * WRITER_CACHE_KIB * 1024
        writer.execute("COMMIT")
        used_bytes, _ = writer.raw.status(apsw.SQLITE_DBSTATUS_CACHE_USED)
        assert used_bytes < 1.5 * WRITER_CACHE_KIB * 1024
        handle.close()


def _moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def _replaced(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


@both_libraries
@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("away", [Path.unlink, _moved, _replaced])
def test_no_write_to_a_removed_file_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library, suffix: str, away
) -> None:
    monkeypatch.setattr(file_location, "MIN_VERIFY_INTERVAL_S", 0.0)
    with Holdfast(str(tmp_path / "a.db"), sqlite=library) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create()
        acme.messages.append(session.id, role="user", content="before")
        away(tmp_path / f"a.db{suffix}")
        for _ in range(2):
            with pytest.raises(Unavailable, match=f"a.db{suffix} "):
                acme.messages.append(session.id, role="user", content="after")


@both_libraries
def test_a_file_that_is_put_back_can_be_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library) -> None:
    monkeypatch.setattr(file_location, "MIN_VERIFY_INTERVAL_S", 0.0)
    path = tmp_path / "a.db"
    with Holdfast(str(path), sqlite=library) as hf:
        session = hf.tenant("acme").sessions.create()
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(Unavailable):
            hf.tenant("acme").messages.append(session.id, role="user", content="lost")
        (tmp_path / "elsewhere").rename(path)
        hf.tenant("acme").messages.append(session.id, role="user", content="kept")
        assert "lost" not in str(kept := hf.tenant("acme").messages.list(session.id))
        assert len(kept) == 1


def test_a_group_of_writes_to_a_removed_file_fails_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_location, "MIN_VERIFY_INTERVAL_S", 0.0)

    async def main() -> list[object]:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            (tmp_path / "a.db-wal").unlink()
            appends = [acme.messages.append(session.id, role="user", content=str(number)) for number in range(5)]
            return await asyncio.gather(*appends, return_exceptions=True)

    assert [type(item) for item in asyncio.run(main())] == [Unavailable] * 5


def test_the_files_are_checked_a_few_times_a_second_at_any_commit_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    now = 100.0

    def counted(self: file_location.FileLocation) -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr(file_location.FileLocation, "verify", counted)
    monkeypatch.setattr(file_location, "monotonic_s", lambda: now)
    with Holdfast(str(tmp_path / "a.db")) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create()
        looks = 0
        for _ in range(50):
            acme.messages.append(session.id, role="user", content="x")
        assert looks == 0
        now += 2 * file_location.MIN_VERIFY_INTERVAL_S
        acme.messages.append(session.id, role="user", content="x")
        acme.messages.append(session.id, role="user", content="x")
        assert looks == 1
