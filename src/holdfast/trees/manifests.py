"""Manifests: the stored form of a tree or of a difference, entries in order of paths, as msgpack.

The digest of an object is written once, and pieces refer to it by its index. Decoding only builds data; anything else
than a valid manifest raises ``Corrupt``. Lines are decoded one by one when they are needed: a page of a large tree
decodes only the lines of the page, and decoding all of them lets other threads run in between.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ..core.text import printable
from ..errors import Corrupt
from .entries import ZEROS, ContentPiece, Difference, Kind, TreeEntry, path_bytes, path_text

VERSION = 1
MAX_REMEMBERED = 16
REMEMBERED_BYTES = 4 * 1024 * 1024
"""Number of cached differences, and the maximum size of each."""
_KINDS: tuple[Kind, ...] = ("file", "dir", "symlink")
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}

_Count = Annotated[int, Meta(ge=0)]
_Line = tuple[bytes, _Count, int, int, int, bytes, list[_Count]]
"""Path, kind, mode, mtime, size, digest or target, and three numbers for each piece."""


class _Manifest(Struct, frozen=True, array_like=True):
    version: int
    ignore: list[str]
    objects: list[bytes]
    entries: list[msgspec.Raw]
    """Lines, in order of paths."""
    removed: list[bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Manifest).decode
_decode_line = msgspec.msgpack.Decoder(_Line).decode


def write(difference: Difference) -> bytes:
    """Serialize a difference. A whole tree is the difference to an empty one."""
    numbers: dict[bytes, int] = {ZEROS: 0}
    entries = sorted(difference.entries, key=lambda entry: entry.path)
    lines = [msgspec.Raw(_encode(_line(entry, numbers))) for entry in entries]
    removed = [path_bytes(path) for path in sorted(difference.removed)]
    ignore = [printable(pattern) for pattern in difference.ignore]
    return _encode(_Manifest(VERSION, ignore, list(numbers)[1:], lines, removed))


def read(body: bytes) -> Difference:
    """Deserialize a difference. Recent ones are cached, because the trees of a run share most of theirs.

    Raises:
        Corrupt: it is not a manifest, or was written by an incompatible release.
    """
    return _remembered(body) if len(body) <= REMEMBERED_BYTES else _read(body)


class ManifestReader:
    """A serialized difference in which single paths can be looked up without decoding the others.

    Raises:
        Corrupt: it is not a manifest. Defects of a line are found when the line is decoded.
    """

    def __init__(self, body: bytes) -> None:
        with _decoding():
            manifest = _decode(body)
        if manifest.version != VERSION:
            raise Corrupt(f"a manifest has version {manifest.version}, which this release cannot read")
        self.ignore = manifest.ignore
        self._lines, self._removed = manifest.entries, manifest.removed
        self._objects = [ZEROS, *manifest.objects]

    def whole(self) -> Difference:
        """Return the whole difference."""
        with _decoding():
            entries = [_entry(_decode_line(line), self._objects) for line in self._lines]
            return Difference(entries, [path_text(name) for name in self._removed], self.ignore)

    def find(self, path: str) -> tuple[bool, TreeEntry | None]:
        """Return whether the difference contains a path, and its entry unless it was removed."""
        with _decoding():
            at = bisect_left(self._lines, path, key=_path)
            if at < len(self._lines) and _path(self._lines[at]) == path:
                return True, _entry(_decode_line(self._lines[at]), self._objects)
            at = bisect_left(self._removed, path, key=path_text)
            return at < len(self._removed) and path_text(self._removed[at]) == path, None

    def after(self, path: str | None) -> Iterator[tuple[str, TreeEntry | None]]:
        """Yield the listed paths after one, in order, with their entries, or ``None`` for removed ones."""
        with _decoding():
            start = 0 if path is None else bisect_right(self._lines, path, key=_path)
            first_removed = 0 if path is None else bisect_right(self._removed, path, key=path_text)
        entries = ((_path(line), 0, line) for line in islice(self._lines, start, None))
        removed = ((path_text(name), 1, None) for name in islice(self._removed, first_removed, None))
        with _decoding():
            for listed_path, _, line in merge(entries, removed, key=itemgetter(0, 1)):
                yield listed_path, None if line is None else _entry(_decode_line(line), self._objects)


def _read(body: bytes) -> Difference:
    return ManifestReader(body).whole()


@contextmanager
def _decoding() -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, IndexError, ValueError) as error:
        raise Corrupt(f"a manifest cannot be decoded: {error}") from error


def _path(line: msgspec.Raw) -> str:
    return path_text(_decode_line(line)[0])


_remembered = lru_cache(MAX_REMEMBERED)(_read)


def _line(entry: TreeEntry, numbers: dict[bytes, int]) -> _Line:
    pieces: list[int] = []
    for digest, start, length in entry.pieces:
        pieces += (numbers.setdefault(digest, len(numbers)), start, length)
    rest = path_bytes(entry.target) if entry.kind == "symlink" else entry.digest
    return path_bytes(entry.path), _NUMBERS[entry.kind], entry.mode, entry.mtime_ns, entry.size, rest, pieces


def _entry(line: _Line, objects: Sequence[bytes]) -> TreeEntry:
    path, number, mode, mtime_ns, size, rest, numbers = line
    if len(numbers) % 3:
        raise ValueError("the numbers of a piece are incomplete")
    kind = _KINDS[number]
    if kind == "symlink":
        return TreeEntry(path_text(path), kind, mode, mtime_ns, size, path_text(rest))
    pieces = tuple(map(ContentPiece, (objects[index] for index in numbers[::3]), numbers[1::3], numbers[2::3]))
    return TreeEntry(path_text(path), kind, mode, mtime_ns, size, "", rest, pieces)
