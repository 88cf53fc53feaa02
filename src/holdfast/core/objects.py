"""Bodies that are kept once: how content becomes a digest, and a digest content again.

The same bytes have the same digest, so whatever holds a body under its digest keeps it once, however often it comes. A body is
compressed where that makes it smaller. On the way back its digest is computed anew: what is not what it was is ``Corrupt``,
never an answer.
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

RAW, ZSTD, ZSTD_WORDS = 0, 1, 2
"""How a body is written down: as it is, with zstd, or with zstd and a list of words to refer to."""
MAX_WORDS = 16 * 1024
"""Bytes up to which that list is worth its while."""
DIGEST_BYTES = 32
"""A digest that nobody can make a second body for."""
SHORT_BYTES = 16
"""The beginning of a digest, where only one thread's own bodies are told apart."""
COMPRESS_FROM = 96
"""Shorter bodies are not worth the attempt."""
CHECKSUM_BYTES = 4
LEVEL = 3
WORDS_LEVEL = 1
"""How hard to compress with the list of words: in so little text, looking harder takes longer and finds nothing shorter."""
BULK_LEVEL = 2
"""How hard to compress where there is much of it: two thirds of the time, for a twenty-fifth more bytes."""
MAX_UNPACKED = 64 * 1024 * 1024
"""Bytes that a stored body may unpack to, and so the longest that is stored, whatever the limits say."""

_ZSTD = (ZSTD, ZSTD_WORDS)
_Kind = tuple[int, int | None]
"""A codec, and how hard to compress with it; nothing to read what was compressed."""


class Packed(Struct, frozen=True):
    """A body as it is stored."""

    digest: bytes
    codec: int
    body: bytes
    size_bytes: int
    written_bytes: int | None = None
    """How long the body is, where it was written to a pack already and is not here."""

    @property
    def length(self) -> int:
        """Bytes of the body."""
        return len(self.body) if self.written_bytes is None else self.written_bytes

    @property
    def is_elsewhere(self) -> bool:
        """Whether the body is nowhere but in a pack."""
        return self.written_bytes is not None

    def without_body(self) -> Packed:
        """The same, once the body is written to a pack."""
        return Packed(self.digest, self.codec, b"", self.size_bytes, self.length)


def digest_of(body: bytes | memoryview, length: int = DIGEST_BYTES) -> bytes:
    """The BLAKE3 digest of a body, or its first bytes."""
    return _library().digest(body, length)


def pack(body: bytes, length: int = DIGEST_BYTES, *, level: int = LEVEL) -> Packed:
    """A body with its digest, compressed if that is shorter.

    Raises:
        LimitExceeded: it is longer than any body that is read again.
    """
    if len(body) > MAX_UNPACKED:
        raise LimitExceeded(f"a body of {len(body):,} bytes is too long: none may have more than {MAX_UNPACKED:,}")
    digest = digest_of(body, length)
    if len(body) >= COMPRESS_FROM:
        codec = ZSTD_WORDS if len(body) <= MAX_WORDS else ZSTD
        packed = _library().compress(body, codec, level)
        if len(packed) + len(packed) // 16 < len(body):
            return Packed(digest, codec, packed, len(body))
    return Packed(digest, RAW, bytes(body), len(body))


def unpack(digest: bytes, codec: int, stored: bytes) -> bytes:
    """The body that was packed.

    Raises:
        Corrupt: it is not what was packed.
    """
    body = _inflate(codec, stored)
    if not compare_digest(digest_of(body, len(digest)), bytes(digest)):
        raise _damaged(digest)
    return body


def unpack_all(stored: Sequence[tuple[bytes, int, bytes]]) -> list[bytes]:
    """The bodies that were packed, of each the digest, the codec and what is stored: as one by one, in half the time.

    Raises:
        Corrupt: one of them is not what was packed.
    """
    found: list[bytes] = []
    for codec, group in groupby(stored, itemgetter(1)):
        several = list(group)
        bodies = _library().decompress_all([each for _, _, each in several], codec) if codec in _ZSTD else None
        if bodies is None or _library().digests(bodies, len(several[0][0])) != [digest for digest, _, _ in several]:
            # The usual is done all at once, by functions that loop in C; whatever is not usual says itself what it is.
            bodies = [unpack(*each) for each in several]
        found += bodies
    return found


def _damaged(digest: bytes) -> Corrupt:
    return Corrupt(f"the stored body {bytes(digest).hex()} is damaged: its content has another digest")


def _inflate(codec: int, stored: bytes) -> bytes:
    if codec == RAW:
        return bytes(stored)
    if codec in _ZSTD:
        return _library().decompress(stored, codec)
    raise Corrupt(f"a stored body is written in a way this release does not know: {codec}")


class _Library:
    """BLAKE3 and zstd, loaded when the first body comes.

    A compressor must not be used by two threads at once, so each call takes one out of a list and puts it back.
    """

    def __init__(self) -> None:
        import blake3
        import zstandard

        self._blake3 = blake3.blake3
        self._size_of = zstandard.frame_content_size
        self._error = zstandard.ZstdError
        words = zstandard.ZstdCompressionDict(WORDS, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        words.precompute_compress(level=WORDS_LEVEL)
        self._idle: dict[_Kind, list[Any]] = {}
        self._make: dict[_Kind, Callable[[], Any]] = {
            (ZSTD, LEVEL): lambda: zstandard.ZstdCompressor(level=LEVEL),
            (ZSTD, BULK_LEVEL): lambda: zstandard.ZstdCompressor(level=BULK_LEVEL),
            (ZSTD, None): zstandard.ZstdDecompressor,
            (ZSTD_WORDS, WORDS_LEVEL): lambda: zstandard.ZstdCompressor(level=WORDS_LEVEL, dict_data=words),
            (ZSTD_WORDS, None): lambda: zstandard.ZstdDecompressor(dict_data=words),
        }

    def digest(self, body: bytes | memoryview, length: int) -> bytes:
        return bytes(self._blake3(body).digest(length=length))

    def compress(self, body: bytes, codec: int, level: int) -> bytes:
        kind = (codec, level if codec == ZSTD else WORDS_LEVEL)
        with self._one(kind) as writer:
            frame = bytes(writer.compress(body))
        # Some bits of a frame mean nothing, so flipping them leaves the digest of the content as it is.
        return frame + crc32(frame).to_bytes(CHECKSUM_BYTES, "big")

    def decompress(self, stored: bytes, codec: int) -> bytes:
        frame, checksum = stored[:-CHECKSUM_BYTES], stored[-CHECKSUM_BYTES:]
        if int.from_bytes(checksum, "big") != crc32(frame):
            raise Corrupt("a stored body is damaged: its checksum is another")
        try:
            size = self._size_of(frame)
            if not 0 <= size <= MAX_UNPACKED:
                raise Corrupt(f"a stored body claims to be of {size:,} bytes; no body is longer than {MAX_UNPACKED:,}")
            with self._one((codec, None)) as reader:
                return bytes(reader.decompress(frame))
        except self._error as error:
            raise Corrupt(f"a stored body cannot be read: {error}") from error

    def decompress_all(self, stored: Sequence[bytes], codec: int) -> list[bytes] | None:
        """The same for many, or ``None`` if there is something wrong with one of them."""
        frames = [each[:-CHECKSUM_BYTES] for each in stored]
        checksums = [int.from_bytes(each[-CHECKSUM_BYTES:], "big") for each in stored]
        if list(map(crc32, frames)) != checksums:
            return None
        try:
            sizes = list(map(self._size_of, frames))
            if min(sizes) < 0 or max(sizes) > MAX_UNPACKED:
                return None
            with self._one((codec, None)) as reader:
                return list(map(reader.decompress, frames))
        except self._error:
            return None

    def digests(self, several: Sequence[bytes], length: int) -> list[bytes]:
        blake3 = self._blake3
        return [blake3(body).digest(length) for body in several]

    @contextmanager
    def _one(self, kind: _Kind) -> Iterator[Any]:
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
