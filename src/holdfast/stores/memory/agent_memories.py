"""Memories of agents: what an agent has learned about a user, for a while.

A memory is found by how alike its embedding is to another of as many dimensions. It expires, unless it was found often: then its
time is extended, and it must be found often again. One that has expired and was not is as good as gone, whether ``prune`` has
been there or not; adding memories removes what has expired of the same agent and user. Memories of one ``user`` are not seen
by another, nor are those of one agent by the next.
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
"""Days a memory stays when nobody says otherwise, and days by which one that is used is extended."""
MAX_TTL_DAYS = 36_500
POPULAR = 10
"""Times a memory must be found for its time to be extended."""
_DAY_US = 86_400 * MICROSECONDS
_FIRST = "00000000-0000-0000-0000-000000000000"


class AgentMemory(Struct, frozen=True):
    """What an agent remembers. ``access_count`` is how often it was found since it was made or extended."""

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
    """Something to remember, for ``ttl_days`` or for as long as is usual."""

    content: str
    embedding: Sequence[float]
    metadata: Mapping[str, Any] | None = None
    ttl_days: int | None = None


class AgentMemoryMatch(Struct, frozen=True):
    """A memory that was searched for; ``score`` is 1 for the same direction and 0 for nothing in common."""

    memory: AgentMemory
    score: float


class PrunedMemories(Struct, frozen=True):
    """What became of memories whose time was over."""

    extended: int
    removed: int


queries = Queries(__package__, "agent_memories.sql", AgentMemory)


class AsyncAgentMemories(TenantStore):
    """What the agents of one tenant remember."""

    @writes
    async def add(
        self, connection: Connection, memories: Sequence[NewAgentMemory], *, agent: str, user: str | None = None
    ) -> Sequence[str]:
        """Remember these; their ids, in their order. All or none are kept.

        Raises:
            InvalidInput: one has no embedding.
            LimitExceeded: there are more than ``batch_rows``, or one is over a limit.
        """
        if not isinstance(memories, Sequence) or not all(isinstance(each, NewAgentMemory) for each in memories):
            raise InvalidInput("memories come as a list of NewAgentMemory")
        self._scope.limits.check("batch_rows", len(memories), "memories")
        at = self._at(agent, user)
        rows = [at | self._stored(each, at["now_at"]) for each in memories]
        if rows:
            await register_tenant(connection, at)
            await self._prune(connection, at, "\n  AND agent_id = :agent_id AND user_id = :user_id")
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
        """The memories most like an embedding, the most alike first. Each of them counts as used.

        Raises:
            InvalidInput: one of the numbers is none.
            LimitExceeded: more are asked for than ``page_rows``.
        """
        if limit is None or not isinstance(min_score, (int, float)):
            raise InvalidInput(f"limit and min_score are numbers, not {limit!r} and {min_score!r}")
        packed = similarity.pack(embedding, self._scope.limits)
        rows_to_read(limit, self._scope.limits)
        params = self._at(agent, user) | {"dimensions": len(packed) // 4, "after": _FIRST}
        params["limit"] = similarity.slice_rows(packed)
        best: similarity.Scored = []
        while rows := await self._candidates(params):
            params["after"] = rows[-1][0]
            best = await similarity.rank_best(self._engine, packed, rows, best, limit=limit, min_score=min_score)
        found = await self._used(params, [id for _, id in best]) if best else {}
        return [AgentMemoryMatch(found[id], score) for score, id in best if id in found]

    @reads
    async def _candidates(self, connection: Connection, params: dict[str, Any]) -> Sequence[Row]:
        return await queries.candidates.all(connection, params)

    @writes
    async def _used(self, connection: Connection, params: dict[str, Any], ids: Sequence[str]) -> dict[str, AgentMemory]:
        """Those of these memories that are still there; each was used once more."""
        rows = await queries.found.all(connection, {**params, "ids": id_list(ids, connection.dialect)})
        return {each.id: each for each in mapper(AgentMemory, connection.dialect)(rows)}

    @reads
    async def list(
        self, connection: Connection, *, agent: str, user: str | None = None, limit: int | None = None
    ) -> Sequence[AgentMemory]:
        """What an agent remembers about a user, what is used most first.

        Raises:
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._at(agent, user) | {"limit": rows_to_read(limit, limits)}
        found = mapper(AgentMemory, connection.dialect)(await queries.list.all(connection, params))
        if limit is None and len(found) > limits.list_rows:
            raise LimitExceeded(
                f"there are more than list_rows = {limits.list_rows:,} memories: say how many with limit="
            )
        return found if limit is None else found[:limit]

    @writes
    async def delete(self, connection: Connection, *, agent: str, user: str | None = None) -> int:
        """Forget everything an agent remembers about a user; how much that was."""
        return len(await queries.delete.all(connection, self._at(agent, user)))

    @writes
    async def prune(self, connection: Connection, *, by: datetime | None = None) -> PrunedMemories:
        """Remove what has expired by now or ``by`` a moment, of all agents and users, and extend what was used often.

        Raises:
            InvalidInput: the moment has no time zone.
        """
        if by is not None and (not isinstance(by, datetime) or by.tzinfo is None):
            raise InvalidInput("by is a datetime with a time zone")
        now = self._scope.clock.now_us() if by is None else to_us(by)
        return await self._prune(connection, self._scope.params(now_at=now, popular=POPULAR), "")

    async def _prune(self, connection: Connection, params: dict[str, Any], clause: str) -> PrunedMemories:
        params = {**params, "extended_at": params["now_at"] + TTL_DAYS * _DAY_US}
        extended = await queries.extend.all(connection, params, clause)
        removed = await queries.remove_expired.all(connection, params, clause)
        return PrunedMemories(len(extended), len(removed))

    def _at(self, agent: str, user: str | None) -> dict[str, Any]:
        limits = self._scope.limits
        return self._scope.params(
            agent_id=scopes.name(agent, "agent", limits),
            user_id="" if user is None else scopes.name(user, "user", limits),
            now_at=self._scope.clock.now_us(),
            popular=POPULAR,
        )

    def _stored(self, memory: NewAgentMemory, now_us: int) -> dict[str, Any]:
        limits = self._scope.limits
        packed = similarity.pack(memory.embedding, limits)
        if not packed:
            raise InvalidInput("a memory needs an embedding, by which it is found")
        return {
            "id": self._scope.ids.new(),
            "content": scopes.free_text(memory.content, "content", limits, limit="content_bytes"),
            "metadata": scopes.metadata(memory.metadata, limits),
            "embedding": packed,
            "dimensions": len(packed) // 4,
            "expires_at": now_us + _ttl(memory.ttl_days) * _DAY_US,
        }


class AgentMemories(Blocking[AsyncAgentMemories]):
    """What the agents of one tenant remember."""

    add = blocking(AsyncAgentMemories.add)
    search = blocking(AsyncAgentMemories.search)
    list = blocking(AsyncAgentMemories.list)
    delete = blocking(AsyncAgentMemories.delete)
    prune = blocking(AsyncAgentMemories.prune)


def _ttl(days: object) -> int:
    if days is None:
        return TTL_DAYS
    if not isinstance(days, int) or isinstance(days, bool) or days > MAX_TTL_DAYS:
        raise InvalidInput(f"ttl_days is a whole number of at most {MAX_TTL_DAYS:,}, not {days!r}")
    return days if days > 0 else TTL_DAYS
