"""Checkpoints: the saved states of a graph, for LangGraph and whatever works like it.

A thread has namespaces (the graph itself and its subgraphs), and each has checkpoints whose ids sort by time. A checkpoint
is some ``state`` and *pieces*, both of them bytes to this store, and what tasks wrote to it before the next one. A piece that
the thread has already is not stored again, whichever checkpoint or write brought it first (see ``piece_log``). So a step costs
what is new in it, a fork or a copy costs nothing, and removing checkpoints removes exactly the pieces nothing needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ....core import scope as scopes
from ....core import text
from ....core.blocking import Blocking, blocking
from ....core.filters import Filter, FilterColumns, equal_metadata, filter_list, id_list
from ....core.paging import Page, rows_to_read
from ....core.queries import Query
from ....core.store import TenantStore, only_reads, reads, writes
from ....engines.dialect import Dialect
from ....engines.protocol import Connection
from ....errors import AlreadyExists, InvalidInput, NotFound
from ...objects import packs
from ...objects.packs import Staged
from . import (
    ancestry,
    channel_marks,
    compact_columns,
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
from .reader import Checkpoint, Held, queries
from .task_writes import Write
from .verification import CheckedThreads
from .writer import NewCheckpoint, NewTask, Stored, Terms

MAX_ANCESTORS = 20_000
"""Ancestors that are walked back to."""

FILTERS = {
    dialect: FilterColumns(
        {
            "thread_id": ("thread_id", "text"),
            "user": ("user_id", "text"),
            "namespace": ("checkpoint_ns", "text"),
            "id": (compact_columns.spelled_id("checkpoint_id", dialect), "text"),
            "parent": (compact_columns.spelled_id("parent_checkpoint_id", dialect), "text"),
            "run_id": ("run_id", "text"),
        },
        metadata=compact_columns.spelled_metadata("metadata", dialect),
    )
    for dialect in Dialect
}


class AsyncCheckpoints(TenantStore):
    """The checkpoints of one tenant. Threads of one ``user`` are not seen by another."""

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
    ) -> Stored:
        """Save a checkpoint; the same id again replaces it. A thread comes into being with its first checkpoint.

        Args:
            pieces: bodies, or places and ranges of places (the first and the last) at which they lie according to an earlier
                answer with this ``stamp``.
            leans: channels without a value here. Ancestors that have the value, or writes that make it up, are kept as long as
                this checkpoint is.
            changed: those of them that changed with this checkpoint: if nothing was written to such a channel and no ancestor has
                a snapshot of it, it is empty and needs no ancestor.
            snapshots: channels whose value here is one that writes to later checkpoints add to.
            only_after_head: only if ``parent`` is the newest checkpoint of the namespace, or none and there is none.
            known_head: with ``only_after_head``, the newest checkpoint may also be this one: a caller that goes on from an older
                checkpoint names the newest it knows.
            lease: only if the caller still holds this run.

        Raises:
            Conflict: ``only_after_head`` was asked for, and another checkpoint is the newest; or the run is not held.
            Fenced: somebody else has claimed the run since.
            Stale: pieces were removed, or a transaction was undone, since the ``stamp`` was given; nothing was changed.
        """
        limits = self._scope.limits
        params = self._at(thread_id, user, namespace, id)
        marks = validation.marks(leans, changed, snapshots, limits)
        params |= {
            "parent_id": None if parent is None else validation.id_of(parent, "parent", limits),
            "metadata": compact_columns.short_metadata(metadata, limits),
            "run_id": validation.run_of(metadata, limits),
            "checkpoint": validation.bytes_of(state, "state"),
            "leans": text.dump(marks) if marks else None,
            "known_head": None if known_head is None else validation.id_of(known_head, "known head", limits),
        }
        if params["parent_id"] == params["checkpoint_id"]:
            raise InvalidInput("a checkpoint is not its own parent")
        head = ranges.head(namespace, id, parent, marks)
        limits.check("content_bytes", len(params["checkpoint"]), "state")
        new = NewCheckpoint(params, head, self._prepared(pieces), only_after_head)
        return await self._save(new, Terms(stamp, lease))

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
    ) -> Stored:
        """Save what a task wrote to the checkpoint ``id``, which may itself come later.

        A task's write with an index from 0 on is kept as it came first; one with a negative index replaces the one before.
        ``stamp`` and ``lease`` are as in ``put``.

        Raises:
            Stale: pieces were removed, or a transaction was undone, since the ``stamp`` was given; nothing was changed.
            Fenced: somebody else has claimed the run of the ``lease`` since.
        """
        limits = self._scope.limits
        params = self._at(thread_id, user, namespace, id) | {
            "task_id": validation.id_of(task_id, "task id", limits),
            "task_path": validation.path_of(task_path, limits),
        }
        checked = validation.checked(validation.names(new, "writes", limits))
        task = NewTask(params, [(write, self._prepared(write.pieces)) for write in checked])
        return await self._save(task, Terms(stamp, lease))

    async def _save(self, new: NewCheckpoint | NewTask, terms: Terms) -> Stored:
        stored = await optimistic.save(self._engine, self._scope, new, terms)
        return stored or await self._save_with(new, terms, await writer.stage(self._engine, self._scope, new))

    @writes
    async def _save_with(
        self, connection: Connection, new: NewCheckpoint | NewTask, terms: Terms, staged: Staged | None
    ) -> Stored:
        return await writer.save(connection, self._scope, new, terms, staged, may_be_undone=self._engine.joined)

    @only_reads
    async def find(
        self,
        thread_id: str,
        *,
        id: str | None = None,
        namespace: str = "",
        user: str | None = None,
        held: Held | None = None,
    ) -> Checkpoint | None:
        """The checkpoint with this id, or the newest, with everything written to it; ``None`` if there is none.

        Raises:
            Corrupt: it is not what was saved.
            Unavailable: some of it lies in packs, and the place where packs are kept cannot be reached.
        """
        query = queries.latest if id is None else queries.exact
        params = self._at(thread_id, user, namespace, "-" if id is None else id)
        found = await self._whole(lambda: self._joined(query, params, held))
        return found[0] if found else None

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
        """A checkpoint or the newest, its parent, and further ancestors while one of ``channels`` has no value there.

        One query finds all of them and what was written to them, and another the pieces, however many there are.

        Args:
            channels: the walk ends at an ancestor that was saved with none of them in ``leans``.
            least: how many ancestors to read in any case, where there are so many.
        """
        query = queries.history_of_latest if id is None else queries.history
        if type(least) is not int or not 0 <= least <= MAX_ANCESTORS:
            raise InvalidInput(f"least is a whole number from 0 to {MAX_ANCESTORS:,}, not {least!r}")
        names = [validation.channel(each) for each in validation.names(channels, "channels", self._scope.limits)]
        params = self._at(thread_id, user, namespace, "-" if id is None else id) | {
            "limit": MAX_ANCESTORS,
            "least": least,
            "marks": id_list(channel_marks.marks_of_leaning(names), self._engine.dialect),
        }
        return await self._whole(lambda: self._joined(query, params, None))

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
        """Checkpoints of a thread, or of all threads, the newest first. With ``limit``, a page.

        Raises:
            InvalidFilter: a filter or the cursor is not understood.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        wanted = _filters(thread_id, self._user(user), namespace)
        params = self._scope.params(limit=rows_to_read(limit, limits))
        filters = [*wanted, *equal_metadata(metadata), *filter_list(where)]
        dialect = self._engine.dialect
        clause = FILTERS[dialect].compile(filters, params, dialect, limits) + reader.after(cursor, params)
        clause += validation.with_id("=", id, params) + validation.with_id("<", before, params)
        return await self._whole(lambda: self._page(params, clause, limit))

    @reads
    async def _page(
        self, connection: Connection, params: dict[str, Any], clause: str, limit: int | None
    ) -> Page[Checkpoint]:
        return await reader.page(connection, self._scope, params, clause, limit)

    @reads
    async def _joined(
        self, connection: Connection, query: Query, params: dict[str, Any], held: Held | None
    ) -> Page[Checkpoint]:
        return Page(await reader.joined(connection, self._scope, query, params, held))

    async def _whole(self, read: Callable[[], Awaitable[Page[Checkpoint]]]) -> Page[Checkpoint]:
        """Checkpoints that are read, with the pieces that lie in packs."""

        async def fetched() -> Page[Checkpoint]:
            found = await read()
            whole = await reader.fetched(self._engine, self._scope, found)
            return found if whole is found else Page(whole, found.next)

        return await packs.settled(fetched)

    @only_reads
    async def verify(self, *, limit: int = 100, after: str | None = None) -> CheckedThreads:
        """Read everything in ``limit`` threads, of all users, and say which checkpoints are damaged, and how.

        Raises:
            Unavailable: some of it lies in packs, and the place where packs are kept cannot be reached.
        """
        rows_to_read(limit, self._scope.limits)
        return await verification.verify(self._engine, self._scope, limit, after)

    @writes
    async def copy(self, connection: Connection, source: str, target: str, *, user: str | None = None) -> int:
        """Copy a thread, with all its checkpoints and writes; how many checkpoints it has. Nothing they consist of is copied.

        Raises:
            NotFound: there is no thread ``source``.
            AlreadyExists: there is a thread ``target``, and it is not a copy of this one, or has checkpoints of its own by now.
        """
        params, new = self._thread(source, user), self._thread(target, user)
        await piece_log.queries.lock_tenant.all(connection, params)
        log = await piece_log.lock(connection, params)
        if log is None:
            raise NotFound(f"there is no thread {source!r} here")
        there = await piece_log.find(connection, new)
        if there is not None and there.number != log.number:
            raise AlreadyExists(f"there is another thread {target!r}; delete it first")
        copied = there or await piece_log.create(connection, new, log.stamp, log=log.number)
        both = {**params, "thread": log.thread, "target": copied.thread}
        if there is not None and await queries.own.one(connection, both) is not None:
            raise AlreadyExists(f"the thread {target!r} has gone its own way since it was copied; delete it first")
        await queries.copy.all(connection, both)
        await queries.copy_writes.all(connection, both)
        return len(await queries.ids.all(connection, {**params, "thread": copied.thread}))

    @writes
    async def delete(self, connection: Connection, thread_id: str, *, user: str | None = None) -> int:
        """Remove a thread with everything in it; how many checkpoints it had. No such thread is fine."""
        params = self._thread(thread_id, user)
        log = await piece_log.lock(connection, params)
        return 0 if log is None else await pruning.delete_all(connection, self._scope, params, log)

    @writes
    async def delete_runs(self, connection: Connection, run_ids: Sequence[str], *, user: str | None = None) -> int:
        """Remove the checkpoints of these runs (``metadata["run_id"]``); how many those were.

        What a checkpoint of another run cannot do without stays.
        """
        runs = {validation.text_of(each, "run id") for each in validation.names(run_ids, "run ids", self._scope.limits)}
        listed_runs = id_list(sorted(runs), connection.dialect)
        params = self._scope.params(run_ids=listed_runs, user_id=self._user(user))
        removed = 0
        for thread_id, user_id in sorted(await queries.threads_of_runs.all(connection, params)):
            at = self._scope.params(thread_id=thread_id, user_id=user_id)
            removed += await pruning.keep(connection, self._scope, at, ancestry.Rules(without_runs=frozenset(runs)))
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
        """Keep the newest ``keep`` checkpoints of every namespace of these threads; how many were removed. With 0, all are.

        What a kept checkpoint cannot do without stays as well.

        Args:
            younger_than_s: keep also what was saved in these last seconds.
            runs: keep also the checkpoints of the last runs, this many.
            without_past_calls: keep no newest one of a call of a subgraph (a namespace such as ``node:<uuid>``) that ended before
                all that is kept of the graph itself.
        """
        rules = ancestry.Rules(keep, younger_than_s, runs, without_past_calls=bool(without_past_calls))
        removed = 0
        for thread_id in sorted(set(validation.names(thread_ids, "thread ids", self._scope.limits))):
            removed += await pruning.keep(connection, self._scope, self._thread(thread_id, user), rules)
        return removed

    def _prepared(self, pieces: Sequence[bytes | int | Range]) -> Sequence[NewPiece | int | Range]:
        return [
            each if type(each) is int or type(each) is tuple else piece_log.prepare(self._piece(each))
            for each in validation.pieces(pieces, ranges.MAX_PLACES)
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
        at = "" if namespace == "" else scopes.name(namespace, "namespace", limits, limit="key_bytes")
        return self._thread(thread_id, user) | {
            "checkpoint_ns": at,
            "checkpoint_id": validation.id_of(id, "checkpoint id", limits),
        }


class Checkpoints(Blocking[AsyncCheckpoints]):
    """The checkpoints of one tenant. Threads of one ``user`` are not seen by another."""

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


def _filters(thread_id: str | None, user: str, namespace: str | None) -> list[Filter]:
    equal = {"thread_id": thread_id, "user": text.unescape(user), "namespace": namespace}
    return [Filter("eq", value, column=name) for name, value in equal.items() if value is not None]
