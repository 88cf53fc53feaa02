"""Expiring tokens: whoever has the token has what its row grants, until it expires or is revoked.

Only the SHA-256 of a token is stored. Tokens are drawn at random and long, so nothing slower is needed to keep them from being
guessed, and a stolen database opens nothing. The table's primary key is ``(tenant_id, token_hash)``; the row type has
``expires_at``, which is ``None`` for a token that does not expire, and not the hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from ..engines.protocol import Connection
from ..errors import AlreadyExists, InvalidInput
from . import scope as scopes
from .blocking import Blocking, blocking
from .scope import Scope
from .store import TenantStore, reads, writes
from .tables import R, Table

N = TypeVar("N", bound=Struct)
MIN_TOKEN_CHARS = 16
"""Characters of a new token; shorter ones can be guessed."""


def digest(token: str) -> str:
    """What is stored of a token."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class TokenTable(Table[R]):
    """One table of tokens."""

    template = """
-- name: issue
INSERT INTO {table} (tenant_id, token_hash, {columns}) VALUES (:tenant_id, :token_hash, {values})
ON CONFLICT (tenant_id, token_hash) DO NOTHING
RETURNING {returned};

-- name: find
SELECT {returned} FROM {table}
WHERE tenant_id = :tenant_id AND token_hash = :token_hash AND (expires_at IS NULL OR expires_at > :now_at){visible};

-- name: revoke
DELETE FROM {table} WHERE tenant_id = :tenant_id AND token_hash = :token_hash RETURNING 1;

-- name: prune
DELETE FROM {table}
WHERE tenant_id = :tenant_id AND token_hash IN (
    SELECT token_hash FROM {table} WHERE tenant_id = :tenant_id AND expires_at <= :now_at
    ORDER BY expires_at, token_hash
    LIMIT :limit)
RETURNING 1;
"""

    async def issue(self, connection: Connection, scope: Scope, token: str, values: Mapping[str, Any]) -> R:
        """Store a token that the caller has drawn. ``created_at``, where the row type has it, is filled in.

        Raises:
            InvalidInput: the token is too short, or a value is not acceptable.
            AlreadyExists: the token is taken.
        """
        params = self._params(scope, token, least=MIN_TOKEN_CHARS) | self.params(values, scope.limits)
        if "created_at" in self.fields:
            params["created_at"] = scope.clock.now_us()
        row = await self.one(connection, "issue", params)
        if row is None:
            raise AlreadyExists(f"this token is taken by another {self.noun}; draw another")
        return row

    async def find(self, connection: Connection, scope: Scope, token: str) -> R | None:
        """What a token grants, or ``None`` if it is unknown or has expired."""
        return await self.one(connection, "find", self._params(scope, token))

    async def revoke(self, connection: Connection, scope: Scope, token: str) -> bool:
        """Remove a token; whether there was one, expired or not."""
        return bool(await self.by_name["revoke"].all(connection, self._params(scope, token)))

    async def prune(self, connection: Connection, scope: Scope, *, limit: int | None = None) -> int:
        """Delete tokens that have expired, ``batch_rows`` at most; the number deleted. Call it until that is 0."""
        params = scope.params(now_at=scope.clock.now_us(), limit=limit or scope.limits.batch_rows)
        return len(await self.by_name["prune"].all(connection, params))

    def hash_of(self, scope: Scope, token: str, *, least: int = 1) -> str:
        """The hash of a token that a caller has given.

        Raises:
            InvalidInput: it is not a token, or too short.
        """
        scopes.name(token, "token", scope.limits)
        if len(token) < least:
            raise InvalidInput(f"a token has at least {least} characters, drawn at random; this one has {len(token)}")
        return digest(token)

    def _params(self, scope: Scope, token: str, *, least: int = 1) -> dict[str, Any]:
        return scope.params(token_hash=self.hash_of(scope, token, least=least), now_at=scope.clock.now_us())


class AsyncTokens(TenantStore, Generic[R, N]):
    """Tokens as a store: subclasses name the table."""

    tokens: ClassVar[TokenTable[Any]]

    @writes
    async def issue(self, connection: Connection, token: str, new: N, *, expires_at: datetime | None = None) -> R:
        """Store a token that the caller has drawn; without ``expires_at`` it does not expire.

        Raises:
            AlreadyExists: the token is taken.
        """
        values = {**asdict(new), "expires_at": expires_at}
        row: R = await self.tokens.issue(connection, self._scope, token, values)
        return row

    @reads
    async def find(self, connection: Connection, token: str) -> R | None:
        """What a token grants, or ``None`` if it is unknown or has expired."""
        row: R | None = await self.tokens.find(connection, self._scope, token)
        return row

    @writes
    async def revoke(self, connection: Connection, token: str) -> bool:
        """Remove a token; whether there was one."""
        return await self.tokens.revoke(connection, self._scope, token)

    @writes
    async def prune(self, connection: Connection) -> int:
        """Delete tokens that have expired, ``batch_rows`` at most; the number deleted."""
        return await self.tokens.prune(connection, self._scope)


class Tokens(Blocking[AsyncTokens[R, N]], Generic[R, N]):
    """Tokens as a store, for synchronous programs."""

    issue = blocking(AsyncTokens[R, N].issue)
    find = blocking(AsyncTokens[R, N].find)
    revoke = blocking(AsyncTokens[R, N].revoke)
    prune = blocking(AsyncTokens[R, N].prune)
