"""Requests of callers without permission, and the shape of a refusal; for the access tests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

from holdfast import AsyncHoldfast, new_api_key
from holdfast.api.operations import Operation
from holdfast.api.resources import OPERATIONS
from holdfast.types import ApiKey
from tests.api.in_process import Reply, Running, running

CLOSED = [operation for operation in OPERATIONS if operation.need != "open"]
OF_A_TENANT = [operation for operation in CLOSED if "{tenant}" in operation.path]
MINE, THEIRS = "acme", "zenith"
IN_PATH = re.compile(r"{(\w+)}")


def path_of(operation: Operation, tenant: str) -> str:
    """Return the path of an operation in this tenant, with ids of objects that do not exist."""
    return IN_PATH.sub(lambda name: tenant if name[1] == "tenant" else str(uuid4()), operation.path)


def is_refused(reply: Reply, status: int) -> bool:
    """Return whether a reply is a refusal: a problem without other content."""
    if reply.status != status or reply.headers["content-type"] != "application/problem+json":
        return False
    return bool(reply.json["type"] == "Forbidden" and reply.json["detail"])


async def create_key(holdfast: AsyncHoldfast, **fields: Any) -> tuple[str, ApiKey]:
    key = new_api_key()
    return key, await holdfast.api_keys.create(key, **{"name": "a key", "tenant": MINE, **fields})


def run_server(play: Callable[[Running], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with running(**options) as server:
            return await play(server)

    return asyncio.run(main())


async def check_all_refused(server: Running, operations: list[Operation], status: int, **how: Any) -> None:
    """Send a request to each of these operations, and check that each is refused."""
    for operation in operations:
        body = {} if operation.has_body else None
        for tenant in (MINE, "never-heard-of"):
            reply = await server.ask(operation.method, path_of(operation, tenant), body, **how)
            assert is_refused(reply, status), f"{operation.method} {operation.path}: {reply.status} {reply.body!r}"
