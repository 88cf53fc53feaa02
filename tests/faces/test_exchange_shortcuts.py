"""What our own server does quicker than ASGI has it: bodies that are there already, and answers that are whole. Each is compared,
byte for byte, with the same application behind something that hides the exchange from it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.api.binding import JsonAnswer
from holdfast.api.bodies import read_body
from holdfast.api.exchanges import BUFFERED_MOST, Exchange, exchange_of
from holdfast.api.limits import ServerLimits
from holdfast.api.problems import BodyTooLarge
from tests.faces.wire import App, Line

LIMITS = ServerLimits(request_bytes=4 * BUFFERED_MOST)
JSON = b"Host: localhost\r\nContent-Type: application/json\r\n"


async def mirror(scope: Any, receive: Any, send: Any) -> None:
    """Give a body back, or say that it is too large."""
    headers = dict(scope["headers"])
    try:
        body = await read_body(receive, headers, LIMITS) if scope["method"] == "POST" else b'"nothing"'
        await JsonAnswer(201, body)(scope, receive, send)
    except BodyTooLarge as error:
        await JsonAnswer(413, b'"%b"' % str(error).encode())(scope, receive, send)


def behind_something(app: App) -> App:
    """The same application, for which ASGI is all there is."""

    async def hidden(scope: Any, receive: Any, send: Any) -> None:
        async def receiving() -> Any:
            return await receive()

        async def sending(event: Any) -> None:
            await send(event)

        assert exchange_of(receiving) is exchange_of(sending) is None
        await app(scope, receiving, sending)

    return hidden


def post(body: bytes, *more: bytes) -> bytes:
    head = b"".join([b"%b\r\n" % each for each in more])
    return b"POST / HTTP/1.1\r\n%bContent-Length: %d\r\n%b\r\n%b" % (JSON, len(body), head, body)


def cut(request: bytes, size: int) -> list[bytes]:
    return [request[at : at + size] for at in range(0, len(request), size)]


LARGE = b'"%b"' % (b"x" * BUFFERED_MOST)
CHUNKED = b"POST / HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n" % JSON
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
REQUESTS: dict[str, list[bytes]] = {
    "a body": [post(b"[1]")],
    "no body": [post(b"")],
    "nothing to read": [GET],
    "a body that comes later": [post(b"")[:-4], b"\r\n\r\n", post(b"[2]")[:-3], b"[2]"],
    "byte by byte": cut(post(b"[1,2,3]"), 1),
    "several at once": [post(b"[1]") + post(b"[2]") + GET + post(b"[3]")],
    "chunks": [CHUNKED, CHUNKED[:-8], CHUNKED[-8:]],
    "a head only": [b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n", GET],
    "the last on its connection": [post(b"[1]", b"Connection: close"), post(b"[2]")],
    "an old client": [b"GET / HTTP/1.0\r\n\r\n"],
    "a word wanted before": [post(b"[1]", b"Expect: 100-continue")[:-3], b"[1]"],
    "a word wanted with the body there": [post(b"[1]", b"Expect: 100-continue")],
    "a large one": cut(post(LARGE), BUFFERED_MOST // 2),
    "one that is too large": cut(post(LARGE * 5), BUFFERED_MOST // 2),
    "one that is too large, at once": [post(LARGE * 5), post(b"[1]")],
}


async def heard(app: App, pieces: list[bytes]) -> tuple[bytes, bool, bool, int]:
    line = Line(app, LIMITS)
    said = await line.hear(*pieces)
    return said, line.wire.is_closing(), line.wire.is_read, line.state.total_requests


@pytest.mark.parametrize("name", REQUESTS)
def test_what_is_said_is_the_same_by_the_short_way(name: str) -> None:
    async def main() -> None:
        said = await heard(mirror, REQUESTS[name])
        assert said == await heard(behind_something(mirror), REQUESTS[name])
        assert said[0].startswith(b"HTTP/1.1 ")

    asyncio.run(main())


def test_the_short_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the comparison would compare nothing."""

    async def never(self: Exchange, *_: object) -> Any:
        raise AssertionError("the long way was taken")

    async def main() -> None:
        monkeypatch.setattr(Exchange, "send", never)
        monkeypatch.setattr(Exchange, "receive", never)
        line = Line(mirror, LIMITS)
        said = await line.hear(post(b"[1]") + post(b"[2]"))
        assert said.count(b"HTTP/1.1 201 ") == 2
        assert line.wire.writes[0].endswith(b"content-type: application/json\r\ncontent-length: 3\r\n\r\n[1]")

    asyncio.run(main())


@pytest.mark.parametrize("through", [mirror, behind_something(mirror)])
def test_who_does_not_read_is_waited_for(through: App) -> None:
    async def main() -> None:
        line = Line(through, LIMITS)
        line.connection.pause_writing()
        assert await line.hear(post(b"[1]")) == b""
        line.connection.resume_writing()
        await line.rest()
        assert line.wire.written.endswith(b"[1]")

    asyncio.run(main())


@pytest.mark.parametrize("hide", [lambda app: app, behind_something])
def test_who_has_left_is_told_nothing(hide: Any) -> None:
    async def main() -> None:
        free = asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await free.wait()
            await JsonAnswer(200, b"[]")(scope, receive, send)

        line = Line(hide(slow), LIMITS)
        await line.hear(GET)
        line.connection.connection_lost(None)
        free.set()
        await line.rest()
        assert line.wire.writes == []
        assert not line.state.tasks

    asyncio.run(main())


def test_a_body_is_handed_over_once() -> None:
    taken: list[Any] = []

    async def greedy(scope: Any, receive: Any, send: Any) -> None:
        exchange = exchange_of(receive)
        assert exchange is not None
        assert exchange is exchange_of(send)
        taken.extend([exchange.body_at_hand(), exchange.body_at_hand()])
        await JsonAnswer(200, b"[]")(scope, receive, send)
        taken.append(exchange.body_at_hand())

    async def main() -> None:
        await Line(greedy, LIMITS).hear(post(b"[1]"))
        assert taken == [b"[1]", None, None]

    asyncio.run(main())


def test_nothing_is_answered_twice() -> None:
    async def twice(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            await JsonAnswer(200, b"[]")(scope, receive, send)

    async def main() -> None:
        line = Line(twice, LIMITS)
        assert (await line.hear(GET)).count(b"HTTP/1.1 ") == 1
        assert line.wire.is_closing()

    asyncio.run(main())
