"""Lookup of the counterparts of tool calls and results: a context that includes one must include the other, wherever it is.

Nothing is looked up if both are included. Otherwise the counterpart is usually adjacent; if it is not, the log is read
further and further from the message, until it is found or the log ends. Only messages about tools are fetched, with one
statement for all that still miss a counterpart.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from ...core.rows import mapper
from ...engines.protocol import Connection
from . import views
from .log_reading import queries
from .message_log import Message
from .tool_pairs import Pairs, calls_in, has_tools, results_in
from .views import Range

NEAR = 4
"""The number of positions to read on one side of a message at first."""
WIDER = 8
"""The factor for the number of positions to read next."""
MAX_POSITIONS = 1_000

ABOUT_TOOLS = " AND CAST(content AS TEXT) LIKE '%tool_use%'"
"""Excludes messages that are not about tools; a few others may remain."""
_seq = attrgetter("seq")


class Surroundings:
    """The known part of the log that a view shows below a ``seq``: its messages about tools, and the ranges in which none of
    these is missing."""

    def __init__(self, view: str | None, before: int) -> None:
        self._stored, self._before = view, before
        self._messages: dict[int, Message] = {}
        self._read: list[Range] = []
        self.looked = False
        """Whether the log was read for counterparts."""

    def add(self, first: int, last: int, messages: Iterable[Message]) -> None:
        """Add all messages from one ``seq`` to another."""
        self._read.append((first, last))
        for message in filter(has_tools, messages):
            self._messages.setdefault(message.seq, message)

    def add_newest(self, messages: Sequence[Message]) -> None:
        """Add the last messages of the log, newest first."""
        if messages:
            self.add(messages[-1].seq, self._before - 1, messages)

    def pairs(self) -> Pairs:
        """Return the known calls and results."""
        seqs = sorted(self._messages)
        slices = ((bisect_left(seqs, first), bisect_right(seqs, last)) for first, last in self._read_ranges())
        return Pairs(*([self._messages[seq] for seq in seqs[begin:end]] for begin, end in slices))

    async def complete(
        self, connection: Connection, params: Mapping[str, Any], pinned: MutableMapping[str, Message]
    ) -> bool:
        """Add the counterparts of the pinned messages; return whether the session still showed this view."""
        for message in pinned.values():
            if has_tools(message):
                self.add(message.seq, message.seq, [message])
        positions = NEAR
        while True:
            pairs = self.pairs()
            _add_partners(pinned, pairs, {message.id: message for message in self._messages.values()})
            missing = {*self._ranges_to_read(pinned.values(), pairs, positions)}
            if not missing:
                return True
            view = views.load(self._stored)
            ranges = [span for first, last in missing for span in views.within(view, first - 1, last + 1)]
            query_params = {**params, "view": self._stored, "ranges": msgspec.json.encode(ranges).decode()}
            rows = await queries.ranges.all(connection, query_params, ABOUT_TOOLS)
            if not rows:
                return False
            self.looked = True
            self._messages = {message.seq: message for message in _messages(rows, connection)} | self._messages
            self._read += missing
            positions = min(positions * WIDER, MAX_POSITIONS)

    def _ranges_to_read(self, messages: Iterable[Message], pairs: Pairs, positions: int) -> Iterator[Range]:
        """Yield the next ranges to read: before the known range of a result without a call, after that of a call without one."""
        known = self._read_ranges()
        for message in filter(has_tools, messages):
            first, last = known[bisect_right(known, message.seq, key=lambda span: span[0]) - 1]
            if first > 1 and any((message.id, tool) not in pairs.call_of for tool in results_in(message)):
                yield max(1, first - positions), first - 1
            end = self._before - 1
            if last < end and not all(pairs.results_of[message.id, tool] for tool in calls_in(message)):
                yield last + 1, min(end, last + positions)

    def _read_ranges(self) -> Sequence[Range]:
        """Return the ranges that were read, merged and sorted."""
        joined: list[Range] = []
        for first, last in sorted(self._read):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(joined[-1][1], last))
            else:
                joined.append((first, last))
        self._read = joined
        return joined


def _add_partners(pinned: MutableMapping[str, Message], pairs: Pairs, known: Mapping[str, Message]) -> None:
    """Add the call of each pinned result, and a result of each pinned call unless one is pinned already."""
    waiting = sorted(filter(has_tools, pinned.values()), key=_seq)
    while waiting:
        message = waiting.pop()
        partners = [pairs.call_of.get((message.id, tool)) for tool in sorted(results_in(message))]
        for tool in sorted(calls_in(message)):
            results = pairs.results_of[message.id, tool]
            partners += [] if any(result in pinned for result in results) else results[:1]
        for partner in partners:
            if partner is not None and partner not in pinned:
                pinned[partner] = known[partner]
                waiting.append(known[partner])


def _messages(rows: Sequence[Any], connection: Connection) -> Sequence[Message]:
    return mapper(Message, connection.dialect)([row for row in rows if row[0] is not None])
