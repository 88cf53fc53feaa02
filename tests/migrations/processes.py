"""Migrations in separate processes: killed before each statement in turn, or started concurrently.

Run as a script, because a process that is to die must not be the one that runs the tests. It forks a child for each try, which is
safe and quick: this process has no threads and has imported everything.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import psycopg

from holdfast import Holdfast, PoolOptions
from holdfast.clock import FixedClock
from holdfast.drivers.psycopg import PsycopgConnection
from holdfast.engines.protocol import Connection
from holdfast.engines.sqlite.file import SqliteFile
from holdfast.migrations import runner
from holdfast.sync_runner import step
from tests.migrations import catalogue

KILLED = 9
NEVER = sys.maxsize
_ONE = PoolOptions(min_connections=1, max_connections=1)


class Dying:
    """A connection whose process ends, at once and with nothing said, before a statement with a certain number."""

    def __init__(self, connection: Connection, *, at: int) -> None:
        self._connection, self._left = connection, at
        self.dialect = connection.dialect

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Any]:
        self._count()
        return await self._connection.fetch(sql, args)

    async def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._count()
        await self._connection.many(sql, rows)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        self._count()
        async with self._connection.savepoint():
            yield
            self._count()  # before the commit

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            os._exit(KILLED)


def on(url: str, call: Callable[[Connection], Any]) -> Any:
    """Run a call on a separate connection, outside of any transaction."""
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as raw:
            return step(call(PsycopgConnection(raw)))
    connection = SqliteFile(url).connect()
    try:
        return step(call(connection))
    finally:
        connection.raw.close()


def in_child(work: Callable[[], Any]) -> tuple[int, Any]:
    """Return the exit status and the output of a child process that runs this function."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = json.dumps(work()).encode()
        except BaseException as error:  # the child must never get out of here
            answer = json.dumps(f"{type(error).__name__}: {error}").encode()
            os.write(write, answer)
            os._exit(1)
        os.write(write, answer)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        output = file.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), json.loads(output) if output else None


def move(url: str, way: str, *, at: int = NEVER, to: int | None = None) -> list[str]:
    """Migrate up or down completely and die before statement ``at``, or migrate to a version."""

    def call(connection: Connection) -> Any:
        dying = Dying(connection, at=at)
        return runner.up(dying, FixedClock(), to=to) if way == "up" else runner.down(dying, to=to or 0)

    return [str(item) for item in on(url, call)]


def status(url: str) -> list[bool]:
    """Return the applied migrations."""
    return [item.applied for item in on(url, runner.status)]


def schemas(url: str) -> list[list[str]]:
    """Return the schema after no migration, after the first, and so on."""
    count = len(status(url))
    actual = []
    for version in range(1, count + 1):
        move(url, "up", to=version)
        actual.append(catalogue.everything(url))
    move(url, "down")
    return [catalogue.everything(url), *actual]


def kill_at_every_statement(url: str, way: str) -> list[dict[str, Any]]:
    """Migrate up or down, killed before the first statement, the second, and so on; each attempt continues the previous one.

    Each try says how it ended, which migrations are applied then, and whether the schema is just that of their number.
    """
    whole = schemas(url)
    if way == "down":
        move(url, "up")
    at, tries = 0, []
    before = status(url).count(True)
    while not tries or tries[-1]["exit"] == KILLED:
        code, _ = in_child(partial(move, url, way, at=at))
        applied = status(url)
        now = applied.count(True)
        tries.append({"exit": code, "applied": applied, "is_whole": catalogue.everything(url) == whole[now]})
        at, before = (at + 1 if now == before else 0), now
    return tries


def start_at_once(url: str, processes: int) -> list[Any]:
    """Start several processes that open the same empty database at the same moment and write to it."""
    ready, go = os.pipe(), os.pipe()
    children = []
    for number in range(processes):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(go[1])
            os.write(ready[1], b"x")
            os.read(go[0], 1)  # returns at end of file, when all writers have closed the pipe
            try:
                answer: Any = _open_and_write(url, number)
            except BaseException as error:
                answer = f"{type(error).__name__}: {error}"
            os.write(write, json.dumps(answer).encode())
            os._exit(0)
        os.close(write)
        children.append((child, read))
    for _ in range(processes):
        os.read(ready[0], 1)
    os.close(go[1])
    answers = []
    for child, read in children:
        with os.fdopen(read, "rb") as file:
            answers.append(json.loads(file.read()))
        os.waitpid(child, 0)
    return answers


def _open_and_write(url: str, number: int) -> str:
    with Holdfast(url, auto_migrate=True, pool=_ONE) as hf:
        return hf.tenant("acme").sessions.create(key=f"k{number}").key


if __name__ == "__main__":
    what, place, *rest = sys.argv[1:]
    found = kill_at_every_statement(place, rest[0]) if what == "kill" else start_at_once(place, int(rest[0]))
    print(json.dumps(found))
