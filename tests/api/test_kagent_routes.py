"""kagent's routes without a socket and without kagent's packages: paths, permissions, users and refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import new_api_key, thread_of
from holdfast.api.auth import AccessOptions, networks
from holdfast.api.kagent.request import DEFAULT_USER
from holdfast.api.kagent.routing import declared_routes
from holdfast.api.limits import ServerLimits
from holdfast.core.crypto import VARIABLE
from holdfast.errors import InvalidInput, OutcomeUnknown
from tests.api.in_process import running
from tests.api.kagent import Kagent, bad, good
from tests.errors import raises

FILLED = {
    "session_id": "s",
    "task_id": "t",
    "config_id": "c",
    "token": "k",
    "thread_id": "h",
    "namespace": "n",
    "event_id": "e",
}
ALL = [(route.method, route.path.format(**FILLED, name="x")) for route in declared_routes()]
CLOSED = [operation for operation in ALL if operation[1].startswith("/api/")]


def test_every_route_requires_a_key(kagent: Kagent) -> None:
    for method, path in CLOSED:
        reply = kagent.run(kagent.server.ask(method, path, key=None))
        assert "API key" in bad(reply, 401), (method, path)
        assert reply.headers["www-authenticate"] == "Bearer"


def test_a_read_key_can_only_read(kagent: Kagent) -> None:
    reader = kagent.another(("kagent:read",), tenant=kagent.name)
    for method, path in CLOSED:
        reply = reader.run(reader.ask(method, path))
        if method == "GET":
            assert reply.status in (200, 400, 404), (path, "accepted, and told which field is missing")
        else:
            assert "write or kagent:write" in bad(reply, 403), (method, path)


def test_no_response_may_be_cached(kagent: Kagent) -> None:
    for method, path in ALL:
        reply = kagent.run(kagent.ask(method, path))
        assert reply.status < 500, (method, path, reply.body)
        is_empty = reply.status == 204 or path == "/health"
        assert is_empty or reply.headers["cache-control"] == "no-store", (method, path)


@pytest.mark.parametrize("scopes", [("runs:read",), ("workspaces:write", "sessions:read")])
def test_a_key_for_other_areas_is_refused(kagent: Kagent, scopes: tuple[str, ...]) -> None:
    other = kagent.another(scopes, tenant=kagent.name)
    assert "kagent:read" in bad(other.get("/api/sessions"), 403)


@pytest.mark.parametrize("scopes", [("write",), ("kagent:write",)])
def test_a_write_key_can_only_write(kagent: Kagent, scopes: tuple[str, ...]) -> None:
    writer = kagent.another(scopes, tenant=kagent.name)
    good(writer.post("/api/sessions", {"id": "s"}), 201)
    bad(writer.get("/api/sessions/s"), 403)
    assert good(kagent.get("/api/sessions/s"))["session"]["id"] == "s"


def test_an_unknown_key_is_refused(kagent: Kagent) -> None:
    reply = kagent.run(kagent.server.ask("GET", "/api/sessions", key=new_api_key()))
    bad(reply, 401)


def test_no_refusal_contains_the_token_of_a_link(kagent: Kagent, caplog: pytest.LogCaptureFixture) -> None:
    good(kagent.post("/api/sessions", {"id": "s"}), 201)
    token = good(kagent.post("/api/sessions/s/shares"), 201)["token"]
    reader = kagent.another(("kagent:read",), tenant=kagent.name)
    with caplog.at_level("DEBUG"):
        for asking in (reader, Kagent(kagent.runner, kagent.server, "hf_" + "0" * 48, kagent.name)):
            reply = asking.delete(f"/api/sessions/s/shares/{token}", x_share_token=token)
            assert token not in bad(reply, 403 if asking is reader else 401)
    assert "/api/sessions/s/shares/..." in caplog.text
    assert token not in caplog.text
    noted = [item.subject_id for item in kagent.run(_recorded(kagent))]
    assert noted == ["DELETE /api/sessions/s/shares/..."]


def test_every_refusal_of_a_link_or_an_agent_is_recorded_once_without_the_token(
    kagent: Kagent, caplog: pytest.LogCaptureFixture
) -> None:
    good(kagent.post("/api/sessions", {"id": "s", "agent_ref": "ns/mine"}), 201)
    good(kagent.post("/api/sessions", {"id": "t"}), 201)
    token = good(kagent.post("/api/sessions/s/shares"), 201)["token"]
    other = good(kagent.post("/api/sessions/s/shares", {"read_only": False}), 201)["token"]
    guest = {"user": "bob", "x_share_token": token}
    bad(kagent.get("/api/sessions/s", user="bob", x_share_token="0" * 48), 403)
    bad(kagent.get("/api/sessions/t", **guest), 403)
    bad(kagent.post("/api/sessions/s/events", {"data": "x"}, **guest), 403)
    bad(kagent.delete("/api/sessions/s", user="bob", x_share_token=other), 403)
    bad(kagent.delete(f"/api/sessions/s/shares/{token}", **guest), 403)
    bad(kagent.post("/api/sessions/s/events", {"data": "x"}, x_agent_name="ns/other"), 403)
    noted = {item.reason: item for item in kagent.run(_recorded(kagent))}
    assert {item.partition("agent 'ns")[0] for item in noted} == {
        "this share link is invalid",
        "this share link belongs to another session",
        "this share link is read-only",
        "only the owner of a session can delete it",
        "only the owner of a session can share it",
        "this session belongs to ",
    }
    assert all(value.details["key_id"] for value in noted.values())
    assert token not in repr(noted) + caplog.text
    assert len(kagent.run(_recorded(kagent))) == len(noted)


async def _recorded(kagent: Kagent) -> list[Any]:
    await kagent.server.service.audit.flush(kagent.server.holdfast)
    return [entry for entry in await kagent.tenant.activity.list() if entry.action == "access.denied"]


def test_an_invalid_encryption_key_prevents_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "short")
    with raises(InvalidInput, field=VARIABLE):
        asyncio.run(running(encryption_key=None).__aenter__())


def test_health_and_version_need_no_key(kagent: Kagent) -> None:
    alive = kagent.run(kagent.server.ask("GET", "/health", key=None))
    assert (alive.status, alive.body, alive.headers["content-type"]) == (200, b"OK", "text/plain; charset=utf-8")
    version = kagent.run(kagent.server.ask("GET", "/version", key=None))
    assert version.json == {
        "kagent_version": "0.10.4",
        "git_commit": "",
        "build_date": "",
        "holdfast_version": holdfast.__version__,
    }


def test_a_trusted_address_without_a_key_uses_the_default_tenant() -> None:
    async def story() -> None:
        options = AccessOptions(trusted=networks(["10.0.0.0/8"]), tenant="office")
        async with running(access=options) as server:
            made = await server.ask("POST", "/api/sessions", {"id": "s"}, key=None, address="10.1.2.3")
            assert made.status == 201
            assert (await server.ask("GET", "/api/sessions", key=None, address="11.1.2.3")).status == 401
            office = server.holdfast.tenant("office")
            assert [session.key for session in await office.sessions.list(user=DEFAULT_USER)] == ["s"]

    asyncio.run(story())


def test_tenants_are_isolated(kagent: Kagent) -> None:
    other = kagent.another()
    good(kagent.post("/api/sessions", {"id": "s", "agent_ref": "ns/a"}), 201)
    good(kagent.post("/api/tasks", {"id": "t", "contextId": "s"}), 201)
    token = good(kagent.post("/api/sessions/s/shares"), 201)["token"]
    good(kagent.post("/api/toolservers", {"ref": "ns/x"}), 201)
    bad(other.get("/api/sessions/s"), 404)
    bad(other.get("/api/tasks/t"), 404)
    bad(other.get("/api/sessions/s", x_share_token=token), 403)
    bad(other.delete("/api/toolservers/ns/x"), 404)
    for path in ("/api/agents", "/api/toolservers", "/api/sessions", "/api/sessions/s/tasks"):
        assert good(other.get(path)) == [], path
        assert len(good(kagent.get(path))) == 1, path


@pytest.mark.parametrize(
    "path",
    ["/api/nothing", "/api/", "/api/sessions/", "/api/sessions//tasks", "/api/tasks/t/u", "/api/Sessions", "/api/me/x"],
)
def test_an_unknown_path_gets_404(kagent: Kagent, path: str) -> None:
    assert bad(kagent.get(path), 404) == f"the path {path} does not exist"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/tasks", "POST"),
        ("POST", "/api/me", "GET, HEAD"),
        ("POST", "/api/sessions/s", "DELETE, GET, HEAD, PATCH, PUT"),
        ("PATCH", "/api/crewai/memory", "DELETE, GET, HEAD, POST"),
        ("GET", "/api/sessions/s/restore", "POST"),
        ("OPTIONS", "/api/sessions", "GET, HEAD, POST"),
    ],
)
def test_an_unsupported_method_gets_the_allowed_methods(kagent: Kagent, method: str, path: str, allowed: str) -> None:
    reply = kagent.run(kagent.ask(method, path))
    assert method in bad(reply, 405)
    assert reply.headers["allow"] == allowed


def test_head_is_answered_like_get(kagent: Kagent) -> None:
    assert kagent.run(kagent.ask("HEAD", "/api/sessions")).status == 200
    assert kagent.run(kagent.ask("HEAD", "/api/sessions/never")).status == 404


def test_a_base_url_may_end_in_a_slash(kagent: Kagent) -> None:
    good(kagent.post("//api/sessions", {"id": "s"}), 201)
    assert [item["id"] for item in good(kagent.get("///api/sessions"))] == ["s"]


BODIES = [
    pytest.param(b"{", "is not JSON", id="truncated"),
    pytest.param(b"[]", "is invalid", id="a list"),
    pytest.param(b"null", "is invalid", id="null"),
    pytest.param(b"\xff\xfe", "is not JSON", id="not UTF-8"),
    pytest.param(b'{"id": NaN}', "is not JSON", id="NaN"),
]


@pytest.mark.parametrize(("body", "words"), BODIES)
@pytest.mark.parametrize(
    "path",
    [
        "/api/sessions",
        "/api/tasks",
        "/api/memories/search",
        "/api/langgraph/checkpoints",
        "/api/crewai/memory",
        "/api/feedback",
        "/api/toolservers",
    ],
)
def test_an_invalid_body_is_refused_with_a_message(kagent: Kagent, path: str, body: bytes, words: str) -> None:
    assert words in bad(kagent.post(path, body), 400)


def test_a_body_that_is_nested_too_deeply_is_refused(kagent: Kagent) -> None:
    for levels in (101, 5_000):
        body = b'{"id": "t", "contextId": "c", "metadata": ' + b"[" * levels + b"]" * levels + b"}"
        assert "json_depth" in bad(kagent.post("/api/tasks", body), 400)
    bad(kagent.get("/api/tasks/t"), 404)


def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    async def story() -> None:
        async with running(limits=ServerLimits(request_bytes=100, refusals_per_s=0)) as server:
            fits = {"id": "s", "name": "x" * 60}
            assert (await server.ask("POST", "/api/sessions", fits)).status == 201
            refused = await server.ask("POST", "/api/sessions", {"id": "t", "name": "x" * 100})
            assert "request_bytes" in bad(refused, 413)
            assert (await server.ask("GET", "/api/sessions/t")).status == 404

    asyncio.run(story())


@pytest.mark.parametrize(
    ("query", "user", "expected"),
    [
        ("?user_id=bob", "ada", "bob"),
        ("", "ada", "ada"),
        ("", None, DEFAULT_USER),
        ("?user_id=", None, DEFAULT_USER),
        ("?user_id=%C3%BC", None, "ü"),
        ("", "ü", "ü"),
        ("?user_id=a+b@x.com", None, "a+b@x.com"),
        ("?user_id=a&b=c", "a&b=c", "a&b=c"),
        ("?user_id=%00", None, "\x00"),
        ("?user_id=%ED%A0%80", None, "\ufffd\ufffd\ufffd"),
    ],
)
def test_the_user_is_the_one_in_query_or_header(kagent: Kagent, query: str, user: str | None, expected: str) -> None:
    assert kagent.get(f"/api/me{query}", user=user).json == {"sub": expected}
    made = good(kagent.post(f"/api/sessions{query}", {"id": "s"}, user=user), 201)
    assert made["user_id"] == expected
    assert [item["user_id"] for item in good(kagent.get(f"/api/sessions{query}", user=user))] == [expected]


def test_a_users_name_has_a_maximum_length(kagent: Kagent) -> None:
    good(kagent.post("/api/sessions", {"id": "s"}, user="x" * 255), 201)
    assert "name_bytes = 255" in bad(kagent.post("/api/sessions", {"id": "s"}, user="x" * 256), 400)
    assert "name_bytes = 255" in bad(kagent.post("/api/sessions", {"id": "s"}, user="ü" * 128), 400), "in bytes"


def test_server_errors_are_named_and_not_explained(kagent: Kagent) -> None:
    put = kagent.tenant.checkpoints.put(thread_of("h"), id="secret-id", state=b"no head", user="ada")
    kagent.run(put)
    words = bad(kagent.get("/api/langgraph/checkpoints?thread_id=h"), 500)
    assert words
    assert "secret-id" not in words


def test_requests_are_counted_by_operation(kagent: Kagent) -> None:
    async def counted() -> str:
        async with running() as server:
            for path in ("/api/sessions", "/api/sessions/never", "/api/nowhere"):
                await server.ask("GET", path)
            return (await server.ask("GET", "/metrics")).body.decode()

    text = kagent.run(counted())
    assert "kagent_list_sessions" in text
    assert "kagent_get_session" in text
    assert "nowhere" not in text, "invented paths do not become metric labels"


@pytest.mark.parametrize("number", ["x", "1.5", "", "-1", "9" * 30])
def test_a_limit_must_be_an_integer(kagent: Kagent, number: str) -> None:
    good(kagent.post("/api/sessions", {"id": "s"}), 201)
    reply = kagent.get(f"/api/sessions/s?limit={number}")
    if number in ("x", "1.5"):
        assert bad(reply, 400) == f"the parameter limit must be an integer, not {number!r}"
    else:
        assert good(reply)["events"] == []


def test_every_response_is_valid_json(kagent: Kagent) -> None:
    good(kagent.post("/api/sessions", b'{"id": "\\ud800", "name": "\\ud83d\\ude00 \\u0000"}'), 201)
    raw = kagent.get("/api/sessions").body
    assert b"\\ud800" in raw, "an unpaired surrogate is escaped, so that the JSON stays valid"
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(raw)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_operation_that_takes_too_long_is_cancelled_with_retry_after(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*arguments: Any, **options: Any) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with running(limits=ServerLimits(answer_s=0.05)) as server:
            for name in [var for var in vars(holdfast.types.AsyncSessions) if not var.startswith("_")]:
                monkeypatch.setattr(holdfast.types.AsyncSessions, name, never)
            body = {"agent_ref": "kagent/helper"} if method == "POST" else None
            reply = await server.ask(method, "/api/sessions", body, headers={"x-user-id": "ada"})
            words = bad(reply, 503)
            assert int(reply.headers["retry-after"]) > 0
            assert (words == str(OutcomeUnknown())) is (method == "POST")

    asyncio.run(main())
