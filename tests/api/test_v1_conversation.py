"""Conversations over HTTP: sessions, messages and context."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.v1 import NEVER, V1Client, texts, where

QUIET = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
SURROGATE = b'"\\ud800"'


# Sessions


@QUIET
@given(NAMES, NAMES, st.dictionaries(NAMES, st.integers(-(2**40), 2**40) | NAMES, max_size=3))
def test_a_session_is_found_by_any_key_and_user(v1: V1Client, key: str, user: str, metadata: dict[str, Any]) -> None:
    made = v1.good("POST", "/sessions", {"key": key, "user": user, "metadata": metadata}, 201)
    assert (made["key"], made["user"], made["metadata"]) == (key, user, metadata)
    body = v1.good("GET", f"/sessions/by-key/{quote(key, safe='')}?user={quote(user)}")
    assert body == made
    v1.good("POST", f"/sessions/{made['id']}/purge", status=204)


@pytest.mark.parametrize("field", ["key", "user", "agent"])
def test_a_name_has_a_minimum_and_a_maximum_length(v1: V1Client, field: str) -> None:
    assert field in v1.bad("POST", "/sessions", {field: ""})["detail"]
    assert v1.bad("POST", "/sessions", {field: "k" * 10_000}, 422)["type"] == "LimitExceeded"
    assert v1.good("GET", "/sessions")["items"] == []


def test_a_name_with_a_lone_surrogate_is_returned_unchanged(v1: V1Client) -> None:
    made = v1.ask("POST", "/sessions", b'{"metadata": {"a": ' + SURROGATE + b"}}")
    assert made.status == 201
    assert SURROGATE in made.body
    id = json.loads(made.body)["id"]
    assert SURROGATE in v1.ask("GET", f"/sessions/{id}").body


def test_creating_a_session_is_idempotent_by_its_id(v1: V1Client) -> None:
    id = str(uuid4())
    first = v1.good("POST", "/sessions", {"key": "k"}, 201, headers={"Idempotency-Key": f'"{id}"'})
    assert first["id"] == id
    assert v1.good("POST", "/sessions", {"key": "k", "id": id.upper()}, 201) == first
    assert v1.bad("POST", "/sessions", {"key": "other", "id": id}, 409)["type"] == "Conflict"
    assert v1.bad("POST", "/sessions", {"key": "k"}, 409)["type"] == "AlreadyExists"
    assert v1.good("GET", "/sessions/count")["count"] == 1


def test_an_id_of_another_tenant_neither_conflicts_nor_grants_access(v1: V1Client) -> None:
    id, other = v1.session("secret"), v1.another()
    assert other.bad("GET", f"/sessions/{id}", status=404)["type"] == "NotFound"
    assert other.good("POST", "/sessions", {"id": id}, 201)["message_count"] == 0
    other.good("POST", f"/sessions/{id}/purge", status=204)
    assert texts(v1.good("GET", f"/sessions/{id}/messages")) == ["secret"]


def test_the_etag_depends_on_the_state_and_changes_with_it(v1: V1Client) -> None:
    made = v1.ask("POST", "/sessions", {"key": "k"})
    at = f"/sessions/{made.json['id']}"
    assert v1.ask("GET", at).headers["etag"] == made.headers["etag"]
    assert v1.ask("GET", "/sessions/by-key/k").headers["etag"] == made.headers["etag"]
    changed = v1.ask("PATCH", at, {"agent": "a"}, headers={"If-Match": f'"no", {made.headers["etag"]}'})
    assert changed.status == 200
    assert changed.headers["etag"] != made.headers["etag"]
    late = v1.bad("PATCH", at, {"agent": "b"}, 412, headers={"If-Match": made.headers["etag"]})
    assert (late["type"], v1.good("GET", at)["agent"]) == ("Conflict", "a")
    v1.good("PATCH", at, {"agent": "b"}, headers={"If-Match": " * "})
    assert v1.bad("DELETE", at, None, 412, headers={"If-Match": made.headers["etag"]})["type"] == "Conflict"
    assert v1.good("GET", at)["agent"] == "b"
    now = v1.ask("GET", at).headers["etag"]
    v1.good("DELETE", at, status=204, headers={"If-Match": now})
    assert v1.bad("PATCH", f"/sessions/{NEVER}", {"agent": "b"}, 404, headers={"If-Match": '"x"'})["type"] == "NotFound"


def test_an_update_changes_only_the_sent_fields(v1: V1Client) -> None:
    id = v1.good("POST", "/sessions", {"agent": "a", "metadata": {"x": 1, "y": 2}}, 201)["id"]
    assert v1.good("PATCH", f"/sessions/{id}", {"metadata": {"z": 3}})["metadata"] == {"z": 3}
    same = v1.good("PATCH", f"/sessions/{id}", {})
    assert (same["agent"], same["metadata"]) == ("a", {"z": 3})
    v1.bad("PATCH", f"/sessions/{id}", {"metadata": None})
    v1.bad("PATCH", f"/sessions/{id}", {"key": "new"})


def test_deleted_sessions_are_only_returned_on_request(v1: V1Client) -> None:
    kept, results = v1.session(), v1.session("x")
    v1.good("DELETE", f"/sessions/{results}", status=204)
    assert [session["id"] for session in v1.good("GET", "/sessions")["items"]] == [kept]
    assert [session["id"] for session in v1.good("GET", "/sessions?deleted=true")["items"]] == [results]
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/messages"), ("GET", "/branches"), ("GET", "/events")):
        assert v1.bad(method, f"/sessions/{results}{path}", status=404)["type"] == "NotFound"
    assert v1.good("GET", f"/sessions/{results}?deleted=true")["deleted_at"]
    v1.good("POST", f"/sessions/{results}/restore")
    v1.bad("POST", f"/sessions/{NEVER}/restore", status=404)
    v1.bad("POST", f"/sessions/{NEVER}/purge", status=404)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("user=ada", ["one", "two"]),
        ("agent=x", ["two"]),
        ('metadata={"n":2}', ["two"]),
        ('metadata={"n":"2"}', []),
        (where({"op": "eq", "column": "key", "value": "one"}), ["one"]),
        (where({"op": "in", "column": "key", "value": ["one", "three"]}), ["one", "three"]),
        (where({"op": "gt", "meta": "n", "value": 1}), ["three", "two"]),
        (where({"op": "lt", "column": "created_at", "value": "2000-01-01T00:00:00Z"}), []),
        (where({"op": "gt", "column": "created_at", "value": "2000-01-01T01:00:00+01:00"}), ["one", "three", "two"]),
        (where(), ["one", "three", "two"]),
        ("user=unknown", []),
    ],
)
def test_sessions_are_counted_with_the_same_filters(v1: V1Client, query: str, expected: list[str]) -> None:
    for n, (key, more) in enumerate(
        [("one", {"user": "ada"}), ("two", {"user": "ada", "agent": "x"}), ("three", {"user": "bob"})], 1
    ):
        v1.good("POST", "/sessions", {"key": key, "metadata": {"n": n}, **more}, 201)
    assert sorted(session["key"] for session in v1.good("GET", f"/sessions?{query}")["items"]) == expected
    assert v1.good("GET", f"/sessions/count?{query}")["count"] == len(expected)


@pytest.mark.parametrize(
    "filters",
    [
        where({"op": "eq", "column": "colour", "value": 1}),
        where({"op": "like", "column": "key", "value": "x"}),
        where({"op": "eq", "value": 1}),
        where({"op": "eq", "column": "key", "meta": "n", "value": 1}),
        where({"op": "lt", "column": "created_at", "value": "yesterday"}),
        where({"op": "lt", "column": "created_at", "value": "2030-01-01T00:00:00"}),
        where({"op": "lt", "column": "created_at", "value": 7}),
        "where={}",
        "where=7",
        "where=[7]",
        "where=[",
        "where=",
        "where=[]&where=[]",
        "metadata=[]",
        "metadata=x",
        "deleted=perhaps",
    ],
)
def test_an_invalid_filter_is_refused(v1: V1Client, filters: str) -> None:
    assert v1.bad("GET", f"/sessions?{filters}")["type"] in ("InvalidInput", "InvalidFilter")


# Messages


def test_pages_of_messages_have_no_gaps_from_either_end(v1: V1Client) -> None:
    session = v1.session(*"abcdefg")
    for order, whole in (("false", list("abcdefg")), ("true", list("gfedcba"))):
        results: list[str] = []
        at: str | None = ""
        while at is not None:
            more = f"&cursor={quote(at)}" if at else ""
            page = v1.good("GET", f"/sessions/{session}/messages?limit=3&newest_first={order}{more}")
            results, at = results + texts(page), page["next"]
        assert results == whole


def test_a_cursor_is_only_valid_for_its_own_list(v1: V1Client) -> None:
    session, other = v1.session(*"abc"), v1.session(*"abc")
    cursor = v1.good("GET", f"/sessions/{session}/messages?limit=1")["next"]
    assert texts(v1.good("GET", f"/sessions/{session}/messages?limit=1&cursor={quote(cursor)}")) == ["b"]
    v1.bad("GET", f"/sessions?cursor={quote(cursor)}")
    v1.bad("GET", f"/sessions/{other}/branches?limit=1&cursor={quote(cursor)}")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("after=1", "bcd"),
        ("before=3", "ab"),
        ("after=1&before=3", "b"),
        ("after=4", ""),
        ("before=0", ""),
        ("after=3&before=2", ""),
        (where({"op": "ge", "column": "seq", "value": 3}), "cd"),
        (where({"op": "eq", "column": "role", "value": "assistant"}), ""),
        ("limit=2&newest_first=true", "dc"),
    ],
)
def test_a_range_of_a_log_is_selected_by_position(v1: V1Client, query: str, expected: str) -> None:
    assert texts(v1.good("GET", f"/sessions/{v1.session(*'abcd')}/messages?{query}")) == list(expected)


@pytest.mark.parametrize("query", ["after=-1", "before=x", "after=1&after=2", "newest_first=2", "count=1"])
def test_an_invalid_position_is_refused(v1: V1Client, query: str) -> None:
    v1.bad("GET", f"/sessions/{v1.session('a')}/messages?{query}")


def test_the_last_messages_are_limited_by_count(v1: V1Client) -> None:
    session = v1.session(*"abc")
    assert texts(v1.good("GET", f"/sessions/{session}/messages/last?count=2")) == ["b", "c"]
    assert texts(v1.good("GET", f"/sessions/{session}/messages/last")) == ["a", "b", "c"]
    v1.bad("GET", f"/sessions/{session}/messages/last?count=0")
    assert v1.good("GET", f"/sessions/{v1.session()}/messages/last")["items"] == []


def test_a_message_is_appended_once_under_one_id(v1: V1Client) -> None:
    at, id = f"/sessions/{v1.session()}/messages", str(uuid4())
    body = {"role": "user", "content": "x"}
    first = v1.good("POST", at, body, 201, headers={"Idempotency-Key": id})
    assert v1.good("POST", at, {**body, "id": id}, 201) == first
    assert v1.bad("POST", at, {**body, "content": "y"}, 409, headers={"Idempotency-Key": id})["type"] == "Conflict"
    refused = v1.bad("POST", at, {"messages": [body]}, headers={"Idempotency-Key": id})
    assert refused["field"] == "Idempotency-Key"
    v1.bad("POST", at, body, headers={"Idempotency-Key": "not-a-uuid"})
    assert v1.good("GET", at + "/count")["count"] == 1


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ({"messages": []}, "length >= 1"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "user", "content": "x"}], "role": "user"}, "role"),
        ({"role": "robot", "content": "x"}, "robot"),
        ({"role": "user", "content": "x", "token_count": -1}, "token_count"),
        ({"role": "user", "content": "x", "token_count": 1.5}, "token_count"),
        ({"role": "user", "content": "x", "is_preserved": 1}, "is_preserved"),
        ({"role": "user", "content": "x", "metadata": []}, "metadata"),
        ({"role": "user", "content": [{"no": "type"}]}, "type"),
        ({"content": "x"}, "role"),
        ({}, "content"),
    ],
)
def test_an_invalid_message_is_refused_with_the_error_of_the_likely_type(v1: V1Client, body: Any, hint: str) -> None:
    session = v1.session()
    assert hint in v1.bad("POST", f"/sessions/{session}/messages", body)["detail"]
    assert v1.good("GET", f"/sessions/{session}/messages/count")["count"] == 0


def test_several_messages_are_appended_together_or_not_at_all(v1: V1Client) -> None:
    at, id = f"/sessions/{v1.session('a')}/messages", str(uuid4())
    v1.good("POST", at, {"role": "user", "content": "b", "id": id}, 201)
    both = [{"role": "user", "content": "c"}, {"role": "user", "content": "other", "id": id}]
    assert v1.bad("POST", at, {"messages": both}, 409)["type"] == "Conflict"
    assert texts(v1.good("GET", at)) == ["a", "b"]


def test_a_changed_message_keeps_its_position(v1: V1Client) -> None:
    session = v1.session("a", "b")
    before = v1.good("GET", f"/sessions/{session}/messages")["items"][0]
    change = {"content": "new", "metadata": {"m": 1}, "token_count": 9, "is_preserved": True}
    after = v1.good("PATCH", f"/messages/{before['id']}", change)
    assert (after["seq"], after["created_at"]) == (before["seq"], before["created_at"])
    assert (after["metadata"], after["token_count"], after["is_preserved"]) == ({"m": 1}, 9, True)
    assert texts(v1.good("GET", f"/sessions/{session}/messages")) == ["new", "b"]
    v1.bad("PATCH", f"/messages/{before['id']}", {"content": None})
    v1.bad("PATCH", f"/messages/{before['id']}", {"role": "assistant"})


def test_only_messages_of_the_session_are_removed_and_their_positions_stay_empty(v1: V1Client) -> None:
    session, other = v1.session(*"abc"), v1.session("d")
    ids = {
        message["content"][0]["text"]: message["id"]
        for message in v1.good("GET", f"/sessions/{session}/messages")["items"]
    }
    foreign = v1.good("GET", f"/sessions/{other}/messages")["items"][0]["id"]
    query = f"id={ids['b']}&id={foreign}&id={ids['b']}&id={NEVER}"
    assert v1.good("DELETE", f"/sessions/{session}/messages?{query}")["removed"] == 1
    assert [message["seq"] for message in v1.good("GET", f"/sessions/{session}/messages")["items"]] == [1, 3]
    assert v1.good("GET", f"/messages/{foreign}")["session_id"] == other
    assert v1.bad("GET", f"/messages/{ids['b']}", status=404)["type"] == "NotFound"
    many = "&".join(f"id={uuid4()}" for _ in range(501))
    assert "500" in v1.bad("DELETE", f"/sessions/{session}/messages?{many}")["detail"]


def test_a_context_contains_the_last_messages_that_fit(v1: V1Client) -> None:
    session = v1.session()
    for text in "abc":
        v1.good("POST", f"/sessions/{session}/messages", {"role": "user", "content": text, "token_count": 10}, 201)
    assert [message["seq"] for message in v1.good("GET", f"/sessions/{session}/context?max_tokens=25")["messages"]] == [
        2,
        3,
    ]
    for wrong in ("max_tokens=-1", "max_tokens=x", "max_tokens=9007199254740993"):
        v1.bad("GET", f"/sessions/{session}/context?{wrong}")
