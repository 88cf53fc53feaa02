"""Sweeps: the rules carried out for one tenant, in many small transactions.

A sweep is *claimed*, which raises the tenant's epoch, and every transaction of it brings the epoch: of two sweeps of one tenant
the older one is refused at its next step. Nothing is remembered between transactions but that: what is left to do follows from
what is there, so a sweep that was killed is gone on with by starting another. Rows are read page by page, so a tenant with many
snapshots takes longer and no more memory.
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
from ...workspace.snapshots import Snapshot
from ...workspace.squash import Squasher
from . import quota
from .quota import queries

RUNS_PAGE = 50
"""Runs looked at at once."""
BATCH = 20
"""Snapshots removed in one transaction."""
LEASE_S = 60
"""Seconds without a sign of life after which a sweep may be taken over; every transaction is one."""
Choice = Callable[[Connection], Coroutine[Any, Any, Sequence[str]]]
"""What a transaction is to remove."""
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class SweepCounts(Struct, frozen=True):
    """Some snapshots."""

    count: int = 0
    size_bytes: int = 0
    """What was stored for them when they were captured."""

    def plus(self, count: int, size_bytes: int) -> SweepCounts:
        """These and some more."""
        return SweepCounts(self.count + count, self.size_bytes + size_bytes)


class SweepResult(Struct, frozen=True, kw_only=True):
    """What a sweep has done, or, as a plan, would do now."""

    per_run_cap: SweepCounts = SweepCounts()
    grace_expired: SweepCounts = SweepCounts()
    per_tenant_cap: SweepCounts = SweepCounts()
    erasure: SweepCounts = SweepCounts()
    used_bytes: int | None = None
    """What the content of the snapshots that stay takes, each body once; looked at only where it may be over the quota."""
    over_bytes: int = 0
    """How much of that is over the quota: the newest snapshot of a run never goes to make room, nor does what is held."""
    held_runs: int = 0
    """Runs whose snapshots stay because of a hold."""

    @property
    def count(self) -> int:
        """Snapshots removed."""
        return sum(each.count for each in (self.per_run_cap, self.grace_expired, self.per_tenant_cap, self.erasure))

    def noting(self, reason: Reason, count: int, size_bytes: int) -> SweepResult:
        """The same with some more snapshots gone."""
        tally: SweepCounts = getattr(self, reason)
        return structs.replace(self, **{reason: tally.plus(count, size_bytes)})


class Sweep:
    """One sweep of one tenant."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._epoch = 0
        self._done = SweepResult()

    async def claim(self, holder: str, *, idle_s: int = 0) -> None:
        """Become the only one who sweeps this tenant.

        Raises:
            Conflict: somebody else is at it, or was less than ``idle_s`` seconds ago.
        """
        name = scopes.name(holder, "holder", self._scope.limits)
        self._epoch = await self._engine.write(lambda connection: _claim(connection, self._scope, name, idle_s))

    async def release(self) -> None:
        """Let others sweep this tenant."""
        params = self._scope.params(epoch=self._epoch, now_at=self._scope.clock.now_us())
        await self._engine.write(lambda connection: queries.let_go.all(connection, params))

    async def carry_out(self) -> SweepResult:
        """Remove what must go by the rules.

        Raises:
            Fenced: somebody else sweeps this tenant now.
        """
        after: str | None = _FIRST_ID
        while after is not None:
            page, policy = await runs_after(self._engine, self._scope, after)
            for run in page:
                await self._look_at(run, policy)
            after = next_page(page)
        await self._make_room()
        await Squasher(self._engine, self._scope).all()
        return await self._finished()

    async def erase(self) -> SweepResult:
        """Remove every snapshot of the tenant that is not held, and everything that only snapshots needed, at once.

        Holds that the tenant's own key has placed are released first.

        Raises:
            Fenced: somebody else sweeps this tenant now.
        """
        await self._engine.write(self._release_own)
        while await self._removed("erasure", self._any_batch):
            pass
        # What is held may lie on what is not; nothing of that may stay.
        await Squasher(self._engine, self._scope).all(always=True)
        return await self._finished(grace_s=0)

    async def _finished(self, grace_s: int = GRACE_S) -> SweepResult:
        while await self._engine.write(self._collect):
            pass
        await self._prune(grace_s)
        return self._done

    async def _prune(self, grace_s: int) -> None:
        try:
            await AsyncObjects(self._engine, self._scope).prune(grace_s=grace_s)
        except CrossTenant as error:
            line = {USER_FIELD: error.tenant, "path": error.path, "reason": "cross_tenant"}
            rules.write_line({"event": "checkpoint.delete_refused", **line}, is_error=True)
            raise

    async def _look_at(self, run: RunSnapshots, policy: RetentionPolicy) -> None:
        if run.is_held:
            self._done = structs.replace(self._done, held_runs=self._done.held_runs + 1)
        elif rules.decide(policy, run, self._scope) is not None:
            while await self._removed_of_run(run.run_id):
                pass

    async def _removed_of_run(self, run_id: str) -> int:
        released: set[bytes] = set()
        reason, gone = await self._engine.write(lambda connection: self._batch_of_run(connection, run_id, released))
        await self._note(reason, gone, released)
        return len(gone)

    async def _batch_of_run(
        self, connection: Connection, run_id: str, released: set[bytes]
    ) -> tuple[Reason, list[Snapshot]]:
        """Remove some of what must go of a run, by how things stand now."""
        released.clear()
        await self._renew(connection)
        run = await rules.run_snapshots(connection, self._scope, run_id)
        policy = await rules.policy_of(connection, self._scope)
        found = None if run is None else rules.decide(policy, run, self._scope)
        if found is None:
            return "per_run_cap", []
        reason, excess = found
        params = self._scope.params(run_id=run_id, excess=excess, limit=BATCH)
        ids = [row[0] for row in await rules.queries.oldest_of_run.all(connection, params)]
        return reason, await snapshots.delete(connection, self._scope, ids, reason=reason, released=released)

    async def _make_room(self) -> None:
        """Remove the oldest until what is left fits."""
        found = await quota.measure(self._engine, self._scope)
        if found is None:
            return
        self._done = structs.replace(self._done, used_bytes=found.used_bytes, over_bytes=found.over_bytes)
        if found.over_bytes:
            rules.warn_over_quota(self._scope, found.used_bytes, found.quota_bytes)
        while found.cut is not None:
            ids = [id for id, _ in await quota.removable(self._engine, self._scope, found.cut, BATCH)]
            if not ids or not await self._removed("per_tenant_cap", self._still_movable(ids)):
                break

    def _still_movable(self, ids: Sequence[str]) -> Choice:
        return lambda connection: self._may_go(connection, ids)

    async def _may_go(self, connection: Connection, ids: Sequence[str]) -> list[str]:
        """Those of these that may go now."""
        found = []
        for each in ids:
            if await queries.may_go.one(connection, self._scope.params(id=each)) is not None:
                found.append(each)
        return found

    async def _release_own(self, connection: Connection) -> None:
        await self._renew(connection)
        rows = await queries.release_own.all(connection, self._scope.params())
        released = mapper(Hold, connection.dialect)(rows)
        await activity.record_all(
            connection, self._scope, [rules.hold_deed("hold.released", each, "", "erasure") for each in released]
        )

    async def _any_batch(self, connection: Connection) -> list[str]:
        rows = await queries.oldest.all(connection, self._scope.params(limit=BATCH))
        return [row[0] for row in rows]

    async def _removed(self, reason: Reason, choose: Choice) -> int:
        """Remove what is chosen, in one transaction; how many those were."""

        released: set[bytes] = set()

        async def remove(connection: Connection) -> list[Snapshot]:
            released.clear()
            await self._renew(connection)
            chosen = await choose(connection)
            return await snapshots.delete(connection, self._scope, chosen, reason=reason, released=released)

        gone = await self._engine.write(remove)
        await self._note(reason, gone, released)
        return len(gone)

    async def _note(self, reason: Reason, gone: Sequence[Snapshot], released: set[bytes]) -> None:
        rules.log_removals(self._scope, gone, reason)
        await removal.remove_unheld(self._engine, self._scope, released)
        self._done = self._done.noting(reason, len(gone), sum(each.size_bytes for each in gone))

    async def _collect(self, connection: Connection) -> int:
        await self._renew(connection)
        return await layers.collect(connection, self._scope)

    async def _renew(self, connection: Connection) -> None:
        until = self._scope.clock.now_us() + LEASE_S * MICROSECONDS
        params = self._scope.params(epoch=self._epoch, lease_until_at=until)
        if await queries.renew.one(connection, params) is None:
            raise Fenced(f"somebody else sweeps the tenant {self._scope.tenant!r} now")


async def _claim(connection: Connection, scope: Scope, holder: str, idle_s: int) -> int:
    now = scope.clock.now_us()
    await register_tenant(connection, scope.params(now_at=now))
    _, there, *times = await rules.lock(connection, scope)
    lasts = LEASE_S * MICROSECONDS
    native = connection.dialect.native_time
    until, finished = [to_us(each) if native and each is not None else each for each in times]
    # A lease that ends later than any can was given by a clock that has been put back since.
    if there and until is not None and now < until <= now + 2 * lasts:
        raise Conflict(f"{there} sweeps the tenant {scope.tenant!r}; try again later")
    if finished is not None and now - idle_s * MICROSECONDS < finished <= now:
        raise Conflict(f"the tenant {scope.tenant!r} was swept less than {idle_s} seconds ago")
    row = await queries.claim.one(connection, scope.params(holder=holder, lease_until_at=now + lasts))
    assert row is not None
    return int(row[0])


async def runs_after(engine: Engine, scope: Scope, after: str) -> tuple[Sequence[RunSnapshots], RetentionPolicy]:
    """The next page of runs that have snapshots, and what holds for the tenant."""
    return await engine.read(lambda connection: _runs_after(connection, scope, after))


async def _runs_after(
    connection: Connection, scope: Scope, after: str
) -> tuple[Sequence[RunSnapshots], RetentionPolicy]:
    rows = await queries.runs.all(connection, scope.params(after_id=after, limit=RUNS_PAGE))
    return [rules.run_of(connection, row) for row in rows], await rules.policy_of(connection, scope)


def next_page(page: Sequence[RunSnapshots]) -> str | None:
    """After which run the next page starts; ``None`` if this was the last."""
    return page[-1].run_id if len(page) == RUNS_PAGE else None
