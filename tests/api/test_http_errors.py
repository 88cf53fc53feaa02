"""Error responses: always a problem, never a traceback."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import errors
from holdfast.api.limits import ServerLimits
from holdfast.api.problems import answer, status_of
from tests.api.process import ADMIN_KEY, WAIT_S, Api, ServerProcess, json_of, problem_of, to_json

SENT = f"Host: localhost\r\nAuthorization: Bearer {ADMIN_KEY}\r\nContent-Type: application/json"
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/healthz", "GET, HEAD"),
        ("PUT", "/v1/tenants", "GET, HEAD, POST"),
        ("POST", "/v1/tenants/t/sessions/by-key/k", "GET, HEAD, PUT"),
        ("OPTIONS", "/v1/tenants/t/sessions", "GET, HEAD, POST"),
        ("TRACE", "/", "GET, HEAD"),
    ],
)
def test_a_wrong_method_gets_405_with_the_allowed_methods(
    server: ServerProcess, method: str, path: str, allowed: str
) -> None:
    response = server.http.request(method, path)
    problem_of(response, 405, "about:blank")
    assert response.headers["allow"] == allowed


@pytest.mark.parametrize("path", ["/nope", "/v1", "/v1/tenants/", "/v1/tenants/t/sessions/by-key/", "/v1//sessions"])
def test_an_unknown_path_gets_404(server: ServerProcess, path: str) -> None:
    problem_of(server.http.get(path), 404, "NotFound")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nope",
        b'{"user": "a"}}',
        b'{"user": "\xff"}',
        b'{"metadata": {"n": NaN}}',
        b"[]",
        b"null",
        b'"\\ud8"',
    ],
)
def test_a_body_that_is_not_the_expected_json_is_refused(api: Api, body: bytes) -> None:
    problem_of(api.http.post(api.sessions, content=body, headers=JSON), 400, "InvalidInput")


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ({"colour": "red"}, "colour"),
        ({"user": 7}, "$.user"),
        ({"user": ""}, "$.user"),
        ({"user": None}, "$.user"),
        ({"metadata": []}, "$.metadata"),
        ({"id": "not-a-uuid"}, "UUID"),
    ],
)
def test_an_invalid_field_is_named(api: Api, body: dict[str, Any], hint: str) -> None:
    assert hint in problem_of(api.http.post(api.sessions, json=body), 400, "InvalidInput")["detail"]


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ({"role": "user"}, "content"),
        ({"role": "wizard", "content": "x"}, "$.role"),
        ({"content": "x"}, "role"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": [{"text": "no type"}]}, "content"),
        ({"role": "user", "content": "x", "token_count": -1}, "token_count"),
        ({"kind": "NOT OK", "content": "x"}, "kind"),
        ({"messages": [{"role": "user"}]}, "$.messages[0]"),
        ({"messages": []}, "$.messages"),
        ({"messages": [{"role": "user", "content": "x"}], "role": "user"}, "role"),
        ({"role": "user", "content": "x", "extra": 1}, "extra"),
    ],
)
def test_an_invalid_message_is_refused_with_the_reason(api: Api, body: dict[str, Any], hint: str) -> None:
    session = api.session()
    assert hint in problem_of(api.http.post(api.messages_of(session), json=body), 400, "InvalidInput")["detail"]
    assert json_of(api.http.get(api.messages_of(session)))["items"] == []


@pytest.mark.parametrize(
    "params",
    [
        {"limit": "0"},
        {"limit": "many"},
        {"limit": ["1", "2"]},
        {"colour": "red"},
        {"tenant": "another"},
        {"deleted": "maybe"},
        {"cursor": "nope"},
        {"metadata": "{"},
        {"metadata": "[]"},
        {"where": to_json({"op": "eq"})},
        {"where": to_json([{"column": "nope", "op": "eq", "value": 1}])},
        {"where": to_json([{"column": "user", "op": "like", "value": "a"}])},
        {"where": to_json([{"column": "user", "op": "eq", "value": "a", "extra": 1}])},
        {"where": to_json([{"op": "eq", "value": 1}])},
        {"where": to_json([{"column": "created_at", "op": "lt", "value": "yesterday"}])},
        {"where": to_json([{"column": "created_at", "op": "lt", "value": "2030-01-31T12:00:00"}])},
    ],
)
def test_an_invalid_parameter_is_refused_and_never_ignored(api: Api, params: dict[str, Any]) -> None:
    response = api.http.get(api.sessions, params=params)
    assert response.status_code == 400
    assert response.json()["type"] in ("InvalidInput", "InvalidFilter")


@pytest.mark.parametrize(
    "path", ["/v1/tenants/%ff", "/v1/tenants?cursor=%ff", "/v1/tenants/t/sessions/by-key/%80?user=a"]
)
def test_a_path_that_is_not_utf8_is_refused(server: ServerProcess, path: str) -> None:
    problem_of(server.http.get(path), 400, "InvalidInput")


def test_an_invalid_session_id_is_refused(api: Api) -> None:
    problem_of(api.http.get(f"{api.sessions}/42"), 400, "InvalidInput")


def test_missing_objects_get_404(api: Api) -> None:
    missing = str(uuid4())
    address = f"{api.sessions}/{missing}"
    body = {"role": "user", "content": "x"}
    for response in [
        api.http.get(api.tenant),
        api.http.patch(api.tenant, json={"metadata": {}}),
        api.http.delete(api.tenant),
        api.http.get(address),
        api.http.patch(address, json={"agent": "a"}),
        api.http.patch(address, json={"agent": "a"}, headers={"If-Match": '"x"'}),
        api.http.delete(address),
        api.http.post(f"{address}/restore"),
        api.http.post(f"{address}/purge"),
        api.http.get(f"{address}/messages"),
        api.http.post(f"{address}/messages", json=body),
        api.http.post(f"{address}/messages", json={"messages": [body]}),
        api.http.delete(f"{address}/messages", params={"id": missing}),
        api.http.get(f"{address}/messages/last"),
        api.http.get(f"{api.tenant}/messages/{missing}"),
        api.http.patch(f"{api.tenant}/messages/{missing}", json={"content": "x"}),
    ]:
        problem_of(response, 404, "NotFound")


def test_existing_objects_are_not_created_again(api: Api) -> None:
    api.session(key="k", user="ada")
    problem_of(api.http.post(api.sessions, json={"key": "k", "user": "ada"}), 409, "AlreadyExists")
    problem_of(api.http.post("/v1/tenants", json={"id": api.name}), 409, "AlreadyExists")


@pytest.mark.parametrize(
    ("params", "name"),
    [({"limit": "1001"}, "page_rows"), ({"where": to_json([{"meta": "a", "op": "eq", "value": 1}] * 33)}, "filters")],
)
def test_an_exceeded_limit_is_named(api: Api, params: dict[str, str], name: str) -> None:
    assert name in problem_of(api.http.get(api.sessions, params=params), 422, "LimitExceeded")["detail"]


def test_json_that_is_nested_too_deeply_is_refused(api: Api) -> None:
    session = api.session()
    deep = '{"kind": "k", "content": ' + "[" * 150 + "]" * 150 + "}"
    problem_of(api.http.post(api.messages_of(session), content=deep, headers=JSON), 422, "LimitExceeded")
    bottomless = '{"kind": "k", "content": ' + "[" * 200_000 + "]" * 200_000 + "}"
    problem_of(api.http.post(api.messages_of(session), content=bottomless, headers=JSON), 422, "LimitExceeded")


def test_an_idempotency_key_that_is_no_uuid_or_differs_from_the_id_is_refused(api: Api) -> None:
    session = api.session()
    body = {"role": "user", "content": "x"}

    def post(body: dict[str, Any], key: str) -> str:
        response = api.http.post(api.messages_of(session), json=body, headers={"Idempotency-Key": key})
        return str(problem_of(response, 400, "InvalidInput")["field"])

    assert post(body, "order-66") == "message id"
    assert post({**body, "id": str(uuid4())}, str(uuid4())) == "Idempotency-Key"
    assert post({"messages": [body]}, str(uuid4())) == "Idempotency-Key"


def test_an_if_match_that_would_be_ignored_is_refused(api: Api) -> None:
    session = api.session()
    (message,) = api.append(session, "x")
    headers = {"If-Match": '"x"'}
    problem_of(api.http.post(f"{api.sessions}/{session['id']}/restore", headers=headers), 400, "InvalidInput")
    address = f"{api.tenant}/messages/{message['id']}"
    problem_of(api.http.patch(address, json={"content": "y"}, headers=headers), 400, "InvalidInput")


def test_an_idempotency_key_that_would_be_ignored_is_refused(api: Api) -> None:
    session = api.session()
    headers = {"Idempotency-Key": str(uuid4())}
    for part in ("branches", "shares"):
        response = api.http.post(f"{api.sessions}/{session['id']}/{part}", json={}, headers=headers)
        assert problem_of(response, 400, "InvalidInput")["field"] == "Idempotency-Key"
    response = api.http.post(f"{api.tenant}/keys", json={"name": "x"}, headers=headers)
    assert problem_of(response, 400, "InvalidInput")["field"] == "Idempotency-Key"


def test_the_content_of_a_message_cannot_become_null(api: Api) -> None:
    (message,) = api.append(api.session(), "x")
    problem_of(api.http.patch(f"{api.tenant}/messages/{message['id']}", json={"content": None}), 400, "InvalidInput")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/json5", ""])
def test_a_body_without_a_json_content_type_is_refused(api: Api, kind: str) -> None:
    response = api.http.post(api.sessions, content=b"{}", headers={"Content-Type": kind} if kind else {})
    problem_of(response, 415, "about:blank")


def test_a_json_content_type_can_have_a_charset(api: Api) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    json_of(api.http.post(api.sessions, content=b"{}", headers=headers), 201)


MOST = ServerLimits().request_bytes


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "in chunks"])
def test_a_body_over_the_limit_names_the_limit_and_the_server_continues(api: Api, declared: bool) -> None:
    chunk = b" " * (1024 * 1024)
    chunks = [chunk] * (MOST // len(chunk)) + [b"{}"]
    response = api.http.post(api.sessions, content=b"".join(chunks) if declared else iter(chunks), headers=JSON)
    assert "request_bytes" in problem_of(response, 413, "LimitExceeded")["detail"]
    assert json_of(api.http.get(api.sessions))["items"] == []


def test_a_body_of_exactly_the_limit_is_accepted(api: Api) -> None:
    json_of(api.http.post(api.sessions, content=b"{}".ljust(MOST), headers=JSON), 201)


def test_a_body_declared_far_over_the_limit_is_refused_before_it_is_sent(server: ServerProcess) -> None:
    head = f"POST /v1/tenants HTTP/1.1\r\n{SENT}\r\nContent-Length: {10**12}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
        raw.sendall(head.encode())
        assert raw.recv(1024).startswith(b"HTTP/1.1 413 ")


def test_content_over_the_limit_of_the_store_names_the_limit(api: Api) -> None:
    session = api.session()
    body = {"role": "user", "content": "x" * (16 * 1024 * 1024)}
    detail = problem_of(api.http.post(api.messages_of(session), json=body), 422, "LimitExceeded")["detail"]
    assert "content_bytes" in detail


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Host": "evil.example:8420", "Origin": "http://evil.example:8420"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "[::1"},
    ],
)
def test_web_pages_of_other_sites_are_refused(server: ServerProcess, headers: dict[str, str]) -> None:
    problem_of(server.http.post("/v1/tenants", json={"id": "stolen"}, headers=headers), 403, "Forbidden")


@pytest.mark.parametrize("host", ["localhost", "localhost:8420", "127.0.0.1", "[::1]:8420", "127.8.9.10"])
def test_every_name_of_this_machine_is_accepted(server: ServerProcess, host: str) -> None:
    json_of(server.http.get("/healthz", headers={"Host": host}))
    json_of(server.http.get("/healthz", headers={"Host": host, "Origin": f"http://{host}"}))


def test_a_client_that_disconnects_in_the_middle_of_a_body_affects_no_other(server: ServerProcess, api: Api) -> None:
    head = f"POST {api.sessions} HTTP/1.1\r\n{SENT}\r\nContent-Length: 100\r\n\r\n"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
            raw.sendall(head.encode() + b'{"user":')
    assert json_of(api.http.get(api.sessions))["items"] == []
    assert "Traceback" not in server.log


# Errors that no request can cause are converted to responses directly.


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.InvalidInput, 400),
        (errors.InvalidText, 400),
        (errors.InvalidFilter, 400),
        (errors.InvalidManifest, 400),
        (errors.DimensionMismatch, 400),
        (errors.LimitExceeded, 422),
        (errors.NotFound, 404),
        (errors.AlreadyExists, 409),
        (errors.Conflict, 409),
        (errors.Fenced, 409),
        (errors.Stale, 409),
        (errors.NothingToCompact, 409),
        (errors.Forbidden, 403),
        (errors.ReadOnly, 403),
        (errors.CrossTenant, 403),
        (errors.CommandRefused, 403),
        (errors.Unavailable, 503),
        (errors.PackStorageMissing, 500),
        (errors.MissingExtra, 500),
        (errors.StorageFull, 507),
        (errors.OutcomeUnknown, 503),
        (errors.Closed, 503),
        (errors.SchemaMismatch, 500),
        (errors.Corrupt, 500),
        (errors.DecryptionFailed, 500),
        (errors.MissingKey, 500),
        (errors.HoldfastError, 500),
    ],
)
def test_every_error_has_its_status(kind: type[errors.HoldfastError], status: int) -> None:
    response = answer(kind("/secret/place"), ServerLimits())
    assert response.status_code == status == status_of(kind)
    assert (b"/secret/place" in response.body) == (status < 500)
    assert f'"type":"{kind.__name__}"'.encode() in response.body
    assert response.headers.get("retry-after") == ("1" if status == 503 else None)


def test_the_table_of_errors_above_is_complete() -> None:
    values = {
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.HoldfastError)
    }
    (marks,) = [mark for mark in test_every_error_has_its_status.pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
    assert {kind for kind, _ in marks.args[1]} == values


def test_an_unknown_outcome_contains_the_id_to_retry_with() -> None:
    id = str(uuid4())
    assert f'"id":"{id}"'.encode() in answer(errors.OutcomeUnknown(id=id), ServerLimits()).body


def test_an_unexpected_error_discloses_no_internals() -> None:
    response = answer(ZeroDivisionError("password=hunter2"), ServerLimits())
    assert response.status_code == 500
    assert b"hunter2" not in response.body
    assert b"ZeroDivision" not in response.body


def test_a_read_only_file_can_be_read_and_not_written(start: Callable[..., ServerProcess], tmp_path: Path) -> None:
    from holdfast import Holdfast

    with Holdfast(str(tmp_path / "kept.db")) as hf:
        session = hf.tenant("acme").sessions.create(user="ada")
        hf.api_keys.create(ADMIN_KEY, name="admin", scopes=["admin"])
    os.chmod(tmp_path / "kept.db", 0o444)
    server = start("--database", f"sqlite:///{tmp_path}/kept.db?mode=ro")
    json_of(server.http.get(f"/v1/tenants/acme/sessions/{session.id}"))
    problem_of(server.http.post("/v1/tenants/acme/sessions", json={}), 403, "ReadOnly")
    json_of(server.http.get("/readyz"))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("\ud800", "InvalidInput"),
        ("2030-01-31T12:00:00Z\udfff", "InvalidInput"),
        ("0001-01-01T00:00:00+14:00", "InvalidFilter"),
    ],
)
def test_a_filter_with_a_time_that_does_not_exist_is_refused(api: Api, value: str, error: str) -> None:
    for path in (api.sessions, api.messages_of(api.session())):
        for op, operand in (("lt", value), ("in", [value])):
            where = [{"column": "created_at", "op": op, "value": operand}]
            problem_of(api.http.get(path, params={"where": to_json(where)}), 400, error)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "mcp-servers", {"name": "s", "last_connected_at": "9999-12-31T23:59:59-14:00"}),
        ("POST", "keys", {"name": "k", "scopes": ["read"], "expires_at": "0001-01-01T00:00:00+14:00"}),
    ],
)
def test_a_time_that_does_not_exist_in_utc_is_refused(api: Api, method: str, path: str, body: dict[str, Any]) -> None:
    problem = problem_of(api.http.request(method, f"{api.tenant}/{path}", json=body), 400, "InvalidInput")
    assert "the years 1 to 9999" in problem["detail"]
