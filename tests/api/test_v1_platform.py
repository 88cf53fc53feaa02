"""What everything stands on, over HTTP: tenants, keys, the log of activity, retention, rewinds, streams, the server itself."""

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
from tests.api.v1 import NEVER, NOW, Here, pages, problem, where

# Tenants


@pytest.mark.parametrize("name", ["é ü", "a/b", "a%b", "by-key", "🙂", "a.b-c_d~e", "?", "#", "a\0b"])
def test_a_tenant_may_be_called_anything(here: Here, name: str) -> None:
    at = f"/v1/tenants/{quote(name, safe='')}"
    made = here.good("POST", "/v1/tenants", {"id": name, "metadata": {"n": 1}}, 201)
    assert here.good("GET", at) == made
    assert here.bad("POST", "/v1/tenants", {"id": name}, 409)["type"] == "AlreadyExists"
    assert here.good("PATCH", at, {"metadata": {}})["metadata"] == {}
    here.good("DELETE", at, status=204)
    for method, body in (("GET", None), ("PATCH", {"metadata": {}}), ("DELETE", None)):
        assert here.bad(method, at, body, 404)["type"] == "NotFound"


@pytest.mark.parametrize(("name", "status"), [("", 400), ("t" * 5_000, 422), (7, 400), (None, 400)])
def test_a_name_that_is_none_makes_no_tenant(here: Here, name: Any, status: int) -> None:
    here.bad("POST", "/v1/tenants", {"id": name}, status)


def test_a_tenant_with_something_in_it_goes_only_with_all_of_it(here: Here) -> None:
    session = here.session("x")
    at = f"/v1/tenants/{here.name}"
    assert here.bad("DELETE", at, status=409)["type"] == "Conflict"
    assert here.bad("DELETE", f"{at}?cascade=perhaps")["type"] == "InvalidInput"
    assert here.good("GET", f"/sessions/{session}")["id"] == session
    here.good("DELETE", f"{at}?cascade=true", status=204)
    here.bad("GET", f"/sessions/{session}", status=404)


def test_tenants_come_page_by_page_and_by_name(here: Here) -> None:
    names = [f"paged-{each}" for each in "abcde"]
    for name in reversed(names):
        here.good("POST", "/v1/tenants", {"id": name}, 201)
    found = [each["id"] for each in pages(here, "/v1/tenants", 3)]
    assert found == sorted(found)
    assert [each for each in found if each in names] == names


# Keys


def test_a_key_is_shown_where_it_is_made_and_nowhere_else(here: Here) -> None:
    drawn = here.good("POST", "/keys", {"name": "ci", "scopes": ["runs:read"], "expires_at": NOW}, 201)
    key, kept = drawn["key"], drawn["kept"]
    assert (kept["name"], kept["scopes"], kept["expires_at"], kept["revoked_at"]) == ("ci", ["runs:read"], NOW, None)
    assert here.good("GET", f"/keys/{kept['id']}") == kept
    for path in ("/keys", f"/keys/{kept['id']}", "/v1/keys"):
        assert key[11:].encode() not in here.ask("GET", path).body
    here.good("GET", "/runs", key=key)
    here.bad("GET", "/sessions", status=403, key=key)


def test_a_key_is_revoked_once_and_for_all_and_only_by_its_own(here: Here) -> None:
    drawn = here.good("POST", "/keys", {"name": "k"}, 201)
    at = f"/keys/{drawn['kept']['id']}"
    other = here.another()
    for method, path in (("GET", at), ("POST", f"{at}/revoke")):
        assert other.bad(method, path, status=404)["type"] == "NotFound"
    first = here.good("POST", f"{at}/revoke")
    assert here.good("POST", f"{at}/revoke")["revoked_at"] == first["revoked_at"]
    refused = here.ask("GET", "/sessions", key=drawn["key"])
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert here.good("POST", f"/v1/keys/{drawn['kept']['id']}/revoke")["id"] == drawn["kept"]["id"]
    here.bad("POST", f"/v1/keys/{NEVER}/revoke", status=404)


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
def test_a_key_that_cannot_be_is_not_drawn(here: Here, path: str, body: Any) -> None:
    assert here.bad("POST", path, body)["type"] == "InvalidInput"
    assert here.good("GET", "/keys")["items"] == []


def test_a_key_for_all_tenants_is_good_for_each_and_listed_with_none(here: Here) -> None:
    drawn = here.good("POST", "/v1/keys", {"name": "all", "scopes": ["read"]}, 201)
    here.good("GET", "/sessions", key=drawn["key"])
    here.another().good("GET", "/sessions", key=drawn["key"])
    here.bad("GET", "/v1/tenants", status=403, key=drawn["key"])
    assert here.good("GET", "/keys")["items"] == []
    assert drawn["kept"]["id"] in [each["id"] for each in pages(here, "/v1/keys", 3)]


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
def test_a_scope_opens_what_it_says_and_nothing_else(
    here: Here, scopes: list[str], method: str, path: str, status: int
) -> None:
    reply = here.ask(method, path, key=here.key(*scopes))
    assert reply.status == status, reply.body
    assert status != 403 or problem(reply)["type"] == "Forbidden"


def test_a_refusal_is_noted_where_those_whom_it_concerns_can_read_it(here: Here) -> None:
    key = here.key("runs:read")
    here.bad("GET", "/sessions?user=secret", status=403, key=key)
    here.ask("GET", "/sessions", key=new_api_key())
    here.run(here.server.service.audit.flush(here.server.holdfast))
    (entry,) = here.good("GET", "/activity?action=access.denied")["items"]
    assert entry["subject_id"] == f"GET /v1/tenants/{here.name}/sessions"
    assert (entry["details"]["address"], "secret" in str(entry)) == ("127.0.0.1", False)
    noted = here.good("GET", f"/v1/tenants/{SERVER}/activity?limit=1")["items"][0]
    assert noted["reason"] == "unknown API key"


# Activity


def test_what_was_done_is_recorded_once_under_one_id(here: Here) -> None:
    id = str(uuid4())
    body = {"action": "report.sent", "actor": "ada", "details": {"n": 1}}
    first = here.good("POST", "/activity", body, 201, headers={"Idempotency-Key": id})
    assert here.good("POST", "/activity", {**body, "id": id}, 201) == first
    assert here.bad("POST", "/activity", {**body, "actor": "eve", "id": id}, 409)["type"] == "Conflict"
    assert here.another().bad("GET", f"/activity/{id}", status=404)["type"] == "NotFound"
    here.bad("POST", "/activity", {"action": ""})
    here.bad("POST", "/activity", {"action": "a.b", "details": 7})
    assert here.good("GET", "/activity/count?action=report.sent")["count"] == 1


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("actor=ada", [0, 2]),
        ("action=x.y", [0, 1]),
        ("subject_kind=run&subject_id=2", [2]),
        ("actor=ada&action=x.y", [0]),
        ("actor=eve", []),
        (where({"op": "eq", "column": "actor", "value": "bob"}), [1]),
    ],
)
def test_activity_is_counted_as_it_is_listed(here: Here, query: str, found: list[int]) -> None:
    for number, (action, actor) in enumerate([("x.y", "ada"), ("x.y", "bob"), ("x.z", "ada")]):
        subject = {"subject_kind": "run", "subject_id": str(number)}
        here.good("POST", "/activity", {"action": action, "actor": actor, **subject}, 201)
    assert sorted(int(each["subject_id"]) for each in pages(here, f"/activity?{query}", 1)) == found
    assert here.good("GET", f"/activity/count?{query}")["count"] == len(found)


def test_who_acts_is_who_the_header_says(here: Here) -> None:
    made = here.good("POST", "/activity", {"action": "x.y"}, 201, headers={"X-User-Id": "ada"})
    assert "ada" in made["actor"]
    assert here.good("POST", "/activity", {"action": "x.y"}, 201)["actor"] != made["actor"]


# Retention


def test_a_policy_is_that_of_the_run_then_the_tenants_then_the_usual(here: Here) -> None:
    usual, (run, _) = here.good("GET", "/retention/policy"), here.claimed()
    here.good("PUT", "/retention/policy", {"per_run": 7})
    here.good("PUT", "/retention/policy", {"per_run": 3, "run_id": run})
    assert here.good("GET", "/retention/policy")["per_run"] == 7
    assert here.good("GET", f"/retention/policy?run_id={run}")["per_run"] == 3
    here.good("DELETE", f"/retention/policy?run_id={run}")
    assert here.good("GET", f"/retention/policy?run_id={run}")["per_run"] == 7
    here.good("DELETE", "/retention/policy")
    assert here.good("GET", "/retention/policy") == usual
    here.bad("GET", f"/retention/policy?run_id={NEVER}", status=404)


@pytest.mark.parametrize(
    "body", [{}, {"per_run": -1}, {"per_run": "3"}, {"per_run": 1.5}, {"grace_s": -1}, {"per_run": 1, "run_id": "x"}]
)
def test_a_policy_that_says_nothing_or_nonsense_is_refused(here: Here, body: Any) -> None:
    usual = here.good("GET", "/retention/policy")
    assert here.bad("PUT", "/retention/policy", body)["type"] == "InvalidInput"
    assert here.good("GET", "/retention/policy") == usual


def test_a_hold_is_placed_once_and_released_for_a_reason(here: Here) -> None:
    session, id = here.session(), str(uuid4())
    body = {"reason": "a lawyer asked", "session_id": session, "placed_by": "ada"}
    made = here.good("POST", "/retention/holds", body, 201, headers={"Idempotency-Key": id})
    assert here.good("POST", "/retention/holds", {**body, "id": id}, 201) == made
    assert here.bad("POST", "/retention/holds", {**body, "reason": "other", "id": id}, 409)["type"] == "Conflict"
    assert here.bad("POST", f"/sessions/{session}/purge", status=409)["type"] == "Conflict"
    here.another().bad("POST", f"/retention/holds/{id}/release", {"reason": "x"}, 404)
    here.good("POST", f"/retention/holds/{id}/release", {"reason": "over"})
    here.good("POST", f"/sessions/{session}/purge", status=204)


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
def test_a_hold_is_on_one_thing_that_is_there(here: Here, body: Any, status: int) -> None:
    here.bad("POST", "/retention/holds", body, status)
    assert here.good("GET", "/retention/holds")["items"] == []


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
def test_a_rewind_that_cannot_be_leaves_the_run_where_it_is(here: Here, body: Any, status: int) -> None:
    run, epoch = here.claimed()
    for number in (1, 2):
        here.step(run, epoch, number)
    here.good("POST", f"/runs/{run}/release", {"epoch": epoch})
    here.bad("POST", f"/runs/{run}/rewind", body, status)
    assert here.good("GET", f"/runs/{run}/load")["step"]["iteration"] == 2
    assert here.good("GET", f"/runs/{run}/rewinds")["items"] == []


def test_a_run_that_is_driven_is_rewound_by_its_driver_alone(here: Here) -> None:
    run, epoch = here.claimed()
    here.step(run, epoch, 1)
    assert here.bad("POST", f"/runs/{run}/redo", status=409)["type"] == "Conflict"
    assert "epoch" in here.bad("POST", f"/runs/{run}/rewind", {"to_step": 0}, 409)["detail"]
    here.good("POST", f"/runs/{run}/rewind", {"to_step": 0, "epoch": epoch})
    assert here.good("GET", f"/runs/{run}/load")["step"] is None


def test_whose_key_is_of_no_tenant_rewinds_in_the_usual_one(here: Here) -> None:
    run, _ = here.claimed()
    path = f"/v1/agent/runs/{run}/rewind"
    assert here.bad("POST", path, {"to_step": 0}, 404)["type"] == "NotFound"
    assert here.bad("POST", path, {"to_step": 0}, 409, key=here.key("runs:write"))["type"] == "Conflict"
    assert here.bad("POST", path, {"to_step": 0}, 403, key=here.key("sessions:write"))["type"] == "Forbidden"


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
def test_a_stream_goes_on_after_the_place_that_is_named(
    here: Here, query: str, last: str | None, places: list[int]
) -> None:
    session = here.session("a\nb", "c", "é")
    headers = {} if last is None else {"Last-Event-ID": last}
    reply = here.ask("GET", f"/sessions/{session}/events?wait_s=0{query}", headers=headers)
    assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
    lines = reply.body.decode().splitlines()
    assert [int(line[4:]) for line in lines if line.startswith("id: ")] == places
    assert lines.count("event: message") == sum(line.startswith("data: {") for line in lines) == len(places)


def test_a_stream_of_steps_goes_on_after_the_step_that_is_named(here: Here) -> None:
    run, epoch = here.claimed()
    for number in (1, 2, 3):
        here.step(run, epoch, number)
    reply = here.ask("GET", f"/runs/{run}/events?wait_s=0", headers={"Last-Event-ID": "1"})
    lines = reply.body.decode().splitlines()
    assert [line for line in lines if line.startswith(("id", "event"))] == [
        *("id: 2", "event: step"),
        *("id: 3", "event: step"),
    ]


@pytest.mark.parametrize("query", ["wait_s=-1", "wait_s=3601", "wait_s=x", "after=-1", "after=9007199254740993"])
def test_a_stream_that_cannot_be_is_refused_before_it_begins(here: Here, query: str) -> None:
    assert here.bad("GET", f"/sessions/{here.session()}/events?{query}")["type"] == "InvalidInput"
    assert here.server.service.notifier.listeners == 0


def test_head_of_a_stream_ends_at_once_and_leaves_nobody_listening(here: Here) -> None:
    reply = here.ask("HEAD", f"/sessions/{here.session('a')}/events")
    assert (reply.status, reply.body, here.server.service.notifier.listeners) == (200, b"", 0)


# The server


def test_what_is_open_is_open_and_what_is_counted_is_not(here: Here) -> None:
    for path, name in (("/", "name"), ("/healthz", "status"), ("/readyz", "status"), ("/openapi.json", "openapi")):
        assert here.good("GET", f"/{path}", key=None)[name]
    refused = here.ask("GET", "//metrics", key=None)
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert here.ask("GET", "//metrics").headers["content-type"].startswith("text/plain")


def test_a_body_and_an_answer_have_a_size_and_a_key_has_a_rate() -> None:
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
