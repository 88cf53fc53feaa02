"""What a sweep would do now: the same decisions, and nothing is changed."""

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
    """The plan of one sweep, made page by page. It remembers the ids of what would go."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._gone: list[str] = []
        self._found = SweepResult()

    async def make(self) -> SweepResult:
        """What would be removed, counted exactly."""
        after: str | None = _FIRST_ID
        while after is not None:
            page, policy = await runs_after(self._engine, self._scope, after)
            for run in page:
                await self._look_at(run, policy)
            after = next_page(page)
        return await self._make_room()

    async def _look_at(self, run: RunSnapshots, policy: RetentionPolicy) -> None:
        if run.is_held:
            self._found = structs.replace(self._found, held_runs=self._found.held_runs + 1)
            return
        verdict = rules.decide(policy, run, self._scope)
        if verdict is not None:
            reason, excess = verdict
            params = self._scope.params(run_id=run.run_id, excess=excess, limit=excess)
            rows = await self._engine.read(lambda connection: rules.queries.oldest_of_run.all(connection, params))
            self._note(reason, [(row[0], int(row[1])) for row in rows])

    async def _make_room(self) -> SweepResult:
        """The rest of the plan: what would go to make room, when the others are gone."""
        found = await quota.measure(self._engine, self._scope, without=self._gone)
        if found is None:
            return self._found
        if found.cut is not None:
            gone = await quota.removable(self._engine, self._scope, found.cut, _ALL, without=self._gone)
            self._note("per_tenant_cap", [*gone])
        return structs.replace(self._found, used_bytes=found.used_bytes, over_bytes=found.over_bytes)

    def _note(self, reason: Reason, found: list[tuple[str, int]]) -> None:
        self._gone += [id for id, _ in found]
        self._found = self._found.noting(reason, len(found), sum(size for _, size in found))
