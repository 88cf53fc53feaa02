"""Run the durable loop in the simulation: its unchanged core, with an executor that the simulation can suspend.

The core (``loop.core``) performs no input or output; it yields commands. Here the model follows a plan, tools act on the
simulated world, and stores are called through the process. The scenario and the checked promises are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...clock import from_us
from ...errors import HoldfastError
from ...loop import ModelTurn, Reply, Tool, ToolRequest
from ...loop import commands as do
from ...loop.commands import Command, StoreCommand
from ...loop.config import LoopConfig
from ...loop.core import drive
from ...loop.events import BegunCall
from ...loop.tools import CallAnswer, ChildRun, Completed, Delegated, Failed, Snoozed
from ...stores.execution.runs.ledger import NewToolCall
from ...stores.execution.runs.states import Run
from ...stores.execution.runs.step_log import Usage
from .agent_driver import AgentScenario, AgentWorker
from .plans import SAFETIES, PlannedRun
from .process import Process
from .simulation import ToolFailed

DELEGATE = "delegate"
"""Name of the tool that delegates to another agent."""


class LoopScenario(AgentScenario):
    """``AgentScenario`` with the durable loop as worker. Some tool calls start child runs."""

    def worker(self, process: Process, name: str) -> AgentWorker:
        return LoopWorker(self.plans, process, name)


class LoopWorker(AgentWorker):
    """Claims runs and drives them with the durable loop."""

    async def drive(self, run: Run) -> None:
        """Execute the commands of the loop until it ends."""
        config = LoopConfig(model=lambda turn: reply(self.plans.get(run.id), turn), tools=_TOOLS)
        core = drive(config, run)
        answer: Any = None
        error: HoldfastError | None = None
        while True:
            try:
                command = core.send(answer) if error is None else core.throw(error)
            except StopIteration as stop:
                self.process.say(f"{self.name} ends driving run ..{run.id[-6:]}: {stop.value.status}")
                return
            answer, error = None, None
            try:
                answer = await self.execute(config, run, command)
            except HoldfastError as raised:
                error = raised

    async def execute(self, config: LoopConfig, run: Run, command: Command) -> Any:
        """Execute one command and return its result."""
        process = self.process
        if isinstance(command, StoreCommand):
            return await process.insist(lambda: command.on(self.acme))
        if isinstance(command, do.AskModel):
            await process.sleep(process.random.uniform(0.1, 4))
            return config.model(command.turn)
        if isinstance(command, do.CallTools):
            return [await self.call_planned_tool(run, call) for call in command.calls]
        if isinstance(command, do.Now):
            return from_us(process.clock.now_us())
        if isinstance(command, do.Sleep):
            return await process.sleep(command.seconds)
        return process.random.random() >= 0.05  # whether to continue

    async def call_planned_tool(self, run: Run, call: BegunCall) -> CallAnswer:
        """Make one tool call."""
        assert self.held is not None
        if call.name.startswith(DELEGATE):
            return Delegated(ChildRun("below", f"help {call.id}"))
        if self.process.random.random() < 0.05:
            return Snoozed(self.process.random.uniform(1, 20))
        try:
            takes_s = self.process.random.uniform(0, 6)
            act = lambda before: {"sent": before}  # noqa: E731
            result = await self.process.perform(
                self.held.tenant, run.id, call.id, epoch=run.epoch, act=act, takes_s=takes_s
            )
        except ToolFailed:
            return Failed("it did not work")
        return Completed(result)


def reply(plan: PlannedRun | None, turn: ModelTurn) -> Reply:
    """Return the model's reply: from the plan or, in a child run, a fixed short text."""
    number = (turn.state or 0) + 1
    text = f"{turn.run.id} {number}"
    usage = Usage(input_tokens=number, output_tokens=2)
    if plan is None:
        return Reply(text, usage=usage, state=number)
    planned = plan.steps[number - 1]
    is_last = number == len(plan.steps)
    calls = [ToolRequest(_name(call, turn.run), call.tool_input, call.id) for call in planned.calls]
    pause_s = None if is_last else planned.pause_s
    return Reply(
        text,
        calls,
        usage=usage,
        state=number,
        continue_run=not is_last,
        pause_s=pause_s,
        stop="end_turn" if is_last else None,
    )


def _name(call: NewToolCall, run: Run) -> str:
    if call.safety == "idempotent" and not call.hold and run.depth == 0 and call.id.endswith("-1"):
        return DELEGATE
    return f"{call.safety}{'-held' if call.hold else ''}"


def _never(**arguments: Any) -> None:
    """Raise: in the simulation, tools are called by the process."""
    raise NotImplementedError


def _tools() -> Sequence[Tool]:
    tools = [Tool(_never, name=DELEGATE, safety="idempotent")]
    for safety in dict.fromkeys(SAFETIES):
        tools.append(Tool(_never, name=safety, safety=safety))
        tools.append(Tool(_never, name=f"{safety}-held", safety=safety, hold=True))
    return tools


_TOOLS = {tool.name: tool for tool in _tools()}
