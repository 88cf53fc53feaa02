"""Memories of agents: facts that an agent has learned about a user, with an expiry time.

A search compares embeddings with the same number of dimensions. A memory expires after its ``ttl_days``. If it was found often
until then, its time is extended instead and its count starts again at 0. Expired memories that were not found often are not
returned, even before ``prune`` removes them; adding memories removes the expired ones of the same agent and user. Memories are
separate for each agent and each ``user``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Struct

from ...clock import MICROSECONDS, to_us
from ...core import scope as scopes
from ...core.blocking import Blocking, blocking
from ...core.filters import id_list
from ...core.paging import rows_to_read
from ...core.queries import Queries
from ...core.registration import register_tenant
from ...core.rows import Column, mapper
from ...core.store import TenantStore, reads, writes
from ...engines.protocol import Connection, Row
from ...errors import InvalidInput, LimitExceeded
from ...ids import Id
from . import similarity

TTL_DAYS = 15
"""Days until a memory expires by default, and days by which a memory that is found often is extended."""
MAX_TTL_DAYS = 36_500
POPULAR = 10
"""How often a memory must be found for its time to be extended."""
_DAY_US = 86_400 * MICROSECONDS
_FIRST = "00000000-0000-0000-0000-000000000000"


class AgentMemory(Struct, frozen=True):
    """A memory of an agent. ``access_count`` is how often it was found since it was created or last extended."""

    id: Id
    agent: Annotated[str, Column("agent_id")]
    user: Annotated[str, Column("user_id")]
    content: str
    metadata: dict[str, Any]
    access_count: int
    created_at: datetime
    updated_at: datetime
    expires_at: datetime


class NewAgentMemory(Struct, frozen=True, kw_only=True):
    """A memory to add. Without ``ttl_days`` it expires after 15 days."""

    content: str
    embedding: Sequence[float]
    metadata: Mapping[str, Any] | None = None
    ttl_days: int | None = None


class AgentMemoryMatch(Struct, frozen=True):
    """A memory that a search has found. ``score`` is the cosine similarity: 1 for the same direction, 0 for orthogonal ones."""

    memory: AgentMemory
    score: float


class PrunedMemories(Struct, frozen=True):
    """The numbers of expired memories that were extended and removed."""

    extended: int
    removed: int


queries = Queries(__package__, "agent_memories.sql", AgentMemory)


class AsyncAgentMemories(TenantStore):
    """The memories of one tenant's agents."""

    @writes
    async def add(
        self, connection: Connection, memories: Sequence[NewAgentMemory], *, agent: str, user: str | None = None
    ) -> Sequence[str]:
        """Add memories, all or none, and return their ids in the same order.

        Raises:
            InvalidInput: a memory has no embedding, or a value is invalid.
            LimitExceeded: there are more than ``batch_rows`` memories, or one is over a limit.
        """
        if not isinstance(memories, Sequence) or not all(isinstance(memory, NewAgentMemory) for memory in memories):
            raise InvalidInput("memories must be a list of NewAgentMemory", field="memories")
        self._scope.limits.check("batch_rows", len(memories), "memories")
        params = self._params(agent, user)
        rows = [params | self._row(memory, params["now_at"]) for memory in memories]
        if rows:
            await register_tenant(connection, params)
            await self._prune(connection, params, "\n  AND agent_id = :agent_id AND user_id = :user_id")
            await queries.add.many(connection, rows)
        return [row["id"] for row in rows]

    async def search(
        self,
        embedding: Sequence[float],
        *,
        agent: str,
        user: str | None = None,
        limit: int = 5,
        min_score: float = 0.0,
    ) -> Sequence[AgentMemoryMatch]:
        """Search memories by similarity to an embedding, most similar first. Increases the ``access_count`` of each result.

        Raises:
            InvalidInput: ``limit`` or ``min_score`` is not a number.
            LimitExceeded: ``limit`` is over ``page_rows``.
        """
        if limit is None or not isinstance(min_score, (int, float)):
            raise InvalidInput(
                f"limit and min_score must be numbers, not {limit!r} and {min_score!r}",
                field="limit" if limit is None else "min_score",
            )
        packed = similarity.pack(embedding, self._scope.limits)
        rows_to_read(limit, self._scope.limits)
        params = self._params(agent, user) | {"dimensions": len(packed) // 4, "after": _FIRST}
        params["limit"] = similarity.slice_rows(packed)
        best: similarity.Scored = []
        while rows := await self._candidates(params):
            params["after"] = rows[-1][0]
            best = await similarity.rank_best(self._engine, packed, rows, best, limit=limit, min_score=min_score)
        memories = await self._count_access(params, [id for _, id in best]) if best else {}
        return [AgentMemoryMatch(memories[id], score) for score, id in best if id in memories]

    @reads
    async def _candidates(self, connection: Connection, params: dict[str, Any]) -> Sequence[Row]:
        return await queries.candidates.all(connection, params)

    @writes
    async def _count_access(
        self, connection: Connection, params: dict[str, Any], ids: Sequence[str]
    ) -> dict[str, AgentMemory]:
        """Increase the ``access_count`` of these memories; return those that still exist, by id."""
        rows = await queries.found.all(connection, {**params, "ids": id_list(ids, connection.dialect)})
        return {memory.id: memory for memory in mapper(AgentMemory, connection.dialect)(rows)}

    @reads
    async def list(
        self, connection: Connection, *, agent: str, user: str | None = None, limit: int | None = None
    ) -> Sequence[AgentMemory]:
        """List the memories of an agent about a user, most used first.

        Raises:
            LimitExceeded: ``limit`` is not given and there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._params(agent, user) | {"limit": rows_to_read(limit, limits)}
        memories = mapper(AgentMemory, connection.dialect)(await queries.list.all(connection, params))
        if limit is None and len(memories) > limits.list_rows:
            raise LimitExceeded(
                f"there are more than list_rows = {limits.list_rows:,} memories: give a limit",
                limit="list_rows",
                maximum=limits.list_rows,
            )
        return memories if limit is None else memories[:limit]

    @writes
    async def delete(self, connection: Connection, *, agent: str, user: str | None = None) -> int:
        """Delete all memories of an agent about a user; return how many there were."""
        return len(await queries.delete.all(connection, self._params(agent, user)))

    @writes
    async def prune(self, connection: Connection, *, by: datetime | None = None) -> PrunedMemories:
        """Remove the expired memories of all agents and users, and extend those that were found often.

        Args:
            by: the time at which memories count as expired; now, if not given.

        Raises:
            InvalidInput: ``by`` has no time zone.
        """
        if by is not None and (not isinstance(by, datetime) or by.tzinfo is None):
            raise InvalidInput(f"by must be a datetime with a time zone, not {by!r}", field="by")
        now = self._scope.clock.now_us() if by is None else to_us(by)
        return await self._prune(connection, self._scope.params(now_at=now, popular=POPULAR), "")

    async def _prune(self, connection: Connection, params: dict[str, Any], clause: str) -> PrunedMemories:
        params = {**params, "extended_at": params["now_at"] + TTL_DAYS * _DAY_US}
        extended = await queries.extend.all(connection, params, clause)
        removed = await queries.remove_expired.all(connection, params, clause)
        return PrunedMemories(len(extended), len(removed))

    def _params(self, agent: str, user: str | None) -> dict[str, Any]:
        limits = self._scope.limits
        return self._scope.params(
            agent_id=scopes.name(agent, "agent", limits),
            user_id="" if user is None else scopes.name(user, "user", limits),
            now_at=self._scope.clock.now_us(),
            popular=POPULAR,
        )

    def _row(self, memory: NewAgentMemory, now_us: int) -> dict[str, Any]:
        limits = self._scope.limits
        packed = similarity.pack(memory.embedding, limits)
        if not packed:
            raise InvalidInput("embedding must not be empty: memories are found by it", field="embedding")
        return {
            "id": self._scope.ids.new(),
            "content": scopes.free_text(memory.content, "content", limits, limit="content_bytes"),
            "metadata": scopes.metadata(memory.metadata, limits),
            "embedding": packed,
            "dimensions": len(packed) // 4,
            "expires_at": now_us + _ttl(memory.ttl_days) * _DAY_US,
        }


class AgentMemories(Blocking[AsyncAgentMemories]):
    """The memories of one tenant's agents."""

    add = blocking(AsyncAgentMemories.add)
    search = blocking(AsyncAgentMemories.search)
    list = blocking(AsyncAgentMemories.list)
    delete = blocking(AsyncAgentMemories.delete)
    prune = blocking(AsyncAgentMemories.prune)


def _ttl(days: object) -> int:
    if days is None:
        return TTL_DAYS
    if not isinstance(days, int) or isinstance(days, bool) or days > MAX_TTL_DAYS:
        raise InvalidInput(
            f"ttl_days must be a whole number of at most {MAX_TTL_DAYS:,}, not {days!r}", field="ttl_days"
        )
    return days if days > 0 else TTL_DAYS
