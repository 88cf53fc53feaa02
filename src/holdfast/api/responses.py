"""Responses: JSON, text, binary content, and archives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import BinaryIO, Protocol

from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from .request_body import JSON_TYPE
from .temp_dirs import TempDir

OCTETS_TYPE = "application/octet-stream"
ARCHIVE_TYPE = "application/zstd"
_CHUNK_BYTES = 1024 * 1024


class Sendable(Protocol):
    """A response that can be sent."""

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
    """A plain-text response."""


class Octets(Response):
    """A response of unchanged bytes that browsers must not interpret as a page. Its ETag is the digest of the content."""

    media_type = OCTETS_TYPE

    def __init__(self, content: bytes, *, etag: str) -> None:
        headers = {"cache-control": "no-store", "etag": f'"{etag}"', "x-content-type-options": "nosniff"}
        super().__init__(content, headers=headers)


class Archive(Response):
    """A response that streams a file. Its temporary directory is removed when it was sent or the client disconnected."""

    media_type = ARCHIVE_TYPE

    def __init__(self, directory: TempDir, name: str, *, etag: str) -> None:
        self._directory, self._path = directory, directory.path / name
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
            await self._directory.close()


MEDIA_TYPES: dict[object, str] = {PlainText: "text/plain", Octets: OCTETS_TYPE, Archive: ARCHIVE_TYPE}
"""The content type of each class."""


def etag_of(response: Octets | Archive) -> str:
    """Return the ETag of a response."""
    return response.headers["etag"]


async def _send(file: BinaryIO, send: Send) -> None:
    while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
