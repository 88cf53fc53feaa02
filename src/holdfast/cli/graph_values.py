"""The values in a graph's checkpoint as plain data, without LangGraph.

``HoldfastSaver`` writes a checkpoint as a skeleton and pieces (``adapters/langgraph/codec.py`` says how). Here they are put
together again, but nothing is built: an object is shown as a dictionary with the name of its class under ``$type``, and what
cannot be shown is shown as how large it is. No class is looked up and no code of anybody's is run.
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
    """What its value takes when nothing is shared; 0 if the value lies with an ancestor."""
    has_value: bool
    value: Any = None


class Unreadable(Exception):
    """This is not how a graph's state is written down."""


def channels(checkpoint: Checkpoint) -> Sequence[Channel]:
    """The channels of a checkpoint, with their versions and values.

    Raises:
        Unreadable: it is not a graph's checkpoint, or is written in a way this release does not know.
    """
    try:
        form, _, newest, versions, _, _, nodes, *_ = _unpack(checkpoint.state)
        reader = _Reader(checkpoint.pieces)
        _, names, numbered, _, valued = _unpack(reader.next())
        if form != FORMAT:
            raise Unreadable(f"it is written in form {form}")
        if newest is not None:  # then they are what each is behind it
            versions = [newest - each for each in versions]
        known = {names[at]: version for at, version in zip(numbered, versions, strict=True)}
        values = {names[at]: reader.measured(node) for at, node in zip(valued, nodes, strict=True)}
    except (msgspec.MsgspecError, TypeError, ValueError, LookupError, RecursionError) as error:
        raise Unreadable("it is not the state of a graph, or it is encrypted") from error
    return [
        Channel(name, known.get(name), *values[name]) if name in values else Channel(name, known[name], 0, False)
        for name in dict.fromkeys([*values, *known])
    ]


def written(write: Write) -> Any:
    """The value of a write."""
    try:
        return _Reader([each for each in write.pieces if isinstance(each, bytes)]).value(_unpack(write.value))
    except (Unreadable, msgspec.MsgspecError, TypeError, ValueError, LookupError, RecursionError):
        return {"$unreadable": len(write.value)}


class _Reader:
    """Uses up pieces in order."""

    def __init__(self, pieces: Sequence[bytes | None]) -> None:
        self._rest: Iterator[bytes | None] = iter(pieces)
        self._used = 0

    def measured(self, node: Any) -> tuple[int, bool, Any]:
        """How many bytes a value takes, that it is there, and what it is."""
        before = self._used
        value = self.value(node)
        return self._used - before, True, value

    def value(self, node: Any) -> Any:
        if isinstance(node, bytes):
            self._used += len(node)
            return _loaded(node)
        if node == 1:
            return _loaded(self.next())
        if node[0] == _LIST:
            return [each for item in node[1] for each in self._items(item)]
        if node[0] == _DICT:
            return {key: self.value(each) for key, each in zip(node[1], node[2], strict=True)}
        if node[0] == _SNAPSHOT:
            return self.value(node[1])
        if node[0] == _SKELETON:
            return self.value(_unpack(self.next()))
        raise Unreadable("its skeleton cannot be read")

    def next(self) -> bytes:
        piece = next(self._rest, None)
        if piece is None:
            raise Unreadable("it has fewer pieces than it should")
        self._used += len(piece)
        return piece

    def _items(self, item: Any) -> list[Any]:
        if isinstance(item, bytes):
            self._used += len(item)
            return _listed(_loaded(item))
        if item > 0:
            return [_loaded(self.next()) for _ in range(item)]
        return [each for _ in range(-item) for each in _listed(_loaded(self.next()))]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _loaded(body: bytes) -> Any:
    kind, data = body[0], body[1:]
    if kind == _NULL:
        return None
    if kind in _BYTES_KINDS:
        return {"$bytes": len(data)}
    try:
        if kind == _MSGPACK:
            return _shown(_decoder.decode(data))
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError, RecursionError):
        pass  # one value that cannot be shown keeps none of the others from it
    return {"$unreadable": len(data)}


def _object(code: int, data: memoryview) -> Any:
    """An object as data: its class by name, and what it is made from."""
    parts = _decoder.decode(data)
    if code == _DELTA:
        return parts
    if code == _ARRAY:
        return {"$type": "numpy.ndarray", "shape": parts[1]}
    module, name, content = parts[:3]
    made = content if isinstance(content, dict) else {"value": content}
    return {"$type": f"{module}.{name}", **made}


def _shown(value: Any) -> Any:
    """A value that JSON can say."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _shown(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(each) for each in value]
    return {"$bytes": len(value)} if isinstance(value, (bytes, bytearray, memoryview)) else value


_unpack = msgspec.msgpack.Decoder().decode
_decoder = msgspec.msgpack.Decoder(ext_hook=_object)
