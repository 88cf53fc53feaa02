"""The messages of an agent, over all of its sessions.

The logs of the sessions are merged by time, from their ends. Each log stays in its own order: a message that is followed by an
older one, because a clock was set back or a buffer was saved late, counts as old as that one. Messages have no index by time,
which every append would pay for: a page reads the logs of the sessions that were used last through their primary
key, backwards, and costs the more the further back it starts. To read one session from its beginning, use ``messages.list``.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ...clock import MINUTE_US, to_us
from ...core import scope as scopes
from ...core.blocking import Blocking, blocking
from ...core.filters import Filter
from ...core.paging import Page, decode_cursor, encode_cursor, page, rows_to_read
from ...core.queries import Queries, Query
from ...core.store import TenantStore, reads
from ...engines.protocol import Connection, Row
from ...errors import InvalidInput
from ...ids import parse as parse_id
from .log_reading import decoded
from .message_log import Message
from .messages import FILTERS

FIRST_SESSIONS = 32
"""Sessions that are read first; most agents have used few sessions at the time of their last messages."""
WIDER = 4
"""The factor for the number of sessions when others may have newer messages."""
CLOCK_MARGIN_MINUTES = 5
"""How much later a message may have been created than its session was used, by the clocks of different machines."""
_LISTING = "agent-messages"
_FIRST_ID = "00000000-0000-0000-0000-000000000000"
_END_US = 253_402_300_799_000_000
"""The end of the year 9999 in microseconds."""
_BOUND = 2
"""Columns at the end of each row: the number of sessions that were read, and the minute in which the last of them was used."""

_SESSION, _SEQ = (Message.__struct_fields__.index(name) for name in ("session_id", "seq"))
queries = Queries(__package__, "agent_messages.sql", Message)


class AsyncAgentMessages(TenantStore):
    """The messages of one tenant's agents. A message belongs to the agent of its session."""

    @reads
    async def list(
        self,
        connection: Connection,
        agent: str,
        *,
        since: datetime | None = None,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
        max_bytes: int | None = None,
    ) -> Page[Message]:
        """List the messages of an agent that its live sessions show, the newest first; with ``since``, those from a time on.

        Messages of one session are in the order of its log. With ``limit``, a page; with ``max_bytes`` too, a page ends before
        its contents have more bytes than that, but has at least one message.

        Raises:
            InvalidInput: ``since`` is not a datetime with a time zone.
            InvalidFilter: a filter or the cursor is not valid.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._params(agent, since, cursor) | {"limit": rows_to_read(limit, limits)}
        clause = FILTERS.compile(where, params, connection.dialect, limits)
        if limit is not None and max_bytes is not None:
            sizes = [row[0] for row in await _read(connection, queries.sizes, params, clause)]
            limit = min(limit, _fitting(sizes, max_bytes))
            params["limit"] = limit + 1
        rows = await _read(connection, queries.list, params, clause)
        messages = await decoded(connection, [row[: -_BOUND - 1] for row in rows], self._engine)
        moments = {message.id: row[-_BOUND - 1] for message, row in zip(messages, rows, strict=True)}
        return page(messages, limit, limits, "messages", lambda last: _cursor(last, moments[last.id]))

    @reads
    async def last(self, connection: Connection, agent: str, count: int = 50) -> Sequence[Message]:
        """Return the last messages of an agent, over all of its live sessions, the oldest of them first."""
        params = self._params(agent, None, None) | {"limit": rows_to_read(count, self._scope.limits) - 1}
        rows = await _read_messages(connection, params, "")
        return (await decoded(connection, [row[: -_BOUND - 1] for row in rows], self._engine))[::-1]

    def _params(self, agent: str, since: datetime | None, cursor: str | None) -> dict[str, Any]:
        if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
            raise InvalidInput(f"since must be a datetime with a time zone, not {since!r}", field="since")
        since_us = None if since is None else to_us(since, "since")
        before_us, before_id, before_seq = _END_US, _FIRST_ID, 0
        if cursor is not None:
            before_us, before_id, before_seq = decode_cursor(cursor, _LISTING, int, str, int)
        return self._scope.params(
            agent_id=scopes.name(agent, "agent", self._scope.limits),
            since_at=since_us,
            since_minute=0 if since_us is None else since_us // MINUTE_US - CLOCK_MARGIN_MINUTES,
            before_at=before_us,
            before_id=parse_id(before_id, "cursor"),
            before_seq=before_seq,
        )


class AgentMessages(Blocking[AsyncAgentMessages]):
    """The messages of one tenant's agents. A message belongs to the agent of its session."""

    list = blocking(AsyncAgentMessages.list)
    last = blocking(AsyncAgentMessages.last)


async def _read_messages(connection: Connection, params: dict[str, Any], clause: str) -> builtins.list[Row]:
    rows = await _read(connection, queries.list, params, clause)
    # The database would copy the contents to sort the rows.
    return sorted(rows, key=lambda row: (row[-_BOUND - 1], row[_SESSION], row[_SEQ]), reverse=True)


async def _read(connection: Connection, query: Query, params: dict[str, Any], clause: str) -> builtins.list[Row]:
    """Return the rows of the newest messages, from as many sessions as can have them."""
    sessions = FIRST_SESSIONS
    while True:
        all_rows = await query.all(connection, {**params, "sessions": sessions}, clause, "sessions_by_agent")
        rows = [row for row in all_rows if row[-_BOUND - 1] is not None]
        count, oldest_minute = all_rows[0][-_BOUND:]
        if count < sessions:
            return rows
        # Sessions that were not read were not used later than the last one that was.
        others_us = (oldest_minute + 1 + CLOCK_MARGIN_MINUTES) * MINUTE_US
        if len(rows) >= params["limit"] and _us(min(row[-_BOUND - 1] for row in rows)) >= others_us:
            return rows
        sessions *= WIDER


def _fitting(sizes: Sequence[int], max_bytes: int) -> int:
    """Return how many of the first contents have at most ``max_bytes`` together; at least 1."""
    total = 0
    for number, size in enumerate(sizes):
        total += size
        if total > max_bytes:
            return max(number, 1)
    return max(len(sizes), 1)


def _cursor(last: Message, moment: Any) -> str:
    return encode_cursor(_LISTING, _us(moment), last.session_id, last.seq)


def _us(moment: Any) -> int:
    return to_us(moment) if isinstance(moment, datetime) else int(moment)
