"""What hangs on a conversation, operation by operation: branches, compactions, waiting messages, contacts, feedback, search."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from tests.api.v1 import NEVER, POLICY, Here, pages, texts, where

# Branches


def test_a_fork_shows_what_was_said_before_it_and_goes_its_own_way(here: Here) -> None:
    at = f"/sessions/{here.session('a', 'b', 'c')}"
    fork = here.good("POST", f"{at}/branches", {"at": 2, "label": "other"}, 201)
    assert fork["label"] == "other"
    here.good("POST", f"{at}/branches/{fork['number']}/switch")
    assert here.good("GET", f"{at}/branches/current")["count"] == fork["number"]
    here.good("POST", f"{at}/messages", {"role": "user", "content": "z"}, 201)
    assert texts(here.good("GET", f"{at}/messages")) == ["a", "b", "z"]
    here.good("POST", f"{at}/branches/0/switch")
    assert texts(here.good("GET", f"{at}/messages")) == ["a", "b", "c"]


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
def test_a_branch_that_cannot_be_is_refused_and_nothing_changes(here: Here, path: str, body: Any, status: int) -> None:
    at = f"/sessions/{here.session('a', 'b', 'c')}"
    here.bad("POST", at + path, body, status)
    assert here.good("GET", f"{at}/branches/current")["count"] == 0
    assert here.good("GET", f"{at}/messages/count")["count"] == 3


def test_a_rewind_can_go_to_the_very_beginning_and_come_back(here: Here) -> None:
    at = f"/sessions/{here.session('a', 'b')}"
    back = here.good("POST", f"{at}/rewind", {"to": 0, "label": "from scratch"})
    assert texts(here.good("GET", f"{at}/messages")) == []
    assert here.good("POST", f"{at}/redo")["number"] != back["number"]
    assert texts(here.good("GET", f"{at}/messages")) == ["a", "b"]
    assert here.bad("POST", f"{at}/redo", status=409)["type"] == "Conflict"


def test_branches_are_listed_whole_or_page_by_page(here: Here) -> None:
    at = f"/sessions/{here.session('a')}/branches"
    for label in "xyz":
        here.good("POST", at, {"label": label}, 201)
    whole = here.good("GET", at)
    assert [each["label"] for each in whole["items"] if each["label"]] == ["x", "y", "z"]
    assert pages(here, at, 2) == pages(here, at, 1) == whole["items"]


# Compactions


def told(here: Here, parts: int = 6) -> str:
    """A session with much to summarise."""
    return here.session(*[f"a long story, part {number} " * 20 for number in range(parts)])


def test_a_plan_is_carried_out_once_under_one_id(here: Here) -> None:
    session = told(here)
    at = f"/sessions/{session}/compactions"
    plan, id = here.good("POST", f"{at}/plan", {"policy": POLICY}), str(uuid4())
    body = {"plan": plan, "summary": "A story.", "model": "large"}
    event = here.good("POST", at, body, 201, headers={"Idempotency-Key": id})
    assert (event["id"], event["summary_content"], event["model_used"]) == (id, "A story.", "large")
    assert here.good("POST", at, body, 201, headers={"Idempotency-Key": id}) == event
    assert [each["id"] for each in here.good("GET", at)["items"]] == [id]
    kept = pages(here, f"/archive?event_id={id}", 2)
    assert len(kept) == event["messages_removed"] == len(plan["removed"])
    assert [each["message"]["id"] for each in kept] == plan["removed"]


def test_a_rolled_back_compaction_is_rolled_back_for_good(here: Here) -> None:
    session = told(here)
    before = here.good("GET", f"/sessions/{session}/messages")
    event = here.good("POST", f"/sessions/{session}/compactions", {"policy": POLICY, "summary": "S."}, 201)
    done = here.good("POST", f"/compactions/{event['id']}/rollback")
    assert here.good("GET", f"/compactions/{event['id']}")["rolled_back_at"]
    assert texts(here.good("GET", f"/sessions/{session}/messages")) == texts(before)
    assert "rolled back before" in here.bad("POST", f"/compactions/{event['id']}/rollback", status=409)["detail"]
    assert done["id"] == event["id"]


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
def test_a_compaction_that_cannot_be_changes_nothing(here: Here, body: Any, status: int, name: str) -> None:
    session = told(here)
    assert here.bad("POST", f"/sessions/{session}/compactions", body, status)["type"] == name
    assert here.good("GET", f"/sessions/{session}/messages/count")["count"] == 6
    assert here.good("GET", f"/sessions/{session}/compactions")["items"] == []


def test_a_plan_of_another_session_or_tenant_is_refused(here: Here) -> None:
    one, two = told(here), told(here)
    plan = here.good("POST", f"/sessions/{one}/compactions/plan", {"policy": POLICY})
    refused = here.bad("POST", f"/sessions/{two}/compactions", {"plan": plan, "summary": "s"})
    assert f"the plan is for the session {one}" in refused["detail"]
    event = here.good("POST", f"/sessions/{one}/compactions", {"plan": plan, "summary": "s"}, 201)
    other = here.another()
    other.bad("GET", f"/compactions/{event['id']}", status=404)
    other.bad("POST", f"/compactions/{event['id']}/rollback", status=404)
    assert here.good("GET", f"/sessions/{one}/messages/count")["count"] < 6


def test_a_policy_stays_with_its_session_until_it_is_taken_away(here: Here) -> None:
    at = f"/sessions/{here.session()}/compaction-policy"
    assert here.bad("GET", at, status=404)["type"] == "NotFound"
    here.good("PUT", at, {"policy": POLICY}, 204)
    assert here.good("GET", at)["window_tokens"] == 1000
    here.good("PUT", at, {"policy": {**POLICY, "window_tokens": 2000}}, 204)
    assert here.good("GET", at)["window_tokens"] == 2000
    assert here.bad("PUT", at, {"policy": {**POLICY, "trigger": 0}})["type"] == "InvalidInput"
    here.good("DELETE", at, status=204)
    here.bad("GET", at, status=404)


# Messages that wait


def waiting(body: str, **more: Any) -> dict[str, Any]:
    return {"channel_name": "tg", "history_key": "g", "sender": "ada", "body": body, **more}


KEY = "channel_name=tg&history_key=g"


def test_what_waits_comes_page_by_page_in_its_order(here: Here) -> None:
    here.good("POST", "/pending-messages", {"messages": [waiting(each) for each in "abcde"]}, 201)
    here.good("POST", "/pending-messages", {"messages": [waiting("z", history_key="other")]}, 201)
    assert [each["body"] for each in pages(here, f"/pending-messages?{KEY}", 2)] == list("abcde")
    groups = pages(here, "/pending-messages/groups", 1)
    assert {(each["history_key"], each["message_count"]) for each in groups} == {("g", 5), ("other", 1)}
    assert here.good("DELETE", f"/pending-messages?{KEY}")["count"] == 5
    assert here.good("DELETE", f"/pending-messages?{KEY}")["count"] == 0


def test_what_waits_is_summarised_once_and_only_within_one_group(here: Here) -> None:
    made = here.good("POST", "/pending-messages", {"messages": [waiting("a"), waiting("b")]}, 201)["items"]
    far = here.good("POST", "/pending-messages", {"messages": [waiting("c", history_key="x")]}, 201)["items"]
    ids, id = [each["id"] for each in made], str(uuid4())
    mixed = {"message_ids": [ids[0], far[0]["id"]], "summary": "s"}
    assert "several groups" in here.bad("POST", "/pending-messages/compact", mixed)["detail"]
    body = {"message_ids": ids, "summary": "a and b"}
    done = here.good("POST", "/pending-messages/compact", body, headers={"Idempotency-Key": id})
    assert (done["id"], done["body"], done["is_summary"]) == (id, "a and b", True)
    assert here.good("POST", "/pending-messages/compact", body, headers={"Idempotency-Key": id}) == done
    assert here.good("GET", f"/pending-messages/count?{KEY}")["count"] == 1
    assert here.bad("POST", "/pending-messages/compact", {"message_ids": [NEVER], "summary": "s"}, 404)["type"]


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
def test_what_cannot_wait_is_refused_whole(here: Here, messages: Any, status: int) -> None:
    good = [waiting("good")] if isinstance(messages, list) else []
    here.bad("POST", "/pending-messages", {"messages": [*good, *messages] if good else messages}, status)
    assert here.good("GET", "/pending-messages/groups")["items"] == []


# Contacts


def test_a_contact_keeps_what_a_later_word_does_not_say(here: Here) -> None:
    at = "/contacts/by-sender/tele%2Fgram/%C3%A9%20%3F"
    first = here.good("PUT", at, {"display_name": "Ada", "username": "al", "metadata": {"a": 1}})
    assert (first["channel_type"], first["sender_id"]) == ("tele/gram", "é ?")
    second = here.good("PUT", at, {"display_name": "Ada L."})
    assert (second["id"], second["display_name"], second["username"]) == (first["id"], "Ada L.", "al")
    assert here.good("GET", at) == here.good("GET", f"/contacts/{first['id']}") == second


def test_contacts_are_looked_up_by_those_names_that_are_known(here: Here) -> None:
    made = {each: here.good("PUT", f"/contacts/by-sender/tg/{each}", {})["id"] for each in "abc"}
    found = here.good("POST", "/contacts/lookup", {"sender_ids": ["a", "c", "zz"]})
    assert {name: each["id"] for name, each in found.items()} == {"a": made["a"], "c": made["c"]}
    assert here.good("POST", "/contacts/lookup", {"sender_ids": []}) == {}
    assert here.bad("POST", "/contacts/lookup", {"sender_ids": ["x"] * 100_000}, 422)["type"] == "LimitExceeded"


def test_merged_contacts_are_one_until_they_are_parted(here: Here) -> None:
    ids = [here.good("PUT", f"/contacts/by-sender/tg/{each}", {})["id"] for each in "abc"]
    merged = here.good("POST", "/contacts/merge", {"contact_ids": ids[:2]})["id"]
    together = here.good("GET", f"/contacts?merged_id={merged}")["items"]
    assert {each["id"] for each in together} == set(ids[:2])
    assert here.good("GET", f"/contacts/count?merged_id={merged}")["count"] == 2
    assert here.good("POST", "/contacts/merge", {"contact_ids": []})["id"] is None
    assert here.bad("POST", "/contacts/merge", {"contact_ids": [ids[2], NEVER]}, 404)["type"] == "NotFound"
    assert here.another().bad("POST", "/contacts/merge", {"contact_ids": ids}, 404)["type"] == "NotFound"
    assert here.good("POST", "/contacts/unmerge", {"contact_ids": [*ids, NEVER]})["count"] == 2
    assert here.good("GET", f"/contacts/count?merged_id={merged}")["count"] == 0


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("search=ADA", ["ada", "adam"]),
        ("search=%25", []),
        ("channel_type=tg", ["ada", "eve"]),
        ("peer_kind=group", ["eve"]),
        ("search=ada&channel_type=dc", ["adam"]),
        (where({"op": "eq", "column": "display_name", "value": "eve"}), ["eve"]),
    ],
)
def test_contacts_are_counted_as_they_are_listed(here: Here, query: str, found: list[str]) -> None:
    for name, channel, kind in (("ada", "tg", "user"), ("adam", "dc", "user"), ("eve", "tg", "group")):
        here.good("PUT", f"/contacts/by-sender/{channel}/{name}", {"display_name": name, "peer_kind": kind})
    assert sorted(each["sender_id"] for each in pages(here, f"/contacts?{query}", 1)) == found
    assert here.good("GET", f"/contacts/count?{query}")["count"] == len(found)


# Feedback


def message_of(here: Here) -> str:
    return str(here.good("GET", f"/sessions/{here.session('hello')}/messages")["items"][0]["id"])


def test_one_user_has_one_opinion_of_a_message(here: Here) -> None:
    at, id = f"/messages/{message_of(here)}/feedback", str(uuid4())
    first = here.good("POST", at, {"is_positive": True, "user": "ada"}, 201, headers={"Idempotency-Key": id})
    assert here.good("POST", at, {"is_positive": True, "user": "ada", "id": id}, 201) == first
    assert here.bad("POST", at, {"is_positive": True, "user": "ada"}, 409)["type"] == "AlreadyExists"
    assert here.bad("POST", at, {"is_positive": False, "user": "eve", "id": id}, 409)["type"] == "Conflict"
    changed = here.good("PUT", at, {"is_positive": False, "user": "ada", "issue_type": "factual"})
    assert (changed["id"], changed["is_positive"], changed["issue_type"]) == (id, False, "factual")
    assert "user=" in here.bad("PUT", at, {"is_positive": True})["detail"]
    assert here.good("PUT", at, {"is_positive": True}, headers={"X-User-Id": "bob"})["user"] == "bob"
    assert here.good("GET", "/feedback/count?user=bob")["count"] == 1


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
def test_an_opinion_that_is_none_is_refused(here: Here, body: Any) -> None:
    assert here.bad("POST", f"/messages/{message_of(here)}/feedback", body)["type"] == "InvalidInput"
    assert here.good("GET", "/feedback")["items"] == []


def test_feedback_goes_with_its_message_and_is_nobody_elses(here: Here) -> None:
    session = here.session("hello")
    message = here.good("GET", f"/sessions/{session}/messages")["items"][0]["id"]
    given = here.good("POST", f"/messages/{message}/feedback", {"is_positive": True}, 201)
    other = here.another()
    for method, body in (("GET", None), ("PATCH", {"feedback_text": "x"}), ("DELETE", None)):
        other.bad(method, f"/feedback/{given['id']}", body, 404)
    other.bad("POST", f"/messages/{message}/feedback", {"is_positive": True}, 404)
    assert pages(here, f"/feedback?session_id={session}&message_id={message}", 1) == [given]
    here.good("DELETE", f"/sessions/{session}/messages?id={message}")
    here.bad("GET", f"/feedback/{given['id']}", status=404)


# Search


def test_words_are_found_where_they_were_said_and_marked_as_asked(here: Here) -> None:
    fox, whale = here.session("the red fox"), here.session("the blue whale", "the red whale")
    assert len(pages(here, "/search?query=red", 1)) == 2
    (hit,) = here.good("GET", f"/search?query=red&session_id={fox}&start_mark=%3C&end_mark=%3E")["items"]
    assert (hit["message"]["session_id"], "<red>" in hit["snippet"]) == (fox, True)
    assert len(here.good("GET", f"/search?query=whale&session_id={whale}")["items"]) == 2
    assert here.another().good("GET", "/search?query=red")["items"] == []
    assert here.good("GET", "/search?query=unsaid")["items"] == []


@pytest.mark.parametrize("query", ["query=", "query=x&session_id=x", "query=x&limit=0", "query=a&query=b", "query=%FF"])
def test_a_search_that_means_nothing_is_refused(here: Here, query: str) -> None:
    assert json.loads(here.ask("GET", f"/search?{query}").body)["status"] == 400
