"""Streams of server-sent events: what is there after the last one the client has seen, and what comes.

A client that was cut off comes back with ``Last-Event-ID``, as browsers do by themselves, and misses nothing: an event's id is
the place of its row.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from holdfast.clock import monotonic_s

from .problems import log
from .service import Service
from .wire import encode

EVENT_TYPE = "text/event-stream"


class StreamEvent(Struct, frozen=True):
    """One event: its place, what it is called, and what it says."""

    id: int
    name: str
    data: Any

    def written(self) -> bytes:
        """As it is sent."""
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self.id, self.name.encode(), encode(self.data))


Fetch = Callable[[int], Awaitable[Sequence[StreamEvent]]]
"""What there is after a place: some of it, or nothing."""


async def follow(service: Service, name: str, after: int, wait_s: float, fetch: Fetch) -> AsyncIterator[bytes]:
    """Everything after a place, then what comes, until nothing has come for ``wait_s`` or the server stops."""
    listener = service.news.listen(name)
    limits = service.limits
    try:
        quiet_since = spoke = monotonic_s()
        yield b": welcome\n\n"
        while True:
            found = await fetch(after)
            now = monotonic_s()
            if found:
                after, quiet_since, spoke = found[-1].id, now, now
                yield b"".join(each.written() for each in found)
                continue
            if now - quiet_since >= wait_s or service.news.is_over:
                return
            if now - spoke >= limits.stream_beat_s:
                spoke = now
                yield b": nothing new\n\n"
            await listener.wait(min(limits.stream_poll_s, max(wait_s - (now - quiet_since), 0.001)))
    finally:
        listener.close()


class EventStream:
    """An answer that goes on until its events end or nobody listens."""

    status_code = 200

    def __init__(self, events: AsyncIterator[bytes], service: Service) -> None:
        self._events, self._service = events, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", EVENT_TYPE.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["method"] == "HEAD":
            await self._events.aclose()  # type: ignore[attr-defined]
            await send({"type": "http.response.body", "body": b""})
            return
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_until_gone(receive))
        done, pending = await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        for each in pending:
            each.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for each in done:
            if each.exception() is not None:
                log.error("a stream ended: %s", type(each.exception()).__name__)

    async def _send(self, send: Send) -> None:
        try:
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            await self._events.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
