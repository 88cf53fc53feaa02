"""Buffered sessions with lost answers, repeated calls and concurrent tasks: nothing is duplicated or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import AsyncHoldfast, FixedClock, Holdfast, Limits, NewMessage, SeededIds, TenantHandle
from holdfast.core.scope import Scope
from holdfast.engines.protocol import Connection
from holdfast.errors import Conflict, LimitExceeded, OutcomeUnknown, Unavailable
from holdfast.stores.conversation.buffer.persistence import arrange
from holdfast.tenant_handles import AsyncTenantHandle
from holdfast.types import AsyncBufferedSession, BufferedSession
from tests.errors import raises


class RollBack(Exception):
    """Rolls back a savepoint."""


class Unreliable:
    """An engine that loses answers: ``losses`` lists the outcomes of the next writes."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.losses = engine, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def write(self, call: Any) -> Any:
        loss = self.losses.pop(0) if self.losses else None
        if loss in ("before", "unavailable"):
            raise Unavailable if loss == "unavailable" else OutcomeUnknown
        if loss == "twice":
            return await self._engine.write(lambda connection: _twice(call, connection))
        answer = await self._engine.write(call)
        if loss == "after":
            raise OutcomeUnknown
        if loss == "interrupted":
            raise KeyboardInterrupt
        return answer


async def _twice(call: Any, connection: Connection) -> Any:
    """Run a call twice, as after a deadlock: the first run is rolled back."""
    try:
        async with connection.savepoint():
            await call(connection)
            raise RollBack
    except RollBack:
        return await call(connection)


class World:
    """A tenant on an engine that loses answers, and a second handle for the same tenant."""

    def __init__(self, hf: Holdfast) -> None:
        self.engine = Unreliable(hf._engine)
        self.others = hf.tenant("acme")
        self.handle = TenantHandle(self.engine, Scope("acme", hf._setting))

    def stored(self, buffer: BufferedSession) -> list[str]:
        return texts(self.others.messages.list(buffer.id))

    def check_stored(self, buffer: BufferedSession) -> None:
        """Check that the stored session equals the buffer."""
        assert [*self.others.messages.list(buffer.id)] == buffer.history()
        fresh = TenantHandle(self.engine._engine, self.others._scope).sessions.buffered(buffer.key)
        assert (fresh.state, fresh.metadata, fresh.agent) == (buffer.state, buffer.metadata, buffer.agent)
        session = self.others.sessions.get(buffer.id)
        assert session.message_count == len(buffer.history())
        assert session.token_count == sum(message.token_count for message in buffer.history())


def texts(messages: Any) -> list[str]:
    return [message.content[0]["text"] for message in messages]


@pytest.fixture
def world() -> Iterator[World]:
    with Holdfast(":memory:", clock=FixedClock(), ids=SeededIds()) as hf:
        yield World(hf)


def add(buffer: Any, *contents: str) -> None:
    for content in contents:
        buffer.add_message(role="user", content=content, token_count=1)


LOSSES = ["before", "after", "unavailable", "interrupted"]


def lose(world: World, buffer: BufferedSession, loss: str) -> None:
    world.engine.losses.append(loss)
    errors = {"unavailable": Unavailable, "interrupted": KeyboardInterrupt}
    with pytest.raises(errors.get(loss, OutcomeUnknown)):
        buffer.save()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("new", [True, False])
def test_a_repeated_save_writes_nothing_twice(world: World, loss: str, new: bool) -> None:
    buffer = world.handle.sessions.buffered("k")
    if not new:
        add(buffer, "0")
        buffer.save()
    add(buffer, "a", "b")
    buffer.accumulate_tokens(input_tokens=10)
    lose(world, buffer, loss)
    assert texts(buffer.history())[-2:] == ["a", "b"]
    assert buffer.has_unsaved
    buffer.save()
    assert world.stored(buffer) == [*([] if new else ["0"]), "a", "b"]
    assert buffer.state.input_tokens == 10
    world.check_stored(buffer)
    assert not buffer.has_unsaved


@pytest.mark.parametrize("first", LOSSES)
@pytest.mark.parametrize("second", LOSSES)
def test_messages_added_between_lost_answers_are_saved_once(world: World, first: str, second: str) -> None:
    buffer = world.handle.sessions.buffered("k")
    add(buffer, "a")
    lose(world, buffer, first)
    add(buffer, "b")
    buffer.accumulate_tokens(output_tokens=1)
    lose(world, buffer, second)
    add(buffer, "c")
    buffer.save()
    assert world.stored(buffer) == ["a", "b", "c"]
    world.check_stored(buffer)


@pytest.mark.parametrize("loss", ["before", "after"])
def test_another_writer_after_a_lost_answer_is_a_conflict(world: World, loss: str) -> None:
    buffer = world.handle.sessions.buffered("k")
    add(buffer, "0")
    buffer.save()
    add(buffer, "mine")
    lose(world, buffer, loss)
    world.others.messages.append(buffer.id, role="user", content="theirs")
    with pytest.raises(Conflict):
        buffer.save()
    mine = buffer.unsaved()
    buffer.reload()
    assert texts(buffer.history()) == (["0", "theirs"] if loss == "before" else ["0", "mine", "theirs"])
    for message in mine:
        buffer.add_message(role=message.role, content=message.content, token_count=1, id=message.id)
    buffer.save()
    assert sorted(world.stored(buffer)) == ["0", "mine", "theirs"]
    world.check_stored(buffer)


def test_a_change_that_only_a_count_shows_is_a_conflict(world: World) -> None:
    """The lost save is found, but its session was changed afterwards."""
    buffer = world.handle.sessions.buffered("k")
    add(buffer, "a", "b")
    lose(world, buffer, "after")
    world.others.messages.delete(buffer.id, [buffer.history()[0].id])
    with pytest.raises(Conflict):
        buffer.save()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_truncation_whose_answer_was_lost(world: World, loss: str) -> None:
    buffer = world.handle.sessions.buffered("k")
    add(buffer, "0", "1", "2", "3")
    buffer.save()
    buffer.truncate_history(2)
    add(buffer, "4")
    lose(world, buffer, loss)
    add(buffer, "5")
    history = buffer.history()
    buffer.save()
    assert world.stored(buffer) == ["2", "3", "4", "5"]
    assert buffer.history() == history
    world.check_stored(buffer)
    assert len(world.others.branches.list(buffer.id)) == 2


def test_a_message_that_a_lost_save_stored_may_come_after_a_new_one(world: World) -> None:
    buffer = world.handle.sessions.buffered("k")
    add(buffer, "0", "1")
    lose(world, buffer, "after")
    buffer.set_history([NewMessage(role="user", content="first"), *buffer.history()])
    add(buffer, "last")
    buffer.save()
    assert world.stored(buffer) == ["first", "0", "1", "last"]
    world.check_stored(buffer)


def test_a_call_that_is_run_again_writes_the_same(world: World) -> None:
    buffer = world.handle.sessions.buffered("k")
    add(buffer, "0", "1", "2")
    world.engine.losses.append("twice")
    buffer.save()
    world.check_stored(buffer)
    buffer.set_history([NewMessage(role="user", content="new"), *buffer.history()[1:]])
    history = buffer.history()
    world.engine.losses.append("twice")
    buffer.save()
    assert buffer.history() == history
    world.check_stored(buffer)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3)),
        st.tuples(st.just("truncate"), st.integers(-1, 4)),
        st.tuples(st.just("keep"), st.lists(st.integers(0, 6), max_size=6)),
        st.tuples(st.just("insert"), st.integers(0, 6)),
        st.tuples(st.just("tokens"), st.integers(0, 9)),
        st.tuples(st.just("reset"), st.none()),
        st.tuples(st.just("save"), st.sampled_from([None, None, "twice", *LOSSES])),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_after_any_actions_and_losses_the_last_save_stores_the_history(steps: list[tuple[str, Any]]) -> None:
    with Holdfast(":memory:", clock=FixedClock(), ids=SeededIds()) as hf:
        world = World(hf)
        buffer = world.handle.sessions.buffered("k")
        expected: list[str] = []
        tokens = number = 0
        for action, argument in steps:
            if action == "add":
                new = [str(number + index) for index in range(argument)]
                number += argument
                add(buffer, *new)
                expected += new
            elif action == "truncate":
                buffer.truncate_history(argument)
                expected = expected[-argument:] if argument > 0 else []
            elif action == "keep":
                history = buffer.history()
                buffer.set_history([history[index] for index in argument if index < len(history)])
                expected = [expected[index] for index in argument if index < len(expected)]
            elif action == "insert":
                at = min(argument, len(expected))
                history = buffer.history()
                buffer.set_history([*history[:at], NewMessage(role="user", content="in", token_count=1), *history[at:]])
                expected.insert(at, "in")
            elif action == "tokens":
                buffer.accumulate_tokens(input_tokens=argument)
                tokens += argument
            elif action == "reset":
                buffer.reset()
                expected = []
            elif argument in (None, "twice"):
                world.engine.losses = [argument]
                buffer.save()
                world.check_stored(buffer)
            else:
                world.engine.losses = [argument]
                with suppress(OutcomeUnknown, Unavailable, KeyboardInterrupt):
                    buffer.save()  # a save without changes runs no query
                world.engine.losses = []
            assert texts(buffer.history()) == expected
        buffer.save()
        world.check_stored(buffer)
        assert (world.stored(buffer), buffer.state.input_tokens) == (expected, tokens)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9, unique=True).map(sorted), st.data())
def test_arrange_keeps_the_longest_prefix_and_copies_the_rest(stored_items: list[int], data: st.DataObject) -> None:
    class Item:
        def __init__(self, id: str) -> None:
            self.id = id

    items: Any = tuple(Item(str(number)) for number in stored_items)
    choice = st.lists(st.sampled_from(items), max_size=9)
    target_items: Any = tuple(data.draw(choice))
    kept, whole = arrange(items, target_items, lambda item: Item(f"copy of {item.id}"))  # type: ignore[arg-type, return-value]
    assert whole[: len(kept)] == kept == target_items[: len(kept)]
    assert [item.id for item in whole[len(kept) :]] == [f"copy of {item.id}" for item in target_items[len(kept) :]]
    order = [items.index(item) for item in kept]
    assert order == sorted(set(order))
    if len(kept) < len(target_items):
        assert items.index(target_items[len(kept)]) <= max(order, default=-1), "a longer prefix could have been kept"


class Gated:
    """An engine whose writes wait for a gate."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.arrived, self.gate = engine, asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def write(self, call: Any) -> Any:
        self.arrived.set()
        await self.gate.wait()
        return await self._engine.write(call)


def test_only_messages_may_be_added_during_a_save() -> None:
    async def story() -> None:
        async with AsyncHoldfast(":memory:", clock=FixedClock(), ids=SeededIds()) as hf:
            engine = Gated(hf._engine)
            handle = AsyncTenantHandle(engine, Scope("acme", hf._setting))
            buffer = await handle.sessions.buffered("k")
            add(buffer, "a", "b")
            saving = asyncio.create_task(buffer.save())
            await engine.arrived.wait()
            add(buffer, "c")
            buffer.accumulate_tokens(input_tokens=1)
            for call in (
                lambda: buffer.truncate_history(1),
                buffer.reset,
                lambda: buffer.set_history([]),
                buffer.discard,
            ):
                with raises(Conflict, reason="busy"):
                    call()
            for again in (buffer.save, buffer.reload):
                with raises(Conflict, reason="busy"):
                    await again()
            engine.gate.set()
            await saving
            assert texts(buffer.history()) == ["a", "b", "c"]
            assert texts(buffer.unsaved()) == ["c"]
            assert buffer.has_unsaved
            assert texts(await handle.messages.list(buffer.id)) == ["a", "b"]
            await buffer.save()
            assert [*await handle.messages.list(buffer.id)] == buffer.history()
            assert (await hf.tenant("acme").sessions.buffered("k")).state.input_tokens == 1

    asyncio.run(story())


def test_a_save_that_was_cancelled_can_be_repeated() -> None:
    async def story() -> None:
        async with AsyncHoldfast(":memory:") as hf:
            engine = Gated(hf._engine)
            buffer = await AsyncTenantHandle(engine, Scope("acme", hf._setting)).sessions.buffered("k")
            add(buffer, "a")
            saving = asyncio.create_task(buffer.save())
            await engine.arrived.wait()
            saving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await saving
            engine.gate.set()
            await buffer.save()
            assert texts(await hf.tenant("acme").messages.list(buffer.id)) == ["a"]

    asyncio.run(story())


def test_concurrent_opens_return_the_same_buffer() -> None:
    async def story() -> None:
        async with AsyncHoldfast(":memory:") as hf:
            acme = hf.tenant("acme")
            one, two = await asyncio.gather(acme.sessions.buffered("k"), acme.sessions.buffered("k"))
            assert one is two

    asyncio.run(story())


def test_a_kept_buffer_is_not_read_again(world: World) -> None:
    class Silent(Unreliable):
        async def read(self, call: Any) -> Any:
            raise AssertionError("the database was read")

    buffer = world.handle.sessions.buffered("k")
    engine = Silent(world.engine._engine)
    buffer._buffer.cache._engine = engine  # type: ignore[assignment]
    assert world.handle.sessions.buffered("k") is buffer
    buffer.save()
    assert world.handle.sessions.buffered("k", agent="new") is buffer
    assert buffer.agent == "new"
    with pytest.raises(AssertionError, match="database was read"):
        world.handle.sessions.buffered("other")


def test_a_handle_keeps_no_more_buffers_than_the_limit() -> None:
    with Holdfast(":memory:", limits=Limits(buffered_sessions=5)) as hf:
        acme = hf.tenant("acme")
        for number in range(50):
            acme.sessions.buffered(f"k{number}")
        assert len(acme.sessions._async._buffers._kept) == 5
        for number in range(50):
            add(acme.sessions.buffered(f"d{number}"), "x")
            if number >= 4:
                with pytest.raises(LimitExceeded):
                    acme.sessions.buffered("one more")
                acme.sessions.buffered(f"d{number - 4}").discard()
        assert len(acme.sessions._async._buffers._kept) <= 5


def test_the_repr_of_a_buffer(world: World) -> None:
    buffer = world.handle.sessions.buffered("k", user="ada")
    assert repr(buffer) == "<BufferedSession 'k' of 'ada', 0 messages>"
    add(buffer, "x")
    assert repr(buffer) == "<BufferedSession 'k' of 'ada', 1 messages, unsaved changes>"


def test_the_docstrings_state_that_unsaved_changes_can_be_lost() -> None:
    for kind in (BufferedSession, AsyncBufferedSession):
        assert "Unsaved changes are lost if the process ends" in (kind.__doc__ or "")
