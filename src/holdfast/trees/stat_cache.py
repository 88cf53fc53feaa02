"""The stat cache: file states from the last capture of a tree, so that the next capture reads only changed files.

A file is considered unchanged if its mode, size, mtime, ctime and inode are. That is correct unless the file was
written again within the resolution of the file system's clock after it was read; therefore only the states of files
that were at rest when the walk began are used. A lost, old or damaged cache costs time and nothing else: it names the
layer it belongs to, and contains its own digest.
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
from .entries import MODE_BITS, TreeEntry, path_bytes, path_text
from .walk import Stat

VERSION = 1
GRAIN_NS = 20_000_000
"""Resolution of a file system's clock."""
COARSE_NS = 2_000_000_000
"""Resolution of a file system's clock that counts whole seconds."""
SECOND_NS = 1_000_000_000
_DIGEST = 32
_IS = {"file": stat_bits.S_ISREG, "dir": stat_bits.S_ISDIR, "symlink": stat_bits.S_ISLNK}


class CachedTree(Struct, frozen=True):
    """A captured tree with the states of its files. It is immutable: the next capture creates another."""

    snapshot_id: str
    layer_id: str
    depth: int
    ignore: tuple[str, ...]
    entries: Mapping[str, TreeEntry]
    stats: Mapping[str, Stat]
    tree_bytes: int


class CachedStats(Struct, frozen=True):
    """The content of a cache file: the entries are those of the layer."""

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
    """Return the current time of the clock that stamps files, read from a newly created file."""
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
    """Return whether a file read after ``started_ns`` cannot have been written since without a visible change."""
    ctime_ns = stat[3]
    grain = COARSE_NS if ctime_ns % SECOND_NS == 0 else GRAIN_NS
    return ctime_ns + grain < started_ns


def path_of(folder: Path, tenant: str, root: str) -> Path:
    """Return the cache file for a directory, as seen by a tenant."""
    return folder / digest_of(path_bytes(f"{tenant}\0{root}"), 16).hex()


def save(cache_file: Path, picture: CachedTree) -> None:
    """Write the cache file; errors are ignored."""
    body = msgspec.msgpack.encode(
        _Body(
            VERSION,
            picture.snapshot_id,
            picture.layer_id,
            path_bytes("\0".join(picture.stats)),
            _columns(picture.stats),
        )
    )
    new_file = cache_file.with_suffix(f".{os.getpid()}")
    try:
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        new_file.write_bytes(body + digest_of(body))
        # Replacing an existing file makes some file systems wait for the disk. The cache may be missing for a moment instead.
        cache_file.unlink(missing_ok=True)
        os.replace(new_file, cache_file)
    except OSError:
        with suppress(OSError):
            new_file.unlink()


def load(cache_file: Path) -> CachedStats | None:
    """Read a cache file; return ``None`` if it does not exist or is damaged."""
    try:
        content = cache_file.read_bytes()
        body, stored_digest = content[:-_DIGEST], content[-_DIGEST:]
        if not compare_digest(digest_of(body), stored_digest):
            return None
        content_body = msgspec.msgpack.decode(body, type=_Body)
        columns = [_unpack_column(column) for column in content_body.columns]
        paths = path_text(content_body.paths).split("\0") if columns and columns[0] else []
        if content_body.version != VERSION or len(columns) != 5 or {len(column) for column in columns} != {len(paths)}:
            return None
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    return CachedStats(
        content_body.snapshot_id, content_body.layer_id, dict(zip(paths, zip(*columns, strict=True), strict=True))
    )


def matching_stats(stats: Mapping[str, Stat], entries: Mapping[str, TreeEntry]) -> dict[str, Stat]:
    """Return the file states that match the entries."""
    return {path: stat for path, stat in stats.items() if (entry := entries.get(path)) and _fits(stat, entry)}


def _fits(stat: Stat, entry: TreeEntry) -> bool:
    mode, size, mtime_ns, _, _ = stat
    is_sized = size == entry.size or entry.kind != "file"
    return is_sized and mode & MODE_BITS == entry.mode and mtime_ns == entry.mtime_ns and _IS[entry.kind](mode)


def _columns(stats: Mapping[str, Stat]) -> list[bytes]:
    columns = zip(*stats.values(), strict=True) if stats else [()] * 5
    return [_pack_column(column) for column in columns]


def _pack_column(column: Iterable[int]) -> bytes:
    numbers = tuple(column)
    try:
        return array("q", numbers).tobytes()
    except OverflowError:  # an inode number may use all 64 bits
        return array("q", [number - 2**64 if number >= 2**63 else number for number in numbers]).tobytes()


def _unpack_column(column: bytes) -> list[int]:
    numbers = array("q")
    numbers.frombytes(column)
    return numbers.tolist()
