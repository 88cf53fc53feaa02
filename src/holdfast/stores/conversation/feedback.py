"""Feedback: users' opinions of messages.

A user has at most one opinion of a message, so that a double click or a change of mind is not counted twice: ``upsert`` replaces
the stored opinion, and ``create`` rejects a second one. Anonymous feedback is not limited. Feedback is deleted with its message:
removing the message, its session or its tenant removes it too, and deleting the session hides it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from msgspec import Struct

from ...core.actor_context import ActorContext
from ...core.blocking import Blocking, blocking
from ...core.filters import Filter
from ...core.paging import Page
from ...core.queries import Queries
from ...core.records import Limited
from ...core.records.values import is_same
from ...core.rows import Column
from ...core.store import TenantStore, reads, writes, writes_with_actor
from ...core.tables import ListTable
from ...engines.protocol import Connection
from ...errors import AlreadyExists, Conflict, InvalidInput, NotFound
from ...ids import Id
from ...ids import parse as parse_id

IssueType = Literal["instructions", "factual", "incomplete", "tool"]
"""The problem with an answer: it did not follow instructions, is factually wrong, is incomplete, or misused a tool."""
ISSUE_TYPES = get_args(IssueType)


class Feedback(Struct, frozen=True):
    """One opinion of one message. ``user`` is empty if it is anonymous, ``issue_type`` if there is no problem."""

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


class AsyncFeedbackStore(TenantStore):
    """The feedback on one tenant's messages."""

    @writes_with_actor
    async def create(
        self,
        connection: Connection,
        acting: ActorContext,
        message_id: Id,
        *,
        is_positive: bool,
        feedback_text: str = "",
        issue_type: IssueType | None = None,
        user: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> Feedback:
        """Store feedback on a message; without a user, that of the acting user.

        With an ``id`` the call can be repeated: the same id with the same content returns the stored feedback.

        Raises:
            NotFound: no message of a live session has this id.
            AlreadyExists: the user has given feedback on this message; ``upsert`` replaces it.
            Conflict: other feedback has this id.
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
        raise AlreadyExists(
            f"the user {user!r} has given feedback on message {message_id}; upsert replaces it",
            noun="feedback",
            key=message_id,
        )

    @writes_with_actor
    async def upsert(
        self,
        connection: Connection,
        acting: ActorContext,
        message_id: Id,
        *,
        user: str | None = None,
        is_positive: bool,
        feedback_text: str = "",
        issue_type: IssueType | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Feedback:
        """Store a user's opinion of a message, or replace the stored one, whose id and creation time stay. Without a user, the
        acting user's.

        Raises:
            NotFound: no message of a live session has this id.
            InvalidInput: no user was given, and no user is acting.
        """
        user = acting.user if user is None else user
        if user is None:
            raise InvalidInput("feedback needs a user: pass user=..., or call it inside acting(user=...)", field="user")
        params = self._new(message_id, is_positive, feedback_text, issue_type, user, metadata, None)
        params["session_id"] = await self._session_of(connection, params)
        row = await queries.upsert.one(connection, params)
        assert row is not None
        return FEEDBACK.rows(connection, [row])[0]

    @reads
    async def get(self, connection: Connection, feedback_id: Id) -> Feedback:
        """Return one feedback.

        Raises:
            NotFound: it does not exist, or its session is deleted.
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
        """List feedback on a message, in a session, of a user, or of the whole tenant, oldest first. With ``limit``, a page.

        Raises:
            InvalidFilter: a filter or the cursor is not valid.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
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
        """Return the number of feedback rows that match, with the arguments of ``list``.

        Raises:
            InvalidFilter: a filter is not valid.
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
        """Change the given fields; an empty ``issue_type`` removes it, and ``metadata`` replaces the whole object.

        Raises:
            NotFound: it does not exist, or its session is deleted.
        """
        values = {
            "is_positive": is_positive,
            "feedback_text": feedback_text,
            "issue_type": issue_type,
            "metadata": metadata,
        }
        changes = {name: value for name, value in values.items() if value is not None}
        params = dict.fromkeys(values) | FEEDBACK.params(changes, self._scope.limits)
        params |= self._scope.params(id=parse_id(feedback_id, "feedback id"), now_at=self._scope.clock.now_us())
        row = await queries.update.one(connection, params)
        if row is None:
            raise FEEDBACK.missing(feedback_id)
        return FEEDBACK.rows(connection, [row])[0]

    @writes
    async def delete(self, connection: Connection, feedback_id: Id) -> None:
        """Remove feedback permanently.

        Raises:
            NotFound: it does not exist, or its session is deleted.
        """
        if await queries.delete.one(connection, self._scope.params(id=parse_id(feedback_id, "feedback id"))) is None:
            raise FEEDBACK.missing(feedback_id)

    async def _session_of(self, connection: Connection, params: Mapping[str, Any]) -> str:
        row = await queries.session_of.one(connection, params)
        if row is None:
            raise NotFound(
                f"message {params['message_id']} does not exist", noun="message", key=str(params["message_id"])
            )
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


class FeedbackStore(Blocking[AsyncFeedbackStore]):
    """The feedback on one tenant's messages."""

    create = blocking(AsyncFeedbackStore.create)
    upsert = blocking(AsyncFeedbackStore.upsert)
    get = blocking(AsyncFeedbackStore.get)
    list = blocking(AsyncFeedbackStore.list)
    count = blocking(AsyncFeedbackStore.count)
    update = blocking(AsyncFeedbackStore.update)
    delete = blocking(AsyncFeedbackStore.delete)


def _same(existing: Feedback, params: Mapping[str, Any]) -> Feedback:
    """Return the feedback with an id, if a repeated ``create`` would have stored the same."""
    names = ("message_id", "user", "is_positive", "feedback_text", "issue_type", "metadata")
    fields = [FEEDBACK.fields[name] for name in names]
    if not all(is_same(field, params[field.column], existing) for field in fields):
        raise Conflict(f"feedback {existing.id} exists with other content", reason="other_content")
    return existing
