"""The actor context is kept per task, thread and executor, and is never shared."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import AsyncHoldfast, Holdfast, TenantHandle
from holdfast.core.actor_context import ActingBlock, ActorContext
from holdfast.errors import HoldfastError

NO_ACTOR = ActorContext()


@pytest.fixture
def acme() -> Iterator[TenantHandle]:
    with Holdfast(":memory:") as hf:
        yield hf.tenant("acme")


def test_a_thread_does_not_inherit_the_context_of_its_starter(acme: TenantHandle) -> None:
    with acme.acting(user="ada"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(copy_context().run, acme.acting_now).result() == ActorContext(user="ada")
        # A thread with an empty context: some versions of Python let threads inherit it.
        assert pool.submit(_in_empty_context, acme.acting_now).result() == NO_ACTOR
    assert acme.acting_now() == NO_ACTOR


def _in_empty_context(call: Callable[[], Any]) -> Any:
    from contextvars import Context

    return Context().run(call)


def test_a_block_in_a_thread_is_invisible_to_others(acme: TenantHandle) -> None:
    inside, leave = threading.Event(), threading.Event()

    def act() -> None:
        with acme.acting(user="ada"):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=act)
    thread.start()
    assert inside.wait(60)
    assert acme.acting_now() == NO_ACTOR
    assert acme.sessions.create().user == ""
    leave.set()
    thread.join()


def test_a_thread_that_writes_for_others_uses_their_contexts(tmp_path: Path) -> None:
    """Waiting threads share the commit of a leader; each call keeps the context of its caller."""
    with Holdfast(str(tmp_path / "a.db")) as hf:
        acme = hf.tenant("acme")
        start = threading.Barrier(8)

        def act(user: str) -> list[str]:
            start.wait(60)
            created = []
            for _ in range(20):
                with acme.acting(user=user):
                    created.append(acme.sessions.create().user)
            return created

        with ThreadPoolExecutor(8) as pool:
            users = [f"user {number}" for number in range(8)]
            for user, created in zip(users, pool.map(act, users), strict=True):
                assert created == [user] * 20


def test_an_executor_acts_as_its_caller_with_a_copied_context(acme: TenantHandle) -> None:
    with acme.acting(user="ada"), ThreadPoolExecutor(2) as pool:
        created = pool.submit(copy_context().run, acme.sessions.create).result()
        assert created.user == "ada"

        def nested() -> ActorContext:
            with acme.acting(agent="deep"):
                return acme.acting_now()

        assert pool.submit(copy_context().run, nested).result() == ActorContext(user="ada", agent="deep")
        assert acme.acting_now() == ActorContext(user="ada"), "a block in a copied context stays there"


def test_tasks_do_not_see_each_others_contexts() -> None:
    async def work(acme: Any, user: str, turns: int) -> set[str]:
        seen = set()
        for _ in range(turns):
            async with acme.acting(user=user):
                await asyncio.sleep(0)
                seen.add((await acme.sessions.create()).user)
                assert acme.acting_now() == ActorContext(user=user)
            assert acme.acting_now() == NO_ACTOR
            await asyncio.sleep(0)
        return seen

    async def main() -> None:
        async with AsyncHoldfast(":memory:") as hf:
            acme = hf.tenant("acme")
            users = [f"user {number}" for number in range(10)]
            results = await asyncio.gather(*(work(acme, user, 5) for user in users))
            assert results == [{user} for user in users]

    asyncio.run(main())


def test_a_started_task_inherits_the_context() -> None:
    async def main() -> None:
        async with AsyncHoldfast(":memory:") as hf:
            acme = hf.tenant("acme")
            gate = asyncio.Event()

            async def later() -> str:
                await gate.wait()
                return (await acme.sessions.create()).user

            with acme.acting(user="ada"):
                task = asyncio.create_task(later())
                threaded = await asyncio.to_thread(acme.acting_now)
            gate.set()
            assert await task == "ada", "although the block it was started in has ended"
            assert threaded == ActorContext(user="ada")
            assert (await acme.sessions.create()).user == ""
            call = acme.sessions.create()
            with acme.acting(user="ada"):
                created = await call
            assert created.user == "", "a call has the context of its caller, not of the task that awaits it"

    asyncio.run(main())


def test_a_cancelled_block_ends() -> None:
    async def main() -> None:
        async with AsyncHoldfast(":memory:") as hf:
            acme = hf.tenant("acme")
            seen: list[ActorContext] = []

            async def work() -> None:
                try:
                    with acme.acting(user="ada"):
                        await asyncio.Event().wait()
                finally:
                    seen.append(acme.acting_now())

            task = asyncio.create_task(work())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert seen == [NO_ACTOR]

    asyncio.run(main())


def test_a_block_can_be_entered_concurrently_and_repeatedly(acme: TenantHandle) -> None:
    block = acme.acting(user="ada")
    with block, block:
        assert acme.acting_now() == ActorContext(user="ada")
    assert acme.acting_now() == NO_ACTOR
    with block:
        assert acme.acting_now() == ActorContext(user="ada")

    async def enter(gate: asyncio.Barrier) -> ActorContext:
        async with block:
            await gate.wait()
            result = acme.acting_now()
            await gate.wait()
        assert acme.acting_now() == NO_ACTOR
        return result

    async def main() -> None:
        gate = asyncio.Barrier(4)
        assert await asyncio.gather(*(enter(gate) for _ in range(4))) == [ActorContext(user="ada")] * 4

    asyncio.run(main())


def test_blocks_can_be_left_in_any_order(acme: TenantHandle) -> None:
    """Generators that are suspended inside a block may leave it in any order."""

    def act(**who: str) -> Iterator[ActorContext]:
        with acme.acting(**who) as result:  # type: ignore[arg-type]
            yield result

    first, second, third = act(user="ada"), act(agent="helper"), act(sender="7")
    assert [next(value) for value in (first, second, third)][2] == ActorContext(user="ada", agent="helper", sender="7")
    second.close()  # type: ignore[attr-defined]
    assert acme.acting_now() == ActorContext(user="ada", agent="helper", sender="7"), "the innermost is still open"
    third.close()  # type: ignore[attr-defined]
    assert acme.acting_now() == ActorContext(user="ada")
    first.close()  # type: ignore[attr-defined]
    assert acme.acting_now() == NO_ACTOR


def test_leaving_a_block_in_another_context_is_harmless(acme: TenantHandle) -> None:
    block = acme.acting(user="ada")
    copy_context().run(block.__enter__)
    with acme.acting(user="bob"):
        block.__exit__(None, None, None)
        assert acme.acting_now() == ActorContext(user="bob")
    assert acme.acting_now() == NO_ACTOR


def test_an_asynchronous_generator_closed_by_another_task_is_harmless() -> None:
    async def main() -> None:
        async with AsyncHoldfast(":memory:") as hf:
            acme = hf.tenant("acme")

            async def stream() -> AsyncIterator[ActorContext]:
                async with acme.acting(user="ada"):
                    yield acme.acting_now()

            generator = stream()

            async def begin() -> ActorContext:
                return await anext(generator)

            assert await asyncio.create_task(begin()) == ActorContext(user="ada")
            with acme.acting(user="bob"):
                await generator.aclose()  # type: ignore[attr-defined]
                assert acme.acting_now() == ActorContext(user="bob")
            assert acme.acting_now() == NO_ACTOR

    asyncio.run(main())


def test_a_context_belongs_to_one_holdfast() -> None:
    with Holdfast(":memory:") as one, Holdfast(":memory:") as other:
        with one.tenant("acme").acting(user="ada"):
            assert one.tenant("acme").acting_now() == ActorContext(user="ada")
            assert other.tenant("acme").acting_now() == NO_ACTOR
            assert other.tenant("acme").sessions.create().user == ""


def test_a_joined_handle_has_the_context_of_its_origin(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with Holdfast(path) as hf:
        acme = hf.tenant("acme")
        connection = apsw.Connection(path)
        connection.execute("BEGIN")
        joined = acme.join(connection)
        with acme.acting(user="ada"):
            assert joined.acting_now() == ActorContext(user="ada")
            assert joined.sessions.create().user == "ada"
        with joined.acting(user="bob"):
            assert acme.acting_now() == ActorContext(user="bob")
        assert joined.sessions.create().user == ""
        connection.execute("ROLLBACK")
        connection.close()


def test_public_signatures_do_not_mention_the_actor_context() -> None:
    import inspect

    from holdfast.types import AsyncSessions, Sessions

    for method in (Sessions.create, AsyncSessions.create, Sessions.upsert):
        assert not {"acting", "connection"} & set(inspect.signature(method).parameters)


def test_a_retried_call_keeps_the_context_of_its_caller(acme: TenantHandle) -> None:
    """An engine may run a call twice, for example after a deadlock: its context was read when it was made."""
    ran: list[str] = []
    engine: Any = acme._engine
    write = engine.write

    async def twice(call: Any) -> Any:
        for _ in range(2):
            try:
                result = await write(partial(_without_context, call))
            except HoldfastError as error:
                ran.append(type(error).__name__)
            else:
                ran.append(result.user)
        return result

    engine.write = twice
    with acme.acting(user="ada"):
        acme.sessions.upsert("k")
    assert ran == ["ada", "ada"]


async def _without_context(call: Any, connection: Any) -> Any:
    """Run a call as a thread without the caller's context would."""
    from contextvars import Context

    coroutine = call(connection)
    try:
        Context().run(coroutine.send, None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it suspended")


def test_acting_returns_a_block_without_entering_it(acme: TenantHandle) -> None:
    assert isinstance(acme.acting(user="ada"), ActingBlock)
    assert acme.acting_now() == NO_ACTOR
