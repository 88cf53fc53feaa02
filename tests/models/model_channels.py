"""A model of pending messages, contacts and feedback in dictionaries and lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.filters import Filter, column
from holdfast.core.paging import Page
from holdfast.core.text import escape, size
from holdfast.errors import AlreadyExists, Conflict, InvalidInput, LimitExceeded, NotFound
from holdfast.ids import parse as parse_id
from holdfast.limits import SEARCH_CHARS
from holdfast.stores.conversation.contacts import Contact
from holdfast.stores.conversation.feedback import ISSUE_TYPES, Feedback
from holdfast.stores.conversation.keys import GroupKey
from holdfast.stores.conversation.pending_groups import PendingGroup
from holdfast.stores.conversation.pending_messages import NewPendingMessage, PendingMessage
from tests.contract.cases.values import same
from tests.models import oracle

if TYPE_CHECKING:
    from tests.models.model import Model, ModelTenant

Room = tuple[str, str]
CONTACT_COLUMNS: oracle.Columns = {
    "id": "id", "channel_type": "text", "sender_id": "text", "channel_instance": "text", "user": "text",
    "display_name": "text", "username": "text", "peer_kind": "text", "merged_id": "id",
    "first_seen_at": "time", "last_seen_at": "time",
}  # fmt: skip
FEEDBACK_COLUMNS: oracle.Columns = {
    "id": "id", "message_id": "id", "session_id": "id", "user": "text", "is_positive": "bool", "feedback_text": "text",
    "issue_type": "text", "created_at": "time", "updated_at": "time",
}  # fmt: skip


class ModelPendingMessages:
    """The pending messages of one tenant, with a list per group."""

    def __init__(self, model: Model, tenant: ModelTenant) -> None:
        self._model, self._tenant = model, tenant
        self.rooms: dict[Room, list[PendingMessage]] = {}
        self._next: dict[Room, int] = {}

    def append_batch(self, messages: Sequence[NewPendingMessage]) -> list[PendingMessage]:
        if len(messages) > self._model.limits.batch_rows:
            raise LimitExceeded
        new = [self._new(message) for message in messages]
        if len({item.id for item in new}) < len(new):
            raise InvalidInput
        existing = {item.id: item for item in self._all()}
        if any(item.id in existing for item in new):
            if not all(item.id in existing and _repeats(item, existing[item.id]) for item in new):
                raise Conflict
            return [existing[item.id] for item in new]
        return [self._place(item) for item in new]

    def list_by_key(self, channel_name: Any, history_key: Any, *, limit: Any = None, cursor: Any = None) -> Page[Any]:
        room = self._room(channel_name, history_key)
        self._model.check_page(limit, cursor, "pending")
        return self._model.page(self.rooms.get(room, []), lambda row: row.seq, limit, cursor, "pending")

    def delete_by_key(self, channel_name: Any, history_key: Any) -> int:
        return len(self.rooms.pop(self._room(channel_name, history_key), []))

    def compact(self, message_ids: Any, summary: Any, *, id: Any = None) -> PendingMessage | None:
        if len(message_ids) > self._model.limits.batch_rows:
            raise LimitExceeded
        ids = {parse_id(item) for item in message_ids}
        new_id = self._model.ids.new() if id is None else parse_id(id)
        self._body(summary)
        existing = {item.id: item for item in self._all()}
        if id is not None and new_id in existing:
            if not existing[new_id].is_summary or existing[new_id].body != summary:
                raise Conflict
            return existing[new_id]
        removed = [item for item in existing.values() if item.id in ids]
        if len({_room_of(item) for item in removed}) > 1:
            raise InvalidInput
        return self._replace(removed, new_id, summary) if removed else None

    def delete_stale(self, *, older_than: Any) -> int:
        if older_than < timedelta(0):
            raise InvalidInput
        now, removed = self._model.now(), 0
        for room, waiting in [*self.rooms.items()]:
            left = [item for item in waiting if now - item.updated_at <= older_than]
            removed += len(waiting) - len(left)
            self._keep(room, left)
        return removed

    def list_groups(self, *, limit: Any = None, cursor: Any = None) -> Page[PendingGroup]:
        self._model.check_page(limit, cursor, "groups")
        groups = sorted((_group(room, waiting) for room, waiting in self.rooms.items()), key=_activity)
        return self._model.page(groups, _activity, limit, cursor, "groups")

    def count_all(self) -> int:
        return len(self._all())

    def count_by_key(self, channel_name: Any, history_key: Any) -> int:
        return len(self.rooms.get(self._room(channel_name, history_key), []))

    def resolve_group_titles(self, groups: Sequence[Room]) -> dict[Room, str]:
        if len(groups) > self._model.limits.batch_rows:
            raise LimitExceeded
        live = [row for row in self._tenant.sessions.rows.values() if row.deleted_at is None]
        live.sort(key=lambda row: (row.updated_at, row.id))
        titles: dict[Room, str] = {}
        for session in live:
            title = session.metadata.get("chat_title")
            for channel, peer in groups:
                if isinstance(title, str) and title and _is_of(session.key, channel, peer):
                    titles[channel, peer] = title
        return titles

    def _new(self, new: NewPendingMessage) -> PendingMessage:
        id = self._model.ids.new() if new.id is None else parse_id(new.id)
        channel, key = self._room(new.channel_name, new.history_key)
        named = [_named(self._model, item) for item in (new.sender, new.sender_id, new.platform_msg_id)]
        now = self._model.now()
        return PendingMessage(id, channel, key, 0, named[0], named[1], self._body(new.body), named[2], False, now, now)

    def _place(self, message: PendingMessage) -> PendingMessage:
        room = _room_of(message)
        self._tenant.known()
        seq = self._next[room] if room in self.rooms else 1
        self._next[room] = seq + 1
        self.rooms.setdefault(room, []).append(msgspec.structs.replace(message, seq=seq))
        return self.rooms[room][-1]

    def _replace(self, gone: list[PendingMessage], id: str, body: str) -> PendingMessage:
        first = min(gone, key=lambda row: row.seq)
        room = _room_of(first)
        made = max(self._model.now(), *(row.updated_at for row in gone))
        summary = PendingMessage(
            id, *room, first.seq, "", "", body, "", True, max(row.created_at for row in gone), made
        )  # fmt: skip
        left = [row for row in self.rooms[room] if row not in gone]
        self.rooms[room] = sorted([*left, summary], key=lambda row: row.seq)
        return summary

    def _keep(self, room: Room, left: list[PendingMessage]) -> None:
        self.rooms[room] = left
        if not left:
            del self.rooms[room]

    def _all(self) -> list[PendingMessage]:
        return [item for waiting in self.rooms.values() for item in waiting]

    def _room(self, channel_name: Any, history_key: Any) -> Room:
        return self._model.name(channel_name, "name_bytes"), self._model.name(history_key, "key_bytes")

    def _body(self, body: Any) -> str:
        return _text(self._model, body, "content_bytes")


class ModelContacts:
    """The contacts of one tenant."""

    def __init__(self, model: Model, tenant: ModelTenant) -> None:
        self._model, self._tenant = model, tenant
        self.rows: dict[str, Contact] = {}

    def upsert(self, channel_type: Any, sender_id: Any, *, metadata: Any = None, **given: Any) -> Contact:
        model, new_id = self._model, self._model.ids.new()
        self._names(channel_type, sender_id)
        limits = {"display_name": "display_bytes", "avatar_url": "url_bytes"}
        values = {name: _named(model, value, limits.get(name, "name_bytes")) for name, value in given.items()}
        initial: dict[str, Any] = {name: value for name, value in values.items() if value}
        if saved := model.metadata(metadata):
            initial["metadata"] = saved
        existing = self.find(channel_type, sender_id)
        if existing is None:
            self._tenant.known()
            existing = Contact(
                new_id, channel_type, sender_id, "", "", "", "", "", "", {}, None, model.now(), model.now()
            )
        self.rows[existing.id] = msgspec.structs.replace(existing, last_seen_at=model.now(), **initial)
        return self.rows[existing.id]

    def get(self, contact_id: Any) -> Contact:
        row = self.rows.get(parse_id(contact_id))
        if row is None:
            raise NotFound
        return row

    def find(self, channel_type: Any, sender_id: Any) -> Contact | None:
        expected = self._names(channel_type, sender_id)
        return next((row for row in self.rows.values() if (row.channel_type, row.sender_id) == expected), None)

    def get_many(self, sender_ids: Sequence[Any]) -> dict[str, Contact]:
        if len(sender_ids) > self._model.limits.batch_rows:
            raise LimitExceeded
        expected = {self._model.name(row, "name_bytes") for row in sender_ids}
        rows = sorted(self.rows.values(), key=lambda row: (row.last_seen_at, row.id))
        return {row.sender_id: row for row in rows if row.sender_id in expected}

    def list(self, *, limit: Any = None, cursor: Any = None, **how: Any) -> Page[Contact]:
        self._model.check_page(limit, cursor, "contacts")
        rows = sorted(self._matching(**how), key=_recency)
        return self._model.page(rows, _recency, limit, cursor, "contacts")

    def count(self, **how: Any) -> int:
        return len(self._matching(**how))

    def merge(self, contact_ids: Any) -> str | None:
        new_id, ids = self._model.ids.new(), self._ids(contact_ids)
        if len(ids) < 2:
            return None
        members = self._with_groups([self.get(item) for item in ids])
        merged_id = min((member.merged_id for member in members if member.merged_id is not None), default=new_id)
        self._set(members, merged_id)
        return merged_id

    def unmerge(self, contact_ids: Any) -> int:
        ids = self._ids(contact_ids)
        out = [row for row in self.rows.values() if row.id in ids and row.merged_id is not None]
        self._set(out, None)
        left = Counter(row.merged_id for row in self.rows.values())
        self._set([row for row in self.rows.values() if row.merged_id and left[row.merged_id] == 1], None)
        return len(out)

    def _matching(self, *, search: Any = None, where: Sequence[Filter] = (), **equal: Any) -> Sequence[Contact]:
        filters = [*(column(name).eq(value) for name, value in equal.items() if value is not None), *where]
        oracle.check(filters, CONTACT_COLUMNS, self._model.limits)
        if len((search or "").casefold()) > SEARCH_CHARS:
            raise LimitExceeded
        rows = [row for row in self.rows.values() if oracle.matches(row, filters)]
        return [row for row in rows if not search or _begins(row, search.casefold())]

    def _with_groups(self, given: Sequence[Contact]) -> Sequence[Contact]:
        merged = {item.merged_id for item in given if item.merged_id is not None}
        return [row for row in self.rows.values() if row in given or row.merged_id in merged]

    def _set(self, contacts: Sequence[Contact], merged_id: str | None) -> None:
        for contact in contacts:
            self.rows[contact.id] = msgspec.structs.replace(contact, merged_id=merged_id)

    def _names(self, channel_type: Any, sender_id: Any) -> tuple[str, str]:
        return self._model.name(channel_type, "name_bytes"), self._model.name(sender_id, "name_bytes")

    def _ids(self, contact_ids: Any) -> set[str]:
        if len(contact_ids) > self._model.limits.batch_rows:
            raise LimitExceeded
        return {parse_id(item) for item in contact_ids}


class ModelFeedbacks:
    """The feedback on one tenant's messages."""

    def __init__(self, model: Model, tenant: ModelTenant) -> None:
        self._model, self._tenant = model, tenant
        self.rows: dict[str, Feedback] = {}

    def create(self, message_id: Any, *, user: Any = None, id: Any = None, **given: Any) -> Feedback:
        new = self._new(message_id, user, id, **given)
        row = self.rows.get(new.id)
        if row is not None:
            if not _same_opinion(new, row):
                raise Conflict
            return row
        if user is not None and self._of(new.message_id, user) is not None:
            raise AlreadyExists
        self.rows[new.id] = new
        return new

    def upsert(self, message_id: Any, *, user: Any, **given: Any) -> Feedback:
        if user is None:
            raise InvalidInput
        new = self._new(message_id, user, None, **given)
        existing = self._of(new.message_id, user)
        if existing is not None:
            new = msgspec.structs.replace(new, id=existing.id, created_at=existing.created_at)
        self.rows[new.id] = new
        return new

    def get(self, feedback_id: Any) -> Feedback:
        row = self.rows.get(parse_id(feedback_id))
        if row is None or not self._is_live(row):
            raise NotFound
        return row

    def list(self, *, limit: Any = None, cursor: Any = None, **how: Any) -> Page[Feedback]:
        self._model.check_page(limit, cursor, "feedback")
        rows = sorted(self._matching(**how), key=_age)
        return self._model.page(rows, _age, limit, cursor, "feedback")

    def count(self, **how: Any) -> int:
        return len(self._matching(**how))

    def update(self, feedback_id: Any, *, metadata: Any = None, **given: Any) -> Feedback:
        parse_id(feedback_id)
        changes = {name: value for name, value in self._checked(**given).items() if given.get(name) is not None}
        if metadata is not None:
            changes["metadata"] = self._model.metadata(metadata)
        existing = self.get(feedback_id)
        self.rows[existing.id] = msgspec.structs.replace(existing, updated_at=self._model.now(), **changes)
        return self.rows[existing.id]

    def delete(self, feedback_id: Any) -> None:
        del self.rows[self.get(feedback_id).id]

    def forget(self, message_id: str) -> None:
        """Remove a message and the feedback on it."""
        self.rows = {id: item for id, item in self.rows.items() if item.message_id != message_id}

    def _new(self, message_id: Any, user: Any, id: Any, *, metadata: Any = None, **given: Any) -> Feedback:
        new_id = self._model.ids.new() if id is None else parse_id(id)
        parse_id(message_id)
        named = "" if user is None else self._model.name(user, "name_bytes")
        saved, now = self._model.metadata(metadata), self._model.now()
        checked = {"feedback_text": "", "issue_type": "", **self._checked(**given)}
        message = self._tenant.messages.get(message_id)
        return Feedback(
            id=new_id, message_id=message.id, session_id=message.session_id, user=named, metadata=saved, created_at=now,
            updated_at=now, **checked,
        )  # fmt: skip

    def _checked(self, **given: Any) -> dict[str, Any]:
        values = {name: value for name, value in given.items() if value is not None}
        if not isinstance(values.get("is_positive", True), bool):
            raise InvalidInput
        if values.get("issue_type", "") not in ("", *ISSUE_TYPES):
            raise InvalidInput
        _text(self._model, values.get("feedback_text", ""), "text_bytes")
        return values

    def _of(self, message_id: str, user: str) -> Feedback | None:
        actual = (row for row in self.rows.values() if (row.message_id, row.user) == (message_id, user))
        return next(actual, None)

    def _matching(self, *, where: Sequence[Filter] = (), **equal: Any) -> Sequence[Feedback]:
        filters = [*(column(name).eq(value) for name, value in equal.items() if value is not None), *where]
        oracle.check(filters, FEEDBACK_COLUMNS, self._model.limits)
        return [row for row in self.rows.values() if self._is_live(row) and oracle.matches(row, filters)]

    def _is_live(self, feedback: Feedback) -> bool:
        return self._tenant.sessions.rows[feedback.session_id].deleted_at is None


def _room_of(message: PendingMessage) -> Room:
    return message.channel_name, message.history_key


def _repeats(new: PendingMessage, there: PendingMessage) -> bool:
    return msgspec.structs.replace(
        there, seq=0, created_at=new.created_at, updated_at=new.updated_at
    ) == new  # fmt: skip


def _group(room: Room, waiting: list[PendingMessage]) -> PendingGroup:
    newest = max(item.created_at for item in waiting)
    return PendingGroup(*room, len(waiting), waiting[-1].is_summary, newest)


def _activity(group: PendingGroup) -> tuple[float, str, str]:
    return (-group.last_activity.timestamp(), escape(group.channel_name), escape(group.history_key))


def _is_of(key: str, channel: str, peer: str) -> bool:
    try:
        actual = GroupKey.parse(key)
    except InvalidInput:
        return False
    return isinstance(actual, GroupKey) and (actual.channel, actual.peer) == (channel, peer)


def _begins(contact: Contact, search: str) -> bool:
    names = (contact.display_name, contact.username, contact.sender_id)
    return any(name.casefold().startswith(search) for name in names)


def _recency(contact: Contact) -> tuple[float, tuple[int, ...]]:
    return (-contact.last_seen_at.timestamp(), tuple(-ord(letter) for letter in contact.id))


def _age(feedback: Feedback) -> tuple[float, str]:
    return (feedback.created_at.timestamp(), feedback.id)


def _same_opinion(new: Feedback, there: Feedback) -> bool:
    fields = ("message_id", "user", "is_positive", "feedback_text", "issue_type")
    return all(getattr(new, field) == getattr(there, field) for field in fields) and same(new.metadata, there.metadata)


def _named(model: Model, value: Any, limit: str = "name_bytes") -> str:
    return "" if value is None or value == "" else model.name(value, limit)


def _text(model: Model, value: Any, limit: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput
    if size(escape(value)) > getattr(model.limits, limit):
        raise LimitExceeded
    return value
