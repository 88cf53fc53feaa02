"""Built-in scenario: workers that drive the runs of agents, a client that starts the runs, and a person who decides on calls.

The workers use only the stores: claim a run, load it, read the conversation, call the model, record the tool calls, make
them, commit the step. Each has a heartbeat that renews its lease. After an error they do what the stores' documentation
prescribes: retry the call, reopen the database, or abandon the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from random import Random

from ...errors import Conflict, Fenced, NotFound
from ...stores.conversation.new_entries import NewMessage
from ...stores.execution.runs.leases import ClaimedRun
from ...stores.execution.runs.ledger import NewToolCall, ToolOutcome
from ...stores.execution.runs.runs import LoadedRun
from ...stores.execution.runs.states import Run
from ...stores.execution.runs.step_log import Usage
from ...tenant_handles import AsyncTenantHandle
from .observer import Observer
from .plans import TENANTS, PlannedRun, PlannedStep, check_end, plan_runs
from .process import Main, Process
from .scenario import Scenario
from .simulation import ToolFailed

TTL_MS = 30_000
"""Duration of a lease."""


class AgentScenario(Scenario):
    """Runs of agents, driven by several processes with several workers each.

    Args:
        seed: decides what the agents do, and the sizes that are not given.
        runs: number of runs.
        processes: number of processes that drive them.
        workers: number of worker coroutines in each process.
    """

    def __init__(
        self, seed: int, *, runs: int | None = None, processes: int | None = None, workers: int | None = None
    ) -> None:
        random = Random(f"{seed} sizes")
        defaults = random.randint(1, 4), random.randint(2, 3), random.randint(1, 2)
        self.plans = plan_runs(seed, runs or defaults[0])
        self._processes, self._workers = processes or defaults[1], workers or defaults[2]
        self._ended: set[str] = set()

    def processes(self, random: Random) -> Mapping[str, Main]:
        drivers = {f"worker-{number}": self.drive_runs for number in range(1, self._processes + 1)}
        return {"client": self.start_runs, "person": self.decide, **drivers}

    def finished(self, observer: Observer) -> bool:
        ends = {run.id: run.status for run in observer.rows().runs.values()}
        return all(
            ends.get(id) == "completed" or (plan.cancelled and ends.get(id) == "cancelled")
            for id, plan in self.plans.items()
        )

    def unfinished(self, observer: Observer) -> str:
        rows = observer.select(
            "SELECT id, status, iteration, epoch, attempts, error FROM runs WHERE status <> 'completed'"
        )
        return f"{len(self.plans)} runs were planned, and these are not completed: {rows}"

    def check(self, observer: Observer) -> None:
        rows = observer.rows()
        for run in rows.runs.values():
            if run.status == "completed" and run.id in self.plans and run.id not in self._ended:
                check_end(self.plans[run.id], run, rows)
                self._ended.add(run.id)

    # The client

    async def start_runs(self, process: Process) -> None:
        """Start each run after a message. All calls are idempotent, so a restarted client finds its earlier work."""
        for plan in self.plans.values():
            session = await process.insist(
                lambda plan=plan: process.tenant(plan.tenant).sessions.upsert(plan.key, agent="helper")  # type: ignore[misc]
            )
            await process.insist(
                lambda plan=plan, session=session: process.tenant(plan.tenant).messages.append(  # type: ignore[misc]
                    session.id, role="user", content=f"please do {plan.run_id}", id=plan.message_id
                )
            )
            await process.insist(
                lambda plan=plan, session=session: process.tenant(plan.tenant).runs.start(  # type: ignore[misc]
                    session.id, id=plan.run_id
                )
            )
            await process.sleep(process.random.uniform(0.1, 10))

    # The person

    async def decide(self, process: Process) -> None:
        """Decide on calls that need a person, resume failed runs, and cancel some runs."""
        while True:
            await process.sleep(process.random.uniform(3, 15))
            for tenant in TENANTS:
                for run in await process.insist(lambda tenant=tenant: process.tenant(tenant).runs.list()):  # type: ignore[misc]
                    try:
                        await self._decide(process, process.tenant(tenant), run)
                    except (Conflict, NotFound):
                        process.say(f"finds run ..{run.id[-6:]} changed")

    async def _decide(self, process: Process, acme: AsyncTenantHandle, run: Run) -> None:
        if run.status == "failed":
            await acme.runs.resume(run.id)
        elif run.status == "waiting":
            for pending in await acme.tool_calls.pending(run.id):
                if pending.action == "ask" and process.random.random() < 0.7:
                    await acme.tool_calls.allow(run.id, pending.call.id)
                elif pending.action == "ask":
                    await acme.tool_calls.cancel(run.id, pending.call.id, reason="not wanted")
            await acme.runs.resume(run.id)
        elif (
            run.status == "running"
            and run.id in self.plans
            and self.plans[run.id].cancelled
            and process.random.random() < 0.2
        ):
            await acme.runs.cancel(run.id, reason="not wanted")

    # The workers

    async def drive_runs(self, process: Process) -> None:
        """Start the workers of a process."""
        for number in range(1, self._workers + 1):
            worker = self.worker(process, f"{process.name}.{number}")
            process.spawn(f"{number}", worker.work())
            process.spawn(f"{number}-heartbeat", worker.beat())

    def worker(self, process: Process, name: str) -> AgentWorker:
        """Create a worker of a process."""
        return AgentWorker(self.plans, process, name)


class AgentWorker:
    """Claims runs and drives them."""

    def __init__(self, plans: Mapping[str, PlannedRun], process: Process, name: str) -> None:
        self.plans, self.process, self.name = plans, process, name
        self.held: ClaimedRun | None = None

    @property
    def acme(self) -> AsyncTenantHandle:
        """The handle of the held run's tenant. Read it for each call: it changes when the database is reopened."""
        assert self.held is not None
        return self.process.tenant(self.held.tenant)

    async def work(self) -> None:
        """Claim and drive runs forever."""
        process = self.process
        while True:
            claim = lambda: process.holdfast.run_queue.claim(self.name, ttl_ms=TTL_MS)  # noqa: E731
            self.held = await process.insist(claim)
            if self.held is None:
                await process.sleep(process.random.uniform(2, 12))
                continue
            try:
                await self.drive(self.held.run)
            except (Conflict, NotFound) as error:
                process.say(f"{self.name} lets go of run ..{self.held.run.id[-6:]}: {type(error).__name__}")
            self.held = None

    async def beat(self) -> None:
        """Renew the lease of the held run after every third of its duration."""
        while True:
            await self.process.sleep(TTL_MS / 3_000)
            held = self.held
            if held is not None:
                try:
                    await self.process.tenant(held.tenant).leases.renew(held.run.id, epoch=held.run.epoch)
                except Exception as error:
                    self.process.say(f"{self.name} cannot renew: {type(error).__name__}")

    async def drive(self, run: Run) -> None:
        """Execute iterations until the run ends, pauses or is released."""
        process, plan = self.process, self.plans[run.id]
        while True:
            loaded = await process.insist(lambda: self.acme.runs.load(run.id))
            if (loaded.run.epoch, loaded.run.status) != (run.epoch, "running"):
                raise Fenced
            planned = plan.steps[loaded.run.iteration]
            await process.insist(lambda: self.acme.messages.list(run.session_id))
            await process.sleep(planned.model_s)
            outcomes = await self.call_tools(loaded, planned)
            if outcomes is None:
                await process.insist(lambda: self.acme.runs.pause(run.id, epoch=run.epoch))
                return
            ends = await self.commit(loaded, plan, outcomes)
            if ends:
                return
            if process.random.random() < 0.05:
                await process.insist(lambda: self.acme.leases.release(run.id, epoch=run.epoch))
                return

    async def commit(self, loaded: LoadedRun, plan: PlannedRun, outcomes: Sequence[ToolOutcome]) -> bool:
        """Commit the step and return whether this process has finished with the run."""
        run, iteration = loaded.run, loaded.run.iteration + 1
        planned = plan.steps[iteration - 1]
        is_last = iteration == len(plan.steps)
        until = None
        if planned.pause_s is not None and not is_last:
            until = self.process.now() + timedelta(seconds=planned.pause_s)
        messages = [NewMessage(role="assistant", content=f"{run.id} {iteration} by {self.name}", token_count=3)]
        messages += [
            NewMessage(role="user", content=[{"type": "text", "text": f"{outcome.id}: {outcome.result}"}])
            for outcome in outcomes
        ]
        await self.process.insist(
            lambda: self.acme.runs.step(
                run.id,
                epoch=run.epoch,
                iteration=iteration,
                state={
                    "iteration": iteration,
                    "by": self.name,
                    "last": loaded.step.state["iteration"] if loaded.step else 0,
                },
                messages=messages,
                tool_calls=outcomes,
                usage=Usage(input_tokens=iteration, output_tokens=len(messages)),
                stop_reason="end_turn" if is_last else None,
                pause_until=until,
            )
        )
        return is_last or until is not None

    async def call_tools(self, loaded: LoadedRun, planned: PlannedStep) -> list[ToolOutcome] | None:
        """Make the due calls of an iteration and return their outcomes, or ``None`` if a person must decide first."""
        run = loaded.run
        recorded = {call.id for call in loaded.tool_calls}
        pending = {
            item.call.id: item for item in await self.process.insist(lambda: self.acme.tool_calls.pending(run.id))
        }
        if any(item.action in ("ask", "wait") for item in pending.values()):
            return None
        outcomes = [
            ToolOutcome(id=id, status="unknown", error="it is unknown whether the call was made")
            for id, item in pending.items()
            if item.action == "report"
        ]
        begin = [call for call in planned.calls if call.id not in recorded]
        begin += [_again(call) for call in planned.calls if call.id in pending and pending[call.id].action == "run"]
        if begin:
            calls = await self.process.insist(lambda: self.acme.tool_calls.intend(run.id, epoch=run.epoch, calls=begin))
            if any(call.status == "held" for call in calls):
                return None
            outcomes += [await self.call_tool(run, call) for call in begin]
        return outcomes

    async def call_tool(self, run: Run, call: NewToolCall) -> ToolOutcome:
        """Make one tool call."""
        assert self.held is not None
        takes_s = self.process.random.uniform(0, 6)
        try:
            result = await self.process.perform(
                self.held.tenant, run.id, call.id, epoch=run.epoch, act=lambda before: {"sent": before}, takes_s=takes_s
            )
        except ToolFailed:
            return ToolOutcome(id=call.id, error="it did not work")
        return ToolOutcome(id=call.id, result=result)


def _again(call: NewToolCall) -> NewToolCall:
    return NewToolCall(id=call.id, tool_name=call.tool_name, tool_input=call.tool_input, safety=call.safety)
