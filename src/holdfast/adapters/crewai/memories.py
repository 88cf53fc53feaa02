"""``HoldfastMemory``: stores the memories of crews."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from crewai.memory.storage.backend import EmbeddingDimensionMismatchError
from crewai.memory.types import MemoryRecord, ScopeInfo, embed_texts

from holdfast import NewCrewMemory, TenantHandle
from holdfast.errors import DimensionMismatch
from holdfast.types import CrewMemories, CrewMemory

from ..lazy_handle import LazyHandle

PART = 500
"""Memories that are written or re-embedded in one batch."""


class HoldfastMemory:
    """Stores memories, for ``Memory(storage=...)``.

    Memories are searched by the cosine similarity of their embeddings. All embeddings must have the same size: after a change
    of the embedding model, ``save`` and ``search`` raise ``EmbeddingDimensionMismatchError`` until ``reembed`` has run.

    Args:
        where: a path, ``sqlite:///path`` or ``postgresql://...``, which is opened on first use; or the handle of a tenant,
            ``hf.tenant("acme")``, which you close yourself.
        tenant: the tenant, if ``where`` is an address.
        user: separates the memories of this user from those of other users of the tenant.
        thread_id: separates the memories of this conversation from those of other conversations.
    """

    def __init__(
        self, where: str | TenantHandle, *, tenant: str = "default", user: str | None = None, thread_id: str = ""
    ) -> None:
        self._lazy = LazyHandle(where, tenant)
        self._at: dict[str, Any] = {"user": user, "thread_id": thread_id}

    def save(self, records: list[MemoryRecord]) -> None:
        """Save memories, ``PART`` in one transaction. A memory with an existing id replaces the stored one.

        Raises:
            EmbeddingDimensionMismatchError: the embeddings do not have the size of the stored ones.
        """
        self._save(records)

    def _save(self, records: list[MemoryRecord], *, reembedding: bool = False) -> None:
        new = [_new(record) for record in records]
        batch_rows = min(PART, self._lazy.handle.limits.batch_rows)
        for start in range(0, len(new), batch_rows):
            try:
                self._store().save(new[start : start + batch_rows], reembedding=reembedding, **self._at)
            except DimensionMismatch as error:
                raise EmbeddingDimensionMismatchError(error.stored, error.given) from error

    def update(self, record: MemoryRecord) -> None:
        """Replace a memory."""
        self.save([record])

    def search(
        self,
        query_embedding: list[float],
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        metadata_filter: dict[str, Any] | None = None,
        limit: int = 10,
        min_score: float = 0.0,
    ) -> list[tuple[MemoryRecord, float]]:
        """Return the memories most similar to an embedding, each with a score from 0 to 1.

        Raises:
            EmbeddingDimensionMismatchError: the embedding does not have the size of the stored ones.
        """
        store, embedding = self._store(), [float(component) for component in query_embedding]
        if limit < 1 or not embedding:
            return []
        try:
            hits = store.search(
                embedding,
                scope=scope_prefix,
                categories=categories or (),
                metadata=metadata_filter,
                limit=limit,
                min_score=min_score,
                **self._at,
            )
        except DimensionMismatch as error:
            raise EmbeddingDimensionMismatchError(error.stored, error.given) from error
        return [(_record(hit.memory), hit.score) for hit in hits]

    def delete(
        self,
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        record_ids: list[str] | None = None,
        older_than: datetime | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> int:
        """Delete the memories that match all given conditions, and return their number."""
        return self._store().delete(
            scope=scope_prefix,
            categories=categories or (),
            ids=record_ids,
            older_than=older_than,
            metadata=metadata_filter,
            **self._at,
        )

    def touch_records(self, record_ids: list[str]) -> None:
        """Set the time of last access of memories to now."""
        self._store().touch(record_ids, **self._at)

    def get_record(self, record_id: str) -> MemoryRecord | None:
        """Return a memory, or ``None``."""
        memory = self._store().find(record_id, **self._at)
        return None if memory is None else _record(memory)

    def list_records(self, scope_prefix: str | None = None, limit: int = 200, offset: int = 0) -> list[MemoryRecord]:
        """Return the memories of a scope and the scopes below it, newest first."""
        records: list[MemoryRecord] = []
        while len(records) < limit and offset >= 0:
            rows = min(self._lazy.handle.limits.page(PART), limit - len(records))
            at = offset + len(records)
            page = self._store().list(scope=scope_prefix, limit=rows, offset=at, **self._at)
            records += map(_record, page)
            if len(page) < rows:
                break
        return records

    def get_scope_info(self, scope: str) -> ScopeInfo:
        """Return the number, categories, time range and child scopes of the memories of a scope and the scopes below it."""
        path = _path(scope)
        scopes = self._store().scopes(scope=path, **self._at)
        return ScopeInfo(
            path=path,
            record_count=sum(row.count for row in scopes),
            categories=list(self._store().categories(scope=path, **self._at)),
            oldest_record=_naive(min(row.oldest_at for row in scopes)) if scopes else None,
            newest_record=_naive(max(row.newest_at for row in scopes)) if scopes else None,
            child_scopes=_children(path, [row.scope for row in scopes]),
        )

    def list_scopes(self, parent: str = "/") -> list[str]:
        """Return the direct children of a scope."""
        path = _path(parent)
        return _children(path, [row.scope for row in self._store().scopes(scope=path, **self._at)])

    def list_categories(self, scope_prefix: str | None = None) -> dict[str, int]:
        """Return the number of memories of each category."""
        return dict(self._store().categories(scope=scope_prefix, **self._at))

    def count(self, scope_prefix: str | None = None) -> int:
        """Return the number of memories of a scope and the scopes below it."""
        return sum(row.count for row in self._store().scopes(scope=scope_prefix, **self._at))

    def reset(self, scope_prefix: str | None = None) -> None:
        """Delete all memories of a scope and the scopes below it, or all memories."""
        self._store().delete(scope=scope_prefix, **self._at)

    def reembed(self, embedder: Callable[[list[str]], Any]) -> int:
        """Re-embed all memories with the current model, and return their number. An interrupted run can be repeated."""
        count, rows = 0, self._lazy.handle.limits.page(PART)
        while page := self._store().list(limit=rows, offset=count, **self._at):
            vectors = embed_texts(embedder, [memory.content for memory in page])
            records = [_record(memory, vector) for memory, vector in zip(page, vectors, strict=True)]
            self._save(records, reembedding=True)
            count += len(page)
        return count

    async def asave(self, records: list[MemoryRecord]) -> None:
        """``save`` for asyncio."""
        await asyncio.to_thread(self.save, records)

    async def asearch(
        self,
        query_embedding: list[float],
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        metadata_filter: dict[str, Any] | None = None,
        limit: int = 10,
        min_score: float = 0.0,
    ) -> list[tuple[MemoryRecord, float]]:
        """``search`` for asyncio."""
        arguments = (query_embedding, scope_prefix, categories, metadata_filter, limit, min_score)
        return await asyncio.to_thread(self.search, *arguments)

    async def adelete(
        self,
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        record_ids: list[str] | None = None,
        older_than: datetime | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> int:
        """``delete`` for asyncio."""
        arguments = (scope_prefix, categories, record_ids, older_than, metadata_filter)
        return await asyncio.to_thread(self.delete, *arguments)

    def close(self) -> None:
        """Close the database, if it was opened here. The next call opens it again."""
        self._lazy.close()

    def _store(self) -> CrewMemories:
        return self._lazy.handle.crew_memories


def _new(record: MemoryRecord) -> NewCrewMemory:
    return NewCrewMemory(
        id=record.id,
        content=record.content,
        scope=record.scope,
        categories=record.categories,
        metadata=record.metadata,
        importance=record.importance,
        source=record.source,
        is_private=record.private,
        embedding=None if not record.embedding else [float(component) for component in record.embedding],
        created_at=record.created_at,
        accessed_at=record.last_accessed,
    )


def _record(memory: CrewMemory, embedding: list[float] | None = None) -> MemoryRecord:
    return MemoryRecord(
        id=memory.id,
        content=memory.content,
        scope=memory.scope,
        categories=memory.categories,
        metadata=memory.metadata,
        importance=memory.importance,
        created_at=_naive(memory.created_at),
        last_accessed=_naive(memory.accessed_at),
        embedding=embedding or memory.embedding,
        source=memory.source,
        private=memory.is_private,
    )


def _naive(moment: datetime) -> datetime:
    """Convert to a naive datetime in UTC, which is what CrewAI compares with."""
    return moment.astimezone(UTC).replace(tzinfo=None)


def _path(scope: str) -> str:
    return "/" + scope.strip("/")


def _children(path: str, scopes: Sequence[str]) -> list[str]:
    below = path.rstrip("/") + "/"
    names = {scope[len(below) :].partition("/")[0] for scope in scopes if scope.startswith(below)}
    return sorted(below + name for name in names if name)
