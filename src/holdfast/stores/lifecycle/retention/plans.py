"""Dry runs of a sweep: the same decisions without any change.

A sweep keeps no state, so its remaining work can be computed from the stored rows at any time, by the same rules.
"""

from __future__ import annotations

from msgspec import structs

from ....core.scope import Scope
from ....engines.protocol import Engine
from ...workspace import retention_rules as rules
from ...workspace.retention_rules import Reason, RetentionPolicy, RunSnapshots
from . import quota
from .sweeps import SweepResult, next_page, runs_after

_FIRST_ID = "00000000-0000-0000-0000-000000000000"
_ALL = 2**31 - 1


class RetentionPlan:
    """The plan of one sweep, built page by page. It keeps the ids of the snapshots that would be removed."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._removed_ids: list[str] = []
        self._result = SweepResult()

    async def make(self) -> SweepResult:
        """Return the exact counts of what a sweep would remove."""
        after: str | None = _FIRST_ID
        while after is not None:
            page, policy = await runs_after(self._engine, self._scope, after)
            for run in page:
                await self._plan_run(run, policy)
            after = next_page(page)
        return await self._fit_quota()

    async def _plan_run(self, run: RunSnapshots, policy: RetentionPolicy) -> None:
        if run.is_held:
            self._result = structs.replace(self._result, held_runs=self._result.held_runs + 1)
            return
        verdict = rules.decide(policy, run, self._scope)
        if verdict is not None:
            reason, excess = verdict
            params = self._scope.params(run_id=run.run_id, excess=excess, limit=excess)
            rows = await self._engine.read(lambda connection: rules.queries.oldest_of_run.all(connection, params))
            self._count(reason, [(row[0], int(row[1])) for row in rows])

    async def _fit_quota(self) -> SweepResult:
        """Add what would be removed to fit into the quota, once the other snapshots are gone."""
        usage = await quota.measure(self._engine, self._scope, without=self._removed_ids)
        if usage is None:
            return self._result
        if usage.cut is not None:
            removed = await quota.removable(self._engine, self._scope, usage.cut, _ALL, without=self._removed_ids)
            self._count("per_tenant_cap", [*removed])
        return structs.replace(self._result, used_bytes=usage.used_bytes, over_bytes=usage.over_bytes)

    def _count(self, reason: Reason, removed: list[tuple[str, int]]) -> None:
        self._removed_ids += [id for id, _ in removed]
        self._result = self._result.with_removed(reason, len(removed), sum(size for _, size in removed))
