"""What a saver remembers of a thread: which object lies at which place of its log.

A graph hands over its whole state at every step, most of it the same objects as before. Those are recognised, so that they need
neither be written down nor read again. An object may have been changed in place meanwhile, so what it was is kept beside
it and compared; and nobody is handed an object that another has: whoever reads gets new ones. Forgetting costs time only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from pydantic import BaseModel

_new, _put = object.__new__, object.__setattr__
_put_fields = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_put_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_put_private = BaseModel.__dict__["__pydantic_private__"].__set__
_FIXED = (str, int, float, bool, bytes, type(None))
THREADS_MOST = 64
"""Threads that are remembered; the one used longest ago is forgotten first."""


class Snapshot:
    """What an object was when its bytes were made."""

    __slots__ = ("_deep", "_dicts", "_lists", "extra", "fields", "kind", "values")

    def __init__(self, value: Any) -> None:
        self.kind: Any = type(value)
        self.values = value.__dict__.copy()
        # Most of what could be changed is empty, and a new empty one is quicker than a copy.
        self._lists, self._dicts, self._deep = list[str](), list[str](), list[str]()
        for name, each in value.__dict__.items():
            if not isinstance(each, _FIXED):
                self._changeable(name, each)
        self.extra = deepcopy(value.__pydantic_extra__) if value.__pydantic_extra__ else value.__pydantic_extra__
        self.fields = value.__pydantic_fields_set__

    def is_still(self, value: Any) -> bool:
        """Whether the object has not been changed since."""
        return bool(
            type(value) is self.kind and value.__dict__ == self.values and value.__pydantic_extra__ == self.extra
        )

    def rebuilt(self) -> Any:
        """A new object like it."""
        value = _new(self.kind)
        values = self.values.copy()
        for name in self._lists:
            values[name] = []
        for name in self._dicts:
            values[name] = {}
        for name in self._deep:
            values[name] = deepcopy(values[name])
        _put(value, "__dict__", values)
        _put_fields(value, self.fields.copy())
        _put_extra(value, deepcopy(self.extra) if self.extra else None if self.extra is None else {})
        _put_private(value, None)
        return value

    def _changeable(self, name: str, each: Any) -> None:
        if not each and type(each) is list:
            self._lists.append(name)
            self.values[name] = []
        elif not each and type(each) is dict:
            self._dicts.append(name)
            self.values[name] = {}
        else:
            self._deep.append(name)
            self.values[name] = deepcopy(each)


class Learnt(NamedTuple):
    """An object, and what it was when its bytes were made."""

    value: Any
    was: Snapshot


class Thread:
    """The objects of one thread's log, under the log's stamp."""

    def __init__(self, stamp: str, *, follows: bool = True) -> None:
        self.stamp, self._follows = stamp, follows
        self.snapshots: dict[int, Snapshot] = {}
        self._objects: dict[int, tuple[Any, int]] = {}
        self._older: dict[int, tuple[Any, int]] = {}
        self._counted, self._ranges = 0, list[list[int]]()

    def place_of(self, value: Any) -> int | None:
        """Where this very object lies, unless it has been changed."""
        found = self._objects.get(id(value)) or self._older.get(id(value))
        if found is None or found[0] is not value or not self.snapshots[found[1]].is_still(value):
            return None
        return found[1]

    def known_prefix(self, values: Sequence[Any]) -> list[int]:
        """Where the first of these objects lie, up to one that is not known or has been changed.

        The same as ``place_of`` for each, in one loop: a conversation comes back as a whole at every step.
        """
        newer, older, snapshots = self._objects.get, self._older.get, self.snapshots
        places: list[int] = []
        for value in values:
            found = newer(id(value)) or older(id(value))
            if found is None or found[0] is not value or not snapshots[found[1]].is_still(value):
                break
            places.append(found[1])
        return places

    def learn(self, learnt: Learnt, place: int) -> None:
        """Remember that an object lies at a place."""
        self.snapshots.setdefault(place, learnt.was)
        if self._follows:
            self._objects[id(learnt.value)] = (learnt.value, place)

    def hand_out(self, place: int) -> Any:
        """A new object like the one that lies there."""
        value = self.snapshots[place].rebuilt()
        if self._follows:
            self._objects[id(value)] = (value, place)
        return value

    def turn(self) -> None:
        """Another reading begins: objects handed out before the last one are let go."""
        self._older, self._objects = self._objects, {}

    def places(self) -> Sequence[Sequence[int]]:
        """The places whose objects are remembered, as ranges."""
        if self._counted != len(self.snapshots):
            self._counted, self._ranges = len(self.snapshots), _ranges(self.snapshots)
        return self._ranges


class Memory:
    """The threads a saver remembers. With ``follows``, objects are recognised when they come back."""

    def __init__(self, *, follows: bool = True) -> None:
        self._follows = follows
        self._threads: OrderedDict[str, Thread] = OrderedDict()

    def find(self, thread_id: str) -> Thread | None:
        """What is remembered of a thread."""
        found = self._threads.get(thread_id)
        if found is not None:
            self._threads.move_to_end(thread_id)
        return found

    def under(self, thread_id: str, stamp: str) -> Thread:
        """The same under a stamp; what was remembered under another is worth nothing."""
        found = self.find(thread_id)
        if found is None or found.stamp != stamp:
            found = self._threads[thread_id] = Thread(stamp, follows=self._follows)
            while len(self._threads) > THREADS_MOST:
                self._threads.popitem(last=False)
        return found

    def forget(self, thread_id: str) -> None:
        """Forget a thread."""
        self._threads.pop(thread_id, None)


def _ranges(places: Iterable[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for place in sorted(places):
        if found and place == found[-1][1] + 1:
            found[-1][1] = place
        else:
            found.append([place, place])
    return found


def can_be_learnt(value: Any) -> bool:
    """Whether an object can be recognised and rebuilt: a message, or another plain pydantic object."""
    return isinstance(value, BaseModel) and value.__pydantic_private__ is None
