"""Packing the content of files into objects, and recording where each file is stored.

Small files are bundled: they are concatenated in one object, so that they are compressed together. A bundle ends
after a file whose digest says so, or when it is full; so trees that have most files in common have most bundles in
common. A file too large for a bundle is an object of its own, and one larger than a chunk is split into chunks. A
chunk of zeros is not stored. Of a file that was only appended to, the new end is stored. Content that objects of an
earlier snapshot contain is not stored again.

The digest of a file is the digest of its content; for a chunked file, it is the digest of the digests of its chunks.
So files of the same content have the same digest, and a sparse file of a terabyte is processed quickly.

Large amounts of content are compressed in threads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from hmac import compare_digest
from typing import TYPE_CHECKING, NamedTuple

from ..core.objects import BULK_LEVEL, DIGEST_BYTES, LEVEL, RAW, Packed, digest_of, pack
from .entries import ZEROS, ContentPiece, TreeEntry

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

CHUNK = 1024 * 1024
"""Bytes of a chunk. The digests of larger files depend on it, so it is fixed."""
MAX_BUNDLE = CHUNK
"""Bytes from which a bundle is full."""
MIN_BUNDLE = 256 * 1024
"""Bytes that a bundle must have before a file may end it."""
ENDS_ONE_IN = 32
"""One in this number of files ends a bundle of at least ``MIN_BUNDLE`` bytes."""
MAX_BUNDLED = 256 * 1024
"""Bytes of the largest file that is put into a bundle."""
MAX_PIECES = 8
"""Maximum number of pieces of a file that was appended to; each append adds one."""
THREADS_FROM = 2 * CHUNK
"""Bytes from which threads are started."""
MAX_THREADS = 4
MAX_WAITING = 16
"""Maximum number of bundles and chunks that wait for a thread."""
PART_BYTES = 32 * CHUNK
"""Packed bytes returned together."""
_ZERO_CHUNK = bytes(CHUNK)
_NOT_YET = -1


class SmallContent:
    """A content of at most one chunk: its digest, and its pieces once it is packed."""

    __slots__ = ("digest", "first", "pieces")

    def __init__(
        self, digest: bytes, pieces: tuple[ContentPiece, ...] = (), first: tuple[ContentPiece, ...] = ()
    ) -> None:
        self.digest, self.pieces, self.first = digest, pieces, first

    def digest_and_pieces(self) -> tuple[bytes, tuple[ContentPiece, ...]]:
        """Return the digest and the pieces; valid once everything is packed."""
        return self.digest, self.pieces


class _Job(NamedTuple):
    """A body being packed, and a callback that receives its digest."""

    packed: Future[Packed] | Packed
    tell: Callable[[bytes], None]


class Packer:
    """Packs contents into objects.

    Args:
        before: the entries of an earlier snapshot, whose objects are already stored.
    """

    def __init__(self, before: Iterable[TreeEntry] = ()) -> None:
        self._before = before
        self._slots: dict[bytes, SmallContent] = {}
        self._returned: set[bytes] = set()
        self._parts: list[bytes] = []
        self._slots_of_parts: list[tuple[SmallContent, int, int]] = []
        self._bundled = self._taken = 0
        self._jobs: deque[_Job] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._ready: list[Packed] = []
        self._ready_bytes = 0

    def add_small(self, content: bytes, previous: TreeEntry | None = None) -> SmallContent:
        """Add a content no longer than a chunk; ``previous`` is the file's previous entry, in case it was only appended
        to.
        """
        digest = digest_of(content)
        slot = self._slots.get(digest)
        if slot is None:
            slot = self._slots[digest] = SmallContent(digest, self._known.get(digest, ()))
            if slot.pieces:
                return slot
            if previous is not None and _only_grew(previous, content):
                slot.first, content = previous.pieces, content[previous.size :]
            if len(content) > MAX_BUNDLED:
                self._pack(content, lambda object_digest: _fill(slot, object_digest, 0, len(content)))
            elif content:
                self._bundle(content, slot, digest)
        return slot

    def start_large(self) -> ChunkedContent:
        """Start a longer content, to be added in chunks."""
        return ChunkedContent(self._pack_chunk)

    @cached_property
    def _known(self) -> Mapping[bytes, tuple[ContentPiece, ...]]:
        """Pieces of stored contents, by digest."""
        return {entry.digest: entry.pieces for entry in self._before if entry.digest}

    @cached_property
    def _stored(self) -> frozenset[bytes]:
        """Digests of the objects that are already stored."""
        return frozenset(piece.object for pieces in self._known.values() for piece in pieces)

    @property
    def is_full(self) -> bool:
        """Whether packed objects should be taken."""
        return self._ready_bytes >= PART_BYTES

    def take(self) -> list[Packed]:
        """Return the objects packed so far. They are not returned again."""
        taken, self._ready, self._ready_bytes = self._ready, [], 0
        return taken

    def finish(self) -> list[Packed]:
        """Pack everything that is left and return it. From now on the pieces of all contents are known."""
        self._end_bundle()
        while self._jobs:
            self._settle()
        return self.take()

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _bundle(self, content: bytes, slot: SmallContent, digest: bytes) -> None:
        self._slots_of_parts.append((slot, self._bundled, len(content)))
        self._parts.append(content)
        self._bundled += len(content)
        ends = self._bundled >= MIN_BUNDLE and digest[0] % ENDS_ONE_IN == 0
        if ends or self._bundled >= MAX_BUNDLE:
            self._end_bundle()

    def _end_bundle(self) -> None:
        if not self._parts:
            return
        slots, body = self._slots_of_parts, b"".join(self._parts)
        self._parts, self._slots_of_parts, self._bundled = [], [], 0

        def tell(object_digest: bytes) -> None:
            for slot, start, length in slots:
                _fill(slot, object_digest, start, length)

        self._pack(body, tell)

    def _pack_chunk(self, body: bytes, tell: Callable[[bytes], None]) -> None:
        self._pack(body, tell, self._stored)

    def _pack(self, body: bytes, tell: Callable[[bytes], None], stored: frozenset[bytes] = frozenset()) -> None:
        self._taken += len(body)
        if self._taken < THREADS_FROM:
            self._jobs.append(_Job(_pack_body(body, stored, LEVEL), tell))
            return
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="holdfast-pack")
        self._jobs.append(_Job(self._pool.submit(_pack_body, body, stored, BULK_LEVEL), tell))
        while len(self._jobs) > MAX_WAITING:
            self._settle()

    def _settle(self) -> None:
        job = self._jobs.popleft()
        packed = job.packed if isinstance(job.packed, Packed) else job.packed.result()
        job.tell(packed.digest)
        if not packed.is_in_pack and packed.digest not in self._returned:
            self._returned.add(packed.digest)
            self._ready.append(packed)
            self._ready_bytes += packed.length


class ChunkedContent:
    """A content added in chunks of ``CHUNK`` bytes; only the last may be shorter."""

    def __init__(self, pack: Callable[[bytes, Callable[[bytes], None]], None]) -> None:
        self._pack = pack
        self._pieces: list[ContentPiece] = []
        self.size = 0

    def add(self, chunk: bytes | int) -> None:
        """Add the next chunk or, for zeros, their number."""
        length = chunk if isinstance(chunk, int) else len(chunk)
        self.size += length
        if isinstance(chunk, int) or chunk == (_ZERO_CHUNK if length == CHUNK else bytes(length)):
            if self._pieces and self._pieces[-1][:2] == (ZEROS, 0):
                length += self._pieces.pop().length
            self._pieces.append(ContentPiece(ZEROS, 0, length))
            return
        at = len(self._pieces)
        self._pieces.append(ContentPiece(ZEROS, _NOT_YET, length))
        self._pack(chunk, lambda object_digest: self._place(at, object_digest, length))

    def digest_and_pieces(self) -> tuple[bytes, tuple[ContentPiece, ...]]:
        """Return the digest and the pieces; valid once everything is packed."""
        return digest_of(b"".join(map(_digest_input, self._pieces))), tuple(self._pieces)

    def _place(self, at: int, object_digest: bytes, length: int) -> None:
        self._pieces[at] = ContentPiece(object_digest, 0, length)


def _pack_body(body: bytes, stored: frozenset[bytes], level: int) -> Packed:
    """Pack a body; return it without content if it is stored already."""
    if stored and (body_digest := digest_of(body)) in stored:
        return Packed(body_digest, RAW, b"", len(body), 0)
    return pack(body, level=level)


def _fill(slot: SmallContent, object_digest: bytes, start: int, length: int) -> None:
    slot.pieces = (*slot.first, ContentPiece(object_digest, start, length))


def _only_grew(previous: TreeEntry, content: bytes) -> bool:
    """Return whether a file starts with its entire previous content. After ``MAX_PIECES`` appends, returns ``False``."""
    if not 0 < previous.size < len(content) or len(previous.pieces) >= MAX_PIECES:
        return False
    return compare_digest(digest_of(memoryview(content)[: previous.size]), previous.digest)


def _digest_input(piece: ContentPiece) -> bytes:
    """Return the contribution of a chunk to the digest of its file."""
    return (piece.object or bytes(DIGEST_BYTES)) + piece.length.to_bytes(8, "big")
