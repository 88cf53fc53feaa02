"""Retention: how many snapshots are kept and for how long, and what must be kept whatever the rules say.

``rules`` says what the rules are, ``sweeps`` how they are carried out. Here they are set, held up, looked at and set going.
"""

from __future__ import annotations

from ....core import scope as scopes
from ....core.actor_context import ActorContext
from ....core.blocking import Blocking, blocking
from ....core.paging import Page, decode_cursor, encode_cursor, page, rows_to_read
from ....core.registration import register_tenant
from ....core.rows import mapper
from ....core.store import TenantStore, in_steps, only_reads, reads, writes_with_actor
from ....engines.protocol import Connection, Row
from ....errors import Conflict, InvalidInput, NotFound
from ....ids import Id
from ....ids import parse as parse_id
from ...execution.runs import states
from ...objects import activity
from ...workspace import retention_rules as rules
from ...workspace.retention_rules import Hold, PolicyChange, RetentionPolicy
from .plans import RetentionPlan
from .quota import queries
from .sweeps import Sweep, SweepResult

_MAX_NUMBER = 2**31
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class AsyncRetention(TenantStore):
    """How long one tenant's snapshots are kept."""

    @reads
    async def policy(self, connection: Connection, *, run_id: Id | None = None) -> RetentionPolicy:
        """What holds for the tenant, or for one of its runs.

        Raises:
            NotFound: there is no such run.
        """
        return await self._effective(connection, None if run_id is None else parse_id(run_id, "run id"))

    @writes_with_actor
    async def set_policy(
        self,
        connection: Connection,
        acting: ActorContext,
        *,
        per_run: int | None = None,
        grace_s: int | None = None,
        run_id: Id | None = None,
    ) -> RetentionPolicy:
        """Keep another number of snapshots for each run, or for one run, or keep them for longer or shorter after runs end.

        What is not given stays as it is. The quota of a tenant is not its own to set: see ``tenants.set_quota``.

        Raises:
            InvalidInput: nothing is given, a number cannot be used, or ``grace_s`` is given for one run.
            NotFound: there is no such run.
        """
        change = PolicyChange(_number(per_run, "per_run", 1), _number(grace_s, "grace_s", 0))
        if change == PolicyChange():
            raise InvalidInput("say what is to be kept: per_run= or grace_s=")
        if run_id is not None and grace_s is not None:
            raise InvalidInput("the grace of one run is made longer with keep_snapshots_for")
        return await self._change(connection, acting, change, run_id)

    @writes_with_actor
    async def clear_policy(
        self, connection: Connection, acting: ActorContext, *, run_id: Id | None = None
    ) -> RetentionPolicy:
        """Take back what was set for the tenant, or for one of its runs.

        Raises:
            NotFound: there is no such run.
        """
        id = None if run_id is None else parse_id(run_id, "run id")
        await self._must_be_there(connection, id)
        query = queries.clear_policy if id is None else queries.clear_run_policy
        await query.all(connection, self._scope.params(run_id=id))
        await self._note(connection, "retention.policy_cleared", acting, id)
        return await self._effective(connection, id)

    @writes_with_actor
    async def keep_snapshots_for(
        self, connection: Connection, acting: ActorContext, run_id: Id, *, seconds: int
    ) -> RetentionPolicy:
        """Keep a run's snapshots for so long after its end, if that is longer than the grace; 90 days at most, more is cut down.

        Raises:
            InvalidInput: it is no number of seconds from 0 on.
            NotFound: there is no such run.
        """
        return await rules.keep_for(connection, self._scope, run_id, seconds, actor=acting.user or "")

    @writes_with_actor
    async def hold(
        self,
        connection: Connection,
        acting: ActorContext,
        reason: str,
        *,
        run_id: Id | None = None,
        session_id: Id | None = None,
        placed_by: str | None = None,
        by_tenant: bool = False,
        id: str | None = None,
    ) -> Hold:
        """Keep all snapshots of a run, of a session, or, without either, of the tenant, until the hold is released.

        From the moment this returns, no rule removes them, and neither does the erasure of the tenant; unless the hold is the
        tenant's own (``by_tenant``), which an erasure releases.

        Raises:
            InvalidInput: no reason is given, or both a run and a session.
            NotFound: there is no such run or session.
            Conflict: there is another hold under this id, or it is the tenant's own and the tenant is to be erased.
        """
        if run_id is not None and session_id is not None:
            raise InvalidInput("a hold is on a run or on a session, not on both")
        limits = self._scope.limits
        params = self._scope.params(
            id=self._scope.ids.new() if id is None else parse_id(id, "hold id"),
            run_id=None if run_id is None else parse_id(run_id, "run id"),
            session_id=None if session_id is None else parse_id(session_id, "session id"),
            reason=scopes.name(reason, "reason", limits, limit="text_bytes"),
            placed_by=scopes.free_text(placed_by or acting.user or "", "placed_by", limits, limit="name_bytes"),
            by_tenant=by_tenant,
            now_at=self._scope.clock.now_us(),
        )
        await register_tenant(connection, params)
        await self._must_be_there(connection, params["run_id"], params["session_id"])
        await rules.lock(connection, self._scope)
        if by_tenant and await queries.erasure_is_open.one(connection, params) is not None:
            raise Conflict(f"the tenant {self._scope.tenant!r} is to be erased: only an operator can hold what it has")
        row = await queries.place.one(connection, params)
        if row is None:
            return _same(await self._get(connection, params["id"]), run_id, session_id, reason)
        placed = _hold(connection, row)
        await self._note_hold(connection, "hold.placed", placed, placed.placed_by)
        return placed

    @writes_with_actor
    async def release(self, connection: Connection, acting: ActorContext, hold_id: Id, *, reason: str = "") -> Hold:
        """End a hold. What it held goes when the rules say so.

        Raises:
            NotFound: there is no such hold.
        """
        await rules.lock(connection, self._scope)
        row = await queries.release.one(connection, self._scope.params(id=parse_id(hold_id, "hold id")))
        if row is None:
            raise NotFound(f"there is no hold {hold_id} here")
        released = _hold(connection, row)
        await self._note_hold(connection, "hold.released", released, acting.user or "", reason)
        return released

    @reads
    async def holds(self, connection: Connection, *, limit: int | None = None, cursor: str | None = None) -> Page[Hold]:
        """The holds there are, the oldest first. With ``limit``, a page.

        Raises:
            InvalidFilter: the cursor is not of this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        (after,) = decode_cursor(cursor, "holds", str) if cursor is not None else (_FIRST_ID,)
        params = self._scope.params(after_id=parse_id(after, "cursor"), limit=rows_to_read(limit, limits))
        found = mapper(Hold, connection.dialect)(await queries.holds.all(connection, params))
        return page(found, limit, limits, "holds", lambda last: encode_cursor("holds", last.id))

    @only_reads
    async def plan(self) -> SweepResult:
        """What a sweep would do now, counted exactly. Nothing is changed."""
        return await RetentionPlan(self._engine, self._scope).make()

    @in_steps
    async def sweep(self, *, holder: str | None = None, idle_s: int = 0) -> SweepResult:
        """Remove what must go by the rules, in small transactions. One that was broken off is gone on with by the next.

        Raises:
            InvalidInput: ``idle_s`` is no number of seconds.
            Conflict: somebody else is sweeping this tenant, or has done so less than ``idle_s`` seconds ago.
            Fenced: somebody else has taken over.
            CrossTenant: a file would have been removed that is not the tenant's; it was not.
            Unavailable: the place where packs are kept cannot be reached; what is left to do is done by the next sweep.
        """
        _number(idle_s, "idle_s", 0)
        if await self._engine.read(self._is_nobody):
            return SweepResult()
        sweep = Sweep(self._engine, self._scope)
        await sweep.claim(f"sweep {self._scope.ids.new()}" if holder is None else holder, idle_s=idle_s)
        try:
            return await sweep.carry_out()
        finally:
            await sweep.release()

    async def _is_nobody(self, connection: Connection) -> bool:
        """Whether there is no such tenant: whoever mistypes a name must not make one."""
        return await queries.tenant_is_there.one(connection, self._scope.params()) is None

    async def _change(
        self, connection: Connection, acting: ActorContext, change: PolicyChange, run_id: str | None
    ) -> RetentionPolicy:
        id = None if run_id is None else parse_id(run_id, "run id")
        await self._must_be_there(connection, id)
        await rules.set_policy(connection, self._scope, change, id)
        await self._note(connection, "retention.policy_set", acting, id, change)
        return await self._effective(connection, id)

    async def _effective(self, connection: Connection, run_id: str | None) -> RetentionPolicy:
        return await rules.effective_policy(connection, self._scope, run_id)

    async def _must_be_there(self, connection: Connection, run_id: str | None, session_id: str | None = None) -> None:
        params = self._scope.params(run_id=run_id, session_id=session_id)
        if run_id is not None and await states.queries.is_there.one(connection, params) is None:
            raise states.run_not_found(run_id)
        if session_id is not None and await queries.session_is_there.one(connection, params) is None:
            raise NotFound(f"there is no session {session_id} here")

    async def _get(self, connection: Connection, hold_id: str) -> Hold:
        row = await queries.get_hold.one(connection, self._scope.params(id=hold_id))
        assert row is not None
        return _hold(connection, row)

    async def _note(
        self,
        connection: Connection,
        action: str,
        acting: ActorContext,
        run_id: str | None,
        change: PolicyChange | None = None,
    ) -> None:
        await rules.note_policy(connection, self._scope, action, acting.user or "", run_id, change)

    async def _note_hold(
        self, connection: Connection, action: str, hold: Hold, actor: str, reason: str | None = None
    ) -> None:
        deed = rules.hold_deed(action, hold, actor, hold.reason if reason is None else reason)
        await activity.record_all(connection, self._scope, [deed])


class Retention(Blocking[AsyncRetention]):
    """How long one tenant's snapshots are kept."""

    policy = blocking(AsyncRetention.policy)
    set_policy = blocking(AsyncRetention.set_policy)
    clear_policy = blocking(AsyncRetention.clear_policy)
    keep_snapshots_for = blocking(AsyncRetention.keep_snapshots_for)
    hold = blocking(AsyncRetention.hold)
    release = blocking(AsyncRetention.release)
    holds = blocking(AsyncRetention.holds)
    plan = blocking(AsyncRetention.plan)
    sweep = blocking(AsyncRetention.sweep)


def _hold(connection: Connection, row: Row) -> Hold:
    return mapper(Hold, connection.dialect)([row])[0]


def _same(there: Hold, run_id: str | None, session_id: str | None, reason: str) -> Hold:
    wanted = [None if each is None else parse_id(each) for each in (run_id, session_id)]
    if [there.run_id, there.session_id] != wanted or there.reason != reason:
        raise Conflict(f"there is another hold under the id {there.id}")
    return there


def _number(value: int | None, what: str, least: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < _MAX_NUMBER:
        raise InvalidInput(f"{what} must be a whole number from {least} on, not {value!r}")
    return value
