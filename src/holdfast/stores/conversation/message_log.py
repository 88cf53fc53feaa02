"""The log of a session: what an entry is, and how entries get their places in it.

Appends are a group (see ``engines.protocol.Group``): whatever has queued up is written together. On PostgreSQL that is one
round trip and one transaction, with one statement for a tenant; on SQLite it is one UPDATE for each session and one INSERT for
each message, or for ten of them where all are of one session, inside the writer's shared commit. Other stores that write
messages as part of a larger transaction call ``append_at``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Struct
from msgspec.structs import astuple

from ...clock import MINUTE_US, from_us
from ...core import text
from ...core.filters import id_list
from ...core.queries import Queries, unless_usual
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


queries = Queries(__package__, "messages.sql", Message)
HEAVY_CHARS = 500_000
"""Characters of contents from which on an append must not be written in an event loop."""


class Entry(Struct, frozen=True, gc=False):
    """A message that was checked and is ready to be stored."""

    id: str
    kind: str
    role: str | None
    content: str
    token_count: int
    metadata: str
    is_preserved: bool
    is_summary: bool

    def same_as(self, there: Message) -> bool:
        """Whether appending this again would have made that."""
        return (
            (self.kind, self.role) == (there.kind, there.role)
            and text.identical(text.load(self.content), there.content)
            and text.identical(text.load(self.metadata), there.metadata)
        )


class Append(Struct, frozen=True, gc=False):
    """Entries, at least one, for the end of one session's log: all of them or none."""

    tenant: str
    session_id: str
    entries: Sequence[Entry]
    now_us: int
    is_heavy: bool = False
    """Whether it is more than an event loop should write by itself."""


class Appended(Struct, frozen=True, gc=False):
    """What an append made, and whether it brought the session to the point where its policy wants it compacted."""

    messages: list[Message]
    compaction_due: bool = False


class AppendGroup:
    """Appends, done together."""

    mixes_keys = True

    def key(self, item: Append) -> object:
        return item.tenant

    def id_of(self, item: Append) -> str:
        return item.entries[0].id

    async def run(
        self, connection: Connection, items: Sequence[Append], *, careful: bool
    ) -> Sequence[Appended | Exception]:
        if not careful:
            async with in_one_commit(connection):
                return [*map(_outcome, items, await _reserve_and_insert(connection, items))]
        outcomes = [await _already_there(connection, item) for item in items]
        waiting = [place for place, outcome in enumerate(outcomes) if outcome is None]
        async with in_one_commit(connection):
            reserved = await _reserve_and_insert(connection, [items[place] for place in waiting])
        for place, found in zip(waiting, reserved, strict=True):
            outcomes[place] = _outcome(items[place], found)
        return [outcome for outcome in outcomes if outcome is not None]


append_group = AppendGroup()


async def append_at(connection: Connection, append: Append) -> Row | None:
    """Add entries to a session's log as part of a larger transaction: the place of the first and whether the session is to be
    compacted now, from which ``appended`` makes the messages; or ``None`` where there is no live session.

    Raises:
        AlreadyExists: there is a message with one of the ids.
    """
    (found,) = await _reserve_and_insert(connection, [append])
    return found


async def insert_all(
    connection: Connection, tenant: str, session_id: str, first: int, entries: Sequence[Entry], moments: Sequence[int]
) -> None:
    """Write entries, each of its moment, from a place of a session's log on, as part of a larger transaction that holds the
    session and counts them itself.

    Raises:
        AlreadyExists: there is a message with one of the ids.
    """
    if not entries:
        return
    if not in_one_statement(connection):
        places = range(first, first + len(entries))
        rows = [*map(_row, places, entries, _times(connection, moments))]
        await queries.insert.many_alike(connection, _INSERTED, (tenant, session_id), rows)
        return
    columns = map(list, zip(*map(astuple, entries), strict=True))
    together: dict[str, Any] = dict(zip(Entry.__struct_fields__, columns, strict=True))
    together |= {name: unless_usual(together[name], usual) for name, usual in _USUAL.items() if name in together}
    together.update(tenant_id=tenant, session_id=session_id, first_seq=first, created_at=[*moments])
    await queries.insert_all.all(connection, together)


async def _reserve_and_insert(connection: Connection, appends: Sequence[Append]) -> list[Row | None]:
    """Write all entries; of each append the first place, and whether its session is to be compacted now; or ``None`` where
    there is no live session."""
    if not appends:
        return []
    if len(appends) == 1 and len(appends[0].entries) == 1:
        return [await _only_one(connection, appends[0])]
    if in_one_statement(connection):
        return await _in_one_exchange(connection, appends)
    return await _step_by_step(connection, appends)


async def _only_one(connection: Connection, append: Append) -> Row | None:
    """One message by itself, which is what most appends are."""
    params = _insert_params(append, append.entries[0])
    if in_one_statement(connection):
        found = _unless_missing(await queries.append_one.one(connection, params))
    else:
        found = await _advance(connection, params)
        if found is not None:
            params["seq"] = found[0]
            await queries.insert.one(connection, params)
    return found


def _unless_missing(row: Row | None) -> Row | None:
    """The row of an ``append_one``, unless there was no live session."""
    return None if row is None or row[0] is None else row


async def _advance(connection: Connection, params: Mapping[str, Any]) -> Row | None:
    """Reserve the next places in a session's log."""
    found = None if connection.distributed else await queries.advance_this_minute.one(connection, params)
    return found if found is not None else await queries.advance.one(connection, params)


class _Head(Struct, gc=False):
    """What several appends add to one session."""

    rows: int
    tokens: int
    now_us: int


def _heads(appends: Sequence[Append]) -> dict[str, _Head]:
    """What appends add to their sessions."""
    heads: dict[str, _Head] = {}
    for append in appends:
        entries, now_us = append.entries, append.now_us
        rows, tokens = len(entries), entries[0].token_count
        if rows > 1:
            tokens = sum([entry.token_count for entry in entries])
        head = heads.get(append.session_id)
        if head is None:
            heads[append.session_id] = _Head(rows, tokens, now_us)
        else:
            head.rows, head.tokens, head.now_us = head.rows + rows, head.tokens + tokens, max(head.now_us, now_us)
    return heads


def _by_tenant(appends: Sequence[Append]) -> dict[str, list[Append]]:
    """The appends of each tenant."""
    found: dict[str, list[Append]] = {}
    for append in appends:
        found.setdefault(append.tenant, []).append(append)
    return found


async def _step_by_step(connection: Connection, appends: Sequence[Append]) -> list[Row | None]:
    advance = _advance_together if connection.distributed else _advance_all
    found: dict[tuple[str, str], Row] = {}
    for tenant, its in _by_tenant(appends).items():
        reserved_here = await advance(connection, tenant, _heads(its))
        found |= {(tenant, session_id): place for session_id, place in reserved_here.items()}
    reserved: list[Row | None] = []
    rows: dict[tuple[str, str], list[tuple[Any, ...]]] = {session: [] for session in found}
    for append in appends:
        session, (now,) = (append.tenant, append.session_id), _times(connection, [append.now_us])
        place = found.get(session)
        reserved.append(place)
        if place is not None:
            seq, due = place
            for entry in append.entries:
                rows[session].append(_row(seq, entry, now))
                seq += 1
            found[session] = (seq, due)
    if len(rows) == 1:
        ((only, its_rows),) = rows.items()
        await queries.insert.many_alike(connection, _INSERTED, only, its_rows)
    elif connection.distributed:  # a group there is of one tenant
        several = [(session_id, *row) for (_, session_id), its_rows in rows.items() for row in its_rows]
        await queries.insert.many_alike(connection, _INSERTED, (appends[0].tenant,), several)
    elif rows:
        await queries.insert.many_in_order(connection, _INSERTED, _of_several(rows))
    return reserved


async def _advance_together(connection: Connection, tenant: str, heads: Mapping[str, _Head]) -> dict[str, Row]:
    """``_advance_all`` in one statement, on PostgreSQL."""
    if len(heads) == 1:
        ((session_id, head),) = heads.items()
        found = await _advance(connection, _advance_params(tenant, session_id, head))
        return {} if found is None else {session_id: found}
    sessions = sorted(heads)
    latest = max(head.now_us for head in heads.values())
    params = {
        "tenant_id": tenant,
        "session_ids": sessions,
        "rows": [heads[session_id].rows for session_id in sessions],
        "tokens": [heads[session_id].tokens for session_id in sessions],
        "now_at": latest,
        "now_minute": latest // MINUTE_US,
    }
    return {row[0]: row[1:] for row in await queries.advance_all.all(connection, params)}


async def _advance_all(connection: Connection, tenant: str, heads: Mapping[str, _Head]) -> dict[str, Row]:
    """Reserve places in the logs of several sessions; those that are not there are missing from the answer."""
    there: dict[str, Row] = {}
    if len(heads) > 1:  # more than one, so this is the writer's own transaction, and nobody can come in between
        asked = {"tenant_id": tenant, "session_ids": id_list([*heads], connection.dialect)}
        there = {row[0]: row for row in await queries.heads.all(connection, asked)}
    reserved: dict[str, Row] = {}
    known: list[tuple[Any, ...]] = []
    for session_id, head in heads.items():
        row = there.get(session_id)
        if row is not None and row[4] == head.now_us // MINUTE_US and row[5]:
            reserved[session_id] = (row[1], row[3] is not None and row[2] + head.tokens >= row[3])
            known.append((head.rows, head.tokens, head.now_us, tenant, session_id))
        elif row is not None or not there:
            found = await _advance(connection, _advance_params(tenant, session_id, head))
            if found is not None:
                reserved[session_id] = found
    if known:
        await queries.advance_known.many_in_order(connection, _ADVANCED, known)
    return reserved


def _advance_params(tenant: str, session_id: str, head: _Head) -> dict[str, Any]:
    return {
        "tenant_id": tenant,
        "session_id": session_id,
        "rows": head.rows,
        "token_count": head.tokens,
        "now_at": head.now_us,
        "now_minute": head.now_us // MINUTE_US,
    }


_ADVANCED = ("rows", "token_count", "now_at", "tenant_id", "session_id")
_INSERTED = ("tenant_id", "session_id", "seq", *Entry.__struct_fields__, "now_at")


def _times(connection: Connection, moments: Sequence[int]) -> Sequence[Any]:
    """Moments in the form that is stored."""
    return [from_us(each) for each in moments] if connection.dialect.native_time else moments


def _row(seq: int, entry: Entry, now: Any) -> tuple[Any, ...]:
    """A message in the order of ``_INSERTED``, without tenant and session; field by field, which is quicker than a tuple inside
    a tuple."""
    return (
        seq,
        entry.id,
        entry.kind,
        entry.role,
        entry.content,
        entry.token_count,
        entry.metadata,
        entry.is_preserved,
        entry.is_summary,
        now,
    )


def _of_several(rows: Mapping[tuple[str, str], Sequence[tuple[Any, ...]]]) -> Iterator[tuple[Any, ...]]:
    """The rows of several sessions, with tenant and session."""
    for session, each in rows.items():
        for row in each:
            yield (*session, *row)


async def _in_one_exchange(connection: Connection, appends: Sequence[Append]) -> list[Row | None]:
    """Of one tenant one statement, of several one for each append, or for each tenant if some append has several messages.

    Tenants and sessions come sorted, so that any two groups lock sessions in the same order.
    """
    by_tenant = _by_tenant(appends)
    if len(by_tenant) > 1 and all(len(append.entries) == 1 for append in appends):
        order = sorted(range(len(appends)), key=lambda place: (appends[place].tenant, appends[place].session_id))
        params = [_insert_params(appends[place], appends[place].entries[0]) for place in order]
        found = dict(zip(order, await queries.append_one.all_of_each(connection, params), strict=True))
        return [_unless_missing(found[place]) for place in range(len(appends))]
    each = [_append_params(its) for _, its in sorted(by_tenant.items())]
    if len(each) == 1:
        rows = await queries.append.all(connection, each[0])
    else:
        rows = await queries.append.all_of_each(connection, each)
    written = {(tenant, id_): (seq, due) for tenant, id_, seq, due in rows}
    return [written.get((append.tenant, append.entries[0].id)) for append in appends]


def _append_params(appends: Sequence[Append]) -> dict[str, Any]:
    """Appends of one tenant as the parameters of one statement."""
    heads = _heads(appends)
    sessions = sorted(heads)
    taken: dict[str, int] = dict.fromkeys(sessions, 0)
    rows: list[tuple[Any, ...]] = []
    for append in appends:
        session_id, now_us = append.session_id, append.now_us
        for entry in append.entries:
            rows.append((session_id, taken[session_id], *astuple(entry), now_us))
            taken[session_id] += 1
    together: dict[str, Any] = dict(zip(_TOGETHER, map(list, zip(*rows, strict=True)), strict=True))
    together |= {name: unless_usual(together[name], usual) for name, usual in _USUAL.items()}
    together.update(
        tenant_id=appends[0].tenant,
        session_ids=sessions,
        rows=unless_usual([heads[session_id].rows for session_id in sessions], 1),
        tokens=unless_usual([heads[session_id].tokens for session_id in sessions], 0),
        now_at=max(together["created_at"]),
        now_minute=max(together["created_at"]) // MINUTE_US,
    )
    return together


_TOGETHER = ("session_id", "place", *Entry.__struct_fields__, "created_at")
_USUAL: Mapping[str, Any] = {
    "place": 0,
    "kind": "message",
    "token_count": 0,
    "metadata": "{}",
    "is_preserved": False,
    "is_summary": False,
}
"""What most messages have; the statement knows it too."""


def _insert_params(append: Append, entry: Entry) -> dict[str, Any]:
    """One message as the parameters of everything that writes it; its place follows when it is known."""
    return {
        "tenant_id": append.tenant,
        "session_id": append.session_id,
        "rows": 1,
        "id": entry.id,
        "kind": entry.kind,
        "role": entry.role,
        "content": entry.content,
        "token_count": entry.token_count,
        "metadata": entry.metadata,
        "is_preserved": entry.is_preserved,
        "is_summary": entry.is_summary,
        "now_at": append.now_us,
        "now_minute": append.now_us // MINUTE_US,
    }


def _outcome(append: Append, found: Row | None) -> Appended | Exception:
    return _missing(append.session_id) if found is None else appended(append, found)


def appended(append: Append, found: Row) -> Appended:
    """What an append made, from the place of its first entry and whether the session is to be compacted now."""
    at, first, due, session_id = from_us(append.now_us), seq_of(found[0]), bool(found[1]), append.session_id
    entries = append.entries
    if len(entries) == 1:
        return Appended([message_of(entries[0], session_id, first, at)], due)
    return Appended([message_of(entry, session_id, seq, at) for seq, entry in enumerate(entries, first)], due)


def message_of(entry: Entry, session_id: str, seq: int, at: datetime) -> Message:
    """The message that an entry is at its place in a session's log."""
    return Message(
        entry.id,
        session_id,
        seq,
        entry.kind,
        entry.role,  # type: ignore[arg-type]  # checked before it became an entry
        text.load(entry.content),
        entry.token_count,
        {} if entry.metadata == "{}" else text.load(entry.metadata),
        entry.is_preserved,
        entry.is_summary,
        at,
        at,
    )


async def _already_there(connection: Connection, append: Append) -> Appended | Exception | None:
    """What a repeated append finds: the first result, a conflict, or nothing yet."""
    ids = [entry.id for entry in append.entries]
    params = {"tenant_id": append.tenant, "ids": id_list(ids, connection.dialect)}
    rows = await queries.by_ids.all(connection, params)
    there = {message.id: message for message in mapper(Message, connection.dialect)(rows)}
    if not there:
        return None
    # First what is said when nothing is there yet, so that the answer does not depend on who else is appending.
    session = {"tenant_id": append.tenant, "session_id": append.session_id}
    if await queries.live_session.one(connection, session) is None:
        return _missing(append.session_id)
    if len(there) < len(ids):
        return Conflict("some of these messages are there already and some are not; append the missing ones")
    for entry in append.entries:
        found = there[entry.id]
        if found.session_id != append.session_id or not entry.same_as(found):
            return Conflict(f"there is a message with the id {entry.id} and other content")
    return Appended([there[each] for each in ids])


def _missing(session_id: str) -> NotFound:
    return NotFound(f"there is no session {session_id} here")
