"""Contacts: the people, and groups, that channels have brought.

A contact is what one channel knows of somebody, by the id that the channel gave them. Contacts on several channels that are the
same person are *merged*: they share a ``merged_id``. Merging joins whole groups, so whoever was the same person before still is
afterwards; ``unmerge`` takes exactly those out that it is given.
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
"""After a beginning, this comes after every text that begins so: none has as many of the last character."""
_ORDER = ("last_seen_at", "id")
_TRIES = 100
"""How often a merge starts anew because others have merged the same people meanwhile; each time, one of them got on."""


class Contact(Struct, frozen=True):
    """Somebody on a channel. ``sender_id`` is what the channel calls them, ``user`` what we do."""

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
"""What a search can be filtered by too."""


class _Moved(Exception):
    """A group has grown before all of it could be held."""


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
        """Somebody was seen on a channel: their contact, made if it is not there. What is given replaces what was known;
        what is empty or not given never does.

        Raises:
            InvalidInput: an argument is not acceptable.
        """
        named = {
            "channel_instance": channel_instance,
            "user": user,
            "display_name": display_name,
            "username": username,
            "avatar_url": avatar_url,
            "peer_kind": peer_kind,
        }
        values: dict[str, Any] = {name: "" if value is None else value for name, value in named.items()}
        values["metadata"] = {} if metadata is None else metadata
        params = self._scope.params(
            **self._sender(channel_type, sender_id),
            **CONTACTS.params(values, self._scope.limits),
            id=self._scope.ids.new(),
            search_name=_beginning(display_name),
            search_username=_beginning(username),
            search_sender=_beginning(sender_id),
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
        """One contact.

        Raises:
            NotFound: there is none.
        """
        return await CONTACTS.get(connection, self._scope, contact_id)

    @reads
    async def find(self, connection: Connection, channel_type: str, sender_id: str) -> Contact | None:
        """Whom a channel calls so, or ``None``."""
        params = self._scope.params(**self._sender(channel_type, sender_id))
        rows = await queries.find.all(connection, params, index="contacts_by_sender")
        return CONTACTS.rows(connection, rows)[0] if rows else None

    @reads
    async def get_many(self, connection: Connection, sender_ids: Sequence[str]) -> dict[str, Contact]:
        """Contacts by their sender ids, those that are there. Where several channels call somebody so, the one seen last.

        Raises:
            LimitExceeded: there are more than ``batch_rows``.
        """
        if isinstance(sender_ids, str) or not isinstance(sender_ids, Sequence):
            raise InvalidInput("sender_ids must be a list of ids")
        limits = self._scope.limits
        limits.check("batch_rows", len(sender_ids), "sender ids")
        stored = [scopes.name(each, "sender_id", limits) for each in sender_ids]
        # They are in the form that is stored already, and must not be escaped twice.
        wanted = json.encode(stored).decode() if connection.dialect is Dialect.SQLITE else stored
        params = self._scope.params(sender_ids=wanted)
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
        """Contacts, the one seen last first. With ``limit``, a page; its ``next`` is the cursor of the one after.

        ``search`` is the beginning of a display name, a username or a sender id, in upper or lower case; no character in it
        has a special meaning. ``merged_id`` lists those who are one person.

        Raises:
            InvalidFilter: a filter or the cursor is not understood.
            LimitExceeded: without ``limit``, there are more than ``list_rows``; or ``search`` is too long.
        """
        equal = {"channel_type": channel_type, "peer_kind": peer_kind, "merged_id": merged_id}
        if search in (None, ""):
            return await CONTACTS.list(connection, self._scope, equal, where=where, limit=limit, cursor=cursor)
        params = self._scope.params(limit=rows_to_read(limit, self._scope.limits), **_searched(search))
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
        """How many contacts match, by what ``list`` takes.

        Raises:
            InvalidFilter: a filter is not understood.
        """
        equal = {"channel_type": channel_type, "peer_kind": peer_kind, "merged_id": merged_id}
        if search in (None, ""):
            return await CONTACTS.count(connection, self._scope, equal, where=where)
        params = self._scope.params(**_searched(search))
        clause = CONTACTS.where(equal, where, params, connection, self._scope)
        row = await queries.count_found.one(connection, params, clause)
        return int(row[0]) if row else 0

    @writes
    async def merge(self, connection: Connection, contact_ids: Sequence[Id]) -> str | None:
        """These contacts are one person, and so is everybody who was merged with one of them before.

        Returns the ``merged_id`` that all of them have now; ``None``, and nothing happens, with fewer than two contacts.

        Raises:
            NotFound: one of them is not there.
        """
        ids = self._ids(contact_ids)
        if len(ids) < 2:
            return None
        held = await self._hold(connection, ids)
        missing = [each for each in ids if each not in held]
        if missing:
            raise NotFound(f"there is no contact {missing[0]} here")
        # The oldest group goes on; which one that is does not depend on the order in which they were named.
        merged_id = min((each for each in held.values() if each is not None), default=self._scope.ids.new())
        moved = [each for each, group in held.items() if group != merged_id]
        await self._regroup(connection, moved, merged_id)
        return merged_id

    @writes
    async def unmerge(self, connection: Connection, contact_ids: Sequence[Id]) -> int:
        """Take exactly these contacts out of their groups and say how many were in one. A group that is left with one
        member is no group any more."""
        ids = self._ids(contact_ids)
        held = await self._hold(connection, ids)
        out = {each for each in ids if held.get(each) is not None}
        left = Counter(group for each, group in held.items() if each not in out)
        alone = [each for each, group in held.items() if group and each not in out and left[group] == 1]
        await self._regroup(connection, [*out, *alone], None)
        return len(out)

    async def _hold(self, connection: Connection, ids: Sequence[str]) -> dict[str, str | None]:
        """These contacts and all members of their groups with their ``merged_id``, held until the transaction ends.

        Rows are held in the order of their ids, or two merges could wait for each other. So all of them must be known first;
        if a group has grown before it was held, everything is let go and tried again.
        """
        for _ in range(_TRIES):
            try:
                async with connection.savepoint():
                    involved = await self._involved(connection, ids)
                    params = self._scope.params(ids=id_list(involved, connection.dialect))
                    held: dict[str, str | None] = dict(await queries.lock.all(connection, params))
                    if not held.keys() >= set(await self._involved(connection, ids)):
                        raise _Moved
                    return held
            except _Moved:
                continue
        raise Unavailable("others are merging the same contacts all the time; nothing was changed, and a retry is safe")

    async def _involved(self, connection: Connection, ids: Sequence[str]) -> Sequence[str]:
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
            raise InvalidInput("contact_ids must be a list of ids")
        self._scope.limits.check("batch_rows", len(contact_ids), "contact ids")
        return [*dict.fromkeys(parse_id(each, "contact id") for each in contact_ids)]


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


def _beginning(name: str | None) -> str:
    """What a search compares with. Case is folded here and not in the database: engines fold differently."""
    return text.escape((name or "").casefold()[:SEARCH_CHARS])


def _searched(search: object) -> dict[str, str]:
    """The range of texts that begin so. A range needs no wildcards, so nothing in the search can be one."""
    if not isinstance(search, str):
        raise InvalidInput(f"search must be a string, not {type(search).__name__}")
    folded = search.casefold()
    if len(folded) > SEARCH_CHARS:
        raise LimitExceeded(f"search: {len(folded)} characters is over the limit SEARCH_CHARS = {SEARCH_CHARS}")
    prefix = text.escape(folded)
    return {"prefix": prefix, "beyond": prefix + _BEYOND}
