"""Driver for the caller's psycopg 3 ``AsyncConnection``."""

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
from .psycopg_shared import holdfast_error, is_idle, needs_transaction, refuse_pipeline
from .uncancellable import MAX_ROLLBACK_TRIES, run_to_completion


class AsyncPsycopgConnection:
    """Asynchronous connection: its methods suspend."""

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
            raise holdfast_error(error) from error

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        refuse_pipeline(self.raw)
        try:
            async with psycopg.AsyncRawCursor(self.raw) as cursor:
                await cursor.executemany(sql.encode(), rows)
        except psycopg.Error as error:
            raise holdfast_error(error) from error

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return _Savepoint(self)


def wrap(connection: psycopg.AsyncConnection[Any]) -> AsyncPsycopgConnection:
    """Wrap the caller's connection."""
    return AsyncPsycopgConnection(connection)


class _Savepoint:
    """A savepoint or transaction whose statements complete even if the task is cancelled."""

    def __init__(self, connection: AsyncPsycopgConnection) -> None:
        self._connection = connection
        self._outermost = needs_transaction(connection.raw)
        self._name = f"holdfast_{connection.depth + 1}"

    async def __aenter__(self) -> None:
        try:
            await run_to_completion(self._execute("BEGIN" if self._outermost else f"SAVEPOINT {self._name}"))
        except CancelledError:
            with suppress(HoldfastError):
                await run_to_completion(self._roll_back())
            raise
        self._connection.depth += 1

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._connection.depth -= 1
        if error is None:
            await run_to_completion(self._commit())
        elif not (self._connection.raw.closed or self._connection.raw.broken):  # otherwise the server has rolled back
            await run_to_completion(self._roll_back())

    async def _commit(self) -> None:
        try:
            await self._execute("COMMIT" if self._outermost else f"RELEASE SAVEPOINT {self._name}")
        except LOST_ON_COMMIT as error:
            if self._outermost:
                raise OutcomeUnknown from error
            raise
        except HoldfastError:
            if self._outermost and not is_idle(self._connection.raw):
                await self._execute("ROLLBACK")
            raise

    async def _roll_back(self) -> None:
        name = self._name
        statements = ["ROLLBACK"] if self._outermost else [f"ROLLBACK TO SAVEPOINT {name}", f"RELEASE SAVEPOINT {name}"]
        for _ in range(MAX_ROLLBACK_TRIES):
            try:
                for statement in statements:
                    await self._execute(statement)
                return
            except Unavailable as error:
                if not isinstance(error.__cause__, QueryCanceled):
                    raise

    async def _execute(self, sql: str) -> None:
        await self._connection.fetch(sql, ())
