"""Record stores whose deletions can be undone: deleted records stay in the table."""

from __future__ import annotations

from ...engines.protocol import Connection
from ...errors import AlreadyExists
from ..actor_context import ActorContext
from ..store import writes_with_actor
from .record_rows import R
from .store import AsyncRecords, C, N


class AsyncSoftRecords(AsyncRecords[R, N, C]):
    """Records whose deletion can be undone. The table has a column ``deleted_at``."""

    _soft = True

    @writes_with_actor
    async def restore(self, connection: Connection, acting: ActorContext, *key: str) -> R:
        """Undo the deletion of a record. A live record is returned unchanged.

        Raises:
            NotFound: the record never existed.
            AlreadyExists: another record has taken its name.
        """
        params = self._at(key)
        row = await self._one(connection, self.queries.lock, params)
        if row is None:
            try:
                row = await self._one(connection, self.queries.restore, params)
            except AlreadyExists:
                raise AlreadyExists(
                    f"another {self.noun} has the name of {self._named(key)}: rename or delete it first",
                    noun=self.noun,
                    key=key[0],
                ) from None
            if row is None:
                raise self._missing(key)
            await self._on_change(connection, acting, "restored", row, ())
        return row
