"""The log of a session: the stored form of its entries, and the statements that insert them.

This is the only module that inserts messages, except that the one statement of a step includes the parts of
``message_log.sql``. ``append_group`` appends to logs (see ``engines.protocol.Group``). On PostgreSQL it takes one
statement per tenant: an UPDATE reserves the positions in each session's log, and an INSERT uses those it returned. On
SQLite and on tables that Citus distributes it takes one UPDATE per append and one INSERT per message, in one
transaction. Stores that write messages as part of a larger transaction call ``append_at``, or ``insert`` if they know
the positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Struct
from msgspec.structs import asdict, astuple

from ...clock import MINUTE_US, from_us
from ...core import text
from ...core.filters import id_list
from ...core.queries import Queries, omit_default
from ...core.rows import Column, mapper
from ...engines.protocol import Connection, Row, in_one_commit, in_one_statement
from ...errors import Conflict, NotFound
from ...ids import Id
from .views import LAST, seq_of

Role = Literal["user", "assistant", "system"]


class Message(Struct, frozen=True, gc=False):
    """One entry of a session's log."""

    id: Id
    session_id: Id
    seq: Annotated[int, Column(f"seq & {LAST}")]
    kind: Annotated[str, "plain"]
    role: Role | None
    content: Any
    token_count: int
    metadata: dict[str, Any]
    is_preserved: bool
    is_summary: bool
    created_at: datetime
    updated_at: datetime


queries = Queries(__package__, "message_log.sql", Message)
HEAVY_CHARS = 500_000
"""An append with more characters of content than this must not be written in an event loop."""


class LogEntry(Struct, frozen=True, gc=False):
    """A validated message in its stored form. The fields are columns of the table, in their order."""

    id: str
    kind: str
    role: str | None
    content: str
    token_count: int
    metadata: str
    is_preserved: bool
    is_summary: bool

    def same_as(self, message: Message) -> bool:
        """Return whether an append of this entry would have stored that message."""
        return (
            (self.kind, self.role) == (message.kind, message.role)
            and text.identical(text.load(self.content), message.content)
            and text.identical(text.load(self.metadata), message.metadata)
        )


class Append(Struct, frozen=True, gc=False):
    """One or more entries for the end of one session's log, to be appended together or not at all."""

    tenant: str
    session_id: str
    entries: Sequence[LogEntry]
    now_us: int
    is_heavy: bool = False
    """Whether it is too large to be written in an event loop."""


class AppendResult(Struct, frozen=True, gc=False):
    """The messages of an append, and whether the session's policy requires a compaction now."""

    messages: list[Message]
    compaction_due: bool = False


class AppendGroup:
    """A group of appends that are written together."""

    mixes_keys = True

    def key(self, item: Append) -> object:
        return item.tenant

    def id_of(self, item: Append) -> str:
        return item.entries[0].id

    async def run(
        self, connection: Connection, items: Sequence[Append], *, careful: bool
    ) -> Sequence[AppendResult | Exception]:
        if careful:
            return [await _append_carefully(connection, item) for item in items]
        async with in_one_commit(connection):
            return [*map(_result_or_error, items, await _write_all(connection, items))]


append_group = AppendGroup()


async def append_at(connection: Connection, append: Append) -> Row | None:
    """Append inside the caller's transaction. Returns the first position and whether a compaction is due, for ``append_result``;
    ``None`` if no live session has the id.

    Raises:
        AlreadyExists: a message with one of the ids exists.
    """
    (reserved,) = await _write_all(connection, [append])
    return reserved


async def insert(
    connection: Connection, tenant: str, session_id: str, rows: Sequence[tuple[int, LogEntry, int, int]]
) -> None:
    """Insert entries in a transaction that has locked the session and updates its counters. Each entry comes with its position
    and the times, in microseconds, when it was created and updated.

    Raises:
        AlreadyExists: a message with one of the ids, or at one of the positions, exists.
    """
    if not rows:
        return
    if in_one_statement(connection):
        arrays = message_arrays([(0, position, entry, created, updated) for position, entry, created, updated in rows])
        await queries.insert_many.all(connection, {**arrays, "tenant_id": tenant, "session_id": session_id})
    else:
        await _insert_each(connection, [(tenant, session_id, *row) for row in rows])


async def _insert_each(connection: Connection, rows: Iterable[tuple[str, str, int, LogEntry, int, int]]) -> None:
    at = from_us if connection.dialect.native_time else int
    values = [
        (tenant, session_id, position, *astuple(entry), at(created), at(updated))
        for tenant, session_id, position, entry, created, updated in rows
    ]
    await queries.insert.many_in_order(connection, _INSERTED, values)


_INSERTED = ("tenant_id", "session_id", "seq", *LogEntry.__struct_fields__, "created_at", "updated_at")


def message_arrays(rows: Sequence[tuple[int, int, LogEntry, int, int]]) -> dict[str, Any]:
    """Return entries as the parameters of the part ``new_messages``. Each entry comes with the number of its head, its position
    relative to the head, and its times."""
    values = [(head, position, *astuple(entry), created, updated) for head, position, entry, created, updated in rows]
    columns = map(list, zip(*values, strict=True)) if values else ([] for _ in _ARRAYS)
    arrays: dict[str, Any] = dict(zip(_ARRAYS, columns, strict=True))
    for name, default in _DEFAULTS.items():
        arrays[name] = omit_default(arrays[name], default)
    if arrays["updated_at"] == arrays["created_at"]:
        arrays["updated_at"] = []
    return arrays


_ARRAYS = ("head", "place", *LogEntry.__struct_fields__, "created_at", "updated_at")
_DEFAULTS: Mapping[str, Any] = {
    "place": 0,
    "kind": "message",
    "token_count": 0,
    "metadata": "{}",
    "is_preserved": False,
    "is_summary": False,
}
"""Defaults of the part ``new_messages``: encoding a value costs the driver more than it costs the server."""


async def _write_all(connection: Connection, appends: Sequence[Append]) -> list[Row | None]:
    """Write appends. Returns for each the first position and whether a compaction is due; ``None`` if no live session has the
    id."""
    if not appends:
        return []
    if in_one_statement(connection):
        return await _write_together(connection, appends)
    return await _write_each(connection, appends)


async def _write_each(connection: Connection, appends: Sequence[Append]) -> list[Row | None]:
    """Reserve positions and insert messages with one statement each."""
    reserved = await (_advance_pipelined if connection.distributed else _advance_each)(connection, appends)
    rows = [
        (append.tenant, append.session_id, position, entry, append.now_us, append.now_us)
        for append, head in zip(appends, reserved, strict=True)
        if head is not None
        for position, entry in enumerate(append.entries, head[0])
    ]
    await _insert_each(connection, rows)
    return reserved


async def _advance_each(connection: Connection, appends: Sequence[Append]) -> list[Row | None]:
    """Reserve positions on SQLite."""
    reserved = []
    for append in appends:
        params = _advance_params(append)
        row = await queries.advance_this_minute.one(connection, params)
        reserved.append(await queries.advance.one(connection, params) if row is None else row)
    return reserved


async def _advance_pipelined(connection: Connection, appends: Sequence[Append]) -> list[Row | None]:
    """Reserve positions on Citus, in one round trip. Sorted, so that concurrent groups lock sessions in the same order."""
    order = sorted(range(len(appends)), key=lambda number: appends[number].session_id)
    params = [_advance_params(appends[number], number) for number in order]
    rows = {row[2]: row for row in await queries.advance.all_of_each(connection, params)}
    return [rows.get(number) for number in range(len(appends))]


def _advance_params(append: Append, number: int = 0) -> dict[str, Any]:
    return {
        "number": number,
        "tenant_id": append.tenant,
        "session_id": append.session_id,
        "rows": len(append.entries),
        "tokens": sum([entry.token_count for entry in append.entries]),
        "now_at": append.now_us,
        "now_minute": append.now_us // MINUTE_US,
    }


async def _write_together(connection: Connection, appends: Sequence[Append]) -> list[Row | None]:
    """Reserve positions and insert messages, in one round trip and one commit: with one statement per tenant, or per append if
    each append is one message and they are of different tenants."""
    by_tenant: dict[str, list[Append]] = {}
    # Tenants are sorted, and the sessions of each tenant, so that concurrent groups lock sessions in the same order.
    for append in sorted(appends, key=lambda append: (append.tenant, append.session_id)):
        by_tenant.setdefault(append.tenant, []).append(append)
    if (len(appends) == 1 or len(by_tenant) > 1) and all(len(append.entries) == 1 for append in appends):
        single_params = [_append_one_params(append) for group in by_tenant.values() for append in group]
        rows = await queries.append_one.all_of_each(connection, single_params)
    else:
        params = [_append_params(tenant, group) for tenant, group in by_tenant.items()]
        rows = await queries.append.all_of_each(connection, params)
    heads: dict[tuple[str, str], Row] = {}
    for tenant, session_id, position, due in rows:
        first = heads.get((tenant, session_id), (position,))[0]
        heads[tenant, session_id] = (first, due)
    reserved: list[Row | None] = []
    for append in appends:
        session = (append.tenant, append.session_id)
        head = heads.get(session)
        reserved.append(head)
        if head is not None:
            heads[session] = (head[0] + len(append.entries), head[1])
    return reserved


def _append_one_params(append: Append) -> dict[str, Any]:
    return {
        **asdict(append.entries[0]),
        "tenant_id": append.tenant,
        "session_id": append.session_id,
        "now_at": append.now_us,
        "now_minute": append.now_us // MINUTE_US,
    }


def _append_params(tenant: str, appends: Sequence[Append]) -> dict[str, Any]:
    """Return the appends of one tenant as the parameters of one statement."""
    sessions = sorted({append.session_id for append in appends})
    numbers = {session_id: number for number, session_id in enumerate(sessions)}
    rows, tokens = [0] * len(sessions), [0] * len(sessions)
    messages = []
    for append in appends:
        number, now = numbers[append.session_id], append.now_us
        for entry in append.entries:
            messages.append((number + 1, rows[number], entry, now, now))
            rows[number] += 1
            tokens[number] += entry.token_count
    latest = max([append.now_us for append in appends])
    return {
        **message_arrays(messages),
        "tenant_id": tenant,
        "session_ids": sessions,
        "rows": rows,
        "tokens": tokens,
        "now_at": latest,
        "now_minute": latest // MINUTE_US,
    }


def _result_or_error(append: Append, reserved: Row | None) -> AppendResult | Exception:
    return _missing(append.session_id) if reserved is None else append_result(append, reserved)


def append_result(append: Append, reserved: Row) -> AppendResult:
    """Return the result of an append, given the position of its first entry and whether a compaction is due."""
    at, session_id = from_us(append.now_us), append.session_id
    messages = [
        message_of(entry, session_id, seq, at, at) for seq, entry in enumerate(append.entries, seq_of(reserved[0]))
    ]
    return AppendResult(messages, bool(reserved[1]))


def message_of(entry: LogEntry, session_id: str, seq: int, created_at: datetime, updated_at: datetime) -> Message:
    """Return the message for an entry at a position of a session's log."""
    return Message(
        entry.id,
        session_id,
        seq,
        entry.kind,
        entry.role,  # type: ignore[arg-type]  # checked when the entry was made
        text.load(entry.content),
        entry.token_count,
        {} if entry.metadata == "{}" else text.load(entry.metadata),
        entry.is_preserved,
        entry.is_summary,
        created_at,
        updated_at,
    )


def entry_of(message: Message, id: str) -> LogEntry:
    """Return a stored message as an entry under another id."""
    return LogEntry(
        id,
        message.kind,
        message.role,
        text.dump(message.content, depth=text.MAX_DEPTH),
        message.token_count,
        text.dump(message.metadata, depth=text.MAX_DEPTH),
        message.is_preserved,
        message.is_summary,
    )


async def _append_carefully(connection: Connection, append: Append) -> AppendResult | Exception:
    """Append, unless an earlier attempt of the same append was stored."""
    repeated = await _find_repeated(connection, append)
    if repeated is not None:
        return repeated
    async with in_one_commit(connection):
        (reserved,) = await _write_all(connection, [append])
    return _result_or_error(append, reserved)


async def _find_repeated(connection: Connection, append: Append) -> AppendResult | Exception | None:
    """Return the first result, or a conflict, of an append whose ids exist; ``None`` if none of them exists."""
    ids = [entry.id for entry in append.entries]
    params = {"tenant_id": append.tenant, "session_id": append.session_id, "ids": id_list(ids, connection.dialect)}
    rows = await queries.by_ids.all(connection, params)
    existing = {message.id: message for message in mapper(Message, connection.dialect)(rows)}
    if not existing:
        return None
    # A missing session is reported first, as it is for a new append: the answer must not depend on concurrent appends.
    if await queries.live_session.one(connection, params) is None:
        return _missing(append.session_id)
    if len(existing) < len(ids):
        return Conflict("some of these messages exist and some do not; append the missing ones", reason="partly_stored")
    for entry in append.entries:
        message = existing[entry.id]
        if message.session_id != append.session_id or not entry.same_as(message):
            return Conflict(f"message {entry.id} exists with other content", reason="other_content")
    return AppendResult([existing[id] for id in ids])


def _missing(session_id: str) -> NotFound:
    return NotFound(f"session {session_id} does not exist", noun="session", key=session_id)
