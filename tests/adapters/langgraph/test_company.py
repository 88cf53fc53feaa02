"""What a task wrote is saved with the checkpoint that follows, where that saves a flush, and alone where none does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.adapters.langgraph.company import Company
from holdfast.adapters.langgraph.requests import Task
from holdfast.errors import Conflict, InvalidInput, OutcomeUnknown
from tests.adapters.langgraph.graphs import chat_graph, say, thread

SLOW_S = 0.05
THREAD = thread()["configurable"]["thread_id"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "agents.db")


def _checkpoint(id: str, *said: str) -> dict[str, Any]:
    versions = {"said": len(said)}
    return {
        "v": 4,
        "id": id,
        "ts": "",
        "channel_values": {"said": list(said)},
        "channel_versions": versions,
        "versions_seen": {},
    }


def _at(id: str, namespace: str = "") -> dict[str, Any]:
    return {"configurable": {"thread_id": THREAD, "checkpoint_ns": namespace, "checkpoint_id": id}}


async def _begun(saver: HoldfastSaver) -> dict[str, Any]:
    return await saver.aput(thread(), _checkpoint("1", "a"), {"step": 0}, {"said": 1})


def _written(saver: HoldfastSaver, id: str) -> list[tuple[str, str, Any]]:
    there = saver.get_tuple(_at(id))
    assert there is not None
    return [(task, channel, value) for task, channel, value in there.pending_writes or []]


def _transactions(saver: HoldfastSaver) -> list[int]:
    """Counts the transactions of a saver from now on."""
    connection, count = saver._opening.open()._engine._connection.raw, [0]  # type: ignore[union-attr]

    def one_more() -> bool:
        count[0] += 1
        return False

    connection.set_commit_hook(one_more)
    return count


def test_a_turn_of_a_conversation_is_flushed_as_often_as_it_has_checkpoints(path: str) -> None:
    async def main(saver: HoldfastSaver) -> tuple[int, int]:
        graph = chat_graph(saver)
        await graph.ainvoke(say(1), thread(), durability="sync")
        count = _transactions(saver)
        await graph.ainvoke(say(2), thread(), durability="sync")
        steps = len([each async for each in graph.aget_state_history(thread())])
        return count[0], steps // 2

    with HoldfastSaver(path) as saver:
        flushed, checkpoints = asyncio.run(main(saver))
    assert flushed == checkpoints


def test_what_went_along_is_what_would_have_been_saved_alone(path: str) -> None:
    async def main(saver: HoldfastSaver) -> None:
        at = await _begun(saver)
        count = _transactions(saver)
        await asyncio.gather(
            saver.aput_writes(at, [("said", "b"), ("__error__", "e")], "task 1", "~p"),
            saver.aput_writes(at, [("said", "c" * 500)], "task 2"),
            saver.aput(at, _checkpoint("2", "a", "b", "c" * 500), {"step": 1}, {"said": 3}),
        )
        assert count == [1]

    with HoldfastSaver(path) as saver:
        asyncio.run(main(saver))
        written = [("task 2", "said", "c" * 500), ("task 1", "__error__", "e"), ("task 1", "said", "b")]
        assert sorted(_written(saver, "1")) == sorted(written)
    with HoldfastSaver(path) as another:
        assert sorted(_written(another, "1")) == sorted(written)
        there = another.get_tuple(thread())
        assert there is not None
        assert there.checkpoint["channel_values"]["said"] == ["a", "b", "c" * 500]
    with Holdfast(path) as hf:
        assert hf.tenant("default").checkpoints.verify().damaged == []


def test_without_a_checkpoint_it_is_saved_alone_and_soon(path: str) -> None:
    async def main(saver: HoldfastSaver) -> None:
        at = await _begun(saver)
        await asyncio.wait_for(saver.aput_writes(at, [("said", "b")], "task"), 10)
        assert _written(saver, "1") == [("task", "said", "b")]
        assert saver._company._offers == {}

    with HoldfastSaver(path) as saver:
        asyncio.run(main(saver))


def test_a_checkpoint_of_another_thread_takes_nothing_along(path: str) -> None:
    async def main(saver: HoldfastSaver) -> None:
        at = await _begun(saver)
        count = _transactions(saver)
        other = {"configurable": {"thread_id": "other", "checkpoint_ns": ""}}
        await asyncio.gather(
            saver.aput_writes(at, [("said", "b")], "task"),
            saver.aput(other, _checkpoint("2", "x"), {"step": 0}, {"said": 1}),
        )
        assert count == [2]

    with HoldfastSaver(path) as saver:
        asyncio.run(main(saver))
        assert _written(saver, "1") == [("task", "said", "b")]


def test_when_the_checkpoint_is_refused_what_a_task_wrote_is_saved_all_the_same(path: str) -> None:
    async def main(saver: HoldfastSaver) -> list[Any]:
        at = await _begun(saver)
        await saver.aput(at, _checkpoint("2", "a", "b"), {"step": 1}, {"said": 2})
        return await asyncio.gather(
            saver.aput_writes(at, [("said", "late")], "task"),
            saver.aput(at, _checkpoint("3", "a", "late"), {"step": 1}, {"said": 2}),
            return_exceptions=True,
        )

    with HoldfastSaver(path, single_writer=True) as saver:
        alone, refused = asyncio.run(main(saver))
        assert (alone, type(refused)) == (None, Conflict)
        assert _written(saver, "1") == [("task", "said", "late")]
        assert saver.get_tuple(_at("3")) is None


def test_when_what_a_task_wrote_cannot_be_saved_the_checkpoint_is_saved_all_the_same(path: str) -> None:
    async def main(saver: HoldfastSaver) -> list[Any]:
        at = await _begun(saver)
        return await asyncio.gather(
            saver.aput_writes(at, [("said", "b")], ""),
            saver.aput(at, _checkpoint("2", "a", "b"), {"step": 1}, {"said": 2}),
            return_exceptions=True,
        )

    with HoldfastSaver(path) as saver:
        refused, saved = asyncio.run(main(saver))
        assert type(refused) is InvalidInput
        assert saved["configurable"]["checkpoint_id"] == "2"
        assert _written(saver, "1") == []


def test_a_task_under_another_lease_goes_alone_and_is_fenced(path: str) -> None:
    async def main(saver: HoldfastSaver, lease: tuple[str, int]) -> list[Any]:
        at = await _begun(saver)
        held = {"configurable": {**at["configurable"], "lease": lease}}
        return await asyncio.gather(
            saver.aput_writes(held, [("said", "b")], "task"),
            saver.aput(at, _checkpoint("2", "a", "b"), {"step": 1}, {"said": 2}),
            return_exceptions=True,
        )

    with Holdfast(path) as hf, HoldfastSaver(hf.tenant("acme")) as saver:
        acme = hf.tenant("acme")
        run = acme.runs.start(acme.sessions.create().id)
        refused, saved = asyncio.run(main(saver, (run.id, 0)))
        assert type(refused) is Conflict
        assert saved["configurable"]["checkpoint_id"] == "2"
        assert _written(saver, "1") == []


def test_when_nobody_knows_whether_it_was_saved_everybody_is_told(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(saver: HoldfastSaver) -> list[Any]:
        at = await _begun(saver)

        def lost(*args: Any) -> Any:
            raise OutcomeUnknown

        monkeypatch.setattr(saver, "_put_with", lost)
        return await asyncio.gather(
            saver.aput_writes(at, [("said", "b")], "task"),
            saver.aput(at, _checkpoint("2", "a", "b"), {"step": 1}, {"said": 2}),
            return_exceptions=True,
        )

    with HoldfastSaver(path) as saver:
        assert [type(each) for each in asyncio.run(main(saver))] == [OutcomeUnknown, OutcomeUnknown]


def test_a_checkpoint_that_is_cancelled_leaves_what_a_task_wrote_to_be_saved_alone(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(saver: HoldfastSaver) -> None:
        at = await _begun(saver)

        async def hangs(*args: Any) -> Any:
            await asyncio.sleep(3_600)

        monkeypatch.setattr(saver, "_put_soon", hangs)  # a disk that does not answer
        writing = asyncio.create_task(saver.aput_writes(at, [("said", "b")], "task"))
        putting = asyncio.create_task(saver.aput(at, _checkpoint("2", "a", "b"), {"step": 1}, {"said": 2}))
        await asyncio.sleep(SLOW_S)
        assert not writing.done()
        putting.cancel()
        await asyncio.wait_for(writing, 10)
        assert putting.cancelled()

    with HoldfastSaver(path) as saver:
        asyncio.run(main(saver))
        assert _written(saver, "1") == [("task", "said", "b")]


def test_a_task_that_is_cancelled_offers_nothing_any_more(path: str) -> None:
    async def main(saver: HoldfastSaver) -> None:
        at = await _begun(saver)
        writing = asyncio.create_task(saver.aput_writes(at, [("said", "b")], "task"))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert saver._company._offers == {}
        await saver.aput(at, _checkpoint("2", "a"), {"step": 1}, {"said": 1})

    with HoldfastSaver(path) as saver:
        asyncio.run(main(saver))
        assert _written(saver, "1") == []


def test_a_task_that_is_cancelled_after_it_was_taken_harms_nobody() -> None:
    async def main() -> None:
        company, saving = Company(), asyncio.Event()

        async def save(tasks: Sequence[Task]) -> int:
            await saving.wait()
            return len(tasks)

        waiting = asyncio.create_task(company.saved_with_checkpoint(_task()))
        checkpoint = asyncio.create_task(company.save_checkpoint(THREAD, save))
        await asyncio.sleep(SLOW_S)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        saving.set()
        assert await checkpoint == 1
        assert waiting.cancelled()

    asyncio.run(main())


def test_whoever_comes_while_a_checkpoint_is_saved_waits_for_the_next() -> None:
    """However long the first takes: nothing could be saved before it is over."""

    async def main() -> list[int]:
        company, taken = Company(), []

        async def save(tasks: Sequence[Task]) -> None:
            taken.append(len(tasks))
            await asyncio.sleep(SLOW_S)

        first = asyncio.create_task(company.save_checkpoint(THREAD, save))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(company.saved_with_checkpoint(_task())) for _ in range(2)]
        await first
        await company.save_checkpoint(THREAD, save)
        assert await asyncio.gather(*waiting) == [True, True]
        assert (company._offers, company._saving) == ({}, {})
        return taken

    assert asyncio.run(main()) == [0, 2]


def test_two_event_loops_keep_to_themselves() -> None:
    company, taken = Company(), []

    async def save(tasks: Sequence[Task]) -> None:
        taken.append(len(tasks))

    async def main() -> bool:
        waiting = asyncio.create_task(company.saved_with_checkpoint(_task()))
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: asyncio.run(company.save_checkpoint(THREAD, save)))
        return await waiting

    assert asyncio.run(main()) is False
    assert taken == [0]


def _task() -> Task:
    return Task(_at("1"), [], "task", "")


def test_on_postgres_each_goes_alone(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a step that was foreseen is one message and back, and two of them are more than one."""
    made: list[str] = []

    async def main(saver: HoldfastSaver) -> None:
        at = await _begun(saver)
        put_writes = saver.put_writes
        monkeypatch.setattr(saver, "put_writes", lambda *args: (made.append("alone"), put_writes(*args)))
        await asyncio.gather(
            saver.aput_writes(at, [("said", "b")], "task"),
            saver.aput(at, _checkpoint("2", "a", "b"), {"step": 1}, {"said": 2}),
        )

    with HoldfastSaver(postgres_url) as saver:
        asyncio.run(main(saver))
        assert made == ["alone"]
        assert _written(saver, "1") == [("task", "said", "b")]
