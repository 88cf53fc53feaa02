"""What a saver remembers of a thread: which object lies at which place of its log.

A graph hands over its whole state at every step, most of it the same objects as before. Those are recognised, so that they need
neither be written down nor read again. An object may have been changed in place meanwhile, so what it was is kept beside
it and compared; and nobody is handed an object that another has: whoever reads gets new ones, or such as nobody else refers to
any more. Forgetting costs time only.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from threading import Lock, RLock
from typing import Any, NamedTuple

from .series import Series
from .snapshots import Snapshot, can_be_learnt, is_still, snapshot_of

_COUNTS = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether the number of references to an object can be relied on: without the interpreter's lock it cannot."""
THREADS_MOST = 64
"""Threads that are remembered; the one used longest ago is forgotten first."""
FOLLOWED, KEPT = 2, 3
"""Readings whose objects are recognised when they come back, and whose objects are handed out again when all have let go of
them: whoever reads again while still having what was read last gets what was read before."""
BODIES_MOST = 64
"""Pieces of a thread whose bytes are remembered as they are: a graph has few shapes."""
NOTHING: Any = object()
"""Stands before the first object of a list, and before one that is in no list."""


class Learnt(NamedTuple):
    """An object, and what it was when its bytes were made."""

    value: Any
    was: Snapshot
    after: Any = NOTHING
    """The object before it in a list."""


class _Alone(NamedTuple):
    """An object that is in no series."""

    value: Any
    place: int
    was: Snapshot


class _Reading:
    """What was handed out at one reading, and learnt since."""

    __slots__ = ("alone", "lists")

    def __init__(self) -> None:
        self.lists: list[Series] = []
        self.alone: dict[int, _Alone] = {}
        """By identity."""


class _Unread(NamedTuple):
    """Objects of a list that were made to be handed out, and of which nobody has asked yet what they were."""

    values: Sequence[Any]
    places: Sequence[int]
    again: Callable[[], Sequence[Any]]
    """Makes them once more."""
    after: Any


class Thread:
    """The objects of one thread's log, under the log's stamp. Several may use it at once."""

    def __init__(self, stamp: str, *, follows: bool = True) -> None:
        self.stamp, self._follows = stamp, follows
        self._using = RLock()  # comparing runs code of others, which may come here again
        self._snapshots: dict[int, Snapshot] = {}
        self._readings: deque[_Reading] = deque([_Reading()], maxlen=KEPT)
        self._unread: list[_Unread] = []
        self._ranges: list[list[int]] = []
        self._bodies: dict[int, bytes] = {}
        self._places: dict[bytes, int] = {}
        self.next_place: int | None = None
        """Where the log ended when it was last heard of."""

    def ends_before(self, next_place: int) -> None:
        """The log has pieces up to here. Answers may come in another order than they were given in."""
        with self._using:
            self.next_place = max(self.next_place or 0, next_place)

    def knows(self, places: Sequence[int]) -> list[bool]:
        """Whether objects like those that lie there can be handed out, for each."""
        with self._using:
            self._look_back()
            return list(map(self._snapshots.__contains__, places))

    def keep(self, place: int, body: bytes) -> None:
        """Remember the bytes that lie at a place."""
        with self._using:
            if place not in self._bodies and len(self._bodies) < BODIES_MOST:
                self._bodies[place], self._places[body] = body, place
                self._note(place)

    def body_at(self, place: int) -> bytes | None:
        """The bytes that lie at a place, if they are remembered."""
        return self._bodies.get(place)

    def place_of_body(self, body: bytes) -> int | None:
        """Where these bytes lie."""
        return self._places.get(body)

    def place_of(self, value: Any, *, is_untouched: bool = False) -> int | None:
        """Where this very object lies, unless it has been changed."""
        with self._using:
            self._look_back()
            found = self._find(value)
            return None if found is None or not (is_untouched or is_still(value, found.was)) else found.place

    def known_run(self, values: Sequence[Any], at: int, *, are_untouched: bool = False) -> Sequence[range]:
        """Where an object of a list and those after it lie, up to one that is not known or has been changed; or as far as is
        quickly told."""
        with self._using:
            self._look_back()
            value = values[at]
            for series in self._lists():
                start = series.index_of(value)
                if start is not None:
                    here = values[at : at + len(series) - start]
                    return series.known(here, start, are_untouched=are_untouched)
            alone = self._alone(value)
            if alone is None or not (are_untouched or is_still(value, alone.was)):
                return ()
            self._join(alone, NOTHING if at == 0 else values[at - 1], is_list=len(values) > 1)
            return [range(alone.place, alone.place + 1)]

    def learn(self, learnt: Learnt, place: int) -> None:
        """Remember that an object lies at a place."""
        with self._using:
            self._look_back()
            was = self._remember(place, learnt.was)
            if not self._follows:
                return
            value = learnt.value
            for series in self._lists():
                at = series.index_of(value)
                if at is not None:
                    series.move(at, place, was)
                    return
            self._forget_alone(value)
            alone = self._readings[0].alone[id(value)] = _Alone(value, place, was)
            self._join(alone, learnt.after, is_list=False)

    def learn_later(
        self, values: Sequence[Any], places: Sequence[int], again: Callable[[], Sequence[Any]], after: Any = NOTHING
    ) -> None:
        """Remember that objects of a list, which were made just now to be handed out, lie at places.

        What they were is only found out when it is needed, by making them ``again``: who reads and does not come back does
        not pay for it.
        """
        with self._using:
            self._unread.append(_Unread(values, places, again, after))

    def hand_out_all(self, places: Sequence[int]) -> list[Any]:
        """Objects like those that lie there, which nobody else has: such as all have let go of, or new ones."""
        with self._using:
            self._look_back()
            if not self._follows:
                return [self._snapshots[place].rebuilt() for place in places]
            if len(places) < 2:
                return [self.hand_out(place) for place in places]
            series, values = self._spare(list(places)) if _COUNTS else (Series(), [])
            for place in places[len(values) :]:
                was = self._snapshots[place]
                values.append(was.rebuilt())
                series.append(values[-1], place, was)
            self._readings[0].lists.append(series)
            return values

    def hand_out(self, place: int) -> Any:
        """A new object like the one that lies there."""
        with self._using:
            self._look_back()
            was = self._snapshots[place]
            new = was.rebuilt()
            if self._follows:
                self._readings[0].alone[id(new)] = _Alone(new, place, was)
            return new

    def turn(self) -> None:
        """Another reading begins: objects of readings long past are let go."""
        with self._using:
            self._look_back()
            self._readings.appendleft(_Reading())

    def places(self) -> Sequence[Sequence[int]]:
        """The places that need not be read, as ranges."""
        with self._using:
            self._look_back()
            return [list(each) for each in self._ranges]

    def _spare(self, places: list[int]) -> tuple[Series, list[Any]]:
        """A series that begins like these places, cut to what it has in common with them, and its objects, which nobody has."""
        there = [(series.common(places), reading, series) for reading in self._readings for series in reading.lists]
        there.sort(key=itemgetter(0), reverse=True)
        for count, reading, series in there:
            values = series.values[:count]
            busy = series.unusable(values)
            if 2 * len(busy) >= count:
                continue  # mostly somebody else's
            reading.lists.remove(series)
            series.cut(count)
            for at in busy:
                values[at] = series.were[at].rebuilt()
                series.renew(at, values[at])
            return series, values
        return Series(), []

    def _look_back(self) -> None:
        """Note what was handed out and has not been looked at yet."""
        while self._unread:
            unread = self._unread.pop()
            series = self._ending_with(unread.after)
            if series is None:
                series = Series()
                self._readings[0].lists.append(series)
            for value, place, like in zip(unread.values, unread.places, unread.again(), strict=True):
                if can_be_learnt(like) and (was := snapshot_of(like)) is not None:
                    was = self._remember(place, was)
                    if self._follows:
                        series.append(value, place, was)

    def _remember(self, place: int, was: Snapshot) -> Snapshot:
        if place in self._snapshots:
            return self._snapshots[place]
        self._snapshots[place] = was
        self._note(place)
        return was

    def _note(self, place: int) -> None:
        """One more place need not be read."""
        if self._ranges and place == self._ranges[-1][1] + 1:
            self._ranges[-1][1] = place
        elif not self._ranges or place > self._ranges[-1][1]:
            self._ranges.append([place, place])
        else:
            self._ranges = _ranges({*self._snapshots, *self._bodies})

    def _find(self, value: Any) -> _Alone | None:
        for series in self._lists():
            at = series.index_of(value)
            if at is not None:
                return _Alone(value, series.places[at], series.were[at])
        return self._alone(value)

    def _lists(self) -> Iterator[Series]:
        for at in range(min(FOLLOWED, len(self._readings))):
            yield from self._readings[at].lists

    def _alone(self, value: Any) -> _Alone | None:
        for at in range(min(FOLLOWED, len(self._readings))):
            found = self._readings[at].alone.get(id(value))
            if found is not None and found.value is value:
                return found
        return None

    def _forget_alone(self, value: Any) -> None:
        for reading in self._readings:
            found = reading.alone.get(id(value))
            if found is not None and found.value is value:
                del reading.alone[id(value)]

    def _join(self, alone: _Alone, after: Any, *, is_list: bool) -> None:
        """Let an object join the series that ends with the one before it, or begin one."""
        series = self._ending_with(after)
        if series is None and after is NOTHING and is_list:
            series = Series()
            self._readings[0].lists.append(series)
        if series is not None:
            self._forget_alone(alone.value)
            series.append(*alone)

    def _ending_with(self, value: Any) -> Series | None:
        return next((each for each in self._lists() if each.ends_with(value)), None)


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
