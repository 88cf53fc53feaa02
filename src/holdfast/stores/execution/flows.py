"""Flows: what a CrewAI flow has come to, and what it waits for.

After each of its methods a flow saves its whole state. The newest one is what it goes on from; of each method the newest is
kept, so a flow takes as much room as it has methods, however often it runs. A flow that has asked a person something is pending:
its question and its state at that moment are kept beside it until it goes on. Flows of one ``user`` are not seen by
another, and a ``thread_id`` keeps the flows of one conversation apart from those of the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Struct

from ...clock import to_us
from ...core import scope as scopes
from ...core import text
from ...core.blocking import Blocking, blocking
from ...core.paging import Page, after_clause, encode_cursor, page, rows_to_read
from ...core.queries import Queries
from ...core.registration import register_tenant
from ...core.rows import Column, mapper
from ...core.store import TenantStore, reads, writes
from ...engines.protocol import Connection
from ...errors import InvalidInput, LimitExceeded


class FlowState(Struct, frozen=True):
    """The state of a flow after one of its methods. ``seq`` says in which order they were saved."""

    flow_uuid: str
    thread_id: str
    method: Annotated[str, Column("method_name")]
    seq: int
    state: Annotated[dict[str, Any], Column("state_data")]
    updated_at: datetime


class PendingFeedback(Struct, frozen=True):
    """What a flow asked a person, and its state when it did."""

    flow_uuid: str
    thread_id: str
    context: Annotated[dict[str, Any], Column("pending_context")]
    state: Annotated[dict[str, Any], Column("pending_state")]
    asked_at: Annotated[datetime, Column("pending_at")]


class Flow(Struct, frozen=True):
    """A flow. ``seq`` is how often its state was saved; ``asked_at`` is there while it waits for a person."""

    flow_uuid: str
    thread_id: str
    seq: int
    asked_at: Annotated[datetime | None, Column("pending_at")]
    created_at: datetime
    updated_at: datetime


queries = Queries(__package__, "flows.sql", FlowState, PendingFeedback, Flow)


class AsyncFlows(TenantStore):
    """The flows of one tenant. Those of one ``user`` are not seen by another."""

    @writes
    async def save(
        self,
        connection: Connection,
        flow_uuid: str,
        *,
        method: str,
        state: Mapping[str, Any],
        feedback: Mapping[str, Any] | None = None,
        thread_id: str = "",
        user: str | None = None,
    ) -> FlowState:
        """Save the state of a flow after a method, which makes it the newest; with ``feedback``, it waits for a person.

        Raises:
            InvalidText: the state or the feedback is not JSON.
            LimitExceeded: one of them is over ``state_bytes``.
        """
        params = self._at(flow_uuid, thread_id, user) | {
            "method_name": scopes.name(method, "method", self._scope.limits),
            "state_data": self._json(state, "state"),
            "now_at": self._scope.clock.now_us(),
        }
        context = None if feedback is None else self._json(feedback, "feedback")
        await register_tenant(connection, params)
        numbered = await queries.advance.one(connection, params)
        assert numbered is not None
        row = await queries.put.one(connection, {**params, "seq": numbered[0]})
        assert row is not None
        if context is not None:
            await queries.wait.all(connection, {**params, "context": context})
        return mapper(FlowState, connection.dialect)([row])[0]

    @reads
    async def find(
        self, connection: Connection, flow_uuid: str, *, thread_id: str = "", user: str | None = None
    ) -> FlowState | None:
        """The newest state of a flow, or ``None``."""
        row = await queries.latest.one(connection, self._at(flow_uuid, thread_id, user))
        return None if row is None else mapper(FlowState, connection.dialect)([row])[0]

    @reads
    async def history(
        self, connection: Connection, flow_uuid: str, *, thread_id: str = "", user: str | None = None
    ) -> Sequence[FlowState]:
        """The newest state after each method of a flow, the newest of all first."""
        most = self._scope.limits.list_rows
        rows = await queries.history.all(connection, self._at(flow_uuid, thread_id, user) | {"limit": most + 1})
        if len(rows) > most:
            raise LimitExceeded(f"this flow has more than list_rows = {most:,} methods")
        return mapper(FlowState, connection.dialect)(rows)

    @reads
    async def pending(
        self, connection: Connection, flow_uuid: str, *, thread_id: str = "", user: str | None = None
    ) -> PendingFeedback | None:
        """What a flow waits for, or ``None`` if it waits for nobody."""
        row = await queries.pending.one(connection, self._at(flow_uuid, thread_id, user))
        return None if row is None else mapper(PendingFeedback, connection.dialect)([row])[0]

    @writes
    async def clear_pending(
        self, connection: Connection, flow_uuid: str, *, thread_id: str = "", user: str | None = None
    ) -> bool:
        """The flow waits no longer; whether it did. Its states stay."""
        return await queries.clear.one(connection, self._at(flow_uuid, thread_id, user)) is not None

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        thread_id: str | None = None,
        is_pending: bool | None = None,
        user: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Flow]:
        """Flows, the one saved last first; all, or those of a thread, or those that wait for a person. With ``limit``, a page.

        Raises:
            InvalidFilter: the cursor is not of this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(user_id=self._user(user), limit=rows_to_read(limit, limits))
        clause = self._narrowed(thread_id, is_pending, params) + after_clause(
            cursor, "flows", _SORTED, params, connection.dialect
        )
        rows = await queries.list.all(connection, params, clause, "crewai_flow_by_recency")
        return page(mapper(Flow, connection.dialect)(rows), limit, limits, "flows", _cursor)

    @writes
    async def delete(
        self, connection: Connection, flow_uuid: str, *, thread_id: str = "", user: str | None = None
    ) -> bool:
        """Remove a flow with all its states; whether it was there."""
        params = self._at(flow_uuid, thread_id, user)
        there = await queries.delete.one(connection, params) is not None
        await queries.delete_states.all(connection, params)
        return there

    def _at(self, flow_uuid: str, thread_id: str, user: str | None) -> dict[str, Any]:
        return self._scope.params(
            flow_uuid=scopes.name(flow_uuid, "flow uuid", self._scope.limits),
            thread_id=scopes.free_text(thread_id, "thread id", self._scope.limits, limit="key_bytes"),
            user_id=self._user(user),
        )

    def _user(self, user: str | None) -> str:
        return "" if user is None else scopes.name(user, "user", self._scope.limits)

    def _narrowed(self, thread_id: str | None, is_pending: bool | None, params: dict[str, Any]) -> str:
        clause = ""
        if thread_id is not None:
            limits = self._scope.limits
            params["thread_id"] = scopes.free_text(thread_id, "thread id", limits, limit="key_bytes")
            clause += "\n  AND thread_id = :thread_id"
        if is_pending is not None:
            clause += "\n  AND pending_at IS NOT NULL" if is_pending else "\n  AND pending_at IS NULL"
        return clause

    def _json(self, value: object, what: str) -> str:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise InvalidInput(f"{what} must be a dictionary with string keys")
        stored = text.dump(dict(value), depth=self._scope.limits.json_depth)
        self._scope.limits.check("state_bytes", text.size(stored), what)
        return stored


class Flows(Blocking[AsyncFlows]):
    """The flows of one tenant. Those of one ``user`` are not seen by another."""

    save = blocking(AsyncFlows.save)
    find = blocking(AsyncFlows.find)
    history = blocking(AsyncFlows.history)
    pending = blocking(AsyncFlows.pending)
    clear_pending = blocking(AsyncFlows.clear_pending)
    list = blocking(AsyncFlows.list)
    delete = blocking(AsyncFlows.delete)


_SORTED: Mapping[str, Literal["time", "text"]] = {"updated_at": "time", "flow_uuid": "text", "thread_id": "text"}


def _cursor(flow: Flow) -> str:
    return encode_cursor("flows", to_us(flow.updated_at), flow.flow_uuid, flow.thread_id)
