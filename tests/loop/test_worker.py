"""Workers: runs of many tenants, several at once, handed over when they stop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncHoldfast, AsyncTenantHandle
from holdfast.errors import InvalidInput, Unavailable
from holdfast.loop import Loop, ModelTurn, Reply, ToolRequest, subagent, tool
from holdfast.loop.worker import MAX_IDLE_S, MIN_IDLE_S, Worker, describe
from holdfast.types import Run

PATIENCE_S = 60.0
TENANTS = ("acme", "zenith", "umbra")


@pytest.fixture
def talking(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What workers say."""
    caplog.set_level(logging.INFO, logger="holdfast.worker")
    return caplog


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[None]:
    """A worker at work; at the end it is stopped."""
    task = asyncio.ensure_future(worker.work())
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait_for(task, PATIENCE_S)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():  # noqa: ASYNC110  (what is waited for is in the database)
            await asyncio.sleep(0.005)


async def start(acme: AsyncTenantHandle, agent: str = "a", **more: Any) -> Run:
    session = await acme.sessions.create(agent=agent)
    await acme.messages.append(session.id, role="user", content="Go.")
    return await acme.runs.start(session.id, **more)


async def over(hf: AsyncHoldfast, runs: list[tuple[str, Run]]) -> bool:
    return all([(await hf.tenant(tenant).runs.get(run.id)).finished_at is not None for tenant, run in runs])


def test_runs_of_many_tenants_are_driven_each_with_its_tenants_handle(
    url: str, talking: pytest.LogCaptureFixture
) -> None:
    seen: Counter[str] = Counter()

    def handler(acme: AsyncTenantHandle, run: Run) -> Loop:
        async def model(turn: ModelTurn) -> Reply:
            seen[acme.name] += 1
            return Reply(f"{acme.name} {turn.iteration}", continue_run=turn.iteration < 2)

        return Loop(model)

    async def main() -> None:
        async with AsyncHoldfast(url, auto_migrate=True) as hf:
            runs = [(name, await start(hf.tenant(name))) for name in TENANTS for _ in range(3)]
            async with working(Worker(hf, handler, concurrency=4, holder="w1")):
                await until(lambda: over(hf, runs))
            for tenant, run in runs:
                messages = await hf.tenant(tenant).messages.list(run.session_id)
                assert [each.content[0]["text"] for each in messages] == ["Go.", f"{tenant} 1", f"{tenant} 2"]

    asyncio.run(main())
    assert seen == dict.fromkeys(TENANTS, 6)
    said = [record.getMessage() for record in talking.records]
    assert said[0] == "w1 is ready for 4 runs at once"
    assert sum(": claimed at step 0, attempt 1, for a" in each for each in said) == 9
    assert sum(": completed at step 2 (end_turn) in " in each for each in said) == 9
    assert said[-1] == "w1 has stopped"


def test_so_many_runs_at_once_and_no_more(tmp_path: Path) -> None:
    under_way, most = 0, 0

    async def main() -> None:
        gate = asyncio.Event()

        async def model(turn: ModelTurn) -> str:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await gate.wait()
            under_way -= 1
            return "x"

        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            runs = [("acme", await start(hf.tenant("acme"))) for _ in range(6)]

            async def is_full() -> bool:
                return under_way == 3

            async with working(Worker(hf, Loop(model), concurrency=3)):
                await until(is_full)
                waiting = await hf.tenant("acme").runs.list(status="pending")
                assert len(waiting) == 3
                gate.set()
                await until(lambda: over(hf, runs))

    asyncio.run(main())
    assert most == 3


def test_only_some_tenants_and_some_agents(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            runs = {(name, agent): await start(hf.tenant(name), agent) for name in TENANTS for agent in "ab"}
            mine = [(name, run) for (name, agent), run in runs.items() if name != "umbra" and agent == "b"]
            async with working(Worker(hf, Loop(lambda turn: "x"), tenants=["acme", "zenith"], agents=["b"])):
                await until(lambda: over(hf, mine))
            for (name, _), run in runs.items():
                status = (await hf.tenant(name).runs.get(run.id)).status
                assert status == ("completed" if (name, run) in mine else "pending")

    asyncio.run(main())


def test_agents_that_call_agents_are_driven_to_the_end_by_one_worker(tmp_path: Path) -> None:
    def model(turn: ModelTurn) -> Reply | str:
        if turn.run.agent == "helper":
            return "forty-two"
        return Reply("", [ToolRequest("helper", {"task": "?"})]) if turn.iteration == 1 else "So it is."

    async def main() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            run = await start(hf.tenant("acme"), "boss")
            async with working(Worker(hf, Loop(model, tools=[subagent("helper")]), concurrency=1)):
                await until(lambda: over(hf, [("acme", run)]))
            last = await hf.tenant("acme").messages.last(run.session_id, 2)
            assert [each.content[0].get("content", "So it is.") for each in last] == ["forty-two", "So it is."]

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------------------- stopping


def test_told_to_stop_it_hands_over_after_the_iteration(url: str, talking: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        asked, gate = asyncio.Event(), asyncio.Event()

        async def slow(turn: ModelTurn) -> Reply:
            asked.set()
            await gate.wait()
            return Reply(f"{turn.iteration}", continue_run=turn.iteration < 3)

        async with AsyncHoldfast(url, auto_migrate=True) as hf:
            acme = hf.tenant("acme")
            run = await start(acme)
            first = Worker(hf, Loop(slow), holder="first", grace_s=PATIENCE_S)
            task = asyncio.ensure_future(first.work())
            await asyncio.wait_for(asked.wait(), PATIENCE_S)
            first.stop()
            gate.set()
            await asyncio.wait_for(task, PATIENCE_S)
            there = await acme.runs.get(run.id)
            assert (there.status, there.iteration, there.attempts) == ("pending", 1, 0), "its iteration was finished"
            async with working(Worker(hf, Loop(slow), holder="second")):
                await until(lambda: over(hf, [("acme", run)]))
            words = [each.content[0]["text"] for each in await acme.messages.list(run.session_id)]
            assert words == ["Go.", "1", "2", "3"]

    asyncio.run(main())
    assert any(": released at step 1 in " in record.getMessage() for record in talking.records)


@pytest.mark.parametrize("how", ["grace", "again"])
@pytest.mark.parametrize("kind", ["task", "thread"])
def test_what_takes_too_long_is_handed_over_where_it_is(
    tmp_path: Path, talking: pytest.LogCaptureFixture, how: str, kind: str
) -> None:
    """A model that never answers, as a task or in a thread, does not keep the worker: and the run is not lost."""
    never = threading.Event()

    async def main() -> None:
        asked = asyncio.Event()
        here = asyncio.get_running_loop()

        async def task(turn: ModelTurn) -> str:
            asked.set()
            await asyncio.Event().wait()
            return "never"

        def thread(turn: ModelTurn) -> str:
            here.call_soon_threadsafe(asked.set)
            never.wait()
            return "never"

        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            acme = hf.tenant("acme")
            run = await start(acme)
            loop = Loop(task) if kind == "task" else Loop(thread)
            first = Worker(hf, loop, grace_s=0.05 if how == "grace" else PATIENCE_S)
            working = asyncio.ensure_future(first.work())
            await asyncio.wait_for(asked.wait(), PATIENCE_S)
            first.stop()
            if how == "again":
                await asyncio.sleep(0)
                first.stop()
            await asyncio.wait_for(working, PATIENCE_S / 2)
            there = await acme.runs.get(run.id)
            assert (there.status, there.holder, there.attempts) == ("pending", "", 0)

    asyncio.run(main())
    never.set()
    assert any("given up where it was" in record.getMessage() for record in talking.records)


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("bad", ["raises", "nothing"])
def test_a_handler_that_fails_fails_the_run_and_not_the_worker(tmp_path: Path, bad: str) -> None:
    def handler(acme: AsyncTenantHandle, run: Run) -> Any:
        if run.agent == "good":
            return Loop(lambda turn: "x")
        if bad == "raises":
            raise KeyError("no such agent")
        return None

    async def main() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            acme = hf.tenant("acme")
            runs = [("acme", await start(acme, agent)) for agent in ("bad", "good")]
            async with working(Worker(hf, handler)):
                await until(lambda: over(hf, runs))
            failed, good = [await acme.runs.get(run.id) for _, run in runs]
            assert (failed.status, good.status) == ("failed", "completed")
            assert "the handler raised" in str(failed.error)

    asyncio.run(main())


def test_an_asynchronous_handler_is_awaited(tmp_path: Path) -> None:
    async def handler(acme: AsyncTenantHandle, run: Run) -> Loop:
        session = await acme.sessions.get(run.session_id)
        return Loop(lambda turn: session.agent)

    async def main() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            run = await start(hf.tenant("acme"), "ada")
            async with working(Worker(hf, handler)):
                await until(lambda: over(hf, [("acme", run)]))
            assert (await hf.tenant("acme").messages.last(run.session_id, 1))[0].content[0]["text"] == "ada"

    asyncio.run(main())


def test_a_database_that_cannot_be_reached_is_waited_for(
    tmp_path: Path, talking: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            run = await start(hf.tenant("acme"))
            real, failures = type(hf.run_queue).claim, [Unavailable("gone"), Unavailable("gone")]

            async def claim(self: Any, *args: Any, **named: Any) -> Any:
                if failures:
                    raise failures.pop()
                return await real(self, *args, **named)

            monkeypatch.setattr(type(hf.run_queue), "claim", claim)
            async with working(Worker(hf, Loop(lambda turn: "x"))):
                await until(lambda: over(hf, [("acme", run)]))

    asyncio.run(main())
    assert sum("no run could be claimed: gone" in record.getMessage() for record in talking.records) == 2


def test_a_queue_that_stays_empty_is_asked_less_and_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def main() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            worker = Worker(hf, Loop(lambda turn: "x"))

            async def rest(idle_s: float) -> bool:
                waits.append(idle_s)
                if len(waits) == 10:
                    worker.stop()
                return False

            monkeypatch.setattr(worker, "_rest", rest)
            await asyncio.wait_for(worker.work(), PATIENCE_S)

    asyncio.run(main())
    assert waits[0] == MIN_IDLE_S
    assert waits[-1] == MAX_IDLE_S
    assert waits == sorted(waits)


@pytest.mark.parametrize(("handler", "options"), [(7, {}), (None, {}), (Loop(str), {"concurrency": 0})])
def test_arguments_that_cannot_be_used_are_refused(handler: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Worker(AsyncHoldfast(":memory:"), handler, **options)


def test_endings_are_described_in_a_few_words() -> None:
    from datetime import UTC, datetime

    from holdfast.loop import Ending

    assert describe(Ending("released", "r", 3)) == "released at step 3"
    assert describe(Ending("failed", "r", 1, "error", "it broke")) == "failed at step 1 (it broke)"
    until_then = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert describe(Ending("paused", "r", 1, pause_until=until_then)) == "paused at step 1 until 2030-01-02 03:04:05"


def test_workers_share_the_work_and_none_is_done_twice(url: str) -> None:
    made: Counter[str] = Counter()

    @tool
    async def effect(call: str) -> None:
        made[call] += 1

    def model(turn: ModelTurn) -> Reply | str:
        asks = [ToolRequest("effect", {"call": f"{turn.run.id} {turn.iteration}"})]
        return Reply("", asks) if turn.iteration < 4 else "x"

    async def main() -> None:
        async with AsyncHoldfast(url, auto_migrate=True) as hf:
            runs = [("acme", await start(hf.tenant("acme"))) for _ in range(12)]
            loop = Loop(model, tools=[effect])
            async with working(Worker(hf, loop, concurrency=4)), working(Worker(hf, loop, concurrency=4)):
                await until(lambda: over(hf, runs))

    asyncio.run(main())
    assert len(made) == 36
    assert set(made.values()) == {1}
