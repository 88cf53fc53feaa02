"""Edge cases of flows: sequence numbers, pending feedback, pages and invalid arguments."""

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
from tests.errors import raises

CLOCK = FixedClock()
LIMITS = Limits(list_rows=4, page_rows=4, key_bytes=20, name_bytes=20, json_depth=3, state_bytes=50)


@pytest.fixture(scope="module")
def opened() -> Iterator[Holdfast]:
    with Holdfast(":memory:", clock=CLOCK, limits=LIMITS) as hf:
        yield hf


@pytest.fixture
def acme(opened: Holdfast, request: pytest.FixtureRequest) -> TenantHandle:
    """A tenant of its own for each test."""
    return opened.tenant(request.node.name[:200])


def save(acme: TenantHandle, flow: str, method: str = "m", **how: Any) -> None:
    CLOCK.advance(1)
    acme.flows.save(flow, method=method, **{"state": {}, **how})


def uuids(flows: Any) -> list[str]:
    return [flow.flow_uuid for flow in flows]


def test_the_sequence_number_counts_the_saves_of_a_flow(acme: TenantHandle) -> None:
    numbers = [acme.flows.save("f", method=method, state={"at": method}).seq for method in ("a", "b", "a", "a")]
    assert numbers == [1, 2, 3, 4]
    assert [(state.method, state.seq) for state in acme.flows.history("f")] == [("a", 4), ("b", 2)]
    (flow,) = acme.flows.list()
    assert flow.seq == 4
    assert acme.flows.find("f") == acme.flows.history("f")[0]


def test_a_deleted_flow_starts_from_scratch(acme: TenantHandle) -> None:
    save(acme, "f", feedback={"ask": 1})
    assert acme.flows.delete("f") is True
    assert acme.flows.delete("f") is False
    assert (acme.flows.find("f"), acme.flows.pending("f"), list(acme.flows.history("f"))) == (None, None, [])
    assert acme.flows.save("f", method="m", state={}).seq == 1
    assert acme.flows.pending("f") is None


def test_a_missing_flow_has_no_state(acme: TenantHandle) -> None:
    assert acme.flows.find("absent") is None
    assert acme.flows.pending("absent") is None
    assert acme.flows.clear_pending("absent") is False
    assert list(acme.flows.history("absent")) == []
    assert acme.flows.list() == []


def test_pending_feedback_keeps_the_state_of_its_time(acme: TenantHandle) -> None:
    save(acme, "f", "ask", state={"n": 1}, feedback={"q": "\x00"})
    asked_at = from_us(CLOCK.now_us())
    save(acme, "f", "later", state={"n": 2})
    pending = acme.flows.pending("f")
    assert pending is not None
    assert (pending.context, pending.state, pending.asked_at) == ({"q": "\x00"}, {"n": 1}, asked_at)
    assert acme.flows.list()[0].asked_at == asked_at
    save(acme, "f", "ask", state={"n": 3}, feedback={})
    second = acme.flows.pending("f")
    assert second is not None
    assert (second.context, second.state, second.asked_at) == ({}, {"n": 3}, from_us(CLOCK.now_us()))
    assert [acme.flows.clear_pending("f"), acme.flows.clear_pending("f")] == [True, False]
    assert acme.flows.find("f") is not None


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, ["d", "c", "b", "a"]),
        ({"is_pending": True}, ["d", "b"]),
        ({"is_pending": False}, ["c", "a"]),
        ({"thread_id": ""}, ["b", "a"]),
        ({"thread_id": "t"}, ["d", "c"]),
        ({"thread_id": "t", "is_pending": True}, ["d"]),
        ({"thread_id": "absent"}, []),
        ({"user": "other"}, ["x"]),
    ],
    ids=repr,
)
def test_lists_are_filtered(acme: TenantHandle, how: dict[str, Any], expected: list[str]) -> None:
    save(acme, "a")
    save(acme, "b", feedback={})
    save(acme, "c", thread_id="t")
    save(acme, "d", thread_id="t", feedback={})
    save(acme, "x", user="other", feedback={})
    assert uuids(acme.flows.list(**how)) == expected
    page = acme.flows.list(limit=1, **how)
    listed = uuids(page)
    while page.next is not None:
        page = acme.flows.list(limit=1, cursor=page.next, **how)
        listed += uuids(page)
    assert listed == expected


def test_flows_saved_at_one_time_are_ordered_by_name_and_thread(acme: TenantHandle) -> None:
    for flow, thread in (("a", ""), ("a", "t"), ("é", ""), ("\x00", "")):
        acme.flows.save(flow, method="m", state={}, thread_id=thread)
    page = acme.flows.list(limit=1)
    listed = [(page[0].flow_uuid, page[0].thread_id)]
    while page.next is not None:
        page = acme.flows.list(limit=1, cursor=page.next)
        listed.append((page[0].flow_uuid, page[0].thread_id))
    assert listed == [("\x00", ""), ("é", ""), ("a", "t"), ("a", "")]


def test_lists_and_histories_are_limited(acme: TenantHandle) -> None:
    for number in range(4):
        save(acme, str(number))
        save(acme, "0", str(number))
    assert len(acme.flows.list()) == 4
    assert acme.flows.list(limit=4).next is None
    save(acme, "4")
    with raises(LimitExceeded, limit="list_rows", maximum=4):
        acme.flows.list()
    with raises(LimitExceeded, limit="page_rows", maximum=4):
        acme.flows.list(limit=5)
    with raises(LimitExceeded, limit="list_rows", maximum=4):
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
def test_a_cursor_of_another_list_is_refused(acme: TenantHandle, cursor: Any) -> None:
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
def test_an_invalid_save_leaves_the_flow_unchanged(acme: TenantHandle, how: Any, error: type[Exception]) -> None:
    save(acme, "f", state={"n": 1}, feedback={"q": 1})
    before = (acme.flows.find("f"), acme.flows.pending("f"), list(acme.flows.list()))
    with pytest.raises(error):
        save(acme, "f", **how)
    assert (acme.flows.find("f"), acme.flows.pending("f"), list(acme.flows.list())) == before


def test_a_state_of_exactly_the_limit_is_saved(acme: TenantHandle) -> None:
    save(acme, "f", state={"a": "x" * 42})
    with raises(LimitExceeded, limit="state_bytes", maximum=50):
        save(acme, "f", state={"a": "x" * 43})


keys = st.tuples(st.sampled_from(["f", "g"]), st.sampled_from(["", "t"]), st.sampled_from([None, "u"]))
actions = st.lists(
    st.tuples(st.sampled_from(["save", "ask", "clear", "delete"]), keys, st.sampled_from("ab")), max_size=10
)


@given(steps=actions)
@settings(max_examples=25)
def test_flows_equal_a_model_of_dictionaries(
    opened: Holdfast, steps: list[tuple[str, tuple[str, str, str | None], str]]
) -> None:
    flows = opened.tenant("model").flows
    states: dict[Any, dict[str, int]] = {}
    waiting: dict[Any, int] = {}
    for number, (action, key, method) in enumerate(steps):
        options: Any = {"thread_id": key[1], "user": key[2]}
        if action in ("save", "ask"):
            flows.save(key[0], method=method, state={"n": number}, feedback={} if action == "ask" else None, **options)
            states.setdefault(key, {}).pop(method, None)
            states[key][method] = number
            waiting |= {key: number} if action == "ask" else {}
        elif action == "clear":
            assert flows.clear_pending(key[0], **options) == (waiting.pop(key, None) is not None)
        else:
            waiting.pop(key, None)
            assert flows.delete(key[0], **options) == (states.pop(key, None) is not None)
    for flow, thread, user in ((f, t, u) for f in "fg" for t in ("", "t") for u in (None, "u")):
        expected = states.pop((flow, thread, user), {})
        history = flows.history(flow, thread_id=thread, user=user)
        assert [(state.method, state.state["n"]) for state in history] == [*reversed(expected.items())]
        pending = flows.pending(flow, thread_id=thread, user=user)
        assert (None if pending is None else pending.state["n"]) == waiting.get((flow, thread, user))
        flows.delete(flow, thread_id=thread, user=user)
