"""Driver for the caller's asyncpg connection, which may have its own codecs and an open transaction."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import asyncpg

from ..engines.protocol import Row
from .asyncpg_codecs import cast_arguments
from .asyncpg_connection import FAILED, AsyncpgConnection, AsyncpgSavepoint, holdfast_error
from .uncancellable import MAX_ROLLBACK_TRIES, run_to_completion


class JoinedConnection(AsyncpgConnection):
    """The caller's connection: its codecs must not apply to our values, and we must not close it."""

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return await super().fetch(await self._with_casts(sql), args)

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        await super().many(await self._with_casts(sql), rows)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return _UncancellableSavepoint(self.raw)

    async def _with_casts(self, sql: str) -> str:
        try:
            return await cast_arguments(self.raw, sql)
        except FAILED as error:
            raise holdfast_error(error) from error


def wrap(connection: asyncpg.Connection) -> JoinedConnection:
    """Wrap the caller's connection."""
    return JoinedConnection(connection)


class _UncancellableSavepoint(AsyncpgSavepoint):
    """A savepoint whose statements complete even if the task is cancelled."""

    async def __aenter__(self) -> None:
        try:
            await super().__aenter__()
        except CancelledError:
            with suppress(*FAILED):
                await self._roll_back()
            raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if error is None or isinstance(error, Exception):
            await super().__aexit__(kind, error, trace)
            return
        with suppress(*FAILED):
            await self._roll_back()

    async def _execute(self, sql: str) -> None:
        await run_to_completion(super()._execute(sql))

    async def _roll_back(self) -> None:
        await run_to_completion(self._retry_rollback())

    async def _retry_rollback(self) -> None:
        for _ in range(MAX_ROLLBACK_TRIES):
            with suppress(asyncpg.QueryCanceledError):
                await super()._roll_back()
                return
