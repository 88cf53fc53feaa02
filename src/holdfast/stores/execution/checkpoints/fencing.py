"""Conditions for saving a checkpoint: the caller holds a run, or continues from the newest checkpoint."""

from __future__ import annotations

from typing import Any

from ....core.scope import Scope
from ....engines.protocol import Connection
from ....errors import Conflict
from ..runs.states import check_holder, lock_run
from . import compact_columns
from .reader import queries

Lease = tuple[str, int]
"""The id of a run, and the epoch under which the caller holds it."""


async def check_lease(connection: Connection, scope: Scope, params: dict[str, Any], lease: Lease | None) -> None:
    """Raise an error if a lease is given and the caller does not hold its run.

    Raises:
        Conflict: the run is not held.
        Fenced: another holder has claimed the run since.
    """
    if lease is None:
        return
    try:
        check_holder(await lock_run(connection, scope, lease[0]), lease[1])
    except Conflict as error:
        newest = _display(await _head(connection, params))
        raise type(error)(f"{error}; the newest checkpoint is {newest}", reason=error.reason) from None


async def check_head(connection: Connection, params: dict[str, Any]) -> None:
    """Raise an error if the newest checkpoint is neither the parent, nor the checkpoint itself, nor the caller's ``known_head``.

    Raises:
        Conflict: another checkpoint is the newest.
    """
    head, parent = await _head(connection, params), params["parent_id"]
    known_head = params["known_head"]
    if head not in (parent, params["checkpoint_id"]) and (known_head is None or head != known_head):
        expected = "to be the first" if parent is None else f"to follow {_display(parent)}"
        raise Conflict(
            f"another writer was first: the newest checkpoint is {_display(head)}; this one was expected {expected}",
            reason="newer_checkpoint",
        )


async def _head(connection: Connection, params: dict[str, Any]) -> bytes | None:
    """Return the stored id of the newest checkpoint of a namespace."""
    row = await queries.head.one(connection, params)
    return None if row is None else bytes(row[0])


def _display(id: bytes | None) -> str:
    return "None" if id is None else compact_columns.decode_id(id)
