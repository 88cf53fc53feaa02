"""Tool calls: recorded before they are made, never repeated once finished, and at most once if requested."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

from holdfast.clock import from_us
from holdfast.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.execution.runs.ledger import NewToolCall, Safety, ToolCall, ToolOutcome
from holdfast.stores.execution.runs.states import Run
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.runs import claim_run, commit_step
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS, documents, same
from tests.contract.cases.world import World, raises, uuid_of

SAFETY: tuple[Safety, ...] = ("idempotent", "at_most_once", "ask")
CALLS = [NewToolCall(id=safety, tool_name="tool", tool_input={"n": 1}, safety=safety) for safety in SAFETY]


async def take_over(acme: AsyncTenantHandle, run: Run) -> Run:
    """Claim the run for another holder, after the first one has died."""
    await acme.leases.release(run.id, epoch=run.epoch)
    heir = await acme.leases.claim("heir", run_id=run.id)
    assert heir is not None
    return heir


async def actions(acme: AsyncTenantHandle, run: Run) -> dict[str, str]:
    """Return the action to take for each open call."""
    return {pending.call.id: pending.action for pending in await acme.tool_calls.pending(run.id)}


@contract()
async def a_call_is_recorded_before_it_is_made(world: World) -> None:
    acme = world.tenant()
    run = await claim_run(acme)
    new = [NewToolCall(id=text, tool_name=text, tool_input=documents(), safety="ask") for text in TEXTS[:8]]
    new.append(NewToolCall(id="held", tool_name="t", hold=True))
    recorded = await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=new)
    assert [call.id for call in recorded] == [call.id for call in new]
    first, held = recorded[0], recorded[-1]
    assert (first.run_id, first.tool_name, first.safety, first.status) == (run.id, TEXTS[0], "ask", "begun")
    assert same(first.tool_input, documents())
    assert (first.iteration, first.epoch, first.attempts, first.step, first.result) == (1, run.epoch, 1, None, None)
    assert first.started_at == from_us(world.clock.now_us())
    assert (held.status, held.attempts, held.safety, held.tool_input) == ("held", 0, "at_most_once", None)
    assert await acme.tool_calls.list(run.id) == recorded
    assert await acme.tool_calls.get(run.id, TEXTS[3]) == recorded[3]
    world.clock.advance(1)
    assert await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=new) == recorded, "an intent can be repeated"
    assert (await acme.runs.load(run.id)).tool_calls == recorded
    more = await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[new[0], NewToolCall(id="more", tool_name="t")])
    assert (more[0], more[1].attempts) == (recorded[0], 1)
    assert [call.id for call in await acme.tool_calls.list(run.id)] == [*(call.id for call in recorded), "more"]
    changes: list[dict[str, Any]] = [{"tool_name": "other"}, {"tool_input": {}}, {"safety": "idempotent"}]
    plain: dict[str, Any] = {"id": TEXTS[0], "tool_name": TEXTS[0], "tool_input": documents(), "safety": "ask"}
    for change in changes:
        call = NewToolCall(**{**plain, **change})
        with raises(Conflict, reason="other_content"):
            await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id="new", tool_name="t"), call])
    assert len(await acme.tool_calls.list(run.id)) == len(recorded) + 1
    for missing in (
        partial(acme.tool_calls.get, run.id, "missing"),
        partial(acme.tool_calls.pending, uuid_of("missing")),
    ):
        with raises(NotFound):
            await missing()
    with raises(NotFound):
        await world.tenant("zenith").tool_calls.list(run.id)


@contract()
async def after_a_crash_each_call_is_handled_by_its_safety(world: World) -> None:
    acme = world.tenant()
    run = await claim_run(acme)
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=CALLS)
    assert await actions(acme, run) == dict.fromkeys(SAFETY, "wait"), "the holder is making them"
    heir = await take_over(acme, run)
    assert await actions(acme, run) == {"idempotent": "run", "at_most_once": "report", "ask": "ask"}
    again = await acme.tool_calls.intend(run.id, epoch=heir.epoch, calls=CALLS[:1])
    assert (again[0].attempts, again[0].epoch, again[0].iteration) == (2, heir.epoch, 1)
    assert await acme.tool_calls.intend(run.id, epoch=heir.epoch, calls=CALLS[:1]) == again, "the same attempt"
    for call in CALLS[1:]:
        with raises(Conflict, saying=call.safety, reason="may_have_happened"):
            await acme.tool_calls.intend(run.id, epoch=heir.epoch, calls=[call])
    with raises(Conflict, saying="at_most_once", reason="may_have_happened"):
        await acme.tool_calls.allow(run.id, "at_most_once")
    allowed = await acme.tool_calls.allow(run.id, "ask")
    assert (allowed.status, allowed.attempts) == ("ready", 1)
    assert await acme.tool_calls.allow(run.id, "ask") == allowed
    assert (await actions(acme, run))["ask"] == "run"
    begun = (await acme.tool_calls.intend(run.id, epoch=heir.epoch, calls=CALLS[2:]))[0]
    assert (begun.status, begun.attempts, begun.epoch) == ("begun", 2, heir.epoch)
    with raises(Conflict, reason="under_way"):
        await acme.tool_calls.allow(run.id, "ask")
    outcomes = [
        ToolOutcome(id="idempotent", result=[1]),
        ToolOutcome(id="at_most_once", status="unknown", error="the outcome is unknown"),
        ToolOutcome(id="ask", result=None),
    ]
    await commit_step(acme, heir, tool_calls=outcomes)
    assert await actions(acme, run) == {}
    statuses = {call.id: (call.status, call.step) for call in await acme.tool_calls.list(run.id)}
    assert statuses == {"idempotent": ("finished", 1), "at_most_once": ("unknown", 1), "ask": ("finished", 1)}
    heir = await take_over(acme, heir)
    for call in CALLS:
        with raises(Conflict, saying=repr(call.id), reason="status"):
            await acme.tool_calls.intend(run.id, epoch=heir.epoch, calls=[call])
    with raises(Conflict, reason="call_not_open"):
        await commit_step(acme, heir, tool_calls=outcomes[:1])


@contract()
async def a_call_can_be_held_allowed_snoozed_cancelled_and_discarded(world: World) -> None:
    acme = world.tenant()
    run = await claim_run(acme)
    names = ("held", "snoozed", "cancelled", "discarded", "denied")
    calls = {name: NewToolCall(id=name, tool_name="t", hold=name in ("held", "denied")) for name in names}
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[*calls.values()])
    assert (await actions(acme, run))["held"] == "ask"
    with raises(Conflict, saying="'held'", reason="not_allowed"):
        await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id="held", tool_name="t")])
    assert (await acme.tool_calls.allow(run.id, "held")).status == "ready"
    assert (await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[calls["held"]]))[0].attempts == 1
    until = from_us(world.clock.now_us()) + timedelta(seconds=5)
    snoozed = await acme.tool_calls.snooze(run.id, "snoozed", epoch=run.epoch, until=until)
    assert (snoozed.status, snoozed.attempts, snoozed.pause_until) == ("ready", 0, until)
    assert await acme.tool_calls.snooze(run.id, "snoozed", epoch=run.epoch, until=until) == snoozed
    assert (await actions(acme, run))["snoozed"] == "wait"
    with raises(Conflict, saying=until.isoformat(), reason="not_due"):
        await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[calls["snoozed"]])
    cancelled = await acme.tool_calls.cancel(run.id, "cancelled", reason="too slow")
    assert (cancelled.status, cancelled.error, cancelled.finished_at) == (
        "cancelled",
        "too slow",
        from_us(world.clock.now_us()),
    )
    assert await acme.tool_calls.cancel(run.id, "cancelled", reason="again") == cancelled
    assert (await acme.tool_calls.discard(run.id, "discarded")).status == "discarded"
    assert (await acme.tool_calls.cancel(run.id, "denied")).status == "cancelled"
    for late in (
        partial(acme.tool_calls.discard, run.id, "cancelled"),
        partial(acme.tool_calls.allow, run.id, "denied"),
    ):
        with raises(Conflict, reason="status"):
            await late()
    with raises(Conflict):
        await acme.tool_calls.snooze(run.id, "discarded", epoch=run.epoch, until=until)
    loaded = await acme.runs.load(run.id)
    assert {call.id for call in loaded.tool_calls} == {*names}, "decided calls are loaded until a step contains them"
    world.clock.advance(5)
    assert await actions(acme, run) == {"held": "wait", "snoozed": "run"}
    outcomes = [ToolOutcome(id="held", result=1), ToolOutcome(id="cancelled", result="finished anyway")]
    await commit_step(acme, run, tool_calls=outcomes)
    after = {call.id: call for call in await acme.tool_calls.list(run.id)}
    assert (after["cancelled"].status, after["cancelled"].result, after["cancelled"].step) == ("cancelled", None, 1)
    assert (after["discarded"].step, after["denied"].step, after["snoozed"].step) == (1, 1, None)
    assert [call.id for call in (await acme.runs.load(run.id)).tool_calls] == ["snoozed"]
    begun = (await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[calls["snoozed"]]))[0]
    assert (begun.attempts, begun.iteration, begun.pause_until) == (1, 1, None)
    for missing in (
        partial(acme.tool_calls.cancel, run.id, "missing"),
        partial(acme.tool_calls.allow, run.id, "missing"),
    ):
        with raises(NotFound):
            await missing()
    with raises(InvalidInput):
        await acme.tool_calls.snooze(run.id, "snoozed", epoch=run.epoch, until="later")  # type: ignore[arg-type]


@contract()
async def an_ended_run_leaves_no_open_call(world: World) -> None:
    acme = world.tenant()
    run = await claim_run(acme)
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=CALLS)
    with raises(Conflict, reason="open_calls"):
        await acme.runs.finish(run.id, epoch=run.epoch, stop_reason="end_turn")
    failed = await acme.runs.fail(run.id, epoch=run.epoch, error="x")
    assert await actions(acme, failed) == {"idempotent": "run", "at_most_once": "report", "ask": "ask"}
    await acme.runs.resume(run.id)
    claimed = await acme.leases.claim("w")
    assert claimed is not None
    assert len((await acme.runs.load(run.id)).tool_calls) == 3
    await acme.runs.cancel(run.id, reason="enough")
    assert await actions(acme, run) == {}
    calls = await acme.tool_calls.list(run.id)
    assert {(call.status, call.error) for call in calls} == {("cancelled", "enough")}
    assert (await acme.runs.load(run.id)).tool_calls == calls


@contract(limits=Limits(open_tool_calls=3, tool_input_bytes=20, name_bytes=10, json_depth=3, list_rows=3))
async def too_many_or_too_large_calls_are_refused(world: World) -> None:
    acme = world.tenant()
    run = await claim_run(acme)
    intend = partial(acme.tool_calls.intend, run.id, epoch=run.epoch)
    calls = [NewToolCall(id=str(number), tool_name="t") for number in range(5)]
    with raises(LimitExceeded):
        await intend(calls=calls)
    await intend(calls=calls[:2])
    with raises(LimitExceeded, limit="open_tool_calls"):
        await intend(calls=calls[2:4])
    assert len(await intend(calls=calls[:3])) == 3, "recorded calls are not counted again"
    await commit_step(acme, run, tool_calls=[ToolOutcome(id="0"), ToolOutcome(id="1")])
    await intend(calls=calls[3:])
    with raises(LimitExceeded):
        await acme.tool_calls.list(run.id)
    wrong: list[Any] = [
        [],
        "abc",
        [{"id": "a"}],
        [calls[0], calls[0]],
        [NewToolCall(id="", tool_name="t")],
        [NewToolCall(id="a", tool_name="")],
        [NewToolCall(id="a", tool_name="t", safety="never")],  # type: ignore[arg-type]
        [NewToolCall(id="a", tool_name="t", hold="yes")],  # type: ignore[arg-type]
    ]
    for invalid in wrong:
        with raises(InvalidInput):
            await intend(calls=invalid)
    over = [
        NewToolCall(id="x" * 11, tool_name="t"),
        NewToolCall(id="a", tool_name="x" * 11),
        NewToolCall(id="a", tool_name="t", tool_input="x" * 19),
        NewToolCall(id="a", tool_name="t", tool_input=[[[[1]]]]),
    ]
    for call in over:
        with raises(LimitExceeded):
            await intend(calls=[call])


@contract("concurrency")
async def concurrent_intents_record_each_call_once(world: World) -> None:
    acme = world.tenant()
    runs = [await claim_run(acme) for _ in range(4)]
    calls = [NewToolCall(id=str(number), tool_name="t", tool_input=number) for number in range(4)]
    intents = [partial(acme.tool_calls.intend, run.id, epoch=run.epoch, calls=[call]) for run in runs for call in calls]
    results = await world.together(*intents, *intents[::-1])
    assert not any(isinstance(result, Exception) for result in results), results
    for run in runs:
        recorded = await acme.tool_calls.list(run.id)
        assert sorted(call.id for call in recorded) == ["0", "1", "2", "3"]
        assert all(call.attempts == 1 for call in recorded)
    others = [NewToolCall(id="same", tool_name=str(number)) for number in range(8)]
    one = [partial(acme.tool_calls.intend, runs[0].id, epoch=runs[0].epoch, calls=[call]) for call in others]
    assert Counter(type(result) for result in await world.together(*one)) == {list: 1, Conflict: 7}
    decided = await world.together(
        *[partial(acme.tool_calls.cancel, runs[1].id, "0"), partial(acme.tool_calls.discard, runs[1].id, "0")] * 3,
        partial(acme.runs.step, runs[1].id, epoch=1, iteration=1, state=1, tool_calls=[ToolOutcome(id="0", result=1)]),
    )
    ended = await acme.tool_calls.get(runs[1].id, "0")
    assert ended.status in ("cancelled", "discarded", "finished")
    assert all(call.status == ended.status for call in decided if isinstance(call, ToolCall)), decided
