"""Links, remarks, what lives under a session's key, tool servers and memories of agents: every limit, refusal and edge."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import (
    FixedClock,
    Holdfast,
    Limits,
    NewCrewMemory,
    NewTool,
    TenantHandle,
    thread_of,
)
from holdfast.clock import from_us
from holdfast.core.paging import encode_cursor
from holdfast.errors import AlreadyExists, Conflict, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from tests.unit.shared_database import Place, fixtures

LIMITS = Limits(list_rows=5, page_rows=4, batch_rows=6, text_bytes=100, content_bytes=200, tools=3, embedding_floats=4)
NEVER = "0197f4c0-0000-7000-8000-000000000009"
NAIVE = from_us(0).replace(tzinfo=None)
DAY = 86_400
TEXTS = ["a", "漢字 \U0001f600", "\x00", "\ud800", "\U0010f801", "A", "%_"]
clock, opened, hf, acme = fixtures(LIMITS)


def token(number: int) -> str:
    """The token of a link."""
    return f"{number:016d}"


@pytest.mark.parametrize("text", [each * 16 for each in TEXTS] + ["x" * 255])
def test_a_token_is_any_text_that_is_long_enough(acme: TenantHandle, text: str) -> None:
    session = acme.sessions.create(key="s", user="ada")
    made = acme.session_shares.create(session.id, token=text, shows_token=True)
    assert made.token == text
    assert acme.session_shares.find(text) == acme.session_shares.use(text, user=text[:3]) == made
    assert acme.session_shares.used_by(text[:3]) == [made]
    assert acme.session_shares.delete(session.id, token=text) is True


@pytest.mark.parametrize("wrong", ["", "x" * 15, 7, None, b"x" * 16])
def test_a_token_that_could_be_guessed_or_is_none_is_refused(acme: TenantHandle, wrong: Any) -> None:
    session = acme.sessions.create(key="s")
    with pytest.raises(InvalidInput, match="token"):
        acme.session_shares.create(session.id, token=wrong)
    assert acme.session_shares.list(session.id) == []


def test_a_token_over_the_limit_is_refused_wherever_it_comes(acme: TenantHandle) -> None:
    session = acme.sessions.create(key="s")
    for call in (
        lambda: acme.session_shares.create(session.id, token="x" * 256),
        lambda: acme.session_shares.find("x" * 256),
        lambda: acme.session_shares.use("x" * 256, user="bob"),
        lambda: acme.session_shares.delete(session.id, token="x" * 256),
    ):
        with pytest.raises(LimitExceeded, match="name_bytes"):
            call()


def test_links_of_what_is_no_session_are_none(acme: TenantHandle) -> None:
    assert acme.session_shares.list(NEVER) == []
    assert acme.session_shares.delete(NEVER, token=token(1)) is False
    with pytest.raises(NotFound, match=NEVER):
        acme.session_shares.create(NEVER, token=token(1))
    for call in (acme.session_shares.list, lambda id: acme.session_shares.create(id, token=token(1))):
        with pytest.raises(InvalidInput, match="session id must be a UUID"):
            call("no id")


def test_tenants_have_tokens_of_their_own(hf: Place, acme: TenantHandle) -> None:
    zenith = hf.tenant("zenith")
    mine, theirs = acme.sessions.create(key="s"), zenith.sessions.create(key="s")
    acme.session_shares.create(mine.id, token=token(1))
    made = zenith.session_shares.create(theirs.id, token=token(1))
    with pytest.raises(NotFound):
        zenith.session_shares.create(mine.id, token=token(2))
    assert zenith.session_shares.delete(mine.id, token=token(1)) is False
    assert zenith.session_shares.list(mine.id) == []
    assert zenith.session_shares.find(token(1)) == made


def test_a_token_is_taken_by_any_session_of_the_tenant(acme: TenantHandle) -> None:
    first, second = acme.sessions.create(key="s"), acme.sessions.create(key="t")
    acme.session_shares.create(first.id, token=token(1))
    with pytest.raises(AlreadyExists, match="draw another"):
        acme.session_shares.create(second.id, token=token(1))
    assert acme.session_shares.delete(first.id, token=token(1)) is True
    assert acme.session_shares.create(second.id, token=token(1)).number == 1


def test_more_links_than_the_limit_are_not_listed(acme: TenantHandle) -> None:
    session = acme.sessions.create(key="s")
    for number in range(6):
        assert [each.number for each in acme.session_shares.list(session.id)] == list(range(1, number + 1))
        acme.session_shares.create(session.id, token=token(number))
        acme.session_shares.use(token(number), user="bob")
    for call in (lambda: acme.session_shares.list(session.id), lambda: acme.session_shares.used_by("bob")):
        with pytest.raises(LimitExceeded, match="list_rows = 5"):
            call()


@pytest.mark.parametrize("user", ["", 7, "x" * 256])
def test_a_link_is_used_by_somebody(acme: TenantHandle, user: Any) -> None:
    session = acme.sessions.create(key="s")
    acme.session_shares.create(session.id, token=token(1))
    for call in (lambda: acme.session_shares.use(token(1), user=user), lambda: acme.session_shares.used_by(user)):
        with pytest.raises(InvalidInput, match="user"):
            call()


@pytest.mark.parametrize("text", [*TEXTS, "x" * 100])
def test_a_remark_is_any_text_of_anybody(acme: TenantHandle, text: str) -> None:
    made = acme.remarks.create(text, is_positive=True, user=text)
    assert (made.feedback_text, made.user, made.issue_type, made.message_number) == (text, text, "", None)
    assert acme.remarks.list(user=text) == [made]
    assert acme.remarks.list() == []


REMARKS_REFUSED: list[Any] = [
    pytest.param({"feedback_text": ""}, InvalidInput, "must not be empty", id="nothing"),
    pytest.param({"feedback_text": None}, InvalidInput, "must be a string", id="no text"),
    pytest.param({"feedback_text": "x" * 101}, LimitExceeded, "text_bytes", id="over the limit"),
    pytest.param({"is_positive": 1}, InvalidInput, "true or false", id="a number for yes"),
    pytest.param({"issue_type": "other"}, InvalidInput, "must be one of instructions", id="another issue"),
    pytest.param({"issue_type": ""}, InvalidInput, "must be one of", id="an empty issue"),
    pytest.param({"issue_type": []}, InvalidInput, "must be one of", id="a list of issues"),
    pytest.param({"message_number": 2**63}, InvalidInput, "64 bits", id="a number too large"),
    pytest.param({"message_number": -(2**63) - 1}, InvalidInput, "64 bits", id="a number too small"),
    pytest.param({"message_number": True}, InvalidInput, "64 bits", id="a truth for a number"),
    pytest.param({"message_number": 1.0}, InvalidInput, "64 bits", id="a fraction"),
    pytest.param({"user": ""}, InvalidInput, "user must not be empty", id="an empty user"),
]


@pytest.mark.parametrize(("wrong", "error", "words"), REMARKS_REFUSED)
def test_what_is_no_remark_is_refused(
    acme: TenantHandle, wrong: dict[str, Any], error: type[Exception], words: str
) -> None:
    sent: dict[str, Any] = {"feedback_text": "x", "is_positive": False, **wrong}
    with pytest.raises(error, match=words):
        acme.remarks.create(sent.pop("feedback_text"), **sent)
    assert acme.remarks.list() == []


def test_remarks_come_in_pages_that_put_together_are_all(acme: TenantHandle) -> None:
    made = [acme.remarks.create(str(number), is_positive=False) for number in range(5)]
    assert acme.remarks.list() == made
    for limit in (1, 2, 3, 4):
        page = acme.remarks.list(limit=limit)
        found = list(page)
        while page.next is not None:
            page = acme.remarks.list(limit=limit, cursor=page.next)
            found += page
        assert found == made
    acme.remarks.create("one too many", is_positive=True)
    with pytest.raises(LimitExceeded, match="page them"):
        acme.remarks.list()


@pytest.mark.parametrize("cursor", ["", "x", encode_cursor("remarks", "no id"), encode_cursor("other", NEVER)])
def test_a_cursor_that_is_none_of_remarks_is_refused(acme: TenantHandle, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        acme.remarks.list(cursor=cursor)


def test_a_remark_is_removed_by_whose_it_is(hf: Place, acme: TenantHandle) -> None:
    made = acme.remarks.create("x", is_positive=True, user="ada")
    for tenant, user in ((acme, None), (acme, "bob"), (hf.tenant("zenith"), "ada")):
        assert tenant.remarks.delete(made.id, user=user) is False
    assert acme.remarks.delete(made.id.upper(), user="ada") is True, "an id may be written either way"
    assert acme.remarks.delete(made.id, user="ada") is False
    with pytest.raises(InvalidInput, match="id of a remark must be a UUID"):
        acme.remarks.delete("x")


@given(st.text(max_size=5), st.text(max_size=5))
@settings(max_examples=30)
def test_keys_have_threads_of_their_own(one: str, other: str) -> None:
    assert (thread_of(one) == thread_of(other)) == (one == other)


def test_a_task_that_came_before_its_session_goes_with_it(acme: TenantHandle) -> None:
    for user in ("ada", "bob"):
        acme.a2a_tasks.save("t", {"of": user}, context_id="s", user=user)
        acme.a2a_push_configs.save("t", {"of": user}, user=user)
    acme.a2a_tasks.save("elsewhere", {}, context_id="other", user="ada")
    session = acme.sessions.create(key="s", user="ada")
    acme.sessions.delete(session.id)
    assert [each.id for each in acme.a2a_tasks.list(user="ada")] == ["elsewhere"]
    assert [each.config["of"] for each in acme.a2a_push_configs.of_everybody("t")] == ["bob"]
    acme.sessions.restore(session.id)
    assert acme.a2a_tasks.count(user="ada") == 2
    assert len(acme.a2a_push_configs.of_everybody("t")) == 2


def test_a_task_that_was_deleted_before_its_session_stays_deleted(acme: TenantHandle) -> None:
    session = acme.sessions.create(key="s", user="ada")
    for id in ("before", "with"):
        acme.a2a_tasks.save(id, {}, context_id="s", user="ada")
    acme.a2a_tasks.delete("before", user="ada")
    acme.sessions.delete(session.id)
    acme.sessions.restore(session.id)
    assert [each.id for each in acme.a2a_tasks.list(user="ada")] == ["with"]
    assert acme.a2a_tasks.restore("before", user="ada").id == "before"


def test_a_task_can_come_back_without_its_session_and_is_not_in_its_way(acme: TenantHandle) -> None:
    session = acme.sessions.create(key="s", user="ada")
    acme.a2a_tasks.save("t", {"n": 1}, context_id="s", user="ada")
    acme.sessions.delete(session.id)
    assert acme.a2a_tasks.restore("t", user="ada").task == {"n": 1}
    acme.sessions.restore(session.id)
    assert acme.a2a_tasks.count(user="ada") == 1
    assert acme.a2a_tasks.count(context_id="s", user="ada") == 1


@pytest.mark.parametrize("kind", ["task", "flow", "checkpoint"])
def test_a_session_is_not_restored_over_what_has_its_names_now(acme: TenantHandle, kind: str) -> None:
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
    assert acme.sessions.find("s", user="ada") is None, "all of it or nothing"


def test_a_purged_session_leaves_no_row_of_anything_under_its_key(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with Holdfast(path) as opened, sqlite3.connect(path) as beside:
        acme = opened.tenant("acme")
        for is_deleted in (False, True):
            session = acme.sessions.create(key="s", user="ada")
            place: dict[str, Any] = {"thread_id": thread_of("s"), "user": "ada"}
            acme.session_shares.create(session.id, token=token(1))
            acme.session_shares.use(token(1), user="bob")
            acme.a2a_tasks.save("t", {"history": [1]}, context_id="s", user="ada")
            acme.a2a_push_configs.save("t", {}, user="ada")
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


@pytest.mark.parametrize("text", TEXTS)
def test_a_server_a_kind_and_a_tool_have_any_name(acme: TenantHandle, text: str) -> None:
    made = acme.tool_servers.upsert(text, kind=text, description=text, tools=[NewTool(text, text)])
    assert (made.name, made.kind, made.description) == (text, text, text)
    assert acme.tool_servers.find(text, kind=text) == made
    (tool,) = acme.tool_servers.tools(server=text, kind=text)
    assert (tool.name, tool.server, tool.kind, tool.description) == (text, text, text, text)
    assert acme.tool_servers.find(text) is None


SERVERS_REFUSED: list[Any] = [
    pytest.param({"name": ""}, InvalidInput, "must not be empty", id="no name"),
    pytest.param({"name": "x" * 501}, LimitExceeded, "key_bytes", id="a name over the limit"),
    pytest.param({"kind": None}, InvalidInput, "kind must be a string", id="no kind"),
    pytest.param({"kind": "x" * 256}, LimitExceeded, "name_bytes", id="a kind over the limit"),
    pytest.param({"description": "x" * 101}, LimitExceeded, "text_bytes", id="a description over the limit"),
    pytest.param({"tools": NewTool("a")}, InvalidInput, "a list of NewTool", id="a tool alone"),
    pytest.param({"tools": ["a"]}, InvalidInput, "a list of NewTool", id="a tool that is text"),
    pytest.param({"tools": [NewTool("")]}, InvalidInput, "name of a tool must not", id="a tool without a name"),
    pytest.param({"tools": [NewTool("a", "x" * 101)]}, LimitExceeded, "text_bytes", id="a tool described at length"),
    pytest.param({"tools": [NewTool(each) for each in "abcd"]}, LimitExceeded, "tools = 3", id="too many tools"),
    pytest.param({"connected_at": NAIVE}, InvalidInput, "time zone", id="a moment without a zone"),
    pytest.param({"connected_at": 7}, InvalidInput, "time zone", id="a moment that is none"),
]


@pytest.mark.parametrize(("wrong", "error", "words"), SERVERS_REFUSED)
def test_what_is_no_server_is_refused_and_the_one_before_stays(
    acme: TenantHandle, wrong: dict[str, Any], error: type[Exception], words: str
) -> None:
    acme.tool_servers.upsert("s", tools=[NewTool(each) for each in "abc"])
    sent: dict[str, Any] = {"name": "s", **wrong}
    with pytest.raises(error, match=words):
        acme.tool_servers.upsert(sent.pop("name"), **sent)
    assert [each.name for each in acme.tool_servers.tools()] == ["a", "b", "c"]


def test_of_a_tool_that_is_there_twice_the_last_counts(acme: TenantHandle) -> None:
    acme.tool_servers.upsert("s", tools=[NewTool("a", "one"), NewTool("a", "two")])
    assert [(each.name, each.description) for each in acme.tool_servers.tools()] == [("a", "two")]


def test_when_a_server_was_connected_stays_known(acme: TenantHandle, clock: FixedClock) -> None:
    moment = from_us(clock.now_us())
    acme.tool_servers.upsert("s", connected_at=moment)
    assert acme.tool_servers.upsert("s").last_connected_at == moment
    later = acme.tool_servers.upsert("s", connected_at=moment + timedelta(days=1))
    assert later.last_connected_at == moment + timedelta(days=1)


def test_a_live_server_restored_is_unchanged_and_tenants_are_apart(hf: Place, acme: TenantHandle) -> None:
    made, zenith = acme.tool_servers.upsert("s"), hf.tenant("zenith")
    assert acme.tool_servers.restore("s") == made
    for call in (zenith.tool_servers.delete, zenith.tool_servers.restore):
        with pytest.raises(NotFound, match="no tool server 's'"):
            call("s")
    assert zenith.tool_servers.list() == zenith.tool_servers.tools() == []


def test_servers_and_tools_over_the_limit_are_asked_for_in_parts(acme: TenantHandle) -> None:
    for name in "abc":
        acme.tool_servers.upsert(name, tools=[NewTool(each) for each in "xy"])
    with pytest.raises(LimitExceeded, match="ask for those of one server"):
        acme.tool_servers.tools()
    assert [each.name for each in acme.tool_servers.tools(server="b")] == ["x", "y"]
    for name in "def":
        acme.tool_servers.upsert(name)
    with pytest.raises(LimitExceeded, match="page them"):
        acme.tool_servers.list()
    with pytest.raises(InvalidFilter):
        acme.tool_servers.list(cursor=encode_cursor("tool_servers", "only one"))


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_names_have_one_order_on_either_engine_and_pages_keep_it(engine: str, request: pytest.FixtureRequest) -> None:
    url = ":memory:" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    with Holdfast(url) as opened:
        servers = opened.tenant("acme").tool_servers
        for text in ("b", "B", "ä", "a", "_", "\x00", "漢"):
            servers.upsert(text, kind="y")
            servers.upsert(text, kind="X")
        found = [(each.name, each.kind) for each in servers.list()]
        assert [name for name, _ in found[::2]] == ["B", "_", "a", "b", "ä", "漢", "\x00"], "NUL is stored as the last"
        paged, page = [], servers.list(limit=3)
        while page.next is not None:
            paged += page
            page = servers.list(limit=3, cursor=page.next)
        assert [(each.name, each.kind) for each in [*paged, *page]] == found
