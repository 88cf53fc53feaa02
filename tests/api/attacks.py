"""Who asks for what, and how a refusal looks; for tests of who is let in."""

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

CLOSED = [each for each in OPERATIONS if each.need != "open"]
OF_A_TENANT = [each for each in CLOSED if "{tenant}" in each.path]
MINE, THEIRS = "acme", "zenith"
IN_PATH = re.compile(r"{(\w+)}")


def address_of(each: Operation, tenant: str) -> str:
    """Somewhere an operation is found: of a tenant, and of things that are not there."""
    return IN_PATH.sub(lambda name: tenant if name[1] == "tenant" else str(uuid4()), each.path)


def is_refused(reply: Reply, status: int) -> bool:
    """Whether a reply is a refusal, said as a problem and with nothing else in it."""
    if reply.status != status or reply.headers["content-type"] != "application/problem+json":
        return False
    return bool(reply.json["type"] == "Forbidden" and reply.json["detail"])


async def made(holdfast: AsyncHoldfast, **fields: Any) -> tuple[str, ApiKey]:
    key = new_api_key()
    return key, await holdfast.api_keys.create(key, **{"name": "a key", "tenant": MINE, **fields})


def played(play: Callable[[Running], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with running(**options) as server:
            return await play(server)

    return asyncio.run(main())


async def every_route(server: Running, operations: list[Operation], status: int, **how: Any) -> None:
    """Ask for every one of these, and be refused by all."""
    for each in operations:
        body = {} if each.has_body else None
        for tenant in (MINE, "never-heard-of"):
            reply = await server.ask(each.method, address_of(each, tenant), body, **how)
            assert is_refused(reply, status), f"{each.method} {each.path}: {reply.status} {reply.body!r}"
