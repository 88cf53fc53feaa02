"""Streams: a session's log and a run's steps as they come, as server-sent events that go on where they were cut off."""

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
from ..streams import Place, Stream, StreamEvent, event, follow, rewound

_AT_ONCE = 100
_EVENT_ID = re.compile(r"(?:([0-9]{1,15})\.)?([0-9]{1,15})")

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
    caller: Caller,
) -> Stream:
    """The messages of a session, those that are there and those that come, each an event `message` whose id is its place.

    An event `rewound` says that the session shows another branch now: up to its `place` it is the same, and the rest follows.
    """
    there = service.tenant(tenant)
    start = _start(after, last_event_id, await there.branches.current(session_id))

    async def fetch(after: Place) -> Sequence[StreamEvent]:
        branch = await there.branches.current(session_id)
        if branch != after.course:
            common = await _common(there, session_id, after.course, branch)
            return [rewound(branch, min(after.at, common))]
        page = await there.messages.list(
            session_id, after=after.at, limit=_AT_ONCE, max_bytes=service.limits.stream_bytes
        )
        if page and await there.branches.current(session_id) != branch:
            return await fetch(after)  # whose they are is not certain
        return [event(Place(each.seq, branch), "message", each) for each in page]

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
    """The steps of a run, those that are there and those that come, each an event `step` whose id is its iteration.

    An event `rewound` says that the run was taken back, or that this was undone: up to its `place` it is the same, and the
    rest follows.
    """
    there = service.tenant(tenant)
    await there.runs.get(run_id)
    start = _start(after, last_event_id, (await _moves(there, run_id))[0])

    async def fetch(after: Place) -> Sequence[StreamEvent]:
        run = await there.runs.get(run_id)
        moves, lowest = await _moves(there, run_id)
        if moves != after.course:
            return [rewound(moves, min(after.at, lowest))]
        steps: list[StreamEvent] = []
        size = 0
        try:
            for each in range(after.at + 1, min(run.iteration, after.at + _AT_ONCE) + 1):
                steps.append(event(Place(each, moves), "step", await there.steps.get(run_id, each)))
                size += len(steps[-1].written)
                if size > service.limits.stream_bytes:
                    break
        except NotFound:
            if (await _moves(there, run_id))[0] == moves:
                raise
            return await fetch(after)
        if steps and (await _moves(there, run_id))[0] != moves:
            return await fetch(after)
        return steps

    return follow(service, caller, tenant, run_id, start, wait_s, fetch)


async def _common(there: AsyncTenantHandle, session_id: str, one: int, other: int) -> int:
    """The last place that two branches of a session share; 0 if that is not known."""
    parents: dict[int, tuple[int | None, int]] = {}
    cursor = None
    while True:
        page = await there.branches.list(session_id, limit=_AT_ONCE, cursor=cursor)
        parents |= {each.number: (each.parent, each.forked_after) for each in page}
        cursor = page.next
        if cursor is None:
            break
    ours, theirs = _shared(parents, one), _shared(parents, other)
    return max((min(ours[branch], theirs[branch]) for branch in ours.keys() & theirs.keys()), default=0)


def _shared(parents: Mapping[int, tuple[int | None, int]], branch: int) -> dict[int, int]:
    """Up to which place a branch is the same as each that it came from."""
    found: dict[int, int] = {}
    number: int | None = branch
    place = 2**63
    while number is not None and number in parents:
        found[number] = place
        number, forked_after = parents[number]
        place = min(place, forked_after)
    return found


async def _moves(there: AsyncTenantHandle, run_id: str) -> tuple[int, int]:
    """How often a run was taken back or that was undone, and the lowest step it ever went back to."""
    moves, lowest = 0, 2**63
    cursor = None
    while True:
        page = await there.rewinds.list(run_id, limit=_AT_ONCE, cursor=cursor)
        for each in page:
            moves += 2 if each.status in ("redoing", "redone") else 1
            lowest = min(lowest, each.to_step)
        cursor = page.next
        if cursor is None:
            return moves, lowest if moves else 0


def _start(after: int, last_event_id: str | None, course: int) -> Place:
    if last_event_id is None:
        return Place(after, course)
    found = _EVENT_ID.fullmatch(last_event_id.strip())
    if found is None:
        raise InvalidInput(f"Last-Event-ID is the id of an event as it arrived, not {last_event_id[:60]!r}")
    return Place(int(found[2]), int(found[1] or 0))
