"""How the content of files becomes objects, and where in them each file lies.

Small files are bundled: one after the other, as they come, in one object, so that they are compressed together. A bundle ends
where the content of a file says so, or when it is full; so trees that have most files in common have most bundles in common. A
file too large for a bundle is an object of its own, and one that is larger than a chunk is cut into chunks of that size. A
chunk of zeros is stored nowhere. Of a file that only got longer the end is stored. What the objects of an earlier snapshot
hold already is not stored again.

The digest of a file is the digest of its content; of one that is cut into chunks, it is the digest of the digests of its
chunks. So files of the same content have the same digest, and a file of a terabyte without anything in it is quickly dealt with.

Compressing is done in threads as soon as there is much of it.
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
"""Bytes of a chunk. Digests of larger files are made of it, so it is fixed."""
MAX_BUNDLE = CHUNK
"""Bytes from which on a bundle is full."""
MIN_BUNDLE = 256 * 1024
"""Bytes that a bundle has before a file may end it."""
ENDS_ONE_IN = 32
"""Of so many files one ends a bundle that has enough."""
MAX_BUNDLED = 256 * 1024
"""Bytes of the largest file that is put into a bundle."""
MAX_PIECES = 8
"""Pieces of a file that only got longer, each time with a piece more."""
THREADS_FROM = 2 * CHUNK
"""Bytes from which on threads are worth starting."""
MAX_THREADS = 4
MAX_WAITING = 16
"""Bundles and chunks that may wait for a thread."""
PART_BYTES = 32 * CHUNK
"""Packed bytes that are given away together."""
_NOTHING = bytes(CHUNK)
_NOT_YET = -1


class SmallContent:
    """A content of at most a chunk: its digest, and where it will lie, once that is known."""

    __slots__ = ("digest", "first", "pieces")

    def __init__(
        self, digest: bytes, pieces: tuple[ContentPiece, ...] = (), first: tuple[ContentPiece, ...] = ()
    ) -> None:
        self.digest, self.pieces, self.first = digest, pieces, first

    def placed(self) -> tuple[bytes, tuple[ContentPiece, ...]]:
        """Its digest, and where it lies; once everything is packed."""
        return self.digest, self.pieces


class _Job(NamedTuple):
    """A body that is being packed, and who wants to know where it lies."""

    packed: Future[Packed] | Packed
    tell: Callable[[bytes], None]


class Packer:
    """Takes contents, and gives packed objects in return.

    Args:
        before: the entries of an earlier snapshot, whose objects are there already.
    """

    def __init__(self, before: Iterable[TreeEntry] = ()) -> None:
        self._before = before
        self._slots: dict[bytes, SmallContent] = {}
        self._given: set[bytes] = set()
        self._parts: list[bytes] = []
        self._slots_of_parts: list[tuple[SmallContent, int, int]] = []
        self._bundled = self._taken = 0
        self._jobs: deque[_Job] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._ready: list[Packed] = []
        self._ready_bytes = 0

    def whole(self, content: bytes, was: TreeEntry | None = None) -> SmallContent:
        """A content that is no longer than a chunk; what the file had before is stored already, if it only got longer."""
        digest = digest_of(content)
        slot = self._slots.get(digest)
        if slot is None:
            slot = self._slots[digest] = SmallContent(digest, self._known.get(digest, ()))
            if slot.pieces:
                return slot
            if was is not None and _only_grew(was, content):
                slot.first, content = was.pieces, content[was.size :]
            if len(content) > MAX_BUNDLED:
                self._pack(content, lambda lies_in: _fill(slot, lies_in, 0, len(content)))
            elif content:
                self._bundle(content, slot, digest)
        return slot

    def chunked(self) -> ChunkedContent:
        """A content that is longer, to be given in chunks."""
        return ChunkedContent(self._pack_chunk)

    @cached_property
    def _known(self) -> Mapping[bytes, tuple[ContentPiece, ...]]:
        """Where contents lie already, by their digests."""
        return {entry.digest: entry.pieces for entry in self._before if entry.digest}

    @cached_property
    def _stored(self) -> frozenset[bytes]:
        """The objects that are there already."""
        return frozenset(piece.object for pieces in self._known.values() for piece in pieces)

    @property
    def is_full(self) -> bool:
        """Whether there is so much that some should be taken away."""
        return self._ready_bytes >= PART_BYTES

    def take(self) -> list[Packed]:
        """The objects that are packed by now. They are not given again."""
        taken, self._ready, self._ready_bytes = self._ready, [], 0
        return taken

    def finish(self) -> list[Packed]:
        """The last of them. From now on it is known where everything lies."""
        self._end_bundle()
        while self._jobs:
            self._settle()
        return self.take()

    def close(self) -> None:
        """Let go of the threads."""
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

        def tell(lies_in: bytes) -> None:
            for slot, start, length in slots:
                _fill(slot, lies_in, start, length)

        self._pack(body, tell)

    def _pack_chunk(self, body: bytes, tell: Callable[[bytes], None]) -> None:
        self._pack(body, tell, self._stored)

    def _pack(self, body: bytes, tell: Callable[[bytes], None], stored: frozenset[bytes] = frozenset()) -> None:
        self._taken += len(body)
        if self._taken < THREADS_FROM:
            self._jobs.append(_Job(_packed(body, stored, LEVEL), tell))
            return
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="holdfast-pack")
        self._jobs.append(_Job(self._pool.submit(_packed, body, stored, BULK_LEVEL), tell))
        while len(self._jobs) > MAX_WAITING:
            self._settle()

    def _settle(self) -> None:
        job = self._jobs.popleft()
        packed = job.packed if isinstance(job.packed, Packed) else job.packed.result()
        job.tell(packed.digest)
        if not packed.is_in_pack and packed.digest not in self._given:
            self._given.add(packed.digest)
            self._ready.append(packed)
            self._ready_bytes += packed.length


class ChunkedContent:
    """A content that comes in chunks: all of them as long as a chunk is, except the last."""

    def __init__(self, pack: Callable[[bytes, Callable[[bytes], None]], None]) -> None:
        self._pack = pack
        self._pieces: list[ContentPiece] = []
        self.size = 0

    def add(self, chunk: bytes | int) -> None:
        """The next chunk or, where there are only zeros, their number."""
        length = chunk if isinstance(chunk, int) else len(chunk)
        self.size += length
        if isinstance(chunk, int) or chunk == (_NOTHING if length == CHUNK else bytes(length)):
            if self._pieces and self._pieces[-1][:2] == (ZEROS, 0):
                length += self._pieces.pop().length
            self._pieces.append(ContentPiece(ZEROS, 0, length))
            return
        at = len(self._pieces)
        self._pieces.append(ContentPiece(ZEROS, _NOT_YET, length))
        self._pack(chunk, lambda lies_in: self._place(at, lies_in, length))

    def placed(self) -> tuple[bytes, tuple[ContentPiece, ...]]:
        """The digest of it all, and where it lies; once everything is packed."""
        return digest_of(b"".join(map(_said_of, self._pieces))), tuple(self._pieces)

    def _place(self, at: int, lies_in: bytes, length: int) -> None:
        self._pieces[at] = ContentPiece(lies_in, 0, length)


def _packed(body: bytes, stored: frozenset[bytes], level: int) -> Packed:
    """A body, packed; without it, if it is stored already."""
    if stored and (found := digest_of(body)) in stored:
        return Packed(found, RAW, b"", len(body), 0)
    return pack(body, level=level)


def _fill(slot: SmallContent, lies_in: bytes, start: int, length: int) -> None:
    slot.pieces = (*slot.first, ContentPiece(lies_in, start, length))


def _only_grew(was: TreeEntry, content: bytes) -> bool:
    """Whether a file begins with all that it had before. Of one that grew often the whole is stored again."""
    if not 0 < was.size < len(content) or len(was.pieces) >= MAX_PIECES:
        return False
    return compare_digest(digest_of(memoryview(content)[: was.size]), was.digest)


def _said_of(piece: ContentPiece) -> bytes:
    """What of a chunk goes into the digest of its file."""
    return (piece.object or bytes(DIGEST_BYTES)) + piece.length.to_bytes(8, "big")
