"""Buffered sessions: a conversation that is kept in memory while an agent works on it, and written when told.

A durable append is safe and costs a flush of the disk. An agent loop that can afford to lose its last turn may do without: it
adds messages, summary and token counts to a buffer, which costs next to nothing, and saves once at the end of the run. **What
was added and not saved is lost with the process.** The durable append (``messages.append``) stays the default.

``sessions.buffered(key)`` gives the same live buffer as long as the handle keeps it. A handle keeps ``buffered_sessions`` of
them; to make room it lets go of the one used longest ago, but never of one with unsaved changes: if all have some, asking for
one more is ``LimitExceeded`` until one is saved or discarded. Deleting a session by ``sessions.delete`` or ``purge`` drops
its buffer too; lists and everything else always come from the database.
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
from ..messages import NewMessage
from ..new_entries import new_entry
from .memory import Memory
from .saving import SessionState

_MAX_COUNT = 2**62
"""More tokens than anybody will ever pay for, and still a number that both engines can add to."""


class Buffer:
    """What both kinds of buffered session have in common: everything that happens in memory."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def __repr__(self) -> str:
        memory = self._memory
        about = f"{memory.key!r} of {memory.user!r}, {len(memory.items)} messages"
        return f"<{type(self).__name__} {about}{', unsaved changes' if memory.has_unsaved else ''}>"

    @property
    def id(self) -> str:
        """The session's id; of a session that was never saved, the one it will have."""
        return self._memory.id

    @property
    def key(self) -> str:
        """The session's key."""
        return self._memory.key

    @property
    def user(self) -> str:
        """The user whose session it is, or the empty string."""
        return self._memory.user

    @property
    def agent(self) -> str:
        """The session's agent, or the empty string."""
        return self._memory.agent

    @property
    def metadata(self) -> dict[str, Any]:
        """A copy of the session's metadata."""
        return deepcopy(self._memory.metadata)

    @property
    def state(self) -> SessionState:
        """Summary, label, model, counters and so on, as they are now."""
        return self._memory.state

    @property
    def compaction_count(self) -> int:
        """How often the session was compacted: by ``compactions`` and by ``increment_compaction``."""
        mark = self._memory.known.mark
        return self._memory.state.compaction_count + (0 if mark is None else mark.compaction_count)

    @property
    def needs_memory_flush(self) -> bool:
        """Whether the session was compacted since ``set_memory_flush_done``."""
        return self._memory.state.memory_flush_compaction_count != self.compaction_count

    @property
    def has_unsaved(self) -> bool:
        """Whether anything was changed since it was loaded or saved."""
        return self._memory.has_unsaved

    @property
    def compaction_due(self) -> bool:
        """Whether the last save brought the session to the point where its policy wants it compacted.

        A save does not do so by itself, as an append does: that would change the session under the buffer. Compact it at
        the end of a run, and ``reload``.
        """
        return self._memory.compaction_due

    def history(self) -> list[Message]:
        """The messages, oldest first, unsaved ones included."""
        return self._memory.history()

    def unsaved(self) -> list[Message]:
        """The messages that were added and not saved: what would be lost with the process, or by ``reload``."""
        unsaved = {item.id for item in self._memory.unsaved_items()}
        return [message for message in self._memory.history() if message.id in unsaved]

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
            InvalidInput: the role, the content or another argument is not acceptable.
            Conflict: there is a message with this id and other content.
            LimitExceeded: there would be more than ``buffered_messages``.
        """
        memory = self._memory
        entry = new_entry(memory.scope, role, content, kind, metadata, token_count, is_preserved, is_summary, id)
        return memory.add(entry, given_id=id is not None)

    def set_history(self, messages: Sequence[Message | NewMessage]) -> None:
        """Replace the history by these messages: some of it, new ones, or both.

        Messages keep their ids as long as they follow each other as before. What comes after something new, or was
        changed, is stored once more under a new id. What is left out is not destroyed: see ``branches``.

        Raises:
            InvalidInput: a message is not acceptable.
            Conflict: the buffer is being saved.
            LimitExceeded: there are more than ``buffered_messages``.
        """
        self._memory.replace(messages)

    def truncate_history(self, keep_last: int) -> None:
        """Keep only so many of the last messages; with 0 or less, none. What goes is not destroyed: see ``branches``.

        Raises:
            Conflict: the buffer is being saved.
        """
        if not isinstance(keep_last, int) or isinstance(keep_last, bool):
            raise InvalidInput(f"keep_last must be a whole number, not {keep_last!r}")
        items = self._memory.items
        self._memory.rearrange(items[-keep_last:] if keep_last > 0 else [])

    def reset(self) -> None:
        """Clear messages and summary. Everything else stays: token totals, counters, label, metadata.

        Raises:
            Conflict: the buffer is being saved.
        """
        self._memory.rearrange([])
        self._memory.set(summary="")

    def set_summary(self, summary: str) -> None:
        """What came before the messages, in short; empty for nothing."""
        self._memory.set(summary=self._line(summary, "summary", "content_bytes"))

    def set_label(self, label: str) -> None:
        """A name for people to read; empty for none."""
        self._memory.set(label=self._line(label, "label"))

    def set_agent_info(
        self,
        *,
        agent: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        channel: str | None = None,
    ) -> None:
        """Who is talking, by which model, and where. What is not given, or empty, stays."""
        given = {"model": model, "provider": provider, "channel": channel}
        lines: dict[str, Any] = {name: self._line(value, name) for name, value in given.items() if value}
        agent = self._line(agent, "agent") if agent else self.agent
        self._memory.set(agent=agent, **lines)

    def set_spawn_info(self, *, spawned_by: str, depth: int) -> None:
        """Which session this one was spawned by, and how deep it is."""
        self._memory.set(spawned_by=self._line(spawned_by, "spawned_by"), spawn_depth=_whole(depth, "depth"))

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add these keys to the session's metadata, or replace them; the others stay."""
        scopes.metadata(metadata, self._memory.scope.limits)
        merged = scopes.metadata({**self._memory.metadata, **metadata}, self._memory.scope.limits)
        self._memory.set(metadata=text.load(merged))

    def accumulate_tokens(self, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Add what a provider reported for one call. It counts nowhere else: see ``SessionState``."""
        state = self._memory.state
        self._memory.set(
            input_tokens=_whole(state.input_tokens + _whole(input_tokens, "input_tokens"), "the sum of input_tokens"),
            output_tokens=_whole(
                state.output_tokens + _whole(output_tokens, "output_tokens"), "the sum of output_tokens"
            ),
        )

    def increment_compaction(self) -> None:
        """The history was summarised and truncated once more."""
        self._memory.set(compaction_count=self._memory.state.compaction_count + 1)

    def set_memory_flush_done(self) -> None:
        """What was to be remembered of the last compaction has been."""
        now = from_us(self._memory.scope.clock.now_us())
        self._memory.set(memory_flush_compaction_count=self.compaction_count, memory_flush_at=now)

    def discard(self) -> None:
        """Drop what was not saved, and let go of the buffer; the next one is loaded anew.

        Raises:
            Conflict: the buffer is being saved.
        """
        self._memory.forget_changes()
        self._memory.home.let_go(self._memory)

    def _line(self, value: str, what: str, limit: str = "name_bytes") -> str:
        if not isinstance(value, str):
            raise InvalidInput(f"{what} must be a string, not {type(value).__name__}")
        self._memory.scope.limits.check(limit, text.size(text.escape(value)), what)
        return text.plain(value)  # type: ignore[no-any-return]


class AsyncBufferedSession(Buffer):
    """A session in memory, written by ``save``. **What was added and not saved is lost with the process.**

    It is for one task at a time. Messages may be added while a save is under way; they wait for the next.
    """

    async def save(self) -> None:
        """Write what changed, in one transaction; durable when this returns. Makes the session if it is not there.

        On your own connection (``join``) it is durable when you commit. After a rollback, save again; where the session itself
        was undone, that is a ``Conflict``: see ``reload``.

        If it raises, nothing was written and the buffer is as it was, so a save can be repeated. After ``OutcomeUnknown`` the
        next save finds out what became of this one, and writes nothing twice.

        Raises:
            Conflict: somebody else has written to the session, or deleted it, since it was loaded or saved here; or a message
                has an id that another one has. See ``reload``.
        """
        await self._memory.save()

    async def reload(self, *, keep_unsaved: bool = False) -> None:
        """Take what the database holds, and drop what was not saved.

        With ``keep_unsaved``, messages that were added and not saved follow what is stored, as they were: the way on after a
        ``Conflict``. If the session is gone, the buffer has nothing else, and a save makes a new one: what others deleted
        does not come back.

        Raises:
            Conflict: the buffer is being saved.
        """
        await self._memory.reload(keep_unsaved=keep_unsaved)


class BufferedSession(Buffer):
    """A session in memory, written by ``save``. **What was added and not saved is lost with the process.**

    It is for one thread at a time.
    """

    def save(self) -> None:
        """Write what changed, in one transaction; durable when this returns. Makes the session if it is not there.

        On your own connection (``join``) it is durable when you commit. After a rollback, save again; where the session itself
        was undone, that is a ``Conflict``: see ``reload``.

        If it raises, nothing was written and the buffer is as it was, so a save can be repeated. After ``OutcomeUnknown`` the
        next save finds out what became of this one, and writes nothing twice.

        Raises:
            Conflict: somebody else has written to the session, or deleted it, since it was loaded or saved here; or a message
                has an id that another one has. See ``reload``.
        """
        step(self._memory.save())

    def reload(self, *, keep_unsaved: bool = False) -> None:
        """Take what the database holds, and drop what was not saved.

        With ``keep_unsaved``, messages that were added and not saved follow what is stored, as they were: the way on after a
        ``Conflict``. If the session is gone, the buffer has nothing else, and a save makes a new one: what others deleted
        does not come back.
        """
        step(self._memory.reload(keep_unsaved=keep_unsaved))


def face_of(memory: Memory) -> AsyncBufferedSession:
    """What callers see of a buffer; always the same object."""
    if not isinstance(memory.face, AsyncBufferedSession):
        memory.face = AsyncBufferedSession(memory)
    return memory.face


def blocking_face_of(buffer: AsyncBufferedSession) -> BufferedSession:
    """What synchronous callers see of a buffer; always the same object."""
    memory = buffer._memory
    if not isinstance(memory.blocking_face, BufferedSession):
        memory.blocking_face = BufferedSession(memory)
    return memory.blocking_face


def _whole(value: int, what: str) -> int:
    return whole_number(value, what, maximum=_MAX_COUNT)
