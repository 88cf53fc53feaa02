"""Buffered sessions: a conversation kept in memory while an agent works on it, and written by an explicit ``save``.

A durable append costs a flush of the disk. An agent loop that can afford to lose its last turn can avoid that: it adds
messages, summary and token counts to a buffer in memory, and saves once at the end of the run. **Unsaved changes are lost if
the process ends.** The durable append (``messages.append``) is the default.

``sessions.buffered(key)`` returns the same live buffer as long as the handle keeps it. A handle keeps ``buffered_sessions`` of
them. To make room it releases the least recently used one, but never one with unsaved changes: if all have some, opening
another raises ``LimitExceeded`` until one is saved or discarded. ``sessions.delete`` and ``purge`` of a session drop its buffer
too. All other reads, such as lists, return only saved data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from ....clock import from_us
from ....core import scope as scopes
from ....core import text
from ....core.checks import whole_number
from ....errors import InvalidInput
from ....sync_runner import step
from ..message_log import Message
from ..new_entries import NewMessage, new_entry
from .message_buffer import MessageBuffer
from .persistence import SessionState

_MAX_COUNT = 2**62
"""The largest token sum: small enough that both engines can add to it without overflow."""


class Buffer:
    """The in-memory methods of both kinds of buffered session."""

    def __init__(self, buffer: MessageBuffer) -> None:
        self._buffer = buffer

    def __repr__(self) -> str:
        buffer = self._buffer
        description = f"{buffer.key!r} of {buffer.user!r}, {len(buffer.items)} messages"
        return f"<{type(self).__name__} {description}{', unsaved changes' if buffer.has_unsaved else ''}>"

    @property
    def id(self) -> str:
        """The session's id; before the first save, the id that the session will get."""
        return self._buffer.id

    @property
    def key(self) -> str:
        """The session's key."""
        return self._buffer.key

    @property
    def user(self) -> str:
        """The user of the session, or the empty string."""
        return self._buffer.user

    @property
    def agent(self) -> str:
        """The session's agent, or the empty string."""
        return self._buffer.agent

    @property
    def metadata(self) -> dict[str, Any]:
        """A copy of the session's metadata."""
        return deepcopy(self._buffer.metadata)

    @property
    def state(self) -> SessionState:
        """Summary, label, model, counters and so on, including unsaved changes."""
        return self._buffer.state

    @property
    def compaction_count(self) -> int:
        """The number of compactions of the session: by ``compactions`` and by ``increment_compaction``."""
        version = self._buffer.base.version
        return self._buffer.state.compaction_count + (0 if version is None else version.compaction_count)

    @property
    def needs_memory_flush(self) -> bool:
        """Whether the session was compacted since ``set_memory_flush_done``."""
        return self._buffer.state.memory_flush_compaction_count != self.compaction_count

    @property
    def has_unsaved(self) -> bool:
        """Whether anything was changed since the buffer was loaded or saved."""
        return self._buffer.has_unsaved

    @property
    def compaction_due(self) -> bool:
        """Whether the last save made the session due for a compaction under its policy.

        Unlike an append, a save does not compact: that would change the session under the buffer. Compact at the end of a
        run, and call ``reload``.
        """
        return self._buffer.compaction_due

    def history(self) -> list[Message]:
        """Return the messages, oldest first, including unsaved ones."""
        return self._buffer.history()

    def unsaved(self) -> list[Message]:
        """Return the messages that were added and not saved: ``reload`` or the end of the process would lose them."""
        unsaved = {item.id for item in self._buffer.unsaved_items()}
        return [message for message in self._buffer.history() if message.id in unsaved]

    def add_message(
        self,
        *,
        role: str | None = None,
        content: Any,
        kind: str = "message",
        metadata: Mapping[str, Any] | None = None,
        token_count: int | None = None,
        is_preserved: bool = False,
        is_summary: bool = False,
        id: str | None = None,
    ) -> str:
        """Add one message, in memory only, and return its id. The arguments are those of ``messages.append``.

        With an ``id`` of the caller's the call can be repeated: the same id with the same content changes nothing.

        Raises:
            InvalidInput: the role, the content or another argument is invalid.
            Conflict: a message with this id and other content exists already.
            LimitExceeded: there would be more than ``buffered_messages``.
        """
        buffer = self._buffer
        entry = new_entry(buffer.scope, role, content, kind, metadata, token_count, is_preserved, is_summary, id)
        return buffer.add(entry, given_id=id is not None)

    def set_history(self, messages: Sequence[Message | NewMessage]) -> None:
        """Replace the history by these messages: some of it, new ones, or both.

        Messages keep their ids as long as they follow each other as before. A message that was changed, or that follows a
        new one, is stored as a copy under a new id. Messages that are left out are not deleted: see ``branches``.

        Raises:
            InvalidInput: a message is invalid.
            Conflict: the buffer is being saved.
            LimitExceeded: there are more than ``buffered_messages``.
        """
        self._buffer.replace(messages)

    def truncate_history(self, keep_last: int) -> None:
        """Keep only the last ``keep_last`` messages; with 0 or less, none. The others are not deleted: see ``branches``.

        Raises:
            Conflict: the buffer is being saved.
        """
        if not isinstance(keep_last, int) or isinstance(keep_last, bool):
            raise InvalidInput(f"keep_last must be a whole number, not {keep_last!r}", field="keep_last")
        items = self._buffer.items
        self._buffer.rearrange(items[-keep_last:] if keep_last > 0 else [])

    def reset(self) -> None:
        """Clear messages and summary. Everything else stays: token totals, counters, label, metadata.

        Raises:
            Conflict: the buffer is being saved.
        """
        self._buffer.rearrange([])
        self._buffer.set(summary="")

    def set_summary(self, summary: str) -> None:
        """Set the summary of earlier messages; an empty string clears it."""
        self._buffer.set(summary=self._line(summary, "summary", "content_bytes"))

    def set_label(self, label: str) -> None:
        """Set a human-readable name; an empty string clears it."""
        self._buffer.set(label=self._line(label, "label"))

    def set_agent_info(
        self,
        *,
        agent: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        channel: str | None = None,
    ) -> None:
        """Set agent, model, provider and channel. Arguments that are ``None`` or empty change nothing."""
        values = {"model": model, "provider": provider, "channel": channel}
        lines: dict[str, Any] = {name: self._line(value, name) for name, value in values.items() if value}
        agent = self._line(agent, "agent") if agent else self.agent
        self._buffer.set(agent=agent, **lines)

    def set_spawn_info(self, *, spawned_by: str, depth: int) -> None:
        """Set the session that spawned this one, and the depth of this one."""
        self._buffer.set(spawned_by=self._line(spawned_by, "spawned_by"), spawn_depth=_whole(depth, "depth"))

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Set these keys of the session's metadata; the others stay."""
        scopes.metadata(metadata, self._buffer.scope.limits)
        merged = scopes.metadata({**self._buffer.metadata, **metadata}, self._buffer.scope.limits)
        self._buffer.set(metadata=text.load(merged))

    def accumulate_tokens(self, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Add the tokens that a provider reported for one call. They are not part of ``token_count``: see ``SessionState``."""
        state = self._buffer.state
        self._buffer.set(
            input_tokens=_whole(state.input_tokens + _whole(input_tokens, "input_tokens"), "the sum of input_tokens"),
            output_tokens=_whole(
                state.output_tokens + _whole(output_tokens, "output_tokens"), "the sum of output_tokens"
            ),
        )

    def increment_compaction(self) -> None:
        """Count one more compaction, after the caller has summarised and truncated the history."""
        self._buffer.set(compaction_count=self._buffer.state.compaction_count + 1)

    def set_memory_flush_done(self) -> None:
        """Note that the memories of the last compaction were stored."""
        now = from_us(self._buffer.scope.clock.now_us())
        self._buffer.set(memory_flush_compaction_count=self.compaction_count, memory_flush_at=now)

    def discard(self) -> None:
        """Drop unsaved changes and release the buffer. ``sessions.buffered`` loads a new one.

        Raises:
            Conflict: the buffer is being saved.
        """
        self._buffer.discard_changes()
        self._buffer.cache.release(self._buffer)

    def _line(self, value: str, what: str, limit: str = "name_bytes") -> str:
        if not isinstance(value, str):
            raise InvalidInput(f"{what} must be a string, not {type(value).__name__}", field=what)
        self._buffer.scope.limits.check(limit, text.size(text.escape(value)), what)
        return text.plain(value)  # type: ignore[no-any-return]


class AsyncBufferedSession(Buffer):
    """A session in memory, written by ``save``. **Unsaved changes are lost if the process ends.**

    For one task at a time. Messages added while a save is running are written by the next save.
    """

    async def save(self) -> None:
        """Write all changes in one transaction; durable when this returns. Create the session if it does not exist.

        On your own connection (``join``) the changes are durable when you commit. After a rollback, save again; if the creation
        of the session was rolled back, that raises ``Conflict``: see ``reload``.

        If it raises, nothing was written and the buffer is unchanged, so a save can be repeated. After ``OutcomeUnknown`` the
        next save finds out whether this one was committed, and writes nothing twice.

        Raises:
            Conflict: another writer has changed or deleted the session since this buffer was loaded or saved, or the id of a
                message is in use by another message. See ``reload``.
        """
        await self._buffer.save()

    async def reload(self, *, keep_unsaved: bool = False) -> None:
        """Load the session from the database, and drop unsaved changes.

        With ``keep_unsaved``, unsaved messages are kept and follow the stored ones: use it to continue after a ``Conflict``. If
        the session no longer exists, the buffer contains only these messages, and a save creates a new session: messages that
        another writer deleted do not come back.

        Raises:
            Conflict: the buffer is being saved.
        """
        await self._buffer.reload(keep_unsaved=keep_unsaved)


class BufferedSession(Buffer):
    """A session in memory, written by ``save``. **Unsaved changes are lost if the process ends.**

    For one thread at a time.
    """

    def save(self) -> None:
        """Write all changes in one transaction; durable when this returns. Create the session if it does not exist.

        On your own connection (``join``) the changes are durable when you commit. After a rollback, save again; if the creation
        of the session was rolled back, that raises ``Conflict``: see ``reload``.

        If it raises, nothing was written and the buffer is unchanged, so a save can be repeated. After ``OutcomeUnknown`` the
        next save finds out whether this one was committed, and writes nothing twice.

        Raises:
            Conflict: another writer has changed or deleted the session since this buffer was loaded or saved, or the id of a
                message is in use by another message. See ``reload``.
        """
        step(self._buffer.save())

    def reload(self, *, keep_unsaved: bool = False) -> None:
        """Load the session from the database, and drop unsaved changes.

        With ``keep_unsaved``, unsaved messages are kept and follow the stored ones: use it to continue after a ``Conflict``. If
        the session no longer exists, the buffer contains only these messages, and a save creates a new session: messages that
        another writer deleted do not come back.
        """
        step(self._buffer.reload(keep_unsaved=keep_unsaved))


def async_session_of(buffer: MessageBuffer) -> AsyncBufferedSession:
    """Return the asynchronous session of a buffer; always the same object."""
    if not isinstance(buffer.async_session, AsyncBufferedSession):
        buffer.async_session = AsyncBufferedSession(buffer)
    return buffer.async_session


def blocking_session_of(session: AsyncBufferedSession) -> BufferedSession:
    """Return the synchronous session of a buffer; always the same object."""
    message_buffer = session._buffer
    if not isinstance(message_buffer.blocking_session, BufferedSession):
        message_buffer.blocking_session = BufferedSession(message_buffer)
    return message_buffer.blocking_session


def _whole(value: int, what: str) -> int:
    return whole_number(value, what, maximum=_MAX_COUNT)
