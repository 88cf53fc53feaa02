"""When a call may be run again, and how one item of a group is done without a transaction around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ...errors import AlreadyExists, HoldfastError, OutcomeUnknown, Unavailable
from ..protocol import CAREFUL, Connection, Group, run_one
from .errors import ConnectionLost, NotSent, Serialization

T = TypeVar("T")
Item = TypeVar("Item")

TRIES = 5
"""How often a call is run before its failure is the caller's."""
PAUSE_S = 0.005
"""The first pause between two tries; each further one is twice as long."""

SETTLED_COMMIT = (
    "SELECT pg_logical_emit_message(true, 'holdfast', '') WHERE pg_current_xact_id_if_assigned() IS NULL"
    " AND current_setting('synchronous_standby_names') <> '' AND NOT pg_is_in_recovery(); COMMIT"
)
"""Commits a transaction so that what it read is on the synchronous standby too when the commit is acknowledged.

PostgreSQL does not wait for the standby at the commit of a transaction that wrote nothing. But such a transaction can answer a
repeated id with a row that was never replicated: its first commit was waiting for the standby when the primary crashed. So a
transaction without an id of its own writes an empty WAL message. Both statements are one message to the server."""

AGAIN = (ConnectionLost, Serialization)
"""Failures after which nothing was changed, so that the call may be run again."""


def pause_s(attempt: int) -> float:
    """How long to wait after the attempt with this number, counted from 0."""
    return PAUSE_S * float(2**attempt)


async def run_alone(group: Group[Item, T], connection: Connection, item: Item, *, transaction: bool) -> T:
    """Do one item. Its one statement is a transaction of its own, unless ``transaction`` asks for one around it.

    Where the id is there already, the answer comes from a read, in a transaction of its own: its commit waits for the standby
    (see ``SETTLED_COMMIT``).

    Raises:
        OutcomeUnknown: the connection was lost after the statement or the commit was sent.
        ConnectionLost: it was lost before; a retry is safe.
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
            raise unknown(group, item) from error
        else:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
    try:
        return await run_one(group, connection, item, tries)
    except OutcomeUnknown as error:
        raise unknown(group, item) from error


def unknown(group: Group[Item, T], item: Item) -> OutcomeUnknown:
    """The error of an item whose answer was lost."""
    id = group.id_of(item)
    return OutcomeUnknown(f"the answer to this write was lost; retry with id={id!r} to settle it", id=id)


def given_up(error: HoldfastError) -> HoldfastError:
    """The last of several failures, as the caller sees it."""
    return Unavailable(f"gave up after {TRIES} tries: {error}") if isinstance(error, AGAIN) else error
