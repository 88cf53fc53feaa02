"""What was known of the files of a tree when it was last captured, so that the next capture reads only what changed.

A file is taken to be unchanged if its mode, size, mtime, ctime and inode are. That holds unless it was written to again so
soon after it was read that the clock of the file system had not moved; therefore only what is known of files is used that had
been at rest when the walk began. A cache that is lost, old or damaged costs time and nothing else: it names the layer whose
tree it is about, and carries a digest of itself.
"""

from __future__ import annotations

import os
import stat as stat_bits
from array import array
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core.objects import digest_of
from .entries import MODE_BITS, TreeEntry, raw, shown
from .walk import Stat

VERSION = 1
GRAIN_NS = 20_000_000
"""How far the clock of a file system may jump at once."""
COARSE_NS = 2_000_000_000
"""The same of one that counts in seconds only."""
SECOND_NS = 1_000_000_000
_DIGEST = 32
_IS = {"file": stat_bits.S_ISREG, "dir": stat_bits.S_ISDIR, "symlink": stat_bits.S_ISLNK}


class CachedTree(Struct, frozen=True):
    """A tree as it was captured, and what is known of its files. It is never changed: the next capture makes another."""

    snapshot_id: str
    layer_id: str
    depth: int
    ignore: tuple[str, ...]
    entries: Mapping[str, TreeEntry]
    stats: Mapping[str, Stat]
    tree_bytes: int


class CachedStats(Struct, frozen=True):
    """What a file keeps of a picture: its entries are those of the layer."""

    snapshot_id: str
    layer_id: str
    stats: Mapping[str, Stat]


class _Body(Struct, frozen=True, array_like=True):
    version: int
    snapshot_id: str
    layer_id: str
    paths: bytes
    columns: list[bytes]


def now_ns() -> int:
    """The time by which the system stamps files: that of a file which is made to look at it."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("now")
    else:
        import tempfile

        handle, name = tempfile.mkstemp()
        os.unlink(name)
    try:
        return os.fstat(handle).st_mtime_ns
    finally:
        os.close(handle)


def at_rest(stat: Stat, started_ns: int) -> bool:
    """Whether a file that was read after ``started_ns`` cannot have been written to since without showing it."""
    ctime_ns = stat[3]
    grain = COARSE_NS if ctime_ns % SECOND_NS == 0 else GRAIN_NS
    return ctime_ns + grain < started_ns


def place_of(folder: Path, tenant: str, root: str) -> Path:
    """The file for the tree below a directory, as a tenant sees it."""
    return folder / digest_of(raw(f"{tenant}\0{root}"), 16).hex()


def save(place: Path, picture: CachedTree) -> None:
    """Keep what is known; if that cannot be done, it is not."""
    body = msgspec.msgpack.encode(
        _Body(VERSION, picture.snapshot_id, picture.layer_id, raw("\0".join(picture.stats)), _columns(picture.stats))
    )
    made = place.with_suffix(f".{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes(body + digest_of(body))
        # To put one file in the place of another makes some file systems wait for the disk. This one may be missing for a moment.
        place.unlink(missing_ok=True)
        os.replace(made, place)
    except OSError:
        with suppress(OSError):
            made.unlink()


def load(place: Path) -> CachedStats | None:
    """What was kept; ``None`` if that is nothing, or not what it was."""
    try:
        content = place.read_bytes()
        body, said = content[:-_DIGEST], content[-_DIGEST:]
        if not compare_digest(digest_of(body), said):
            return None
        found = msgspec.msgpack.decode(body, type=_Body)
        columns = [_numbers(each) for each in found.columns]
        paths = shown(found.paths).split("\0") if columns and columns[0] else []
        if found.version != VERSION or len(columns) != 5 or {len(each) for each in columns} != {len(paths)}:
            return None
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return CachedStats(found.snapshot_id, found.layer_id, dict(zip(paths, zip(*columns, strict=True), strict=True)))


def matching_stats(stats: Mapping[str, Stat], entries: Mapping[str, TreeEntry]) -> dict[str, Stat]:
    """What is known of files that are as the entries say. What is known of others is worth nothing."""
    return {path: stat for path, stat in stats.items() if (entry := entries.get(path)) and _fits(stat, entry)}


def _fits(stat: Stat, entry: TreeEntry) -> bool:
    mode, size, mtime_ns, _, _ = stat
    is_sized = size == entry.size or entry.kind != "file"
    return is_sized and mode & MODE_BITS == entry.mode and mtime_ns == entry.mtime_ns and _IS[entry.kind](mode)


def _columns(stats: Mapping[str, Stat]) -> list[bytes]:
    columns = zip(*stats.values(), strict=True) if stats else [()] * 5
    return [_packed(column) for column in columns]


def _packed(column: Iterable[int]) -> bytes:
    numbers = tuple(column)
    try:
        return array("q", numbers).tobytes()
    except OverflowError:  # an inode may use all bits of its number
        return array("q", [number - 2**64 if number >= 2**63 else number for number in numbers]).tobytes()


def _numbers(column: bytes) -> list[int]:
    found = array("q")
    found.frombytes(column)
    return found.tolist()
