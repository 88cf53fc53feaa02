"""Streams: a session's log and a run's steps as they come, as server-sent events that go on where they were cut off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from msgspec import Meta

from holdfast.errors import InvalidInput, NotFound, Unavailable

from ..operations import Header, operation
from ..service import Service
from ..streams import StreamEvent, follow
from ..wire import Uuid

_AT_ONCE = 100

After = Annotated[int, Meta(ge=0, le=2**53, description="Only what comes after this place.")]
LastEventId = Annotated[
    str | None, Header("Last-Event-ID"), Meta(description="The id of the last event that arrived; it goes on after it.")
]
Wait = Annotated[int, Meta(ge=0, le=3600, description="Seconds without anything new after which the stream ends.")]


@operation("GET", "/v1/tenants/{tenant}/sessions/{session_id}/events", raises=[NotFound], area="messages", streams=True)
async def stream_messages(
    service: Service,
    *,
    tenant: str,
    session_id: Uuid,
    after: After = 0,
    last_event_id: LastEventId = None,
    wait_s: Wait = 300,
) -> AsyncIterator[bytes]:
    """The messages of a session, those that are there and those that come, each an event `message` whose id is its place."""
    _room(service)
    there = service.tenant(tenant)
    await there.sessions.get(session_id)

    async def fetch(after: int) -> Sequence[StreamEvent]:
        page = await there.messages.list(session_id, after=after, limit=_AT_ONCE)
        return [StreamEvent(each.seq, "message", each) for each in page]

    return follow(service, f"{tenant}/{session_id}", _start(after, last_event_id), wait_s, fetch)


@operation("GET", "/v1/tenants/{tenant}/runs/{run_id}/events", raises=[NotFound], area="runs", streams=True)
async def stream_steps(
    service: Service,
    *,
    tenant: str,
    run_id: Uuid,
    after: After = 0,
    last_event_id: LastEventId = None,
    wait_s: Wait = 300,
) -> AsyncIterator[bytes]:
    """The steps of a run, those that are there and those that come, each an event `step` whose id is its iteration."""
    _room(service)
    there = service.tenant(tenant)
    await there.runs.get(run_id)

    async def fetch(after: int) -> Sequence[StreamEvent]:
        run = await there.runs.get(run_id)
        wanted = range(after + 1, min(run.iteration, after + _AT_ONCE) + 1)
        return [StreamEvent(each, "step", await there.steps.get(run_id, each)) for each in wanted]

    return follow(service, f"{tenant}/{run_id}", _start(after, last_event_id), wait_s, fetch)


def _start(after: int, last_event_id: str | None) -> int:
    if last_event_id is None:
        return after
    written = last_event_id.strip()
    if not written.isascii() or not written.isdecimal() or len(written) > 15:
        raise InvalidInput(f"Last-Event-ID is the id of an event as it arrived, not {last_event_id[:60]!r}")
    return int(written)


def _room(service: Service) -> None:
    if service.news.listeners >= service.limits.streams:
        raise Unavailable(f"there are streams = {service.limits.streams} already; come back later")
