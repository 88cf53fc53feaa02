"""Two never sweep one tenant at once, a round reaches every tenant, and long work is done in short transactions."""

from __future__ import annotations

import asyncio
import logging
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import AsyncHoldfast, FixedClock, Holdfast, Limits, SeededIds, TenantHandle
from holdfast.core.scope import Scope
from holdfast.errors import Conflict, Fenced, InvalidInput
from holdfast.retention_worker import RetentionWorker, Round, describe
from holdfast.stores.lifecycle.retention.sweeps import LEASE_S, Sweep
from holdfast.sync_runner import step
from tests.stores.lifecycle.conftest import POOL, SMALL, Bench, Lines, Opens
from tests.stores.lifecycle.forging import body, forge, many


def sweep_of(bench: Bench) -> Sweep:
    return Sweep(bench.holdfast._engine, Scope("acme", bench.holdfast._setting))


def test_of_two_sweepers_one_waits_and_a_late_one_is_refused(local: Bench, opens: Opens, lines: Lines) -> None:
    run = local.run()
    for _ in range(3):
        local.capture(run)
    local.tenant().retention.set_policy(per_run=1)
    first = sweep_of(local)
    step(first.claim("first"))
    with pytest.raises(Conflict, match="first sweeps"):
        local.tenant().retention.sweep(holder="second")
    local.clock.advance(LEASE_S - 1)
    with pytest.raises(Conflict, match="first sweeps"):
        opens().tenant().retention.sweep()
    local.clock.advance(1)
    second = sweep_of(local)
    step(second.claim("second"))
    with pytest.raises(Fenced, match="somebody else"):
        step(first.carry_out())
    assert (lines.raw, len(local.ids())) == ([], 3), "who is refused has done nothing"
    step(first.release())
    with pytest.raises(Conflict, match="second sweeps"):
        step(first.claim("first"))
    assert step(second.carry_out()).per_run_cap.count == 2
    step(second.release())
    with pytest.raises(Conflict, match="less than 60 seconds ago"):
        local.tenant().retention.sweep(idle_s=60)
    local.clock.advance(60)
    assert local.tenant().retention.sweep(idle_s=60).count == 0
    local.clock.advance(-(10**6))
    assert local.tenant().retention.sweep(idle_s=60).count == 0, "a clock that was put back keeps nobody out for ever"
    with pytest.raises(InvalidInput, match="idle_s"):
        local.tenant().retention.sweep(idle_s=-1)


def test_a_hold_that_was_placed_is_never_overlooked_by_a_sweep_under_way(local: Bench, opens: Opens) -> None:
    other = opens()
    acme = local.tenant()
    for number in range(6):
        run = local.run()
        acme.retention.set_policy(per_run=5)
        made = [forge(acme, run, [body(number * 10 + each, 50)]) for each in range(5)]
        acme.retention.set_policy(per_run=1)
        with ThreadPoolExecutor(2) as pool:
            sweep = pool.submit(other.tenant().retention.sweep)
            held = pool.submit(lambda run=run: acme.retention.hold("why", run_id=run) and local.ids(run))  # type: ignore[misc]
            there = held.result()
            sweep.result()
        assert local.ids(run) == there, "what was there when the hold was placed is there"
        assert len(there) in range(1, len(made) + 1)


def rounds(address: str, clock: FixedClock, do: Callable[[AsyncHoldfast], Any], packs: Any) -> Any:
    async def run() -> Any:
        async with AsyncHoldfast(address, clock=clock, limits=SMALL, packs=packs, pool=POOL) as holdfast:
            return await do(holdfast)

    return asyncio.run(run())


def test_a_round_sweeps_every_tenant_and_forgets_who_is_to_be_forgotten(
    local: Bench, address: str, tmp_path: Any, lines: Lines
) -> None:
    for name in ("acme", "zenith", "gone"):
        run = local.run(name)
        for _ in range(2):
            local.capture(run, tenant=name)
        local.tenant(name).retention.set_policy(per_run=1)
    local.holdfast.erasures.request("gone", event_id="e")
    busy = sweep_of(local)
    step(busy.claim("somebody"))

    async def two_at_once(holdfast: AsyncHoldfast) -> list[Round]:
        workers = [RetentionWorker(holdfast, holder=name) for name in ("one", "other")]
        return [*await asyncio.gather(*(worker.round(idle_s=60) for worker in workers))]

    done = rounds(address, local.clock, two_at_once, tmp_path / "packs")
    assert sum(each.tenants for each in done) == 1, "zenith, once"
    assert sum(each.erased for each in done) == 1
    assert sum(each.snapshots for each in done) == 3
    assert len(local.ids()) == 2, "acme is left to somebody"
    assert (len(local.ids(tenant="zenith")), local.ids(tenant="gone")) == (1, [])
    assert sorted(each["reason"] for each in lines.said) == ["erasure", "erasure", "per_run_cap"]
    step(busy.release())
    local.clock.advance(61)

    async def until_stopped(holdfast: AsyncHoldfast) -> None:
        worker = RetentionWorker(holdfast, every_s=0.01, ids=SeededIds(3), tenants=["acme"])
        task = asyncio.ensure_future(worker.work())
        while len(local.ids()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        worker.stop()
        await asyncio.wait_for(task, 30)

    rounds(address, local.clock, until_stopped, tmp_path / "packs")
    assert len(local.ids()) == 1


def test_a_worker_asks_for_no_larger_pages_than_its_limits_allow(tmp_path: Any) -> None:
    async def run() -> Round:
        async with AsyncHoldfast(str(tmp_path / "agents.db"), limits=Limits(page_rows=2)) as holdfast:
            for number in range(5):
                await holdfast.tenant(f"tenant {number}").sessions.create()
                await holdfast.erasures.request(f"gone {number}", event_id=f"e{number}")
            return await RetentionWorker(holdfast).round()

    done = asyncio.run(run())
    assert (done.tenants, done.erased, done.failed) == (5, 5, 0)


def test_a_round_in_words_and_workers_that_cannot_be() -> None:
    assert describe(Round(tenants=2, snapshots=3)) == "2 tenants swept, 3 snapshots removed"
    assert describe(Round(failed=1, skipped=2, erased=4)) == (
        "0 tenants swept, 0 snapshots removed, 4 forgotten, 2 left to others, 1 failed"
    )
    for wrong in (0, -1, "1", True):
        with pytest.raises(InvalidInput, match="every_s"):
            RetentionWorker(None, every_s=wrong)  # type: ignore[arg-type]


class Timed:
    """An engine that notes how long each transaction worked."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.dialect, self.blocking, self.joined = engine.dialect, engine.blocking, engine.joined
        self.worked_s: list[float] = []

    async def read(self, call: Any) -> Any:
        return await self._timed(self._engine.read, call)

    async def write(self, call: Any) -> Any:
        return await self._timed(self._engine.write, call)

    async def _timed(self, how: Any, call: Any) -> Any:
        began = time.thread_time()
        try:
            return await how(call)
        finally:
            self.worked_s.append(time.thread_time() - began)


def fill(holdfast: Holdfast, name: str, runs: int, each: int) -> None:
    there = holdfast.tenant(name)
    session = there.sessions.create()
    for _ in range(runs):
        run_id = there.runs.start(session.id).id
        step(there._engine.write(lambda connection, run_id=run_id: many(connection, there, run_id, each)))  # type: ignore[misc]


def test_a_sweep_of_many_snapshots_is_short_transactions_in_little_memory(caplog: pytest.LogCaptureFixture) -> None:
    """The whole of it, ten thousand snapshots of a thousand tenants, is measured by the benchmark."""
    peaks = {}
    caplog.set_level(logging.ERROR, "holdfast.retention")  # what is said would be remembered here
    with Holdfast(":memory:", clock=FixedClock()) as holdfast:
        for name, runs in (("warm", 1), ("small", 5), ("large", 40)):
            fill(holdfast, name, runs, 10)
            timed = Timed(holdfast._engine)
            there = TenantHandle(timed, Scope(name, holdfast._setting))
            there.retention.set_policy(per_run=1)
            tracemalloc.start()
            swept = there.retention.sweep()
            peaks[name] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert swept.per_run_cap.count == 9 * runs
            assert max(timed.worked_s) < 0.1
    assert peaks["large"] < peaks["small"] + 300_000, peaks


def test_what_another_has_forgotten_meanwhile_is_nothing_to_warn_of(
    local: Bench, address: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Between asking who is to be forgotten and doing it, somebody else has done it."""
    local.run("gone")
    local.holdfast.erasures.request("gone", event_id="e")

    async def too_late(holdfast: AsyncHoldfast) -> list[str]:
        local.holdfast.erasures.carry_out("gone")
        return ["gone"]

    monkeypatch.setattr("holdfast.retention_worker.to_be_forgotten", too_late)
    caplog.set_level(logging.INFO, "holdfast")
    done = rounds(address, local.clock, lambda holdfast: RetentionWorker(holdfast).round(), tmp_path / "packs")
    assert (done.erased, done.failed) == (0, 0)
    said = [each for each in caplog.records if each.name == "holdfast.sweeper"]
    assert [each.levelname for each in said] == ["INFO"]
    assert "gone is left to somebody else" in said[0].getMessage()
