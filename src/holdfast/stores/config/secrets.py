"""Secrets of a tenant that belong to no record, by name: the keys of tools and services that agents use.

Values are encrypted. ``get`` is the only call that returns one, and leaves an entry in the activity log.
"""

from __future__ import annotations

from typing import Any

from ...core import scope as scopes
from ...core import text
from ...core.actor_context import ActorContext
from ...core.blocking import Blocking, blocking
from ...core.crypto import Secret
from ...core.encrypted_columns import EncryptedColumn
from ...core.paging import Page, decode_cursor, encode_cursor, page, rows_to_read
from ...core.queries import Queries
from ...core.registration import register_tenant
from ...core.store import TenantStore, reads, writes_with_actor
from ...engines.protocol import Connection
from ...errors import InvalidInput, NotFound
from ..objects.activity import log_change

VALUE = EncryptedColumn("config_secrets", "value", row=("key",)).declare()
queries = Queries(__package__, "secrets.sql")


class AsyncSecrets(TenantStore):
    """The secrets of one tenant, by name."""

    @writes_with_actor
    async def get(self, connection: Connection, acting: ActorContext, key: str) -> Secret[str]:
        """Return a secret. The activity log gets an entry in the same transaction.

        Raises:
            NotFound: no secret has this name, or it was imported without its value.
            DecryptionFailed: it cannot be decrypted.
        """
        params = self._at(key)
        row = await queries.get.one(connection, params)
        stored = None if row is None else VALUE.load(self._scope, params["key"], row[0])
        if stored is None:
            why = "does not exist" if row is None else "was imported without its value: set it again"
            raise NotFound(f"secret {key!r} {why}", noun="secret", key=key)
        secret: Secret[str] = Secret(stored.reveal())
        await self._log(connection, acting, "revealed", key)
        return secret

    @writes_with_actor
    async def set(self, connection: Connection, acting: ActorContext, key: str, value: Secret[str]) -> None:
        """Store a secret, or replace the one with this name.

        Raises:
            MissingKey: no encryption key is configured.
        """
        params = self._at(key)
        stored = VALUE.encrypt(self._scope, params["key"], value)
        if stored is None:
            raise InvalidInput("value must be a Secret; delete removes a secret", field="value")
        await register_tenant(connection, params)
        await queries.set.all(connection, params | {"value": stored})
        await self._log(connection, acting, "set", key)

    @writes_with_actor
    async def delete(self, connection: Connection, acting: ActorContext, key: str) -> bool:
        """Delete a secret; return whether it existed."""
        deleted = bool(await queries.delete.all(connection, self._at(key)))
        if deleted:
            await self._log(connection, acting, "deleted", key)
        return deleted

    @reads
    async def list(self, connection: Connection, *, limit: int | None = None, cursor: str | None = None) -> Page[str]:
        """List the names of the secrets. With ``limit``, a page.

        Raises:
            InvalidFilter: the cursor does not belong to this list.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        limits = self._scope.limits
        after = "" if cursor is None else text.escape(decode_cursor(cursor, "config_secrets", str)[0])
        params = self._scope.params(limit=rows_to_read(limit, limits), after=after)
        names = [text.unescape(key) for (key,) in await queries.list.all(connection, params)]
        return page(names, limit, limits, "secrets", lambda name: encode_cursor("config_secrets", name))

    async def _log(self, connection: Connection, acting: ActorContext, action: str, key: str) -> None:
        await log_change(connection, self._scope, acting, f"secret.{action}", "secret", key)

    def _at(self, key: str) -> dict[str, Any]:
        stored = scopes.name(key, "key of a secret", self._scope.limits)
        return self._scope.params(key=stored, now_at=self._scope.clock.now_us())


class Secrets(Blocking[AsyncSecrets]):
    """The secrets of one tenant, by name."""

    get = blocking(AsyncSecrets.get)
    set = blocking(AsyncSecrets.set)
    delete = blocking(AsyncSecrets.delete)
    list = blocking(AsyncSecrets.list)
