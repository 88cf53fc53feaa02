"""The rules by which snapshots go, and the line that says that one went.

* No run keeps more than its newest few (``per_run_cap``): looked at when one is captured, and by every sweep.
* What belongs to a run that has ended goes when its grace is over (``grace_expired``). The grace can be made longer for a run, up
  to ``snapshot_keep_s``.
* All snapshots of a tenant take no more than its quota (``per_tenant_cap``): the oldest go first, whatever run they belong to,
  but never the newest one of a run. If those alone take more, the tenant is over its quota and a sweep says so.
* A tenant that is erased keeps nothing (``erasure``).

What is held stays, whatever the rules say, and so does what a rewind that is under way needs. This module decides and removes
nothing; who removes does so in the transaction in which it was decided, after ``lock``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

from msgspec import Struct

from ...clock import MICROSECONDS, to_us
from ...compatibility import USER_FIELD
from ...core.queries import Queries
from ...core.registration import register_tenant
from ...core.scope import Scope
from ...core.session_dependents import SessionDependent
from ...engines.protocol import Connection, Row
from ...errors import Conflict, InvalidInput
from ...ids import Id
from ...ids import parse as parse_id
from ..execution.runs import states
from ..execution.runs.states import Run
from ..objects import activity
from ..objects.activity import NewActivity

Reason = Literal["per_run_cap", "per_tenant_cap", "grace_expired", "erasure"]
EVENT = "checkpoint.deleted"
LOGGER = "holdfast.retention"
SWEEPER = "holdfast.sweeper"
MIB = 1024 * 1024


class RetentionPolicy(Struct, frozen=True):
    """What holds for a tenant, or for one of its runs."""

    per_run: int
    """Snapshots that a run keeps."""
    quota_mib: int
    """MiB of stored bytes that all snapshots of the tenant may take."""
    grace_s: int
    """Seconds for which snapshots are kept after their run has ended."""


class Hold(Struct, frozen=True):
    """What must be kept: a run's snapshots, a session's, or, where neither is named, all of the tenant's."""

    id: Id
    run_id: Id | None
    session_id: Id | None
    reason: str
    placed_by: str
    by_tenant: bool
    """Whether the tenant's own key placed it: such a hold does not keep the tenant from being erased."""
    created_at: datetime


class RunSnapshots(Struct, frozen=True):
    """A run, and what decides about its snapshots."""

    run_id: str
    count: int
    finished_us: int | None
    per_run: int | None
    keep_s: int | None
    is_held: bool


class PolicyChange(Struct, frozen=True):
    """What a policy is changed to; what is not given stays."""

    per_run: int | None = None
    grace_s: int | None = None
    keep_s: int | None = None


class RemovedSnapshot(Protocol):
    """A snapshot that was removed."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def run_id(self) -> str:
        """Whose it was."""

    @property
    def size_bytes(self) -> int:
        """What was stored for it."""


queries = Queries(__package__, "retention_rules.sql", Hold)


async def policy_of(connection: Connection, scope: Scope) -> RetentionPolicy:
    """What holds for a tenant: what was set for it, what was set for all tenants, and the limits where nothing was."""
    row = await queries.policy.one(connection, scope.params())
    assert row is not None
    per_run, grace_s, quota_mib, for_all = row
    limits = scope.limits
    default = limits.snapshots_per_run if for_all is None else int(for_all)
    return RetentionPolicy(
        default if per_run is None else per_run,
        limits.snapshot_quota_mib if quota_mib is None else quota_mib,
        limits.snapshot_grace_s if grace_s is None else grace_s,
    )


def of_run(policy: RetentionPolicy, run: RunSnapshots, scope: Scope) -> RetentionPolicy:
    """What holds for a run: its own number, and a grace that is never shorter than the tenant's."""
    keep_s = min(run.keep_s or 0, scope.limits.snapshot_keep_s)
    return RetentionPolicy(run.per_run or policy.per_run, policy.quota_mib, max(policy.grace_s, keep_s))


def decide(policy: RetentionPolicy, run: RunSnapshots, scope: Scope) -> tuple[Reason, int] | None:
    """How many of a run's oldest snapshots must go and why, or ``None``."""
    if run.is_held or not run.count:
        return None
    own = of_run(policy, run, scope)
    if run.finished_us is not None and run.finished_us + own.grace_s * MICROSECONDS <= scope.clock.now_us():
        return "grace_expired", run.count
    return ("per_run_cap", run.count - own.per_run) if run.count > own.per_run else None


async def run_snapshots(connection: Connection, scope: Scope, run_id: str) -> RunSnapshots | None:
    """What decides about a run's snapshots now."""
    row = await queries.run.one(connection, scope.params(run_id=run_id))
    return None if row is None else run_of(connection, row)


def run_of(connection: Connection, row: Row) -> RunSnapshots:
    """A row of ``runs`` or ``run``."""
    run_id, count, finished, per_run, keep_s, is_held = row
    at = to_us(finished) if finished is not None and connection.dialect.native_time else finished
    return RunSnapshots(run_id, count, at, per_run, keep_s, bool(is_held))


async def lock(connection: Connection, scope: Scope) -> Row:
    """Keep others from removing snapshots by a rule and from placing holds until the transaction ends."""
    row = await queries.lock.one(connection, scope.params())
    assert row is not None
    return row


async def check_not_held(connection: Connection, scope: Scope, *, session_id: str | None = None) -> None:
    """See that nothing is held of a session, or of the whole tenant, that is about to be removed for good.

    Raises:
        Conflict: something is.
    """
    params = scope.params(session_id=session_id)
    await lock(connection, scope)
    query = queries.any_hold if session_id is None else queries.hold_on_session
    row = await query.one(connection, params)
    if row is not None:
        what = f"tenant {scope.tenant!r}" if session_id is None else f"session {session_id}"
        raise Conflict(f"{what} is held and must be kept: see retention.holds, and release what is no longer needed")


class Holds(SessionDependent):
    """Holds keep a session from being purged."""

    async def check_removable(self, connection: Connection, scope: Scope, session_id: str) -> None:
        """Refuse to remove a session that is held.

        Raises:
            Conflict: it is.
        """
        await check_not_held(connection, scope, session_id=session_id)


async def check_snapshots_not_held(connection: Connection, scope: Scope, ids: Sequence[str]) -> None:
    """See that none of these snapshots is held, before somebody removes them by hand.

    Raises:
        Conflict: one is.
    """
    await lock(connection, scope)
    if await queries.any_hold.one(connection, scope.params()) is None:
        return
    for each in ids:
        row = await queries.hold_on_snapshot.one(connection, scope.params(id=each))
        if row is not None:
            raise Conflict(
                f"snapshot {each} is held and must be kept: release hold {row[0]} first, if it is not needed"
            )


async def over_cap(connection: Connection, scope: Scope, run_id: str) -> Sequence[str]:
    """The snapshots of a run that are too many now, the oldest first.

    For whoever captures one: to be called in the same transaction, when the new one is there, and to be followed by the
    removal of these for the reason ``per_run_cap``. After the commit, ``announce`` says so.
    """
    row = await queries.count_of_run.one(connection, scope.params(run_id=run_id))
    if row is None or row[0] <= 1:
        return []
    policy = await policy_of(connection, scope)
    run = await run_snapshots(connection, scope, run_id)
    excess = _excess(policy, run, scope)
    if run is None or excess <= 0:
        return []
    # Somebody may be placing a hold at this moment: either it is waited for and seen, or it waits for us.
    await lock(connection, scope)
    run = await run_snapshots(connection, scope, run_id)
    excess = _excess(policy, run, scope)
    if run is None or run.is_held or excess <= 0:
        return []
    params = scope.params(run_id=run_id, excess=excess, limit=excess)
    return [each[0] for each in await queries.oldest_of_run.all(connection, params)]


def _excess(policy: RetentionPolicy, run: RunSnapshots | None, scope: Scope) -> int:
    return 0 if run is None else run.count - of_run(policy, run, scope).per_run


def log_removals(scope: Scope, gone: Sequence[RemovedSnapshot], reason: Reason) -> None:
    """Say of each snapshot that was removed, in a line of JSON of its own, whose it was and why it went. After the commit."""
    for each in gone:
        write_line(
            {
                "event": EVENT,
                "run_id": each.run_id,
                "checkpoint_id": each.id,
                USER_FIELD: scope.tenant,
                "size_bytes": each.size_bytes,
                "reason": reason,
            }
        )


def hold_deed(action: str, hold: Hold, actor: str, reason: str) -> NewActivity:
    """What was done about a hold, for the activity log."""
    details = {"run_id": hold.run_id, "session_id": hold.session_id}
    return NewActivity(
        action=action, actor=actor, subject_kind="hold", subject_id=hold.id, reason=reason, details=details
    )


async def keep_for(
    connection: Connection, scope: Scope, run_id: str, seconds: int, *, actor: str = ""
) -> RetentionPolicy:
    """``keep_snapshots_for``; for other stores, in their transaction.

    Raises:
        InvalidInput: it is no number of seconds from 0 on.
        NotFound: there is no such run.
    """
    id = parse_id(run_id, "run id")
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < 0:
        raise InvalidInput(f"seconds must be a whole number from 0 on, not {seconds!r}")
    if await states.queries.is_there.one(connection, scope.params(run_id=id)) is None:
        raise states.run_not_found(run_id)
    change = PolicyChange(keep_s=min(seconds, scope.limits.snapshot_keep_s))
    await set_policy(connection, scope, change, id)
    await note_policy(connection, scope, "retention.policy_set", actor, id, change)
    return await effective_policy(connection, scope, id)


async def keep_end(connection: Connection, scope: Scope, run: Run, new_epoch: int) -> None:
    """Let the grace of a run that is moved count from its end; for other stores, in their transaction.

    A run that had ended and was rewound has not ended any longer, and yet its snapshots are kept no longer for it. As soon as
    somebody claims it, they are those of a run that goes on.
    """
    params = scope.params(run_id=run.id, epoch=run.epoch, new_epoch=new_epoch, now_at=scope.clock.now_us())
    if run.finished_at is None:
        await queries.carry_end.all(connection, params)
        return
    await queries.note_end.all(connection, params | {"ended_at": to_us(run.finished_at)})


async def effective_policy(connection: Connection, scope: Scope, run_id: str | None) -> RetentionPolicy:
    """What holds for a tenant, or for one of its runs; for other stores, in their transaction.

    Raises:
        NotFound: there is no such run.
    """
    policy = await policy_of(connection, scope)
    if run_id is None:
        return policy
    run: RunSnapshots | None = await run_snapshots(connection, scope, run_id)
    if run is None:
        raise states.run_not_found(run_id)
    return of_run(policy, run, scope)


async def set_policy(connection: Connection, scope: Scope, change: PolicyChange, run_id: str | None) -> None:
    """Change what is set for a tenant, or for one of its runs."""
    params = scope.params(
        run_id=run_id,
        per_run=change.per_run,
        grace_s=change.grace_s,
        keep_s=change.keep_s,
        now_at=scope.clock.now_us(),
    )
    await register_tenant(connection, params)
    query = queries.set_policy if run_id is None else queries.set_run_policy
    await query.all(connection, params)


async def note_policy(
    connection: Connection, scope: Scope, action: str, actor: str, run_id: str | None, change: PolicyChange | None
) -> None:
    """Write to the activity log that a policy was changed or cleared."""
    numbers = {} if change is None else {"per_run": change.per_run, "grace_s": change.grace_s, "keep_s": change.keep_s}
    details = {name: number for name, number in numbers.items() if number is not None}
    kind, subject = ("tenant", "") if run_id is None else ("run", run_id)
    policy_deed = NewActivity(action=action, actor=actor, subject_kind=kind, subject_id=subject, details=details)
    await activity.record_all(connection, scope, [policy_deed])


def warn_over_quota(scope: Scope, used_bytes: int, quota_bytes: int) -> None:
    """Say that a tenant takes more than its quota, and that nothing is left that may go.

    Not in the log of retention: that has a line for each snapshot that was removed, and nothing else.
    """
    import logging

    words = "the snapshots of %r take %s bytes, over their quota of %s: only the newest of each run, and what is held, are left"
    logging.getLogger(SWEEPER).warning(words, scope.tenant, f"{used_bytes:,}", f"{quota_bytes:,}")


def write_line(line: dict[str, Any], *, is_error: bool = False) -> None:
    """Write one line of JSON to the log of retention."""
    import json
    import logging  # nobody needs it until something is removed, and it takes its time to load

    log = logging.getLogger(LOGGER)
    log.log(logging.ERROR if is_error else logging.INFO, "%s", json.dumps(line, separators=(",", ":")))
