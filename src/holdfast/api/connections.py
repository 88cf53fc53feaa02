"""A connection: requests in, answers out, in the order they were asked, and an end to what may be said and waited for before.

httptools reads the bytes, uvicorn listens, stops and keeps count; what is between is here, because it is most of what HTTP costs.
What is done for each request is as little as can be, and everything else is rare.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from holdfast.errors import Unavailable

from . import problems
from .exchanges import BUFFERED_MOST, Exchange, Pairs, written
from .limits import ServerLimits
from .problems import HeadTooLarge, HttpError

LINGER_S = 1.0
"""How long whoever was refused is heard out: what is closed with bytes unread is cut off, and the answer with it."""

IDLE_LEAST_S = 0.1
"""How long is waited for a request where no time is to be waited: it is still to be read."""

log = logging.getLogger("uvicorn.error")


class Connection(asyncio.Protocol):
    """One connection."""

    limits: ClassVar[ServerLimits] = ServerLimits()
    _usual: ClassVar[tuple[Pairs, bytes]] = ((), b"")
    """The headers of every answer, as uvicorn has them, and as they are written."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app, self._state = config.loaded_app, server_state
        self._loop = _loop or asyncio.get_event_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        with suppress(AttributeError):  # older ones have it so anyway
            self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "root_path": "",
        }
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # until it is connected
        self.is_clogged, self._cleared = False, asyncio.Event()
        self._is_deaf = False
        self._running: Exchange | None = None  # what is being answered
        self._waiting: deque[Exchange] = deque()  # what is answered after it
        self._coming: Exchange | None = None  # what a body comes for
        self._url, self._wants_word = b"", False
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_most = self.limits.header_bytes
        self._is_in_head = self._is_head_new = self._is_suspect = self._is_too_large = False
        self._head_bytes = 0
        self._has_chunks = self._had_body = False
        self._idle_s = max(self.limits.idle_s, IDLE_LEAST_S)
        self._idle_from_s: float | None = self._loop.time()
        self._looking: asyncio.TimerHandle | None = None

    # The two ends of it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        self.transport = transport  # type: ignore[assignment]
        self._state.connections.add(self)  # type: ignore[arg-type]
        self._scope["server"] = get_local_addr(self.transport)
        self._scope["client"] = get_remote_addr(self.transport)
        self._scope["scheme"] = "https" if is_ssl(self.transport) else "http"
        if len(self._state.connections) > self.limits.connections:
            self._app = self._no_room
        self._looking = self._loop.call_later(self._idle_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who is still at work for it."""
        self._state.connections.discard(self)
        for each in (self._running, self._coming, *self._waiting):
            if each is not None:
                each.lose()
        self.resume_writing()
        if self._looking is not None:
            self._looking.cancel()
        self._parser = self._looking = None

    def shutdown(self) -> None:
        """Close when everything that was accepted is answered."""
        if self._running is None:
            self.transport.close()
        else:
            (self._waiting[-1] if self._waiting else self._running).is_last = True

    def _look(self) -> None:
        """Close what has been idle for ``idle_s``; otherwise look again when that can be. A timer for each answer costs more."""
        now_s = self._loop.time()
        since_s = now_s if self._idle_from_s is None else self._idle_from_s
        if since_s + self._idle_s <= now_s:
            self.transport.close()
        else:
            self._looking = self._loop.call_at(since_s + self._idle_s, self._look)

    # What comes

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request, or several requests, in."""
        if len(data) > self._head_most:
            self._is_suspect = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            log.warning("Unsupported upgrade request.")  # it is answered like any other, as the last on its connection
        except httptools.HttpParserError:
            log.warning("Invalid HTTP request received.")
            self._refuse(self._too_large() if self._is_too_large else HttpError("Invalid HTTP request received."))
        else:
            if self._is_in_head:
                self._head_goes_on(len(data))
            elif self._has_chunks:
                self._chunks_go_on(len(data))

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url, self._headers, self._wants_word = b"", [], False
        self._is_in_head = self._is_head_new = True

    def on_url(self, url: bytes) -> None:
        """A piece of its address."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers; or what comes behind chunks, which nobody reads."""
        if self._is_in_head:
            name = name.lower()
            self._headers.append((name, value))
            if name == b"expect":
                self._wants_word = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        """Begin with a request, unless its head is over the limit; the parser makes an invalid request of what is raised."""
        if self._is_suspect:
            self._is_suspect = False
            if _size(self._url, self._headers) > self._head_most:
                self._is_too_large = True
                raise self._too_large()
        self._is_in_head, self._idle_from_s = False, None
        self._coming = exchange = self._asked()
        if self._running is None:
            self._begin(exchange)
        else:
            self._waiting.append(exchange)
            self._stop_listening()

    def _asked(self) -> Exchange:
        """What was asked, once its head is there."""
        parser, scope = self._parser, self._scope.copy()
        raw_path, scope["query_string"] = _split(self._url)
        path = raw_path.decode("ascii")
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version = parser.get_http_version()
        scope["headers"] = self._headers
        scope["path"], scope["raw_path"] = unquote(path) if "%" in path else path, raw_path
        is_last = version == "1.0" or not parser.should_keep_alive() or parser.should_upgrade()
        return Exchange(self, scope, is_last, self._wants_word)

    def on_chunk_header(self) -> None:
        """A body comes in chunks: there may be more headers behind it."""
        self._has_chunks = True

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._had_body = True
        exchange = self._coming
        if exchange is not None and not exchange.is_answered:
            exchange.take(body)
            if exchange.kept_bytes > BUFFERED_MOST:
                self._stop_listening()

    def on_message_complete(self) -> None:
        """The end of a request."""
        if self._coming is not None:
            self._coming.end()
        self._coming, self._has_chunks = None, False

    def listen(self) -> None:
        """Go on reading."""
        if self._is_deaf:
            self._is_deaf = False
            self.transport.resume_reading()

    def _stop_listening(self) -> None:
        if not self._is_deaf:
            self._is_deaf = True
            self.transport.pause_reading()

    # What goes

    def _begin(self, exchange: Exchange) -> None:
        self._running = exchange
        task = self._loop.create_task(exchange.run(self._app))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def answered(self, exchange: Exchange) -> None:
        """Go on with what was asked next, or wait for it."""
        self._running = None
        self._state.total_requests += 1
        if exchange.is_last:
            self.transport.close()
        elif self.transport.is_closing():
            return
        elif self._waiting:
            self._begin(self._waiting.popleft())
        else:
            self._idle_from_s = self._loop.time()
            self.listen()

    def usual_headers(self) -> bytes:
        """What every answer has among its headers, as it is written; uvicorn makes it anew every second."""
        before, lines = Connection._usual
        headers = self._state.default_headers
        if headers is not before:
            lines = b"".join([b"%b: %b\r\n" % each for each in headers])
            Connection._usual = headers, lines
        return lines

    def pause_writing(self) -> None:
        """Nobody reads what is written."""
        self.is_clogged = True
        self._cleared.clear()

    def resume_writing(self) -> None:
        """It is read again, or nobody is left to do so."""
        self.is_clogged = False
        self._cleared.set()

    async def cleared(self) -> None:
        """Wait until it is read."""
        await self._cleared.wait()

    # What is refused

    async def _no_room(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer whatever is asked on a connection that is one too many."""
        full = Unavailable(f"there are connections = {self.limits.connections:,} already")
        response = problems.answer(full, self.limits)
        response.headers["connection"] = "close"
        await response(scope, receive, send)

    def _head_goes_on(self, size: int) -> None:
        """Count what has come of a head that is not complete; of its first piece, some may belong to what was before it."""
        self._head_bytes = 0 if self._is_head_new else self._head_bytes + size
        self._is_head_new, self._is_suspect = False, True
        if self._head_bytes > self._head_most and not self.transport.is_closing():
            self._refuse(self._too_large())

    def _chunks_go_on(self, size: int) -> None:
        """Count what has come between chunks or behind them, which nobody reads and the parser keeps."""
        self._head_bytes = 0 if self._had_body else self._head_bytes + size
        self._had_body = False
        if self._head_bytes > self._head_most and not self.transport.is_closing():
            self._refuse(self._too_large())

    def _too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"the headers are over the limit header_bytes = {self._head_most:,}")

    def _refuse(self, error: HttpError) -> None:
        """Answer, unless this was answered or something else is being answered, and hear nothing any more."""
        self._idle_from_s = None
        if self._coming is not None or self._running is not None:
            self.transport.close()
            return
        self.transport.write(written(problems.answer(error, self.limits)))
        self.transport.set_protocol(_Deaf(self))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._loop.call_later(LINGER_S, self.transport.close)


class _Deaf(asyncio.Protocol):
    """Takes in what is still sent on a connection that was refused, and throws it away."""

    def __init__(self, refused: Connection) -> None:
        self._refused = refused

    def connection_lost(self, exc: Exception | None) -> None:
        self._refused.connection_lost(exc)


def connection_of(limits: ServerLimits) -> type[asyncio.Protocol]:
    """Connections with these limits."""
    return type("Connection", (Connection,), {"limits": limits})


def _split(url: bytes) -> tuple[bytes, bytes]:
    """The path and the query of an address. Nearly all are a path to begin with; a proxy's have a host in front."""
    if url[:1] == b"/" and b"#" not in url:
        path, _, query = url.partition(b"?")
        return path, query
    parsed = httptools.parse_url(url)
    return parsed.path or b"", parsed.query or b""


def _size(url: bytes, headers: Pairs) -> int:
    return len(url) + sum(len(name) + len(value) + len(": \r\n") for name, value in headers)
