"""Session storage under simulated faults: the eight rows of the requirements for such a storage, one test each.

Each is a scenario of its own, as users write them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import Any, get_args

import pytest

from holdfast import AgentChange, NewAgent, NewMessage, NewToolCall, ToolOutcome
from holdfast.errors import AlreadyExists, Conflict, Fenced
from holdfast.testing.sim import (
    AgentScenario,
    Fault,
    FaultName,
    LoopScenario,
    Observer,
    Process,
    Scenario,
    Simulation,
    mixed,
)
from holdfast.testing.sim.simulation import Report

Main = Callable[[Process], Coroutine[Any, Any, None]]
RUN = "00000000-0000-7000-8000-000000000001"
TTL_MS = 30_000
STEPS = 6


def passed(seed: int, scenario: Scenario, faults: Sequence[Fault]) -> Report:
    report = Simulation(seed, scenario, faults=faults).run()
    assert report.violation is None, f"seed {seed}: {report.violation}\n{report.trace}"
    return report


class AgentRecords(Scenario):
    """Two processes that create, change, read and delete agents, and try again when it did not work."""

    def __init__(self) -> None:
        self.kept = [f"agent-{number}" for number in range(8)]
        self.done: set[str] = set()

    def processes(self, random: Random) -> Mapping[str, Main]:
        return {"first": lambda process: self.work(process, 0), "second": lambda process: self.work(process, 1)}

    async def work(self, process: Process, first: int) -> None:
        for id in self.kept[first::2]:
            await self.make(process, id)
            existing = await process.insist(lambda id=id: process.tenant("acme").agents.get(id))
            if existing.display_name == id:
                await self.rename(process, id, existing.version)
        await self.make(process, f"doomed-{first}")
        await process.insist(
            lambda: process.tenant("acme").agents.upsert(NewAgent(id=f"doomed-{first}", display_name="x"))
        )
        await process.insist(lambda: process.tenant("acme").agents.delete(f"doomed-{first}"))
        assert await process.insist(lambda: process.tenant("acme").agents.by_ids([f"doomed-{first}"])) == []
        listed = await process.insist(process.tenant("acme").agents.list)
        assert {*self.kept[first::2]} <= {agent.id for agent in listed}
        self.done.add(process.name)

    async def make(self, process: Process, id: str) -> None:
        try:
            await process.insist(
                lambda: process.tenant("acme").agents.create(
                    NewAgent(id=id, display_name=id, tags=["all"], system="be kind")
                )
            )
        except AlreadyExists:
            process.say(f"finds {id} there, from a try whose answer was lost")

    async def rename(self, process: Process, id: str, version: int) -> None:
        try:
            await process.insist(
                lambda: process.tenant("acme").agents.update(
                    id, change=AgentChange(display_name=f"{id} renamed"), version=version
                )
            )
        except Conflict:
            process.say(f"finds {id} renamed, by a try whose answer was lost")

    def finished(self, observer: Observer) -> bool:
        names = observer.select("SELECT id, display_name FROM agents WHERE deleted_at IS NULL ORDER BY id")
        return names == [(id, f"{id} renamed") for id in self.kept] and {"first", "second"} <= self.done


def test_agent_crud__agents_persist_after_retry_when_a_fifth_of_all_writes_fail() -> None:
    failed = 0
    for seed in range(3):
        report = passed(seed, AgentRecords(), [Fault("StorageWriteFail", 0.2)])
        failed += report.faults.get("StorageWriteFail", 0)
    assert failed > 20


class OneRun(Scenario):
    """One run of six steps; each worker that drives it records the iteration at which it continued."""

    def __init__(self, *, pause_at: int | None = None, instances: int = 1) -> None:
        self.pause_at, self.instances = pause_at, instances
        self.went_on_at: list[int] = []
        self.committed: list[int] = []
        self.paused_until_us: int | None = None
        self.claimed_us: list[int] = []
        self.loaded: list[Any] = []

    def processes(self, random: Random) -> Mapping[str, Main]:
        return {f"instance-{number}": self.drive for number in range(self.instances)}

    async def prepare(self, process: Process) -> None:
        acme = process.tenant("acme")
        session = await acme.sessions.create(key="one")
        await acme.runs.start(session.id, id=RUN, agent="helper", max_attempts=100)

    async def drive(self, process: Process) -> None:
        while True:
            claim = lambda: process.tenant("acme").leases.claim(process.name, ttl_ms=TTL_MS)  # noqa: E731
            run = await process.insist(claim)
            if run is not None:
                self.claimed_us.append(process.clock.now_us())
                try:
                    await self.iterate(process, run.epoch)
                except Fenced:
                    process.say("has lost it")
            await process.sleep(2)

    async def iterate(self, process: Process, epoch: int) -> None:
        acme = process.tenant("acme")
        loaded = await acme.runs.load(RUN)
        self.loaded.append(loaded)
        self.went_on_at.append(loaded.run.iteration)
        for iteration in range(loaded.run.iteration + 1, STEPS + 1):
            await self.one(process, epoch, iteration)
            self.committed.append(iteration)
            if iteration == self.pause_at or iteration == STEPS:
                return

    async def one(self, process: Process, epoch: int, iteration: int) -> None:
        acme = process.tenant("acme")
        until = process.now() + timedelta(seconds=60) if iteration == self.pause_at else None
        if until is not None and self.paused_until_us is None:
            self.paused_until_us = process.clock.now_us() + 60_000_000
        call = NewToolCall(id=f"call-{iteration}", tool_name="count", safety="idempotent")
        await acme.tool_calls.intend(RUN, epoch=epoch, calls=[call])
        await acme.runs.step(
            RUN,
            epoch=epoch,
            iteration=iteration,
            state={"sum": sum(range(iteration + 1))},
            messages=[NewMessage(role="assistant", content=f"step {iteration}")],
            tool_calls=[ToolOutcome(id=call.id, result=iteration)],
            last_tool_result=str(iteration),
            stop_reason="done" if iteration == STEPS else None,
            pause_until=until,
        )

    def finished(self, observer: Observer) -> bool:
        return [run.status for run in observer.rows().runs.values()] == ["completed"]


@pytest.mark.parametrize("step", range(1, STEPS))
def test_checkpoint_survives_crash__resume_at_the_correct_iteration(step: int) -> None:
    """The process dies after the checkpoint is written and before the answer: the step exists and is not repeated."""
    scenario = OneRun()
    rule = Fault("CrashAfterWrite", 1, on="answer runs.step", after=step - 1, at_most=1)
    assert passed(step, scenario, [rule]).faults == {"CrashAfterWrite": 1}
    assert scenario.went_on_at == [0, step]
    assert scenario.committed == [*range(1, step), *range(step + 1, STEPS + 1)]
    assert scenario.loaded[-1].step.state == {"sum": sum(range(step + 1))}


@pytest.mark.parametrize("step", range(1, STEPS))
def test_checkpoint_lost__restart_at_the_last_checkpoint(step: int) -> None:
    """The process dies before the checkpoint is written: the previous one is loaded, and the step is repeated."""
    scenario = OneRun()
    rule = Fault("CrashBeforeWrite", 1, on="call runs.step", after=step - 1, at_most=1)
    assert passed(step, scenario, [rule]).faults == {"CrashBeforeWrite": 1}
    assert scenario.went_on_at == [0, step - 1]
    assert scenario.committed == [*range(1, STEPS + 1)]
    # The call was recorded before, and is still to be done.
    assert [call.id for call in scenario.loaded[-1].tool_calls] == [f"call-{step}"]


class HandOver(OneRun):
    """Each instance does two steps and hands the run over."""

    async def iterate(self, process: Process, epoch: int) -> None:
        acme = process.tenant("acme")
        loaded = await acme.runs.load(RUN)
        self.loaded.append((process.name, loaded))
        for iteration in range(loaded.run.iteration + 1, loaded.run.iteration + 3):
            await self.one(process, epoch, iteration)
            self.committed.append(iteration)
        if iteration < STEPS:
            await acme.leases.release(RUN, epoch=epoch)
            await process.sleep(10)


def test_session_handoff__a_new_instance_resumes_exactly() -> None:
    """Without faults, a new instance finds exactly the state of the previous one."""
    for seed in range(3):
        scenario = HandOver(instances=3)
        passed(seed, scenario, [])
        assert scenario.committed == [*range(1, STEPS + 1)]
        assert len({name for name, _ in scenario.loaded}) > 1
        for place, (_, loaded) in enumerate(scenario.loaded):
            assert loaded.run.iteration == 2 * place
            assert loaded.run.epoch == place + 1
            assert loaded.tool_calls == []
            assert (loaded.step is None) == (place == 0)
            if loaded.step is not None:
                assert loaded.step.state == {"sum": sum(range(2 * place + 1))}
                assert loaded.step.last_tool_result == str(2 * place)


@pytest.mark.parametrize("seed", range(4))
def test_pause_survives_crash__pause_state_restored(seed: int) -> None:
    """The process dies right after pausing the run, which is claimed again only when the pause is over."""
    scenario = OneRun(pause_at=3)
    rules = [Fault("CrashAfterWrite", 1, on="answer runs.step", after=2, at_most=1), Fault("ProcessDeath", 0.02)]
    report = passed(seed, scenario, rules)
    assert report.faults["CrashAfterWrite"] == 1
    assert scenario.went_on_at[-1] == 3 or 3 in scenario.went_on_at
    assert scenario.paused_until_us is not None
    after = next(at for at, iteration in zip(scenario.claimed_us, scenario.went_on_at, strict=False) if iteration == 3)
    assert after >= scenario.paused_until_us
    assert after < scenario.paused_until_us + 30_000_000


class Talking(Scenario):
    """Four processes that append to two sessions and read them again and again."""

    def __init__(self) -> None:
        self.ends = 0

    def processes(self, random: Random) -> Mapping[str, Main]:
        return {f"speaker-{number}": lambda process, number=number: self.talk(process, number) for number in range(4)}

    async def talk(self, process: Process, number: int) -> None:
        session = await process.insist(lambda: process.tenant("acme").sessions.upsert(f"room-{number % 2}"))
        for turn in range(8):
            id = f"00000000-0000-7000-8000-{number:06}{turn:06}"
            said = f"{number} {turn}"
            await process.insist(
                lambda id=id, said=said: process.tenant("acme").messages.append(
                    session.id, role="user", content=said, id=id
                )
            )
            heard = await process.insist(lambda: process.tenant("acme").messages.list(session.id))
            mine = [words for words in (item.content[0]["text"] for item in heard) if words.startswith(f"{number} ")]
            assert mine == [f"{number} {earlier}" for earlier in range(turn + 1)]

    def finished(self, observer: Observer) -> bool:
        return observer.select("SELECT count(*) FROM messages") == [(32,)]


def test_message_ordering__messages_in_correct_order_whatever_the_disk_takes() -> None:
    """The order and gaps are checked after every event; each speaker also finds its own messages in order."""
    slow = 0
    for seed in range(5):
        report = passed(seed, Talking(), [Fault("StorageLatency", 0.3), Fault("ClockJump", 0.05)])
        slow += report.faults["StorageLatency"]
    assert slow > 500


def test_high_load__no_data_corruption_with_mixed_faults() -> None:
    """A tenth of all calls fail, with more runs and workers than usual; no write is lost, torn or repeated."""
    struck: set[str] = set()
    for seed, kind in ((1, AgentScenario), (2, LoopScenario)):
        report = passed(seed, kind(seed, runs=6, processes=3, workers=3), mixed(0.1))
        struck |= report.faults.keys()
    assert len(struck) > 12, struck


def test_determinism__same_seed_same_behaviour_with_all_faults() -> None:
    rules = [Fault(name, 0.004) for name in get_args(FaultName)]
    for seed in range(2):
        first = Simulation(seed, LoopScenario(seed), faults=rules).run()
        second = Simulation(seed, LoopScenario(seed), faults=rules).run()
        assert first.violation is None, f"seed {seed}: {first.violation}"
        assert len(first.faults) > 5
        assert first.trace == second.trace
        assert first == second
