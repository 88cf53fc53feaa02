"""Load a buffer from the database and save it, in one transaction.

A buffer remembers the session row as it last saw it (``RowVersion``) and the id of the save that wrote the state beside it. A
save locks the session, compares both, and writes only if no other writer has changed them. Each save stores its own id: if
the answer to a save was lost, the next save finds that id, knows that the lost one was committed, and continues from it. So
no message is written twice, and no other writer's change is mistaken for the buffer's own.

If the buffer's history no longer contains all stored messages (it was truncated, replaced or reset), no message is deleted: as
after a rewind, the session continues on a new branch that shows only the kept messages. ``branches.redo`` returns to the full
history, and retention decides when the messages are deleted permanently. Deleting them here would be irreversible, and would
remove them from every branch that shares them.
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

MAX_READS = 3
"""How often a session is read again because it was written to between the reads of its row and of its messages."""


class SessionState(Struct, frozen=True):
    """The state that an agent loop stores beside the messages of a session.

    ``input_tokens`` and ``output_tokens`` are the sums of the counts that providers reported for their calls. They are not
    related to the ``token_count`` of messages and sessions, which is the size of the log: the input of each call contains the
    whole context, so adding the two would count each message many times.
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


class SessionColumns(Struct, frozen=True):
    """The columns of a session row that together change with every change of the session or its messages."""

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


class RowVersion(Struct, frozen=True):
    """A session row in the driver's types, for comparison, and the columns of it that a save uses."""

    id: str
    next_position: int
    compaction_count: int
    row: tuple[Any, ...]


class PendingItem(Struct, gc=False):
    """A message added to a buffer. Its ``seq`` is set by the save that writes it. With ``is_copy``, it is a copy of a stored
    message that could not keep its position."""

    id: str
    entry: LogEntry
    added_us: int
    seq: int = 0
    is_copy: bool = False

    @property
    def token_count(self) -> int:
        """The tokens of the message in the context."""
        return self.entry.token_count


BufferedItem = Message | PendingItem


class BufferContent(Struct, frozen=True):
    """The content of a buffer."""

    agent: str
    metadata: dict[str, Any]
    state: SessionState
    items: tuple[BufferedItem, ...]


class StoredContent(Struct, frozen=True):
    """The content of the database when it was last read or saved; without a version, the session did not exist."""

    content: BufferContent
    version: RowVersion | None = None
    save_id: str | None = None


class SaveAttempt(Struct):
    """One save. Before the commit, it gets the row version that it wrote, and the messages that it stored as copies."""

    save_id: str | None
    content: BufferContent
    version: RowVersion | None = None
    copies: dict[str, BufferedItem] = {}
    compaction_due: bool = False


class SessionIdentity(Struct, frozen=True):
    """The session of a buffer; key and user are escaped for storage."""

    id: str
    key: str
    user: str


queries = Queries(__package__, "buffered.sql", SessionColumns, SessionState)
_ROW_COLUMNS = len(SessionColumns.__struct_fields__)
_ID, _POSITION, _COMPACTIONS, _AGENT, _UPDATED = map(
    SessionColumns.__struct_fields__.index, ("id", "next_position", "compaction_count", "agent", "updated_at")
)
_TEXTS = ("summary", "label", "model", "provider", "channel", "spawned_by")


async def load(connection: Connection, scope: scopes.Scope, key: str, user: str) -> StoredContent | None:
    """Load the user's live session under a key, or return ``None``.

    Raises:
        LimitExceeded: the session has more than ``buffered_messages`` messages.
    """
    messages: list[Message] = []
    for _ in range(MAX_READS):
        rows = await queries.open.all(
            connection, scope.params(identifier=key, user_id=user), index="sessions_by_identifier"
        )
        if not rows:
            return None
        row = rows[0]
        session = mapper(SessionColumns, connection.dialect)([row[:_ROW_COLUMNS]])[0]
        messages = await _messages(connection, scope, session.id)
        if len(messages) == session.message_count:
            break
    # If the row and the messages still do not agree, the next save raises Conflict.
    state = SessionState() if row[-1] is None else mapper(SessionState, connection.dialect)([row[_ROW_COLUMNS:-1]])[0]
    return StoredContent(
        BufferContent(session.agent, session.metadata, state, tuple(messages)),
        _row_version(row[:_ROW_COLUMNS]),
        row[-1],
    )


async def _messages(connection: Connection, scope: scopes.Scope, session_id: str) -> list[Message]:
    maximum = scope.limits.buffered_messages
    params = scope.params(session_id=session_id, after=0, before=views.BLOCK, limit=maximum + 1)
    messages = await read_log(connection, params)
    if len(messages) > maximum:
        raise LimitExceeded(
            f"session {session_id} has more than buffered_messages = {maximum:,} messages: compact it first, or read"
            " part of it with messages.context",
            limit="buffered_messages",
            maximum=maximum,
        )
    return messages


async def save(
    connection: Connection,
    scope: scopes.Scope,
    identity: SessionIdentity,
    base: StoredContent,
    earlier: Sequence[SaveAttempt],
    attempt: SaveAttempt,
) -> None:
    """Write the changes of a buffer, if no other writer has changed the session. Update ``attempt`` to the stored content.

    Raises:
        Conflict: another writer has changed or deleted the session.
    """
    content = attempt.content
    params = _params(scope, identity, attempt)
    # A session that was neither loaded nor possibly saved has a new id that only this buffer knows: no need to look for it.
    row = await queries.lock.one(connection, params) if earlier or base.version is not None else None
    version = None if row is None else _row_version(row)
    row = None if version is None else await queries.last_save.one(connection, params)
    last_save = None if row is None else row[0]
    if version is not None and last_save == base.save_id and content == base.content:
        attempt.save_id, attempt.version = (
            base.save_id,
            base.version,
        )  # nothing to write, whatever other writers have changed
        return
    current, copies = _find_base(params, version, last_save, base, earlier)
    target_items = tuple([copies.get(item.id, item) for item in content.items]) if copies else content.items
    kept, items = arrange(current.content.items, target_items, lambda item: copy_item(item, scope))
    first_position = 1 if version is None else version.next_position
    if len(kept) < len(current.content.items):
        first_position = await _start_branch(connection, params, current.content.items, kept)
    rows, tokens = [], 0
    for position, item in enumerate(cast("Sequence[PendingItem]", items[len(kept) :]), first_position):
        item.seq = views.seq_of(position)
        rows.append((position, item.entry, item.added_us, item.added_us))
        tokens += item.entry.token_count
    params["rows"], params["tokens"] = len(rows), tokens
    version, compaction_due = await _write_session(connection, params, version)
    await insert(connection, scope.stored_tenant, identity.id, rows)
    await queries.save.all(connection, params)
    attempt.version, attempt.compaction_due, attempt.copies = version, compaction_due, {}
    if items is not content.items:
        attempt.content = replace(content, items=items)
        attempt.copies = {item.id: copy for item, copy in zip(content.items, items, strict=True) if item is not copy}


async def _write_session(
    connection: Connection, params: dict[str, Any], old_version: RowVersion | None
) -> tuple[RowVersion, bool]:
    """Write the session row; return its new version, and whether a compaction is due."""
    if old_version is None:
        await register_tenant(connection, params)
        await queries.create.all(connection, params)
    elif connection.dialect is Dialect.SQLITE and _indexes_unchanged(old_version, params):
        await queries.touch_this_minute.all(connection, params)
    else:
        await queries.touch.all(connection, params)
    row = await queries.mark.one(connection, params)
    if row is None:
        raise Conflict(
            f"another session was created under the key {text.unescape(params['identifier'])!r} after this buffer"
            " was loaded; nothing was saved, call reload()",
            reason="key_taken",
        )
    return _row_version(row[:_ROW_COLUMNS]), bool(row[-1])


def arrange(
    stored_items: tuple[BufferedItem, ...],
    target_items: tuple[BufferedItem, ...],
    copy: Callable[[BufferedItem], PendingItem],
) -> tuple[tuple[BufferedItem, ...], tuple[BufferedItem, ...]]:
    """Split a history into the stored messages that are kept at its beginning, and the whole history to store.

    The order of messages is the order of their positions in the log. So a stored message that follows a new one, or is out of
    order, is replaced by a copy, which is stored as a new message.
    """
    if not stored_items:
        return (), target_items
    order = {item.id: index for index, item in enumerate(stored_items)}
    last, count = -1, 0
    for item in target_items:
        index = order.get(item.id, -1)
        if index <= last:
            break
        last, count = index, count + 1
    rest = [copy(item) if item.id in order else item for item in target_items[count:]]
    return target_items[:count], (*target_items[:count], *rest)


def copy_item(item: BufferedItem, scope: scopes.Scope) -> PendingItem:
    """Return a copy of a stored message under a new id."""
    if isinstance(item, PendingItem):
        entry = replace(item.entry, id=scope.ids.new())
        return PendingItem(entry.id, entry, item.added_us, is_copy=True)
    entry = entry_of(item, scope.ids.new())
    return PendingItem(entry.id, entry, to_us(item.created_at), is_copy=True)


def _params(scope: scopes.Scope, identity: SessionIdentity, attempt: SaveAttempt) -> dict[str, Any]:
    content, now_us = attempt.content, scope.clock.now_us()
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
        save_id=attempt.save_id,
        now_at=now_us,
        now_minute=now_us // MINUTE_US,
    )
    return params


def _find_base(
    params: dict[str, Any],
    version: RowVersion | None,
    last_save: str | None,
    base: StoredContent,
    earlier: Sequence[SaveAttempt],
) -> tuple[StoredContent, dict[str, BufferedItem]]:
    """Return the content that the stored version belongs to, and the copies that its save has made.

    It is the content that this buffer last saw, or that of one of its earlier saves.

    Raises:
        Conflict: another writer has changed or deleted the session.
    """
    if (base.version, base.save_id) == (version, last_save):
        return base, {}
    for attempt in earlier:
        # A save never continues from a missing session: permanently deleted messages must not come back.
        if attempt.version is not None and (attempt.version, attempt.save_id) == (version, last_save):
            return StoredContent(attempt.content, attempt.version, attempt.save_id), attempt.copies
    change, reason = "was changed by another writer", "changed"
    if version is None and earlier:
        change, reason = "was deleted, or rolled back with the transaction that saved it,", "deleted_or_rolled_back"
    elif version is None:
        change, reason = "was deleted", "deleted"
    raise Conflict(
        f"session {params['id']} {change} after this buffer was loaded; nothing was saved, call reload()",
        reason=reason,
    )


async def _start_branch(
    connection: Connection,
    params: dict[str, Any],
    stored_items: Sequence[BufferedItem],
    kept_items: Sequence[BufferedItem],
) -> int:
    """Continue from the kept messages on a new branch; return the position of the next message."""
    head = await branches.lock_head(connection, params)
    number = await branches.take_block(connection, params)
    last_seq = kept_items[-1].seq if kept_items else 0
    position = views.first_of(number) + last_seq + 1
    branch = {
        "number": number,
        "parent": head.branch,
        "forked_after": last_seq,
        "origin": "rewind",
        "label": "",
        "view": views.dump(views.followed_by(_view_of(head.view, stored_items, kept_items), number, last_seq + 1)),
        "next_seq": position,
    }
    counts = {"message_count": len(kept_items), "tokens": sum(item.token_count for item in kept_items)}
    await branches.queries.remember.all(connection, params)
    await branches.queries.create.all(connection, {**params, **branch})
    await branches.queries.show.all(connection, {**params, **branch, **counts})
    return position


def _view_of(view: View, stored_items: Sequence[BufferedItem], kept_items: Sequence[BufferedItem]) -> View:
    """Return the ranges of a view that show exactly the kept messages."""
    kept_ids = {item.id for item in kept_items}
    ranges: list[views.Range] = []
    first = last = 0
    for item in stored_items:
        if item.id in kept_ids:
            first, last = first or item.seq, item.seq
        elif first:
            ranges += views.within(view, first - 1, last + 1)
            first = 0
    return (*ranges, *views.within(view, first - 1, last + 1)) if first else tuple(ranges)


def _indexes_unchanged(version: RowVersion, params: dict[str, Any]) -> bool:
    """Return whether a save changes no indexed column of the session. For rows in SQLite's types."""
    agent, updated_us = version.row[_AGENT], version.row[_UPDATED]
    return bool(agent == params["agent_id"] and updated_us // MINUTE_US == params["now_minute"])


def _row_version(row: Row) -> RowVersion:
    return RowVersion(row[_ID], row[_POSITION], row[_COMPACTIONS], tuple(row))
