"""What callers hand to the checkpoint store, looked at before anything is done with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ....core import scope as scopes
from ....core import text
from ....errors import HoldfastError, InvalidFilter, InvalidInput
from ....limits import Limits
from . import channel_marks, compact_columns
from .ranges import Range
from .task_writes import Write


def run_of(metadata: Mapping[str, Any] | None, limits: Limits) -> str | None:
    """The run that metadata speak of."""
    run = metadata.get("run_id") if isinstance(metadata, Mapping) else None
    return scopes.free_text(run, "run id", limits, limit="key_bytes") if isinstance(run, str) else None


def checked(new: Sequence[Write]) -> Sequence[Write]:
    """Writes, if that is what they are."""
    for each in new:
        if not isinstance(each, Write) or type(each.index) is not int or not -(2**31) <= each.index < 2**31:
            raise InvalidInput("writes are a list of Write, each with an index of 32 bits")
        bytes_of(each.value, "the value of a write")
        channel(each.channel)
    return new


def names(values: Sequence[Any], what: str, limits: Limits) -> Sequence[Any]:
    """A list of no more than one call may carry."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidInput(f"{what} come as a list")
    limits.check("batch_rows", len(values), what)
    return values


def pieces(given: Sequence[bytes | int | Range], most: int) -> Sequence[bytes | int | Range]:
    """Pieces of a value: bodies, places and ranges of places, none of which is empty or leaves places out."""
    wrong = InvalidInput(f"pieces come as a list of at most {most:,}")
    if isinstance(given, (bytes, str)) or not isinstance(given, Sequence) or len(given) > most:
        raise wrong
    ranges = [each for each in given if type(each) is tuple]
    if not all(len(each) == 2 and all(type(place) is int for place in each) and each[0] <= each[1] for each in ranges):
        raise InvalidInput("a range of places is its first place and its last, which does not come before it")
    if ranges and len(given) + sum(last - first for first, last in ranges) > most:
        raise wrong
    return given


def channel(name: object) -> str:
    """The name of a channel."""
    if not isinstance(name, str):
        raise InvalidInput(f"the name of a channel is text, not {type(name).__name__}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidInput("the name of a channel must be text that can be encoded") from None
    return name


def marks(leans: Sequence[Any], changed: Sequence[Any], snapshots: Sequence[Any], limits: Limits) -> list[str]:
    """The channels that ancestors or descendants of a checkpoint matter for, as they are stored."""
    given = {"leans": leans, "changed": changed, "snapshots": snapshots}
    found = {what: [channel(each) for each in names(values, what, limits)] for what, values in given.items()}
    if not {*found["changed"]} <= {*found["leans"]} or not {*found["leans"]}.isdisjoint(found["snapshots"]):
        raise InvalidInput("channels in changed are in leans too, and those in snapshots are not")
    return channel_marks.marked(found["leans"], found["changed"], found["snapshots"])


def id_of(value: object, what: str, limits: Limits) -> bytes:
    """An id that the caller gave, as it is stored."""
    return compact_columns.short_id(scopes.name(value, what, limits))


def path_of(value: object, limits: Limits) -> str:
    """The path of a task, as it is stored."""
    stored = text_of(value, "task path")
    limits.check("metadata_bytes", text.size(stored), "task path")
    return compact_columns.short_path(stored)


def text_of(value: object, what: str, error: type[HoldfastError] = InvalidInput) -> str:
    """A text as it is stored."""
    if not isinstance(value, str):
        raise error(f"{what} must be a string, not {type(value).__name__}")
    return text.escape(value)


def bytes_of(value: object, what: str) -> bytes:
    """Bytes of whatever kind."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidInput(f"{what} is bytes, not {type(value).__name__}")
    return bytes(value)


def with_id(sign: Literal["=", "<"], id: str | None, params: dict[str, Any]) -> str:
    """The condition that an id compares so with this one, in the form that is stored, which the key is made of."""
    if id is None:
        return ""
    name = "exact_id" if sign == "=" else "before_id"
    params[name] = compact_columns.short_id(text_of(id, "the id of a checkpoint", InvalidFilter))
    return f"\n  AND checkpoint_id {sign} :{name}"
