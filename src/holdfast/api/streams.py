"""Streams of server-sent events: what is there after the last one the client has seen, and what comes.

A client that was cut off comes back with ``Last-Event-ID``, as browsers do by themselves, and misses nothing: an event's id is
the place of its row. What is taken back leaves its places to others, so a place is one of a *course*: what is shown until the
next rewind, or whatever else makes places mean other rows. When the course has changed, an event says up to which place what
arrived still holds, and the rest comes anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Self

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from holdfast.clock import monotonic_s
from holdfast.errors import NotFound

from .auth import Caller
from .problems import log
from .request_body import until_gone
from .schemas import encode
from .slots import Slot
from .state import Service

EVENT_TYPE = "text/event-stream"


class Place(Struct, frozen=True):
    """Where a stream has come to, and on which course."""

    at: int
    course: int

    def written(self) -> bytes:
        """As the id of an event: the number alone, as long as nothing was ever taken back."""
        return b"%d.%d" % (self.course, self.at) if self.course else b"%d" % self.at


class StreamEvent(Struct, frozen=True):
    """One event: its place, and how it is sent."""

    id: Place
    written: bytes


def event(id: Place, name: str, data: Any) -> StreamEvent:
    """An event with what it is called and what it says."""
    return StreamEvent(id, b"id: %s\nevent: %s\ndata: %s\n\n" % (id.written(), name.encode(), encode(data)))


Fetch = Callable[[Place], Awaitable[Sequence[StreamEvent]]]
"""What there is after a place: some of it, or nothing."""


def rewound(course: int, at: int) -> StreamEvent:
    """What arrived holds up to this place only."""
    return event(Place(at, course), "rewound", {"place": at})


def follow(
    service: Service, caller: Caller, tenant: str, name: str, after: Place, wait_s: float, fetch: Fetch
) -> Stream:
    """A stream of everything after a place, then of what comes, until nothing has come for ``wait_s`` or the server stops.

    It ends as well when the key of whoever listens is no longer good: nothing is sent after that, and coming back is refused.

    Raises:
        Unavailable: there are too many streams already, of all tenants or of this one.
    """
    slot = service.streams.take(tenant)
    return Stream(slot, _events(service, caller, f"{tenant}/{name}", after, wait_s, fetch))


class Stream:
    """Events as they are sent. It keeps its slot until it is closed, also if it was never begun."""

    def __init__(self, slot: Slot, events: AsyncGenerator[bytes]) -> None:
        self._slot, self._events = slot, events

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._events)

    async def aclose(self) -> None:
        """End it."""
        try:
            await self._events.aclose()
        finally:
            self._slot.give_back()


async def _events(
    service: Service, caller: Caller, name: str, after: Place, wait_s: float, fetch: Fetch
) -> AsyncGenerator[bytes]:
    listener = service.notifier.listen(name)
    limits = service.limits
    try:
        quiet_since = spoke = monotonic_s()
        yield b": welcome\n\n"
        while True:
            found = await fetch(after)
            if not await service.key_cache.is_good(caller.key_id):
                return
            now = monotonic_s()
            if found:
                after, quiet_since, spoke = found[-1].id, now, now
                for each in found:
                    yield each.written
                continue
            if now - quiet_since >= wait_s or service.notifier.is_closed:
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

    def __init__(self, events: Stream) -> None:
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", EVENT_TYPE.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
                return
            sending = asyncio.create_task(self._send(send))
            leaving = asyncio.create_task(until_gone(receive))
            try:
                await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in (sending, leaving):
                    each.cancel()
                await asyncio.gather(sending, leaving, return_exceptions=True)
        finally:
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        try:
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except NotFound:
            pass  # what it was about was deleted: there is nothing more to come
        except Exception as error:  # it is brought to a proper end all the same: whoever listens comes back
            log.error("a stream ended: %s", type(error).__name__)
        await send({"type": "http.response.body", "body": b""})
