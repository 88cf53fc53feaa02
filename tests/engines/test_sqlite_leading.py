"""Under asyncio, the first caller in an iteration of the loop commits for all callers of that iteration."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncHoldfast
from holdfast.engines.sqlite.disk_latency import DiskLatency
from holdfast.errors import Closed
from holdfast.testing.disk import Attempt, Disk
from holdfast.types import AsyncMessages, Message
from tests.engines.sqlite_handles import on_disk_async


@pytest.fixture(autouse=True)
def a_quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls stay in the event loop even on a busy machine."""
    monkeypatch.setattr(DiskLatency, "quick", lambda pace: True)


@pytest.mark.parametrize("cancelled", [0, 1, 2])
def test_a_cancelled_write_does_not_affect_the_others_and_is_still_executed(tmp_path: Path, cancelled: int) -> None:
    async def main() -> tuple[list[Any], list[Message]]:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            acme = hf.tenant("acme")
            session = (await acme.sessions.create()).id
            tasks = [
                asyncio.create_task(acme.messages.append(session, role="user", content=str(number)))
                for number in range(3)
            ]
            await asyncio.sleep(0)  # now all three have asked, and the first is about to commit
            tasks[cancelled].cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            await acme.messages.append(session, role="user", content="after")
            return answers, [*await acme.messages.list(session)]

    answers, existing = asyncio.run(main())
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers].index(True) == cancelled
    assert [answer.seq for answer in answers if isinstance(answer, Message)] == [
        seq for seq in (1, 2, 3) if seq != cancelled + 1
    ]
    assert [message.content[0]["text"] for message in existing] == ["0", "1", "2", "after"]


def test_a_writer_that_never_pauses_does_not_starve_other_tasks(tmp_path: Path) -> None:
    async def main() -> int:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            acme = hf.tenant("acme")
            session = (await acme.sessions.create()).id
            return await _turns_beside(acme.messages, session, appends=50)

    assert asyncio.run(main()) >= 50


def test_calls_of_one_loop_iteration_share_one_flush(tmp_path: Path) -> None:
    flushes = 0

    def count(kind: Attempt, file: str) -> None:
        nonlocal flushes
        flushes += kind == "sync"

    async def main() -> tuple[int, list[Message]]:
        with Disk(watch=count) as disk:
            handle = await on_disk_async(tmp_path, disk)
            acme = handle.tenant("acme")
            sessions = [(await acme.sessions._async.create()).id for _ in range(8)]
            before = flushes
            made = await asyncio.gather(
                *(acme.messages._async.append(session, role="user", content="x") for session in sessions)
            )
            took = flushes - before
            await handle.engine.close()
            return took, [*made]

    took, made = asyncio.run(main())
    assert took == 1
    assert [message.seq for message in made] == [1] * 8


@pytest.mark.parametrize(("turns_late", "most"), [(0, 20), (1, 20), (3, 20), (9, 40)])
def test_a_commit_waits_briefly_for_callers_of_the_previous_one(tmp_path: Path, turns_late: int, most: int) -> None:
    flushes = 0

    def count(kind: Attempt, file: str) -> None:
        nonlocal flushes
        flushes += kind == "sync"

    async def main() -> int:
        with Disk(watch=count) as disk:
            handle = await on_disk_async(tmp_path, disk)
            acme = handle.tenant("acme")
            sessions = [(await acme.sessions._async.create()).id for _ in range(8)]

            async def write(place: int) -> None:
                for number in range(20):
                    for _ in range(turns_late if number and place % 2 else 0):
                        await asyncio.sleep(0)
                    await acme.messages._async.append(sessions[place], role="user", content="x")

            before = flushes
            await asyncio.gather(*map(write, range(8)))
            took = flushes - before
            await handle.engine.close()
            return took

    assert asyncio.run(main()) <= most


def test_a_single_writer_after_many_does_not_wait_for_others(tmp_path: Path) -> None:
    async def main() -> int:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            acme = hf.tenant("acme")
            session = (await acme.sessions.create()).id
            await asyncio.gather(*(acme.messages.append(session, role="user", content="x") for _ in range(8)))
            await acme.messages.append(session, role="user", content="the first alone still waits")
            return await _turns_beside(acme.messages, session, appends=20)

    assert asyncio.run(main()) <= 21


def test_an_error_reaches_its_caller_at_any_position_in_the_group(tmp_path: Path) -> None:
    async def main() -> list[Any]:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            acme = hf.tenant("acme")
            session = (await acme.sessions.create()).id
            removed = (await acme.sessions.create()).id
            await acme.sessions.delete(removed)
            asked = [removed, session, removed, session]
            return await asyncio.gather(
                *(acme.messages.append(item, role="user", content="x") for item in asked), return_exceptions=True
            )

    first, second, third, fourth = asyncio.run(main())
    assert (type(first).__name__, second.seq, type(third).__name__, fourth.seq) == ("NotFound", 1, "NotFound", 2)


def test_a_leader_gets_its_result_while_the_handle_is_closed(tmp_path: Path) -> None:
    async def main() -> tuple[list[Any], Any]:
        hf = await AsyncHoldfast(str(tmp_path / "a.db")).open()
        acme = hf.tenant("acme")
        session = (await acme.sessions.create()).id
        tasks = [
            asyncio.create_task(acme.messages.append(session, role="user", content=str(number))) for number in range(2)
        ]
        closing = asyncio.create_task(hf.close())
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        await closing
        with pytest.raises(Closed):
            await acme.messages.append(session, role="user", content="late")
        async with AsyncHoldfast(str(tmp_path / "a.db")) as again:
            return answers, await again.tenant("acme").messages.count(session)

    answers, count = asyncio.run(main())
    assert [answer.seq for answer in answers] == [1, 2]
    assert count == 2


async def _turns_beside(messages: AsyncMessages, session: str, *, appends: int) -> int:
    """Return how many iterations of the loop another task gets while a caller appends repeatedly without a pause."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    for _ in range(appends):
        await messages.append(session, role="user", content="x")
    beside.cancel()
    return turns
