"""Workers: runs of many tenants, several at once, released when the worker stops."""

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
def worker_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log of workers."""
    caplog.set_level(logging.INFO, logger="holdfast.worker")
    return caplog


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[None]:
    """Run a worker and stop it at the end."""
    task = asyncio.ensure_future(worker.work())
    try:
        yield
    finally:
        worker.stop()
        await asyncio.wait_for(task, PATIENCE_S)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110  (the condition is in the database)
            await asyncio.sleep(0.005)


async def start(acme: AsyncTenantHandle, agent: str = "a", **more: Any) -> Run:
    session = await acme.sessions.create(agent=agent)
    await acme.messages.append(session.id, role="user", content="Go.")
    return await acme.runs.start(session.id, **more)


async def all_finished(hf: AsyncHoldfast, runs: list[tuple[str, Run]]) -> bool:
    return all([(await hf.tenant(tenant).runs.get(run.id)).finished_at is not None for tenant, run in runs])


def test_each_run_is_driven_with_the_handle_of_its_tenant(url: str, worker_log: pytest.LogCaptureFixture) -> None:
    prompts: Counter[str] = Counter()

    def handler(acme: AsyncTenantHandle, run: Run) -> Loop:
        async def model(turn: ModelTurn) -> Reply:
            prompts[acme.name] += 1
            return Reply(f"{acme.name} {turn.iteration}", continue_run=turn.iteration < 2)

        return Loop(model)

    async def main() -> None:
        async with AsyncHoldfast(url, auto_migrate=True) as hf:
            runs = [(name, await start(hf.tenant(name))) for name in TENANTS for _ in range(3)]
            async with working(Worker(hf, handler, concurrency=4, holder="w1")):
                await until(lambda: all_finished(hf, runs))
            for tenant, run in runs:
                messages = await hf.tenant(tenant).messages.list(run.session_id)
                assert [item.content[0]["text"] for item in messages] == ["Go.", f"{tenant} 1", f"{tenant} 2"]

    asyncio.run(main())
    assert prompts == dict.fromkeys(TENANTS, 6)
    lines = [record.getMessage() for record in worker_log.records]
    assert lines[0] == "w1 is ready to drive 4 runs at once"
    assert sum(": claimed at step 0, attempt 1, for a" in item for item in lines) == 9
    assert sum(": completed at step 2 (end_turn) in " in item for item in lines) == 9
    assert lines[-1] == "w1 has stopped"


def test_concurrency_limits_the_runs_driven_at_once(tmp_path: Path) -> None:
    under_way, maximum = 0, 0

    async def main() -> None:
        gate = asyncio.Event()

        async def model(turn: ModelTurn) -> str:
            nonlocal under_way, maximum
            under_way += 1
            maximum = max(maximum, under_way)
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
                await until(lambda: all_finished(hf, runs))

    asyncio.run(main())
    assert maximum == 3


def test_a_worker_can_be_limited_to_tenants_and_agents(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            runs = {(name, agent): await start(hf.tenant(name), agent) for name in TENANTS for agent in "ab"}
            mine = [(name, run) for (name, agent), run in runs.items() if name != "umbra" and agent == "b"]
            async with working(Worker(hf, Loop(lambda turn: "x"), tenants=["acme", "zenith"], agents=["b"])):
                await until(lambda: all_finished(hf, mine))
            for (name, _), run in runs.items():
                status = (await hf.tenant(name).runs.get(run.id)).status
                assert status == ("completed" if (name, run) in mine else "pending")

    asyncio.run(main())


def test_one_worker_drives_parent_and_child_runs_to_the_end(tmp_path: Path) -> None:
    def model(turn: ModelTurn) -> Reply | str:
        if turn.run.agent == "helper":
            return "forty-two"
        return Reply("", [ToolRequest("helper", {"task": "?"})]) if turn.iteration == 1 else "So it is."

    async def main() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            run = await start(hf.tenant("acme"), "boss")
            async with working(Worker(hf, Loop(model, tools=[subagent("helper")]), concurrency=1)):
                await until(lambda: all_finished(hf, [("acme", run)]))
            last = await hf.tenant("acme").messages.last(run.session_id, 2)
            assert [message.content[0].get("content", "So it is.") for message in last] == ["forty-two", "So it is."]

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------------------- stopping


def test_a_stopped_worker_releases_its_run_after_the_iteration(url: str, worker_log: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        prompted, gate = asyncio.Event(), asyncio.Event()

        async def slow(turn: ModelTurn) -> Reply:
            prompted.set()
            await gate.wait()
            return Reply(f"{turn.iteration}", continue_run=turn.iteration < 3)

        async with AsyncHoldfast(url, auto_migrate=True) as hf:
            acme = hf.tenant("acme")
            run = await start(acme)
            first = Worker(hf, Loop(slow), holder="first", grace_s=PATIENCE_S)
            task = asyncio.ensure_future(first.work())
            await asyncio.wait_for(prompted.wait(), PATIENCE_S)
            first.stop()
            gate.set()
            await asyncio.wait_for(task, PATIENCE_S)
            stored_run = await acme.runs.get(run.id)
            assert (stored_run.status, stored_run.iteration, stored_run.attempts) == ("pending", 1, 0), (
                "its iteration was finished"
            )
            async with working(Worker(hf, Loop(slow), holder="second")):
                await until(lambda: all_finished(hf, [("acme", run)]))
            words = [message.content[0]["text"] for message in await acme.messages.list(run.session_id)]
            assert words == ["Go.", "1", "2", "3"]

    asyncio.run(main())
    assert any(": released at step 1 in " in record.getMessage() for record in worker_log.records)


@pytest.mark.parametrize("how", ["grace", "again"])
@pytest.mark.parametrize("kind", ["task", "thread"])
def test_a_slow_run_is_released_before_the_end_of_its_iteration(
    tmp_path: Path, worker_log: pytest.LogCaptureFixture, how: str, kind: str
) -> None:
    """A model that never answers, as a task or in a thread, does not block the worker's stop, and the run is not lost."""
    never = threading.Event()

    async def main() -> None:
        prompted = asyncio.Event()
        event_loop = asyncio.get_running_loop()

        async def task(turn: ModelTurn) -> str:
            prompted.set()
            await asyncio.Event().wait()
            return "never"

        def thread(turn: ModelTurn) -> str:
            event_loop.call_soon_threadsafe(prompted.set)
            never.wait()
            return "never"

        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            acme = hf.tenant("acme")
            run = await start(acme)
            loop = Loop(task) if kind == "task" else Loop(thread)
            first = Worker(hf, loop, grace_s=0.05 if how == "grace" else 10 * PATIENCE_S)
            working = asyncio.ensure_future(first.work())
            await asyncio.wait_for(prompted.wait(), PATIENCE_S)
            first.stop()
            if how == "again":
                await asyncio.sleep(0)
                first.stop()
            await asyncio.wait_for(working, PATIENCE_S)
            stored_run = await acme.runs.get(run.id)
            assert (stored_run.status, stored_run.holder, stored_run.attempts) == ("pending", "", 0)

    asyncio.run(main())
    never.set()
    assert any("released before the end" in record.getMessage() for record in worker_log.records)


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("bad", ["raises", "nothing"])
def test_a_failing_handler_fails_the_run_and_not_the_worker(tmp_path: Path, bad: str) -> None:
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
                await until(lambda: all_finished(hf, runs))
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
                await until(lambda: all_finished(hf, [("acme", run)]))
            assert (await hf.tenant("acme").messages.last(run.session_id, 1))[0].content[0]["text"] == "ada"

    asyncio.run(main())


def test_a_worker_waits_for_an_unreachable_database(
    tmp_path: Path, worker_log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
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
                await until(lambda: all_finished(hf, [("acme", run)]))

    asyncio.run(main())
    assert sum("cannot claim a run: gone" in record.getMessage() for record in worker_log.records) == 2


def test_an_empty_queue_is_polled_less_and_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def main() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            worker = Worker(hf, Loop(lambda turn: "x"))

            async def wait(idle_s: float) -> bool:
                waits.append(idle_s)
                if len(waits) == 10:
                    worker.stop()
                return False

            monkeypatch.setattr(worker, "_wait", wait)
            await asyncio.wait_for(worker.work(), PATIENCE_S)

    asyncio.run(main())
    assert waits[0] == MIN_IDLE_S
    assert waits[-1] == MAX_IDLE_S
    assert waits == sorted(waits)


@pytest.mark.parametrize(("handler", "options"), [(7, {}), (None, {}), (Loop(str), {"concurrency": 0})])
def test_invalid_arguments_are_refused(handler: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Worker(AsyncHoldfast(":memory:"), handler, **options)


def test_endings_are_described_in_short() -> None:
    from datetime import UTC, datetime

    from holdfast.loop import Ending

    assert describe(Ending("released", "r", 3)) == "released at step 3"
    assert describe(Ending("failed", "r", 1, "error", "it broke")) == "failed at step 1 (it broke)"
    until_then = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert describe(Ending("paused", "r", 1, pause_until=until_then)) == "paused at step 1 until 2030-01-02 03:04:05"


def test_two_workers_share_the_runs_without_repetition(url: str) -> None:
    effects: Counter[str] = Counter()

    @tool
    async def effect(call: str) -> None:
        effects[call] += 1

    def model(turn: ModelTurn) -> Reply | str:
        asks = [ToolRequest("effect", {"call": f"{turn.run.id} {turn.iteration}"})]
        return Reply("", asks) if turn.iteration < 4 else "x"

    async def main() -> None:
        async with AsyncHoldfast(url, auto_migrate=True) as hf:
            runs = [("acme", await start(hf.tenant("acme"))) for _ in range(12)]
            loop = Loop(model, tools=[effect])
            async with working(Worker(hf, loop, concurrency=4)), working(Worker(hf, loop, concurrency=4)):
                await until(lambda: all_finished(hf, runs))

    asyncio.run(main())
    assert len(effects) == 36
    assert set(effects.values()) == {1}
