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

from ...core.actor_context import Acting
from ...core.blocking import Blocking, blocking
from ...core.filters import Filter
from ...core.paging import Page
from ...core.queries import Queries
from ...core.records import Limited
from ...core.records.values import is_same
from ...core.rows import Column
from ...core.store import TenantStore, reads, writes, writes_acting
from ...core.tables import ListTable
from ...engines.protocol import Connection
from ...errors import AlreadyExists, Conflict, InvalidInput, NotFound
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
    user: Annotated[str, Limited("name_bytes", empty=False), Column("user_id")]
    is_positive: bool
    feedback_text: Annotated[str, Limited("text_bytes")]
    issue_type: IssueType | Literal[""]
    metadata: Annotated[dict[str, Any], Limited("metadata_bytes")]
    created_at: datetime
    updated_at: datetime


FEEDBACK = ListTable(
    "feedback",
    Feedback,
    noun="feedback",
    nouns="rows of feedback",
    condition="""EXISTS (SELECT 1 FROM sessions AS s
              WHERE s.tenant_id = :tenant_id AND s.id = feedback.session_id AND (s.deleted_at IS NULL) IS TRUE)""",
    indexes={
        "message_id": "feedback_by_message",
        "session_id": "feedback_by_session",
        "user": "feedback_by_user",
        "": "feedback_by_time",
    },
)
queries = Queries(__package__, "feedback.sql", Feedback)


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
            return FEEDBACK.rows(connection, [row])[0]
        existing = await queries.by_id.one(connection, params)
        if existing is not None:
            return _same(FEEDBACK.rows(connection, [existing])[0], params)
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
        return FEEDBACK.rows(connection, [row])[0]

    @reads
    async def get(self, connection: Connection, feedback_id: Id) -> Feedback:
        """One feedback.

        Raises:
            NotFound: there is none in a live session.
        """
        return await FEEDBACK.get(connection, self._scope, feedback_id)

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
        equal = {"message_id": message_id, "session_id": session_id, "user": user}
        return await FEEDBACK.list(connection, self._scope, equal, where=where, limit=limit, cursor=cursor)

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
        equal = {"message_id": message_id, "session_id": session_id, "user": user}
        return await FEEDBACK.count(connection, self._scope, equal, where=where)

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
        values = {
            "is_positive": is_positive,
            "feedback_text": feedback_text,
            "issue_type": issue_type,
            "metadata": metadata,
        }
        given = {name: value for name, value in values.items() if value is not None}
        params = dict.fromkeys(values) | FEEDBACK.params(given, self._scope.limits)
        params |= self._scope.params(id=parse_id(feedback_id, "feedback id"), now_at=self._scope.clock.now_us())
        row = await queries.update.one(connection, params)
        if row is None:
            raise FEEDBACK.missing(feedback_id)
        return FEEDBACK.rows(connection, [row])[0]

    @writes
    async def delete(self, connection: Connection, feedback_id: Id) -> None:
        """Remove feedback for good.

        Raises:
            NotFound: there is none in a live session.
        """
        if await queries.delete.one(connection, self._scope.params(id=parse_id(feedback_id, "feedback id"))) is None:
            raise FEEDBACK.missing(feedback_id)

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
        values = {
            "message_id": message_id,
            "is_positive": is_positive,
            "feedback_text": feedback_text,
            "issue_type": "" if issue_type is None else issue_type,
            "metadata": {} if metadata is None else metadata,
        }
        if user is not None:
            values["user"] = user
        params = self._scope.params(user_id="") | FEEDBACK.params(values, self._scope.limits)
        params["id"] = self._scope.ids.new() if id is None else parse_id(id, "feedback id")
        return params | {"now_at": self._scope.clock.now_us()}


class Feedbacks(Blocking[AsyncFeedbacks]):
    """The feedback on one tenant's messages."""

    create = blocking(AsyncFeedbacks.create)
    upsert = blocking(AsyncFeedbacks.upsert)
    get = blocking(AsyncFeedbacks.get)
    list = blocking(AsyncFeedbacks.list)
    count = blocking(AsyncFeedbacks.count)
    update = blocking(AsyncFeedbacks.update)
    delete = blocking(AsyncFeedbacks.delete)


def _same(existing: Feedback, params: Mapping[str, Any]) -> Feedback:
    """The feedback that has an id, if a repeated ``create`` would have stored the same."""
    given = ("message_id", "user", "is_positive", "feedback_text", "issue_type", "metadata")
    fields = [FEEDBACK.fields[name] for name in given]
    if not all(is_same(field, params[field.column], existing) for field in fields):
        raise Conflict(f"there is other feedback with the id {existing.id}")
    return existing
