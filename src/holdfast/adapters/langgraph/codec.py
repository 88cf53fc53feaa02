"""Encodes values as small skeletons and pieces that checkpoints share.

Lists, dictionaries and snapshots are split up; their elements become pieces if they are large enough. What remains is a skeleton,
which contains the number of pieces at each position. Pieces are consumed in the order in which the skeletons refer to them.
``checkpoint_state`` encodes a whole checkpoint with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from holdfast.errors import Corrupt, InvalidInput

from .fingerprint import fingerprint_of, is_recognisable, is_unchanged
from .object_cache import CachedThread, SerializedObject
from .serializer import StrictSerializer

PIECE_FROM = 64
"""Size from which a value becomes a piece."""
MAX_SKELETON = 512
"""Size up to which a skeleton is stored in the state itself; a larger one is a piece."""
MAX_DEPTH = 4
CHUNK = 64
"""Small elements of a list that share a piece."""
_KINDS = ("null", "bytes", "bytearray", "msgpack")
_MSGPACK = bytes([_KINDS.index("msgpack")])
_LIST, _DICT, _SKELETON, _SNAPSHOT = 3, 4, 5, 6
pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder().decode

Serde = Any
Piece = bytes | int | tuple[int, int]


class Encoder:
    """Splits values into skeletons and pieces.

    ``pieces`` contains bodies, and places or ranges of places of pieces that the thread already has.
    """

    def __init__(self, serde: Serde, thread: CachedThread | None) -> None:
        self._serde, self._thread = serde, thread
        self.pieces: list[Piece] = []
        self.serialized: list[tuple[int, SerializedObject]] = []
        """Objects that became pieces, each with the number of its piece."""
        self.shape: bytes | None = None
        """The first piece, if it is a shape that the thread does not have."""
        self._untouched = False

    def begin(self, shape: bytes) -> None:
        """Add the shape as the first piece."""
        place = None if self._thread is None else self._thread.place_of_shape(shape)
        self.shape = shape if place is None else None
        self.pieces = [shape if place is None else place]

    def node(self, value: Any, depth: int = 0) -> Any:
        """Return the skeleton of a value, and add its pieces."""
        if depth < MAX_DEPTH and value:
            if type(value) is list:
                return [_LIST, self._items(value)]
            if type(value) is dict and all(type(key) is str for key in value):
                return [_DICT, list(value), [self.node(child, depth + 1) for child in value.values()]]
        if type(value) is _DeltaSnapshot:
            return [_SNAPSHOT, self.node(value.value, depth + 1)]
        body, serialized = self._body(value)
        if isinstance(body, bytes) and len(body) < PIECE_FROM:
            return body
        self._add(body, serialized)
        return 1

    def bounded(self, value: Any, *, untouched: bool = False) -> Any:
        """Return the skeleton of a value; a large skeleton becomes a piece.

        Args:
            untouched: nothing has changed the value since it was read, so its known objects need not be compared.
        """
        self._untouched = untouched
        start = len(self.pieces)
        node = self.node(value)
        packed = pack(node)
        if len(packed) <= MAX_SKELETON:
            return node
        self.pieces.insert(start, packed)
        self.serialized = [(number + (number >= start), entry) for number, entry in self.serialized]
        return [_SKELETON]

    def _items(self, values: list[Any]) -> list[Any]:
        """Encode the elements of a list.

        An item is a number of pieces, the bytes of small elements, or minus the number of pieces that each contain ``CHUNK``
        small elements.
        """
        values = values.copy()  # another thread may be adding to it
        items: list[Any] = []
        small: list[Any] = []
        at, places = 0, self._places(values)
        for run in _runs(places):
            if run[0] is None:
                for value in values[at : at + len(run)]:
                    self._element(value, small, items)
            else:
                self._flush(small, items)
                self._add_places(run)
                _count(items, len(run))
            at += len(run)
        self._flush(small, items)
        return items

    def _element(self, value: Any, small: list[Any], items: list[Any]) -> None:
        """Encode an element of a list that the thread does not have."""
        body, serialized = self._serialize(value)
        if len(body) < PIECE_FROM:
            small.append(value)
            return
        self._flush(small, items)
        self._add(body, serialized)
        _count(items, 1)

    def _places(self, values: Sequence[Any]) -> list[int | None]:
        """Return the place of each value in the thread, or ``None``."""
        if self._thread is None:
            return [None] * len(values)
        return self._thread.places_of(values, unchanged=self._untouched)

    def _add_places(self, places: Sequence[Any]) -> None:
        """Add pieces that the thread already has, as ranges of places."""
        first, last = places[0], places[-1]
        if places == list(range(first, last + 1)):  # the usual case: a conversation that has only grown
            self.pieces.append((first, last))
            return
        last = first
        for place in places[1:]:
            if place != last + 1:
                self.pieces.append((first, last))
                first = place
            last = place
        self.pieces.append((first, last))

    def _flush(self, small: list[Any], items: list[Any]) -> None:
        if not small:
            return
        whole = len(small) // CHUNK
        for number in range(whole):
            self.pieces.append(self._typed(small[number * CHUNK : (number + 1) * CHUNK]))
        if whole:
            items.append(-whole)
        if len(small) % CHUNK:
            items.append(self._typed(small[whole * CHUNK :]))
        small.clear()

    def _body(self, value: Any) -> tuple[bytes | int, SerializedObject | None]:
        """Return the place or the bytes of a value that is not in a list, and the object for the cache."""
        (place,) = self._places([value])
        return self._serialize(value) if place is None else (place, None)

    def _serialize(self, value: Any) -> tuple[bytes, SerializedObject | None]:
        """Return the bytes of a value, and the object for the cache.

        Another thread may be changing the value, so its fingerprint is taken before serialization and compared afterwards.
        """
        if not is_recognisable(value):
            return self._typed(value), None
        before = fingerprint_of(value)
        body = self._typed(value)
        return body, SerializedObject(value, before) if before is not None and is_unchanged(value, before) else None

    def _typed(self, value: Any) -> bytes:
        kind, data = self._serde.dumps_typed(value)
        if kind not in _KINDS:
            raise InvalidInput(
                f"the serializer returned the kind {kind!r}, which cannot be saved: to encrypt checkpoints, use "
                "HoldfastSaver(..., encryption_key=...)",
                field="serde",
            )
        return bytes([_KINDS.index(kind)]) + data

    def _add(self, body: Piece, serialized: SerializedObject | None) -> None:
        if serialized is not None:
            self.serialized.append((len(self.pieces), serialized))
        self.pieces.append(body)


class Decoder:
    """Reassembles values from their pieces, in order and with their places; a piece is ``None`` if the cached thread has it."""

    def __init__(
        self, serde: Serde, pieces: Sequence[bytes | None], places: Sequence[int], thread: CachedThread | None = None
    ) -> None:
        self._serde, self._thread = serde, thread
        self._pieces, self._places, self._at = pieces, places, 0

    def value(self, node: Any) -> Any:
        """Return the value of a skeleton."""
        if isinstance(node, bytes):
            return self._load(node)
        if node == 1:
            return self._next()
        if node[0] == _LIST:
            return self._list(node[1])
        if node[0] == _DICT:
            return {key: self.value(child) for key, child in zip(node[1], node[2], strict=True)}
        if node[0] == _SNAPSHOT:
            return _DeltaSnapshot(self.value(node[1]))
        if node[0] == _SKELETON:
            return self.value(unpack(self.raw()))
        raise Corrupt("the skeleton of a saved value contains an unknown node")

    def raw(self) -> bytes:
        """Return the bytes of the next piece."""
        return self._bodies(self._take(1))[0]

    def shape(self) -> bytes:
        """Return the next piece, which is a shape, from the cache or from the pieces."""
        taken = self._take(1)
        place = self._places[taken.start]
        cached = None if self._thread is None else self._thread.shape_at(place)
        if cached is not None:
            return cached
        body = self._bodies(taken)[0]
        if self._thread is not None:
            self._thread.keep_shape(place, body)
        return body

    def _list(self, items: Sequence[Any]) -> list[Any]:
        elements: list[Any] = []
        for item in items:
            if isinstance(item, bytes):
                elements += self._load(item)
            elif item > 0:
                elements += self._next_values(item)
            else:
                for _ in range(-item):
                    elements += self._load(self.raw())
        return elements

    def _next_values(self, count: int) -> list[Any]:
        """Return the values of the next ``count`` pieces."""
        taken = self._take(count)
        if self._thread is None:
            return self._load_all(self._bodies(taken))
        is_cached = self._thread.has(self._places[taken])
        if all(is_cached):
            return self._thread.rebuild(self._places[taken])
        values: list[Any] = []
        for hit, group in groupby(is_cached):
            part = slice(taken.start + len(values), taken.start + len(values) + len(list(group)))
            values += self._thread.rebuild(self._places[part]) if hit else self._decode(self._thread, part)
        return values

    def _decode(self, thread: CachedThread, part: slice) -> list[Any]:
        """Decode values of a list that the cached thread does not have, and add them to it."""
        bodies = self._bodies(part)
        values = self._load_all(bodies)
        thread.learn_decoded(values, self._places[part], lambda: self._load_all(bodies))
        return values

    def _next(self) -> Any:
        taken = self._take(1)
        place = self._places[taken.start]
        if self._thread is not None and all(self._thread.has([place])):
            return self._thread.rebuild([place])[0]
        value = self._load(self._bodies(taken)[0])
        if self._thread is not None and is_recognisable(value) and (fingerprint := fingerprint_of(value)) is not None:
            self._thread.learn(SerializedObject(value, fingerprint), place)
        return value

    def _take(self, count: int) -> slice:
        taken = slice(self._at, self._at + count)
        self._at += count
        if self._at > len(self._pieces):
            raise Corrupt("a saved value has too few pieces")
        return taken

    def _bodies(self, taken: slice) -> Sequence[bytes]:
        bodies: list[Any] = list(self._pieces[taken])
        if None in bodies:
            raise Corrupt("a saved value has too few pieces")
        return bodies

    def _load_all(self, bodies: Sequence[bytes]) -> list[Any]:
        """Return the values of bodies; messages are deserialized in one batch."""
        if isinstance(self._serde, StrictSerializer) and all(body[:1] == _MSGPACK for body in bodies):
            return self._serde.loads_all([body[1:] for body in bodies])
        return [self._load(body) for body in bodies]

    def _load(self, body: bytes) -> Any:
        return self._serde.loads_typed((_KINDS[body[0]], body[1:]))


def dump_value(value: Any, encoder: Encoder) -> bytes:
    """Encode one value and return its skeleton. The encoder contains the pieces."""
    return pack(encoder.bounded(value))


def load_value(state: bytes, pieces: Sequence[bytes], serde: Serde) -> Any:
    """Decode one value."""
    return Decoder(serde, pieces, range(len(pieces))).value(unpack(state))


def _runs(places: list[int | None]) -> Sequence[list[int | None]]:
    """Group places into runs of known places and runs of ``None``."""
    if places and None not in places:
        return [places]
    return [list(run) for _, run in groupby(places, lambda place: place is None)]


def _count(items: list[Any], pieces: int) -> None:
    """Add a number of pieces to the items of a list."""
    if items and type(items[-1]) is int and items[-1] > 0:
        items[-1] += pieces
    else:
        items.append(pieces)
