"""Conversations over HTTP, operation by operation: sessions, messages, branches, compactions, waiting messages, people."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.v1 import NEVER, Here, texts, where

QUIET = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
SURROGATE = b'"\\ud800"'


# Sessions


@QUIET
@given(NAMES, NAMES, st.dictionaries(NAMES, st.integers(-(2**40), 2**40) | NAMES, max_size=3))
def test_a_session_is_found_under_whatever_it_was_made(
    here: Here, key: str, user: str, metadata: dict[str, Any]
) -> None:
    made = here.good("POST", "/sessions", {"key": key, "user": user, "metadata": metadata}, 201)
    assert (made["key"], made["user"], made["metadata"]) == (key, user, metadata)
    found = here.good("GET", f"/sessions/by-key/{quote(key, safe='')}?user={quote(user)}")
    assert found == made
    here.good("POST", f"/sessions/{made['id']}/purge", status=204)


@pytest.mark.parametrize("field", ["key", "user", "agent"])
def test_a_name_is_neither_empty_nor_longer_than_the_limit(here: Here, field: str) -> None:
    assert field in here.bad("POST", "/sessions", {field: ""})["detail"]
    assert here.bad("POST", "/sessions", {field: "k" * 10_000}, 422)["type"] == "LimitExceeded"
    assert here.good("GET", "/sessions")["items"] == []


def test_a_name_with_a_lone_surrogate_comes_back_with_it(here: Here) -> None:
    made = here.ask("POST", "/sessions", b'{"metadata": {"a": ' + SURROGATE + b"}}")
    assert made.status == 201
    assert SURROGATE in made.body
    id = json.loads(made.body)["id"]
    assert SURROGATE in here.ask("GET", f"/sessions/{id}").body


def test_the_same_id_makes_the_same_session_and_no_other(here: Here) -> None:
    id = str(uuid4())
    first = here.good("POST", "/sessions", {"key": "k"}, 201, headers={"Idempotency-Key": f'"{id}"'})
    assert first["id"] == id
    assert here.good("POST", "/sessions", {"key": "k", "id": id.upper()}, 201) == first
    assert here.bad("POST", "/sessions", {"key": "other", "id": id}, 409)["type"] == "Conflict"
    assert here.bad("POST", "/sessions", {"key": "k"}, 409)["type"] == "AlreadyExists"
    assert here.good("GET", "/sessions/count")["count"] == 1


def test_an_id_of_another_tenant_is_no_obstacle_and_no_way_in(here: Here) -> None:
    id, other = here.session("secret"), here.another()
    assert other.bad("GET", f"/sessions/{id}", status=404)["type"] == "NotFound"
    assert other.good("POST", "/sessions", {"id": id}, 201)["message_count"] == 0
    other.good("POST", f"/sessions/{id}/purge", status=204)
    assert texts(here.good("GET", f"/sessions/{id}/messages")) == ["secret"]


def test_the_etag_is_that_of_the_state_and_changes_with_it(here: Here) -> None:
    made = here.ask("POST", "/sessions", {"key": "k"})
    at = f"/sessions/{made.json['id']}"
    assert here.ask("GET", at).headers["etag"] == made.headers["etag"]
    assert here.ask("GET", "/sessions/by-key/k").headers["etag"] == made.headers["etag"]
    changed = here.ask("PATCH", at, {"agent": "a"}, headers={"If-Match": f'"no", {made.headers["etag"]}'})
    assert changed.status == 200
    assert changed.headers["etag"] != made.headers["etag"]
    late = here.bad("PATCH", at, {"agent": "b"}, 412, headers={"If-Match": made.headers["etag"]})
    assert (late["type"], here.good("GET", at)["agent"]) == ("Conflict", "a")
    here.good("PATCH", at, {"agent": "b"}, headers={"If-Match": " * "})
    assert here.bad("DELETE", at, None, 412, headers={"If-Match": made.headers["etag"]})["type"] == "Conflict"
    assert here.good("GET", at)["agent"] == "b"
    now = here.ask("GET", at).headers["etag"]
    here.good("DELETE", at, status=204, headers={"If-Match": now})
    assert (
        here.bad("PATCH", f"/sessions/{NEVER}", {"agent": "b"}, 404, headers={"If-Match": '"x"'})["type"] == "NotFound"
    )


def test_a_change_replaces_what_is_given_and_leaves_the_rest(here: Here) -> None:
    id = here.good("POST", "/sessions", {"agent": "a", "metadata": {"x": 1, "y": 2}}, 201)["id"]
    assert here.good("PATCH", f"/sessions/{id}", {"metadata": {"z": 3}})["metadata"] == {"z": 3}
    same = here.good("PATCH", f"/sessions/{id}", {})
    assert (same["agent"], same["metadata"]) == ("a", {"z": 3})
    here.bad("PATCH", f"/sessions/{id}", {"metadata": None})
    here.bad("PATCH", f"/sessions/{id}", {"key": "new"})


def test_what_is_deleted_is_seen_only_by_those_who_ask_for_it(here: Here) -> None:
    kept, gone = here.session(), here.session("x")
    here.good("DELETE", f"/sessions/{gone}", status=204)
    assert [each["id"] for each in here.good("GET", "/sessions")["items"]] == [kept]
    assert [each["id"] for each in here.good("GET", "/sessions?deleted=true")["items"]] == [gone]
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/messages"), ("GET", "/branches"), ("GET", "/events")):
        assert here.bad(method, f"/sessions/{gone}{path}", status=404)["type"] == "NotFound"
    assert here.good("GET", f"/sessions/{gone}?deleted=true")["deleted_at"]
    here.good("POST", f"/sessions/{gone}/restore")
    here.bad("POST", f"/sessions/{NEVER}/restore", status=404)
    here.bad("POST", f"/sessions/{NEVER}/purge", status=404)


@pytest.mark.parametrize(
    ("query", "found"),
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
        ("user=nobody", []),
    ],
)
def test_sessions_are_counted_as_they_are_listed(here: Here, query: str, found: list[str]) -> None:
    for n, (key, more) in enumerate(
        [("one", {"user": "ada"}), ("two", {"user": "ada", "agent": "x"}), ("three", {"user": "bob"})], 1
    ):
        here.good("POST", "/sessions", {"key": key, "metadata": {"n": n}, **more}, 201)
    assert sorted(each["key"] for each in here.good("GET", f"/sessions?{query}")["items"]) == found
    assert here.good("GET", f"/sessions/count?{query}")["count"] == len(found)


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
def test_a_filter_that_means_nothing_is_refused(here: Here, filters: str) -> None:
    assert here.bad("GET", f"/sessions?{filters}")["type"] in ("InvalidInput", "InvalidFilter")


# Messages


def test_pages_of_messages_join_without_gap_from_either_end(here: Here) -> None:
    session = here.session(*"abcdefg")
    for order, whole in (("false", list("abcdefg")), ("true", list("gfedcba"))):
        found: list[str] = []
        at: str | None = ""
        while at is not None:
            more = f"&cursor={quote(at)}" if at else ""
            page = here.good("GET", f"/sessions/{session}/messages?limit=3&newest_first={order}{more}")
            found, at = found + texts(page), page["next"]
        assert found == whole


def test_a_cursor_is_good_only_where_it_came_from(here: Here) -> None:
    session, other = here.session(*"abc"), here.session(*"abc")
    cursor = here.good("GET", f"/sessions/{session}/messages?limit=1")["next"]
    assert texts(here.good("GET", f"/sessions/{session}/messages?limit=1&cursor={quote(cursor)}")) == ["b"]
    here.bad("GET", f"/sessions?cursor={quote(cursor)}")
    here.bad("GET", f"/sessions/{other}/branches?limit=1&cursor={quote(cursor)}")


@pytest.mark.parametrize(
    ("query", "found"),
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
def test_a_part_of_a_log_is_what_its_places_say(here: Here, query: str, found: str) -> None:
    assert texts(here.good("GET", f"/sessions/{here.session(*'abcd')}/messages?{query}")) == list(found)


@pytest.mark.parametrize("query", ["after=-1", "before=x", "after=1&after=2", "newest_first=2", "count=1"])
def test_a_place_that_is_none_is_refused(here: Here, query: str) -> None:
    here.bad("GET", f"/sessions/{here.session('a')}/messages?{query}")


def test_the_last_messages_are_as_many_as_asked_for_and_there_are(here: Here) -> None:
    session = here.session(*"abc")
    assert texts(here.good("GET", f"/sessions/{session}/messages/last?count=2")) == ["b", "c"]
    assert texts(here.good("GET", f"/sessions/{session}/messages/last")) == ["a", "b", "c"]
    here.bad("GET", f"/sessions/{session}/messages/last?count=0")
    assert here.good("GET", f"/sessions/{here.session()}/messages/last")["items"] == []


def test_a_message_is_appended_once_under_one_id(here: Here) -> None:
    at, id = f"/sessions/{here.session()}/messages", str(uuid4())
    body = {"role": "user", "content": "x"}
    first = here.good("POST", at, body, 201, headers={"Idempotency-Key": id})
    assert here.good("POST", at, {**body, "id": id}, 201) == first
    assert here.bad("POST", at, {**body, "content": "y"}, 409, headers={"Idempotency-Key": id})["type"] == "Conflict"
    refused = here.bad("POST", at, {"messages": [body]}, headers={"Idempotency-Key": id})
    assert "one message" in refused["detail"]
    here.bad("POST", at, body, headers={"Idempotency-Key": "not-a-uuid"})
    assert here.good("GET", at + "/count")["count"] == 1


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
def test_a_message_that_is_none_is_refused_with_the_complaint_of_what_it_looks_like(
    here: Here, body: Any, hint: str
) -> None:
    session = here.session()
    assert hint in here.bad("POST", f"/sessions/{session}/messages", body)["detail"]
    assert here.good("GET", f"/sessions/{session}/messages/count")["count"] == 0


def test_of_several_messages_all_are_appended_or_none(here: Here) -> None:
    at, id = f"/sessions/{here.session('a')}/messages", str(uuid4())
    here.good("POST", at, {"role": "user", "content": "b", "id": id}, 201)
    both = [{"role": "user", "content": "c"}, {"role": "user", "content": "other", "id": id}]
    assert here.bad("POST", at, {"messages": both}, 409)["type"] == "Conflict"
    assert texts(here.good("GET", at)) == ["a", "b"]


def test_a_changed_message_keeps_its_place(here: Here) -> None:
    session = here.session("a", "b")
    before = here.good("GET", f"/sessions/{session}/messages")["items"][0]
    change = {"content": "new", "metadata": {"m": 1}, "token_count": 9, "is_preserved": True}
    after = here.good("PATCH", f"/messages/{before['id']}", change)
    assert (after["seq"], after["created_at"]) == (before["seq"], before["created_at"])
    assert (after["metadata"], after["token_count"], after["is_preserved"]) == ({"m": 1}, 9, True)
    assert texts(here.good("GET", f"/sessions/{session}/messages")) == ["new", "b"]
    here.bad("PATCH", f"/messages/{before['id']}", {"content": None})
    here.bad("PATCH", f"/messages/{before['id']}", {"role": "assistant"})


def test_only_messages_of_the_session_are_removed_and_their_places_stay_empty(here: Here) -> None:
    session, other = here.session(*"abc"), here.session("d")
    ids = {
        each["content"][0]["text"]: each["id"] for each in here.good("GET", f"/sessions/{session}/messages")["items"]
    }
    foreign = here.good("GET", f"/sessions/{other}/messages")["items"][0]["id"]
    query = f"id={ids['b']}&id={foreign}&id={ids['b']}&id={NEVER}"
    assert here.good("DELETE", f"/sessions/{session}/messages?{query}")["removed"] == 1
    assert [each["seq"] for each in here.good("GET", f"/sessions/{session}/messages")["items"]] == [1, 3]
    assert here.good("GET", f"/messages/{foreign}")["session_id"] == other
    assert here.bad("GET", f"/messages/{ids['b']}", status=404)["type"] == "NotFound"
    many = "&".join(f"id={uuid4()}" for _ in range(501))
    assert "500" in here.bad("DELETE", f"/sessions/{session}/messages?{many}")["detail"]


def test_a_context_is_what_fits_from_the_end(here: Here) -> None:
    session = here.session()
    for text in "abc":
        here.good("POST", f"/sessions/{session}/messages", {"role": "user", "content": text, "token_count": 10}, 201)
    assert [each["seq"] for each in here.good("GET", f"/sessions/{session}/context?max_tokens=25")["messages"]] == [
        2,
        3,
    ]
    for wrong in ("max_tokens=-1", "max_tokens=x", "max_tokens=9007199254740993"):
        here.bad("GET", f"/sessions/{session}/context?{wrong}")
