"""Server-sent events: the stored events after the last one that the client received, then new ones.

A client that reconnects sends ``Last-Event-ID``, as browsers do automatically, and misses nothing: the id of an event is the
position of its row. A rewind frees positions, which later rows reuse, so a position belongs to a *course*: the rows that are
visible until the next rewind, or another operation that changes which rows have which positions. After the course has changed, an
event states up to which position the received rows are still valid, and the rows after it are sent again.
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
from .request_body import wait_for_disconnect
from .schemas import encode
from .slots import TakenSlot
from .state import Service

EVENT_TYPE = "text/event-stream"


class StreamPosition(Struct, frozen=True):
    """How far a stream has come, and on which course."""

    at: int
    course: int

    def event_id(self) -> bytes:
        """Return the id of an event: the position alone on the first course."""
        return b"%d.%d" % (self.course, self.at) if self.course else b"%d" % self.at


class StreamEvent(Struct, frozen=True):
    """One event: its position and its encoded form."""

    id: StreamPosition
    encoded: bytes


def event(id: StreamPosition, name: str, data: Any) -> StreamEvent:
    """Return an event with this name and data."""
    return StreamEvent(id, b"id: %s\nevent: %s\ndata: %s\n\n" % (id.event_id(), name.encode(), encode(data)))


Fetch = Callable[[StreamPosition], Awaitable[Sequence[StreamEvent]]]
"""Returns some of the events after a position, or none."""


def rewound(course: int, at: int) -> StreamEvent:
    """Return the event that received rows are valid only up to this position."""
    return event(StreamPosition(at, course), "rewound", {"place": at})


def follow(
    service: Service, caller: Caller, tenant: str, name: str, after: StreamPosition, wait_s: float, fetch: Fetch
) -> Stream:
    """Return a stream of the events after a position, then of new ones. It ends after ``wait_s`` without events, or when the
    server stops.

    It also ends when the caller's key is no longer valid: nothing is sent after that, and reconnecting is refused.

    Raises:
        Unavailable: the limit of streams in total or of this tenant is reached.
    """
    slot = service.streams.take(tenant)
    return Stream(slot, _events(service, caller, f"{tenant}/{name}", after, wait_s, fetch))


class Stream:
    """Encoded events. It keeps its slot until it is closed, even if it was never started."""

    def __init__(self, slot: TakenSlot, events: AsyncGenerator[bytes]) -> None:
        self._slot, self._events = slot, events

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._events)

    async def aclose(self) -> None:
        """End the stream and release its slot."""
        try:
            await self._events.aclose()
        finally:
            self._slot.release()


async def _events(
    service: Service, caller: Caller, name: str, after: StreamPosition, wait_s: float, fetch: Fetch
) -> AsyncGenerator[bytes]:
    listener = service.notifier.listen(name)
    limits = service.limits
    try:
        last_event_s = last_sent_s = monotonic_s()
        yield b": welcome\n\n"
        while True:
            events = await fetch(after)
            if not await service.key_cache.is_valid(caller.key_id):
                return
            now_s = monotonic_s()
            if events:
                after, last_event_s, last_sent_s = events[-1].id, now_s, now_s
                for stream_event in events:
                    yield stream_event.encoded
                continue
            if now_s - last_event_s >= wait_s or service.notifier.is_closed:
                return
            if now_s - last_sent_s >= limits.stream_beat_s:
                last_sent_s = now_s
                yield b": nothing new\n\n"
            await listener.wait(min(limits.stream_poll_s, max(wait_s - (now_s - last_event_s), 0.001)))
    finally:
        listener.close()


class EventStream:
    """A response that ends with its events or when the client disconnects."""

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
            disconnect = asyncio.create_task(wait_for_disconnect(receive))
            try:
                await asyncio.wait([sending, disconnect], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, disconnect):
                    task.cancel()
                await asyncio.gather(sending, disconnect, return_exceptions=True)
        finally:
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        try:
            async for chunk in self._events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except NotFound:
            pass  # the followed object was deleted: there are no further events
        except Exception as error:  # end the response properly: the client reconnects
            log.error("a stream ended: %s", type(error).__name__)
        await send({"type": "http.response.body", "body": b""})
