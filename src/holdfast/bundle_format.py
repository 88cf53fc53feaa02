"""The file format of bundles: lines of JSON, compressed, with the row counts and a digest at the end.

Bundles are untrusted input. The decompressed size must be in proportion to the size of the file, because a few kilobytes could
otherwise keep an import busy for hours. Exports respect that ratio: where rows are so repetitive that they compress better, the
writer adds skippable zstd frames as padding.
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
"""Maximum ratio of the decompressed size to the size of the file."""
FREE_BYTES = 1024 * 1024
"""Decompressed bytes that are allowed regardless of the size of the file."""
CHUNK = 1024 * 1024
MAX_LINE = 256 * 1024 * 1024
_SKIPPABLE = b"\x50\x2a\x4d\x18"
"""Magic number of a skippable zstd frame."""
_MALFORMED_LINE = (ValueError, KeyError, TypeError, AttributeError)
"""Errors raised by processing a line that has an unexpected structure."""


class BundleEnd(Struct, frozen=True):
    """The verified end of a bundle: the header line, and the number of rows of each table."""

    head: dict[str, Any]
    rows: dict[str, int]


class PaddedWriter:
    """Compresses an export, and pads the file where the data compresses better than an import accepts."""

    def __init__(self, file: BinaryIO, out: Any) -> None:
        self._file, self._out = file, out
        self._written = self._checked = 0

    def write(self, data: bytes) -> None:
        """Write the next bytes."""
        self._out.write(data)
        self._written += len(data)
        if self._written - self._checked >= CHUNK:
            self._checked = self._written
            if self._missing() > 0:
                self.pad()

    def pad(self) -> None:
        """End the current frame, and add a skippable frame of the missing size."""
        self._out.flush(zstandard.FLUSH_FRAME)
        missing = self._missing()
        if missing > 0:
            self._file.write(_SKIPPABLE + missing.to_bytes(4, "little") + bytes(missing))

    def _missing(self) -> int:
        """Return by how many bytes the file is too short. Half of the ratio is a margin for buffered data."""
        return (self._written - FREE_BYTES // 2) // (RATIO // 2) - self._file.tell()


@contextmanager
def line_writer(path: str | os.PathLike[str]) -> Iterator[Callable[[Any], None]]:
    """Yield a function that writes one line to a new bundle. The file appears when the block succeeds, ended by its digest."""
    new = NewFile(path)
    digest, rows = blake3(), dict[str, int]()
    table = ""
    try:
        with zstandard.ZstdCompressor(level=6).stream_writer(new.file, closefd=False) as out:
            writer = PaddedWriter(new.file, out)

            def write(line: Any) -> None:
                nonlocal table
                if isinstance(line, dict) and "table" in line:
                    table = line["table"]
                    rows[table] = 0
                elif isinstance(line, list):
                    rows[table] += 1
                data = msgspec.json.encode(line) + b"\n"
                digest.update(data)
                writer.write(data)

            yield write
            writer.write(msgspec.json.encode({"rows": rows, "digest": digest.hexdigest()}) + b"\n")
            writer.pad()
        new.finish()
    finally:
        new.discard()


def read(file: str | os.PathLike[str]) -> Iterator[Any]:
    """Yield the lines of a bundle after the header, verifying them on the way, and finally a ``BundleEnd``.

    Raises:
        NotFound: the file does not exist.
        Corrupt: the file is not a bundle, is incomplete, or was modified.
        LimitExceeded: the file decompresses to far more than any export would.
    """
    try:
        with open(file, "rb") as raw:
            yield from _verify(_decompress(raw))
    except FileNotFoundError:
        raise NotFound(f"file {os.fspath(file)} does not exist", noun="file", key=os.fspath(file)) from None
    except (zstandard.ZstdError, msgspec.DecodeError, RecursionError, *_MALFORMED_LINE) as error:
        raise Corrupt(f"{os.fspath(file)} is not a bundle, or is damaged: {_reason(error)}") from error


class _Damaged(ValueError):
    """A part of the bundle is not as an export writes it. The message is the reason that ``Corrupt`` states."""


def _reason(error: Exception) -> str:
    if isinstance(error, _Damaged):
        return str(error)
    if isinstance(error, zstandard.ZstdError):
        return "it cannot be decompressed"
    is_json = not isinstance(error, (msgspec.DecodeError, RecursionError, UnicodeDecodeError))
    return "a line has an unexpected structure" if is_json else "a line is not valid JSON"


def _verify(lines: Iterator[bytes]) -> Iterator[Any]:
    digest, rows = blake3(), dict[str, int]()
    head = msgspec.json.decode(first := next(lines, b"{}"))
    if not isinstance(head, dict) or head.get("holdfast_bundle") != FORMAT:
        raise _Damaged(f"the header of bundle format {FORMAT} is missing")
    digest.update(first + b"\n")
    table = ""
    for data in lines:
        line = msgspec.json.decode(data)
        if isinstance(line, dict) and "digest" in line:
            if line["rows"] != rows or not hmac.compare_digest(
                str(line["digest"]).encode(), digest.hexdigest().encode()
            ):
                raise _Damaged("the digest or the row counts do not match the content")
            if next(lines, None) is not None:
                raise _Damaged("there is data after the end")
            yield BundleEnd(head, rows)
            return
        digest.update(data + b"\n")
        if isinstance(line, dict):
            table = line["table"]
            rows[table] = 0
        else:
            rows[table] += 1
        yield line
    raise _Damaged("the end is missing")


class _RatioReader:
    """Reads a bundle and enforces the ratio of the decompressed size to the bytes read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._read = self._decompressed = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._read += len(data)
        return data

    def count(self, decompressed: int) -> None:
        self._decompressed += decompressed
        if self._decompressed > FREE_BYTES + RATIO * self._read:
            message = f"the bundle decompresses to more than {RATIO:,} times its size, which no export does"
            raise LimitExceeded(message, limit="bundle_ratio", maximum=RATIO)


def _decompress(raw: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a compressed file."""
    source = _RatioReader(raw)
    begun: list[bytes] = []  # the parts of a line that spans several chunks; they are joined once
    length = 0
    reader: Any = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)  # type: ignore[arg-type]
    while chunk := reader.read(CHUNK):
        source.count(len(chunk))
        first, *more = chunk.split(b"\n")
        begun.append(first)
        length += len(first)
        if length > MAX_LINE:
            raise _Damaged(f"a line is longer than {MAX_LINE:,} bytes")
        if more:
            yield b"".join(begun)
            yield from more[:-1]
            begun, length = [more[-1]], len(more[-1])
    if length:
        raise _Damaged("it ends in the middle of a line")
