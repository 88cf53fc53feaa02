"""Flows at their edges: numbers that rise, questions that wait, pages that miss nobody, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Holdfast, Limits, TenantHandle
from holdfast.clock import FixedClock, from_us
from holdfast.core.paging import encode_cursor
from holdfast.errors import InvalidFilter, InvalidInput, InvalidText, LimitExceeded
from tests.contract.cases.values import GARBAGE_CURSORS, nested

CLOCK = FixedClock()
LIMITS = Limits(list_rows=4, page_rows=4, key_bytes=20, name_bytes=20, json_depth=3, state_bytes=50)


@pytest.fixture(scope="module")
def opened() -> Iterator[Holdfast]:
    with Holdfast(":memory:", clock=CLOCK, limits=LIMITS) as hf:
        yield hf


@pytest.fixture
def acme(opened: Holdfast, request: pytest.FixtureRequest) -> TenantHandle:
    """A tenant of the test's own."""
    return opened.tenant(request.node.name[:200])


def save(acme: TenantHandle, flow: str, method: str = "m", **how: Any) -> None:
    CLOCK.advance(1)
    acme.flows.save(flow, method=method, **{"state": {}, **how})


def uuids(found: Any) -> list[str]:
    return [each.flow_uuid for each in found]


def test_the_number_of_a_state_is_how_often_the_flow_was_saved(acme: TenantHandle) -> None:
    seen = [acme.flows.save("f", method=method, state={"at": method}).seq for method in ("a", "b", "a", "a")]
    assert seen == [1, 2, 3, 4]
    assert [(each.method, each.seq) for each in acme.flows.history("f")] == [("a", 4), ("b", 2)]
    (flow,) = acme.flows.list()
    assert flow.seq == 4
    assert acme.flows.find("f") == acme.flows.history("f")[0]


def test_a_flow_that_was_deleted_begins_anew(acme: TenantHandle) -> None:
    save(acme, "f", feedback={"ask": 1})
    assert acme.flows.delete("f") is True
    assert acme.flows.delete("f") is False
    assert (acme.flows.find("f"), acme.flows.pending("f"), list(acme.flows.history("f"))) == (None, None, [])
    assert acme.flows.save("f", method="m", state={}).seq == 1
    assert acme.flows.pending("f") is None


def test_nobody_waits_for_a_flow_that_never_was(acme: TenantHandle) -> None:
    assert acme.flows.find("absent") is None
    assert acme.flows.pending("absent") is None
    assert acme.flows.clear_pending("absent") is False
    assert list(acme.flows.history("absent")) == []
    assert acme.flows.list() == []


def test_a_question_keeps_the_state_of_its_moment(acme: TenantHandle) -> None:
    save(acme, "f", "ask", state={"n": 1}, feedback={"q": "\x00"})
    asked = from_us(CLOCK.now_us())
    save(acme, "f", "later", state={"n": 2})
    pending = acme.flows.pending("f")
    assert pending is not None
    assert (pending.context, pending.state, pending.asked_at) == ({"q": "\x00"}, {"n": 1}, asked)
    assert acme.flows.list()[0].asked_at == asked
    save(acme, "f", "ask", state={"n": 3}, feedback={})
    again = acme.flows.pending("f")
    assert again is not None
    assert (again.context, again.state, again.asked_at) == ({}, {"n": 3}, from_us(CLOCK.now_us()))
    assert [acme.flows.clear_pending("f"), acme.flows.clear_pending("f")] == [True, False]
    assert acme.flows.find("f") is not None


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ({}, ["d", "c", "b", "a"]),
        ({"is_pending": True}, ["d", "b"]),
        ({"is_pending": False}, ["c", "a"]),
        ({"thread_id": ""}, ["b", "a"]),
        ({"thread_id": "t"}, ["d", "c"]),
        ({"thread_id": "t", "is_pending": True}, ["d"]),
        ({"thread_id": "absent"}, []),
        ({"user": "somebody"}, ["x"]),
    ],
    ids=repr,
)
def test_a_list_shows_what_was_asked_for(acme: TenantHandle, how: dict[str, Any], wanted: list[str]) -> None:
    save(acme, "a")
    save(acme, "b", feedback={})
    save(acme, "c", thread_id="t")
    save(acme, "d", thread_id="t", feedback={})
    save(acme, "x", user="somebody", feedback={})
    assert uuids(acme.flows.list(**how)) == wanted
    page = acme.flows.list(limit=1, **how)
    found = uuids(page)
    while page.next is not None:
        page = acme.flows.list(limit=1, cursor=page.next, **how)
        found += uuids(page)
    assert found == wanted


def test_flows_of_one_moment_are_told_apart_by_name_and_thread(acme: TenantHandle) -> None:
    for flow, thread in (("a", ""), ("a", "t"), ("é", ""), ("\x00", "")):
        acme.flows.save(flow, method="m", state={}, thread_id=thread)
    page = acme.flows.list(limit=1)
    found = [(page[0].flow_uuid, page[0].thread_id)]
    while page.next is not None:
        page = acme.flows.list(limit=1, cursor=page.next)
        found.append((page[0].flow_uuid, page[0].thread_id))
    assert found == [("\x00", ""), ("é", ""), ("a", "t"), ("a", "")]


def test_a_list_and_a_history_end_at_their_limit(acme: TenantHandle) -> None:
    for number in range(4):
        save(acme, str(number))
        save(acme, "0", str(number))
    assert len(acme.flows.list()) == 4
    assert acme.flows.list(limit=4).next is None
    save(acme, "4")
    with pytest.raises(LimitExceeded, match="list_rows = 4 flows: page them with limit="):
        acme.flows.list()
    with pytest.raises(LimitExceeded, match="page_rows = 4"):
        acme.flows.list(limit=5)
    with pytest.raises(LimitExceeded, match="more than list_rows = 4 methods"):
        acme.flows.history("0")
    assert acme.flows.find("0") is not None


@pytest.mark.parametrize(
    "cursor",
    [
        *GARBAGE_CURSORS,
        encode_cursor("agents", "a"),
        encode_cursor("flows", 1, "a"),
        encode_cursor("flows", -1, "a", ""),
    ],
    ids=lambda cursor: repr(cursor)[:12],
)
def test_a_cursor_that_is_none_of_this_list_is_refused(acme: TenantHandle, cursor: Any) -> None:
    with pytest.raises(InvalidFilter):
        acme.flows.list(limit=1, cursor=cursor)


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"method": None}, InvalidInput), ({"method": "x" * 21}, LimitExceeded), ({"user": ""}, InvalidInput),
        ({"user": "é" * 11}, LimitExceeded), ({"thread_id": None}, InvalidInput), ({"thread_id": "x" * 21}, LimitExceeded),
        ({"state": {"a": nested(3)}}, LimitExceeded), ({"state": {"a": float("inf")}}, InvalidText),
        ({"state": {"a": "é" * 25}}, LimitExceeded), ({"feedback": [1]}, InvalidInput), ({"feedback": "ask"}, InvalidInput),
        ({"feedback": {1: 2}}, InvalidInput), ({"feedback": {"a": {1}}}, InvalidText),
    ],
    ids=lambda value: repr(value)[:30],
)  # fmt: skip
def test_what_cannot_be_saved_leaves_the_flow_as_it_was(acme: TenantHandle, how: Any, error: type[Exception]) -> None:
    save(acme, "f", state={"n": 1}, feedback={"q": 1})
    before = (acme.flows.find("f"), acme.flows.pending("f"), list(acme.flows.list()))
    with pytest.raises(error):
        save(acme, "f", **how)
    assert (acme.flows.find("f"), acme.flows.pending("f"), list(acme.flows.list())) == before


def test_a_state_of_exactly_the_limit_is_kept(acme: TenantHandle) -> None:
    save(acme, "f", state={"a": "x" * 42})
    with pytest.raises(LimitExceeded, match="state: 51 is over the limit state_bytes = 50"):
        save(acme, "f", state={"a": "x" * 43})


keys = st.tuples(st.sampled_from(["f", "g"]), st.sampled_from(["", "t"]), st.sampled_from([None, "u"]))
actions = st.lists(
    st.tuples(st.sampled_from(["save", "ask", "clear", "delete"]), keys, st.sampled_from("ab")), max_size=10
)


@given(done=actions)
@settings(max_examples=25)
def test_flows_do_what_dictionaries_would(
    opened: Holdfast, done: list[tuple[str, tuple[str, str, str | None], str]]
) -> None:
    flows = opened.tenant("model").flows
    states: dict[Any, dict[str, int]] = {}
    waiting: dict[Any, int] = {}
    for number, (what, key, method) in enumerate(done):
        at: Any = {"thread_id": key[1], "user": key[2]}
        if what in ("save", "ask"):
            flows.save(key[0], method=method, state={"n": number}, feedback={} if what == "ask" else None, **at)
            states.setdefault(key, {}).pop(method, None)
            states[key][method] = number
            waiting |= {key: number} if what == "ask" else {}
        elif what == "clear":
            assert flows.clear_pending(key[0], **at) == (waiting.pop(key, None) is not None)
        else:
            waiting.pop(key, None)
            assert flows.delete(key[0], **at) == (states.pop(key, None) is not None)
    for flow, thread, user in ((f, t, u) for f in "fg" for t in ("", "t") for u in (None, "u")):
        wanted = states.pop((flow, thread, user), {})
        found = flows.history(flow, thread_id=thread, user=user)
        assert [(each.method, each.state["n"]) for each in found] == [*reversed(wanted.items())]
        pending = flows.pending(flow, thread_id=thread, user=user)
        assert (None if pending is None else pending.state["n"]) == waiting.get((flow, thread, user))
        flows.delete(flow, thread_id=thread, user=user)
