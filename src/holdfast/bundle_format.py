"""The file of a bundle: lines of JSON, compressed, with their number and digest at the end.

A bundle can be anybody's. What it unpacks to must be in proportion to its size, because a few kilobytes could otherwise keep an
import busy for hours. An export keeps to that by itself: where rows repeat so much that they compress better, it adds frames
that a reader of zstd skips.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import msgspec
import zstandard
from blake3 import blake3
from msgspec import Struct

from .errors import Corrupt, LimitExceeded, NotFound
from .new_file import NewFile

FORMAT = 1
RATIO = 200
"""How many times its own size a bundle may unpack to."""
FREE_BYTES = 1024 * 1024
"""Bytes that a bundle may unpack to however small it is."""
CHUNK = 1024 * 1024
MAX_LINE = 256 * 1024 * 1024
_SKIPPED = b"\x50\x2a\x4d\x18"
"""How a frame begins that readers of zstd skip."""
_NO_LINE = (ValueError, KeyError, TypeError, AttributeError)
"""What reading something else than was written comes to."""


class End(Struct, frozen=True):
    """The end of a bundle that is what it says: its first line, and how many rows each table has."""

    head: dict[str, Any]
    rows: dict[str, int]


class Padded:
    """What an export writes through: compressed, and padded where it compresses better than an import believes."""

    def __init__(self, file: BinaryIO, out: Any) -> None:
        self._file, self._out = file, out
        self._given = self._looked = 0

    def write(self, data: bytes) -> None:
        """The next bytes."""
        self._out.write(data)
        self._given += len(data)
        if self._given - self._looked >= CHUNK:
            self._looked = self._given
            if self._missing() > 0:
                self.pad()

    def pad(self) -> None:
        """End a frame, and let one follow that is skipped, as long as is missing."""
        self._out.flush(zstandard.FLUSH_FRAME)
        missing = self._missing()
        if missing > 0:
            self._file.write(_SKIPPED + missing.to_bytes(4, "little") + bytes(missing))

    def _missing(self) -> int:
        """Bytes by which the file is too short. Half of the ratio is left for what is buffered on the way."""
        return (self._given - FREE_BYTES // 2) // (RATIO // 2) - self._file.tell()


@contextmanager
def written(path: str | os.PathLike[str]) -> Iterator[Callable[[Any], None]]:
    """A file of lines that ends with what is in it; not there if something goes wrong."""
    new = NewFile(path)
    digest, rows = blake3(), dict[str, int]()
    table = ""
    try:
        with zstandard.ZstdCompressor(level=6).stream_writer(new.file, closefd=False) as out:
            padded = Padded(new.file, out)

            def write(line: Any) -> None:
                nonlocal table
                if isinstance(line, dict) and "table" in line:
                    table = line["table"]
                    rows[table] = 0
                elif isinstance(line, list):
                    rows[table] += 1
                data = msgspec.json.encode(line) + b"\n"
                digest.update(data)
                padded.write(data)

            yield write
            padded.write(msgspec.json.encode({"rows": rows, "digest": digest.hexdigest()}) + b"\n")
            padded.pad()
        new.finish()
    finally:
        new.discard()


def read(file: str | os.PathLike[str]) -> Iterator[Any]:
    """The lines of a bundle after its first, checked as they come; last of all an ``End``.

    Raises:
        NotFound: there is no such file.
        Corrupt: it is not a bundle, not whole, or not what was written.
        LimitExceeded: it unpacks to far more than any export.
    """
    try:
        with open(file, "rb") as raw:
            yield from _checked(_decompressed(raw))
    except FileNotFoundError:
        raise NotFound(f"there is no file {os.fspath(file)}") from None
    except (zstandard.ZstdError, msgspec.DecodeError, RecursionError, *_NO_LINE) as error:
        raise Corrupt(f"{os.fspath(file)} is not a bundle, or is damaged: {_in_words(error)}") from error


class _Damaged(ValueError):
    """Something else than was written, in words."""


def _in_words(error: Exception) -> str:
    if isinstance(error, _Damaged):
        return str(error)
    if isinstance(error, zstandard.ZstdError):
        return "it cannot be decompressed"
    is_json = not isinstance(error, (msgspec.DecodeError, RecursionError, UnicodeDecodeError))
    return "a line of it is not one of a bundle" if is_json else "a line of it is no JSON"


def _checked(lines: Iterator[bytes]) -> Iterator[Any]:
    digest, rows = blake3(), dict[str, int]()
    head = msgspec.json.decode(first := next(lines, b"{}"))
    if not isinstance(head, dict) or head.get("holdfast_bundle") != FORMAT:
        raise _Damaged("it does not begin as a bundle of this format does")
    digest.update(first + b"\n")
    table = ""
    for data in lines:
        line = msgspec.json.decode(data)
        if isinstance(line, dict) and "digest" in line:
            if line["rows"] != rows or not hmac.compare_digest(
                str(line["digest"]).encode(), digest.hexdigest().encode()
            ):
                raise _Damaged("its digest or its numbers of rows are not those of what is in it")
            if next(lines, None) is not None:
                raise _Damaged("something follows after its end")
            yield End(head, rows)
            return
        digest.update(data + b"\n")
        if isinstance(line, dict):
            table = line["table"]
            rows[table] = 0
        else:
            rows[table] += 1
        yield line
    raise _Damaged("its end is missing")


class _Counted:
    """A bundle as it is read, as long as what it unpacks to is in proportion."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._taken = self._given = 0

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(size)
        self._taken += len(found)
        return found

    def count(self, given: int) -> None:
        self._given += given
        if self._given > FREE_BYTES + RATIO * self._taken:
            raise LimitExceeded(f"the bundle unpacks to more than {RATIO:,} times its size, which no export does")


def _decompressed(raw: BinaryIO) -> Iterator[bytes]:
    source = _Counted(raw)
    begun: list[bytes] = []  # a line that goes on in the next chunk; joined once, however many chunks it has
    length = 0
    reader: Any = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)  # type: ignore[arg-type]
    while chunk := reader.read(CHUNK):
        source.count(len(chunk))
        first, *more = chunk.split(b"\n")
        begun.append(first)
        length += len(first)
        if length > MAX_LINE:
            raise _Damaged("it has a line without end")
        if more:
            yield b"".join(begun)
            yield from more[:-1]
            begun, length = [more[-1]], len(more[-1])
    if length:
        raise _Damaged("it is cut off in the middle of a line")
