"""A client for kagent's API of a server in this process, without kagent's packages."""

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
    """One tenant of a server in this process, with the requests of kagent's clients."""

    def __init__(self, runner: asyncio.Runner, server: Running, key: str, tenant: str) -> None:
        self.runner, self.server, self.key, self.name = runner, server, key, tenant

    @property
    def tenant(self) -> AsyncTenantHandle:
        """The handle of the same tenant, without the server."""
        return self.server.holdfast.tenant(self.name)

    def use_keys(self, monkeypatch: pytest.MonkeyPatch, *keys: str) -> None:
        """Give the server other encryption keys, as if it had been started with them."""
        monkeypatch.setattr(self.server.holdfast._setting, "keys", KeyRing(keys))

    def run(self, work: Any) -> Any:
        """Run a coroutine in the server's event loop."""
        return self.runner.run(work)

    async def ask(self, method: str, path: str, body: Any = None, *, user: str | None = "ada", **more: str) -> Reply:
        """Send one request of a user, with further headers."""
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
        """Return another tenant of the same server, or another key of a tenant."""
        name, key = tenant or f"tenant-{next(_NUMBERS)}", new_api_key()
        self.run(self.server.holdfast.api_keys.create(key, name="test", tenant=name, scopes=list(scopes)))
        return Kagent(self.runner, self.server, key, name)


def open_kagent() -> Iterator[Kagent]:
    """Yield a server for the tests of a module. It has no encryption keys until a test sets some with ``use_keys``."""
    with asyncio.Runner() as runner:
        server = running(encryption_key=())
        first = Kagent(runner, runner.run(server.__aenter__()), "", "")
        yield first
        runner.run(server.__aexit__(None, None, None))


def good(reply: Reply, status: int = 200) -> Any:
    """Check the status and the envelope of a response, and return its data."""
    assert reply.status == status, reply.body
    body = json.loads(reply.body)
    assert set(body) == {"error", "data", "message"}
    assert (body["error"], bool(body["message"])) == (False, True)
    return body["data"]


def bad(reply: Reply, status: int) -> str:
    """Check the status and the form of an error response, and return its message."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/json"
    body = json.loads(reply.body)
    assert list(body) == ["error"]
    assert isinstance(body["error"], str)
    words: str = body["error"]
    return words
