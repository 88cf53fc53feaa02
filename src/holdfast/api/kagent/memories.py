"""Long-term memories. These responses have no envelope, and the body of a request names the user."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from holdfast import NewAgentMemory
from holdfast.declared.rows import agent_id
from holdfast.errors import InvalidInput

from .request import KagentRequest, bare, route

DIMENSIONS = 768
"""Dimensions of an embedding: kagent's clients truncate longer ones to this."""
MAX_BATCH = 50
DEFAULT_HITS = 5
"""Hits of a search without a limit."""
MAX_HITS = 1_000

Text = Annotated[str, Meta(min_length=1)]


class _NewMemory(Struct):
    """A memory to store."""

    agent_name: Text
    user_id: Text
    vector: list[float]
    content: str = ""
    metadata: dict[str, Any] | None = None
    ttl_days: int | None = None


class _NewMemories(Struct):
    """Several memories to store."""

    items: Annotated[list[_NewMemory], Meta(min_length=1, max_length=MAX_BATCH)]


class _MemorySearch(Struct):
    """A search by similarity."""

    agent_name: Text
    user_id: Text
    vector: list[float]
    limit: int = DEFAULT_HITS
    min_score: float = 0.0


class _WireHit(Struct, frozen=True):
    """A memory that a search found."""

    id: str
    content: str
    score: float
    metadata: dict[str, Any]
    created_at: datetime


class _WireMemory(Struct, frozen=True):
    """A memory in a list."""

    id: str
    content: str
    access_count: int
    created_at: datetime
    expires_at: datetime


_NEW = msgspec.json.Decoder(_NewMemory)
_BATCH = msgspec.json.Decoder(_NewMemories)
_SEARCH = msgspec.json.Decoder(_MemorySearch)


@route("POST", "/api/memories/sessions")
async def add_memory(request: KagentRequest) -> Response:
    """Add a memory."""
    (id,) = await _add(request, [request.body(_NEW)])
    return bare({"id": id}, 201)


@route("POST", "/api/memories/sessions/batch")
async def add_memories(request: KagentRequest) -> Response:
    """Add several memories, atomically for each agent and user."""
    return bare({"count": len(await _add(request, request.body(_BATCH).items))}, 201)


@route("POST", "/api/memories/search")
async def search_memories(request: KagentRequest) -> Response:
    """Find the memories most similar to a vector, the most similar first."""
    body = request.body(_SEARCH)
    hits = await request.tenant.agent_memories.search(
        _vector(body.vector),
        agent=agent_id(body.agent_name),
        user=body.user_id,
        limit=min(body.limit, MAX_HITS) if body.limit > 0 else DEFAULT_HITS,
        min_score=body.min_score,
    )
    return bare(
        [
            _WireHit(hit.memory.id, hit.memory.content, hit.score, hit.memory.metadata, hit.memory.created_at)
            for hit in hits
        ]
    )


@route("GET", "/api/memories")
async def list_memories(request: KagentRequest) -> Response:
    """List an agent's memories about a user, the most used first."""
    agent = agent_id(request.required("agent_name"))
    memories = await request.tenant.agent_memories.list(agent=agent, user=request.user)
    return bare(
        [
            _WireMemory(memory.id, memory.content, memory.access_count, memory.created_at, memory.expires_at)
            for memory in memories
        ]
    )


@route("DELETE", "/api/memories")
async def delete_memories(request: KagentRequest) -> Response:
    """Delete an agent's memories about a user."""
    await request.tenant.agent_memories.delete(agent=agent_id(request.required("agent_name")), user=request.user)
    return bare({"status": "deleted"})


async def _add(request: KagentRequest, memories: list[_NewMemory]) -> list[str]:
    by_owner: dict[tuple[str, str], list[NewAgentMemory]] = {}
    for memory in memories:
        new = NewAgentMemory(
            content=memory.content,
            embedding=_vector(memory.vector),
            metadata=memory.metadata,
            ttl_days=memory.ttl_days,
        )
        by_owner.setdefault((agent_id(memory.agent_name), memory.user_id), []).append(new)
    ids: list[str] = []
    for (agent, user), batch in by_owner.items():
        ids += await request.tenant.agent_memories.add(batch, agent=agent, user=user)
    return ids


def _vector(vector: list[float]) -> list[float]:
    if len(vector) != DIMENSIONS:
        raise InvalidInput(f"a vector must have {DIMENSIONS} dimensions, not {len(vector)}", field="vector")
    return vector
