"""When a call may be run again, and how one item of a group is done without a transaction around it."""

from __future__ import annotations

from typing import TypeVar

from ...errors import AlreadyExists, HoldfastError, OutcomeUnknown, Unavailable
from ..protocol import CAREFUL, Connection, Group, run_one
from .errors import ConnectionLost, Serialization

T = TypeVar("T")
Item = TypeVar("Item")

TRIES = 5
"""How often a call is run before its failure is the caller's."""
PAUSE_S = 0.005
"""The first pause between two tries; each further one is twice as long."""

AGAIN = (ConnectionLost, Serialization)
"""Failures after which nothing was changed, so that the call may be run again."""


def pause_s(attempt: int) -> float:
    """How long to wait after the attempt with this number, counted from 0."""
    return PAUSE_S * float(2**attempt)


async def run_alone(group: Group[Item, T], connection: Connection, item: Item, *, transaction: bool) -> T:
    """Do one item. Its one statement is a transaction of its own, unless ``transaction`` asks for one around it.

    Raises:
        OutcomeUnknown: the connection was lost after the statement was sent.
    """
    try:
        return await (run_one if transaction else _run_bare)(group, connection, item)
    except (ConnectionLost, OutcomeUnknown) as error:
        raise unknown(group, item) from error


async def _run_bare(group: Group[Item, T], connection: Connection, item: Item) -> T:
    for careful in CAREFUL:
        try:
            (outcome,) = await group.run(connection, [item], careful=careful)
        except AlreadyExists as error:
            raced = error
        else:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
    raise raced


def unknown(group: Group[Item, T], item: Item) -> OutcomeUnknown:
    """The error of an item whose answer was lost."""
    id = group.id_of(item)
    return OutcomeUnknown(f"the answer to this write was lost; retry with id={id!r} to settle it", id=id)


def given_up(error: HoldfastError) -> HoldfastError:
    """The last of several failures, as the caller sees it."""
    return Unavailable(f"gave up after {TRIES} tries: {error}") if isinstance(error, AGAIN) else error
