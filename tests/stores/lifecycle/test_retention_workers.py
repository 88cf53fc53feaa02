"""Two processes never sweep one tenant at the same time, a round reaches every tenant, and transactions are short."""

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
from tests.errors import raises
from tests.stores.lifecycle.conftest import POOL, SMALL, Bench, Lines, Opens
from tests.stores.lifecycle.forging import body, forge, many


def sweep_of(bench: Bench) -> Sweep:
    return Sweep(bench.holdfast._engine, Scope("acme", bench.holdfast._setting))


def test_two_sweeps_exclude_each_other_and_an_expired_one_is_fenced(local: Bench, opens: Opens, lines: Lines) -> None:
    run = local.run()
    for _ in range(3):
        local.capture(run)
    local.tenant().retention.set_policy(per_run=1)
    first = sweep_of(local)
    step(first.claim("first"))
    with raises(Conflict, reason="being_swept"):
        local.tenant().retention.sweep(holder="second")
    local.clock.advance(LEASE_S - 1)
    with raises(Conflict, reason="being_swept"):
        opens().tenant().retention.sweep()
    local.clock.advance(1)
    second = sweep_of(local)
    step(second.claim("second"))
    with pytest.raises(Fenced, match="'acme'"):
        step(first.carry_out())
    assert (lines.raw, len(local.ids())) == ([], 3), "a refused sweep has changed nothing"
    step(first.release())
    with raises(Conflict, reason="being_swept"):
        step(first.claim("first"))
    assert step(second.carry_out()).per_run_cap.count == 2
    step(second.release())
    with raises(Conflict, reason="swept_recently"):
        local.tenant().retention.sweep(idle_s=60)
    local.clock.advance(60)
    assert local.tenant().retention.sweep(idle_s=60).count == 0
    local.clock.advance(-(10**6))
    assert local.tenant().retention.sweep(idle_s=60).count == 0, "a clock that was set back does not block sweeps"
    with raises(InvalidInput, field="idle_s"):
        local.tenant().retention.sweep(idle_s=-1)


def test_a_running_sweep_respects_a_new_hold(local: Bench, opens: Opens) -> None:
    other = opens()
    acme = local.tenant()
    for number in range(6):
        run = local.run()
        acme.retention.set_policy(per_run=5)
        made = [forge(acme, run, [body(number * 10 + offset, 50)]) for offset in range(5)]
        acme.retention.set_policy(per_run=1)
        with ThreadPoolExecutor(2) as pool:
            sweep = pool.submit(other.tenant().retention.sweep)
            held = pool.submit(lambda run=run: acme.retention.hold("why", run_id=run) and local.ids(run))  # type: ignore[misc]
            existing = held.result()
            sweep.result()
        assert local.ids(run) == existing, "snapshots that existed when the hold was placed still exist"
        assert len(existing) in range(1, len(made) + 1)


def rounds(address: str, clock: FixedClock, do: Callable[[AsyncHoldfast], Any], packs: Any) -> Any:
    async def run() -> Any:
        async with AsyncHoldfast(address, clock=clock, limits=SMALL, packs=packs, pool=POOL) as holdfast:
            return await do(holdfast)

    return asyncio.run(run())


def test_a_round_sweeps_every_tenant_and_carries_out_erasures(
    local: Bench, address: str, tmp_path: Any, lines: Lines
) -> None:
    for name in ("acme", "zenith", "gone"):
        run = local.run(name)
        for _ in range(2):
            local.capture(run, tenant=name)
        local.tenant(name).retention.set_policy(per_run=1)
    local.holdfast.erasures.request("gone", event_id="e")
    busy = sweep_of(local)
    step(busy.claim("another"))

    async def two_at_once(holdfast: AsyncHoldfast) -> list[Round]:
        workers = [RetentionWorker(holdfast, holder=name) for name in ("one", "other")]
        return [*await asyncio.gather(*(worker.round(idle_s=60) for worker in workers))]

    result = rounds(address, local.clock, two_at_once, tmp_path / "packs")
    assert sum(round_result.tenants for round_result in result) == 1, "zenith, once"
    assert sum(round_result.erased for round_result in result) == 1
    assert sum(round_result.snapshots for round_result in result) == 3
    assert len(local.ids()) == 2, "acme is left to another process"
    assert (len(local.ids(tenant="zenith")), local.ids(tenant="gone")) == (1, [])
    assert sorted(event["reason"] for event in lines.said) == ["erasure", "erasure", "per_run_cap"]
    step(busy.release())
    local.clock.advance(61)

    async def until_stopped(holdfast: AsyncHoldfast) -> None:
        worker = RetentionWorker(holdfast, every_s=0.01, ids=SeededIds(3), tenants=["acme"])
        task = asyncio.ensure_future(worker.work())
        while len(local.ids()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        worker.stop()
        await asyncio.wait_for(task, 60)

    rounds(address, local.clock, until_stopped, tmp_path / "packs")
    assert len(local.ids()) == 1


def test_a_worker_requests_pages_within_its_limits(tmp_path: Any) -> None:
    async def run() -> Round:
        async with AsyncHoldfast(str(tmp_path / "agents.db"), limits=Limits(page_rows=2)) as holdfast:
            for number in range(5):
                await holdfast.tenant(f"tenant {number}").sessions.create()
                await holdfast.erasures.request(f"gone {number}", event_id=f"e{number}")
            return await RetentionWorker(holdfast).round()

    result = asyncio.run(run())
    assert (result.tenants, result.erased, result.failed) == (5, 5, 0)


def test_a_round_is_described_and_invalid_workers_are_refused() -> None:
    assert describe(Round(tenants=2, snapshots=3)) == "2 tenants swept, 3 snapshots removed"
    assert describe(Round(failed=1, skipped=2, erased=4)) == (
        "0 tenants swept, 0 snapshots removed, 4 erased, 2 left to other workers, 1 failed"
    )
    for wrong in (0, -1, "1", True):
        with raises(InvalidInput, field="every_s"):
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


def fill(holdfast: Holdfast, name: str, runs: int, snapshots_per_run: int) -> None:
    existing = holdfast.tenant(name)
    session = existing.sessions.create()
    for _ in range(runs):
        run_id = existing.runs.start(session.id).id
        step(
            existing._engine.write(
                lambda connection, run_id=run_id: many(connection, existing, run_id, snapshots_per_run)
            )
        )  # type: ignore[misc]


def test_a_sweep_of_many_snapshots_takes_short_transactions_and_little_memory(caplog: pytest.LogCaptureFixture) -> None:
    """The whole of it, ten thousand snapshots of a thousand tenants, is measured by the benchmark."""
    peaks = {}
    caplog.set_level(logging.ERROR, "holdfast.retention")  # otherwise the handler would keep every record
    with Holdfast(":memory:", clock=FixedClock()) as holdfast:
        for name, runs in (("warm", 1), ("small", 5), ("large", 40)):
            fill(holdfast, name, runs, 10)
            timed = Timed(holdfast._engine)
            existing = TenantHandle(timed, Scope(name, holdfast._setting))
            existing.retention.set_policy(per_run=1)
            tracemalloc.start()
            swept = existing.retention.sweep()
            peaks[name] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert swept.per_run_cap.count == 9 * runs
            assert max(timed.worked_s) < 0.1
    assert peaks["large"] < peaks["small"] + 300_000, peaks


def test_an_erasure_done_by_another_process_logs_no_warning(
    local: Bench, address: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process carries out the erasure between listing and carrying it out."""
    local.run("gone")
    local.holdfast.erasures.request("gone", event_id="e")

    async def too_late(holdfast: AsyncHoldfast) -> list[str]:
        local.holdfast.erasures.carry_out("gone")
        return ["gone"]

    monkeypatch.setattr("holdfast.retention_worker.tenants_to_erase", too_late)
    caplog.set_level(logging.INFO, "holdfast")
    result = rounds(address, local.clock, lambda holdfast: RetentionWorker(holdfast).round(), tmp_path / "packs")
    assert (result.erased, result.failed) == (0, 0)
    records = [record for record in caplog.records if record.name == "holdfast.sweeper"]
    assert [record.levelname for record in records] == ["INFO"]
    assert "the erasure of tenant gone is left to another worker" in records[0].getMessage()
