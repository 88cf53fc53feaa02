"""Buffered sessions when answers are lost, calls are run twice, and tasks meet: nothing is doubled, nothing is forgotten."""

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


class Undone(Exception):
    """What makes a savepoint forget."""


class Unreliable:
    """An engine whose answers get lost: ``losses`` says what becomes of the next writes."""

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
    """As after a deadlock: the first time is undone."""
    try:
        async with connection.savepoint():
            await call(connection)
            raise Undone
    except Undone:
        return await call(connection)


class World:
    """A tenant on an engine that loses answers, and the same tenant as others see it."""

    def __init__(self, hf: Holdfast) -> None:
        self.engine = Unreliable(hf._engine)
        self.others = hf.tenant("acme")
        self.handle = TenantHandle(self.engine, Scope("acme", hf._setting))

    def stored(self, buffer: BufferedSession) -> list[str]:
        return texts(self.others.messages.list(buffer.id))

    def agrees(self, buffer: BufferedSession) -> None:
        """What is stored is what the buffer shows."""
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


def add(buffer: Any, *said: str) -> None:
    for each in said:
        buffer.add_message(role="user", content=each, token_count=1)


LOSSES = ["before", "after", "unavailable", "interrupted"]


def lose(world: World, buffer: BufferedSession, loss: str) -> None:
    world.engine.losses.append(loss)
    errors = {"unavailable": Unavailable, "interrupted": KeyboardInterrupt}
    with pytest.raises(errors.get(loss, OutcomeUnknown)):
        buffer.save()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("new", [True, False])
def test_a_save_is_repeated_without_doubling(world: World, loss: str, new: bool) -> None:
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
    world.agrees(buffer)
    assert not buffer.has_unsaved


@pytest.mark.parametrize("first", LOSSES)
@pytest.mark.parametrize("second", LOSSES)
def test_what_is_added_between_lost_answers_is_saved_once(world: World, first: str, second: str) -> None:
    buffer = world.handle.sessions.buffered("k")
    add(buffer, "a")
    lose(world, buffer, first)
    add(buffer, "b")
    buffer.accumulate_tokens(output_tokens=1)
    lose(world, buffer, second)
    add(buffer, "c")
    buffer.save()
    assert world.stored(buffer) == ["a", "b", "c"]
    world.agrees(buffer)


@pytest.mark.parametrize("loss", ["before", "after"])
def test_somebody_else_after_a_lost_answer_is_a_conflict(world: World, loss: str) -> None:
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
    world.agrees(buffer)


def test_a_change_of_others_that_only_a_count_tells_is_a_conflict_too(world: World) -> None:
    """The save that was lost is found, but what it left is no longer as it was."""
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
    shown = buffer.history()
    buffer.save()
    assert world.stored(buffer) == ["2", "3", "4", "5"]
    assert buffer.history() == shown
    world.agrees(buffer)
    assert len(world.others.branches.list(buffer.id)) == 2


def test_a_message_that_a_lost_save_stored_may_come_after_a_new_one(world: World) -> None:
    buffer = world.handle.sessions.buffered("k")
    add(buffer, "0", "1")
    lose(world, buffer, "after")
    buffer.set_history([NewMessage(role="user", content="first"), *buffer.history()])
    add(buffer, "last")
    buffer.save()
    assert world.stored(buffer) == ["first", "0", "1", "last"]
    world.agrees(buffer)


def test_a_call_that_is_run_again_writes_the_same(world: World) -> None:
    buffer = world.handle.sessions.buffered("k")
    add(buffer, "0", "1", "2")
    world.engine.losses.append("twice")
    buffer.save()
    world.agrees(buffer)
    buffer.set_history([NewMessage(role="user", content="new"), *buffer.history()[1:]])
    shown = buffer.history()
    world.engine.losses.append("twice")
    buffer.save()
    assert buffer.history() == shown
    world.agrees(buffer)


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
def test_whatever_is_done_and_lost_the_last_save_stores_what_is_shown(steps: list[tuple[str, Any]]) -> None:
    with Holdfast(":memory:", clock=FixedClock(), ids=SeededIds()) as hf:
        world = World(hf)
        buffer = world.handle.sessions.buffered("k")
        said: list[str] = []
        tokens = number = 0
        for what, how in steps:
            if what == "add":
                new = [str(number + each) for each in range(how)]
                number += how
                add(buffer, *new)
                said += new
            elif what == "truncate":
                buffer.truncate_history(how)
                said = said[-how:] if how > 0 else []
            elif what == "keep":
                there = buffer.history()
                buffer.set_history([there[each] for each in how if each < len(there)])
                said = [said[each] for each in how if each < len(said)]
            elif what == "insert":
                place = min(how, len(said))
                there = buffer.history()
                buffer.set_history(
                    [*there[:place], NewMessage(role="user", content="in", token_count=1), *there[place:]]
                )
                said.insert(place, "in")
            elif what == "tokens":
                buffer.accumulate_tokens(input_tokens=how)
                tokens += how
            elif what == "reset":
                buffer.reset()
                said = []
            elif how in (None, "twice"):
                world.engine.losses = [how]
                buffer.save()
                world.agrees(buffer)
            else:
                world.engine.losses = [how]
                with suppress(OutcomeUnknown, Unavailable, KeyboardInterrupt):
                    buffer.save()  # where nothing was changed, nothing is asked
                world.engine.losses = []
            assert texts(buffer.history()) == said
        buffer.save()
        world.agrees(buffer)
        assert (world.stored(buffer), buffer.state.input_tokens) == (said, tokens)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9, unique=True).map(sorted), st.data())
def test_an_arrangement_keeps_the_order_and_copies_the_rest(stored: list[int], data: st.DataObject) -> None:
    class Item:
        def __init__(self, id: str) -> None:
            self.id = id

    items: Any = tuple(Item(str(number)) for number in stored)
    choice = st.lists(st.sampled_from(items), max_size=9)
    wanted: Any = tuple(data.draw(choice))
    kept, whole = arrange(items, wanted, lambda item: Item(f"copy of {item.id}"))  # type: ignore[arg-type, return-value]
    assert whole[: len(kept)] == kept == wanted[: len(kept)]
    assert [item.id for item in whole[len(kept) :]] == [f"copy of {item.id}" for item in wanted[len(kept) :]]
    order = [items.index(item) for item in kept]
    assert order == sorted(set(order))
    if len(kept) < len(wanted):
        assert items.index(wanted[len(kept)]) <= max(order, default=-1), "more could have been kept"


class Gated:
    """An engine whose writes wait until they are let through."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.arrived, self.gate = engine, asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def write(self, call: Any) -> Any:
        self.arrived.set()
        await self.gate.wait()
        return await self._engine.write(call)


def test_messages_may_be_added_while_a_save_is_under_way_and_nothing_else() -> None:
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
                with pytest.raises(Conflict, match="is being saved"):
                    call()
            for again in (buffer.save, buffer.reload):
                with pytest.raises(Conflict, match="is being saved"):
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


def test_two_who_ask_at_once_get_the_same_buffer() -> None:
    async def story() -> None:
        async with AsyncHoldfast(":memory:") as hf:
            acme = hf.tenant("acme")
            one, two = await asyncio.gather(acme.sessions.buffered("k"), acme.sessions.buffered("k"))
            assert one is two

    asyncio.run(story())


def test_nothing_is_read_for_a_buffer_that_is_kept(world: World) -> None:
    class Silent(Unreliable):
        async def read(self, call: Any) -> Any:
            raise AssertionError("it was read again")

    buffer = world.handle.sessions.buffered("k")
    engine = Silent(world.engine._engine)
    buffer._buffer.cache._engine = engine  # type: ignore[assignment]
    assert world.handle.sessions.buffered("k") is buffer
    buffer.save()
    assert world.handle.sessions.buffered("k", agent="new") is buffer
    assert buffer.agent == "new"
    with pytest.raises(AssertionError, match="read again"):
        world.handle.sessions.buffered("other")


def test_the_buffers_of_a_handle_take_no_more_room_than_the_limit() -> None:
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


def test_a_buffer_says_what_it_is(world: World) -> None:
    buffer = world.handle.sessions.buffered("k", user="ada")
    assert repr(buffer) == "<BufferedSession 'k' of 'ada', 0 messages>"
    add(buffer, "x")
    assert repr(buffer) == "<BufferedSession 'k' of 'ada', 1 messages, unsaved changes>"


def test_the_loss_window_is_stated_where_people_look() -> None:
    for kind in (BufferedSession, AsyncBufferedSession):
        assert "Unsaved changes are lost if the process ends" in (kind.__doc__ or "")
