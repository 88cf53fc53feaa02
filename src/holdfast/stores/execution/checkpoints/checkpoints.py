"""Checkpoints: the saved states of a graph, for LangGraph and similar frameworks.

A thread has namespaces (the graph itself and its subgraphs), and each namespace has checkpoints whose ids sort by time. A
checkpoint consists of ``state`` and *pieces*, both opaque bytes to this store, and the writes of tasks before the next
checkpoint. A piece that the thread already has is not stored again, whichever checkpoint or write added it (see ``piece_log``).
So a step costs only its new content, a fork or a copy costs nothing, and removing checkpoints removes exactly the pieces that
are no longer needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ....core import scope as scopes
from ....core import text
from ....core.blocking import Blocking, blocking
from ....core.filters import Filter, id_list
from ....core.paging import Page, rows_to_read
from ....core.queries import Query
from ....core.store import TenantStore, only_reads, reads, writes
from ....engines.protocol import Connection
from ....errors import AlreadyExists, InvalidInput, NotFound
from ...objects import packs
from ...objects.packs import Staged
from . import (
    ancestry,
    channel_marks,
    compact_columns,
    list_filters,
    optimistic,
    piece_log,
    pruning,
    ranges,
    reader,
    validation,
    verification,
    writer,
)
from .fencing import Lease
from .piece_log import NewPiece
from .ranges import Range
from .reader import CachedPieces, Checkpoint, queries
from .task_writes import Write
from .verification import CheckedThreads
from .writer import NewCheckpoint, NewTask, SaveConditions, StoredPieces

MAX_ANCESTORS = 20_000
"""Maximum ancestors that ``history`` reads."""


class AsyncCheckpoints(TenantStore):
    """The checkpoints of one tenant. The threads of a ``user`` are invisible to other users."""

    async def put(
        self,
        thread_id: str,
        *,
        id: str,
        state: bytes,
        pieces: Sequence[bytes | int | Range] = (),
        stamp: str | None = None,
        namespace: str = "",
        parent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        leans: Sequence[str] = (),
        changed: Sequence[str] = (),
        snapshots: Sequence[str] = (),
        user: str | None = None,
        only_after_head: bool = False,
        known_head: str | None = None,
        lease: Lease | None = None,
    ) -> StoredPieces:
        """Save a checkpoint, or replace the one with this id. A thread is created with its first checkpoint.

        Args:
            pieces: bodies, or positions and ranges of positions (first and last) of pieces that the thread has, from an earlier
                answer with this ``stamp``.
            leans: channels without a value here. Ancestors that contain the value, or writes that add up to it, are kept as long
                as this checkpoint is.
            changed: channels of ``leans`` that changed with this checkpoint: if nothing was written to such a channel and no
                ancestor has a snapshot of it, it is empty and needs no ancestor.
            snapshots: channels whose value here is the base that writes to later checkpoints add to.
            only_after_head: save only if ``parent`` is the newest checkpoint of the namespace, or ``None`` in an empty namespace.
            known_head: with ``only_after_head``, the newest checkpoint may also be this one: a caller that continues from an
                older checkpoint passes the newest it knows.
            lease: save only if the caller still holds this run.

        Raises:
            Conflict: with ``only_after_head``, another checkpoint is the newest; or the run is not held.
            Fenced: another holder has claimed the run since.
            Stale: pieces were removed, or a transaction was rolled back, since the ``stamp`` was returned; nothing was changed.
        """
        limits = self._scope.limits
        params = self._at(thread_id, user, namespace, id)
        marks = validation.marks(leans, changed, snapshots, limits)
        params |= {
            "parent_id": None if parent is None else validation.id_of(parent, "parent", limits),
            "metadata": compact_columns.encode_metadata(metadata, limits),
            "run_id": validation.run_of(metadata, limits),
            "checkpoint": validation.bytes_of(state, "state"),
            "leans": text.dump(marks) if marks else None,
            "known_head": None if known_head is None else validation.id_of(known_head, "known head", limits),
        }
        if params["parent_id"] == params["checkpoint_id"]:
            raise InvalidInput(f"checkpoint {id!r} cannot be its own parent", field="parent")
        head = ranges.head(namespace, id, parent, marks)
        limits.check("content_bytes", len(params["checkpoint"]), "state")
        new = NewCheckpoint(params, head, self._prepare(pieces), only_after_head)
        return await self._save(new, SaveConditions(stamp, lease))

    async def put_writes(
        self,
        thread_id: str,
        *,
        id: str,
        task_id: str,
        new: Sequence[Write],
        task_path: str = "",
        stamp: str | None = None,
        namespace: str = "",
        user: str | None = None,
        lease: Lease | None = None,
    ) -> StoredPieces:
        """Save the writes of a task to the checkpoint ``id``, which may be saved later.

        A write with an index of at least 0 is kept as it was first written; one with a negative index replaces the previous one.
        ``stamp`` and ``lease`` work as in ``put``.

        Raises:
            Stale: pieces were removed, or a transaction was rolled back, since the ``stamp`` was returned; nothing was changed.
            Fenced: another holder has claimed the run of the ``lease`` since.
        """
        limits = self._scope.limits
        params = self._at(thread_id, user, namespace, id) | {
            "task_id": validation.id_of(task_id, "task id", limits),
            "task_path": validation.path_of(task_path, limits),
        }
        items = validation.writes(validation.names(new, "writes", limits))
        task = NewTask(params, [(write, self._prepare(write.pieces)) for write in items])
        return await self._save(task, SaveConditions(stamp, lease))

    async def _save(self, new: NewCheckpoint | NewTask, conditions: SaveConditions) -> StoredPieces:
        pieces = await optimistic.save(self._engine, self._scope, new, conditions)
        if pieces is not None:
            return pieces
        return await self._save_in_transaction(new, conditions, await writer.stage(self._engine, self._scope, new))

    @writes
    async def _save_in_transaction(
        self, connection: Connection, new: NewCheckpoint | NewTask, conditions: SaveConditions, staged: Staged | None
    ) -> StoredPieces:
        return await writer.save(connection, self._scope, new, conditions, staged, may_roll_back=self._engine.joined)

    @only_reads
    async def find(
        self,
        thread_id: str,
        *,
        id: str | None = None,
        namespace: str = "",
        user: str | None = None,
        cached: CachedPieces | None = None,
    ) -> Checkpoint | None:
        """Return the checkpoint with this id, or the newest, with all writes to it, or ``None``.

        Raises:
            Corrupt: it is damaged.
            Unavailable: a part of it is in packs, and the pack storage cannot be reached.
        """
        query = queries.latest if id is None else queries.exact
        params = self._at(thread_id, user, namespace, "-" if id is None else id)
        checkpoints = await self._with_packed(lambda: self._with_writes(query, params, cached))
        return checkpoints[0] if checkpoints else None

    @only_reads
    async def history(
        self,
        thread_id: str,
        *,
        id: str | None = None,
        namespace: str = "",
        channels: Sequence[str] = (),
        least: int = 1,
        user: str | None = None,
    ) -> Sequence[Checkpoint]:
        """Return a checkpoint or the newest, its parent, and further ancestors while one of ``channels`` has no value there.

        One query reads all of them and their writes, and another one the pieces, however many there are.

        Args:
            channels: stop at an ancestor that was saved with none of them in ``leans``.
            least: minimum number of ancestors to read, if there are that many.
        """
        query = queries.history_of_latest if id is None else queries.history
        if type(least) is not int or not 0 <= least <= MAX_ANCESTORS:
            message = f"least must be a whole number from 0 to {MAX_ANCESTORS:,}, not {least!r}"
            raise InvalidInput(message, field="least")
        names = [validation.channel(name) for name in validation.names(channels, "channels", self._scope.limits)]
        params = self._at(thread_id, user, namespace, "-" if id is None else id) | {
            "limit": MAX_ANCESTORS,
            "least": least,
            "marks": id_list(channel_marks.marks_without_value(names), self._engine.dialect),
        }
        return await self._with_packed(lambda: self._with_writes(query, params, None))

    @only_reads
    async def list(
        self,
        thread_id: str | None = None,
        *,
        namespace: str | None = None,
        id: str | None = None,
        before: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        where: Sequence[Filter] = (),
        user: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Checkpoint]:
        """List checkpoints of a thread, or of all threads, the newest first. With ``limit``, one page.

        Raises:
            InvalidFilter: a filter or the cursor is invalid.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(limit=rows_to_read(limit, limits))
        equal = {"thread_id": thread_id, "user": text.unescape(self._user(user)), "namespace": namespace}
        clause = list_filters.compile_filters(equal, metadata, where, params, self._engine.dialect, limits)
        clause += reader.after(cursor, params)
        clause += validation.with_id("=", id, params) + validation.with_id("<", before, params)
        return await self._with_packed(lambda: self._page(params, clause, limit))

    @reads
    async def _page(
        self, connection: Connection, params: dict[str, Any], clause: str, limit: int | None
    ) -> Page[Checkpoint]:
        return await reader.page(connection, self._scope, params, clause, limit)

    @reads
    async def _with_writes(
        self, connection: Connection, query: Query, params: dict[str, Any], cached: CachedPieces | None
    ) -> Page[Checkpoint]:
        return Page(await reader.read_with_writes(connection, self._scope, query, params, cached))

    async def _with_packed(self, read: Callable[[], Awaitable[Page[Checkpoint]]]) -> Page[Checkpoint]:
        """Read checkpoints and fetch their pieces that are in packs."""

        async def fetch_packed() -> Page[Checkpoint]:
            checkpoints = await read()
            complete = await reader.fetch_packed(self._engine, self._scope, checkpoints)
            return checkpoints if complete is checkpoints else Page(complete, checkpoints.next)

        return await packs.retry_moved(fetch_packed)

    @only_reads
    async def verify(self, *, limit: int = 100, after: str | None = None) -> CheckedThreads:
        """Read everything in ``limit`` threads, of all users, and report which checkpoints are damaged, and how.

        Raises:
            Unavailable: a part of them is in packs, and the pack storage cannot be reached.
        """
        rows_to_read(limit, self._scope.limits)
        return await verification.verify(self._engine, self._scope, limit, after)

    @writes
    async def copy(self, connection: Connection, source: str, target: str, *, user: str | None = None) -> int:
        """Copy a thread with all its checkpoints and writes, and return its number of checkpoints. Pieces are shared, not copied.

        Raises:
            NotFound: the thread ``source`` does not exist.
            AlreadyExists: the thread ``target`` exists, and is not a copy of this one or has checkpoints of its own.
        """
        params, new = self._thread(source, user), self._thread(target, user)
        await piece_log.queries.lock_tenant.all(connection, params)
        log = await piece_log.lock(connection, params)
        if log is None:
            raise NotFound(f"thread {source!r} does not exist", noun="thread", key=source)
        existing = await piece_log.find(connection, new)
        if existing is not None and existing.number != log.number:
            raise AlreadyExists(f"thread {target!r} already exists; delete it first", noun="thread", key=target)
        copy = existing or await piece_log.create(connection, new, log.stamp, log=log.number)
        both = {**params, "thread": log.thread, "target": copy.thread}
        if existing is not None and await queries.own.one(connection, both) is not None:
            message = f"thread {target!r} was changed since it was copied; delete it first"
            raise AlreadyExists(message, noun="thread", key=target)
        await queries.copy.all(connection, both)
        await queries.copy_writes.all(connection, both)
        return len(await queries.ids.all(connection, {**params, "thread": copy.thread}))

    @writes
    async def delete(self, connection: Connection, thread_id: str, *, user: str | None = None) -> int:
        """Remove a thread with everything in it, and return its number of checkpoints; 0 if it does not exist."""
        params = self._thread(thread_id, user)
        log = await piece_log.lock(connection, params)
        return 0 if log is None else await pruning.delete_all(connection, self._scope, params, log)

    @writes
    async def delete_runs(self, connection: Connection, run_ids: Sequence[str], *, user: str | None = None) -> int:
        """Remove the checkpoints of these runs (``metadata["run_id"]``), and return how many were removed.

        Checkpoints that another run's checkpoint needs stay.
        """
        names = validation.names(run_ids, "run ids", self._scope.limits)
        runs = frozenset(validation.text_of(run_id, "run id") for run_id in names)
        params = self._scope.params(run_ids=id_list(sorted(runs), connection.dialect), user_id=self._user(user))
        rules = ancestry.PruningRules(without_runs=runs)
        removed = 0
        for thread_id, user_id in sorted(await queries.threads_of_runs.all(connection, params)):
            thread = self._scope.params(thread_id=thread_id, user_id=user_id)
            removed += await pruning.prune(connection, self._scope, thread, rules)
        return removed

    @writes
    async def prune(
        self,
        connection: Connection,
        thread_ids: Sequence[str],
        *,
        keep: int = 1,
        younger_than_s: int | None = None,
        runs: int | None = None,
        without_past_calls: bool = False,
        user: str | None = None,
    ) -> int:
        """Keep the newest ``keep`` checkpoints of every namespace of these threads, and return how many were removed.

        Checkpoints that a kept checkpoint needs stay as well. With ``keep=0``, all are removed.

        Args:
            younger_than_s: also keep the checkpoints saved in these last seconds.
            runs: also keep the checkpoints of this number of last runs.
            without_past_calls: drop the newest checkpoint of a subgraph call (a namespace such as ``node:<uuid>``) that ended
                before all kept checkpoints of the graph itself.
        """
        rules = ancestry.PruningRules(keep, younger_than_s, runs, without_past_calls=bool(without_past_calls))
        removed = 0
        for thread_id in sorted(set(validation.names(thread_ids, "thread ids", self._scope.limits))):
            removed += await pruning.prune(connection, self._scope, self._thread(thread_id, user), rules)
        return removed

    def _prepare(self, pieces: Sequence[bytes | int | Range]) -> Sequence[NewPiece | int | Range]:
        return [
            piece if type(piece) is int or type(piece) is tuple else piece_log.prepare(self._piece(piece))
            for piece in validation.pieces(pieces, ranges.MAX_POSITIONS)
        ]

    def _piece(self, piece: object) -> bytes:
        body = validation.bytes_of(piece, "a piece")
        self._scope.limits.check("content_bytes", len(body), "piece")
        return body

    def _user(self, user: str | None) -> str:
        return "" if user is None else scopes.name(user, "user", self._scope.limits)

    def _thread(self, thread_id: str, user: str | None) -> dict[str, Any]:
        name = scopes.name(thread_id, "thread id", self._scope.limits, limit="key_bytes")
        return self._scope.params(thread_id=name, user_id=self._user(user))

    def _at(self, thread_id: str, user: str | None, namespace: str, id: str) -> dict[str, Any]:
        limits = self._scope.limits
        ns = "" if namespace == "" else scopes.name(namespace, "namespace", limits, limit="key_bytes")
        return self._thread(thread_id, user) | {
            "checkpoint_ns": ns,
            "checkpoint_id": validation.id_of(id, "checkpoint id", limits),
        }


class Checkpoints(Blocking[AsyncCheckpoints]):
    """The checkpoints of one tenant. The threads of a ``user`` are invisible to other users."""

    put = blocking(AsyncCheckpoints.put)
    put_writes = blocking(AsyncCheckpoints.put_writes)
    find = blocking(AsyncCheckpoints.find)
    history = blocking(AsyncCheckpoints.history)
    list = blocking(AsyncCheckpoints.list)
    verify = blocking(AsyncCheckpoints.verify)
    copy = blocking(AsyncCheckpoints.copy)
    delete = blocking(AsyncCheckpoints.delete)
    delete_runs = blocking(AsyncCheckpoints.delete_runs)
    prune = blocking(AsyncCheckpoints.prune)
