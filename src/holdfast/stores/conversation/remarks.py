"""Remarks: what people think of an agent's work where no message is kept here that it could be about.

Feedback on a message lives with its message (``feedback``). A remark stands by itself; it may carry the number that its author's
program has for what it is about.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Struct

from ...core import scope as scopes
from ...core.blocking import Blocking, blocking
from ...core.paging import Page, decode_cursor, encode_cursor, rows_to_read
from ...core.queries import Queries
from ...core.rows import Column, mapper
from ...core.store import TenantStore, reads, writes
from ...engines.protocol import Connection
from ...errors import InvalidInput, LimitExceeded
from ...ids import Id
from ...ids import parse as parse_id
from ..objects.registration import register_tenant
from .feedback import ISSUE_TYPES, IssueType

_NUMBER_MOST = 2**63
_FIRST = "00000000-0000-0000-0000-000000000000"


class Remark(Struct, frozen=True):
    """What somebody thinks. ``issue_type`` is empty when nothing is wrong."""

    id: Id
    user: Annotated[str, Column("user_id")]
    is_positive: bool
    feedback_text: str
    issue_type: IssueType | Literal[""]
    message_number: int | None
    created_at: datetime
    updated_at: datetime


queries = Queries(__package__, "remarks.sql", Remark)


class AsyncRemarks(TenantStore):
    """The remarks of one tenant's users. Those of one ``user`` are not seen by another."""

    @writes
    async def create(
        self,
        connection: Connection,
        feedback_text: str,
        *,
        is_positive: bool,
        issue_type: IssueType | None = None,
        message_number: int | None = None,
        user: str | None = None,
    ) -> Remark:
        """A remark.

        Raises:
            InvalidInput: it says nothing, or its issue type is none.
            LimitExceeded: it is over ``text_bytes``.
        """
        if not isinstance(is_positive, bool):
            raise InvalidInput(f"is_positive must be true or false, not {is_positive!r}")
        if issue_type is not None and issue_type not in ISSUE_TYPES:
            raise InvalidInput(f"issue_type must be one of {', '.join(ISSUE_TYPES)}, not {issue_type!r}")
        params = self._at(user) | {
            "id": self._scope.ids.new(),
            "is_positive": is_positive,
            "feedback_text": scopes.name(feedback_text, "feedback_text", self._scope.limits, limit="text_bytes"),
            "issue_type": issue_type or "",
            "message_number": _number(message_number),
            "now_at": self._scope.clock.now_us(),
        }
        await register_tenant(connection, params)
        row = await queries.create.one(connection, params)
        assert row is not None
        return mapper(Remark, connection.dialect)([row])[0]

    @reads
    async def list(
        self, connection: Connection, *, user: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Page[Remark]:
        """A user's remarks, the oldest first. With ``limit``, a page.

        Raises:
            InvalidFilter: the cursor is not of this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        after = _FIRST if cursor is None else parse_id(decode_cursor(cursor, "remarks", str)[0], "cursor")
        params = self._at(user) | {"after": after, "limit": rows_to_read(limit, limits)}
        found = mapper(Remark, connection.dialect)(await queries.list.all(connection, params))
        most = limits.list_rows if limit is None else limit
        if limit is None and len(found) > most:
            raise LimitExceeded(f"there are more than list_rows = {most:,} remarks: page them with limit= and cursor=")
        return Page(found[:most], encode_cursor("remarks", found[most - 1].id) if len(found) > most else None)

    @writes
    async def delete(self, connection: Connection, id: str, *, user: str | None = None) -> bool:
        """Remove a remark; whether it was there."""
        params = self._at(user) | {"id": parse_id(id, "id of a remark")}
        return await queries.delete.one(connection, params) is not None

    def _at(self, user: str | None) -> dict[str, Any]:
        return self._scope.params(user_id="" if user is None else scopes.name(user, "user", self._scope.limits))


class Remarks(Blocking[AsyncRemarks]):
    """The remarks of one tenant's users. Those of one ``user`` are not seen by another."""

    create = blocking(AsyncRemarks.create)
    list = blocking(AsyncRemarks.list)
    delete = blocking(AsyncRemarks.delete)


def _number(value: int | None) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not -_NUMBER_MOST <= value < _NUMBER_MOST:
        raise InvalidInput(f"message_number is a whole number of 64 bits, not {value!r}")
    return value
