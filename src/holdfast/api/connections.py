"""A connection: uvicorn's, with an end to how much may be said, and how long may be waited, before anything is asked."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.errors import Unavailable

from . import problems
from .limits import ServerLimits
from .problems import HeadTooLarge, HttpError

LINGER_S = 1.0
"""How long whoever was refused is heard out: what is closed with bytes unread is cut off, and the answer with it."""

_NOTHING = object()


class Connection(HttpToolsProtocol):
    """One connection. What is done for each piece that arrives is a comparison or two; everything else is rare."""

    limits: ClassVar[ServerLimits] = ServerLimits()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_most = self.limits.header_bytes
        self._is_suspect = self._is_too_large = False
        self._head_of: object = _NOTHING  # whose head it is that came in pieces
        self._head_bytes = 0
        self._has_chunks = self._had_body = False
        self._waited_for: object = _NOTHING
        self._wait_until_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)  # type: ignore[arg-type]
        if len(self.connections) > self.limits.connections:
            self.app = self._no_room
        self._wait(self.scope)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request in."""
        if len(data) > self._head_most:
            self._is_suspect = True
        super().data_received(data)
        cycle = self.cycle
        if cycle is None or cycle.scope is not self.scope:
            self._head_goes_on(len(data))
            self._wait(self.scope)
            return
        if cycle.response_complete:
            self._wait(cycle)
        if self._has_chunks:
            self._chunks_go_on(len(data))

    def _wait(self, what_for: object) -> None:
        """Close after ``idle_s``, counted from when this was first waited for: uvicorn stops waiting with every piece.

        Once a head is complete, nobody waits any longer; after an answer, uvicorn begins again.
        """
        if self.transport.is_closing():
            return
        if self._waited_for is not what_for:
            self._waited_for, self._wait_until_s = what_for, self.loop.time() + self.timeout_keep_alive
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_at(self._wait_until_s, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close, unless something else is being answered: then uvicorn waits anew after it."""
        if self.cycle is None or self.cycle.response_complete:
            super().timeout_keep_alive_handler()

    def _head_goes_on(self, size: int) -> None:
        """Count what has come of a head that is not complete; of its first piece, some may belong to what was before it."""
        if self.transport.is_closing():
            return
        if self._head_of is not self.scope:
            self._head_of, self._head_bytes = self.scope, 0
        else:
            self._head_bytes += size
        self._is_suspect = True
        if self._head_bytes > self._head_most:
            self._refuse(self._too_large())

    def on_chunk_header(self) -> None:
        """A body comes in chunks: there may be more headers behind it."""
        self._has_chunks = True

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body in."""
        self._had_body = True
        super().on_body(body)

    def _chunks_go_on(self, size: int) -> None:
        """Count what has come between chunks or behind them, which nobody reads and the parser keeps."""
        self._head_bytes = 0 if self._had_body else self._head_bytes + size
        self._had_body = False
        if self._head_bytes > self._head_most and not self.transport.is_closing():
            self._refuse(self._too_large())

    def on_headers_complete(self) -> None:
        """Begin with a request, unless its head is over the limit; the parser makes an invalid request of what is raised."""
        if self._is_suspect:
            self._is_suspect = False
            if _size(self.url, self.headers) > self._head_most:
                self._is_too_large = True
                raise self._too_large()
        super().on_headers_complete()

    async def _no_room(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer whatever is asked on a connection that is one too many."""
        full = Unavailable(f"there are connections = {self.limits.connections:,} already")
        response = problems.answer(full, self.limits)
        response.headers["connection"] = "close"
        await response(scope, receive, send)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request."""
        self._refuse(self._too_large() if self._is_too_large else HttpError(msg))

    def _too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"the headers are over the limit header_bytes = {self._head_most:,}")

    def _refuse(self, error: HttpError) -> None:
        """Answer, unless this was answered or something else is being answered, and hear nothing any more."""
        self._unset_keepalive_if_required()
        cycle = self.cycle
        if cycle is not None and (cycle.scope is self.scope or not cycle.response_complete):
            self.transport.close()
            return
        self.transport.write(_written(problems.answer(error, self.limits)))
        self.transport.set_protocol(_Deaf(self))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


class _Deaf(asyncio.Protocol):
    """Takes in what is still sent on a connection that was refused, and throws it away."""

    def __init__(self, refused: Connection) -> None:
        self._refused = refused

    def connection_lost(self, exc: Exception | None) -> None:
        self._refused.connection_lost(exc)

    def shutdown(self) -> None:
        self._refused.transport.close()


def connection_of(limits: ServerLimits) -> type[asyncio.Protocol]:
    """Connections with these limits."""
    return type("Connection", (Connection,), {"limits": limits})


def _size(url: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    return len(url) + sum(len(name) + len(value) + len(": \r\n") for name, value in headers)


def _written(response: Response) -> bytes:
    """An answer as it goes over the wire, the last on its connection."""
    head = [b"HTTP/1.1 %d %s" % (response.status_code, HTTPStatus(response.status_code).phrase.encode())]
    head += [b"%s: %s" % each for each in [*response.raw_headers, (b"connection", b"close")]]
    return b"\r\n".join([*head, b"", bytes(response.body)])
