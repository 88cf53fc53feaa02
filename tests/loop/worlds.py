"""Agents to drive, ways to drive them, and ways to break off: what the tests of the loop share.

A *scenario* is a scripted model, its tools and somebody who does what people do: allows what is held, lets time pass, drives the
runs below. Everything in it depends on nothing but its input and the clock, so that a run that was broken off and taken up
again can be compared with one that never was.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast import AsyncHoldfast, FixedClock, Holdfast, TenantHandle, Usage
from holdfast.clock import to_us
from holdfast.errors import HoldfastError
from holdfast.loop import Call, Ending, Later, Loop, ModelTurn, Reply, Snooze, Tool, ToolRequest, subagent, tool
from holdfast.loop.call_plan import REPLY, UNKNOWN
from holdfast.loop.commands import Command
from holdfast.loop.core import CommandGenerator, claim_and_drive
from holdfast.loop.executor import Executor
from holdfast.loop.executor_async import AsyncExecutor
from holdfast.types import Run

TTL_MS = 10_000
READY_S = 1_000.0
"""Seconds after which the tool that wants to be called later does its work."""
MAX_TURNS = 400

Script = Sequence[Reply | str]


class Died(Exception):
    """The process is no more."""


class World:
    """A database, a clock, and what has happened outside of both."""

    def __init__(self, url: str, *, is_async: bool = False) -> None:
        self.url, self.is_async = url, is_async
        self.clock = FixedClock()
        # What a power cut would lose is tested elsewhere; here processes die, and there are many of them.
        durability: Any = "full" if "://" in url else "normal"
        self.hf = Holdfast(url, clock=self.clock, auto_migrate=True, durability=durability)
        self.acme = self.hf.tenant("acme")
        self.effects: Counter[str] = Counter()
        """How often each call did what it does, by run and call."""
        self.asked: Counter[str] = Counter()
        """How often the model was asked, by run and how much it had said before."""
        self.commands: list[Command] = []
        self.fuse: int | None = None
        """Commands until the process dies."""
        self.fuses: list[int] = []
        """The same for the processes after it."""
        self.began_us = self.clock.now_us()
        self._runner = asyncio.Runner() if is_async else None
        self.async_hf = AsyncHoldfast(url, clock=self.clock, durability=durability)
        if self._runner is not None:
            self._runner.run(self.async_hf.open())

    def close(self) -> None:
        """Let go of the database."""
        if self._runner is not None:
            self._runner.run(self.async_hf.close())
            self._runner.close()
        self.hf.close()

    def start(self, agent: str = "tester", **more: Any) -> Run:
        """A run in a session in which somebody has said something."""
        session = self.acme.sessions.create(agent=agent)
        self.acme.messages.append(session.id, role="user", content="Please.")
        return self.acme.runs.start(session.id, max_attempts=1_000, **more)

    def effect(self, call: Call) -> None:
        """Something happens that cannot be undone."""
        self.effects[call.key] += 1

    def run(self, loop: Loop, run: str | Run, **options: Any) -> Ending:
        """Drive a run as users do."""
        if self._runner is not None:
            return self._runner.run(loop.adrive(self.async_hf.tenant("acme"), run, **options))
        return loop.drive(self.acme, run, **options)

    def words(self, run: Run) -> list[str]:
        """What stands in the session of a run, each message in a few words."""
        return [f"{each.role}: {_words(each.content)}" for each in self.acme.messages.list(run.session_id)]

    def drive(self, loop: Loop, run_id: str, holder: str = "tester") -> Ending:
        """Drive a run by hand, until it ends or this process dies.

        Raises:
            Died: the fuse has burnt down.
        """
        generator = claim_and_drive(loop.config, run_id, holder=holder, ttl_ms=TTL_MS)
        if self._runner is not None:
            return self._runner.run(self._drive_async(loop, generator))
        executor = Executor(loop.config, self.acme, None, lambda: True)
        answer: Any = None
        error: HoldfastError | None = None
        try:
            while True:
                command = generator.send(answer) if error is None else generator.throw(error)
                self._burn(command)
                answer, error = None, None
                try:
                    answer = executor.carry_out(command)
                except HoldfastError as raised:
                    error = raised
        except StopIteration as done:
            ending: Ending = done.value
            return ending
        finally:
            executor.close()

    async def _drive_async(self, loop: Loop, generator: CommandGenerator[Ending]) -> Ending:
        executor = AsyncExecutor(loop.config, self.async_hf.tenant("acme"), None, lambda: True)
        answer: Any = None
        error: HoldfastError | None = None
        while True:
            try:
                command = generator.send(answer) if error is None else generator.throw(error)
            except StopIteration as done:
                ending: Ending = done.value
                return ending
            self._burn(command)
            answer, error = None, None
            try:
                answer = await executor.carry_out(command)
            except HoldfastError as raised:
                error = raised

    def _burn(self, command: Command) -> None:
        if self.fuse is not None:
            if self.fuse == 0:
                self.fuse = self.fuses.pop(0) if self.fuses else None
                raise Died(type(command).__name__)
            self.fuse -= 1
        self.commands.append(command)

    def live_on(self, loops: Mapping[str, Loop], run_id: str) -> Run:
        """Do all that people and workers do until a run is over, whoever dies meanwhile."""
        for _ in range(MAX_TURNS):
            run = self.acme.runs.get(run_id)
            if run.finished_at is not None:
                return run
            if run.status == "waiting":
                decide(self.acme, run)
            elif run.status == "paused":
                self._pass_time(loops, run)
            else:
                self._try(loops[run.agent], run.id)
        raise AssertionError(f"it never ended: {self.acme.runs.get(run_id)}")

    def _try(self, loop: Loop, run_id: str) -> None:
        try:
            ending = self.drive(loop, run_id)
        except Died:
            return
        if ending.status == "busy":
            self.clock.advance(TTL_MS / 1_000)

    def _pass_time(self, loops: Mapping[str, Loop], run: Run) -> None:
        below = [child for child in self.acme.runs.list(parent=run.id) if child.finished_at is None]
        for child in below:
            self.live_on(loops, child.id)
        if not below:
            assert run.pause_until is not None
            self.clock.advance(max(0.0, (to_us(run.pause_until) - self.clock.now_us()) / 1_000_000))
            self._try(loops[run.agent], run.id)


def _words(content: list[dict[str, Any]]) -> str:
    said = {
        "text": lambda block: block["text"],
        "tool_use": lambda block: f"<{block['name']}>",
        "tool_result": lambda block: f"{'!' if block.get('is_error') else '='}{block['content']}",
    }
    return " ".join(said[block["type"]](block) for block in content)


def decide(acme: TenantHandle, run: Run) -> None:
    """What a person does about calls that wait for one."""
    waiting = [each.call for each in acme.tool_calls.pending(run.id) if each.action == "ask"]
    assert waiting, "a run waits, and nobody knows for what"
    for call in waiting:
        if call.tool_name == "remove":
            acme.tool_calls.cancel(run.id, call.id, reason="not that one")
        elif call.tool_name == "shout":
            acme.tool_calls.discard(run.id, call.id)
        else:
            acme.tool_calls.allow(run.id, call.id)
    acme.runs.resume(run.id)


def scripted(world: World, script: Script) -> Callable[[ModelTurn], Reply | str]:
    """A model that says the next thing, by how much it has said before."""

    def model(turn: ModelTurn) -> Reply | str:
        said = sum(message["role"] == "assistant" for message in turn.messages)
        world.asked[f"{turn.run.id}/{said}"] += 1
        return script[said]

    return model


def tools_of(world: World) -> list[Tool]:
    """Tools of every kind."""
    return [*working_tools(world), *waiting_tools(world)]


def working_tools(world: World) -> list[Tool]:
    """Tools that come back at once, or never."""

    @tool(safety="idempotent")
    def double(number: int) -> int:
        return 2 * number

    @tool
    def pay(cents: int, call: Call) -> dict[str, int]:
        world.effect(call)
        return {"paid": cents}

    @tool(safety="ask", parallel=False)
    def send(text: str, call: Call) -> str:
        world.effect(call)
        return f"sent {text}"

    @tool(safety="idempotent")
    def breaks() -> None:
        raise ValueError("it broke")

    return [double, pay, send, breaks]


def waiting_tools(world: World) -> list[Tool]:
    """Tools that have the run wait."""

    @tool(safety="idempotent")
    def patient() -> str:
        left_s = READY_S - (world.clock.now_us() - world.began_us) / 1_000_000
        if left_s > 0:
            raise Snooze(left_s)
        return "at last"

    @tool(safety="idempotent")
    def nap() -> Later:
        return Later("slept", 50.0)

    @tool(hold=True)
    def launch(call: Call) -> str:
        world.effect(call)
        return "launched"

    @tool(hold=True)
    def remove() -> str:
        raise AssertionError("nobody has allowed this")

    @tool(hold=True)
    def shout() -> str:
        raise AssertionError("nobody has allowed this")

    return [patient, nap, launch, remove, shout, subagent("helper", name="ask_helper")]


def ask(name: str, id: str, **input: Any) -> ToolRequest:
    """A call that the model asks for."""
    return ToolRequest(name, input, id)


USED = Usage(input_tokens=10, output_tokens=5)
HELPER: Script = [Reply("I pay first.", [ask("pay", "h1", cents=9)]), "forty-two"]
SCENARIOS: dict[str, Script] = {
    "tools": [
        Reply(
            "Let me see.",
            [ask("double", "a", number=4), ask("pay", "b", cents=7), ask("breaks", "c"), ask("nothing", "d", x=1)],
            USED,
            {"n": 1},
        ),
        Reply("I think.", usage=USED, state={"n": 2}, continue_run=True),
        Reply("", [ask("pay", "e", cents=1)], state={"n": 3}, metadata={"mood": "fine"}),
        Reply("Done.", usage=USED),
    ],
    "waiting": [
        Reply("One moment.", [ask("double", "a", number=3), ask("patient", "b"), ask("pay", "c", cents=2)], USED, [1]),
        Reply("I sleep.", pause_s=100.0, state=[2]),
        Reply("I nap.", [ask("nap", "d")], USED),
        "Awake.",
    ],
    "people": [
        Reply(
            "May I?",
            [
                ask("double", "a", number=5),
                ask("launch", "b"),
                ask("pay", "c", cents=3),
                ask("remove", "d"),
                ask("shout", "e"),
            ],
        ),
        Reply("And send.", [ask("send", "f", text="x"), ask("double", "g", number=1)]),
        "Done.",
    ],
    "below": [
        Reply("I ask.", [ask("ask_helper", "a", task="What is it?"), ask("double", "b", number=1)], state={"n": 1}),
        Reply("It said so."),
    ],
}


def loops_of(world: World, name: str) -> dict[str, Loop]:
    """The loops of a scenario, by agent."""
    tools = tools_of(world)
    return {
        "tester": Loop(scripted(world, SCENARIOS[name]), tools=tools),
        "helper": Loop(scripted(world, HELPER), tools=tools),
    }


Picture = dict[str, Any]


def picture(acme: TenantHandle, run_id: str) -> Picture:
    """All of a run that must not depend on whether somebody died: what was said, what each step with words left, and what calls
    came to."""
    run = acme.runs.get(run_id)
    steps = [step for step in acme.steps.list(run_id) if step.first_seq is not None]
    return {
        "run": (run.status, run.stop_reason, run.error, run.input_tokens, run.output_tokens),
        "messages": [(each.role, each.content, each.metadata) for each in acme.messages.list(run.session_id)],
        "states": [(step.state, step.last_tool_result) for step in steps],
        "calls": {
            each.id: (each.tool_name, each.tool_input, each.safety, each.status, each.result, each.error)
            for each in acme.tool_calls.list(run_id)
            if each.tool_name != REPLY
        },
        "below": [picture(acme, child.id) for child in acme.runs.list(parent=run_id)],
    }


def unknowns(there: Picture) -> set[str]:
    """The calls of which nobody knows."""
    return {id for id, call in there["calls"].items() if call[3] == "unknown"}


def as_if_unknown(twin: Picture, calls: set[str]) -> Picture:
    """What a twin would look like if nobody knew what became of some calls, which must happen at most once."""
    assert all(twin["calls"][call][2] == "at_most_once" for call in calls)
    messages = [
        (role, [_forgotten(block, calls) for block in content], meta) for role, content, meta in twin["messages"]
    ]
    ledger = {id: (*call[:3], "unknown", None, UNKNOWN) if id in calls else call for id, call in twin["calls"].items()}
    return {**twin, "messages": messages, "calls": ledger}


def _forgotten(block: dict[str, Any], calls: set[str]) -> dict[str, Any]:
    if block.get("tool_use_id") in calls:
        return {"type": "tool_result", "tool_use_id": block["tool_use_id"], "content": UNKNOWN, "is_error": True}
    return block


def check_effects(world: World, run: Run) -> None:
    """What must happen at most once has, and what is said to have happened has."""
    for call in world.acme.tool_calls.list(run.id):
        times = world.effects[f"{run.id}/{call.id}"]
        if call.safety == "at_most_once":
            assert times <= 1, f"{call.id} happened {times} times"
        if call.tool_name in ("pay", "launch", "send") and call.status == "finished":
            assert times >= 1, f"{call.id} is said to have happened"
    for child in world.acme.runs.list(parent=run.id):
        check_effects(world, child)
