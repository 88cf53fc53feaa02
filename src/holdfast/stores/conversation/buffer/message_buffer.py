"""The in-memory content of a buffered session, and the cache of a handle's buffers.

``buffered`` documents the guarantees. There is no lock: a buffer is for one task or thread at a time. All reads and writes of
the database are in ``persistence``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

from msgspec.structs import astuple, replace

from ....clock import from_us
from ....core import scope as scopes
from ....core import text
from ....engines.protocol import Call, Connection, Engine
from ....errors import AlreadyExists, Conflict, HoldfastError, InvalidInput, LimitExceeded, OutcomeUnknown
from .. import views
from ..message_log import LogEntry, Message, message_of
from ..new_entries import NewMessage, new_entry
from . import persistence
from .persistence import (
    BufferContent,
    BufferedItem,
    PendingItem,
    SaveAttempt,
    SessionIdentity,
    SessionState,
    StoredContent,
)


class MessageBuffer:
    """The content of a buffer, and the stored content it is based on (``base``)."""

    base: StoredContent
    id: str
    agent: str
    metadata: dict[str, Any]
    state: SessionState
    items: list[BufferedItem]
    compaction_due: bool

    def __init__(self, engine: Engine, scope: scopes.Scope, cache: BufferCache, key: str, user: str) -> None:
        self.engine, self.scope, self.cache = engine, scope, cache
        self.cache_key = (key, user)
        self.key, self.user = text.unescape(key), text.unescape(user)
        self.kept = False
        """Whether the cache keeps this buffer; set only by the cache."""
        self.async_session: object = None
        self.blocking_session: object = None
        self._saving = False
        self._load(None)

    @property
    def has_unsaved(self) -> bool:
        """Whether the buffer has changes that are not saved."""
        base_content = self.base.content
        # Kept messages keep their order and new ones follow, so comparing the last message and the count is enough.
        same = len(self.items) == len(base_content.items) and (
            not self.items or self.items[-1] is base_content.items[-1]
        )
        return not same or (self.agent, self.metadata, self.state) != (
            base_content.agent,
            base_content.metadata,
            base_content.state,
        )

    async def reload(self, *, keep_unsaved: bool = False) -> None:
        """Load the stored content; with ``keep_unsaved``, append the unsaved messages to it."""
        self._refuse_while_saving()
        key, user = self.cache_key
        loaded = await self.engine.read(lambda connection: persistence.load(connection, self.scope, key, user))
        durable = self._earlier_bases[0].content if self._earlier_bases else self.base.content
        unsaved = self._added_to(durable) if keep_unsaved else []
        self._load(loaded)
        stored_ids = self.stored_ids()
        self.items += [item for item in unsaved if item.id not in stored_ids]

    def begin(self, agent: str | None) -> None:
        """Set the first agent of a session that does not exist yet. It does not count as an unsaved change."""
        if agent is not None and self.base.version is None:
            self._load(StoredContent(replace(self.base.content, agent=agent)))

    async def save(self) -> None:
        """Save the buffer."""
        self._refuse_while_saving()
        if self.base.version is not None and not self.has_unsaved and not self._uncertain and not self._earlier_bases:
            return
        before = SaveAttempt(self.base.save_id, self.base.content, self.base.version)
        content = BufferContent(self.agent, self.metadata, self.state, tuple(self.items))
        attempt = SaveAttempt(self.scope.ids.new(), content)
        self._saving = True
        try:
            await self.engine.write(self._write(attempt))
        except AlreadyExists as error:
            raise Conflict(
                "the id of a message of this buffer is in use by another message; nothing was saved: remove it with set_history",
                reason="id_taken",
            ) from error
        except BaseException as error:
            if isinstance(error, OutcomeUnknown) or not isinstance(error, HoldfastError):
                self._uncertain.append(attempt)  # it may have been committed: the next save finds out
            raise
        finally:
            self._saving = False
        self._saved(attempt)
        if self.engine.joined:
            self._earlier_bases.append(before)  # the stored content again, if the caller's transaction is rolled back

    def _write(self, attempt: SaveAttempt) -> Call[None]:
        identity, base, earlier = (
            SessionIdentity(self.id, *self.cache_key),
            self.base,
            (*self._uncertain, *self._earlier_bases),
        )
        original = attempt.content

        async def write(connection: Connection) -> None:
            attempt.content = original  # the engine may call this again after a rollback
            await persistence.save(connection, self.scope, identity, base, earlier, attempt)

        return write

    def _saved(self, attempt: SaveAttempt) -> None:
        items = attempt.content.items
        # After a lost answer, messages may have other ids or seqs than history() has shown; otherwise they are unchanged.
        if self._uncertain:
            self._messages.clear()
        self.base = StoredContent(attempt.content, attempt.version, attempt.save_id)
        self.items = [*items, *self.items[len(items) :]]
        self.compaction_due = attempt.compaction_due
        self._uncertain.clear()

    def add(self, entry: LogEntry, *, given_id: bool) -> str:
        """Add a message and return its id.

        Raises:
            Conflict: another message of the buffer has this id.
            LimitExceeded: there would be more than ``buffered_messages``.
        """
        if given_id and (existing := self._find(entry.id)) is not None:
            if not entry.same_as(existing):
                raise Conflict(
                    f"a message with the id {entry.id} and other content exists already", reason="other_content"
                )
            return entry.id
        if len(self.items) >= self.scope.limits.buffered_messages:
            self._check_room(len(self.items) + 1)
        if not self.kept:
            self.cache.keep(self)
        self.items.append(self._pending(entry))
        return entry.id

    def replace(self, messages: Sequence[Message | NewMessage]) -> None:
        """Replace the history."""
        if not isinstance(messages, Sequence) or not all(
            isinstance(message, (Message, NewMessage)) for message in messages
        ):
            raise InvalidInput("messages must be a list of Message and NewMessage", field="messages")
        self._check_room(len(messages))
        by_id = self._by_id()
        items: list[BufferedItem] = []
        for message in messages:
            # Removed from the index, so that a message that is given twice is copied the second time.
            current, item = by_id.pop(message.id or "", (None, None))
            items.append(
                item if item is not None and _is_same(message, current, self.scope) else self._new_item(message)
            )
        if len({item.id for item in items}) < len(items):
            raise InvalidInput("two messages have the same id", field="messages")
        self.rearrange(items)

    def rearrange(self, items: Sequence[BufferedItem]) -> None:
        """Replace the items by others, or by the same in another order."""
        self._refuse_while_saving()
        stored_items = self.base.content.items
        _, arranged = persistence.arrange(
            stored_items, tuple(items), lambda item: persistence.copy_item(item, self.scope)
        )
        self._keep_in_cache()
        self.items = [*arranged]
        self._messages.clear()

    def set(self, *, agent: str | None = None, metadata: dict[str, Any] | None = None, **fields: Any) -> None:
        """Set values of the session and its state."""
        self._keep_in_cache()
        self.agent = self.agent if agent is None else agent
        self.metadata = self.metadata if metadata is None else metadata
        self.state = replace(self.state, **fields)

    def history(self) -> list[Message]:
        """Return the messages as the next save will store them. Message objects are cached."""
        stored_ids = self.stored_ids() if len(self._messages) < len(self.items) else ()
        for index in range(len(self._messages), len(self.items)):
            item = self.items[index]
            if isinstance(item, PendingItem):
                item = self._message(item, item.seq if item.id in stored_ids else self._next_seq(index))
            self._messages.append(item)
        return [*self._messages]

    def stored_ids(self) -> Collection[str]:
        """Return the ids of the stored messages, as of the last load or save."""
        return {item.id for item in self.base.content.items}

    def unsaved_items(self) -> list[BufferedItem]:
        """Return the items that were added and are not stored, without copies of stored messages."""
        return self._added_to(self.base.content)

    def _added_to(self, content: BufferContent) -> list[BufferedItem]:
        stored_ids = {item.id for item in content.items}
        added = [item for item in self.items if item.id not in stored_ids]
        return [item for item in added if not (isinstance(item, PendingItem) and item.is_copy)]

    def discard_changes(self) -> None:
        """Discard all changes."""
        self._refuse_while_saving()
        self._load(self.base)

    def _load(self, base: StoredContent | None) -> None:
        if base is None:
            base = StoredContent(BufferContent("", {}, SessionState(), ()))
        self.base = base
        self.id = self.scope.ids.new() if base.version is None else base.version.id
        self.agent, self.metadata, self.state = base.content.agent, base.content.metadata, base.content.state
        self.items = [*base.content.items]
        self.compaction_due = False
        self._messages: list[Message] = []
        self._uncertain: list[SaveAttempt] = []
        self._earlier_bases: list[SaveAttempt] = []

    def _message(self, item: PendingItem, seq: int) -> Message:
        added_at = from_us(item.added_us)
        return message_of(item.entry, self.id, seq, added_at, added_at)

    def _next_seq(self, index: int) -> int:
        stored_items, version = self.base.content.items, self.base.version
        if version is not None and index == len(stored_items) and self.items[:index] == [*stored_items]:
            return views.seq_of(version.next_position)
        return self._messages[index - 1].seq + 1 if index else 1

    def _by_id(self) -> dict[str, tuple[Message | None, BufferedItem | None]]:
        """Return all messages of the buffer and of the stored content by id, each with its item."""
        stored_items = [
            (self._message(item, item.seq) if isinstance(item, PendingItem) else item, item)
            for item in self.base.content.items
        ]
        buffered_items = zip(self.history(), self.items, strict=True)
        return {message.id: (message, item) for message, item in (*stored_items, *buffered_items)}

    def _new_item(self, message: Message | NewMessage) -> PendingItem:
        if isinstance(message, Message):
            fields = (message.role, message.content, message.kind, message.metadata, message.token_count)
            entry = new_entry(self.scope, *fields, message.is_preserved, message.is_summary, None)
        else:
            entry = new_entry(self.scope, *astuple(message))
        return self._pending(entry)

    def _pending(self, entry: LogEntry) -> PendingItem:
        return PendingItem(entry.id, entry, self.scope.clock.now_us())

    def _find(self, id: str) -> Message | None:
        return next((message for message in self.history() if message.id == id), None)

    def _check_room(self, count: int) -> None:
        self.scope.limits.check("buffered_messages", count, "messages of one buffered session; save it and compact it")

    def _keep_in_cache(self) -> None:
        if not self.kept:
            self.cache.keep(self)

    def _refuse_while_saving(self) -> None:
        if self._saving:
            raise Conflict(
                f"the buffer of session {self.id} is being saved: wait for the save to finish", reason="busy"
            )


class BufferCache:
    """The buffers that a handle keeps, the most recently used last."""

    def __init__(self, engine: Engine, scope: scopes.Scope) -> None:
        self._engine, self._scope = engine, scope
        self._kept: OrderedDict[tuple[str, str], MessageBuffer] = OrderedDict()

    async def open(self, key: str, user: str, agent: str | None, first_agent: str | None = None) -> MessageBuffer:
        """Return the buffer of the user's session under a key; load it if it is not kept.

        ``key`` and ``user`` are escaped for storage. If no agent is given, a session that does not exist yet gets
        ``first_agent``.
        """
        buffer = self._kept.get((key, user))
        if buffer is None:
            self._make_room()
            buffer = MessageBuffer(self._engine, self._scope, self, key, user)
            await buffer.reload()
            buffer.begin(first_agent if agent is None else agent)
            # Another task may have opened the same session during the load; then its buffer is used.
            buffer = self._kept.get((key, user)) or self.keep(buffer)
        self._kept.move_to_end(buffer.cache_key)
        if agent is not None and agent != buffer.agent:
            buffer.set(agent=agent)
        return buffer

    def keep(self, buffer: MessageBuffer) -> MessageBuffer:
        """Keep a buffer: a new one, or one that was released and is changed again.

        Raises:
            Conflict: another buffer of the same session is kept.
            LimitExceeded: all ``buffered_sessions`` buffers have unsaved changes.
        """
        if buffer.cache_key in self._kept:
            raise Conflict(
                f"this buffer of session {buffer.id} was released and the session has a newer one: call sessions.buffered again",
                reason="released",
            )
        self._make_room()
        self._kept[buffer.cache_key] = buffer
        buffer.kept = True
        return buffer

    def release(self, buffer: MessageBuffer) -> None:
        """Stop keeping a buffer."""
        if buffer.kept:
            del self._kept[buffer.cache_key]
            buffer.kept = False

    def drop(self, session_id: str) -> None:
        """Release the buffer of a deleted session, with its unsaved changes."""
        for buffer in [buffer for buffer in self._kept.values() if buffer.id == session_id]:
            self.release(buffer)

    def _make_room(self) -> None:
        maximum = self._scope.limits.buffered_sessions
        if len(self._kept) < maximum:
            return
        idle = next((buffer for buffer in self._kept.values() if not buffer.has_unsaved), None)
        if idle is None:
            raise LimitExceeded(
                f"all buffered_sessions = {maximum:,} have unsaved changes: save or discard some of them",
                limit="buffered_sessions",
                maximum=maximum,
            )
        self.release(idle)


def _is_same(message: Message | NewMessage, existing: Message | None, scope: scopes.Scope) -> bool:
    """Return whether a given message equals the existing one with its id.

    Raises:
        Conflict: it is a ``NewMessage`` with the id of an existing message and other content.
    """
    if isinstance(message, Message) or existing is None:
        return message == existing
    if not new_entry(scope, *astuple(message)).same_as(existing):
        raise Conflict(f"a message with the id {existing.id} and other content exists already", reason="other_content")
    return True
