"""API keys: what a program comes with over HTTP.

A key is ``hf_`` and 48 hexadecimal digits, drawn where it is made (``holdfast.new_api_key``) and shown once. What is kept is its
SHA-256: the key holds 192 bits of chance, so nothing slower is needed to keep it from being guessed. It belongs to one tenant or,
without one, to whoever looks after the whole Holdfast. Its scopes say what it may do; the server reads them.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from ...clock import to_us
from ...core import scope as scopes_of_names
from ...core import text
from ...core.blocking import Blocking, blocking
from ...core.paging import Page, decode_cursor, encode_cursor, page, rows_to_read
from ...core.queries import Queries
from ...core.registration import register_tenant
from ...core.rows import mapper
from ...core.scope import Setting
from ...core.store import Store, reads, writes
from ...core.tokens import digest
from ...engines.protocol import Connection, Engine, Row
from ...errors import Conflict, Forbidden, InvalidInput, NotFound
from ...ids import Id, parse

SHOWN = 8
"""Digits of a key that may be shown."""
SCOPES = ("read", "write")
"""What a key may do unless it is said: everything in its tenant but to look after keys."""
_KEY = re.compile(r"hf_[0-9a-f]{48}")
_SCOPE = re.compile(r"(?:[a-z][a-z_-]{0,39}:)?(?:read|write)|admin")
_FIRST_ID = "00000000-0000-0000-0000-000000000000"


class ApiKey(Struct, frozen=True):
    """A key as it is kept: everything but the key. ``tenant`` is empty for one that is good for all tenants."""

    id: Id
    tenant: str
    name: str
    prefix: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class StoredKey(ApiKey, frozen=True):
    """A key with its digest. It never leaves this module."""

    key_hash: str


queries = Queries(__package__, "api_keys.sql", ApiKey, StoredKey)


class AsyncApiKeys(Store):
    """The API keys of all tenants."""

    def __init__(self, engine: Engine, setting: Setting) -> None:
        super().__init__(engine)
        self._setting = setting

    @writes
    async def create(
        self,
        connection: Connection,
        key: str,
        *,
        name: str,
        tenant: str = "",
        scopes: Sequence[str] = SCOPES,
        expires_at: datetime | None = None,
    ) -> ApiKey:
        """Let whoever has this key in, to one tenant or, without one, to all. ``holdfast.new_api_key()`` draws a key.

        The call can be repeated: the same key for the same purpose returns what is there.

        Args:
            key: the key itself; only its digest is kept.
            name: what it is for.
            tenant: the only tenant it is good for.
            scopes: ``read``, ``write``, both of a kind of thing (``runs:read``), or ``admin``.
            expires_at: when it stops being good; without it, never.

        Raises:
            InvalidInput: the key is not of the right form, or a scope is unknown.
            Conflict: the key is there for another purpose.
        """
        limits = self._setting.limits
        stored = {
            "name": scopes_of_names.name(name, "the name of a key", limits),
            "tenant_id": self._tenant(tenant),
            "prefix": prefix_of(key),
            "key_hash": digest(key),
            "scopes": text.dump(_checked_scopes(scopes)),
            "expires_at": None if expires_at is None else _moment(expires_at),
        }
        params = {**stored, "id": self._setting.ids.new(), "now_at": self._setting.clock.now_us()}
        if tenant:
            await register_tenant(connection, params)
        row = await queries.create.one(connection, params)
        if row is not None:
            return _key(connection, row)
        found = await self._find(connection, key)
        if found is None or not _same(found, params):
            raise Conflict("this key is there already, for another purpose; draw a new one")
        return found

    @reads
    async def verify(self, connection: Connection, key: str) -> ApiKey:
        """The key that this is.

        Raises:
            Forbidden: it is unknown, revoked or expired; the message says which and holds nothing of the key.
        """
        found = await self._find(connection, key)
        if found is None:
            raise Forbidden("this API key is not known here")
        if found.revoked_at is not None:
            raise Forbidden("this API key was revoked")
        if found.expires_at is not None and to_us(found.expires_at) <= self._setting.clock.now_us():
            raise Forbidden("this API key has expired")
        return found

    @reads
    async def get(self, connection: Connection, key_id: Id, *, tenant: str | None = None) -> ApiKey:
        """One key; with ``tenant``, only if it belongs to that one.

        Raises:
            NotFound: there is none.
        """
        return await self._get(connection, key_id, tenant)

    @reads
    async def list(
        self, connection: Connection, *, tenant: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Page[ApiKey]:
        """All keys, or a tenant's, or with ``tenant=""`` those of all tenants, oldest first. With ``limit``, a page."""
        limits = self._setting.limits
        (after,) = decode_cursor(cursor, "api_keys", str) if cursor is not None else (_FIRST_ID,)
        params: dict[str, Any] = {"after": parse(after), "limit": rows_to_read(limit, limits)}
        query = queries.list
        if tenant is not None:
            query, params["tenant_id"] = queries.list_of_tenant, self._tenant(tenant)
        keys = mapper(ApiKey, connection.dialect)(await query.all(connection, params))
        return page(keys, limit, limits, "API keys", lambda key: encode_cursor("api_keys", key.id))

    @writes
    async def revoke(self, connection: Connection, key_id: Id, *, tenant: str | None = None) -> ApiKey:
        """Let nobody in with this key any more. Revoking twice is fine, and the first time counts.

        Raises:
            NotFound: there is no such key.
        """
        there = await self._get(connection, key_id, tenant)
        row = await queries.revoke.one(connection, {**_place(there), "now_at": self._setting.clock.now_us()})
        if row is None:
            raise _missing(key_id)
        return _key(connection, row)

    @writes
    async def touch(self, connection: Connection, key_id: Id) -> None:
        """Note that a key was used now.

        Raises:
            NotFound: there is no such key.
        """
        params = {"id": parse(key_id, "key id"), "now_at": self._setting.clock.now_us()}
        if await queries.touch.one(connection, params) is None:
            raise _missing(key_id)

    @writes
    async def delete(self, connection: Connection, key_id: Id, *, tenant: str | None = None) -> None:
        """Remove a key and what is known of it. To keep the trace of who it was, revoke it instead.

        Raises:
            NotFound: there is no such key.
        """
        there = await self._get(connection, key_id, tenant)
        if await queries.delete.one(connection, _place(there)) is None:
            raise _missing(key_id)

    async def _get(self, connection: Connection, key_id: str, tenant: str | None) -> ApiKey:
        row = await queries.get.one(connection, {"id": parse(key_id, "key id")})
        found = None if row is None else _key(connection, row)
        if found is None or (tenant is not None and found.tenant != tenant):
            raise _missing(key_id)
        return found

    async def _find(self, connection: Connection, key: str) -> ApiKey | None:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            return None
        key_hash = digest(key)
        rows = await queries.by_prefix.all(connection, {"prefix": prefix_of(key)})
        for each in mapper(StoredKey, connection.dialect)(rows):
            if hmac.compare_digest(each.key_hash, key_hash):
                return _without_digest(each)
        return None

    def _tenant(self, tenant: str) -> str:
        return scopes_of_names.free_text(tenant, "tenant", self._setting.limits, limit="tenant_bytes")


class ApiKeys(Blocking[AsyncApiKeys]):
    """The API keys of all tenants."""

    create = blocking(AsyncApiKeys.create)
    verify = blocking(AsyncApiKeys.verify)
    get = blocking(AsyncApiKeys.get)
    list = blocking(AsyncApiKeys.list)
    revoke = blocking(AsyncApiKeys.revoke)
    touch = blocking(AsyncApiKeys.touch)
    delete = blocking(AsyncApiKeys.delete)


def prefix_of(key: str) -> str:
    """The beginning of a key, which may be shown.

    Raises:
        InvalidInput: it is not a key. The message does not repeat it.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidInput(
            "a key is hf_ and 48 hexadecimal digits; new_api_key() draws one, and so does: echo hf_$(openssl rand -hex 24)"
        )
    return key[: len("hf_") + SHOWN]


def _checked_scopes(scopes: Sequence[str]) -> list[str]:
    if isinstance(scopes, str) or not isinstance(scopes, Sequence) or not scopes:
        raise InvalidInput("scopes must be a list of at least one of read, write, <kind>:read, <kind>:write and admin")
    for scope in scopes:
        if not isinstance(scope, str) or not _SCOPE.fullmatch(scope):
            raise InvalidInput(f"there is no scope {scope!r}; there are read, write, <kind>:read, <kind>:write, admin")
    return sorted(set(scopes))


def _moment(value: object) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidInput(f"expires_at must be a time with a time zone, not {value!r}")
    return to_us(value, "expires_at")


def _same(there: ApiKey, params: dict[str, Any]) -> bool:
    expires = None if there.expires_at is None else to_us(there.expires_at)
    mine = (text.escape(there.tenant), text.escape(there.name), there.scopes, expires)
    return mine == (params["tenant_id"], params["name"], text.load(params["scopes"]), params["expires_at"])


def _place(key: ApiKey) -> dict[str, Any]:
    return {"id": key.id, "tenant_id": text.escape(key.tenant)}


def _key(connection: Connection, row: Row) -> ApiKey:
    return mapper(ApiKey, connection.dialect)([row])[0]


def _without_digest(key: StoredKey) -> ApiKey:
    return ApiKey(*(getattr(key, field) for field in ApiKey.__struct_fields__))


def _missing(key_id: str) -> NotFound:
    return NotFound(f"there is no API key {key_id!r} here")
