"""A model of every store in dictionaries and lists, written only from the docstrings.

The differential tests make the same calls on the model, on SQLite and on PostgreSQL and compare every answer and every error. A
page's cursor is the model's own affair, like everybody's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.clock import Clock, from_us
from holdfast.core.filters import Filter, column, meta
from holdfast.core.paging import Page
from holdfast.core.text import dump, escape, size
from holdfast.errors import AlreadyExists, Conflict, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.ids import IdSource
from holdfast.ids import parse as parse_id
from holdfast.limits import Limits
from holdfast.stores.conversation.message_log import Message
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.stores.conversation.sessions import Session
from holdfast.stores.conversation.tokens import estimate
from holdfast.stores.lifecycle.tenants import Tenant
from tests.contract.cases.values import same
from tests.models import oracle
from tests.models.model_branches import ModelBranches
from tests.models.model_channels import ModelContacts, ModelFeedbacks, ModelPendingMessages

T = TypeVar("T")
Log = list[Message]
_ROLES = ("user", "assistant", "system")
_MAX_TOKENS = 2**31 - 1
_MAX_PLACE = 2**63 - 1


class Model:
    """A Holdfast that keeps its data in memory."""

    def __init__(self, *, clock: Clock, ids: IdSource, limits: Limits) -> None:
        self.clock, self.ids, self.limits = clock, ids, limits
        self.known: dict[str, Tenant] = {}
        self.handles: dict[str, ModelTenant] = {}
        self.tenants = ModelTenants(self)

    def tenant(self, name: str) -> ModelTenant:
        """Return the handle of a tenant."""
        self.name(name, "tenant_bytes")
        return self.handles.setdefault(name, ModelTenant(self, name))

    def now(self) -> Any:
        """Return the current time in the format of rows."""
        return from_us(self.clock.now_us())

    def name(self, value: Any, limit: str) -> str:
        """Return a valid name, or raise."""
        if not isinstance(value, str) or not value:
            raise InvalidInput
        if size(escape(value)) > getattr(self.limits, limit):
            raise LimitExceeded
        return value

    def json(self, value: Any, limit: str) -> Any:
        """Return a valid JSON value as it will be read back, or raise."""
        if size(dump(value, depth=self.limits.json_depth)) > getattr(self.limits, limit):
            raise LimitExceeded
        return _copied(value)

    def metadata(self, value: Any) -> dict[str, Any]:
        """Return valid metadata, or raise."""
        if value is None:
            return {}
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise InvalidInput
        result: dict[str, Any] = self.json(dict(value), "metadata_bytes")
        return result

    def check_page(self, limit: Any, cursor: Any, listing: str) -> None:
        """Raise for invalid page arguments."""
        if cursor is not None and (not isinstance(cursor, tuple) or cursor[0] != listing):
            raise InvalidFilter
        if limit is not None and _whole(limit, 1, None) > self.limits.page_rows:
            raise LimitExceeded

    def page(
        self, rows: Sequence[T], place: Callable[[T], Any], limit: int | None, cursor: Any, listing: str
    ) -> Page[T]:
        """Return a page of sorted rows."""
        if cursor is not None:
            rows = [row for row in rows if place(row) > cursor[1]]
        if limit is None:
            if len(rows) > self.limits.list_rows:
                raise LimitExceeded
            return Page(rows)
        return Page(rows[:limit], (listing, place(rows[limit - 1])) if len(rows) > limit else None)  # type: ignore[arg-type]


class ModelTenant:
    """The data of one tenant."""

    def __init__(self, model: Model, name: str) -> None:
        self._model, self.name = model, name
        self.sessions = ModelSessions(model, self)
        self.messages = ModelMessages(model, self)
        self.branches = ModelBranches(model, self)
        self.pending_messages = ModelPendingMessages(model, self)
        self.contacts = ModelContacts(model, self)
        self.feedback = ModelFeedbacks(model, self)

    def known(self) -> None:
        """Create the tenant with its first write."""
        self._model.tenants.register(self.name, {})

    @property
    def is_empty(self) -> bool:
        """Return whether the tenant has no data."""
        return not (self.sessions.rows or self.contacts.rows or self.pending_messages.rooms)


class ModelTenants:
    """The list of tenants."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def create(self, tenant: str, *, metadata: Any = None) -> Tenant:
        model = self._model
        saved = model.metadata(metadata)
        model.name(tenant, "tenant_bytes")
        if tenant in model.known:
            raise AlreadyExists
        return self.register(tenant, saved)

    def register(self, tenant: str, metadata: dict[str, Any]) -> Tenant:
        """Create a tenant."""
        now = self._model.now()
        return self._model.known.setdefault(tenant, Tenant(tenant, metadata, now, now))

    def get(self, tenant: str) -> Tenant:
        self._model.name(tenant, "tenant_bytes")
        if tenant not in self._model.known:
            raise NotFound
        return self._model.known[tenant]

    def list(self, *, limit: int | None = None, cursor: Any = None) -> Page[Tenant]:
        self._model.check_page(limit, cursor, "tenants")
        rows = sorted(self._model.known.values(), key=lambda tenant: escape(tenant.id))
        return self._model.page(rows, lambda tenant: escape(tenant.id), limit, cursor, "tenants")

    def update(self, tenant: str, *, metadata: Any) -> Tenant:
        saved = self._model.metadata(metadata)
        existing = self.get(tenant)
        changed = msgspec.structs.replace(existing, metadata=saved, updated_at=self._model.now())
        self._model.known[tenant] = changed
        return changed

    def set_quota(self, tenant: str, *, snapshot_quota_mib: Any) -> Tenant:
        quota = snapshot_quota_mib
        if quota is not None and (not isinstance(quota, int) or isinstance(quota, bool) or not 0 <= quota < 2**40):
            raise InvalidInput
        existing = self.get(tenant)
        changed = msgspec.structs.replace(existing, snapshot_quota_mib=quota, updated_at=self._model.now())
        self._model.known[tenant] = changed
        return changed

    def delete(self, tenant: str, *, cascade: bool = False) -> None:
        self._model.name(tenant, "tenant_bytes")
        handle = self._model.tenant(tenant)
        if not handle.is_empty and not cascade:
            raise Conflict
        if tenant not in self._model.known:
            raise NotFound
        del self._model.handles[tenant], self._model.known[tenant]


class ModelSessions:
    """The sessions of one tenant."""

    def __init__(self, model: Model, tenant: ModelTenant) -> None:
        self._model, self._tenant = model, tenant
        self.rows: dict[str, Session] = {}

    def create(
        self, *, key: Any = None, user: Any = None, agent: Any = None, metadata: Any = None, id: Any = None
    ) -> Session:
        model = self._model
        new_id = model.ids.new() if id is None else parse_id(id)
        key = new_id if key is None else model.name(key, "key_bytes")
        user, agent = self._name(user), self._name(agent)
        saved = model.metadata(metadata)
        row = self.rows.get(new_id)
        if row is not None:
            if row.deleted_at is not None or (row.key, row.user, row.agent) != (key, user, agent):
                raise Conflict
            return row
        if self._live(key, user) is not None:
            raise AlreadyExists
        return self._add(new_id, key, user, agent, saved)

    def upsert(self, key: Any, *, user: Any = None, agent: Any = None, metadata: Any = None) -> Session:
        model = self._model
        new_id = model.ids.new()
        model.name(key, "key_bytes")
        user, named = self._name(user), self._name(agent)
        saved = model.metadata(metadata)
        existing = self._live(key, user)
        if existing is None:
            return self._add(new_id, key, user, named, saved)
        return self._set(
            existing,
            agent=existing.agent if agent is None else named,
            metadata=existing.metadata if metadata is None else saved,
            updated_at=model.now(),
        )

    def get(self, session_id: Any, *, deleted: bool = False) -> Session:
        existing = self._there(session_id)
        if existing.deleted_at is not None and not deleted:
            raise NotFound
        return existing

    def find(self, key: Any, *, user: Any = None) -> Session | None:
        self._model.name(key, "key_bytes")
        if user is not None:
            return self._live(key, self._name(user))
        result = [row for row in self.rows.values() if row.key == key and row.deleted_at is None]
        if len(result) > 1:
            raise Conflict
        return result[0] if result else None

    def list(
        self, *, user: Any = None, agent: Any = None, metadata: Any = None, where: Sequence[Filter] = (),
        deleted: bool = False, limit: int | None = None, cursor: Any = None,
    ) -> Page[Session]:  # fmt: skip
        self._model.check_page(limit, cursor, "sessions")
        filters = _session_filters(user, agent, metadata, where)
        oracle.check(filters, oracle.SESSION_COLUMNS, self._model.limits)
        rows = [row for row in self.rows.values() if (row.deleted_at is not None) == deleted]
        rows = [row for row in rows if oracle.matches(row, filters)]
        rows.sort(key=_recency)
        return self._model.page(rows, _recency, limit, cursor, "sessions")

    def count(self, *, user: Any = None, agent: Any = None, metadata: Any = None, where: Sequence[Filter] = ()) -> int:
        filters = _session_filters(user, agent, metadata, where)
        oracle.check(filters, oracle.SESSION_COLUMNS, self._model.limits)
        return sum(row.deleted_at is None and oracle.matches(row, filters) for row in self.rows.values())

    def update(
        self, session_id: Any, *, agent: Any = None, metadata: Any = None, expected: Session | None = None
    ) -> Session:
        parse_id(session_id)
        named, saved = self._name(agent), self._model.metadata(metadata)
        existing = self.get(session_id)
        if expected is not None and existing != expected:
            raise Conflict
        return self._set(
            existing,
            agent=existing.agent if agent is None else named,
            metadata=existing.metadata if metadata is None else saved,
            updated_at=self._model.now(),
        )

    def delete(self, session_id: Any) -> None:
        self._set(self.get(session_id), deleted_at=self._model.now())

    def restore(self, session_id: Any) -> Session:
        existing = self._there(session_id)
        if existing.deleted_at is None:
            return existing
        if self._live(existing.key, existing.user) is not None:
            raise Conflict
        return self._set(existing, deleted_at=None)

    def purge(self, session_id: Any) -> None:
        existing = self._there(session_id)
        del self.rows[existing.id]
        messages = self._tenant.messages.rows
        for message in [item for item in messages.values() if item.session_id == existing.id]:
            del messages[message.id]
            self._tenant.feedback.forget(message.id)

    def counted(self, session_id: str, messages: int, tokens: int) -> None:
        """Update the counters of a session from its log."""
        existing = self.rows[session_id]
        self._set(
            existing,
            message_count=existing.message_count + messages,
            token_count=existing.token_count + tokens,
            updated_at=self._model.now(),
        )

    def _there(self, session_id: Any) -> Session:
        row = self.rows.get(parse_id(session_id))
        if row is None:
            raise NotFound
        return row

    def _live(self, key: str, user: str) -> Session | None:
        live = (row for row in self.rows.values() if row.deleted_at is None)
        return next((item for item in live if (item.key, item.user) == (key, user)), None)

    def _add(self, id: str, key: str, user: str, agent: str, metadata: dict[str, Any]) -> Session:
        self._model.tenants.register(self._tenant.name, {})
        now = self._model.now()
        self.rows[id] = Session(id, key, user, agent, metadata, 0, 0, 0, now, now)
        self._tenant.branches.begin(id)
        return self.rows[id]

    def _set(self, there: Session, **changes: Any) -> Session:
        self.rows[there.id] = msgspec.structs.replace(there, **changes)
        return self.rows[there.id]

    def _name(self, value: Any) -> str:
        return "" if value is None else self._model.name(value, "name_bytes")


class ModelMessages:
    """The messages of one tenant's sessions."""

    def __init__(self, model: Model, tenant: ModelTenant) -> None:
        self._model, self._tenant = model, tenant
        self.rows: dict[str, Message] = {}

    def append(self, session_id: Any, **new: Any) -> Message:
        return self._append(session_id, [NewMessage(**new)])[0]

    def append_many(self, session_id: Any, messages: Sequence[NewMessage]) -> Log:
        if len(messages) > self._model.limits.batch_rows:
            raise LimitExceeded
        return self._append(session_id, messages) if messages else []

    def get(self, message_id: Any) -> Message:
        row = self.rows.get(parse_id(message_id))
        if row is None or self._tenant.sessions.rows[row.session_id].deleted_at is not None:
            raise NotFound
        return row

    def last(self, session_id: Any, count: int = 50) -> Log:
        _whole(count, 1, None)
        if count > self._model.limits.page_rows:
            raise LimitExceeded
        return self.log(session_id)[-count:]

    def list(
        self, session_id: Any, *, where: Sequence[Filter] = (), after: Any = 0, before: Any = None,
        newest_first: bool = False, limit: int | None = None, cursor: Any = None,
    ) -> Page[Message]:  # fmt: skip
        self._model.check_page(limit, cursor, "newest" if newest_first else "messages")
        end = _MAX_PLACE if before is None else before
        _whole(after, 0, _MAX_PLACE)
        _whole(end, 0, _MAX_PLACE)
        oracle.check(where, oracle.MESSAGE_COLUMNS, self._model.limits)
        rows = [
            message for message in self.log(session_id) if after < message.seq < end and oracle.matches(message, where)
        ]
        if newest_first:
            return self._model.page(rows[::-1], lambda message: -message.seq, limit, cursor, "newest")
        return self._model.page(rows, lambda message: message.seq, limit, cursor, "messages")

    def count(self, session_id: Any, *, where: Sequence[Filter] = ()) -> int:
        oracle.check(where, oracle.MESSAGE_COLUMNS, self._model.limits)
        return sum(oracle.matches(item, where) for item in self.log(session_id))

    def update(
        self,
        message_id: Any,
        *,
        content: Any = None,
        metadata: Any = None,
        token_count: Any = None,
        is_preserved: Any = None,
    ) -> Message:
        existing = self.get(message_id)
        if content is not None and token_count is None:
            token_count = estimate(content)
        changed = msgspec.structs.replace(
            existing,
            content=existing.content if content is None else self._content(content, existing.kind),
            metadata=existing.metadata if metadata is None else self._model.metadata(metadata),
            token_count=existing.token_count if token_count is None else _whole(token_count, 0, _MAX_TOKENS),
            is_preserved=existing.is_preserved if is_preserved is None else is_preserved,
            updated_at=self._model.now(),
        )
        self.rows[existing.id] = changed
        displayed = existing.id in self._tenant.branches.way(existing.session_id).ids
        self._tenant.sessions.counted(
            existing.session_id, 0, changed.token_count - existing.token_count if displayed else 0
        )
        return changed

    def delete(self, session_id: Any, message_ids: Sequence[Any]) -> int:
        if len(message_ids) > self._model.limits.batch_rows:
            raise LimitExceeded
        ids = {parse_id(item) for item in message_ids}
        where = self._tenant.sessions.get(session_id).id
        removed = [row for row in self.rows.values() if row.id in ids and row.session_id == where]
        displayed = [item for item in self.log(where) if item.id in ids]
        for message in removed:
            del self.rows[message.id]
            self._tenant.feedback.forget(message.id)
        if removed:
            self._tenant.sessions.counted(where, -len(displayed), -sum(item.token_count for item in displayed))
        return len(removed)

    def log(self, session_id: Any) -> Log:
        """Return all visible messages of a session."""
        session = self._tenant.sessions.get(session_id)
        return [self.rows[item] for item in self._tenant.branches.way(session.id).ids if item in self.rows]

    def _append(self, session_id: Any, messages: Sequence[NewMessage]) -> Log:
        now, sessions = self._model.now(), self._tenant.sessions
        new = [self._new(message, now) for message in messages]
        ids = [message.id for message in new]
        if len({*ids}) < len(ids):
            raise InvalidInput
        where = parse_id(session_id)
        sessions.get(where)
        existing = [self.rows[id] for id in ids if id in self.rows]
        if existing:
            if len(existing) < len(ids) or not all(
                _repeats(one, other, where) for one, other in zip(new, existing, strict=True)
            ):
                raise Conflict
            return existing
        way = self._tenant.branches.way(where)
        for message in new:
            placed = msgspec.structs.replace(message, session_id=where, seq=way.next_seq)
            way.next_seq += 1
            way.ids.append(placed.id)
            self.rows[placed.id] = placed
        sessions.counted(where, len(new), sum(message.token_count for message in new))
        return [self.rows[id] for id in ids]

    def _new(self, new: NewMessage, now: Any) -> Message:
        if not isinstance(new.kind, str) or not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,63}", new.kind):
            raise InvalidInput
        if new.role not in _ROLES and (new.kind == "message" or new.role is not None):
            raise InvalidInput
        content = self._content(new.content, new.kind)
        return Message(
            self._model.ids.new() if new.id is None else parse_id(new.id),
            "",
            0,
            new.kind,
            new.role,  # type: ignore[arg-type]
            content,
            estimate(content) if new.token_count is None else _whole(new.token_count, 0, _MAX_TOKENS),
            self._model.metadata(new.metadata),
            new.is_preserved,
            new.is_summary,
            now,
            now,
        )

    def _content(self, content: Any, kind: str) -> Any:
        if kind == "message" and isinstance(content, str):
            content = [{"type": "text", "text": content}]
        elif kind == "message" and not _are_blocks(content):
            raise InvalidInput
        return self._model.json(content, "content_bytes")


def _repeats(new: Message, there: Message, session_id: str) -> bool:
    return (
        there.session_id == session_id
        and (there.kind, there.role) == (new.kind, new.role)
        and same([there.content, there.metadata], [new.content, new.metadata])
    )


def _are_blocks(content: Any) -> bool:
    return isinstance(content, (list, tuple)) and all(
        isinstance(block, dict) and isinstance(block.get("type"), str) for block in content
    )


def _recency(session: Session) -> tuple[float, tuple[int, ...]]:
    """Sort key: the most recently used first, then the greatest id."""
    return (-session.updated_at.timestamp(), tuple(-ord(letter) for letter in session.id))


def _session_filters(user: Any, agent: Any, metadata: Any, where: Sequence[Filter]) -> list[Filter]:
    named = [column(name).eq(value) for name, value in (("user", user), ("agent", agent)) if value is not None]
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidFilter
    return [*named, *(meta(key).eq(value) for key, value in (metadata or {}).items()), *where]


def _whole(value: Any, least: int, most: int | None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        raise InvalidInput
    return value


def _copied(value: Any) -> Any:
    """Return a JSON value as it is read back: plain types, and no negative zero."""
    return json.loads(json.dumps(value, ensure_ascii=False), parse_float=lambda digits: float(digits) or 0.0)
