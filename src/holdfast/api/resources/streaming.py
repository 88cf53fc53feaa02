"""Streams of a session's messages and a run's steps, as server-sent events that can be resumed after a disconnect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta

from holdfast import AsyncTenantHandle
from holdfast.errors import InvalidInput, NotFound

from ..auth import Caller
from ..operations import Header, operation
from ..schemas import Uuid
from ..state import Service
from ..streams import Stream, StreamEvent, StreamPosition, event, follow, rewound

_BATCH = 100
_EVENT_ID = re.compile(r"(?:([0-9]{1,15})\.)?([0-9]{1,15})")

After = Annotated[int, Meta(ge=0, le=2**53, description="Only events after this position.")]
LastEventId = Annotated[
    str | None,
    Header("Last-Event-ID"),
    Meta(description="The id of the last received event; the stream resumes after it."),
]
Wait = Annotated[int, Meta(ge=0, le=3600, description="Seconds without a new event after which the stream ends.")]


@operation("GET", "/v1/tenants/{tenant}/sessions/{session_id}/events", raises=[NotFound], area="messages", streams=True)
async def stream_messages(
    service: Service,
    *,
    tenant: str,
    session_id: Uuid,
    after: After = 0,
    last_event_id: LastEventId = None,
    wait_s: Wait = 300,
    caller: Caller,
) -> Stream:
    """Stream the stored and new messages of a session, each as an event `message` whose id is its position.

    An event `rewound` states that the session now shows another branch: messages up to its `place` are unchanged, and those after
    it follow.
    """
    handle = service.tenant(tenant)
    start = _start(after, last_event_id, await handle.branches.current(session_id))

    async def fetch(after: StreamPosition) -> Sequence[StreamEvent]:
        branch = await handle.branches.current(session_id)
        if branch != after.course:
            common = await _common_position(handle, session_id, after.course, branch)
            return [rewound(branch, min(after.at, common))]
        page = await handle.messages.list(
            session_id, after=after.at, limit=_BATCH, max_bytes=service.limits.stream_bytes
        )
        if page and await handle.branches.current(session_id) != branch:
            return await fetch(after)  # the branch changed while the page was read
        return [event(StreamPosition(message.seq, branch), "message", message) for message in page]

    return follow(service, caller, tenant, session_id, start, wait_s, fetch)


@operation("GET", "/v1/tenants/{tenant}/runs/{run_id}/events", raises=[NotFound], area="runs", streams=True)
async def stream_steps(
    service: Service,
    *,
    tenant: str,
    run_id: Uuid,
    after: After = 0,
    last_event_id: LastEventId = None,
    wait_s: Wait = 300,
    caller: Caller,
) -> Stream:
    """Stream the stored and new steps of a run, each as an event `step` whose id is its iteration.

    An event `rewound` states that the run was rewound, or a rewind was undone: steps up to its `place` are unchanged, and those
    after it follow.
    """
    handle = service.tenant(tenant)
    await handle.runs.get(run_id)
    start = _start(after, last_event_id, (await _rewind_count(handle, run_id))[0])

    async def fetch(after: StreamPosition) -> Sequence[StreamEvent]:
        run = await handle.runs.get(run_id)
        rewinds, lowest = await _rewind_count(handle, run_id)
        if rewinds != after.course:
            return [rewound(rewinds, min(after.at, lowest))]
        steps: list[StreamEvent] = []
        size = 0
        try:
            for iteration in range(after.at + 1, min(run.iteration, after.at + _BATCH) + 1):
                step = await handle.steps.get(run_id, iteration)
                steps.append(event(StreamPosition(iteration, rewinds), "step", step))
                size += len(steps[-1].encoded)
                if size > service.limits.stream_bytes:
                    break
        except NotFound:
            if (await _rewind_count(handle, run_id))[0] == rewinds:
                raise
            return await fetch(after)
        if steps and (await _rewind_count(handle, run_id))[0] != rewinds:
            return await fetch(after)
        return steps

    return follow(service, caller, tenant, run_id, start, wait_s, fetch)


async def _common_position(handle: AsyncTenantHandle, session_id: str, one: int, other: int) -> int:
    """Return the last position that two branches of a session share; 0 if that is unknown."""
    parents: dict[int, tuple[int | None, int]] = {}
    cursor = None
    while True:
        page = await handle.branches.list(session_id, limit=_BATCH, cursor=cursor)
        parents |= {branch.number: (branch.parent, branch.forked_after) for branch in page}
        cursor = page.next
        if cursor is None:
            break
    ours, theirs = _shared_with_ancestors(parents, one), _shared_with_ancestors(parents, other)
    return max((min(ours[branch], theirs[branch]) for branch in ours.keys() & theirs.keys()), default=0)


def _shared_with_ancestors(parents: Mapping[int, tuple[int | None, int]], branch: int) -> dict[int, int]:
    """Return the last position that a branch shares with each of its ancestors."""
    positions: dict[int, int] = {}
    number: int | None = branch
    position = 2**63
    while number is not None and number in parents:
        positions[number] = position
        number, forked_after = parents[number]
        position = min(position, forked_after)
    return positions


async def _rewind_count(handle: AsyncTenantHandle, run_id: str) -> tuple[int, int]:
    """Return the number of rewinds and undone rewinds of a run, and the lowest step that it was rewound to."""
    count, lowest = 0, 2**63
    cursor = None
    while True:
        page = await handle.rewinds.list(run_id, limit=_BATCH, cursor=cursor)
        for rewind in page:
            count += 2 if rewind.status in ("redoing", "redone") else 1
            lowest = min(lowest, rewind.to_step)
        cursor = page.next
        if cursor is None:
            return count, lowest if count else 0


def _start(after: int, last_event_id: str | None, course: int) -> StreamPosition:
    if last_event_id is None:
        return StreamPosition(after, course)
    match = _EVENT_ID.fullmatch(last_event_id.strip())
    if match is None:
        message = f"Last-Event-ID must be the id of a received event, not {last_event_id[:60]!r}"
        raise InvalidInput(message, field="Last-Event-ID")
    return StreamPosition(int(match[2]), int(match[1] or 0))
