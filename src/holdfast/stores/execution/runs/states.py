"""What a run can be, how it gets from one status to another, and what everybody asks who writes to one.

==========  ============================================================  ==============================================
status      meaning                                                       comes after
==========  ============================================================  ==============================================
pending     may be claimed at any time                                    start, release, resume
running     somebody holds it, for as long as the lease is renewed        claim
paused      may be claimed from ``pause_until`` on                        pause with a time
waiting     waits for ``resume``: for a person, or for another run        pause without a time
completed   came to its end                                               finish, or a step with ``stop_reason``
failed      came to an end that can be resumed                            fail, or one claim too many that came to nothing
cancelled   was ended from outside                                        cancel
==========  ============================================================  ==============================================

Every claim raises the run's *epoch*, and so does everything that takes the run away from its holder. Whoever writes brings the
epoch of its claim; with an older one it is refused, however alive it feels.
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
"""Every legal move: from which status a verb leads to which. There is no other."""

FINAL: frozenset[Status] = frozenset({"completed", "failed", "cancelled"})
_FENCING: frozenset[Verb] = frozenset({"claim", "give_up", "cancel"})
"""The moves that whoever held the run has not made itself."""
_MS_US = MICROSECONDS // 1_000


class Run(Struct, frozen=True):
    """One execution of an agent in a session.

    ``attempts`` counts claims in a row that came to nothing. ``holder`` and the lease are there while it is running.
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


def after(run: Run, verb: Verb) -> Status:
    """The status a run gets by a move.

    Raises:
        Conflict: the move is not legal.
    """
    status = MOVES[verb].get(run.status)
    if status is None:
        raise Conflict(f"run {run.id} is {run.status}; only what is {' or '.join(MOVES[verb])} can {_SAID[verb]}")
    return status


_SAID: Mapping[Verb, str] = {
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
    """A run, held until the transaction ends.

    Raises:
        NotFound: there is none in a live session.
    """
    run, is_seen = await lock_hidden(connection, scope, run_id)
    if not is_seen:
        raise missing(run_id)
    return run


async def lock_hidden(connection: Connection, scope: scopes.Scope, run_id: str) -> tuple[Run, bool]:
    """The same, also where a deleted session hides the run; and whether it is seen.

    Raises:
        NotFound: there is none.
    """
    row = await queries.lock.one(connection, scope.params(run_id=parse_id(run_id, "run id")))
    if row is None:
        raise missing(run_id)
    return run_of(connection, row[:-1]), bool(row[-1])


def check_holder(run: Run, epoch: int) -> None:
    """Refuse a writer who does not hold the run.

    Raises:
        Fenced: somebody else has claimed it since, or it was taken away.
        Conflict: nobody holds it.
    """
    check_epoch(epoch)
    if epoch < run.epoch:
        raise Fenced(f"run {run.id} is at epoch {run.epoch} and {run.status}; epoch {epoch} may no longer write")
    if epoch > run.epoch:
        raise Conflict(f"run {run.id} is at epoch {run.epoch}; no claim has given epoch {epoch} yet")
    if run.status != "running":
        raise Conflict(f"run {run.id} is {run.status}; claim it before writing to it")


def check_epoch(epoch: int) -> None:
    """Refuse what cannot be an epoch.

    Raises:
        InvalidInput: it is not a whole number.
    """
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch < 2**62:
        raise InvalidInput(f"epoch is the whole number that the claim gave, not {epoch!r}")


async def move(
    connection: Connection, scope: scopes.Scope, run: Run, verb: Verb, *, now_us: int, **changes: Any
) -> Run:
    """Move a run that is held from one status to another, and tell the queue. What ``changes`` does not say is cleared.

    Raises:
        Conflict: the move is not legal.
    """
    status = after(run, verb)
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
        raise Conflict(f"run {run.id} was changed meanwhile; read it again")
    moved = run_of(connection, row)
    await put_in_queue(connection, scope, moved, now_us)
    return moved


async def put_in_queue(connection: Connection, scope: scopes.Scope, run: Run, now_us: int) -> None:
    """Have the queue say when to look at a run, or forget it."""
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
    """Have the queue say when to look at a run."""
    params = scope.params(run_id=run.id, agent_id=text.escape(run.agent), kind=kind, due_at=due_us)
    await queue.put.all(connection, params)


async def dequeue(connection: Connection, scope: scopes.Scope, run_ids: Sequence[str]) -> None:
    """Have the queue forget some runs."""
    if run_ids:
        await queue.remove.many(connection, [scope.params(run_id=run_id) for run_id in run_ids])


def lease(setting: scopes.Setting, holder: str, ttl_ms: int, now_us: int) -> dict[str, Any]:
    """What a run holds of a lease.

    Raises:
        InvalidInput: the holder or the time is not acceptable.
    """
    return {
        "lease_holder": scopes.name(holder, "holder", setting.limits),
        "lease_ms": checked_ttl(setting, ttl_ms),
        "lease_until_at": now_us + ttl_ms * _MS_US,
    }


def checked_ttl(setting: scopes.Setting, ttl_ms: int) -> int:
    """The milliseconds of a lease.

    Raises:
        InvalidInput: it is not a whole number from 1 on.
        LimitExceeded: it is over ``lease_ms``.
    """
    setting.limits.check("lease_ms", whole_number(ttl_ms, "ttl_ms", minimum=1), "ttl_ms")
    return ttl_ms


def moment(value: datetime, what: str) -> int:
    """A time the caller gave, in microseconds.

    Raises:
        InvalidInput: it is not a datetime with a time zone.
    """
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"{what} must be a datetime with a time zone, not {value!r}")
    return to_us(value, what)


def run_of(connection: Connection, row: Row) -> Run:
    """A run from its row."""
    return mapper(Run, connection.dialect)([row])[0]


def missing(run_id: str) -> NotFound:
    """The error for a run that is not there."""
    return NotFound(f"there is no run {run_id} here")


def left_before(run: Run, epoch: int, verb: Verb, changes: Mapping[str, Any]) -> bool:
    """Whether a holder has left its run in this way before."""
    until = None if run.pause_until is None else to_us(run.pause_until)
    return (run.status, run.epoch, until, run.stop_reason, run.error) == (
        MOVES[verb]["running"],
        epoch,
        changes.get("pause_until_at"),
        _said(changes.get("stop_reason")),
        _said(changes.get("error")),
    )


def _said(stored: str | None) -> str | None:
    return None if stored is None else text.unescape(stored)
