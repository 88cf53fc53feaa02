"""The statuses of a run, its legal moves, and the checks that every write to a run makes.

==========  ============================================================  ==============================================
status      meaning                                                       reached by
==========  ============================================================  ==============================================
pending     may be claimed at any time                                    start, release, resume
running     held by a worker, as long as the lease is renewed             claim
paused      may be claimed from ``pause_until`` on                        pause with a time
waiting     waits for ``resume``: for a person, or for another run        pause without a time
completed   ended successfully                                            finish, or a step with ``stop_reason``
failed      ended with an error; can be resumed                           fail, or too many claims without a step
cancelled   was ended from outside                                        cancel
==========  ============================================================  ==============================================

Every claim raises the run's *epoch*, and so does every move that takes the run away from its holder. Each write carries the
epoch of its claim; a write with an older epoch is refused, even if its process is still alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, Literal

from msgspec import Struct

from ....clock import MICROSECONDS, to_us
from ....core import scope as scopes
from ....core import text
from ....core.checks import whole_number
from ....core.queries import Queries
from ....core.rows import Column, mapper
from ....engines.protocol import Connection, Row
from ....errors import Conflict, Fenced, InvalidInput, NotFound
from ....ids import Id
from ....ids import parse as parse_id

Status = Literal["pending", "running", "paused", "waiting", "completed", "failed", "cancelled"]
Verb = Literal["claim", "give_up", "release", "pause", "wait", "finish", "fail", "cancel", "resume"]

MOVES: Mapping[Verb, Mapping[Status, Status]] = MappingProxyType(
    {
        "claim": {"pending": "running", "paused": "running", "running": "running"},
        "give_up": {"pending": "failed", "paused": "failed", "running": "failed"},
        "release": {"running": "pending"},
        "pause": {"running": "paused"},
        "wait": {"running": "waiting"},
        "finish": {"running": "completed"},
        "fail": {"running": "failed"},
        "cancel": {"pending": "cancelled", "running": "cancelled", "paused": "cancelled", "waiting": "cancelled"},
        "resume": {"paused": "pending", "waiting": "pending", "failed": "pending"},
    }
)
"""All legal moves: the resulting status by verb and current status."""

FINAL: frozenset[Status] = frozenset({"completed", "failed", "cancelled"})
_FENCING: frozenset[Verb] = frozenset({"claim", "give_up", "cancel"})
"""The moves that end a holder's lease without its consent."""
_MS_US = MICROSECONDS // 1_000


class Run(Struct, frozen=True):
    """One execution of an agent in a session.

    ``attempts`` counts claims in a row without a step. ``holder`` and the lease fields are set while it is running.
    """

    id: Id
    session_id: Id
    agent: Annotated[str, Column("agent_id")]
    status: Status
    iteration: int
    epoch: int
    attempts: int
    max_attempts: int
    holder: Annotated[str, Column("lease_holder")]
    lease_ms: int
    lease_until: datetime | None
    doubted_at: datetime | None
    pause_until: datetime | None
    stop_reason: str | None
    error: str | None
    parent_run_id: Id | None
    parent_call_id: str | None
    depth: int
    input_tokens: int
    output_tokens: int
    metadata: dict[str, Any]
    started_at: datetime
    checkpointed_at: datetime | None
    finished_at: datetime | None


queries = Queries(__package__, "runs.sql", Run)
queue = Queries(__package__, "run_queue.sql")


def next_status(run: Run, verb: Verb) -> Status:
    """Return the status of a run after a move.

    Raises:
        Conflict: the move is not legal.
    """
    status = MOVES[verb].get(run.status)
    if status is None:
        raise Conflict(
            f"run {run.id} is {run.status}; only a {' or '.join(MOVES[verb])} run can {_PASSIVE[verb]}", reason="status"
        )
    return status


_PASSIVE: Mapping[Verb, str] = {
    "claim": "be claimed",
    "give_up": "be given up",
    "release": "be released",
    "pause": "be paused",
    "wait": "be paused",
    "finish": "be finished",
    "fail": "fail",
    "cancel": "be cancelled",
    "resume": "be resumed",
}


async def lock_run(connection: Connection, scope: scopes.Scope, run_id: str) -> Run:
    """Return a run, locked until the transaction ends.

    Raises:
        NotFound: the run does not exist, or its session is deleted.
    """
    run, is_visible = await lock_any_run(connection, scope, run_id)
    if not is_visible:
        raise run_not_found(run_id)
    return run


async def lock_any_run(connection: Connection, scope: scopes.Scope, run_id: str) -> tuple[Run, bool]:
    """Lock a run even if its session is deleted; return it, and whether it is visible.

    Raises:
        NotFound: the run does not exist.
    """
    row = await queries.lock.one(connection, scope.params(run_id=parse_id(run_id, "run id")))
    if row is None:
        raise run_not_found(run_id)
    return run_of(connection, row[:-1]), bool(row[-1])


def check_holder(run: Run, epoch: int) -> None:
    """Raise an error if a writer with this epoch does not hold the run.

    Raises:
        Fenced: another holder has claimed it since, or it was taken away.
        Conflict: no holder has this epoch, or the run is not running.
    """
    check_epoch(epoch)
    if epoch < run.epoch:
        raise Fenced(f"run {run.id} is at epoch {run.epoch} and {run.status}; epoch {epoch} may no longer write")
    if epoch > run.epoch:
        raise Conflict(
            f"run {run.id} is at epoch {run.epoch}; no claim has returned epoch {epoch} yet", reason="unknown_epoch"
        )
    if run.status != "running":
        raise Conflict(f"run {run.id} is {run.status}; claim it before writing to it", reason="status")


def check_epoch(epoch: int) -> None:
    """Raise an error if a value is not an epoch.

    Raises:
        InvalidInput: it is not a whole number.
    """
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch < 2**62:
        raise InvalidInput(f"epoch must be the whole number that the claim returned, not {epoch!r}", field="epoch")


async def move(
    connection: Connection, scope: scopes.Scope, run: Run, verb: Verb, *, now_us: int, **changes: Any
) -> Run:
    """Move a locked run to another status and update the queue. Columns that are not in ``changes`` are reset.

    Raises:
        Conflict: the move is not legal.
    """
    status = next_status(run, verb)
    new = {
        "status": status,
        "new_epoch": run.epoch + (verb in _FENCING),
        "attempts": run.attempts,
        "lease_holder": "",
        "lease_ms": 0,
        "lease_until_at": None,
        "pause_until_at": None,
        "stop_reason": None,
        "error": None,
        "finished_at": now_us if status in FINAL else None,
        **changes,
    }
    params = scope.params(run_id=run.id, epoch=run.epoch, was=run.status, **new)
    row = await queries.move.one(connection, params)
    if row is None:
        raise Conflict(f"run {run.id} was changed concurrently; read it again", reason="changed")
    moved = run_of(connection, row)
    await update_queue(connection, scope, moved, now_us)
    return moved


async def update_queue(connection: Connection, scope: scopes.Scope, run: Run, now_us: int) -> None:
    """Queue a run for the time at which it may be claimed, or remove it from the queue."""
    if run.status == "pending":
        await enqueue(connection, scope, run, "ready", now_us)
    elif run.status == "paused" and run.pause_until is not None:
        await enqueue(connection, scope, run, "paused", to_us(run.pause_until))
    elif run.status == "running" and run.lease_until is not None:
        await enqueue(connection, scope, run, "leased", to_us(run.lease_until))
    else:
        await queue.remove.all(connection, scope.params(run_id=run.id))


async def enqueue(
    connection: Connection, scope: scopes.Scope, run: Run, kind: Literal["ready", "paused", "leased"], due_us: int
) -> None:
    """Queue a run for a time."""
    params = scope.params(run_id=run.id, agent_id=text.escape(run.agent), kind=kind, due_at=due_us)
    await queue.put.all(connection, params)


async def dequeue(connection: Connection, scope: scopes.Scope, run_ids: Sequence[str]) -> None:
    """Remove runs from the queue."""
    if run_ids:
        await queue.remove.many(connection, [scope.params(run_id=run_id) for run_id in run_ids])


def lease_columns(setting: scopes.Setting, holder: str, ttl_ms: int, now_us: int) -> dict[str, Any]:
    """Return the columns of a new lease.

    Raises:
        InvalidInput: the holder or the duration is invalid.
        LimitExceeded: the duration is over ``lease_ms``.
    """
    return {
        "lease_holder": scopes.name(holder, "holder", setting.limits),
        "lease_ms": check_ttl(setting, ttl_ms),
        "lease_until_at": now_us + ttl_ms * _MS_US,
    }


def check_ttl(setting: scopes.Setting, ttl_ms: int) -> int:
    """Validate and return the duration of a lease, in milliseconds.

    Raises:
        InvalidInput: it is not a whole number of at least 1.
        LimitExceeded: it is over ``lease_ms``.
    """
    setting.limits.check("lease_ms", whole_number(ttl_ms, "ttl_ms", minimum=1), "ttl_ms")
    return ttl_ms


def time_us(value: datetime, field: str) -> int:
    """Return a time argument in microseconds.

    Raises:
        InvalidInput: it is not a datetime with a time zone.
    """
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"{field} must be a datetime with a time zone, not {value!r}", field=field)
    return to_us(value, field)


def run_of(connection: Connection, row: Row) -> Run:
    """Return a run from its row."""
    return mapper(Run, connection.dialect)([row])[0]


def run_not_found(run_id: str) -> NotFound:
    """Return the error for a run that does not exist or whose session is deleted."""
    return NotFound(f"run {run_id!r} does not exist", noun="run", key=str(run_id))


def is_repeated_exit(run: Run, epoch: int, verb: Verb, changes: Mapping[str, Any]) -> bool:
    """Whether a holder has already given up its run with this move and these changes."""
    until = None if run.pause_until is None else to_us(run.pause_until)
    return (run.status, run.epoch, until, run.stop_reason, run.error) == (
        MOVES[verb]["running"],
        epoch,
        changes.get("pause_until_at"),
        _unescape(changes.get("stop_reason")),
        _unescape(changes.get("error")),
    )


def _unescape(value: str | None) -> str | None:
    return None if value is None else text.unescape(value)
