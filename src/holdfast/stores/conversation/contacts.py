"""Contacts: the people and groups seen on channels.

A contact is one sender on one channel, identified by the channel's id for them. Contacts on several channels that are the
same person are *merged*: they share a ``merged_id``. Merging joins whole groups, so contacts merged earlier stay
merged; ``unmerge`` removes exactly the given contacts from their groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Struct, json

from ...core import scope as scopes
from ...core import text
from ...core.blocking import Blocking, blocking
from ...core.filters import Filter, id_list
from ...core.paging import Page, rows_to_read
from ...core.queries import Queries
from ...core.records import Limited
from ...core.registration import register_tenant
from ...core.rows import Column
from ...core.store import TenantStore, reads, writes
from ...core.tables import ListTable
from ...engines.dialect import Dialect
from ...engines.protocol import Connection
from ...errors import InvalidInput, LimitExceeded, NotFound, Unavailable
from ...ids import Id
from ...ids import parse as parse_id
from ...limits import SEARCH_CHARS

_BEYOND = "\U0010ffff" * (SEARCH_CHARS + 1)
"""Added to a prefix, this sorts after every text with that prefix: no stored text has as many of the last character."""
_ORDER = ("last_seen_at", "id")
_TRIES = 100
"""How often a merge is tried again after concurrent merges of the same contacts; each time, one of them succeeded."""


class Contact(Struct, frozen=True):
    """A sender on a channel. ``sender_id`` is the channel's id of the sender, ``user`` the application's."""

    id: Id
    channel_type: Annotated[str, Limited("name_bytes", empty=False)]
    sender_id: Annotated[str, Limited("name_bytes", empty=False)]
    channel_instance: Annotated[str, Limited("name_bytes")]
    user: Annotated[str, Limited("name_bytes"), Column("user_id")]
    display_name: Annotated[str, Limited("display_bytes")]
    username: Annotated[str, Limited("name_bytes")]
    avatar_url: Annotated[str, Limited("url_bytes")]
    peer_kind: Annotated[str, Limited("name_bytes")]
    metadata: Annotated[dict[str, Any], Limited("metadata_bytes")]
    merged_id: Id | None
    first_seen_at: datetime
    last_seen_at: datetime


CONTACTS = ListTable(
    "contacts",
    Contact,
    noun="contact",
    order=_ORDER,
    descending=True,
    indexes={"merged_id": "contacts_by_merged", "": "contacts_by_recency"},
)
queries = Queries(__package__, "contacts.sql", Contact)
FILTERS = CONTACTS.filters
"""The fields that a search can be filtered by."""


class _GroupGrew(Exception):
    """A group has grown before all of its rows were locked."""


class AsyncContacts(TenantStore):
    """The contacts of one tenant."""

    @writes
    async def upsert(
        self,
        connection: Connection,
        channel_type: str,
        sender_id: str,
        *,
        channel_instance: str | None = None,
        user: str | None = None,
        display_name: str | None = None,
        username: str | None = None,
        avatar_url: str | None = None,
        peer_kind: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Contact:
        """Record that a sender was seen on a channel; create the contact if it does not exist. Arguments that are empty or not
        given keep the stored values.

        Raises:
            InvalidInput: an argument is not valid.
        """
        texts = {
            "channel_instance": channel_instance,
            "user": user,
            "display_name": display_name,
            "username": username,
            "avatar_url": avatar_url,
            "peer_kind": peer_kind,
        }
        values: dict[str, Any] = {name: "" if value is None else value for name, value in texts.items()}
        values["metadata"] = {} if metadata is None else metadata
        params = self._scope.params(
            **self._sender(channel_type, sender_id),
            **CONTACTS.params(values, self._scope.limits),
            id=self._scope.ids.new(),
            search_name=_search_key(display_name),
            search_username=_search_key(username),
            search_sender=_search_key(sender_id),
            now_at=self._scope.clock.now_us(),
        )
        row = await queries.upsert.one(connection, params)
        assert row is not None
        contact = CONTACTS.rows(connection, [row])[0]
        if contact.id == params["id"]:
            await register_tenant(connection, params)
        return contact

    @reads
    async def get(self, connection: Connection, contact_id: Id) -> Contact:
        """Return one contact.

        Raises:
            NotFound: it does not exist.
        """
        return await CONTACTS.get(connection, self._scope, contact_id)

    @reads
    async def find(self, connection: Connection, channel_type: str, sender_id: str) -> Contact | None:
        """Return the contact with this sender id on a channel, or ``None``."""
        params = self._scope.params(**self._sender(channel_type, sender_id))
        rows = await queries.find.all(connection, params, index="contacts_by_sender")
        return CONTACTS.rows(connection, rows)[0] if rows else None

    @reads
    async def get_many(self, connection: Connection, sender_ids: Sequence[str]) -> dict[str, Contact]:
        """Return the existing contacts by their sender ids. If several channels have a sender id, the contact seen last is
        returned.

        Raises:
            LimitExceeded: more than ``batch_rows`` ids were given.
        """
        if isinstance(sender_ids, str) or not isinstance(sender_ids, Sequence):
            raise InvalidInput("sender_ids must be a list of ids", field="sender_ids")
        limits = self._scope.limits
        limits.check("batch_rows", len(sender_ids), "sender ids")
        escaped = [scopes.name(sender_id, "sender_id", limits) for sender_id in sender_ids]
        # The ids are in their stored form already and must not be escaped twice.
        ids = json.encode(escaped).decode() if connection.dialect is Dialect.SQLITE else escaped
        params = self._scope.params(sender_ids=ids)
        rows = await queries.by_sender_ids.all(connection, params, index="contacts_by_sender_id")
        return {contact.sender_id: contact for contact in CONTACTS.rows(connection, rows)}

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        search: str | None = None,
        channel_type: str | None = None,
        peer_kind: str | None = None,
        merged_id: Id | None = None,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[Contact]:
        """List contacts, the one seen last first. With ``limit``, a page; its ``next`` is the cursor of the next page.

        ``search`` is a prefix of a display name, a username or a sender id, ignoring case; no character in it
        has a special meaning. ``merged_id`` lists the contacts of one person.

        Raises:
            InvalidFilter: a filter or the cursor is not valid.
            LimitExceeded: without ``limit``, there are more than ``list_rows``; or ``search`` is too long.
        """
        equal = {"channel_type": channel_type, "peer_kind": peer_kind, "merged_id": merged_id}
        if search in (None, ""):
            return await CONTACTS.list(connection, self._scope, equal, where=where, limit=limit, cursor=cursor)
        params = self._scope.params(limit=rows_to_read(limit, self._scope.limits), **_prefix_range(search))
        clause = CONTACTS.where(equal, where, params, connection, self._scope)
        clause += CONTACTS.after(cursor, _ORDER, params, "<")
        rows = CONTACTS.rows(connection, await queries.search.all(connection, params, clause))
        return CONTACTS.page(rows, limit, self._scope.limits, _ORDER)

    @reads
    async def count(
        self,
        connection: Connection,
        *,
        search: str | None = None,
        channel_type: str | None = None,
        peer_kind: str | None = None,
        merged_id: Id | None = None,
        where: Sequence[Filter] = (),
    ) -> int:
        """Return the number of contacts that match, with the arguments of ``list``.

        Raises:
            InvalidFilter: a filter is not valid.
        """
        equal = {"channel_type": channel_type, "peer_kind": peer_kind, "merged_id": merged_id}
        if search in (None, ""):
            return await CONTACTS.count(connection, self._scope, equal, where=where)
        params = self._scope.params(**_prefix_range(search))
        clause = CONTACTS.where(equal, where, params, connection, self._scope)
        row = await queries.count_found.one(connection, params, clause)
        return int(row[0]) if row else 0

    @writes
    async def merge(self, connection: Connection, contact_ids: Sequence[Id]) -> str | None:
        """Merge contacts that are one person, together with all contacts they were merged with before.

        Returns the ``merged_id`` that all of them have now. With fewer than two contacts, does nothing and returns ``None``.

        Raises:
            NotFound: one of the contacts does not exist.
        """
        ids = self._ids(contact_ids)
        if len(ids) < 2:
            return None
        groups = await self._lock_groups(connection, ids)
        missing = [id for id in ids if id not in groups]
        if missing:
            raise NotFound(f"contact {missing[0]} does not exist", noun="contact", key=missing[0])
        # The oldest group is kept, whatever the order of the ids.
        merged_id = min((group for group in groups.values() if group is not None), default=self._scope.ids.new())
        moved = [id for id, group in groups.items() if group != merged_id]
        await self._regroup(connection, moved, merged_id)
        return merged_id

    @writes
    async def unmerge(self, connection: Connection, contact_ids: Sequence[Id]) -> int:
        """Remove exactly these contacts from their groups and return how many were in one. A group with one remaining member
        is dissolved."""
        ids = self._ids(contact_ids)
        groups = await self._lock_groups(connection, ids)
        removed = {id for id in ids if groups.get(id) is not None}
        sizes = Counter(group for id, group in groups.items() if id not in removed)
        alone = [id for id, group in groups.items() if group and id not in removed and sizes[group] == 1]
        await self._regroup(connection, [*removed, *alone], None)
        return len(removed)

    async def _lock_groups(self, connection: Connection, ids: Sequence[str]) -> dict[str, str | None]:
        """Lock these contacts and all members of their groups until the transaction ends; return the ``merged_id`` of each.

        Rows are locked in the order of their ids, so that two merges cannot deadlock. So all ids must be known first;
        if a group grew before it was locked, all locks are released and the lookup starts again.
        """
        for _ in range(_TRIES):
            try:
                async with connection.savepoint():
                    ids_to_lock = await self._group_ids(connection, ids)
                    params = self._scope.params(ids=id_list(ids_to_lock, connection.dialect))
                    groups: dict[str, str | None] = dict(await queries.lock.all(connection, params))
                    members = await self._group_ids(connection, ids)
                    if not groups.keys() >= {*members}:
                        raise _GroupGrew
                    # A contact that left the group before it was locked may be in another group by now.
                    return {id: groups[id] for id in members}
            except _GroupGrew:
                continue
        raise Unavailable("other callers keep merging the same contacts; nothing was changed, and a retry is safe")

    async def _group_ids(self, connection: Connection, ids: Sequence[str]) -> Sequence[str]:
        params = self._scope.params(ids=id_list(ids, connection.dialect))
        return [row[0] for row in await queries.involved.all(connection, params)]

    async def _regroup(self, connection: Connection, ids: Sequence[str], merged_id: str | None) -> None:
        if ids:
            params = self._scope.params(ids=id_list(ids, connection.dialect), merged_id=merged_id)
            await queries.regroup.all(connection, params)

    def _sender(self, channel_type: str, sender_id: str) -> dict[str, Any]:
        return CONTACTS.params({"channel_type": channel_type, "sender_id": sender_id}, self._scope.limits)

    def _ids(self, contact_ids: Sequence[str]) -> Sequence[str]:
        if isinstance(contact_ids, str) or not isinstance(contact_ids, Sequence):
            raise InvalidInput("contact_ids must be a list of ids", field="contact_ids")
        self._scope.limits.check("batch_rows", len(contact_ids), "contact ids")
        return [*dict.fromkeys(parse_id(id, "contact id") for id in contact_ids)]


class Contacts(Blocking[AsyncContacts]):
    """The contacts of one tenant."""

    upsert = blocking(AsyncContacts.upsert)
    get = blocking(AsyncContacts.get)
    find = blocking(AsyncContacts.find)
    get_many = blocking(AsyncContacts.get_many)
    list = blocking(AsyncContacts.list)
    count = blocking(AsyncContacts.count)
    merge = blocking(AsyncContacts.merge)
    unmerge = blocking(AsyncContacts.unmerge)


def _search_key(name: str | None) -> str:
    """Return the stored text that a search compares with. Case is folded here, because the engines fold it differently."""
    return text.escape((name or "").casefold()[:SEARCH_CHARS])


def _prefix_range(search: object) -> dict[str, str]:
    """Return the range of texts with this prefix. A range has no wildcards, so no character of the search can be one."""
    if not isinstance(search, str):
        raise InvalidInput(f"search must be a string, not {type(search).__name__}", field="search")
    folded = search.casefold()
    if len(folded) > SEARCH_CHARS:
        raise LimitExceeded(
            f"search: {len(folded)} characters is over the limit SEARCH_CHARS = {SEARCH_CHARS}",
            field="search",
            limit="SEARCH_CHARS",
            maximum=SEARCH_CHARS,
        )
    prefix = text.escape(folded)
    return {"prefix": prefix, "beyond": prefix + _BEYOND}
