"""Operations derived from methods and signatures: parameters, types, statuses, the document."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Struct

from holdfast import Filter, NewMessage, Page
from holdfast.api.auth import Caller
from holdfast.api.openapi import document
from holdfast.api.operations import Header, Operation, operation
from holdfast.api.parameters import bodies, choices, may_be_empty, parameters, without_annotations, without_none
from holdfast.api.request_body import Upload
from holdfast.api.responses import MEDIA_TYPES, Archive, Octets, PlainText
from holdfast.api.schemas import MessageToAppend, encode
from holdfast.api.state import Service
from holdfast.api.store_routes import ChangeResult, Count, CurrentId, route, version_etag
from holdfast.api.streams import Stream
from holdfast.errors import NotFound
from holdfast.ids import Id
from holdfast.types import ApiKey

T = "/v1/tenants/{tenant}"

# Operations derived from methods


class Thing(Struct, frozen=True):
    """A thing."""

    id: str
    version: int


class Given(Struct, frozen=True):
    """Input."""

    name: str


class Store:
    """Methods of every shape."""

    async def list(
        self, *, limit: int | None = None, cursor: str | None = None, where: Sequence[Filter] = ()
    ) -> Page[Thing]:
        """Pages."""
        raise NotFound

    async def several(self) -> Sequence[Thing]:
        """All."""
        raise NotFound

    async def drop(self, thing_id: str, *, reason: str | None = None) -> bool:
        """Whether."""
        return True

    async def count(self, *, since: datetime | None = None) -> int:
        """How many."""
        return 7

    async def current(self) -> str | None:
        """Which."""
        return None

    async def table(self) -> Mapping[str, Thing]:
        """By name."""
        return {}

    async def add(
        self, given: Given, *, messages: Sequence[NewMessage] = (), metadata: Mapping[str, Any], id: str | None = None
    ) -> None:
        """Add ``one``.

        Args:
            given: not told.
        """


def derive(verb: str, method: Any, name: str = "do_it", path: str = "/things", **more: Any) -> Operation:
    return route(verb, T + path, "things", method, name, area="agents", **more)


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        (Store.list, {"items", "next"}),
        (Store.several, {"items"}),
        (Store.count, {"count"}),
        (Store.current, {"id"}),
    ],
)
def test_results_are_converted_to_response_types(method: Any, fields: set[str]) -> None:
    shape = derive("GET", method).function.__annotations__["return"]
    assert {field.name for field in msgspec.structs.fields(shape)} == fields


def test_plain_results_have_a_name_in_json() -> None:
    assert encode(Count(7)) == b'{"count":7}'
    assert encode(ChangeResult(True)) == b'{"done":true}'
    assert encode(CurrentId(None)) == b'{"id":null}'
    assert version_etag(Thing("a", 12)) == '"12"'
    assert derive("GET", Store.table).function.__annotations__["return"] == dict[str, Thing]


@pytest.mark.parametrize(
    ("verb", "name", "status"),
    [
        ("POST", "create_thing", 204),
        ("POST", "do_it", 204),
        ("PUT", "create_thing", 204),
    ],
)
def test_no_result_is_a_response_without_a_body(verb: str, name: str, status: int) -> None:
    assert derive(verb, Store.add, name).status == status
    assert derive(verb, Store.add, name, status=202).status == 202


@pytest.mark.parametrize(
    ("verb", "name", "status"),
    [("POST", "start_thing", 201), ("POST", "append_thing", 201), ("POST", "drop_thing", 200), ("PUT", "start_x", 200)],
)
def test_creation_by_post_has_status_201(verb: str, name: str, status: int) -> None:
    assert derive(verb, Store.drop, name, "/things/{thing_id}").status == status


def test_arguments_are_query_parameters_of_reads_and_body_fields_of_writes() -> None:
    reading = {parameter.name: parameter for parameter in parameters(derive("GET", Store.list))}
    assert {name: item.place for name, item in reading.items()} == {
        "tenant": "path",
        "limit": "query",
        "cursor": "query",
        "where": "query",
    }
    assert (reading["limit"].default, reading["where"].as_json, reading["where"].repeated) == (100, True, True)
    (body,) = bodies(derive("PUT", Store.add))
    assert {field.name: field.required for field in msgspec.structs.fields(body)} == {
        "given": True,
        "metadata": True,
        "messages": False,
        "id": False,
    }
    assert not may_be_empty(derive("PUT", Store.add))
    assert may_be_empty(derive("POST", Store.drop, path="/things/{thing_id}"))
    assert bodies(derive("POST", Store.several)) == ()


def test_input_types_forbid_unknown_fields() -> None:
    (body,) = bodies(derive("PUT", Store.add))
    good = {"given": {"name": "x"}, "metadata": {}, "messages": [{"role": "user", "content": "x"}]}
    read = msgspec.convert(good, body)
    assert isinstance(read.messages[0], MessageToAppend)
    for wrong in ({"given": {"name": "x", "colour": 1}}, {"messages": [{"content": "x", "colour": 1}]}, {"colour": 1}):
        with pytest.raises(msgspec.ValidationError, match="colour"):
            msgspec.convert({**good, **wrong}, body)


def test_omitted_and_fixed_arguments_are_not_part_of_the_request() -> None:
    fixed = derive("PUT", Store.add, leave_out=["messages"], fixed={"metadata": {}})
    assert {field.name for field in msgspec.structs.fields(bodies(fixed)[0])} == {"given", "id"}
    assert [parameter.wire_name for parameter in parameters(fixed)] == ["tenant", "Idempotency-Key"]
    without = derive("PUT", Store.add, leave_out=["id"])
    assert [parameter.wire_name for parameter in parameters(without)] == ["tenant"]


def test_descriptions_for_python_only_are_removed() -> None:
    assert derive("PUT", Store.add).function.__doc__ == "Add `one`."
    assert derive("PUT", Store.add, summary="Other ``words``.").function.__doc__ == "Other `words`."


def test_ids_are_detected_by_their_type() -> None:
    class Verified:
        async def verify(
            self, *, after: Id | None = None, ids: Sequence[Id] = (), session_id: str = ""
        ) -> Sequence[bool]:
            """Verify."""
            return []

    whole = document([derive("GET", Verified.verify)])
    by_name = {
        parameter["name"]: parameter["schema"] for parameter in whole["paths"][T + "/things"]["get"]["parameters"]
    }
    assert by_name["after"]["format"] == by_name["ids"]["items"]["format"] == "uuid"
    assert "format" not in by_name["session_id"]
    assert derive("GET", Verified.verify).function.__annotations__["return"].__name__ == "BoolList"


def test_an_operation_names_its_store_method() -> None:
    assert derive("GET", Store.count).function.made_from == ("things", Store.count)  # type: ignore[attr-defined]


def test_a_global_store_is_called_with_the_name_of_the_tenant() -> None:
    asked: list[str] = []

    class Tenants:
        async def weigh(self, tenant: str) -> int:
            """Weigh."""
            asked.append(tenant)
            return 7

    class Holdfast:
        tenants = Tenants()

    class Serving:
        holdfast = Holdfast()

    made_from_it = route("GET", T + "/weight", "tenants", Tenants.weigh, "weigh_tenant")
    assert asyncio.run(made_from_it.function(Serving(), tenant="acme")) == Count(7)
    assert asked == ["acme"]


def test_a_time_requires_a_time_zone() -> None:
    (since,) = (parameter for parameter in parameters(derive("GET", Store.count)) if parameter.name == "since")
    assert msgspec.convert("2030-01-31T12:00:00Z", since.type, strict=False) == datetime(2030, 1, 31, 12, tzinfo=UTC)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert("2030-01-31T12:00:00", since.type, strict=False)


# Types of parameters


@pytest.mark.parametrize(
    ("hint", "bare"),
    [
        (str | None, str),
        (str, str),
        (int | str | None, int | str),
        (Annotated[str | None, Header("X")], str),
        (Annotated[str | None, Meta(min_length=1)], Annotated[str, Meta(min_length=1)]),
        (list[int] | None, list[int]),
    ],
)
def test_optional_types_are_unwrapped(hint: Any, bare: Any) -> None:
    assert without_none(hint) == bare


def test_annotations_and_unions_are_taken_apart() -> None:
    assert without_annotations(Annotated[Annotated[int, Meta(ge=1)], Meta(le=2)]) is int
    assert choices(int | str) == (int, str)
    assert choices(list[int]) == (list[int],)


@pytest.mark.parametrize(
    ("path", "area", "tag"),
    [
        (T + "/sessions/{session_id}/messages", "", "messages"),
        (T + "/sessions/{session_id}", "", "sessions"),
        (T, "", "tenants"),
        (T + "/search", "messages", "messages"),
        ("/metrics", "", "server"),
    ],
)
def test_the_tag_of_an_operation_is_from_its_path_or_explicit(path: str, area: str, tag: str) -> None:
    assert Operation("GET", path, Store.several, 200, (), None, area=area).tag == tag


def test_the_errors_of_an_operation_depend_on_what_it_does() -> None:
    reading = Operation("GET", "/v1/x", Store.several, 200, (NotFound,), None)
    assert reading.statuses == [200, 400, 401, 403, 404, 422, 429, 500, 503]
    open_one = Operation("GET", "/healthz", Store.several, 200, (), None, need="open")
    assert open_one.statuses == [200, 400, 403, 500]
    assert {408, 413, 415, 507} <= set(derive("PUT", Store.add).statuses)


# The document


@operation("POST", "/v1/things/{thing}", status=201, raises=[NotFound], etag=version_etag, need="admin", area="agents")
async def put_thing(service: Service, *, thing: str, body: Given, at: datetime, caller: Caller) -> Thing | ApiKey:
    """Put it.

    And more words.
    """
    raise NotFound


def test_the_document_describes_permissions_and_responses() -> None:
    whole = document([put_thing.operation])  # type: ignore[attr-defined]
    text = whole["paths"]["/v1/things/{thing}"]["post"]
    assert (text["operationId"], text["summary"], text["description"]) == ("put_thing", "Put it.", "And more words.")
    assert (text["security"], text["x-scope"], text["tags"]) == (
        [{"key": []}, {"key_header": []}],
        "admin",
        ["agents"],
    )
    assert [parameter["name"] for parameter in text["parameters"]] == ["thing", "at"], "the caller is not a parameter"
    good = text["responses"]["201"]
    assert len(good["content"]["application/json"]["schema"]["oneOf"]) == 2
    assert "ETag" in good["headers"]
    assert text["requestBody"]["required"] is True
    assert [tag["name"] for tag in whole["tags"]] == ["agents"]
    assert "Retry-After" in whole["components"]["responses"]["429"]["headers"]
    assert whole["components"]["schemas"]["ApiKey"]["properties"]["created_at"]["format"] == "date-time"


@operation("POST", "/v1/things/{thing}/archive", status=201, area="agents", streams=True)
async def take_archive(service: Service, *, thing: str, upload: Upload) -> Archive:
    """Take it."""
    raise NotFound


@operation("GET", "/v1/things/{thing}/bytes", area="agents", etag=version_etag)
async def give_bytes(service: Service, *, thing: str) -> Octets:
    """Give it."""
    raise NotFound


@operation("GET", "/v1/things/{thing}/events", area="agents", streams=True)
async def give_events(service: Service, *, thing: str) -> Stream:
    """Tell it."""
    raise NotFound


@operation("GET", "/v1/things/{thing}/text", area="agents")
async def give_text(service: Service, *, thing: str) -> PlainText:
    """Say it."""
    raise NotFound


def described(function: Any) -> dict[str, Any]:
    row: Operation = function.operation
    one_described: dict[str, Any] = document([row])["paths"][row.path][row.method.lower()]
    return one_described


def test_the_document_describes_bodies_that_are_not_json() -> None:
    text = described(take_archive)
    assert list(text["requestBody"]["content"]) == ["application/zstd"]
    assert text["requestBody"]["required"] is True
    assert [parameter["name"] for parameter in text["parameters"]] == ["thing"], "the body is not a parameter"
    assert {"408", "413", "415"} <= set(text["responses"])
    assert bodies(take_archive.operation) == ()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "status", "kind"),
    [
        (take_archive, "201", "application/zstd"),
        (give_bytes, "200", "application/octet-stream"),
        (give_events, "200", "text/event-stream"),
        (give_text, "200", "text/plain"),
    ],
)
def test_the_document_describes_responses_that_are_not_json(function: Any, status: str, kind: str) -> None:
    assert list(described(function)["responses"][status]["content"]) == [kind]
    assert set(MEDIA_TYPES.values()) == {"text/plain", "application/octet-stream", "application/zstd"}


def test_the_document_describes_etags_of_binary_responses() -> None:
    assert "ETag" in described(give_bytes)["responses"]["200"]["headers"]
    assert "headers" not in described(give_text)["responses"]["200"]
