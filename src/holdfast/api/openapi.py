"""Builds the OpenAPI 3.1 document from the same signatures as the handlers."""

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
_KEY = "An API key: `hf_` and 48 hexadecimal digits. It is valid for one tenant or for all tenants, and has scopes."
_USER = {
    "name": "X-User-Id",
    "in": "header",
    "required": False,
    "description": "The acting user: the default user of new objects, and the actor in the activity log.",
    "schema": {"type": "string"},
}
_BINARY = {"type": "string", "format": "binary"}
_DESCRIPTION = """Durable state for agents.

Every error is a `Problem` (RFC 9457) whose `type` is the name of the error in the Python library. Lists are paginated: \
`next` is the cursor of the next page, or null on the last page. A request that creates an object can be repeated safely if \
the caller chooses the id."""


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the document of these operations."""
    schemas = _Schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    used = {operation.tag for operation in operations}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    content = {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": holdfast.__version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": description} for name, description in AREAS.items() if name in used],
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
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(content))
    return plain


class _Schemas:
    """The JSON Schemas of all types in the document."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        types: list[Any] = [Problem]
        for operation in operations:
            types += [parameter.type for parameter in parameters(operation)]
            types += bodies(operation)
            types += [
                kind for kind in choices(_returned(operation)) if kind not in MEDIA_TYPES and not _is_events(kind)
            ]
        schemas, self.components = msgspec.json.schema_components(
            types, ref_template=_TEMPLATE, schema_hook=secret_schema
        )
        self._schemas = list(zip(types, schemas, strict=True))
        for kind in types:
            if isinstance(kind, type) and issubclass(kind, Struct):
                _add_formats(kind, self.components[kind.__name__])

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type; of a union, ``oneOf`` its members."""
        members = [dict(next(schema for known, schema in self._schemas if known == one)) for one in choices(kind)]
        return members[0] if len(members) == 1 else {"oneOf": members}


def _operation(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    summary, _, details = inspect.cleandoc(operation.function.__doc__ or "").partition("\n\n")
    described: dict[str, Any] = {
        "operationId": operation.function.__name__,
        "summary": " ".join(summary.split()),
        "tags": [operation.tag],
        "parameters": [_parameter(parameter, schemas) for parameter in parameters(operation)],
        "responses": {str(status): _response(operation, status, schemas) for status in operation.statuses},
    }
    if details:
        described["description"] = details
    if operation.need != "open":
        described["security"] = [{"key": []}, {"key_header": []}]
        if "{tenant}" in operation.path:
            described["parameters"].append(_USER)
        described["x-scope"] = operation.need
    if operation.takes_upload:
        described["requestBody"] = {"required": True, "content": {ARCHIVE_TYPE: {"schema": _BINARY}}}
    if kinds := bodies(operation):
        members = [schemas.of(kind) for kind in kinds]
        schema = members[0] if len(members) == 1 else {"oneOf": members}
        described["requestBody"] = {"required": not may_be_empty(operation), "content": {JSON_TYPE: {"schema": schema}}}
    return described


def _parameter(parameter: Parameter, schemas: _Schemas) -> dict[str, Any]:
    schema = schemas.of(parameter.type)
    described: dict[str, Any] = {
        "name": parameter.wire_name,
        "in": parameter.place,
        "required": parameter.required,
    }
    if description := schema.pop("description", None):
        described["description"] = description
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
        described["headers"] = {
            "ETag": {"description": "The version of the object, for If-Match.", "schema": {"type": "string"}}
        }
    return described


def _returned(operation: Operation) -> Any:
    return hints(operation.function)["return"]


def _is_events(kind: Any) -> bool:
    return kind is Stream


def _problems(operations: Sequence[Operation], schemas: _Schemas) -> dict[str, Any]:
    """Return the error responses, one per status, described by the titles of its errors."""
    responses: dict[str, Any] = {}
    for kind in sorted({kind for operation in operations for kind in operation.errors}, key=lambda kind: kind.__name__):
        status = status_of(kind)
        described = responses.setdefault(
            str(status), {"description": "", "content": {PROBLEM_TYPE: {"schema": schemas.of(Problem)}}}
        )
        described["description"] += f"{' ' if described['description'] else ''}{title_of(kind)}"
        if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
            described["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
    return dict(sorted(responses.items()))


def _add_formats(kind: type[Struct], schema: dict[str, Any]) -> None:
    """Add the date-time format to times; msgspec does so only for those declared with a time zone."""
    for name, hint in get_type_hints(kind).items():
        if datetime in (hint, *get_args(hint)):
            property_schema = schema["properties"][name]
            for alternative in property_schema.get("anyOf", [property_schema]):
                if alternative.get("type") == "string":
                    alternative["format"] = "date-time"
