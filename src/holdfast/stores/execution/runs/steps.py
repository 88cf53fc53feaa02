"""Reads steps, the committed iterations of a run. ``runs.step`` commits them."""

from __future__ import annotations

from typing import Any

from ....core.blocking import Blocking, blocking
from ....core.checks import whole_number
from ....core.paging import Page, decode_cursor, encode_cursor, page, rows_to_read
from ....core.rows import mapper
from ....core.store import TenantStore, reads
from ....engines.protocol import Connection
from ....errors import NotFound
from ....ids import Id
from ....ids import parse as parse_id
from . import states
from .step_log import Step, find_step, queries

_END = 2**62
"""An iteration above every other."""


class AsyncSteps(TenantStore):
    """The steps of one tenant's runs."""

    @reads
    async def get(self, connection: Connection, run_id: Id, iteration: int) -> Step:
        """Return one step.

        Raises:
            NotFound: the run or the step does not exist, or the session is deleted.
        """
        params = await self._run_params(connection, run_id)
        step = await find_step(connection, {**params, "iteration": _iteration(iteration)})
        if step is None:
            raise NotFound(f"run {run_id} has no step {iteration}", noun="step", key=str(iteration))
        return step

    @reads
    async def list(
        self,
        connection: Connection,
        run_id: Id,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Step]:
        """List the steps of a run in order, or from the last one with ``newest_first``. With ``limit``, one page.

        Raises:
            NotFound: the run does not exist, or its session is deleted.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        listing = "steps-newest" if newest_first else "steps"
        (start,) = decode_cursor(cursor, listing, int) if cursor is not None else (_END if newest_first else 0,)
        params = {
            **await self._run_params(connection, run_id),
            "limit": rows_to_read(limit, limits),
            "after": start,
            "before": start,
        }
        query = queries.list_newest if newest_first else queries.list
        steps = mapper(Step, connection.dialect)(await query.all(connection, params))
        return page(steps, limit, limits, "steps", lambda last: encode_cursor(listing, last.iteration))

    async def _run_params(self, connection: Connection, run_id: str) -> dict[str, Any]:
        params = self._scope.params(run_id=parse_id(run_id, "run id"))
        if await states.queries.get.one(connection, params) is None:
            raise states.run_not_found(run_id)
        return params


class Steps(Blocking[AsyncSteps]):
    """The steps of one tenant's runs."""

    get = blocking(AsyncSteps.get)
    list = blocking(AsyncSteps.list)


def _iteration(value: int) -> int:
    return whole_number(value, "iteration", maximum=_END - 1)
