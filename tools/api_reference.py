"""Write docs/reference/http-api.md from the server's OpenAPI document. ``--check`` only says whether it is up to date."""

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

Made from the server's own OpenAPI document by `make reference`; the server hands that out at `/openapi.json`, with every type.
[Holdfast over HTTP](../guide/http.md) says what pages, filters, idempotency keys, ETags and problems are, and
[serving](../guide/serving.md) what scopes are.

A key needs the scope that stands beside an operation: `read`, `write` or `admin`, or the first two of the group alone, such as
`runs:read`. `watch` and `root` are `read` and `admin` of a key that is good for all tenants. `open` needs no key. What has a `?`
need not be there.
"""


def page() -> str:
    """The whole page."""
    described = document(OPERATIONS)
    return "\n".join([HEAD, *_groups(described)]).rstrip() + "\n"


def _groups(described: dict[str, Any]) -> Iterator[str]:
    for tag in described["tags"]:
        yield f"## {tag['name']}\n\n{tag['description']}\n"
        inside = [operation for operation in OPERATIONS if operation.tag == tag["name"]]
        yield "| method | path | scope | what it does |\n| --- | --- | --- | --- |"
        for item in inside:
            summary = described["paths"][item.path][item.method.lower()]["summary"]
            yield f"| {item.method} | `{item.path}` | {item.need} | {summary} |"
        yield ""
        for item in inside:
            yield from _details(item, described)


def _details(each: Operation, described: dict[str, Any]) -> Iterator[str]:
    operation = described["paths"][each.path][each.method.lower()]
    taken = [f"`{one.wire_name}`" + ("" if one.required else "?") for one in parameters(each) if one.place != "path"]
    fields = [" or ".join(_fields(kind, described) for kind in bodies(each))] if bodies(each) else []
    fields += ["an archive, `tar.zst`"] if each.takes_upload else []
    yield f"**`{operation['operationId']}`** {' · '.join(_parts(each, taken, fields, described))}\n"
    if more := operation.get("description"):
        yield " ".join(more.split()) + "\n"


def _parts(each: Operation, taken: list[str], fields: list[str], described: dict[str, Any]) -> Iterator[str]:
    if taken:
        yield f"takes {', '.join(taken)}"
    if fields:
        yield f"body {fields[0]}"
    returned = hints(each.function)["return"]
    if returned is Stream:
        yield f"{each.status}: a stream of events"
    elif returned in MEDIA_TYPES:
        yield f"{each.status}: `{MEDIA_TYPES[returned]}`"
    else:
        names = [getattr(kind, "__name__", str(kind)) for kind in choices(returned)]
        yield f"{each.status}" + ("" if names == ["NoneType"] else f": `{'` or `'.join(names)}`")
    yield "errors " + ", ".join(str(status) for status in each.statuses[1:])


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
