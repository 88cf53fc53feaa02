"""Who may save a checkpoint: the holder of a run, or whoever goes on from the newest one."""

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
    """The caller holds the run of a lease, if there is one.

    Raises:
        Conflict: the run is not held.
        Fenced: somebody else has claimed the run since.
    """
    if lease is None:
        return
    try:
        check_holder(await lock_run(connection, scope, lease[0]), lease[1])
    except Conflict as error:
        newest = _shown(await _head(connection, params))
        raise type(error)(f"{error}; the newest checkpoint is {newest}") from None


async def check_head(connection: Connection, params: dict[str, Any]) -> None:
    """The parent is the newest checkpoint of the namespace, or the checkpoint itself is, or the one that the caller knows.

    Raises:
        Conflict: another one is.
    """
    head, parent = await _head(connection, params), params["parent_id"]
    known = params["known_head"]
    if head not in (parent, params["checkpoint_id"]) and (known is None or head != known):
        after = "at the beginning" if parent is None else f"after {_shown(parent)}"
        raise Conflict(
            f"another writer was first: the newest checkpoint is {_shown(head)}; this one was to come {after}"
        )


async def _head(connection: Connection, params: dict[str, Any]) -> bytes | None:
    """The id of the newest checkpoint of a namespace, as it is stored."""
    row = await queries.head.one(connection, params)
    return None if row is None else bytes(row[0])


def _shown(short: bytes | None) -> str:
    return "None" if short is None else compact_columns.stored_id(short)
