"""All resources of the server, on both engines, over a real socket."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from tests.api.process import Api, ServerProcess, json_of, problem_of, to_json


def test_index_shows_the_version_and_links(server: ServerProcess) -> None:
    body = json_of(server.http.get("/"))
    assert body["name"] == "holdfast"
    for link in body["links"].values():
        assert server.http.get(link).status_code == 200


def test_health_and_readiness_are_ok(server: ServerProcess) -> None:
    assert json_of(server.http.get("/healthz")) == {"status": "ok"}
    assert json_of(server.http.get("/readyz")) == {"status": "ready"}


def test_head_is_like_get_without_a_body(server: ServerProcess) -> None:
    result = server.http.head("/healthz")
    assert (result.status_code, result.content) == (200, b"")


def test_a_tenant_is_created_read_changed_and_removed(api: Api) -> None:
    made = json_of(api.http.post("/v1/tenants", json={"id": api.name, "metadata": {"plan": "pro"}}), 201)
    assert json_of(api.http.get(api.tenant)) == made
    changed = json_of(api.http.patch(api.tenant, json={"metadata": {"plan": "free"}}))
    assert (changed["id"], changed["metadata"]) == (api.name, {"plan": "free"})
    json_of(api.http.delete(api.tenant), 204)
    problem_of(api.http.get(api.tenant), 404, "NotFound")


def test_a_tenant_with_sessions_is_removed_only_with_cascade(api: Api) -> None:
    session = api.session()
    problem_of(api.http.delete(api.tenant), 409, "Conflict")
    json_of(api.http.delete(api.tenant, params={"cascade": "true"}), 204)
    problem_of(api.http.get(f"{api.sessions}/{session['id']}"), 404, "NotFound")


def test_tenants_are_listed_in_pages_ordered_by_name(api: Api) -> None:
    names = [f"page-{api.name}-{number}" for number in range(3)]
    for name in names:
        json_of(api.http.post("/v1/tenants", json={"id": name}), 201)
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = json_of(api.http.get("/v1/tenants", params={"limit": "2", **({"cursor": cursor} if cursor else {})}))
        assert len(page["items"]) <= 2
        seen += [row["id"] for row in page["items"]]
        cursor = page["next"]
    assert [name for name in seen if name in names] == names
    assert seen == sorted(seen)


def test_a_session_is_returned_with_all_its_fields(api: Api) -> None:
    body = {"key": "support:42", "user": "ada", "agent": "helper", "metadata": {"plan": "pro", "n": [1, None, 2.5]}}
    made = api.session(**body)
    assert {name: made[name] for name in body} == body
    assert json_of(api.http.get(f"{api.sessions}/{made['id']}")) == made
    assert (made["message_count"], made["deleted_at"]) == (0, None)


def test_the_key_of_a_session_defaults_to_its_id(api: Api) -> None:
    made = api.session()
    assert made["key"] == made["id"]


@pytest.mark.parametrize(
    "key", ["support:42", "a/b/c", "with space & ?#%", "ключ-鍵-🔑", "by-key", "../../etc", "restore"]
)
def test_a_session_is_found_by_any_key(api: Api, key: str) -> None:
    made = api.session(key=key, user="ada")
    assert json_of(api.http.get(f"{api.sessions}/by-key/{quote(key, safe='')}", params={"user": "ada"})) == made


def test_a_tenant_can_have_any_name(server: ServerProcess) -> None:
    name = "acme/emea 🏢?"
    api = Api(server.http, quote(name, safe=""))
    session = api.session(key="k")
    assert json_of(api.http.get(api.tenant))["id"] == name
    assert [session["id"] for session in json_of(api.http.get(api.sessions))["items"]] == [session["id"]]
    json_of(api.http.delete(api.tenant, params={"cascade": "true"}), 204)


def test_a_key_of_several_users_requires_the_user(api: Api) -> None:
    ada, bob = api.session(key="k", user="ada"), api.session(key="k", user="bob")
    problem_of(api.http.get(f"{api.sessions}/by-key/k"), 409, "Conflict")
    assert json_of(api.http.get(f"{api.sessions}/by-key/k?user=bob"))["id"] == bob["id"] != ada["id"]
    problem_of(api.http.get(f"{api.sessions}/by-key/k?user=eve"), 404, "NotFound")


def test_put_by_key_creates_the_session_once_and_then_changes_it(api: Api) -> None:
    address = f"{api.sessions}/by-key/daily"
    made = json_of(api.http.put(address, params={"user": "ada"}, json={"agent": "helper"}))
    again = json_of(api.http.put(address, params={"user": "ada"}, json={"metadata": {"n": 1}}))
    assert (again["id"], again["agent"], again["metadata"]) == (made["id"], "helper", {"n": 1})


def test_sessions_are_listed_newest_first_and_filtered(api: Api) -> None:
    one = api.session(user="ada", agent="helper", metadata={"plan": "pro", "size": 3})
    two = api.session(user="bob", agent="helper", metadata={"plan": "free", "size": 30})
    three = api.session(user="ada", agent="coder", metadata={"plan": "pro", "size": 5})

    def listed(**params: Any) -> list[str]:
        return [session["id"] for session in json_of(api.http.get(api.sessions, params=params))["items"]]

    assert listed() == [three["id"], two["id"], one["id"]]
    assert listed(user="ada") == [three["id"], one["id"]]
    assert listed(agent="helper", user="bob") == [two["id"]]
    assert listed(metadata=to_json({"plan": "pro", "size": 5})) == [three["id"]]
    assert listed(where=to_json([{"meta": "size", "op": "gt", "value": 4}])) == [three["id"], two["id"]]
    assert listed(where=to_json([{"column": "created_at", "op": "lt", "value": two["created_at"]}])) == [one["id"]]
    times = [one["created_at"], three["created_at"]]
    assert listed(where=to_json([{"column": "created_at", "op": "in", "value": times}])) == [three["id"], one["id"]]


def test_sessions_are_paged_without_gaps_or_duplicates(api: Api) -> None:
    made = [api.session()["id"] for _ in range(5)]
    seen: list[str] = []
    params = {"limit": "2"}
    while True:
        page = json_of(api.http.get(api.sessions, params=params))
        seen += [row["id"] for row in page["items"]]
        if page["next"] is None:
            break
        params["cursor"] = page["next"]
    assert seen == made[::-1]


def test_a_deleted_session_is_hidden_and_can_be_restored(api: Api) -> None:
    session = api.session(key="k", user="ada")
    address = f"{api.sessions}/{session['id']}"
    api.append(session, "hello")
    json_of(api.http.delete(address), 204)
    problem_of(api.http.get(address), 404, "NotFound")
    problem_of(api.http.get(api.messages_of(session)), 404, "NotFound")
    assert json_of(api.http.get(address, params={"deleted": "true"}))["deleted_at"] is not None
    body = json_of(api.http.get(api.sessions, params={"deleted": "true"}))["items"]
    assert [item["id"] for item in body] == [session["id"]]
    assert json_of(api.http.post(f"{address}/restore"))["deleted_at"] is None
    assert len(json_of(api.http.get(api.messages_of(session)))["items"]) == 1


def test_a_restore_is_refused_when_the_key_is_taken(api: Api) -> None:
    first = api.session(key="k", user="ada")
    json_of(api.http.delete(f"{api.sessions}/{first['id']}"), 204)
    api.session(key="k", user="ada")
    problem_of(api.http.post(f"{api.sessions}/{first['id']}/restore"), 409, "Conflict")


def test_a_purged_session_is_permanently_removed(api: Api) -> None:
    session = api.session()
    json_of(api.http.post(f"{api.sessions}/{session['id']}/purge"), 204)
    problem_of(api.http.post(f"{api.sessions}/{session['id']}/restore"), 404, "NotFound")
    problem_of(api.http.get(f"{api.sessions}/{session['id']}?deleted=true"), 404, "NotFound")


def test_a_change_requires_the_current_etag(api: Api) -> None:
    response = api.http.post(api.sessions, json={})
    address, etag = f"{api.sessions}/{response.json()['id']}", response.headers["etag"]
    assert api.http.get(address).headers["etag"] == etag
    changed = api.http.patch(address, json={"agent": "one"}, headers={"If-Match": etag})
    assert json_of(changed)["agent"] == "one"
    assert changed.headers["etag"] != etag
    problem_of(api.http.patch(address, json={"agent": "two"}, headers={"If-Match": etag}), 412, "Conflict")
    either = f'"something else", {changed.headers["etag"]}'
    assert json_of(api.http.patch(address, json={"agent": "three"}, headers={"If-Match": either}))["agent"] == "three"
    assert json_of(api.http.patch(address, json={"agent": "four"}, headers={"If-Match": "*"}))["agent"] == "four"
    assert json_of(api.http.patch(address, json={"agent": "five"}))["agent"] == "five"


def test_an_append_changes_the_etag_of_its_session(api: Api) -> None:
    session = api.session()
    address = f"{api.sessions}/{session['id']}"
    etag = api.http.get(address).headers["etag"]
    api.append(session, "hello")
    problem_of(api.http.patch(address, json={"agent": "a"}, headers={"If-Match": etag}), 412, "Conflict")


def test_one_message_is_appended_and_read(api: Api) -> None:
    session = api.session()
    body = {"role": "assistant", "content": [{"type": "text", "text": "Hi"}], "token_count": 7, "metadata": {"m": 1}}
    made = json_of(api.http.post(api.messages_of(session), json=body), 201)
    assert {name: made[name] for name in body} == body
    assert (made["seq"], made["kind"], made["session_id"]) == (1, "message", session["id"])
    assert json_of(api.http.get(f"{api.tenant}/messages/{made['id']}")) == made
    assert json_of(api.http.get(f"{api.sessions}/{session['id']}"))["token_count"] == 7


def test_other_kinds_store_any_json_unchanged(api: Api) -> None:
    content = {"type": "function_call", "n": 2**53 + 1, "deep": [[[None, True, 1e300, -0.5]]], "": "\u0000"}
    body = {"kind": "openai.item", "content": content}
    session = api.session()
    json_of(api.http.post(api.messages_of(session), json=body), 201)
    (answer,) = json_of(api.http.get(api.messages_of(session)))["items"]
    assert (answer["content"], answer["role"]) == (content, None)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\x00", "\U0010f801", "né 🎉", "\\ud800"])
def test_any_text_is_returned_unchanged(api: Api, text: str) -> None:
    session = api.session(metadata={"text": text})
    assert session["metadata"] == {"text": text}
    api.append(session, text)
    (body,) = json_of(api.http.get(api.messages_of(session)))["items"]
    assert body["content"] == [{"type": "text", "text": text}]


def test_several_messages_are_appended_at_consecutive_positions_or_not_at_all(api: Api) -> None:
    session = api.session()
    assert [item["seq"] for item in api.append(session, "a", "b", "c")] == [1, 2, 3]
    taken = api.append(session, "d")[0]["id"]
    body = {"messages": [{"role": "user", "content": "e"}, {"role": "user", "content": "f", "id": taken}]}
    problem_of(api.http.post(api.messages_of(session), json=body), 409, "Conflict")
    assert len(json_of(api.http.get(api.messages_of(session)))["items"]) == 4


def test_messages_are_paged_from_either_end(api: Api) -> None:
    session = api.session()
    api.append(session, *"abcdefg")

    def pages(**params: str) -> list[list[int]]:
        results = []
        while True:
            page = json_of(api.http.get(api.messages_of(session), params={"limit": "3", **params}))
            results.append([row["seq"] for row in page["items"]])
            if page["next"] is None:
                return results
            params["cursor"] = page["next"]

    assert pages() == [[1, 2, 3], [4, 5, 6], [7]]
    assert pages(newest_first="true") == [[7, 6, 5], [4, 3, 2], [1]]
    assert pages(after="2", before="6") == [[3, 4, 5]]
    assert pages(where=to_json([{"column": "seq", "op": "ge", "value": 6}])) == [[6, 7]]


def test_the_last_messages_are_returned_oldest_first(api: Api) -> None:
    session = api.session()
    api.append(session, *"abcde")
    last = json_of(api.http.get(f"{api.messages_of(session)}/last", params={"count": "2"}))["items"]
    assert [item["seq"] for item in last] == [4, 5]
    assert len(json_of(api.http.get(f"{api.messages_of(session)}/last"))["items"]) == 5


def test_a_message_is_changed_in_place(api: Api) -> None:
    session = api.session()
    (made,) = api.append(session, "helo")
    address = f"{api.tenant}/messages/{made['id']}"
    changed = json_of(api.http.patch(address, json={"content": "hello", "is_preserved": True, "token_count": 2}))
    assert (changed["content"][0]["text"], changed["is_preserved"], changed["seq"]) == ("hello", True, 1)
    assert json_of(api.http.get(address)) == changed


def test_only_the_named_messages_are_removed(api: Api) -> None:
    session = api.session()
    made = api.append(session, *"abcd")
    params = {"id": [made[1]["id"], made[3]["id"], str(uuid4())]}
    assert json_of(api.http.delete(api.messages_of(session), params=params)) == {"removed": 2}
    assert [item["seq"] for item in json_of(api.http.get(api.messages_of(session)))["items"]] == [1, 3]


@pytest.mark.parametrize("place", ["body", "header", "quoted header", "both"])
def test_a_repeated_append_returns_the_first_result(api: Api, place: str) -> None:
    id = str(uuid4())
    session = api.session()
    body = {"role": "user", "content": "once", **({"id": id} if place in ("body", "both") else {})}
    headers = {"body": {}, "quoted header": {"Idempotency-Key": f'"{id}"'}}.get(place, {"Idempotency-Key": id})
    first, again = (json_of(api.http.post(api.messages_of(session), json=body, headers=headers), 201) for _ in "12")
    assert first == again
    assert first["id"] == id
    other = {**body, "content": "another"}
    problem_of(api.http.post(api.messages_of(session), json=other, headers=headers), 409, "Conflict")
    assert len(json_of(api.http.get(api.messages_of(session)))["items"]) == 1


def test_a_repeated_create_returns_the_first_session(api: Api) -> None:
    id = str(uuid4())
    headers = {"Idempotency-Key": id}
    first, again = (json_of(api.http.post(api.sessions, json={"user": "ada"}, headers=headers), 201) for _ in "12")
    assert first == again
    assert first["id"] == id
    problem_of(api.http.post(api.sessions, json={"user": "bob", "id": id}), 409, "Conflict")


def test_no_data_of_one_tenant_is_visible_to_another(api: Api, server: ServerProcess) -> None:
    session = api.session(key="k", user="ada")
    (message,) = api.append(session, "secret")
    other = f"{api.tenant}-other"
    missing = [
        server.http.get(f"{other}/sessions/{session['id']}"),
        server.http.get(f"{other}/sessions/{session['id']}?deleted=true"),
        server.http.get(f"{other}/sessions/by-key/k"),
        server.http.patch(f"{other}/sessions/{session['id']}", json={"agent": "x"}),
        server.http.delete(f"{other}/sessions/{session['id']}"),
        server.http.post(f"{other}/sessions/{session['id']}/purge"),
        server.http.get(f"{other}/sessions/{session['id']}/messages"),
        server.http.post(f"{other}/sessions/{session['id']}/messages", json={"role": "user", "content": "x"}),
        server.http.delete(f"{other}/sessions/{session['id']}/messages", params={"id": message["id"]}),
        server.http.get(f"{other}/messages/{message['id']}"),
        server.http.patch(f"{other}/messages/{message['id']}", json={"content": "x"}),
    ]
    for response in missing:
        assert "secret" not in problem_of(response, 404, "NotFound")["detail"]
    assert json_of(server.http.get(f"{other}/sessions"))["items"] == []
