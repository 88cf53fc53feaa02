"""Sweeps: the retention rules applied to one tenant, in many small transactions.

A sweep is *claimed*, which raises the tenant's epoch, and every transaction of it checks the epoch: of two sweeps of
one tenant, the older one is refused at its next step. No other state is kept between transactions: the remaining work
follows from the stored rows, so a killed sweep is resumed by starting another. Rows are read page by page, so a
tenant with many snapshots takes longer and no more memory.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct, structs

from ....clock import MICROSECONDS, to_us
from ....compatibility import USER_FIELD
from ....core import scope as scopes
from ....core.registration import register_tenant
from ....core.rows import mapper
from ....core.scope import Scope
from ....engines.protocol import Connection, Engine
from ....errors import Conflict, CrossTenant, Fenced
from ...objects import activity, removal
from ...objects.objects import GRACE_S, AsyncObjects
from ...workspace import layers, snapshots
from ...workspace import retention_rules as rules
from ...workspace.retention_rules import Hold, Reason, RetentionPolicy, RunSnapshots
from ...workspace.snapshot_rows import Snapshot
from ...workspace.squash import Squasher
from . import quota
from .quota import queries

RUNS_PAGE = 50
"""Runs read at once."""
BATCH = 20
"""Snapshots removed in one transaction."""
LEASE_S = 60
"""Seconds after which a sweep without activity may be taken over; every transaction counts as activity."""
Choice = Callable[[Connection], Coroutine[Any, Any, Sequence[str]]]
"""Selects the snapshots that a transaction removes."""
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class SweepCounts(Struct, frozen=True):
    """The number and size of some snapshots."""

    count: int = 0
    size_bytes: int = 0
    """Bytes stored for them when they were captured."""

    def plus(self, count: int, size_bytes: int) -> SweepCounts:
        """Return the counts with more snapshots added."""
        return SweepCounts(self.count + count, self.size_bytes + size_bytes)


class SweepResult(Struct, frozen=True, kw_only=True):
    """What a sweep has removed, or, as a plan, would remove now."""

    per_run_cap: SweepCounts = SweepCounts()
    grace_expired: SweepCounts = SweepCounts()
    per_tenant_cap: SweepCounts = SweepCounts()
    erasure: SweepCounts = SweepCounts()
    used_bytes: int | None = None
    """Bytes of the content of the snapshots that stay, each object once; ``None`` if the tenant cannot be over its
    quota."""
    over_bytes: int = 0
    """Bytes over the quota: neither the newest snapshot of a run nor a held snapshot is removed to meet it."""
    held_runs: int = 0
    """Runs whose snapshots stay because of a hold."""

    @property
    def count(self) -> int:
        """Number of snapshots removed."""
        return sum(counts.count for counts in (self.per_run_cap, self.grace_expired, self.per_tenant_cap, self.erasure))

    def with_removed(self, reason: Reason, count: int, size_bytes: int) -> SweepResult:
        """Return the result with more removed snapshots added."""
        counts: SweepCounts = getattr(self, reason)
        return structs.replace(self, **{reason: counts.plus(count, size_bytes)})


class Sweep:
    """One sweep of one tenant."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._epoch = 0
        self._result = SweepResult()

    async def claim(self, holder: str, *, idle_s: int = 0) -> None:
        """Become the only sweep of this tenant.

        Raises:
            Conflict: another process is sweeping it, or did so less than ``idle_s`` seconds ago.
        """
        name = scopes.name(holder, "holder", self._scope.limits)
        self._epoch = await self._engine.write(lambda connection: _claim(connection, self._scope, name, idle_s))

    async def release(self) -> None:
        """Let other processes sweep this tenant."""
        params = self._scope.params(epoch=self._epoch, now_at=self._scope.clock.now_us())
        await self._engine.write(lambda connection: queries.let_go.all(connection, params))

    async def carry_out(self) -> SweepResult:
        """Remove snapshots by the rules.

        Raises:
            Fenced: another process sweeps this tenant now.
        """
        after: str | None = _FIRST_ID
        while after is not None:
            page, policy = await runs_after(self._engine, self._scope, after)
            for run in page:
                await self._sweep_run(run, policy)
            after = next_page(page)
        await self._fit_quota()
        await Squasher(self._engine, self._scope).all()
        return await self._finish()

    async def erase(self) -> SweepResult:
        """Remove every snapshot of the tenant that is not held, and at once everything that only snapshots needed.

        Holds that the tenant's own key has placed are released first.

        Raises:
            Fenced: another process sweeps this tenant now.
        """
        await self._engine.write(self._release_own)
        while await self._remove_chosen("erasure", self._any_batch):
            pass
        # A held layer may be based on one that is not held; nothing of the latter may stay.
        await Squasher(self._engine, self._scope).all(always=True)
        return await self._finish(grace_s=0)

    async def _finish(self, grace_s: int = GRACE_S) -> SweepResult:
        while await self._engine.write(self._collect):
            pass
        await self._prune(grace_s)
        return self._result

    async def _prune(self, grace_s: int) -> None:
        try:
            await AsyncObjects(self._engine, self._scope).prune(grace_s=grace_s)
        except CrossTenant as error:
            line = {USER_FIELD: error.tenant, "path": error.path, "reason": "cross_tenant"}
            rules.write_line({"event": "checkpoint.delete_refused", **line}, is_error=True)
            raise

    async def _sweep_run(self, run: RunSnapshots, policy: RetentionPolicy) -> None:
        if run.is_held:
            self._result = structs.replace(self._result, held_runs=self._result.held_runs + 1)
        elif rules.decide(policy, run, self._scope) is not None:
            while await self._remove_from_run(run.run_id):
                pass

    async def _remove_from_run(self, run_id: str) -> int:
        released: set[bytes] = set()
        reason, removed = await self._engine.write(lambda connection: self._batch_of_run(connection, run_id, released))
        await self._note(reason, removed, released)
        return len(removed)

    async def _batch_of_run(
        self, connection: Connection, run_id: str, released: set[bytes]
    ) -> tuple[Reason, list[Snapshot]]:
        """Remove some of a run's snapshots, as decided by its current state."""
        released.clear()
        await self._renew(connection)
        run = await rules.run_snapshots(connection, self._scope, run_id)
        policy = await rules.policy_of(connection, self._scope)
        decision = None if run is None else rules.decide(policy, run, self._scope)
        if decision is None:
            return "per_run_cap", []
        reason, excess = decision
        params = self._scope.params(run_id=run_id, excess=excess, limit=BATCH)
        ids = [row[0] for row in await rules.queries.oldest_of_run.all(connection, params)]
        return reason, await snapshots.delete(connection, self._scope, ids, reason=reason, released=released)

    async def _fit_quota(self) -> None:
        """Remove the oldest snapshots until the rest fits into the quota."""
        usage = await quota.measure(self._engine, self._scope)
        if usage is None:
            return
        self._result = structs.replace(self._result, used_bytes=usage.used_bytes, over_bytes=usage.over_bytes)
        if usage.over_bytes:
            rules.warn_over_quota(self._scope, usage.used_bytes, usage.quota_bytes)
        while usage.cut is not None:
            ids = [id for id, _ in await quota.removable(self._engine, self._scope, usage.cut, BATCH)]
            if not ids or not await self._remove_chosen("per_tenant_cap", self._choose_removable(ids)):
                break

    def _choose_removable(self, ids: Sequence[str]) -> Choice:
        return lambda connection: self._may_go(connection, ids)

    async def _may_go(self, connection: Connection, ids: Sequence[str]) -> list[str]:
        """Return those of these snapshots that may be removed now."""
        removable = []
        for snapshot_id in ids:
            if await queries.may_go.one(connection, self._scope.params(id=snapshot_id)) is not None:
                removable.append(snapshot_id)
        return removable

    async def _release_own(self, connection: Connection) -> None:
        await self._renew(connection)
        rows = await queries.release_own.all(connection, self._scope.params())
        released = mapper(Hold, connection.dialect)(rows)
        await activity.record_all(
            connection, self._scope, [rules.hold_deed("hold.released", hold, "", "erasure") for hold in released]
        )

    async def _any_batch(self, connection: Connection) -> list[str]:
        rows = await queries.oldest.all(connection, self._scope.params(limit=BATCH))
        return [row[0] for row in rows]

    async def _remove_chosen(self, reason: Reason, choose: Choice) -> int:
        """Remove the chosen snapshots in one transaction; return their number."""

        released: set[bytes] = set()

        async def remove(connection: Connection) -> list[Snapshot]:
            released.clear()
            await self._renew(connection)
            chosen = await choose(connection)
            return await snapshots.delete(connection, self._scope, chosen, reason=reason, released=released)

        removed = await self._engine.write(remove)
        await self._note(reason, removed, released)
        return len(removed)

    async def _note(self, reason: Reason, removed: Sequence[Snapshot], released: set[bytes]) -> None:
        rules.log_removals(self._scope, removed, reason)
        await removal.remove_unheld(self._engine, self._scope, released)
        self._result = self._result.with_removed(reason, len(removed), sum(snapshot.size_bytes for snapshot in removed))

    async def _collect(self, connection: Connection) -> int:
        await self._renew(connection)
        return await layers.collect(connection, self._scope)

    async def _renew(self, connection: Connection) -> None:
        until = self._scope.clock.now_us() + LEASE_S * MICROSECONDS
        params = self._scope.params(epoch=self._epoch, lease_until_at=until)
        if await queries.renew.one(connection, params) is None:
            raise Fenced(f"another process sweeps the tenant {self._scope.tenant!r} now")


async def _claim(connection: Connection, scope: Scope, holder: str, idle_s: int) -> int:
    now = scope.clock.now_us()
    await register_tenant(connection, scope.params(now_at=now))
    _, holder_now, *times = await rules.lock(connection, scope)
    lease_us = LEASE_S * MICROSECONDS
    native = connection.dialect.native_time
    until, finished = [to_us(time) if native and time is not None else time for time in times]
    # A lease that ends later than possible was granted by a clock that has been set back since.
    if holder_now and until is not None and now < until <= now + 2 * lease_us:
        raise Conflict(f"{holder_now} is sweeping the tenant {scope.tenant!r}: try again later", reason="being_swept")
    if finished is not None and now - idle_s * MICROSECONDS < finished <= now:
        raise Conflict(f"tenant {scope.tenant!r} was swept less than {idle_s} seconds ago", reason="swept_recently")
    row = await queries.claim.one(connection, scope.params(holder=holder, lease_until_at=now + lease_us))
    assert row is not None
    return int(row[0])


async def runs_after(engine: Engine, scope: Scope, after: str) -> tuple[Sequence[RunSnapshots], RetentionPolicy]:
    """Return the next page of runs that have snapshots, and the tenant's policy."""
    return await engine.read(lambda connection: _runs_after(connection, scope, after))


async def _runs_after(
    connection: Connection, scope: Scope, after: str
) -> tuple[Sequence[RunSnapshots], RetentionPolicy]:
    rows = await queries.runs.all(connection, scope.params(after_id=after, limit=RUNS_PAGE))
    return [rules.run_of(connection, row) for row in rows], await rules.policy_of(connection, scope)


def next_page(page: Sequence[RunSnapshots]) -> str | None:
    """Return the id of the run after which the next page starts; ``None`` if this was the last page."""
    return page[-1].run_id if len(page) == RUNS_PAGE else None
