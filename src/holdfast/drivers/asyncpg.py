"""asyncpg: the asynchronous PostgreSQL engine's own connections, and the caller's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg

from ..engines.dialect import Dialect
from ..engines.postgres.errors import ConnectionLost, translate
from ..engines.protocol import Row
from ..errors import HoldfastError, InvalidText, OutcomeUnknown, Unavailable

_LOST = (asyncpg.InterfaceError, OSError, asyncio.IncompleteReadError)
_NAME = "holdfast"  # of several savepoints of one name, the innermost is meant
_ARGUMENT = re.compile(r"\$(\d+)")
_AS_TEXT = {kind + many: f"::text{many}::{kind}{many}" for kind in ("uuid", "json", "jsonb") for many in ("", "[]")}
_PAST_CODECS_MOST = 1_024
_past_codecs: dict[str, str] = {}
"""Our statements, with the casts that keep the caller's codecs out of them."""


class AsyncpgConnection:
    """A connection whose methods really suspend."""

    dialect = Dialect.POSTGRES

    def __init__(self, raw: asyncpg.Connection) -> None:
        self.raw = raw

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        try:
            rows: Sequence[Row] = await self.raw.fetch(sql, *args)
            return rows
        except (asyncpg.PostgresError, *_LOST, asyncpg.DataError) as error:
            raise translated(error) from error

    async def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            await self.raw.executemany(sql, rows)
        except (asyncpg.PostgresError, *_LOST, asyncpg.DataError) as error:
            raise translated(error) from error

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return _Savepoint(self)


class _Joined(AsyncpgConnection):
    """The caller's connection. Its codecs are not for our values: ids and JSON are sent as text, and the server converts them."""

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        return await super().fetch(await self._past_codecs(sql), args)

    async def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        await super().many(await self._past_codecs(sql), rows)

    async def _past_codecs(self, sql: str) -> str:
        if "$" not in sql or sql in _past_codecs:
            return _past_codecs.get(sql, sql)
        try:
            kinds = (await self.raw.prepare(sql)).get_parameters()
        except (asyncpg.PostgresError, *_LOST) as error:
            raise translated(error) from error
        casts = {str(n): _AS_TEXT[kind.name] for n, kind in enumerate(kinds, 1) if kind.name in _AS_TEXT}
        if len(_past_codecs) >= _PAST_CODECS_MOST:
            _past_codecs.clear()
        return _past_codecs.setdefault(sql, _ARGUMENT.sub(lambda found: found[0] + casts.get(found[1], ""), sql))


def wrap(connection: asyncpg.Connection) -> AsyncpgConnection:
    """The caller's connection."""
    return _Joined(connection)


def translated(error: Exception) -> HoldfastError:
    """An error of asyncpg as one of ours."""
    if isinstance(error, asyncpg.PostgresError):
        return translate(error.sqlstate, str(error))
    if isinstance(error, asyncpg.DataError):
        return InvalidText(f"{InvalidText.__doc__} (asyncpg says: {error})")
    if isinstance(error, asyncpg.InterfaceError) and "another operation" in str(error):
        return Unavailable(f"this connection is doing something else at the moment: {error}")
    return ConnectionLost(f"{(ConnectionLost.__doc__ or '').splitlines()[0]} ({error})")


class _Savepoint:
    """A savepoint or, outside a transaction, one. asyncpg's own block, cancelled as it begins, would leave it open."""

    def __init__(self, connection: AsyncpgConnection) -> None:
        self._raw = connection.raw
        self._outermost = False

    async def __aenter__(self) -> None:
        try:
            self._outermost = not self._raw.is_in_transaction()
            await self._raw.execute("BEGIN" if self._outermost else f"SAVEPOINT {_NAME}")
        except (asyncpg.PostgresError, *_LOST) as error:
            raise translated(error) from error
        except BaseException as error:
            if self._outermost:
                await self.__aexit__(type(error), error, None)
            raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        undo, keep = (
            ("ROLLBACK", "COMMIT") if self._outermost else (f"ROLLBACK TO {_NAME}; RELEASE {_NAME}", f"RELEASE {_NAME}")
        )
        try:
            await self._raw.execute(keep if error is None else undo)
        except (asyncpg.PostgresError, *_LOST) as failure:
            if error is not None:
                return  # the server has undone it, and the first error says more
            found = translated(failure)
            if self._outermost and isinstance(found, ConnectionLost):
                raise OutcomeUnknown from failure
            raise found from failure
