"""Select the driver for a caller's connection by its type, without importing any database library."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..engines.dialect import Dialect
from ..engines.protocol import Connection
from ..errors import InvalidInput
from ..extras import needs

_BLOCKING = {
    "psycopg.Connection": "psycopg",
    "sqlite3.Connection": "sqlite3",
    "apsw.Connection": "apsw",
    "sqlalchemy.engine.base.Connection": "sqlalchemy",
    "sqlalchemy.orm.session.Session": "sqlalchemy",
}
_ASYNCHRONOUS = {
    "asyncpg.connection.Connection": "asyncpg",
    "asyncpg.pool.PoolConnectionProxy": "asyncpg",
    "psycopg.AsyncConnection": "psycopg_async",
    "aiosqlite.core.Connection": "aiosqlite",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": "sqlalchemy",
    "sqlalchemy.ext.asyncio.session.AsyncSession": "sqlalchemy",
}
_EXTRAS = {"aiosqlite": "aiosqlite", "sqlalchemy": "sqlalchemy"}
"""The extra that installs a driver's library, where it is not ``postgres``."""


def blocking(connection: Any, dialect: Dialect) -> Connection:
    """Wrap the caller's synchronous connection.

    Raises:
        InvalidInput: its type is not supported, or it is connected to the other database engine.
    """
    return _wrap(connection, dialect, _BLOCKING, "Holdfast", _ASYNCHRONOUS, "AsyncHoldfast")


def asynchronous(connection: Any, dialect: Dialect) -> Connection:
    """Wrap the caller's asynchronous connection.

    Raises:
        InvalidInput: its type is not supported, or it is connected to the other database engine.
    """
    return _wrap(connection, dialect, _ASYNCHRONOUS, "AsyncHoldfast", _BLOCKING, "Holdfast")


def _wrap(
    connection: Any, dialect: Dialect, drivers: dict[str, str], ours: str, others: dict[str, str], theirs: str
) -> Connection:
    driver = _driver(connection, drivers)
    if driver is None:
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        if _driver(connection, others) is not None:
            raise InvalidInput(
                f"{kind} can be joined by {theirs} only, and this is {ours}: open {theirs} instead", field="style"
            )
        raise InvalidInput(f"cannot join {kind}; {ours} joins {', '.join(drivers)}", field="connection")
    with needs(_EXTRAS.get(driver, "postgres")):
        module = import_module(f".{driver}", __package__)
    wrapped: Connection = module.wrap(connection)
    if wrapped.dialect is not dialect:
        raise InvalidInput(
            f"this Holdfast uses {dialect.value} and the connection {wrapped.dialect.value}: join a {dialect.value} connection",
            field="dialect",
        )
    return wrapped


def _driver(connection: Any, drivers: dict[str, str]) -> str | None:
    for kind in type(connection).__mro__:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in drivers:
            return drivers[name]
    return None
