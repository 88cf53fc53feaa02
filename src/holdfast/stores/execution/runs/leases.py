"""Leases: they decide which process drives a run.

A worker *claims* a run and holds it as long as it renews the lease; each step and each intent renews it, too. A claim raises the
run's epoch, and every write carries its writer's epoch, so a previous holder can no longer write: at most one holder
acts, whatever clocks and networks do. Times only decide when a run may be taken from a holder that seems to be dead.

Because clocks jump, an expired lease is first *doubted*: the time is recorded in the run. Only if the lease is still not renewed
half a lease later is the run claimed. Therefore:

* A clock that jumps ahead, on one machine or on all, takes no run from a holder that renews its lease at least every third
  of it: the renewal arrives while the lease is only doubted, and ends the doubt.
* A clock that jumps back does not keep a dead holder's run forever: a lease that ends later than any lease may
  (``Limits.lease_ms``) is doubted like an expired one. A smaller jump prolongs the lease by as much as the clock went back.
* Two clocks that are wrong at once, by different amounts, can take a run from a living holder. That holder then gets ``Fenced``,
  and nothing is written twice.
* A dead holder's run can be claimed one and a half leases after its last renewal, and each such claim counts: after
  ``max_attempts`` claims in a row without a step the run fails, with the reason, instead of being retried forever.

The next run comes from a queue of all tenants (``run_queue.sql``), oldest first, by an index.

Runs do not use ``core/transitions.py``, because of these doubts, because of the queue of all tenants, and because a
step moves its run in the statement that stores the step.
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
    check_ttl,
    enqueue,
    lease_columns,
    lock_run,
    move,
    queries,
    queue,
    run_of,
)

Verdict = Literal["take", "doubt", "later", "drop"]

CANDIDATE_BATCH = 8
"""Runs that are read from the queue at once."""
MAX_CANDIDATES = 256
"""Runs that one claim examines before it gives up."""
HIDDEN_S = 60
"""Seconds until a run whose session is deleted is examined again: the session may be restored."""
_MS_US = MICROSECONDS // 1_000
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class ClaimedRun(Struct, frozen=True):
    """A claimed run and its tenant."""

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
        """Claim the run that has waited longest, of some ``agents`` or of any, or a given run; ``None`` if none is available.

        The holder holds the run until the lease expires; every write needs its ``epoch``. A run that was claimed ``max_attempts``
        times in a row without a step becomes failed instead, and the next one is claimed.

        Raises:
            NotFound: run ``run_id`` does not exist, or its session is deleted.
        """
        claimer = Claimer(self._scope, holder, ttl_ms)
        if run_id is None:
            claimed = await _claim_next(connection, claimer, _queue_filters(agents, self._scope.limits, self._scope))
            return None if claimed is None else claimed.run
        if agents is not None:
            raise InvalidInput("pass run_id or agents, not both", field="agents")
        run = await lock_run(connection, self._scope, run_id)
        return await claimer.try_claim(connection, self._scope, run, is_visible=True)

    @writes
    async def renew(self, connection: Connection, run_id: Id, *, epoch: int, ttl_ms: int | None = None) -> Run:
        """Extend the lease of a run: from now by the duration it was claimed for, or by ``ttl_ms``.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            Fenced: another holder has claimed the run since.
            Conflict: the caller does not hold it.
        """
        check_epoch(epoch)
        run = await lock_run(connection, self._scope, run_id)
        check_holder(run, epoch)
        duration_ms = run.lease_ms if ttl_ms is None else check_ttl(self._scope, ttl_ms)
        until = self._scope.clock.now_us() + duration_ms * _MS_US
        params = self._scope.params(run_id=run.id, epoch=epoch, lease_ms=duration_ms, lease_until_at=until)
        row = await queries.renew.one(connection, params)
        assert row is not None  # the run is locked
        return run_of(connection, row)

    @writes
    async def release(self, connection: Connection, run_id: Id, *, epoch: int) -> Run:
        """Release a run: it can be claimed at once, and the released claim does not count as an attempt. Can be repeated.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            Fenced: another holder has claimed the run since.
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
    """The runs of all tenants that wait to be claimed."""

    def __init__(self, engine: Engine, setting: scopes.Setting) -> None:
        super().__init__(engine)
        self._setting = setting

    @writes
    async def claim(
        self, connection: Connection, holder: str, *, ttl_ms: int = 60_000, agents: Sequence[str] | None = None
    ) -> ClaimedRun | None:
        """Claim the run that has waited longest, of any tenant, or return ``None`` if none is available.

        The same rules apply as for ``claim`` of a tenant's leases. Drive the run with the handle of its tenant.
        """
        claimer = Claimer(self._setting, holder, ttl_ms)
        return await _claim_next(connection, claimer, _queue_filters(agents, self._setting.limits, None))


class RunQueue(Blocking[AsyncRunQueue]):
    """The runs of all tenants that wait to be claimed."""

    claim = blocking(AsyncRunQueue.claim)


def judge(run: Run, *, is_visible: bool, now_us: int) -> tuple[Verdict, int]:
    """Return what a claim does with a run, and when the run must be examined again."""
    if run.status in FINAL or run.status == "waiting":
        return "drop", 0
    if not is_visible:
        return "later", now_us + HIDDEN_S * MICROSECONDS
    if run.status == "pending":
        return "take", 0
    if run.pause_until is not None:
        until = to_us(run.pause_until)
        return ("take", 0) if until <= now_us else ("later", until)
    return _judge_lease(run, now_us)


def _judge_lease(run: Run, now_us: int) -> tuple[Verdict, int]:
    assert run.lease_until is not None
    until, duration = to_us(run.lease_until), run.lease_ms * _MS_US
    # Clocks differ a little; a lease that ends later than two of its durations was written by a clock that is ahead.
    if now_us < until <= now_us + 2 * duration:
        return "later", until
    if run.doubted_at is None or to_us(run.doubted_at) > now_us:
        return "doubt", now_us + duration // 2
    doubt_ends = to_us(run.doubted_at) + duration // 2
    return ("take", 0) if doubt_ends <= now_us else ("later", doubt_ends)


class Claimer:
    """A prospective holder of a run."""

    def __init__(self, setting: scopes.Setting, holder: str, ttl_ms: int) -> None:
        self.setting = setting
        self.now_us = setting.clock.now_us()
        self._lease = lease_columns(setting, holder, ttl_ms, self.now_us)

    async def try_queued(self, connection: Connection, scope: scopes.Scope, run_id: str) -> Run | None:
        """Lock a run from the queue and claim it if it is available; skip a run that another transaction has locked."""
        params = scope.params(run_id=run_id)
        row = await queries.look.one(connection, params)
        if row is not None:
            return await self.try_claim(connection, scope, run_of(connection, row[:-1]), is_visible=bool(row[-1]))
        if await queries.is_there.one(connection, params) is None:
            await queue.remove.all(connection, params)
        return None

    async def try_claim(self, connection: Connection, scope: scopes.Scope, run: Run, *, is_visible: bool) -> Run | None:
        """Claim a run that this transaction has locked, if it is available; otherwise queue it for the right time."""
        verdict, at = judge(run, is_visible=is_visible, now_us=self.now_us)
        if verdict == "take":
            return await self._claim(connection, scope, run)
        if verdict == "drop":
            await queue.remove.all(connection, scope.params(run_id=run.id))
            return None
        if verdict == "doubt":
            params = scope.params(run_id=run.id, epoch=run.epoch, now_at=self.now_us)
            await queries.doubt.all(connection, params)
        await enqueue(connection, scope, run, "leased" if run.status == "running" and is_visible else "paused", at)
        return None

    async def _claim(self, connection: Connection, scope: scopes.Scope, run: Run) -> Run | None:
        now = self.now_us
        if run.attempts < run.max_attempts:
            return await move(connection, scope, run, "claim", now_us=now, attempts=run.attempts + 1, **self._lease)
        error = f"claimed {run.attempts} times in a row without a step; the last holder was {run.holder or 'unknown'}"
        changes = {"attempts": run.attempts, "stop_reason": "attempts", "error": text.escape(error)}
        await move(connection, scope, run, "give_up", now_us=now, **changes)
        return None


QueueFilter = tuple[str, str, dict[str, Any]]
"""A part of the queue: its condition, the index to use, and the parameters."""


def _queue_filters(agents: Sequence[str] | None, limits: Limits, scope: scopes.Scope | None) -> list[QueueFilter]:
    tenant_params = {} if scope is None else scope.params()
    tenant_clause = "" if scope is None else " AND tenant = :tenant_id"
    if agents is None:
        return [(tenant_clause, "run_queue_by_turn" if scope is None else "run_queue_by_tenant", tenant_params)]
    if isinstance(agents, str) or not isinstance(agents, Sequence):
        raise InvalidInput(f"agents must be a list of names, not {agents!r}", field="agents")
    limits.check("filter_values", len(agents), "agents")
    index = "run_queue_by_agent" if scope is None else "run_queue_by_tenant_agent"
    names = dict.fromkeys(scopes.name(agent, "agent", limits) for agent in agents)
    return [(f"{tenant_clause} AND agent = :agent_id", index, {**tenant_params, "agent_id": name}) for name in names]


async def _claim_next(connection: Connection, claimer: Claimer, filters: Sequence[QueueFilter]) -> ClaimedRun | None:
    """Go through the queue, oldest first, and claim the first run that is available."""
    after: tuple[int, str] = (0, _FIRST_ID)
    for _ in range(MAX_CANDIDATES // CANDIDATE_BATCH):
        candidates = await _candidates(connection, claimer, filters, after)
        for _, run_id, tenant in candidates:
            scope = scopes.Scope(text.unescape(tenant), claimer.setting)
            run = await claimer.try_queued(connection, scope, run_id)
            if run is not None:
                return ClaimedRun(scope.tenant, run)
        if len(candidates) < CANDIDATE_BATCH:
            break
        after = candidates[-1][:2]
    return None


async def _candidates(
    connection: Connection, claimer: Claimer, filters: Sequence[QueueFilter], after: tuple[int, str]
) -> list[tuple[int, str, str]]:
    """Read the next queue entries of all filters together, oldest first: due time, run id and tenant."""
    horizon = claimer.now_us + 2 * claimer.setting.limits.lease_ms * _MS_US
    params = {
        "after_at": after[0],
        "after_id": after[1],
        "now_at": claimer.now_us,
        "horizon_at": horizon,
        "limit": CANDIDATE_BATCH,
    }
    is_native = connection.dialect.native_time
    candidates: list[tuple[int, str, str]] = []
    for clause, index, filter_params in filters:
        rows = await queue.peek.all(connection, {**params, **filter_params}, clause, index)
        candidates += [(to_us(due) if is_native else due, run_id, tenant) for tenant, run_id, due in rows]
    return sorted(candidates)[:CANDIDATE_BATCH]
