"""Row types of snapshots, with the checks of their fields."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, cast, get_args

from msgspec import Struct

from ...core.checks import whole_number
from ...errors import Conflict, InvalidInput
from ...ids import Id
from ...ids import parse as parse_id
from ...trees.entries import TreeEntry
from .layers import NewLayer

SnapshotKind = Literal["step", "dirty", "imported"]
_MAX_STEP = 2**62


class Snapshot(Struct, frozen=True):
    """A captured directory tree.

    ``kind`` states its origin: the end of a ``step``, a ``dirty`` tree captured before a rewind changed it, or
    ``imported``.
    """

    id: Id
    run_id: Id
    step: int | None
    """The iteration of the run after which it was captured."""
    parent_id: Id | None
    """The snapshot it was captured after; it may have been removed since."""
    kind: SnapshotKind
    layer_id: Id
    entry_count: int
    tree_bytes: int
    """Size of all files in it."""
    size_bytes: int
    """Bytes stored for it that were not stored before."""
    depth: int
    """Number of layers below its own."""
    created_at: datetime


class SnapshotUsage(Struct, frozen=True):
    """Totals of a tenant's snapshots."""

    count: int
    layers: int
    """Layers of existing snapshots, and of removed ones that others are still based on."""
    stored_bytes: int


class TreePage(Struct, frozen=True):
    """A page of the entries of a snapshot, in order of paths."""

    entries: Sequence[TreeEntry]
    ignore: Sequence[str]
    """The patterns by which other entries were left out."""
    next: str | None
    """The cursor of the next page, or ``None`` at the end."""


class NewSnapshot(Struct, frozen=True):
    """A snapshot to be recorded, with a new layer or on an existing one."""

    run_id: str
    step: int | None
    kind: SnapshotKind
    parent_id: str | None
    layer: NewLayer | str
    entry_count: int
    tree_bytes: int
    id: str


def kind_of(kind: object) -> SnapshotKind:
    """Check a kind of snapshot given by the caller.

    Raises:
        InvalidInput: it is not a known kind.
    """
    if kind not in get_args(SnapshotKind):
        raise InvalidInput(
            f"kind must be one of {', '.join(get_args(SnapshotKind))}, not {str(kind)[:60]!r}", field="kind"
        )
    return cast(SnapshotKind, kind)


def parse_step(step: int) -> int:
    """Check the number of a step given by the caller.

    Raises:
        InvalidInput: it is not a valid step number.
    """
    return whole_number(step, "step", maximum=_MAX_STEP - 1)


def check_same(existing: Snapshot, new: NewSnapshot) -> Snapshot:
    """Return an existing snapshot if it is the one recorded again.

    Raises:
        Conflict: it is another snapshot.
    """
    if (existing.run_id, existing.step, existing.kind) != (parse_id(new.run_id, "run id"), new.step, new.kind):
        raise Conflict(f"snapshot {new.id} already exists, of another run, step or kind", reason="other_content")
    return existing
