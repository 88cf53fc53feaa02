"""Benchmark of durable steps: their rate compared with DBOS, the cost of one step, and the cost of resuming a long run.

A step stores a result of 1 KB and is durable before it is acknowledged. Each worker executes its own run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from . import append_postgres, append_sqlite
from .case import Case, Engine, Environment, Job, Result
from .workload import messages, middle_us

GROUPS: dict[str, Engine] = {"steps-sqlite": "sqlite", "steps-postgres": "postgres"}
COST_GROUP = "step-cost"
MANY = (1, 16)
SYNC = "Holdfast, sync"
"""The contender for one worker, because DBOS is called without asyncio too."""
BY_HAND = "by hand"
"""The floor: the raw driver writes a row of 1 KB and updates its session, in one commit for all workers."""
WHO: dict[str, tuple[Environment, tuple[int, ...]]] = {
    "Holdfast": ("main", MANY),
    SYNC: ("main", MANY[:1]),
    BY_HAND: ("main", MANY),
    "DBOS": ("dbos", MANY),
}
TENANT = "bench"
PAD = "x" * 900
SHORT, LONG = 10, 1_000
_WARM_UP = 5
_DBOS_STEPS = 200
"""Steps per workflow between two checks of the clock."""


def cases() -> list[Case]:
    """Return the contenders on both engines, and the cases that compare Holdfast with itself."""
    collected = [
        Case(group, name, environment, engine, {"workers": workers})
        for group, engine in GROUPS.items()
        for name, (environment, many) in WHO.items()
        for workers in many
    ]
    return [*collected, *(Case(COST_GROUP, name) for name in _PARTS)]


def run(job: Job) -> Result:
    """Measure one contender."""
    if job.group == COST_GROUP:
        return _cost(job)
    if job.contender == BY_HAND:
        return _by_hand(job)
    address = job.place if job.group == "steps-postgres" else str(Path(job.place) / "agents.db")
    if job.contender == "DBOS":
        return _dbos(address, job.params["workers"], job.seconds)
    if job.contender == SYNC:
        return _holdfast_sync(address, job.seconds)
    return asyncio.run(_holdfast(address, job.params["workers"], job.seconds))


def _result(number: int) -> dict[str, Any]:
    return {"i": number, "pad": PAD}


async def _holdfast(address: str, workers: int, seconds: float) -> Result:
    from holdfast import AsyncHoldfast

    async with AsyncHoldfast(address, auto_migrate=True) as hf:
        tenant = hf.tenant(TENANT)
        runs = [await _claim_new_run(tenant) for _ in range(workers)]
        completed = [0] * workers

        async def work(worker: int, until: float, max_steps: int) -> None:
            run, count = runs[worker], 0
            while count < max_steps and perf_counter() < until:
                completed[worker] += 1
                count += 1
                await tenant.runs.step(
                    run.id, epoch=run.epoch, iteration=completed[worker], state=_result(completed[worker])
                )

        await asyncio.gather(*(work(number, perf_counter() + 60, _WARM_UP) for number in range(workers)))
        before, started = sum(completed), perf_counter()
        await asyncio.gather(*(work(number, started + seconds, 10**9) for number in range(workers)))
        took, steps = perf_counter() - started, sum(completed) - before
        existing = [(await tenant.runs.get(run.id)).iteration for run in runs]
        if existing != completed:
            raise RuntimeError(f"{completed} steps were acknowledged, but {existing} are stored")
    return {"rate": round(steps / took, 1), "steps": steps}


def _holdfast_sync(address: str, seconds: float) -> Result:
    from holdfast import Holdfast

    with Holdfast(address, auto_migrate=True) as hf:
        tenant: Any = hf.tenant(TENANT)
        run = tenant.leases.claim("bench", run_id=tenant.runs.start(tenant.sessions.create().id).id, ttl_ms=600_000)
        for number in range(1, _WARM_UP + 1):
            tenant.runs.step(run.id, epoch=run.epoch, iteration=number, state=_result(number))
        steps, started = 0, perf_counter()
        while perf_counter() - started < seconds:
            steps += 1
            number = _WARM_UP + steps
            tenant.runs.step(run.id, epoch=run.epoch, iteration=number, state=_result(number))
        took = perf_counter() - started
        if tenant.runs.get(run.id).iteration != _WARM_UP + steps:
            raise RuntimeError("an acknowledged step is not stored")
    return {"rate": round(steps / took, 1), "steps": steps}


def _by_hand(job: Job) -> Result:
    workers = job.params["workers"]
    if job.group == "steps-postgres":
        name = "asyncpg connection" if workers == 1 else append_postgres.TOGETHER
        run = append_postgres.run
    else:
        name = "apsw" if workers == 1 else append_sqlite.TOGETHER
        run = append_sqlite.run
    collected = run(replace(job, contender=name, params={"writers": workers}))
    return {"rate": collected["rate"], "steps": collected["operations"]}


async def _claim_new_run(tenant: Any) -> Any:
    run = await tenant.runs.start((await tenant.sessions.create()).id)
    return await tenant.leases.claim("bench", run_id=run.id, ttl_ms=600_000)


def _dbos(address: str, workers: int, seconds: float) -> Result:
    from dbos import DBOS, DBOSConfig

    url = address if address.startswith("postgresql") else f"sqlite:///{address}"
    DBOS(config=DBOSConfig(name="bench", system_database_url=url, run_admin_server=False, log_level="ERROR"))

    @DBOS.step()  # type: ignore[untyped-decorator]
    def one(number: int) -> dict[str, Any]:
        return _result(number)

    @DBOS.workflow()  # type: ignore[untyped-decorator]
    def flow(count: int) -> int:
        for number in range(count):
            one(number)
        return count

    DBOS.launch()
    flow(_WARM_UP)
    steps, started = 0, perf_counter()
    while perf_counter() - started < seconds:
        begun = [DBOS.start_workflow(flow, _DBOS_STEPS) for _ in range(workers)]
        steps += sum(item.get_result() for item in begun)
    return {"rate": round(steps / (perf_counter() - started), 1), "steps": steps}


def _cost(job: Job) -> Result:
    from holdfast import Holdfast

    with Holdfast(str(Path(job.place) / "agents.db")) as hf:
        return _PARTS[job.contender](hf.tenant(TENANT), job.seconds)


def _whole_step(tenant: Any, seconds: float) -> Result:
    """Compare a step with state, two messages, a finished tool call and usage with a bare append."""
    from holdfast import NewMessage, NewToolCall, ToolOutcome, Usage

    session = tenant.sessions.create().id
    run = tenant.leases.claim("bench", run_id=tenant.runs.start(session).id, ttl_ms=600_000)
    supply = messages(64)
    other = tenant.sessions.create().id
    took: dict[str, list[float]] = {"append_us": [], "step_us": [], "intend_us": []}
    end, iteration = perf_counter() + seconds, 0
    while perf_counter() < end or iteration < SHORT:
        iteration += 1
        first, second = supply[iteration % 64], supply[(iteration + 1) % 64]
        call = str(iteration)
        started = perf_counter()
        tenant.messages.append(other, role=first["role"], content=first["content"])
        appended = perf_counter()
        tenant.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id=call, tool_name="t", tool_input={})])
        intended = perf_counter()
        tenant.runs.step(
            run.id,
            epoch=run.epoch,
            iteration=iteration,
            state={"n": iteration},
            messages=[NewMessage(role=item["role"], content=item["content"]) for item in (first, second)],
            tool_calls=[ToolOutcome(id=call, result="done")],
            usage=Usage(input_tokens=100, output_tokens=20),
        )
        stepped = perf_counter()
        for name, span in zip(took, (appended - started, stepped - intended, intended - appended), strict=True):
            took[name].append(span)
    middle = {name: middle_us(item) for name, item in took.items()}
    return {**middle, "step_ratio": round(middle["step_us"] / middle["append_us"], 3)}


def _resuming(tenant: Any, seconds: float) -> Result:
    """Compare claiming and loading a run of 1,000 steps with a run of 10 steps."""
    long, short = _run_with_steps(tenant, LONG), _run_with_steps(tenant, SHORT)
    took: dict[str, list[float]] = {"resume_long_us": [], "resume_short_us": []}
    end = perf_counter() + seconds
    while perf_counter() < end or len(took["resume_long_us"]) < SHORT:
        for name, run_id in (("resume_long_us", long), ("resume_short_us", short)):
            started = perf_counter()
            run = tenant.leases.claim("bench", run_id=run_id)
            loaded = tenant.runs.load(run_id)
            took[name].append(perf_counter() - started)
            assert loaded.step is not None
            tenant.leases.release(run_id, epoch=run.epoch)
            # Holdfast fails a run that is claimed too often in a row without a step.
            tenant.runs.resume(run_id)
    middle = {name: middle_us(item) for name, item in took.items()}
    return {**middle, "resume_growth": round(middle["resume_long_us"] / middle["resume_short_us"], 3)}


def _run_with_steps(tenant: Any, steps: int) -> str:
    run = tenant.runs.start(tenant.sessions.create().id, max_attempts=1_000_000)
    held = tenant.leases.claim("bench", run_id=run.id)
    for iteration in range(1, steps + 1):
        tenant.runs.step(run.id, epoch=held.epoch, iteration=iteration, state=_result(iteration))
    tenant.leases.release(run.id, epoch=held.epoch)
    return str(run.id)


_PARTS: dict[str, Callable[[Any, float], Result]] = {"a whole step": _whole_step, "resuming": _resuming}
