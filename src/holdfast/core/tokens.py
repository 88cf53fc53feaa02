"""Expiring tokens: a token gives its bearer the access that its row grants, until it expires or is revoked.

Only the SHA-256 of a token is stored. Tokens are long and random, so they cannot be guessed even with a fast hash, and a stolen
database gives no access. The table's primary key is ``(tenant_id, token_hash)``; the row type has ``expires_at``, which is
``None`` for a token that does not expire, and does not have the hash.
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
from .tables import R, TypedTable

N = TypeVar("N", bound=Struct)
MIN_TOKEN_CHARS = 16
"""The minimum length of a new token; shorter ones can be guessed."""


def digest(token: str) -> str:
    """Return the stored hash of a token."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class TokenTable(TypedTable[R]):
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
        """Store a token that the caller generated. ``created_at``, where the row type has it, is set by the store.

        Raises:
            InvalidInput: the token is too short, or a value is not valid.
            AlreadyExists: the token exists.
        """
        params = self._params(scope, token, min_chars=MIN_TOKEN_CHARS) | self.params(values, scope.limits)
        if "created_at" in self.fields:
            params["created_at"] = scope.clock.now_us()
        row = await self.one(connection, "issue", params)
        if row is None:
            raise AlreadyExists(f"another {self.noun} has this token; generate a new one", noun=self.noun)
        return row

    async def find(self, connection: Connection, scope: Scope, token: str) -> R | None:
        """Return the row of a token, or ``None`` if the token is unknown or has expired."""
        return await self.one(connection, "find", self._params(scope, token))

    async def revoke(self, connection: Connection, scope: Scope, token: str) -> bool:
        """Remove a token; return whether it existed, expired or not."""
        return bool(await self.by_name["revoke"].all(connection, self._params(scope, token)))

    async def prune(self, connection: Connection, scope: Scope, *, limit: int | None = None) -> int:
        """Delete tokens that have expired, at most ``batch_rows``; return how many. Call it until it returns 0."""
        params = scope.params(now_at=scope.clock.now_us(), limit=limit or scope.limits.batch_rows)
        return len(await self.by_name["prune"].all(connection, params))

    def hash_of(self, scope: Scope, token: str, *, min_chars: int = 1) -> str:
        """Return the hash of a token that a caller passed.

        Raises:
            InvalidInput: the token is not text, or too short.
        """
        scopes.name(token, "token", scope.limits)
        if len(token) < min_chars:
            raise InvalidInput(
                f"a token must have at least {min_chars} random characters; this one has {len(token)}", field="token"
            )
        return digest(token)

    def _params(self, scope: Scope, token: str, *, min_chars: int = 1) -> dict[str, Any]:
        return scope.params(token_hash=self.hash_of(scope, token, min_chars=min_chars), now_at=scope.clock.now_us())


class AsyncTokens(TenantStore, Generic[R, N]):
    """Base of stores that keep tokens; a subclass sets the table."""

    tokens: ClassVar[TokenTable[Any]]

    @writes
    async def issue(self, connection: Connection, token: str, new: N, *, expires_at: datetime | None = None) -> R:
        """Store a token that the caller generated; without ``expires_at`` it does not expire.

        Raises:
            AlreadyExists: the token exists.
        """
        values = {**asdict(new), "expires_at": expires_at}
        row: R = await self.tokens.issue(connection, self._scope, token, values)
        return row

    @reads
    async def find(self, connection: Connection, token: str) -> R | None:
        """Return the row of a token, or ``None`` if the token is unknown or has expired."""
        row: R | None = await self.tokens.find(connection, self._scope, token)
        return row

    @writes
    async def revoke(self, connection: Connection, token: str) -> bool:
        """Remove a token; return whether it existed."""
        return await self.tokens.revoke(connection, self._scope, token)

    @writes
    async def prune(self, connection: Connection) -> int:
        """Delete tokens that have expired, at most ``batch_rows``; return how many."""
        return await self.tokens.prune(connection, self._scope)


class Tokens(Blocking[AsyncTokens[R, N]], Generic[R, N]):
    """Base of stores that keep tokens, for synchronous programs."""

    issue = blocking(AsyncTokens[R, N].issue)
    find = blocking(AsyncTokens[R, N].find)
    revoke = blocking(AsyncTokens[R, N].revoke)
    prune = blocking(AsyncTokens[R, N].prune)
