"""Write docs/reference/http-api.md from the server's OpenAPI document. ``--check`` fails if the file is out of date."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.api.openapi import document
from holdfast.api.operations import Operation
from holdfast.api.parameters import bodies, choices, hints, parameters
from holdfast.api.resources import OPERATIONS
from holdfast.api.responses import MEDIA_TYPES
from holdfast.api.streams import Stream

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "http-api.md"
HEAD = """# The HTTP API

`make reference` generates this page from the server's OpenAPI document, which the server provides with all types
at `/openapi.json`. [Holdfast over HTTP](../guide/http.md) explains pages, filters, idempotency keys, ETags and
problems, and [serving](../guide/serving.md) explains scopes.

An operation requires an API key with the scope in its row: `read`, `write` or `admin`. A scope can be limited to
one group, such as `runs:read` or `runs:write`. `watch` and `root` are `read` and `admin` of a key for all
tenants. `open` needs no key. A `?` marks an optional parameter or field.
"""


def page() -> str:
    """Return the page as Markdown."""
    described = document(OPERATIONS)
    return "\n".join([HEAD, *_groups(described)]).rstrip() + "\n"


def _groups(described: dict[str, Any]) -> Iterator[str]:
    for tag in described["tags"]:
        yield f"## {tag['name']}\n\n{tag['description']}\n"
        inside = [operation for operation in OPERATIONS if operation.tag == tag["name"]]
        yield "| method | path | scope | summary |\n| --- | --- | --- | --- |"
        for item in inside:
            summary = described["paths"][item.path][item.method.lower()]["summary"]
            yield f"| {item.method} | `{item.path}` | {item.need} | {summary} |"
        yield ""
        for item in inside:
            yield from _details(item, described)


def _details(operation: Operation, described: dict[str, Any]) -> Iterator[str]:
    entry = described["paths"][operation.path][operation.method.lower()]
    names = [f"`{p.wire_name}`" + ("" if p.required else "?") for p in parameters(operation) if p.place != "path"]
    fields = [" or ".join(_fields(kind, described) for kind in bodies(operation))] if bodies(operation) else []
    fields += ["an archive, `tar.zst`"] if operation.takes_upload else []
    yield f"**`{entry['operationId']}`** {' · '.join(_parts(operation, names, fields, described))}\n"
    if more := entry.get("description"):
        yield " ".join(more.split()) + "\n"


def _parts(
    operation: Operation, parameter_names: list[str], fields: list[str], described: dict[str, Any]
) -> Iterator[str]:
    if parameter_names:
        yield f"takes {', '.join(parameter_names)}"
    if fields:
        yield f"body {fields[0]}"
    returned = hints(operation.function)["return"]
    if returned is Stream:
        yield f"{operation.status}: a stream of events"
    elif returned in MEDIA_TYPES:
        yield f"{operation.status}: `{MEDIA_TYPES[returned]}`"
    else:
        names = [getattr(kind, "__name__", str(kind)) for kind in choices(returned)]
        yield f"{operation.status}" + ("" if names == ["NoneType"] else f": `{'` or `'.join(names)}`")
    yield "errors " + ", ".join(str(status) for status in operation.statuses[1:])


def _fields(kind: Any, described: dict[str, Any]) -> str:
    schema = described["components"]["schemas"][kind.__name__]
    needed = set(schema.get("required", ()))
    written = [f"`{name}`" + ("" if name in needed else "?") for name in schema["properties"]]
    return f"{{{', '.join(written)}}}"


def main() -> int:
    written = page()
    if "--check" in sys.argv:
        return 0 if PAGE.exists() and PAGE.read_text() == written else 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
