"""A save that changes no indexed column runs a cheaper statement; others keep the lists of sessions correct."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import FixedClock, Holdfast, SeededIds, TenantHandle
from holdfast.clock import to_us
from holdfast.stores.conversation.buffer.persistence import queries

MINUTE_S = 60


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def acme(clock: FixedClock) -> Iterator[TenantHandle]:
    with Holdfast(":memory:", clock=clock, ids=SeededIds(1)) as hf:
        yield hf.tenant("acme")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the statements that saves have run, in order."""
    names: list[str] = []
    for name in ("touch", "touch_this_minute"):
        query = queries.by_name[name]
        real = query.all

        async def noting(*arguments: object, real: object = real, name: str = name) -> object:
            names.append(name)
            return await real(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(query, "all", noting)
    return names


def keys(acme: TenantHandle, **filters: str) -> list[str]:
    return [session.key for session in acme.sessions.list(**filters)]


def test_a_save_in_the_same_minute_changes_counters_and_times_only(
    acme: TenantHandle, clock: FixedClock, run: list[str]
) -> None:
    acme.sessions.create(key="k", agent="planner", metadata={"a": 1})
    buffer = acme.sessions.buffered("k")
    clock.advance(1)
    buffer.add_message(role="user", content="hello", token_count=3)
    buffer.update_metadata({"b": 2})
    buffer.save()
    assert run == ["touch_this_minute"]
    session = acme.sessions.get(buffer.id)
    assert (session.message_count, session.token_count, session.metadata, session.agent) == (
        1,
        3,
        {"a": 1, "b": 2},
        "planner",
    )
    assert to_us(session.updated_at) == clock.now_us()
    assert [message.seq for message in acme.messages.list(buffer.id)] == [1]
    assert [hit.message.id for hit in acme.messages.search("hello")] == [acme.messages.list(buffer.id)[0].id]


def test_a_save_in_another_minute_moves_the_session_to_the_front(
    acme: TenantHandle, clock: FixedClock, run: list[str]
) -> None:
    acme.sessions.create(key="first")
    buffer = acme.sessions.buffered("first")
    clock.advance(MINUTE_S)
    acme.sessions.create(key="second")
    assert keys(acme) == ["second", "first"]
    clock.advance(MINUTE_S)
    buffer.add_message(role="user", content="hello")
    buffer.save()
    assert run == ["touch"]
    assert keys(acme) == ["first", "second"]


def test_a_save_with_another_agent_lists_the_session_under_it(acme: TenantHandle, run: list[str]) -> None:
    acme.sessions.create(key="k", agent="planner")
    buffer = acme.sessions.buffered("k")
    buffer.set_agent_info(agent="writer")
    buffer.save()
    assert run == ["touch"]
    assert (keys(acme, agent="planner"), keys(acme, agent="writer")) == ([], ["k"])
