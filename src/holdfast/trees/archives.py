"""Trees as archives: writing and reading tar compressed with zstd.

The same tree always makes the same archive, byte for byte: entries are in order of paths and have no owner, and times
are those of the files, to the nanosecond.

An imported archive is not trusted. It is read member by member (``tar``) and never unpacked to a disk: each member
becomes an entry like those of a capture, all entries are checked together (``validation``), and content is only ever
stored. Hard links become files with the same content. An archive is refused as a whole if it contains special files,
set-uid or set-gid files, paths or links that leave the tree, or too much data.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Generator, Iterator, Mapping
from decimal import Decimal
from typing import Any, BinaryIO

import zstandard
from msgspec.structs import replace

from ..core.objects import Packed
from ..errors import InvalidInput, LimitExceeded
from ..limits import MIB, Limits
from . import validation
from .contents import CHUNK, ChunkedContent, Packer, SmallContent
from .entries import MODE_BITS, Difference, TreeEntry
from .prefetch import ObjectBodies, ObjectRequest, Prefetch
from .scan import ScanResult
from .tar import BLOCK, Member, TarReader
from .validation import refusal

LEVEL = 3
END = bytes(2 * BLOCK)
"""The end-of-archive marker."""
MAX_WINDOW = 128 * MIB
"""Maximum window size of the compression, in bytes."""
MAGIC = b"\x28\xb5\x2f\xfd"
_ZEROS = bytes(64 * 1024)
_KINDS = {"file": tarfile.REGTYPE, "dir": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE}


def write(
    file: BinaryIO, entries: Mapping[str, TreeEntry], *, advance: Callable[[int], None] = lambda count: None
) -> Generator[ObjectRequest, ObjectBodies, int]:
    """Write a tree as an archive; yields requests for objects, and returns the number of entries."""
    in_order = [entries[path] for path in sorted(entries)]
    contents = Prefetch(piece for entry in in_order for piece in entry.pieces)
    with zstandard.ZstdCompressor(level=LEVEL).stream_writer(file, closefd=False) as out:
        for entry in in_order:
            out.write(_header(entry))
            for piece in entry.pieces:
                if piece.object:
                    out.write((yield from contents.of(piece)))
                else:
                    _write_zeros(out, piece.length)
            out.write(bytes(-entry.size % BLOCK))
            advance(1)
        out.write(END)
    return len(in_order)


def _header(entry: TreeEntry) -> bytes:
    info = tarfile.TarInfo(entry.path)
    info.type, info.mode, info.size, info.linkname = _KINDS[entry.kind], entry.mode, entry.size, entry.target
    info.pax_headers = {"mtime": f"{Decimal(entry.mtime_ns).scaleb(-9):f}"}
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _write_zeros(out: Any, length: int) -> None:
    while length:
        out.write(_ZEROS[:length])
        length -= min(length, len(_ZEROS))


class ArchiveReader:
    """Imports one archive. ``parts`` yields packed objects as they are read; afterwards, ``result`` returns the
    entries.

    Args:
        file: the archive.
        limits: bounds on its content.
        outside_links: whether symbolic links may lead out of the tree.
    """

    def __init__(self, file: BinaryIO, limits: Limits, *, outside_links: bool = False) -> None:
        self._source = _BoundedReader(file, limits)
        self._limits, self._outside_links = limits, outside_links
        self._packer = Packer()
        self._entries: dict[str, TreeEntry] = {}
        self._contents: dict[str, SmallContent | ChunkedContent] = {}
        self._folders: set[str] = set()
        """Parent directories that have no member of their own, at least so far."""
        self._bytes = self._names_bytes = 0

    def parts(self) -> Iterator[list[Packed]]:
        """Yield packed objects in parts.

        Raises:
            InvalidInput: it is not such an archive, or contains entries that must not be restored.
            LimitExceeded: its content exceeds a limit.
        """
        archive = TarReader(self._source.read)
        try:
            for member in archive.members():
                yield from self._take(archive, member)
            self._source.check_end()
            yield self._packer.finish()
        except zstandard.ZstdError as error:
            raise InvalidInput(f"the archive cannot be decompressed: {error}") from error
        finally:
            self._packer.close()

    def result(self) -> ScanResult:
        """Return the result, after all parts were yielded.

        Raises:
            InvalidInput: the tree contains entries that must not be restored.
            LimitExceeded: it is too large.
        """
        entries = self._with_folders()
        validation.check(entries, self._limits, known={})
        if not self._outside_links:
            validation.check_links(entries)
        return ScanResult(Difference(list(entries.values())), entries, {}, (), ())

    def _take(self, archive: TarReader, member: Member) -> Iterator[list[Packed]]:
        path = member.name.rstrip("/") if member.name.strip("/") else member.name
        while path.startswith("./"):
            path = path[2:]
        if path in ("", ".") and member.kind == "dir" and member.name:
            return
        self._check_place(path)
        if member.mode & validation.SET_IDS:
            raise refusal(path, "its mode has set-uid or set-gid")
        entry = TreeEntry(path, "dir", member.mode & MODE_BITS, member.mtime_ns)
        if member.kind == "dir":
            self._entries[path] = entry
        elif member.kind == "symlink":
            self._count_names(member.target)
            self._entries[path] = replace(entry, kind="symlink", mode=0o777, target=member.target)
        elif member.kind == "hardlink":
            self._take_second_name(entry, member.target)
        elif member.kind == "file":
            yield from self._take_file(archive, replace(entry, kind="file", size=member.size))
        else:
            raise refusal(path, "only files, directories and links can be restored")

    def _check_place(self, path: str) -> None:
        """Check a path and count it, together with its parent directories that have no member of their own so far."""
        validation.check_path(path, self._limits)
        if path in self._entries:
            raise refusal(path, "it is in the archive twice")
        self._count_names(path)
        above = path.rpartition("/")[0]
        while above and above not in self._entries and above not in self._folders:
            self._folders.add(above)
            self._count_names(above)
            above = above.rpartition("/")[0]
        count = len(self._entries) + 1 + len(self._folders) - (path in self._folders)
        self._limits.check("tree_entries", count, "the entries of the archive")

    def _count_names(self, name: str) -> None:
        self._names_bytes += len(name)
        self._limits.check("tree_names_bytes", self._names_bytes, "the paths and link targets of the archive")

    def _take_file(self, archive: TarReader, entry: TreeEntry) -> Iterator[list[Packed]]:
        self._bytes += entry.size
        self._limits.check("tree_bytes", self._bytes, "the files of the archive")
        if entry.size <= CHUNK:
            self._contents[entry.path] = self._packer.add_small(archive.content(entry.size))
        else:
            chunked = self._contents[entry.path] = self._packer.start_large()
            while chunked.size < entry.size:
                chunked.add(archive.content(CHUNK))
                if self._packer.is_full:
                    yield self._packer.take()
        self._entries[entry.path] = entry
        if self._packer.is_full:
            yield self._packer.take()

    def _take_second_name(self, entry: TreeEntry, target: str) -> None:
        """Add a hard link as a file with the content of an earlier member. No link is ever created."""
        while target.startswith("./"):
            target = target[2:]
        original = self._entries.get(target)
        if original is None or original.kind != "file":
            raise refusal(
                entry.path, f"it is a hard link to {target[:200]!r}, which is not an earlier file of the archive"
            )
        self._bytes += original.size
        self._limits.check("tree_bytes", self._bytes, "the files of the archive")
        self._entries[entry.path] = replace(original, path=entry.path)
        self._contents[entry.path] = self._contents[target]

    def _with_folders(self) -> dict[str, TreeEntry]:
        """Return all entries with their contents; parent directories without a member get default modes."""
        entries: dict[str, TreeEntry] = {}
        for path, entry in self._entries.items():
            content = self._contents.get(path)
            if content is not None:
                digest, pieces = content.digest_and_pieces()
                entry = replace(entry, digest=digest, pieces=pieces)
            above = path.rpartition("/")[0]
            while above and above not in self._entries and above not in entries:
                entries[above] = TreeEntry(above, "dir", 0o755, entry.mtime_ns)
                above = above.rpartition("/")[0]
            entries[path] = entry
        return entries


class _BoundedReader:
    """The decompressed archive, as long as the decompressed size is in proportion to the compressed size."""

    def __init__(self, file: BinaryIO, limits: Limits) -> None:
        self._file, self._limits = file, limits
        self._taken = self._given = 0
        self._unpacked = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).stream_reader(
            self._packed_reader(), read_across_frames=True, closefd=False
        )

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        content = self._unpacked.read(size)
        self._given += len(content)
        ratio = self._limits.archive_ratio
        if self._given > MIB + ratio * self._taken:
            raise LimitExceeded(
                f"the archive unpacks to more than archive_ratio = {ratio:,} times its size",
                limit="archive_ratio",
                maximum=ratio,
            )
        return content

    def check_end(self) -> None:
        """Check that at least one more block of zeros follows the first, and nothing else."""
        zeros = 0
        while (content := self.read(64 * 1024)) and not content.strip(b"\0"):
            zeros += len(content)
        if content or zeros < BLOCK:
            raise InvalidInput("the archive is truncated, or has data after its end")

    def _packed_reader(self) -> Any:
        reader = self

        class Reader:
            def read(self, size: int = -1) -> bytes:
                packed = reader._file.read(size if size > 0 else 64 * 1024)
                if not reader._taken and not packed.startswith(MAGIC):
                    raise InvalidInput("this is not an archive compressed with zstd")
                reader._taken += len(packed)
                return packed

        return Reader()
