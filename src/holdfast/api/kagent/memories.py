"""Long-term memory. These answers stand in no envelope, and the user is named in the body."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from holdfast import NewAgentMemory
from holdfast.errors import InvalidInput

from .request import Ask, agent_id, bare, route

DIMENSIONS = 768
"""Floats of an embedding: kagent's clients cut longer ones to this."""
MAX_BATCH = 50
FOUND = 5
"""Memories that are found when nobody says how many."""
MAX_FOUND = 1_000

Text = Annotated[str, Meta(min_length=1)]


class NewMemory(Struct):
    """Something to remember."""

    agent_name: Text
    user_id: Text
    vector: list[float]
    content: str = ""
    metadata: dict[str, Any] | None = None
    ttl_days: int | None = None


class NewMemories(Struct):
    """Several things to remember."""

    items: Annotated[list[NewMemory], Meta(min_length=1, max_length=MAX_BATCH)]


class Search(Struct):
    """What is searched for."""

    agent_name: Text
    user_id: Text
    vector: list[float]
    limit: int = FOUND
    min_score: float = 0.0


class MemoryFound(Struct, frozen=True):
    """A memory that is like what was searched for."""

    id: str
    content: str
    score: float
    metadata: dict[str, Any]
    created_at: datetime


class MemoryShown(Struct, frozen=True):
    """A memory in a list."""

    id: str
    content: str
    access_count: int
    created_at: datetime
    expires_at: datetime


_NEW = msgspec.json.Decoder(NewMemory)
_BATCH = msgspec.json.Decoder(NewMemories)
_SEARCH = msgspec.json.Decoder(Search)


@route("POST", "/api/memories/sessions")
async def add_memory(ask: Ask) -> Response:
    """Remember something."""
    (id,) = await _add(ask, [ask.body(_NEW)])
    return bare({"id": id}, 201)


@route("POST", "/api/memories/sessions/batch")
async def add_memories(ask: Ask) -> Response:
    """Remember several things, all or none of them for each agent and user."""
    return bare({"count": len(await _add(ask, ask.body(_BATCH).items))}, 201)


@route("POST", "/api/memories/search")
async def search_memories(ask: Ask) -> Response:
    """What is most like a vector, the most alike first."""
    body = ask.body(_SEARCH)
    found = await ask.tenant.agent_memories.search(
        _vector(body.vector),
        agent=agent_id(body.agent_name),
        user=body.user_id,
        limit=min(body.limit, MAX_FOUND) if body.limit > 0 else FOUND,
        min_score=body.min_score,
    )
    return bare(
        [
            MemoryFound(each.memory.id, each.memory.content, each.score, each.memory.metadata, each.memory.created_at)
            for each in found
        ]
    )


@route("GET", "/api/memories")
async def list_memories(ask: Ask) -> Response:
    """What an agent remembers about a user, what is used most first."""
    found = await ask.tenant.agent_memories.list(agent=agent_id(ask.required("agent_name")), user=ask.user)
    return bare(
        [MemoryShown(each.id, each.content, each.access_count, each.created_at, each.expires_at) for each in found]
    )


@route("DELETE", "/api/memories")
async def delete_memories(ask: Ask) -> Response:
    """Forget what an agent remembers about a user."""
    await ask.tenant.agent_memories.delete(agent=agent_id(ask.required("agent_name")), user=ask.user)
    return bare({"status": "deleted"})


async def _add(ask: Ask, memories: list[NewMemory]) -> list[str]:
    by_place: dict[tuple[str, str], list[NewAgentMemory]] = {}
    for each in memories:
        new = NewAgentMemory(
            content=each.content, embedding=_vector(each.vector), metadata=each.metadata, ttl_days=each.ttl_days
        )
        by_place.setdefault((agent_id(each.agent_name), each.user_id), []).append(new)
    ids: list[str] = []
    for (agent, user), those in by_place.items():
        ids += await ask.tenant.agent_memories.add(those, agent=agent, user=user)
    return ids


def _vector(vector: list[float]) -> list[float]:
    if len(vector) != DIMENSIONS:
        raise InvalidInput(f"a vector has {DIMENSIONS} dimensions, not {len(vector)}")
    return vector
