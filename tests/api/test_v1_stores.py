"""Stores over /v1, operation by operation: links, tasks, tools, memories, feedback, erasures, diagnostics."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import SessionKey, column
from holdfast.api.operations import AREAS
from holdfast.api.redaction import WITHHELD, without_secrets
from holdfast.api.resources import OPERATIONS
from tests.api.v1 import NEVER, NOW, POLICY, Here, captured, named, pages, tree

# Links to sessions


def test_the_token_of_a_link_is_shown_where_it_is_made_and_nowhere_else(here: Here) -> None:
    session = here.session("hi")
    made = here.good("POST", f"/sessions/{session}/shares", {}, 201)
    assert (made["share"]["session_id"], made["share"]["read_only"]) == (session, True)
    token = made["token"]
    answers = [
        here.ask("GET", f"/sessions/{session}/shares"),
        here.ask("POST", "/shares/find", {"token": token}),
        here.ask("POST", "/shares/use", {"token": token, "user": "bob"}),
        here.ask("GET", "/shares?user=bob"),
    ]
    for each in answers:
        assert each.status == 200
        assert token.encode() not in each.body
    assert answers[0].json["items"] == answers[3].json["items"] == [answers[1].json] == [made["share"]]


def test_links_are_numbered_and_removed_by_their_number(here: Here) -> None:
    session = here.session()
    tokens = [here.good("POST", f"/sessions/{session}/shares", {"read_only": False}, 201) for _ in range(3)]
    numbers = [each["share"]["number"] for each in tokens]
    assert len(set(numbers)) == 3
    here.good("DELETE", f"/sessions/{session}/shares/{numbers[1]}", status=204)
    here.bad("DELETE", f"/sessions/{session}/shares/{numbers[1]}", status=404)
    here.bad("DELETE", f"/sessions/{session}/shares/x")
    left = here.good("GET", f"/sessions/{session}/shares")["items"]
    assert [each["number"] for each in left] == [numbers[0], numbers[2]]
    here.bad("POST", "/shares/find", {"token": tokens[1]["token"]}, 404)
    here.good("POST", "/shares/find", {"token": tokens[2]["token"]})


def test_a_link_leads_to_a_live_session_of_this_tenant(here: Here) -> None:
    session = here.session()
    token = here.good("POST", f"/sessions/{session}/shares", {}, 201)["token"]
    here.another().bad("POST", "/shares/find", {"token": token}, 404)
    here.another().bad("POST", "/shares/use", {"token": token, "user": "eve"}, 404)
    here.good("DELETE", f"/sessions/{session}", status=204)
    here.bad("POST", "/shares/use", {"token": token, "user": "bob"}, 404)
    here.bad("POST", f"/sessions/{NEVER}/shares", {}, 404)
    assert here.good("GET", f"/sessions/{session}/shares")["items"] == []


@pytest.mark.parametrize("body", [{"token": ""}, {"token": "t", "user": ""}, {"user": "u"}, {"token": 7, "user": "u"}])
def test_a_link_is_used_with_a_token_by_somebody(here: Here, body: Any) -> None:
    here.bad("POST", "/shares/use", body)


# A2A tasks


def test_a_task_is_saved_hidden_restored_and_removed(here: Here) -> None:
    task = {"id": "t/1", "history": [{"text": "hi"}], "status": {"state": "working"}}
    path = "/a2a/tasks/t%2F1"
    here.good("PUT", path, {"task": task, "context_id": "c", "state": "working", "user": "ada"}, 204)
    found = here.good("GET", path + "?user=ada")
    assert (found["task"], found["context_id"], found["state"], found["user"]) == (task, "c", "working", "ada")
    here.bad("GET", path, status=404)
    assert here.good("DELETE", path + "?user=ada") == {"done": True}
    assert here.good("DELETE", path + "?user=ada") == {"done": False}
    here.bad("GET", path + "?user=ada", status=404)
    assert here.good("POST", path + "/restore", {"user": "ada"})["task"] == task
    here.bad("POST", path + "/restore", {"user": "ada"}, 404)
    assert here.good("POST", path + "/purge", {"user": "ada"}) == {"count": 1}
    here.bad("POST", path + "/restore", {"user": "ada"}, 404)


def test_tasks_are_listed_and_counted_by_what_they_are(here: Here) -> None:
    for number in range(5):
        body = {"task": {"n": number}, "context_id": f"c{number % 2}", "state": "done" if number else "new"}
        here.good("PUT", f"/a2a/tasks/t{number}", {**body, "state_at": f"2030-01-0{number + 1}T00:00:00Z"}, 204)
    assert [each["id"] for each in here.good("GET", "/a2a/tasks")["items"]] == ["t4", "t3", "t2", "t1", "t0"]
    assert [each["id"] for each in here.good("GET", "/a2a/tasks?context_id=c1")["items"]] == ["t3", "t1"]
    assert here.good("GET", "/a2a/task-count?state=done") == {"count": 4}
    assert here.good("GET", "/a2a/task-count?since=2030-01-04T00:00:00Z") == {"count": 2}
    listed = [each["id"] for each in pages(here, "/a2a/tasks", 2)]
    assert listed == ["t4", "t3", "t2", "t1", "t0"]
    assert here.another().good("GET", "/a2a/tasks")["items"] == []


@pytest.mark.parametrize("body", [{}, {"task": []}, {"task": {"history": 7}}, {"task": {}, "state_at": "2030-01-01"}])
def test_what_is_no_task_is_not_saved(here: Here, body: Any) -> None:
    here.bad("PUT", "/a2a/tasks/t", body)
    assert here.good("GET", "/a2a/task-count") == {"count": 0}


def test_a_scope_for_tasks_is_one_that_a_key_can_have(here: Here) -> None:
    assert {each.tag for each in OPERATIONS if "/a2a/" in each.path} == {"tasks"}
    assert here.ask("GET", "/a2a/tasks", key=here.key("tasks:read")).status == 200
    assert here.ask("PUT", "/a2a/tasks/t", {"task": {}}, key=here.key("tasks:read")).status == 403
    for area in AREAS:
        here.key(f"{area}:read", f"{area}:write")


# Whom to tell

HOOK = {
    "url": "https://ada:pw@example.com:8443/hook?key=k123#frag9",
    "token": "tok-1",
    "authentication": {"schemes": ["Bearer"], "credentials": "cred-1"},
    "headers": [{"X-Api-Key": "key-1", "Accept": "*/*"}],
}
SECRETS = ("ada:pw", "k123", "frag9", "tok-1", "cred-1", "key-1")


def test_what_a_receiver_asks_for_is_kept_and_in_no_answer(here: Here) -> None:
    path = "/a2a/tasks/t/push-configs"
    saved = here.ask("POST", path, {"config": HOOK, "id": "c1", "user": "ada"})
    listed = here.ask("GET", path + "?user=ada")
    everybody = here.ask("GET", "/a2a/tasks/t/all-push-configs")
    for each in (saved, listed, everybody):
        assert each.status == 200
        for secret in SECRETS:
            assert secret.encode() not in each.body
    shown = saved.json["config"]
    assert shown["url"] == "https://withheld@example.com:8443/hook?withheld#withheld"
    assert shown["authentication"] == {"schemes": ["Bearer"], "credentials": WITHHELD}
    assert shown["headers"] == [{"X-Api-Key": WITHHELD, "Accept": "*/*"}]
    (kept,) = here.run(here.tenant.a2a_push_configs.list(where=[column("user").eq("ada")]))
    assert kept.config == HOOK, "whoever tells the receiver has all of it"


def test_configurations_are_replaced_by_their_id_and_removed(here: Here) -> None:
    path = "/a2a/tasks/t/push-configs"
    plain = {"url": "https://example.com/a"}
    assert here.good("POST", path, {"config": plain})["id"] == "t"
    here.good("POST", path, {"config": {"url": "https://example.com/b"}})
    here.good("POST", path, {"config": plain, "id": "two"})
    assert [each["config"]["url"][-1] for each in here.good("GET", path)["items"]] == ["b", "a"]
    assert here.good("DELETE", path + "?id=two") == {"count": 1}
    assert here.good("DELETE", path) == {"count": 1}
    assert here.good("GET", path)["items"] == []


def test_the_configurations_of_everybody_are_for_those_who_look_after_the_tenant(here: Here) -> None:
    for user in ("ada", "bob"):
        here.good("POST", "/a2a/tasks/t/push-configs", {"config": {"url": "https://example.com"}, "user": user})
    found = here.good("GET", "/a2a/tasks/t/all-push-configs")["items"]
    assert sorted(each["user"] for each in found) == ["ada", "bob"]
    assert here.ask("GET", "/a2a/tasks/t/all-push-configs", key=here.key("read", "write")).status == 403
    assert here.good("GET", "/a2a/tasks/t/push-configs")["items"] == []


@pytest.mark.parametrize("body", [{}, {"config": []}, {"config": {}, "id": ""}, {"config": {}, "colour": 1}])
def test_what_is_no_configuration_is_not_kept(here: Here, body: Any) -> None:
    here.bad("POST", "/a2a/tasks/t/push-configs", body)


@pytest.mark.parametrize(
    "name", ["token", "accessToken", "X-API-Key", "api_key", "password", "client_secret", "Authorization", "Set-Cookie"]
)
def test_a_secret_is_known_by_its_name_wherever_it_is(name: str) -> None:
    for value in ("s3cret", ["s3cret"], {"value": "s3cret"}, 7):
        assert without_secrets({"a": [{"b": {name: value}}]}) == {"a": [{"b": {name: WITHHELD}}]}
    assert without_secrets({name: None}) == {name: None}, "that there is none is no secret"


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
def test_an_address_has_nobody_and_nothing_asked_in_it(address: str, shown: str) -> None:
    assert without_secrets(address) == shown


@settings(max_examples=20)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text("abc /"), st.lists))
def test_what_has_no_secret_stays_as_it_is(value: Any) -> None:
    assert without_secrets({"kept": value}) == {"kept": value}


SECRET = "s3cr3t"
NESTED = st.recursive(
    st.sampled_from([SECRET, f"https://{SECRET}@h/p", f"https://h/p?t={SECRET}", f"ws://h/#{SECRET}"]),
    lambda each: st.lists(each, min_size=1, max_size=3) | st.dictionaries(st.text("ab", min_size=1), each, min_size=1),
)


@settings(max_examples=40)
@given(
    NESTED,
    st.lists(st.sampled_from(["config", "push", "headers", "0"]), max_size=4),
    st.sampled_from(["token", "Proxy-Authorization", "api-key"]),
)
def test_wherever_a_secret_is_put_under_its_name_it_is_not_shown(value: Any, way: list[str], name: str) -> None:
    whole: Any = {name: value, "url": f"https://u:{SECRET}@example.com/?q={SECRET}"}
    for each in way:
        whole = [{each: whole}]
    shown = without_secrets({"config": whole})
    assert SECRET not in repr(shown)
    assert repr(shown).count("withheld") == 3
    assert without_secrets(shown) == shown


# Tools


def test_a_server_of_tools_is_made_changed_hidden_and_restored(here: Here) -> None:
    body = {"kind": "MCP", "description": "d", "tools": [{"name": "b"}, {"name": "a", "description": "x"}]}
    made = here.good("PUT", "/tool-servers/ns%2Fs", {**body, "last_connected_at": NOW})
    assert (made["name"], made["kind"], made["last_connected_at"]) == ("ns/s", "MCP", NOW)
    assert here.good("GET", "/tool-servers/ns%2Fs?kind=MCP") == made
    here.bad("GET", "/tool-servers/ns%2Fs", status=404)
    assert [each["name"] for each in here.good("GET", "/tools?server=ns/s&kind=MCP")["items"]] == ["a", "b"]
    here.good("PUT", "/tool-servers/ns%2Fs", {**body, "tools": [{"name": "c"}]})
    assert [each["name"] for each in here.good("GET", "/tools")["items"]] == ["c"]
    here.good("DELETE", "/tool-servers/ns%2Fs?kind=MCP", status=204)
    here.bad("DELETE", "/tool-servers/ns%2Fs?kind=MCP", status=404)
    assert here.good("GET", "/tools")["items"] == []
    assert here.good("POST", "/tool-servers/ns%2Fs/restore?kind=MCP")["name"] == "ns/s"
    here.bad("POST", "/tool-servers/never/restore", status=404)
    assert [each["name"] for each in here.good("GET", "/tools")["items"]] == ["c"]


def test_servers_of_tools_come_page_by_page_by_name(here: Here) -> None:
    for name in ("c", "a", "b"):
        here.good("PUT", f"/tool-servers/{name}", {})
    assert [each["name"] for each in pages(here, "/tool-servers", 2)] == ["a", "b", "c"]
    here.bad("PUT", "/tool-servers/x", {"tools": [{"colour": 1}]})
    assert here.another().good("GET", "/tool-servers")["items"] == []


# What agents and crews remember


def test_an_agent_remembers_finds_and_forgets(here: Here) -> None:
    memories = [{"content": "tea", "embedding": [1.0, 0.0]}, {"content": "rain", "embedding": [0.0, 1.0]}]
    made = here.good("POST", "/agent-memories", {"agent": "a", "user": "ada", "memories": memories}, 201)["items"]
    asked = {"agent": "a", "user": "ada", "embedding": [1.0, 0.1], "limit": 1}
    (best,) = here.good("POST", "/agent-memories/search", asked)["items"]
    assert (best["memory"]["id"], best["memory"]["content"]) == (made[0], "tea")
    listed = here.good("GET", "/agent-memories?agent=a&user=ada")["items"]
    assert [(each["content"], each["access_count"]) for each in listed] == [("tea", 1), ("rain", 0)]
    assert here.good("GET", "/agent-memories?agent=a&user=bob")["items"] == []
    assert here.good("DELETE", "/agent-memories?agent=a&user=ada") == {"count": 2}
    here.bad("POST", "/agent-memories", {"agent": "a", "memories": [{"content": "c"}]})


def test_a_search_that_counts_as_a_use_is_no_reading(here: Here) -> None:
    body = {"agent": "a", "embedding": [1.0]}
    assert here.ask("POST", "/agent-memories/search", body, key=here.key("read")).status == 403
    assert here.ask("POST", "/agent-memories/search", body, key=here.key("memories:write")).status == 200


def test_memories_whose_time_is_over_go(here: Here) -> None:
    memories = [{"content": "c", "embedding": [1.0], "ttl_days": 1}, {"content": "d", "embedding": [1.0]}]
    here.good("POST", "/agent-memories", {"agent": "a", "memories": memories}, 201)
    assert here.good("POST", "/agent-memories/prune", {}) == {"extended": 0, "removed": 0}
    assert here.good("POST", "/agent-memories/prune", {"by": "2190-01-01T00:00:00Z"})["removed"] == 2
    here.bad("POST", "/agent-memories/prune", {"by": "2190-01-01T00:00:00"})
    assert here.ask("POST", "/agent-memories/prune", {}, key=here.key("read", "write")).status == 403


def test_what_crews_remember_is_counted_by_dimensions_and_noted_as_used(here: Here) -> None:
    memories = [{"content": str(n), "embedding": [1.0] * 2} for n in range(2)]
    ids = here.good("POST", "/memories", {"memories": memories}, 201)["items"]
    other = {"content": "2", "embedding": [1.0] * 3}
    assert here.bad("POST", "/memories", {"memories": [other]})["type"] == "DimensionMismatch"
    assert here.good("GET", "/memories/dimensions") == {"2": 2}
    assert here.good("POST", "/memories/touch", {"ids": [ids[0], NEVER]}) == {"count": 1}


# General feedback


def test_general_feedback_is_confined_to_a_user(here: Here) -> None:
    body = {"feedback_text": "wrong", "is_positive": False, "issue_type": "factual", "user": "ada"}
    made = here.good("POST", "/general-feedback", body, 201)
    here.good("POST", "/general-feedback", {"feedback_text": "good", "is_positive": True, "user": "ada"}, 201)
    found = here.good("GET", "/general-feedback?user=ada")["items"]
    assert [each["feedback_text"] for each in found] == ["wrong", "good"]
    assert here.good("GET", "/general-feedback?user=bob")["items"] == []
    assert here.good("GET", "/general-feedback/count?user=ada") == {"count": 2}
    here.bad("DELETE", f"/general-feedback/{made['id']}?user=bob", status=404)
    here.good("DELETE", f"/general-feedback/{made['id']}?user=ada", status=204)
    here.bad("POST", "/general-feedback", {**body, "issue_type": "ugly"})
    here.bad("POST", "/general-feedback", {**body, "feedback_text": ""})


# What waits, and policies of agents


def test_all_that_waits_is_counted_and_what_waits_too_long_removed(here: Here) -> None:
    messages = [{"channel_name": "c", "history_key": key, "sender": "s", "body": "b"} for key in ("x", "y")]
    here.good("POST", "/pending-messages", {"messages": messages}, 201)
    assert here.good("GET", "/pending-messages/count-all") == {"count": 2}
    assert here.good("DELETE", "/pending-messages/stale?older_than_s=100000000000") == {"count": 0}
    for wrong in ("x", "-1", "P7D", "1.5", "100000000001", ""):
        here.bad("DELETE", f"/pending-messages/stale?older_than_s={wrong}")
    here.bad("DELETE", "/pending-messages/stale")
    assert here.another().good("DELETE", "/pending-messages/stale?older_than_s=0") == {"count": 0}
    assert here.good("DELETE", "/pending-messages/stale?older_than_s=0") == {"count": 2}
    assert here.good("GET", "/pending-messages/count-all") == {"count": 0}


def test_chats_have_the_titles_that_their_sessions_say(here: Here) -> None:
    asked = {"groups": [{"channel_name": "c", "history_key": key} for key in ("x", "y", "")]}
    assert here.good("POST", "/pending-messages/titles", asked) == {"items": []}
    key = str(SessionKey.group(agent="a", channel="c", peer="x"))
    here.good("POST", "/sessions", {"key": key, "metadata": {"chat_title": "The garden"}}, 201)
    found = here.good("POST", "/pending-messages/titles", asked)["items"]
    assert found == [{"channel_name": "c", "history_key": "x", "title": "The garden"}]
    here.bad("POST", "/pending-messages/titles", {"groups": []})
    here.bad("POST", "/pending-messages/titles", {"groups": [["c", "x"]]})


def test_a_policy_of_an_agent_holds_for_its_sessions(here: Here) -> None:
    session = here.good("POST", "/sessions", {"agent": "a/1"}, 201)["id"]
    path = "/compaction-policies/a%2F1"
    here.good("PUT", path, {"policy": POLICY}, 204)
    assert here.good("GET", f"/sessions/{session}/compaction-policy")["window_tokens"] == POLICY["window_tokens"]
    own = {"policy": {**POLICY, "window_tokens": 2_000}}
    here.good("PUT", f"/sessions/{session}/compaction-policy", own, 204)
    assert here.good("GET", f"/sessions/{session}/compaction-policy")["window_tokens"] == 2_000
    here.good("DELETE", f"/sessions/{session}/compaction-policy", status=204)
    here.good("DELETE", path, status=204)
    here.bad("DELETE", path, status=404)
    here.bad("GET", f"/sessions/{session}/compaction-policy", status=404)
    here.bad("PUT", path, {"policy": {"colour": 1}})


# Runs of any tenant


def test_the_next_run_of_any_tenant_is_claimed_by_a_key_for_all(here: Here) -> None:
    agent = f"agent-{uuid4()}"
    waiting = {}
    for each in (here.another(), here.another()):
        session = each.good("POST", "/sessions", {"agent": agent}, 201)["id"]
        waiting[each.name] = each.good("POST", f"/sessions/{session}/runs", {"agent": agent}, 201)["id"]
    body = {"holder": "w", "agents": [agent]}
    found = [here.good("POST", "/v1/runs/claim", body) for _ in range(2)]
    assert {each["tenant"]: each["run"]["id"] for each in found} == waiting
    assert {each["run"]["status"] for each in found} == {"running"}
    here.bad("POST", "/v1/runs/claim", body, 404)
    assert here.ask("POST", "/v1/runs/claim", body, key=here.key("admin")).status == 403


# Those who look after everything


def test_a_quota_is_set_and_taken_back_by_those_who_look_after_all_tenants(here: Here) -> None:
    here.session()
    assert here.good("PUT", "/quota", {"checkpoint_quota_mib": 5})["checkpoint_quota_mib"] == 5
    assert here.good("DELETE", "/quota")["checkpoint_quota_mib"] is None
    here.bad("PUT", "/quota", {"checkpoint_quota_mib": -1})
    here.bad("PUT", "/quota", {})
    here.another().bad("PUT", "/quota", {"checkpoint_quota_mib": 5}, 404)
    assert here.ask("PUT", "/quota", {"checkpoint_quota_mib": 5}, key=here.key("admin")).status == 403


def test_a_tenant_is_forgotten_on_request(here: Here) -> None:
    session = here.session("secret")
    wanted = here.good("POST", "/erasures", {"event_id": "e1"}, 201)
    assert (wanted["tenant"], wanted["is_whole"], wanted["finished_at"]) == (here.name, True, None)
    assert here.good("POST", "/erasures", {"event_id": "e1"}, 201) == wanted
    opened = here.good("GET", "/v1/erasures?only_open=true&limit=1000")["items"]
    assert wanted in opened
    assert here.good("POST", "/erasures/carry-out")["is_finished"] is True
    here.bad("GET", f"/sessions/{session}", status=404)
    assert wanted not in here.good("GET", "/v1/erasures?only_open=true&limit=1000")["items"]
    here.bad("POST", "/erasures/carry-out", status=404)
    for method, path in (("POST", "/erasures"), ("POST", "/erasures/carry-out"), ("GET", "/v1/erasures")):
        body = {} if path == "/erasures" else None
        assert here.ask(method, path, body, key=here.key("admin")).status == 403


def test_a_key_is_removed_with_what_is_known_of_it(here: Here) -> None:
    kept = here.good("POST", "/keys", {"name": "k"}, 201)["kept"]
    here.good("DELETE", f"/v1/keys/{kept['id']}", status=204)
    here.bad("DELETE", f"/v1/keys/{kept['id']}", status=404)
    here.bad("GET", f"/keys/{kept['id']}", status=404)


def test_snapshots_of_a_run_are_kept_for_longer(here: Here) -> None:
    run, _ = here.claimed()
    usual = here.good("GET", f"/retention/policy?run_id={run}")
    kept = here.good("PUT", f"/runs/{run}/keep-snapshots-for", {"seconds": 30 * 86_400})
    assert kept == {**usual, "grace_s": 30 * 86_400}
    assert here.good("PUT", f"/runs/{run}/keep-snapshots-for", {"seconds": 1})["grace_s"] == usual["grace_s"]
    here.bad("PUT", f"/runs/{run}/keep-snapshots-for", {"seconds": -1})
    here.bad("PUT", f"/runs/{NEVER}/keep-snapshots-for", {"seconds": 1}, 404)


def test_diagnostics_find_what_is_not_as_it_should_be_and_repair_it(here: Here, tmp_path: Path) -> None:
    captured(here, tree(tmp_path / "w"))
    found = here.good("GET", "/diagnostics")
    assert (found["damaged_snapshots"], found["dangling_refs"], found["unheld_objects"]) == ([], 0, 0)
    here.run(here.tenant.objects.put([b"x"], holder="h"))
    here.run(here.tenant.objects.release("h"))
    assert here.good("GET", "/diagnostics")["unheld_objects"] == 1
    assert here.good("POST", "/diagnostics/repair")["unheld_objects"] in (0, 1), (
        "it goes when it was seen for long enough"
    )
    for method, path in (("GET", "/diagnostics"), ("POST", "/diagnostics/repair")):
        assert here.ask(method, path, key=here.key("read", "write")).status == 403


# Rewinds


def test_rewinds_are_read_one_by_one_and_finished_ones_stay_so(here: Here, tmp_path: Path) -> None:
    run, epoch = here.claimed()
    here.step(run, epoch, 1)
    here.good("POST", f"/runs/{run}/release", {"epoch": epoch})
    here.good("POST", f"/runs/{run}/rewind", {"to_step": 0})
    (made,) = here.good("GET", f"/runs/{run}/rewinds")["items"]
    assert here.good("GET", f"/rewinds/{made['id']}") == made
    assert here.good("GET", "/rewinds/pending")["items"] == []
    assert here.good("GET", f"/rewinds/pending?run_id={run}")["items"] == []
    assert here.good("POST", f"/rewinds/{made['id']}/finish")["id"] == made["id"]
    here.bad("GET", f"/rewinds/{NEVER}", status=404)
    here.bad("POST", f"/rewinds/{NEVER}/finish", status=404)
    here.another().bad("GET", f"/rewinds/{made['id']}", status=404)


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
def test_what_concerns_more_than_one_caller_needs_more_than_writing(name: str, need: str) -> None:
    assert named(name).need == need
