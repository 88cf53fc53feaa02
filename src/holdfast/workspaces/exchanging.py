"""Snapshots as archives, out and in, and what is different between two of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from msgspec import Struct

from ..core.scope import Scope
from ..engines.protocol import Engine
from ..errors import InvalidInput, NotFound
from ..stores.workspace.snapshots import AsyncSnapshots
from ..trees import differences
from ..trees.differences import Change, ChangeKind
from ..trees.entries import Entry, Piece, objects_of
from .ahead import driven
from .capturing import Capture, Capturing, Request, work
from .restoring import Advance, Restoring


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


class Exchanging:
    """Archives and differences for one tenant."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._snapshots = AsyncSnapshots(engine, scope)
        self._restoring = Restoring(engine, scope)

    async def export(self, snapshot_id: str, path: str | os.PathLike[str], *, advance: Advance) -> int:
        """Write a snapshot to a file, whole or not at all."""
        from ..trees import archives  # few need them, and what reads tar takes its time to load

        tree = await self._snapshots.tree(snapshot_id)
        part = f"{os.fspath(path)}.part"
        file = await work(self._engine, lambda: _opened(part, "wb"))
        try:
            try:
                steps = archives.write(file, tree.entries, advance=advance)
                count = await driven(self._engine, steps, self._restoring.contents)
            finally:
                await work(self._engine, file.close)
            await work(self._engine, lambda: os.replace(part, path))
        except BaseException:
            _removed(part)
            raise
        return count

    async def take_in(self, wanted: Request, path: str | os.PathLike[str], *, outside_links: bool) -> Capture:
        """Record what is in an archive as a snapshot."""
        from ..trees.archives import Unpacking  # as above

        file = await work(self._engine, lambda: _opened(path, "rb"))
        try:
            unpacking = Unpacking(file, self._scope.limits, outside_links=outside_links)
            return await Capturing(self._engine, self._scope).take_in(wanted, unpacking)
        finally:
            await work(self._engine, file.close)

    async def diff(self, before_id: str, after_id: str, *, text: bool) -> Sequence[TreeChange]:
        """What is different, and how it looks."""
        before = (await self._snapshots.tree(before_id)).entries
        after = (await self._snapshots.tree(after_id)).entries
        found = await work(self._engine, lambda: differences.changes(before, after))
        return [_change(each, await self._text(each) if text else None) for each in found]

    async def _text(self, change: Change) -> str:
        most = self._scope.limits.diff_bytes
        entries = [each for each in (change.before, change.after) if each is not None]
        if change.kind in ("mode", "renamed"):
            return differences.unified(change, b"", b"")
        if any(entry.size > most for entry in entries):
            return differences.too_large(change, most)
        bodies = await self._restoring.contents(sorted(objects_of(entries)))
        before, after = (_content(each, bodies) for each in (change.before, change.after))
        return await work(self._engine, lambda: differences.unified(change, before, after))


def _opened(path: str | os.PathLike[str], mode: str) -> BinaryIO:
    try:
        return open(path, mode)  # type: ignore[return-value]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"there is no file {os.fspath(path)!r}, or no directory for it") from error
    except OSError as error:
        raise InvalidInput(f"{os.fspath(path)!r} cannot be opened: {error.strerror or error}") from error


def _removed(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _content(entry: Entry | None, bodies: Mapping[bytes, bytes]) -> bytes:
    plain = differences.content_of(entry)
    if plain is not None or entry is None:
        return plain or b""
    return b"".join(_bytes(piece, bodies) for piece in entry.pieces)


def _bytes(piece: Piece, bodies: Mapping[bytes, bytes]) -> bytes:
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
