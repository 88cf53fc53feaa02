"""Both PostgreSQL engines behind one interface, so that a test is written once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from msgspec.structs import replace

from holdfast import AsyncHoldfast, Holdfast, PoolOptions
from holdfast.clock import monotonic_s
from holdfast.errors import HoldfastError
from tests.servers import PostgresServer

STYLES = ("sync", "async")
both_styles = pytest.mark.parametrize("style", STYLES)
SMALL = PoolOptions(min_connections=1, max_connections=3, connect_timeout_s=30.0)


@asynccontextmanager
async def opened(style: str, url: str, **options: Any) -> AsyncIterator[Any]:
    """A handle of either style: ``ask`` it."""
    options.setdefault("pool", SMALL)
    if style == "async":
        async with AsyncHoldfast(url, **options) as hf:
            yield hf
    else:
        with Holdfast(url, **options) as hf:
            yield hf


def wait_for_connections(hf: Any, seconds: float) -> None:
    """Set how long calls wait for a connection. Opening a handle may take longer on a busy machine."""
    owner = hf._engine._pool if isinstance(hf, AsyncHoldfast) else hf._engine
    owner._options = replace(owner._options, connect_timeout_s=seconds)


async def ask(answer: Any) -> Any:
    """Return the result of a call of either style."""
    return await answer if inspect.isawaitable(answer) else answer


async def ask_aside(style: str, call: Callable[[], Any]) -> Any:
    """Return the result of a call of either style, without blocking the loop."""
    return await call() if style == "async" else await asyncio.to_thread(call)


async def outcome(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a call, or its typed error."""
    try:
        return await ask(method(*args, **kwargs))
    except HoldfastError as error:
        return error


async def soon(work: Awaitable[Any], seconds: float = 60.0) -> Any:
    """Return the result of an awaitable that must not hang, even on a busy machine."""
    return await asyncio.wait_for(work, seconds)


async def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition is true. A server process ends some time after its client has disconnected."""
    deadline = monotonic_s() + seconds
    while not condition():
        assert monotonic_s() < deadline, "it never came to be"
        await asyncio.sleep(0.02)


async def crowd(tenant: Any) -> None:
    """Append several messages at once, so that the next caller is not treated as the only one."""
    session = await tenant.sessions.create()
    await asyncio.gather(*(tenant.messages.append(session.id, role="user", content="hello") for _ in range(3)))


def database_of(url: str) -> str:
    """Return the name of the database in an address."""
    return unquote(urlsplit(url).path.lstrip("/"))


def backends(server: PostgresServer, url: str) -> list[int]:
    """Return the server's processes that serve a database."""
    query = (
        "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' "
        f"AND datname = '{database_of(url)}'"  # and not the server's own, which tidies up whenever it likes
    )
    return [pid for (pid,) in server.execute(query)]


def terminate(server: PostgresServer, url: str) -> int:
    """End every connection to a database, as an administrator does, and return their number."""
    query = (
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
        f"WHERE datname = '{database_of(url)}' AND pid <> pg_backend_pid()"
    )
    return len(server.execute(query))
