"""CrewAI: long-term memory of crews, each memory by itself, and the states of flows."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from holdfast import NewCrewMemory, thread_of
from holdfast.errors import InvalidInput, NotFound
from holdfast.types import CrewMemory

from .request import Ask, enveloped, route

LIMIT = 100
MAX_LIMIT = 1_000


class NewMemory(Struct):
    """A memory to keep."""

    thread_id: str
    memory_data: dict[str, Any]
    user_id: str | None = None


class MemoryShown(Struct, frozen=True):
    """A memory as the client reads it."""

    thread_id: str
    user_id: str
    memory_data: dict[str, Any]


class NewState(Struct):
    """The state of a flow after one of its methods."""

    thread_id: str
    flow_uuid: str
    method_name: str
    state_data: dict[str, Any]


class StateShown(Struct, frozen=True):
    """The state that a flow goes on from; the client needs all four."""

    thread_id: str
    flow_uuid: str
    method_name: str
    state_data: dict[str, Any]


_MEMORY = msgspec.json.Decoder(NewMemory)
_STATE = msgspec.json.Decoder(NewState)


@route("POST", "/api/crewai/memory")
async def save_memory(ask: Ask) -> Response:
    """Keep a memory beside those that are there."""
    body = ask.body(_MEMORY)
    described = body.memory_data.get("task_description", "")
    if not isinstance(described, str):
        raise InvalidInput("task_description is text")
    new = NewCrewMemory(content=described, metadata={"memory_data": body.memory_data})
    await ask.tenant.crew_memories.save([new], user=ask.user, thread_id=_thread(body.thread_id))
    return enveloped({}, "Successfully stored memory", 201)


@route("GET", "/api/crewai/memory")
async def find_memories(ask: Ask) -> Response:
    """Memories whose description has a text in it, the newest first, then those with the lowest score."""
    thread, wanted = ask.required("thread_id"), ask.required("q")
    limit = ask.number("limit", LIMIT)
    found = await ask.tenant.crew_memories.list(
        containing=wanted,
        limit=min(limit, MAX_LIMIT) if limit > 0 else MAX_LIMIT,
        user=ask.user,
        thread_id=_thread(thread),
    )
    ordered = sorted(found, key=_score)
    ordered.sort(key=lambda each: each.created_at, reverse=True)
    shown = [MemoryShown(thread, ask.user, each.metadata.get("memory_data", {})) for each in ordered]
    return enveloped(shown, "Successfully retrieved memories")


@route("DELETE", "/api/crewai/memory")
async def delete_memories_of_crew(ask: Ask) -> Response:
    """Forget everything in a thread."""
    await ask.tenant.crew_memories.delete(user=ask.user, thread_id=_thread(ask.required("thread_id")))
    return enveloped({}, "Successfully deleted memories")


@route("POST", "/api/crewai/flows/state")
async def save_state(ask: Ask) -> Response:
    """Save the state of a flow, which makes it the one that the flow goes on from."""
    body = ask.body(_STATE)
    await ask.tenant.flows.save(
        body.flow_uuid,
        method=body.method_name,
        state=body.state_data,
        thread_id=_thread(body.thread_id),
        user=ask.user,
    )
    return enveloped({}, "Successfully stored flow state", 201)


@route("GET", "/api/crewai/flows/state")
async def get_state(ask: Ask) -> Response:
    """The state of a flow that was saved last, after whichever method."""
    thread, flow = ask.required("thread_id"), ask.required("flow_uuid")
    found = await ask.tenant.flows.find(flow, thread_id=_thread(thread), user=ask.user)
    if found is None:
        raise NotFound("Flow state not found")
    return enveloped(
        StateShown(thread, found.flow_uuid, found.method, found.state), "Successfully retrieved flow state"
    )


def _thread(thread_id: str) -> str:
    if not thread_id:
        raise InvalidInput("thread_id must not be empty")
    return thread_of(thread_id)


def _score(memory: CrewMemory) -> float:
    data = memory.metadata.get("memory_data")
    score = data.get("score") if isinstance(data, dict) else None
    return score if isinstance(score, (int, float)) else 0.0  # as it is: a whole number may be too large for a float
