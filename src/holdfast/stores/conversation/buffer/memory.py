"""What a buffered session holds in memory, and which of them a handle keeps.

The promises are those of ``buffered``. There is no lock: a buffer is for one task or thread at a time, and whatever goes to the
database goes through ``saving``.
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
from ..messages import NewMessage
from ..new_entries import new_entry
from . import saving
from .saving import Attempt, Content, Identity, Item, Known, Pending, SessionState


class Memory:
    """What a buffer holds, what the database is known to hold, and the way from one to the other."""

    known: Known
    id: str
    agent: str
    metadata: dict[str, Any]
    state: SessionState
    items: list[Item]
    compaction_due: bool

    def __init__(self, engine: Engine, scope: scopes.Scope, home: Buffers, key: str, user: str) -> None:
        self.engine, self.scope, self.home = engine, scope, home
        self.place = (key, user)
        self.key, self.user = text.unescape(key), text.unescape(user)
        self.kept = False
        """Whether its home keeps it, which alone changes this."""
        self.face: object = None
        self.blocking_face: object = None
        self._saving = False
        self._take(None)

    @property
    def has_unsaved(self) -> bool:
        """Whether it holds anything the database does not."""
        stored = self.known.content
        # What is kept of a history keeps its order, and new messages follow: so the last one and their number tell.
        same = len(self.items) == len(stored.items) and (not self.items or self.items[-1] is stored.items[-1])
        return not same or (self.agent, self.metadata, self.state) != (stored.agent, stored.metadata, stored.state)

    async def reload(self, *, keep_unsaved: bool = False) -> None:
        """Take what is stored, and after it, if that is wanted, the messages that are not."""
        self._refuse_while_saving()
        key, user = self.place
        there = await self.engine.read(lambda connection: saving.load(connection, self.scope, key, user))
        certain = self._before[0].content if self._before else self.known.content
        mine = self._added_to(certain) if keep_unsaved else []
        self._take(there)
        stored = self.stored_ids()
        self.items += [item for item in mine if item.id not in stored]

    def begin(self, agent: str | None) -> None:
        """What a session that is not there yet begins with is not a change that could be lost."""
        if agent is not None and self.known.mark is None:
            self._take(Known(replace(self.known.content, agent=agent)))

    async def save(self) -> None:
        """Store what is here."""
        self._refuse_while_saving()
        if self.known.mark is not None and not self.has_unsaved and not self._unknown and not self._before:
            return
        before = Attempt(self.known.save_id, self.known.content, self.known.mark)
        content = Content(self.agent, self.metadata, self.state, tuple(self.items))
        attempt = Attempt(self.scope.ids.new(), content)
        self._saving = True
        try:
            await self.engine.write(self._write(attempt))
        except AlreadyExists as error:
            raise Conflict(
                "a message of this buffer has an id that another one has; nothing was saved: set_history without it"
            ) from error
        except BaseException as error:
            if isinstance(error, OutcomeUnknown) or not isinstance(error, HoldfastError):
                self._unknown.append(attempt)  # it may have happened: the next save will see
            raise
        finally:
            self._saving = False
        self._saved(attempt)
        if self.engine.joined:
            self._before.append(before)  # what there is again, should the caller's transaction be undone

    def _write(self, attempt: Attempt) -> Call[None]:
        identity, known, earlier = Identity(self.id, *self.place), self.known, (*self._unknown, *self._before)
        original = attempt.content

        async def write(connection: Connection) -> None:
            attempt.content = original  # it may be the second time, after the first was undone
            await saving.save(connection, self.scope, identity, known, earlier, attempt)

        return write

    def _saved(self, attempt: Attempt) -> None:
        items = attempt.content.items
        # After a lost answer, messages may have got other ids or numbers; otherwise what was shown stays as it is.
        if self._unknown:
            self._shown.clear()
        self.known = Known(attempt.content, attempt.mark, attempt.save_id)
        self.items = [*items, *self.items[len(items) :]]
        self.compaction_due = attempt.compaction_due
        self._unknown.clear()

    def add(self, entry: LogEntry, *, given_id: bool) -> str:
        """One more message."""
        if given_id and (there := self._find(entry.id)) is not None:
            if not entry.same_as(there):
                raise Conflict(f"there is a message with the id {entry.id} and other content")
            return entry.id
        if len(self.items) >= self.scope.limits.buffered_messages:
            self._check_room(len(self.items) + 1)
        if not self.kept:
            self.home.take_in(self)
        self.items.append(self._pending(entry))
        return entry.id

    def replace(self, messages: Sequence[Message | NewMessage]) -> None:
        """Another history."""
        if not isinstance(messages, Sequence) or not all(isinstance(each, (Message, NewMessage)) for each in messages):
            raise InvalidInput("messages must be a list of Message and NewMessage")
        self._check_room(len(messages))
        here = self._by_id()
        items: list[Item] = []
        for each in messages:
            # Taken out, so that a message given twice is copied the second time.
            message, item = here.pop(each.id or "", (None, None))
            items.append(item if item is not None and _same(each, message, self.scope) else self._new_item(each))
        if len({item.id for item in items}) < len(items):
            raise InvalidInput("two messages have the same id")
        self.rearrange(items)

    def rearrange(self, items: Sequence[Item]) -> None:
        """Other messages, or the same in another order."""
        self._refuse_while_saving()
        stored = self.known.content.items
        _, arranged = saving.arranged(stored, tuple(items), lambda item: saving.copied(item, self.scope))
        self._come_home()
        self.items = [*arranged]
        self._shown.clear()

    def set(self, *, agent: str | None = None, metadata: dict[str, Any] | None = None, **fields: Any) -> None:
        """Other values of the session and its state."""
        self._come_home()
        self.agent = self.agent if agent is None else agent
        self.metadata = self.metadata if metadata is None else metadata
        self.state = replace(self.state, **fields)

    def history(self) -> list[Message]:
        """The messages as the next save will store them, each made only once."""
        stored = self.stored_ids() if len(self._shown) < len(self.items) else ()
        for place in range(len(self._shown), len(self.items)):
            item = self.items[place]
            if isinstance(item, Pending):
                item = self._message(item, item.seq if item.id in stored else self._next_seq(place))
            self._shown.append(item)
        return [*self._shown]

    def stored_ids(self) -> Collection[str]:
        """The ids of the messages that are known to be stored."""
        return {item.id for item in self.known.content.items}

    def unsaved_items(self) -> list[Item]:
        """What was added and is not known to be stored; not what only stands for something that is."""
        return self._added_to(self.known.content)

    def _added_to(self, content: Content) -> list[Item]:
        stored = {item.id for item in content.items}
        added = [item for item in self.items if item.id not in stored]
        return [item for item in added if not (isinstance(item, Pending) and item.is_copy)]

    def forget_changes(self) -> None:
        """Back to what is known to be stored."""
        self._refuse_while_saving()
        self._take(self.known)

    def _take(self, known: Known | None) -> None:
        if known is None:
            known = Known(Content("", {}, SessionState(), ()))
        self.known = known
        self.id = self.scope.ids.new() if known.mark is None else known.mark.id
        self.agent, self.metadata, self.state = known.content.agent, known.content.metadata, known.content.state
        self.items = [*known.content.items]
        self.compaction_due = False
        self._shown: list[Message] = []
        self._unknown: list[Attempt] = []
        self._before: list[Attempt] = []

    def _message(self, item: Pending, seq: int) -> Message:
        added_at = from_us(item.added_us)
        return message_of(item.entry, self.id, seq, added_at, added_at)

    def _next_seq(self, place: int) -> int:
        stored, mark = self.known.content.items, self.known.mark
        if mark is not None and place == len(stored) and self.items[:place] == [*stored]:
            return views.seq_of(mark.next_position)
        return self._shown[place - 1].seq + 1 if place else 1

    def _by_id(self) -> dict[str, tuple[Message | None, Item | None]]:
        """Every message that is here or stored, and what it is made of."""
        stored = [
            (self._message(item, item.seq) if isinstance(item, Pending) else item, item)
            for item in self.known.content.items
        ]
        here = zip(self.history(), self.items, strict=True)
        return {message.id: (message, item) for message, item in (*stored, *here)}

    def _new_item(self, given: Message | NewMessage) -> Pending:
        if isinstance(given, Message):
            fields = (given.role, given.content, given.kind, given.metadata, given.token_count)
            entry = new_entry(self.scope, *fields, given.is_preserved, given.is_summary, None)
        else:
            entry = new_entry(self.scope, *astuple(given))
        return self._pending(entry)

    def _pending(self, entry: LogEntry) -> Pending:
        return Pending(entry.id, entry, self.scope.clock.now_us())

    def _find(self, id: str) -> Message | None:
        return next((message for message in self.history() if message.id == id), None)

    def _check_room(self, count: int) -> None:
        what = "messages of one buffered session; save it and compact it"
        self.scope.limits.check("buffered_messages", count, what)

    def _come_home(self) -> None:
        if not self.kept:
            self.home.take_in(self)

    def _refuse_while_saving(self) -> None:
        if self._saving:
            raise Conflict(f"the buffer of session {self.id} is being saved; wait for that first")


class Buffers:
    """The buffers that a handle keeps, the one used last at the end."""

    def __init__(self, engine: Engine, scope: scopes.Scope) -> None:
        self._engine, self._scope = engine, scope
        self._kept: OrderedDict[tuple[str, str], Memory] = OrderedDict()

    async def open(self, key: str, user: str, agent: str | None, first_agent: str | None = None) -> Memory:
        """The buffer of the user's session under a key, both in the form that is stored. Where no agent is given, a session
        that is not there yet begins with ``first_agent``."""
        memory = self._kept.get((key, user))
        if memory is None:
            self._make_room()
            memory = Memory(self._engine, self._scope, self, key, user)
            await memory.reload()
            memory.begin(first_agent if agent is None else agent)
            # Somebody may have asked for the same meanwhile; then theirs is the one.
            memory = self._kept.get((key, user)) or self.take_in(memory)
        self._kept.move_to_end(memory.place)
        if agent is not None and agent != memory.agent:
            memory.set(agent=agent)
        return memory

    def take_in(self, memory: Memory) -> Memory:
        """Keep a buffer: a new one, or one that was let go of and is changed again.

        Raises:
            Conflict: another buffer of the same session is kept.
            LimitExceeded: there is no room.
        """
        if memory.place in self._kept:
            raise Conflict(f"this buffer of session {memory.id} was let go of, and there is another: use that one")
        self._make_room()
        self._kept[memory.place] = memory
        memory.kept = True
        return memory

    def let_go(self, memory: Memory) -> None:
        """Keep a buffer no longer."""
        if memory.kept:
            del self._kept[memory.place]
            memory.kept = False

    def drop(self, session_id: str) -> None:
        """Keep the buffer of a session no longer, whatever is in it: the session was deleted."""
        for memory in [each for each in self._kept.values() if each.id == session_id]:
            self.let_go(memory)

    def _make_room(self) -> None:
        most = self._scope.limits.buffered_sessions
        if len(self._kept) < most:
            return
        idle = next((memory for memory in self._kept.values() if not memory.has_unsaved), None)
        if idle is None:
            raise LimitExceeded(f"all buffered_sessions = {most:,} have unsaved changes: save or discard some of them")
        self.let_go(idle)


def _same(given: Message | NewMessage, there: Message | None, scope: scopes.Scope) -> bool:
    """Whether a message that was given is the one that is there.

    Raises:
        Conflict: it is new, under the id of another one.
    """
    if isinstance(given, Message) or there is None:
        return given == there
    if not new_entry(scope, *astuple(given)).same_as(there):
        raise Conflict(f"there is a message with the id {there.id} and other content")
    return True
