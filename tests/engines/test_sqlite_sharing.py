"""Many callers of one SQLite file: threads, tasks and processes share commits, and failures affect only their own caller."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import AsyncHoldfast, Holdfast, NewMessage
from holdfast.engines.protocol import Connection
from holdfast.engines.sqlite import file as sqlite_file
from holdfast.engines.sqlite import writer as sqlite_writer
from holdfast.engines.sqlite.errors import Busy
from holdfast.errors import Conflict, InvalidInput, NotFound, OutcomeUnknown, Unavailable
from holdfast.ids import SeededIds
from holdfast.sync_runner import step
from holdfast.testing.disk import Attempt, Disk, DiskFault
from tests.engines.scripts import finish_all, start_script
from tests.engines.sqlite_handles import in_threads, on_disk, on_disk_async
from tests.errors import raises
from tests.faults.turns import together

THREADS, EACH = 16, 50
SOON_S = 60.0
"""Less than the half minute for which a writer waits for another."""


def slow_flush(kind: Attempt, file: str) -> None:
    """Make a flush take as long as on a hard disk."""
    if kind == "sync":
        time.sleep(0.002)


def check_log(handle: Any, session_id: str, messages: int) -> None:
    """Check that every position of the log is used once, and that the counters agree."""
    existing = handle.tenant("acme").messages.list(session_id)
    assert [message.seq for message in existing] == list(range(1, messages + 1))
    assert len({message.id for message in existing}) == messages
    assert handle.tenant("acme").sessions.get(session_id).message_count == messages


def test_threads_that_write_concurrently_share_commits(tmp_path: Path) -> None:
    with Disk(watch=slow_flush) as disk:
        handle = on_disk(tmp_path, disk)
        acme = handle.tenant("acme")
        session = acme.sessions.create()
        ids = SeededIds(5)
        names = [[ids.new() for _ in range(EACH)] for _ in range(THREADS)]

        def write(mine: list[str]) -> None:
            for item in mine:
                acme.messages.append(session.id, role="user", content="x", id=item)

        before = disk.count("sync")
        assert in_threads([lambda mine=mine: write(mine) for mine in names]) == [None] * THREADS
        flushes = disk.count("sync") - before
        check_log(handle, session.id, THREADS * EACH)
        handle.close()
    assert flushes <= THREADS * EACH / 4


@pytest.mark.parametrize("watch", [None, slow_flush])
def test_tasks_that_write_concurrently_share_commits(tmp_path: Path, watch: Any) -> None:
    """On a fast disk, which is written in the event loop, and on a slow one, which is written in a thread."""

    async def main() -> int:
        with Disk(watch=watch) as disk:
            handle = await on_disk_async(tmp_path, disk)
            acme = handle.tenant("acme")
            session = await acme.sessions._async.create()
            ids = SeededIds(5)
            names = [[ids.new() for _ in range(EACH)] for _ in range(THREADS)]

            async def write(mine: list[str]) -> None:
                for item in mine:
                    await acme.messages._async.append(session.id, role="user", content="x", id=item)

            before = disk.count("sync")
            await asyncio.gather(*[write(mine) for mine in names])
            flushes = disk.count("sync") - before
            existing = await acme.messages._async.list(session.id)
            assert [message.seq for message in existing] == list(range(1, THREADS * EACH + 1))
            await handle.engine.close()
            return flushes

    assert asyncio.run(main()) <= THREADS * EACH / 4


def test_in_one_commit_each_call_has_its_own_outcome(tmp_path: Path) -> None:
    with Disk() as disk:
        handle = on_disk(tmp_path, disk)
        acme = handle.tenant("acme")
        session, other = acme.sessions.create(key="one"), acme.sessions.create(key="two")
        taken = acme.messages.append(session.id, role="user", content="first")
        nowhere = SeededIds(9).new()

        def outcome(call: Any) -> Any:
            try:
                return call()
            except Exception as error:
                return error

        good = lambda: acme.messages.append(session.id, role="user", content="good")  # noqa: E731
        calls = [
            good,
            lambda: acme.messages.append(nowhere, role="user", content="no such session"),
            lambda: acme.messages.append(session.id, role="user", content="another", id=taken.id),
            lambda: acme.messages.append(session.id, role="user", content="first", id=taken.id),
            lambda: acme.messages.append(session.id, role="invalid", content="wrong role"),
            lambda: acme.messages.append_many(
                session.id, [NewMessage(role="user", content="new"), NewMessage(role="user", content="?", id=taken.id)]
            ),
            lambda: acme.sessions.create(key="two", id=session.id),
            lambda: acme.sessions.update(other.id, metadata={"a": 1}),
            lambda: acme.sessions.delete(nowhere),
            good,
        ]
        answers = together(handle.engine, [lambda call=call: outcome(call) for call in calls])
        kinds = [type(answer).__name__ for answer in answers]
        assert kinds == [
            "Message",
            NotFound.__name__,
            Conflict.__name__,
            "Message",
            InvalidInput.__name__,
            Conflict.__name__,
            Conflict.__name__,
            "Session",
            NotFound.__name__,
            "Message",
        ]
        assert answers[3] == taken
        texts = [message.content[0]["text"] for message in acme.messages.list(session.id)]
        assert texts == ["first", "good", "good"]
        assert acme.sessions.get(other.id).metadata == {"a": 1}
        assert acme.sessions.get(session.id).message_count == 3
        handle.close()


@pytest.mark.parametrize("together", [1, 3])
def test_after_a_failed_flush_each_error_names_the_id_to_retry_with(tmp_path: Path, together: int) -> None:
    async def main() -> list[Any]:
        with Disk() as disk:
            handle = await on_disk_async(tmp_path, disk)
            acme = handle.tenant("acme")
            session = await acme.sessions._async.create()
            disk.fail(DiskFault(error="EIO", first=1, last=None, kinds=frozenset({"sync"})))
            appends = [acme.messages._async.append(session.id, role="user", content="x") for _ in range(together)]
            answers = await asyncio.gather(*appends, return_exceptions=True)
            disk.repair()
            await handle.engine.close()
            return answers

    answers = asyncio.run(main())
    assert [type(answer) for answer in answers] == [OutcomeUnknown] * together
    assert len({answer.id for answer in answers} - {None}) == together
    assert all(answer.id in str(answer) and "disk failed" in str(answer) for answer in answers)


def test_a_call_that_fails_halfway_is_rolled_back_without_affecting_others(tmp_path: Path) -> None:
    """An unexpected error in one call after its write must not affect the other calls of the commit."""
    with Disk() as disk:
        handle = on_disk(tmp_path, disk)
        acme = handle.tenant("acme")
        session = acme.sessions.create()

        async def broken(connection: Connection) -> None:
            await connection.fetch("DELETE FROM sessions", ())
            raise ZeroDivisionError

        def break_it() -> Any:
            try:
                step(handle.engine.write(broken))
            except ZeroDivisionError as error:
                return error

        append = lambda: acme.messages.append(session.id, role="user", content="x")  # noqa: E731
        answers = together(handle.engine, [append, break_it, append])
        assert [type(answer).__name__ for answer in answers] == ["Message", "ZeroDivisionError", "Message"]
        check_log(handle, session.id, 2)
        handle.close()


PROCESS = """
    import sys
    from holdfast import Holdfast
    from holdfast.errors import AlreadyExists

    path, count = sys.argv[1], int(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    with Holdfast(path, sqlite=sys.argv[3]) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.upsert("shared")
        for number in range(count):
            acme.messages.append(session.id, role="user", content=str(number))
    print("done")
"""


def test_processes_create_and_fill_one_new_file_together(tmp_path: Path) -> None:
    """They all start on a file that does not exist, so they also make its schema at the same moment.

    Of two libraries, too: in processes of their own they see each other's locks.
    """
    path, item = tmp_path / "a.db", 60
    processes = [start_script(PROCESS, str(path), str(item), library) for library in ("apsw", "stdlib") * 2]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert finish_all(processes) == ["done\n"] * 4
    with Holdfast(str(path)) as hf:
        session = hf.tenant("acme").sessions.find("shared")
        assert session is not None
        check_log(hf, session.id, 4 * item)


def test_threads_open_one_new_file_together(tmp_path: Path) -> None:
    handles = in_threads([lambda: Holdfast(str(tmp_path / "a.db"))] * 8)
    sessions = in_threads([lambda hf=hf: hf.tenant("acme").sessions.create() for hf in handles])
    assert len({session.id for session in sessions}) == 8
    for hf in handles:
        assert hf.tenant("acme").sessions.count() == 8
        hf.close()


@pytest.mark.parametrize("library", ["apsw", "stdlib"])
@pytest.mark.parametrize("url", ["file.db", ":memory:"])
def test_concurrent_readers_and_writers_all_finish(tmp_path: Path, url: str, library: Any) -> None:
    with Holdfast(url if url == ":memory:" else str(tmp_path / url), sqlite=library) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create()

        def write() -> None:
            for _ in range(100):
                acme.messages.append(session.id, role="user", content="x")

        def read() -> None:
            for _ in range(100):
                acme.messages.last(session.id, 5)

        assert in_threads([write, read, read, write], patience_s=20) == [None] * 4
        check_log(hf, session.id, 200)


@contextmanager
def somebody_writing(path: Path) -> Iterator[apsw.Connection]:
    """Run another program in the middle of its transaction."""
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE").fetchall()
    try:
        yield other
    finally:
        if other.in_transaction:
            other.execute("ROLLBACK").fetchall()
        other.close()


def test_readers_never_wait_for_a_writer(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db")) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create()
        acme.messages.append(session.id, role="user", content="x")
        with somebody_writing(tmp_path / "a.db") as other:
            other.execute("DELETE FROM messages").fetchall()
            assert in_threads([lambda: len(acme.messages.list(session.id))] * 8) == [1] * 8


def test_readers_never_wait_for_a_writer_of_the_same_handle(tmp_path: Path) -> None:
    in_the_middle, go_on = threading.Event(), threading.Event()

    async def long_write(connection: Connection) -> None:
        await connection.fetch("DELETE FROM messages", ())
        in_the_middle.set()
        assert go_on.wait(2 * SOON_S)

    with Holdfast(str(tmp_path / "a.db")) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create()
        acme.messages.append(session.id, role="user", content="x")
        writer = threading.Thread(target=lambda: step(hf._engine.write(long_write)))
        writer.start()
        assert in_the_middle.wait(60)
        assert in_threads([lambda: len(acme.messages.list(session.id))] * 4, patience_s=SOON_S) == [1] * 4
        go_on.set()
        writer.join()
        assert len(acme.messages.list(session.id)) == 0


def test_asynchronous_readers_never_wait_for_a_writer(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            with somebody_writing(tmp_path / "a.db"):
                reads = asyncio.gather(*[acme.messages.list(session.id) for _ in range(8)])
                assert await asyncio.wait_for(reads, SOON_S) == [[]] * 8

    asyncio.run(main())


def test_the_event_loop_is_not_blocked_while_another_program_writes(tmp_path: Path) -> None:
    """The loop itself ends the other transaction: if it were blocked, the appends would end as ``Busy``."""

    async def main() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            session = await hf.tenant("acme").sessions.create()
            with somebody_writing(tmp_path / "a.db") as other:
                appends = [
                    asyncio.create_task(hf.tenant("acme").messages.append(session.id, role="user", content="x"))
                    for _ in range(5)
                ]
                for _ in range(50):
                    await asyncio.sleep(0.001)
                assert not any(append.done() for append in appends)
                other.execute("COMMIT").fetchall()
                assert sorted([(await append).seq for append in appends]) == [1, 2, 3, 4, 5]

    asyncio.run(main())


@pytest.mark.parametrize("together", [1, 3])
def test_the_event_loop_is_not_blocked_when_another_program_writes_between_two_attempts(
    tmp_path: Path, together: int
) -> None:
    """Appends whose ids already exist are retried in a new transaction, before which another caller wrote."""
    other = apsw.Connection(str(tmp_path / "a.db"))

    async def main() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            messages = hf.tenant("acme").messages
            session = await hf.tenant("acme").sessions.create()
            existing = [await messages.append(session.id, role="user", content="x") for _ in range(together)]
            connection = hf._engine._connection
            real, come_in = connection.execute, [True]

            def execute(sql: str, args: Any = ()) -> Any:
                result = real(sql, args)
                if sql == "ROLLBACK" and come_in:
                    come_in.clear()
                    other.execute("BEGIN IMMEDIATE").fetchall()
                return result

            connection.execute = execute  # type: ignore[method-assign]
            again = [
                asyncio.create_task(messages.append(session.id, role="user", content="x", id=item.id))
                for item in existing
            ]
            await asyncio.sleep(0.05)
            assert not any(item.done() for item in again)
            assert not come_in
            other.execute("COMMIT").fetchall()
            assert [(await item).seq for item in again] == [item.seq for item in existing]
            connection.execute = real  # type: ignore[method-assign]

    asyncio.run(main())
    other.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let writers wait for another one only a moment."""
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_MS", 30)
    monkeypatch.setattr(sqlite_writer, "BUSY_TIMEOUT_MS", 30)


@pytest.mark.usefixtures("impatient")
def test_a_writer_that_waited_too_long_raises_busy(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db")) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create()
        with somebody_writing(tmp_path / "a.db"):
            for call in (acme.sessions.create, lambda: acme.messages.append(session.id, role="user", content="x")):
                with raises(Busy):
                    call()
        assert acme.messages.append(session.id, role="user", content="x").seq == 1


@pytest.mark.usefixtures("impatient")
def test_an_asynchronous_writer_that_waited_too_long_raises_busy(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            with somebody_writing(tmp_path / "a.db"):
                calls = [acme.messages.append(session.id, role="user", content="x") for _ in range(3)]
                answers = await asyncio.gather(*calls, return_exceptions=True)
                assert [type(answer).__bases__[-1] for answer in answers] == [Unavailable] * 3
            assert (await acme.messages.append(session.id, role="user", content="x")).seq == 1

    asyncio.run(main())


@pytest.mark.usefixtures("impatient")
def test_a_new_file_locked_by_another_process_is_unavailable(tmp_path: Path) -> None:
    with somebody_writing(tmp_path / "a.db"), pytest.raises(Unavailable):
        Holdfast(str(tmp_path / "a.db"))
    Holdfast(str(tmp_path / "a.db")).close()
