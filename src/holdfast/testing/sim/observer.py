"""Read the committed state of a simulation's database, bypassing the code under test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import apsw

from ..sqlite_state import state_of
from .machine import drop

T = TypeVar("T")
Key = tuple[str, str]
"""A tenant and an id."""


class RunRow(NamedTuple):
    """A run."""

    tenant: str
    id: str
    session: str
    status: str
    iteration: int
    epoch: int
    attempts: int
    max_attempts: int
    pause_until: int | None
    stop_reason: str | None
    input_tokens: int
    output_tokens: int


class StepRow(NamedTuple):
    """A step of a run."""

    tenant: str
    run: str
    iteration: int
    epoch: int
    state: str
    first_seq: int | None
    last_seq: int | None
    input_tokens: int
    output_tokens: int


class CallRow(NamedTuple):
    """A tool call."""

    tenant: str
    run: str
    id: str
    safety: str
    status: str
    epoch: int
    attempts: int
    step: int | None
    result: str | None


class MessageRow(NamedTuple):
    """A message."""

    tenant: str
    session: str
    seq: int
    id: str
    role: str | None
    content: str
    token_count: int


class SessionRow(NamedTuple):
    """A session."""

    tenant: str
    id: str
    next_seq: int
    message_count: int
    token_count: int


class Rows:
    """The committed rows that the checks use, at one point in time."""

    def __init__(self, connection: apsw.Connection | None = None, last: Rows | None = None) -> None:
        self._raw: dict[str, list[Any]] = {}
        self._read, self._last = connection.execute if connection is not None else None, last
        self.runs = self._table(_RUNS, _runs, "runs")
        self.steps = self._table(_STEPS, _steps, "steps")
        self.calls = self._table(_CALLS, _calls, "calls")
        self.messages = self._table(_MESSAGES, _messages, "messages")
        self.sessions = self._table(_SESSIONS, _sessions, "sessions")
        self.agents: dict[Key, Any] = self._table(_AGENTS, _agents, "agents")
        self._read = self._last = None

    def _table(self, sql: str, parse: Callable[[list[Any]], T], name: str) -> T:
        """Read a table; it is parsed again only if it has changed."""
        raw = self._raw[name] = [] if self._read is None else self._read(sql).fetchall()
        if self._last is not None and self._last._raw[name] == raw:
            same: T = getattr(self._last, name)
            return same
        return parse(raw)


def _runs(rows: list[Any]) -> dict[Key, RunRow]:
    return {(row[0], row[1]): RunRow._make(row) for row in rows}


def _steps(rows: list[Any]) -> dict[Key, list[StepRow]]:
    collected: dict[Key, list[StepRow]] = {}
    for row in rows:
        collected.setdefault((row[0], row[1]), []).append(StepRow._make(row))
    return collected


def _calls(rows: list[Any]) -> dict[Key, dict[str, CallRow]]:
    collected: dict[Key, dict[str, CallRow]] = {}
    for row in rows:
        collected.setdefault((row[0], row[1]), {})[row[2]] = CallRow._make(row)
    return collected


def _messages(rows: list[Any]) -> dict[Key, list[MessageRow]]:
    collected: dict[Key, list[MessageRow]] = {}
    for row in rows:
        collected.setdefault((row[0], row[1]), []).append(MessageRow._make(row))
    return collected


def _sessions(rows: list[Any]) -> dict[Key, SessionRow]:
    return {(row[0], row[1]): SessionRow._make(row) for row in rows}


def _agents(rows: list[Any]) -> dict[Key, Any]:
    return {(row[0], row[1]): row[2:] for row in rows}


_RUNS = """SELECT tenant_id, id, session_id, status, iteration, epoch, attempts, max_attempts, pause_until, stop_reason,
    input_tokens, output_tokens FROM runs"""
_STEPS = """SELECT tenant_id, run_id, iteration, epoch, state, first_seq, last_seq, input_tokens, output_tokens
    FROM run_steps ORDER BY tenant_id, run_id, iteration"""
_CALLS = """SELECT tenant_id, run_id, id, safety, status, epoch, attempts, step, result FROM tool_calls
    ORDER BY tenant_id, run_id, iteration, place"""
_MESSAGES = """SELECT tenant_id, session_id, seq, id, role, content, token_count FROM messages
    ORDER BY tenant_id, session_id, seq"""
_SESSIONS = "SELECT tenant_id, id, next_seq, message_count, token_count FROM sessions"
_AGENTS = "SELECT tenant_id, id, display_name, version FROM agents WHERE deleted_at IS NULL"


class Observer:
    """A connection that observes the database from outside the simulation: no faults affect it, and it changes nothing."""

    def __init__(self, path: str) -> None:
        self._connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        self._connection.wal_autocheckpoint(0)
        self._version: Any = None
        self._rows_version: Any = None
        self._rows: Rows | None = None

    def changed(self) -> bool:
        """Return whether something was committed since the last call."""
        version = self._connection.pragma("data_version")
        previous, self._version = self._version, version
        return bool(previous != version)

    def rows(self, last: Rows | None = None) -> Rows:
        """Return the committed rows. Passing the previous rows as ``last`` avoids parsing unchanged tables."""
        version = self._connection.pragma("data_version")
        if self._rows is None or self._rows_version != version:
            self._connection.execute("BEGIN")
            self._rows, self._rows_version = Rows(self._connection, last), version
            self._connection.execute("COMMIT")
        return self._rows

    def select(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self._connection.execute(sql, args).fetchall()

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table."""
        self._connection.execute("BEGIN")
        state = state_of(self._connection)
        self._connection.execute("COMMIT")
        return state

    def close(self) -> None:
        """Close the connection without a WAL checkpoint."""
        drop(self._connection)
