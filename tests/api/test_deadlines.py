"""Deadlines: requests that finish in time are not affected, and late ones get an error."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec import structs

from holdfast.api.handler import operation_routes
from holdfast.api.idempotency import retry_id
from holdfast.api.limits import ServerLimits
from holdfast.api.operations import operation
from holdfast.api.problems import answer
from holdfast.api.request import Request
from holdfast.api.responses import Sendable
from holdfast.api.routing import Route, Router
from holdfast.api.state import Service
from holdfast.errors import InvalidInput
from holdfast.types import AsyncMessages
from tests.api.in_process import running


@operation("GET", "/wait", need="open")
async def wait(service: Service) -> None:
    """Never finish."""
    await asyncio.Event().wait()


@operation("POST", "/wait", need="open")
async def wait_to_write(service: Service) -> None:
    """Never finish, after something may have been written."""
    with retry_id("an-id"):
        await asyncio.Event().wait()


@operation("GET", "/refuse", need="open")
async def refuse(service: Service) -> None:
    """Fail at the moment when the deadline passes."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise InvalidInput("this") from None


@operation("GET", "/fail", need="open")
async def fail(service: Service) -> None:
    """Fail with a timeout that is not the deadline."""
    raise TimeoutError("the disk")


OPERATIONS = [value.operation for value in (wait, wait_to_write, refuse, fail)]  # type: ignore[attr-defined]


def problem(method: str, path: str, *, answer_s: float = 0.02, leaves: bool = False) -> dict[str, Any] | None:
    """Return the problem in the response to a request, if there is a response."""
    service = Service(":memory:", ServerLimits(answer_s=answer_s))
    routes = operation_routes(service, OPERATIONS)
    if leaves:
        routes = [structs.replace(route, respond=partial(watched, route)) for route in routes]
    router = Router(service, routes, lambda error, path: answer(error, service.limits))
    events: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(event: Any) -> None:
        events.append(event)

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": []}
    asyncio.run(asyncio.wait_for(router(scope, receive, send), 60))
    assert service.metrics.under_way == 0
    return msgspec.json.decode(events[1]["body"]) if events else None


async def watched(route: Route, request: Request) -> Sendable:
    """A handler that is cancelled when its client disconnects."""
    request.cancel_when_client_leaves()
    return await route.respond(request)


@pytest.mark.parametrize(
    ("method", "path", "type"),
    [
        ("GET", "/wait", "Unavailable"),
        ("POST", "/wait", "OutcomeUnknown"),
        ("GET", "/refuse", "InvalidInput"),
        ("GET", "/fail", "about:blank"),
    ],
)
def test_a_late_request_gets_an_error_that_states_its_outcome(method: str, path: str, type: str) -> None:
    result = problem(method, path)
    assert result is not None
    assert result["type"] == type
    assert (result.get("id") == "an-id") is (method == "POST")


def test_the_work_for_a_disconnected_client_is_cancelled_without_a_response() -> None:
    assert problem("GET", "/wait", answer_s=3600, leaves=True) is None


@pytest.mark.parametrize(("method", "type"), [("POST", "OutcomeUnknown"), ("GET", "Unavailable")])
def test_a_request_that_a_stopping_server_cancels_gets_a_response(
    method: str, type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running() as server:
            session = await server.holdfast.tenant("acme").sessions.create()
            begun, path = asyncio.Event(), f"/v1/tenants/acme/sessions/{session.id}/messages"

            async def never(*arguments: Any, **options: Any) -> None:
                begun.set()
                await asyncio.Event().wait()

            monkeypatch.setattr(AsyncMessages, "append", never)
            monkeypatch.setattr(AsyncMessages, "list", never)
            body = {"role": "user", "content": "one"} if method == "POST" else None
            asking = asyncio.create_task(server.ask(method, path, body))
            await begun.wait()
            server.service.stop()
            asking.cancel()
            reply = await asking
            assert (reply.status, reply.json["type"]) == (503, type)
            assert "retry-after" in reply.headers
            assert bool(reply.json.get("id")) is (method == "POST"), "the id to retry with"

    asyncio.run(main())


def test_a_cancelled_request_gets_no_response_while_the_server_runs() -> None:
    async def main() -> None:
        async with running() as server:
            asking = asyncio.create_task(server.ask("GET", "/v1/tenants"))
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(main())
