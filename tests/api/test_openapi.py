"""The OpenAPI document is valid, and the server behaves as documented."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from holdfast import NewMessage
from holdfast.api.openapi import document
from holdfast.api.operations import Operation
from holdfast.api.parameters import parameters
from holdfast.api.resources import OPERATIONS
from holdfast.api.responses import ARCHIVE_TYPE
from holdfast.api.schemas import MessageToAppend, Role
from holdfast.types import Message
from tests.api.process import BEARER, WAIT_S, Api, ServerProcess, json_of

DOCUMENT = document(OPERATIONS)
LOADED = schemathesis.openapi.from_dict(DOCUMENT)
CHECKED = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
]
MAX_ADDRESS = 20_000
"""Characters of a query; much longer ones are refused by uvicorn itself, with a plain-text response."""
REFUSED = [*CHECKED, "negative_data_rejection"]


@schemathesis.serializer(ARCHIVE_TYPE)
def _as_it_is(context: Any, value: Any) -> Any:
    return value if isinstance(value, bytes) else str(value).encode()


def test_the_server_returns_the_document(server: ServerProcess) -> None:
    assert json_of(server.http.get("/openapi.json")) == DOCUMENT


def test_the_document_is_valid_openapi_3_1() -> None:
    loaded = schemathesis.openapi.from_dict(DOCUMENT)
    loaded.validate()
    assert DOCUMENT["openapi"].startswith("3.1")
    assert sum(1 for _ in loaded.get_all_operations()) == len(OPERATIONS)


def test_every_reference_in_the_document_resolves() -> None:
    def references(part: Any) -> list[str]:
        if isinstance(part, dict):
            own = [part["$ref"]] if "$ref" in part else []
            return own + [reference for value in part.values() for reference in references(value)]
        return [reference for value in part for reference in references(value)] if isinstance(part, list) else []

    result = set(references(DOCUMENT))
    assert result
    for reference in result:
        node: Any = DOCUMENT
        for name in reference.removeprefix("#/").split("/"):
            node = node[name]


def test_every_operation_is_described() -> None:
    for operation in OPERATIONS:
        described = DOCUMENT["paths"][operation.path][operation.method.lower()]
        assert described["summary"], operation.path
        assert described["operationId"] == operation.function.__name__
        assert {str(operation.status), "400", "500"} <= set(described["responses"])
        named = set(re.findall(r"{(\w+)}", operation.path))
        assert named == {one["name"] for one in described["parameters"] if one["in"] == "path"}


def test_operation_ids_and_paths_are_unique() -> None:
    assert max(Counter(operation.function.__name__ for operation in OPERATIONS).values()) == 1
    assert max(Counter((operation.method, operation.path) for operation in OPERATIONS).values()) == 1


def test_every_type_in_the_document_forbids_or_has_required_fields() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert schema["description"], name
        if name.startswith(("New", "Message")) and name not in (
            "Message",
            "MessagePage",
            "MessageList",
            "MessageScope",
        ):
            assert schema["additionalProperties"] is False, name


def test_roles_and_fields_of_messages_match_the_library() -> None:
    assert Role | None == get_type_hints(Message)["role"]
    assert set(get_args(Role)) == {"user", "assistant", "system"}
    assert MessageToAppend.__struct_fields__ == NewMessage.__struct_fields__


class _Fixture:
    """Existing objects, for requests that must find something."""

    def __init__(self, api: Api) -> None:
        session = api.session(key="k", user="ada")
        (message,) = api.append(session, "hello")
        run = json_of(api.http.post(f"{api.sessions}/{session['id']}/runs", json={}), 201)
        agent = json_of(api.http.post(f"{api.tenant}/agents", json={"id": "helper"}), 201)
        self.values = {
            "tenant": api.name,
            "session_id": session["id"],
            "message_id": message["id"],
            "key": "k",
            "run_id": run["id"],
            "agent_id": agent["id"],
            "agent": agent["id"],
        }

    def put_into(self, case: schemathesis.Case) -> None:
        case.path_parameters.update({name: self.values[name] for name in case.path_parameters if name in self.values})
        case.query.pop("cursor", None)
        if isinstance(case.body, dict) and case.method == "POST":
            for item in case.body.get("messages", [case.body]):
                if isinstance(item, dict) and "content" in item:
                    item.update(kind="message", role="user", content="hello")


def _can_be_wrong(operation: Operation) -> bool:
    """Return whether a request can violate the document at all: a name in a path can be any text."""
    return operation.has_body or any(parameter.place == "query" for parameter in parameters(operation))


ENGINES = ("_sqlite_server", "_postgres_http_server")
HALVES = [
    pytest.param(ENGINES[place % 2], operation, id=operation.function.__name__)
    for place, operation in enumerate(OPERATIONS)
]
WRONG = [
    pytest.param(ENGINES[0], operation, id=operation.function.__name__)
    for operation in OPERATIONS[::2]
    if _can_be_wrong(operation)
]
ALL = [
    pytest.param(engine, operation, id=f"{engine} {operation.function.__name__}")
    for engine in ENGINES
    for operation in OPERATIONS
]


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize(("server", "operation"), HALVES, indirect=["server"])
def test_documented_requests_get_documented_responses(operation: Operation, server: ServerProcess, api: Api) -> None:
    _ask(operation, GenerationMode.POSITIVE, server, api, 2)


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize(("server", "operation"), WRONG, indirect=["server"])
def test_undocumented_requests_are_refused_as_documented(operation: Operation, server: ServerProcess, api: Api) -> None:
    _ask(operation, GenerationMode.NEGATIVE, server, api, 1)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["right", "wrong"])
@pytest.mark.parametrize(("server", "operation"), ALL, indirect=["server"])
def test_many_requests_get_documented_responses(
    operation: Operation, mode: GenerationMode, server: ServerProcess, api: Api
) -> None:
    """On each engine 20 requests of either kind per operation: more than 5,000 each."""
    if mode is GenerationMode.POSITIVE or _can_be_wrong(operation):
        _ask(operation, mode, server, api, 20)


def _is_right_as_sent(operation: Operation, query: Mapping[str, Any]) -> bool:
    """Return whether the violation is lost in the URL: one value is sent like a list of one, and an empty list not at all."""
    lists = [
        parameter.wire_name for parameter in parameters(operation) if parameter.place == "query" and parameter.repeated
    ]
    is_list_of_one = any(name in query and not isinstance(query[name], list) for name in lists)
    return is_list_of_one or any(value is None or value in ([], {}) for value in query.values())


def _ask(operation: Operation, mode: GenerationMode, server: ServerProcess, api: Api, examples: int) -> None:
    result = LOADED[operation.path][operation.method]
    checks = CHECKS.get_by_names(CHECKED if mode is GenerationMode.POSITIVE else REFUSED)
    existing = _Fixture(api)

    @settings(max_examples=examples, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=result.as_strategy(generation_mode=mode), real=st.booleans())
    def ask(case: schemathesis.Case, real: bool) -> None:
        assume(len(str(case.query)) < MAX_ADDRESS)
        assume(mode is GenerationMode.POSITIVE or not _is_right_as_sent(operation, case.query))
        if real and mode is GenerationMode.POSITIVE:
            existing.put_into(case)
        if any(parameter.name == "wait_s" for parameter in parameters(operation)) and mode is GenerationMode.POSITIVE:
            case.query["wait_s"] = 0
        response = case.call(base_url=server.url, timeout=WAIT_S, headers=BEARER)
        case.validate_response(response, checks=checks)

    ask()


def test_every_way_to_authenticate_is_in_the_document() -> None:
    described = document(OPERATIONS)
    schemes = described["components"]["securitySchemes"]
    assert (schemes["key_header"]["in"], schemes["key_header"]["name"]) == ("header", "X-API-Key")
    for path, operations in described["paths"].items():
        for operation in operations.values():
            names = [one["name"] for one in operation["parameters"]]
            assert ("X-User-Id" in names) == ("{tenant}" in path)
            if "security" in operation:
                assert operation["security"] == [{"key": []}, {"key_header": []}]
