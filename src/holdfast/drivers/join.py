"""Which driver wraps the connection a caller brings. Found by the object's type, without importing any library for it."""

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
"""Which extra brings what a driver needs, where that is not PostgreSQL's."""


def blocking(connection: Any, dialect: Dialect) -> Connection:
    """The caller's synchronous connection, wrapped.

    Raises:
        InvalidInput: it is not one we know, or speaks to the other engine.
    """
    return _wrap(connection, dialect, _BLOCKING, "Holdfast", _ASYNCHRONOUS, "AsyncHoldfast")


def asynchronous(connection: Any, dialect: Dialect) -> Connection:
    """The caller's asynchronous connection, wrapped.

    Raises:
        InvalidInput: it is not one we know, or speaks to the other engine.
    """
    return _wrap(connection, dialect, _ASYNCHRONOUS, "AsyncHoldfast", _BLOCKING, "Holdfast")


def _wrap(
    connection: Any, dialect: Dialect, known: dict[str, str], ours: str, others: dict[str, str], theirs: str
) -> Connection:
    driver = _driver(connection, known)
    if driver is None:
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        if _driver(connection, others) is not None:
            raise InvalidInput(f"{kind} belongs to {theirs}, and this is {ours}: open the other one to join it")
        raise InvalidInput(f"cannot join {kind}; {ours} joins {', '.join(known)}")
    with needs(_EXTRAS.get(driver, "postgres")):
        module = import_module(f".{driver}", __package__)
    wrapped: Connection = module.wrap(connection)
    if wrapped.dialect is not dialect:
        raise InvalidInput(
            f"this Holdfast is on {dialect.value} and the connection is on {wrapped.dialect.value}: join one of its own kind"
        )
    return wrapped


def _driver(connection: Any, known: dict[str, str]) -> str | None:
    for kind in type(connection).__mro__:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in known:
            return known[name]
    return None
