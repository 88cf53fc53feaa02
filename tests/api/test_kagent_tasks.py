"""Share links and A2A tasks over kagent's API: access of guests, stored tasks, push notifications."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.api.kagent import Kagent, bad, good

EVENT = {"id": "e", "data": "{}"}
CONFIGS = "/api/tasks/t/pushNotificationConfigs"


def start(kagent: Kagent, id: str = "s", **more: Any) -> None:
    """Start a session of ada."""
    good(kagent.post("/api/sessions", {"id": id, "agent_ref": "ns/a", **more}), 201)


def test_the_token_of_a_link_created_in_v1_is_never_shown_again(kagent: Kagent) -> None:
    start(kagent)
    session = kagent.run(kagent.tenant.sessions.find("s", user="ada"))
    path = f"/v1/tenants/{kagent.name}/sessions/{session.id}/shares"
    token = kagent.post(path, {}).json["token"]
    own = share(kagent)
    for user in ("bob", "ada"):
        good(kagent.get("/api/sessions/s", user=user, x_share_token=token))
    listed = kagent.get("/api/sessions/s/shares")
    assert [item["token"] for item in good(listed)] == [own]
    shared = kagent.get("/api/sessions/agent/ns/a", user="bob")
    assert [item["id"] for item in good(shared)] == ["s"]
    assert token not in repr((listed.body, shared.body, kagent.get(path).body))


def share(kagent: Kagent, id: str = "s", *, read_only: bool = True) -> str:
    """Return the token of a link to a session of ada."""
    token: str = good(kagent.post(f"/api/sessions/{id}/shares", {"read_only": read_only}), 201)["token"]
    return token


def save(kagent: Kagent, id: str = "t", context: str | None = "s", **more: Any) -> Any:
    """Save a task of ada."""
    return good(kagent.post("/api/tasks", {"id": id, "contextId": context, **more}), 201)


def test_a_link_has_the_documented_fields(kagent: Kagent) -> None:
    start(kagent)
    made = good(kagent.post("/api/sessions/s/shares"), 201)
    assert set(made) == {"id", "token", "session_id", "user_id", "read_only", "created_at"}
    assert (made["id"], made["session_id"], made["user_id"], made["read_only"]) == (1, "s", "ada", True)
    assert good(kagent.get("/api/sessions/s/shares")) == [made]


def test_links_are_numbered_per_session_and_their_tokens_are_random(kagent: Kagent) -> None:
    for id in ("s", "t"):
        start(kagent, id)
        for _ in range(3):
            share(kagent, id)
    values = [good(kagent.get(f"/api/sessions/{id}/shares")) for id in ("s", "t")]
    assert [[link["id"] for link in links] for links in values] == [[1, 2, 3]] * 2
    tokens = {link["token"] for links in values for link in links}
    assert len(tokens) == 6
    assert all(len(token) == 48 and int(token, 16) >= 0 for token in tokens)


def test_concurrent_links_get_different_numbers(kagent: Kagent) -> None:
    start(kagent)

    async def share_all() -> list[int]:
        replies = await asyncio.gather(*(kagent.ask("POST", "/api/sessions/s/shares") for _ in range(8)))
        return sorted(good(reply, 201)["id"] for reply in replies)

    assert kagent.run(share_all()) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("body", [{"read_only": None}, {"read_only": 1}, {"read_only": "no"}])
def test_an_invalid_link_is_refused(kagent: Kagent, body: Any) -> None:
    start(kagent)
    bad(kagent.post("/api/sessions/s/shares", body), 400)
    assert good(kagent.get("/api/sessions/s/shares")) == []


def test_only_the_owner_creates_lists_and_deletes_links(kagent: Kagent) -> None:
    start(kagent)
    token = share(kagent, read_only=False)
    for more in ({"user": "bob"}, {"user": "bob", "x_share_token": token}, {"x_share_token": token}):
        status = 403 if "x_share_token" in more else 404
        bad(kagent.post("/api/sessions/s/shares", **more), status)
        bad(kagent.get("/api/sessions/s/shares", **more), status)
        bad(kagent.delete(f"/api/sessions/s/shares/{token}", **more), status)
    assert len(good(kagent.get("/api/sessions/s/shares"))) == 1


def test_a_link_is_deleted_once_and_only_in_its_own_session(kagent: Kagent) -> None:
    start(kagent, "s")
    start(kagent, "t")
    token = share(kagent, "s")
    assert bad(kagent.delete(f"/api/sessions/t/shares/{token}"), 404) == "Share not found"
    assert good(kagent.delete(f"/api/sessions/s/shares/{token}")) == {}
    assert bad(kagent.delete(f"/api/sessions/s/shares/{token}"), 404) == "Share not found"
    bad(kagent.get("/api/sessions/s", user="bob", x_share_token=token), 403)


def test_a_number_is_not_reused_while_a_later_link_exists(kagent: Kagent) -> None:
    start(kagent)
    first, _ = share(kagent), share(kagent)
    good(kagent.delete(f"/api/sessions/s/shares/{first}"))
    assert good(kagent.post("/api/sessions/s/shares"), 201)["id"] == 3


def test_a_read_only_guest_reads_everything_and_changes_nothing(kagent: Kagent) -> None:
    start(kagent, name="ada's")
    good(kagent.post("/api/sessions/s/events", EVENT), 201)
    save(kagent)
    guest = {"user": "bob", "x_share_token": share(kagent)}
    seen = good(kagent.get("/api/sessions/s", **guest))
    assert (seen["session"]["name"], seen["read_only"], len(seen["events"])) == ("ada's", True, 1)
    assert [item["id"] for item in good(kagent.get("/api/sessions/s/tasks", **guest))] == ["t"]
    assert good(kagent.get("/api/tasks/t", **guest))["contextId"] == "s"
    assert "read-only" in bad(kagent.post("/api/sessions/s/events", EVENT, **guest), 403)
    assert "read-only" in bad(kagent.put("/api/sessions/s", {"name": "x"}, **guest), 403)
    assert "read-only" in bad(kagent.delete("/api/sessions/s", **guest), 403)
    assert good(kagent.get("/api/sessions/s"))["session"]["name"] == "ada's"


def test_a_guest_with_write_access_writes_as_the_owner_and_cannot_delete(kagent: Kagent) -> None:
    start(kagent)
    guest = {"user": "bob", "x_share_token": share(kagent, read_only=False)}
    made = good(kagent.post("/api/sessions/s/events", EVENT, **guest), 201)
    assert made["user_id"] == "ada"
    assert good(kagent.put("/api/sessions/s", {"name": "bob's"}, **guest))["user_id"] == "ada"
    assert "only the owner" in bad(kagent.delete("/api/sessions/s", **guest), 403)
    seen = good(kagent.get("/api/sessions/s", **guest))
    assert ("read_only" in seen, seen["session"]["name"], seen["events"]) == (False, "bob's", [made])


def test_a_guest_sees_tasks_without_credentials_and_no_push_configs(kagent: Kagent) -> None:
    start(kagent)
    data = {"authConfig": {"oauth2": {"client_secret": "s3cret"}}, "n": 1}
    saved = save(kagent, history=[{"parts": [{"kind": "data", "data": data}]}])
    good(kagent.post(CONFIGS, {"url": "u", "token": "s3cret"}), 201)
    guest = {"user": "bob", "x_share_token": share(kagent)}
    for seen in (good(kagent.get("/api/tasks/t", **guest)), *good(kagent.get("/api/sessions/s/tasks", **guest))):
        assert "s3cret" not in json.dumps(seen)
        assert seen["history"][0]["parts"][0]["data"]["n"] == 1
    assert good(kagent.get(CONFIGS, **guest)) == []
    bad(kagent.get(f"{CONFIGS}/t", **guest), 404)
    assert good(kagent.get("/api/tasks/t")) == saved, "the owner sees the task unchanged"
    assert good(kagent.get(CONFIGS)) == [{"url": "u", "token": "s3cret", "id": "t"}]


def test_a_link_grants_access_to_its_own_session_only(kagent: Kagent) -> None:
    start(kagent, "s")
    start(kagent, "t")
    save(kagent, "of-t", "t")
    guest = {"user": "bob", "x_share_token": share(kagent, "s", read_only=False)}
    for path in ("/api/sessions/t", "/api/sessions/t/tasks", "/api/sessions/never"):
        assert "another session" in bad(kagent.get(path, **guest), 403)
    bad(kagent.post("/api/sessions/t/events", EVENT, **guest), 403)
    assert bad(kagent.get("/api/tasks/of-t", **guest), 404) == "Task not found"
    assert bad(kagent.get("/api/tasks/never", **guest), 404) == "Task not found", "the same message"


@pytest.mark.parametrize("token", ["x", "0" * 48, "ü", "x" * 255])
def test_an_unknown_token_is_refused_even_for_the_owner(kagent: Kagent, token: str) -> None:
    start(kagent)
    for user in ("ada", "bob"):
        assert "is invalid" in bad(kagent.get("/api/sessions/s", user=user, x_share_token=token), 403)


def test_an_empty_token_is_ignored(kagent: Kagent) -> None:
    start(kagent)
    good(kagent.get("/api/sessions/s", x_share_token=" "))


def test_a_link_is_inactive_while_its_session_is_deleted(kagent: Kagent) -> None:
    start(kagent)
    guest = {"user": "bob", "x_share_token": share(kagent)}
    good(kagent.get("/api/sessions/s", **guest))
    good(kagent.delete("/api/sessions/s"))
    bad(kagent.get("/api/sessions/s", **guest), 403)
    assert good(kagent.get("/api/sessions/agent/ns/a", user="bob")) == []
    start(kagent)
    bad(kagent.get("/api/sessions/s", **guest), 403)  # another session has the id now


def test_a_restored_session_has_its_links_again(kagent: Kagent) -> None:
    start(kagent)
    guest = {"user": "bob", "x_share_token": share(kagent)}
    good(kagent.delete("/api/sessions/s"))
    good(kagent.post("/api/sessions/s/restore"))
    assert good(kagent.get("/api/sessions/s", **guest))["read_only"] is True


def test_a_shared_session_is_listed_once_the_link_was_used(kagent: Kagent) -> None:
    start(kagent)
    token = share(kagent)
    assert good(kagent.get("/api/sessions/agent/ns/a", user="bob")) == []
    for _ in range(2):
        good(kagent.get("/api/sessions/s", user="bob", x_share_token=token))
    (shared,) = good(kagent.get("/api/sessions/agent/ns/a", user="bob"))
    assert (shared["user_id"], shared["share_token"], shared["share_read_only"]) == ("ada", token, True)
    assert good(kagent.get("/api/sessions/agent/ns/other", user="bob")) == []
    assert good(kagent.get("/api/sessions", user="bob")) == [], "it is not among the user's own sessions"
    good(kagent.delete(f"/api/sessions/s/shares/{token}"))
    assert good(kagent.get("/api/sessions/agent/ns/a", user="bob")) == []


def test_an_owner_who_uses_their_own_link_sees_the_session_once(kagent: Kagent) -> None:
    start(kagent)
    good(kagent.get("/api/sessions/s", x_share_token=share(kagent)))
    (body,) = good(kagent.get("/api/sessions/agent/ns/a"))
    assert "share_token" not in body


def test_shared_sessions_are_sorted_among_own_ones_by_last_use(kagent: Kagent) -> None:
    start(kagent, "ada's")
    token = share(kagent, "ada's")
    good(kagent.get("/api/sessions/ada's", user="bob", x_share_token=token))
    for id in ("first", "second"):
        good(kagent.post("/api/sessions", {"id": id, "agent_ref": "ns/a"}, user="bob"), 201)
    good(kagent.post("/api/sessions/ada's/events", EVENT), 201)
    good(kagent.post("/api/sessions/second/events", EVENT, user="bob"), 201)
    body = good(kagent.get("/api/sessions/agent/ns/a", user="bob"))
    assert [row["id"] for row in body] == ["second", "ada's", "first"]


TASKS = [
    pytest.param({"id": "t"}, id="no context"),
    pytest.param({"id": "t", "contextId": None, "history": None, "artifacts": None}, id="empty"),
    pytest.param({"id": "t", "history": [], "artifacts": []}, id="empty lists"),
    pytest.param({"z": 1, "id": "t", "a": {"y": 1, "b": 2}}, id="order of keys"),
    pytest.param({"id": "t", "history": [{"parts": [1]}, "text", None, 7]}, id="any values in the history"),
    pytest.param({"id": "t", "artifacts": [{"parts": [], "n": 1}, {"n": 2}, {"parts": None}, "x"]}, id="artifacts"),
    pytest.param({"id": "t", "artifacts": [{"parts": [{"text": "ü\x00"}, None, [1]], "last": 1}]}, id="parts"),
    pytest.param({"id": "t", "n": [1, 1.0, 1e5, True, None, 2**53 + 1]}, id="numbers"),
    pytest.param({"id": "t", "status": "no object"}, id="status is not an object"),
    pytest.param({"id": "t", "status": {"state": 7}}, id="state is not text"),
]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_returned_unchanged(kagent: Kagent, task: dict[str, Any]) -> None:
    assert json.dumps(good(kagent.post("/api/tasks", task), 201)) == json.dumps(task)
    assert json.dumps(good(kagent.get("/api/tasks/t"))) == json.dumps(task)


@pytest.mark.parametrize("id", ["a/b", "ü \U0001f600", "\x00", "x" * 255, "%2F"])
def test_a_task_is_found_by_any_id(kagent: Kagent, id: str) -> None:
    save(kagent, id)
    place = f"/api/tasks/{quote(id, safe='')}"
    assert good(kagent.get(place))["id"] == id
    assert kagent.delete(place).status == 204
    bad(kagent.get(place), 404)


NO_TASKS = [
    pytest.param({}, id="no id"),
    pytest.param({"id": None}, id="null id"),
    pytest.param({"id": ""}, id="empty id"),
    pytest.param({"id": 7}, id="number as id"),
    pytest.param({"id": "x" * 256}, id="id too long"),
    pytest.param({"id": "t", "contextId": 7}, id="number as context"),
    pytest.param({"id": "t", "contextId": "x" * 501}, id="context too long"),
    pytest.param({"id": "t", "history": {}}, id="history is not a list"),
    pytest.param({"id": "t", "artifacts": "x"}, id="artifacts are not a list"),
    pytest.param({"id": "t", "artifacts": [{"parts": 3}]}, id="parts are not a list"),
    pytest.param({"id": "t", "status": {"state": "x" * 256}}, id="state too long"),
    pytest.param({"id": "t", "history": [0] * 10_001}, id="history too long"),
]


@pytest.mark.parametrize("task", NO_TASKS)
def test_an_invalid_task_is_refused_and_the_previous_one_stays(kagent: Kagent, task: Any) -> None:
    before = save(kagent, history=["kept"])
    bad(kagent.post("/api/tasks", task), 400)
    assert good(kagent.get("/api/tasks/t")) == before


def test_an_unknown_version_of_a2a_is_refused(kagent: Kagent) -> None:
    for version in ("0.3", "1.0"):
        good(kagent.post("/api/tasks", {"id": "t"}, a2a_version=version), 201)
        good(kagent.get("/api/tasks/t", a2a_version=version))
    for version in ("0.2", "2", "1.0.0"):
        assert repr(version) in bad(kagent.post("/api/tasks", {"id": "t"}, a2a_version=version), 400)
        bad(kagent.get("/api/tasks/t", a2a_version=version), 400)
        bad(kagent.get("/api/sessions/s/tasks", a2a_version=version), 400)


def test_tasks_of_a_session_are_listed_oldest_first_regardless_of_their_state(kagent: Kagent) -> None:
    for id in ("c", "a", "b"):
        save(kagent, id)
    save(kagent, "c", status={"state": "working"})
    save(kagent, "elsewhere", "another")
    save(kagent, "nowhere", None)
    assert [item["id"] for item in good(kagent.get("/api/sessions/s/tasks"))] == ["c", "a", "b"]
    assert good(kagent.get("/api/sessions/s/tasks", user="bob")) == []


def test_a_task_moves_to_the_session_it_was_last_saved_in(kagent: Kagent) -> None:
    save(kagent, "t", "s")
    save(kagent, "t", "u")
    assert good(kagent.get("/api/sessions/s/tasks")) == []
    assert [item["id"] for item in good(kagent.get("/api/sessions/u/tasks"))] == ["t"]


def test_a_task_is_deleted_and_restored_by_its_owner(kagent: Kagent) -> None:
    saved = save(kagent, history=[1, 2])
    assert "'t'" in bad(kagent.post("/api/tasks/t/restore"), 404)
    for _ in range(2):
        reply = kagent.delete("/api/tasks/t")
        assert (reply.status, reply.body) == (204, b"")
    bad(kagent.post("/api/tasks/t/restore", user="bob"), 404)
    assert good(kagent.post("/api/tasks/t/restore")) == saved
    assert good(kagent.get("/api/tasks/t")) == saved
    kagent.delete("/api/tasks/t", user="bob")
    assert good(kagent.get("/api/tasks/t")) == saved, "another user deletes another task"


def test_a_task_whose_id_was_taken_is_not_restored(kagent: Kagent) -> None:
    save(kagent, n=1)
    kagent.delete("/api/tasks/t")
    save(kagent, n=2)
    assert "delete it first" in bad(kagent.post("/api/tasks/t/restore"), 409)
    assert good(kagent.get("/api/tasks/t"))["n"] == 2


def test_push_configs_are_stored_under_their_id_or_the_tasks_id(kagent: Kagent) -> None:
    plain = good(kagent.post(CONFIGS, {"url": "u", "authentication": {"schemes": ["x"]}}), 201)
    assert plain == {"url": "u", "authentication": {"schemes": ["x"]}, "id": "t"}
    named = good(kagent.post(CONFIGS, {"id": "c", "url": "ü"}), 201)
    assert good(kagent.get(CONFIGS)) == [plain, named]
    assert good(kagent.get(f"{CONFIGS}/c")) == named
    changed = good(kagent.post(CONFIGS, {"id": "c", "url": "other"}), 201)
    assert good(kagent.get(CONFIGS)) == [plain, changed]
    assert good(kagent.post(CONFIGS, {"id": "", "url": "again"}), 201)["id"] == "t", "an empty id is ignored"


def test_push_configs_are_separate_for_each_user(kagent: Kagent) -> None:
    good(kagent.post(CONFIGS, {"url": "u"}), 201)
    assert good(kagent.get(CONFIGS, user="bob")) == []
    bad(kagent.get(f"{CONFIGS}/t", user="bob"), 404)
    assert kagent.delete(f"{CONFIGS}/t", user="bob").status == 204
    assert len(good(kagent.get(CONFIGS))) == 1


def test_one_push_config_is_deleted_and_the_others_stay(kagent: Kagent) -> None:
    for id in ("a", "b"):
        good(kagent.post(CONFIGS, {"id": id}), 201)
    for _ in range(2):
        assert kagent.delete(f"{CONFIGS}/a").status == 204
    assert [item["id"] for item in good(kagent.get(CONFIGS))] == ["b"]
    assert "not found" in bad(kagent.get(f"{CONFIGS}/a"), 404)


@pytest.mark.parametrize("config", [{"id": 7}, {"id": "x" * 256}, {"url": "x" * 262_144}, []])
def test_an_invalid_push_config_is_refused(kagent: Kagent, config: Any) -> None:
    bad(kagent.post(CONFIGS, config), 400)
    assert good(kagent.get(CONFIGS)) == []


def test_credentials_are_in_no_error_and_no_log(kagent: Kagent, caplog: pytest.LogCaptureFixture) -> None:
    proof = {"token": "s3cret", "authentication": {"schemes": ["Bearer"], "credentials": "s3cret"}}
    reader = kagent.another(("kagent:read",), tenant=kagent.name)
    with caplog.at_level("DEBUG"):
        body = good(kagent.post(CONFIGS, {"url": "u", **proof}), 201)
        refused = [
            bad(kagent.post(CONFIGS, {**proof, "id": 7}), 400),
            bad(kagent.post(CONFIGS, {**proof, "url": "x" * 262_144}), 400),
            bad(kagent.post(CONFIGS, json.dumps(proof)[:-1].encode()), 400),
            bad(reader.post(CONFIGS, proof), 403),
        ]
        assert good(kagent.get(CONFIGS)) == [body] == [{"url": "u", **proof, "id": "t"}]
    assert "s3cret" not in str(refused) + caplog.text
