"""Unit tests of the server's parts, where every input can be tried: JSON, paths, parameters, headers."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Annotated, Any
from urllib.parse import quote
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Meta, Struct
from starlette.types import Message as Event

from holdfast import Filter
from holdfast.api.app import application
from holdfast.api.handler import operation_routes
from holdfast.api.idempotency import chosen_id, retry_id
from holdfast.api.limits import ServerLimits
from holdfast.api.openapi import document
from holdfast.api.operations import Header, Operation, collect, operation
from holdfast.api.origin_check import is_local
from holdfast.api.pagination import filters
from holdfast.api.parameters import parameters
from holdfast.api.problems import NoSuchRoute, answer
from holdfast.api.routing import Router
from holdfast.api.schemas import Problem, decode, encode, parse_time, present_fields
from holdfast.api.state import Service
from holdfast.errors import Closed, HoldfastError, InvalidInput, LimitExceeded, NotFound, OutcomeUnknown
from holdfast.types import Message, Session
from tests.api.process import BEARER
from tests.errors import raises

TEXT = st.text(st.characters(codec=None))  # type: ignore[arg-type]  # lone surrogates too
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
ANY = msgspec.json.Decoder()


class Answer:
    """The response of an ASGI application."""

    def __init__(self, events: list[Event]) -> None:
        self.status: int = events[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in events[0]["headers"]}
        self.body = b"".join(event.get("body", b"") for event in events[1:])


def send_request(app: Any, method: str, path: str, *, body: list[Event] | None = None, **headers: str) -> Answer | None:
    """Send one request to an ASGI application, without a socket."""
    raw, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": raw,
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()],
        "path_params": {},
    }
    events: list[Event] = []
    coming = iter(body or [{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Event:
        return next(coming)

    async def send(event: Event) -> None:
        events.append(event)

    asyncio.run(app(scope, receive, send))
    return Answer(events) if events else None


# JSON


@given(JSON)
def test_every_json_value_survives_encoding_and_decoding(value: Any) -> None:
    assert decode(encode(value), ANY) == value


@given(JSON)
def test_json_of_the_standard_library_is_decoded_equally(value: Any) -> None:
    assert decode(json.dumps(value), ANY) == json.loads(json.dumps(value))


@given(st.binary(max_size=30) | st.text(alphabet='[]{}",:\\ud8\n', max_size=30).map(str.encode))
def test_any_input_is_decoded_as_json_or_refused(data: bytes) -> None:
    try:
        result = decode(data, ANY)
    except (InvalidInput, LimitExceeded):
        return
    assert result == json.loads(data)


@pytest.mark.parametrize("data", ['["\\ud800", NaN]', '["\\ud800", Infinity]', '["\\ud800"', '{"a": "\\ud800"} x'])
def test_json_with_a_lone_surrogate_is_otherwise_checked(data: str) -> None:
    with raises(InvalidInput, field="body") as refused:
        decode(data, ANY)
    assert not isinstance(refused.value.__context__, msgspec.ValidationError)


def test_a_lone_surrogate_can_be_decoded_into_a_struct() -> None:
    class Body(Struct, forbid_unknown_fields=True):
        text: str

    decoder = msgspec.json.Decoder(Body)
    assert decode(b'{"text": "a\\udfffb"}', decoder) == Body("a\udfffb")
    with raises(InvalidInput, field="body") as refused:
        decode(b'{"text": 7, "other": "\\udfff"}', decoder)
    assert isinstance(refused.value.__context__, msgspec.ValidationError)


def test_only_sent_fields_are_passed_on() -> None:
    class Body(Struct):
        a: int | msgspec.UnsetType = UNSET
        b: int | msgspec.UnsetType | None = UNSET

    assert present_fields(Body(b=None)) == {"b": None}


@pytest.mark.parametrize(
    "value", ["2030-01-31", "2030-01-31T12:00:00", "soon", 7, None, True, ["2030-01-31T12:00:00Z"]]
)
def test_a_time_without_a_time_zone_is_refused(value: Any) -> None:
    with raises(InvalidInput, field="time"):
        parse_time(value)


def test_times_in_filters_are_parsed_and_text_is_not() -> None:
    at = "2030-01-31T12:00:00Z"
    on_time, on_text, on_meta = filters(
        [Filter("lt", at, column="created_at"), Filter("eq", at, column="key"), Filter("eq", at, meta="created_at")],
        Session,
    )
    assert on_time.value == parse_time(at)
    assert (on_text.value, on_meta.value) == (at, at)
    assert filters([Filter("eq", None, column="deleted_at")], Session)[0].value is None
    assert filters(None, Message) == []


# Paths


class Body(Struct, frozen=True, forbid_unknown_fields=True):
    """A body."""

    n: int


@operation("GET", "/things/{thing}/parts/{part}", raises=[NotFound], need="open")
async def get_part(
    service: Service,
    *,
    thing: str,
    part: str,
    limit: Annotated[int, Meta(ge=1)] = 10,
    flag: bool = False,
    tag: list[str] | None = None,
    shape: dict[str, Any] | None = None,
    secret: Annotated[str | None, Header("X-Secret")] = None,
) -> dict[str, Any]:
    """One part."""
    return {
        "thing": thing,
        "part": part,
        "limit": limit,
        "flag": flag,
        "tag": tag,
        "shape": shape,
        "secret": secret,
    }


@operation("GET", "/things/{thing}/parts/first", need="open")
async def first_part(service: Service, *, thing: str) -> dict[str, Any]:
    """The first part."""
    return {"first": thing}


@operation("POST", "/things/{thing}", status=201, need="open")
async def add(service: Service, *, thing: str, body: Body) -> Body:
    """Add."""
    return body


@operation("POST", "/things/{thing}/break", need="open")
async def break_it(service: Service, *, thing: str) -> Body:
    """Break."""
    raise ZeroDivisionError("hunter2")


@operation("POST", "/things/{thing}/lose", need="open")
async def lose(service: Service, *, thing: str) -> Body:
    """Lose the answer."""
    with retry_id(thing):
        raise OutcomeUnknown


PARTS: list[Operation] = [value.operation for value in (get_part, first_part, add, break_it, lose)]  # type: ignore[attr-defined]
SMALL = Service(":memory:", ServerLimits(request_bytes=20))


def router(*operations: Operation) -> Router:
    """Return a router of these operations."""
    return Router(SMALL, operation_routes(SMALL, operations), lambda error, path: answer(error, SMALL.limits))


ROUTER = router(*PARTS)


def request_part(path: str, method: str = "GET", **more: Any) -> Answer | None:
    """Send a request to the operations above."""
    return send_request(ROUTER, method, path, **more)


def read(answer: Answer | None, status: int = 200) -> Any:
    """Check the status of a response and return its JSON body."""
    assert answer is not None
    assert answer.status == status, answer.body
    return json.loads(answer.body)


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_name_can_be_part_of_a_path(thing: str, name: str) -> None:
    result = read(request_part(f"/things/{quote(thing, safe='')}/parts/{quote(name, safe='')}"))
    expected = {"first": thing} if name == "first" else {"thing": thing, "part": name}
    assert expected.items() <= result.items()


@pytest.mark.parametrize(
    "path", ["/", "/things", "/things/", "/things/a/", "/things/a/parts", "/things//parts/b", "//", "/x"]
)
def test_unknown_paths_do_not_match(path: str) -> None:
    with pytest.raises(NoSuchRoute):
        ROUTER.match({"method": "GET", "path": path, "raw_path": path.encode()})


def test_a_path_below_a_mount_point_matches() -> None:
    mounted = {"method": "POST", "path": "/hf/things/a", "raw_path": b"/hf/things/a", "root_path": "/hf"}
    without_raw = {"method": "POST", "path": "/things/ä"}
    assert ROUTER.match(mounted).path == ROUTER.match(without_raw).path == "/things/{thing}"
    assert (mounted["path_params"], without_raw["path_params"]) == ({"thing": "a"}, {"thing": "ä"})


def test_path_parameters_belong_to_one_request() -> None:
    for _ in range(2):
        result = read(request_part("/things/a%2Fb/parts/b?limit=3"))
        assert (result["thing"], result["part"], result["limit"]) == ("a/b", "b", 3)
        assert read(request_part("/things/a%2Fb/parts/b"))["limit"] == 10


def test_each_route_uses_the_parameter_names_of_its_own_path() -> None:
    other = Operation("DELETE", "/things/{other}/parts/{one}", get_part, 200, (), None)
    scope: dict[str, Any] = {"method": "DELETE", "path": "/things/a/parts/b"}
    router(*PARTS, other).match(scope)
    assert scope["path_params"] == {"other": "a", "one": "b"}


def test_two_routes_for_one_method_and_path_are_an_error() -> None:
    with pytest.raises(ValueError, match="GET"):
        router(*PARTS, PARTS[0])


# Parameters


def test_parameters_are_taken_from_where_the_signature_states() -> None:
    result = read(request_part('/things/a/parts/b?limit=3&flag=true&tag=x&tag=y&shape={"k":[1]}', x_secret="s"))
    assert result == {
        "thing": "a",
        "part": "b",
        "limit": 3,
        "flag": True,
        "tag": ["x", "y"],
        "shape": {"k": [1]},
        "secret": "s",
    }
    assert read(request_part("/things/a/parts/b"))["limit"] == 10


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("limit=0", "limit"),
        ("limit=1&limit=2", "twice"),
        ("limit=", "limit"),
        ("flag=2", "flag"),
        ("shape=[]", "shape"),
        ("shape={", "shape"),
        ("part=c", "'part'"),
        ("X-Secret=s", "X-Secret"),
        ("secret=s", "secret"),
        ("other=1", "parameters of this operation: limit, flag, tag, shape"),
    ],
)
def test_an_invalid_or_unknown_parameter_is_refused(query: str, hint: str) -> None:
    assert hint in read(request_part(f"/things/a/parts/b?{query}"), 400)["detail"]


def test_the_document_matches_the_handlers() -> None:
    described = document(PARTS)["paths"]["/things/{thing}/parts/{part}"]["get"]
    by_name = {parameter["name"]: parameter for parameter in described["parameters"]}
    assert set(by_name) == {parameter.wire_name for parameter in parameters(PARTS[0])}
    assert by_name["limit"] == {
        "name": "limit",
        "in": "query",
        "required": False,
        "schema": {"type": "integer", "minimum": 1, "default": 10},
    }
    assert by_name["X-Secret"]["in"] == "header"
    assert by_name["thing"]["required"] is True
    assert by_name["shape"]["content"] == {"application/json": {"schema": {"type": "object"}}}
    assert by_name["tag"]["schema"] == {"type": "array", "items": {"type": "string"}}
    assert list(described["responses"]) == ["200", "400", "403", "404", "500"]


def test_operations_are_collected_in_the_order_of_definition() -> None:
    class Module:
        pass

    module = Module()
    module.__dict__.update({"b": break_it, "number": 7, "a": add})
    assert [item.function for item in collect(module)] == [break_it, add]


# Bodies


def chunks(*parts: bytes) -> list[Event]:
    """Return the events of a body in several chunks."""
    return [
        {"type": "http.request", "body": part, "more_body": place < len(parts) - 1} for place, part in enumerate(parts)
    ]


def test_a_body_can_arrive_in_chunks() -> None:
    body = chunks(b'{"n"', b"", b": 1}")
    assert read(request_part("/things/a", "POST", body=body, content_type="application/json"), 201) == {"n": 1}


def test_a_body_over_the_limit_is_read_up_to_four_times_the_limit() -> None:
    endless = chunks(*[b"x" * 10] * 1_000)
    answer = request_part("/things/a", "POST", body=endless, content_type="application/json")
    assert "request_bytes" in read(answer, 413)["detail"]
    assert answer is not None
    assert answer.headers["connection"] == "close"


def test_a_body_that_is_declared_too_large_is_not_requested() -> None:
    nothing: list[Event] = [{"type": "never"}]
    headers = {"content_type": "application/json", "content_length": "21", "expect": "100-continue"}
    read(request_part("/things/a", "POST", body=nothing, **headers), 413)
    headers = {"content_type": "application/json", "content_length": "1000"}
    read(request_part("/things/a", "POST", body=nothing, **headers), 413)


def test_a_disconnected_client_gets_no_response() -> None:
    left: list[Event] = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    assert request_part("/things/a", "POST", body=left, content_type="application/json") is None


# Errors


def test_an_unexpected_error_is_logged_and_not_disclosed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "holdfast.api"):
        answer = request_part("/things/a/break", "POST")
    assert msgspec.json.decode(answer.body if answer else b"", type=Problem) == Problem(
        "about:blank", "Internal Server Error", 500, "An unexpected error occurred."
    )
    assert "hunter2" in caplog.text


def test_an_unknown_outcome_contains_the_id_even_if_the_caller_chose_none() -> None:
    id = str(uuid4())
    answer = request_part(f"/things/{id}/lose", "POST")
    assert (read(answer, 503)["type"], read(answer, 503)["id"]) == ("OutcomeUnknown", id)
    with pytest.raises(OutcomeUnknown) as told, retry_id("ours"):
        raise OutcomeUnknown(id="theirs")
    assert told.value.id == "theirs"


def test_ids_are_taken_from_the_body_or_the_header_or_generated() -> None:
    one, two = str(uuid4()), str(uuid4())
    assert chosen_id(SMALL, one, None) == chosen_id(SMALL, UNSET, one) == chosen_id(SMALL, None, f' "{one}" ') == one
    assert chosen_id(SMALL, one, one.upper()) == one
    assert chosen_id(SMALL, None, None) != chosen_id(SMALL, None, None)
    with raises(InvalidInput, field="Idempotency-Key"):
        chosen_id(SMALL, one, two)


def test_a_server_that_was_not_started_answers_closed() -> None:
    answer = send_request(application(":memory:"), "GET", "/v1/tenants", **BEARER)
    assert read(answer, 503)["type"] == "Closed"
    with pytest.raises(Closed):
        _ = SMALL.holdfast
    assert read(send_request(application(":memory:"), "GET", "/healthz")) == {"status": "ok"}


def test_a_database_that_cannot_be_opened_prevents_the_start() -> None:
    service = Service("no/such/folder/agents.db", ServerLimits())

    async def start() -> None:
        async with service.lifespan(None):
            raise AssertionError("it started")

    with pytest.raises(HoldfastError):
        asyncio.run(start())
    assert service.failure is not None


def test_a_path_with_get_also_supports_head() -> None:
    assert read(request_part("/things/a/parts/b", "PUT"), 405)["status"] == 405
    refusal = request_part("/things/a/parts/b", "PUT")
    assert refusal is not None
    assert refusal.headers["allow"] == "GET, HEAD"
    refusal = request_part("/things/a", "HEAD")
    assert refusal is not None
    assert (refusal.status, refusal.headers["allow"]) == (405, "POST")
    head = request_part("/things/a/parts/b", "HEAD")
    assert head is not None
    assert (head.status, head.body) == (200, b"")


# Host and origin


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.255.1.2", "::1"])
def test_loopback_names_are_local(name: str) -> None:
    assert is_local(name)


@pytest.mark.parametrize(
    "name", ["", "localhost.evil.example", "0.0.0.0", "::", "10.0.0.1", "127.0.0.1.nip.io", "2130706433"]
)
def test_other_names_are_not_local(name: str) -> None:
    assert not is_local(name)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "LOCALHOST:1"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "[bad"}, 403),
        ({"host": "localhost", "origin": "http://localhost"}, 200),
        ({"host": "localhost", "origin": "http://localhost:9"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_host_and_origin_are_checked(headers: dict[str, str], status: int) -> None:
    answer = send_request(application(":memory:"), "GET", "/healthz", **headers)
    assert answer is not None
    assert answer.status == status


def test_a_remote_server_accepts_any_host_but_no_other_origin() -> None:
    app = application(":memory:", local_only=False)
    assert read(send_request(app, "GET", "/healthz", host="agents.example")) == {"status": "ok"}
    read(send_request(app, "GET", "/healthz", host="agents.example", origin="https://evil.example"), 403)
