"""LangGraph checkpoints and writes, opaque to us.

The answer has room for the writes of one task only. kagent's server puts those of all tasks there, under one name, and a graph
with parallel branches then goes on wrongly. Here they are kept apart and one task's are given: LangGraph runs the others
again. Which task is chosen was found by experiment: the one that was resumed, else the one that wrote most, else one that was
interrupted; the task of no number comes last.
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

from .request import Ask, enveloped, route

PAGE = 200
NO_TASK = "00000000-0000-0000-0000-000000000000"
RESUME, INTERRUPT = "__resume__", "__interrupt__"


class NewCheckpoint(Struct):
    """A checkpoint to keep."""

    thread_id: str
    checkpoint_id: str
    checkpoint: str
    metadata: str
    type_: str
    checkpoint_ns: str = ""
    parent_checkpoint_id: str | None = None
    version: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0


class WireWrite(Struct, frozen=True):
    """One write of a task; ``value`` is base64, and nothing where there is no value."""

    idx: int
    channel: str
    type_: str
    value: str


class NewWrites(Struct):
    """What a task wrote to a checkpoint, which may itself come later."""

    thread_id: str
    checkpoint_id: str
    task_id: str
    writes: list[WireWrite]
    checkpoint_ns: str = ""


class WritesShown(Struct, frozen=True):
    """What one task wrote."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    task_id: str
    writes: list[WireWrite]


class CheckpointShown(Struct, frozen=True):
    """A checkpoint as the client reads it."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_checkpoint_id: str | None
    checkpoint: str
    metadata: str
    type_: str
    writes: WritesShown | None


class _Head(Struct, frozen=True, array_like=True):
    """What is kept beside the state itself."""

    type_: str
    version: int
    metadata: bytes


_NEW = msgspec.json.Decoder(NewCheckpoint)
_WRITES = msgspec.json.Decoder(NewWrites)
_HEAD = msgspec.msgpack.Decoder(_Head)
_JSON = msgspec.json.Decoder()


@route("POST", "/api/langgraph/checkpoints")
async def put_checkpoint(ask: Ask) -> Response:
    """Keep a checkpoint; the same id again replaces it."""
    body = ask.body(_NEW)
    metadata = _bytes(body.metadata, "metadata")
    head = _Head(_type(body.type_).decode(), body.version, metadata)
    await ask.tenant.checkpoints.put(
        thread_of(_named(body.thread_id)),
        id=body.checkpoint_id,
        state=msgspec.msgpack.encode(head),
        pieces=[_bytes(body.checkpoint, "checkpoint")],
        namespace=body.checkpoint_ns,
        parent=body.parent_checkpoint_id or None,
        metadata=_readable(metadata),
        user=ask.user,
    )
    return enveloped({}, "Successfully stored checkpoint", 201)


@route("POST", "/api/langgraph/checkpoints/writes")
async def put_writes(ask: Ask) -> Response:
    """Keep what a task wrote."""
    body = ask.body(_WRITES)
    new = [Write(each.idx, each.channel, _type(each.type_), [_bytes(each.value, "value")]) for each in body.writes]
    await ask.tenant.checkpoints.put_writes(
        thread_of(_named(body.thread_id)),
        id=body.checkpoint_id,
        task_id=body.task_id,
        new=new,
        namespace=body.checkpoint_ns,
        user=ask.user,
    )
    return enveloped({}, "Successfully stored checkpoint writes", 201)


@route("GET", "/api/langgraph/checkpoints")
async def list_checkpoints(ask: Ask) -> Response:
    """Checkpoints of a thread, the newest first; a limit from 0 down is none, and one that is not there is an empty list."""
    thread = ask.required("thread_id")
    found = await _found(ask, thread_of(thread), ask.query.get("checkpoint_ns", ""))
    return enveloped([_shown(each, thread) for each in found], "Successfully listed checkpoints")


@route("DELETE", "/api/langgraph/checkpoints/{thread_id}")
async def delete_checkpoints(ask: Ask) -> Response:
    """Remove a thread with all its checkpoints; its id can be used again."""
    await ask.tenant.checkpoints.delete(thread_of(ask.names["thread_id"]), user=ask.user)
    return enveloped({}, "Successfully deleted thread")


async def _found(ask: Ask, thread: str, namespace: str) -> Sequence[Checkpoint]:
    id, limit = ask.query.get("checkpoint_id") or None, ask.number("limit", 0)
    if id is not None or limit == 1:
        one = await ask.tenant.checkpoints.find(thread, id=id, namespace=namespace, user=ask.user)
        return [] if one is None else [one]
    found: list[Checkpoint] = []
    cursor: str | None = None
    while True:
        rows = PAGE if limit <= 0 else min(PAGE, limit - len(found))
        page = await ask.tenant.checkpoints.list(thread, namespace=namespace, user=ask.user, limit=rows, cursor=cursor)
        found += page
        if page.next is None or 0 < limit <= len(found):
            return found
        cursor = page.next


def _shown(checkpoint: Checkpoint, thread: str) -> CheckpointShown:
    try:
        head = _HEAD.decode(checkpoint.state)
        (body,) = checkpoint.pieces
    except (msgspec.MsgspecError, ValueError) as error:
        raise Corrupt(f"checkpoint {checkpoint.id} was not stored by a kagent client") from error
    task = chosen(checkpoint.tasks)
    return CheckpointShown(
        thread,
        checkpoint.namespace,
        checkpoint.id,
        checkpoint.parent,
        _text(body or b""),
        _text(head.metadata),
        head.type_,
        None if task is None else _writes(checkpoint, thread, task),
    )


def _writes(checkpoint: Checkpoint, thread: str, task: TaskWrites) -> WritesShown:
    shown = [
        WireWrite(each.index, each.channel, each.value.decode(), _text(b"".join(_bodies(each.pieces))))
        for each in task.writes
    ]
    return WritesShown(thread, checkpoint.namespace, checkpoint.id, task.task_id, shown)


def chosen(tasks: Sequence[TaskWrites]) -> TaskWrites | None:
    """The one task whose writes are given."""

    def preference(task: TaskWrites) -> tuple[bool, bool, int, bool, str]:
        channels = {each.channel for each in task.writes}
        ordinary = sum(each.index >= 0 for each in task.writes)
        named = task.task_id != NO_TASK
        return named, named and RESUME in channels, ordinary, INTERRUPT in channels, task.task_id

    return max(tasks, key=preference, default=None)


def _bodies(pieces: Sequence[Any]) -> Sequence[bytes]:
    return [each for each in pieces if isinstance(each, bytes)]


def _named(thread_id: str) -> str:
    if not thread_id:
        raise InvalidInput("thread_id must not be empty")
    return thread_id


def _type(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise InvalidInput("type_ is the name of a serializer, not half a character") from None


def _readable(metadata: bytes) -> dict[str, Any] | None:
    """The metadata, where it is a JSON object, for those who look at checkpoints in other ways."""
    try:
        found = _JSON.decode(metadata)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None


def _bytes(text: str, what: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise InvalidInput(f"{what} is not base64") from None


def _text(body: bytes) -> str:
    return b64encode(body).decode()
