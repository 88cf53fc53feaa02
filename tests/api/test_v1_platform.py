"""Tenants, keys, activity, retention, rewinds, streams and the server itself over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from holdfast import new_api_key
from holdfast.api.audit import SERVER
from holdfast.api.limits import ServerLimits
from tests.api.in_process import Running, running
from tests.api.v1 import NEVER, NOW, V1Client, pages, problem, where

# Tenants


@pytest.mark.parametrize("name", ["é ü", "a/b", "a%b", "by-key", "🙂", "a.b-c_d~e", "?", "#", "a\0b"])
def test_a_tenant_can_have_any_name(v1: V1Client, name: str) -> None:
    at = f"/v1/tenants/{quote(name, safe='')}"
    made = v1.good("POST", "/v1/tenants", {"id": name, "metadata": {"n": 1}}, 201)
    assert v1.good("GET", at) == made
    assert v1.bad("POST", "/v1/tenants", {"id": name}, 409)["type"] == "AlreadyExists"
    assert v1.good("PATCH", at, {"metadata": {}})["metadata"] == {}
    v1.good("DELETE", at, status=204)
    for method, body in (("GET", None), ("PATCH", {"metadata": {}}), ("DELETE", None)):
        assert v1.bad(method, at, body, 404)["type"] == "NotFound"


@pytest.mark.parametrize(("name", "status"), [("", 400), ("t" * 5_000, 422), (7, 400), (None, 400)])
def test_an_invalid_name_creates_no_tenant(v1: V1Client, name: Any, status: int) -> None:
    v1.bad("POST", "/v1/tenants", {"id": name}, status)


def test_a_tenant_with_data_is_only_removed_with_all_of_it(v1: V1Client) -> None:
    session = v1.session("x")
    at = f"/v1/tenants/{v1.name}"
    assert v1.bad("DELETE", at, status=409)["type"] == "Conflict"
    assert v1.bad("DELETE", f"{at}?cascade=perhaps")["type"] == "InvalidInput"
    assert v1.good("GET", f"/sessions/{session}")["id"] == session
    v1.good("DELETE", f"{at}?cascade=true", status=204)
    v1.bad("GET", f"/sessions/{session}", status=404)


def test_tenants_are_paged_and_ordered_by_name(v1: V1Client) -> None:
    names = [f"paged-{item}" for item in "abcde"]
    for name in reversed(names):
        v1.good("POST", "/v1/tenants", {"id": name}, 201)
    rows = [row["id"] for row in pages(v1, "/v1/tenants", 3)]
    assert rows == sorted(rows)
    assert [row for row in rows if row in names] == names


# Keys


def test_a_key_is_only_shown_when_it_is_created(v1: V1Client) -> None:
    drawn = v1.good("POST", "/keys", {"name": "ci", "scopes": ["runs:read"], "expires_at": NOW}, 201)
    key, kept = drawn["key"], drawn["kept"]
    assert (kept["name"], kept["scopes"], kept["expires_at"], kept["revoked_at"]) == ("ci", ["runs:read"], NOW, None)
    assert v1.good("GET", f"/keys/{kept['id']}") == kept
    for path in ("/keys", f"/keys/{kept['id']}", "/v1/keys"):
        assert key[11:].encode() not in v1.ask("GET", path).body
    v1.good("GET", "/runs", key=key)
    v1.bad("GET", "/sessions", status=403, key=key)


def test_a_key_is_permanently_revoked_and_only_by_its_own_tenant(v1: V1Client) -> None:
    drawn = v1.good("POST", "/keys", {"name": "k"}, 201)
    at = f"/keys/{drawn['kept']['id']}"
    other = v1.another()
    for method, path in (("GET", at), ("POST", f"{at}/revoke")):
        assert other.bad(method, path, status=404)["type"] == "NotFound"
    first = v1.good("POST", f"{at}/revoke")
    assert v1.good("POST", f"{at}/revoke")["revoked_at"] == first["revoked_at"]
    refused = v1.ask("GET", "/sessions", key=drawn["key"])
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert v1.good("POST", f"/v1/keys/{drawn['kept']['id']}/revoke")["id"] == drawn["kept"]["id"]
    v1.bad("POST", f"/v1/keys/{NEVER}/revoke", status=404)


@pytest.mark.parametrize(
    "body",
    [
        {"name": ""},
        {"name": "k", "scopes": []},
        {"name": "k", "scopes": ["everything"]},
        {"name": "k", "scopes": ["runs:admin"]},
        {"name": "k", "scopes": "read"},
        {"name": "k", "expires_at": "2030-01-31T12:00:00"},
        {"name": "k", "expires_at": "soon"},
        {"name": "k", "tenant": "other"},
        {"name": "k", "key": "hf_"},
    ],
)
@pytest.mark.parametrize("path", ["/keys", "/v1/keys"])
def test_an_invalid_key_is_not_created(v1: V1Client, path: str, body: Any) -> None:
    assert v1.bad("POST", path, body)["type"] == "InvalidInput"
    assert v1.good("GET", "/keys")["items"] == []


def test_a_key_for_all_tenants_is_valid_for_each_and_listed_with_none(v1: V1Client) -> None:
    drawn = v1.good("POST", "/v1/keys", {"name": "all", "scopes": ["read"]}, 201)
    v1.good("GET", "/sessions", key=drawn["key"])
    v1.another().good("GET", "/sessions", key=drawn["key"])
    v1.bad("GET", "/v1/tenants", status=403, key=drawn["key"])
    assert v1.good("GET", "/keys")["items"] == []
    assert drawn["kept"]["id"] in [row["id"] for row in pages(v1, "/v1/keys", 3)]


@pytest.mark.parametrize(
    ("scopes", "method", "path", "status"),
    [
        (["read"], "GET", "/sessions", 200),
        (["read"], "DELETE", f"/sessions/{NEVER}", 403),
        (["write"], "GET", "/sessions", 403),
        (["write"], "DELETE", f"/sessions/{NEVER}", 404),
        (["sessions:write"], "DELETE", f"/sessions/{NEVER}", 404),
        (["sessions:write"], "DELETE", f"/feedback/{NEVER}", 403),
        (["messages:read"], "GET", f"/sessions/{NEVER}/messages", 404),
        (["sessions:read"], "GET", f"/sessions/{NEVER}/messages", 403),
        (["messages:read"], "GET", "/search?query=x", 200),
        (["runs:read"], "GET", f"/runs/{NEVER}/events", 404),
        (["agents:read"], "GET", "/agents/a/blocks", 404),
        (["workspaces:read"], "GET", "/snapshots", 200),
        (["runs:read"], "GET", "/snapshots", 403),
        (["read", "write"], "GET", "/keys", 403),
        (["read", "write"], "DELETE", "/retention/policy", 403),
        (["admin"], "GET", "/keys", 200),
        (["admin"], "DELETE", "/retention/policy", 200),
        (["admin"], "GET", "/v1/tenants", 403),
        (["admin"], "GET", "//metrics", 403),
    ],
)
def test_a_scope_permits_what_it_states_and_nothing_else(
    v1: V1Client, scopes: list[str], method: str, path: str, status: int
) -> None:
    reply = v1.ask(method, path, key=v1.key(*scopes))
    assert reply.status == status, reply.body
    assert status != 403 or problem(reply)["type"] == "Forbidden"


def test_a_refusal_is_recorded_in_the_log_of_the_affected_tenant(v1: V1Client) -> None:
    key = v1.key("runs:read")
    v1.bad("GET", "/sessions?user=secret", status=403, key=key)
    v1.ask("GET", "/sessions", key=new_api_key())
    v1.run(v1.server.service.audit.flush(v1.server.holdfast))
    (entry,) = v1.good("GET", "/activity?action=access.denied")["items"]
    assert entry["subject_id"] == f"GET /v1/tenants/{v1.name}/sessions"
    assert (entry["address"], "secret" in str(entry)) == ("127.0.0.1", False)
    noted = v1.good("GET", f"/v1/tenants/{SERVER}/activity?limit=1")["items"][0]
    assert noted["reason"] == "unknown API key"


# Activity


def test_an_action_is_recorded_once_under_one_id(v1: V1Client) -> None:
    id = str(uuid4())
    body = {"action": "report.sent", "actor": "ada", "details": {"n": 1}}
    first = v1.good("POST", "/activity", body, 201, headers={"Idempotency-Key": id})
    assert v1.good("POST", "/activity", {**body, "id": id}, 201) == first
    assert v1.bad("POST", "/activity", {**body, "actor": "eve", "id": id}, 409)["type"] == "Conflict"
    assert v1.another().bad("GET", f"/activity/{id}", status=404)["type"] == "NotFound"
    v1.bad("POST", "/activity", {"action": ""})
    v1.bad("POST", "/activity", {"action": "a.b", "details": 7})
    assert v1.good("GET", "/activity/count?action=report.sent")["count"] == 1


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("actor=ada", [0, 2]),
        ("action=x.y", [0, 1]),
        ("subject_kind=run&subject_id=2", [2]),
        ("actor=ada&action=x.y", [0]),
        ("actor=eve", []),
        (where({"op": "eq", "column": "actor", "value": "bob"}), [1]),
    ],
)
def test_activity_is_counted_with_the_same_filters(v1: V1Client, query: str, expected: list[int]) -> None:
    for number, (action, actor) in enumerate([("x.y", "ada"), ("x.y", "bob"), ("x.z", "ada")]):
        subject = {"subject_kind": "run", "subject_id": str(number)}
        v1.good("POST", "/activity", {"action": action, "actor": actor, **subject}, 201)
    assert sorted(int(row["subject_id"]) for row in pages(v1, f"/activity?{query}", 1)) == expected
    assert v1.good("GET", f"/activity/count?{query}")["count"] == len(expected)


def test_the_actor_is_the_user_in_the_header(v1: V1Client) -> None:
    made = v1.good("POST", "/activity", {"action": "x.y"}, 201, headers={"X-User-Id": "ada"})
    assert "ada" in made["actor"]
    assert v1.good("POST", "/activity", {"action": "x.y"}, 201)["actor"] != made["actor"]


# Retention


def test_the_policy_of_a_run_precedes_the_tenants_and_the_default(v1: V1Client) -> None:
    usual, (run, _) = v1.good("GET", "/retention/policy"), v1.claimed_run()
    v1.good("PUT", "/retention/policy", {"per_run": 7})
    v1.good("PUT", "/retention/policy", {"per_run": 3, "run_id": run})
    assert v1.good("GET", "/retention/policy")["per_run"] == 7
    assert v1.good("GET", f"/retention/policy?run_id={run}")["per_run"] == 3
    v1.good("DELETE", f"/retention/policy?run_id={run}")
    assert v1.good("GET", f"/retention/policy?run_id={run}")["per_run"] == 7
    v1.good("DELETE", "/retention/policy")
    assert v1.good("GET", "/retention/policy") == usual
    v1.bad("GET", f"/retention/policy?run_id={NEVER}", status=404)


@pytest.mark.parametrize(
    "body", [{}, {"per_run": -1}, {"per_run": "3"}, {"per_run": 1.5}, {"grace_s": -1}, {"per_run": 1, "run_id": "x"}]
)
def test_an_empty_or_invalid_policy_is_refused(v1: V1Client, body: Any) -> None:
    usual = v1.good("GET", "/retention/policy")
    assert v1.bad("PUT", "/retention/policy", body)["type"] == "InvalidInput"
    assert v1.good("GET", "/retention/policy") == usual


def test_a_hold_is_placed_once_and_released_with_a_reason(v1: V1Client) -> None:
    session, id = v1.session(), str(uuid4())
    body = {"reason": "a lawyer asked", "session_id": session, "placed_by": "ada"}
    made = v1.good("POST", "/retention/holds", body, 201, headers={"Idempotency-Key": id})
    assert v1.good("POST", "/retention/holds", {**body, "id": id}, 201) == made
    assert v1.bad("POST", "/retention/holds", {**body, "reason": "other", "id": id}, 409)["type"] == "Conflict"
    assert v1.bad("POST", f"/sessions/{session}/purge", status=409)["type"] == "Conflict"
    v1.another().bad("POST", f"/retention/holds/{id}/release", {"reason": "x"}, 404)
    v1.good("POST", f"/retention/holds/{id}/release", {"reason": "over"})
    v1.good("POST", f"/sessions/{session}/purge", status=204)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"reason": "r", "session_id": NEVER}, 404),
        ({"reason": "r", "run_id": NEVER}, 404),
        ({"reason": "r", "run_id": NEVER, "session_id": NEVER}, 400),
        ({"session_id": NEVER}, 400),
        ({"reason": "r", "session_id": "x"}, 400),
    ],
)
def test_a_hold_applies_to_one_existing_object(v1: V1Client, body: Any, status: int) -> None:
    v1.bad("POST", "/retention/holds", body, status)
    assert v1.good("GET", "/retention/holds")["items"] == []


# Rewinds of runs


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"to_step": 3}, 404),
        ({"to_step": -1}, 400),
        ({"to_step": "1"}, 400),
        ({"to_step": 1, "keep_checkpoints_for": 0}, 400),
        ({"to_step": 1, "epoch": -1}, 400),
        ({"to_step": 1, "path": "/etc"}, 400),
        ({"to_step": 1, "epoch": 99}, 409),
        ({}, 400),
    ],
)
def test_an_invalid_rewind_changes_nothing(v1: V1Client, body: Any, status: int) -> None:
    run, epoch = v1.claimed_run()
    for number in (1, 2):
        v1.step(run, epoch, number)
    v1.good("POST", f"/runs/{run}/release", {"epoch": epoch})
    v1.bad("POST", f"/runs/{run}/rewind", body, status)
    assert v1.good("GET", f"/runs/{run}/load")["step"]["iteration"] == 2
    assert v1.good("GET", f"/runs/{run}/rewinds")["items"] == []


def test_a_claimed_run_is_only_rewound_by_its_lease_holder(v1: V1Client) -> None:
    run, epoch = v1.claimed_run()
    v1.step(run, epoch, 1)
    assert v1.bad("POST", f"/runs/{run}/redo", status=409)["type"] == "Conflict"
    assert "epoch" in v1.bad("POST", f"/runs/{run}/rewind", {"to_step": 0}, 409)["detail"]
    v1.good("POST", f"/runs/{run}/rewind", {"to_step": 0, "epoch": epoch})
    assert v1.good("GET", f"/runs/{run}/load")["step"] is None


def test_a_key_for_all_tenants_rewinds_in_the_default_tenant(v1: V1Client) -> None:
    run, _ = v1.claimed_run()
    path = f"/v1/agent/runs/{run}/rewind"
    assert v1.bad("POST", path, {"to_step": 0}, 404)["type"] == "NotFound"
    assert v1.bad("POST", path, {"to_step": 0}, 409, key=v1.key("runs:write"))["type"] == "Conflict"
    assert v1.bad("POST", path, {"to_step": 0}, 403, key=v1.key("sessions:write"))["type"] == "Forbidden"


# Streams


@pytest.mark.parametrize(
    ("query", "last", "places"),
    [
        ("", None, [1, 2, 3]),
        ("&after=1", None, [2, 3]),
        ("&after=1", "2", [3]),
        ("", " 1 ", [2, 3]),
        ("", "3", []),
        ("", "999999999999999", []),
        ("&after=9007199254740992", None, []),
    ],
)
def test_a_stream_starts_after_the_named_position(
    v1: V1Client, query: str, last: str | None, places: list[int]
) -> None:
    session = v1.session("a\nb", "c", "é")
    headers = {} if last is None else {"Last-Event-ID": last}
    reply = v1.ask("GET", f"/sessions/{session}/events?wait_s=0{query}", headers=headers)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
    lines = reply.body.decode().splitlines()
    assert [int(line[4:]) for line in lines if line.startswith("id: ")] == places
    assert lines.count("event: message") == sum(line.startswith("data: {") for line in lines) == len(places)


def test_a_stream_of_steps_starts_after_the_named_step(v1: V1Client) -> None:
    run, epoch = v1.claimed_run()
    for number in (1, 2, 3):
        v1.step(run, epoch, number)
    reply = v1.ask("GET", f"/runs/{run}/events?wait_s=0", headers={"Last-Event-ID": "1"})
    lines = reply.body.decode().splitlines()
    assert [line for line in lines if line.startswith(("id", "event"))] == [
        *("id: 2", "event: step"),
        *("id: 3", "event: step"),
    ]


@pytest.mark.parametrize("query", ["wait_s=-1", "wait_s=3601", "wait_s=x", "after=-1", "after=9007199254740993"])
def test_an_invalid_stream_is_refused_before_it_starts(v1: V1Client, query: str) -> None:
    assert v1.bad("GET", f"/sessions/{v1.session()}/events?{query}")["type"] == "InvalidInput"
    assert v1.server.service.notifier.listeners == 0


def test_head_of_a_stream_ends_immediately_and_leaves_no_listener(v1: V1Client) -> None:
    reply = v1.ask("HEAD", f"/sessions/{v1.session('a')}/events")
    assert (reply.status, reply.body, v1.server.service.notifier.listeners) == (200, b"", 0)


# The server


def test_open_operations_need_no_key_and_metrics_do(v1: V1Client) -> None:
    for path, name in (("/", "name"), ("/healthz", "status"), ("/readyz", "status"), ("/openapi.json", "openapi")):
        assert v1.good("GET", f"/{path}", key=None)[name]
    refused = v1.ask("GET", "//metrics", key=None)
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert v1.ask("GET", "//metrics").headers["content-type"].startswith("text/plain")


def test_bodies_responses_and_keys_have_limits() -> None:
    limits = ServerLimits(request_bytes=300, response_bytes=2_000, requests_per_s=0.001, requests_at_once=4)

    async def play(server: Running) -> None:
        at = "/v1/tenants/acme/sessions"
        assert (await server.ask("POST", at, {"key": "k" * 288})).status == 201
        large = await server.ask("POST", at, {"key": "k" * 300})
        assert (large.status, large.json["type"], large.headers["connection"]) == (413, "LimitExceeded", "close")
        assert (await server.ask("GET", at)).status == 200
        assert (await server.ask("GET", "/v1/tenants/acme")).status == 200
        often = await server.ask("GET", at)
        assert (often.status, often.json["type"]) == (429, "LimitExceeded")
        assert int(often.headers["retry-after"]) > 900
        assert (await server.ask("GET", "/healthz")).status == 200

    async def main() -> None:
        async with running(limits=limits) as server:
            await play(server)

    asyncio.run(main())
