"""One saver for synchronous and asyncio calls, with a handle for each style on the same database."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import AsyncHoldfast, Holdfast, TenantHandle
from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.adapters.langgraph.database import Database
from holdfast.errors import Closed, Conflict, InvalidInput, Unavailable
from tests.adapters.langgraph.conftest import Savers
from tests.adapters.langgraph.graphs import chat_graph, say, thread
from tests.errors import raises


def said(state: Any) -> list[str]:
    return [message.id for message in state.values["messages"]]


def written(saver: HoldfastSaver, id: str) -> list[Any]:
    checkpoint = saver.get_tuple(thread(checkpoint_ns="", checkpoint_id=id))
    assert checkpoint is not None
    return list(checkpoint.pending_writes or [])


def checkpoint(id: str, *values: str) -> dict[str, Any]:
    return {
        "v": 4,
        "id": id,
        "ts": "",
        "channel_values": {"said": list(values)},
        "channel_versions": {"said": len(values)},
        "versions_seen": {},
    }


async def begun(saver: HoldfastSaver) -> Any:
    return await saver.aput(thread(checkpoint_ns=""), checkpoint("1", "a"), {"step": 0}, {"said": 1})


def test_a_conversation_continues_in_either_style_and_in_many_event_loops(saver: HoldfastSaver) -> None:
    graph = chat_graph(saver)
    graph.invoke(say(1), thread())
    asyncio.run(graph.ainvoke(say(2), thread()))
    graph.invoke(say(3), thread())

    async def twice() -> Any:
        await graph.ainvoke(say(4), thread())
        assert said(graph.get_state(thread())) == said(await graph.aget_state(thread()))
        return await graph.aget_state(thread())

    assert said(asyncio.run(twice())) == ["h1", "a1", "h2", "a2", "h3", "a3", "h4", "a4"]


def test_event_loops_in_several_threads_use_one_saver(saver: HoldfastSaver) -> None:
    def talk(name: str) -> int:
        async def turns() -> int:
            graph = chat_graph(saver)
            for number in range(1, 4):
                await graph.ainvoke(say(number), thread(name))
            return len((await graph.aget_state(thread(name))).values["messages"])

        return asyncio.run(turns())

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(talk, "abc")) == [6, 6, 6]
    assert [len(chat_graph(saver).get_state(thread(name)).values["messages"]) for name in "abc"] == [6, 6, 6]


def test_each_style_opens_its_own_handle_on_first_use(saver: HoldfastSaver) -> None:
    database = saver._database
    asyncio.run(saver.aget_tuple(thread()))
    assert database._sync is None

    async def main() -> None:
        await asyncio.gather(*(saver.aget_tuple(thread()) for _ in range(5)))
        assert len(database._loops) == 1
        store = await database.async_store()
        assert store._engine.blocking is False
        assert await database.async_store() is store

    asyncio.run(main())
    saver.get_tuple(thread())
    assert database._sync is not None
    assert database._sync._engine.blocking is True


def test_the_end_of_an_event_loop_closes_its_handle(saver: HoldfastSaver) -> None:
    engines: list[Any] = []

    async def main() -> None:
        await saver.aget_tuple(thread())
        engines.append((await saver._database.async_store())._engine)

    asyncio.run(main())
    asyncio.run(main())
    gc.collect()
    assert engines[0] is not engines[1]
    assert [engine._closed for engine in engines] == [True, True]
    assert saver._database._loops == {}


def test_a_closed_saver_opens_its_handles_again(address: str) -> None:
    async def main() -> None:
        async with HoldfastSaver(address) as saver:
            await chat_graph(saver).ainvoke(say(1), thread())
            first = (await saver._database.async_store())._engine
            await saver.aclose()
            assert first._closed
            await chat_graph(saver).ainvoke(say(2), thread())
            assert len(saver.get_tuple(thread()).checkpoint["channel_values"]["messages"]) == 4  # type: ignore[union-attr]
            opened = saver._database._sync
        assert opened is not None
        with pytest.raises(Closed):
            opened.checkpoints.find("t")
        assert saver._database._loops == {}

    asyncio.run(main())


def test_closing_a_saver_without_await_closes_the_handle_of_a_running_loop_too(address: str) -> None:
    async def main() -> None:
        with HoldfastSaver(address) as saver:
            await saver.asetup()
            engine = (await saver._database.async_store())._engine
        for _ in range(1_000):
            if engine._closed:
                break
            await asyncio.sleep(0.01)
        assert engine._closed
        await saver.aget_tuple(thread())  # and it opens another
        await saver.aclose()

    asyncio.run(main())


def test_opening_a_database_is_retried_after_a_failure(tmp_path: Path) -> None:
    folder = tmp_path / "later"

    async def main() -> None:
        async with HoldfastSaver(str(folder / "a.db")) as saver:
            for _ in range(2):
                with pytest.raises(Unavailable):
                    await saver.aget_tuple(thread())
            folder.mkdir()
            assert await saver.aget_tuple(thread()) is None

    asyncio.run(main())


def test_a_cancelled_caller_does_not_prevent_others_from_opening(saver: HoldfastSaver) -> None:
    async def main() -> None:
        first = asyncio.create_task(saver.aget_tuple(thread()))
        second = asyncio.create_task(saver.aget_tuple(thread()))
        await asyncio.sleep(0)
        first.cancel()
        assert await second is None
        assert first.cancelled()

    asyncio.run(main())


# A saver on a handle of the caller


def test_a_handle_serves_its_own_style_and_the_saver_opens_the_other_on_the_same_database(address: str) -> None:
    async def main(hf: AsyncHoldfast) -> None:
        async with HoldfastSaver(hf.tenant("acme")) as saver:
            graph = chat_graph(saver)
            await graph.ainvoke(say(1), thread())
            await asyncio.to_thread(graph.invoke, say(2), thread())
            assert (await saver._database.async_store())._engine._engine is hf._engine
            assert len((await graph.aget_state(thread())).values["messages"]) == 4
        assert await hf.tenant("acme").checkpoints.find("t") is not None

    async def opened() -> None:
        async with AsyncHoldfast(address, auto_migrate=True) as hf:
            await main(hf)

    asyncio.run(opened())
    with Holdfast(address) as hf, HoldfastSaver(hf.tenant("acme")) as saver:
        graph = chat_graph(saver)
        assert len(asyncio.run(graph.aget_state(thread())).values["messages"]) == 4
        asyncio.run(graph.ainvoke(say(3), thread()))
        assert len(graph.get_state(thread()).values["messages"]) == 6
        saver.close()
        assert hf.tenant("acme").checkpoints.find("t") is not None, "the handle of the caller stays open"


def test_an_invalid_location_is_refused(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db")) as hf:
        for wrong in (hf, 1, None, b"a.db"):
            with raises(InvalidInput, field="where"):
                HoldfastSaver(wrong)  # type: ignore[arg-type]


def test_both_styles_see_the_same_in_memory_database(tmp_path: Path) -> None:
    async def turn(graph: Any, number: int) -> None:
        await graph.ainvoke(say(number), thread())

    with Holdfast(":memory:") as hf:
        for saver in (HoldfastSaver(":memory:"), HoldfastSaver("sqlite://"), HoldfastSaver(hf.tenant("acme"))):
            with saver:
                graph = chat_graph(saver)
                graph.invoke(say(1), thread())
                asyncio.run(turn(graph, 2))
                assert len(graph.get_state(thread()).values["messages"]) == 4
                assert len(asyncio.run(graph.aget_state(thread())).values["messages"]) == 4
        assert hf.tenant("acme").checkpoints.find("t") is not None


def test_an_asynchronous_handle_in_memory_is_refused_by_synchronous_calls() -> None:
    async def main() -> None:
        async with AsyncHoldfast(":memory:") as hf:
            saver = HoldfastSaver(hf.tenant("acme"))
            await chat_graph(saver).ainvoke(say(1), thread())
            with raises(InvalidInput, field="url"):
                saver.get_tuple(thread())

    asyncio.run(main())


def joined(address: str, acme: TenantHandle) -> tuple[Any, TenantHandle]:
    connection: Any = (
        psycopg.connect(address)
        if "://" in address
        else apsw.Connection(address, flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_FULLMUTEX)
    )
    if "://" not in address:
        connection.execute("BEGIN IMMEDIATE")
    return connection, acme.join(connection)


def test_asynchronous_calls_in_a_transaction_of_the_caller_are_part_of_it(address: str) -> None:
    with Holdfast(address, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        for end, count in (("ROLLBACK", None), ("COMMIT", 2)):
            connection, handle = joined(address, acme)
            asyncio.run(chat_graph(HoldfastSaver(handle)).ainvoke(say(1), thread(), durability="sync"))
            connection.execute(end)
            connection.close()
            checkpoint = HoldfastSaver(acme).get_tuple(thread())
            assert (None if checkpoint is None else len(checkpoint.checkpoint["channel_values"]["messages"])) == count


def test_a_joined_asynchronous_handle_is_refused_by_synchronous_calls(tmp_path: Path) -> None:
    import aiosqlite

    path = str(tmp_path / "a.db")

    async def main() -> None:
        async with AsyncHoldfast(path, sqlite="stdlib") as hf, aiosqlite.connect(path) as connection:
            saver = HoldfastSaver(hf.tenant("acme").join(connection))
            with raises(InvalidInput, field="connection"):
                saver.get_tuple(thread())

    asyncio.run(main())


# Concurrent calls


def test_concurrent_writes_and_checkpoints_are_all_saved(savers: Savers) -> None:
    saver = savers()

    async def main() -> None:
        at = await begun(saver)
        await asyncio.gather(
            saver.aput_writes(at, [("said", "b"), ("__error__", "e")], "task 1", "~p"),
            saver.aput_writes(at, [("said", "c" * 500)], "task 2"),
            saver.aput(at, checkpoint("2", "a", "b", "c" * 500), {"step": 1}, {"said": 3}),
        )

    asyncio.run(main())
    for reader in (saver, savers()):
        assert sorted(written(reader, "1")) == [
            ("task 1", "__error__", "e"),
            ("task 1", "said", "b"),
            ("task 2", "said", "c" * 500),
        ]
        newest = reader.get_tuple(thread())
        assert newest is not None
        assert newest.checkpoint["channel_values"]["said"] == ["a", "b", "c" * 500]
    assert saver._database.sync_store().verify().damaged == []


def test_a_refused_call_does_not_affect_concurrent_calls(savers: Savers) -> None:
    saver = savers(single_writer=True)

    async def main() -> list[Any]:
        at = await begun(saver)
        await saver.aput(at, checkpoint("2", "a", "b"), {"step": 1}, {"said": 2})
        return await asyncio.gather(
            saver.aput_writes(at, [("said", "late")], "task"),
            saver.aput_writes(at, [("said", "without a task")], ""),
            saver.aput(at, checkpoint("3", "a", "late"), {"step": 1}, {"said": 2}),
            return_exceptions=True,
        )

    saved, nameless, refused = asyncio.run(main())
    assert (saved, type(nameless), type(refused)) == (None, InvalidInput, Conflict)
    assert written(saver, "1") == [("task", "said", "late")]
    assert saver.get_tuple(thread(checkpoint_ns="", checkpoint_id="3")) is None


def test_the_event_loop_is_not_blocked_while_another_process_writes(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")

    async def ticks() -> AsyncIterator[int]:
        for number in range(50):
            await asyncio.sleep(0.01)
            yield number

    async def main(saver: HoldfastSaver) -> int:
        graph = chat_graph(saver)
        await graph.ainvoke(say(1), thread(), durability="sync")
        other = apsw.Connection(path)
        other.execute("BEGIN IMMEDIATE")
        turn = asyncio.create_task(graph.ainvoke(say(2), thread(), durability="sync"))
        # A blocked loop would end the turn in an error, because only the loop can end the other transaction.
        async for _ in ticks():
            assert not turn.done()
        other.execute("COMMIT")
        other.close()
        await turn
        return len((await graph.aget_state(thread())).values["messages"])

    with HoldfastSaver(path) as saver:
        assert asyncio.run(main(saver)) == 4


def test_threads_that_open_the_handle_concurrently_share_it(address: str) -> None:
    database, together = Database(address, "default"), threading.Barrier(4)

    def store(_: int) -> Any:
        together.wait()
        return database.sync_store()

    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(store, range(4)))
    assert len({id(store) for store in stores}) == 1
    database.close()
