"""Retention: how many snapshots are kept and for how long, and holds, which keep snapshots regardless of the rules.

``workspace.retention_rules`` defines the rules and ``sweeps`` applies them. This store sets policies, places holds,
and starts sweeps.
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
    """Retention of one tenant's snapshots."""

    @reads
    async def policy(self, connection: Connection, *, run_id: Id | None = None) -> RetentionPolicy:
        """Return the effective policy of the tenant, or of one of its runs.

        Raises:
            NotFound: the run does not exist.
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
        """Set how many snapshots are kept for each run, or for one run, and for how long after runs end.

        Omitted arguments stay unchanged. The quota is not set by the tenant itself: see ``tenants.set_quota``.

        Raises:
            InvalidInput: neither number is given, one is invalid, or ``grace_s`` is given for one run.
            NotFound: the run does not exist.
        """
        change = PolicyChange(_number(per_run, "per_run", 1), _number(grace_s, "grace_s", 0))
        if change == PolicyChange():
            raise InvalidInput("per_run or grace_s is required", field="per_run")
        if run_id is not None and grace_s is not None:
            raise InvalidInput(
                "grace_s cannot be set for one run: use keep_snapshots_for to keep its snapshots longer",
                field="grace_s",
            )
        return await self._change(connection, acting, change, run_id)

    @writes_with_actor
    async def clear_policy(
        self, connection: Connection, acting: ActorContext, *, run_id: Id | None = None
    ) -> RetentionPolicy:
        """Remove the policy of the tenant, or of one of its runs, so that the defaults apply.

        Raises:
            NotFound: the run does not exist.
        """
        id = None if run_id is None else parse_id(run_id, "run id")
        await self._check_subject(connection, id)
        query = queries.clear_policy if id is None else queries.clear_run_policy
        await query.all(connection, self._scope.params(run_id=id))
        await self._note(connection, "retention.policy_cleared", acting, id)
        return await self._effective(connection, id)

    @writes_with_actor
    async def keep_snapshots_for(
        self, connection: Connection, acting: ActorContext, run_id: Id, *, seconds: int
    ) -> RetentionPolicy:
        """Keep a run's snapshots for ``seconds`` after its end, if that is longer than the grace period; 90 days at
        most.

        Raises:
            InvalidInput: ``seconds`` is not a non-negative integer.
            NotFound: the run does not exist.
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

        From the moment this returns, no rule removes them, and neither does the erasure of the tenant; except that an
        erasure releases holds that the tenant placed itself (``by_tenant``).

        Raises:
            InvalidInput: no reason is given, or both a run and a session.
            NotFound: the run or session does not exist.
            Conflict: another hold has this id, or the hold is the tenant's own and the tenant is to be erased.
        """
        if run_id is not None and session_id is not None:
            raise InvalidInput("a hold takes a run_id or a session_id, not both", field="session_id")
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
        await self._check_subject(connection, params["run_id"], params["session_id"])
        await rules.lock(connection, self._scope)
        if by_tenant and await queries.erasure_is_open.one(connection, params) is not None:
            raise Conflict(
                f"tenant {self._scope.tenant!r} is to be erased: only an operator can place a hold on it",
                reason="to_be_erased",
            )
        row = await queries.place.one(connection, params)
        if row is None:
            return _check_same(await self._get(connection, params["id"]), run_id, session_id, reason)
        placed = _hold(connection, row)
        await self._note_hold(connection, "hold.placed", placed, placed.placed_by)
        return placed

    @writes_with_actor
    async def release(self, connection: Connection, acting: ActorContext, hold_id: Id, *, reason: str = "") -> Hold:
        """Release a hold. The snapshots it kept are removed when the rules say so.

        Raises:
            NotFound: the hold does not exist.
        """
        await rules.lock(connection, self._scope)
        row = await queries.release.one(connection, self._scope.params(id=parse_id(hold_id, "hold id")))
        if row is None:
            raise NotFound(f"hold {hold_id} does not exist", noun="hold", key=hold_id)
        released = _hold(connection, row)
        await self._note_hold(connection, "hold.released", released, acting.user or "", reason)
        return released

    @reads
    async def holds(self, connection: Connection, *, limit: int | None = None, cursor: str | None = None) -> Page[Hold]:
        """List holds, the oldest first. With ``limit``, return a page.

        Raises:
            InvalidFilter: the cursor belongs to another list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        (after,) = decode_cursor(cursor, "holds", str) if cursor is not None else (_FIRST_ID,)
        params = self._scope.params(after_id=parse_id(after, "cursor"), limit=rows_to_read(limit, limits))
        holds = mapper(Hold, connection.dialect)(await queries.holds.all(connection, params))
        return page(holds, limit, limits, "holds", lambda last: encode_cursor("holds", last.id))

    @only_reads
    async def plan(self) -> SweepResult:
        """Return what a sweep would remove now, counted exactly. Nothing is changed."""
        return await RetentionPlan(self._engine, self._scope).make()

    @in_steps
    async def sweep(self, *, holder: str | None = None, idle_s: int = 0) -> SweepResult:
        """Remove snapshots by the rules, in small transactions. The next sweep resumes one that was interrupted.

        Raises:
            InvalidInput: ``idle_s`` is not a non-negative integer.
            Conflict: another process is sweeping this tenant, or did so less than ``idle_s`` seconds ago.
            Fenced: another process has taken over.
            CrossTenant: a file of another tenant would have been removed; it was not.
            Unavailable: the storage of packs cannot be reached; the next sweep does the rest.
        """
        _number(idle_s, "idle_s", 0)
        if await self._engine.read(self._is_missing):
            return SweepResult()
        sweep = Sweep(self._engine, self._scope)
        await sweep.claim(f"sweep {self._scope.ids.new()}" if holder is None else holder, idle_s=idle_s)
        try:
            return await sweep.carry_out()
        finally:
            await sweep.release()

    async def _is_missing(self, connection: Connection) -> bool:
        """Return whether the tenant does not exist: a mistyped name must not create one."""
        return await queries.tenant_is_there.one(connection, self._scope.params()) is None

    async def _change(
        self, connection: Connection, acting: ActorContext, change: PolicyChange, run_id: str | None
    ) -> RetentionPolicy:
        id = None if run_id is None else parse_id(run_id, "run id")
        await self._check_subject(connection, id)
        await rules.set_policy(connection, self._scope, change, id)
        await self._note(connection, "retention.policy_set", acting, id, change)
        return await self._effective(connection, id)

    async def _effective(self, connection: Connection, run_id: str | None) -> RetentionPolicy:
        return await rules.effective_policy(connection, self._scope, run_id)

    async def _check_subject(self, connection: Connection, run_id: str | None, session_id: str | None = None) -> None:
        params = self._scope.params(run_id=run_id, session_id=session_id)
        if run_id is not None and await states.queries.is_there.one(connection, params) is None:
            raise states.run_not_found(run_id)
        if session_id is not None and await queries.session_is_there.one(connection, params) is None:
            raise NotFound(f"session {session_id} does not exist", noun="session", key=session_id)

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
    """Retention of one tenant's snapshots."""

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


def _check_same(hold: Hold, run_id: str | None, session_id: str | None, reason: str) -> Hold:
    expected = [None if subject_id is None else parse_id(subject_id) for subject_id in (run_id, session_id)]
    if [hold.run_id, hold.session_id] != expected or hold.reason != reason:
        raise Conflict(f"hold {hold.id} already exists with another reason, run or session", reason="other_content")
    return hold


def _number(value: int | None, what: str, minimum: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value < _MAX_NUMBER:
        raise InvalidInput(f"{what} must be an integer of at least {minimum}, not {value!r}", field=what)
    return value
