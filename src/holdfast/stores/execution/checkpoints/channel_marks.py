"""Marks of the channels whose value is not in the checkpoint itself.

The column ``leans`` contains a list of marked names. A channel without a value here has its value in an ancestor, or no value.
The rows of the thread decide which (see ``ancestry``): a channel that did not change with this checkpoint has its parent's
value; one that changed has a value only if something was written to it, or if an ancestor has a snapshot of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

_SAME, _CHANGED, _SNAPSHOT = "=~+"


class ChannelMarks(Struct, frozen=True):
    """The channels of one checkpoint for which its ancestors or descendants matter."""

    leans: frozenset[str] = frozenset()
    """Channels without a value here."""
    changed: frozenset[str] = frozenset()
    """Channels of ``leans`` that changed with this checkpoint."""
    snapshots: frozenset[str] = frozenset()
    """Channels whose value here is the base that writes to later checkpoints add to."""


def encode_marks(leans: Sequence[str], changed: Sequence[str], snapshots: Sequence[str]) -> list[str]:
    """Return the list to store."""
    changed_names = set(changed)
    missing = [f"{_CHANGED if name in changed_names else _SAME}{name}" for name in leans]
    return missing + [f"{_SNAPSHOT}{name}" for name in snapshots]


def decode_marks(marks: Sequence[str]) -> ChannelMarks:
    """Return the marks of a stored list."""
    changed = frozenset(_names(marks, _CHANGED))
    return ChannelMarks(changed | {*_names(marks, _SAME)}, changed, frozenset(_names(marks, _SNAPSHOT)))


def channels_without_value(marks: Sequence[str]) -> list[str]:
    """Return the channels without a value, in their original order."""
    return [mark[1:] for mark in marks if mark[:1] in (_SAME, _CHANGED)]


def marks_without_value(channels: Iterable[str]) -> list[str]:
    """Return all marks that a stored list may contain for these channels if it has no value for them."""
    return [f"{mark}{name}" for name in channels for mark in (_SAME, _CHANGED)]


def _names(marks: Sequence[str], mark: str) -> Iterable[str]:
    return (item[1:] for item in marks if item[:1] == mark)
