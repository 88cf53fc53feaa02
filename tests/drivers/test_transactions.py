"""Writes through the caller's connection commit or roll back with the caller's transaction, with every driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import NewMessage
from holdfast.errors import AlreadyExists, Conflict, InvalidInput, NotFound
from tests.drivers.callers import LEGS, Leg, done

pytestmark = pytest.mark.parametrize(
    "leg", [pytest.param(leg, id=leg.name, marks=pytest.mark.leg(f"joined: {leg.name}")) for leg in LEGS]
)
ID = "01890000-0000-7000-8000-000000000001"


def test_a_write_becomes_visible_with_the_commit(leg: Leg, open_stage: Callable[[Leg], Any]) -> None:
    async def run() -> None:
        async with open_stage(leg) as stage:
            caller = await stage.connect()
            acme = stage.tenant().join(caller.raw)
            await caller.begin()
            session = await done(acme.sessions.create(key="k", user="ada", metadata={"plan": "pro"}))
            await done(acme.messages.append(session.id, role="user", content="Hello"))
            await caller.add("with ours")
            assert await done(stage.tenant().sessions.find("k")) is None
            await caller.commit()
            actual = await done(stage.tenant().sessions.find("k"))
            assert (actual.id, actual.message_count, actual.metadata) == (session.id, 1, {"plan": "pro"})
            assert await caller.labels() == ["with ours"]

    asyncio.run(run())


def test_a_rollback_undoes_every_write(leg: Leg, open_stage: Callable[[Leg], Any]) -> None:
    async def run() -> None:
        async with open_stage(leg) as stage:
            session = await done(stage.tenant().sessions.create(key="before"))
            caller = await stage.connect()
            acme = stage.tenant().join(caller.raw)
            await caller.begin()
            await done(acme.messages.append(session.id, role="user", content="Hello"))
            await done(
                acme.messages.append_many(session.id, [NewMessage(role="user", content=str(n)) for n in range(5)])
            )
            await done(acme.sessions.create(key="k"))
            await caller.add("with ours")
            await caller.rollback()
            after = await done(stage.tenant().sessions.get(session.id))
            assert after == session
            assert await done(stage.tenant().messages.list(session.id)) == []
            assert await done(stage.tenant().sessions.count()) == 1
            assert await caller.labels() == []

    asyncio.run(run())


def test_holdfast_may_execute_the_first_statement_of_a_transaction(leg: Leg, open_stage: Callable[[Leg], Any]) -> None:
    """Drivers begin the transaction of a new connection lazily; Holdfast must use that transaction."""

    async def run() -> None:
        async with open_stage(leg) as stage:
            session = await done(stage.tenant().sessions.create())
            for ending in ("rollback", "commit"):
                caller = await stage.connect()
                await caller.begin()
                await done(stage.tenant().join(caller.raw).messages.append(session.id, role="user", content=ending))
                await getattr(caller, ending)()
            history = await done(stage.tenant().messages.list(session.id))
            assert [message.content[0]["text"] for message in history] == ["commit"]
            assert [message.seq for message in history] == [1]

    asyncio.run(run())


def test_the_connection_can_be_used_for_several_transactions(leg: Leg, open_stage: Callable[[Leg], Any]) -> None:
    async def run() -> None:
        async with open_stage(leg) as stage:
            session = await done(stage.tenant().sessions.create())
            caller = await stage.connect()
            acme = stage.tenant().join(caller.raw)
            for content in ("one", "two", "three"):
                await caller.begin()
                await done(acme.messages.append(session.id, role="user", content=content))
                await (caller.rollback() if content == "two" else caller.commit())
            history = await done(stage.tenant().messages.list(session.id))
            assert [message.content[0]["text"] for message in history] == ["one", "three"]

    asyncio.run(run())


def test_rolling_back_to_the_callers_savepoint_undoes_only_later_writes(
    leg: Leg, open_stage: Callable[[Leg], Any]
) -> None:
    async def run() -> None:
        async with open_stage(leg) as stage:
            caller = await stage.connect()
            acme = stage.tenant().join(caller.raw)
            await caller.begin()
            session = await done(acme.sessions.create(key="kept"))
            await caller.add("kept")
            go_back = await caller.nested()
            await done(acme.messages.append(session.id, role="user", content="undone"))
            await done(acme.sessions.create(key="undone"))
            await caller.add("undone")
            await done(go_back())
            await done(acme.messages.append(session.id, role="user", content="after"))
            await caller.commit()
            history = await done(stage.tenant().messages.list(session.id))
            assert [(message.seq, message.content[0]["text"]) for message in history] == [(1, "after")]
            assert await done(stage.tenant().sessions.find("undone")) is None
            assert await caller.labels() == ["kept"]

    asyncio.run(run())


def test_a_failed_call_leaves_the_callers_transaction_unchanged(leg: Leg, open_stage: Callable[[Leg], Any]) -> None:
    async def run() -> None:
        async with open_stage(leg) as stage:
            caller = await stage.connect()
            acme = stage.tenant().join(caller.raw)
            await caller.begin()
            session = await done(acme.sessions.create(key="k"))
            await done(acme.messages.append(session.id, role="user", content="first", id=ID))
            await caller.add("before")
            for call, error in _failing(acme, session.id):
                with pytest.raises(error):
                    await done(call())
            assert await caller.labels() == ["before"]
            await caller.add("in between")
            await done(acme.messages.append(session.id, role="user", content="second"))
            await caller.commit()
            assert await caller.labels() == ["before", "in between"]
            history = await done(stage.tenant().messages.list(session.id))
            assert [message.content[0]["text"] for message in history] == ["first", "second"]
            assert await done(stage.tenant().sessions.count()) == 1

    asyncio.run(run())


def _failing(acme: Any, session_id: str) -> list[tuple[Callable[[], Any], type[Exception]]]:
    """Return calls that fail before, in and after their first statement."""
    unknown = "01890000-0000-7000-8000-00000000dead"
    return [
        (lambda: acme.messages.append(session_id, role="invalid", content="x"), InvalidInput),
        (lambda: acme.sessions.create(key="k"), AlreadyExists),
        (lambda: acme.messages.append(unknown, role="user", content="x"), NotFound),
        (lambda: acme.messages.append(session_id, role="user", content="other", id=ID), Conflict),
        (
            lambda: acme.messages.append_many(
                session_id, [NewMessage(role="user", content="n"), NewMessage(role="user", content="other", id=ID)]
            ),
            Conflict,
        ),
        (lambda: acme.sessions.purge(unknown), NotFound),
        (lambda: acme.sessions.get(unknown), NotFound),
    ]


def test_the_callers_transaction_sees_writes_of_holdfast(leg: Leg, open_stage: Callable[[Leg], Any]) -> None:
    async def run() -> None:
        async with open_stage(leg) as stage:
            caller = await stage.connect()
            acme = stage.tenant().join(caller.raw)
            await caller.begin()
            session = await done(acme.sessions.create(key="k"))
            sent = await done(acme.messages.append(session.id, role="user", content="Hello", metadata={"a": [1, None]}))
            again = await done(
                acme.messages.append(session.id, role="user", content="Hello", metadata={"a": [1, None]}, id=sent.id)
            )
            assert again == sent
            assert await done(acme.messages.list(session.id)) == [sent]
            assert (await done(acme.sessions.find("k"))).message_count == 1
            assert (await caller.execute("SELECT COUNT(*) FROM messages")) == [(1,)]
            await caller.rollback()
            assert await done(acme.sessions.find("k")) is None

    asyncio.run(run())


def test_a_write_without_a_transaction_is_committed_immediately_or_by_the_caller(
    leg: Leg, open_stage: Callable[[Leg], Any]
) -> None:
    """A connection that begins transactions implicitly waits for the caller's commit; one in autocommit mode does not."""

    async def run() -> None:
        async with open_stage(leg) as stage:
            caller = await stage.connect()
            acme = stage.tenant().join(caller.raw)
            session = await done(acme.sessions.create(key="k"))
            await done(acme.messages.append(session.id, role="user", content="Hello"))
            others = await done(stage.tenant().sessions.find("k"))
            if caller.needs_transaction:
                assert others is None
                await done(caller.raw.rollback())
                assert await done(acme.sessions.find("k")) is None
            else:
                assert others.message_count == 1

    asyncio.run(run())


def test_a_failed_write_without_a_transaction_leaves_none_open(leg: Leg, open_stage: Callable[[Leg], Any]) -> None:
    async def run() -> None:
        async with open_stage(leg) as stage:
            session = await done(stage.tenant().sessions.create(key="k"))
            caller = await stage.connect()
            acme = stage.tenant().join(caller.raw)
            for call, error in [
                (lambda: acme.sessions.create(key="k"), AlreadyExists),
                (lambda: acme.messages.append(session.id, role="user", content="x", id="no id"), InvalidInput),
            ]:
                with pytest.raises(error):
                    await done(call())
            # An open one would block other writers; with autocommit=False it is the caller's, and always open.
            if leg.engine == "sqlite" and "autocommit=False" not in leg.name:
                await done(stage.tenant().messages.append(session.id, role="user", content="elsewhere"))
            if caller.needs_transaction:
                await done(caller.raw.rollback())
            await caller.begin()
            await caller.add("afterwards")
            await caller.commit()
            assert await caller.labels() == ["afterwards"]

    asyncio.run(run())


def test_two_tenants_can_share_a_transaction(leg: Leg, open_stage: Callable[[Leg], Any]) -> None:
    async def run() -> None:
        async with open_stage(leg) as stage:
            caller = await stage.connect()
            await caller.begin()
            for name in ("acme", "globex"):
                await done(stage.tenant(name).join(caller.raw).sessions.create(key=name))
            await caller.commit()
            for name, other in (("acme", "globex"), ("globex", "acme")):
                assert (await done(stage.tenant(name).sessions.find(name))).key == name
                assert await done(stage.tenant(name).sessions.find(other)) is None

    asyncio.run(run())


def test_unusual_text_is_returned_unchanged(leg: Leg, open_stage: Callable[[Leg], Any]) -> None:
    text = "NUL \x00, lone \ud800, \U0010f801, 'quotes\", ünï 🎉, $1 ?1 :name %s"

    async def run() -> None:
        async with open_stage(leg) as stage:
            caller = await stage.connect()
            acme = stage.tenant().join(caller.raw)
            await caller.begin()
            session = await done(acme.sessions.create(key=text, user=text, metadata={text: [text, 1e300, 2**60, None]}))
            await done(acme.messages.append(session.id, role="user", content=text))
            await caller.commit()
            actual = await done(acme.sessions.find(text, user=text))
            assert actual.metadata == {text: [text, 1e300, 2**60, None]}
            (message,) = await done(stage.tenant().messages.list(session.id))
            assert message.content == [{"type": "text", "text": text}]

    asyncio.run(run())
