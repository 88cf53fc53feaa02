"""One request and its answer, as an ASGI application sees them.

What comes is handed on as it is there, without waiting where the whole body came with the head; what goes is written at once, the
head together with the first of the body, because each write is a system call and, on the way, a packet. Who knows that the
exchange is ours (``exchange_of``) can have a body that is there, and give a whole answer, without the events of ASGI in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send

from . import problems
from .limits import ServerLimits

Pairs = Sequence[tuple[bytes, bytes]]

BUFFERED_MOST = 64 * 1024
"""Bytes of a body that are kept before they are asked for; and bytes that are copied rather than written by themselves."""
_GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
_IN_A_LINE = bytes(byte for byte in range(256) if byte == ord("\t") or (byte >= ord(" ") and byte != 0x7F))
"""What may be in a header: anything else would make another of it."""
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_UNKNOWN = -1


class Line(Protocol):
    """The connection that an exchange is on."""

    transport: asyncio.Transport
    is_clogged: bool
    """Whether more was written than goes through at the moment."""

    @property
    def limits(self) -> ServerLimits:
        """What one request may carry."""

    def listen(self) -> None:
        """Take in what comes."""

    async def cleared(self) -> None:
        """Wait until what was written has gone, or whoever it was for."""

    def usual_headers(self) -> bytes:
        """What every answer has among its headers, as it is written."""

    def answered(self, exchange: Exchange) -> None:
        """An answer is complete."""


class Exchange:
    """A request that was accepted. Its answer goes out before that of whatever was asked behind it."""

    __slots__ = (
        "_changed",
        "_has_begun",
        "_has_news",
        "_is_in_chunks",
        "_left",
        "_line",
        "_pieces",
        "_start",
        "is_answered",
        "is_gone",
        "is_last",
        "is_whole",
        "kept_bytes",
        "scope",
        "wants_word",
    )

    def __init__(self, line: Line, scope: dict[str, Any], is_last: bool, wants_word: bool) -> None:
        self._line, self.scope = line, scope
        self.is_last = is_last
        """Whether the connection ends with the answer."""
        self.wants_word = wants_word
        """Whether the body is sent only when it was asked for."""
        self.is_whole = self.is_gone = self.is_answered = False
        self.kept_bytes = 0
        self._pieces: list[bytes] = []
        self._has_news = False
        self._changed: asyncio.Event | None = None
        self._start: MutableMapping[str, Any] | None = None
        self._has_begun = self._is_in_chunks = False
        self._left = _UNKNOWN

    # What comes

    def take(self, piece: bytes) -> None:
        """A piece of the body has come."""
        self._pieces.append(piece)
        self.kept_bytes += len(piece)
        self._tell()

    def end(self) -> None:
        """There is no more of the body."""
        self.is_whole = True
        self._tell()

    def lose(self) -> None:
        """Whoever asked has gone."""
        self.is_gone = not self.is_answered
        self._tell()

    def _tell(self) -> None:
        self._has_news = True
        if self._changed is not None:
            self._changed.set()

    async def receive(self) -> MutableMapping[str, Any]:
        """What ASGI calls receive."""
        if self.wants_word and not self._line.transport.is_closing():
            self.wants_word = False
            self._line.transport.write(_GO_ON)
        while not (self._has_news or self.is_gone or self.is_answered):
            self._line.listen()
            self._changed = asyncio.Event()
            await self._changed.wait()
        self._has_news = False
        if self.is_gone or self.is_answered:
            return {"type": "http.disconnect"}
        body = b"".join(self._pieces)
        self._pieces, self.kept_bytes = [], 0
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}

    def body_at_hand(self) -> bytes | None:
        """The whole body, if it is there and nobody has asked for it, as it mostly is; ``receive`` it otherwise."""
        if not self.is_whole or not self._has_news or self.wants_word or self.is_gone or self.is_answered:
            return None
        body = b"".join(self._pieces)
        self._pieces, self.kept_bytes, self._has_news = [], 0, False
        return body

    # What goes

    def answer(self, status: int, lines: bytes, body: bytes) -> bool:
        """Send a whole answer, if that can be done without waiting and there is nothing special about it; ``send`` it otherwise.

        ``lines`` are its headers as they are written, the length of the body among them.
        """
        if self._line.is_clogged or self._start is not None or self.is_answered:
            return False
        if self.is_last or self.scope["method"] == "HEAD" or len(body) >= BUFFERED_MOST:
            return False
        if not self.is_gone:
            head = b"%b%b%b\r\n" % (_FIRST_LINES[status], self._line.usual_headers(), lines)
            self._line.transport.write(head + body)
            self._has_begun = self.is_answered = True
            self.wants_word = False
            self._tell()
            self._line.answered(self)
        return True

    async def send(self, event: MutableMapping[str, Any]) -> None:
        """What ASGI calls send. The head waits for the first of the body, as ASGI wants it."""
        if self._line.is_clogged:
            await self._line.cleared()
        if self.is_gone:
            return
        kind = event["type"]
        if self._start is None and kind == "http.response.start":
            self._start = event
        elif self._start is not None and kind == "http.response.body" and not self.is_answered:
            self._write(self._start, event.get("body", b""), event.get("more_body", False))
        else:
            raise RuntimeError(f"an application sent {kind!r} out of turn")

    def _write(self, start: MutableMapping[str, Any], body: bytes, more: bool) -> None:
        head = b"" if self._has_begun else self._head(start["status"], start.get("headers", ()))
        if self.scope["method"] == "HEAD":
            body = b""
        elif self._is_in_chunks:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk if more else chunk + b"0\r\n\r\n"
        elif self._left != _UNKNOWN:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the body of an answer has not the length that its head says")
        self._has_begun, self.wants_word = True, False
        if len(body) < BUFFERED_MOST:
            self._line.transport.write(head + body)
        else:
            self._line.transport.writelines((head, body))
        if not more:
            self.is_answered = True
            self._tell()
            self._line.answered(self)

    def _head(self, status: int, headers: Pairs) -> bytes:
        for name, value in headers:
            if name == b"content-length":
                self._left = int(value)
            elif name == b"connection" and value == b"close":
                self.is_last = True
        lines = b"".join([b"%b: %b\r\n" % each for each in headers])
        if lines.translate(None, _IN_A_LINE) != b"\r\n" * len(headers):
            raise RuntimeError("a header of an answer cannot be written in one line")
        if self.is_last and b"connection: close\r\n" not in lines:
            lines += b"connection: close\r\n"
        if self._left == _UNKNOWN and self.scope["method"] != "HEAD" and status not in _WITHOUT_BODY:
            if self.scope["http_version"] == "1.0":
                self.is_last = True
            else:
                self._is_in_chunks = True
                lines += b"transfer-encoding: chunked\r\n"
        return b"%b%b%b\r\n" % (_FIRST_LINES[status], self._line.usual_headers(), lines)

    # Both

    async def run(self, app: ASGIApp) -> None:
        """Have it answered. An application that raises, or does not finish, is at fault, and whoever asked is told so."""
        try:
            await app(self.scope, self.receive, self.send)
            if not self.is_answered and not self.is_gone:
                raise RuntimeError("an application ended without an answer")
        except Exception as error:
            self._give_up(error)
        except BaseException:
            self._give_up(RuntimeError("a request was broken off"))
            raise

    def _give_up(self, error: Exception) -> None:
        response = problems.answer(error, self._line.limits)
        if not self._has_begun and not self.is_gone:
            self._line.transport.write(written(response))
        self._line.transport.close()


def exchange_of(channel: Receive | Send) -> Exchange | None:
    """Our own exchange behind what ASGI calls receive or send, which can do more than those; none behind another server's, or if
    something stands in between."""
    owner = getattr(channel, "__self__", None)
    return owner if type(owner) is Exchange else None


def written(response: Response) -> bytes:
    """An answer as it goes over the wire, the last on its connection."""
    head = [b"%b: %b\r\n" % each for each in [*response.raw_headers, (b"connection", b"close")]]
    return b"%b%b\r\n%b" % (_FIRST_LINES[response.status_code], b"".join(head), bytes(response.body))


_FIRST_LINES = {each.value: b"HTTP/1.1 %d %b\r\n" % (each.value, each.phrase.encode()) for each in HTTPStatus}
