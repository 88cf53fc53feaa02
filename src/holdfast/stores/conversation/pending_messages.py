"""Pending messages: messages in group chats that no agent has answered yet.

A *group* is a channel's name and a history key. Its messages are kept in the order of ``seq``, never of time, until
they are answered and cleared, or until old ones are replaced by a summary. The summary takes the position of the first message it
replaces, so it comes before the remaining messages that came after that one.
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
from .pending_groups import PendingGroup, group_by_key_tail, group_cursor, group_of, groups_after

_TRIES = 3
"""How often an append tries again when another caller appended the same ids at the same time."""
_OLDEST_US = -62_135_596_800 * MICROSECONDS
"""The beginning of the year 1, the earliest possible time."""


class PendingMessage(Struct, frozen=True):
    """A message that waits for an answer, or a summary of several."""

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
    """A message to append. ``platform_msg_id`` is the channel's id of the message."""

    channel_name: str
    history_key: str
    body: str
    sender: str = ""
    sender_id: str = ""
    platform_msg_id: str = ""
    id: str | None = None


queries = Queries(__package__, "pending_messages.sql", PendingMessage)


class AsyncPendingMessages(TenantStore):
    """The pending messages of one tenant's group chats."""

    @writes
    async def append_batch(
        self, connection: Connection, messages: Sequence[NewPendingMessage]
    ) -> Sequence[PendingMessage]:
        """Append messages of one or several groups, all or none of them. Each group keeps their order, without a gap.

        With ids the call can be repeated while its messages are pending: the same ids with the same content
        return the stored messages.

        Raises:
            Conflict: a message with one of the ids has other content, or only some of the messages exist.
            InvalidInput: a message is not valid, or two have the same id.
            LimitExceeded: there are more than ``batch_rows``, or a text is too long.
        """
        rows = self._new_rows(messages)
        if not any(message.id is not None for message in messages):
            return await self._append(connection, rows) if rows else []
        for _ in range(_TRIES):
            if existing := await self._by_ids(connection, [row["id"] for row in rows]):
                return _repeated(rows, existing)
            try:
                async with connection.savepoint():
                    return await self._append(connection, rows)
            except AlreadyExists:
                continue  # another caller was faster: compare with its messages
        raise Conflict("messages with these ids are added and removed all the time; try again", reason="changed")

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
        """List the messages of a group in order. With ``limit``, a page; its ``next`` is the cursor of the next page.

        Raises:
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        (after,) = decode_cursor(cursor, "pending", int) if cursor is not None else (0,)
        limits = self._scope.limits
        params = {**self._group(channel_name, history_key), "after": after, "limit": rows_to_read(limit, limits)}
        messages = mapper(PendingMessage, connection.dialect)(await queries.list.all(connection, params))
        return page(messages, limit, limits, "messages in this group", lambda last: encode_cursor("pending", last.seq))

    @writes
    async def delete_by_key(self, connection: Connection, channel_name: str, history_key: str) -> int:
        """Clear a group and return the number of messages it had."""
        params = self._group(channel_name, history_key)
        await queries.forget_group.all(connection, params)
        return len(await queries.clear.all(connection, params))

    @writes
    async def compact(
        self, connection: Connection, message_ids: Sequence[Id], summary: str, *, id: str | None = None
    ) -> PendingMessage | None:
        """Replace messages of one group by a summary at the position of the first of them.

        Returns ``None``, without storing a summary, if none of the messages exists any more: another caller has compacted or
        cleared them. With an ``id`` the call can be repeated: the stored summary is returned.

        Raises:
            InvalidInput: the messages are of several groups, or an argument is not valid.
            Conflict: another message has this id.
        """
        ids = id_list(self._ids(message_ids), connection.dialect)
        new_id = self._scope.ids.new() if id is None else parse_id(id, "message id")
        body = _text(summary, "summary", self._scope.limits)
        existing = [] if id is None else await self._by_ids(connection, [new_id])
        if existing:
            return _check_summary(existing[0], text.unescape(body))
        removed = await self._remove(connection, ids)
        if not removed:
            return None
        return await self._insert_summary(connection, removed, new_id, body)

    @writes
    async def delete_stale(self, connection: Connection, *, older_than: timedelta) -> int:
        """Remove messages that have been pending for longer than this, in all groups; return how many.

        Raises:
            InvalidInput: the time is not a ``timedelta``, or negative.
        """
        if not isinstance(older_than, timedelta) or older_than < timedelta(0):
            raise InvalidInput(f"older_than must be a timedelta from 0 on, not {older_than!r}", field="older_than")
        age = older_than // timedelta(microseconds=1)
        params = self._scope.params(stale_at=max(self._scope.clock.now_us() - age, _OLDEST_US))
        groups = await queries.lock_stale.all(connection, params)
        removed = await queries.delete_stale.all(connection, params)
        names = [self._scope.params(channel_name=channel, history_key=key) for channel, key in groups]
        if names:
            await queries.forget_if_empty.many(connection, names)
        return len(removed)

    @reads
    async def list_groups(
        self, connection: Connection, *, limit: int | None = None, cursor: str | None = None
    ) -> Page[PendingGroup]:
        """List the groups with pending messages, the one with the newest message first. With ``limit``, a page.

        Raises:
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        params = self._scope.params(limit=rows_to_read(limit, limits))
        clause = groups_after(cursor, params)
        groups = mapper(PendingGroup, connection.dialect)(await queries.groups.all(connection, params, clause))
        return page(groups, limit, limits, "groups", group_cursor)

    @reads
    async def count_all(self, connection: Connection) -> int:
        """Return the number of pending messages in all groups."""
        row = await queries.count_all.one(connection, self._scope.params())
        return int(row[0]) if row else 0

    @reads
    async def count_by_key(self, connection: Connection, channel_name: str, history_key: str) -> int:
        """Return the number of pending messages in a group."""
        row = await queries.count.one(connection, self._group(channel_name, history_key))
        return int(row[0]) if row else 0

    @reads
    async def resolve_group_titles(
        self, connection: Connection, groups: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], str]:
        """Return the titles of the chats of these groups, where they are known: ``chat_title`` in the metadata of a live session
        whose key is the ``GroupKey`` of that channel and group. If several sessions have a title, the one used last decides.

        Raises:
            InvalidInput: a group is not a pair of a channel's name and a history key.
            LimitExceeded: there are more than ``batch_rows``.
        """
        by_tail = group_by_key_tail(groups, self._scope.limits)
        if not by_tail:
            return {}
        # The keys are in their stored form already and must not be escaped twice.
        tails = json.encode([*by_tail]).decode() if connection.dialect is Dialect.SQLITE else [*by_tail]
        params = self._scope.params(tails=tails)
        titles: dict[tuple[str, str], str] = {}
        for tail, title in await queries.titles.all(connection, params, index="sessions_by_identifier"):
            if title:
                titles.setdefault(by_tail[tail], text.unescape(title))
        return titles

    async def _append(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> Sequence[PendingMessage]:
        counts: dict[tuple[str, str], int] = {}
        for row in rows:
            row["offset"] = counts.get(group_of(row), 0)
            counts[group_of(row)] = row["offset"] + 1
        firsts: dict[tuple[str, str], int] = {}
        for (channel, key), count in sorted(counts.items()):
            params = self._scope.params(channel_name=channel, history_key=key, rows=count)
            reserved = await queries.reserve.one(connection, params)
            assert reserved is not None
            firsts[channel, key] = int(reserved[0])
        if 1 in firsts.values():
            await register_tenant(connection, rows[0])
        numbered = [{**row, "seq": firsts[group_of(row)] + row["offset"]} for row in rows]
        await queries.insert.many(connection, numbered)
        return [_message(row) for row in numbered]

    async def _remove(self, connection: Connection, ids: Any) -> Sequence[PendingMessage]:
        """Lock the group of these messages and remove them."""
        params = self._scope.params(ids=ids)
        messages = mapper(PendingMessage, connection.dialect)(await queries.by_ids.all(connection, params))
        names = {(message.channel_name, message.history_key) for message in messages}
        if len(names) > 1:
            raise InvalidInput(
                "messages of several groups cannot have one summary: compact each group separately", field="message_ids"
            )
        for channel, key in names:
            params.update(channel_name=text.escape(channel), history_key=text.escape(key))
            if await queries.lock.one(connection, params) is not None:
                return mapper(PendingMessage, connection.dialect)(await queries.delete.all(connection, params))
        return []

    async def _insert_summary(
        self, connection: Connection, removed: Sequence[PendingMessage], id: str, body: str
    ) -> PendingMessage:
        """Insert the summary of removed messages.

        Order is by position, so the summary gets the creation time of the newest message it replaces: it does not count as
        activity of the group, and does not reduce it either. It becomes stale by the time of its creation, and never before
        the messages it replaces would have.
        """
        first = min(removed, key=lambda message: message.seq)
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
            created_at=max(to_us(message.created_at) for message in removed),
            now_at=max(self._scope.clock.now_us(), *(to_us(message.updated_at) for message in removed)),
        )
        try:
            async with connection.savepoint():
                await queries.insert.all(connection, summary)
        except AlreadyExists:
            raise Conflict(f"another message has the id {id}", reason="id_taken") from None
        return _message(summary)

    async def _by_ids(self, connection: Connection, ids: Sequence[str]) -> Sequence[PendingMessage]:
        params = self._scope.params(ids=id_list(ids, connection.dialect))
        return mapper(PendingMessage, connection.dialect)(await queries.by_ids.all(connection, params))

    def _new_rows(self, messages: Sequence[NewPendingMessage]) -> list[dict[str, Any]]:
        """Check all messages before anything is written, and return them in their stored form."""
        list_of(NewPendingMessage, messages, "messages")
        limits, now = self._scope.limits, self._scope.clock.now_us()
        limits.check("batch_rows", len(messages), "messages")
        rows = [
            {
                **self._group(message.channel_name, message.history_key),
                "id": self._scope.ids.new() if message.id is None else parse_id(message.id, "message id"),
                "sender": _optional_name(message.sender, "sender", limits),
                "sender_id": _optional_name(message.sender_id, "sender_id", limits),
                "body": _text(message.body, "body", limits),
                "platform_msg_id": _optional_name(message.platform_msg_id, "platform_msg_id", limits),
                "is_summary": False,
                "created_at": now,
                "now_at": now,
            }
            for message in messages
        ]
        if len({row["id"] for row in rows}) < len(rows):
            raise InvalidInput("two messages of one call have the same id", field="messages")
        return rows

    def _group(self, channel_name: str, history_key: str) -> dict[str, Any]:
        limits = self._scope.limits
        return self._scope.params(
            channel_name=scopes.name(channel_name, "channel_name", limits),
            history_key=scopes.name(history_key, "history_key", limits, limit="key_bytes"),
        )

    def _ids(self, message_ids: Sequence[str]) -> Sequence[str]:
        return id_batch(message_ids, "message_ids", self._scope.limits)


class PendingMessages(Blocking[AsyncPendingMessages]):
    """The pending messages of one tenant's group chats."""

    append_batch = blocking(AsyncPendingMessages.append_batch)
    list_by_key = blocking(AsyncPendingMessages.list_by_key)
    delete_by_key = blocking(AsyncPendingMessages.delete_by_key)
    compact = blocking(AsyncPendingMessages.compact)
    delete_stale = blocking(AsyncPendingMessages.delete_stale)
    list_groups = blocking(AsyncPendingMessages.list_groups)
    count_all = blocking(AsyncPendingMessages.count_all)
    count_by_key = blocking(AsyncPendingMessages.count_by_key)
    resolve_group_titles = blocking(AsyncPendingMessages.resolve_group_titles)


def _message(row: Mapping[str, Any]) -> PendingMessage:
    """Return the message for a stored row."""
    fields = ("channel_name", "history_key", "sender", "sender_id", "body", "platform_msg_id")
    return PendingMessage(
        id=row["id"],
        seq=row["seq"],
        is_summary=row["is_summary"],
        created_at=from_us(row["created_at"]),
        updated_at=from_us(row["now_at"]),
        **{field: text.unescape(row[field]) for field in fields},
    )


def _repeated(new: Sequence[Mapping[str, Any]], existing: Sequence[PendingMessage]) -> list[PendingMessage]:
    """Return the stored messages, if an earlier call with the same content stored them."""
    by_id = {message.id: message for message in existing}
    for row in new:
        message = by_id.get(row["id"])
        if message is None:
            raise Conflict(f"some of these messages exist, but not {row['id']}", reason="partly_stored")
        fields = ("channel_name", "history_key", "sender", "sender_id", "body", "platform_msg_id")
        if message.is_summary or any(getattr(message, field) != text.unescape(row[field]) for field in fields):
            raise Conflict(f"another message has the id {message.id}", reason="id_taken")
    return [by_id[row["id"]] for row in new]


def _check_summary(existing: PendingMessage, body: str) -> PendingMessage:
    if not existing.is_summary or existing.body != body:
        raise Conflict(f"another message has the id {existing.id}", reason="id_taken")
    return existing


def _optional_name(value: object, what: str, limits: Limits) -> str:
    return "" if value == "" else scopes.name(value, what, limits)


def _text(value: object, what: str, limits: Limits) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a string, not {type(value).__name__}", field=what)
    escaped = text.escape(value)
    limits.check("content_bytes", text.size(escaped), what)
    return escaped
