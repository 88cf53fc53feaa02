"""Steps: the committed iterations of a run, to look at. They are made by ``runs.step``."""

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

_MOST = 2**62


class AsyncSteps(TenantStore):
    """The steps of one tenant's runs."""

    @reads
    async def get(self, connection: Connection, run_id: Id, iteration: int) -> Step:
        """One step.

        Raises:
            NotFound: there is none.
        """
        params = await self._seen(connection, run_id)
        found = await find_step(connection, {**params, "iteration": _number(iteration)})
        if found is None:
            raise NotFound(f"run {run_id} has no step {iteration}")
        return found

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
        """The steps of a run in their order, or from the last one with ``newest_first``. With ``limit``, a page.

        Raises:
            NotFound: there is no such run in a live session.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        listing = "steps-newest" if newest_first else "steps"
        (at,) = decode_cursor(cursor, listing, int) if cursor is not None else (_MOST if newest_first else 0,)
        params = {
            **await self._seen(connection, run_id),
            "limit": rows_to_read(limit, limits),
            "after": at,
            "before": at,
        }
        query = queries.list_newest if newest_first else queries.list
        steps = mapper(Step, connection.dialect)(await query.all(connection, params))
        return page(steps, limit, limits, "steps", lambda last: encode_cursor(listing, last.iteration))

    async def _seen(self, connection: Connection, run_id: str) -> dict[str, Any]:
        params = self._scope.params(run_id=parse_id(run_id, "run id"))
        if await states.queries.get.one(connection, params) is None:
            raise states.missing(run_id)
        return params


class Steps(Blocking[AsyncSteps]):
    """The steps of one tenant's runs."""

    get = blocking(AsyncSteps.get)
    list = blocking(AsyncSteps.list)


def _number(iteration: int) -> int:
    return whole_number(iteration, "iteration", maximum=_MOST - 1)
