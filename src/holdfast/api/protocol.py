"""uvicorn's HTTP/1.1 protocol with the limits that uvicorn has no option for.

uvicorn parses requests and writes answers. This subclass closes connections that use up their time, caps the bytes of a request's
head, and refuses connections over the cap. Timers per connection would cost more than the checks, so the server calls ``check``
for every connection once a second.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from holdfast.errors import HoldfastError, Unavailable

from . import problems
from .limits import ServerLimits
from .problems import HeadTooLarge, HttpError

LINGER_S = 1.0
"""Seconds in which a refused client's bytes are read and dropped. Closing with unread bytes would reset the connection, and the
client would lose the answer."""
SPARE_CONNECTIONS = 64
"""Connections over the cap that are told why they are refused; more are cut off at once, to keep file descriptors free."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    limits: ClassVar[ServerLimits] = ServerLimits()
    most: ClassVar[int] = ServerLimits().connections
    """Connections at once."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._idle_s = max(self.limits.idle_s, LINGER_S)
        self._idle_since_s: float | None = self.loop.time()
        self._half_closed_s: float | None = None
        self._unread: tuple[float, int] | None = None  # since when the client does not keep up, and the bytes left then
        self._open: list[RequestResponseCycle] = []  # requests without a complete answer, in their order
        self._loose_bytes = 0  # bytes since the parser last completed a head or a piece of a body
        self._has_progress = self._is_too_large = self._is_refused = self._is_in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most + SPARE_CONNECTIONS:
            transport.abort()
        elif len(self.connections) > self.most:
            self.app = self._refuse_connection
            self._idle_since_s = self.loop.time() - self._idle_s + LINGER_S

    def connection_lost(self, exc: Exception | None) -> None:
        for each in self._open:  # uvicorn only tells the request that came last
            each.disconnected = not each.response_complete
            each.message_event.set()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep a half-closed connection open until its complete requests are answered."""
        self._open = [each for each in self._open if not each.response_complete]
        if self._is_refused or not self._open or self._open[-1].more_body:
            return False
        self._open[-1].keep_alive = False
        self._half_closed_s = self.loop.time()
        return True

    def check(self, now_s: float) -> None:
        """Close the connection if its client asks nothing, reads nothing, or has gone."""
        limits = self.limits
        if self._is_unread_too_long(now_s):
            self._reset()
        elif self._half_closed_s is not None and now_s - self._half_closed_s >= limits.half_closed_s:
            self.transport.abort()
        elif self._idle_since_s is not None and now_s - self._idle_since_s >= self._idle_s:
            self.transport.close()

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._has_progress = False
        super().data_received(data)
        self._loose_bytes = 0 if self._has_progress else self._loose_bytes + len(data)
        if self._loose_bytes > self.limits.header_bytes and not self.transport.is_closing():
            self._refuse(self._head_too_large())

    def on_headers_complete(self) -> None:
        self._has_progress = True
        size = len(self.url) + sum([len(name) + len(value) + len(": \r\n") for name, value in self.headers])
        if size > self.limits.header_bytes:
            self._is_too_large = True
            raise self._head_too_large()  # the parser reports an invalid request, see send_400_response
        super().on_headers_complete()
        if self.parser.should_upgrade():  # answered in HTTP/1.1; what follows cannot be parsed
            self.cycle.keep_alive = False
        self.headers = []  # trailers of a chunked body are not headers of the request
        self._idle_since_s, self._is_in_body = None, True
        self._open = [each for each in self._open if not each.response_complete]
        self._open.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._has_progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and self.cycle.response_complete:
            self._idle_since_s = self.loop.time()

    # Writing

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = (self.loop.time(), self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = None

    def _is_unread_too_long(self, now_s: float) -> bool:
        """Whether the client read less than ``transfer_bytes_per_s`` for ``stall_s``."""
        size = self.transport.get_write_buffer_size()
        if self._unread is None:
            if size:  # less than uvicorn waits for, but the socket takes no more: from now on any unread byte counts
                self.transport.set_write_buffer_limits(high=0)
            return False
        since_s, before = self._unread
        if now_s - since_s < self.limits.stall_s:
            return False
        self._unread = (now_s, size)
        return before - size < self.limits.stall_s * self.limits.transfer_bytes_per_s

    def _reset(self) -> None:
        """Drop the connection with everything unread, the kernel's buffer included."""
        found = self.transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    # Refusing

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refused."""
        self._refuse(self._head_too_large() if self._is_too_large else HttpError(msg))

    def _refuse(self, error: HttpError) -> None:
        self._is_refused = True
        if self._is_in_body or any(not each.response_complete for each in self._open):
            self.transport.close()  # nobody waits for an answer, or for another one first
            return
        self.transport.write(_written(error, self.limits))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._idle_since_s = self.loop.time() - self._idle_s + LINGER_S

    async def _refuse_connection(self, scope: Any, receive: Any, send: Any) -> None:
        response = problems.answer(Unavailable(f"there are connections = {self.most:,} already"), self.limits)
        response.headers["connection"] = "close"
        await response(scope, receive, send)

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"the headers are over the limit header_bytes = {self.limits.header_bytes:,}")


def protocol_of(limits: ServerLimits, connections: int) -> type[LimitedProtocol]:
    """A protocol class with these limits, for at most so many connections."""
    return type("Protocol", (LimitedProtocol,), {"limits": limits, "most": connections})


def _written(error: HoldfastError, limits: ServerLimits) -> bytes:
    response = problems.answer(error, limits)
    head = b"".join([b"%b: %b\r\n" % each for each in [*response.raw_headers, (b"connection", b"close")]])
    status = HTTPStatus(response.status_code)
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, status.phrase.encode(), head, bytes(response.body))
