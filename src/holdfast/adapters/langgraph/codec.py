"""A checkpoint as bytes: a small state, and pieces that other checkpoints have as well.

Lists, dictionaries and snapshots are taken apart; their parts become pieces, from a certain size on. What remains is a skeleton
that says how many pieces come where, and a *shape*: the names of channels and nodes, the same in almost every step of a
graph, which is a piece too. Pieces are used up in the order in which the skeletons name them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

import msgspec
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from holdfast.clock import from_us, to_us
from holdfast.errors import Corrupt, InvalidInput

from .fingerprint import fingerprint_of, is_recognisable, is_unchanged
from .object_cache import CachedThread, Learnt
from .serializer import StrictSerializer

PIECE_FROM = 64
"""Bytes from which on a value is a piece."""
MAX_SKELETON = 512
"""Bytes up to which a skeleton stands in the state itself."""
MAX_DEPTH = 4
CHUNK = 64
"""Small elements of a list that share a piece."""
FORMAT = 1
_VERSION_6 = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-6[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_GREGORIAN_US = 12_219_292_800_000_000
"""Microseconds from the day from which on such UUIDs count to 1970."""
_KINDS = ("null", "bytes", "bytearray", "msgpack")
_MSGPACK = bytes([_KINDS.index("msgpack")])
_LIST, _DICT, _SKELETON, _SNAPSHOT = 3, 4, 5, 6
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode

Serde = Any
Piece = bytes | int | tuple[int, int]


class Encoder:
    """Takes values apart. ``pieces`` are bodies, or places and ranges of places of what the thread has already."""

    def __init__(self, serde: Serde, thread: CachedThread | None) -> None:
        self._serde, self._thread = serde, thread
        self.pieces: list[Piece] = []
        self.learnt: list[tuple[int, Learnt]] = []
        """Objects that became pieces, each with the number of the piece."""
        self.shape: bytes | None = None
        """The first piece, if it is a shape that the thread has not."""
        self._untouched = False

    def begin(self, shape: bytes) -> None:
        """Have a shape as the first piece."""
        place = None if self._thread is None else self._thread.place_of_shape(shape)
        self.shape = shape if place is None else None
        self.pieces = [shape if place is None else place]

    def node(self, value: Any, depth: int = 0) -> Any:
        """The skeleton of a value."""
        if depth < MAX_DEPTH and value:
            if type(value) is list:
                return [_LIST, self._items(value)]
            if type(value) is dict and all(type(key) is str for key in value):
                return [_DICT, list(value), [self.node(each, depth + 1) for each in value.values()]]
        if type(value) is _DeltaSnapshot:
            return [_SNAPSHOT, self.node(value.value, depth + 1)]
        body, learnt = self._body(value)
        if isinstance(body, bytes) and len(body) < PIECE_FROM:
            return body
        self._add(body, learnt)
        return 1

    def bounded(self, value: Any, *, untouched: bool = False) -> Any:
        """The skeleton of a value; one that is large is a piece itself. In one that is untouched, what the thread knows is not
        looked at more closely."""
        self._untouched = untouched
        start = len(self.pieces)
        node = self.node(value)
        packed = _pack(node)
        if len(packed) <= MAX_SKELETON:
            return node
        self.pieces.insert(start, packed)
        self.learnt = [(number + (number >= start), each) for number, each in self.learnt]
        return [_SKELETON]

    def _items(self, values: list[Any]) -> list[Any]:
        """The elements of a list: a number of pieces, or the bytes of small ones, or minus a number of pieces full of them."""
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
        """An element of a list that the thread does not have."""
        body, learnt = self._written(value)
        if len(body) < PIECE_FROM:
            small.append(value)
            return
        self._flush(small, items)
        self._add(body, learnt)
        _count(items, 1)

    def _places(self, values: Sequence[Any]) -> list[int | None]:
        """Where the thread has each value."""
        if self._thread is None:
            return [None] * len(values)
        return self._thread.places_of(values, unchanged=self._untouched)

    def _add_places(self, places: Sequence[Any]) -> None:
        """Add pieces that the thread has, as ranges."""
        first, last = places[0], places[-1]
        if places == list(range(first, last + 1)):  # mostly: a conversation that only grew
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

    def _body(self, value: Any) -> tuple[bytes | int, Learnt | None]:
        """The place or the bytes of a value that is in no list, and what the thread learns of it."""
        (place,) = self._places([value])
        return self._written(value) if place is None else (place, None)

    def _written(self, value: Any) -> tuple[bytes, Learnt | None]:
        """The bytes of a value, and what the thread learns of it.

        Another thread may be changing the value: its fingerprint is taken before it is serialized and compared afterwards.
        """
        if not is_recognisable(value):
            return self._typed(value), None
        before = fingerprint_of(value)
        body = self._typed(value)
        return body, Learnt(value, before) if before is not None and is_unchanged(value, before) else None

    def _typed(self, value: Any) -> bytes:
        kind, data = self._serde.dumps_typed(value)
        if kind not in _KINDS:
            raise InvalidInput(
                f"values of the kind {kind!r} are not saved; to encrypt: HoldfastSaver(..., encryption_key=...)"
            )
        return bytes([_KINDS.index(kind)]) + data

    def _add(self, body: Piece, learnt: Learnt | None) -> None:
        if learnt is not None:
            self.learnt.append((len(self.pieces), learnt))
        self.pieces.append(body)


class Decoder:
    """Puts values together again from their pieces, given in order with their places; ``None`` where the thread has it."""

    def __init__(
        self, serde: Serde, pieces: Sequence[bytes | None], places: Sequence[int], thread: CachedThread | None = None
    ) -> None:
        self._serde, self._thread = serde, thread
        self._pieces, self._places, self._at = pieces, places, 0

    def value(self, node: Any) -> Any:
        """The value behind a skeleton."""
        if isinstance(node, bytes):
            return self._load(node)
        if node == 1:
            return self._next()
        if node[0] == _LIST:
            return self._list(node[1])
        if node[0] == _DICT:
            return {key: self.value(each) for key, each in zip(node[1], node[2], strict=True)}
        if node[0] == _SNAPSHOT:
            return _DeltaSnapshot(self.value(node[1]))
        if node[0] == _SKELETON:
            return self.value(_unpack(self.raw()))
        raise Corrupt("the skeleton of a saved value cannot be read")

    def raw(self) -> bytes:
        """The next piece as it is."""
        return self._bodies(self._take(1))[0]

    def shape(self) -> bytes:
        """The next piece, which is a shape: remembered, or to be."""
        taken = self._take(1)
        place = self._places[taken.start]
        known = None if self._thread is None else self._thread.shape_at(place)
        if known is not None:
            return known
        body = self._bodies(taken)[0]
        if self._thread is not None:
            self._thread.keep_shape(place, body)
        return body

    def _list(self, items: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        for item in items:
            if isinstance(item, bytes):
                found += self._load(item)
            elif item > 0:
                found += self._several(item)
            else:
                for _ in range(-item):
                    found += self._load(self.raw())
        return found

    def _several(self, count: int) -> list[Any]:
        """The values behind the next pieces."""
        taken = self._take(count)
        if self._thread is None:
            return self._load_all(self._bodies(taken))
        known = self._thread.has(self._places[taken])
        if all(known):
            return self._thread.rebuild(self._places[taken])
        values: list[Any] = []
        for is_known, group in groupby(known):
            part = slice(taken.start + len(values), taken.start + len(values) + len(list(group)))
            values += self._thread.rebuild(self._places[part]) if is_known else self._decoded(self._thread, part)
        return values

    def _decoded(self, thread: CachedThread, part: slice) -> list[Any]:
        """Values of a list that the thread does not have, and now learns."""
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
        if self._thread is not None and is_recognisable(value) and (was := fingerprint_of(value)) is not None:
            self._thread.learn(Learnt(value, was), place)
        return value

    def _take(self, count: int) -> slice:
        taken = slice(self._at, self._at + count)
        self._at += count
        if self._at > len(self._pieces):
            raise Corrupt("a saved value has fewer pieces than it should")
        return taken

    def _bodies(self, taken: slice) -> Sequence[bytes]:
        found: list[Any] = list(self._pieces[taken])
        if None in found:
            raise Corrupt("a saved value has fewer pieces than it should")
        return found

    def _load_all(self, bodies: Sequence[bytes]) -> list[Any]:
        """The values behind bodies; messages all at once."""
        if isinstance(self._serde, StrictSerializer) and all(body[:1] == _MSGPACK for body in bodies):
            return self._serde.loads_all([body[1:] for body in bodies])
        return [self._load(body) for body in bodies]

    def _load(self, body: bytes) -> Any:
        return self._serde.loads_typed((_KINDS[body[0]], body[1:]))


def dump_checkpoint(checkpoint: Mapping[str, Any], encoder: Encoder, untouched: Collection[str] = ()) -> bytes:
    """The state of a checkpoint; its shape is the first piece. The channels that are ``untouched`` have what was read."""
    versions, seen = checkpoint["channel_versions"], checkpoint["versions_seen"]
    values, updated = checkpoint["channel_values"], checkpoint.get("updated_channels")
    names = list(
        dict.fromkeys([*versions, *values, *(name for each in seen.values() for name in each), *(updated or ())])
    )
    number = {name: at for at, name in enumerate(names)}
    shape = [
        checkpoint["v"],
        names,
        [number[name] for name in versions],
        [[node, [number[name] for name in each]] for node, each in seen.items()],
        [number[name] for name in values],
    ]
    encoder.begin(_pack(shape))
    known = {"v", "id", "ts", "channel_versions", "versions_seen", "channel_values", "updated_channels"}
    extra = {key: value for key, value in checkpoint.items() if key not in known}
    own, of_seen = list(versions.values()), [version for each in seen.values() for version in each.values()]
    newest = _newest([*own, *of_seen])
    state = [
        FORMAT,
        _moment(checkpoint["ts"], checkpoint["id"]),
        newest,
        _turned(own, newest),
        _turned(of_seen, newest),
        None if updated is None else [number[name] for name in updated],
        [encoder.bounded(value, untouched=name in untouched) for name, value in values.items()],
    ]
    if extra or "updated_channels" not in checkpoint:
        state += [encoder.bounded(extra), "updated_channels" in checkpoint]
    return _pack(state)


def load_checkpoint(id: str, state: bytes, decoder: Decoder) -> dict[str, Any]:
    """The checkpoint that was dumped."""
    form, moment, newest, versions, seen_versions, updated, nodes, *extra = _unpack(state)
    if form != FORMAT:
        raise Corrupt(f"the checkpoint {id} is written in a way this release does not know: {form}")
    v, names, channels, seen, valued = _unpack(decoder.shape())
    versions, rest = _turned(versions, newest), iter(_turned(seen_versions, newest))
    checkpoint = {
        "v": v,
        "ts": moment if isinstance(moment, str) else from_us(moment + _made_us(id)).isoformat(),
        "id": id,
        "channel_values": {names[at]: decoder.value(node) for at, node in zip(valued, nodes, strict=True)},
        "channel_versions": {names[at]: version for at, version in zip(channels, versions, strict=True)},
        "versions_seen": {node: {names[at]: next(rest) for at in each} for node, each in seen},
        "updated_channels": None if updated is None else [names[at] for at in updated],
    }
    if extra:
        checkpoint |= decoder.value(extra[0])
        if not extra[1]:
            del checkpoint["updated_channels"]
    return checkpoint


def dump_value(value: Any, encoder: Encoder) -> bytes:
    """One value as a skeleton; its pieces are with the encoder."""
    return _pack(encoder.bounded(value))


def load_value(state: bytes, pieces: Sequence[bytes], serde: Serde) -> Any:
    """The value that was dumped."""
    return Decoder(serde, pieces, range(len(pieces))).value(_unpack(state))


def _runs(places: list[int | None]) -> Sequence[list[int | None]]:
    """Places and gaps, each run of them by itself."""
    if places and None not in places:
        return [places]
    return [list(run) for _, run in groupby(places, lambda place: place is None)]


def _count(items: list[Any], pieces: int) -> None:
    """Count pieces in the elements of a list."""
    if items and type(items[-1]) is int and items[-1] > 0:
        items[-1] += pieces
    else:
        items.append(pieces)


def _moment(ts: str, id: str) -> int | str:
    """A moment as microseconds since the id was made, if that is all there is to it."""
    try:
        us = to_us(datetime.fromisoformat(ts))
        return us - _made_us(id) if from_us(us).isoformat() == ts else ts
    except (ValueError, TypeError, OverflowError):
        return ts


def _made_us(id: str) -> int:
    """When an id was made, in microseconds, if it says so: LangGraph's ids, which are UUIDs of version 6, do. Otherwise 0."""
    if not _VERSION_6.fullmatch(id):
        return 0
    return int(f"{id[:8]}{id[9:13]}{id[15:18]}", 16) // 10 - _GREGORIAN_US


def _newest(versions: Sequence[Any]) -> int | None:
    """The highest version, if all of them are numbers."""
    return max(versions) if versions and all(type(each) is int for each in versions) else None


def _turned(versions: Sequence[Any], newest: int | None) -> Sequence[Any]:
    """Versions as what they are behind the newest, which is little, and back again."""
    return versions if newest is None else [newest - each for each in versions]
