"""Pruning uses transactions of bounded size, and another call continues after an interruption."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import FixedClock, Holdfast
from holdfast.stores.conversation import pruning
from holdfast.stores.conversation.sessions import AsyncSessions
from holdfast.types import PrunedSessions

HOUR = timedelta(hours=1)


@pytest.fixture
def holdfast() -> Any:
    with Holdfast(":memory:", clock=FixedClock()) as hf:
        yield hf


def filled(hf: Holdfast, sessions: int, messages: int = 1) -> Any:
    """Return a tenant with sessions that are a day old."""
    acme = hf.tenant("acme")
    for _ in range(sessions):
        created = acme.sessions.create()
        for _ in range(messages):
            acme.messages.append(created.id, role="user", content="x")
    clock = hf._setting.clock
    assert isinstance(clock, FixedClock)
    clock.advance(86_400)
    return acme


def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many sessions each transaction removes."""
    sizes: list[int] = []
    original = pruning._purge_batch

    async def counted(*args: Any, **kwargs: Any) -> Any:
        batch = await original(*args, **kwargs)
        sizes.append(len(batch.ids))
        return batch

    monkeypatch.setattr(pruning, "_purge_batch", counted)
    return sizes


def test_a_transaction_removes_few_sessions(holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "BATCH_SESSIONS", 3)
    acme, sizes = filled(holdfast, 7), batches(monkeypatch)
    assert acme.sessions.prune(idle=HOUR) == PrunedSessions(sessions=7)
    assert sizes == [3, 3, 1, 0]


def test_a_transaction_ends_after_many_messages(holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "BATCH_ROWS", 4)
    acme, sizes = filled(holdfast, 5, messages=2), batches(monkeypatch)
    assert acme.sessions.prune(idle=HOUR) == PrunedSessions(sessions=5)
    assert sizes == [2, 2, 1, 0]


def test_the_next_call_continues_after_an_interruption(holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "BATCH_SESSIONS", 2)
    acme, purged = filled(holdfast, 7), []
    original = AsyncSessions._purge_session

    async def failing(self: AsyncSessions, connection: Any, session_id: str) -> None:
        if len(purged) == 3:
            raise KeyboardInterrupt
        purged.append(session_id)
        await original(self, connection, session_id)

    with monkeypatch.context() as patched:
        patched.setattr(AsyncSessions, "_purge_session", failing)
        with pytest.raises(KeyboardInterrupt):
            acme.sessions.prune(idle=HOUR)
    assert acme.sessions.count() == 5, "the first batch is committed, the second rolled back"
    assert acme.sessions.prune(idle=HOUR) == PrunedSessions(sessions=5)
    assert acme.sessions.count() == 0


@pytest.mark.parametrize(("limit", "rows"), [(3, 10_000), (None, 3)])
def test_all_originals_and_deleted_messages_of_a_session_are_removed(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch, limit: int | None, rows: int
) -> None:
    monkeypatch.setattr(pruning, "BATCH_ROWS", rows)
    acme = holdfast.tenant("acme")
    session = acme.sessions.create().id
    created = [acme.messages.append(session, role="user", content="x").id for _ in range(8)]
    acme.compactions.record(session, strategy="own", removed=created[:2])
    acme.messages.delete(session, created[2:7])
    clock = holdfast._setting.clock
    assert isinstance(clock, FixedClock)
    clock.advance(86_400)
    first = acme.sessions.prune(archives=HOUR, limit=limit)
    rest = PrunedSessions(originals=0)
    while first.more:
        assert first.originals + first.deleted_messages == limit
        rest = PrunedSessions(
            originals=rest.originals + first.originals, deleted_messages=rest.deleted_messages + first.deleted_messages
        )
        first = acme.sessions.prune(archives=HOUR, limit=limit)
    assert (rest.originals + first.originals, rest.deleted_messages + first.deleted_messages) == (2, 5)
    assert acme.messages.deleted(session) == []
