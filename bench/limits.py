"""Reasons why a figure does not reach its target, and what was tried; shown for such figures only.

A limit is written down by hand, so it says what was found out and not how much it comes to: the numbers stand in the tables, the
floors among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import append_postgres, append_sqlite, graphs, server
from .figures import Figure, Measured

_ONE_FLUSH = (
    "A lone writer waits for the disk: one flush for each message, for everybody. What is left is the statement and the"
    " commit, of which the driver by hand has the same. Tried: no thread between caller and SQLite while the disk is quick,"
    " no turn of the event loop between asking and committing, one UPDATE and one INSERT that change no index they need not,"
    " statements prepared once."
)
_GROUPS = (
    "A commit of 64 messages to 64 sessions changes about 90 pages of 4 KB, and two of three are leaves of the index that"
    " keeps each session's messages in order, one for each session: they have to be written and flushed, whoever does it."
    " The driver by hand that writes just these rows in one commit for all is the floor. SQLiteSession has no such index and"
    " no session to keep. Tried: all of a group with one prepared statement, no savepoints for a group that is alone,"
    " committing in the event loop while the disk is quick and in a thread when it is not, moving the log into the file less"
    " often or never, no foreign keys, without the index by id, all heads looked at with one statement and nothing asked back,"
    " whole numbers for keys: none of them is worth more than a tenth. Pages of another size are slower, and so is a commit in"
    " a thread while the next group is made ready: the two take turns at the interpreter's lock. By hand and without that index"
    " twice as many would go; but it is what every page of every log is read by."
)
_HISTORY = (
    "Decoding alone reads strings that lie ready in memory. The driver by hand, which reads only role and content of each"
    " row and builds nothing, is the floor; Holdfast reads nine values of each row and gives back whole messages. Tried: what"
    " is the same for all or hardly ever there not handed over, no lock for each value, message by message and column by"
    " column, no garbage collection for messages, times kept for a while; one answer joined into one text by SQLite and all"
    " contents decoded at once are slower."
)
_POSTGRES = (
    "The server's own work for a row (two indexes, a foreign key, a kilobyte of JSONB) is most of it, on two cores that it"
    " shares with the callers. The driver by hand that sends all messages in one statement is the floor. Tried: one"
    " statement for all who wait, two of them under way at once so that neither side waits for the other (one is slower at"
    " 64 writers, three are no quicker), all that waits in the one while the other is busy, no arrays of usual values, no"
    " dictionary for each message."
)
_LOOP = (
    "A turn is five calls of the saver, three of which have to be durable before the next, and LangGraph's own work, which"
    " no saver takes away. Every message is compared with what it was at each of them, because a graph may change it in"
    " place; that takes under a millisecond for a thousand. DeltaChannel hands over what is new only. Tried: places as"
    " ranges, all pieces unpacked and all messages decoded at once, what tasks wrote in one commit with the checkpoint after"
    " it, and on PostgreSQL a step in one statement, if the log is unchanged."
)
_FIRST_READ = (
    "Each message is a piece of its own, so that it is stored once: unpacking it and computing its digest, about 8 µs, is more"
    " than half of what decoding it takes the official savers, which have one blob of everything. The second time it comes"
    " from memory. Tried: one query for all pieces, unpacking and decoding all of them at once, a dictionary for short ones,"
    " a trained one; pieces compressed by the hundred would be quicker, and a change of what is stored."
)
_PG_BYTES = (
    "PostgreSQL adds about 28 bytes to every row and 16 to every entry of an index, and keeps what is over 2 KB elsewhere;"
    " with every two messages come three checkpoints and two writes, each a row. Tried: numbers instead of names for threads"
    " and logs, the places of a checkpoint as ranges in a few bytes, shapes stored once."
)
_HTTP = (
    "Of what an append over HTTP costs, two fifths are uvicorn and the event loop, two fifths the append itself with its commit,"
    " and the rest is authentication, routing, decoding and the deadline of the request, in Python. While the disk flushes, the"
    " processor waits: a tenth of the time."
)
_COMPACTION = (
    "What is removed is archived, byte for byte, and each message is measured, protected or not, and paired with the tool"
    " calls it belongs to, in Python; the rows moved by hand are only moved. Tried: one statement for all that is archived"
    " and one for all that goes, feedback asked for once and not for each message, a cache that holds all that is changed."
)
_BUFFERED = (
    "One save takes the same whatever the disk is like; a hundred appends take a hundred flushes. Where a flush takes a"
    " millisecond or more it is about 50 times as fast, as the figure with 1 ms added shows; where it takes a seventh of that,"
    " as in the better hours of this machine, 19 to 22 times. Of a save and what comes before it a fifth is checking and"
    " encoding a hundred messages, a quarter inserting them, two fifths the commit, a third of which is the flush; the inserts"
    " and the commit alone would be 26 times as fast. Tried: one commit, one row of the session, indexes left"
    " alone where nothing in them changes, no statement that returns what it wrote (SQLite builds a table for it), no"
    " dictionary for each message, a short way for plain text, rows made field by field, statements that stay prepared, ten"
    " rows in one INSERT; fewer values for each gain nothing, and neither does encoding when saved; pages of twice the size"
    " save a tenth and cost an append as much; writing the pages of the log all at once, in a layer of our own below SQLite,"
    " saves a twentieth."
)
_CACHE = (
    "Any session of a million is on a page of its own, which is mostly not in SQLite's cache; it is read from the system's."
    " Tried: a cache eight times as large, which changes it by less than the machine does from one minute to the next; reading"
    " the file through memory, which is a fifth quicker and would end the process where a disk fails."
)

_LIMITS: dict[str, dict[str, str]] = {
    append_sqlite.GROUP: {"one writer": _ONE_FLUSH, "": _GROUPS},
    append_sqlite.NEW_GROUP: {"": _GROUPS},
    append_sqlite.SLOW_GROUP: {"": _GROUPS},
    append_postgres.GROUP: {"": _POSTGRES},
    "history": {"": _HISTORY},
    "growth-sqlite": {"a session": _CACHE},
    graphs.GROUP: {
        "on PostgreSQL, of the text": _PG_BYTES,
        "500 turns": _LOOP,
        "time in the saver": _LOOP,
        "never read it": _FIRST_READ,
        "": _FIRST_READ,
    },
    server.GROUP: {"durable append": _HTTP},
    "conversation": {"compacting": _COMPACTION, "buffered": _BUFFERED},
}


def explained(measured: Sequence[tuple[Figure, Measured]]) -> Iterator[tuple[str, list[Figure]]]:
    """Each limit that keeps figures from being reached, with those figures."""
    result: dict[str, list[Figure]] = {}
    for figure, value in measured:
        if not figure.met(value):
            result.setdefault(_limit(figure), []).append(figure)
    yield from result.items()


def _limit(figure: Figure) -> str:
    """Return the known limits; none if the target was reached before and is not now."""
    limit = _LIMITS.get(figure.group, {})
    return next((text for words, text in limit.items() if words in figure.text), "")
