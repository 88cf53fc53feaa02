"""Flows: the saved states of CrewAI flows, and the feedback that they wait for.

After each of its methods a flow saves its whole state, and it resumes from the newest one. The newest state after each method is
kept, so the space of a flow grows with its methods, not with its runs. A flow that has asked a person for feedback is pending:
its question and its state at that time are kept until it continues. Flows of a ``user`` are invisible to other users, and a
``thread_id`` separates the flows of one conversation from those of another.
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
    """The state of a flow after one of its methods. ``seq`` is the order in which states were saved."""

    flow_uuid: str
    thread_id: str
    method: Annotated[str, Column("method_name")]
    seq: int
    state: Annotated[dict[str, Any], Column("state_data")]
    updated_at: datetime


class PendingFeedback(Struct, frozen=True):
    """The question that a flow asked a person, and its state at that time."""

    flow_uuid: str
    thread_id: str
    context: Annotated[dict[str, Any], Column("pending_context")]
    state: Annotated[dict[str, Any], Column("pending_state")]
    asked_at: Annotated[datetime, Column("pending_at")]


class Flow(Struct, frozen=True):
    """A flow. ``seq`` counts its saved states; ``asked_at`` is set while it waits for a person."""

    flow_uuid: str
    thread_id: str
    seq: int
    asked_at: Annotated[datetime | None, Column("pending_at")]
    created_at: datetime
    updated_at: datetime


queries = Queries(__package__, "flows.sql", FlowState, PendingFeedback, Flow)


class AsyncFlows(TenantStore):
    """The flows of one tenant. The flows of a ``user`` are invisible to other users."""

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
        """Save the state of a flow after a method as its newest state; with ``feedback``, it waits for a person.

        Raises:
            InvalidText: the state or the feedback is not JSON.
            LimitExceeded: the state or the feedback is over ``state_bytes``.
        """
        params = self._at(flow_uuid, thread_id, user) | {
            "method_name": scopes.name(method, "method", self._scope.limits),
            "state_data": self._json(state, "state"),
            "now_at": self._scope.clock.now_us(),
        }
        context = None if feedback is None else self._json(feedback, "feedback")
        await register_tenant(connection, params)
        seq = await queries.advance.one(connection, params)
        assert seq is not None
        row = await queries.put.one(connection, {**params, "seq": seq[0]})
        assert row is not None
        if context is not None:
            await queries.wait.all(connection, {**params, "context": context})
        return mapper(FlowState, connection.dialect)([row])[0]

    @reads
    async def find(
        self, connection: Connection, flow_uuid: str, *, thread_id: str = "", user: str | None = None
    ) -> FlowState | None:
        """Return the newest state of a flow, or ``None``."""
        row = await queries.latest.one(connection, self._at(flow_uuid, thread_id, user))
        return None if row is None else mapper(FlowState, connection.dialect)([row])[0]

    @reads
    async def history(
        self, connection: Connection, flow_uuid: str, *, thread_id: str = "", user: str | None = None
    ) -> Sequence[FlowState]:
        """List the newest state after each method of a flow, the newest first."""
        maximum = self._scope.limits.list_rows
        rows = await queries.history.all(connection, self._at(flow_uuid, thread_id, user) | {"limit": maximum + 1})
        if len(rows) > maximum:
            message = f"flow {flow_uuid!r} has more than list_rows = {maximum:,} methods"
            raise LimitExceeded(message, limit="list_rows", maximum=maximum)
        return mapper(FlowState, connection.dialect)(rows)

    @reads
    async def pending(
        self, connection: Connection, flow_uuid: str, *, thread_id: str = "", user: str | None = None
    ) -> PendingFeedback | None:
        """Return the feedback that a flow waits for, or ``None``."""
        row = await queries.pending.one(connection, self._at(flow_uuid, thread_id, user))
        return None if row is None else mapper(PendingFeedback, connection.dialect)([row])[0]

    @writes
    async def clear_pending(
        self, connection: Connection, flow_uuid: str, *, thread_id: str = "", user: str | None = None
    ) -> bool:
        """End a flow's wait for feedback, and return whether it waited. Its states stay."""
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
        """List flows, the one saved last first: all, those of a thread, or those that wait for a person. With ``limit``, a page.

        Raises:
            InvalidFilter: the cursor is not from this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(user_id=self._user(user), limit=rows_to_read(limit, limits))
        clause = self._conditions(thread_id, is_pending, params) + after_clause(
            cursor, "flows", _ORDER, params, connection.dialect
        )
        rows = await queries.list.all(connection, params, clause, "crewai_flow_by_recency")
        return page(mapper(Flow, connection.dialect)(rows), limit, limits, "flows", _cursor)

    @writes
    async def delete(
        self, connection: Connection, flow_uuid: str, *, thread_id: str = "", user: str | None = None
    ) -> bool:
        """Remove a flow with all its states, and return whether it existed."""
        params = self._at(flow_uuid, thread_id, user)
        existed = await queries.delete.one(connection, params) is not None
        await queries.delete_states.all(connection, params)
        return existed

    def _at(self, flow_uuid: str, thread_id: str, user: str | None) -> dict[str, Any]:
        return self._scope.params(
            flow_uuid=scopes.name(flow_uuid, "flow uuid", self._scope.limits),
            thread_id=scopes.free_text(thread_id, "thread id", self._scope.limits, limit="key_bytes"),
            user_id=self._user(user),
        )

    def _user(self, user: str | None) -> str:
        return "" if user is None else scopes.name(user, "user", self._scope.limits)

    def _conditions(self, thread_id: str | None, is_pending: bool | None, params: dict[str, Any]) -> str:
        clause = ""
        if thread_id is not None:
            limits = self._scope.limits
            params["thread_id"] = scopes.free_text(thread_id, "thread id", limits, limit="key_bytes")
            clause += "\n  AND thread_id = :thread_id"
        if is_pending is not None:
            clause += "\n  AND pending_at IS NOT NULL" if is_pending else "\n  AND pending_at IS NULL"
        return clause

    def _json(self, value: object, field: str) -> str:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise InvalidInput(f"{field} must be a dictionary with string keys", field=field)
        encoded = text.dump(dict(value), depth=self._scope.limits.json_depth)
        self._scope.limits.check("state_bytes", text.size(encoded), field)
        return encoded


class Flows(Blocking[AsyncFlows]):
    """The flows of one tenant. The flows of a ``user`` are invisible to other users."""

    save = blocking(AsyncFlows.save)
    find = blocking(AsyncFlows.find)
    history = blocking(AsyncFlows.history)
    pending = blocking(AsyncFlows.pending)
    clear_pending = blocking(AsyncFlows.clear_pending)
    list = blocking(AsyncFlows.list)
    delete = blocking(AsyncFlows.delete)


_ORDER: Mapping[str, Literal["time", "text"]] = {"updated_at": "time", "flow_uuid": "text", "thread_id": "text"}


def _cursor(flow: Flow) -> str:
    return encode_cursor("flows", to_us(flow.updated_at), flow.flow_uuid, flow.thread_id)
