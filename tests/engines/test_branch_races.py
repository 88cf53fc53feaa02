"""Races in which another caller switches a session's branch during a call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, NewMessage, TenantHandle
from holdfast.engines.dialect import Dialect
from holdfast.engines.protocol import Connection, Row
from holdfast.errors import NotFound, Unavailable
from holdfast.stores.conversation import log_reading, views
from holdfast.stores.conversation.branches import AsyncBranches
from holdfast.stores.conversation.messages import AsyncMessages
from holdfast.sync_runner import step
from holdfast.types import Message

WAIT_S = 60.0


class Interrupted:
    """A connection that runs another caller's code before its nth statement."""

    def __init__(self, connection: Connection, what: Callable[[int], object]) -> None:
        self._connection, self._what, self.statements = connection, what, 0

    @property
    def dialect(self) -> Dialect:
        return self._connection.dialect

    async def fetch(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        self._what(self.statements)
        self.statements += 1
        return await self._connection.fetch(sql, args)

    async def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        await self._connection.many(sql, rows)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        return self._connection.savepoint()


@pytest.fixture(params=["sqlite", "postgres"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Holdfast, Holdfast]]:
    """Two programs on one database."""
    request.node.user_properties.append(("leg", f"{request.param}, switched meanwhile"))
    url = str(tmp_path / "a.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with Holdfast(url) as one, Holdfast(url) as other:
        yield one, other


def branched(acme: TenantHandle) -> str:
    """A session that shows ``a b c`` on its first branch and ``a x y z`` on the other."""
    id = acme.sessions.create().id
    say(acme, id, "a", "b", "c")
    acme.branches.rewind(id, to=1)
    say(acme, id, "x", "y", "z")
    acme.branches.switch(id, 0)
    return id


def say(acme: TenantHandle, id: str, *words: str) -> None:
    acme.messages.append_many(id, [NewMessage(role="user", content=word, token_count=2) for word in words])


def words(messages: Sequence[Message]) -> str:
    return " ".join(message.content[0]["text"] for message in messages)


def read(hf: Holdfast, id: str, what: Callable[[int], object], *, newest_first: bool = False, clause: str = "") -> str:
    """Return the messages of the session, read while another caller acts before one of the statements."""
    params = {"tenant_id": "acme", "session_id": id, "after": 0, "before": views.BLOCK, "limit": 100}

    async def call(connection: Connection) -> Sequence[Message]:
        interrupted = Interrupted(connection, what)
        return await log_reading.read_log(interrupted, params, clause, newest_first=newest_first)

    actual = step(hf._engine.read(call))
    return words(actual[::-1] if newest_first else actual)


WHOLE = {0: "a b c", 1: "a x y z"}


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("start", [0, 1])
def test_a_log_is_read_from_one_snapshot(two: tuple[Holdfast, Holdfast], start: int, newest_first: bool) -> None:
    one, other = two
    acme = other.tenant("acme")
    id = branched(acme)
    for before in range(6):
        acme.branches.switch(id, start)

        def switch(statement: int, before: int = before) -> None:
            if statement == before:
                acme.branches.switch(id, 1 - start)

        assert read(one, id, switch, newest_first=newest_first) in WHOLE.values()


@pytest.mark.parametrize("start", [0, 1])
def test_a_log_after_a_branch_switch_and_back_is_not_mistaken_for_empty(
    two: tuple[Holdfast, Holdfast], start: int
) -> None:
    one, other = two
    acme = other.tenant("acme")
    id = branched(acme)
    acme.branches.switch(id, start)

    def switch(statement: int) -> None:
        if statement < 9:
            acme.branches.switch(id, (start + statement + 1) % 2)

    assert read(one, id, switch) in WHOLE.values()


def test_reading_a_log_that_constantly_switches_branches_raises_unavailable(two: tuple[Holdfast, Holdfast]) -> None:
    one, other = two
    acme = other.tenant("acme")
    id = branched(acme)
    with pytest.raises(Unavailable, match=id):
        read(one, id, lambda statement: acme.branches.switch(id, (statement + 1) % 2))


def test_no_match_is_distinguished_from_an_empty_log(two: tuple[Holdfast, Holdfast]) -> None:
    one, other = two
    acme = other.tenant("acme")
    id = branched(acme)
    nothing = lambda statement: None  # noqa: E731
    for number in (0, 1):
        acme.branches.switch(id, number)
        assert read(one, id, nothing, clause=" AND role = 'system'") == ""
    acme.sessions.delete(id)
    with pytest.raises(NotFound):
        read(one, id, nothing)


def test_a_concurrent_append_does_not_affect_a_read(two: tuple[Holdfast, Holdfast]) -> None:
    one, other = two
    acme = other.tenant("acme")
    id = branched(acme)
    acme.branches.switch(id, 1)
    for newest_first in (False, True):
        actual = read(one, id, lambda _: say(acme, id, "n"), newest_first=newest_first)
        assert actual.startswith("a x y z")


def thinned(hf: Holdfast, id: str, gone: str) -> None:
    """Remove a message and switch to the other branch in one transaction: no reader sees the first change alone."""
    acme = hf.tenant("acme")

    async def both(connection: Connection) -> None:
        delete, switch = AsyncMessages.delete.__wrapped__, AsyncBranches.switch.__wrapped__  # type: ignore[attr-defined]
        await delete(acme.messages._async, connection, id, [gone])
        await switch(acme.branches._async, connection, id, 1)

    step(hf._engine.write(both))


@pytest.mark.parametrize("before", range(5))
def test_a_count_and_a_log_are_read_from_one_snapshot(two: tuple[Holdfast, Holdfast], before: int) -> None:
    one, other = two
    acme = other.tenant("acme")
    for counts in (True, False):
        id = branched(acme)
        second = acme.messages.list(id)[1].id

        def thin(statement: int, id: str = id, gone: str = second) -> None:
            if statement == before:
                thinned(other, id, gone)

        async def count(connection: Connection, id: str = id, what: Callable[[int], None] = thin) -> int:
            params = {"tenant_id": "acme", "session_id": id}
            return await log_reading.count_log(Interrupted(connection, what), params)

        if counts:
            assert step(one._engine.read(count)) in (3, 4)
        else:
            assert read(one, id, thin) in WHOLE.values()


@contextmanager
def switching(url: str, acme: TenantHandle, id: str) -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Switch to the other branch, and do not commit before another caller waits for it."""
    with psycopg.connect(url) as raw, psycopg.connect(url, autocommit=True) as watch:
        acme.join(raw).branches.switch(id, 1)

        def during(call: Callable[[], Any]) -> Any:
            answers: list[Any] = []
            thread = threading.Thread(target=lambda: answers.append(call()))
            thread.start()
            waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            while watch.execute(waits).fetchone() is None:
                assert thread.is_alive(), "it did not wait for the switch"
            raw.commit()
            thread.join(WAIT_S)
            assert answers, "it still waits"
            return answers[0]

        yield during


def counted(acme: TenantHandle, id: str) -> str:
    """Return the messages of the session, and check its counters."""
    existing, session = acme.messages.list(id), acme.sessions.get(id)
    assert session.message_count == len(existing)
    assert session.token_count == sum(message.token_count for message in existing)
    return words(existing)


@pytest.mark.leg("postgres, switched meanwhile")
@pytest.mark.parametrize(
    ("what", "zero", "one"),
    [
        ("append", "a b c", "a x y z n"),
        ("append_many", "a b c", "a x y z n m"),
        ("delete", "b", "x y z"),
        ("update", "A b c", "A x y z"),
        ("rewind", "a b c", "a x y z"),
    ],
)
def test_a_caller_that_waits_for_a_switch_works_on_the_shown_branch(
    postgres_url: str, what: str, zero: str, one: str
) -> None:
    with Holdfast(postgres_url) as hf:
        acme = hf.tenant("acme")
        id = branched(acme)
        a, _, c = acme.messages.list(id)
        calls: dict[str, Callable[[], Any]] = {
            "append": partial(acme.messages.append, id, role="user", content="n", token_count=5),
            "append_many": partial(say, acme, id, "n", "m"),
            "delete": partial(acme.messages.delete, id, [a.id, c.id]),
            "update": partial(acme.messages.update, a.id, content="A", token_count=7),
            "rewind": partial(acme.branches.rewind, id, to=3),
        }
        with switching(postgres_url, acme, id) as during:
            during(calls[what])
        if what == "rewind":
            assert acme.branches.list(id)[2].parent == 1
            assert counted(acme, id) == "a x y"
            acme.branches.redo(id)
        assert counted(acme, id) == one
        acme.branches.switch(id, 0)
        assert counted(acme, id) == zero
