"""Where the values of a checkpoint's channels are, as far as they are not in the checkpoint itself.

The column ``leans`` holds a list of marked names. A channel without a value here has its value at an ancestor, or no value. Which
of the two follows from the rows of the thread (see ``ancestry``): a channel that did not change with this checkpoint has what its
parent has; one that changed has a value only if something was written to it, or if an ancestor has a snapshot of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

_SAME, _CHANGED, _SNAPSHOT = "=~+"


class ChannelMarks(Struct, frozen=True):
    """The channels of one checkpoint that its descendants or its ancestors matter for."""

    leans: frozenset[str] = frozenset()
    """Channels without a value here."""
    changed: frozenset[str] = frozenset()
    """Those of them that changed with this checkpoint."""
    snapshots: frozenset[str] = frozenset()
    """Channels whose value here is one that later checkpoints add to."""


def marked(leans: Sequence[str], changed: Sequence[str], snapshots: Sequence[str]) -> list[str]:
    """The list to store."""
    new = set(changed)
    missing = [f"{_CHANGED if name in new else _SAME}{name}" for name in leans]
    return missing + [f"{_SNAPSHOT}{name}" for name in snapshots]


def unmarked(stored: Sequence[str]) -> ChannelMarks:
    """What a stored list says."""
    changed = frozenset(_names(stored, _CHANGED))
    return ChannelMarks(changed | {*_names(stored, _SAME)}, changed, frozenset(_names(stored, _SNAPSHOT)))


def leaning(stored: Sequence[str]) -> list[str]:
    """The channels without a value, in the order in which they were given."""
    return [each[1:] for each in stored if each[:1] in (_SAME, _CHANGED)]


def marks_of_leaning(channels: Iterable[str]) -> list[str]:
    """All marks that a stored list may have for these channels where it has no value for them."""
    return [f"{mark}{name}" for name in channels for mark in (_SAME, _CHANGED)]


def _names(stored: Sequence[str], mark: str) -> Iterable[str]:
    return (each[1:] for each in stored if each[:1] == mark)
