"""What agents are and do, operation by operation over HTTP: definitions, blocks, runs, steps, tool calls, states, memories."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.api.v1 import NEVER, NOW, Here, pages, where

# Agents and blocks


def test_an_agent_is_made_once_under_one_id(here: Here) -> None:
    made = here.good("POST", "/agents", {"name": "A", "id": "a/1"}, 201)
    assert here.good("POST", "/agents", {"name": "A"}, 201, headers={"Idempotency-Key": '"a/1"'}) == made
    assert here.bad("POST", "/agents", {"name": "B", "id": "a/1"}, 409)["type"] == "AlreadyExists"
    here.bad("POST", "/agents", {"name": "A", "id": "a/1"}, headers={"Idempotency-Key": "other"})
    assert here.good("GET", "/agents/a%2F1") == made
    assert here.another().bad("GET", "/agents/a%2F1", status=404)["type"] == "NotFound"


def test_every_change_of_an_agent_is_a_version_and_the_last_one_counts(here: Here) -> None:
    made = here.ask("PUT", "/agents/a", {"name": "A", "tags": ["x"]})
    assert made.headers["etag"] == '"1"'
    second = here.ask("PATCH", "/agents/a", {"description": "d"}, headers={"If-Match": made.headers["etag"]})
    assert (second.headers["etag"], second.json["tags"]) == ('"2"', ["x"])
    for method, body in (("PATCH", {"name": "B"}), ("DELETE", None)):
        late = here.bad(method, "/agents/a", body, 412, headers={"If-Match": '"1"'})
        assert (late["type"], "version 2" in late["detail"]) == ("Conflict", True)
        here.bad(method, "/agents/never", body, 404, headers={"If-Match": '"1"'})
    here.good("DELETE", "/agents/a", status=204, headers={"If-Match": " 2 "})
    here.bad("DELETE", "/agents/a", status=404, headers={"If-Match": "*"})


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": ""}, 400),
        ({"name": "A", "tags": "x"}, 400),
        ({"name": "A", "tags": [7]}, 400),
        ({"name": "A", "tags": [f"t{number}" for number in range(10_000)]}, 422),
        ({"name": "A", "metadata": 7}, 400),
        ({"name": "A" * 10_000}, 422),
        ({"name": "A", "id": ""}, 400),
        ({"name": "A", "version": 1}, 400),
    ],
)
def test_an_agent_that_cannot_be_is_refused(here: Here, body: Any, status: int) -> None:
    here.bad("POST", "/agents", body, status)
    assert here.good("GET", "/agents")["items"] == []


def test_agents_are_paged_and_chosen_by_a_tag(here: Here) -> None:
    for number in range(5):
        here.good("PUT", f"/agents/a{number}", {"name": "A", "tags": ["odd" if number % 2 else "even"]})
    assert [each["id"] for each in pages(here, "/agents", 2)] == [f"a{number}" for number in range(5)]
    assert [each["id"] for each in pages(here, "/agents?tag=odd", 1)] == ["a1", "a3"]


def test_a_block_is_changed_only_by_who_has_seen_it_last(here: Here) -> None:
    here.good("PUT", "/agents/a", {"name": "A"})
    at = "/agents/a/blocks/per%20sona"
    assert here.ask("PUT", at, {"value": "kind", "limit_bytes": 12}).headers["etag"] == '"1"'
    assert here.good("PUT", at, {"value": "calm"}, headers={"If-Match": '"1"'})["value"] == "calm"
    assert here.bad("PUT", at, {"value": "angry"}, 412, headers={"If-Match": '"1"'})["type"] == "Conflict"
    here.bad("DELETE", at, status=412, headers={"If-Match": '"1"'})
    assert here.good("POST", f"{at}/append", {"value": "ly", "separator": ""})["value"] == "calmly"
    assert "limit" in here.bad("POST", f"{at}/append", {"value": "x" * 20}, 422)["detail"]
    assert here.good("GET", at)["value"] == "calmly"
    here.good("DELETE", at, status=204, headers={"If-Match": f'"{here.good("GET", at)["version"]}"'})
    for method, body in (("GET", None), ("DELETE", None)):
        here.bad(method, at, body, 404)


def test_blocks_are_saved_together_or_not_at_all(here: Here) -> None:
    here.good("PUT", "/agents/a", {"name": "A"})
    here.good("PUT", "/agents/a/blocks", {"blocks": [{"label": "x", "value": "1"}, {"label": "y"}]})
    twice = {"blocks": [{"label": "z"}, {"label": "z"}]}
    assert "same label" in here.bad("PUT", "/agents/a/blocks", twice)["detail"]
    here.bad("PUT", "/agents/a/blocks", {"blocks": [{"label": "z"}, {"value": "no label"}]})
    assert [each["label"] for each in here.good("GET", "/agents/a/blocks")["items"]] == ["x", "y"]
    for path in ("", "/x"):
        here.bad("GET", f"/agents/never/blocks{path}", status=404)


# Runs


def test_a_run_is_started_once_under_one_id(here: Here) -> None:
    session, id = here.session(), str(uuid4())
    made = here.good("POST", f"/sessions/{session}/runs", {"agent": "a"}, 201, headers={"Idempotency-Key": id})
    assert here.good("POST", f"/sessions/{session}/runs", {"agent": "a", "id": id}, 201)["id"] == made["id"] == id
    there = f"/sessions/{here.session()}/runs"
    assert here.bad("POST", there, {"agent": "a", "id": id}, 409)["type"] == "Conflict"
    here.bad("POST", there, {"max_attempts": 0})
    here.bad("POST", there, {"parent_call": "c"})
    here.bad("POST", there, {"parent": NEVER}, 404)
    assert [each["id"] for each in here.good("GET", "/runs")["items"]] == [id]


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
def test_only_the_epoch_of_the_last_claim_may_write(here: Here, verb: str, more: dict[str, Any]) -> None:
    run, old = here.claimed()
    here.good("POST", f"/runs/{run}/release", {"epoch": old})
    unclaimed = here.ask("POST", f"/runs/{run}/{verb}", {"epoch": old, **more})
    assert unclaimed.status == (200 if verb == "release" else 409), "only a release may be repeated"
    new = here.good("POST", f"/runs/{run}/claim", {"holder": "w2"})["epoch"]
    assert here.bad("POST", f"/runs/{run}/{verb}", {"epoch": old, **more}, 409)["type"] == "Fenced"
    assert here.bad("POST", f"/runs/{run}/{verb}", {"epoch": new + 1, **more}, 409)["type"] == "Conflict"
    for wrong in (-1, "1", 1.5, None, 2**53 + 1):
        assert "epoch" in here.bad("POST", f"/runs/{run}/{verb}", {"epoch": wrong, **more})["detail"]
    assert here.ask("POST", f"/runs/{run}/{verb}", {"epoch": new, **more}).status in (200, 201)


@pytest.mark.parametrize("ttl", [0, -1, "1", 10**12])
def test_a_lease_is_as_long_as_the_limit_at_most(here: Here, ttl: Any) -> None:
    run, epoch = here.claimed()
    for path, body in ((f"/runs/{run}/renew", {"epoch": epoch}), ("/runs/claim", {"holder": "w"})):
        reply = here.ask("POST", path, {**body, "ttl_ms": ttl})
        assert reply.status == (422 if ttl == 10**12 else 400), reply.body


def test_a_claim_takes_what_is_free_and_of_its_agents(here: Here) -> None:
    session = here.session()
    run = here.good("POST", f"/sessions/{session}/runs", {"agent": "a"}, 201)["id"]
    assert here.bad("POST", "/runs/claim", {"holder": "w", "agents": ["b"]}, 404)["type"] == "NotFound"
    here.bad("POST", "/runs/claim", {"holder": "w", "run_id": run})
    here.bad("POST", "/runs/claim", {"holder": ""})
    assert here.another().ask("POST", "/runs/claim", {"holder": "w"}).status == 404
    assert here.good("POST", "/runs/claim", {"holder": "w", "agents": ["b", "a"]})["holder"] == "w"
    here.bad("POST", f"/runs/{run}/claim", {"holder": "w2"}, 404)


@pytest.mark.parametrize("ending", ["finish", "fail", "cancel"])
def test_what_has_ended_stays_ended_unless_what_failed_is_resumed(here: Here, ending: str) -> None:
    run, epoch = here.claimed()
    body = {"finish": {"epoch": epoch, "stop_reason": "end"}, "fail": {"epoch": epoch, "error": "no"}}
    ended = here.good("POST", f"/runs/{run}/{ending}", body.get(ending, {}))
    here.bad("POST", f"/runs/{run}/steps", {"epoch": epoch, "iteration": 1, "state": {}}, 409)
    here.bad("POST", f"/runs/{run}/claim", {"holder": "w"}, 404)
    assert here.good("GET", f"/runs/{run}")["status"] == ended["status"]
    assert here.ask("POST", f"/runs/{run}/resume").status == (200 if ending == "fail" else 409)


def test_a_paused_run_is_claimed_again_only_after_it_is_resumed(here: Here) -> None:
    run, epoch = here.claimed()
    here.bad("POST", f"/runs/{run}/pause", {"epoch": epoch, "until": "2030-01-01T00:00:00"})
    paused = here.good("POST", f"/runs/{run}/pause", {"epoch": epoch, "until": NOW})
    assert (paused["status"], paused["pause_until"]) == ("paused", NOW)
    here.bad("POST", f"/runs/{run}/claim", {"holder": "w"}, 404)
    here.good("POST", f"/runs/{run}/resume")
    assert here.good("POST", f"/runs/{run}/claim", {"holder": "w"})["epoch"] > epoch


@pytest.mark.parametrize(
    ("query", "found"),
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
def test_runs_are_listed_by_what_they_are(here: Here, query: str, found: list[int]) -> None:
    session = here.session()
    for number, agent in enumerate("aab"):
        body = {"agent": agent, "metadata": {"n": number}, "id": str(uuid4())}
        run = here.good("POST", f"/sessions/{session}/runs", body, 201)
        if number == 1:
            here.good("POST", f"/runs/{run['id']}/claim", {"holder": "w"})
    assert sorted(each["metadata"]["n"] for each in pages(here, f"/runs?{query}", 1)) == found


# Steps


def test_steps_come_in_order_and_each_is_committed_once(here: Here) -> None:
    run, epoch = here.claimed()
    for number in (1, 2, 3):
        assert here.step(run, epoch, number) == here.step(run, epoch, number)
    other = {"epoch": epoch, "iteration": 3, "state": {"n": "other"}}
    assert f"step 3 of run {run}" in here.bad("POST", f"/runs/{run}/steps", other, 409)["detail"]
    here.bad("POST", f"/runs/{run}/steps", {"epoch": epoch, "iteration": 5, "state": {}}, 409)
    here.bad("POST", f"/runs/{run}/steps", {"epoch": epoch, "iteration": 0, "state": {}})
    assert [each["iteration"] for each in pages(here, f"/runs/{run}/steps?newest_first=true", 2)] == [3, 2, 1]
    assert here.good("GET", f"/runs/{run}/steps/2")["state"] == {"n": 2}
    for missing in ("0", "4"):
        here.bad("GET", f"/runs/{run}/steps/{missing}", status=404)
    for wrong in ("-1", "x", "1.5"):
        here.bad("GET", f"/runs/{run}/steps/{wrong}")


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
def test_a_step_that_cannot_be_leaves_nothing(here: Here, more: dict[str, Any]) -> None:
    run, epoch = here.claimed()
    body = {"epoch": epoch, "iteration": 1, "state": {}, **more}
    assert here.bad("POST", f"/runs/{run}/steps", body)["type"] == "InvalidInput"
    assert here.good("GET", f"/runs/{run}/load")["step"] is None


def test_the_messages_of_a_step_are_in_the_log_of_its_session(here: Here) -> None:
    run, epoch = here.claimed()
    here.step(run, epoch, 1, messages=[{"role": "assistant", "content": "done"}], stop_reason="end")
    session = here.good("GET", f"/runs/{run}")["session_id"]
    assert here.good("GET", f"/sessions/{session}/messages/count")["count"] == 1
    assert here.good("GET", f"/runs/{run}")["status"] == "completed"


# Tool calls


def intended(here: Here, **more: Any) -> tuple[str, int]:
    """A run with one call, c."""
    run, epoch = here.claimed()
    call = {"id": "c", "tool_name": "mail", "tool_input": {"to": "ada"}, **more}
    here.good("POST", f"/runs/{run}/tool-calls", {"epoch": epoch, "calls": [call]}, 201)
    return run, epoch


def test_a_call_that_is_held_waits_for_somebody_to_allow_it(here: Here) -> None:
    run, _ = intended(here, hold=True)
    at = f"/runs/{run}/tool-calls"
    (waits,) = here.good("GET", f"{at}/pending")["items"]
    assert waits["call"]["id"] == "c"
    allowed = here.good("POST", f"{at}/c/allow")
    (after,) = here.good("GET", f"{at}/pending")["items"]
    assert (allowed["id"], after["action"] != waits["action"]) == ("c", True)


@pytest.mark.parametrize("verb", ["cancel", "discard"])
def test_a_call_that_is_given_up_is_not_open_any_more(here: Here, verb: str) -> None:
    run, epoch = intended(here)
    at = f"/runs/{run}/tool-calls"
    given_up = here.good("POST", f"{at}/c/{verb}", {"reason": "no need"})
    assert given_up["status"] == {"cancel": "cancelled", "discard": "discarded"}[verb]
    assert here.good("GET", f"{at}/pending")["items"] == []
    assert [each["id"] for each in here.good("GET", at)["items"]] == ["c"]
    here.step(run, epoch, 1, tool_calls=[{"id": "c", "result": "too late"}])
    after = here.good("GET", f"{at}/c")
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
def test_calls_that_cannot_be_are_refused_together(here: Here, calls: Any, status: int) -> None:
    run, epoch = intended(here)
    here.bad("POST", f"/runs/{run}/tool-calls", {"epoch": epoch, "calls": calls}, status)
    assert [each["id"] for each in here.good("GET", f"/runs/{run}/tool-calls")["items"]] == ["c"]


@pytest.mark.parametrize(("verb", "body"), [("allow", None), ("cancel", {}), ("discard", {}), ("snooze", "until")])
def test_a_call_that_never_was_and_a_call_of_others_are_not_found(here: Here, verb: str, body: Any) -> None:
    run, epoch = intended(here)
    sent = {"epoch": epoch, "until": NOW} if body == "until" else body
    here.bad("POST", f"/runs/{run}/tool-calls/other/{verb}", sent, 404)
    here.another().bad("POST", f"/runs/{run}/tool-calls/c/{verb}", sent, 404)
    here.bad("GET", f"/runs/{run}/tool-calls/other", status=404)


# States, flows, memories


def test_states_of_a_thread_are_its_tenants_alone(here: Here) -> None:
    for number in range(3):
        here.run(here.tenant.checkpoints.put("t", id=f"c{number}", state=b"\x00\xff"))
    assert [each["id"] for each in pages(here, "/checkpoints?thread_id=t", 2)] == ["c2", "c1", "c0"]
    assert here.good("GET", "/threads/t/checkpoints/latest?id=c1")["id"] == "c1"
    for query in ("?id=c9", "?namespace=n", "?user=eve"):
        here.bad("GET", f"/threads/t/checkpoints/latest{query}", status=404)
    other = here.another()
    assert other.good("DELETE", "/threads/t")["count"] == 0
    assert other.good("POST", "/checkpoints/prune", {"thread_ids": ["t"], "keep": 1})["count"] == 0
    for wrong in ({"thread_ids": "t"}, {"thread_ids": ["t"], "keep": -1}, {"thread_ids": ["t"], "younger_than_s": -1}):
        here.bad("POST", "/checkpoints/prune", wrong)
    assert here.good("DELETE", "/threads/t")["count"] == 3


def test_a_flow_is_one_of_its_thread_and_user(here: Here) -> None:
    at = "/flows/f%2F1"
    here.good("PUT", at, {"method": "m", "state": {"n": 1}})
    here.good("PUT", at, {"method": "m", "state": {"n": 2}, "user": "eve", "thread_id": "t"})
    assert here.good("GET", at)["state"] == {"n": 1}
    assert here.good("GET", f"{at}?user=eve&thread_id=t")["state"] == {"n": 2}
    here.bad("GET", f"{at}?user=bob", status=404)
    here.bad("GET", f"{at}/pending", status=404)
    assert here.good("DELETE", f"{at}/pending")["done"] is False
    for wrong in ({"state": {}}, {"method": "m", "state": []}, {"method": "", "state": {}}):
        here.bad("PUT", at, wrong)
    assert [here.good("DELETE", at)["done"] for _ in range(2)] == [True, False]


def test_memories_are_found_by_likeness_scope_and_category(here: Here) -> None:
    kept = [
        {"id": "tea", "content": "Ada likes tea", "embedding": [1.0, 0.0], "scope": "/ada", "categories": ["taste"]},
        {"id": "sea", "content": "Bob sails", "embedding": [0.0, 1.0], "scope": "/bob", "categories": ["sport"]},
    ]
    assert here.good("POST", "/memories", {"memories": kept}, 201)["items"] == ["tea", "sea"]
    near = here.good("POST", "/memories/search", {"embedding": [0.9, 0.1], "min_score": 0.5})["items"]
    assert [each["memory"]["id"] for each in near] == ["tea"]
    assert here.good("GET", "/memories/categories") == {"sport": 1, "taste": 1}
    assert [each["id"] for each in here.good("GET", "/memories?scope=/bob")["items"]] == ["sea"]
    assert here.good("GET", "/memories/tea")["content"] == "Ada likes tea"
    here.bad("GET", "/memories/never", status=404)
    assert here.another().good("GET", "/memories")["items"] == []
    assert here.good("POST", "/memories/search", {"embedding": []})["items"] == [], "nothing is like no direction"
    assert here.good("DELETE", "/memories?categories=taste&categories=none")["count"] == 1
    assert here.good("DELETE", "/memories?ids=tea&ids=sea")["count"] == 1


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
def test_a_search_without_a_direction_is_refused(here: Here, body: Any) -> None:
    assert here.bad("POST", "/memories/search", body)["type"] == "InvalidInput"
