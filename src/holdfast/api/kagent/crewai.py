"""CrewAI: long-term memories of crews, and the states of flows."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from holdfast import NewCrewMemory, thread_of
from holdfast.errors import InvalidInput, NotFound
from holdfast.types import CrewMemory

from .request import KagentRequest, route, success

LIMIT = 100
MAX_LIMIT = 1_000


class _NewMemory(Struct):
    """A memory to store."""

    thread_id: str
    memory_data: dict[str, Any]
    user_id: str | None = None


class _WireMemory(Struct, frozen=True):
    """A memory in a response."""

    thread_id: str
    user_id: str
    memory_data: dict[str, Any]


class _NewState(Struct):
    """The state of a flow after one of its methods."""

    thread_id: str
    flow_uuid: str
    method_name: str
    state_data: dict[str, Any]


class _WireState(Struct, frozen=True):
    """The last state of a flow; the client needs all four fields."""

    thread_id: str
    flow_uuid: str
    method_name: str
    state_data: dict[str, Any]


_MEMORY = msgspec.json.Decoder(_NewMemory)
_STATE = msgspec.json.Decoder(_NewState)


@route("POST", "/api/crewai/memory")
async def save_memory(request: KagentRequest) -> Response:
    """Add a memory."""
    body = request.body(_MEMORY)
    description = body.memory_data.get("task_description", "")
    if not isinstance(description, str):
        raise InvalidInput("task_description must be text", field="task_description")
    new = NewCrewMemory(content=description, metadata={"memory_data": body.memory_data})
    await request.tenant.crew_memories.save([new], user=request.user, thread_id=_thread(body.thread_id))
    return success({}, "Successfully stored memory", 201)


@route("GET", "/api/crewai/memory")
async def find_memories(request: KagentRequest) -> Response:
    """Find memories whose description contains a text, the newest first, then those with the lowest score."""
    thread, text = request.required("thread_id"), request.required("q")
    limit = request.number("limit", LIMIT)
    memories = await request.tenant.crew_memories.list(
        containing=text,
        limit=min(limit, MAX_LIMIT) if limit > 0 else MAX_LIMIT,
        user=request.user,
        thread_id=_thread(thread),
    )
    ordered = sorted(memories, key=_score)
    ordered.sort(key=lambda memory: memory.created_at, reverse=True)
    listed = [_WireMemory(thread, request.user, memory.metadata.get("memory_data", {})) for memory in ordered]
    return success(listed, "Successfully retrieved memories")


@route("DELETE", "/api/crewai/memory")
async def delete_memories_of_crew(request: KagentRequest) -> Response:
    """Delete all memories of a thread."""
    await request.tenant.crew_memories.delete(user=request.user, thread_id=_thread(request.required("thread_id")))
    return success({}, "Successfully deleted memories")


@route("POST", "/api/crewai/flows/state")
async def save_state(request: KagentRequest) -> Response:
    """Save the state of a flow, from which the flow continues."""
    body = request.body(_STATE)
    await request.tenant.flows.save(
        body.flow_uuid,
        method=body.method_name,
        state=body.state_data,
        thread_id=_thread(body.thread_id),
        user=request.user,
    )
    return success({}, "Successfully stored flow state", 201)


@route("GET", "/api/crewai/flows/state")
async def get_state(request: KagentRequest) -> Response:
    """Get the last saved state of a flow, regardless of the method."""
    thread, flow_uuid = request.required("thread_id"), request.required("flow_uuid")
    flow = await request.tenant.flows.find(flow_uuid, thread_id=_thread(thread), user=request.user)
    if flow is None:
        raise NotFound("Flow state not found", noun="flow", key=flow_uuid)
    state = _WireState(thread, flow.flow_uuid, flow.method, flow.state)
    return success(state, "Successfully retrieved flow state")


def _thread(thread_id: str) -> str:
    if not thread_id:
        raise InvalidInput("thread_id must not be empty", field="thread_id")
    return thread_of(thread_id)


def _score(memory: CrewMemory) -> float:
    data = memory.metadata.get("memory_data")
    score = data.get("score") if isinstance(data, dict) else None
    return score if isinstance(score, (int, float)) else 0.0  # not converted: an int may be too large for a float
