"""Which checkpoints must stay: those that are kept, and the ancestors that a kept one cannot do without."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from ....core import text
from ....engines.protocol import Row

Key = tuple[str, str]
"""Namespace and id of a checkpoint."""


class Kin(Struct, frozen=True):
    """One checkpoint among its relatives. ``leans`` are the channels whose value an ancestor has."""

    namespace: str
    id: str
    parent: str | None
    leans: frozenset[str]
    run_id: str | None

    @property
    def key(self) -> Key:
        """Its namespace and id."""
        return self.namespace, self.id


def of_rows(rows: Iterable[Row]) -> list[Kin]:
    """The checkpoints of a thread, the newest first."""
    return [
        Kin(ns, id, parent, frozenset(text.load(leans)) if leans else frozenset(), run)
        for ns, id, parent, leans, run, *_ in rows
    ]


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
    """What is kept, and all that it leans on."""
    by_key = {each.key: each for each in family}
    needed = set(kept)
    for key in list(needed):
        missing, at = by_key[key].leans, by_key[key]
        while missing and at.parent is not None and (at.namespace, at.parent) in by_key:
            at = by_key[at.namespace, at.parent]
            if at.key == key:
                break  # a circle, which no graph makes
            needed.add(at.key)
            missing = missing & at.leans
    return needed
