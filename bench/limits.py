"""Known limits of the figures that miss their target or have none, and the optimizations that were tried.

The texts are written by hand. They state causes, not measurements: the report's tables contain the numbers, including the floors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import append_postgres, append_sqlite, graphs, server
from .figures import Figure, Measured

_ONE_FLUSH = (
    "A single writer waits for the disk: every contender needs one flush per message. The rest is the statements and the"
    " commit, which the driver by hand executes too. Tried: no thread between the caller and SQLite while the disk is fast;"
    " no event loop iteration between the call and the commit; one UPDATE and one INSERT that touch no index unnecessarily;"
    " statements that are prepared once."
)
_GROUPS = (
    "A commit of 64 messages to 64 sessions changes about 90 pages of 4 KB. Two thirds of them are leaves of the index that"
    " keeps each session's messages in order, one leaf per session, and every implementation with this index has to write and"
    " flush them. The floor is the driver by hand, which writes exactly these rows in one commit for all writers."
    " SQLiteSession has no such index and updates no session row. Tried: one prepared statement for the whole group; no"
    " savepoint for a group on its own; committing in the event loop while the disk is fast and in a thread when it is slow;"
    " WAL checkpoints less often or never; no foreign keys; no index by id; reading all session heads with one statement and"
    " no RETURNING; integer keys. None of these saves more than a tenth. Other page sizes are slower. So is committing in a"
    " thread while the next group is prepared, because both compete for the GIL. By hand and without the index, twice the"
    " rate is possible, but every page of a log is read through this index."
)
_HISTORY = (
    "Decoding alone reads strings that are already in memory. The floor is the driver by hand, which reads only the role and"
    " the content of each row and builds no objects. Holdfast reads nine values of each row and returns complete messages."
    " Tried: not transferring values that are the same for all messages or rarely set; no lock per value; decoding by row and"
    " by column; excluding messages from garbage collection; caching timestamps. Joining the result into one text inside"
    " SQLite and decoding all contents at once is slower."
)
_POSTGRES = (
    "Most of the time is the server's own work for a row: two indexes, a foreign key and a kilobyte of JSONB, on two cores that"
    " the server shares with the callers. The floor is the driver by hand, which sends all messages in one statement. Tried:"
    " one statement for all waiting callers; two statements in flight, so that neither side waits for the other (one is slower"
    " at 64 writers, three are no faster); sending all waiting messages in one statement while the other is in flight; no"
    " arrays of default values; no dictionary per message."
)
_LOOP = (
    "A turn is five calls of the saver, three of which have to be durable before the next, and LangGraph's own work, which no"
    " saver can avoid. Each call compares every message with its previous content, because a graph may change messages in"
    " place; that takes less than a millisecond for 1,000 messages. DeltaChannel passes only new messages. Tried: positions"
    " stored as ranges; decompressing all pieces and decoding all messages at once; committing the writes of the tasks together"
    " with the next checkpoint; on PostgreSQL, one statement per step if the log is unchanged."
)
_FIRST_READ = (
    "Each message is a separate piece, so that it is stored only once. Decompressing a piece and computing its digest takes"
    " about 8 µs, more than half of the time in which the official savers decode a message from their single blob. The second"
    " read comes from memory. Tried: one query for all pieces; decompressing and decoding all of them at once; a compression"
    " dictionary for short pieces, and a trained one. Compressing pieces in groups of 100 would be faster, but changes the"
    " stored format."
)
_PG_BYTES = (
    "PostgreSQL adds about 28 bytes to every row and 16 bytes to every index entry, and stores values above 2 KB out of line."
    " Every two messages come with three checkpoints and two writes, each of them a row. Tried: integers instead of names for"
    " threads and logs; the positions of a checkpoint as ranges of a few bytes; shapes that are stored once."
)
_HTTP = (
    "Two fifths of the cost of an append over HTTP are uvicorn and the event loop, and two fifths are the append with its commit."
    " The rest is authentication, routing, decoding and the request deadline, in Python. The processor is idle for a tenth of"
    " the time, while the disk flushes."
)
_COMPACTION = (
    "Holdfast archives the removed messages byte for byte. In Python, it measures each message, whether preserved or not, and"
    " pairs it with its tool calls. By hand, the rows are only moved. Tried: one statement for all archived rows and one for"
    " all deleted rows; one query for all feedback instead of one per message; a page cache that holds all changed pages."
)
_BUFFERED = (
    "One save takes the same time on every disk, while 100 appends take 100 flushes. With a flush of 1 ms or more, saving is"
    " about 50 times as fast, as the figure with 1 ms added to each flush shows; with a flush of about 0.14 ms, this machine's"
    " best, it is 19 to 22 times as fast. A fifth of the time is validating and encoding 100 messages, a quarter is inserting"
    " them, and two fifths are the commit, a third of which is the flush. The inserts and the commit alone would be 26 times"
    " as fast. Tried: one commit; one update of the session row; not touching indexes whose columns are unchanged; no RETURNING"
    " (SQLite builds a table for it); no dictionary per message; a fast path for plain text; rows built field by field;"
    " statements that stay prepared; ten rows per INSERT. Fewer values per row and encoding at save time gain nothing. Pages"
    " of twice the size save a tenth here but cost an append as much. Writing all WAL pages at once in a custom VFS saves a"
    " twentieth."
)
_CACHE = (
    "Each of the 1,000,000 sessions is on a page that is usually not in SQLite's page cache, so it is read from the operating"
    " system's cache. Tried: a page cache of eight times the size, which changes less than the noise of the machine; memory"
    " mapping, which is a fifth faster but kills the process on a disk error."
)

_LIMITS: dict[str, dict[str, str]] = {
    append_sqlite.GROUP: {"1 writer": _ONE_FLUSH, "": _GROUPS},
    append_sqlite.NEW_GROUP: {"": _GROUPS},
    append_sqlite.SLOW_GROUP: {"": _GROUPS},
    append_postgres.GROUP: {"": _POSTGRES},
    "history": {"": _HISTORY},
    "growth-sqlite": {"a session": _CACHE},
    graphs.GROUP: {
        "on PostgreSQL, vs. the text": _PG_BYTES,
        "500 turns": _LOOP,
        "time in the saver": _LOOP,
        "first read": _FIRST_READ,
        "": _FIRST_READ,
    },
    server.GROUP: {"durable append": _HTTP},
    "conversation": {"compacting": _COMPACTION, "buffered": _BUFFERED},
}


def explained(measured: Sequence[tuple[Figure, Measured]]) -> Iterator[tuple[str, list[Figure]]]:
    """Yield each limit with the figures it explains: those that miss their target or have none."""
    result: dict[str, list[Figure]] = {}
    for figure, value in measured:
        if not figure.met(value):
            result.setdefault(_limit(figure), []).append(figure)
    yield from result.items()


def _limit(figure: Figure) -> str:
    """Return the known limit of a figure, or an empty string if no limit is known."""
    limit = _LIMITS.get(figure.group, {})
    return next((text for words, text in limit.items() if words in figure.text), "")
