"""The rules by which snapshots are removed, and the log line written for each removal.

* A run keeps only its newest snapshots (``per_run_cap``): checked when one is captured, and by every sweep.
* The snapshots of a run that has ended are removed after a grace period (``grace_expired``). It can be extended for
  one run, up to ``snapshot_keep_s``.
* All snapshots of a tenant fit into its quota (``per_tenant_cap``): the oldest are removed first, whichever run they
  belong to, but never the newest one of a run. If those alone take more, the tenant is over its quota, and a sweep
  logs a warning.
* A tenant that is erased keeps nothing (``erasure``).

Held snapshots stay regardless of the rules, and so do those that a rewind in progress needs. This module neither
decides when to apply the rules nor removes anything; the callers remove snapshots in the transaction in which that was
decided, after ``lock``. Placing a hold takes the same lock, so no hold can appear between decision and removal.
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
    """The effective retention settings of a tenant, or of one of its runs."""

    per_run: int
    """Snapshots that a run keeps."""
    quota_mib: int
    """MiB of stored bytes that all snapshots of the tenant may take."""
    grace_s: int
    """Seconds for which snapshots are kept after their run has ended."""


class Hold(Struct, frozen=True):
    """A hold on the snapshots of a run, of a session, or, where neither is given, of the tenant."""

    id: Id
    run_id: Id | None
    session_id: Id | None
    reason: str
    placed_by: str
    by_tenant: bool
    """Whether it was placed with the tenant's own key: such a hold does not prevent the tenant's erasure."""
    created_at: datetime


class RunSnapshots(Struct, frozen=True):
    """A run, with everything that decides about its snapshots."""

    run_id: str
    count: int
    finished_us: int | None
    per_run: int | None
    keep_s: int | None
    is_held: bool


class PolicyChange(Struct, frozen=True):
    """A change of a policy; omitted values stay unchanged."""

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
        """The run it belonged to."""

    @property
    def size_bytes(self) -> int:
        """Bytes that were stored for it."""


queries = Queries(__package__, "retention_rules.sql", Hold)


async def policy_of(connection: Connection, scope: Scope) -> RetentionPolicy:
    """Return a tenant's effective policy: its own settings, then those for all tenants, then the limits."""
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
    """Return a run's effective policy: its own number, and a grace period that is never shorter than the tenant's."""
    keep_s = min(run.keep_s or 0, scope.limits.snapshot_keep_s)
    return RetentionPolicy(run.per_run or policy.per_run, policy.quota_mib, max(policy.grace_s, keep_s))


def decide(policy: RetentionPolicy, run: RunSnapshots, scope: Scope) -> tuple[Reason, int] | None:
    """Return why and how many of a run's oldest snapshots must be removed, or ``None``."""
    if run.is_held or not run.count:
        return None
    own = of_run(policy, run, scope)
    if run.finished_us is not None and run.finished_us + own.grace_s * MICROSECONDS <= scope.clock.now_us():
        return "grace_expired", run.count
    return ("per_run_cap", run.count - own.per_run) if run.count > own.per_run else None


async def run_snapshots(connection: Connection, scope: Scope, run_id: str) -> RunSnapshots | None:
    """Return the current data that decides about a run's snapshots."""
    row = await queries.run.one(connection, scope.params(run_id=run_id))
    return None if row is None else run_of(connection, row)


def run_of(connection: Connection, row: Row) -> RunSnapshots:
    """Convert a row of ``runs`` or ``run``."""
    run_id, count, finished, per_run, keep_s, is_held = row
    at = to_us(finished) if finished is not None and connection.dialect.native_time else finished
    return RunSnapshots(run_id, count, at, per_run, keep_s, bool(is_held))


async def lock(connection: Connection, scope: Scope) -> Row:
    """Keep other processes from removing snapshots by a rule and from placing holds until the transaction ends."""
    row = await queries.lock.one(connection, scope.params())
    assert row is not None
    return row


async def check_not_held(
    connection: Connection, scope: Scope, *, session_id: str | None = None, run_id: str | None = None
) -> None:
    """Check that no snapshot of the tenant, of a session, or of a run of this session is held, before it is removed permanently.

    Raises:
        Conflict: a hold exists.
    """
    params = scope.params(session_id=session_id, run_id=run_id)
    await lock(connection, scope)
    query = queries.hold_on_run if run_id else queries.hold_on_session if session_id else queries.any_hold
    row = await query.one(connection, params)
    if row is not None:
        session = f"session {session_id}" if session_id else f"tenant {scope.tenant!r}"
        raise Conflict(
            f"{f'run {run_id}' if run_id else session} is held and must be kept:"
            " see retention.holds, and release holds no longer needed",
            reason="held",
        )


async def check_snapshots_not_held(connection: Connection, scope: Scope, ids: Sequence[str]) -> None:
    """Check that none of these snapshots is held, before a caller removes them explicitly.

    Raises:
        Conflict: one is held.
    """
    await lock(connection, scope)
    if await queries.any_hold.one(connection, scope.params()) is None:
        return
    for snapshot_id in ids:
        row = await queries.hold_on_snapshot.one(connection, scope.params(id=snapshot_id))
        if row is not None:
            raise Conflict(
                f"snapshot {snapshot_id} is held and must be kept: release hold {row[0]} first if it is no longer needed",
                reason="held",
            )


async def over_cap(connection: Connection, scope: Scope, run_id: str) -> Sequence[str]:
    """Return the snapshots by which a run exceeds its number, the oldest first.

    To be called in the transaction that captures a snapshot, after it was recorded; the caller removes the returned
    ones for the reason ``per_run_cap`` and, after the commit, calls ``log_removals``.
    """
    row = await queries.count_of_run.one(connection, scope.params(run_id=run_id))
    if row is None or row[0] <= 1:
        return []
    policy = await policy_of(connection, scope)
    run = await run_snapshots(connection, scope, run_id)
    excess = _excess(policy, run, scope)
    if run is None or excess <= 0:
        return []
    # A hold may be placed at this moment: either this transaction waits for it and sees it, or it waits for this one.
    await lock(connection, scope)
    run = await run_snapshots(connection, scope, run_id)
    excess = _excess(policy, run, scope)
    if run is None or run.is_held or excess <= 0:
        return []
    params = scope.params(run_id=run_id, excess=excess, limit=excess)
    return [row[0] for row in await queries.oldest_of_run.all(connection, params)]


def _excess(policy: RetentionPolicy, run: RunSnapshots | None, scope: Scope) -> int:
    return 0 if run is None else run.count - of_run(policy, run, scope).per_run


def log_removals(scope: Scope, removed: Sequence[RemovedSnapshot], reason: Reason) -> None:
    """Write a line of JSON for each removed snapshot, with its tenant and the reason. To be called after the commit."""
    for snapshot in removed:
        write_line(
            {
                "event": EVENT,
                "run_id": snapshot.run_id,
                "checkpoint_id": snapshot.id,
                USER_FIELD: scope.tenant,
                "size_bytes": snapshot.size_bytes,
                "reason": reason,
            }
        )


def hold_deed(action: str, hold: Hold, actor: str, reason: str) -> NewActivity:
    """Return the entry of the activity log for an action on a hold."""
    details = {"run_id": hold.run_id, "session_id": hold.session_id}
    return NewActivity(
        action=action,
        actor_type="user" if actor else "system",
        actor=actor,
        subject_kind="hold",
        subject_id=hold.id,
        reason=reason,
        details=details,
    )


async def keep_for(
    connection: Connection, scope: Scope, run_id: str, seconds: int, *, actor: str = ""
) -> RetentionPolicy:
    """Implement ``keep_snapshots_for``; for other stores, in their transaction.

    Raises:
        InvalidInput: ``seconds`` is not a non-negative integer.
        NotFound: the run does not exist.
    """
    id = parse_id(run_id, "run id")
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < 0:
        raise InvalidInput(f"seconds must be a non-negative integer, not {seconds!r}", field="seconds")
    if await states.queries.is_there.one(connection, scope.params(run_id=id)) is None:
        raise states.run_not_found(run_id)
    change = PolicyChange(keep_s=min(seconds, scope.limits.snapshot_keep_s))
    await set_policy(connection, scope, change, id)
    await note_policy(connection, scope, "retention.policy_set", actor, id, change)
    return await effective_policy(connection, scope, id)


async def keep_end(connection: Connection, scope: Scope, run: Run, new_epoch: int) -> None:
    """Count the grace period of a moved run from its original end; for other stores, in their transaction.

    A run that had ended and was rewound is no longer ended, but its snapshots are not kept longer for that. Once a
    worker claims it, they are treated as those of an active run.
    """
    params = scope.params(run_id=run.id, epoch=run.epoch, new_epoch=new_epoch, now_at=scope.clock.now_us())
    if run.finished_at is None:
        await queries.carry_end.all(connection, params)
        return
    await queries.note_end.all(connection, params | {"ended_at": to_us(run.finished_at)})


async def effective_policy(connection: Connection, scope: Scope, run_id: str | None) -> RetentionPolicy:
    """Return the effective policy of a tenant, or of one of its runs; for other stores, in their transaction.

    Raises:
        NotFound: the run does not exist.
    """
    policy = await policy_of(connection, scope)
    if run_id is None:
        return policy
    run: RunSnapshots | None = await run_snapshots(connection, scope, run_id)
    if run is None:
        raise states.run_not_found(run_id)
    return of_run(policy, run, scope)


async def set_policy(connection: Connection, scope: Scope, change: PolicyChange, run_id: str | None) -> None:
    """Change the policy of a tenant, or of one of its runs."""
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
    """Record in the activity log that a policy was changed or cleared."""
    numbers = {} if change is None else {"per_run": change.per_run, "grace_s": change.grace_s, "keep_s": change.keep_s}
    details = {name: number for name, number in numbers.items() if number is not None}
    kind, subject = ("tenant", "") if run_id is None else ("run", run_id)
    entry = NewActivity(
        action=action,
        actor_type="user" if actor else "system",
        actor=actor,
        subject_kind=kind,
        subject_id=subject,
        details=details,
    )
    await activity.record_all(connection, scope, [entry])


def warn_over_quota(scope: Scope, used_bytes: int, quota_bytes: int) -> None:
    """Log that a tenant is over its quota and no removable snapshot is left.

    Not written to the retention log, which has one line for each removed snapshot and nothing else.
    """
    import logging

    message = (
        "the snapshots of %r take %s bytes, over their quota of %s: only held ones and the newest of each run are left"
    )
    logging.getLogger(SWEEPER).warning(message, scope.tenant, f"{used_bytes:,}", f"{quota_bytes:,}")


def write_line(line: dict[str, Any], *, is_error: bool = False) -> None:
    """Write one line of JSON to the retention log."""
    import json
    import logging  # slow to import, and only needed once a snapshot is removed

    log = logging.getLogger(LOGGER)
    log.log(logging.ERROR if is_error else logging.INFO, "%s", json.dumps(line, separators=(",", ":")))
