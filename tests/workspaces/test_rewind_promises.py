"""Further promises of rewinds, on each engine in one style; the contract covers the others on every leg."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from holdfast import Limits, NewToolCall, ToolOutcome
from holdfast.errors import Conflict, Fenced, InvalidInput, LimitExceeded, NotFound
from tests.contract.cases import Case, World, contract, play
from tests.contract.cases.rewinds import all_of, come_back, gone_back, one_step, worked
from tests.contract.cases.runs import claim_run, commit_step
from tests.contract.cases.tool_calls import take_over
from tests.contract.cases.world import raises, uuid_of
from tests.contract.legs import postgres_legs, sqlite_legs


@contract()
async def a_rewound_run_waits_and_continues_another_way(world: World) -> None:
    acme = world.tenant()
    run = await worked(acme, world)
    await acme.leases.release(run.id, epoch=run.epoch)
    await gone_back(acme, run, 2)
    assert await acme.leases.claim("heir") is None, "it waits until it is resumed"
    with raises(Fenced):
        await commit_step(acme, run)
    await acme.runs.resume(run.id)
    heir = await acme.leases.claim("heir")
    assert heir is not None
    await one_step(acme, world, heir, "3")  # the same call again is another
    assert [step.state["at"] for step in await acme.steps.list(run.id)] == ["1", "2", "3"]
    assert len(await acme.messages.list(run.session_id)) == 7
    assert [branch.origin for branch in await acme.branches.list(run.session_id)] == ["start", "rewind"]


@contract()
async def a_redo_never_loses_later_work(world: World) -> None:
    acme = world.tenant()
    run = await worked(acme, world, 3)
    await acme.leases.release(run.id, epoch=run.epoch)
    at_3 = await all_of(acme, run)
    first = await gone_back(acme, run, 1)
    await acme.runs.resume(run.id)
    heir = await acme.leases.claim("heir")
    assert heir is not None
    await acme.tool_calls.intend(run.id, epoch=heir.epoch, calls=[NewToolCall(id="new", tool_name="t")])
    with raises(Conflict, reason="run_continued"):
        await acme.rewinds.redo(run.id, id=first.id, epoch=heir.epoch)
    await commit_step(acme, heir, tool_calls=[ToolOutcome(id="new")])
    await acme.leases.release(run.id, epoch=heir.epoch)
    another_way = await all_of(acme, run)
    for asked in (None, first.id):
        with raises(Conflict):
            await acme.rewinds.redo(run.id, id=asked)
    second = await gone_back(acme, run, 1)
    await come_back(acme, run, id=first.id)
    assert (await all_of(acme, run))[1:] == at_3[1:], "and the replaced steps belong to the other rewind"
    await gone_back(acme, run, 1)
    await come_back(acme, run, id=second.id)
    assert await all_of(acme, run) == another_way


@contract()
async def the_same_number_reached_another_way_is_another_step(world: World) -> None:
    acme = world.tenant()
    run = await worked(acme, world, 3)
    await acme.leases.release(run.id, epoch=run.epoch)
    upper = await gone_back(acme, run, 2)
    await gone_back(acme, run, 1)
    await acme.runs.resume(run.id)
    heir = await acme.leases.claim("heir")
    assert heir is not None
    await one_step(acme, world, heir, "2")
    await acme.leases.release(run.id, epoch=heir.epoch)
    with raises(Conflict, reason="nothing_to_redo"):
        await acme.rewinds.redo(run.id)
    with raises(Conflict, reason="run_continued"):
        await acme.rewinds.redo(run.id, id=upper.id)


@contract()
async def only_the_holder_of_a_run_may_rewind_it(world: World) -> None:
    acme = world.tenant()
    run = await worked(acme, world, 2)
    for refused, error in ((None, Conflict), (run.epoch - 1, Fenced), (run.epoch + 1, Conflict)):
        for call in (partial(acme.rewinds.begin, run.id, to_step=1), partial(acme.rewinds.redo, run.id)):
            with raises(error):
                await call(epoch=refused)
    before = await all_of(acme, run)
    await gone_back(acme, run, 1, epoch=run.epoch)
    held = await acme.runs.get(run.id)
    assert (held.status, held.epoch, held.holder, held.lease_until) == (
        "running",
        run.epoch,
        "worker",
        before[0].lease_until,
    )
    await come_back(acme, run, epoch=run.epoch)
    assert await all_of(acme, run) == before
    heir = await take_over(acme, run)
    with raises(Fenced):
        await acme.rewinds.begin(run.id, to_step=1, epoch=run.epoch)
    await acme.rewinds.begin(run.id, to_step=1, epoch=heir.epoch)


@contract()
async def a_rewind_is_finished_before_the_next(world: World) -> None:
    acme = world.tenant()
    run = await worked(acme, world, 2)
    await acme.leases.release(run.id, epoch=run.epoch)
    rewind = await acme.rewinds.begin(run.id, to_step=1)
    for call in (partial(acme.rewinds.begin, to_step=0), acme.rewinds.redo):
        with raises(Conflict, reason="not_finished"):
            await call(run.id)
    await acme.rewinds.finish(rewind.id)
    redo = await acme.rewinds.redo(run.id, path="/elsewhere")
    assert redo.path == "/elsewhere"
    with raises(Conflict, reason="not_finished"):
        await acme.rewinds.begin(run.id, to_step=1)
    await acme.rewinds.finish(redo.id)
    assert (await acme.runs.get(run.id)).status == "pending", "unchanged"
    assert await acme.leases.claim("heir") is not None


@contract()
async def calls_that_were_open_at_a_step_are_open_again(world: World) -> None:
    acme = world.tenant()
    run = await claim_run(acme)
    new = [NewToolCall(id=safety, tool_name="t", safety=safety) for safety in ("idempotent", "at_most_once", "ask")]
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[*new, NewToolCall(id="quick", tool_name="t")])
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id="decided", tool_name="t", hold=True)])
    await commit_step(acme, run, tool_calls=[ToolOutcome(id="quick", result=1)])
    await acme.tool_calls.cancel(run.id, "decided", reason="no")
    world.clock.advance(1)
    await commit_step(acme, run)
    world.clock.advance(1)
    await commit_step(acme, run, tool_calls=[ToolOutcome(id=call.id, result=2) for call in new])
    await acme.leases.release(run.id, epoch=run.epoch)
    before = await all_of(acme, run)
    await gone_back(acme, run, 1)
    actions = {call.call.id: call.action for call in await acme.tool_calls.pending(run.id)}
    assert actions == {"idempotent": "run", "at_most_once": "report", "ask": "ask"}
    calls = {call.id: call for call in await acme.tool_calls.list(run.id)}
    assert (calls["quick"].status, calls["quick"].step, calls["quick"].result) == ("finished", 1, 1)
    assert (calls["decided"].status, calls["decided"].step) == ("cancelled", None), "recorded in the same transaction"
    assert (calls["ask"].result, calls["ask"].finished_at) == (None, None)
    await come_back(acme, run)
    assert await all_of(acme, run) == before


@contract()
async def a_rewind_to_the_current_step_drops_open_calls(world: World) -> None:
    acme = world.tenant()
    run = await worked(acme, world, 1)
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id="begun", tool_name="t")])
    await acme.messages.append(run.session_id, role="user", content="wait")
    await acme.leases.release(run.id, epoch=run.epoch)
    before = await all_of(acme, run)
    await gone_back(acme, run, 1)
    assert list(await acme.tool_calls.pending(run.id)) == []
    assert len(await acme.messages.list(run.session_id)) == 3
    await come_back(acme, run)
    assert await all_of(acme, run) == before


@contract()
async def child_runs_of_rewound_steps_are_detached_and_reattached(world: World) -> None:
    acme = world.tenant()
    run = await worked(acme, world, 1)
    await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=[NewToolCall(id="below", tool_name="t")])
    session = await acme.sessions.create()
    child = await acme.runs.start(session.id, parent=run.id, parent_call="below")
    with raises(Conflict, reason="child_active"):
        await acme.rewinds.begin(run.id, to_step=1, epoch=run.epoch)
    await acme.runs.cancel(child.id)
    await commit_step(acme, run, tool_calls=[ToolOutcome(id="below", result="cancelled")])
    await gone_back(acme, run, 1, epoch=run.epoch)
    assert (await acme.runs.get(child.id)).parent_call_id is None
    await come_back(acme, run, epoch=run.epoch)
    assert (await acme.runs.get(child.id)).parent_call_id == "below"


@contract()
async def a_session_that_no_longer_shows_the_step_is_not_rewound(world: World) -> None:
    acme = world.tenant()
    run = await worked(acme, world, 2)
    await acme.leases.release(run.id, epoch=run.epoch)
    before = await all_of(acme, run)
    await acme.branches.rewind(run.session_id, to=2)
    await acme.messages.append(run.session_id, role="user", content="elsewhere")
    await acme.messages.append(run.session_id, role="user", content="elsewhere")
    with raises(Conflict, reason="other_branch"):
        await acme.rewinds.begin(run.id, to_step=1)
    await acme.branches.switch(run.session_id, 0)
    assert await all_of(acme, run) == before
    other = await claim_run(acme, run.session_id)
    with raises(Conflict, reason="session_in_use"):
        await acme.rewinds.begin(run.id, to_step=1)
    await acme.runs.cancel(other.id)
    await gone_back(acme, run, 1)


@contract(limits=Limits(list_rows=3))
async def rewinds_are_listed_the_last_first(world: World) -> None:
    acme = world.tenant()
    run = await worked(acme, world, 1)
    made = []
    for number in range(4):
        world.clock.advance(1)
        made.append((await gone_back(acme, run, 1, epoch=run.epoch, path=f"/{number}")).id)
    made.reverse()
    page = await acme.rewinds.list(run.id, limit=3)
    rest = await acme.rewinds.list(run.id, limit=3, cursor=page.next)
    assert [rewind.id for rewind in page] + [rewind.id for rewind in rest] == made
    assert rest.next is None
    with raises(LimitExceeded, limit="list_rows"):
        await acme.rewinds.list(run.id)


@contract()
async def invalid_rewinds_are_refused(world: World) -> None:
    acme = world.tenant()
    run = await worked(acme, world, 1)
    await acme.leases.release(run.id, epoch=run.epoch)
    before = await all_of(acme, run)
    for step in (-1, True, 1.5, "1", 2**62, None):
        with raises(InvalidInput, field="to_step"):
            await acme.rewinds.begin(run.id, to_step=step)
    for step in (2, 2**40):
        with raises(NotFound, noun="step", key=str(step)):
            await acme.rewinds.begin(run.id, to_step=step)
    for missing in (
        partial(acme.rewinds.begin, uuid_of("absent"), to_step=0),
        partial(acme.rewinds.redo, uuid_of("absent")),
        partial(acme.rewinds.get, uuid_of("absent")),
        partial(acme.rewinds.finish, uuid_of("absent")),
        partial(acme.rewinds.redo, run.id, id=uuid_of("absent")),
        partial(world.tenant("zenith").rewinds.begin, run.id, to_step=0),
    ):
        with raises(NotFound):
            await missing()
    with raises(LimitExceeded, limit="path_bytes"):
        await acme.rewinds.begin(run.id, to_step=0, path="x" * 20_000)
    assert await all_of(acme, run) == before
    other = await worked(acme, world, 1)
    rewind = await gone_back(acme, other, 0, epoch=other.epoch)
    with raises(NotFound, noun="rewind", key=rewind.id):
        await acme.rewinds.redo(run.id, id=rewind.id)
    with raises(Conflict, reason="other_content"):
        await acme.rewinds.begin(run.id, to_step=0, id=rewind.id)
    assert [*await world.tenant("zenith").rewinds.list(run.id)] == []


CASES = [value for value in list(globals().values()) if isinstance(value, Case)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_promise_holds_on_sqlite(case: Case, tmp_path: Path) -> None:
    (leg,) = (leg for leg in sqlite_legs(tmp_path) if leg.name == "sqlite file sync")
    play(case, leg)


def test_all_promises_hold_on_postgres(postgres_url: str) -> None:
    legs = {leg.name: leg for leg in postgres_legs(postgres_url)}
    try:
        for case in CASES:  # on one database: a leg leaves it as it was
            play(case, legs["postgres async"])
    finally:
        legs["postgres async"].place.close()
