"""Pending messages: what was said in group chats while nobody answered.

A *group* is a channel's name and a history key. Messages wait in it in the order they came, by ``seq`` and never by time, until
they are answered and cleared, or until old ones are replaced by a summary. The summary takes the place of the first message it
stands for, so it comes before everything that stays of what came after that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, json

from ...clock import MICROSECONDS, from_us, to_us
from ...core import scope as scopes
from ...core import text
from ...core.blocking import Blocking, blocking
from ...core.checks import id_batch, list_of
from ...core.filters import id_list
from ...core.paging import Page, decode_cursor, encode_cursor, page, rows_to_read
from ...core.queries import Queries
from ...core.registration import register_tenant
from ...core.rows import mapper
from ...core.store import TenantStore, reads, writes
from ...engines.dialect import Dialect
from ...engines.protocol import Connection
from ...errors import AlreadyExists, Conflict, InvalidInput
from ...ids import Id
from ...ids import parse as parse_id
from ...limits import Limits
from .keys import GroupKey

_TRIES = 3
"""How often an append looks again when somebody else has brought the same ids meanwhile."""
_OLDEST_US = -62_135_596_800 * MICROSECONDS
"""The beginning of the year 1: nothing is older."""


class PendingMessage(Struct, frozen=True):
    """A message that waits, or a summary of several."""

    id: Id
    channel_name: str
    history_key: str
    seq: int
    sender: str
    sender_id: str
    body: str
    platform_msg_id: str
    is_summary: bool
    created_at: datetime
    updated_at: datetime


class NewPendingMessage(Struct, frozen=True, kw_only=True):
    """A message to append. ``platform_msg_id`` is what the channel calls it."""

    channel_name: str
    history_key: str
    body: str
    sender: str = ""
    sender_id: str = ""
    platform_msg_id: str = ""
    id: str | None = None


class PendingGroup(Struct, frozen=True):
    """A group in which something waits. ``has_summary``: the last that waits is a summary."""

    channel_name: str
    history_key: str
    message_count: int
    has_summary: bool
    last_activity: datetime

    @property
    def name(self) -> tuple[str, str]:
        """The two that tell it from others, as ``resolve_group_titles`` takes them."""
        return (self.channel_name, self.history_key)


queries = Queries(__package__, "pending_messages.sql", PendingMessage)


class AsyncPendingMessages(TenantStore):
    """The messages that wait in one tenant's group chats."""

    @writes
    async def append_batch(
        self, connection: Connection, messages: Sequence[NewPendingMessage]
    ) -> Sequence[PendingMessage]:
        """Add messages, of one group or of several, all or none of them. Each group keeps their order, without a gap.

        With ids of the caller's the call can be repeated as long as its messages wait: the same ids with the same content
        return what is there.

        Raises:
            Conflict: there is a message with one of the ids and other content, or only some of them are there.
            InvalidInput: a message is not acceptable, or two have the same id.
            LimitExceeded: there are more than ``batch_rows``, or a text is too long.
        """
        new = self._new(messages)
        if not any(each.id is not None for each in messages):
            return await self._append(connection, new) if new else []
        for _ in range(_TRIES):
            if there := await self._by_ids(connection, [each["id"] for each in new]):
                return _repeated(new, there)
            try:
                async with connection.savepoint():
                    return await self._append(connection, new)
            except AlreadyExists:
                continue  # somebody else was quicker: see what they have brought
        raise Conflict("messages with these ids come and go; try again")

    @reads
    async def list_by_key(
        self,
        connection: Connection,
        channel_name: str,
        history_key: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[PendingMessage]:
        """What waits in a group, in order. With ``limit``, a page; its ``next`` is the cursor of the one after.

        Raises:
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        (after,) = decode_cursor(cursor, "pending", int) if cursor is not None else (0,)
        limits = self._scope.limits
        params = {**self._group(channel_name, history_key), "after": after, "limit": rows_to_read(limit, limits)}
        found = mapper(PendingMessage, connection.dialect)(await queries.list.all(connection, params))
        return page(found, limit, limits, "messages in this group", lambda last: encode_cursor("pending", last.seq))

    @writes
    async def delete_by_key(self, connection: Connection, channel_name: str, history_key: str) -> int:
        """Clear a group and say how many messages there were."""
        params = self._group(channel_name, history_key)
        await queries.forget_group.all(connection, params)
        return len(await queries.clear.all(connection, params))

    @writes
    async def compact(
        self, connection: Connection, message_ids: Sequence[Id], summary: str, *, id: str | None = None
    ) -> PendingMessage | None:
        """Replace messages of one group by their summary, in the place of the first of them.

        ``None``, and no summary, when none of them is there any more: somebody else has compacted or cleared them. With an
        ``id`` of the caller's the call can be repeated: the summary that is there is returned.

        Raises:
            InvalidInput: the messages are of several groups, or an argument is not acceptable.
            Conflict: there is another message with this id.
        """
        ids = id_list(self._ids(message_ids), connection.dialect)
        new_id = self._scope.ids.new() if id is None else parse_id(id, "message id")
        body = _text(summary, "summary", self._scope.limits)
        there = [] if id is None else await self._by_ids(connection, [new_id])
        if there:
            return _same_summary(there[0], text.unescape(body))
        gone = await self._take_out(connection, ids)
        if not gone:
            return None
        return await self._put_summary(connection, gone, new_id, body)

    @writes
    async def delete_stale(self, connection: Connection, *, older_than: timedelta) -> int:
        """Remove what has been waiting for longer than this, in all groups, and say how many messages there were.

        Raises:
            InvalidInput: the time is not a ``timedelta``, or negative.
        """
        if not isinstance(older_than, timedelta) or older_than < timedelta(0):
            raise InvalidInput(f"older_than must be a timedelta from 0 on, not {older_than!r}")
        age = older_than // timedelta(microseconds=1)
        params = self._scope.params(stale_at=max(self._scope.clock.now_us() - age, _OLDEST_US))
        held = await queries.lock_stale.all(connection, params)
        gone = await queries.delete_stale.all(connection, params)
        names = [self._scope.params(channel_name=channel, history_key=key) for channel, key in held]
        if names:
            await queries.forget_if_empty.many(connection, names)
        return len(gone)

    @reads
    async def list_groups(
        self, connection: Connection, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[PendingGroup]:
        """The groups in which something waits, the one with the newest message first. With ``limit``, a page.

        Raises:
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(limit=rows_to_read(limit, limits))
        clause = _after(cursor, params)
        found = mapper(PendingGroup, connection.dialect)(await queries.groups.all(connection, params, clause))
        return page(found, limit, limits, "groups", _cursor)

    @reads
    async def count_all(self, connection: Connection) -> int:
        """How many messages wait in all groups."""
        row = await queries.count_all.one(connection, self._scope.params())
        return int(row[0]) if row else 0

    @reads
    async def count_by_key(self, connection: Connection, channel_name: str, history_key: str) -> int:
        """How many messages wait in a group."""
        row = await queries.count.one(connection, self._group(channel_name, history_key))
        return int(row[0]) if row else 0

    @reads
    async def resolve_group_titles(
        self, connection: Connection, groups: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], str]:
        """What the chats of these groups are called, as far as it is known: ``chat_title`` in the metadata of a live session
        whose key is the ``GroupKey`` of that channel and group. Where several have one, the session used last says it.

        Raises:
            InvalidInput: a group is not a pair of a channel's name and a history key.
            LimitExceeded: there are more than ``batch_rows``.
        """
        by_tail = _tails(groups, self._scope.limits)
        if not by_tail:
            return {}
        # They are in the form that is stored already, and must not be escaped twice.
        tails = json.encode([*by_tail]).decode() if connection.dialect is Dialect.SQLITE else [*by_tail]
        params = self._scope.params(tails=tails)
        titles: dict[tuple[str, str], str] = {}
        for tail, title in await queries.titles.all(connection, params, index="sessions_by_identifier"):
            if title:
                titles.setdefault(by_tail[tail], text.unescape(title))
        return titles

    async def _append(self, connection: Connection, new: Sequence[dict[str, Any]]) -> Sequence[PendingMessage]:
        counts: dict[tuple[str, str], int] = {}
        for each in new:
            each["place"] = counts.get(_name(each), 0)
            counts[_name(each)] = each["place"] + 1
        firsts: dict[tuple[str, str], int] = {}
        for (channel, key), rows in sorted(counts.items()):
            params = self._scope.params(channel_name=channel, history_key=key, rows=rows)
            row = await queries.reserve.one(connection, params)
            assert row is not None
            firsts[channel, key] = int(row[0])
        if 1 in firsts.values():
            await register_tenant(connection, new[0])
        placed = [{**each, "seq": firsts[_name(each)] + each["place"]} for each in new]
        await queries.insert.many(connection, placed)
        return [_message(each) for each in placed]

    async def _take_out(self, connection: Connection, ids: Any) -> Sequence[PendingMessage]:
        """Remove these messages of one group, while the group is held."""
        params = self._scope.params(ids=ids)
        found = mapper(PendingMessage, connection.dialect)(await queries.by_ids.all(connection, params))
        names = {(message.channel_name, message.history_key) for message in found}
        if len(names) > 1:
            raise InvalidInput("messages of several groups cannot have one summary: compact each group by itself")
        for channel, key in names:
            params.update(channel_name=text.escape(channel), history_key=text.escape(key))
            if await queries.lock.one(connection, params) is not None:
                return mapper(PendingMessage, connection.dialect)(await queries.delete.all(connection, params))
        return []

    async def _put_summary(
        self, connection: Connection, gone: Sequence[PendingMessage], id: str, body: str
    ) -> PendingMessage:
        """Order is by place, so a summary may be as young as the youngest message it stands for: it is no activity, and neither
        does a group become less active by it. It goes stale by its making, and never before what it stands for would have."""
        first = min(gone, key=lambda message: message.seq)
        summary = self._scope.params(
            channel_name=text.escape(first.channel_name),
            history_key=text.escape(first.history_key),
            seq=first.seq,
            id=id,
            sender="",
            sender_id="",
            body=body,
            platform_msg_id="",
            is_summary=True,
            created_at=max(to_us(message.created_at) for message in gone),
            now_at=max(self._scope.clock.now_us(), *(to_us(message.updated_at) for message in gone)),
        )
        try:
            async with connection.savepoint():
                await queries.insert.all(connection, summary)
        except AlreadyExists:
            raise Conflict(f"there is another message with the id {id}") from None
        return _message(summary)

    async def _by_ids(self, connection: Connection, ids: Sequence[str]) -> Sequence[PendingMessage]:
        params = self._scope.params(ids=id_list(ids, connection.dialect))
        return mapper(PendingMessage, connection.dialect)(await queries.by_ids.all(connection, params))

    def _new(self, messages: Sequence[NewPendingMessage]) -> list[dict[str, Any]]:
        """Check everything before anything is written."""
        list_of(NewPendingMessage, messages, "messages")
        limits, now = self._scope.limits, self._scope.clock.now_us()
        limits.check("batch_rows", len(messages), "messages")
        new = [
            {
                **self._group(each.channel_name, each.history_key),
                "id": self._scope.ids.new() if each.id is None else parse_id(each.id, "message id"),
                "sender": _optional(each.sender, "sender", limits),
                "sender_id": _optional(each.sender_id, "sender_id", limits),
                "body": _text(each.body, "body", limits),
                "platform_msg_id": _optional(each.platform_msg_id, "platform_msg_id", limits),
                "is_summary": False,
                "created_at": now,
                "now_at": now,
            }
            for each in messages
        ]
        if len({each["id"] for each in new}) < len(new):
            raise InvalidInput("two messages of one call have the same id")
        return new

    def _group(self, channel_name: str, history_key: str) -> dict[str, Any]:
        limits = self._scope.limits
        return self._scope.params(
            channel_name=scopes.name(channel_name, "channel_name", limits),
            history_key=scopes.name(history_key, "history_key", limits, limit="key_bytes"),
        )

    def _ids(self, message_ids: Sequence[str]) -> Sequence[str]:
        return id_batch(message_ids, "message_ids", self._scope.limits)


class PendingMessages(Blocking[AsyncPendingMessages]):
    """The messages that wait in one tenant's group chats."""

    append_batch = blocking(AsyncPendingMessages.append_batch)
    list_by_key = blocking(AsyncPendingMessages.list_by_key)
    delete_by_key = blocking(AsyncPendingMessages.delete_by_key)
    compact = blocking(AsyncPendingMessages.compact)
    delete_stale = blocking(AsyncPendingMessages.delete_stale)
    list_groups = blocking(AsyncPendingMessages.list_groups)
    count_all = blocking(AsyncPendingMessages.count_all)
    count_by_key = blocking(AsyncPendingMessages.count_by_key)
    resolve_group_titles = blocking(AsyncPendingMessages.resolve_group_titles)


def _name(row: Mapping[str, Any]) -> tuple[str, str]:
    return (row["channel_name"], row["history_key"])


def _message(row: Mapping[str, Any]) -> PendingMessage:
    """The message that a stored row is."""
    fields = ("channel_name", "history_key", "sender", "sender_id", "body", "platform_msg_id")
    return PendingMessage(
        id=row["id"],
        seq=row["seq"],
        is_summary=row["is_summary"],
        created_at=from_us(row["created_at"]),
        updated_at=from_us(row["now_at"]),
        **{field: text.unescape(row[field]) for field in fields},
    )


def _repeated(new: Sequence[Mapping[str, Any]], there: Sequence[PendingMessage]) -> list[PendingMessage]:
    """What an earlier call of the same content has brought."""
    by_id = {message.id: message for message in there}
    for each in new:
        message = by_id.get(each["id"])
        if message is None:
            raise Conflict(f"some of these messages are there already, but not {each['id']}")
        fields = ("channel_name", "history_key", "sender", "sender_id", "body", "platform_msg_id")
        if message.is_summary or any(getattr(message, field) != text.unescape(each[field]) for field in fields):
            raise Conflict(f"there is another message with the id {message.id}")
    return [by_id[each["id"]] for each in new]


def _same_summary(there: PendingMessage, body: str) -> PendingMessage:
    if not there.is_summary or there.body != body:
        raise Conflict(f"there is another message with the id {there.id}")
    return there


def _tails(groups: Sequence[tuple[str, str]], limits: Limits) -> dict[str, tuple[str, str]]:
    """Groups by what follows the agent in the key of their sessions, in the form that is stored."""
    if not isinstance(groups, Sequence) or not all(_is_pair(each) for each in groups):
        raise InvalidInput("groups must be a list of pairs: the channel's name and the history key")
    limits.check("batch_rows", len(groups), "groups")
    tails: dict[str, tuple[str, str]] = {}
    for channel, key in groups:
        try:
            stored = text.escape(str(GroupKey(agent="a", channel=channel, peer=key)))
        except InvalidInput:
            continue  # no session key can name this channel
        tails[stored.removeprefix("agent:a:")] = (channel, key)
    return tails


def _is_pair(group: object) -> bool:
    return isinstance(group, (tuple, list)) and len(group) == 2 and all(isinstance(each, str) for each in group)


def _optional(value: object, what: str, limits: Limits) -> str:
    return "" if value == "" else scopes.name(value, what, limits)


def _text(value: object, what: str, limits: Limits) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a string, not {type(value).__name__}")
    stored = text.escape(value)
    limits.check("content_bytes", text.size(stored), what)
    return stored


def _cursor(group: PendingGroup) -> str:
    return encode_cursor("pending-groups", to_us(group.last_activity), group.channel_name, group.history_key)


def _after(cursor: str | None, params: dict[str, Any]) -> str:
    """The condition that a page of groups starts after a cursor."""
    if cursor is None:
        return ""
    after_at, channel, key = decode_cursor(cursor, "pending-groups", int, str, str)
    params.update(after_at=after_at, after_channel=text.escape(channel), after_key=text.escape(key))
    return (
        "\n  AND (MAX(created_at) < :after_at OR (MAX(created_at) = :after_at"
        " AND (channel_name, history_key) > (:after_channel, :after_key)))"
    )
