"""Retry rules for calls, and the execution of a single item of a group without an explicit transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ...errors import AlreadyExists, HoldfastError, OutcomeUnknown, Unavailable
from ..protocol import CAREFUL, Connection, Group, run_one
from .errors import ConnectionLost, NotSent, Serialization

T = TypeVar("T")
Item = TypeVar("Item")

TRIES = 5
"""Attempts before a failure is raised to the caller."""
PAUSE_S = 0.005
"""Pause after the first attempt; each further pause is twice as long."""

REPLICATED_COMMIT = (
    "SELECT pg_logical_emit_message(true, 'holdfast', '') WHERE pg_current_xact_id_if_assigned() IS NULL"
    " AND current_setting('synchronous_standby_names') <> '' AND NOT pg_is_in_recovery(); COMMIT"
)
"""Commits a transaction so that the rows it has read are on the synchronous standby when the commit is acknowledged.

PostgreSQL does not wait for the standby when a transaction commits without writes. Such a transaction may return, for a
repeated id, a row that was never replicated: the commit that wrote it was still waiting for the standby when the primary
crashed. Therefore a transaction without a transaction id writes an empty WAL message. Both statements are sent in one message."""

AGAIN = (ConnectionLost, Serialization)
"""Errors that guarantee that nothing was changed, so that the call may be retried."""


def pause_s(attempt: int) -> float:
    """Return the pause after an attempt, counted from 0."""
    return PAUSE_S * float(2**attempt)


async def run_alone(group: Group[Item, T], connection: Connection, item: Item, *, transaction: bool) -> T:
    """Write one item. Its single statement commits by itself, unless ``transaction`` requests an explicit transaction.

    If the id already exists, the result is read in a transaction of its own, whose commit waits for the standby (see
    ``REPLICATED_COMMIT``).

    Raises:
        OutcomeUnknown: the connection was lost after the statement or the commit was sent.
        ConnectionLost: the connection was lost before that; a retry is safe.
    """
    tries: Sequence[bool] = CAREFUL
    if not transaction:
        try:
            (outcome,) = await group.run(connection, [item], careful=False)
        except AlreadyExists:
            tries = CAREFUL[1:]
        except NotSent:
            raise
        except (ConnectionLost, OutcomeUnknown) as error:
            raise outcome_unknown(group, item) from error
        else:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
    try:
        return await run_one(group, connection, item, tries)
    except OutcomeUnknown as error:
        raise outcome_unknown(group, item) from error


def outcome_unknown(group: Group[Item, T], item: Item) -> OutcomeUnknown:
    """Return the error for an item whose result was lost."""
    id = group.id_of(item)
    return OutcomeUnknown(f"the answer to this write was lost; retry with id={id!r} to settle it", id=id)


def final_error(error: HoldfastError) -> HoldfastError:
    """Return the error that the caller gets after the last attempt failed."""
    return Unavailable(f"gave up after {TRIES} tries: {error}") if isinstance(error, AGAIN) else error
