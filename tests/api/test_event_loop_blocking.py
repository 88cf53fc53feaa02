"""No operation blocks the event loop for long: each is called with the largest allowed input."""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import msgspec.inspect as types
import pytest

from holdfast import Limits, NewMessage
from holdfast.api import parameters
from holdfast.api.limits import ServerLimits
from holdfast.api.operations import Operation
from holdfast.api.resources import OPERATIONS
from holdfast.api.schemas import decode_body
from holdfast.errors import InvalidInput, LimitExceeded
from tests.api.in_process import Running, running
from tests.api.process import json_body
from tests.api.v1 import NEVER, NOW
from tests.errors import raises

SLOWEST_S = 0.25
"""Processor time that the event loop may spend on one callback, at the server's default limits."""
SCALE = 16
"""The factor by which the limits are reduced v1."""
LIMITS = ServerLimits(
    refusals_per_s=0,
    request_bytes=ServerLimits().request_bytes // SCALE,
    response_bytes=ServerLimits().response_bytes // SCALE,
    body_values=ServerLimits().body_values // SCALE,
)
IN_PATH = re.compile(r"{(\w+)}")
ROWS = Limits().batch_rows // SCALE
SHARED = 3
"""The factor for a processor whose caches and second half are used by other processes."""
MOST_S = SLOWEST_S / SCALE * SHARED
TRIES = 3
"""Repetitions of a request that blocks too long: the work of an operation is always slow, a cold cache only once."""


class Stalls:
    """The processor time of the event loop's thread between two turns of a task, which other processes do not affect."""

    def __init__(self) -> None:
        self.worst_s = 0.0

    async def beat(self) -> None:
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(0)
            self.worst_s = max(self.worst_s, time.thread_time() - before_s)


@asynccontextmanager
async def beating() -> Any:
    stalls = Stalls()
    beat = asyncio.create_task(stalls.beat())
    await asyncio.sleep(0)
    try:
        yield stalls
        await asyncio.sleep(0)
    finally:
        beat.cancel()


def largest(kind: types.Type, size: int, value: Callable[[int], Any], *, is_valid: bool = False) -> Any:
    """Return the largest value of a type that takes about this many bytes; ``value`` makes values for fields of any JSON. With
    ``is_valid``, return one that stores accept: names are short, metadata is within its limit, and small optional fields are
    left out."""
    match kind:
        case types.Metadata(type=inner, extra_json_schema=schema):
            return NEVER if (schema or {}).get("format") == "uuid" else largest(inner, size, value, is_valid=is_valid)
        case types.ListType() | types.SetType() | types.VarTupleType() | types.CollectionType():
            count = max(1, min(ROWS, kind.max_length or ROWS, size // 200))
            return [largest(kind.item_type, size // count, value, is_valid=is_valid)] * count
        case types.DictType():
            return {"key": largest(kind.value_type, min(size, 100_000) if is_valid else size, value, is_valid=is_valid)}
        case types.StructType():
            fields = [field for field in kind.fields if not is_valid or field.required or _is_large(field.type)]
            share = size // max(len(fields), 1)
            return {field.encode_name: largest(field.type, share, value, is_valid=is_valid) for field in fields}
        case types.UnionType():
            return largest(max(kind.types, key=_rank), size, value, is_valid=is_valid)
    return _plain(kind, 10 if is_valid else size, lambda _: value(size))


def _plain(kind: types.Type, size: int, value: Callable[[int], Any]) -> Any:
    match kind:
        case types.StrType():
            return "x" * min(size, kind.max_length or size)
        case types.LiteralType():
            return kind.values[0]
        case types.IntType() | types.FloatType():
            return max(kind.ge or 0, 1)
        case types.BoolType():
            return True
        case types.DateTimeType():
            return NOW
        case types.BytesType():
            return "eHh4" * (size // 4)
    return value(size)


def _is_large(kind: types.Type) -> bool:
    """Return whether a field can hold much, or is required in a message."""
    match kind:
        case types.Metadata(type=inner):
            return _is_large(inner)
        case types.UnionType():
            return any(_is_large(type) for type in kind.types)
    return isinstance(kind, types.AnyType | types.DictType | types.LiteralType)


def _rank(kind: types.Type) -> int:
    order = (types.NoneType, types.BoolType, types.IntType, types.FloatType, types.DateTimeType, types.StrType)
    return order.index(type(kind)) if type(kind) in order else len(order)


VALUES: dict[str, Callable[[int], Any]] = {
    "text": lambda size: "x" * size,
    "a lone surrogate": lambda size: "\ud800" + "x" * size,
    "too many values": lambda size: [0] * (size // 2),
    "many values": lambda size: [0] * min(size // 2, LIMITS.body_values - ROWS),
    "surrogates": lambda size: "\ud800" * (size // 6),
    "fractions": lambda size: [1.5] * min(size // 4, 8 * LIMITS.body_values - 4 * ROWS),
    "objects": lambda size: [{"type": "x"}] * min(size // 13, LIMITS.body_values // 2 - ROWS),
    "blocks": lambda size: [{"type": "text", "text": "x" * 100}] * (size // 130),
}


def requests(operation: Operation, names: dict[str, str]) -> Iterator[tuple[str, bytes | None]]:
    """Return the paths and bodies of the requests."""
    path = IN_PATH.sub(lambda name: names.get(name[1], NEVER), operation.path)
    query: dict[str, Any] = {}
    for parameter in parameters.parameters(operation):
        if parameter.place == "query" and (parameter.required or parameter.name in ("limit", "count")):
            result = largest(types.type_info(parameter.type), 20_000, VALUES["text"])
            query[parameter.wire_name] = ROWS if parameter.name in ("limit", "count") else result
    whole = f"{path}?{urlencode(query, doseq=True)}" if query else path
    kinds = parameters.bodies(operation)
    if not kinds:
        yield whole, None
    for kind in kinds:
        seen: set[bytes] = set()
        for value, is_valid in [*product(VALUES.values(), [True]), (VALUES["text"], False)]:
            made = largest(types.type_info(kind), LIMITS.request_bytes * 9 // 10, value, is_valid=is_valid)
            body = json_body(made)["content"]
            if body not in seen:
                seen.add(body)
                yield whole, body


async def filled(server: Running) -> dict[str, str]:
    """Create an object of each kind that many operations use, with as much content as a page shows."""
    acme = server.holdfast.tenant("acme")
    session = await acme.sessions.create(agent=NEVER)
    text = "x" * (LIMITS.response_bytes // ROWS // 2)
    await acme.messages.append_many(session.id, [NewMessage(role="user", content=text)] * ROWS)
    run = await acme.runs.start(session.id)
    return {"tenant": "acme", "session_id": session.id, "run_id": run.id}


async def send_largest(server: Running, operation: Operation) -> list[tuple[str, int, float]]:
    """Return the responses of an operation to the largest requests, with the longest time that each blocked the event loop."""
    results = []
    needs_log = any(name in operation.path for name in ("session_id", "run_id", "{agent}/messages"))
    names = await filled(server) if needs_log else {"tenant": "acme"}
    for path, body in requests(operation, names):
        stalled_s = []
        for _ in range(TRIES):
            async with beating() as stalls:
                reply = await server.ask(operation.method, path, body)
            stalled_s.append(stalls.worst_s)
            if stalls.worst_s <= MOST_S:
                break
        results.append((operation.function.__name__, reply.status, min(stalled_s)))
    return results


def test_no_operation_blocks_the_event_loop_for_long(tmp_path: Path) -> None:
    async def main() -> list[tuple[str, int, float]]:
        async with running(str(tmp_path / "a.db"), limits=LIMITS) as server:
            return [
                item
                for operation in OPERATIONS
                if not operation.streams
                for item in await send_largest(server, operation)
            ]

    gc.disable()  # the objects of all other tests are in this process as well
    try:
        seen = asyncio.run(main())
    finally:
        gc.enable()
    assert {operation.function.__name__ for operation in OPERATIONS if not operation.streams} == {
        name for name, _, _ in seen
    }
    assert {name for name, status, _ in seen if status < 300} >= {"append_messages", "list_messages", "create_session"}
    assert [row for row in seen if row[1] == 500] == []
    assert [row for row in seen if row[2] > MOST_S] == []


@pytest.mark.parametrize(
    ("body", "is_refused"),
    [
        (b"[" + b"0," * 7_000 + b"0]", False),
        (b"[" + b"0," * 8_000 + b"0]", True),
        (b"[" + b"{}," * 800 + b"0]", False),
        (b"[" + b"{}," * 1_000 + b"0]", True),
        (b"[" + b'"a",' * 2_500 + b"0]", False),
        (b"[" + b'"a",' * 4_000 + b"0]", True),
        (b'["' + b"{[,]}" * 10_000 + b'"]', False),
        (b'["' + b'\\",{' * 10_000 + b'"]', False),
    ],
    ids=["numbers", "too many", "objects", "too many", "texts", "too many", "one text", "quotes in a text"],
)
def test_the_values_of_a_body_are_counted_before_objects_are_created(body: bytes, is_refused: bool) -> None:
    if is_refused:
        with raises(LimitExceeded, limit="body_values", maximum=1_000):
            decode_body(body[:-1], [msgspec.json.Decoder()], 1_000)  # unterminated, which has not been checked yet
    else:
        assert decode_body(body, [msgspec.json.Decoder()], 1_000) == msgspec.json.decode(body)


@pytest.mark.parametrize("body", [b'"' + b'\\"' * 500_000, b"[" * 1_000_000, b'"' * 999_999, b"\\" * 1_000_000])
@pytest.mark.timeout(60)
def test_counting_values_takes_linear_time_for_invalid_json(body: bytes) -> None:
    """If each quote was matched up to the end, this would take hours."""
    with pytest.raises((InvalidInput, LimitExceeded)):
        decode_body(body + b"," * 2_000, [msgspec.json.Decoder()], 1_000)
