"""A step has the same effect with each statement that can commit it: alone, with other short steps, or with any."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest
from msgspec import structs

from holdfast import Holdfast, NewToolCall, TenantHandle, ToolOutcome, Usage
from holdfast.engines.protocol import Connection
from holdfast.stores.execution.runs import step_log
from holdfast.stores.execution.runs.step_log import CommittedStep, NewStep
from holdfast.sync_runner import step as driven
from holdfast.types import Run

Write = Callable[[Connection, Sequence[NewStep]], Awaitable[list[CommittedStep | None]]]


async def alone(connection: Connection, steps: Sequence[NewStep]) -> list[CommittedStep | None]:
    """Write each step separately."""
    return [(await step_log._write_bare(connection, [step]))[0] for step in steps]


WAYS: dict[str, Write] = {"alone": alone, "together": step_log._write_bare, "with any": step_log.write_steps}


@pytest.fixture
def acme(postgres_url: str) -> Iterator[TenantHandle]:
    with Holdfast(postgres_url) as hf:
        yield hf.tenant("acme")


def claimed(acme: TenantHandle) -> Run:
    """Return a claimed run."""
    lease = acme.leases.claim("w", run_id=acme.runs.start(acme.sessions.create().id).id, ttl_ms=60_000)
    assert lease is not None
    return lease


def new(acme: TenantHandle, run: Run, iteration: int = 1, **more: Any) -> NewStep:
    """Return a step without messages and outcomes."""
    arguments: dict[str, Any] = {"epoch": run.epoch, "state": {"at": iteration}, "usage": None}
    arguments |= {"messages": (), "tool_calls": (), "last_tool_result": None, "snapshot": None, "exit": [], **more}
    return step_log.new_step(acme.runs._async._scope, run.id, iteration=iteration, **arguments)


def written(acme: TenantHandle, write: Write, steps: Sequence[NewStep]) -> list[CommittedStep | None]:
    """Return the results of writing them in a transaction."""
    return driven(acme.runs._async._engine.write(lambda connection: write(connection, steps)))


def stored(url: str, run: Run) -> tuple[Any, Any]:
    """Return the stored rows of a run and its steps, without their ids."""
    with psycopg.connect(url) as raw:
        (of_run,) = raw.execute("SELECT to_jsonb(r) FROM runs AS r WHERE id = %s", [run.id]).fetchall()
        steps = raw.execute("SELECT to_jsonb(s) FROM run_steps AS s WHERE run_id = %s ORDER BY iteration", [run.id])
        result = [of_run[0], *(row[0] for row in steps.fetchall())]
    for item in result:
        for name in ("id", "run_id", "session_id", "started_at"):
            item.pop(name, None)
    return result[0], result[1:]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"usage": Usage(input_tokens=7, output_tokens=3)},
        {"last_tool_result": "it's \\ \0 done", "snapshot": "a \\ snapshot"},
        {"state": {"text": "\0 \\u0000 'quoted' ☃", "list": [1, 2.5, None, True]}, "usage": Usage(output_tokens=2**40)},
    ],
    ids=["little", "usage", "texts", "state"],
)
def test_all_statements_write_the_same_rows(acme: TenantHandle, postgres_url: str, more: dict[str, Any]) -> None:
    runs = {way: [claimed(acme), claimed(acme)] for way in WAYS}
    now = acme.runs._async._scope.clock.now_us()
    steps = {way: [structs.replace(new(acme, run, **more), now_us=now) for run in item] for way, item in runs.items()}
    made = {way: written(acme, WAYS[way], steps[way]) for way in WAYS}
    actual = [stored(postgres_url, run) for way in WAYS for run in runs[way]]
    assert all(item == actual[0] for item in actual)
    assert actual[0][1][0]["iteration"] == actual[0][0]["iteration"] == 1
    for way in WAYS:
        for run, completed in zip(runs[way], made[way], strict=True):
            assert completed is not None
            assert completed.step == acme.steps.get(run.id, 1)
            assert completed.messages == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", ["epoch", "iteration", "again", "status", "session", "tenant"])
def test_a_conflicting_write_changes_nothing_and_does_not_affect_others(
    acme: TenantHandle, postgres_url: str, way: str, wrong: str
) -> None:
    bad, good = claimed(acme), claimed(acme)
    step, replace = new(acme, bad), structs.replace
    if wrong == "epoch":
        step = replace(step, epoch=step.epoch + 1)
    elif wrong == "iteration":
        step = replace(step, iteration=2)
    elif wrong == "again":
        acme.runs.step(bad.id, epoch=bad.epoch, iteration=1, state={})
    elif wrong == "status":
        acme.runs.pause(bad.id, epoch=bad.epoch)
    elif wrong == "session":
        acme.sessions.delete(bad.session_id)
    else:
        step = replace(step, tenant="zenith")
    before = stored(postgres_url, bad)
    steps = [step] if wrong == "tenant" else [new(acme, good), step]  # those of a group are of one tenant
    completed = written(acme, WAYS[way], steps)
    assert [item is None for item in completed] == [step is steps[-1] for step in steps]
    assert stored(postgres_url, bad) == before
    assert acme.runs.get(good.id).iteration == (0 if wrong == "tenant" else 1)


def test_a_concurrent_decision_of_a_person_is_included_in_the_step(acme: TenantHandle) -> None:
    run = claimed(acme)
    acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id="1", tool_name="send", hold=True)])
    acme.tool_calls.cancel(run.id, "1", reason="not now")
    step = new(acme, run)
    for way in ("alone", "together"):
        assert written(acme, WAYS[way], [step]) == [None]
    assert acme.runs.get(run.id).iteration == 0
    acme.runs.step(run.id, epoch=run.epoch, iteration=1, state={})
    assert [call.step for call in acme.tool_calls.list(run.id)] == [1]


def test_a_step_with_outcomes_does_not_use_the_short_statement(
    acme: TenantHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = claimed(acme)

    async def none(*_: object) -> list[None]:
        raise AssertionError("it is not bare")

    monkeypatch.setattr(step_log, "_write_bare", none)
    acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id="1", tool_name="t", tool_input={})])
    completed = acme.runs.step(
        run.id, epoch=run.epoch, iteration=1, state={}, tool_calls=[ToolOutcome(id="1", result=1)]
    )
    assert completed.step.iteration == 1
