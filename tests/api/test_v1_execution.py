"""Agents, blocks, runs, steps, tool calls, checkpoints, flows and memories over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from tests.api.v1 import NEVER, NOW, V1Client, pages, where

# Agents and blocks


def test_an_agent_is_created_once_under_one_id(v1: V1Client) -> None:
    made = v1.good("POST", "/agents", {"display_name": "A", "id": "a/1"}, 201)
    assert v1.good("POST", "/agents", {"display_name": "A"}, 201, headers={"Idempotency-Key": '"a/1"'}) == made
    assert v1.bad("POST", "/agents", {"display_name": "B", "id": "a/1"}, 409)["type"] == "AlreadyExists"
    v1.bad("POST", "/agents", {"display_name": "A", "id": "a/1"}, headers={"Idempotency-Key": "other"})
    assert v1.good("GET", "/agents/a%2F1") == made
    assert v1.another().bad("GET", "/agents/a%2F1", status=404)["type"] == "NotFound"


def test_every_change_of_an_agent_has_a_version(v1: V1Client) -> None:
    made = v1.ask("PUT", "/agents/a", {"display_name": "A", "tags": ["x"]})
    assert made.headers["etag"] == '"1"'
    second = v1.ask("PATCH", "/agents/a", {"description": "d"}, headers={"If-Match": made.headers["etag"]})
    assert (second.headers["etag"], second.json["tags"]) == ('"2"', ["x"])
    for method, body in (("PATCH", {"display_name": "B"}), ("DELETE", None)):
        late = v1.bad(method, "/agents/a", body, 412, headers={"If-Match": '"1"'})
        assert (late["type"], "version 2" in late["detail"]) == ("Conflict", True)
        v1.bad(method, "/agents/never", body, 404, headers={"If-Match": '"1"'})
    v1.good("DELETE", "/agents/a", status=204, headers={"If-Match": " 2 "})
    v1.bad("DELETE", "/agents/a", status=404, headers={"If-Match": "*"})


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"key": ""}, 400),
        ({"key": "A", "tags": "x"}, 400),
        ({"key": "A", "tags": [7]}, 400),
        ({"key": "A", "tags": [f"t{number}" for number in range(10_000)]}, 422),
        ({"key": "A", "metadata": 7}, 400),
        ({"display_name": "A" * 10_000}, 422),
        ({"key": "A", "id": ""}, 400),
        ({"key": "A", "version": 1}, 400),
        ({"key": "A", "agent_type": "kagent"}, 400),
        ({"key": "A", "status": "busy"}, 400),
        ({"key": "A", "context_window": 0}, 400),
    ],
)
def test_an_invalid_agent_is_refused(v1: V1Client, body: Any, status: int) -> None:
    v1.bad("POST", "/agents", body, status)
    assert v1.good("GET", "/agents")["items"] == []


def test_agents_are_paged_and_filtered_by_tag(v1: V1Client) -> None:
    for number in range(5):
        v1.good("PUT", f"/agents/a{number}", {"display_name": "A", "tags": ["odd" if number % 2 else "even"]})
    assert [row["id"] for row in pages(v1, "/agents", 2)] == [f"a{number}" for number in range(5)]
    assert [row["id"] for row in pages(v1, "/agents?tag=odd", 1)] == ["a1", "a3"]


def test_a_block_is_changed_only_with_its_current_version(v1: V1Client) -> None:
    v1.good("PUT", "/agents/a", {"display_name": "A"})
    at = "/agents/a/blocks/per%20sona"
    assert v1.ask("PUT", at, {"value": "kind", "limit_bytes": 12}).headers["etag"] == '"1"'
    assert v1.good("PUT", at, {"value": "calm"}, headers={"If-Match": '"1"'})["value"] == "calm"
    assert v1.bad("PUT", at, {"value": "angry"}, 412, headers={"If-Match": '"1"'})["type"] == "Conflict"
    v1.bad("DELETE", at, status=412, headers={"If-Match": '"1"'})
    assert v1.good("POST", f"{at}/append", {"value": "ly", "separator": ""})["value"] == "calmly"
    assert "limit" in v1.bad("POST", f"{at}/append", {"value": "x" * 20}, 422)["detail"]
    assert v1.good("GET", at)["value"] == "calmly"
    v1.good("DELETE", at, status=204, headers={"If-Match": f'"{v1.good("GET", at)["version"]}"'})
    for method, body in (("GET", None), ("DELETE", None)):
        v1.bad(method, at, body, 404)


def test_blocks_are_saved_together_or_not_at_all(v1: V1Client) -> None:
    v1.good("PUT", "/agents/a", {"display_name": "A"})
    v1.good("PUT", "/agents/a/blocks", {"blocks": [{"label": "x", "value": "1"}, {"label": "y"}]})
    twice = {"blocks": [{"label": "z"}, {"label": "z"}]}
    assert "same label" in v1.bad("PUT", "/agents/a/blocks", twice)["detail"]
    v1.bad("PUT", "/agents/a/blocks", {"blocks": [{"label": "z"}, {"value": "no label"}]})
    assert [block["label"] for block in v1.good("GET", "/agents/a/blocks")["items"]] == ["x", "y"]
    for path in ("", "/x"):
        v1.bad("GET", f"/agents/never/blocks{path}", status=404)


# Runs


def test_a_run_is_started_once_under_one_id(v1: V1Client) -> None:
    session, id = v1.session(), str(uuid4())
    made = v1.good("POST", f"/sessions/{session}/runs", {"agent": "a"}, 201, headers={"Idempotency-Key": id})
    assert v1.good("POST", f"/sessions/{session}/runs", {"agent": "a", "id": id}, 201)["id"] == made["id"] == id
    current = f"/sessions/{v1.session()}/runs"
    assert v1.bad("POST", current, {"agent": "a", "id": id}, 409)["type"] == "Conflict"
    v1.bad("POST", current, {"max_attempts": 0})
    v1.bad("POST", current, {"parent_call": "c"})
    v1.bad("POST", current, {"parent": NEVER}, 404)
    assert [run["id"] for run in v1.good("GET", "/runs")["items"]] == [id]


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("renew", {}),
        ("release", {}),
        ("pause", {}),
        ("finish", {"stop_reason": "end"}),
        ("fail", {"error": "e"}),
        ("steps", {"iteration": 1, "state": {}}),
        ("tool-calls", {"calls": [{"id": "c", "tool_name": "t"}]}),
    ],
)
def test_only_the_epoch_of_the_last_claim_can_write(v1: V1Client, verb: str, more: dict[str, Any]) -> None:
    run, old = v1.claimed_run()
    v1.good("POST", f"/runs/{run}/release", {"epoch": old})
    unclaimed = v1.ask("POST", f"/runs/{run}/{verb}", {"epoch": old, **more})
    assert unclaimed.status == (200 if verb == "release" else 409), "only a release can be repeated"
    new = v1.good("POST", f"/runs/{run}/claim", {"holder": "w2"})["epoch"]
    assert v1.bad("POST", f"/runs/{run}/{verb}", {"epoch": old, **more}, 409)["type"] == "Fenced"
    assert v1.bad("POST", f"/runs/{run}/{verb}", {"epoch": new + 1, **more}, 409)["type"] == "Conflict"
    for wrong in (-1, "1", 1.5, None, 2**53 + 1):
        assert "epoch" in v1.bad("POST", f"/runs/{run}/{verb}", {"epoch": wrong, **more})["detail"]
    assert v1.ask("POST", f"/runs/{run}/{verb}", {"epoch": new, **more}).status in (200, 201)


@pytest.mark.parametrize("ttl", [0, -1, "1", 10**12])
def test_the_duration_of_a_lease_is_limited(v1: V1Client, ttl: Any) -> None:
    run, epoch = v1.claimed_run()
    for path, body in ((f"/runs/{run}/renew", {"epoch": epoch}), ("/runs/claim", {"holder": "w"})):
        reply = v1.ask("POST", path, {**body, "ttl_ms": ttl})
        assert reply.status == (422 if ttl == 10**12 else 400), reply.body


def test_a_claim_takes_free_runs_of_its_agents(v1: V1Client) -> None:
    session = v1.session()
    run = v1.good("POST", f"/sessions/{session}/runs", {"agent": "a"}, 201)["id"]
    assert v1.bad("POST", "/runs/claim", {"holder": "w", "agents": ["b"]}, 404)["type"] == "NotFound"
    v1.bad("POST", "/runs/claim", {"holder": "w", "run_id": run})
    v1.bad("POST", "/runs/claim", {"holder": ""})
    assert v1.another().ask("POST", "/runs/claim", {"holder": "w"}).status == 404
    assert v1.good("POST", "/runs/claim", {"holder": "w", "agents": ["b", "a"]})["holder"] == "w"
    v1.bad("POST", f"/runs/{run}/claim", {"holder": "w2"}, 404)


@pytest.mark.parametrize("ending", ["finish", "fail", "cancel"])
def test_an_ended_run_stays_ended_unless_a_failed_one_is_resumed(v1: V1Client, ending: str) -> None:
    run, epoch = v1.claimed_run()
    body = {"finish": {"epoch": epoch, "stop_reason": "end"}, "fail": {"epoch": epoch, "error": "no"}}
    ended = v1.good("POST", f"/runs/{run}/{ending}", body.get(ending, {}))
    v1.bad("POST", f"/runs/{run}/steps", {"epoch": epoch, "iteration": 1, "state": {}}, 409)
    v1.bad("POST", f"/runs/{run}/claim", {"holder": "w"}, 404)
    assert v1.good("GET", f"/runs/{run}")["status"] == ended["status"]
    assert v1.ask("POST", f"/runs/{run}/resume").status == (200 if ending == "fail" else 409)


def test_a_paused_run_can_only_be_claimed_after_it_is_resumed(v1: V1Client) -> None:
    run, epoch = v1.claimed_run()
    v1.bad("POST", f"/runs/{run}/pause", {"epoch": epoch, "until": "2030-01-01T00:00:00"})
    paused = v1.good("POST", f"/runs/{run}/pause", {"epoch": epoch, "until": NOW})
    assert (paused["status"], paused["pause_until"]) == ("paused", NOW)
    v1.bad("POST", f"/runs/{run}/claim", {"holder": "w"}, 404)
    v1.good("POST", f"/runs/{run}/resume")
    assert v1.good("POST", f"/runs/{run}/claim", {"holder": "w"})["epoch"] > epoch


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("status=running", [1]),
        ("status=pending", [0, 2]),
        ("agent=b", [2]),
        ('metadata={"n":0}', [0]),
        (where({"op": "ne", "column": "agent", "value": "b"}), [0, 1]),
        (f"session={NEVER}", []),
        (f"parent={NEVER}", []),
    ],
)
def test_runs_are_filtered(v1: V1Client, query: str, expected: list[int]) -> None:
    session = v1.session()
    for number, agent in enumerate("aab"):
        body = {"agent": agent, "metadata": {"n": number}, "id": str(uuid4())}
        run = v1.good("POST", f"/sessions/{session}/runs", body, 201)
        if number == 1:
            v1.good("POST", f"/runs/{run['id']}/claim", {"holder": "w"})
    assert sorted(row["metadata"]["n"] for row in pages(v1, f"/runs?{query}", 1)) == expected


# Steps


def test_steps_are_committed_in_order_and_once(v1: V1Client) -> None:
    run, epoch = v1.claimed_run()
    for number in (1, 2, 3):
        assert v1.step(run, epoch, number) == v1.step(run, epoch, number)
    other = {"epoch": epoch, "iteration": 3, "state": {"n": "other"}}
    assert f"step 3 of run {run}" in v1.bad("POST", f"/runs/{run}/steps", other, 409)["detail"]
    v1.bad("POST", f"/runs/{run}/steps", {"epoch": epoch, "iteration": 5, "state": {}}, 409)
    v1.bad("POST", f"/runs/{run}/steps", {"epoch": epoch, "iteration": 0, "state": {}})
    assert [row["iteration"] for row in pages(v1, f"/runs/{run}/steps?newest_first=true", 2)] == [3, 2, 1]
    assert v1.good("GET", f"/runs/{run}/steps/2")["state"] == {"n": 2}
    for missing in ("0", "4"):
        v1.bad("GET", f"/runs/{run}/steps/{missing}", status=404)
    for wrong in ("-1", "x", "1.5"):
        v1.bad("GET", f"/runs/{run}/steps/{wrong}")


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x", "colour": 1}]},
        {"messages": [{"role": "user", "content": "x", "id": NEVER}, {"role": "user", "content": "y", "id": NEVER}]},
        {"tool_calls": [{"id": "c", "status": "perhaps"}]},
        {"tool_calls": [{"id": "c"}, {"id": "c"}]},
        {"usage": {"input_tokens": -1}},
        {"stop_reason": "end", "pause_until": NOW},
        {"pause_until": "tomorrow"},
        {"snapshot": 7},
    ],
    ids="-".join,
)
def test_an_invalid_step_leaves_nothing(v1: V1Client, more: dict[str, Any]) -> None:
    run, epoch = v1.claimed_run()
    body = {"epoch": epoch, "iteration": 1, "state": {}, **more}
    assert v1.bad("POST", f"/runs/{run}/steps", body)["type"] == "InvalidInput"
    assert v1.good("GET", f"/runs/{run}/load")["step"] is None


def test_the_messages_of_a_step_are_in_the_log_of_its_session(v1: V1Client) -> None:
    run, epoch = v1.claimed_run()
    v1.step(run, epoch, 1, messages=[{"role": "assistant", "content": "done"}], stop_reason="end")
    session = v1.good("GET", f"/runs/{run}")["session_id"]
    assert v1.good("GET", f"/sessions/{session}/messages/count")["count"] == 1
    assert v1.good("GET", f"/runs/{run}")["status"] == "completed"


# Tool calls


def run_with_call(v1: V1Client, **more: Any) -> tuple[str, int]:
    """Start a run with one call, c."""
    run, epoch = v1.claimed_run()
    call = {"id": "c", "tool_name": "mail", "tool_input": {"to": "ada"}, **more}
    v1.good("POST", f"/runs/{run}/tool-calls", {"epoch": epoch, "calls": [call]}, 201)
    return run, epoch


def test_a_held_call_waits_for_approval(v1: V1Client) -> None:
    run, _ = run_with_call(v1, hold=True)
    at = f"/runs/{run}/tool-calls"
    (waits,) = v1.good("GET", f"{at}/pending")["items"]
    assert waits["call"]["id"] == "c"
    allowed = v1.good("POST", f"{at}/c/allow")
    (after,) = v1.good("GET", f"{at}/pending")["items"]
    assert (allowed["id"], after["action"] != waits["action"]) == ("c", True)


@pytest.mark.parametrize("verb", ["cancel", "discard"])
def test_a_discarded_call_is_no_longer_pending(v1: V1Client, verb: str) -> None:
    run, epoch = run_with_call(v1)
    at = f"/runs/{run}/tool-calls"
    given_up = v1.good("POST", f"{at}/c/{verb}", {"reason": "no need"})
    assert given_up["status"] == {"cancel": "cancelled", "discard": "discarded"}[verb]
    assert v1.good("GET", f"{at}/pending")["items"] == []
    assert [item["id"] for item in v1.good("GET", at)["items"]] == ["c"]
    v1.step(run, epoch, 1, tool_calls=[{"id": "c", "result": "too late"}])
    after = v1.good("GET", f"{at}/c")
    assert (after["status"], after["result"], after["step"]) == (given_up["status"], None, 1)


@pytest.mark.parametrize(
    ("calls", "status"),
    [
        ([], 400),
        ([{"id": "d", "tool_name": "t"}, {"id": "d", "tool_name": "t"}], 400),
        ([{"id": "d", "tool_name": "t", "safety": "perhaps"}], 400),
        ([{"id": "d", "tool_name": ""}], 400),
        ([{"tool_name": "t"}], 400),
        ([{"id": "d", "tool_name": "t", "colour": 1}], 400),
        ([{"id": "c", "tool_name": "other"}], 409),
        ([{"id": f"d{number}", "tool_name": "t"} for number in range(10_000)], 422),
    ],
)
def test_invalid_calls_are_refused_together(v1: V1Client, calls: Any, status: int) -> None:
    run, epoch = run_with_call(v1)
    v1.bad("POST", f"/runs/{run}/tool-calls", {"epoch": epoch, "calls": calls}, status)
    assert [call["id"] for call in v1.good("GET", f"/runs/{run}/tool-calls")["items"]] == ["c"]


@pytest.mark.parametrize(("verb", "body"), [("allow", None), ("cancel", {}), ("discard", {}), ("snooze", "until")])
def test_missing_calls_and_those_of_other_tenants_get_404(v1: V1Client, verb: str, body: Any) -> None:
    run, epoch = run_with_call(v1)
    sent = {"epoch": epoch, "until": NOW} if body == "until" else body
    v1.bad("POST", f"/runs/{run}/tool-calls/other/{verb}", sent, 404)
    v1.another().bad("POST", f"/runs/{run}/tool-calls/c/{verb}", sent, 404)
    v1.bad("GET", f"/runs/{run}/tool-calls/other", status=404)


# Checkpoints, flows, memories


def test_checkpoints_of_a_thread_are_private_to_their_tenant(v1: V1Client) -> None:
    for number in range(3):
        v1.run(v1.tenant.checkpoints.put("t", id=f"c{number}", state=b"\x00\xff"))
    assert [row["id"] for row in pages(v1, "/checkpoints?thread_id=t", 2)] == ["c2", "c1", "c0"]
    assert v1.good("GET", "/threads/t/checkpoints/latest?id=c1")["id"] == "c1"
    for query in ("?id=c9", "?namespace=n", "?user=eve"):
        v1.bad("GET", f"/threads/t/checkpoints/latest{query}", status=404)
    other = v1.another()
    assert other.good("DELETE", "/threads/t")["count"] == 0
    assert other.good("POST", "/checkpoints/prune", {"thread_ids": ["t"], "keep": 1})["count"] == 0
    for wrong in ({"thread_ids": "t"}, {"thread_ids": ["t"], "keep": -1}, {"thread_ids": ["t"], "younger_than_s": -1}):
        v1.bad("POST", "/checkpoints/prune", wrong)
    assert v1.good("DELETE", "/threads/t")["count"] == 3


def test_a_flow_belongs_to_its_thread_and_user(v1: V1Client) -> None:
    at = "/flows/f%2F1"
    v1.good("PUT", at, {"method": "m", "state": {"n": 1}})
    v1.good("PUT", at, {"method": "m", "state": {"n": 2}, "user": "eve", "thread_id": "t"})
    assert v1.good("GET", at)["state"] == {"n": 1}
    assert v1.good("GET", f"{at}?user=eve&thread_id=t")["state"] == {"n": 2}
    v1.bad("GET", f"{at}?user=bob", status=404)
    v1.bad("GET", f"{at}/pending", status=404)
    assert v1.good("DELETE", f"{at}/pending")["done"] is False
    for wrong in ({"state": {}}, {"method": "m", "state": []}, {"method": "", "state": {}}):
        v1.bad("PUT", at, wrong)
    assert [v1.good("DELETE", at)["done"] for _ in range(2)] == [True, False]


def test_memories_are_found_by_similarity_scope_and_category(v1: V1Client) -> None:
    kept = [
        {"id": "tea", "content": "Ada likes tea", "embedding": [1.0, 0.0], "scope": "/ada", "categories": ["taste"]},
        {"id": "sea", "content": "Bob sails", "embedding": [0.0, 1.0], "scope": "/bob", "categories": ["sport"]},
    ]
    assert v1.good("POST", "/memories", {"memories": kept}, 201)["items"] == ["tea", "sea"]
    near = v1.good("POST", "/memories/search", {"embedding": [0.9, 0.1], "min_score": 0.5})["items"]
    assert [item["memory"]["id"] for item in near] == ["tea"]
    assert v1.good("GET", "/memories/categories") == {"sport": 1, "taste": 1}
    assert [memory["id"] for memory in v1.good("GET", "/memories?scope=/bob")["items"]] == ["sea"]
    assert v1.good("GET", "/memories/tea")["content"] == "Ada likes tea"
    v1.bad("GET", "/memories/never", status=404)
    assert v1.another().good("GET", "/memories")["items"] == []
    assert v1.good("POST", "/memories/search", {"embedding": []})["items"] == [], "a zero vector is similar to nothing"
    assert v1.good("DELETE", "/memories?categories=taste&categories=none")["count"] == 1
    assert v1.good("DELETE", "/memories?ids=tea&ids=sea")["count"] == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"embedding": ["x"]},
        {"embedding": "x"},
        {"embedding": [1.0], "limit": 0},
        {"embedding": [1.0], "min_score": "x"},
    ],
)
def test_a_search_without_a_vector_is_refused(v1: V1Client, body: Any) -> None:
    assert v1.bad("POST", "/memories/search", body)["type"] == "InvalidInput"


def test_access_to_agents_and_the_default_agent(v1: V1Client) -> None:
    v1.bad("GET", "/default-agent", status=404)
    for agent, owner in (("a/1", "ada"), ("b", "bob")):
        v1.good("PUT", f"/agents/{quote(agent, safe='')}", {"owner": owner})
    assert v1.good("GET", "/default-agent")["id"] == "a/1"
    assert v1.good("GET", "/agent-by-key/a%2F1")["owner"] == "ada"
    for path in ("/agents-by-id?ids=b&ids=x&ids=a%2F1", "/agents-by-key?keys=b&keys=x&keys=a%2F1"):
        assert [row["id"] for row in v1.good("GET", path)["items"]] == ["b", "a/1"]
    assert v1.good("GET", "/agents/b/access?user=ada") == {"allowed": False, "role": None, "step": "share"}
    v1.good("PUT", "/agent-shares/b/ada", {"role": "operator"})
    assert v1.good("GET", "/agents/b/access?user=ada") == {"allowed": True, "role": "operator", "step": "share"}
    assert [row["id"] for row in pages(v1, "/accessible-agents?user=ada", 1)] == ["a/1", "b"]
    v1.good("PATCH", "/agents/b", {"is_default": True})
    assert v1.good("GET", "/default-agent")["id"] == "b"
    assert v1.good("GET", "/agents/b/access?user=ada")["role"] == "user"
    assert v1.good("GET", "/agents/never/access?user=ada")["step"] == "exists"
    v1.bad("GET", "/agents/b/access")
