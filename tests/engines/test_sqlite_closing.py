"""Handles on SQLite that are closed, abandoned or opened again, and failed openings."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AsyncHoldfast, Holdfast
from holdfast.errors import Closed, InvalidInput
from holdfast.testing.disk import Attempt, Disk
from tests.engines.other_loops import refused_in_another_loop
from tests.engines.scripts import run_script
from tests.engines.sqlite_handles import in_threads, on_disk_async

PATIENCE_S = 60.0
SOURCE = str(Path(holdfast.__file__).parent)
ENGINE = tuple(str(Path(SOURCE, part)) for part in ("engines/sqlite", "drivers/apsw.py", "drivers/sqlite3.py"))


def test_closing_finishes_accepted_calls_and_refuses_later_ones(tmp_path: Path) -> None:
    hf = Holdfast(str(tmp_path / "a.db"))
    acme = hf.tenant("acme")
    session = acme.sessions.create()
    accepted: list[str] = []
    enough = threading.Event()

    def write() -> None:
        while True:
            accepted.append(acme.messages.append(session.id, role="user", content="x").id)
            if len(accepted) > 40:
                enough.set()

    def close() -> None:
        assert enough.wait(PATIENCE_S)
        hf.close()

    answers = in_threads([write] * 4 + [close], patience_s=PATIENCE_S)
    assert [type(answer) for answer in answers] == [Closed] * 4 + [type(None)]
    with Holdfast(str(tmp_path / "a.db")) as again:
        assert {message.id for message in again.tenant("acme").messages.list(session.id)} == set(accepted)


@pytest.mark.parametrize("slow", [False, True])
def test_closing_an_asynchronous_handle_finishes_accepted_calls(tmp_path: Path, slow: bool) -> None:
    def hold_up(kind: Attempt, file: str) -> None:
        if slow and kind == "sync":
            threading.Event().wait(0.005)

    async def main() -> list[Any]:
        with Disk(watch=hold_up) as disk:
            handle = await on_disk_async(tmp_path, disk)
            acme = handle.tenant("acme")
            session = await acme.sessions._async.create()
            for _ in range(20):  # enough to notice that the disk is slow
                await acme.messages._async.append(session.id, role="user", content="before")
            appends = [
                asyncio.create_task(acme.messages._async.append(session.id, role="user", content="x"))
                for _ in range(50)
            ]
            await asyncio.sleep(0)
            late = asyncio.create_task(acme.messages._async.append(session.id, role="user", content="too late"))
            await handle.engine.close()
            return await asyncio.gather(*appends, late, return_exceptions=True)

    *answers, late = asyncio.run(main())
    assert [answer.seq for answer in answers] == list(range(21, 71))
    with Holdfast(str(tmp_path / "cut.db")) as hf:
        (session,) = hf.tenant("acme").sessions.list()
        assert session.message_count == 70 + (not isinstance(late, Closed))


ABANDONED = """
    import sys, threading
    from holdfast import Holdfast

    hf = Holdfast(sys.argv[1])
    acme = hf.tenant("acme")
    session = acme.sessions.create()
    acme.messages.list(session.id)
    started = threading.Event()

    def write():
        while True:
            acme.messages.append(session.id, role="user", content="x")
            started.set()

    for _ in range(3):
        threading.Thread(target=write, daemon=True).start()
    started.wait()
    print("leaving")
"""

ABANDONED_ASYNC = """
    import asyncio, sys
    from holdfast import AsyncHoldfast

    async def main():
        hf = await AsyncHoldfast(sys.argv[1]).open()
        acme = hf.tenant("acme")
        session = await acme.sessions.create()
        await acme.messages.list(session.id)
        for _ in range(100):
            await asyncio.gather(*[acme.messages.append(session.id, role="user", content="x") for _ in range(8)])
        asyncio.create_task(acme.messages.append(session.id, role="user", content="never awaited"))
        print("leaving")

    asyncio.run(main())
"""


@pytest.mark.parametrize("script", [ABANDONED, ABANDONED_ASYNC])
def test_a_program_that_does_not_close_its_handle_still_exits(tmp_path: Path, script: str) -> None:
    assert run_script(script, str(tmp_path / "a.db")) == "leaving\n"
    with Holdfast(str(tmp_path / "a.db")) as hf:
        (session,) = hf.tenant("acme").sessions.list()
        messages = hf.tenant("acme").messages.list(session.id)
        assert [message.seq for message in messages] == list(range(1, len(messages) + 1))


def test_an_asynchronous_handle_can_be_opened_again_in_another_loop(tmp_path: Path) -> None:
    async def main() -> int:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            await hf.tenant("acme").sessions.create()
            return await hf.tenant("acme").sessions.count()

    assert [asyncio.run(main()) for _ in range(3)] == [1, 2, 3]


def test_opening_twice_is_harmless_and_a_closed_handle_can_be_opened_again(tmp_path: Path) -> None:
    async def main() -> list[int]:
        hf = await AsyncHoldfast(str(tmp_path / "a.db")).open()
        writers = sum(thread.name == "holdfast-writer" for thread in threading.enumerate())
        async with hf, hf:
            await asyncio.gather(hf.open(), hf.open())
            assert sum(thread.name == "holdfast-writer" for thread in threading.enumerate()) == writers
            await hf.tenant("acme").sessions.create()
        counts: list[int] = []
        for _ in range(2):
            await asyncio.gather(hf.open(), hf.open())
            await hf.tenant("acme").sessions.create()
            for _ in range(40):
                hf._engine._read_pace.observe(1.0)  # so that threads read
                counts.append(await hf.tenant("acme").sessions.count())
            await hf.close()
        with pytest.raises(Closed):
            await hf.tenant("acme").sessions.count()
        return counts

    actual = asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert actual == [2] * 40 + [3] * 40


def test_a_call_from_another_event_loop_is_refused_and_has_no_effect(tmp_path: Path) -> None:
    refused_in_another_loop(AsyncHoldfast(str(tmp_path / "a.db")))


@pytest.mark.parametrize("library", ["apsw", "stdlib"])
def test_opening_that_is_cancelled_at_any_moment_releases_the_file(tmp_path: Path, library: Any) -> None:
    other = "stdlib" if library == "apsw" else "apsw"

    async def main() -> int:
        cancelled = 0
        for number in range(30):
            path = str(tmp_path / f"{number}.db")
            opening = asyncio.create_task(AsyncHoldfast(path, sqlite=library).open())
            await asyncio.sleep(0.001 * number)
            opening.cancel()
            try:
                hf = await asyncio.wait_for(opening, PATIENCE_S)
            except asyncio.CancelledError:
                cancelled += 1
            else:
                await hf.close()
            await asyncio.to_thread(wait_until_free, path, other)
        return cancelled

    assert asyncio.run(main()) > 5


def wait_until_free(path: str, library: Any) -> None:
    """Open a file through the other library, which is refused while the first has it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            Holdfast(path, sqlite=library).close()
            return
        except InvalidInput:
            assert time.monotonic() < deadline, "the file was never let go of"
            time.sleep(0.01)
