"""A connection without a socket: what is sent to it, what it writes, and applications behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from holdfast.api.connections import Connection, connection_of
from holdfast.api.limits import ServerLimits

App = Callable[[Any, Any, Any], Awaitable[None]]
GET = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /post HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"


class Wire(asyncio.Transport):
    """What would go over the network."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2)})
        self.writes: list[bytes] = []
        self.is_read, self.closed = True, asyncio.Event()

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed.is_set():
            self.writes.append(bytes(data))

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        self.closed.set()

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass


class Line:
    """A connection, what it writes, and the server around it."""

    def __init__(self, app: App, limits: ServerLimits | None = None) -> None:
        config = Config(app, lifespan="off", log_config=None)
        config.load()
        self.state = ServerState()
        self.state.default_headers = [(b"date", b"today")]
        self.wire = Wire()
        kind: Any = connection_of(limits or ServerLimits())
        self.connection: Connection = kind(config, self.state, {})
        self.connection.connection_made(self.wire)

    async def hear(self, *pieces: bytes) -> bytes:
        """Everything that has been written once nothing is left to do."""
        for each in pieces:
            self.connection.data_received(each)
            await self.rest()
        return self.wire.written

    async def rest(self) -> None:
        """Let everybody go on as far as they can."""
        for _ in range(20):
            await asyncio.sleep(0)


def on_line(app: App, limits: ServerLimits | None = None) -> Callable[[Callable[[Line], Awaitable[None]]], None]:
    """Run a test with a connection to an application."""

    def run(test: Callable[[Line], Awaitable[None]]) -> None:
        async def main() -> None:
            await test(Line(app, limits))

        asyncio.run(main())

    return run


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Gives back what it was sent, or the path."""
    body, more = b"", True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        body, more = body + event["body"], event["more_body"]
    body = body or scope["path"].encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


class Held:
    """Answers in the order it is told to, whatever was asked first."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.free = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun.append(scope["path"])
        await self.free.wait()
        await echo(scope, receive, send)
        self.ended.append(scope["path"])
