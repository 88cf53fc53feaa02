"""Which process drives a run: lease renewal, fencing, cancellation, release, lost answers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, TenantHandle
from holdfast.clock import from_us
from holdfast.errors import OutcomeUnknown, Unavailable
from holdfast.loop import Call, Loop, ModelTurn, Reply, ToolRequest, executor, executor_async, tool
from holdfast.loop.commands import ClaimRun, CommitStep, StoreCommand
from holdfast.types import Run
from tests.loop.worlds import World, scripted

PATIENCE_S = 60.0


def until(is_so: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.005)


def steal(world: World, run: Run) -> Run:
    """Claim a run from its holder, as if the holder had died."""
    for _ in range(5):
        stolen = world.acme.leases.claim("thief", run_id=run.id)
        if stolen is not None:
            return stolen
        world.clock.advance(1_000)
    raise AssertionError("the run could not be claimed")


# ------------------------------------------------------------------------------------------------------------- renewal


def test_a_lease_is_renewed_during_slow_tools_and_models(world: World) -> None:
    renewed: list[str] = []

    def wait_for_renewal(source: str, run: Run) -> None:
        first = world.acme.runs.get(run.id).lease_until
        world.clock.advance(0.05)
        until(lambda: world.acme.runs.get(run.id).lease_until != first)
        renewed.append(source)

    @tool
    def slow(call: Call) -> None:
        wait_for_renewal("tool", call.run)

    def model(turn: ModelTurn) -> Reply | str:
        wait_for_renewal("model", turn.run)
        return Reply("", [ToolRequest("slow")]) if turn.iteration == 1 else "Done."

    run = world.start()
    assert world.run(Loop(model, tools=[slow]), run.id, ttl_ms=150).status == "completed"
    assert renewed == ["model", "tool", "model"]


def test_a_renewed_lease_is_never_lost(small_world: World) -> None:
    """Another holder tries to claim the run until shortly before the lease expires; then the next renewal is awaited."""
    acme, clock = small_world.acme, small_world.clock
    claims: list[Run | None] = []

    @tool
    def slow(call: Call) -> None:
        for _ in range(5):
            for _ in range(4):
                clock.advance(0.1)
                claims.append(acme.leases.claim("thief", run_id=call.run.id))
            renewed = from_us(clock.now_us()) + timedelta(milliseconds=500)
            until(lambda: acme.runs.get(call.run.id).lease_until == renewed)  # noqa: B023

    def model(turn: ModelTurn) -> Reply | str:
        return Reply("", [ToolRequest("slow")]) if turn.iteration == 1 else "Done."

    run = small_world.start()
    assert small_world.run(Loop(model, tools=[slow]), run.id, ttl_ms=500).status == "completed"
    assert claims == [None] * 20
    assert acme.runs.get(run.id).epoch == 1


# ------------------------------------------------------------------------------------------------------ fenced, cancelled


def test_a_process_that_lost_its_run_writes_nothing_more(world: World) -> None:
    run = world.start()

    @tool
    def slow() -> str:
        steal(world, run)
        return "too late"

    ending = world.run(Loop(scripted(world, [Reply("", [ToolRequest("slow")]), "."]), tools=[slow]), run.id)
    assert ending.status == "fenced"
    stored_run = world.acme.runs.get(run.id)
    assert (stored_run.holder, stored_run.iteration, stored_run.status) == ("thief", 0, "running")
    assert world.words(run) == ["user: Please."]
    assert world.acme.tool_calls.get(run.id, "call-1-1").status == "begun"


def test_an_asynchronous_tool_is_stopped_at_once_when_the_run_is_lost(tmp_path: Path) -> None:
    world = World(str(tmp_path / "a.db"), is_async=True)
    run = world.start()
    stopped: list[bool] = []

    @tool
    async def endless() -> None:
        steal(world, run)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(True)
            raise

    loop = Loop(scripted(world, [Reply("", [ToolRequest("endless")])]), tools=[endless])
    assert world.run(loop, run.id, ttl_ms=150).status == "fenced"
    assert stopped == [True]
    world.close()


def test_a_tool_in_a_thread_can_check_whether_its_run_is_lost(small_world: World) -> None:
    run = small_world.start()
    answers: list[bool] = []
    ended = threading.Event()

    @tool
    def endless(call: Call) -> None:
        small_world.acme.runs.cancel(run.id, reason="enough")
        until(call.is_lost)
        answers.append(call.is_lost())
        ended.set()

    loop = Loop(scripted(small_world, [Reply("", [ToolRequest("endless")])]), tools=[endless])
    ending = small_world.run(loop, run.id, ttl_ms=150)
    assert ended.wait(PATIENCE_S)
    assert answers == [True]
    assert (ending.status, ending.error) == ("cancelled", "enough")


def test_cancelling_from_outside_stops_the_loop_at_its_next_write(world: World) -> None:
    run = world.start()

    def model(turn: ModelTurn) -> str:
        world.acme.runs.cancel(run.id, reason="not any more")
        return "Too late."

    ending = world.run(Loop(model), run.id)
    assert (ending.status, ending.error) == ("cancelled", "not any more")
    assert world.words(run) == ["user: Please."]


def test_a_run_held_by_another_process_is_not_driven(small_world: World) -> None:
    run = small_world.start()
    small_world.acme.leases.claim("other", run_id=run.id)
    prompts: list[ModelTurn] = []
    ending = small_world.run(Loop(prompts.append), run.id)
    assert (ending.status, prompts) == ("busy", [])
    assert small_world.acme.runs.get(run.id).holder == "other"


# ------------------------------------------------------------------------------------------------------- release


def test_a_run_is_released_after_a_step(world: World) -> None:
    run = world.start()
    loop = Loop(lambda turn: Reply(f"{turn.iteration}.", continue_run=turn.iteration < 3))
    ending = world.run(loop, run.id, holder="first", should_continue=lambda: False)
    assert (ending.status, ending.iteration) == ("released", 1)
    stored_run = world.acme.runs.get(run.id)
    assert (stored_run.status, stored_run.attempts, stored_run.holder) == ("pending", 0, "")
    assert world.run(loop, run.id, holder="second").status == "completed"
    assert world.words(run) == ["user: Please.", "assistant: 1.", "assistant: 2.", "assistant: 3."]


def test_a_run_claimed_by_the_caller_is_driven_without_another_claim(small_world: World) -> None:
    claimed = small_world.acme.leases.claim("me", run_id=small_world.start().id)
    assert claimed is not None
    assert small_world.run(Loop(lambda turn: "x"), claimed).status == "completed"
    assert small_world.acme.runs.get(claimed.id).epoch == claimed.epoch


def test_a_cancelled_drive_stops_and_releases_the_run(url: str) -> None:
    world = World(url, is_async=True)
    run = world.start()
    begun = asyncio.Event()

    async def model(turn: ModelTurn) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async def main() -> None:
        task = asyncio.ensure_future(Loop(model).adrive(world.async_hf.tenant("acme"), run.id))
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    world._runner.run(main())  # type: ignore[union-attr]
    stored_run = world.acme.runs.get(run.id)
    assert (stored_run.status, stored_run.attempts) == ("pending", 0)
    world.close()


def test_an_interrupted_program_releases_its_run(tmp_path: Path) -> None:
    world = World(str(tmp_path / "a.db"))
    run = world.start()

    def model(turn: ModelTurn) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.run(Loop(model), run.id)
    assert world.acme.runs.get(run.id).status == "pending"
    world.close()


# ---------------------------------------------------------------------------------------------------------- lost answers


class Flaky:
    """A command whose answer is lost, before or after it was carried out."""

    def __init__(self, kind: type[StoreCommand], error: Exception, *, is_done: bool) -> None:
        self.kind, self.error, self.is_done, self.left = kind, error, is_done, 2
        self.real = kind.on

    def on(self, command: StoreCommand, acme: Any) -> Any:
        if self.left == 0:
            return self.real(command, acme)
        self.left -= 1
        if not self.is_done:
            raise self.error
        answer = self.real(command, acme)
        if not hasattr(answer, "__await__"):
            raise self.error
        return self._later(answer)

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Install the fault."""
        monkeypatch.setattr(self.kind, "on", lambda command, acme, flaky=self: flaky.on(command, acme))

    async def _later(self, answer: Any) -> Any:
        await answer
        raise self.error


@pytest.mark.parametrize(
    "kind", [CommitStep, *[kind for kind in StoreCommand.__subclasses__() if kind.__name__ == "RecordIntents"]]
)
@pytest.mark.parametrize(
    ("error", "is_done"), [(OutcomeUnknown(), True), (OutcomeUnknown(), False), (Unavailable(), False)]
)
def test_a_command_whose_answer_is_lost_is_repeated(
    small_world: World, monkeypatch: pytest.MonkeyPatch, kind: type[StoreCommand], error: Exception, is_done: bool
) -> None:
    monkeypatch.setattr(executor, "FIRST_RETRY_S", 0.0)
    flaky, calls = Flaky(kind, error, is_done=is_done), []
    flaky.plant(monkeypatch)

    @tool
    def once() -> str:
        calls.append(1)
        return "once"

    run = small_world.start()
    loop = Loop(scripted(small_world, [Reply("", [ToolRequest("once")]), "Done."]), tools=[once])
    assert small_world.run(loop, run.id).status == "completed"
    assert flaky.left == 0
    assert calls == [1]
    assert small_world.words(run) == ["user: Please.", "assistant: <once>", "user: =once", "assistant: Done."]


def test_a_claim_whose_answer_is_lost_is_not_repeated(small_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    flaky = Flaky(ClaimRun, OutcomeUnknown(), is_done=True)
    flaky.plant(monkeypatch)
    with pytest.raises(OutcomeUnknown):
        small_world.run(Loop(lambda turn: "x"), small_world.start().id)
    assert flaky.left == 1


def test_a_database_that_stays_unavailable_ends_the_drive(small_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "FIRST_RETRY_S", 0.0)
    tries: list[int] = []

    def unavailable(self: CommitStep, acme: Any) -> Any:
        tries.append(1)
        raise Unavailable

    monkeypatch.setattr(CommitStep, "on", unavailable)
    run = small_world.start()
    with pytest.raises(Unavailable):
        small_world.run(Loop(lambda turn: "x"), run.id)
    assert len(tries) == executor.MAX_TRIES == executor_async.MAX_TRIES
    assert small_world.acme.runs.get(run.id).status == "running", "it can be claimed when the lease has expired"


def test_a_failed_renewal_is_retried(
    small_world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handle = small_world.async_hf.tenant("acme") if small_world.is_async else small_world.acme
    failures = [Unavailable("a moment"), Unavailable("another")]
    real = type(handle.leases).renew

    def renew(self: Any, *args: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(self, *args, **named)

    monkeypatch.setattr(type(handle.leases), "renew", renew)
    run = small_world.start()

    def model(turn: ModelTurn) -> str:
        first = small_world.acme.runs.get(run.id).lease_until
        small_world.clock.advance(0.05)
        until(lambda: small_world.acme.runs.get(run.id).lease_until != first)
        return "Done."

    assert small_world.run(Loop(model), run.id, ttl_ms=150).status == "completed"
    assert caplog.text.count("cannot renew the lease") == 2


def test_the_renewal_thread_ends_with_the_drive(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db")) as hf:
        acme: TenantHandle = hf.tenant("acme")
        run = acme.runs.start(acme.sessions.create(agent="a").id)
        Loop(lambda turn: "x").drive(acme, run.id)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-lease")]
