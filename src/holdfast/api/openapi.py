"""The OpenAPI 3.1 document, written from the same signatures that the handlers are made of."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Struct

import holdfast

from .operations import AREAS, Operation
from .parameters import Parameter, bodies, choices, hints, may_be_empty, parameters
from .problems import PROBLEM_TYPE, status_of, title_of
from .request_body import JSON_TYPE
from .responses import ARCHIVE_TYPE, MEDIA_TYPES, PlainText
from .schemas import Problem, secret_schema
from .streams import EVENT_TYPE, Stream

_TEMPLATE = "#/components/schemas/{name}"
_KEY = (
    "An API key: `hf_` and 48 hexadecimal digits. It is good for one tenant, or for all, and for what its scopes say."
)
_USER = {
    "name": "X-User-Id",
    "in": "header",
    "required": False,
    "description": "Who is acting: the user of what is made without one, and the actor in the activity log.",
    "schema": {"type": "string"},
}
_BINARY = {"type": "string", "format": "binary"}
_DESCRIPTION = """Durable state for agents.

Every error is a `Problem` (RFC 9457) whose `type` is the name of the error in the Python library. Lists come in pages: \
`next` is the cursor of the page after, and null at the end. A request that makes something can be repeated safely with an \
id of the caller's choosing."""


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The whole document."""
    schemas = _Schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    used = {each.tag for each in operations}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schemas)
    whole = {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": holdfast.__version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": words} for name, words in AREAS.items() if name in used],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": _problems(operations, schemas),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": _KEY},
                "key_header": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": _KEY},
            },
        },
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(whole))
    return plain


class _Schemas:
    """The JSON Schema of every type that any operation mentions."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        types: list[Any] = [Problem]
        for each in operations:
            types += [parameter.type for parameter in parameters(each)]
            types += bodies(each)
            types += [kind for kind in choices(_returned(each)) if kind not in MEDIA_TYPES and not _is_events(kind)]
        schemas, self.components = msgspec.json.schema_components(
            types, ref_template=_TEMPLATE, schema_hook=secret_schema
        )
        self._known = list(zip(types, schemas, strict=True))
        for kind in types:
            if isinstance(kind, type) and issubclass(kind, Struct):
                _add_formats(kind, self.components[kind.__name__])

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of one type, or of whichever of several it is."""
        found = [dict(next(schema for known, schema in self._known if known == one)) for one in choices(kind)]
        return found[0] if len(found) == 1 else {"oneOf": found}


def _operation(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    summary, _, more = inspect.cleandoc(operation.function.__doc__ or "").partition("\n\n")
    described: dict[str, Any] = {
        "operationId": operation.function.__name__,
        "summary": " ".join(summary.split()),
        "tags": [operation.tag],
        "parameters": [_parameter(each, schemas) for each in parameters(operation)],
        "responses": {str(status): _response(operation, status, schemas) for status in operation.statuses},
    }
    if more:
        described["description"] = more
    if operation.need != "open":
        described["security"] = [{"key": []}, {"key_header": []}]
        if "{tenant}" in operation.path:
            described["parameters"].append(_USER)
        described["x-scope"] = operation.need
    if operation.takes_upload:
        described["requestBody"] = {"required": True, "content": {ARCHIVE_TYPE: {"schema": _BINARY}}}
    if kinds := bodies(operation):
        found = [schemas.of(kind) for kind in kinds]
        schema = found[0] if len(found) == 1 else {"oneOf": found}
        described["requestBody"] = {"required": not may_be_empty(operation), "content": {JSON_TYPE: {"schema": schema}}}
    return described


def _parameter(parameter: Parameter, schemas: _Schemas) -> dict[str, Any]:
    schema = schemas.of(parameter.type)
    described: dict[str, Any] = {
        "name": parameter.wire_name,
        "in": parameter.place,
        "required": parameter.required,
    }
    if words := schema.pop("description", None):
        described["description"] = words
    if parameter.default is not UNSET and parameter.default is not None:
        schema["default"] = parameter.default
    if parameter.as_json:
        return {**described, "content": {JSON_TYPE: {"schema": schema}}}
    return {**described, "schema": schema}


def _response(operation: Operation, status: int, schemas: _Schemas) -> dict[str, Any]:
    if status != operation.status:
        return {"$ref": f"#/components/responses/{status}"}
    described: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    kind = _returned(operation)
    if _is_events(kind):
        return {**described, "content": {EVENT_TYPE: {"schema": {"description": "Server-sent events."}}}}
    if kind in MEDIA_TYPES:
        schema = {"type": "string"} if kind is PlainText else _BINARY
        described["content"] = {MEDIA_TYPES[kind]: {"schema": schema}}
    elif kind is not type(None):
        described["content"] = {JSON_TYPE: {"schema": schemas.of(kind)}}
    if operation.etag is not None:
        described["headers"] = {"ETag": {"description": "Its state, for If-Match.", "schema": {"type": "string"}}}
    return described


def _returned(operation: Operation) -> Any:
    return hints(operation.function)["return"]


def _is_events(kind: Any) -> bool:
    return kind is Stream


def _problems(operations: Sequence[Operation], schemas: _Schemas) -> dict[str, Any]:
    """The answers when something is wrong, one for each status, with the errors that have it."""
    found: dict[str, Any] = {}
    for kind in sorted({kind for each in operations for kind in each.errors}, key=lambda kind: kind.__name__):
        status = status_of(kind)
        described = found.setdefault(
            str(status), {"description": "", "content": {PROBLEM_TYPE: {"schema": schemas.of(Problem)}}}
        )
        described["description"] += f"{' ' if described['description'] else ''}{title_of(kind)}"
        if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
            described["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
    return dict(sorted(found.items()))


def _add_formats(kind: type[Struct], schema: dict[str, Any]) -> None:
    """Say which strings are times; msgspec does so only for those that are declared with a time zone."""
    for name, hint in get_type_hints(kind).items():
        if datetime in (hint, *get_args(hint)):
            written = schema["properties"][name]
            for each in written.get("anyOf", [written]):
                if each.get("type") == "string":
                    each["format"] = "date-time"
