"""Memories of crews: what CrewAI's agents remember, each memory by itself.

A memory lies in a *scope*, which is a path: what is asked of ``/company`` is asked of ``/company/team`` as well. It is found
by the cosine between its embedding and another of the same size. All embeddings of one user and thread have one size, so that a
search never passes over memories without a word: another size is refused until all memories were embedded again. Memories of one
``user`` are not seen by another, nor are those of one ``thread_id`` seen by the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from string import ascii_lowercase, ascii_uppercase
from typing import Annotated, Any

from msgspec import Struct

from ...clock import to_us
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

PART = 1_000
"""Memories that are compared at a time."""
MAX_OFFSET = 2**31
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
"""The letters a to z alone, as both engines do it to what is stored."""


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
    """The embedding as it is stored."""
    created_at: datetime
    accessed_at: datetime
    """When it was last found or used."""
    updated_at: datetime
    """When it was last saved."""

    @property
    def embedding(self) -> list[float] | None:
        """The embedding, or ``None``."""
        return similarity.unpack(self.packed) or None


class NewCrewMemory(Struct, frozen=True, kw_only=True):
    """A memory to save. Without an embedding it is kept, and never found by one."""

    content: str
    id: str | None = None
    scope: str = "/"
    categories: Sequence[str] = ()
    metadata: Mapping[str, Any] | None = None
    importance: float = 0.5
    source: str | None = None
    is_private: bool = False
    embedding: Sequence[float] | None = None
    created_at: datetime | None = None
    accessed_at: datetime | None = None


class CrewMemoryMatch(Struct, frozen=True):
    """A memory that was searched for; ``score`` is 1 for the same direction and 0 for nothing in common."""

    memory: CrewMemory
    score: float


class MemoryScope(Struct, frozen=True):
    """A scope that has memories of its own."""

    scope: str
    count: int
    oldest_at: datetime
    newest_at: datetime


class _CategoryCount(Struct, frozen=True):
    categories: list[str]
    count: int


queries = Queries(__package__, "crew_memories.sql", CrewMemory)


class AsyncCrewMemories(TenantStore):
    """What the crews of one tenant remember."""

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
        """Save memories, all or none, and return their ids in the same order. A known id replaces the stored memory.

        Args:
            reembedding: accept embeddings of another size than the stored ones, to replace these step by step.

        Raises:
            DimensionMismatch: an embedding has another size than those stored, or than others of this call.
            LimitExceeded: there are more than ``batch_rows``, or one is over a limit.
        """
        limits = self._scope.limits
        if not isinstance(memories, Sequence) or not all(isinstance(each, NewCrewMemory) for each in memories):
            raise InvalidInput("memories come as a list of NewCrewMemory")
        limits.check("batch_rows", len(memories), "memories")
        at = self._at(user, thread_id) | {"now_at": self._scope.clock.now_us()}
        rows = [at | self._stored(each) for each in memories]
        if rows:
            if not reembedding:
                await self._check_dimensions(connection, at, {row["dimensions"] for row in rows if row["dimensions"]})
            await register_tenant(connection, at)
            await queries.save.many(connection, rows)
        return [text.unescape(row["memory_id"]) for row in rows]

    @reads
    async def find(
        self, connection: Connection, id: str, *, user: str | None = None, thread_id: str = ""
    ) -> CrewMemory | None:
        """One memory, or ``None``."""
        memory_id = scopes.name(id, "memory id", self._scope.limits)
        return await _find(connection, self._at(user, thread_id) | {"memory_id": memory_id})

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
        """The memories most like an embedding, the most alike first.

        Args:
            categories: only memories with at least one of these.
            metadata: only memories whose metadata has all of this.

        Raises:
            DimensionMismatch: stored embeddings have another size, so that this one cannot find them.
        """
        packed = similarity.pack(embedding, self._scope.limits)
        _check_search(limit, min_score, self._scope.limits)
        params = self._at(user, thread_id) | {"dimensions": len(packed) // 4, "after": ""}
        params["limit"] = similarity.slice_rows(packed)
        clause = self._inside(scope, params)
        wanted = _category_filter(categories, metadata)
        if not packed:
            return []  # nothing is like no direction, not even what has none
        await self._check_comparable(params)
        fits = (lambda row: wanted(row[2], row[3])) if categories or metadata else None
        best: similarity.Scored = []
        while rows := await self._candidates(params, clause):
            params["after"] = rows[-1][0]
            best = await similarity.rank_best(
                self._engine, packed, rows, best, limit=limit, min_score=min_score, least=0.0, fits=fits
            )
        found = await self._found(params, [id for _, id in best])
        return [CrewMemoryMatch(memory, score) for memory, (score, _) in zip(found, best, strict=True) if memory]

    @reads
    async def _check_comparable(self, connection: Connection, params: dict[str, Any]) -> None:
        await self._check_dimensions(connection, params, {params["dimensions"]})

    @reads
    async def _candidates(self, connection: Connection, params: dict[str, Any], clause: str) -> Sequence[Row]:
        return await queries.candidates.all(connection, params, clause)

    @reads
    async def _found(
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
        """Memories in a scope and below it, the newest first; those whose content has ``containing`` in it, where the case of the
        letters a to z does not count."""
        _check_search(limit, 0, self._scope.limits)
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < MAX_OFFSET:
            raise InvalidInput(f"offset is a whole number from 0 on, not {offset!r}")
        params = self._at(user, thread_id) | {"limit": limit, "offset": offset}
        clause = self._inside(scope, params)
        if containing is not None:
            params["part"] = scopes.free_text(containing, "containing", self._scope.limits).translate(_LOWER)
            place = "strpos" if connection.dialect.native_time else "instr"
            clause += f"\n  AND {place}(lower(content), :part) > 0"
        return mapper(CrewMemory, connection.dialect)(await queries.list.all(connection, params, clause))

    @writes
    async def touch(
        self, connection: Connection, ids: Sequence[str], *, user: str | None = None, thread_id: str = ""
    ) -> int:
        """These memories were used just now; how many there are."""
        params = self._at(user, thread_id) | {"ids": id_list(self._ids(ids), connection.dialect)}
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
        """Remove the memories that fit everything that is given; how many those were. With nothing given, all are removed."""
        params = self._at(user, thread_id)
        clause = self._inside(scope, params)
        if older_than is not None:
            params["older_at"] = _moment(older_than)
            clause += "\n  AND created_at < :older_at"
        if ids is None and not categories and not metadata:
            return len(await queries.delete_all.all(connection, params, clause))
        chosen = None if ids is None else self._ids(ids)
        if categories or metadata:
            fit = await self._matching_ids(connection, dict(params), clause, _category_filter(categories, metadata))
            chosen = fit if chosen is None else [id for id in fit if id in set(chosen)]
        removed = 0
        for start in range(0, len(chosen or ()), PART):
            part = id_list((chosen or [])[start : start + PART], connection.dialect)
            removed += len(await queries.delete.all(connection, params | {"ids": part}, clause))
        return removed

    @reads
    async def scopes(
        self, connection: Connection, *, scope: str | None = None, user: str | None = None, thread_id: str = ""
    ) -> Sequence[MemoryScope]:
        """The scopes that have memories of their own, by name: this one and those below it, or all."""
        params = self._at(user, thread_id)
        rows = await queries.scopes.all(connection, params, self._inside(scope, params))
        return mapper(MemoryScope, connection.dialect)(rows)

    @reads
    async def categories(
        self, connection: Connection, *, scope: str | None = None, user: str | None = None, thread_id: str = ""
    ) -> Mapping[str, int]:
        """How many memories have each category."""
        params = self._at(user, thread_id)
        rows = await queries.categories.all(connection, params, self._inside(scope, params))
        counts: dict[str, int] = {}
        for each in mapper(_CategoryCount, connection.dialect)(rows):
            for category in dict.fromkeys(each.categories):
                counts[category] = counts.get(category, 0) + each.count
        return dict(sorted(counts.items()))

    @reads
    async def dimensions(
        self, connection: Connection, *, scope: str | None = None, user: str | None = None, thread_id: str = ""
    ) -> Mapping[int, int]:
        """How many memories have embeddings of how many dimensions, most of them first."""
        params = self._at(user, thread_id)
        rows = await queries.dimensions.all(connection, params, self._inside(scope, params))
        return {int(dimensions): int(count) for dimensions, count in rows}

    async def _check_dimensions(self, connection: Connection, params: dict[str, Any], given: set[int]) -> None:
        """Refuse embeddings of another size than those stored, or of several sizes."""
        if not given:
            return
        first, *others = sorted(given)
        row = await queries.other_dimensions.one(connection, params | {"dimensions": first})
        stored = others[0] if others else row[0] if row else None
        if stored is not None:
            raise DimensionMismatch(
                f"the embedding has {first} dimensions and others have {stored}: use the model that made those, "
                "or embed all memories again with the new one",
                stored=stored,
                given=first,
            )

    async def _matching_ids(
        self, connection: Connection, params: dict[str, Any], clause: str, wanted: Callable[[str, str], bool]
    ) -> Sequence[str]:
        found = []
        params |= {"after": "", "limit": PART}
        while rows := await queries.chosen.all(connection, params, clause):
            params["after"] = rows[-1][0]
            found += [row[0] for row in rows if wanted(row[1], row[2])]
        return found

    def _stored(self, memory: NewCrewMemory) -> dict[str, Any]:
        """A memory, checked and in the form that is stored."""
        limits, now = self._scope.limits, self._scope.clock.now_us()
        packed = similarity.pack(memory.embedding, limits)
        source = memory.source
        return {
            "memory_id": scopes.name(memory.id or self._scope.ids.new(), "memory id", limits),
            "content": scopes.free_text(memory.content, "content", limits, limit="content_bytes"),
            "scope": _path(memory.scope, limits),
            "categories": _categories(memory.categories, limits),
            "metadata": scopes.metadata(memory.metadata, limits),
            "importance": _importance(memory.importance),
            "source": None if source is None else scopes.free_text(source, "source", limits, limit="key_bytes"),
            "is_private": bool(memory.is_private),
            "embedding": packed,
            "dimensions": len(packed) // 4,
            "created_at": now if memory.created_at is None else _moment(memory.created_at),
            "accessed_at": now if memory.accessed_at is None else _moment(memory.accessed_at),
        }

    def _inside(self, scope: str | None, params: dict[str, Any]) -> str:
        """The condition that a memory lies in a scope or below it."""
        path = "/" if scope is None else _path(scope, self._scope.limits)
        if path == "/":
            return ""
        params.update(scope=path, below=f"{path}/", beyond=f"{path}0")  # 0 comes right after the slash
        return "\n  AND (scope = :scope OR (scope >= :below AND scope < :beyond))"

    def _ids(self, ids: Sequence[str]) -> Sequence[str]:
        if isinstance(ids, str) or not isinstance(ids, Sequence):
            raise InvalidInput("ids come as a list")
        self._scope.limits.check("batch_rows", len(ids), "ids")
        return [scopes.name(each, "memory id", self._scope.limits) for each in ids]

    def _at(self, user: str | None, thread_id: str) -> dict[str, Any]:
        limits = self._scope.limits
        return self._scope.params(
            user_id="" if user is None else scopes.name(user, "user", limits),
            thread_id=scopes.free_text(thread_id, "thread id", limits, limit="key_bytes"),
        )


class CrewMemories(Blocking[AsyncCrewMemories]):
    """What the crews of one tenant remember."""

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
    """Whether a memory with these categories and this metadata, as they are stored, is wanted."""
    if isinstance(categories, str) or not isinstance(categories, Sequence):
        raise InvalidInput("categories come as a list")
    if not all(isinstance(each, str) for each in categories):
        raise InvalidInput("categories are texts")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidInput("metadata to choose by is a dictionary")
    any_of, all_of = set(categories), dict(metadata or {})

    def wanted(tags: str, stored: str) -> bool:
        if any_of and not any_of & set(text.load(tags)):
            return False
        there = text.load(stored) if all_of else {}
        return all(key in there and text.identical(there[key], value) for key, value in all_of.items())

    return wanted


def _check_search(limit: int, min_score: float, limits: Limits) -> None:
    if limit is None or isinstance(min_score, bool) or not isinstance(min_score, (int, float)):
        raise InvalidInput(f"limit is a whole number from 1 on and min_score a number, not {limit!r} and {min_score!r}")
    rows_to_read(limit, limits)


def _path(scope: object, limits: Limits) -> str:
    if not isinstance(scope, str):
        raise InvalidInput(f"scope must be a path such as /company/team, not {type(scope).__name__}")
    inner = scope.strip("/")
    return "/" if not inner else scopes.name(f"/{inner}", "scope", limits, limit="key_bytes")


def _categories(categories: object, limits: Limits) -> str:
    if isinstance(categories, str) or not isinstance(categories, Sequence):
        raise InvalidInput("categories come as a list")
    if not all(isinstance(each, str) for each in categories):
        raise InvalidInput("categories are texts")
    stored = text.dump(list(categories))
    limits.check("metadata_bytes", text.size(stored), "categories")
    return stored


def _importance(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InvalidInput(f"importance is a number from 0 to 1, not {value!r}")
    return float(value)


def _moment(value: object) -> int:
    """A moment in microseconds; one without a zone is in UTC."""
    if not isinstance(value, datetime):
        raise InvalidInput(f"a moment is a datetime, not {type(value).__name__}")
    return to_us(value if value.tzinfo else value.replace(tzinfo=UTC))
