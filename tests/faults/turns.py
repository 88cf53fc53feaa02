"""Turns: several calls at once that share one commit, on either SQLite engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from holdfast.engines.protocol import Connection
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.engines.sqlite.engine_async import AsyncSqliteEngine
from holdfast.engines.sqlite.file import SqliteFile
from holdfast.errors import HoldfastError
from holdfast.ids import SeededIds
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.sync_runner import step
from tests.workloads import workloads
from tests.workloads.workloads import Call, OnEngine


def shared_turn(turn: int) -> list[Call]:
    """Return concurrent calls whose order makes no difference."""
    sessions = [SeededIds(n).new() for n in range(4)]
    ids = SeededIds(1_000 + turn)

    def call(method: str, *args: Any, **kwargs: Any) -> Call:
        return Call(turn, method, "acme", args, kwargs)

    def append(session: str, content: str) -> Call:
        return call("messages.append", session, role="user", content=content, id=ids.new())

    if turn == 0:
        return [call("sessions.create", id=item) for item in sessions]
    several = [NewMessage(role="user", content=f"{turn} of several {n}", id=ids.new()) for n in range(3)]
    return [
        append(sessions[0], f"{turn} one"),
        append(sessions[1], f"{turn} two" * 900),
        append(SeededIds(9).new(), "to a session that is not there"),
        call("messages.append_many", sessions[0], several),
        call("sessions.update", sessions[3], metadata={"turn": turn}),
        call("sessions.restore", SeededIds(9).new()),
        append(sessions[2], f"{turn} three"),
    ]


Turns = Iterator[tuple[list[Call], list[Any] | None]]
"""Each turn twice: when it begins, and, with the answers, when all its calls were answered."""


def turns_in_tasks(file: SqliteFile, groups: list[list[Call]]) -> Turns:
    """Run the turns on the asynchronous engine, with the calls of one turn in tasks."""
    with asyncio.Runner() as runner:
        engine = AsyncSqliteEngine(file)
        handle = OnEngine(engine)
        runner.run(engine.open())
        runner.run(handle.migrate())

        async def answers(group: list[Call]) -> list[Any]:
            return await asyncio.gather(*[call.coroutine(handle) for call in group])

        for group in groups:
            yield group, None
            yield group, runner.run(answers(group))
        runner.run(engine.close())


def turns_in_threads(file: SqliteFile, groups: list[list[Call]]) -> Turns:
    """Run the turns on the blocking engine, with the calls of one turn in threads."""
    engine = SqliteEngine(file)
    handle = workloads.on_engine(engine)
    for group in groups:
        yield group, None
        yield group, together(engine, [call.bind(handle) for call in group])
    handle.close()


def together(engine: SqliteEngine, work: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run all calls in one commit, in this order: the writer is busy until all of them wait."""
    is_busy, everybody_waits = threading.Event(), threading.Event()
    answers: list[Any] = [None] * len(work)

    async def keep_busy(connection: Connection) -> None:
        is_busy.set()
        assert everybody_waits.wait(60)

    def answer(place: int) -> None:
        answers[place] = work[place]()

    def lead() -> None:
        with suppress(HoldfastError):
            step(engine.write(keep_busy))

    threads = [threading.Thread(target=lead)]
    threads[0].start()
    while threads[0].is_alive() and not is_busy.wait(0.001):
        pass  # an engine that refuses to write ends at once
    for place in range(len(work)):
        before = len(engine._waiting)
        threads.append(threading.Thread(target=answer, args=(place,)))
        threads[-1].start()
        while threads[-1].is_alive() and len(engine._waiting) == before:
            pass  # a call that is refused at once ends without waiting
    everybody_waits.set()
    for thread in threads:
        thread.join()
    return answers
