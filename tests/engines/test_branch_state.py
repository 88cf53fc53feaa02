"""Rows that branches leave in the tables: after a switch back, a session is stored as a plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Holdfast, NewMessage, TenantHandle
from holdfast.errors import Corrupt, InvalidInput, LimitExceeded
from holdfast.stores.conversation.views import BLOCK, LAST, MAX_BLOCKS
from tests.errors import raises

Fetch = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Fetch]:
    """Return the address of an empty database, and a function that queries it directly."""
    request.node.user_properties.append(("leg", f"{request.param}, tables of branches"))
    if request.param == "sqlite":
        path = str(tmp_path / "a.db")

        def look(sql: str) -> list[tuple[Any, ...]]:
            connection = apsw.Connection(path)
            try:
                return connection.execute(sql).fetchall()
            finally:
                connection.close()

        return path, look
    url: str = request.getfixturevalue("bare_postgres_url")

    def ask(sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    return url, ask


@pytest.fixture
def acme(place: tuple[str, Fetch]) -> Iterator[TenantHandle]:
    with Holdfast(place[0], auto_migrate=True) as hf:
        yield hf.tenant("acme")


def started(acme: TenantHandle, *words: str) -> str:
    id = acme.sessions.create().id
    acme.messages.append_many(id, [NewMessage(role="user", content=word, token_count=2) for word in words])
    return id


def test_a_session_that_is_back_on_its_first_branch_has_no_view(place: tuple[str, Fetch], acme: TenantHandle) -> None:
    _, fetch = place
    id = started(acme, "a", "b")
    state = "SELECT branch, view IS NULL, next_seq, blocks FROM sessions"
    acme.branches.fork(id, at=1)
    assert fetch(state) == [(0, True, 3, 2)]
    acme.branches.rewind(id, to=1)
    assert fetch(state) == [(2, False, 2 * BLOCK + 2, 3)]
    acme.branches.redo(id)
    assert fetch(state) == [(0, True, 3, 3)]
    assert fetch("SELECT number, view IS NULL FROM branches ORDER BY number") == [(0, True), (1, False), (2, False)]


def test_a_session_without_branches_has_no_branch_rows(place: tuple[str, Fetch], acme: TenantHandle) -> None:
    id = started(acme, "a")
    acme.branches.switch(id, 0)
    acme.branches.list(id)
    assert place[1]("SELECT * FROM branches") == []


def test_leaving_a_branch_stores_its_current_view(place: tuple[str, Fetch], acme: TenantHandle) -> None:
    """Other stores change the view of a branch; the change must be kept when the session leaves it."""
    id = started(acme, "a", "b", "c")
    acme.branches.fork(id)
    place[1](f"UPDATE sessions SET view = '[[1, 1], [3, {LAST}]]', message_count = 2, token_count = 4")
    assert [message.seq for message in acme.messages.list(id)] == [1, 3]
    acme.branches.switch(id, 1)
    assert [message.seq for message in acme.messages.list(id)] == [1, 2, 3]
    acme.branches.switch(id, 0)
    assert [message.seq for message in acme.messages.list(id)] == [1, 3]
    assert acme.sessions.get(id).message_count == 2
    for at in (1, 3):
        acme.branches.switch(id, acme.branches.fork(id, at=at).number)
        assert [message.seq for message in acme.messages.list(id)] == [1, 3][: at // 2 + 1]
        acme.branches.switch(id, 0)
    with raises(InvalidInput, field="seq"):
        acme.branches.fork(id, at=2)


def test_a_fork_is_refused_before_positions_run_out(place: tuple[str, Fetch], acme: TenantHandle) -> None:
    id = started(acme, "a")
    place[1](f"UPDATE sessions SET blocks = {MAX_BLOCKS - 1}")
    made = acme.branches.fork(id)
    assert made.number == MAX_BLOCKS - 1
    acme.branches.switch(id, made.number)
    assert acme.messages.append(id, role="user", content="b").seq == 2
    assert [message.seq for message in acme.messages.list(id)] == [1, 2]
    with raises(LimitExceeded, maximum=MAX_BLOCKS):
        acme.branches.fork(id)
    assert acme.branches.current(id) == made.number


def test_a_damaged_view_is_reported(place: tuple[str, Fetch], acme: TenantHandle) -> None:
    id = started(acme, "a")
    place[1]("""UPDATE sessions SET view = '["damaged"]'""")
    for call in (acme.messages.list, acme.messages.count, acme.branches.fork):
        with raises(Corrupt):
            call(id)
