"""Full-text search over the messages of a tenant; ``messages.search`` is the way to it.

What can be found and how a query is written: ``searchable_text`` and ``query``. A search answers from the index, after it has
indexed a bounded piece of what is missing (``index``), and reads a bounded number of messages that are still not indexed itself.
If that is all of them, it has seen everything that was committed before it was asked for; otherwise its result says that it is
not complete. What it finds is what a reader of the live sessions would see: nothing of deleted sessions, and nothing of
branches that are not shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from ....core import scope as scopes
from ....core.paging import Page, decode_cursor, encode_cursor, rows_to_read
from ....core.rows import mapper
from ....core.scope import Scope
from ....engines.dialect import Dialect
from ....engines.heavy_calls import Cancellation, HeavyCall, compute
from ....engines.protocol import Connection, Engine, Row
from ....errors import InvalidFilter, InvalidInput, Unavailable
from ....ids import Id
from ....ids import parse as parse_id
from .. import views
from ..log_reading import view_of
from ..message_log import Message
from .index import BATCH_SESSIONS, INDEX, MAX_NUMBER, SLOT_BITS, chars_of, drain, numbers_for, queries, read_piece
from .query import Matcher, matching, parse
from .searchable_text import Marker, searchable, words_of

HITS_READ = 32
"""Messages that are read from the index at once; then it is looked whether they are within ``search_chars``."""
MAX_BEHIND = 1_000
"""Sessions that are counted, when a search is not complete."""
SCORES = (1.0, 0.5)
"""Of a message that is about the words, and of one that mentions one of them in passing."""
_LISTING = "search"
_SLOTS = 2**SLOT_BITS - 1


class Hit(Struct, frozen=True):
    """A message that was found, and the part of its text in which most of the words are."""

    message: Message
    session_id: Id
    score: float
    snippet: str


class SearchPage(Page[Hit]):
    """A page of hits that also says how far the index is.

    ``complete`` is ``True`` if everything committed before the search was searched. Otherwise ``sessions_behind`` sessions have
    messages that are neither indexed nor were read by this search; a thousand stands for any number from there on.
    """

    __slots__ = ("complete", "sessions_behind")

    def __init__(self, rows: Iterable[Hit] = (), next: str | None = None, *, sessions_behind: int = 0) -> None:
        super().__init__(rows, next)
        self.complete, self.sessions_behind = not sessions_behind, sessions_behind


class _Found(Struct):
    """What was read for a page, before anything is made of it."""

    dialect: Dialect
    tail: Sequence[Row]
    """Messages that are not indexed: the columns of ``Message``, the number, the view of the session, the place."""
    behind: int
    """Sessions that were not searched to their end."""
    hits: list[Row]
    """Messages from the index, in the same form."""
    ranks: list[int]
    cut: bool = False
    """Whether the index has more, which was not read because the characters were used up."""


class Search:
    """One search, checked and ready to be made.

    Raises:
        InvalidInput: there is no word to be found, or an argument is not acceptable.
        InvalidFilter: the cursor is not of a search.
        LimitExceeded: the query or the page is too large.
    """

    def __init__(
        self,
        scope: Scope,
        query: str,
        *,
        session_id: str | None = None,
        user: str | None = None,
        agent: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
        start_mark: str = "**",
        end_mark: str = "**",
    ) -> None:
        self._scope = scope
        self._query = parse(query, scope.limits)
        self._rows = rows_to_read(limit, scope.limits)
        self._session_id = None if session_id is None else parse_id(session_id, "session id")
        names = {"user_id": (user, "user"), "agent_id": (agent, "agent")}
        self._names = {
            column: scopes.name(value, what, scope.limits)
            for column, (value, what) in names.items()
            if value is not None
        }
        self._start = (0, MAX_NUMBER) if cursor is None else _place(cursor)
        self._marker = Marker(self._query.wanted, _mark(start_mark, "start_mark"), _mark(end_mark, "end_mark"))
        self._clause = "".join(f" AND s.{column} = :{column}" for column in self._names)
        self._heavy = len(self._query.wanted) > 1 or any(term.prefix for term in self._query.wanted)

    async def run(self, engine: Engine) -> SearchPage:
        """Search the index and a bounded number of messages that are not in it yet."""
        find = self._find_unless_behind
        found = await engine.read(HeavyCall(find) if self._heavy else find)
        if found is None:
            try:
                await drain(engine, self._scope, self._session_id)
            except Unavailable:
                pass  # others index, or write for long: what is not indexed is read instead
            found = await engine.read(HeavyCall(self._find_with_tail))
        return await compute(engine, partial(self._page, found), chars=chars_of(found.hits) + chars_of(found.tail))

    async def _find_unless_behind(self, connection: Connection) -> _Found | None:
        params = self._scope.params(session_id=self._session_id)
        clause = "" if self._session_id is None else " AND id = :session_id"
        if await queries.behind.all(connection, params, clause, INDEX):
            return None
        return await self._find(connection, [], 0)

    async def _find_with_tail(self, connection: Connection) -> _Found:
        """First what is not indexed, then the index: what is indexed in between is found twice instead of never."""
        params = self._scope.params(session_id=self._session_id, limit=BATCH_SESSIONS + 1, **self._names)
        clause = self._clause if self._session_id is None else f"{self._clause} AND s.id = :session_id"
        sessions = await queries.list_behind.all(connection, params, clause, INDEX)
        searched = sessions[:BATCH_SESSIONS]
        limits = self._scope.limits
        piece = await read_piece(
            connection, params, searched, messages=limits.search_tail, chars=limits.search_chars // 2
        )
        numbers = await numbers_for(connection, params, piece.rows)
        shown = {row[0]: row[2] for row in searched}
        tail = [(*row[:-1], numbers[row[0]], shown[row[1]], row[-1]) for row in piece.rows]
        behind = len(sessions) - len(piece.finished)
        if len(sessions) > BATCH_SESSIONS:
            every = await queries.list_behind.all(connection, {**params, "limit": MAX_BEHIND}, clause, INDEX)
            behind = max(len(every) - len(piece.finished), 1)
        return await self._find(connection, tail, behind)

    async def _find(self, connection: Connection, tail: Sequence[Row], behind: int) -> _Found:
        if self._session_id is not None:
            await view_of(connection, self._scope.params(session_id=self._session_id))
        found = _Found(connection.dialect, tail, behind, [], [])
        tenant = self._scope.stored_tenant
        rank, before = self._start
        for matched in matching(self._query, tenant, self._session_id, connection.dialect)[rank:]:
            await self._read_hits(connection, found, matched, rank, before)
            rank, before = rank + 1, MAX_NUMBER
            if found.cut or len(found.hits) >= self._rows:
                break
        return found

    async def _read_hits(self, connection: Connection, found: _Found, matched: str, rank: int, before: int) -> None:
        """Add the next messages that match and that their sessions show."""
        some = min(self._rows, HITS_READ)
        params = self._scope.params(query=matched, limit=some, **self._names)
        while len(found.hits) < self._rows:
            rows = await queries.find.all(connection, {**params, "before_number": before}, self._clause)
            shown = [row for row in rows if _is_shown(row)][: self._rows - len(found.hits)]
            found.hits += shown
            found.ranks += [rank] * len(shown)
            if len(rows) < some:
                return
            before = rows[-1][-3]
            if chars_of(found.hits) > self._scope.limits.search_chars and len(found.hits) < self._rows:
                found.cut = bool(found.hits)
                return

    def _page(self, found: _Found, progress: Cancellation) -> SearchPage:
        entries = self._merged(found, progress)
        limit = self._rows - 1
        messages = mapper(Message, found.dialect)([row[:-3] for _, row in entries[:limit]])
        hits = []
        for message, (rank, _) in zip(messages, entries, strict=False):
            progress.check()
            snippet = self._marker.snippet(searchable(message.kind, message.content))
            hits.append(Hit(message, message.session_id, SCORES[rank], snippet))
        if len(entries) <= limit and not found.cut:
            return SearchPage(hits, sessions_behind=found.behind)
        rank, row = entries[len(hits) - 1]
        cursor = encode_cursor(_LISTING, rank, row[-3] >> SLOT_BITS, row[-3] & _SLOTS)
        return SearchPage(hits, cursor, sessions_behind=found.behind)

    def _merged(self, found: _Found, progress: Cancellation) -> list[tuple[int, Row]]:
        """What was found, each with its rank, in the order of the page."""
        entries = [*zip(found.ranks, found.hits, strict=True)]
        if not found.tail:
            return entries
        known = {row[0] for row in found.hits}
        last = _order(entries[-1]) if found.cut else (len(SCORES), 0)
        first = (self._start[0], -self._start[1])
        matcher = Matcher(self._query)
        for message, row in zip(
            mapper(Message, found.dialect)([row[:-3] for row in found.tail]), found.tail, strict=True
        ):
            progress.check()
            rank = matcher.rank(words_of(searchable(message.kind, message.content))) if _is_shown(row) else None
            if rank is not None and message.id not in known and first < _order((rank, row)) < last:
                entries.append((rank, row))
        return sorted(entries, key=_order)


def _is_shown(row: Row) -> bool:
    """Whether a session shows its message. Without a view, it shows the first block."""
    view, place = row[-2], row[-1]
    return place < views.BLOCK if view is None else views.shows(views.load(view), place)


def _order(entry: tuple[int, Row]) -> tuple[int, int]:
    return entry[0], -entry[1][-3]


def _place(cursor: str) -> tuple[int, int]:
    rank, ms, slot = decode_cursor(cursor, _LISTING, int, int, int)
    if rank >= len(SCORES) or slot > _SLOTS or ms << SLOT_BITS > MAX_NUMBER:
        raise InvalidFilter("that cursor does not belong to a search; take it from the page before")
    return rank, ms << SLOT_BITS | slot


def _mark(mark: Any, what: str) -> str:
    if not isinstance(mark, str):
        raise InvalidInput(f"{what} must be text, not {type(mark).__name__}")
    return mark
