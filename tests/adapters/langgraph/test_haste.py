"""Where the asynchronous calls of a saver are made: in the event loop while they are quick, in a thread otherwise."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.adapters.langgraph import HoldfastSaver, Retention
from holdfast.adapters.langgraph.saver import LONG_S
from holdfast.haste import Pace
from tests.adapters.langgraph.graphs import chat_graph, say, thread

HERE, AWAY = "in the loop", "in a thread"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "agents.db")


class _Always:
    """A pace that stays what it is, whatever the machine that runs this test has to do."""

    def __init__(self, *, quick: bool) -> None:
        self._quick = quick

    def observe(self, waited_s: float) -> None:
        """Nothing comes of it."""

    def quick(self) -> bool:
        return self._quick


def _saver(where: str, *, quick: bool = True, **options: Any) -> HoldfastSaver:
    saver = HoldfastSaver(where, **options)
    saver._pace = _Always(quick=quick)  # type: ignore[assignment]
    return saver


def _watched(saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is asked of a saver, and where it is done."""
    made: list[tuple[str, str]] = []

    def watch(name: str, method_name: str) -> None:
        method = getattr(saver, method_name)

        def call(*args: Any, **kwargs: Any) -> Any:
            made.append((name, HERE if threading.current_thread() is threading.main_thread() else AWAY))
            return method(*args, **kwargs)

        monkeypatch.setattr(saver, method_name, call)

    for name, method_name in (("get_tuple", "get_tuple"), ("put", "_put_with"), ("put_writes", "put_writes")):
        watch(name, method_name)
    return made


def _talked(saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch, *, turns: int = 1) -> list[tuple[str, str]]:
    """Where the calls of some turns of a conversation that has begun are made."""
    made = _watched(saver, monkeypatch)

    async def main() -> None:
        graph = chat_graph(saver)
        await graph.ainvoke(say(1), thread(), durability="sync")
        made.clear()
        for number in range(2, turns + 2):
            await graph.ainvoke(say(number), thread(), durability="sync")
        state = await graph.aget_state(thread())
        assert len(state.values["messages"]) == 2 * (turns + 1)

    asyncio.run(main())
    return made


def test_nothing_is_known_at_first_so_that_the_loop_waits_for_no_opening_and_no_history(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _saver(path) as saver:
        made = _watched(saver, monkeypatch)
        asyncio.run(chat_graph(saver).ainvoke(say(1), thread(), durability="sync"))
        assert made[0] == ("get_tuple", AWAY)
        assert made[1][1] == AWAY
        assert made[-1][1] == HERE
    with _saver(path) as another:
        made = _watched(another, monkeypatch)
        asyncio.run(another.aget_tuple(thread()))
        asyncio.run(another.aget_tuple(thread()))
    assert made == [("get_tuple", AWAY), ("get_tuple", HERE)]


def test_a_conversation_that_is_known_goes_on_in_the_loop(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with _saver(path) as saver:
        made = _talked(saver, monkeypatch, turns=3)
    assert {name for name, _ in made} == {"get_tuple", "put"}
    assert {where for _, where in made} == {HERE}


def test_where_the_disk_is_slow_the_loop_waits_for_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with _saver(path, quick=False) as saver:
        made = _talked(saver, monkeypatch)
    assert {where for _, where in made} == {AWAY}


def test_what_removes_old_checkpoints_now_and_then_is_done_in_a_thread(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _saver(path, retention=Retention(last=2)) as saver:
        made = _talked(saver, monkeypatch)
    assert {where for name, where in made if name == "put"} == {AWAY}
    assert {where for name, where in made if name == "get_tuple"} == {HERE}


def test_on_postgres_everything_is_done_in_threads(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with _saver(postgres_url) as saver:
        made = _talked(saver, monkeypatch)
    assert {where for _, where in made} == {AWAY}


def test_after_a_call_that_took_long_the_next_is_made_in_a_thread(path: str) -> None:
    where: list[bool] = []

    def note(config: Any, seconds: float) -> None:
        where.append(threading.current_thread() is threading.main_thread())
        _work(seconds)

    async def main(saver: HoldfastSaver) -> None:
        await chat_graph(saver).ainvoke(say(1), thread(), durability="sync")
        saver._pace = Pace()
        await saver._soon(note, thread(), LONG_S * 1.2)
        await saver._soon(note, thread(), 0.0)

    with HoldfastSaver(path) as saver:
        asyncio.run(main(saver))
    assert where == [True, False]


def _work(seconds: float) -> None:
    """Work, so that it is not waiting that counts."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1_000))


def test_while_another_process_writes_the_loop_goes_on_and_everything_is_saved(path: str) -> None:
    async def main(saver: HoldfastSaver) -> tuple[float, list[Any]]:
        graph = chat_graph(saver)
        await graph.ainvoke(say(1), thread(), durability="sync")
        other = apsw.Connection(path)
        other.execute("BEGIN IMMEDIATE")
        turn = asyncio.create_task(graph.ainvoke(say(2), thread(), durability="sync"))
        longest, last = 0.0, time.monotonic()
        for _ in range(50):
            await asyncio.sleep(0.01)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        assert not turn.done()
        other.execute("COMMIT")
        other.close()
        await turn
        return longest, (await graph.aget_state(thread())).values["messages"]

    with _saver(path) as saver:
        longest, messages = asyncio.run(main(saver))
    assert longest < 10  # a loop that waited for the other would do so for the half minute until it gives up
    assert len(messages) == 4
