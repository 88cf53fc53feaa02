"""The server without a socket: requests are as fast as calls, so that many can be tested."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import msgspec

from holdfast import AsyncHoldfast, FixedClock
from holdfast.api.app import build
from holdfast.api.auth import AccessOptions
from holdfast.api.limits import ServerLimits
from holdfast.api.state import Service
from holdfast.encryption import Keys
from tests.api.process import ADMIN_KEY
from tests.contract.legs import KEY

HERE = "127.0.0.1"
CALM = ServerLimits(refusals_per_s=0)
"""Limits for tests whose requests are refused on purpose."""


class Reply:
    """A response."""

    def __init__(self, events: list[Any]) -> None:
        self.status: int = events[0]["status"]
        self.headers = {name.decode().lower(): value.decode() for name, value in events[0]["headers"]}
        self.body = b"".join(event.get("body", b"") for event in events[1:])

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Running:
    """A server that runs in this event loop."""

    def __init__(self, service: Service, app: Any) -> None:
        self.service, self._app = service, app

    @property
    def holdfast(self) -> AsyncHoldfast:
        return self.service.holdfast

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = ADMIN_KEY,
        address: str = HERE,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send one request, with a JSON body, or bytes unchanged."""
        raw, _, query = path.partition("?")
        sent = [(b"host", b"localhost")]
        if key is not None:
            sent.append((b"authorization", b"Bearer " + key.encode("utf-8", "surrogateescape")))
        data = b""
        if body is not None:
            data = body if isinstance(body, bytes) else msgspec.json.encode(body)
            sent += [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        sent += [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        scope = {
            "type": "http",
            "method": method,
            "path": unquote(raw),
            "raw_path": raw.encode(),
            "query_string": query.encode(),
            "headers": sent,
            "client": (address, 1234),
            "path_params": {},
        }
        events: list[Any] = []
        coming = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> Any:
            if coming:
                return coming.pop()
            return await asyncio.Event().wait()

        async def send(event: Any) -> None:
            events.append(event)

        await self._app(scope, receive, send)
        return Reply(events)


@asynccontextmanager
async def running(
    database: str = ":memory:",
    *,
    limits: ServerLimits = CALM,
    access: AccessOptions | None = None,
    admin_key: str | None = ADMIN_KEY,
    clock: FixedClock | None = None,
    migrate: bool | None = None,
    encryption_key: Keys | None = KEY,
) -> AsyncIterator[Running]:
    """Run a server on a database until the block ends. ``None`` for its keys uses those of the environment."""
    service = Service(database, limits, admin_key=admin_key, migrate=migrate, encryption_key=encryption_key)
    if clock is not None:
        service.clock = clock
    app = build(service, local_only=True, access=access)
    async with service.lifespan(app):
        yield Running(service, app)
