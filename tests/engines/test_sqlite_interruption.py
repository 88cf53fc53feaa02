"""Interrupted, cancelled, closed and abandoned calls on SQLite: whole or absent, and nobody else is held up."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

import holdfast
from holdfast import AsyncHoldfast, Holdfast
from holdfast.engines.protocol import Connection
from holdfast.errors import Closed, OutcomeUnknown
from holdfast.ids import SeededIds
from holdfast.stepping import step
from holdfast.testing.disk import Attempt, Disk
from tests.engines.scripts import run_script
from tests.engines.sqlite_handles import in_threads, on_disk_async

PATIENCE_S = 20.0
SOURCE = str(Path(holdfast.__file__).parent)
ENGINE = tuple(str(Path(SOURCE, part)) for part in ("engines/sqlite", "drivers/apsw.py", "drivers/sqlite3.py"))


class Interrupter:
    """Raises ``KeyboardInterrupt`` at the n-th line that the engine runs in this thread, as a signal handler would."""

    def __init__(self, line: int) -> None:
        self._left = line
        self.where: str | None = None

    def __enter__(self) -> Interrupter:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(SOURCE):
            return None
        if event == "line" and name.startswith(ENGINE):
            self._left -= 1
            if self._left == 0:
                self.where = f"{Path(name).name}:{frame.f_lineno}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace


def interrupted(line: int, call: Callable[[], Any]) -> tuple[str | None, Any]:
    """Where a call was interrupted, if it got that far, and what came of it."""
    with Interrupter(line) as interrupter:
        try:
            answer = call()
        except (KeyboardInterrupt, OutcomeUnknown) as error:
            answer = error
    return interrupter.where, answer


@pytest.mark.parametrize("library", ["apsw", "stdlib"])
def test_a_writer_interrupted_at_any_line_leaves_a_whole_call_or_none_and_a_working_handle(
    tmp_path: Path, library: Any
) -> None:
    with Holdfast(str(tmp_path / "a.db"), sqlite=library) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create()
        acme.messages.append(session.id, role="user", content="everything is prepared by now")
        ids = SeededIds(3)

        def append(message: str) -> Any:
            return acme.messages.append(session.id, role="user", content="x", id=message)

        def there() -> set[str]:
            return {message.id for message in acme.messages.list(session.id)}

        lines, where = 0, "start"
        while where is not None:
            lines += 1
            mine, theirs = ids.new(), ids.new()
            where, answer = in_threads([partial(interrupted, lines, partial(append, mine))], patience_s=PATIENCE_S)[0]
            then = there()
            (other,) = in_threads([partial(append, theirs)], patience_s=PATIENCE_S)
            assert other.id == theirs, f"after an interruption at {where}"
            assert there() == then | {theirs}, f"the call interrupted at {where} happened later, with somebody else's"
            if not isinstance(answer, BaseException):
                assert mine in then
        assert lines > 40
        found = acme.messages.list(session.id)
        assert [message.seq for message in found] == list(range(1, len(found) + 1))
        assert acme.sessions.get(session.id).message_count == len(found)


def test_a_leader_interrupted_at_any_line_leaves_nobody_waiting(tmp_path: Path) -> None:
    """Three calls wait behind a long one; the first of them, which will lead for all, is interrupted."""
    with Holdfast(str(tmp_path / "a.db")) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create()
        acme.messages.append(session.id, role="user", content="everything is prepared by now")

        def append() -> Any:
            try:
                return acme.messages.append(session.id, role="user", content="x").seq
            except OutcomeUnknown as error:
                return error

        line, where, led = 0, "start", 0
        while where is not None:
            line += 1
            (where, _), *others = behind_a_long_call(hf._engine, [partial(interrupted, line, append), append, append])
            led += sum(isinstance(answer, OutcomeUnknown) for answer in others)
            assert all(isinstance(answer, (int, OutcomeUnknown)) for answer in others), f"interrupted at {where}"
        assert line > 60
        assert led > 0, "no leader was interrupted while it led for others"
        found = acme.messages.list(session.id)
        assert [message.seq for message in found] == list(range(1, len(found) + 1))
        assert acme.sessions.get(session.id).message_count == len(found)


def behind_a_long_call(engine: Any, work: list[Callable[[], Any]]) -> list[Any]:
    """Run each in its own thread while the writer is busy, and free the writer when they have queued in this order."""
    is_busy, go_on = threading.Event(), threading.Event()

    async def long_call(connection: Connection) -> None:
        is_busy.set()
        assert go_on.wait(PATIENCE_S)

    def queued(place: int) -> Any:
        turns[place].wait(PATIENCE_S)
        try:
            return work[place]()
        finally:
            ended[place].set()

    def conduct() -> None:
        assert is_busy.wait(PATIENCE_S)
        for turn, end in zip(turns, ended, strict=True):
            before = last_waiting(engine)
            turn.set()
            while last_waiting(engine) in (None, before) and not end.wait(0.0001):
                pass  # one that is interrupted before it queues never does
        go_on.set()

    turns, ended = [threading.Event() for _ in work], [threading.Event() for _ in work]
    everybody = [lambda place=place: queued(place) for place in range(len(work))]
    answers = in_threads([*everybody, lambda: step(engine.write(long_call)), conduct], patience_s=PATIENCE_S)
    assert answers[-2:] == [None, None]
    return answers[: len(work)]


def last_waiting(engine: Any) -> object:
    try:
        return engine._waiting[-1]
    except IndexError:
        return None


CTRL_C = """
    import os, signal, sys, threading
    from holdfast import Holdfast
    from holdfast.stepping import step

    hf = Holdfast(sys.argv[1])
    acme = hf.tenant("acme")
    session = acme.sessions.create()
    is_busy, go_on = threading.Event(), threading.Event()

    async def long_call(connection):
        is_busy.set()
        go_on.wait()

    def append(text):
        acme.messages.append(session.id, role="user", content=text)

    def wait_for(number):
        while len(hf._engine._waiting) < already + number:
            pass

    def last():
        wait_for(1)
        append("behind it")

    def interrupt():
        wait_for(2)
        os.kill(os.getpid(), signal.SIGINT)

    leader = threading.Thread(target=lambda: step(hf._engine.write(long_call)))
    leader.start()
    is_busy.wait()
    already = len(hf._engine._waiting)
    others = [threading.Thread(target=last), threading.Thread(target=interrupt)]
    for each in others:
        each.start()
    try:
        append("interrupted")
    except KeyboardInterrupt:
        print("interrupted")
    go_on.set()
    for each in [leader, *others]:
        each.join()
    append("afterwards")
    print([message.content[0]["text"] for message in acme.messages.list(session.id)])
    hf.close()
"""


def test_ctrl_c_while_waiting_withdraws_the_call_and_wakes_the_next(tmp_path: Path) -> None:
    said = run_script(CTRL_C, str(tmp_path / "a.db"))
    assert said == "interrupted\n['behind it', 'afterwards']\n"


@pytest.mark.parametrize("slow", [False, True])
def test_cancelled_calls_are_whole_or_absent_and_answers_stay_with_their_requests(tmp_path: Path, slow: bool) -> None:
    """Cancelled at every stage: before they are sent, while they wait for the writer, while it flushes."""
    random = Random(4)
    cancelled = 0

    def hold_up(kind: Attempt, file: str) -> None:
        if slow and kind == "sync":
            threading.Event().wait(0.002)

    async def main() -> None:
        nonlocal cancelled
        with Disk(watch=hold_up) as disk:
            handle = await on_disk_async(tmp_path, disk)
            acme = handle.tenant("acme")
            session = await acme.sessions._async.create()
            ids = SeededIds(5)
            for _ in range(60):
                names = [ids.new() for _ in range(6)]
                tasks = [
                    asyncio.create_task(acme.messages._async.append(session.id, role="user", content=name, id=name))
                    for name in names
                ]
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(random.choice((0, 0, 0.001)))
                for task in random.sample(tasks, 3):
                    task.cancel()
                answers = await asyncio.gather(*tasks, return_exceptions=True)
                for name, answer in zip(names, answers, strict=True):
                    if isinstance(answer, asyncio.CancelledError):
                        cancelled += 1
                    else:
                        assert answer.id == name
                        assert answer.content == [{"type": "text", "text": name}]
            there = await acme.messages._async.list(session.id)
            assert [message.seq for message in there] == list(range(1, len(there) + 1))
            assert (await acme.sessions._async.get(session.id)).message_count == len(there)
            await handle.engine.close()

    asyncio.run(main())
    assert cancelled > 20


def test_closing_finishes_what_was_accepted_and_refuses_the_rest(tmp_path: Path) -> None:
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
def test_closing_an_asynchronous_handle_finishes_what_was_accepted(tmp_path: Path, slow: bool) -> None:
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
def test_a_program_that_ends_without_closing_ends(tmp_path: Path, script: str) -> None:
    assert run_script(script, str(tmp_path / "a.db")) == "leaving\n"
    with Holdfast(str(tmp_path / "a.db")) as hf:
        (session,) = hf.tenant("acme").sessions.list()
        there = hf.tenant("acme").messages.list(session.id)
        assert [message.seq for message in there] == list(range(1, len(there) + 1))


def test_an_asynchronous_handle_can_be_opened_again_in_another_loop(tmp_path: Path) -> None:
    async def main() -> int:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            await hf.tenant("acme").sessions.create()
            return await hf.tenant("acme").sessions.count()

    assert [asyncio.run(main()) for _ in range(3)] == [1, 2, 3]
