"""What a saver remembers of a thread: which object lies at which place of its log.

A graph hands over its whole state at every step, most of it the same objects as before. Those are recognised, so that they need
neither be written down nor read again. An object may have been changed in place meanwhile, so what it was is kept beside
it and compared; and nobody is handed an object that another has: whoever reads gets new ones, or such as nobody else refers to
any more. Forgetting costs time only.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from copy import deepcopy
from functools import lru_cache
from itertools import chain
from operator import attrgetter, is_, itemgetter
from threading import Lock
from typing import Any, NamedTuple

from pydantic import BaseModel

_new, _put = object.__new__, object.__setattr__
_put_fields = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_put_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_put_private = BaseModel.__dict__["__pydantic_private__"].__set__
_references = sys.getrefcount
_COUNTS = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether the number of references to an object can be relied on: without the interpreter's lock it cannot."""
_NEVER_FREE = (object(), object())
"""Stands for parts that nobody could tell to be unused: it is referred to from elsewhere itself."""
_FIXED = (str, int, float, bool, bytes, type(None))
THREADS_MOST = 64
"""Threads that are remembered; the one used longest ago is forgotten first."""


class Snapshot:
    """What an object was when its bytes were made."""

    __slots__ = ("_changing", "_deep", "_dicts", "_lists", "exact", "extra", "fields", "kind", "values")

    def __init__(self, value: Any) -> None:
        self.kind: Any = type(value)
        self.values = value.__dict__.copy()
        # Most of what could be changed is empty, and a new empty one is quicker than a copy.
        self._lists, self._dicts, self._deep = list[str](), list[str](), list[str]()
        for name, each in value.__dict__.items():
            if not isinstance(each, _FIXED):
                self._changeable(name, each)
        self._changing = (*self._lists, *self._dicts)
        extra = value.__pydantic_extra__
        self.extra = deepcopy(extra) if extra else None if extra is None else {}
        self.fields = value.__pydantic_fields_set__.copy()
        # 1, True and 1.0 are equal and are written differently. Texts and what is empty need no such look.
        self.exact = [
            name
            for name, each in self.values.items()
            if each is not None and type(each) is not str and not _is_empty(each)
        ]

    def is_exactly(self, value: Any) -> bool:
        """Whether an object that is equal to this is so in its types too."""
        now, then = map(value.__dict__.get, self.exact), map(self.values.get, self.exact)
        return all(map(_alike, now, then)) and _alike(value.__pydantic_extra__, self.extra)

    def parts(self, value: Any) -> tuple[Any, ...]:
        """What could be changed inside of an object without touching the object itself."""
        if self._deep or self.extra:
            return _NEVER_FREE
        inside = value.__dict__
        return tuple([inside[name] for name in self._changing])

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


def _is_empty(value: Any) -> bool:
    return type(value) in (list, dict) and not value


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are equal, and everything in them of the same types."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        if len(one) == len(other) and all(map(is_, one, other)) and all(map(is_, one.values(), other.values())):
            return True  # most of what is in a copy is the very same
        one, other = [*one, *one.values()], [*other, *other.values()]
    elif isinstance(one, BaseModel):
        one, other = [one.__dict__, one.__pydantic_extra__], [other.__dict__, other.__pydantic_extra__]
    elif isinstance(one, (set, frozenset)):
        return {(type(each), each) for each in one} == {(type(each), each) for each in other}
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def snapshot_of(value: Any) -> Snapshot | None:
    """What an object is; ``None`` if it cannot be noted, because something in it cannot be copied."""
    try:
        return Snapshot(value)
    except Exception:
        return None


class Learnt(NamedTuple):
    """An object, and what it was when its bytes were made."""

    value: Any
    was: Snapshot


_Known = tuple[Any, int, Snapshot, tuple[Any, ...]]
"""An object, its place, what it was, and the parts of it that could be changed."""
_value_of, _place_of, _was, _parts_of = (itemgetter(at) for at in range(4))
_inside, _extra, _fields = (attrgetter(f"__{name}__") for name in ("dict", "pydantic_extra", "pydantic_fields_set"))
_was_inside, _was_extra, _was_fields, _was_kind = map(attrgetter, ("values", "extra", "fields", "kind"))


class Thread:
    """The objects of one thread's log, under the log's stamp.

    A conversation comes and goes as a whole at every step. So what is done to one object is done here to all of them at once, by
    functions that loop in C, and only where something is unusual one by one.
    """

    def __init__(self, stamp: str, *, follows: bool = True) -> None:
        self.stamp, self._follows = stamp, follows
        self.snapshots: dict[int, Snapshot] = {}
        self._objects: dict[int, _Known] = {}
        self._older: dict[int, _Known] = {}
        self._latest: dict[int, _Known] = {}
        """What was last handed out or learnt for each place."""
        self._counted, self._ranges = 0, list[list[int]]()

    def place_of(self, value: Any) -> int | None:
        """Where this very object lies, unless it has been changed."""
        found = self._objects.get(id(value)) or self._older.get(id(value))
        return found[1] if found is not None and found[0] is value and is_still(value, found[2]) else None

    def known_prefix(self, values: Sequence[Any]) -> list[int]:
        """Where the first of these objects lie, up to one that is not known or has been changed."""
        known: list[Any] = list(map(self._objects.get, map(id, values)))
        if None in known:
            older = self._older.get
            known = [found or older(id(value)) for found, value in zip(known, values, strict=True)]
            known = known[: known.index(None)] if None in known else known
        values = values[: len(known)]
        if all(map(is_, values, map(_value_of, known))) and _are_still(values, list(map(_was, known))):
            return list(map(_place_of, known))
        places: list[int] = []
        for value in values:
            place = self.place_of(value)
            if place is None:
                break
            places.append(place)
        return places

    def learn(self, learnt: Learnt, place: int) -> None:
        """Remember that an object lies at a place."""
        was = self.snapshots.setdefault(place, learnt.was)
        if self._follows:
            self._note(learnt.value, place, was)

    def hand_out_all(self, places: Sequence[int]) -> list[Any]:
        """Objects like those that lie there, which nobody else has: the last ones, if all have let go of them, or new ones."""
        known: list[Any] = list(map(self._latest.get, places))
        if _COUNTS and self._follows and None not in known:
            values = list(map(_value_of, known))
            if _are_free(values, known) and _are_still(values, list(map(_was, known))):
                self._objects.update(zip(map(id, values), known, strict=True))
                return values
            del values
        del known  # they would count as somebody who has the objects
        return [self.hand_out(place) for place in places]

    def hand_out(self, place: int) -> Any:
        """An object like the one that lies there, which nobody else has."""
        known = self._latest.get(place) if _COUNTS and self._follows else None
        if known is not None:
            values = [known[0]]
            if _are_free(values, [known]) and _are_still(values, [known[2]]):
                self._objects[id(values[0])] = known
                return values[0]
        new = self.snapshots[place].rebuilt()
        if self._follows:
            self._note(new, place, self.snapshots[place])
        return new

    def turn(self) -> None:
        """Another reading begins: objects handed out before the last one are let go."""
        self._older, self._objects = self._objects, {}

    def places(self) -> Sequence[Sequence[int]]:
        """The places whose objects are remembered, as ranges."""
        if self._counted != len(self.snapshots):
            known = list(self.snapshots)  # at once, because others may be learning meanwhile
            self._counted, self._ranges = len(known), _ranges(known)
        return self._ranges

    def _note(self, value: Any, place: int, was: Snapshot) -> None:
        self._objects[id(value)] = self._latest[place] = (value, place, was, was.parts(value))


def is_still(value: Any, was: Snapshot) -> bool:
    """Whether an object has not been changed since."""
    return _are_still([value], [was])


def _are_still(values: Sequence[Any], were: Sequence[Snapshot]) -> bool:
    """Whether none of these objects has been changed. What cannot be compared has been."""
    try:
        return (
            list(map(type, values)) == list(map(_was_kind, were))
            and list(map(_inside, values)) == list(map(_was_inside, were))
            and list(map(_extra, values)) == list(map(_was_extra, were))
            and all(was.is_exactly(value) for value, was in zip(values, were, strict=True) if was.exact or was.extra)
        )
    except Exception:
        return False


def _are_free(values: list[Any], known: Sequence[_Known]) -> bool:
    """Whether nobody but this memory refers to any of these objects or to a part that could be changed, and all have the
    fields they had."""
    # An object is in its tuple, in the list and in the argument; a part is in its object too.
    if list(map(_references, values)).count(3) != len(values):
        return False
    parts = list(chain.from_iterable(map(_parts_of, known)))
    return list(map(_references, parts)).count(4) == len(parts) and list(map(_fields, values)) == list(
        map(_was_fields, map(_was, known))
    )


class Memory:
    """The threads a saver remembers. With ``follows``, objects are recognised when they come back.

    Several may use it at once. Whoever was given a thread goes on with that one, although another may be remembered by now.
    """

    def __init__(self, *, follows: bool = True) -> None:
        self._follows, self._lock = follows, Lock()
        self._threads: OrderedDict[str, Thread] = OrderedDict()

    def find(self, thread_id: str) -> Thread | None:
        """What is remembered of a thread."""
        with self._lock:
            return self._used(thread_id)

    def under(self, thread_id: str, stamp: str) -> Thread:
        """The same under a stamp; what was remembered under another is worth nothing."""
        with self._lock:
            found = self._used(thread_id)
            if found is None or found.stamp != stamp:
                found = self._threads[thread_id] = Thread(stamp, follows=self._follows)
                while len(self._threads) > THREADS_MOST:
                    self._threads.popitem(last=False)
            return found

    def forget(self, thread_id: str) -> None:
        """Forget a thread."""
        with self._lock:
            self._threads.pop(thread_id, None)

    def _used(self, thread_id: str) -> Thread | None:
        found = self._threads.get(thread_id)
        if found is not None:
            self._threads.move_to_end(thread_id)
        return found


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
    if not isinstance(value, BaseModel) or value.__pydantic_private__ is not None:
        return False
    kind: Any = type(value)
    return _is_written_whole(kind)


@lru_cache(maxsize=1_024)
def _is_written_whole(kind: type[BaseModel]) -> bool:
    """Whether no field is left out when an object is written down: rebuilt from memory it would have what it has lost."""
    return not any(each.exclude for each in kind.model_fields.values())
