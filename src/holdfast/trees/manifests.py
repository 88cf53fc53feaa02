"""How a tree, or the difference of one to another, is written down: entries in the order of their paths, as msgpack.

A digest of an object is written once, and pieces name it by its number. Reading builds data and nothing else; what is not such a
list is ``Corrupt``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ..core.text import printable
from ..errors import Corrupt
from .entries import ZEROS, Difference, Entry, Kind, Piece, raw, shown

VERSION = 1
REMEMBERED_MOST = 16
REMEMBERED_BYTES = 4 * 1024 * 1024
"""How many differences are remembered, and how long each may be."""
_KINDS: tuple[Kind, ...] = ("file", "dir", "symlink")
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}

_Count = Annotated[int, Meta(ge=0)]
_Line = tuple[bytes, _Count, int, int, int, bytes, list[_Count]]
"""Path, kind, mode, mtime, size, digest or target, and three numbers for each piece."""


class _Manifest(Struct, frozen=True, array_like=True):
    version: int
    ignore: list[str]
    objects: list[bytes]
    entries: list[_Line]
    removed: list[bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Manifest).decode


def write(difference: Difference) -> bytes:
    """A difference as bytes. A whole tree is one too, to nothing."""
    numbers: dict[bytes, int] = {ZEROS: 0}
    entries = sorted(difference.entries, key=lambda entry: entry.path)
    lines = [_line(entry, numbers) for entry in entries]
    removed = [raw(path) for path in sorted(difference.removed)]
    ignore = [printable(pattern) for pattern in difference.ignore]
    return _encode(_Manifest(VERSION, ignore, list(numbers)[1:], lines, removed))


def read(body: bytes) -> Difference:
    """The difference that was written. Those read last are remembered: trees of one run have most of theirs in common.

    Raises:
        Corrupt: it is none, or of a release that writes them otherwise.
    """
    return _remembered(body) if len(body) <= REMEMBERED_BYTES else _read(body)


def _read(body: bytes) -> Difference:
    try:
        found = _decode(body)
        if found.version != VERSION:
            raise Corrupt(f"a tree is written in a way this release does not know: {found.version}")
        objects = [ZEROS, *found.objects]
        entries = [_entry(line, objects) for line in found.entries]
        return Difference(entries, [shown(name) for name in found.removed], found.ignore)
    except (msgspec.MsgspecError, IndexError, ValueError) as error:
        raise Corrupt(f"a stored tree cannot be read: {error}") from error


_remembered = lru_cache(REMEMBERED_MOST)(_read)


def _line(entry: Entry, numbers: dict[bytes, int]) -> _Line:
    pieces: list[int] = []
    for digest, start, length in entry.pieces:
        pieces += (numbers.setdefault(digest, len(numbers)), start, length)
    rest = raw(entry.target) if entry.kind == "symlink" else entry.digest
    return raw(entry.path), _NUMBERS[entry.kind], entry.mode, entry.mtime_ns, entry.size, rest, pieces


def _entry(line: _Line, objects: Sequence[bytes]) -> Entry:
    path, number, mode, mtime_ns, size, rest, numbers = line
    if len(numbers) % 3:
        raise ValueError("a piece is not whole")
    kind = _KINDS[number]
    if kind == "symlink":
        return Entry(shown(path), kind, mode, mtime_ns, size, shown(rest))
    pieces = tuple(map(Piece, (objects[each] for each in numbers[::3]), numbers[1::3], numbers[2::3]))
    return Entry(shown(path), kind, mode, mtime_ns, size, "", rest, pieces)
