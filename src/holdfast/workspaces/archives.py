"""Snapshots as archives, out and in, and what is different between two of them."""

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
"""Bytes of files, and changes, that a diff reads and shows at a time."""


class TreeChange(Struct, frozen=True):
    """One thing that two snapshots do not have in common, and how that looks as a unified diff."""

    path: str
    kind: ChangeKind
    old_path: str | None
    """Where a file was that was renamed."""
    size_before: int | None
    size_after: int | None
    text: str | None
    """Only where it was asked for."""


class Archiver:
    """Archives and differences for one tenant."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._snapshots = AsyncSnapshots(engine, scope)
        self._restoring = Restorer(engine, scope)

    async def export(self, snapshot_id: str, path: str | os.PathLike[str], *, replace: bool, advance: Advance) -> int:
        """Write a snapshot to a file, whole or not at all."""
        from ..trees import archives  # few need them, and what reads tar takes its time to load

        tree = await self._snapshots.tree(snapshot_id)
        new = await work(self._engine, lambda: NewFile(path, replace=replace))
        try:
            steps = archives.write(new.file, tree.entries, advance=advance)
            count = await drive(self._engine, steps, self._restoring.contents)
            await work(self._engine, new.finish)
        finally:
            await work(self._engine, new.discard)
        return count

    async def take_in(
        self, wanted: CaptureRequest, path: str | os.PathLike[str], *, outside_links: bool
    ) -> CaptureResult:
        """Record what is in an archive as a snapshot."""
        from ..trees.archives import ArchiveReader  # as above

        file = await work(self._engine, lambda: _opened(path))
        try:
            unpacking = ArchiveReader(file, self._scope.limits, outside_links=outside_links)
            return await Capturer(self._engine, self._scope).take_in(wanted, unpacking)
        finally:
            await work(self._engine, file.close)

    async def diff(self, before_id: str, after_id: str, *, text: bool) -> Sequence[TreeChange]:
        """What is different, and how it looks."""
        before = (await self._snapshots.tree(before_id)).entries
        after = (await self._snapshots.tree(after_id)).entries
        found = await work(self._engine, lambda: differences.changes(before, after))
        if not text:
            return await work(self._engine, lambda: [_change(each, None) for each in found])
        shown: list[TreeChange] = []
        showing = _Showing(self._scope.limits)
        for part in showing.parts(found):
            entries = [entry for each in part for entry in showing.compared(each)]
            bodies = await self._restoring.contents(sorted(objects_of(entries)))
            shown += await work(self._engine, lambda part=part, bodies=bodies: showing.shown(part, bodies))  # type: ignore[misc]
        return shown


class _Showing:
    """Changes as text, within what one diff may take of bytes and of steps."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._steps = StepBudget(limits.diff_steps)
        self._left: set[str] = set()
        """Files that are not compared because others took all that may be compared."""

    def parts(self, found: Sequence[Change]) -> Iterator[list[Change]]:
        """Changes that are read and shown together."""
        part: list[Change] = []
        size = total = 0
        for change in found:
            more = sum(entry.size for entry in self.compared(change))
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

    def compared(self, change: Change) -> list[TreeEntry]:
        """What of a change is compared line by line."""
        entries = [each for each in (change.before, change.after) if each is not None]
        is_shown = change.kind not in ("mode", "renamed") and change.path not in self._left
        return entries if is_shown and max(entry.size for entry in entries) <= self._limits.diff_bytes else []

    def shown(self, part: Sequence[Change], bodies: Mapping[bytes, bytes]) -> list[TreeChange]:
        """Changes with their text."""
        return [_change(each, self._text(each, bodies)) for each in part]

    def _text(self, change: Change, bodies: Mapping[bytes, bytes]) -> str:
        if change.path in self._left:
            return differences.not_compared(change, self._limits.diff_total_bytes)
        if change.kind in ("mode", "renamed"):
            return differences.unified(change, b"", b"", self._steps)
        if not self.compared(change):
            return differences.too_large(change, self._limits.diff_bytes)
        before, after = (_content(each, bodies) for each in (change.before, change.after))
        return differences.unified(change, before, after, self._steps)


def _opened(path: str | os.PathLike[str]) -> BinaryIO:
    try:
        return open(path, "rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"there is no file {os.fspath(path)!r}") from error
    except OSError as error:
        raise InvalidInput(f"{os.fspath(path)!r} cannot be opened: {error.strerror or error}") from error


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
