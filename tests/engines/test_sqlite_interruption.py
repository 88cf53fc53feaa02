"""Interrupted and cancelled calls on SQLite: complete or without effect, and other callers are not blocked."""

from __future__ import annotations

import asyncio
import signal
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
from holdfast import Holdfast
from holdfast.engines.protocol import Connection
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.ids import SeededIds
from holdfast.sync_runner import step
from holdfast.testing.disk import Attempt, Disk
from tests.engines.scripts import run_script
from tests.engines.sqlite_handles import in_threads, on_disk_async
from tests.errors import raises

PATIENCE_S = 60.0
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
    """Return where a call was interrupted, if it was, and its result."""
    with Interrupter(line) as interrupter:
        try:
            answer = call()
        except (KeyboardInterrupt, OutcomeUnknown) as error:
            answer = error
    return interrupter.where, answer


@pytest.mark.parametrize("library", ["apsw", "stdlib"])
def test_a_writer_interrupted_at_any_line_leaves_a_complete_call_or_none(tmp_path: Path, library: Any) -> None:
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
            assert there() == then | {theirs}, (
                f"the call interrupted at {where} was executed later, with another caller's"
            )
            if not isinstance(answer, BaseException):
                assert mine in then
        assert lines > 40
        messages = acme.messages.list(session.id)
        assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
        assert acme.sessions.get(session.id).message_count == len(messages)


def test_a_leader_interrupted_at_any_line_leaves_no_caller_waiting(tmp_path: Path) -> None:
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
            unknown = [answer for answer in others if isinstance(answer, OutcomeUnknown)]
            assert len({answer.id for answer in unknown} - {None}) == len(unknown), "each is told an id of its own"
            led += len(unknown)
            assert all(isinstance(answer, (int, OutcomeUnknown)) for answer in others), f"interrupted at {where}"
        assert line > 60
        assert led > 0, "no leader was interrupted while it led for others"
        messages = acme.messages.list(session.id)
        assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
        assert acme.sessions.get(session.id).message_count == len(messages)


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


@pytest.mark.parametrize("place", [":memory:", "a.db"])
@pytest.mark.parametrize("library", ["apsw", "stdlib"])
def test_a_signal_handler_cannot_use_the_handle_during_a_write(
    tmp_path: Path, place: str, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Holdfast(place if place == ":memory:" else str(tmp_path / place), sqlite=library) as hf:
        acme = hf.tenant("acme")
        chat, log = acme.sessions.create(), acme.sessions.create()
        refused: list[str] = []
        uses = [lambda: acme.messages.append(log.id, role="system", content="going down"), hf.close]
        uses += [lambda: acme.messages.list(log.id)] if place == ":memory:" else []

        def handle(*_: object) -> None:
            for use in uses:
                with raises(Unavailable) as error:
                    use()
                refused.append(str(error.value))

        connection = hf._engine._connection
        real = connection.execute

        def execute(sql: str, args: Any = ()) -> Any:
            result = real(sql, args)
            if sql in ("BEGIN IMMEDIATE", "COMMIT"):
                signal.raise_signal(signal.SIGUSR1)
            return result

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            monkeypatch.setattr(connection, "execute", execute)
            assert acme.messages.append(chat.id, role="user", content="hello").seq == 1
            monkeypatch.undo()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(refused) == 2 * len(uses)
        assert acme.messages.append(chat.id, role="user", content="again").seq == 2
        assert acme.messages.list(log.id) == []
        assert in_threads([lambda: acme.messages.append(log.id, role="user", content="x").seq]) == [1]


def test_a_signal_handler_cannot_write_while_its_thread_waits_for_the_writer(
    tmp_path: Path,
) -> None:
    output = run_script(WRITES_WHILE_WAITING, str(tmp_path / "a.db"))
    assert output == "refused\n['hello']\n"


WRITES_WHILE_WAITING = """
    import os, signal, sys, threading
    from holdfast import Holdfast
    from holdfast.errors import Unavailable
    from holdfast.sync_runner import step

    hf = Holdfast(sys.argv[1])
    acme = hf.tenant("acme")
    session = acme.sessions.create()
    is_busy, go_on = threading.Event(), threading.Event()

    async def long_call(connection):
        is_busy.set()
        go_on.wait()

    def handle(*_):
        try:
            acme.messages.append(session.id, role="system", content="going down")
        except Unavailable:
            print("refused")
        go_on.set()

    def interrupt():
        while not hf._engine._waiting:
            pass
        os.kill(os.getpid(), signal.SIGUSR1)
        go_on.wait(5)
        go_on.set()

    signal.signal(signal.SIGUSR1, handle)
    others = [threading.Thread(target=lambda: step(hf._engine.write(long_call)), daemon=True)]
    others[0].start()
    is_busy.wait()
    others.append(threading.Thread(target=interrupt, daemon=True))
    others[1].start()
    acme.messages.append(session.id, role="user", content="hello")
    for each in others:
        each.join()
    print([message.content[0]["text"] for message in acme.messages.list(session.id)])
    hf.close()
"""

CTRL_C = """
    import os, signal, sys, threading
    from holdfast import Holdfast
    from holdfast.sync_runner import step

    signal.signal(signal.SIGINT, signal.default_int_handler)  # not installed if the tests run in the background
    hf = Holdfast(sys.argv[1])
    acme = hf.tenant("acme")
    session = acme.sessions.create()
    is_busy, go_on, heard = threading.Event(), threading.Event(), threading.Event()

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
        while not heard.is_set():  # Python does not hear one that comes just before it falls asleep
            os.kill(os.getpid(), signal.SIGINT)
            heard.wait(5)

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
        heard.set()
        print("interrupted")
    go_on.set()
    for each in [leader, *others]:
        each.join()
    append("afterwards")
    print([message.content[0]["text"] for message in acme.messages.list(session.id)])
    hf.close()
"""


def test_ctrl_c_while_waiting_withdraws_the_call_and_wakes_the_next(tmp_path: Path) -> None:
    output = run_script(CTRL_C, str(tmp_path / "a.db"))
    assert output == "interrupted\n['behind it', 'afterwards']\n"


@pytest.mark.parametrize("slow", [False, True])
def test_cancelled_calls_are_complete_or_absent_and_results_match_their_calls(tmp_path: Path, slow: bool) -> None:
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
            existing = await acme.messages._async.list(session.id)
            assert [message.seq for message in existing] == list(range(1, len(existing) + 1))
            assert (await acme.sessions._async.get(session.id)).message_count == len(existing)
            await handle.engine.close()

    asyncio.run(main())
    assert cancelled > 20
