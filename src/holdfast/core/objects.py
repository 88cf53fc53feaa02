"""The stored form of objects: their digest, their compression, and the checks when they are read.

Equal bytes have equal digests, so a store that keeps an object under its digest keeps it once. An object is compressed if that
makes it smaller. Reading computes the digest again and raises ``Corrupt`` if it differs: damaged content is never returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hmac import compare_digest
from itertools import groupby
from operator import itemgetter
from typing import Any
from zlib import crc32

from msgspec import Struct

from ..errors import Corrupt, LimitExceeded
from .compression_dictionary import WORDS

RAW, ZSTD, ZSTD_DICT = 0, 1, 2
"""The codec of a body: uncompressed, zstd, or zstd with the preset dictionary."""
MAX_DICT_BODY = 16 * 1024
"""Longer bodies are compressed without the dictionary, because it no longer helps."""
DIGEST_BYTES = 32
"""Long enough that no process can make a second body with the same digest."""
SHORT_BYTES = 16
"""The length of a digest prefix, where only the objects of one thread have to be told apart."""
COMPRESS_FROM = 96
"""Shorter bodies are stored uncompressed."""
CHECKSUM_BYTES = 4
LEVEL = 3
DICT_LEVEL = 1
"""The zstd level with the dictionary: in texts this short, a higher level takes longer and saves nothing."""
BULK_LEVEL = 2
"""The zstd level for large amounts of data: two thirds of the time, for 4 % more bytes."""
MAX_UNPACKED = 64 * 1024 * 1024
"""The longest body that may be stored or unpacked, whatever the limits are."""

_ZSTD = (ZSTD, ZSTD_DICT)
_Kind = tuple[int, int | None]
"""A codec and its compression level; ``None`` for a decompressor."""


class Packed(Struct, frozen=True):
    """An object in its stored form."""

    digest: bytes
    codec: int
    body: bytes
    size_bytes: int
    written_bytes: int | None = None
    """The length of the body if it was already written to a pack; ``body`` is empty then."""

    @property
    def length(self) -> int:
        """The length of the stored body in bytes."""
        return len(self.body) if self.written_bytes is None else self.written_bytes

    @property
    def is_in_pack(self) -> bool:
        """Whether the body is only in a pack."""
        return self.written_bytes is not None

    def without_body(self) -> Packed:
        """Return the same object without its body, after the body was written to a pack."""
        return Packed(self.digest, self.codec, b"", self.size_bytes, self.length)


def digest_of(body: bytes | memoryview, length: int = DIGEST_BYTES) -> bytes:
    """Return the BLAKE3 digest of a body, or the first ``length`` bytes of it."""
    return _library().digest(body, length)


def pack(body: bytes, length: int = DIGEST_BYTES, *, level: int = LEVEL) -> Packed:
    """Return a body with its digest, compressed if that is shorter.

    Raises:
        LimitExceeded: the body is longer than ``MAX_UNPACKED``.
    """
    if len(body) > MAX_UNPACKED:
        raise LimitExceeded(
            f"an object of {len(body):,} bytes is over the maximum of {MAX_UNPACKED:,}",
            field="body",
            maximum=MAX_UNPACKED,
        )
    digest = digest_of(body, length)
    if len(body) >= COMPRESS_FROM:
        codec = ZSTD_DICT if len(body) <= MAX_DICT_BODY else ZSTD
        packed = _library().compress(body, codec, level)
        if len(packed) + len(packed) // 16 < len(body):
            return Packed(digest, codec, packed, len(body))
    return Packed(digest, RAW, bytes(body), len(body))


def unpack(digest: bytes, codec: int, stored: bytes) -> bytes:
    """Return the body that was packed.

    Raises:
        Corrupt: the stored bytes are damaged.
    """
    body = _inflate(codec, stored)
    if not compare_digest(digest_of(body, len(digest)), bytes(digest)):
        raise _damaged(digest)
    return body


def unpack_all(stored: Sequence[tuple[bytes, int, bytes]]) -> list[bytes]:
    """Unpack several objects, each given by digest, codec and stored bytes, in half the time that ``unpack`` takes.

    Raises:
        Corrupt: the stored bytes of one of them are damaged.
    """
    unpacked: list[bytes] = []
    for codec, group in groupby(stored, itemgetter(1)):
        objects = list(group)
        bodies = _library().decompress_all([body for _, _, body in objects], codec) if codec in _ZSTD else None
        if bodies is None or _library().digests(bodies, len(objects[0][0])) != [digest for digest, _, _ in objects]:
            # The common case runs in loops in C. Otherwise ``unpack`` handles each object, and raises for a damaged one.
            bodies = [unpack(*row) for row in objects]
        unpacked += bodies
    return unpacked


def _damaged(digest: bytes) -> Corrupt:
    return Corrupt(f"the stored object {bytes(digest).hex()} is damaged: its content has another digest")


def _inflate(codec: int, stored: bytes) -> bytes:
    if codec == RAW:
        return bytes(stored)
    if codec in _ZSTD:
        return _library().decompress(stored, codec)
    raise Corrupt(f"a stored object has the codec {codec}, which this release does not support")


class _Library:
    """BLAKE3 and zstd, imported on first use.

    Two threads must not use one compressor at the same time, so each call takes one from a list and returns it afterwards.
    """

    def __init__(self) -> None:
        import blake3
        import zstandard

        self._blake3 = blake3.blake3
        self._size_of = zstandard.frame_content_size
        self._error = zstandard.ZstdError
        words = zstandard.ZstdCompressionDict(WORDS, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        words.precompute_compress(level=DICT_LEVEL)
        self._idle: dict[_Kind, list[Any]] = {}
        self._make: dict[_Kind, Callable[[], Any]] = {
            (ZSTD, LEVEL): lambda: zstandard.ZstdCompressor(level=LEVEL),
            (ZSTD, BULK_LEVEL): lambda: zstandard.ZstdCompressor(level=BULK_LEVEL),
            (ZSTD, None): zstandard.ZstdDecompressor,
            (ZSTD_DICT, DICT_LEVEL): lambda: zstandard.ZstdCompressor(level=DICT_LEVEL, dict_data=words),
            (ZSTD_DICT, None): lambda: zstandard.ZstdDecompressor(dict_data=words),
        }

    def digest(self, body: bytes | memoryview, length: int) -> bytes:
        return bytes(self._blake3(body).digest(length=length))

    def compress(self, body: bytes, codec: int, level: int) -> bytes:
        kind = (codec, level if codec == ZSTD else DICT_LEVEL)
        with self._worker(kind) as writer:
            frame = bytes(writer.compress(body))
        # Some bits of a zstd frame have no meaning, so flipping them would not change the digest of the content.
        return frame + crc32(frame).to_bytes(CHECKSUM_BYTES, "big")

    def decompress(self, stored: bytes, codec: int) -> bytes:
        frame, checksum = stored[:-CHECKSUM_BYTES], stored[-CHECKSUM_BYTES:]
        if int.from_bytes(checksum, "big") != crc32(frame):
            raise Corrupt("a stored object is damaged: its checksum is wrong")
        try:
            size = self._size_of(frame)
            if not 0 <= size <= MAX_UNPACKED:
                raise Corrupt(f"a stored object claims {size:,} bytes of content, over the maximum of {MAX_UNPACKED:,}")
            with self._worker((codec, None)) as reader:
                return bytes(reader.decompress(frame))
        except self._error as error:
            raise Corrupt(f"a stored object cannot be decompressed: {error}") from error

    def decompress_all(self, stored: Sequence[bytes], codec: int) -> list[bytes] | None:
        """Decompress several bodies; return ``None`` if one of them is damaged."""
        frames = [body[:-CHECKSUM_BYTES] for body in stored]
        checksums = [int.from_bytes(body[-CHECKSUM_BYTES:], "big") for body in stored]
        if list(map(crc32, frames)) != checksums:
            return None
        try:
            sizes = list(map(self._size_of, frames))
            if min(sizes) < 0 or max(sizes) > MAX_UNPACKED:
                return None
            with self._worker((codec, None)) as reader:
                return list(map(reader.decompress, frames))
        except self._error:
            return None

    def digests(self, bodies: Sequence[bytes], length: int) -> list[bytes]:
        blake3 = self._blake3
        return [blake3(body).digest(length) for body in bodies]

    @contextmanager
    def _worker(self, kind: _Kind) -> Iterator[Any]:
        idle = self._idle.setdefault(kind, [])
        try:
            worker = idle.pop()
        except IndexError:
            worker = self._make[kind]()
        try:
            yield worker
        finally:
            idle.append(worker)


_loaded: list[_Library] = []


def _library() -> _Library:
    if not _loaded:
        _loaded.append(_Library())
    return _loaded[0]
