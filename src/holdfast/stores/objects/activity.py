"""Activity: what was done, to what, by whom and why.

A log that only grows: nothing in it is ever changed, and it goes with its tenant. What a store does on its own account it notes
with ``note``, in the transaction of the deed, so that there is never one without the other. Everybody else has ``record``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from ...clock import to_us
from ...core import scope as scopes
from ...core import text
from ...core.acting import Acting
from ...core.blocking import Blocking, blocking
from ...core.filters import Filter, Filterable, listed
from ...core.paging import Page, decode_cursor, encode_cursor, rows_to_read
from ...core.queries import Queries
from ...core.rows import mapper
from ...core.store import TenantStore, reads, writes_acting
from ...engines.protocol import Connection, Row
from ...errors import Conflict, LimitExceeded, NotFound
from ...ids import Id
from ...ids import parse as parse_id
from .registration import register_tenant


class Activity(Struct, frozen=True):
    """One thing that was done. ``actor`` is empty when nobody in particular did it."""

    id: Id
    actor: str
    action: str
    """In two words, such as ``checkpoint.deleted``."""
    subject_kind: str
    subject_id: str
    reason: str
    details: dict[str, Any]
    created_at: datetime


class Deed(Struct, frozen=True, kw_only=True):
    """Something that is about to be noted."""

    action: str
    actor: str = ""
    subject_kind: str = ""
    subject_id: str = ""
    reason: str = ""
    details: Mapping[str, Any] = {}


queries = Queries(__package__, "activity.sql", Activity)

FILTERS = Filterable(
    {
        "id": ("id", "id"),
        "actor": ("actor", "text"),
        "action": ("action", "text"),
        "subject_kind": ("subject_kind", "text"),
        "subject_id": ("subject_id", "text"),
        "reason": ("reason", "text"),
        "created_at": ("created_at", "time"),
    },
    metadata="details",
)


class AsyncActivities(TenantStore):
    """What was done in one tenant."""

    @writes_acting
    async def record(
        self,
        connection: Connection,
        acting: Acting,
        action: str,
        *,
        actor: str | None = None,
        subject_kind: str = "",
        subject_id: str = "",
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> Activity:
        """Note what was done; without an ``actor``, by the user who is acting.

        With an ``id`` of the caller's the call can be repeated: the same id with the same content returns what is there.

        Raises:
            InvalidInput: the action is empty.
            Conflict: something else was recorded under this id.
        """
        actor = (acting.user or "") if actor is None else actor
        deed = Deed(
            action=action,
            actor=actor,
            subject_kind=subject_kind,
            subject_id=subject_id,
            reason=reason,
            details=details or {},
        )
        params = _params(self._scope, deed, None if id is None else parse_id(id, "activity id"))
        await register_tenant(connection, params)
        row = await queries.record.one(connection, params)
        if row is not None:
            return _activity(connection, row)
        there = await queries.get.one(connection, params)
        assert there is not None
        return _same(_activity(connection, there), params)

    @reads
    async def get(self, connection: Connection, activity_id: str) -> Activity:
        """One entry.

        Raises:
            NotFound: there is none.
        """
        row = await queries.get.one(connection, self._scope.params(id=parse_id(activity_id, "activity id")))
        if row is None:
            raise NotFound(f"there is no activity {activity_id} here")
        return _activity(connection, row)

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        actor: str | None = None,
        action: str | None = None,
        subject_kind: str | None = None,
        subject_id: str | None = None,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Activity]:
        """What was done, the newest first. With ``limit``, a page.

        Raises:
            InvalidFilter: a filter or the cursor is not understood.
            LimitExceeded: without ``limit``, there is more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(limit=rows_to_read(limit, limits))
        named = {"actor": actor, "action": action, "subject_kind": subject_kind, "subject_id": subject_id}
        clause = FILTERS.compile(_filters(named, where), params, connection.dialect, limits)
        clause += _before(cursor, params, connection)
        rows = await queries.list.all(connection, params, clause, _index(named))
        return _page(mapper(Activity, connection.dialect)(rows), limit, limits.list_rows)

    @reads
    async def count(
        self,
        connection: Connection,
        *,
        actor: str | None = None,
        action: str | None = None,
        subject_kind: str | None = None,
        subject_id: str | None = None,
        where: Sequence[Filter] = (),
    ) -> int:
        """How much matches, by what ``list`` takes.

        Raises:
            InvalidFilter: a filter is not understood.
        """
        params = self._scope.params()
        named = {"actor": actor, "action": action, "subject_kind": subject_kind, "subject_id": subject_id}
        clause = FILTERS.compile(_filters(named, where), params, connection.dialect, self._scope.limits)
        rows = await queries.count.all(connection, params, clause, _index(named))
        return int(rows[0][0])


class Activities(Blocking[AsyncActivities]):
    """What was done in one tenant."""

    record = blocking(AsyncActivities.record)
    get = blocking(AsyncActivities.get)
    list = blocking(AsyncActivities.list)
    count = blocking(AsyncActivities.count)


async def note(connection: Connection, scope: scopes.Scope, deeds: Sequence[Deed]) -> None:
    """Note what is being done; for other stores, in the transaction of the deed itself.

    Raises:
        InvalidInput: an action is empty.
    """
    if deeds:
        await queries.note.many(connection, [_params(scope, each, None) for each in deeds])


def _params(scope: scopes.Scope, deed: Deed, id: str | None) -> dict[str, Any]:
    limits = scope.limits
    return scope.params(
        id=scope.ids.new() if id is None else id,
        actor=scopes.free_text(deed.actor, "actor", limits, limit="name_bytes"),
        action=scopes.name(deed.action, "action", limits),
        subject_kind=scopes.free_text(deed.subject_kind, "subject_kind", limits, limit="name_bytes"),
        subject_id=scopes.free_text(deed.subject_id, "subject_id", limits, limit="key_bytes"),
        reason=scopes.free_text(deed.reason, "reason", limits),
        details=scopes.metadata(deed.details, limits),
        now_at=scope.clock.now_us(),
    )


def _activity(connection: Connection, row: Row) -> Activity:
    return mapper(Activity, connection.dialect)([row])[0]


def _same(there: Activity, params: Mapping[str, Any]) -> Activity:
    """What is recorded under an id, if it is what is to be recorded again."""
    fields = ("actor", "action", "subject_kind", "subject_id", "reason")
    is_same = [getattr(there, name) for name in fields] == [text.unescape(params[name]) for name in fields]
    if not is_same or not text.identical(there.details, text.load(params["details"])):
        raise Conflict(f"something else was recorded under the id {there.id}")
    return there


def _filters(named: Mapping[str, str | None], where: Sequence[Filter]) -> list[Filter]:
    return [*(Filter("eq", value, column=name) for name, value in named.items() if value is not None), *listed(where)]


def _index(named: Mapping[str, str | None]) -> str:
    """What tells most about the rows that are wanted."""
    if named["subject_kind"] is not None:
        return "activity_by_subject"
    if named["actor"] is not None:
        return "activity_by_actor"
    return "activity_by_time" if named["action"] is None else "activity_by_action"


def _before(cursor: str | None, params: dict[str, Any], connection: Connection) -> str:
    """The condition that a page starts after a cursor."""
    if cursor is None:
        return ""
    before_at, before_id = decode_cursor(cursor, "activity", int, str)
    params.update(before_at=before_at, before_id=parse_id(before_id, "cursor"))
    cast = "::uuid" if connection.dialect.native_time else ""
    return f"\n  AND (created_at, id) < (:before_at, :before_id{cast})"


def _page(found: list[Activity], limit: int | None, most: int) -> Page[Activity]:
    if limit is None:
        if len(found) > most:
            raise LimitExceeded(f"there is more activity than list_rows = {most:,}: page it with limit= and cursor=")
        return Page(found)
    if len(found) <= limit:
        return Page(found)
    last = found[limit - 1]
    return Page(found[:limit], encode_cursor("activity", to_us(last.created_at), last.id))
