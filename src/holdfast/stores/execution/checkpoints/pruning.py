"""Removes checkpoints of a thread, and the pieces that only those needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....core.scope import Scope
from ....engines.protocol import Connection, Row
from . import ancestry, compact_columns, piece_log, task_writes
from .piece_log import PieceLog
from .reader import queries


async def prune(connection: Connection, scope: Scope, params: dict[str, Any], rules: ancestry.PruningRules) -> int:
    """Remove the checkpoints of one thread that the rules do not keep, and return how many were removed."""
    log = await piece_log.lock(connection, params)
    if log is None:
        return 0
    since = rules.since_us(scope.clock.now_us())
    rows = await queries.ancestry.all(connection, {**params, "thread": log.thread, "since_at": since})
    nodes = ancestry.nodes_of(rows, await _written_channels(connection, params, log, rows))
    if not nodes and rules.keep:
        return 0  # the thread has writes whose checkpoint is not saved yet
    kept = ancestry.with_required_ancestors(nodes, rules.select(nodes))
    if not kept:
        return await delete_all(connection, scope, params, log)
    removed = [
        {
            **params,
            "thread": log.thread,
            "checkpoint_ns": node.namespace,
            "checkpoint_id": compact_columns.encode_id(node.id),
        }
        for node in nodes
        if node.key not in kept
    ]
    if removed:
        await queries.delete.many(connection, removed)
        await queries.delete_writes.many(connection, removed)
        await piece_log.collect(connection, scope, log)
    return len(removed)


async def delete_all(connection: Connection, scope: Scope, params: dict[str, Any], log: PieceLog) -> int:
    """Remove a thread with everything in it, and return its number of checkpoints. The log is locked."""
    thread = {**params, "thread": log.thread}
    removed = await queries.delete_all.all(connection, thread)
    await queries.delete_all_writes.all(connection, thread)
    await piece_log.delete_thread(connection, scope, log)
    return len(removed)


async def _written_channels(
    connection: Connection, params: dict[str, Any], log: PieceLog, rows: Sequence[Row]
) -> Mapping[ancestry.Key, frozenset[str]]:
    """Return the channels with writes to each checkpoint; empty if no checkpoint has a channel whose value is in an ancestor."""
    if not any(row[3] for row in rows):
        return {}
    channels: dict[ancestry.Key, frozenset[str]] = {}
    for namespace, id, packed, sealed in await queries.every_write.all(connection, {**params, "thread": log.thread}):
        key = namespace, compact_columns.decode_id(id)
        written = {write.channel for write in task_writes.unpack(packed, sealed)}
        channels[key] = channels.get(key, frozenset()) | written
    return channels
