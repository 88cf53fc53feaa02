"""A proxy between a client and PostgreSQL that cuts the connection at a chosen message.

It follows the protocol just far enough to know which exchange is under way: every message is a letter, a length and a body,
and the server ends each exchange with ``Z`` and a letter that says whether a transaction is open.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote

from tests.servers import PostgresServer

Moment = Literal["request", "answer", "commit"]
"""``request``: a statement is sent and never arrives. ``answer``: it was done, and the answer never arrives.
``commit``: the same, for the exchange that ends a transaction."""

_SOCKET = ".s.PGSQL.5432"
_RUNS = (b"E", b"Q")  # messages that make the server do something


class Proxy:
    """Stands in front of one server. ``arm`` it, and the next exchange of that kind is cut; ``cuts`` counts them."""

    def __init__(self, server: PostgresServer) -> None:
        self._target = str(server.folder / _SOCKET)
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-proxy-")
        self._armed: Moment | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._folder.cleanup()

    def url(self, database: str) -> str:
        """The address of a database, through the proxy."""
        return f"postgresql://postgres@/{quote(database)}?host={quote(self._folder.name, safe='')}"

    def arm(self, moment: Moment) -> None:
        """Cut the next exchange of this kind, once."""
        self._armed = moment

    @property
    def is_armed(self) -> bool:
        """Return whether no connection was cut since ``arm``."""
        return self._armed is not None

    def disarm(self) -> None:
        """Let all messages pass again."""
        self._armed = None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_unix_server(self._accept, str(Path(self._folder.name, _SOCKET)))
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            up = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, (reader, writer), up)
        try:
            await link.run()
        finally:
            writer.transport.abort()
            up[1].transport.abort()

    def take(self, *moments: Moment) -> bool:
        """Return whether this message matches the armed trigger; if so, disarm it."""
        if self._armed not in moments:
            return False
        self._armed = None
        self.cuts += 1
        return True


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One client's connection."""

    def __init__(self, proxy: Proxy, client: Stream, server: Stream) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._is_running = False  # a statement was sent and not answered yet
        self._state = b"I"

    async def run(self) -> None:
        await self._pass_startup()
        both = [asyncio.create_task(self._upward()), asyncio.create_task(self._downward())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _pass_startup(self) -> None:
        """The first messages have no letter: requests for encryption, refused by one letter, and the real one."""
        while True:
            length = await self._client[0].readexactly(4)
            body = await self._client[0].readexactly(int.from_bytes(length) - 4)
            self._server[1].write(length + body)
            if int.from_bytes(body[:4]) not in (80877103, 80877104):
                return
            self._client[1].write(await self._server[0].readexactly(1))

    async def _upward(self) -> None:
        while True:
            letter, message = await _message(self._client[0])
            if letter in _RUNS:
                if self._proxy.take("request"):
                    return
                self._is_running = True
            self._server[1].write(message)

    async def _downward(self) -> None:
        kept = b""
        while True:
            letter, message = await _message(self._server[0])
            kept += message
            if letter == b"Z":
                if self._cuts_here(message[-1:]):
                    return
                self._client[1].write(kept)
                kept = b""
            elif not self._is_running:
                self._client[1].write(kept)  # the greeting, and preparations
                kept = b""

    def _cuts_here(self, state: bytes) -> bool:
        was, self._state = self._state, state
        was_running, self._is_running = self._is_running, False
        if not was_running or state != b"I":
            return False
        return self._proxy.take("commit") if was == b"T" else self._proxy.take("answer")


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:]) - 4)
