"""Responses: JSON, text, the bytes of one object or file, and archives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import BinaryIO, Protocol

from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from .request_body import JSON_TYPE
from .temp_dirs import Folder

OCTETS_TYPE = "application/octet-stream"
ARCHIVE_TYPE = "application/zstd"
_PIECE = 1024 * 1024


class Sendable(Protocol):
    """A response that is ready to be sent."""

    status_code: int

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Send it."""


class Json:
    """JSON that is already encoded, or an empty body."""

    __slots__ = ("_body", "_headers", "status_code")

    def __init__(self, status: int, body: bytes, *, etag: str | None = None) -> None:
        self.status_code, self._body = status, body
        self._headers = [(b"cache-control", b"no-store")]
        if body:
            self._headers += [(b"content-type", JSON_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        if etag is not None:
            self._headers.append((b"etag", etag.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self._headers})
        body = b"" if scope["method"] == "HEAD" else self._body
        await send({"type": "http.response.body", "body": body})


class PlainText(PlainTextResponse):
    """An answer that is text."""


class Octets(Response):
    """Bytes as they are, never taken for a page by a browser. The ETag is what they are called by their content."""

    media_type = OCTETS_TYPE

    def __init__(self, content: bytes, *, etag: str) -> None:
        headers = {"cache-control": "no-store", "etag": f'"{etag}"', "x-content-type-options": "nosniff"}
        super().__init__(content, headers=headers)


class Archive(Response):
    """A file, sent piece by piece. The folder it lies in is removed when it was sent, or when nobody wants it any more."""

    media_type = ARCHIVE_TYPE

    def __init__(self, folder: Folder, name: str, *, etag: str) -> None:
        self._folder, self._path = folder, folder.path / name
        headers = {"cache-control": "no-store", "etag": f'"{etag}"', "content-length": str(self._path.stat().st_size)}
        super().__init__(headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                with await asyncio.to_thread(self._path.open, "rb") as file:
                    await _send(file, send)
            await send({"type": "http.response.body", "body": b""})
        finally:
            await self._folder.close()


MEDIA_TYPES: dict[object, str] = {PlainText: "text/plain", Octets: OCTETS_TYPE, Archive: ARCHIVE_TYPE}
"""What each of them is called in HTTP."""


def etag_of(answer: Octets | Archive) -> str:
    """The ETag that an answer already has."""
    return answer.headers["etag"]


async def _send(file: BinaryIO, send: Send) -> None:
    while piece := await asyncio.to_thread(file.read, _PIECE):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
