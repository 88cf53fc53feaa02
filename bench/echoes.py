"""Servers that give back what they were sent and store nothing: how fast HTTP is without any work behind it."""

from typing import Any


async def bare(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The least an ASGI server can be asked to do: read the body, decode it, answer with it."""
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
    """The same in Starlette, as its documentation shows it."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def echo(request: Request) -> JSONResponse:
        return JSONResponse(await request.json(), 201)

    return Starlette(routes=[Route("/echo", echo, methods=["POST"])])


def fastapi() -> Any:
    """The same in FastAPI, as its documentation shows it."""
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
