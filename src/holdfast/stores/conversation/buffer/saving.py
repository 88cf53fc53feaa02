"""How a buffer is read from the database and how it gets back: in one transaction, or not at all.

A buffer remembers the row of its session as it last saw it (``Mark``) and which save wrote the state beside it. A save locks
the session, compares both, and writes only if nobody was there meanwhile. Each save leaves an id of its own behind: if
the answer to a save was lost, the next one finds that id, knows that it happened, and goes on from there. So nothing is
written twice and nothing is taken for somebody else's.

Where the buffer's history is no longer all of what is stored (it was truncated, replaced or reset), nothing is deleted: the
session goes on, as after a rewind, on a branch of its own that shows only what was kept. ``branches.redo`` goes back to the
whole, and retention decides when it goes for good. Deleting would be for ever, and would take the messages from every
branch that shares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, cast

from msgspec import Struct
from msgspec.structs import asdict, replace

from ....clock import MINUTE_US, to_us
from ....core import scope as scopes
from ....core import text
from ....core.queries import Queries
from ....core.registration import register_tenant
from ....core.rows import Column, mapper
from ....engines.dialect import Dialect
from ....engines.protocol import Connection, Row
from ....errors import Conflict, LimitExceeded
from ....ids import Id
from .. import branches, views
from ..log_reading import read_log
from ..message_log import LogEntry, Message, entry_of, insert
from ..views import View

TRIES = 3
"""How often a session is read anew because somebody wrote to it between its row and its messages."""


class SessionState(Struct, frozen=True):
    """What an agent loop keeps beside the messages of a session.

    ``input_tokens`` and ``output_tokens`` are what providers reported for their calls, summed up. They have nothing to do with
    ``token_count`` of messages and sessions, which is the size of what is in the log: the input of a call contains
    the whole context, so whoever adds the two counts everything many times over.
    """

    summary: str = ""
    label: str = ""
    model: str = ""
    provider: str = ""
    channel: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    compaction_count: int = 0
    memory_flush_compaction_count: int = 0
    memory_flush_at: datetime | None = None
    spawned_by: str = ""
    spawn_depth: int = 0


class Head(Struct, frozen=True):
    """The row of a session, as far as every change of the session or of its messages shows in it."""

    id: Id
    agent: Annotated[str, Column("agent_id")]
    metadata: dict[str, Any]
    branch: int
    view: list[Any] | None
    next_position: Annotated[int, Column("next_seq")]
    message_count: int
    token_count: int
    compaction_count: int
    updated_at: datetime


class Mark(Struct, frozen=True):
    """That row as the driver gives it, which is enough to compare it by, and what is wanted of it."""

    id: str
    next_position: int
    compaction_count: int
    row: tuple[Any, ...]


class Pending(Struct, gc=False):
    """A message that was added to a buffer. It has its ``seq`` from the save that wrote it. A copy stands for one that is
    stored and could not stay where it was."""

    id: str
    entry: LogEntry
    added_us: int
    seq: int = 0
    is_copy: bool = False

    @property
    def token_count(self) -> int:
        """Its size in the context."""
        return self.entry.token_count


Item = Message | Pending


class Content(Struct, frozen=True):
    """All that a buffer holds."""

    agent: str
    metadata: dict[str, Any]
    state: SessionState
    items: tuple[Item, ...]


class Known(Struct, frozen=True):
    """What the database held when it was last seen; without a mark, there was no session."""

    content: Content
    mark: Mark | None = None
    save_id: str | None = None


class Attempt(Struct):
    """One save. It has its mark once all is written but the commit, and then says which messages it stored as copies."""

    save_id: str | None
    content: Content
    mark: Mark | None = None
    copies: dict[str, Item] = {}
    compaction_due: bool = False


class Identity(Struct, frozen=True):
    """Which session a buffer is of; key and user in the form that is stored."""

    id: str
    key: str
    user: str


queries = Queries(__package__, "buffered.sql", Head, SessionState)
_HEAD = len(Head.__struct_fields__)
_ID, _PLACE, _COMPACTIONS, _AGENT, _UPDATED = map(
    Head.__struct_fields__.index, ("id", "next_position", "compaction_count", "agent", "updated_at")
)
_TEXTS = ("summary", "label", "model", "provider", "channel", "spawned_by")


async def load(connection: Connection, scope: scopes.Scope, key: str, user: str) -> Known | None:
    """The user's live session under a key, or ``None``.

    Raises:
        LimitExceeded: it has more than ``buffered_messages``.
    """
    messages: list[Message] = []
    for _ in range(TRIES):
        rows = await queries.open.all(
            connection, scope.params(identifier=key, user_id=user), index="sessions_by_identifier"
        )
        if not rows:
            return None
        row = rows[0]
        head = mapper(Head, connection.dialect)([row[:_HEAD]])[0]
        messages = await _messages(connection, scope, head.id)
        if len(messages) == head.message_count:
            break
    # If they still do not agree, the next save will not find the session as it was, and say so.
    state = SessionState() if row[-1] is None else mapper(SessionState, connection.dialect)([row[_HEAD:-1]])[0]
    return Known(Content(head.agent, head.metadata, state, tuple(messages)), _mark(row[:_HEAD]), row[-1])


async def _messages(connection: Connection, scope: scopes.Scope, session_id: str) -> list[Message]:
    most = scope.limits.buffered_messages
    params = scope.params(session_id=session_id, after=0, before=views.BLOCK, limit=most + 1)
    messages = await read_log(connection, params)
    if len(messages) > most:
        raise LimitExceeded(
            f"session {session_id} has more than buffered_messages = {most:,} messages: compact it first, or read what is"
            " needed of it with messages.context"
        )
    return messages


async def save(
    connection: Connection,
    scope: scopes.Scope,
    identity: Identity,
    known: Known,
    earlier: Sequence[Attempt],
    now: Attempt,
) -> None:
    """Write what changed, if nobody else has written since. Afterwards ``now`` says what is there.

    Raises:
        Conflict: somebody else has, or the session was deleted.
    """
    content = now.content
    params = _params(scope, identity, now)
    # What neither was there nor may have got there has an id of ours that nobody else knows: there is nothing to look for.
    row = await queries.lock.one(connection, params) if earlier or known.mark is not None else None
    mark = None if row is None else _mark(row)
    row = None if mark is None else await queries.last_save.one(connection, params)
    last_save = None if row is None else row[0]
    if mark is not None and last_save == known.save_id and content == known.content:
        now.save_id, now.mark = known.save_id, known.mark  # nothing to write, whatever others did since
        return
    there, copies = _agreed(params, mark, last_save, known, earlier)
    wanted = tuple([copies.get(item.id, item) for item in content.items]) if copies else content.items
    kept, items = arranged(there.content.items, wanted, lambda item: copied(item, scope))
    place = 1 if mark is None else mark.next_position
    if len(kept) < len(there.content.items):
        place = await _cut(connection, params, there.content.items, kept)
    rows, tokens = [], 0
    for at, item in enumerate(cast("Sequence[Pending]", items[len(kept) :]), place):
        item.seq = views.seq_of(at)
        rows.append((at, item.entry, item.added_us, item.added_us))
        tokens += item.entry.token_count
    params["rows"], params["tokens"] = len(rows), tokens
    mark, due = await _head(connection, params, mark)
    await insert(connection, scope.stored_tenant, identity.id, rows)
    await queries.save.all(connection, params)
    now.mark, now.compaction_due, now.copies = mark, due, {}
    if items is not content.items:
        now.content = replace(content, items=items)
        now.copies = {item.id: copy for item, copy in zip(content.items, items, strict=True) if item is not copy}


async def _head(connection: Connection, params: dict[str, Any], there: Mark | None) -> tuple[Mark, bool]:
    """Write the session itself: what it looks like then, and whether it is to be compacted now."""
    if there is None:
        await register_tenant(connection, params)
        await queries.create.all(connection, params)
    elif connection.dialect is Dialect.SQLITE and _keeps_its_indexes(there, params):
        await queries.touch_this_minute.all(connection, params)
    else:
        await queries.touch.all(connection, params)
    row = await queries.mark.one(connection, params)
    if row is None:
        raise Conflict(
            f"another session has been made under the key {text.unescape(params['identifier'])!r} since this buffer"
            " was loaded; nothing was saved: see reload()"
        )
    return _mark(row[:_HEAD]), bool(row[-1])


def arranged(
    stored: tuple[Item, ...], wanted: tuple[Item, ...], copy: Callable[[Item], Pending]
) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """How a history is to be had from what is stored: the messages that are kept, and the whole, the rest of which is new.

    Messages have their order from where they are stored. So what is stored and comes after something new, or out
    of its order, is copied.
    """
    if not stored:
        return (), wanted
    order = {item.id: place for place, item in enumerate(stored)}
    last, count = -1, 0
    for item in wanted:
        place = order.get(item.id, -1)
        if place <= last:
            break
        last, count = place, count + 1
    rest = [copy(item) if item.id in order else item for item in wanted[count:]]
    return wanted[:count], (*wanted[:count], *rest)


def copied(item: Item, scope: scopes.Scope) -> Pending:
    """A stored message once more, under an id of its own."""
    if isinstance(item, Pending):
        entry = replace(item.entry, id=scope.ids.new())
        return Pending(entry.id, entry, item.added_us, is_copy=True)
    entry = entry_of(item, scope.ids.new())
    return Pending(entry.id, entry, to_us(item.created_at), is_copy=True)


def _params(scope: scopes.Scope, identity: Identity, now: Attempt) -> dict[str, Any]:
    content, now_us = now.content, scope.clock.now_us()
    params, flushed = asdict(content.state), content.state.memory_flush_at
    for name in _TEXTS:
        params[name] = text.escape(params[name])
    params.update(
        tenant_id=scope.stored_tenant,
        memory_flush_at=None if flushed is None else to_us(flushed),
        id=identity.id,
        session_id=identity.id,
        identifier=identity.key,
        user_id=identity.user,
        agent_id=text.escape(content.agent),
        metadata=scopes.metadata(content.metadata, scope.limits),
        save_id=now.save_id,
        now_at=now_us,
        now_minute=now_us // MINUTE_US,
    )
    return params


def _agreed(
    params: dict[str, Any], mark: Mark | None, last_save: str | None, known: Known, earlier: Sequence[Attempt]
) -> tuple[Known, dict[str, Item]]:
    """What is stored, if it is what this buffer last saw there or itself put there; and what it put there as a copy."""
    if (known.mark, known.save_id) == (mark, last_save):
        return known, {}
    for each in earlier:
        # Nothing being there is no state to go on from: what was deleted for good must not come back.
        if each.mark is not None and (each.mark, each.save_id) == (mark, last_save):
            return Known(each.content, each.mark, each.save_id), each.copies
    happened = "has been changed by somebody else"
    if mark is None:
        happened = "was deleted, or undone with the transaction it was saved in," if earlier else "was deleted"
    raise Conflict(f"session {params['id']} {happened} since this buffer was loaded; nothing was saved: see reload()")


async def _cut(connection: Connection, params: dict[str, Any], stored: Sequence[Item], kept: Sequence[Item]) -> int:
    """Go on, on a branch of its own, from what is kept; the place of the next message."""
    head = await branches.lock_head(connection, params)
    number = await branches.take_block(connection, params)
    last = kept[-1].seq if kept else 0
    place = views.first_of(number) + last + 1
    branch = {
        "number": number,
        "parent": head.branch,
        "forked_after": last,
        "origin": "rewind",
        "label": "",
        "view": views.dump(views.followed_by(_kept_of(head.view, stored, kept), number, last + 1)),
        "next_seq": place,
    }
    counts = {"message_count": len(kept), "tokens": sum(item.token_count for item in kept)}
    await branches.queries.remember.all(connection, params)
    await branches.queries.create.all(connection, {**params, **branch})
    await branches.queries.show.all(connection, {**params, **branch, **counts})
    return place


def _kept_of(view: View, stored: Sequence[Item], kept: Sequence[Item]) -> View:
    """The ranges of a view that hold these messages and no others."""
    wanted = {item.id for item in kept}
    found: list[views.Range] = []
    first = last = 0
    for item in stored:
        if item.id in wanted:
            first, last = first or item.seq, item.seq
        elif first:
            found += views.within(view, first - 1, last + 1)
            first = 0
    return (*found, *views.within(view, first - 1, last + 1)) if first else tuple(found)


def _keeps_its_indexes(there: Mark, params: dict[str, Any]) -> bool:
    """Whether nothing changes by which sessions are looked for; of a row as SQLite gives it."""
    agent, updated_us = there.row[_AGENT], there.row[_UPDATED]
    return bool(agent == params["agent_id"] and updated_us // MINUTE_US == params["now_minute"])


def _mark(row: Row) -> Mark:
    return Mark(row[_ID], row[_PLACE], row[_COMPACTIONS], tuple(row))
