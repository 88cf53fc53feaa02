"""Memories of crews: the memories of CrewAI's agents, stored one by one.

A memory is in a *scope*, which is a path: a query for ``/company`` includes ``/company/team``. A search compares embeddings by
cosine similarity. All embeddings of one user and thread have the same number of dimensions, so that a search never silently
skips memories: embeddings of another size raise ``DimensionMismatch``, unless all memories are being embedded again. Memories
are separate for each ``user`` and each ``thread_id``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from string import ascii_lowercase, ascii_uppercase
from typing import Annotated, Any

from msgspec import Struct

from ...core import scope as scopes
from ...core import text
from ...core.blocking import Blocking, blocking
from ...core.filters import id_list
from ...core.paging import rows_to_read
from ...core.queries import Queries
from ...core.registration import register_tenant
from ...core.rows import Column, mapper
from ...core.store import TenantStore, only_reads, reads, writes
from ...engines.protocol import Connection, Row
from ...errors import DimensionMismatch, InvalidInput
from ...limits import Limits
from . import similarity
from .new_crew_memories import NewCrewMemory, check_categories, new_row, scope_path, time_us

SLICE_ROWS = 1_000
"""Memories that are filtered or deleted per query."""
MAX_OFFSET = 2**31
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
"""Lowers only the letters A to Z, like ``lower`` of both engines."""


class CrewMemory(Struct, frozen=True):
    """One memory."""

    id: Annotated[str, Column("memory_id")]
    content: str
    scope: str
    categories: list[str]
    metadata: dict[str, Any]
    importance: float
    source: str | None
    is_private: bool
    packed: Annotated[bytes, Column("embedding")]
    """The embedding as 32-bit floats."""
    created_at: datetime
    accessed_at: datetime
    """When the memory was last marked as used by ``touch``."""
    updated_at: datetime
    """When the memory was last saved."""

    @property
    def embedding(self) -> list[float] | None:
        """The embedding, or ``None``."""
        return similarity.unpack(self.packed) or None


class CrewMemoryMatch(Struct, frozen=True):
    """A memory that a search has found. ``score`` is the cosine similarity: 1 for the same direction, 0 for orthogonal ones."""

    memory: CrewMemory
    score: float


class MemoryScope(Struct, frozen=True):
    """A scope that directly contains memories."""

    scope: str
    count: int
    oldest_at: datetime
    newest_at: datetime


class _CategoryCount(Struct, frozen=True):
    categories: list[str]
    count: int


queries = Queries(__package__, "crew_memories.sql", CrewMemory)


class AsyncCrewMemories(TenantStore):
    """The memories of one tenant's crews."""

    @writes
    async def save(
        self,
        connection: Connection,
        memories: Sequence[NewCrewMemory],
        *,
        reembedding: bool = False,
        user: str | None = None,
        thread_id: str = "",
    ) -> Sequence[str]:
        """Save memories, all or none, and return their ids in the same order. A memory with an existing id is replaced.

        Args:
            reembedding: accept embeddings of another size than the stored ones, to replace those step by step.

        Raises:
            DimensionMismatch: an embedding has another size than the stored ones, or than others of this call.
            LimitExceeded: there are more than ``batch_rows`` memories, or one is over a limit.
        """
        limits = self._scope.limits
        if not isinstance(memories, Sequence) or not all(isinstance(memory, NewCrewMemory) for memory in memories):
            raise InvalidInput("memories must be a list of NewCrewMemory", field="memories")
        limits.check("batch_rows", len(memories), "memories")
        params = self._params(user, thread_id) | {"now_at": self._scope.clock.now_us()}
        rows = [params | new_row(self._scope, memory) for memory in memories]
        if rows:
            if not reembedding:
                await self._check_dimensions(
                    connection, params, {row["dimensions"] for row in rows if row["dimensions"]}
                )
            await register_tenant(connection, params)
            await queries.save.many(connection, rows)
        return [text.unescape(row["memory_id"]) for row in rows]

    @reads
    async def find(
        self, connection: Connection, id: str, *, user: str | None = None, thread_id: str = ""
    ) -> CrewMemory | None:
        """Return one memory, or ``None``."""
        memory_id = scopes.name(id, "memory id", self._scope.limits)
        return await _find(connection, self._params(user, thread_id) | {"memory_id": memory_id})

    @only_reads
    async def search(
        self,
        embedding: Sequence[float],
        *,
        scope: str | None = None,
        categories: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        limit: int = 10,
        min_score: float = 0.0,
        user: str | None = None,
        thread_id: str = "",
    ) -> Sequence[CrewMemoryMatch]:
        """Search memories by similarity to an embedding, most similar first.

        Args:
            categories: only memories with at least one of these.
            metadata: only memories whose metadata contains all of these keys and values.

        Raises:
            DimensionMismatch: stored embeddings have another size.
        """
        packed = similarity.pack(embedding, self._scope.limits)
        _check_search(limit, min_score, self._scope.limits)
        params = self._params(user, thread_id) | {"dimensions": len(packed) // 4, "after": ""}
        params["limit"] = similarity.slice_rows(packed)
        clause = self._scope_condition(scope, params)
        matches = _category_filter(categories, metadata)
        if not packed:
            return []  # an empty embedding is similar to none
        await self._check_comparable(params)
        row_filter = (lambda row: matches(row[2], row[3])) if categories or metadata else None
        best: similarity.Scored = []
        while rows := await self._candidates(params, clause):
            params["after"] = rows[-1][0]
            best = await similarity.rank_best(
                self._engine, packed, rows, best, limit=limit, min_score=min_score, least=0.0, fits=row_filter
            )
        memories = await self._find_all(params, [id for _, id in best])
        return [CrewMemoryMatch(memory, score) for memory, (score, _) in zip(memories, best, strict=True) if memory]

    @reads
    async def _check_comparable(self, connection: Connection, params: dict[str, Any]) -> None:
        await self._check_dimensions(connection, params, {params["dimensions"]})

    @reads
    async def _candidates(self, connection: Connection, params: dict[str, Any], clause: str) -> Sequence[Row]:
        return await queries.candidates.all(connection, params, clause)

    @reads
    async def _find_all(
        self, connection: Connection, params: dict[str, Any], ids: Sequence[str]
    ) -> Sequence[CrewMemory | None]:
        return [await _find(connection, params | {"memory_id": id}) for id in ids]

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        scope: str | None = None,
        containing: str | None = None,
        limit: int = 200,
        offset: int = 0,
        user: str | None = None,
        thread_id: str = "",
    ) -> Sequence[CrewMemory]:
        """List memories in a scope and below it, newest first.

        Args:
            containing: only memories whose content contains this text, ignoring the case of the letters a to z.
        """
        _check_search(limit, 0, self._scope.limits)
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < MAX_OFFSET:
            raise InvalidInput(
                f"offset must be a whole number from 0 to {MAX_OFFSET - 1:,}, not {offset!r}", field="offset"
            )
        params = self._params(user, thread_id) | {"limit": limit, "offset": offset}
        clause = self._scope_condition(scope, params)
        if containing is not None:
            params["part"] = scopes.free_text(containing, "containing", self._scope.limits).translate(_LOWER)
            position_function = "strpos" if connection.dialect.native_time else "instr"
            clause += f"\n  AND {position_function}(lower(content), :part) > 0"
        return mapper(CrewMemory, connection.dialect)(await queries.list.all(connection, params, clause))

    @writes
    async def touch(
        self, connection: Connection, ids: Sequence[str], *, user: str | None = None, thread_id: str = ""
    ) -> int:
        """Mark memories as used now; return how many of them exist."""
        params = self._params(user, thread_id) | {"ids": id_list(self._ids(ids), connection.dialect)}
        return len(await queries.touch.all(connection, params | {"now_at": self._scope.clock.now_us()}))

    @writes
    async def delete(
        self,
        connection: Connection,
        *,
        scope: str | None = None,
        ids: Sequence[str] | None = None,
        categories: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        older_than: datetime | None = None,
        user: str | None = None,
        thread_id: str = "",
    ) -> int:
        """Delete the memories that match all given conditions; return how many. Without conditions, delete all."""
        params = self._params(user, thread_id)
        clause = self._scope_condition(scope, params)
        if older_than is not None:
            params["older_at"] = time_us(older_than)
            clause += "\n  AND created_at < :older_at"
        if ids is None and not categories and not metadata:
            return len(await queries.delete_all.all(connection, params, clause))
        chosen_ids = None if ids is None else self._ids(ids)
        if categories or metadata:
            matching_ids = await self._matching_ids(
                connection, dict(params), clause, _category_filter(categories, metadata)
            )
            chosen_ids = matching_ids if chosen_ids is None else [id for id in matching_ids if id in set(chosen_ids)]
        removed = 0
        for start in range(0, len(chosen_ids or ()), SLICE_ROWS):
            id_slice = id_list((chosen_ids or [])[start : start + SLICE_ROWS], connection.dialect)
            removed += len(await queries.delete.all(connection, params | {"ids": id_slice}, clause))
        return removed

    @reads
    async def scopes(
        self, connection: Connection, *, scope: str | None = None, user: str | None = None, thread_id: str = ""
    ) -> Sequence[MemoryScope]:
        """List the scopes that directly contain memories, by name: ``scope`` and those below it, or all."""
        params = self._params(user, thread_id)
        rows = await queries.scopes.all(connection, params, self._scope_condition(scope, params))
        return mapper(MemoryScope, connection.dialect)(rows)

    @reads
    async def categories(
        self, connection: Connection, *, scope: str | None = None, user: str | None = None, thread_id: str = ""
    ) -> Mapping[str, int]:
        """Return the number of memories of each category."""
        params = self._params(user, thread_id)
        rows = await queries.categories.all(connection, params, self._scope_condition(scope, params))
        counts: dict[str, int] = {}
        for row in mapper(_CategoryCount, connection.dialect)(rows):
            for category in dict.fromkeys(row.categories):
                counts[category] = counts.get(category, 0) + row.count
        return dict(sorted(counts.items()))

    @reads
    async def dimensions(
        self, connection: Connection, *, scope: str | None = None, user: str | None = None, thread_id: str = ""
    ) -> Mapping[int, int]:
        """Return the number of memories by the dimensions of their embeddings, the most frequent first."""
        params = self._params(user, thread_id)
        rows = await queries.dimensions.all(connection, params, self._scope_condition(scope, params))
        return {int(dimensions): int(count) for dimensions, count in rows}

    async def _check_dimensions(self, connection: Connection, params: dict[str, Any], sizes: set[int]) -> None:
        """Raise ``DimensionMismatch`` for embeddings of another size than the stored ones, or of several sizes."""
        if not sizes:
            return
        first, *others = sorted(sizes)
        row = await queries.other_dimensions.one(connection, params | {"dimensions": first})
        other_size = others[0] if others else row[0] if row else None
        if other_size is not None:
            raise DimensionMismatch(
                f"the embedding has {first} dimensions, but other memories have {other_size}: use the model that made those,"
                " or embed all memories again with the new one",
                field="embedding",
                stored=other_size,
                given=first,
            )

    async def _matching_ids(
        self, connection: Connection, params: dict[str, Any], clause: str, matches: Callable[[str, str], bool]
    ) -> Sequence[str]:
        ids = []
        params |= {"after": "", "limit": SLICE_ROWS}
        while rows := await queries.chosen.all(connection, params, clause):
            params["after"] = rows[-1][0]
            ids += [row[0] for row in rows if matches(row[1], row[2])]
        return ids

    def _scope_condition(self, scope: str | None, params: dict[str, Any]) -> str:
        """Return the SQL condition that a memory is in a scope or below it."""
        path = "/" if scope is None else scope_path(scope, self._scope.limits)
        if path == "/":
            return ""
        params.update(scope=path, below=f"{path}/", beyond=f"{path}0")  # 0 is the next character after the slash
        return "\n  AND (scope = :scope OR (scope >= :below AND scope < :beyond))"

    def _ids(self, ids: Sequence[str]) -> Sequence[str]:
        if isinstance(ids, str) or not isinstance(ids, Sequence):
            raise InvalidInput("ids must be a list", field="ids")
        self._scope.limits.check("batch_rows", len(ids), "ids")
        return [scopes.name(id, "memory id", self._scope.limits) for id in ids]

    def _params(self, user: str | None, thread_id: str) -> dict[str, Any]:
        limits = self._scope.limits
        return self._scope.params(
            user_id="" if user is None else scopes.name(user, "user", limits),
            thread_id=scopes.free_text(thread_id, "thread id", limits, limit="key_bytes"),
        )


class CrewMemories(Blocking[AsyncCrewMemories]):
    """The memories of one tenant's crews."""

    save = blocking(AsyncCrewMemories.save)
    find = blocking(AsyncCrewMemories.find)
    search = blocking(AsyncCrewMemories.search)
    list = blocking(AsyncCrewMemories.list)
    touch = blocking(AsyncCrewMemories.touch)
    delete = blocking(AsyncCrewMemories.delete)
    scopes = blocking(AsyncCrewMemories.scopes)
    categories = blocking(AsyncCrewMemories.categories)
    dimensions = blocking(AsyncCrewMemories.dimensions)


async def _find(connection: Connection, params: dict[str, Any]) -> CrewMemory | None:
    row: Row | None = await queries.get.one(connection, params)
    return None if row is None else mapper(CrewMemory, connection.dialect)([row])[0]


def _category_filter(categories: Sequence[str], metadata: Mapping[str, Any] | None) -> Callable[[str, str], bool]:
    """Return a filter over stored categories and stored metadata."""
    check_categories(categories)
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidInput("metadata must be a dictionary", field="metadata")
    any_of, all_of = set(categories), dict(metadata or {})

    def matches(stored_categories: str, stored_metadata: str) -> bool:
        if any_of and not any_of & set(text.load(stored_categories)):
            return False
        stored_values = text.load(stored_metadata) if all_of else {}
        return all(key in stored_values and text.identical(stored_values[key], value) for key, value in all_of.items())

    return matches


def _check_search(limit: int, min_score: float, limits: Limits) -> None:
    if limit is None or isinstance(min_score, bool) or not isinstance(min_score, (int, float)):
        raise InvalidInput(
            f"limit must be a whole number from 1 on and min_score a number, not {limit!r} and {min_score!r}",
            field="limit",
        )
    rows_to_read(limit, limits)
