"""Leases: one holder at a time, whatever clocks do, and no run that is held forever."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.clock import from_us
from holdfast.errors import Conflict, Fenced, InvalidInput, LimitExceeded, NotFound
from holdfast.stores.execution.runs.leases import ClaimedRun
from holdfast.stores.execution.runs.ledger import NewToolCall
from holdfast.stores.execution.runs.states import Run
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.runs import claim_run, commit_step
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of

TTL_MS, TTL_S = 30_000, 30


async def ready(acme: AsyncTenantHandle, count: int, **how: Any) -> list[Run]:
    """Start runs that wait to be claimed."""
    session = await acme.sessions.create(agent="helper")
    return [await acme.runs.start(session.id, **how) for _ in range(count)]


@contract()
async def the_oldest_run_is_claimed_first_by_one_holder(world: World) -> None:
    acme = world.tenant()
    runs = []
    for number in range(20):  # more than a claim examines at once
        world.clock.advance(0 if number % 5 else 1)
        runs += await ready(acme, 1)
    order = sorted(runs, key=lambda run: (run.started_at, run.id))
    now = world.clock.now_us()
    for number, expected in enumerate(order, 1):
        claimed = await acme.leases.claim(f"w{number}", ttl_ms=TTL_MS)
        assert claimed is not None
        assert (claimed.id, claimed.status, claimed.epoch, claimed.attempts) == (expected.id, "running", 1, 1)
        assert (claimed.holder, claimed.lease_ms, claimed.lease_until) == (
            f"w{number}",
            TTL_MS,
            from_us(now + TTL_S * 10**6),
        )
        assert await acme.runs.get(claimed.id) == claimed
    assert await acme.leases.claim("late") is None
    await acme.leases.release(order[3].id, epoch=1)
    world.clock.advance(1)
    paused = await acme.runs.pause(order[5].id, epoch=1, until=from_us(world.clock.now_us()))
    world.clock.advance(1)
    new = await acme.runs.start(order[0].session_id)
    claimed = await acme.leases.claim("a")
    assert claimed is not None
    assert (claimed.id, claimed.epoch, claimed.attempts) == (order[3].id, 2, 1), "a released claim does not count"
    assert [(await acme.leases.claim("b") or claimed).id for _ in range(2)] == [paused.id, new.id]


@contract()
async def a_claim_can_be_limited_to_agents_or_to_one_run(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    runs = {
        name: [await acme.runs.start(session.id, agent=name) for _ in range(2)] for name in ("a", "b", "c", "\x00é")
    }
    for agents, expected in (
        (["\x00é"], runs["\x00é"][0]),
        (["c", "b"], runs["b"][0]),
        (["b", "c", "b"], runs["b"][1]),
    ):
        claimed = await acme.leases.claim("w", agents=agents)
        assert claimed is not None
        assert claimed.id == expected.id
    assert await acme.leases.claim("w", agents=["unknown", "b"]) is None
    assert await acme.leases.claim("w", agents=[]) is None
    one = await acme.leases.claim("w", run_id=runs["a"][1].id)
    assert one is not None
    assert one.id == runs["a"][1].id
    assert await acme.leases.claim("w", run_id=runs["a"][1].id) is None
    for wrong in (
        partial(acme.leases.claim, run_id=uuid_of("missing")),
        partial(world.tenant("zenith").leases.claim, run_id=one.id),
    ):
        with raises(NotFound):
            await wrong("w")
    assert await world.tenant("zenith").leases.claim("w") is None
    bad: list[dict[str, Any]] = [
        {"holder": ""},
        {"holder": "w", "ttl_ms": 0},
        {"holder": "w", "ttl_ms": True},
        {"holder": "w", "ttl_ms": 1.5},
        {"holder": "w", "agents": "a"},
        {"holder": "w", "agents": [""]},
        {"holder": "w", "agents": ["a"], "run_id": one.id},
        {"holder": "w", "run_id": "not an id"},
    ]
    for arguments in bad:
        with raises(InvalidInput):
            await acme.leases.claim(**arguments)
    with raises(LimitExceeded, limit="lease_ms"):
        await acme.leases.claim("w", ttl_ms=world.limits.lease_ms + 1)
    assert len(await acme.runs.list(status="pending")) == 4


@contract()
async def a_renewed_lease_is_never_taken(world: World) -> None:
    acme = world.tenant()
    run = await claim_run(acme, max_attempts=2)
    run = await acme.leases.renew(run.id, epoch=run.epoch, ttl_ms=TTL_MS)
    for number in range(12):
        world.clock.advance(TTL_S * 0.9)
        assert await acme.leases.claim("thief") is None
        assert await acme.leases.claim("thief", run_id=run.id) is None
        if number % 3 == 0:
            await acme.leases.renew(run.id, epoch=run.epoch)
        elif number % 3 == 1:
            await commit_step(acme, run)
        else:
            calls = [NewToolCall(id=str(number), tool_name="t")]
            await acme.tool_calls.intend(run.id, epoch=run.epoch, calls=calls)
        assert (await acme.runs.get(run.id)).lease_until == from_us(world.clock.now_us() + TTL_S * 10**6)
    current = await acme.runs.get(run.id)
    assert (current.epoch, current.holder, current.doubted_at) == (run.epoch, "worker", None)
    with raises(InvalidInput):
        await acme.leases.renew(run.id, epoch=run.epoch, ttl_ms=0)
    with raises(Conflict):
        await acme.leases.renew(run.id, epoch=run.epoch + 1)
    with raises(NotFound):
        await acme.leases.renew(uuid_of("missing"), epoch=1)


@contract()
async def a_dead_holders_run_is_claimed_again_and_its_writes_are_fenced(world: World) -> None:
    acme = world.tenant()
    (run,) = await ready(acme, 1)
    dead = await acme.leases.claim("dead", ttl_ms=TTL_MS)
    assert dead is not None
    call = NewToolCall(id="a", tool_name="t", safety="idempotent")
    await acme.tool_calls.intend(run.id, epoch=dead.epoch, calls=[call])
    await acme.runs.step(run.id, epoch=dead.epoch, iteration=1, state="mine")
    world.clock.advance(TTL_S - 0.000001)
    assert await acme.leases.claim("early") is None
    world.clock.advance(0.000001)
    assert await acme.leases.claim("early") is None, "an expired lease is first doubted"
    assert (await acme.runs.get(run.id)).doubted_at == from_us(world.clock.now_us())
    world.clock.advance(TTL_S / 2 - 0.000001)
    assert await acme.leases.claim("early") is None
    assert await acme.leases.claim("early", run_id=run.id) is None
    world.clock.advance(0.000001)
    heir = await acme.leases.claim("heir", ttl_ms=TTL_MS)
    assert heir is not None
    assert (heir.id, heir.epoch, heir.attempts, heir.iteration, heir.holder) == (run.id, 2, 1, 1, "heir")
    zombie: dict[str, Any] = {"epoch": dead.epoch}
    before = await acme.runs.load(run.id)
    for write in (
        partial(acme.runs.step, run.id, iteration=2, state="zombie", **zombie),
        partial(acme.runs.step, run.id, iteration=2, state="zombie", stop_reason="x", **zombie),
        partial(acme.runs.finish, run.id, stop_reason="x", **zombie),
        partial(acme.runs.fail, run.id, error="x", **zombie),
        partial(acme.runs.pause, run.id, **zombie),
        partial(acme.leases.renew, run.id, **zombie),
        partial(acme.leases.release, run.id, **zombie),
        partial(acme.tool_calls.intend, run.id, calls=[call], **zombie),
        partial(acme.tool_calls.intend, run.id, calls=[NewToolCall(id="b", tool_name="t")], **zombie),
        partial(acme.tool_calls.snooze, run.id, "a", until=from_us(0), **zombie),
    ):
        with raises(Fenced, saying=f" {dead.epoch}"):
            await write()
    with raises(Fenced):
        await acme.runs.start(run.session_id, parent=run.id, parent_epoch=dead.epoch)
    assert await acme.runs.load(run.id) == before
    assert (await acme.runs.step(run.id, epoch=heir.epoch, iteration=2, state="heir")).step.epoch == 2


@contract()
async def a_clock_that_jumps_ahead_takes_no_run_from_a_living_holder(world: World) -> None:
    acme = world.tenant()
    runs = await ready(acme, 3)
    claims = [await acme.leases.claim("alive", ttl_ms=TTL_MS) for _ in runs]
    world.clock.advance(3_600)
    for _ in range(5):  # repeated polls change nothing
        assert await acme.leases.claim("thief") is None
    world.clock.advance(TTL_S / 3)
    one, two, three = [run for run in claims if run is not None]
    await acme.leases.renew(one.id, epoch=one.epoch)
    await acme.runs.step(two.id, epoch=two.epoch, iteration=1, state=1)
    await acme.tool_calls.intend(three.id, epoch=three.epoch, calls=[NewToolCall(id="a", tool_name="t")])
    assert await acme.leases.claim("thief") is None
    world.clock.advance(TTL_S)
    assert await acme.leases.claim("thief") is None, "the earlier doubt has ended: this is a new one"
    assert [(await acme.runs.get(run.id)).holder for run in runs] == ["alive"] * 3


@contract()
async def a_clock_that_jumps_back_does_not_keep_a_dead_holders_run(world: World) -> None:
    acme = world.tenant()
    (run,) = await ready(acme, 1)
    assert await acme.leases.claim("dead", ttl_ms=TTL_MS) is not None
    world.clock.advance(-86_400)
    assert await acme.leases.claim("early") is None
    world.clock.advance(TTL_S / 2)
    heir = await acme.leases.claim("heir", ttl_ms=TTL_MS)
    assert heir is not None
    (later,) = await ready(acme, 1)
    assert later.started_at < run.started_at
    world.clock.advance(-86_400)
    assert (await acme.leases.claim("w") or run).id == later.id, "a pending run does not depend on the clock"
    assert await acme.leases.claim("w") is None
    await acme.leases.renew(run.id, epoch=heir.epoch)
    world.clock.advance(TTL_S / 2)
    assert await acme.leases.claim("w") is None, "the living holder has renewed its lease"


@contract()
async def a_run_that_kills_its_holders_fails_with_a_reason(world: World) -> None:
    acme = world.tenant()
    poison, other = await ready(acme, 1, max_attempts=2), await ready(acme, 1, max_attempts=9)

    async def die(epoch: int) -> None:
        world.clock.advance(TTL_S)
        assert await acme.leases.claim("doubts") is None
        world.clock.advance(TTL_S / 2)
        claimed = await acme.leases.claim("victim", run_id=poison[0].id, ttl_ms=TTL_MS)
        assert claimed is None if epoch == 0 else claimed is not None and claimed.epoch == epoch

    first = await acme.leases.claim("victim", ttl_ms=TTL_MS)
    assert first is not None
    assert first.id == poison[0].id
    assert (await acme.leases.claim("busy", ttl_ms=world.limits.lease_ms) or first).id == other[0].id
    await commit_step(acme, first)
    await die(2)
    assert (await acme.runs.get(first.id)).attempts == 1, "a step resets the attempts"
    await die(3)
    await die(0)
    failed = await acme.runs.get(first.id)
    assert (failed.status, failed.stop_reason, failed.attempts) == ("failed", "attempts", 2)
    assert failed.error is not None
    assert "2 times in a row" in failed.error
    assert "victim" in failed.error
    with raises(Fenced):
        await acme.runs.step(first.id, epoch=3, iteration=2, state=2)
    world.clock.advance(10**6)
    await acme.runs.resume(first.id)
    resumed = await acme.leases.claim("w")
    assert resumed is not None
    assert (resumed.attempts, resumed.error) == (1, None)


@contract()
async def one_claim_gives_up_hopeless_runs_and_claims_the_next(world: World) -> None:
    acme = world.tenant()
    hopeless = await ready(acme, 3, max_attempts=1)
    for _ in hopeless:
        claimed = await acme.leases.claim("dead", ttl_ms=TTL_MS)
        assert claimed is not None
    world.clock.advance(TTL_S)
    assert await acme.leases.claim("doubts") is None
    world.clock.advance(TTL_S / 2)
    (good,) = await ready(acme, 1)
    claimed = await acme.leases.claim("w")
    assert claimed is not None
    assert claimed.id == good.id
    assert [run.status for run in await acme.runs.list()].count("failed") == 3
    assert await acme.leases.claim("w") is None


@contract("tenants")
async def a_worker_claims_runs_of_all_tenants_in_their_order(world: World) -> None:
    order: list[tuple[str, Run]] = []
    for number in range(9):
        world.clock.advance(1)
        name = ("acme", "zenith", "o'\x00é")[number % 3]
        (run,) = await ready(world.tenant(name), 1)
        order.append((name, run))
    for name, run in order[:6]:
        claimed = await world.run_queue.claim("w", ttl_ms=TTL_MS)
        assert claimed is not None
        assert (claimed.tenant, claimed.run.id, claimed.run.epoch, claimed.run.status) == (name, run.id, 1, "running")
        await commit_step(world.tenant(claimed.tenant), claimed.run)
    assert await world.run_queue.claim("w", agents=["unknown"]) is None
    claimed = await world.run_queue.claim("w", agents=["helper"], ttl_ms=TTL_MS)
    assert claimed is not None
    assert claimed.run.id == order[6][1].id
    await world.tenants.delete("zenith", cascade=True)
    claimed = await world.run_queue.claim("w", ttl_ms=TTL_MS)
    assert claimed is not None
    assert claimed.tenant == "o'\x00é"
    assert await world.run_queue.claim("w") is None
    world.clock.advance(TTL_S)
    assert await world.run_queue.claim("w") is None
    world.clock.advance(TTL_S / 2)
    reclaimed = [await world.run_queue.claim("w", ttl_ms=TTL_MS) for _ in range(7)]
    assert [item.run.id for item in reclaimed if item] == [run.id for name, run in order if name != "zenith"]
    with raises(InvalidInput):
        await world.run_queue.claim("")


@contract("concurrency", "tenants")
async def concurrent_claims_never_share_a_run(world: World) -> None:
    handles = [world.tenant(name) for name in ("acme", "zenith")]
    ids = {run.id for handle in handles for run in await ready(handle, 12)}
    claims = [partial(world.run_queue.claim, f"any {number}") for number in range(12)]
    own = [partial(handles[number % 2].leases.claim, f"own {number}") for number in range(12)]
    claimed: list[Run] = []
    for _ in range(4):  # a claim that finds all runs locked by others returns nothing and is repeated
        outcomes = await world.together(*claims, *own)
        assert not any(isinstance(outcome, Exception) for outcome in outcomes), outcomes
        runs = [outcome for outcome in outcomes if outcome is not None]
        claimed += [run.run if isinstance(run, ClaimedRun) else run for run in runs]  # type: ignore[misc]
    assert len(claimed) == len({run.id for run in claimed}) == len(ids)
    assert {run.id for run in claimed} == ids
    assert all((run.epoch, run.status) == (1, "running") for run in claimed)
    by_name = [partial(handles[0].leases.claim, "same", run_id=run.id) for run in await ready(handles[0], 2)] * 4
    named = [run for run in await world.together(*by_name) if run is not None]
    assert sorted(run.epoch for run in named if isinstance(run, Run)) == [1, 1], named
