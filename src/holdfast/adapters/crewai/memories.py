"""``HoldfastMemory``: what crews remember, every memory by itself."""

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

from ..lazy_handle import Place

PART = 500
"""Memories that are written, or embedded anew, at a time."""


class HoldfastMemory:
    """Keeps memories, for ``Memory(storage=...)``.

    Memories are found by the cosine of their embeddings. All memories of one place have embeddings of one size: after a change
    of the embedding model, ``save`` and ``search`` raise ``EmbeddingDimensionMismatchError`` until ``reembed`` has run.

    Args:
        where: a path, ``sqlite:///path`` or ``postgresql://...``, which is opened when it is first needed; or the handle of a
            tenant, ``hf.tenant("acme")``, which stays yours.
        tenant: whose memories, where ``where`` is an address.
        user: keeps the memories of this user apart from everybody else's in the tenant.
        thread_id: keeps the memories of this conversation apart from those of others.
    """

    def __init__(
        self, where: str | TenantHandle, *, tenant: str = "default", user: str | None = None, thread_id: str = ""
    ) -> None:
        self._place = Place(where, tenant)
        self._at: dict[str, Any] = {"user": user, "thread_id": thread_id}

    def save(self, records: list[MemoryRecord]) -> None:
        """Save memories, ``PART`` in one transaction; a memory with a known id replaces the stored one.

        Raises:
            EmbeddingDimensionMismatchError: the embeddings have another size than the stored ones.
        """
        self._save(records)

    def _save(self, records: list[MemoryRecord], *, reembedding: bool = False) -> None:
        new = [_new(each) for each in records]
        most = min(PART, self._place.handle.limits.batch_rows)
        for start in range(0, len(new), most):
            try:
                self._store().save(new[start : start + most], reembedding=reembedding, **self._at)
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
        """The memories most like an embedding, each with a score from 0 to 1.

        Raises:
            EmbeddingDimensionMismatchError: stored embeddings have another size than this one.
        """
        store, embedding = self._store(), [float(each) for each in query_embedding]
        if limit < 1 or not embedding:
            return []
        try:
            found = store.search(
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
        return [(_record(each.memory), each.score) for each in found]

    def delete(
        self,
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        record_ids: list[str] | None = None,
        older_than: datetime | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> int:
        """Remove the memories that fit everything that is given; how many those were."""
        return self._store().delete(
            scope=scope_prefix,
            categories=categories or (),
            ids=record_ids,
            older_than=older_than,
            metadata=metadata_filter,
            **self._at,
        )

    def touch_records(self, record_ids: list[str]) -> None:
        """These memories were used just now."""
        self._store().touch(record_ids, **self._at)

    def get_record(self, record_id: str) -> MemoryRecord | None:
        """One memory, or ``None``."""
        found = self._store().find(record_id, **self._at)
        return None if found is None else _record(found)

    def list_records(self, scope_prefix: str | None = None, limit: int = 200, offset: int = 0) -> list[MemoryRecord]:
        """Memories of a scope and below it, the newest first."""
        found: list[MemoryRecord] = []
        while len(found) < limit and offset >= 0:
            part = min(self._place.handle.limits.page(PART), limit - len(found))
            at = offset + len(found)
            page = self._store().list(scope=scope_prefix, limit=part, offset=at, **self._at)
            found += map(_record, page)
            if len(page) < part:
                break
        return found

    def get_scope_info(self, scope: str) -> ScopeInfo:
        """How many memories a scope has, with those below it, and what they are about."""
        path = _path(scope)
        scopes = self._store().scopes(scope=path, **self._at)
        return ScopeInfo(
            path=path,
            record_count=sum(each.count for each in scopes),
            categories=list(self._store().categories(scope=path, **self._at)),
            oldest_record=_naive(min(each.oldest_at for each in scopes)) if scopes else None,
            newest_record=_naive(max(each.newest_at for each in scopes)) if scopes else None,
            child_scopes=_children(path, [each.scope for each in scopes]),
        )

    def list_scopes(self, parent: str = "/") -> list[str]:
        """The scopes right below one."""
        path = _path(parent)
        return _children(path, [each.scope for each in self._store().scopes(scope=path, **self._at)])

    def list_categories(self, scope_prefix: str | None = None) -> dict[str, int]:
        """How many memories have each category."""
        return dict(self._store().categories(scope=scope_prefix, **self._at))

    def count(self, scope_prefix: str | None = None) -> int:
        """How many memories a scope has, with those below it."""
        return sum(each.count for each in self._store().scopes(scope=scope_prefix, **self._at))

    def reset(self, scope_prefix: str | None = None) -> None:
        """Remove all memories of a scope and below it, or all."""
        self._store().delete(scope=scope_prefix, **self._at)

    def reembed(self, embedder: Callable[[list[str]], Any]) -> int:
        """Embed all memories again with the current model and return their number. A run that was killed can be repeated."""
        done, most = 0, self._place.handle.limits.page(PART)
        while page := self._store().list(limit=most, offset=done, **self._at):
            vectors = embed_texts(embedder, [each.content for each in page])
            records = [_record(each, vector) for each, vector in zip(page, vectors, strict=True)]
            self._save(records, reembedding=True)
            done += len(page)
        return done

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
        asked = (query_embedding, scope_prefix, categories, metadata_filter, limit, min_score)
        return await asyncio.to_thread(self.search, *asked)

    async def adelete(
        self,
        scope_prefix: str | None = None,
        categories: list[str] | None = None,
        record_ids: list[str] | None = None,
        older_than: datetime | None = None,
        metadata_filter: dict[str, Any] | None = None,
    ) -> int:
        """``delete`` for asyncio."""
        asked = (scope_prefix, categories, record_ids, older_than, metadata_filter)
        return await asyncio.to_thread(self.delete, *asked)

    def close(self) -> None:
        """Let go of the database, if it was opened here. It is opened again when it is needed."""
        self._place.close()

    def _store(self) -> CrewMemories:
        return self._place.handle.crew_memories


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
        embedding=None if not record.embedding else [float(each) for each in record.embedding],
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
    """A moment in UTC without saying so, which is what CrewAI compares with."""
    return moment.astimezone(UTC).replace(tzinfo=None)


def _path(scope: str) -> str:
    return "/" + scope.strip("/")


def _children(path: str, scopes: Sequence[str]) -> list[str]:
    below = path.rstrip("/") + "/"
    names = {each[len(below) :].partition("/")[0] for each in scopes if each.startswith(below)}
    return sorted(below + name for name in names if name)
