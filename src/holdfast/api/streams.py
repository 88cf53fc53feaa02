"""Streams of server-sent events: what is there after the last one the client has seen, and what comes.

A client that was cut off comes back with ``Last-Event-ID``, as browsers do by themselves, and misses nothing: an event's id is
the place of its row. What is taken back leaves its places to others, so a place is one of a *course*: what is shown until the
next rewind, or whatever else makes places mean other rows. When the course has changed, an event says up to which place what
arrived still holds, and the rest comes anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from holdfast.clock import monotonic_s
from holdfast.errors import NotFound

from .access import Caller
from .problems import log
from .service import Service
from .wire import encode

EVENT_TYPE = "text/event-stream"


class Place(Struct, frozen=True):
    """Where a stream has come to, and on which course."""

    at: int
    course: int

    def written(self) -> bytes:
        """As the id of an event: the number alone, as long as nothing was ever taken back."""
        return b"%d.%d" % (self.course, self.at) if self.course else b"%d" % self.at


class StreamEvent(Struct, frozen=True):
    """One event: its place, what it is called, and what it says."""

    id: Place
    name: str
    data: Any

    def written(self) -> bytes:
        """As it is sent."""
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (self.id.written(), self.name.encode(), encode(self.data))


Fetch = Callable[[Place], Awaitable[Sequence[StreamEvent]]]
"""What there is after a place: some of it, or nothing."""


def rewound(course: int, at: int) -> StreamEvent:
    """What arrived holds up to this place only."""
    return StreamEvent(Place(at, course), "rewound", {"place": at})


async def follow(
    service: Service, caller: Caller, name: str, after: Place, wait_s: float, fetch: Fetch
) -> AsyncIterator[bytes]:
    """Everything after a place, then what comes, until nothing has come for ``wait_s`` or the server stops.

    It ends as well when the key of whoever listens is no longer good: nothing is sent after that, and coming back is refused.
    """
    listener = service.news.listen(name)
    limits = service.limits
    try:
        quiet_since = spoke = monotonic_s()
        yield b": welcome\n\n"
        while True:
            found = await fetch(after)
            if not await service.standing.is_good(caller.key_id):
                return
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
        _, pending = await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        for each in pending:
            each.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        try:
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except NotFound:
            pass  # what it was about was deleted: there is nothing more to come
        except Exception as error:  # it is brought to a proper end all the same: whoever listens comes back
            log.error("a stream ended: %s", type(error).__name__)
        finally:
            await self._events.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
