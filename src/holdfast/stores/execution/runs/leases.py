"""Leases: who drives a run now.

A worker *claims* a run and holds it for as long as it renews the lease; each step and each intent renews it too. The claim raises
the run's epoch, and every write brings the epoch, so that whoever held the run before can write no more: at most one
acts, whatever clocks and networks do. Times only decide when a run may be taken from a holder that seems to be gone.

They do so carefully, because clocks jump. A lease that has run out is first *doubted*: the moment is noted in the run. Only if
half a lease later it has still not been renewed is the run claimed. So:

* A clock that jumps ahead, on one machine or on all, takes nothing from a holder that renews its lease at least every third
  of it: the renewal comes while the lease is only doubted, and ends the doubt.
* A clock that jumps back does not keep a dead holder's run for ever: a lease that ends later than any lease may
  (``Limits.lease_ms``) is doubted like one that has run out. Short of that it lasts longer by as much as the clock went back.
* Two clocks that are wrong at once, by different amounts, can take a run from a living holder. It then gets ``Fenced``, and
  nothing is written twice.
* A dead holder's run can be claimed one and a half leases after the last sign of life, and each such claim counts: after
  ``max_attempts`` in a row without a step the run fails, with the reason, instead of being tried for ever.

Which run comes next is asked of a queue that is above all tenants (``run_queue.sql``): oldest first, out of an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from ....clock import MICROSECONDS, to_us
from ....core import scope as scopes
from ....core import text
from ....core.blocking import Blocking, blocking
from ....core.store import Store, TenantStore, writes
from ....engines.protocol import Connection, Engine
from ....errors import InvalidInput
from ....ids import Id
from ....limits import Limits
from .states import (
    FINAL,
    Run,
    check_epoch,
    check_holder,
    checked_ttl,
    enqueue,
    lease,
    lock_run,
    move,
    queries,
    queue,
    run_of,
)

Verdict = Literal["take", "doubt", "later", "drop"]

CANDIDATES = 8
"""Runs that the queue is asked for at once."""
MAX_LOOKS = 256
"""Runs that one claim looks at before it says that there is none."""
HIDDEN_S = 60
"""Seconds until a run is looked at again whose session is deleted: it may be restored."""
_MS_US = MICROSECONDS // 1_000
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class ClaimedRun(Struct, frozen=True):
    """A run of any tenant, claimed."""

    tenant: str
    run: Run


class AsyncLeases(TenantStore):
    """The leases on one tenant's runs."""

    @writes
    async def claim(
        self,
        connection: Connection,
        holder: str,
        *,
        ttl_ms: int = 60_000,
        run_id: Id | None = None,
        agents: Sequence[str] | None = None,
    ) -> Run | None:
        """Take the run that has waited longest, of some ``agents`` or of any, or this one; ``None`` if it cannot be had now.

        The run is the holder's until the lease runs out; its ``epoch`` goes with every write. A run that was claimed
        ``max_attempts`` times in a row without a step becomes failed instead, and the next one is taken.

        Raises:
            NotFound: there is no run ``run_id`` in a live session.
        """
        taker = Taker(self._scope, holder, ttl_ms)
        if run_id is None:
            claimed = await _next(connection, taker, _searches(agents, self._scope.limits, self._scope))
            return None if claimed is None else claimed.run
        if agents is not None:
            raise InvalidInput("a claim is for one run or for some agents, not both")
        run = await lock_run(connection, self._scope, run_id)
        return await taker.take(connection, self._scope, run, is_seen=True)

    @writes
    async def renew(self, connection: Connection, run_id: Id, *, epoch: int, ttl_ms: int | None = None) -> Run:
        """Hold a run for longer: from now on as long as it was claimed for, or for ``ttl_ms``.

        Raises:
            NotFound: there is no such run in a live session.
            Fenced: somebody else has claimed the run since.
            Conflict: the caller does not hold it.
        """
        check_epoch(epoch)
        run = await lock_run(connection, self._scope, run_id)
        check_holder(run, epoch)
        lasts_ms = run.lease_ms if ttl_ms is None else checked_ttl(self._scope, ttl_ms)
        until = self._scope.clock.now_us() + lasts_ms * _MS_US
        params = self._scope.params(run_id=run.id, epoch=epoch, lease_ms=lasts_ms, lease_until_at=until)
        row = await queries.renew.one(connection, params)
        assert row is not None  # it is held
        return run_of(connection, row)

    @writes
    async def release(self, connection: Connection, run_id: Id, *, epoch: int) -> Run:
        """Hand a run over: anybody can claim it at once, and the claim that is given back does not count. Repeating it is fine.

        Raises:
            NotFound: there is no such run in a live session.
            Fenced: somebody else has claimed the run since.
            Conflict: the caller does not hold it.
        """
        check_epoch(epoch)
        run = await lock_run(connection, self._scope, run_id)
        if (run.status, run.epoch) == ("pending", epoch):
            return run
        check_holder(run, epoch)
        attempts = max(0, run.attempts - 1)
        return await move(connection, self._scope, run, "release", now_us=self._scope.clock.now_us(), attempts=attempts)


class Leases(Blocking[AsyncLeases]):
    """The leases on one tenant's runs."""

    claim = blocking(AsyncLeases.claim)
    renew = blocking(AsyncLeases.renew)
    release = blocking(AsyncLeases.release)


class AsyncRunQueue(Store):
    """The runs of all tenants that wait for somebody to drive them."""

    def __init__(self, engine: Engine, setting: scopes.Setting) -> None:
        super().__init__(engine)
        self._setting = setting

    @writes
    async def claim(
        self, connection: Connection, holder: str, *, ttl_ms: int = 60_000, agents: Sequence[str] | None = None
    ) -> ClaimedRun | None:
        """Take the run that has waited longest, whichever tenant's it is, or ``None`` if none can be had now.

        As ``claim`` of a tenant's leases. What the run is then driven with is the handle of its tenant.
        """
        taker = Taker(self._setting, holder, ttl_ms)
        return await _next(connection, taker, _searches(agents, self._setting.limits, None))


class RunQueue(Blocking[AsyncRunQueue]):
    """The runs of all tenants that wait for somebody to drive them."""

    claim = blocking(AsyncRunQueue.claim)


def judge(run: Run, *, is_seen: bool, now_us: int) -> tuple[Verdict, int]:
    """What a claim does with a run, and when it is to be looked at next."""
    if run.status in FINAL or run.status == "waiting":
        return "drop", 0
    if not is_seen:
        return "later", now_us + HIDDEN_S * MICROSECONDS
    if run.status == "pending":
        return "take", 0
    if run.pause_until is not None:
        until = to_us(run.pause_until)
        return ("take", 0) if until <= now_us else ("later", until)
    return _judge_lease(run, now_us)


def _judge_lease(run: Run, now_us: int) -> tuple[Verdict, int]:
    assert run.lease_until is not None
    until, lasts = to_us(run.lease_until), run.lease_ms * _MS_US
    # Clocks differ a little; a lease that ends a whole lease later than it can was given by a clock that is ahead.
    if now_us < until <= now_us + 2 * lasts:
        return "later", until
    if run.doubted_at is None or to_us(run.doubted_at) > now_us:
        return "doubt", now_us + lasts // 2
    sure = to_us(run.doubted_at) + lasts // 2
    return ("take", 0) if sure <= now_us else ("later", sure)


class Taker:
    """Somebody who wants a run."""

    def __init__(self, setting: scopes.Setting, holder: str, ttl_ms: int) -> None:
        self.setting = setting
        self.now_us = setting.clock.now_us()
        self._lease = lease(setting, holder, ttl_ms, self.now_us)

    async def look(self, connection: Connection, scope: scopes.Scope, run_id: str) -> Run | None:
        """Look at a run that the queue has named, and take it if it can be had."""
        params = scope.params(run_id=run_id)
        row = await queries.look.one(connection, params)
        if row is not None:
            return await self.take(connection, scope, run_of(connection, row[:-1]), is_seen=bool(row[-1]))
        if await queries.is_there.one(connection, params) is None:
            await queue.remove.all(connection, params)
        return None

    async def take(self, connection: Connection, scope: scopes.Scope, run: Run, *, is_seen: bool) -> Run | None:
        """Take a run that is held in this transaction, if it can be had; otherwise see to it that it is looked at in time."""
        verdict, at = judge(run, is_seen=is_seen, now_us=self.now_us)
        if verdict == "take":
            return await self._claim(connection, scope, run)
        if verdict == "drop":
            await queue.remove.all(connection, scope.params(run_id=run.id))
            return None
        if verdict == "doubt":
            params = scope.params(run_id=run.id, epoch=run.epoch, now_at=self.now_us)
            await queries.doubt.all(connection, params)
        await enqueue(connection, scope, run, "leased" if run.status == "running" and is_seen else "paused", at)
        return None

    async def _claim(self, connection: Connection, scope: scopes.Scope, run: Run) -> Run | None:
        now = self.now_us
        if run.attempts < run.max_attempts:
            return await move(connection, scope, run, "claim", now_us=now, attempts=run.attempts + 1, **self._lease)
        error = f"claimed {run.attempts} times in a row without a step; the last holder was {run.holder or 'nobody'}"
        gone = {"attempts": run.attempts, "stop_reason": "attempts", "error": text.escape(error)}
        await move(connection, scope, run, "give_up", now_us=now, **gone)
        return None


Search = tuple[str, str, dict[str, Any]]
"""Where in the queue to look: a condition, the index that serves it, and what it is about."""


def _searches(agents: Sequence[str] | None, limits: Limits, scope: scopes.Scope | None) -> list[Search]:
    here = {} if scope is None else scope.params()
    within = "" if scope is None else " AND tenant = :tenant_id"
    if agents is None:
        return [(within, "run_queue_by_turn" if scope is None else "run_queue_by_tenant", here)]
    if isinstance(agents, str) or not isinstance(agents, Sequence):
        raise InvalidInput("agents must be a list of names")
    limits.check("filter_values", len(agents), "agents")
    index = "run_queue_by_agent" if scope is None else "run_queue_by_tenant_agent"
    names = dict.fromkeys(scopes.name(agent, "agent", limits) for agent in agents)
    return [(f"{within} AND agent = :agent_id", index, {**here, "agent_id": name}) for name in names]


async def _next(connection: Connection, taker: Taker, searches: Sequence[Search]) -> ClaimedRun | None:
    """Go through the queue, oldest first, until a run can be had."""
    after: tuple[int, str] = (0, _FIRST_ID)
    for _ in range(MAX_LOOKS // CANDIDATES):
        found = await _candidates(connection, taker, searches, after)
        for _, run_id, tenant in found:
            scope = scopes.Scope(text.unescape(tenant), taker.setting)
            run = await taker.look(connection, scope, run_id)
            if run is not None:
                return ClaimedRun(scope.tenant, run)
        if len(found) < CANDIDATES:
            break
        after = found[-1][:2]
    return None


async def _candidates(
    connection: Connection, taker: Taker, searches: Sequence[Search], after: tuple[int, str]
) -> list[tuple[int, str, str]]:
    horizon = taker.now_us + 2 * taker.setting.limits.lease_ms * _MS_US
    at = {
        "after_at": after[0],
        "after_id": after[1],
        "now_at": taker.now_us,
        "horizon_at": horizon,
        "limit": CANDIDATES,
    }
    native = connection.dialect.native_time
    found: list[tuple[int, str, str]] = []
    for clause, index, about in searches:
        rows = await queue.peek.all(connection, {**at, **about}, clause, index)
        found += [(to_us(due) if native else due, run_id, tenant) for tenant, run_id, due in rows]
    return sorted(found)[:CANDIDATES]
