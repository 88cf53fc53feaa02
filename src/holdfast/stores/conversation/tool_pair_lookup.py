"""The other halves of tool calls: if one half must be sent to the model, so must the other, wherever in the log it is.

Nothing is looked for where both are there. Otherwise the partner mostly stands right beside; if it does not, the log is read
further and further away from the message, until it is found or the log ends. Only messages about tools are fetched, by one
statement for all that still miss something.
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
"""Places that are looked at on one side of a message at first."""
WIDER = 8
"""How many times as many are looked at next."""
MAX_PLACES = 1_000

ABOUT_TOOLS = " AND CAST(content AS TEXT) LIKE '%tool_use%'"
"""What leaves out messages that are about no tool; a few others may stay."""
_seq = attrgetter("seq")


class Surroundings:
    """What is known of the log that a view shows before some number: its messages about tools, and in which stretches of it none
    of them is missing."""

    def __init__(self, view: str | None, before: int) -> None:
        self._stored, self._before = view, before
        self._messages: dict[int, Message] = {}
        self._read: list[Range] = []
        self.looked = False
        """Whether partners had to be looked for."""

    def add(self, first: int, last: int, messages: Iterable[Message]) -> None:
        """All messages from one number to another were read."""
        self._read.append((first, last))
        for message in filter(has_tools, messages):
            self._messages.setdefault(message.seq, message)

    def add_newest(self, messages: Sequence[Message]) -> None:
        """These are the last, newest first."""
        if messages:
            self.add(messages[-1].seq, self._before - 1, messages)

    def pairs(self) -> Pairs:
        """The calls and results that are known."""
        seqs = sorted(self._messages)
        places = ((bisect_left(seqs, first), bisect_right(seqs, last)) for first, last in self._stretches())
        return Pairs(*([self._messages[seq] for seq in seqs[begin:end]] for begin, end in places))

    async def complete(
        self, connection: Connection, params: Mapping[str, Any], pinned: MutableMapping[str, Message]
    ) -> bool:
        """Add the other halves to messages that must be there; whether the session still showed this view."""
        for message in pinned.values():
            if has_tools(message):
                self.add(message.seq, message.seq, [message])
        places = NEAR
        while True:
            pairs = self.pairs()
            _add_partners(pinned, pairs, {message.id: message for message in self._messages.values()})
            wanted = {*self._beyond(pinned.values(), pairs, places)}
            if not wanted:
                return True
            view = views.load(self._stored)
            ranges = [each for first, last in wanted for each in views.within(view, first - 1, last + 1)]
            asked = {**params, "view": self._stored, "ranges": msgspec.json.encode(ranges).decode()}
            rows = await queries.ranges.all(connection, asked, ABOUT_TOOLS)
            if not rows:
                return False
            self.looked = True
            self._messages = {each.seq: each for each in _messages(rows, connection)} | self._messages
            self._read += wanted
            places = min(places * WIDER, MAX_PLACES)

    def _beyond(self, messages: Iterable[Message], pairs: Pairs, places: int) -> Iterator[Range]:
        """Where to look next: before what is known around a result without a call, and after that around a call without one."""
        stretches = self._stretches()
        for message in filter(has_tools, messages):
            first, last = stretches[bisect_right(stretches, message.seq, key=lambda each: each[0]) - 1]
            if first > 1 and any((message.id, tool) not in pairs.call_of for tool in results_in(message)):
                yield max(1, first - places), first - 1
            end = self._before - 1
            if last < end and not all(pairs.results_of[message.id, tool] for tool in calls_in(message)):
                yield last + 1, min(end, last + places)

    def _stretches(self) -> Sequence[Range]:
        """What was read, without gaps, in order."""
        joined: list[Range] = []
        for first, last in sorted(self._read):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(joined[-1][1], last))
            else:
                joined.append((first, last))
        self._read = joined
        return joined


def _add_partners(pinned: MutableMapping[str, Message], pairs: Pairs, known: Mapping[str, Message]) -> None:
    """Of each result the call, and of each call one result: another that is there already is enough."""
    waiting = sorted(filter(has_tools, pinned.values()), key=_seq)
    while waiting:
        message = waiting.pop()
        partners = [pairs.call_of.get((message.id, tool)) for tool in sorted(results_in(message))]
        for tool in sorted(calls_in(message)):
            results = pairs.results_of[message.id, tool]
            partners += [] if any(each in pinned for each in results) else results[:1]
        for each in partners:
            if each is not None and each not in pinned:
                pinned[each] = known[each]
                waiting.append(known[each])


def _messages(rows: Sequence[Any], connection: Connection) -> Sequence[Message]:
    return mapper(Message, connection.dialect)([row for row in rows if row[0] is not None])
