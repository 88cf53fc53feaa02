"""A tenant of a server that runs in this process, asked as kagent's clients do, without their packages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from holdfast import AsyncTenantHandle, new_api_key
from holdfast.encryption import KeyRing
from tests.api.in_process import Reply, Running, running

_NUMBERS = count(1)


class Kagent:
    """One tenant of a server that runs in this process, asked as kagent's clients do."""

    def __init__(self, runner: asyncio.Runner, server: Running, key: str, tenant: str) -> None:
        self.runner, self.server, self.key, self.name = runner, server, key, tenant

    @property
    def tenant(self) -> AsyncTenantHandle:
        """The same tenant, past the server."""
        return self.server.holdfast.tenant(self.name)

    def use_keys(self, monkeypatch: pytest.MonkeyPatch, *keys: str) -> None:
        """Give the server other encryption keys, as if it had been started with them."""
        monkeypatch.setattr(self.server.holdfast._setting, "keys", KeyRing(keys))

    def run(self, work: Any) -> Any:
        """What comes of something that takes this event loop."""
        return self.runner.run(work)

    async def ask(self, method: str, path: str, body: Any = None, *, user: str | None = "ada", **more: str) -> Reply:
        """One request of a user, with further headers."""
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        if user is not None:
            headers["x-user-id"] = user
        return await self.server.ask(method, path, body, key=self.key, headers=headers)

    def get(self, path: str, **more: Any) -> Reply:
        return self.runner.run(self.ask("GET", path, **more))

    def post(self, path: str, body: Any = None, **more: Any) -> Reply:
        return self.runner.run(self.ask("POST", path, body, **more))

    def put(self, path: str, body: Any = None, **more: Any) -> Reply:
        return self.runner.run(self.ask("PUT", path, body, **more))

    def delete(self, path: str, **more: Any) -> Reply:
        return self.runner.run(self.ask("DELETE", path, **more))

    def another(self, scopes: tuple[str, ...] = ("read", "write"), *, tenant: str | None = None) -> Kagent:
        """Another tenant of the same server, or another key of one."""
        name, key = tenant or f"tenant-{next(_NUMBERS)}", new_api_key()
        self.run(self.server.holdfast.api_keys.create(key, name="test", tenant=name, scopes=list(scopes)))
        return Kagent(self.runner, self.server, key, name)


def open_kagent() -> Iterator[Kagent]:
    """A server for the tests of a module. It has no encryption keys until a test gives it some with ``use_keys``."""
    with asyncio.Runner() as runner:
        server = running(encryption_key=())
        first = Kagent(runner, runner.run(server.__aenter__()), "", "")
        yield first
        runner.run(server.__aexit__(None, None, None))


def good(reply: Reply, status: int = 200) -> Any:
    """The data of an answer in its envelope."""
    assert reply.status == status, reply.body
    found = json.loads(reply.body)
    assert set(found) == {"error", "data", "message"}
    assert (found["error"], bool(found["message"])) == (False, True)
    return found["data"]


def bad(reply: Reply, status: int) -> str:
    """The words of an error, which stand alone."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/json"
    found = json.loads(reply.body)
    assert list(found) == ["error"]
    assert isinstance(found["error"], str)
    words: str = found["error"]
    return words
