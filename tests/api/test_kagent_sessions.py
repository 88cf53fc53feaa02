"""Sessions and events over kagent's API."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.api.kagent.redaction import NOT_SHOWN, NOT_STORED
from tests.api.kagent import Kagent, bad, good

NAMES = [
    pytest.param("s", id="plain"),
    pytest.param("ü 漢 \U0001f600", id="not ASCII"),
    pytest.param("a/b", id="a slash"),
    pytest.param("a?b#c&d=e", id="URL syntax"),
    pytest.param("100%25", id="a percent sign"),
    pytest.param("agent", id="a segment of the routes"),
    pytest.param("\x00", id="NUL"),
    pytest.param("x" * 500, id="maximum length"),
]


def start(kagent: Kagent, id: str = "s", **more: Any) -> Any:
    """Start a session."""
    return good(kagent.post("/api/sessions", {"id": id, **more}), 201)


def append(kagent: Kagent, data: Any, id: str | None = None, **more: Any) -> Any:
    """Append an event to the session ``s``."""
    return good(kagent.post("/api/sessions/s/events", {"data": data, "id": id}, **more), 201)


def events(kagent: Kagent, query: str = "order=asc") -> list[Any]:
    """Return the data of the events of the session ``s``."""
    return [event["data"] for event in good(kagent.get(f"/api/sessions/s?{query}"))["events"]]


@pytest.mark.parametrize("id", NAMES)
def test_a_session_is_found_by_its_id(kagent: Kagent, id: str) -> None:
    assert start(kagent, id)["id"] == id
    place = f"/api/sessions/{quote(id, safe='')}"
    assert good(kagent.get(place))["session"]["id"] == id
    good(kagent.post(f"{place}/events", {"id": "e", "data": id}), 201)
    assert [(event["session_id"], event["data"]) for event in good(kagent.get(place))["events"]] == [(id, id)]
    good(kagent.delete(place))
    bad(kagent.get(place), 404)


def test_an_omitted_session_id_is_generated(kagent: Kagent) -> None:
    first, second = good(kagent.post("/api/sessions"), 201), good(kagent.post("/api/sessions", {"id": ""}), 201)
    assert len({first["id"], second["id"], ""}) == 3
    assert good(kagent.get(f"/api/sessions/{first['id']}"))["session"] == first


def test_an_id_over_the_limit_is_refused(kagent: Kagent) -> None:
    assert "key_bytes = 500" in bad(kagent.post("/api/sessions", {"id": "x" * 501}), 400)
    assert good(kagent.get("/api/sessions")) == []


def test_omitted_fields_of_a_session_are_not_returned(kagent: Kagent) -> None:
    plain = start(kagent)
    assert set(plain) == {"id", "user_id", "created_at", "updated_at"}
    full = start(kagent, "t", agent_ref="ns/my-agent", name="ü", source="agent")
    assert (full["agent_id"], full["name"], full["source"]) == ("ns__NS__my_agent", "ü", "agent")


def test_starting_a_session_again_returns_it_with_its_events(kagent: Kagent) -> None:
    first = start(kagent, name="one")
    append(kagent, "kept")
    again = start(kagent)
    assert (again["created_at"], again["name"]) == (first["created_at"], "one"), "omitted fields stay unchanged"
    assert start(kagent, name="two")["name"] == "two"
    assert events(kagent) == ["kept"]
    assert len(good(kagent.get("/api/sessions"))) == 1


def test_the_user_in_the_body_precedes_the_caller(kagent: Kagent) -> None:
    assert start(kagent, user_id="bob")["user_id"] == "bob"
    bad(kagent.get("/api/sessions/s"), 404)
    assert good(kagent.get("/api/sessions/s", user="bob"))["session"]["user_id"] == "bob"
    assert start(kagent, "t", user_id="")["user_id"] == "ada", "an empty user in the body is ignored"


def test_session_ids_are_separate_for_each_user(kagent: Kagent) -> None:
    for user in ("ada", "bob"):
        good(kagent.post("/api/sessions", {"id": "s", "name": user}, user=user), 201)
        good(kagent.post("/api/sessions/s/events", {"id": "e", "data": user}, user=user), 201)
    good(kagent.delete("/api/sessions/s", user="ada"))
    bad(kagent.get("/api/sessions/s", user="ada"), 404)
    body = good(kagent.get("/api/sessions/s", user="bob"))
    assert (body["session"]["name"], [event["data"] for event in body["events"]]) == ("bob", ["bob"])


WRONG = [
    pytest.param({"id": 7}, id="number as id"),
    pytest.param({"id": "s", "user_id": ["ada"]}, id="list as user"),
    pytest.param({"id": "s", "agent_ref": {}}, id="object as agent"),
    pytest.param({"id": "s", "name": True}, id="number as name"),
    pytest.param({"id": "s", "agent_ref": "x" * 256}, id="agent too long"),
    pytest.param({"id": "s", "user_id": "x" * 256}, id="user too long"),
    pytest.param({"id": "s", "name": "x" * 262_144}, id="name too long"),
]


@pytest.mark.parametrize("body", WRONG)
def test_an_invalid_session_is_refused_and_not_created(kagent: Kagent, body: Any) -> None:
    bad(kagent.post("/api/sessions", body), 400)
    assert good(kagent.get("/api/sessions")) == []


def test_sessions_are_listed_most_recently_used_first(kagent: Kagent) -> None:
    for id in ("s", "t", "u"):
        start(kagent, id)
    append(kagent, "x")
    assert [item["id"] for item in good(kagent.get("/api/sessions"))] == ["s", "u", "t"]


def test_all_sessions_are_listed_over_all_pages(kagent: Kagent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.api.kagent.sessions.PAGE", 2)
    for number in range(5):
        start(kagent, str(number), agent_ref="ns/a")
    assert [item["id"] for item in good(kagent.get("/api/sessions"))] == ["4", "3", "2", "1", "0"]
    assert len(good(kagent.get("/api/sessions/agent/ns/a"))) == 5


def test_sessions_of_an_agent_are_listed_under_all_spellings(kagent: Kagent) -> None:
    start(kagent, "s", agent_ref="ns/my-agent")
    start(kagent, "t", agent_ref="ns__NS__my_agent")
    start(kagent, "u", agent_ref="ns/other")
    start(kagent, "v")
    for path in ("ns/my-agent", "ns/my_agent"):
        assert [item["id"] for item in good(kagent.get(f"/api/sessions/agent/{path}"))] == ["t", "s"]


def test_sessions_started_by_agents_are_not_listed_for_an_agent(kagent: Kagent) -> None:
    start(kagent, "s", agent_ref="ns/a", source="agent")
    start(kagent, "t", agent_ref="ns/a", source="user")
    assert [item["id"] for item in good(kagent.get("/api/sessions/agent/ns/a"))] == ["t"]
    assert len(good(kagent.get("/api/sessions"))) == 2


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_a_sessions_name_or_agent_is_changed_and_the_rest_stays(kagent: Kagent, method: str) -> None:
    start(kagent, agent_ref="ns/a", name="one", source="user")

    def changed(**body: str) -> tuple[str, str, str]:
        answer = good(kagent.run(kagent.ask(method, "/api/sessions/s", body)))
        assert good(kagent.get("/api/sessions/s"))["session"] == answer
        return answer["name"], answer["agent_id"], answer["source"]

    assert changed(name="two") == ("two", "ns__NS__a", "user")
    assert changed(agent_ref="ns/b") == ("two", "ns__NS__b", "user")
    assert changed(name="three", agent_ref="ns/c") == ("three", "ns__NS__c", "user")
    assert changed(name="four", agent_ref="") == ("four", "ns__NS__c", "user"), "an empty agent is ignored"


def test_an_update_without_changes_is_refused(kagent: Kagent) -> None:
    start(kagent, name="one")
    for body in (None, {}, {"name": ""}, {"other": 1}):
        assert "changes nothing" in bad(kagent.put("/api/sessions/s", body), 400)
    bad(kagent.put("/api/sessions/never", {"name": "x"}), 404)
    assert good(kagent.get("/api/sessions/s"))["session"]["name"] == "one"


TEXTS = [
    pytest.param("", id="empty"),
    pytest.param("{}", id="an object"),
    pytest.param('{"a": 1,  "b":[1.0, 1e5, -0.0]}', id="spaces and numbers"),
    pytest.param("no JSON {", id="not JSON"),
    pytest.param("\x00 \x1f \x7f", id="NUL and other control characters"),
    pytest.param("\ud800 and \udfff", id="lone surrogates"),
    pytest.param("\U0010f800\U0010f801", id="replacement characters"),
    pytest.param("漢字 \U0001f600 \u202e", id="not ASCII"),
    pytest.param("x" * 300_000, id="long"),
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_text_of_an_event_is_returned_unchanged(kagent: Kagent, text: str) -> None:
    start(kagent)
    body = json.dumps({"id": "e", "data": text}).encode()
    assert good(kagent.post("/api/sessions/s/events", body), 201)["data"] == text
    assert events(kagent) == [text]


@pytest.mark.parametrize(
    ("data", "text"),
    [({"b": 1, "a": [None]}, '{"b":1,"a":[null]}'), (None, "null"), (7, "7"), ([], "[]"), (True, "true")],
)
def test_the_data_of_an_event_that_is_not_text_is_stored_as_json_text(kagent: Kagent, data: Any, text: str) -> None:
    start(kagent)
    assert append(kagent, data)["data"] == text
    assert events(kagent) == [text]


IDS = [
    pytest.param("e", id="plain"),
    pytest.param("ü/漢", id="not ASCII"),
    pytest.param("\x00", id="NUL"),
    pytest.param("\ud800", id="a lone surrogate"),
    pytest.param("x" * 5_000, id="long"),
]


@pytest.mark.parametrize("id", IDS)
def test_repeating_an_event_is_idempotent_and_other_content_with_its_id_is_refused(kagent: Kagent, id: str) -> None:
    start(kagent)
    body, other = (json.dumps({"id": id, "data": value}).encode() for value in ("x", "y"))
    first = good(kagent.post("/api/sessions/s/events", body), 201)
    assert first["id"] == id
    assert good(kagent.post("/api/sessions/s/events", body), 201) == first
    bad(kagent.post("/api/sessions/s/events", other), 409)
    assert events(kagent) == ["x"]


def test_events_without_an_id_are_always_distinct(kagent: Kagent) -> None:
    start(kagent)
    made = [append(kagent, "x", id) for id in (None, None, "")]
    assert len({item["id"] for item in made}) == 3
    assert events(kagent) == ["x"] * 3


def test_an_invalid_event_is_refused(kagent: Kagent) -> None:
    start(kagent)
    for body in (None, {}, {"id": "e"}, {"id": 7, "data": "x"}):
        bad(kagent.post("/api/sessions/s/events", body), 400)
    over = {"id": "e", "data": "x" * (16 * 1024 * 1024)}
    assert "content_bytes" in bad(kagent.post("/api/sessions/s/events", over), 400)
    assert events(kagent) == []


def test_an_event_of_another_agent_is_refused(kagent: Kagent) -> None:
    start(kagent, agent_ref="ns/my-agent")
    event = {"data": "x"}
    words = bad(kagent.post("/api/sessions/s/events", event, x_agent_name="ns/other"), 403)
    assert "ns__NS__my_agent" in words
    for name in ("ns/my-agent", "ns__NS__my_agent"):
        append(kagent, "x", x_agent_name=name)
    append(kagent, "x")
    start(kagent, "t")
    good(kagent.post("/api/sessions/t/events", event, x_agent_name="ns/any"), 201)


def test_events_are_listed_in_the_requested_order_and_number(kagent: Kagent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.api.kagent.sessions.PAGE", 2)
    start(kagent)
    for number in range(5):
        append(kagent, str(number))
    ascending = ["0", "1", "2", "3", "4"]
    assert events(kagent, "order=asc") == events(kagent, "order=ASC&limit=0") == ascending
    assert events(kagent, "") == events(kagent, "order=desc") == events(kagent, "order=other") == ascending[::-1]
    for limit in (1, 2, 3, 4, 5, 6):
        assert events(kagent, f"order=asc&limit={limit}") == ascending[:limit]
        assert events(kagent, f"limit={limit}") == ascending[::-1][:limit]


def test_events_can_be_limited_to_those_after_a_time(kagent: Kagent) -> None:
    start(kagent)
    made = [append(kagent, str(number)) for number in range(3)]
    for number, item in enumerate(made):
        later = [one["data"] for one in made[number + 1 :]]
        written = item["created_at"].replace("Z", "+00:00")
        assert events(kagent, f"order=asc&after={item['created_at']}") == later
        assert events(kagent, f"order=asc&after={written}") == later, "an unencoded plus is read as a plus"
        assert events(kagent, f"order=asc&limit=1&after={quote(written)}") == later[:1]


@pytest.mark.parametrize("after", ["yesterday", "2030-01-31T12:00:00", "7", "2030-13-01T00:00:00Z"])
def test_an_invalid_time_is_refused(kagent: Kagent, after: str) -> None:
    start(kagent)
    assert "a time must have the format" in bad(kagent.get(f"/api/sessions/s?after={after}"), 400)


def test_messages_that_are_not_events_are_not_returned(kagent: Kagent) -> None:
    start(kagent)
    (session,) = kagent.run(kagent.tenant.sessions.list(user="ada"))
    for number in range(3):
        kagent.run(kagent.tenant.messages.append(session.id, role="user", content="said elsewhere"))
        append(kagent, str(number))
    assert events(kagent) == ["0", "1", "2"]
    assert events(kagent, "order=asc&limit=2") == ["0", "1"]


def test_concurrent_appends_are_each_stored_once(kagent: Kagent) -> None:
    start(kagent)

    async def append_all() -> list[int]:
        bodies = [{"id": str(number % 5), "data": str(number % 5)} for number in range(20)]
        replies = await asyncio.gather(*(kagent.ask("POST", "/api/sessions/s/events", body) for body in bodies))
        return [reply.status for reply in replies]

    assert kagent.run(append_all()) == [201] * 20
    assert sorted(events(kagent)) == ["0", "1", "2", "3", "4"]


def test_concurrent_sessions_with_a_new_agent_are_all_created(kagent: Kagent) -> None:
    async def start_all() -> list[int]:
        bodies = [{"id": str(number), "agent_ref": "ns/new"} for number in range(10)]
        replies = await asyncio.gather(*(kagent.ask("POST", "/api/sessions", body) for body in bodies))
        return [reply.status for reply in replies]

    assert kagent.run(start_all()) == [201] * 10
    assert [item["id"] for item in good(kagent.get("/api/agents"))] == ["ns__NS__new"]


def test_deleting_a_deleted_session_has_no_effect(kagent: Kagent) -> None:
    start(kagent, agent_ref="ns/a")
    for _ in range(2):
        assert good(kagent.delete("/api/sessions/s")) == {}
    for path in ("/api/sessions", "/api/sessions/agent/ns/a", "/api/sessions/s/tasks"):
        assert good(kagent.get(path)) == []
    bad(kagent.get("/api/sessions/s/shares"), 404)
    bad(kagent.put("/api/sessions/s", {"name": "x"}), 404)
    bad(kagent.post("/api/sessions/s/events", {"data": "x"}), 404)


def test_a_deleted_event_is_restored_at_its_position_with_its_feedback(kagent: Kagent) -> None:
    good(kagent.post("/api/sessions", {"id": "s"}), 201)
    for id in ("a", "b/2", "c"):
        good(kagent.post("/api/sessions/s/events", {"id": id, "data": id}), 201)
    good(kagent.post("/api/feedback", {"feedback_text": "no", "message_id": "b/2", "session_id": "s"}))
    opinions = good(kagent.get("/api/feedback"))
    path = "/api/sessions/s/events/b%2F2"
    bad(kagent.post(path + "/restore"), 404)
    for _ in range(2):
        assert good(kagent.delete(path)) == {}
        assert [event["id"] for event in good(kagent.get("/api/sessions/s?order=asc"))["events"]] == ["a", "c"]
        assert good(kagent.get("/api/feedback")) == []
    bad(kagent.delete(path, user="bob"), 404)
    assert good(kagent.post(path + "/restore"))["data"] == "b/2"
    assert [event["id"] for event in good(kagent.get("/api/sessions/s?order=asc"))["events"]] == ["a", "b/2", "c"]
    assert good(kagent.get("/api/feedback")) == opinions


def test_the_last_deleted_session_of_an_id_is_restored(kagent: Kagent) -> None:
    for number in range(3):
        start(kagent, name=str(number))
        append(kagent, str(number), "e")
        good(kagent.delete("/api/sessions/s"))
    restored = good(kagent.post("/api/sessions/s/restore"))
    assert (restored["name"], "deleted_at" in restored) == ("2", False)
    assert events(kagent) == ["2"]
    bad(kagent.post("/api/sessions/s/restore"), 409)
    assert events(kagent) == ["2"], "a live session is not replaced"


def test_only_the_owner_can_restore_a_session(kagent: Kagent) -> None:
    start(kagent)
    assert "deleted session 's' does not exist" in bad(kagent.post("/api/sessions/s/restore"), 404)
    good(kagent.delete("/api/sessions/s"))
    bad(kagent.post("/api/sessions/s/restore", user="bob"), 404)
    bad(kagent.another().post("/api/sessions/s/restore"), 404)
    assert good(kagent.post("/api/sessions/s/restore"))["user_id"] == "ada"


SECRET = {"actions": {"state_delta": {"headers": {"Authorization": "Bearer s3cret", "x-other": "plain"}}}}


def test_a_callers_token_is_only_stored_with_an_encryption_key(kagent: Kagent, monkeypatch: pytest.MonkeyPatch) -> None:
    start(kagent)
    kagent.use_keys(monkeypatch)
    withheld = json.loads(append(kagent, json.dumps(SECRET))["data"])["actions"]["state_delta"]["headers"]
    assert withheld == {"Authorization": NOT_STORED, "x-other": "plain"}
    kagent.use_keys(monkeypatch, "k" * 32)
    assert append(kagent, json.dumps(SECRET))["data"] == json.dumps(SECRET)
    kagent.use_keys(monkeypatch)
    assert "s3cret" not in bad(kagent.get("/api/sessions/s"), 500), "without the key the event is an error"


def test_repeating_an_encrypted_event_is_idempotent(kagent: Kagent, monkeypatch: pytest.MonkeyPatch) -> None:
    start(kagent)
    before = append(kagent, json.dumps(SECRET), "before")
    kagent.use_keys(monkeypatch, "k" * 32)
    first = append(kagent, json.dumps(SECRET), "e")
    assert append(kagent, json.dumps(SECRET), "e") == first
    assert append(kagent, json.dumps(SECRET), "before") == before, "stored before there was a key"
    other = json.dumps(SECRET).replace("s3cret", "another")
    for id in ("e", "before"):
        body = {"id": id, "data": other if id == "e" else other.replace("plain", "changed")}
        assert "s3cret" not in bad(kagent.post("/api/sessions/s/events", body), 409)
    assert len(events(kagent)) == 2


@pytest.mark.parametrize("key", [None, "k" * 32])
def test_a_guest_sees_no_secrets_and_the_owner_sees_all(
    kagent: Kagent, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    kagent.use_keys(monkeypatch, *([] if key is None else [key]))
    start(kagent)
    kept = json.dumps({"actions": {"state_delta": {"oauth2": {"access_token": "s3cret"}}}, "text": "said"})
    for data in (json.dumps(SECRET), kept, "plain"):
        append(kagent, data)
    token = good(kagent.post("/api/sessions/s/shares", {"read_only": False}), 201)["token"]
    guest = {"user": "bob", "x_share_token": token}
    seen = [event["data"] for event in good(kagent.get("/api/sessions/s?order=asc", **guest))["events"]]
    assert "s3cret" not in json.dumps(seen)
    assert (NOT_SHOWN in seen[0], '"text":"said"' in seen[1], seen[2]) == (True, True, "plain")
    assert events(kagent)[1:] == [kept, "plain"]
    assert (events(kagent)[0] == json.dumps(SECRET)) is (key is not None)
    again = good(kagent.post("/api/sessions/s/events", {"id": "g", "data": kept}, **guest), 201)
    assert "s3cret" not in again["data"]


def test_an_event_is_encrypted_in_other_tables_too(kagent: Kagent, monkeypatch: pytest.MonkeyPatch) -> None:
    kagent.use_keys(monkeypatch, "k" * 32)
    start(kagent)
    append(kagent, json.dumps(SECRET), "e")
    (session,) = kagent.run(kagent.tenant.sessions.list(user="ada"))
    content = kagent.run(kagent.tenant.messages.last(session.id))[0].content
    assert (set(content), content["id"]) == ({"id", "sealed"}, "e")
    reply = kagent.get(f"/v1/tenants/{kagent.name}/sessions/{session.id}/messages")
    assert (reply.status, b"s3cret" in reply.body, b"aes-gcm:" in reply.body) == (200, False, True)


def test_an_event_that_cannot_be_searched_for_secrets_is_refused(kagent: Kagent) -> None:
    start(kagent)
    deep = '{"headers": ' + "[" * 100_000 + "]" * 100_000 + "}"
    assert "json_depth" in bad(kagent.post("/api/sessions/s/events", {"data": deep}), 400)
    plain = "[" * 100_000
    assert append(kagent, plain)["data"] == plain


@given(st.lists(st.tuples(st.sampled_from("abc"), st.text(max_size=3)), max_size=8))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_session_is_the_last_event_of_each_id_in_order(
    open_kagent_server: Kagent, appended: list[tuple[str, str]]
) -> None:
    kagent, model = open_kagent_server.another(), dict[str, str]()
    start(kagent)
    for id, data in appended:
        reply = kagent.post("/api/sessions/s/events", {"id": id, "data": data})
        assert reply.status == (201 if model.setdefault(id, data) == data else 409)
    body = good(kagent.get("/api/sessions/s?order=asc"))["events"]
    assert [(row["id"], row["data"]) for row in body] == list(model.items())


def test_a_link_created_by_v1_is_not_listed(kagent: Kagent) -> None:
    start(kagent)
    session = kagent.run(kagent.tenant.sessions.find("s", user="ada"))
    made = kagent.post(f"/v1/tenants/{kagent.name}/sessions/{session.id}/shares", {})
    assert made.status == 201
    assert made.json["token"]
    own = good(kagent.post("/api/sessions/s/shares"), 201)
    assert [item["token"] for item in good(kagent.get("/api/sessions/s/shares"))] == [own["token"]]
    assert made.json["token"].encode() not in kagent.get("/api/sessions/s").body
