"""Benchmark of a sweep over 10,000 snapshots of 1,000 tenants: its longest transaction and its memory.

The snapshots are recorded as by a capture, but without files. The sweep keeps two of ten snapshots per run. The time of a
transaction is measured at its caller and includes waiting. The memory ratio compares the peak of Python's allocations for two
tenants, one with four times as many snapshots as the other, both with enough snapshots to fill a page of the sweep.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path
from time import perf_counter
from typing import Any

from .case import Case, Engine, Job, Result

GROUP = "retention"
WHO: dict[str, Engine] = {"Holdfast, SQLite": "sqlite", "Holdfast, PostgreSQL": "postgres"}
TENANTS, EACH, KEPT = 1_000, 10, 2
FEW_RUNS, MANY_RUNS, SAMPLES = 60, 240, 2
"""Runs of the two kinds of tenants whose memory is compared, and tenants of each kind."""


def cases() -> list[Case]:
    """Return one case per engine."""
    return [Case(GROUP, name, "main", engine) for name, engine in WHO.items()]


def run(job: Job) -> Result:
    """Measure a sweep on one engine."""
    address = job.place if WHO[job.contender] == "postgres" else str(Path(job.place) / "agents.db")
    return asyncio.run(_measure(address))


class _Timed:
    """An engine wrapper that records only the longest write, because its own memory would be measured too."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.longest_s, self.writes = engine, 0.0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def write(self, call: Any) -> Any:
        began = perf_counter()
        try:
            return await self._engine.write(call)
        finally:
            self.longest_s, self.writes = max(self.longest_s, perf_counter() - began), self.writes + 1


async def _measure(address: str) -> Result:
    from holdfast import AsyncHoldfast, FixedClock

    # A fixed clock: Holdfast caches decoded timestamps up to a limit, and they would be measured as memory of the sweep.
    async with AsyncHoldfast(address, auto_migrate=True, clock=FixedClock()) as hf:
        names = [f"t{number:04}" for number in range(TENANTS)]
        for name in names:
            await _fill(hf.tenant(name), 1)
        timed = _Timed(hf._engine)
        hf._engine = timed  # type: ignore[assignment]
        began = perf_counter()
        removed = await _round(hf, names)
        took = perf_counter() - began
        if removed != TENANTS * (EACH - KEPT):
            raise RuntimeError(f"{removed} snapshots were removed, expected {TENANTS * (EACH - KEPT)}")
        longest_ms, writes = timed.longest_s * 1_000, timed.writes
        few, many = await _peak(hf, "few", FEW_RUNS), await _peak(hf, "many", MANY_RUNS)
    return {
        "longest_ms": round(longest_ms, 2),
        "memory_ratio": round(many / few, 3),
        "rate": round(TENANTS * EACH / took, 1),
        "writes": writes,
    }


async def _round(hf: Any, tenants: list[str]) -> int:
    from holdfast.retention_worker import RetentionWorker

    completed = await RetentionWorker(hf, tenants=tenants).round()
    if completed.failed or completed.skipped:
        raise RuntimeError(f"not every tenant was swept: {completed}")
    return int(completed.snapshots)


async def _peak(hf: Any, kind: str, runs: int) -> int:
    names = [f"{kind} {number}" for number in range(SAMPLES)]
    for name in names:
        await _fill(hf.tenant(name), runs)
    await _round(hf, names[:1])
    tracemalloc.start()
    await _round(hf, names[1:])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


async def _fill(tenant: Any, runs: int) -> None:
    session = await tenant.sessions.create()
    for _ in range(runs):
        run_id = (await tenant.runs.start(session.id)).id
        await tenant._engine.write(_recording(tenant, run_id))
    await tenant.retention.set_policy(per_run=KEPT)


def _recording(tenant: Any, run_id: str) -> Any:
    from holdfast.core import objects as bodies
    from holdfast.stores.workspace import layers, snapshot_rows, snapshots
    from holdfast.trees.entries import Difference

    async def record(connection: Any) -> None:
        for number in range(EACH):
            manifest = layers.manifest_of(Difference([], [str(number)]))
            part = layers.LayerPart([bodies.pack(b"%d of %s" % (number, run_id.encode()))])
            layer = layers.NewLayer(manifest, None, [part])
            new = snapshot_rows.NewSnapshot(run_id, number, "step", None, layer, 0, 0, tenant._scope.ids.new())
            await snapshots.record(connection, tenant._scope, new)

    return record
