"""Record stores with secrets: their values are returned only by an explicit call, which is logged."""

from __future__ import annotations

from typing import Any

from ...engines.protocol import Connection
from ..actor_context import ActorContext
from ..crypto import Secret
from ..store import writes_with_actor
from .record_rows import R
from .store import AsyncRecords, C, N


class AsyncSecretRecords(AsyncRecords[R, N, C]):
    """Records with fields of the type ``Secret``."""

    async def reveal(self, *key: str) -> dict[str, Any]:
        """Return the secrets of a record, decrypted, by field; ``None`` for a field without a secret. If the store is audited,
        the activity log gets an entry in the same transaction.

        ``Secret.reveal`` of a record that was read before decrypts without a call, so nothing logs it.

        Raises:
            NotFound: the record does not exist.
            DecryptionFailed: a secret cannot be decrypted.
        """
        secrets = await self._reveal(*key)
        # Unwrapped here: while the call runs, no variable of a frame holds a plain value.
        return {name: None if secret is None else secret.reveal() for name, secret in secrets.items()}

    @writes_with_actor
    async def _reveal(self, connection: Connection, acting: ActorContext, *key: str) -> dict[str, Secret[Any] | None]:
        row = await self._one(connection, self.queries.get, self._at(key))
        if row is None:
            raise self._missing(key)
        stored = {field.name: getattr(row, field.name) for field in self.declared.secrets}
        secrets = {name: None if secret is None else Secret(secret.reveal()) for name, secret in stored.items()}
        await self._on_change(connection, acting, "revealed", row, [*secrets])
        return secrets
