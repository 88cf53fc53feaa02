"""Full-text search over the messages of a tenant; ``messages.search`` is the way to it.

What can be found and how a query is written: ``searchable_text`` and ``query``. A search sees everything that was
committed before it was asked for: it first indexes what is missing (``index``). What it finds is what a reader of the
live sessions would see: nothing of deleted sessions, and nothing of branches that are not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ....core import scope as scopes
from ....core.paging import Page, decode_cursor, encode_cursor, rows_to_read
from ....core.rows import mapper
from ....core.scope import Scope
from ....engines.protocol import Connection, Engine, Row
from ....errors import InvalidFilter, InvalidInput
from ....ids import Id
from ....ids import parse as parse_id
from .. import views
from ..log_reading import view_of
from ..message_log import Message
from .index import INDEX, NUMBER_MOST, SLOT_BITS, catch_up, queries
from .query import matching, parse
from .searchable_text import Marker, text_of

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
        self._start = (0, NUMBER_MOST) if cursor is None else _place(cursor)
        self._marker = Marker(self._query.wanted, _mark(start_mark, "start_mark"), _mark(end_mark, "end_mark"))

    async def run(self, engine: Engine) -> Page[Hit]:
        """Bring the index up to date, if it is not, and search it."""
        found = await engine.read(self._find_unless_behind)
        if found is None:
            await catch_up(engine, self._scope, self._session_id)
            found = await engine.read(self._find)
        return found

    async def _find_unless_behind(self, connection: Connection) -> Page[Hit] | None:
        params = self._scope.params(session_id=self._session_id)
        clause = "" if self._session_id is None else " AND id = :session_id"
        behind = await queries.behind.all(connection, params, clause, INDEX)
        return None if behind else await self._find(connection)

    async def _find(self, connection: Connection) -> Page[Hit]:
        if self._session_id is not None:
            await view_of(connection, self._scope.params(session_id=self._session_id))
        found: list[Row] = []
        scores: list[float] = []
        tenant = self._scope.stored_tenant
        rank, before = self._start
        for matched in matching(self._query, tenant, self._session_id, connection.dialect)[rank:]:
            rows = await self._shown(connection, matched, before, self._rows - len(found))
            found += rows
            scores += [SCORES[rank]] * len(rows)
            rank, before = rank + 1, NUMBER_MOST
            if len(found) >= self._rows:
                break
        return self._page(mapper(Message, connection.dialect)([row[:-3] for row in found]), found, scores)

    async def _shown(self, connection: Connection, matched: str, before: int, wanted: int) -> list[Row]:
        """The next messages that match and that their sessions show."""
        found: list[Row] = []
        params = self._scope.params(query=matched, limit=self._rows, **self._names)
        clause = "".join(f" AND s.{column} = :{column}" for column in self._names)
        while len(found) < wanted:
            rows = await queries.find.all(connection, {**params, "before_number": before}, clause)
            found += [row for row in rows if row[-2] is None or views.shows(views.load(row[-2]), row[-1])]
            if len(rows) < self._rows:
                break
            before = rows[-1][-3]
        return found[:wanted]

    def _page(self, messages: Sequence[Message], rows: Sequence[Row], scores: Sequence[float]) -> Page[Hit]:
        limit = self._rows - 1
        hits = [
            Hit(message, message.session_id, score, self._marker.snippet(text_of(message.kind, message.content)))
            for message, score in zip(messages[:limit], scores, strict=False)
        ]
        if len(rows) <= limit:
            return Page(hits)
        number = rows[limit - 1][-3]
        rank = SCORES.index(scores[limit - 1])
        return Page(hits, encode_cursor(_LISTING, rank, number >> SLOT_BITS, number & _SLOTS))


def _place(cursor: str) -> tuple[int, int]:
    rank, ms, slot = decode_cursor(cursor, _LISTING, int, int, int)
    if rank >= len(SCORES) or slot > _SLOTS or ms << SLOT_BITS > NUMBER_MOST:
        raise InvalidFilter("that cursor does not belong to a search; take it from the page before")
    return rank, ms << SLOT_BITS | slot


def _mark(mark: Any, what: str) -> str:
    if not isinstance(mark, str):
        raise InvalidInput(f"{what} must be text, not {type(mark).__name__}")
    return mark
