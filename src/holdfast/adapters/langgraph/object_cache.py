"""Caches which object of a graph's state is at which place of a thread's log.

A graph saves its whole state at every step, most of which are the same objects as before. The cache recognizes them by identity,
so that they are not serialized again, and rebuilds them when the state is read, so that they are not fetched again. An object
may have been changed in place, so its fingerprint is kept and compared. Every reader gets new objects: two callers never share
one. Dropping an entry only costs time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock, RLock
from typing import Any, NamedTuple

from .fingerprint import Fingerprint, fingerprint_of, is_recognisable, is_unchanged

MAX_THREADS = 64
"""Threads in the cache; the least recently used one is dropped first."""
MAX_SHAPES = 64
"""Shapes of a thread that are cached; a graph has few."""
RECOGNISED_READS = 2
"""Number of the most recent reads whose objects are recognized when they are saved."""


class SerializedObject(NamedTuple):
    """An object that was serialized, and its fingerprint at that time."""

    value: Any
    fingerprint: Fingerprint


class _Unfingerprinted(NamedTuple):
    """Objects that were just decoded and have no fingerprint yet."""

    values: Sequence[Any]
    places: Sequence[int]
    decode: Callable[[], Sequence[Any]]
    """Decodes the objects again."""


class CachedThread:
    """The objects of one thread, for one stamp of its log. Safe to use from several threads."""

    def __init__(self, stamp: str, *, recognises: bool = True) -> None:
        self.stamp, self._recognises = stamp, recognises
        self._lock = RLock()  # comparing objects runs code of their classes, which may use the saver
        self._fingerprints: dict[int, Fingerprint] = {}
        # For each read, newest first: objects by identity, with their places. The reference keeps the id from being reused.
        self._reads: deque[dict[int, tuple[Any, int]]] = deque([{}])
        self._retired: dict[int, tuple[Any, int]] = {}
        self._pending: list[_Unfingerprinted] = []
        self._held: list[list[int]] = []
        self._shapes: dict[int, bytes] = {}
        self._shape_places: dict[bytes, int] = {}

    def begin_read(self) -> None:
        """Start another read, and drop the objects of earlier reads."""
        with self._lock:
            self._settle()
            self._reads.appendleft({})
            if len(self._reads) > RECOGNISED_READS:
                self._retired = self._reads.pop()

    def held(self) -> Sequence[Sequence[int]]:
        """Return the ranges of places that need not be fetched."""
        with self._lock:
            self._settle()
            return [list(span) for span in self._held]

    def has(self, places: Sequence[int]) -> list[bool]:
        """Return for each place whether its object can be rebuilt."""
        with self._lock:
            self._settle()
            return list(map(self._fingerprints.__contains__, places))

    def rebuild(self, places: Sequence[int]) -> list[Any]:
        """Create new objects, equal to those at the given places."""
        with self._lock:
            self._settle()
            values, retired = list[Any](), self._retired
            for place in places:
                # Free one object for each new one. The garbage collector counts the difference, and would otherwise traverse
                # the whole heap every few reads, which takes longer than the rest of a step.
                if retired:
                    retired.popitem()
                values.append(self._fingerprints[place].rebuild())
            if self._recognises:
                self._reads[0].update(zip(map(id, values), zip(values, places, strict=True), strict=True))
            return values

    def places_of(self, values: Sequence[Any], *, unchanged: bool = False) -> list[int | None]:
        """Return the place of each object; ``None`` if the object is not cached or was changed.

        Args:
            unchanged: the caller guarantees that the objects were not changed, so they are not compared.
        """
        with self._lock:
            self._settle()
            newest, fingerprints, places = self._reads[0], self._fingerprints, list[int | None]()
            for value in values:
                entry = newest.get(id(value)) or self._from_earlier_read(value)
                if entry is None or not (unchanged or is_unchanged(value, fingerprints[entry[1]])):
                    places.append(None)
                else:
                    places.append(entry[1])
            return places

    def learn(self, serialized: SerializedObject, place: int) -> None:
        """Cache an object that is stored at a place."""
        with self._lock:
            self._settle()
            self._keep(place, serialized.fingerprint)
            self._recognise(serialized.value, place)

    def learn_decoded(self, values: Sequence[Any], places: Sequence[int], decode: Callable[[], Sequence[Any]]) -> None:
        """Cache objects that were just decoded from the given places.

        Their fingerprints are taken when they are first needed, from objects that are decoded again: the caller may change its
        own objects, and a program that reads a thread only once does not pay for fingerprints.
        """
        with self._lock:
            self._pending.append(_Unfingerprinted(values, places, decode))

    def keep_shape(self, place: int, shape: bytes) -> None:
        """Cache a shape."""
        with self._lock:
            if place not in self._shapes and len(self._shapes) < MAX_SHAPES:
                self._shapes[place], self._shape_places[shape] = shape, place
                self._hold(place)

    def shape_at(self, place: int) -> bytes | None:
        """Return the shape at a place, if it is cached."""
        return self._shapes.get(place)

    def place_of_shape(self, shape: bytes) -> int | None:
        """Return the place of a shape, if it is cached."""
        return self._shape_places.get(shape)

    def _from_earlier_read(self, value: Any) -> tuple[Any, int] | None:
        """Return an object of an earlier read, and its place."""
        key = id(value)
        return next((read[key] for read in self._reads if key in read), None)

    def _recognise(self, value: Any, place: int) -> None:
        if self._recognises:
            self._reads[0][id(value)] = value, place

    def _settle(self) -> None:
        """Take the pending fingerprints of decoded objects."""
        while self._pending:
            pending = self._pending.pop()
            for value, place, twin in zip(pending.values, pending.places, pending.decode(), strict=True):
                if is_recognisable(twin) and (fingerprint := fingerprint_of(twin)) is not None:
                    self._keep(place, fingerprint)
                    self._recognise(value, place)

    def _keep(self, place: int, fingerprint: Fingerprint) -> None:
        if place not in self._fingerprints:
            self._fingerprints[place] = fingerprint
            self._hold(place)

    def _hold(self, place: int) -> None:
        held = self._held
        if held and place == held[-1][1] + 1:
            held[-1][1] = place
        elif not held or place > held[-1][1]:
            held.append([place, place])
        else:
            self._held = _ranges({*self._fingerprints, *self._shapes})


class ObjectCache:
    """The cached threads of a saver. Safe to use from several threads.

    A caller keeps using the thread that it got, even if the cache has replaced it in the meantime.
    """

    def __init__(self, *, recognises: bool = True) -> None:
        self._recognises, self._lock = recognises, Lock()
        self._threads: OrderedDict[str, CachedThread] = OrderedDict()

    def find(self, thread_id: str) -> CachedThread | None:
        """Return the cached thread of this name."""
        with self._lock:
            return self._use(thread_id)

    def under(self, thread_id: str, stamp: str) -> CachedThread:
        """Return the cached thread for a stamp. A thread with another stamp is replaced by an empty one."""
        with self._lock:
            thread = self._use(thread_id)
            if thread is None or thread.stamp != stamp:
                thread = self._threads[thread_id] = CachedThread(stamp, recognises=self._recognises)
                while len(self._threads) > MAX_THREADS:
                    self._threads.popitem(last=False)
            return thread

    def drop(self, thread_id: str) -> None:
        """Drop a thread."""
        with self._lock:
            self._threads.pop(thread_id, None)

    def _use(self, thread_id: str) -> CachedThread | None:
        thread = self._threads.get(thread_id)
        if thread is not None:
            self._threads.move_to_end(thread_id)
        return thread


def _ranges(places: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for place in sorted(places):
        if ranges and place == ranges[-1][1] + 1:
            ranges[-1][1] = place
        else:
            ranges.append([place, place])
    return ranges
