"""Decodes the values of a graph's checkpoint to plain data, without LangGraph.

``HoldfastSaver`` writes a checkpoint as a state and pieces (see ``checkpoint_state.py`` and ``codec.py`` in
``adapters/langgraph``). This module reassembles them without creating objects: an object becomes a dictionary with the name of
its class under ``$type``, and a value that cannot be represented becomes its size. No class is imported and no foreign code runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from holdfast import Write
from holdfast.types import Checkpoint

FORMAT = 1
_BYTES_KINDS = (1, 2)
_NULL, _MSGPACK = 0, 3
_LIST, _DICT, _SKELETON, _SNAPSHOT = 3, 4, 5, 6
_ARRAY, _DELTA = 6, 7


class Channel(Struct, frozen=True):
    """One channel of a checkpoint."""

    name: str
    version: Any
    size_bytes: int
    """Size of the value, including shared pieces; 0 if the value is stored with an ancestor."""
    has_value: bool
    value: Any = None


class Unreadable(Exception):
    """The data is not the encoded state of a graph."""


def channels(checkpoint: Checkpoint) -> Sequence[Channel]:
    """Return the channels of a checkpoint, with their versions and values.

    Raises:
        Unreadable: the checkpoint was not written by ``HoldfastSaver``, or in a format that this release does not support.
    """
    try:
        form, _, newest, versions, _, _, nodes, *_ = _unpack(checkpoint.state)
        reader = _Reader(checkpoint.pieces)
        _, names, numbered, _, valued = _unpack(reader.next())
        if form != FORMAT:
            raise Unreadable(f"it is written in the unknown format {form}")
        if newest is not None:  # then the versions are stored as their distance to the newest one
            versions = [newest - distance for distance in versions]
        version_of = {names[at]: version for at, version in zip(numbered, versions, strict=True)}
        values = {names[at]: reader.measured(node) for at, node in zip(valued, nodes, strict=True)}
    except (msgspec.MsgspecError, TypeError, ValueError, LookupError, RecursionError) as error:
        raise Unreadable("it is not the state of a graph, or it is encrypted") from error
    return [
        Channel(name, version_of.get(name), *values[name])
        if name in values
        else Channel(name, version_of[name], 0, False)
        for name in dict.fromkeys([*values, *version_of])
    ]


def write_value(write: Write) -> Any:
    """Return the value of a write as plain data."""
    try:
        return _Reader([piece for piece in write.pieces if isinstance(piece, bytes)]).value(_unpack(write.value))
    except (Unreadable, msgspec.MsgspecError, TypeError, ValueError, LookupError, RecursionError):
        return {"$unreadable": len(write.value)}


class _Reader:
    """Consumes pieces in order."""

    def __init__(self, pieces: Sequence[bytes | None]) -> None:
        self._rest: Iterator[bytes | None] = iter(pieces)
        self._used = 0

    def measured(self, node: Any) -> tuple[int, bool, Any]:
        """Return the size of a value, ``True`` (it has a value), and the value."""
        before = self._used
        value = self.value(node)
        return self._used - before, True, value

    def value(self, node: Any) -> Any:
        if isinstance(node, bytes):
            self._used += len(node)
            return _decode(node)
        if node == 1:
            return _decode(self.next())
        if node[0] == _LIST:
            return [element for item in node[1] for element in self._items(item)]
        if node[0] == _DICT:
            return {key: self.value(child) for key, child in zip(node[1], node[2], strict=True)}
        if node[0] == _SNAPSHOT:
            return self.value(node[1])
        if node[0] == _SKELETON:
            return self.value(_unpack(self.next()))
        raise Unreadable("its skeleton contains an unknown node")

    def next(self) -> bytes:
        piece = next(self._rest, None)
        if piece is None:
            raise Unreadable("it has too few pieces")
        self._used += len(piece)
        return piece

    def _items(self, item: Any) -> list[Any]:
        if isinstance(item, bytes):
            self._used += len(item)
            return _as_list(_decode(item))
        if item > 0:
            return [_decode(self.next()) for _ in range(item)]
        return [element for _ in range(-item) for element in _as_list(_decode(self.next()))]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _decode(body: bytes) -> Any:
    kind, data = body[0], body[1:]
    if kind == _NULL:
        return None
    if kind in _BYTES_KINDS:
        return {"$bytes": len(data)}
    try:
        if kind == _MSGPACK:
            return _json_value(_decoder.decode(data))
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError, RecursionError):
        pass  # a value that cannot be decoded does not affect the others
    return {"$unreadable": len(data)}


def _object(code: int, data: memoryview) -> Any:
    """Convert an object to data: the name of its class, and its content."""
    parts = _decoder.decode(data)
    if code == _DELTA:
        return parts
    if code == _ARRAY:
        return {"$type": "numpy.ndarray", "shape": parts[1]}
    module, name, content = parts[:3]
    fields = content if isinstance(content, dict) else {"value": content}
    return {"$type": f"{module}.{name}", **fields}


def _json_value(value: Any) -> Any:
    """Convert a value to one that JSON can represent."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    return {"$bytes": len(value)} if isinstance(value, (bytes, bytearray, memoryview)) else value


_unpack = msgspec.msgpack.Decoder().decode
_decoder = msgspec.msgpack.Decoder(ext_hook=_object)
