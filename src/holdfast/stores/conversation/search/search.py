"""Full-text search over the messages of a tenant, used by ``messages.search``.

The searchable text is defined in ``searchable_text``, the query language in ``query``. A search first indexes a bounded batch of
the backlog (``index``) and then reads the index. It also reads a bounded number of messages that are still not indexed. If those
are all, it has searched everything that was committed before it began; otherwise its result is marked as incomplete. It finds the
messages that live sessions show: none of deleted sessions, and none of branches that are not shown.
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
from .index import (
    BATCH_SESSIONS,
    BEHIND_INDEX,
    MAX_NUMBER,
    SLOT_BITS,
    chars_of,
    drain,
    numbers_for,
    queries,
    read_batch,
)
from .query import Matcher, index_queries, parse
from .searchable_text import Marker, searchable, words_of

HITS_READ = 32
"""Messages read from the index per query; after each query, their size is compared with ``search_chars``."""
MAX_BEHIND = 1_000
"""The most sessions that are counted when a search is incomplete."""
SCORES = (1.0, 0.5)
"""The scores of a message about the words, and of one that mentions one of them in passing."""
_LISTING = "search"
_SLOTS = 2**SLOT_BITS - 1


class SearchHit(Struct, frozen=True):
    """A message that matches, and the part of its text with most of the words."""

    message: Message
    session_id: Id
    score: float
    snippet: str


class SearchPage(Page[SearchHit]):
    """A page of hits, and whether all messages were searched.

    ``complete`` is ``True`` if everything committed before the search was searched. Otherwise ``sessions_behind`` sessions have
    messages that are neither indexed nor were read by this search; 1,000 means that many or more.
    """

    __slots__ = ("complete", "sessions_behind")

    def __init__(self, rows: Iterable[SearchHit] = (), next: str | None = None, *, sessions_behind: int = 0) -> None:
        super().__init__(rows, next)
        self.complete, self.sessions_behind = not sessions_behind, sessions_behind


class _PageRows(Struct):
    """The rows read for a page."""

    dialect: Dialect
    tail: Sequence[Row]
    """Messages that are not indexed: the columns of ``Message``, the number, the view of the session, the position."""
    behind: int
    """The number of sessions that were not searched completely."""
    hits: list[Row]
    """Messages from the index, with the same columns."""
    ranks: list[int]
    cut: bool = False
    """Whether reading stopped at ``search_chars`` before the end of the index."""


class Search:
    """One search with checked arguments.

    Raises:
        InvalidInput: the query has no word to find, or an argument is invalid.
        InvalidFilter: the cursor is not from a search.
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
        self._start = (0, MAX_NUMBER) if cursor is None else _decode_position(cursor)
        self._marker = Marker(self._query.required, _mark(start_mark, "start_mark"), _mark(end_mark, "end_mark"))
        self._clause = "".join(f" AND s.{column} = :{column}" for column in self._names)
        self._heavy = len(self._query.required) > 1 or any(term.prefix for term in self._query.required)

    async def run(self, engine: Engine) -> SearchPage:
        """Search the index and a bounded number of messages that are not indexed yet."""
        find = self._find_unless_behind
        page_rows = await engine.read(HeavyCall(find) if self._heavy else find)
        if page_rows is None:
            try:
                await drain(engine, self._scope, self._session_id)
            except Unavailable:
                pass  # another process is writing: read the messages that are not indexed instead
            page_rows = await engine.read(HeavyCall(self._find_with_tail))
        return await compute(
            engine, partial(self._page, page_rows), chars=chars_of(page_rows.hits) + chars_of(page_rows.tail)
        )

    async def _find_unless_behind(self, connection: Connection) -> _PageRows | None:
        params = self._scope.params(session_id=self._session_id)
        clause = "" if self._session_id is None else " AND id = :session_id"
        if await queries.behind.all(connection, params, clause, BEHIND_INDEX):
            return None
        return await self._find(connection, [], 0)

    async def _find_with_tail(self, connection: Connection) -> _PageRows:
        """Read messages that are not indexed first, then the index: a message indexed in between is found twice, not missed."""
        params = self._scope.params(session_id=self._session_id, limit=BATCH_SESSIONS + 1, **self._names)
        clause = self._clause if self._session_id is None else f"{self._clause} AND s.id = :session_id"
        sessions = await queries.list_behind.all(connection, params, clause, BEHIND_INDEX)
        searched = sessions[:BATCH_SESSIONS]
        limits = self._scope.limits
        batch = await read_batch(
            connection, params, searched, messages=limits.search_tail, chars=limits.search_chars // 2
        )
        numbers = await numbers_for(connection, params, batch.rows)
        views_by_session = {row[0]: row[2] for row in searched}
        tail = [(*row[:-1], numbers[row[0]], views_by_session[row[1]], row[-1]) for row in batch.rows]
        behind = len(sessions) - len(batch.finished)
        if len(sessions) > BATCH_SESSIONS:
            all_behind = await queries.list_behind.all(
                connection, {**params, "limit": MAX_BEHIND}, clause, BEHIND_INDEX
            )
            behind = max(len(all_behind) - len(batch.finished), 1)
        return await self._find(connection, tail, behind)

    async def _find(self, connection: Connection, tail: Sequence[Row], behind: int) -> _PageRows:
        if self._session_id is not None:
            await view_of(connection, self._scope.params(session_id=self._session_id))
        page_rows = _PageRows(connection.dialect, tail, behind, [], [])
        tenant = self._scope.stored_tenant
        rank, before = self._start
        for index_query in index_queries(self._query, tenant, self._session_id, connection.dialect)[rank:]:
            await self._read_hits(connection, page_rows, index_query, rank, before)
            rank, before = rank + 1, MAX_NUMBER
            if page_rows.cut or len(page_rows.hits) >= self._rows:
                break
        return page_rows

    async def _read_hits(
        self, connection: Connection, page_rows: _PageRows, index_query: str, rank: int, before: int
    ) -> None:
        """Read the next matching messages that their sessions show."""
        batch_rows = min(self._rows, HITS_READ)
        params = self._scope.params(query=index_query, limit=batch_rows, **self._names)
        while len(page_rows.hits) < self._rows:
            rows = await queries.find.all(connection, {**params, "before_number": before}, self._clause)
            shown_rows = [row for row in rows if _is_shown(row)][: self._rows - len(page_rows.hits)]
            page_rows.hits += shown_rows
            page_rows.ranks += [rank] * len(shown_rows)
            if len(rows) < batch_rows:
                return
            before = rows[-1][-3]
            if chars_of(page_rows.hits) > self._scope.limits.search_chars and len(page_rows.hits) < self._rows:
                page_rows.cut = bool(page_rows.hits)
                return

    def _page(self, page_rows: _PageRows, progress: Cancellation) -> SearchPage:
        entries = self._merge(page_rows, progress)
        limit = self._rows - 1
        messages = mapper(Message, page_rows.dialect)([row[:-3] for _, row in entries[:limit]])
        hits = []
        for message, (rank, _) in zip(messages, entries, strict=False):
            progress.check()
            snippet = self._marker.snippet(searchable(message.kind, message.content))
            hits.append(SearchHit(message, message.session_id, SCORES[rank], snippet))
        if len(entries) <= limit and not page_rows.cut:
            return SearchPage(hits, sessions_behind=page_rows.behind)
        rank, row = entries[len(hits) - 1]
        cursor = encode_cursor(_LISTING, rank, row[-3] >> SLOT_BITS, row[-3] & _SLOTS)
        return SearchPage(hits, cursor, sessions_behind=page_rows.behind)

    def _merge(self, page_rows: _PageRows, progress: Cancellation) -> list[tuple[int, Row]]:
        """Return the matching messages with their ranks, in the order of the page."""
        entries = [*zip(page_rows.ranks, page_rows.hits, strict=True)]
        if not page_rows.tail:
            return entries
        hit_ids = {row[0] for row in page_rows.hits}
        last = _order(entries[-1]) if page_rows.cut else (len(SCORES), 0)
        first = (self._start[0], -self._start[1])
        matcher = Matcher(self._query)
        for message, row in zip(
            mapper(Message, page_rows.dialect)([row[:-3] for row in page_rows.tail]), page_rows.tail, strict=True
        ):
            progress.check()
            rank = matcher.rank(words_of(searchable(message.kind, message.content))) if _is_shown(row) else None
            if rank is not None and message.id not in hit_ids and first < _order((rank, row)) < last:
                entries.append((rank, row))
        return sorted(entries, key=_order)


def _is_shown(row: Row) -> bool:
    """Return whether a session shows a message. Without a view, it shows the first block."""
    view, position = row[-2], row[-1]
    return position < views.BLOCK if view is None else views.shows(views.load(view), position)


def _order(entry: tuple[int, Row]) -> tuple[int, int]:
    return entry[0], -entry[1][-3]


def _decode_position(cursor: str) -> tuple[int, int]:
    rank, ms, slot = decode_cursor(cursor, _LISTING, int, int, int)
    if rank >= len(SCORES) or slot > _SLOTS or ms << SLOT_BITS > MAX_NUMBER:
        raise InvalidFilter("cursor is not from a search: pass the cursor of the previous page", field="cursor")
    return rank, ms << SLOT_BITS | slot


def _mark(mark: Any, what: str) -> str:
    if not isinstance(mark, str):
        raise InvalidInput(f"{what} must be text, not {type(mark).__name__}", field=what)
    return mark
