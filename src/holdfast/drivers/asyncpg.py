"""asyncpg: the caller's connection, with the caller's codecs and, often, the caller's transaction."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import asyncpg

from ..engines.protocol import Row
from .asyncpg_codecs import past_codecs
from .asyncpg_connection import FAILED, AsyncpgConnection, Savepoint, translated
from .uncancellable import MAX_UNDOING, to_its_end


class JoinedConnection(AsyncpgConnection):
    """A connection whose codecs are not for our values, and which nobody may throw away."""

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return await super().fetch(await self._past_codecs(sql), args)

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        await super().many(await self._past_codecs(sql), rows)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return _WholeSavepoint(self.raw)

    async def _past_codecs(self, sql: str) -> str:
        try:
            return await past_codecs(self.raw, sql)
        except FAILED as error:
            raise translated(error) from error


def wrap(connection: asyncpg.Connection) -> JoinedConnection:
    """The caller's connection."""
    return JoinedConnection(connection)


class _WholeSavepoint(Savepoint):
    """A savepoint that is set, kept and undone whole, whoever is cancelled meanwhile."""

    async def __aenter__(self) -> None:
        try:
            await super().__aenter__()
        except CancelledError:
            with suppress(*FAILED):
                await self._undo()
            raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if error is None or isinstance(error, Exception):
            await super().__aexit__(kind, error, trace)
            return
        with suppress(*FAILED):
            await self._undo()

    async def _say(self, sql: str) -> None:
        await to_its_end(super()._say(sql))

    async def _undo(self) -> None:
        await to_its_end(self._undone())

    async def _undone(self) -> None:
        for _ in range(MAX_UNDOING):
            with suppress(asyncpg.QueryCanceledError):
                await super()._undo()
                return
