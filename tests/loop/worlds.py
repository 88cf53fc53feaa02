"""Agents, ways to drive them and ways to interrupt them: shared by the tests of the loop.

A *scenario* is a scripted model, its tools and a simulated person: allows held calls, lets time pass, drives the child runs.
A scenario depends only on its input and the clock, so that a run that was interrupted and resumed can be compared with one
that was not.
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
from holdfast.loop.commands import Command, CommandGenerator
from holdfast.loop.core import claim_and_drive
from holdfast.loop.executor import Executor
from holdfast.loop.executor_async import AsyncExecutor
from holdfast.types import Run

TTL_MS = 10_000
READY_S = 1_000.0
"""Seconds after which the snoozing tool does its work."""
MAX_TURNS = 400

Script = Sequence[Reply | str]


class Died(Exception):
    """The simulated process has died."""


class World:
    """A database, a clock, and a record of all side effects outside of both."""

    def __init__(self, url: str, *, is_async: bool = False) -> None:
        self.url, self.is_async = url, is_async
        self.clock = FixedClock()
        # Power cuts are tested elsewhere; here many processes die.
        durability: Any = "full" if "://" in url else "normal"
        self.hf = Holdfast(url, clock=self.clock, auto_migrate=True, durability=durability)
        self.acme = self.hf.tenant("acme")
        self.effects: Counter[str] = Counter()
        """How often each call had its side effect, by run and call."""
        self.prompts: Counter[str] = Counter()
        """How often the model was asked, by run and number of earlier replies."""
        self.commands: list[Command] = []
        self.fuse: int | None = None
        """Commands until the process dies."""
        self.fuses: list[int] = []
        """The fuses of the following processes."""
        self.began_us = self.clock.now_us()
        self._runner = asyncio.Runner() if is_async else None
        self.async_hf = AsyncHoldfast(url, clock=self.clock, durability=durability)
        if self._runner is not None:
            self._runner.run(self.async_hf.open())

    def close(self) -> None:
        """Close the databases."""
        if self._runner is not None:
            self._runner.run(self.async_hf.close())
            self._runner.close()
        self.hf.close()

    def start(self, agent: str = "tester", **more: Any) -> Run:
        """Start a run in a session with one message."""
        session = self.acme.sessions.create(agent=agent)
        self.acme.messages.append(session.id, role="user", content="Please.")
        return self.acme.runs.start(session.id, max_attempts=1_000, **more)

    def effect(self, call: Call) -> None:
        """Record a side effect that cannot be undone."""
        self.effects[call.key] += 1

    def run(self, loop: Loop, run: str | Run, **options: Any) -> Ending:
        """Drive a run through the public methods."""
        if self._runner is not None:
            return self._runner.run(loop.adrive(self.async_hf.tenant("acme"), run, **options))
        return loop.drive(self.acme, run, **options)

    def words(self, run: Run) -> list[str]:
        """Return the messages of a run's session, each in short form."""
        return [f"{message.role}: {_words(message.content)}" for message in self.acme.messages.list(run.session_id)]

    def drive(self, loop: Loop, run_id: str, holder: str = "tester") -> Ending:
        """Drive a run command by command, until it ends or this process dies.

        Raises:
            Died: the fuse has run out.
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
        except StopIteration as stop:
            ending: Ending = stop.value
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
            except StopIteration as stop:
                ending: Ending = stop.value
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
        """Do the work of people and workers until a run has ended, across all deaths of processes."""
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
        raise AssertionError(f"the run did not end: {self.acme.runs.get(run_id)}")

    def _try(self, loop: Loop, run_id: str) -> None:
        try:
            ending = self.drive(loop, run_id)
        except Died:
            return
        if ending.status == "busy":
            self.clock.advance(TTL_MS / 1_000)

    def _pass_time(self, loops: Mapping[str, Loop], run: Run) -> None:
        children = [child for child in self.acme.runs.list(parent=run.id) if child.finished_at is None]
        for child in children:
            self.live_on(loops, child.id)
        if not children:
            assert run.pause_until is not None
            self.clock.advance(max(0.0, (to_us(run.pause_until) - self.clock.now_us()) / 1_000_000))
            self._try(loops[run.agent], run.id)


def _words(content: list[dict[str, Any]]) -> str:
    formats = {
        "text": lambda block: block["text"],
        "tool_use": lambda block: f"<{block['name']}>",
        "tool_result": lambda block: f"{'!' if block.get('is_error') else '='}{block['content']}",
    }
    return " ".join(formats[block["type"]](block) for block in content)


def decide(acme: TenantHandle, run: Run) -> None:
    """Decide about the calls that wait for a person."""
    waiting = [pending.call for pending in acme.tool_calls.pending(run.id) if pending.action == "ask"]
    assert waiting, "the run waits although no call needs a decision"
    for call in waiting:
        if call.tool_name == "remove":
            acme.tool_calls.cancel(run.id, call.id, reason="not that one")
        elif call.tool_name == "shout":
            acme.tool_calls.discard(run.id, call.id)
        else:
            acme.tool_calls.allow(run.id, call.id)
    acme.runs.resume(run.id)


def scripted(world: World, script: Script) -> Callable[[ModelTurn], Reply | str]:
    """Return a model that gives the next reply of a script, by its number of earlier replies."""

    def model(turn: ModelTurn) -> Reply | str:
        replies = sum(message["role"] == "assistant" for message in turn.messages)
        world.prompts[f"{turn.run.id}/{replies}"] += 1
        return script[replies]

    return model


def tools_of(world: World) -> list[Tool]:
    """Return tools of every kind."""
    return [*working_tools(world), *waiting_tools(world)]


def working_tools(world: World) -> list[Tool]:
    """Return tools that answer at once."""

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
    """Return tools that make the run wait."""

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
        raise AssertionError("this call was not allowed")

    @tool(hold=True)
    def shout() -> str:
        raise AssertionError("this call was not allowed")

    return [patient, nap, launch, remove, shout, subagent("helper", name="ask_helper")]


def ask(name: str, id: str, **input: Any) -> ToolRequest:
    """Return a tool call that the model requests."""
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
    "children": [
        Reply("I ask.", [ask("ask_helper", "a", task="Name it."), ask("double", "b", number=1)], state={"n": 1}),
        Reply("It said so."),
    ],
}


def loops_of(world: World, name: str) -> dict[str, Loop]:
    """Return the loops of a scenario, by agent."""
    tools = tools_of(world)
    return {
        "tester": Loop(scripted(world, SCENARIOS[name]), tools=tools),
        "helper": Loop(scripted(world, HELPER), tools=tools),
    }


Picture = dict[str, Any]


def picture(acme: TenantHandle, run_id: str) -> Picture:
    """Return all data of a run that must not depend on crashes: messages, states of steps with messages, and call outcomes."""
    run = acme.runs.get(run_id)
    steps = [step for step in acme.steps.list(run_id) if step.first_seq is not None]
    return {
        "run": (run.status, run.stop_reason, run.error, run.input_tokens, run.output_tokens),
        "messages": [(item.role, item.content, item.metadata) for item in acme.messages.list(run.session_id)],
        "states": [(step.state, step.last_tool_result) for step in steps],
        "calls": {
            call.id: (call.tool_name, call.tool_input, call.safety, call.status, call.result, call.error)
            for call in acme.tool_calls.list(run_id)
            if call.tool_name != REPLY
        },
        "children": [picture(acme, child.id) for child in acme.runs.list(parent=run_id)],
    }


def unknowns(actual: Picture) -> set[str]:
    """Return the calls of unknown outcome."""
    return {id for id, call in actual["calls"].items() if call[3] == "unknown"}


def as_if_unknown(twin: Picture, calls: set[str]) -> Picture:
    """Return the picture of a twin in which the outcomes of some at-most-once calls were unknown."""
    assert all(twin["calls"][call][2] == "at_most_once" for call in calls)
    messages = [
        (role, [_with_unknown_result(block, calls) for block in content], meta)
        for role, content, meta in twin["messages"]
    ]
    ledger = {id: (*call[:3], "unknown", None, UNKNOWN) if id in calls else call for id, call in twin["calls"].items()}
    return {**twin, "messages": messages, "calls": ledger}


def _with_unknown_result(block: dict[str, Any], calls: set[str]) -> dict[str, Any]:
    if block.get("tool_use_id") in calls:
        return {"type": "tool_result", "tool_use_id": block["tool_use_id"], "content": UNKNOWN, "is_error": True}
    return block


def check_effects(world: World, run: Run) -> None:
    """Check that at-most-once calls happened at most once, and that finished calls happened."""
    for call in world.acme.tool_calls.list(run.id):
        times = world.effects[f"{run.id}/{call.id}"]
        if call.safety == "at_most_once":
            assert times <= 1, f"{call.id} happened {times} times"
        if call.tool_name in ("pay", "launch", "send") and call.status == "finished":
            assert times >= 1, f"{call.id} is finished but never happened"
    for child in world.acme.runs.list(parent=run.id):
        check_effects(world, child)
