"""Feedback: what people think of a message.

A user has one opinion of a message at a time. Whoever presses a button twice, or changes their mind, must not be counted twice:
``upsert`` replaces the opinion that is there, and ``create`` refuses a second one. Feedback of nobody in particular may come any
number of times. It lives with its message: what removes the message, its session or its tenant removes it too, and a deleted
session hides it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from msgspec import Struct

from ...clock import to_us
from ...core import scope as scopes
from ...core import text
from ...core.acting import Acting
from ...core.blocking import Blocking, blocking
from ...core.filters import Filter, Filterable, listed
from ...core.paging import Page, decode_cursor, encode_cursor, rows_to_read
from ...core.queries import Queries
from ...core.rows import Column, mapper
from ...core.store import TenantStore, reads, writes, writes_acting
from ...engines.protocol import Connection, Row
from ...errors import AlreadyExists, Conflict, InvalidInput, LimitExceeded, NotFound
from ...ids import Id
from ...ids import parse as parse_id

IssueType = Literal["instructions", "factual", "incomplete", "tool"]
"""What is wrong with an answer: it did not follow instructions, has its facts wrong, is not complete, or misused a tool."""
ISSUE_TYPES = get_args(IssueType)


class Feedback(Struct, frozen=True):
    """One opinion of one message. ``user`` is empty when it is nobody's in particular, ``issue_type`` when nothing is wrong."""

    id: Id
    message_id: Id
    session_id: Id
    user: Annotated[str, Column("user_id")]
    is_positive: bool
    feedback_text: str
    issue_type: IssueType | Literal[""]
    metadata: dict[str, Any]
    created_at: datetime
    updated_at: datetime


queries = Queries(__package__, "feedback.sql", Feedback)

FILTERS = Filterable(
    {
        "id": ("id", "id"),
        "message_id": ("message_id", "id"),
        "session_id": ("session_id", "id"),
        "user": ("user_id", "text"),
        "is_positive": ("is_positive", "bool"),
        "feedback_text": ("feedback_text", "text"),
        "issue_type": ("issue_type", "text"),
        "created_at": ("created_at", "time"),
        "updated_at": ("updated_at", "time"),
    },
    metadata="metadata",
)


class AsyncFeedbacks(TenantStore):
    """The feedback on one tenant's messages."""

    @writes_acting
    async def create(
        self,
        connection: Connection,
        acting: Acting,
        message_id: Id,
        *,
        is_positive: bool,
        feedback_text: str = "",
        issue_type: IssueType | None = None,
        user: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> Feedback:
        """Feedback on a message; without a user, that of the one who is acting.

        With an ``id`` of the caller's the call can be repeated: the same id with the same content returns what is there.

        Raises:
            NotFound: there is no such message in a live session.
            AlreadyExists: the user has given feedback on this message; ``upsert`` replaces it.
            Conflict: there is other feedback with this id.
        """
        user = acting.user if user is None else user
        params = self._new(message_id, is_positive, feedback_text, issue_type, user, metadata, id)
        params["session_id"] = await self._session_of(connection, params)
        row = await queries.create.one(connection, params)
        if row is not None:
            return _feedback(connection, row)
        there = await queries.by_id.one(connection, params)
        if there is not None:
            return _same(_feedback(connection, there), params)
        raise AlreadyExists(f"the user {user!r} has given feedback on message {message_id}; upsert replaces it")

    @writes_acting
    async def upsert(
        self,
        connection: Connection,
        acting: Acting,
        message_id: Id,
        *,
        user: str | None = None,
        is_positive: bool,
        feedback_text: str = "",
        issue_type: IssueType | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Feedback:
        """What a user thinks of a message now. It replaces what they thought before; its id and the time it was first given
        stay. Without a user, it is the one who is acting.

        Raises:
            NotFound: there is no such message in a live session.
            InvalidInput: no user was given, and none is acting.
        """
        user = acting.user if user is None else user
        if user is None:
            raise InvalidInput("say whose opinion it is: with user=..., or inside acting(user=...)")
        params = self._new(message_id, is_positive, feedback_text, issue_type, user, metadata, None)
        params["session_id"] = await self._session_of(connection, params)
        row = await queries.upsert.one(connection, params)
        assert row is not None
        return _feedback(connection, row)

    @reads
    async def get(self, connection: Connection, feedback_id: Id) -> Feedback:
        """One feedback.

        Raises:
            NotFound: there is none in a live session.
        """
        row = await queries.get.one(connection, self._scope.params(id=parse_id(feedback_id, "feedback id")))
        if row is None:
            raise _missing(feedback_id)
        return _feedback(connection, row)

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        message_id: Id | None = None,
        session_id: Id | None = None,
        user: str | None = None,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Feedback]:
        """Feedback on a message, in a session, of a user, or all there is, oldest first. With ``limit``, a page.

        Raises:
            InvalidFilter: a filter or the cursor is not understood.
            LimitExceeded: without ``limit``, there is more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(limit=rows_to_read(limit, limits))
        filters = _filters(message_id, session_id, user, where)
        clause = FILTERS.compile(filters, params, connection.dialect, limits) + _after(cursor, params, connection)
        rows = await queries.list.all(connection, params, clause, _index(message_id, session_id, user))
        return _page(mapper(Feedback, connection.dialect)(rows), limit, limits.list_rows)

    @reads
    async def count(
        self,
        connection: Connection,
        *,
        message_id: Id | None = None,
        session_id: Id | None = None,
        user: str | None = None,
        where: Sequence[Filter] = (),
    ) -> int:
        """How much feedback matches, by what ``list`` takes.

        Raises:
            InvalidFilter: a filter is not understood.
        """
        params = self._scope.params()
        filters = _filters(message_id, session_id, user, where)
        clause = FILTERS.compile(filters, params, connection.dialect, self._scope.limits)
        rows = await queries.count.all(connection, params, clause, _index(message_id, session_id, user))
        return int(rows[0][0])

    @writes
    async def update(
        self,
        connection: Connection,
        feedback_id: Id,
        *,
        is_positive: bool | None = None,
        feedback_text: str | None = None,
        issue_type: IssueType | Literal[""] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Feedback:
        """Change what is given; an empty ``issue_type`` takes it away, and ``metadata`` replaces the whole object.

        Raises:
            NotFound: there is no such feedback in a live session.
        """
        params = self._scope.params(
            id=parse_id(feedback_id, "feedback id"),
            is_positive=None if is_positive is None else _flag(is_positive),
            feedback_text=None if feedback_text is None else self._text(feedback_text),
            issue_type=None if issue_type is None else _issue(issue_type),
            metadata=None if metadata is None else scopes.metadata(metadata, self._scope.limits),
            now_at=self._scope.clock.now_us(),
        )
        row = await queries.update.one(connection, params)
        if row is None:
            raise _missing(feedback_id)
        return _feedback(connection, row)

    @writes
    async def delete(self, connection: Connection, feedback_id: Id) -> None:
        """Remove feedback for good.

        Raises:
            NotFound: there is none in a live session.
        """
        if await queries.delete.one(connection, self._scope.params(id=parse_id(feedback_id, "feedback id"))) is None:
            raise _missing(feedback_id)

    async def _session_of(self, connection: Connection, params: Mapping[str, Any]) -> str:
        row = await queries.session_of.one(connection, params)
        if row is None:
            raise NotFound(f"there is no message {params['message_id']} here")
        return str(row[0])

    def _new(
        self,
        message_id: str,
        is_positive: bool,
        feedback_text: str,
        issue_type: str | None,
        user: str | None,
        metadata: Mapping[str, Any] | None,
        id: str | None,
    ) -> dict[str, Any]:
        limits = self._scope.limits
        return self._scope.params(
            id=self._scope.ids.new() if id is None else parse_id(id, "feedback id"),
            message_id=parse_id(message_id, "message id"),
            user_id="" if user is None else scopes.name(user, "user", limits),
            is_positive=_flag(is_positive),
            feedback_text=self._text(feedback_text),
            issue_type="" if issue_type is None else _issue(issue_type),
            metadata=scopes.metadata(metadata, limits),
            now_at=self._scope.clock.now_us(),
        )

    def _text(self, feedback_text: str) -> str:
        if not isinstance(feedback_text, str):
            raise InvalidInput(f"feedback_text must be a string, not {type(feedback_text).__name__}")
        stored = text.escape(feedback_text)
        self._scope.limits.check("text_bytes", text.size(stored), "feedback_text")
        return stored


class Feedbacks(Blocking[AsyncFeedbacks]):
    """The feedback on one tenant's messages."""

    create = blocking(AsyncFeedbacks.create)
    upsert = blocking(AsyncFeedbacks.upsert)
    get = blocking(AsyncFeedbacks.get)
    list = blocking(AsyncFeedbacks.list)
    count = blocking(AsyncFeedbacks.count)
    update = blocking(AsyncFeedbacks.update)
    delete = blocking(AsyncFeedbacks.delete)


def _feedback(connection: Connection, row: Row) -> Feedback:
    return mapper(Feedback, connection.dialect)([row])[0]


def _missing(feedback_id: str) -> NotFound:
    return NotFound(f"there is no feedback {feedback_id} here")


def _same(there: Feedback, params: Mapping[str, Any]) -> Feedback:
    """The feedback already under an id, if it is what a repeated create would have made."""
    written = [text.unescape(params[name]) for name in ("message_id", "user_id", "feedback_text", "issue_type")]
    if (
        [there.message_id, there.user, there.feedback_text, there.issue_type] != written
        or there.is_positive is not params["is_positive"]
        or not text.identical(there.metadata, text.load(params["metadata"]))
    ):
        raise Conflict(f"there is other feedback with the id {there.id}")
    return there


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"is_positive must be true or false, not {value!r}")
    return value


def _issue(value: str) -> str:
    if value != "" and value not in ISSUE_TYPES:
        raise InvalidInput(f"issue_type must be one of {', '.join(ISSUE_TYPES)} or nothing, not {value!r}")
    return value


def _filters(message_id: str | None, session_id: str | None, user: str | None, where: Sequence[Filter]) -> list[Filter]:
    named = {"message_id": message_id, "session_id": session_id, "user": user}
    plain = [Filter("eq", value, column=name) for name, value in named.items() if value is not None]
    return [*plain, *listed(where)]


def _index(message_id: str | None, session_id: str | None, user: str | None) -> str:
    """What tells most about the rows that are wanted."""
    if message_id is not None:
        return "feedback_by_message"
    if session_id is not None:
        return "feedback_by_session"
    return "feedback_by_time" if user is None else "feedback_by_user"


def _after(cursor: str | None, params: dict[str, Any], connection: Connection) -> str:
    """The condition that a page starts after a cursor."""
    if cursor is None:
        return ""
    after_at, after_id = decode_cursor(cursor, "feedback", int, str)
    params.update(after_at=after_at, after_id=parse_id(after_id, "cursor"))
    cast = "::uuid" if connection.dialect.native_time else ""
    return f"\n  AND (created_at, id) > (:after_at, :after_id{cast})"


def _page(found: list[Feedback], limit: int | None, most: int) -> Page[Feedback]:
    if limit is None:
        if len(found) > most:
            raise LimitExceeded(f"there is more feedback than list_rows = {most:,}: page it with limit= and cursor=")
        return Page(found)
    if len(found) <= limit:
        return Page(found)
    last = found[limit - 1]
    return Page(found[:limit], encode_cursor("feedback", to_us(last.created_at), last.id))
