"""Reads request bodies: JSON into memory, archives into a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from starlette.types import Receive

from .limits import ServerLimits
from .problems import BodyTooLarge, TooSlow, WrongContentType

if TYPE_CHECKING:
    from .request import Request

JSON_TYPE = "application/json"
_JSON = JSON_TYPE.encode()
_MAX_DISCARDED = 4
"""How many times the limit of a body is read and discarded, so that a client that is still sending receives the response."""


class Disconnected(Exception):
    """The client has disconnected: no response can be sent."""


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(request: Request, limits: ServerLimits) -> bytes:
    """Return the JSON body of a request.

    Raises:
        WrongContentType: the content type is not JSON. A page of another site cannot send JSON without a preflight request.
        BodyTooLarge: it is over ``request_bytes``.
    """
    headers = request.headers
    if headers.get(b"content-type") != _JSON and _content_type(headers) != _JSON:
        raise WrongContentType(f"send the body with Content-Type: {JSON_TYPE}")
    declared = int(headers.get(b"content-length", b"0"))
    can_discard = b"expect" not in headers and declared <= _MAX_DISCARDED * limits.request_bytes
    if declared > limits.request_bytes and not can_discard:
        raise _too_large(limits)
    request.is_body_pending = True
    chunks: list[bytes] = []
    size, more = 0, True
    while more:
        event = await request.receive()
        if event["type"] == "http.disconnect":
            raise Disconnected
        chunk = event.get("body", b"")
        size += len(chunk)
        more = event.get("more_body", False)
        if size <= limits.request_bytes:
            chunks.append(chunk)
        elif size > _MAX_DISCARDED * limits.request_bytes:
            break
    request.is_body_pending = False
    if size > limits.request_bytes:
        raise _too_large(limits)
    return b"".join(chunks)


def _too_large(limits: ServerLimits) -> BodyTooLarge:
    message = f"the body is over the limit request_bytes = {limits.request_bytes:,}"
    return BodyTooLarge(message, headers={"connection": "close"}, limit="request_bytes")


class Upload:
    """A body that is not JSON and may be too large for memory."""

    def __init__(self, receive: Receive, headers: Mapping[bytes, bytes], limits: ServerLimits) -> None:
        self._receive, self._headers, self._limits = receive, headers, limits

    async def save(self, path: str, *, media_type: str) -> int:
        """Write the body to a file and return its size in bytes.

        Raises:
            WrongContentType: its content type is not ``media_type``.
            BodyTooLarge: it is over ``archive_bytes``.
            TooSlow: it arrived slower than ``transfer_bytes_per_s``, or took longer than ``archive_s``.
        """
        if _content_type(self._headers) != media_type.encode():
            raise WrongContentType(f"send the body with Content-Type: {media_type}")
        if int(self._headers.get(b"content-length", b"0")) > self._limits.archive_bytes:
            raise self._too_large()
        size = 0
        with await asyncio.to_thread(open, path, "wb") as file:
            async for chunk in self._chunks():
                size += len(chunk)
                if size > self._limits.archive_bytes:
                    raise self._too_large()
                await asyncio.to_thread(file.write, chunk)
        return size

    async def _chunks(self) -> AsyncIterator[bytes]:
        """Yield the chunks of the body. Their average rate must reach ``transfer_bytes_per_s`` after the first ``stall_s``."""
        limits, size, more = self._limits, 0, True
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        while more:
            allowed_s = limits.stall_s + size / max(limits.transfer_bytes_per_s, 1e-9)
            try:
                async with asyncio.timeout_at(started_s + min(allowed_s, limits.archive_s)):
                    event = await self._receive()
            except TimeoutError:
                message = (
                    f"{size:,} bytes of the body arrived in {loop.time() - started_s:.1f} s: slower than "
                    f"transfer_bytes_per_s = {limits.transfer_bytes_per_s:,}, or longer than archive_s = {limits.archive_s:g} s"
                )
                limit = "transfer_bytes_per_s" if allowed_s < limits.archive_s else "archive_s"
                raise TooSlow(message, headers={"connection": "close"}, limit=limit) from None
            if event["type"] == "http.disconnect":
                raise Disconnected
            size += len(event.get("body", b""))
            yield event.get("body", b"")
            more = event.get("more_body", False)

    def _too_large(self) -> BodyTooLarge:
        message = f"the body is over the limit archive_bytes = {self._limits.archive_bytes:,}"
        return BodyTooLarge(message, headers={"connection": "close"}, limit="archive_bytes")


def _content_type(headers: Mapping[bytes, bytes]) -> bytes:
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
