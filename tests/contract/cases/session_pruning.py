"""Pruning: sessions by their last use, originals and deleted messages by the time they were archived."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast.errors import Conflict, InvalidInput, NotFound
from holdfast.stores.conversation.pruning import PrunedSessions
from tests.contract.cases.compactions import LONG, POLICY, session_with, shown_messages
from tests.contract.cases.runs import claim_run
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises

DAY = timedelta(days=1)


@contract()
async def idle_sessions_are_pruned_live_or_deleted(world: World) -> None:
    acme, other = world.tenant(), world.tenant("globex")
    old, removed = [(await session_with(acme, "a", "b"))[0] for _ in range(2)]
    theirs, _ = await session_with(other, "x")
    await acme.sessions.delete(removed.id)
    used, _ = await session_with(acme, "c")
    world.clock.advance(30 * 86_400)
    await acme.messages.append(used.id, role="user", content="still here")
    new, _ = await session_with(acme, "d")
    assert await acme.sessions.prune(idle=30 * DAY) == PrunedSessions(), "not idle for longer than the age"
    world.clock.advance(1)
    assert await acme.sessions.prune(idle=30 * DAY) == PrunedSessions(sessions=2)
    for value in (old, removed):
        with raises(NotFound):
            await acme.sessions.get(value.id, deleted=True)
    assert {session.id for session in await acme.sessions.list()} == {used.id, new.id}
    assert await other.sessions.get(theirs.id) is not None
    assert await acme.sessions.prune(idle=30 * DAY) == PrunedSessions()
    assert await acme.sessions.prune(idle=timedelta(days=999_999_999)) == PrunedSessions()


@contract()
async def pruning_continues_after_a_limit(world: World) -> None:
    acme = world.tenant()
    for number in range(7):
        world.clock.advance(60 * (number % 3))
        session, _ = await session_with(acme, "a")
        if number % 2:
            await acme.sessions.delete(session.id)
    world.clock.advance(3_600)
    result = []
    while True:
        pruned = await acme.sessions.prune(idle=timedelta(minutes=1), limit=3)
        result.append(pruned.sessions)
        if not pruned.more:
            break
    assert sum(result) == 7
    assert max(result) == 3
    assert await acme.sessions.count() == len(await acme.sessions.list(deleted=True)) == 0


@contract()
async def sessions_with_a_hold_or_in_use_are_not_pruned(world: World) -> None:
    acme = world.tenant()
    held, _ = await session_with(acme, LONG, LONG, LONG, "x", "y", token_count=100)
    event = await acme.compactions.compact(held.id, POLICY, summary="s")
    run = await claim_run(acme)
    loose, _ = await session_with(acme, "a")
    await acme.retention.hold(session_id=held.id, reason="a lawsuit")
    world.clock.advance(86_400)
    assert await acme.sessions.prune(idle=timedelta(hours=1), archives=timedelta(hours=1)) == PrunedSessions(
        sessions=1, kept=3
    )
    with raises(NotFound):
        await acme.sessions.get(loose.id)
    assert await acme.sessions.get(run.session_id) is not None
    assert await acme.compactions.archived(event_id=event.id) != []


@contract()
async def originals_and_deleted_messages_are_pruned_but_not_the_event(world: World) -> None:
    acme = world.tenant()
    session, created = await session_with(acme, LONG, LONG, LONG, "x", "y", token_count=100)
    event = await acme.compactions.compact(session.id, POLICY, summary="s")
    await acme.messages.delete(session.id, [created[4].id])
    world.clock.advance(86_400)
    fresh, _ = await session_with(acme, LONG, LONG, LONG, "x", "y", token_count=100)
    kept = await acme.compactions.compact(fresh.id, POLICY, summary="s")
    existing = await shown_messages(acme, session)
    pruned = await acme.sessions.prune(archives=timedelta(hours=1), limit=2)
    assert (pruned.originals + pruned.deleted_messages, pruned.more) == (2, True)
    rest = await acme.sessions.prune(archives=timedelta(hours=1))
    assert pruned.originals + rest.originals == event.messages_removed
    assert (pruned.deleted_messages + rest.deleted_messages, rest.more) == (1, False)
    assert await shown_messages(acme, session) == existing
    assert await acme.messages.deleted(session.id) == []
    assert await acme.compactions.get(event.id) == event, "the event is kept for audit"
    with raises(Conflict, saying=event.id, reason="originals_missing"):
        await acme.compactions.rollback(event.id)
    await acme.compactions.rollback(kept.id)


@contract()
async def an_invalid_age_is_rejected(world: World) -> None:
    acme = world.tenant()
    wrong: list[dict[str, Any]] = [
        {},
        {"idle": 30},
        {"idle": timedelta(seconds=-1)},
        {"archives": "90 days"},
        {"idle": DAY, "limit": 0},
        {"idle": DAY, "limit": True},
    ]
    for value in wrong:
        with raises(InvalidInput):
            await acme.sessions.prune(**value)
