"""Stores over /v1: share links, tasks, tools, memories, feedback, erasures, diagnostics."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import SessionKey, column
from holdfast.api.operations import AREAS
from holdfast.api.redaction import WITHHELD, without_secrets
from holdfast.api.resources import OPERATIONS
from tests.api.v1 import NEVER, NOW, POLICY, V1Client, capture, operation_named, pages, tree

# Share links


def test_the_token_of_a_link_is_only_shown_when_it_is_created(v1: V1Client) -> None:
    session = v1.session("hi")
    made = v1.good("POST", f"/sessions/{session}/shares", {}, 201)
    assert (made["share"]["session_id"], made["share"]["read_only"]) == (session, True)
    token = made["token"]
    answers = [
        v1.ask("GET", f"/sessions/{session}/shares"),
        v1.ask("POST", "/shares/find", {"token": token}),
        v1.ask("POST", "/shares/use", {"token": token, "user": "bob"}),
        v1.ask("GET", "/shares?user=bob"),
    ]
    for response in answers:
        assert response.status == 200
        assert token.encode() not in response.body
    assert answers[0].json["items"] == answers[3].json["items"] == [answers[1].json] == [made["share"]]


def test_links_are_numbered_and_deleted_by_number(v1: V1Client) -> None:
    session = v1.session()
    tokens = [v1.good("POST", f"/sessions/{session}/shares", {"read_only": False}, 201) for _ in range(3)]
    numbers = [token["share"]["number"] for token in tokens]
    assert len(set(numbers)) == 3
    v1.good("DELETE", f"/sessions/{session}/shares/{numbers[1]}", status=204)
    v1.bad("DELETE", f"/sessions/{session}/shares/{numbers[1]}", status=404)
    v1.bad("DELETE", f"/sessions/{session}/shares/x")
    left = v1.good("GET", f"/sessions/{session}/shares")["items"]
    assert [item["number"] for item in left] == [numbers[0], numbers[2]]
    v1.bad("POST", "/shares/find", {"token": tokens[1]["token"]}, 404)
    v1.good("POST", "/shares/find", {"token": tokens[2]["token"]})


def test_a_link_belongs_to_a_live_session_of_its_tenant(v1: V1Client) -> None:
    session = v1.session()
    token = v1.good("POST", f"/sessions/{session}/shares", {}, 201)["token"]
    v1.another().bad("POST", "/shares/find", {"token": token}, 404)
    v1.another().bad("POST", "/shares/use", {"token": token, "user": "eve"}, 404)
    v1.good("DELETE", f"/sessions/{session}", status=204)
    v1.bad("POST", "/shares/use", {"token": token, "user": "bob"}, 404)
    v1.bad("POST", f"/sessions/{NEVER}/shares", {}, 404)
    assert v1.good("GET", f"/sessions/{session}/shares")["items"] == []


@pytest.mark.parametrize("body", [{"token": ""}, {"token": "t", "user": ""}, {"user": "u"}, {"token": 7, "user": "u"}])
def test_using_a_link_requires_a_token_and_a_user(v1: V1Client, body: Any) -> None:
    v1.bad("POST", "/shares/use", body)


# A2A tasks


def test_a_task_is_saved_deleted_restored_and_purged(v1: V1Client) -> None:
    task = {"id": "t/1", "history": [{"text": "hi"}], "status": {"state": "working"}}
    path = "/a2a/tasks/t%2F1"
    v1.good("PUT", path, {"task": task, "context_id": "c", "state": "working", "user": "ada"}, 204)
    body = v1.good("GET", path + "?user=ada")
    assert (body["task"], body["context_id"], body["state"], body["user"]) == (task, "c", "working", "ada")
    v1.bad("GET", path, status=404)
    assert v1.good("DELETE", path + "?user=ada") == {"done": True}
    assert v1.good("DELETE", path + "?user=ada") == {"done": False}
    v1.bad("GET", path + "?user=ada", status=404)
    assert v1.good("POST", path + "/restore", {"user": "ada"})["task"] == task
    v1.bad("POST", path + "/restore", {"user": "ada"}, 404)
    assert v1.good("POST", path + "/purge", {"user": "ada"}) == {"count": 1}
    v1.bad("POST", path + "/restore", {"user": "ada"}, 404)


def test_tasks_are_listed_and_counted_with_filters(v1: V1Client) -> None:
    for number in range(5):
        body = {"task": {"n": number}, "context_id": f"c{number % 2}", "state": "done" if number else "new"}
        v1.good("PUT", f"/a2a/tasks/t{number}", {**body, "state_at": f"2030-01-0{number + 1}T00:00:00Z"}, 204)
    assert [task["id"] for task in v1.good("GET", "/a2a/tasks")["items"]] == ["t4", "t3", "t2", "t1", "t0"]
    assert [task["id"] for task in v1.good("GET", "/a2a/tasks?context_id=c1")["items"]] == ["t3", "t1"]
    assert v1.good("GET", "/a2a/task-count?state=done") == {"count": 4}
    assert v1.good("GET", "/a2a/task-count?since=2030-01-04T00:00:00Z") == {"count": 2}
    listed = [row["id"] for row in pages(v1, "/a2a/tasks", 2)]
    assert listed == ["t4", "t3", "t2", "t1", "t0"]
    assert v1.another().good("GET", "/a2a/tasks")["items"] == []


@pytest.mark.parametrize("body", [{}, {"task": []}, {"task": {"history": 7}}, {"task": {}, "state_at": "2030-01-01"}])
def test_an_invalid_task_is_not_saved(v1: V1Client, body: Any) -> None:
    v1.bad("PUT", "/a2a/tasks/t", body)
    assert v1.good("GET", "/a2a/task-count") == {"count": 0}


def test_a_key_can_have_a_scope_for_tasks(v1: V1Client) -> None:
    assert {operation.tag for operation in OPERATIONS if "/a2a/" in operation.path} == {"tasks"}
    assert v1.ask("GET", "/a2a/tasks", key=v1.key("tasks:read")).status == 200
    assert v1.ask("PUT", "/a2a/tasks/t", {"task": {}}, key=v1.key("tasks:read")).status == 403
    for area in AREAS:
        v1.key(f"{area}:read", f"{area}:write")


# Push notification configurations

HOOK = {
    "url": "https://ada:pw@example.com:8443/hook?key=k123#frag9",
    "token": "tok-1",
    "authentication": {"schemes": ["Bearer"], "credentials": "cred-1"},
    "headers": [{"X-Api-Key": "key-1", "Accept": "*/*"}],
}
SECRETS = ("ada:pw", "k123", "frag9", "tok-1", "cred-1", "key-1")


def test_the_secrets_of_a_push_config_are_stored_and_never_returned(v1: V1Client) -> None:
    path = "/a2a/tasks/t/push-configs"
    saved = v1.ask("POST", path, {"config": HOOK, "id": "c1", "user": "ada"})
    listed = v1.ask("GET", path + "?user=ada")
    everybody = v1.ask("GET", "/a2a/tasks/t/all-push-configs")
    for value in (saved, listed, everybody):
        assert value.status == 200
        for secret in SECRETS:
            assert secret.encode() not in value.body
    body = saved.json["config"]
    assert body["url"] == "https://withheld@example.com:8443/hook?withheld#withheld"
    assert body["authentication"] == {"schemes": ["Bearer"], "credentials": WITHHELD}
    assert body["headers"] == [{"X-Api-Key": WITHHELD, "Accept": "*/*"}]
    (kept,) = v1.run(v1.tenant.a2a_push_configs.list(where=[column("user").eq("ada")]))
    assert kept.config.reveal() == HOOK, "the sender of notifications gets all of it"


def test_push_configs_are_replaced_by_id_and_deleted(v1: V1Client) -> None:
    path = "/a2a/tasks/t/push-configs"
    plain = {"url": "https://example.com/a"}
    assert v1.good("POST", path, {"config": plain})["id"] == "t"
    v1.good("POST", path, {"config": {"url": "https://example.com/b"}})
    v1.good("POST", path, {"config": plain, "id": "two"})
    assert [item["config"]["url"][-1] for item in v1.good("GET", path)["items"]] == ["b", "a"]
    assert v1.good("DELETE", path + "?id=two") == {"count": 1}
    assert v1.good("DELETE", path) == {"count": 1}
    assert v1.good("GET", path)["items"] == []


def test_the_push_configs_of_all_users_require_admin(v1: V1Client) -> None:
    for user in ("ada", "bob"):
        v1.good("POST", "/a2a/tasks/t/push-configs", {"config": {"url": "https://example.com"}, "user": user})
    body = v1.good("GET", "/a2a/tasks/t/all-push-configs")["items"]
    assert sorted(row["user"] for row in body) == ["ada", "bob"]
    assert v1.ask("GET", "/a2a/tasks/t/all-push-configs", key=v1.key("read", "write")).status == 403
    assert v1.good("GET", "/a2a/tasks/t/push-configs")["items"] == []


@pytest.mark.parametrize("body", [{}, {"config": []}, {"config": {}, "id": ""}, {"config": {}, "colour": 1}])
def test_an_invalid_push_config_is_not_stored(v1: V1Client, body: Any) -> None:
    v1.bad("POST", "/a2a/tasks/t/push-configs", body)


@pytest.mark.parametrize(
    "name", ["token", "accessToken", "X-API-Key", "api_key", "password", "client_secret", "Authorization", "Set-Cookie"]
)
def test_a_secret_is_detected_by_its_name_anywhere(name: str) -> None:
    for value in ("s3cret", ["s3cret"], {"value": "s3cret"}, 7):
        assert without_secrets({"a": [{"b": {name: value}}]}) == {"a": [{"b": {name: WITHHELD}}]}
    assert without_secrets({name: None}) == {name: None}, "an empty secret is no secret"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://example.com/a/b", "https://example.com/a/b"),
        ("https://u@example.com/", "https://withheld@example.com/"),
        ("wss://u:p@[::1]:9/x?y", "wss://withheld@[::1]:9/x?withheld"),
        ("http://[bad", WITHHELD),
        ("no address", "no address"),
    ],
)
def test_user_query_and_fragment_of_a_url_are_removed(address: str, shown: str) -> None:
    assert without_secrets(address) == shown


@settings(max_examples=20)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text("abc /"), st.lists))
def test_json_without_secrets_is_unchanged(value: Any) -> None:
    assert without_secrets({"kept": value}) == {"kept": value}


SECRET = "s3cr3t"
NESTED = st.recursive(
    st.sampled_from([SECRET, f"https://{SECRET}@h/p", f"https://h/p?t={SECRET}", f"ws://h/#{SECRET}"]),
    lambda row: st.lists(row, min_size=1, max_size=3) | st.dictionaries(st.text("ab", min_size=1), row, min_size=1),
)


@settings(max_examples=40)
@given(
    NESTED,
    st.lists(st.sampled_from(["config", "push", "headers", "0"]), max_size=4),
    st.sampled_from(["token", "Proxy-Authorization", "api-key"]),
)
def test_a_secret_is_not_shown_at_any_depth(value: Any, way: list[str], name: str) -> None:
    whole: Any = {name: value, "url": f"https://u:{SECRET}@example.com/?q={SECRET}"}
    for item in way:
        whole = [{item: whole}]
    listed = without_secrets({"config": whole})
    assert SECRET not in repr(listed)
    assert repr(listed).count("withheld") == 3
    assert without_secrets(listed) == listed


# Tools


def test_an_mcp_server_is_created_changed_deleted_and_restored(v1: V1Client) -> None:
    body = {"name": "ns/s", "kind": "MCP", "tools": [{"name": "b"}, {"name": "a", "description": "x"}]}
    made = v1.good("POST", "/mcp-servers", {**body, "last_connected_at": NOW}, 201)
    one = f"/mcp-servers/{made['id']}"
    assert (made["name"], made["kind"], made["last_connected_at"]) == ("ns/s", "MCP", NOW)
    assert v1.good("GET", "/mcp-servers/by-name/ns%2Fs?kind=MCP") == v1.good("GET", one) == made
    v1.bad("GET", "/mcp-servers/by-name/ns%2Fs", status=404)
    where = quote('[{"column": "server", "op": "eq", "value": "ns/s"}]')
    assert [tool["name"] for tool in v1.good("GET", f"/mcp-tools?where={where}")["items"]] == ["a", "b"]
    assert [tool["name"] for tool in pages(v1, "/mcp-tools", 1)] == ["a", "b"]
    v1.good("PATCH", one, {"tools": [{"name": "c"}]})
    assert [tool["name"] for tool in v1.good("GET", "/mcp-tools")["items"]] == ["c"]
    v1.bad("PATCH", one, {"tools": [{"colour": 1}]})
    v1.bad("PATCH", one, {"transport": "sse"})
    v1.good("DELETE", one, status=204)
    assert v1.good("GET", "/mcp-tools")["items"] == []
    v1.good("POST", f"{one}/restore")
    assert [tool["server_id"] for tool in v1.good("GET", "/mcp-tools")["items"]] == [made["id"]]


# Memories


def test_an_agents_memories_are_added_found_and_deleted(v1: V1Client) -> None:
    memories = [{"content": "tea", "embedding": [1.0, 0.0]}, {"content": "rain", "embedding": [0.0, 1.0]}]
    made = v1.good("POST", "/agent-memories", {"agent": "a", "user": "ada", "memories": memories}, 201)["items"]
    asked = {"agent": "a", "user": "ada", "embedding": [1.0, 0.1], "limit": 1}
    (best,) = v1.good("POST", "/agent-memories/search", asked)["items"]
    assert (best["memory"]["id"], best["memory"]["content"]) == (made[0], "tea")
    listed = v1.good("GET", "/agent-memories?agent=a&user=ada")["items"]
    assert [(row["content"], row["access_count"]) for row in listed] == [("tea", 1), ("rain", 0)]
    assert v1.good("GET", "/agent-memories?agent=a&user=bob")["items"] == []
    assert v1.good("DELETE", "/agent-memories?agent=a&user=ada") == {"count": 2}
    v1.bad("POST", "/agent-memories", {"agent": "a", "memories": [{"content": "c"}]})


def test_a_search_that_updates_the_last_use_requires_write(v1: V1Client) -> None:
    body = {"agent": "a", "embedding": [1.0]}
    assert v1.ask("POST", "/agent-memories/search", body, key=v1.key("read")).status == 403
    assert v1.ask("POST", "/agent-memories/search", body, key=v1.key("memories:write")).status == 200


def test_expired_memories_are_removed(v1: V1Client) -> None:
    memories = [{"content": "c", "embedding": [1.0], "ttl_days": 1}, {"content": "d", "embedding": [1.0]}]
    v1.good("POST", "/agent-memories", {"agent": "a", "memories": memories}, 201)
    assert v1.good("POST", "/agent-memories/prune", {}) == {"extended": 0, "removed": 0}
    assert v1.good("POST", "/agent-memories/prune", {"by": "2190-01-01T00:00:00Z"})["removed"] == 2
    v1.bad("POST", "/agent-memories/prune", {"by": "2190-01-01T00:00:00"})
    assert v1.ask("POST", "/agent-memories/prune", {}, key=v1.key("read", "write")).status == 403


def test_memories_of_crews_are_counted_by_dimensions_and_touched(v1: V1Client) -> None:
    memories = [{"content": str(n), "embedding": [1.0] * 2} for n in range(2)]
    ids = v1.good("POST", "/memories", {"memories": memories}, 201)["items"]
    other = {"content": "2", "embedding": [1.0] * 3}
    assert v1.bad("POST", "/memories", {"memories": [other]})["type"] == "DimensionMismatch"
    assert v1.good("GET", "/memories/dimensions") == {"2": 2}
    assert v1.good("POST", "/memories/touch", {"ids": [ids[0], NEVER]}) == {"count": 1}


# General feedback


def test_general_feedback_is_listed_by_user(v1: V1Client) -> None:
    body = {"feedback_text": "wrong", "is_positive": False, "issue_type": "factual", "user": "ada"}
    made = v1.good("POST", "/general-feedback", body, 201)
    v1.good("POST", "/general-feedback", {"feedback_text": "good", "is_positive": True, "user": "ada"}, 201)
    answer = v1.good("GET", "/general-feedback?user=ada")["items"]
    assert [row["feedback_text"] for row in answer] == ["wrong", "good"]
    assert v1.good("GET", "/general-feedback?user=bob")["items"] == []
    assert v1.good("GET", "/general-feedback/count?user=ada") == {"count": 2}
    v1.bad("DELETE", f"/general-feedback/{made['id']}?user=bob", status=404)
    v1.good("DELETE", f"/general-feedback/{made['id']}?user=ada", status=204)
    v1.bad("POST", "/general-feedback", {**body, "issue_type": "ugly"})
    v1.bad("POST", "/general-feedback", {**body, "feedback_text": ""})


# Pending messages, and policies of agents


def test_pending_messages_are_counted_and_old_ones_removed(v1: V1Client) -> None:
    messages = [{"channel_name": "c", "history_key": key, "sender": "s", "body": "b"} for key in ("x", "y")]
    v1.good("POST", "/pending-messages", {"messages": messages}, 201)
    assert v1.good("GET", "/pending-messages/count-all") == {"count": 2}
    assert v1.good("DELETE", "/pending-messages/stale?older_than_s=100000000000") == {"count": 0}
    for wrong in ("x", "-1", "P7D", "1.5", "100000000001", ""):
        v1.bad("DELETE", f"/pending-messages/stale?older_than_s={wrong}")
    v1.bad("DELETE", "/pending-messages/stale")
    assert v1.another().good("DELETE", "/pending-messages/stale?older_than_s=0") == {"count": 0}
    assert v1.good("DELETE", "/pending-messages/stale?older_than_s=0") == {"count": 2}
    assert v1.good("GET", "/pending-messages/count-all") == {"count": 0}


def test_titles_of_chats_are_taken_from_their_sessions(v1: V1Client) -> None:
    asked = {"groups": [{"channel_name": "c", "history_key": key} for key in ("x", "y", "")]}
    assert v1.good("POST", "/pending-messages/titles", asked) == {"items": []}
    key = str(SessionKey.group(agent="a", channel="c", peer="x"))
    v1.good("POST", "/sessions", {"key": key, "metadata": {"chat_title": "The garden"}}, 201)
    body = v1.good("POST", "/pending-messages/titles", asked)["items"]
    assert body == [{"channel_name": "c", "history_key": "x", "title": "The garden"}]
    v1.bad("POST", "/pending-messages/titles", {"groups": []})
    v1.bad("POST", "/pending-messages/titles", {"groups": [["c", "x"]]})


def test_the_policy_of_an_agent_applies_to_its_sessions(v1: V1Client) -> None:
    session = v1.good("POST", "/sessions", {"agent": "a/1"}, 201)["id"]
    path = "/compaction-policies/a%2F1"
    v1.good("PUT", path, {"policy": POLICY}, 204)
    assert v1.good("GET", f"/sessions/{session}/compaction-policy")["window_tokens"] == POLICY["window_tokens"]
    own = {"policy": {**POLICY, "window_tokens": 2_000}}
    v1.good("PUT", f"/sessions/{session}/compaction-policy", own, 204)
    assert v1.good("GET", f"/sessions/{session}/compaction-policy")["window_tokens"] == 2_000
    v1.good("DELETE", f"/sessions/{session}/compaction-policy", status=204)
    v1.good("DELETE", path, status=204)
    v1.bad("DELETE", path, status=404)
    v1.bad("GET", f"/sessions/{session}/compaction-policy", status=404)
    v1.bad("PUT", path, {"policy": {"colour": 1}})


# Runs of any tenant


def test_the_next_run_of_any_tenant_is_claimed_with_a_key_for_all(v1: V1Client) -> None:
    agent = f"agent-{uuid4()}"
    waiting = {}
    for value in (v1.another(), v1.another()):
        session = value.good("POST", "/sessions", {"agent": agent}, 201)["id"]
        waiting[value.name] = value.good("POST", f"/sessions/{session}/runs", {"agent": agent}, 201)["id"]
    body = {"holder": "w", "agents": [agent]}
    indexs = [v1.good("POST", "/v1/runs/claim", body) for _ in range(2)]
    assert {row["tenant"]: row["run"]["id"] for row in indexs} == waiting
    assert {row["run"]["status"] for row in indexs} == {"running"}
    v1.bad("POST", "/v1/runs/claim", body, 404)
    assert v1.ask("POST", "/v1/runs/claim", body, key=v1.key("admin")).status == 403


# Operators


def test_a_quota_is_set_and_cleared_with_a_key_for_all_tenants(v1: V1Client) -> None:
    v1.session()
    assert v1.good("PUT", "/quota", {"checkpoint_quota_mib": 5})["checkpoint_quota_mib"] == 5
    assert v1.good("DELETE", "/quota")["checkpoint_quota_mib"] is None
    v1.bad("PUT", "/quota", {"checkpoint_quota_mib": -1})
    v1.bad("PUT", "/quota", {})
    v1.another().bad("PUT", "/quota", {"checkpoint_quota_mib": 5}, 404)
    assert v1.ask("PUT", "/quota", {"checkpoint_quota_mib": 5}, key=v1.key("admin")).status == 403


def test_a_tenant_is_erased_on_request(v1: V1Client) -> None:
    session = v1.session("secret")
    answer = v1.good("POST", "/erasures", {"event_id": "e1"}, 201)
    assert (answer["tenant"], answer["is_whole"], answer["finished_at"]) == (v1.name, True, None)
    assert v1.good("POST", "/erasures", {"event_id": "e1"}, 201) == answer
    opened = v1.good("GET", "/v1/erasures?only_open=true&limit=1000")["items"]
    assert answer in opened
    assert v1.good("POST", "/erasures/carry-out")["is_finished"] is True
    v1.bad("GET", f"/sessions/{session}", status=404)
    assert answer not in v1.good("GET", "/v1/erasures?only_open=true&limit=1000")["items"]
    v1.bad("POST", "/erasures/carry-out", status=404)
    for method, path in (("POST", "/erasures"), ("POST", "/erasures/carry-out"), ("GET", "/v1/erasures")):
        body = {} if path == "/erasures" else None
        assert v1.ask(method, path, body, key=v1.key("admin")).status == 403


def test_a_key_is_deleted(v1: V1Client) -> None:
    kept = v1.good("POST", "/keys", {"name": "k"}, 201)["kept"]
    v1.good("DELETE", f"/v1/keys/{kept['id']}", status=204)
    v1.bad("DELETE", f"/v1/keys/{kept['id']}", status=404)
    v1.bad("GET", f"/keys/{kept['id']}", status=404)


def test_snapshots_of_a_run_are_kept_for_longer(v1: V1Client) -> None:
    run, _ = v1.claimed_run()
    usual = v1.good("GET", f"/retention/policy?run_id={run}")
    kept = v1.good("PUT", f"/runs/{run}/keep-snapshots-for", {"seconds": 30 * 86_400})
    assert kept == {**usual, "grace_s": 30 * 86_400}
    assert v1.good("PUT", f"/runs/{run}/keep-snapshots-for", {"seconds": 1})["grace_s"] == usual["grace_s"]
    v1.bad("PUT", f"/runs/{run}/keep-snapshots-for", {"seconds": -1})
    v1.bad("PUT", f"/runs/{NEVER}/keep-snapshots-for", {"seconds": 1}, 404)


def test_diagnostics_find_and_repair_inconsistencies(v1: V1Client, tmp_path: Path) -> None:
    capture(v1, tree(tmp_path / "w"))
    body = v1.good("GET", "/diagnostics")
    assert (body["damaged_snapshots"], body["dangling_refs"], body["unheld_objects"]) == ([], 0, 0)
    v1.run(v1.tenant.objects.put([b"x"], holder="h"))
    v1.run(v1.tenant.objects.release("h"))
    assert v1.good("GET", "/diagnostics")["unheld_objects"] == 1
    assert v1.good("POST", "/diagnostics/repair")["unheld_objects"] in (0, 1), (
        "it is removed after it was seen for long enough"
    )
    for method, path in (("GET", "/diagnostics"), ("POST", "/diagnostics/repair")):
        assert v1.ask(method, path, key=v1.key("read", "write")).status == 403


# Rewinds


def test_rewinds_are_read_and_a_finished_one_stays_finished(v1: V1Client, tmp_path: Path) -> None:
    run, epoch = v1.claimed_run()
    v1.step(run, epoch, 1)
    v1.good("POST", f"/runs/{run}/release", {"epoch": epoch})
    v1.good("POST", f"/runs/{run}/rewind", {"to_step": 0})
    (made,) = v1.good("GET", f"/runs/{run}/rewinds")["items"]
    assert v1.good("GET", f"/rewinds/{made['id']}") == made
    assert v1.good("GET", "/rewinds/pending")["items"] == []
    assert v1.good("GET", f"/rewinds/pending?run_id={run}")["items"] == []
    assert v1.good("POST", f"/rewinds/{made['id']}/finish")["id"] == made["id"]
    v1.bad("GET", f"/rewinds/{NEVER}", status=404)
    v1.bad("POST", f"/rewinds/{NEVER}/finish", status=404)
    v1.another().bad("GET", f"/rewinds/{made['id']}", status=404)


@pytest.mark.parametrize(
    ("name", "need"),
    [
        ("claim_run_of_any_tenant", "root"),
        ("set_tenant_quota", "root"),
        ("delete_key", "root"),
        ("carry_out_erasure", "root"),
        ("verify_objects", "admin"),
        ("prune_objects", "admin"),
        ("verify_checkpoints", "admin"),
        ("repair", "admin"),
        ("list_all_push_configs", "admin"),
        ("find_share", "read"),
        ("put_objects", "write"),
        ("import_snapshot", "write"),
    ],
)
def test_operations_on_several_callers_data_require_more_than_write(name: str, need: str) -> None:
    assert operation_named(name).need == need
