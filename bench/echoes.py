"""Echo servers that store nothing, to measure the cost of HTTP alone."""

import os
from typing import Any

PLACE = "BENCH_PLACE"
"""The environment variable with the directory in which a server may store data."""


async def bare(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Echo a JSON body: a minimal ASGI application that reads, decodes and returns it."""
    import msgspec

    if scope["type"] != "http":
        return
    event = await receive()
    body, more = event["body"], event.get("more_body", False)
    while more:
        event = await receive()
        body, more = body + event["body"], event.get("more_body", False)
    answer = msgspec.json.encode(msgspec.json.decode(body))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def starlette() -> Any:
    """Return the same echo in Starlette, written as in its documentation."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def echo(request: Request) -> JSONResponse:
        return JSONResponse(await request.json(), 201)

    return Starlette(routes=[Route("/echo", echo, methods=["POST"])])


def fastapi() -> Any:
    """Return the same echo in FastAPI, written as in its documentation."""
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Message(BaseModel):
        role: str
        content: Any

    app = FastAPI()

    @app.post("/echo", status_code=201)
    async def echo(message: Message) -> Message:
        return message

    return app


class Appending:
    """The floor of a durable append over HTTP: the bare echo with one call of the library, in one session."""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        import msgspec

        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        event = await receive()
        body = msgspec.json.decode(event["body"])
        message = await self._messages.append(self._session, role=body["role"], content=body["content"])
        answer = msgspec.json.encode(message)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _live(self, receive: Any, send: Any) -> None:
        from holdfast import AsyncHoldfast

        await receive()
        async with AsyncHoldfast(os.path.join(os.environ[PLACE], "agents.db")) as hf:
            tenant = hf.tenant("bench")
            self._session, self._messages = (await tenant.sessions.create()).id, tenant.messages
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})
