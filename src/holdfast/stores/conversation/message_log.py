"""The log of a session: what an entry is, and how entries get their places in it.

Appends are a group (see ``engines.protocol.Group``): whatever has queued up for one tenant is written together. On PostgreSQL
that is one statement; on SQLite it is one UPDATE for each session and one INSERT for each message, or for ten of them where all
are of one session, inside the writer's shared commit. Other stores that write messages as part of a larger transaction call
``append_at``.
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
from ...engines.protocol import Connection, Row
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


class Appended(Struct, frozen=True, gc=False):
    """What an append made, and whether it brought the session to the point where its policy wants it compacted."""

    messages: list[Message]
    compaction_due: bool = False


class AppendGroup:
    """Appends of one tenant, done together."""

    def key(self, item: Append) -> object:
        return item.tenant

    def id_of(self, item: Append) -> str:
        return item.entries[0].id

    async def run(
        self, connection: Connection, items: Sequence[Append], *, careful: bool
    ) -> Sequence[Appended | Exception]:
        if not careful:
            return [*map(_outcome, items, await _reserve_and_insert(connection, items))]
        outcomes = [await _already_there(connection, item) for item in items]
        waiting = [place for place, outcome in enumerate(outcomes) if outcome is None]
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
    if not connection.dialect.changes_in_ctes:
        places = range(first, first + len(entries))
        rows = [*map(_row, places, entries, moments)]
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
    if connection.dialect.changes_in_ctes:
        return await _in_one_statement(connection, appends)
    return await _step_by_step(connection, appends)


async def _only_one(connection: Connection, append: Append) -> Row | None:
    """One message by itself, which is what most appends are."""
    params = _insert_params(append, append.entries[0])
    if connection.dialect.changes_in_ctes:
        found = await queries.append_one.one(connection, params)
    else:
        found = await _advance(connection, params)
        if found is not None:
            params["seq"] = found[0]
            await queries.insert.one(connection, params)
    return found


async def _advance(connection: Connection, params: Mapping[str, Any]) -> Row | None:
    """Reserve the next places in a session's log."""
    found = await queries.advance_this_minute.one(connection, params)
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


async def _step_by_step(connection: Connection, appends: Sequence[Append]) -> list[Row | None]:
    tenant = appends[0].tenant
    found = await _advance_all(connection, tenant, _heads(appends))
    reserved: list[Row | None] = []
    rows: dict[str, list[tuple[Any, ...]]] = {session_id: [] for session_id in found}
    for append in appends:
        session_id, now_us = append.session_id, append.now_us
        place = found.get(session_id)
        reserved.append(place)
        if place is not None:
            seq, due = place
            for entry in append.entries:
                rows[session_id].append(_row(seq, entry, now_us))
                seq += 1
            found[session_id] = (seq, due)
    if len(rows) == 1:
        ((only, its_rows),) = rows.items()
        await queries.insert.many_alike(connection, _INSERTED, (tenant, only), its_rows)
    elif rows:
        await queries.insert.many_in_order(connection, _INSERTED, _of_several(tenant, rows))
    return reserved


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


def _row(seq: int, entry: Entry, now_us: int) -> tuple[Any, ...]:
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
        now_us,
    )


def _of_several(tenant: str, rows: Mapping[str, Sequence[tuple[Any, ...]]]) -> Iterator[tuple[Any, ...]]:
    """The rows of several sessions, with tenant and session."""
    for session_id, each in rows.items():
        for row in each:
            yield (tenant, session_id, *row)


async def _in_one_statement(connection: Connection, appends: Sequence[Append]) -> list[Row | None]:
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
    written = {id_: (seq, due) for id_, seq, due in await queries.append.all(connection, together)}
    return [written.get(append.entries[0].id) for append in appends]


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
