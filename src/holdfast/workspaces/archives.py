"""Export and import of snapshots as archives, and differences between snapshots."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

from msgspec import Struct

from ..core.scope import Scope
from ..engines.protocol import Engine
from ..errors import InvalidInput, NotFound
from ..limits import MIB, Limits
from ..new_file import NewFile
from ..offload import work
from ..stores.workspace.snapshots import AsyncSnapshots
from ..trees import differences
from ..trees.differences import Change, ChangeKind
from ..trees.entries import ContentPiece, TreeEntry, objects_of
from ..trees.line_diff import StepBudget
from .capture import Capturer, CaptureRequest, CaptureResult
from .readahead import drive
from .restore import Advance, Restorer

PART_BYTES, PART_CHANGES = 4 * MIB, 500
"""Bytes of files, and number of changes, that a diff reads and formats at a time."""


class TreeChange(Struct, frozen=True):
    """One difference between two snapshots, with its unified diff."""

    path: str
    kind: ChangeKind
    old_path: str | None
    """The former path of a renamed file."""
    size_before: int | None
    size_after: int | None
    text: str | None
    """The unified diff, if requested."""


class Archiver:
    """Archives and differences for one tenant."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._snapshots = AsyncSnapshots(engine, scope)
        self._restoring = Restorer(engine, scope)

    async def export(self, snapshot_id: str, path: str | os.PathLike[str], *, replace: bool, advance: Advance) -> int:
        """Write a snapshot to a file, whole or not at all; return the number of entries."""
        from ..trees import archives  # rarely needed, and slow to import

        tree = await self._snapshots.tree(snapshot_id)
        target = await work(self._engine, lambda: NewFile(path, replace=replace))
        try:
            steps = archives.write(target.file, tree.entries, advance=advance)
            count = await drive(self._engine, steps, self._restoring.contents)
            await work(self._engine, target.finish)
        finally:
            await work(self._engine, target.discard)
        return count

    async def import_archive(
        self, request: CaptureRequest, path: str | os.PathLike[str], *, outside_links: bool
    ) -> CaptureResult:
        """Record the content of an archive as a snapshot."""
        from ..trees.archives import ArchiveReader  # as above

        file = await work(self._engine, lambda: _open(path))
        try:
            unpacking = ArchiveReader(file, self._scope.limits, outside_links=outside_links)
            return await Capturer(self._engine, self._scope).import_archive(request, unpacking)
        finally:
            await work(self._engine, file.close)

    async def diff(self, before_id: str, after_id: str, *, text: bool) -> Sequence[TreeChange]:
        """Return the differences, with unified diffs if ``text`` is true."""
        before = (await self._snapshots.tree(before_id)).entries
        after = (await self._snapshots.tree(after_id)).entries
        changes = await work(self._engine, lambda: differences.changes(before, after))
        if not text:
            return await work(self._engine, lambda: [_change(change, None) for change in changes])
        formatted: list[TreeChange] = []
        formatter = _Formatter(self._scope.limits)
        for part in formatter.parts(changes):
            entries = [entry for change in part for entry in formatter.compared_entries(change)]
            bodies = await self._restoring.contents(sorted(objects_of(entries)))
            formatted += await work(self._engine, lambda part=part, bodies=bodies: formatter.format(part, bodies))  # type: ignore[misc]
        return formatted


class _Formatter:
    """Formats changes as text, within the limits of one diff on bytes and steps."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._steps = StepBudget(limits.diff_steps)
        self._left: set[str] = set()
        """Paths of files that are not compared because earlier files used up the bytes allowed."""

    def parts(self, changes: Sequence[Change]) -> Iterator[list[Change]]:
        """Yield changes that are read and formatted together."""
        part: list[Change] = []
        size = total = 0
        for change in changes:
            more = sum(entry.size for entry in self.compared_entries(change))
            total += more
            if total > self._limits.diff_total_bytes:
                self._left.add(change.path)
            if part and (size + more > PART_BYTES or len(part) >= PART_CHANGES):
                yield part
                part, size = [], 0
            part.append(change)
            size += more
        if part:
            yield part

    def compared_entries(self, change: Change) -> list[TreeEntry]:
        """Return the entries of a change that are compared line by line."""
        entries = [entry for entry in (change.before, change.after) if entry is not None]
        is_shown = change.kind not in ("mode", "renamed") and change.path not in self._left
        return entries if is_shown and max(entry.size for entry in entries) <= self._limits.diff_bytes else []

    def format(self, part: Sequence[Change], bodies: Mapping[bytes, bytes]) -> list[TreeChange]:
        """Return changes with their text."""
        return [_change(change, self._text(change, bodies)) for change in part]

    def _text(self, change: Change, bodies: Mapping[bytes, bytes]) -> str:
        if change.path in self._left:
            return differences.not_compared(change, self._limits.diff_total_bytes)
        if change.kind in ("mode", "renamed"):
            return differences.unified_diff(change, b"", b"", self._steps)
        if not self.compared_entries(change):
            return differences.too_large(change, self._limits.diff_bytes)
        before, after = (_content(entry, bodies) for entry in (change.before, change.after))
        return differences.unified_diff(change, before, after, self._steps)


def _open(path: str | os.PathLike[str]) -> BinaryIO:
    try:
        return open(path, "rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"file {os.fspath(path)!r} does not exist", noun="file", key=str(os.fspath(path))) from error
    except OSError as error:
        raise InvalidInput(f"{os.fspath(path)!r} cannot be opened: {error.strerror or error}", field="path") from error


def _content(entry: TreeEntry | None, bodies: Mapping[bytes, bytes]) -> bytes:
    plain = differences.content_of(entry)
    if plain is not None or entry is None:
        return plain or b""
    return b"".join(_bytes(piece, bodies) for piece in entry.pieces)


def _bytes(piece: ContentPiece, bodies: Mapping[bytes, bytes]) -> bytes:
    if not piece.object:
        return bytes(piece.length)
    return bodies[piece.object][piece.start : piece.start + piece.length]


def _change(change: Change, text: str | None) -> TreeChange:
    before, after = change.before, change.after
    return TreeChange(
        change.path,
        change.kind,
        change.old_path,
        None if before is None else before.size,
        None if after is None else after.size,
        text,
    )
