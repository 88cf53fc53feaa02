"""Validates the arguments of the checkpoint store before it uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ....core import scope as scopes
from ....core import text
from ....errors import InvalidFilter, InvalidInput
from ....limits import Limits
from . import channel_marks, compact_columns
from .ranges import Range
from .task_writes import Write


def run_of(metadata: Mapping[str, Any] | None, limits: Limits) -> str | None:
    """Return the run id in metadata, if they contain one."""
    run = metadata.get("run_id") if isinstance(metadata, Mapping) else None
    return scopes.free_text(run, "run id", limits, limit="key_bytes") if isinstance(run, str) else None


def writes(new: Sequence[Write]) -> Sequence[Write]:
    """Return the writes after checking them."""
    for write in new:
        if not isinstance(write, Write) or type(write.index) is not int or not -(2**31) <= write.index < 2**31:
            raise InvalidInput(f"new must be a list of Write with 32-bit indexes, not of {write!r}", field="new")
        bytes_of(write.value, "the value of a write")
        channel(write.channel)
    return new


def names(values: Sequence[Any], field: str, limits: Limits) -> Sequence[Any]:
    """Return a list after checking that it is not too long for one call."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidInput(f"{field} must be a list, not {type(values).__name__}", field=field)
    limits.check("batch_rows", len(values), field)
    return values


def pieces(values: Sequence[bytes | int | Range], maximum: int) -> Sequence[bytes | int | Range]:
    """Return the pieces of a value after checking them: bodies, positions, and non-empty ranges of positions."""
    error = InvalidInput(f"pieces must be a list of at most {maximum:,} items", field="pieces")
    if isinstance(values, (bytes, str)) or not isinstance(values, Sequence) or len(values) > maximum:
        raise error
    ranges = [item for item in values if type(item) is tuple]
    if not all(len(span) == 2 and all(type(end) is int for end in span) and span[0] <= span[1] for span in ranges):
        raise InvalidInput("a range of positions must be a pair of its first and its last position", field="pieces")
    if ranges and len(values) + sum(last - first for first, last in ranges) > maximum:
        raise error
    return values


def channel(name: object) -> str:
    """Return the name of a channel after checking it."""
    if not isinstance(name, str):
        raise InvalidInput(f"the name of a channel must be a string, not {type(name).__name__}", field="channel")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"the name of a channel must be valid Unicode, not {name!r}", field="channel") from None
    return name


def marks(leans: Sequence[Any], changed: Sequence[Any], snapshots: Sequence[Any], limits: Limits) -> list[str]:
    """Return the stored marks of channels for which ancestors or descendants of a checkpoint matter."""
    arguments = {"leans": leans, "changed": changed, "snapshots": snapshots}
    channels = {field: [channel(name) for name in names(values, field, limits)] for field, values in arguments.items()}
    if not {*channels["changed"]} <= {*channels["leans"]}:
        raise InvalidInput("every channel in changed must be in leans, too", field="changed")
    if not {*channels["leans"]}.isdisjoint(channels["snapshots"]):
        raise InvalidInput("a channel in snapshots must not be in leans", field="snapshots")
    return channel_marks.encode_marks(channels["leans"], channels["changed"], channels["snapshots"])


def id_of(value: object, what: str, limits: Limits) -> bytes:
    """Return an id argument in its stored form."""
    return compact_columns.encode_id(scopes.name(value, what, limits))


def path_of(value: object, limits: Limits) -> str:
    """Return the path of a task in its stored form."""
    path = text_of(value, "task path")
    limits.check("metadata_bytes", text.size(path), "task path")
    return compact_columns.encode_path(path)


def text_of(value: object, field: str, error: type[InvalidInput] = InvalidInput) -> str:
    """Return a string argument in its stored form."""
    if not isinstance(value, str):
        raise error(f"{field} must be a string, not {type(value).__name__}", field=field)
    return text.escape(value)


def bytes_of(value: object, field: str) -> bytes:
    """Return a bytes-like argument as bytes."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidInput(f"{field} must be bytes, not {type(value).__name__}", field=field)
    return bytes(value)


def with_id(sign: Literal["=", "<"], id: str | None, params: dict[str, Any]) -> str:
    """Return the condition that compares the stored id of a checkpoint with this one."""
    if id is None:
        return ""
    name = "exact_id" if sign == "=" else "before_id"
    params[name] = compact_columns.encode_id(text_of(id, "the id of a checkpoint", InvalidFilter))
    return f"\n  AND checkpoint_id {sign} :{name}"
