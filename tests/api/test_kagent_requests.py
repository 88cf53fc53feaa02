"""Unit tests of kagent's protocol: users, parameters, paths and response formats."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast import Write
from holdfast.api import ServerLimits
from holdfast.api.app import build
from holdfast.api.kagent import checkpoints, is_kagent_path, sessions
from holdfast.api.kagent.request import (
    DEFAULT_USER,
    KagentRequest,
    agent_id,
    bare,
    failure,
    header,
    parameters,
    success,
    user_of,
)
from holdfast.api.kagent.routing import declared_routes, routes
from holdfast.api.problems import NoSuchRoute, answer
from holdfast.api.routing import Router
from holdfast.api.state import Service
from holdfast.clock import from_us
from holdfast.errors import InvalidInput
from holdfast.types import Session, TaskWrites
from tests.errors import raises

USERS = [
    ("user_id=ada", None, "ada"),
    ("user_id=ada", "bob", "ada"),
    ("", "bob", "bob"),
    ("user_id=", "bob", "bob"),
    ("", None, DEFAULT_USER),
    ("order=asc&user_id=a%2Bb%40x.com&limit=-1", None, "a+b@x.com"),
    ("user_id=a+b@x.com", None, "a+b@x.com"),
    ("user_id=a+b%40x.com", None, "a b@x.com"),
    ("user_id=John+Doe", None, "John Doe"),
    ("user_id=John%20D+e", None, "John D+e"),
    ("user_id=a+b", "a+b", "a+b"),
    ("user_id=a+b", "a b", "a b"),
    ("user_id=a&b=1", "a&b=1", "a&b=1"),
    ("user_id=a", "a#b", "a#b"),
    ("user_id=a", "ab", "a"),
    ("user_id=%C3%BC", None, "ü"),
    ("user_id=one&user_id=two", None, "one"),
]


@pytest.mark.parametrize(("query", "in_header", "user"), USERS)
def test_the_user_is_determined_from_query_and_header(query: str, in_header: str | None, user: str) -> None:
    assert user_of(query, in_header) == user


@pytest.mark.parametrize(
    ("reference", "id"),
    [
        ("kagent/my-agent", "kagent__NS__my_agent"),
        ("kagent__NS__my_agent", "kagent__NS__my_agent"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_an_agent_has_one_canonical_id(reference: str, id: str) -> None:
    assert agent_id(reference) == id
    assert agent_id(agent_id(reference)) == id


def test_the_first_of_repeated_parameters_is_used() -> None:
    assert parameters("a=1&a=2&b=&c&d=x%20y+z") == {"a": "1", "b": "", "c": "", "d": "x y z"}
    assert parameters("") == {}


def test_an_empty_header_is_missing() -> None:
    headers = {b"x-user-id": b"  ", b"x-agent-name": " ada ü".encode()}
    assert header(headers, b"x-user-id") is None
    assert header(headers, b"x-agent-name") == "ada ü"
    assert header(headers, b"absent") is None


def make_request(query: str = "", data: bytes = b"", **headers: str) -> KagentRequest:
    """Return a request without a server."""
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    nothing: Any = None
    return KagentRequest(nothing, nothing, {}, named, query, data)


class Body(msgspec.Struct):
    """A body with a default."""

    n: int = 7


def test_a_missing_body_is_an_empty_object() -> None:
    decoder = msgspec.json.Decoder(Body)
    assert make_request().body(decoder).n == 7
    assert make_request(data=b'{"n": 3, "unknown": 1}').body(decoder).n == 3
    for bad in (b"[]", b"{", b'{"n": "x"}'):
        with raises(InvalidInput, field="body"):
            make_request(data=bad).body(decoder)


def test_missing_and_invalid_parameters_are_refused() -> None:
    assert make_request("limit=-1").number("limit", 5) == -1
    assert make_request("limit=").number("limit", 5) == 5
    assert make_request().number("limit", 5) == 5
    with raises(InvalidInput, field="limit"):
        make_request("limit=many").number("limit", 5)
    assert make_request("q=x").required("q") == "x"
    with raises(InvalidInput, field="q"):
        make_request("q=").required("q")


def test_a_request_has_a_user_and_a_version() -> None:
    plain = make_request()
    assert (plain.user, plain.agent, plain.share_token, plain.version) == (DEFAULT_USER, "", None, "0.3")
    full = make_request(x_user_id="ada", x_agent_name="ns/a-b", x_share_token="t", a2a_version="1.0")
    assert (full.user, full.agent, full.share_token, full.version) == ("ada", "ns__NS__a_b", "t", "1.0")


def test_a_response_always_has_data() -> None:
    for data in ([], {}, "x"):
        body = msgspec.json.decode(success(data, "m", 201).body)
        assert body == {"error": False, "data": data, "message": "m"}
    assert bare([1]).body == b"[1]"
    refused = failure(404, "not here", {"allow": "GET"})
    assert (refused.status_code, refused.body, refused.headers["allow"]) == (404, b'{"error":"not here"}', "GET")


def test_every_route_is_declared_once_with_its_permission() -> None:
    result = declared_routes()
    places = [(row.method, row.path) for row in result]
    assert len(set(places)) == len(places) > 40
    for item in result:
        assert item.need == ("read" if item.method == "GET" else "write")
        assert item.handler.__doc__, item.path
        assert item.path.startswith("/api/") or item.path in ("/health", "/version")


def test_a_literal_segment_precedes_a_parameter_and_parameters_are_decoded() -> None:
    service = Service(":memory:", ServerLimits())
    router = Router(service, routes(service), lambda error, path: answer(error, service.limits))

    def found(path: str) -> tuple[str, dict[str, str]]:
        scope: dict[str, Any] = {"method": "GET", "path": path, "raw_path": path.encode()}
        return router.match(scope).path, scope["path_params"]

    assert found("/api/sessions/agent/ns/x") == (
        "/api/sessions/agent/{namespace}/{name}",
        {"namespace": "ns", "name": "x"},
    )
    assert found("/api/sessions/agent") == ("/api/sessions/{session_id}", {"session_id": "agent"})
    assert found("/api/sessions/a%2Fb%20c/tasks") == ("/api/sessions/{session_id}/tasks", {"session_id": "a/b c"})
    assert found("//api/sessions")[0] == found("///api/sessions")[0] == "/api/sessions"
    for absent in ("/api", "/api/sessions/", "/api/sessions//tasks", "/api/tasks/x/y/z/w"):
        with pytest.raises(NoSuchRoute):
            found(absent)


@pytest.mark.parametrize(
    ("path", "is_kagents"),
    [("/api/tasks", True), ("/health", True), ("/v1/tenants", False), ("/", False), ("/api", False)],
)
def test_only_kagents_paths_have_kagents_errors(path: str, is_kagents: bool) -> None:
    assert is_kagent_path(path) is is_kagents


def respond(path: str, **more: Any) -> tuple[int, bytes]:
    """Return the response of a server that is not open."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "path": path,
        "raw_path": path.encode(),
        "method": "GET",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer hf_" + b"0" * 48)],
    }
    app = build(Service(":memory:", ServerLimits()), local_only=True)
    asyncio.run(app({**scope, **more}, receive, send))
    return sent[0]["status"], sent[1]["body"]


def test_errors_have_kagents_format() -> None:
    assert respond("/api/nothing") == (404, b'{"error":"the path /api/nothing does not exist"}')
    assert respond("//api/nothing")[1].startswith(b'{"error":')
    assert respond("/api/tasks", method="PUT")[0] == 405
    status, body = respond("/api/sessions")
    assert (status, b"error" in body) == (503, True), "a server that is not open only states that"


SESSION = Session(
    id="0197f4c0-0000-7000-8000-000000000001",
    key="s",
    user="u",
    agent="a",
    metadata={"name": 3, "source": "agent"},
    message_count=0,
    token_count=0,
    compaction_count=0,
    created_at=from_us(0),
    updated_at=from_us(1),
)


def test_the_message_id_of_an_event_depends_on_the_session() -> None:
    other = msgspec.structs.replace(SESSION, id="0197f4c0-0000-7000-8000-000000000002")
    assert sessions.message_id(SESSION, "e") == sessions.message_id(SESSION, "e")
    assert (
        len({sessions.message_id(value, event) for value in (SESSION, other) for event in ("e", "f", "", "\x00")}) == 8
    )


def test_empty_fields_of_a_session_are_omitted() -> None:
    body = msgspec.json.decode(msgspec.json.encode(sessions.wire_session(SESSION)))
    assert body == {
        "id": "s",
        "user_id": "u",
        "agent_id": "a",
        "source": "agent",
        "created_at": "1970-01-01T00:00:00Z",
        "updated_at": "1970-01-01T00:00:00.000001Z",
    }
    shared = msgspec.json.decode(
        msgspec.json.encode(sessions.wire_session(SESSION, share_token="t", share_read_only=False))
    )
    assert (shared["share_token"], shared["share_read_only"]) == ("t", False)


def test_the_choice_of_the_task_does_not_depend_on_the_order() -> None:
    tasks = [
        TaskWrites("a", "", [Write(0, "x")]),
        TaskWrites("b", "", [Write(-3, "__interrupt__")]),
        TaskWrites("c", "", [Write(-4, "__resume__"), Write(-3, "__interrupt__")]),
        TaskWrites(checkpoints.NO_TASK, "", [Write(0, "x"), Write(1, "y")]),
    ]
    for turn in range(len(tasks)):
        result = checkpoints.preferred_task(tasks[turn:] + tasks[:turn])
        assert result is not None
        assert result.task_id == "c"
    assert checkpoints.preferred_task([tasks[0], tasks[1]]) is tasks[0]
    assert checkpoints.preferred_task([tasks[3], tasks[1]]) is tasks[1]
    assert checkpoints.preferred_task([tasks[1], TaskWrites("d", "", [Write(-1, "__error__")])]) is tasks[1]
    assert checkpoints.preferred_task([tasks[3]]) is tasks[3]
    assert checkpoints.preferred_task([]) is None
