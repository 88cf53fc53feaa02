"""psycopg 3, asynchronous: the caller's ``AsyncConnection``."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import psycopg
from psycopg.errors import QueryCanceled
from psycopg.rows import tuple_row

from ..engines.dialect import Dialect
from ..engines.postgres.errors import LOST_ON_COMMIT
from ..engines.protocol import Row
from ..errors import HoldfastError, OutcomeUnknown, Unavailable
from .psycopg_states import is_idle, opens_itself, refuse_pipeline, translated
from .uncancellable import MAX_UNDOING, to_its_end


class AsyncPsycopgConnection:
    """A connection whose methods really suspend."""

    dialect = Dialect.POSTGRES
    distributed = False

    def __init__(self, raw: psycopg.AsyncConnection[Any]) -> None:
        self.raw = raw
        self.depth = 0

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        refuse_pipeline(self.raw)
        try:
            async with psycopg.AsyncRawCursor(self.raw, row_factory=tuple_row) as cursor:
                await cursor.execute(sql.encode(), args or None, binary=bool(args))
                return await cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise translated(error) from error

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        refuse_pipeline(self.raw)
        try:
            async with psycopg.AsyncRawCursor(self.raw) as cursor:
                await cursor.executemany(sql.encode(), rows)
        except psycopg.Error as error:
            raise translated(error) from error

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return _Savepoint(self)


def wrap(connection: psycopg.AsyncConnection[Any]) -> AsyncPsycopgConnection:
    """The caller's connection."""
    return AsyncPsycopgConnection(connection)


class _Savepoint:
    """A savepoint or a transaction that is set, kept and undone whole, whoever is cancelled meanwhile."""

    def __init__(self, connection: AsyncPsycopgConnection) -> None:
        self._connection = connection
        self._outermost = opens_itself(connection.raw)
        self._name = f"holdfast_{connection.depth + 1}"

    async def __aenter__(self) -> None:
        try:
            await to_its_end(self._say("BEGIN" if self._outermost else f"SAVEPOINT {self._name}"))
        except CancelledError:
            with suppress(HoldfastError):
                await to_its_end(self._undo())
            raise
        self._connection.depth += 1

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._connection.depth -= 1
        if error is None:
            await to_its_end(self._keep())
        elif not (self._connection.raw.closed or self._connection.raw.broken):  # there the server has undone it
            await to_its_end(self._undo())

    async def _keep(self) -> None:
        try:
            await self._say("COMMIT" if self._outermost else f"RELEASE SAVEPOINT {self._name}")
        except LOST_ON_COMMIT as error:
            if self._outermost:
                raise OutcomeUnknown from error
            raise
        except HoldfastError:
            if self._outermost and not is_idle(self._connection.raw):
                await self._say("ROLLBACK")
            raise

    async def _undo(self) -> None:
        name = self._name
        statements = ["ROLLBACK"] if self._outermost else [f"ROLLBACK TO SAVEPOINT {name}", f"RELEASE SAVEPOINT {name}"]
        for _ in range(MAX_UNDOING):
            try:
                for statement in statements:
                    await self._say(statement)
                return
            except Unavailable as error:
                if not isinstance(error.__cause__, QueryCanceled):
                    raise

    async def _say(self, sql: str) -> None:
        await self._connection.fetch(sql, ())
