"""uvicorn's HTTP/1.1 protocol with the limits that uvicorn has no option for.

uvicorn parses requests, with httptools, and writes responses. This subclass bounds what a client can do outside of a
request that the application handles: endless headers, connections without requests, responses that are not read, and
too many connections. The server calls ``check`` for every connection once a second: timers for each of them would cost
more.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from http import HTTPStatus
from typing import Any, ClassVar

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from holdfast.errors import Unavailable

from . import problems
from .limits import ServerLimits
from .problems import HeadTooLarge

SPARE_CONNECTIONS = 64
"""Connections over the limit that are answered 503; further ones are aborted, so that file descriptors stay free."""
LINGER_S = 1.0
"""Seconds in which the bytes of a refused client are read and dropped: closing at once would reset the connection, and the client
would lose the response."""
INCOMPLETE_HEADS = 4
"""How many times ``header_bytes`` an incomplete head may have. Up to that, the application refuses it when it is complete."""
MAX_PIPELINED = 128
"""Requests of one connection that may wait for their response."""


class LimitedProtocol(HttpToolsProtocol):
    """One client connection."""

    limits: ClassVar[ServerLimits]
    max_connections: ClassVar[int]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.head_bytes, self.is_refused = 0, False
        self.unfinished: list[RequestResponseCycle] = []
        self.unread: tuple[float, int] | None = (
            None  # when the client was first seen not to read, and the bytes left then
        )
        self.active: tuple[float, Any] = self.loop.time(), None  # when a request was last seen, and which
        if len(self.connections) > self.max_connections + SPARE_CONNECTIONS:
            transport.abort()
        elif len(self.connections) > self.max_connections:
            self.app = _overloaded(self.limits, self.max_connections)
            self.loop.call_later(LINGER_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in self.unfinished:  # uvicorn notifies only the latest request
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep a half-closed connection open until its complete requests are answered."""
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        self.loop.call_later(self.limits.half_closed_s, self.transport.abort)
        return True

    def data_received(self, data: bytes) -> None:
        if self.is_refused:
            return
        self.head_bytes += len(data)
        super().data_received(data)
        if self.head_bytes <= INCOMPLETE_HEADS * self.limits.header_bytes or self.transport.is_closing():
            return
        self.is_refused = True
        if self.cycle is not None and (self.cycle.more_body or not self.cycle.response_complete):
            self.transport.close()  # a response would be taken for that of another request
        else:
            self.transport.write(_encoded_response(HeadTooLarge(self.limits), self.limits))
            self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.close)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.headers, self.head_bytes = [], 0  # trailers of the body must not become headers of the request
        self.cycle.keep_alive &= not self.parser.should_upgrade()  # data after an upgrade request is not parsed
        self.unfinished = [*(cycle for cycle in self.unfinished if not cycle.response_complete), self.cycle]
        if len(self.unfinished) > MAX_PIPELINED:
            raise ValueError(f"more than {MAX_PIPELINED} requests are waiting")  # uvicorn closes the connection

    def on_body(self, body: bytes) -> None:
        self.head_bytes = 0
        super().on_body(body)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.unread = None

    def check(self, now_s: float) -> None:
        """Close the connection if its client sends no request or does not read its responses."""
        if self.cycle is not self.active[1] or not (self.cycle is None or self.cycle.response_complete):
            self.active = now_s, self.cycle
        unread_bytes = self.transport.get_write_buffer_size()
        if not unread_bytes:
            self.unread = None
        elif self.unread is None:
            self.unread = now_s, unread_bytes
            self.transport.set_write_buffer_limits(high=0)  # resume_writing is called when everything was sent
        elif now_s - self.unread[0] >= self.limits.stall_s:
            if self.unread[1] - unread_bytes < self.limits.stall_s * self.limits.transfer_bytes_per_s:
                _reset(self.transport)
            self.unread = now_s, unread_bytes
        if now_s - self.active[0] >= self.limits.idle_s:
            self.transport.close()


def protocol_of(limits: ServerLimits, connections: int) -> type[LimitedProtocol]:
    """Return a protocol class with these limits that accepts at most ``connections`` connections."""
    return type("Protocol", (LimitedProtocol,), {"limits": limits, "max_connections": connections})


def _overloaded(limits: ServerLimits, connections: int) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = problems.answer(Unavailable(f"the limit connections = {connections:,} is reached"), limits)
        response.headers["connection"] = "close"
        await response(scope, receive, send)

    return app


def _encoded_response(error: HeadTooLarge, limits: ServerLimits) -> bytes:
    response = problems.answer(error, limits)
    head = b"".join([b"%b: %b\r\n" % header for header in response.raw_headers])
    status = HTTPStatus(response.status_code)
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, status.phrase.encode(), head, bytes(response.body))


def _reset(transport: asyncio.Transport) -> None:
    """Reset the connection and drop all unsent data, including the kernel's buffer."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
