"""Objects that came or went together, in the order of a list, each with its place and what it was.

A conversation comes and goes as a whole at every step, and almost all of it is what it was. So what is asked of one object
is asked here of all of them at once, by functions that loop in C, and only where something is unusual one by one.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain, pairwise
from operator import is_
from typing import Any

from .snapshots import Snapshot, extra_of, fields_of, inside_of, is_still

_references = sys.getrefcount


class Series:
    """Objects in the order of a list. What is known of them stands in lists side by side."""

    __slots__ = (
        "_breaks",
        "_exact",
        "_extras",
        "_fields",
        "_insides",
        "_kinds",
        "_parts",
        "at",
        "places",
        "values",
        "were",
    )

    def __init__(self) -> None:
        self.values, self.places, self.were = list[Any](), list[int](), list[Snapshot]()
        self.at: dict[int, int] = {}
        """At which index an object stands, by its identity."""
        self._kinds, self._insides, self._fields = list[Any](), list[dict[str, Any]](), list[set[str]]()
        self._parts: list[tuple[Any, ...]] = []
        self._exact: list[int] = []
        """Indexes of objects whose types must be looked at, in order."""
        self._extras = 0
        """How many have more than their fields."""
        self._breaks: list[int] = []
        """Indexes of objects that do not lie right behind the one before."""

    def __len__(self) -> int:
        return len(self.values)

    def append(self, value: Any, place: int, was: Snapshot) -> None:
        """Add an object, which is in no other series."""
        at = len(self.values)
        if not at or place != self.places[-1] + 1:
            self._breaks.append(at)
        if was.exact or was.extra:
            self._exact.append(at)
            self._extras += bool(was.extra)
        self.values.append(value)
        self.places.append(place)
        self.were.append(was)
        self._kinds.append(was.kind)
        self._insides.append(was.values)
        self._fields.append(was.fields)
        self._parts.append(was.parts(value))
        self.at[id(value)] = at

    def renew(self, at: int, value: Any) -> None:
        """Put another object where one stood that was like it."""
        self.at.pop(id(self.values[at]), None)
        self.values[at], self._parts[at] = value, self.were[at].parts(value)
        self.at[id(value)] = at

    def move(self, at: int, place: int, was: Snapshot) -> None:
        """An object that stands here has been changed, and lies elsewhere now."""
        rest = list(zip(self.values[at:], self.places[at:], self.were[at:], strict=True))
        rest[0] = (rest[0][0], place, was)
        self.cut(at)
        for each in rest:
            self.append(*each)

    def cut(self, count: int) -> None:
        """Keep the first objects only."""
        for value in self.values[count:]:
            self.at.pop(id(value), None)
        columns = (self.values, self.places, self.were, self._kinds, self._insides, self._fields, self._parts)
        for column in columns:
            del column[count:]
        del self._exact[bisect_left(self._exact, count) :]
        del self._breaks[bisect_left(self._breaks, count) :]
        self._extras = sum(bool(self.were[at].extra) for at in self._exact)

    def index_of(self, value: Any) -> int | None:
        """Where this very object stands."""
        at = self.at.get(id(value))
        return at if at is not None and self.values[at] is value else None

    def ends_with(self, value: Any) -> bool:
        """Whether this very object is the last one."""
        return bool(self.values) and self.values[-1] is value

    def known(self, values: Sequence[Any], start: int, *, are_untouched: bool = False) -> list[range]:
        """Where these objects lie, the first of which stands at ``start``: up to one that is another or has been changed,
        unless nobody can have touched them."""
        mine = self.values[start : start + len(values)]
        values = values[: len(mine)]
        if not all(map(is_, values, mine)):
            values = values[: next(at for at, each in enumerate(mine) if each is not values[at])]
        if not (are_untouched or self._are_still(values, start)):
            were = self.were[start:]
            changed = (at for at, value in enumerate(values) if not is_still(value, were[at]))
            values = values[: next(changed, len(values))]
        return self._ranges(start, start + len(values))

    def common(self, places: list[int]) -> int:
        """How many of its first places are these."""
        mine = self.places[: len(places)]
        if mine == places[: len(mine)]:
            return len(mine)
        return next(at for at, place in enumerate(mine) if place != places[at])

    def unusable(self, values: list[Any]) -> Sequence[int]:
        """Which of these, its first objects, cannot be handed out again: somebody has them or a part of them, or changed them.

        Only the caller's list may refer to them besides this series.
        """
        # An object is here, in the list and in the argument; a part is in its object, here, in the list and in the argument.
        references = list(map(_references, values))
        parts = list(chain.from_iterable(self._parts[: len(values)]))
        are_free = references.count(3) == len(values) and list(map(_references, parts)).count(4) == len(parts)
        del parts
        if are_free and self._are_still(values, 0) and list(map(fields_of, values)) == self._fields[: len(values)]:
            return ()
        return [
            at
            for at, count in enumerate(references)
            if count != 3
            or list(map(_references, self._parts[at])).count(3) != len(self._parts[at])
            or not is_still(values[at], self.were[at])
            or values[at].__pydantic_fields_set__ != self._fields[at]
        ]

    def _are_still(self, values: Sequence[Any], start: int) -> bool:
        """Whether none of these objects has been changed. What cannot be compared has been."""
        stop = start + len(values)
        exact = self._exact[bisect_left(self._exact, start) : bisect_left(self._exact, stop)]
        try:
            return (
                list(map(type, values)) == self._kinds[start:stop]
                and list(map(inside_of, values)) == self._insides[start:stop]
                and (self._extras > 0 or not any(map(extra_of, values)))
                and (self._extras == 0 or all(map(is_still, values, self.were[start:stop])))
                and all(self.were[at].is_exactly(values[at - start]) for at in exact)
            )
        except Exception:
            return False

    def _ranges(self, start: int, stop: int) -> list[range]:
        """The places of these objects."""
        if start == stop:
            return []
        inner = self._breaks[bisect_right(self._breaks, start) : bisect_left(self._breaks, stop)]
        cuts = [start, *inner, stop]
        return [range(self.places[one], self.places[one] + other - one) for one, other in pairwise(cuts)]
