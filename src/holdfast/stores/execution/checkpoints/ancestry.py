"""Which checkpoints must stay: those that are kept, and the ancestors that a kept one cannot do without."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ....clock import MICROSECONDS
from ....core import text
from ....engines.protocol import Row
from ....errors import InvalidInput
from .channel_marks import ChannelMarks, unmarked
from .compact_columns import stored_id

Key = tuple[str, str]
"""Namespace and id of a checkpoint."""
_CALL = re.compile(r":[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\||$)")
"""In a namespace: one call of a subgraph, which gets another the next time."""


class Kin(Struct, frozen=True):
    """One checkpoint among its relatives, and the channels that something was written to."""

    namespace: str
    id: str
    parent: str | None
    marks: ChannelMarks
    run_id: str | None
    is_young: bool = False
    written: frozenset[str] = frozenset()

    @property
    def key(self) -> Key:
        """Its namespace and id."""
        return self.namespace, self.id


def of_rows(rows: Iterable[Row], written: Mapping[Key, frozenset[str]]) -> list[Kin]:
    """The checkpoints of a thread, the newest first."""
    return [
        Kin(
            namespace=ns,
            id=stored_id(id),
            parent=None if parent is None else stored_id(parent),
            marks=unmarked(text.load(leans)) if leans else ChannelMarks(),
            run_id=run,
            is_young=bool(is_young),
            written=written.get((ns, stored_id(id)), frozenset()),
        )
        for ns, id, parent, leans, run, is_young in rows
    ]


class Rules(Struct, frozen=True):
    """What is kept of a thread: what any of these names. What is needed by it comes on top.

    Raises:
        InvalidInput: a number is none.
    """

    keep: int = 0
    younger_than_s: int | None = None
    runs: int | None = None
    without_runs: frozenset[str] | None = None
    """If this is given, everything but these runs is kept."""
    without_past_calls: bool = False
    """The newest of a namespace does not stay if that is a call of a subgraph that ended before all that is kept of the graph."""

    def __post_init__(self) -> None:
        for name in ("keep", "younger_than_s", "runs"):
            value = getattr(self, name)
            if (value is None and name != "keep") or (type(value) is int and 0 <= value < 2**31):
                continue
            raise InvalidInput(f"{name} is a whole number from 0 on, not {value!r}")

    def since_us(self, now_us: int) -> int:
        """The moment after which everything is kept."""
        return now_us if self.younger_than_s is None else now_us - self.younger_than_s * MICROSECONDS

    def kept(self, family: Sequence[Kin]) -> set[Key]:
        """The checkpoints of a thread, the newest first, that are kept for their own sake."""
        if self.without_runs is not None:
            return {each.key for each in family if each.run_id not in self.without_runs}
        last = set(list(dict.fromkeys(each.run_id for each in family if each.run_id is not None))[: self.runs or 0])
        young = {each.key for each in family if self.younger_than_s is not None and each.is_young}
        named = young | {each.key for each in family if each.run_id in last}
        latest = newest(family, self.keep)
        past = _past_calls(family, latest | named) if self.without_past_calls else frozenset()
        return named | {key for key in latest if key[0] not in past}


def _past_calls(family: Sequence[Kin], kept: Iterable[Key]) -> frozenset[str]:
    """The namespaces of calls whose newest checkpoint is older than all of the graph's own that are kept."""
    oldest = min((id for namespace, id in kept if not namespace), default="")
    latest = {each.namespace: each.id for each in reversed(family)}
    return frozenset(namespace for namespace, id in latest.items() if id < oldest and _CALL.search(namespace))


def newest(family: Sequence[Kin], count: int) -> set[Key]:
    """The ``count`` newest of each namespace."""
    seen: dict[str, int] = {}
    kept: set[Key] = set()
    for each in family:
        seen[each.namespace] = seen.get(each.namespace, 0) + 1
        if seen[each.namespace] <= count:
            kept.add(each.key)
    return kept


def with_needed(family: Sequence[Kin], kept: Iterable[Key]) -> set[Key]:
    """What is kept, and all that it cannot do without."""
    by_key = {each.key: each for each in family}
    needed = set(kept)
    for key in list(needed):
        needed |= _needed_by(by_key[key], by_key)
    return needed


def _needed_by(kin: Kin, by_key: Mapping[Key, Kin]) -> set[Key]:
    """The ancestors back to the last that has a value, or part of a value, which is not in the checkpoint itself."""
    path: list[Key] = []
    seen, depth = {kin.key}, 0
    missing, at = kin.marks.leans, kin
    is_written, has_changed = kin.written, kin.marks.changed
    while missing and at.parent is not None and (at.namespace, at.parent) in by_key:
        at = by_key[at.namespace, at.parent]
        if at.key in seen:
            break  # a circle, which no graph makes
        seen.add(at.key)
        path.append(at.key)
        is_written |= at.written
        found = missing - at.marks.leans
        # Without a write or a snapshot, a channel that changed since was emptied.
        if missing & at.written or found & (is_written | at.marks.snapshots) or found - has_changed:
            depth = len(path)
        missing &= at.marks.leans
        has_changed |= at.marks.changed
    return set(path[:depth])
