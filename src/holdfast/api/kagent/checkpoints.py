"""LangGraph checkpoints and writes, whose content is opaque to the server.

A response has room for the writes of one task only. kagent's server puts the writes of all tasks there under one task's name, and
a graph with parallel branches then continues incorrectly. This server stores them separately and returns one task's writes:
LangGraph runs the other tasks again. The choice of the task was found by experiment: the resumed one, else the one with the most
writes, else an interrupted one; the task with the nil id comes last.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from holdfast import Write, thread_of
from holdfast.errors import Corrupt, InvalidInput
from holdfast.types import Checkpoint, TaskWrites

from .request import KagentRequest, route, success

PAGE = 200
NO_TASK = "00000000-0000-0000-0000-000000000000"
RESUME, INTERRUPT = "__resume__", "__interrupt__"


class _NewCheckpoint(Struct):
    """A checkpoint to store."""

    thread_id: str
    checkpoint_id: str
    checkpoint: str
    metadata: str
    type_: str
    checkpoint_ns: str = ""
    parent_checkpoint_id: str | None = None
    version: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0


class _WireWrite(Struct, frozen=True):
    """One write of a task; ``value`` is base64, and empty if the write has no value."""

    idx: int
    channel: str
    type_: str
    value: str


class _NewWrites(Struct):
    """The writes of a task to a checkpoint, which may be stored later."""

    thread_id: str
    checkpoint_id: str
    task_id: str
    writes: list[_WireWrite]
    checkpoint_ns: str = ""


class _WireWrites(Struct, frozen=True):
    """The writes of one task."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    task_id: str
    writes: list[_WireWrite]


class _WireCheckpoint(Struct, frozen=True):
    """A checkpoint in a response."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_checkpoint_id: str | None
    checkpoint: str
    metadata: str
    type_: str
    writes: _WireWrites | None


class _State(Struct, frozen=True, array_like=True):
    """The fields that are stored in the checkpoint's state, besides the checkpoint itself."""

    type_: str
    version: int
    metadata: bytes


_NEW = msgspec.json.Decoder(_NewCheckpoint)
_WRITES = msgspec.json.Decoder(_NewWrites)
_STATE = msgspec.msgpack.Decoder(_State)
_JSON = msgspec.json.Decoder()


@route("POST", "/api/langgraph/checkpoints")
async def put_checkpoint(request: KagentRequest) -> Response:
    """Store a checkpoint, replacing the one with the same id."""
    body = request.body(_NEW)
    metadata = _decode_base64(body.metadata, "metadata")
    state = _State(_encode_type(body.type_).decode(), body.version, metadata)
    await request.tenant.checkpoints.put(
        thread_of(_check_thread_id(body.thread_id)),
        id=body.checkpoint_id,
        state=msgspec.msgpack.encode(state),
        pieces=[_decode_base64(body.checkpoint, "checkpoint")],
        namespace=body.checkpoint_ns,
        parent=body.parent_checkpoint_id or None,
        metadata=_json_object(metadata),
        user=request.user,
    )
    return success({}, "Successfully stored checkpoint", 201)


@route("POST", "/api/langgraph/checkpoints/writes")
async def put_writes(request: KagentRequest) -> Response:
    """Store the writes of a task."""
    body = request.body(_WRITES)
    new = [
        Write(write.idx, write.channel, _encode_type(write.type_), [_decode_base64(write.value, "value")])
        for write in body.writes
    ]
    await request.tenant.checkpoints.put_writes(
        thread_of(_check_thread_id(body.thread_id)),
        id=body.checkpoint_id,
        task_id=body.task_id,
        new=new,
        namespace=body.checkpoint_ns,
        user=request.user,
    )
    return success({}, "Successfully stored checkpoint writes", 201)


@route("GET", "/api/langgraph/checkpoints")
async def list_checkpoints(request: KagentRequest) -> Response:
    """List the checkpoints of a thread, the newest first. A limit of 0 or less is ignored; an unknown id results in an empty
    list."""
    thread = request.required("thread_id")
    checkpoints = await _find(request, thread_of(thread), request.query.get("checkpoint_ns", ""))
    listed = [_wire_checkpoint(checkpoint, thread) for checkpoint in checkpoints]
    return success(listed, "Successfully listed checkpoints")


@route("DELETE", "/api/langgraph/checkpoints/{thread_id}")
async def delete_checkpoints(request: KagentRequest) -> Response:
    """Delete a thread with all its checkpoints; its id can be used again."""
    await request.tenant.checkpoints.delete(thread_of(request.names["thread_id"]), user=request.user)
    return success({}, "Successfully deleted thread")


async def _find(request: KagentRequest, thread: str, namespace: str) -> Sequence[Checkpoint]:
    id, limit = request.query.get("checkpoint_id") or None, request.number("limit", 0)
    store, user = request.tenant.checkpoints, request.user
    if id is not None or limit == 1:
        checkpoint = await store.find(thread, id=id, namespace=namespace, user=user)
        return [] if checkpoint is None else [checkpoint]
    checkpoints: list[Checkpoint] = []
    cursor: str | None = None
    while True:
        rows = PAGE if limit <= 0 else min(PAGE, limit - len(checkpoints))
        page = await store.list(thread, namespace=namespace, user=user, limit=rows, cursor=cursor)
        checkpoints += page
        if page.next is None or 0 < limit <= len(checkpoints):
            return checkpoints
        cursor = page.next


def _wire_checkpoint(checkpoint: Checkpoint, thread: str) -> _WireCheckpoint:
    try:
        state = _STATE.decode(checkpoint.state)
        (body,) = checkpoint.pieces
    except (msgspec.MsgspecError, ValueError) as error:
        raise Corrupt(f"checkpoint {checkpoint.id} was not stored by a kagent client") from error
    task = preferred_task(checkpoint.tasks)
    return _WireCheckpoint(
        thread,
        checkpoint.namespace,
        checkpoint.id,
        checkpoint.parent,
        _encode_base64(body or b""),
        _encode_base64(state.metadata),
        state.type_,
        None if task is None else _wire_writes(checkpoint, thread, task),
    )


def _wire_writes(checkpoint: Checkpoint, thread: str, task: TaskWrites) -> _WireWrites:
    writes = [
        _WireWrite(write.index, write.channel, write.value.decode(), _encode_base64(b"".join(_bytes_of(write.pieces))))
        for write in task.writes
    ]
    return _WireWrites(thread, checkpoint.namespace, checkpoint.id, task.task_id, writes)


def preferred_task(tasks: Sequence[TaskWrites]) -> TaskWrites | None:
    """Return the task whose writes are part of the response."""

    def preference(task: TaskWrites) -> tuple[bool, bool, int, bool, str]:
        channels = {write.channel for write in task.writes}
        ordinary = sum(write.index >= 0 for write in task.writes)
        named = task.task_id != NO_TASK
        return named, named and RESUME in channels, ordinary, INTERRUPT in channels, task.task_id

    return max(tasks, key=preference, default=None)


def _bytes_of(pieces: Sequence[Any]) -> Sequence[bytes]:
    return [piece for piece in pieces if isinstance(piece, bytes)]


def _check_thread_id(thread_id: str) -> str:
    if not thread_id:
        raise InvalidInput("thread_id must not be empty", field="thread_id")
    return thread_id


def _encode_type(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            "type_ must be the name of a serializer, without unpaired surrogates", field="type_"
        ) from None


def _json_object(metadata: bytes) -> dict[str, Any] | None:
    """Return the metadata if it is a JSON object, so that checkpoints can be filtered by it."""
    try:
        value = _JSON.decode(metadata)
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None


def _decode_base64(text: str, field: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise InvalidInput(f"{field} must be base64", field=field) from None


def _encode_base64(body: bytes) -> str:
    return b64encode(body).decode()
