"""Shares of sessions, and the rows that depend on a session: limits, refusals, deletion and restore."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import (
    Holdfast,
    Limits,
    NewA2APushConfig,
    NewCrewMemory,
    TenantHandle,
    column,
    thread_of,
)
from holdfast.clock import from_us
from holdfast.encryption import Secret
from holdfast.errors import AlreadyExists, Conflict, InvalidInput, LimitExceeded, NotFound
from holdfast.types import NewMcpServer
from tests.errors import raises
from tests.stores.shared_database import Place, fixtures

LIMITS = Limits(list_rows=5, page_rows=4, batch_rows=6, text_bytes=100, content_bytes=200, tools=3, embedding_floats=4)
NEVER = "0197f4c0-0000-7000-8000-000000000009"
NAIVE = from_us(0).replace(tzinfo=None)
DAY = 86_400
TEXTS = ["a", "漢字 \U0001f600", "\x00", "\ud800", "\U0010f801", "A", "%_"]
clock, opened, hf, acme = fixtures(LIMITS)


def token(number: int) -> str:
    """The token of a link."""
    return f"{number:016d}"


@pytest.mark.parametrize("text", [text * 16 for text in TEXTS] + ["x" * 255])
def test_any_text_that_is_long_enough_can_be_a_token(acme: TenantHandle, text: str) -> None:
    session = acme.sessions.create(key="s", user="ada")
    created = acme.session_shares.create(session.id, token=text, shows_token=True)
    assert created.token == text
    assert acme.session_shares.find(text) == acme.session_shares.use(text, user=text[:3]) == created
    assert acme.session_shares.used_by(text[:3]) == [created]
    assert acme.session_shares.delete(session.id, token=text) is True


@pytest.mark.parametrize("wrong", ["", "x" * 15, 7, None, b"x" * 16])
def test_a_short_or_invalid_token_is_refused(acme: TenantHandle, wrong: Any) -> None:
    session = acme.sessions.create(key="s")
    with raises(InvalidInput, field="token"):
        acme.session_shares.create(session.id, token=wrong)
    assert acme.session_shares.list(session.id) == []


def test_a_token_over_the_limit_is_refused_by_every_call(acme: TenantHandle) -> None:
    session = acme.sessions.create(key="s")
    for call in (
        lambda: acme.session_shares.create(session.id, token="x" * 256),
        lambda: acme.session_shares.find("x" * 256),
        lambda: acme.session_shares.use("x" * 256, user="bob"),
        lambda: acme.session_shares.delete(session.id, token="x" * 256),
    ):
        with raises(LimitExceeded, limit="name_bytes"):
            call()


def test_links_of_an_unknown_session_are_refused(acme: TenantHandle) -> None:
    assert acme.session_shares.list(NEVER) == []
    assert acme.session_shares.delete(NEVER, token=token(1)) is False
    with raises(NotFound, noun="session", key=NEVER):
        acme.session_shares.create(NEVER, token=token(1))
    for call in (acme.session_shares.list, lambda id: acme.session_shares.create(id, token=token(1))):
        with raises(InvalidInput, field="session id"):
            call("no id")


def test_tenants_have_separate_tokens(hf: Place, acme: TenantHandle) -> None:
    zenith = hf.tenant("zenith")
    mine, theirs = acme.sessions.create(key="s"), zenith.sessions.create(key="s")
    acme.session_shares.create(mine.id, token=token(1))
    created = zenith.session_shares.create(theirs.id, token=token(1))
    with pytest.raises(NotFound):
        zenith.session_shares.create(mine.id, token=token(2))
    assert zenith.session_shares.delete(mine.id, token=token(1)) is False
    assert zenith.session_shares.list(mine.id) == []
    assert zenith.session_shares.find(token(1)) == created


def test_a_token_is_unique_in_the_tenant(acme: TenantHandle) -> None:
    first, second = acme.sessions.create(key="s"), acme.sessions.create(key="t")
    acme.session_shares.create(first.id, token=token(1))
    with raises(AlreadyExists, noun="link"):
        acme.session_shares.create(second.id, token=token(1))
    assert acme.session_shares.delete(first.id, token=token(1)) is True
    assert acme.session_shares.create(second.id, token=token(1)).number == 1


def test_listing_more_links_than_the_limit_is_refused(acme: TenantHandle) -> None:
    session = acme.sessions.create(key="s")
    for number in range(6):
        assert [share.number for share in acme.session_shares.list(session.id)] == list(range(1, number + 1))
        acme.session_shares.create(session.id, token=token(number))
        acme.session_shares.use(token(number), user="bob")
    for call in (lambda: acme.session_shares.list(session.id), lambda: acme.session_shares.used_by("bob")):
        with raises(LimitExceeded, limit="list_rows", maximum=5):
            call()


@pytest.mark.parametrize("user", ["", 7, "x" * 256])
def test_using_a_link_requires_a_user(acme: TenantHandle, user: Any) -> None:
    session = acme.sessions.create(key="s")
    acme.session_shares.create(session.id, token=token(1))
    for call in (lambda: acme.session_shares.use(token(1), user=user), lambda: acme.session_shares.used_by(user)):
        with raises(InvalidInput, field="user of an use of a link"):
            call()


@given(st.text(max_size=5), st.text(max_size=5))
@settings(max_examples=30)
def test_each_key_has_its_own_threads(one: str, other: str) -> None:
    assert (thread_of(one) == thread_of(other)) == (one == other)


def test_a_task_older_than_its_session_is_hidden_with_it(acme: TenantHandle) -> None:
    for user in ("ada", "bob"):
        acme.a2a_tasks.save("t", {"of": user}, context_id="s", user=user)
        acme.a2a_push_configs.upsert(NewA2APushConfig(task_id="t", config=Secret({"of": user}), user=user))
    acme.a2a_tasks.save("elsewhere", {}, context_id="other", user="ada")
    session = acme.sessions.create(key="s", user="ada")
    acme.sessions.delete(session.id)
    assert [task.id for task in acme.a2a_tasks.list(user="ada")] == ["elsewhere"]
    assert [
        config.config and config.config.reveal()["of"]
        for config in acme.a2a_push_configs.list(where=[column("task_id").eq("t")])
    ] == ["bob"]
    acme.sessions.restore(session.id)
    assert acme.a2a_tasks.count(user="ada") == 2
    assert len(acme.a2a_push_configs.list(where=[column("task_id").eq("t")])) == 2


def test_a_task_that_was_deleted_before_its_session_stays_deleted(acme: TenantHandle) -> None:
    session = acme.sessions.create(key="s", user="ada")
    for id in ("before", "with"):
        acme.a2a_tasks.save(id, {}, context_id="s", user="ada")
    acme.a2a_tasks.delete("before", user="ada")
    acme.sessions.delete(session.id)
    acme.sessions.restore(session.id)
    assert [task.id for task in acme.a2a_tasks.list(user="ada")] == ["with"]
    assert acme.a2a_tasks.restore("before", user="ada").id == "before"


def test_a_task_recreated_without_its_session_does_not_block_the_restore(acme: TenantHandle) -> None:
    session = acme.sessions.create(key="s", user="ada")
    acme.a2a_tasks.save("t", {"n": 1}, context_id="s", user="ada")
    acme.sessions.delete(session.id)
    assert acme.a2a_tasks.restore("t", user="ada").task == {"n": 1}
    acme.sessions.restore(session.id)
    assert acme.a2a_tasks.count(user="ada") == 1
    assert acme.a2a_tasks.count(context_id="s", user="ada") == 1


@pytest.mark.parametrize("kind", ["task", "flow", "checkpoint"])
def test_a_session_is_not_restored_over_rows_with_its_names(acme: TenantHandle, kind: str) -> None:
    session = acme.sessions.create(key="s", user="ada")

    def fill(n: int) -> None:
        if kind == "task":
            acme.a2a_tasks.save("t", {"n": n}, context_id="s", user="ada")
        elif kind == "flow":
            acme.flows.save("f", method="m", state={"n": n}, thread_id=thread_of("s"), user="ada")
        else:
            acme.checkpoints.put(thread_of("s"), id="1", state=bytes([n]), user="ada")

    fill(1)
    acme.sessions.delete(session.id)
    fill(2)
    with pytest.raises(Conflict):
        acme.sessions.restore(session.id)
    assert acme.sessions.find("s", user="ada") is None, "nothing was restored"


def test_purging_a_session_leaves_no_row_under_its_key(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with Holdfast(path) as opened, sqlite3.connect(path) as beside:
        acme = opened.tenant("acme")
        for is_deleted in (False, True):
            session = acme.sessions.create(key="s", user="ada")
            place: dict[str, Any] = {"thread_id": thread_of("s"), "user": "ada"}
            acme.session_shares.create(session.id, token=token(1))
            acme.session_shares.use(token(1), user="bob")
            acme.a2a_tasks.save("t", {"history": [1]}, context_id="s", user="ada")
            acme.a2a_push_configs.upsert(NewA2APushConfig(task_id="t", config=Secret({}), user="ada"))
            acme.checkpoints.put(thread_of("s"), id="1", state=b"x", pieces=[b"piece"], user="ada")
            acme.flows.save("f", method="m", state={}, **place)
            acme.crew_memories.save([NewCrewMemory(content="tea")], **place)
            if is_deleted:
                acme.sessions.delete(session.id)
            acme.sessions.purge(session.id)
            tables = (
                "session_shares session_share_uses a2a_tasks a2a_task_items a2a_push_configs lg_thread crewai_flow "
                "crewai_flow_state crewai_agent_memory"
            )
            left = {table: beside.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in tables.split()}
            assert left == dict.fromkeys(tables.split(), 0)
    beside.close()


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_names_are_ordered_the_same_on_both_engines(engine: str, request: pytest.FixtureRequest) -> None:
    url = ":memory:" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    with Holdfast(url) as opened:
        servers = opened.tenant("acme").mcp_servers
        for text in ("b", "B", "ä", "a", "_", "\x00", "漢"):
            servers.upsert(NewMcpServer(name=text, kind="y"))
            servers.upsert(NewMcpServer(name=text, kind="X"))
        listed = [(server.name, server.kind) for server in servers.list()]
        assert [name for name, _ in listed[::2]] == ["B", "_", "a", "b", "ä", "漢", "\x00"], (
            "NUL is stored in a form that sorts last"
        )
        paged, page = [], servers.list(limit=3)
        while page.next is not None:
            paged += page
            page = servers.list(limit=3, cursor=page.next)
        assert [(server.name, server.kind) for server in [*paged, *page]] == listed
