"""Stores whose rows change state: reading, and moves that are logged. ``transitions.py`` describes the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic

from ..engines.protocol import Connection
from ..ids import Id
from .actor_context import ActorContext
from .blocking import Blocking, blocking
from .filters import Filter
from .paging import Page
from .store import TenantStore, reads, writes
from .tables import R
from .transitions import TransitionTable


class AsyncTransitions(TenantStore, Generic[R]):
    """Base of stores whose rows change state; a subclass sets the table.

    It adds a method that creates rows, and one with a domain name for each move; they call ``_create`` and ``_move``.
    """

    transitions: ClassVar[TransitionTable[Any]]

    @reads
    async def get(self, connection: Connection, id: Id) -> R:
        """Return one row.

        Raises:
            NotFound: it does not exist.
        """
        row: R = await self.transitions.get(connection, self._scope, id)
        return row

    @reads
    async def list(
        self,
        connection: Connection,
        *,
        status: str | None = None,
        where: Sequence[Filter] = (),
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page[R]:
        """List rows, the oldest first. With ``limit``, a page.

        Raises:
            InvalidFilter: a filter or the cursor is not valid.
            LimitExceeded: without ``limit``, there are more than ``list_rows``.
        """
        return await self.transitions.list(
            connection, self._scope, {"status": status}, where=where, limit=limit, cursor=cursor
        )

    @reads
    async def count(self, connection: Connection, *, status: str | None = None, where: Sequence[Filter] = ()) -> int:
        """Return the number of rows that ``list`` would return.

        Raises:
            InvalidFilter: a filter is not valid.
        """
        return await self.transitions.count(connection, self._scope, {"status": status}, where=where)

    async def _create(
        self, connection: Connection, acting: ActorContext, values: Mapping[str, Any], *, id: str | None = None
    ) -> R:
        """Create a row, in the transaction of a method."""
        row: R
        row, is_new = await self.transitions.create(connection, self._scope, values, id=id)
        if is_new:
            await self._on_change(connection, acting, "created", row, ())
        return row

    async def _move(
        self,
        connection: Connection,
        acting: ActorContext,
        id: str,
        name: str,
        *,
        epoch: int | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> R:
        """Make a move, in the transaction of a method."""
        row: Any = await self.transitions.move(connection, self._scope, id, name, epoch=epoch, values=values)
        await self._on_change(connection, acting, row.status, row, ())
        result: R = row
        return result

    async def _on_change(
        self, connection: Connection, acting: ActorContext, action: str, row: R, fields: Sequence[str]
    ) -> None:
        """Called in the transaction of every change of a row.

        Args:
            action: created, or the state that the row was moved to.
        """

    def _subject(self, row: Any) -> tuple[str, Sequence[str]]:
        """Return the noun and the id of a row, for the activity log."""
        return self.transitions.noun, [row.id]


class AsyncLeasedTransitions(AsyncTransitions[R]):
    """Base of stores of work that one holder does at a time."""

    @writes
    async def claim(self, connection: Connection, holder: str, *, ttl_ms: int = 60_000) -> R | None:
        """Take the oldest row that is ready or whose lease has expired; return ``None`` if no row can be claimed."""
        row: R | None = await self.transitions.claim(connection, self._scope, holder, ttl_ms=ttl_ms)
        return row

    @writes
    async def renew(self, connection: Connection, id: str, *, epoch: int, ttl_ms: int = 60_000) -> R:
        """Extend the lease of a row.

        Raises:
            NotFound: the row does not exist.
            Conflict: the row is not held.
            Fenced: another claim has taken the row since.
        """
        row: R = await self.transitions.renew(connection, self._scope, id, epoch=epoch, ttl_ms=ttl_ms)
        return row

    @writes
    async def recover(self, connection: Connection) -> Sequence[R]:
        """End expired leases, at most ``batch_rows``; return the changed rows."""
        return await self.transitions.recover(connection, self._scope)


class Transitions(Blocking[AsyncTransitions[R]], Generic[R]):
    """Base of stores whose rows change state, for synchronous programs."""

    get = blocking(AsyncTransitions[R].get)
    list = blocking(AsyncTransitions[R].list)
    count = blocking(AsyncTransitions[R].count)


class LeasedTransitions(Transitions[R]):
    """Base of stores of work that one holder does at a time, for synchronous programs."""

    claim = blocking(AsyncLeasedTransitions[R].claim)
    renew = blocking(AsyncLeasedTransitions[R].renew)
    recover = blocking(AsyncLeasedTransitions[R].recover)
