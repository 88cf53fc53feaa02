"""Branches, compactions, pending messages, contacts, feedback and search over HTTP."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from tests.api.v1 import NEVER, POLICY, V1Client, pages, texts, where

# Branches


def test_a_fork_shows_the_messages_before_it_and_continues_separately(v1: V1Client) -> None:
    at = f"/sessions/{v1.session('a', 'b', 'c')}"
    fork = v1.good("POST", f"{at}/branches", {"at": 2, "label": "other"}, 201)
    assert fork["label"] == "other"
    v1.good("POST", f"{at}/branches/{fork['number']}/switch")
    assert v1.good("GET", f"{at}/branches/current")["count"] == fork["number"]
    v1.good("POST", f"{at}/messages", {"role": "user", "content": "z"}, 201)
    assert texts(v1.good("GET", f"{at}/messages")) == ["a", "b", "z"]
    v1.good("POST", f"{at}/branches/0/switch")
    assert texts(v1.good("GET", f"{at}/messages")) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/branches", {"at": 4}, 400),
        ("/branches", {"at": -1}, 400),
        ("/branches", {"at": 2**53 + 1}, 400),
        ("/branches", {"at": "1"}, 400),
        ("/branches", {"label": ["x"]}, 400),
        ("/rewind", {"to": 4}, 400),
        ("/rewind", {}, 400),
        ("/rewind", {"to": None}, 400),
        ("/redo", None, 409),
        ("/branches/1/switch", None, 404),
        ("/branches/-1/switch", None, 400),
        ("/branches/x/switch", None, 400),
        ("/branches/9007199254740993/switch", None, 400),
    ],
)
def test_an_invalid_branch_is_refused_and_changes_nothing(v1: V1Client, path: str, body: Any, status: int) -> None:
    at = f"/sessions/{v1.session('a', 'b', 'c')}"
    v1.bad("POST", at + path, body, status)
    assert v1.good("GET", f"{at}/branches/current")["count"] == 0
    assert v1.good("GET", f"{at}/messages/count")["count"] == 3


def test_a_rewind_to_the_beginning_can_be_undone(v1: V1Client) -> None:
    at = f"/sessions/{v1.session('a', 'b')}"
    back = v1.good("POST", f"{at}/rewind", {"to": 0, "label": "from scratch"})
    assert texts(v1.good("GET", f"{at}/messages")) == []
    assert v1.good("POST", f"{at}/redo")["number"] != back["number"]
    assert texts(v1.good("GET", f"{at}/messages")) == ["a", "b"]
    assert v1.bad("POST", f"{at}/redo", status=409)["type"] == "Conflict"


def test_branches_are_listed_whole_or_in_pages(v1: V1Client) -> None:
    at = f"/sessions/{v1.session('a')}/branches"
    for label in "xyz":
        v1.good("POST", at, {"label": label}, 201)
    whole = v1.good("GET", at)
    assert [item["label"] for item in whole["items"] if item["label"]] == ["x", "y", "z"]
    assert pages(v1, at, 2) == pages(v1, at, 1) == whole["items"]


# Compactions


def told(v1: V1Client, parts: int = 6) -> str:
    """Create a session with much to summarise."""
    return v1.session(*[f"a long story, part {number} " * 20 for number in range(parts)])


def test_a_plan_is_carried_out_once_under_one_id(v1: V1Client) -> None:
    session = told(v1)
    at = f"/sessions/{session}/compactions"
    plan, id = v1.good("POST", f"{at}/plan", {"policy": POLICY}), str(uuid4())
    body = {"plan": plan, "summary": "A story.", "model": "large"}
    event = v1.good("POST", at, body, 201, headers={"Idempotency-Key": id})
    assert (event["id"], event["summary_content"], event["model_used"]) == (id, "A story.", "large")
    assert v1.good("POST", at, body, 201, headers={"Idempotency-Key": id}) == event
    assert [item["id"] for item in v1.good("GET", at)["items"]] == [id]
    kept = pages(v1, f"/archive?event_id={id}", 2)
    assert len(kept) == event["messages_removed"] == len(plan["removed"])
    assert [item["message"]["id"] for item in kept] == plan["removed"]


def test_a_compaction_can_be_rolled_back_once(v1: V1Client) -> None:
    session = told(v1)
    before = v1.good("GET", f"/sessions/{session}/messages")
    event = v1.good("POST", f"/sessions/{session}/compactions", {"policy": POLICY, "summary": "S."}, 201)
    body = v1.good("POST", f"/compactions/{event['id']}/rollback")
    assert v1.good("GET", f"/compactions/{event['id']}")["rolled_back_at"]
    assert texts(v1.good("GET", f"/sessions/{session}/messages")) == texts(before)
    assert "rolled back already" in v1.bad("POST", f"/compactions/{event['id']}/rollback", status=409)["detail"]
    assert body["id"] == event["id"]


@pytest.mark.parametrize(
    ("body", "status", "name"),
    [
        ({"policy": POLICY}, 400, "InvalidInput"),
        ({"policy": {**POLICY, "trigger": 2}}, 400, "InvalidInput"),
        ({"policy": {**POLICY, "preserve_last": -1}}, 400, "InvalidInput"),
        ({"policy": {"colour": "red"}}, 400, "InvalidInput"),
        ({"policy": {**POLICY, "strategy": "never heard of"}, "summary": "s"}, 400, "InvalidInput"),
        ({"policy": {**POLICY, "preserve_last": 100}, "summary": "s"}, 409, "NothingToCompact"),
        ({"plan": {}, "summary": "s"}, 400, "InvalidInput"),
        ({"policy": POLICY, "summary": 7}, 400, "InvalidInput"),
        ({"policy": POLICY, "summary": "s", "summarize": "x"}, 400, "InvalidInput"),
    ],
)
def test_an_invalid_compaction_changes_nothing(v1: V1Client, body: Any, status: int, name: str) -> None:
    session = told(v1)
    assert v1.bad("POST", f"/sessions/{session}/compactions", body, status)["type"] == name
    assert v1.good("GET", f"/sessions/{session}/messages/count")["count"] == 6
    assert v1.good("GET", f"/sessions/{session}/compactions")["items"] == []


def test_a_plan_of_another_session_or_tenant_is_refused(v1: V1Client) -> None:
    one, two = told(v1), told(v1)
    plan = v1.good("POST", f"/sessions/{one}/compactions/plan", {"policy": POLICY})
    refused = v1.bad("POST", f"/sessions/{two}/compactions", {"plan": plan, "summary": "s"})
    assert (refused["field"], one in refused["detail"]) == ("plan", True)
    event = v1.good("POST", f"/sessions/{one}/compactions", {"plan": plan, "summary": "s"}, 201)
    other = v1.another()
    other.bad("GET", f"/compactions/{event['id']}", status=404)
    other.bad("POST", f"/compactions/{event['id']}/rollback", status=404)
    assert v1.good("GET", f"/sessions/{one}/messages/count")["count"] < 6


def test_a_policy_applies_to_its_session_until_it_is_removed(v1: V1Client) -> None:
    at = f"/sessions/{v1.session()}/compaction-policy"
    assert v1.bad("GET", at, status=404)["type"] == "NotFound"
    v1.good("PUT", at, {"policy": POLICY}, 204)
    assert v1.good("GET", at)["window_tokens"] == 1000
    v1.good("PUT", at, {"policy": {**POLICY, "window_tokens": 2000}}, 204)
    assert v1.good("GET", at)["window_tokens"] == 2000
    assert v1.bad("PUT", at, {"policy": {**POLICY, "trigger": 0}})["type"] == "InvalidInput"
    v1.good("DELETE", at, status=204)
    v1.bad("GET", at, status=404)


# Pending messages


def waiting(body: str, **more: Any) -> dict[str, Any]:
    return {"channel_name": "tg", "history_key": "g", "sender": "ada", "body": body, **more}


KEY = "channel_name=tg&history_key=g"


def test_pending_messages_are_paged_in_order(v1: V1Client) -> None:
    v1.good("POST", "/pending-messages", {"messages": [waiting(item) for item in "abcde"]}, 201)
    v1.good("POST", "/pending-messages", {"messages": [waiting("z", history_key="other")]}, 201)
    assert [row["body"] for row in pages(v1, f"/pending-messages?{KEY}", 2)] == list("abcde")
    groups = pages(v1, "/pending-messages/groups", 1)
    assert {(group["history_key"], group["message_count"]) for group in groups} == {("g", 5), ("other", 1)}
    assert v1.good("DELETE", f"/pending-messages?{KEY}")["count"] == 5
    assert v1.good("DELETE", f"/pending-messages?{KEY}")["count"] == 0


def test_pending_messages_are_compacted_once_and_within_one_group(v1: V1Client) -> None:
    made = v1.good("POST", "/pending-messages", {"messages": [waiting("a"), waiting("b")]}, 201)["items"]
    far = v1.good("POST", "/pending-messages", {"messages": [waiting("c", history_key="x")]}, 201)["items"]
    ids, id = [item["id"] for item in made], str(uuid4())
    mixed = {"message_ids": [ids[0], far[0]["id"]], "summary": "s"}
    assert "several groups" in v1.bad("POST", "/pending-messages/compact", mixed)["detail"]
    body = {"message_ids": ids, "summary": "a and b"}
    answer = v1.good("POST", "/pending-messages/compact", body, headers={"Idempotency-Key": id})
    assert (answer["id"], answer["body"], answer["is_summary"]) == (id, "a and b", True)
    assert v1.good("POST", "/pending-messages/compact", body, headers={"Idempotency-Key": id}) == answer
    assert v1.good("GET", f"/pending-messages/count?{KEY}")["count"] == 1
    assert v1.bad("POST", "/pending-messages/compact", {"message_ids": [NEVER], "summary": "s"}, 404)["type"]


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([waiting("a", id=NEVER), waiting("b", id=NEVER)], 400),
        ([waiting("a", id="x")], 400),
        ([waiting("a", colour="red")], 400),
        ([waiting("a", channel_name="")], 400),
        ([{"body": "a"}], 400),
        ("abc", 400),
        ([waiting("a" * 200, history_key="k" * 5_000)], 422),
    ],
)
def test_invalid_pending_messages_are_refused_together(v1: V1Client, messages: Any, status: int) -> None:
    good = [waiting("good")] if isinstance(messages, list) else []
    v1.bad("POST", "/pending-messages", {"messages": [*good, *messages] if good else messages}, status)
    assert v1.good("GET", "/pending-messages/groups")["items"] == []


# Contacts


def test_omitted_fields_of_a_contact_stay_unchanged(v1: V1Client) -> None:
    at = "/contacts/by-sender/tele%2Fgram/%C3%A9%20%3F"
    first = v1.good("PUT", at, {"display_name": "Ada", "username": "al", "metadata": {"a": 1}})
    assert (first["channel_type"], first["sender_id"]) == ("tele/gram", "é ?")
    second = v1.good("PUT", at, {"display_name": "Ada L."})
    assert (second["id"], second["display_name"], second["username"]) == (first["id"], "Ada L.", "al")
    assert v1.good("GET", at) == v1.good("GET", f"/contacts/{first['id']}") == second


def test_contacts_are_looked_up_by_sender(v1: V1Client) -> None:
    made = {item: v1.good("PUT", f"/contacts/by-sender/tg/{item}", {})["id"] for item in "abc"}
    body = v1.good("POST", "/contacts/lookup", {"sender_ids": ["a", "c", "zz"]})
    assert {name: item["id"] for name, item in body.items()} == {"a": made["a"], "c": made["c"]}
    assert v1.good("POST", "/contacts/lookup", {"sender_ids": []}) == {}
    assert v1.bad("POST", "/contacts/lookup", {"sender_ids": ["x"] * 100_000}, 422)["type"] == "LimitExceeded"


def test_merged_contacts_are_one_until_they_are_unmerged(v1: V1Client) -> None:
    ids = [v1.good("PUT", f"/contacts/by-sender/tg/{item}", {})["id"] for item in "abc"]
    merged = v1.good("POST", "/contacts/merge", {"contact_ids": ids[:2]})["id"]
    together = v1.good("GET", f"/contacts?merged_id={merged}")["items"]
    assert {item["id"] for item in together} == set(ids[:2])
    assert v1.good("GET", f"/contacts/count?merged_id={merged}")["count"] == 2
    assert v1.good("POST", "/contacts/merge", {"contact_ids": []})["id"] is None
    assert v1.bad("POST", "/contacts/merge", {"contact_ids": [ids[2], NEVER]}, 404)["type"] == "NotFound"
    assert v1.another().bad("POST", "/contacts/merge", {"contact_ids": ids}, 404)["type"] == "NotFound"
    assert v1.good("POST", "/contacts/unmerge", {"contact_ids": [*ids, NEVER]})["count"] == 2
    assert v1.good("GET", f"/contacts/count?merged_id={merged}")["count"] == 0


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("search=ADA", ["ada", "adam"]),
        ("search=%25", []),
        ("channel_type=tg", ["ada", "eve"]),
        ("peer_kind=group", ["eve"]),
        ("search=ada&channel_type=dc", ["adam"]),
        (where({"op": "eq", "column": "display_name", "value": "eve"}), ["eve"]),
    ],
)
def test_contacts_are_counted_with_the_same_filters(v1: V1Client, query: str, expected: list[str]) -> None:
    for name, channel, kind in (("ada", "tg", "user"), ("adam", "dc", "user"), ("eve", "tg", "group")):
        v1.good("PUT", f"/contacts/by-sender/{channel}/{name}", {"display_name": name, "peer_kind": kind})
    assert sorted(row["sender_id"] for row in pages(v1, f"/contacts?{query}", 1)) == expected
    assert v1.good("GET", f"/contacts/count?{query}")["count"] == len(expected)


# Feedback


def message_of(v1: V1Client) -> str:
    return str(v1.good("GET", f"/sessions/{v1.session('hello')}/messages")["items"][0]["id"])


def test_a_user_has_one_feedback_per_message(v1: V1Client) -> None:
    at, id = f"/messages/{message_of(v1)}/feedback", str(uuid4())
    first = v1.good("POST", at, {"is_positive": True, "user": "ada"}, 201, headers={"Idempotency-Key": id})
    assert v1.good("POST", at, {"is_positive": True, "user": "ada", "id": id}, 201) == first
    assert v1.bad("POST", at, {"is_positive": True, "user": "ada"}, 409)["type"] == "AlreadyExists"
    assert v1.bad("POST", at, {"is_positive": False, "user": "eve", "id": id}, 409)["type"] == "Conflict"
    changed = v1.good("PUT", at, {"is_positive": False, "user": "ada", "issue_type": "factual"})
    assert (changed["id"], changed["is_positive"], changed["issue_type"]) == (id, False, "factual")
    assert "user=" in v1.bad("PUT", at, {"is_positive": True})["detail"]
    assert v1.good("PUT", at, {"is_positive": True}, headers={"X-User-Id": "bob"})["user"] == "bob"
    assert v1.good("GET", "/feedback/count?user=bob")["count"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"is_positive": None},
        {"is_positive": 1},
        {"is_positive": "true"},
        {"is_positive": True, "issue_type": "ugly"},
        {"is_positive": True, "feedback_text": 7},
        {"is_positive": True, "metadata": "x"},
        {"is_positive": True, "id": "x"},
    ],
)
def test_invalid_feedback_is_refused(v1: V1Client, body: Any) -> None:
    assert v1.bad("POST", f"/messages/{message_of(v1)}/feedback", body)["type"] == "InvalidInput"
    assert v1.good("GET", "/feedback")["items"] == []


def test_feedback_is_deleted_with_its_message_and_private_to_its_tenant(v1: V1Client) -> None:
    session = v1.session("hello")
    message = v1.good("GET", f"/sessions/{session}/messages")["items"][0]["id"]
    answer = v1.good("POST", f"/messages/{message}/feedback", {"is_positive": True}, 201)
    other = v1.another()
    for method, body in (("GET", None), ("PATCH", {"feedback_text": "x"}), ("DELETE", None)):
        other.bad(method, f"/feedback/{answer['id']}", body, 404)
    other.bad("POST", f"/messages/{message}/feedback", {"is_positive": True}, 404)
    assert pages(v1, f"/feedback?session_id={session}&message_id={message}", 1) == [answer]
    v1.good("DELETE", f"/sessions/{session}/messages?id={message}")
    v1.bad("GET", f"/feedback/{answer['id']}", status=404)


# Search


def test_a_search_finds_words_and_marks_them(v1: V1Client) -> None:
    fox, whale = v1.session("the red fox"), v1.session("the blue whale", "the red whale")
    assert len(pages(v1, "/search?query=red", 1)) == 2
    (hit,) = v1.good("GET", f"/search?query=red&session_id={fox}&start_mark=%3C&end_mark=%3E")["items"]
    assert (hit["message"]["session_id"], "<red>" in hit["snippet"]) == (fox, True)
    assert len(v1.good("GET", f"/search?query=whale&session_id={whale}")["items"]) == 2
    assert v1.another().good("GET", "/search?query=red")["items"] == []
    assert v1.good("GET", "/search?query=unsaid")["items"] == []


@pytest.mark.parametrize("query", ["query=", "query=x&session_id=x", "query=x&limit=0", "query=a&query=b", "query=%FF"])
def test_an_invalid_search_is_refused(v1: V1Client, query: str) -> None:
    assert json.loads(v1.ask("GET", f"/search?{query}").body)["status"] == 400
