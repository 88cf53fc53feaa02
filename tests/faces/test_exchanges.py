"""A connection by itself, without a socket: requests of every kind on one side, answers of every kind on the other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.api.connections import IDLE_LEAST_S
from holdfast.api.exchanges import BUFFERED_MOST
from holdfast.api.limits import ServerLimits
from tests.faces.wire import GET, POST, Held, Line, echo, on_line

# Writing


def test_an_answer_is_one_write_with_the_headers_that_every_answer_has() -> None:
    @on_line(echo)
    async def _(line: Line) -> None:
        await line.hear(GET % b"a")
        assert line.wire.writes == [b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\n/a"]
        line.state.default_headers = [(b"date", b"tomorrow")]
        assert b"date: tomorrow\r\n" in await line.hear(GET % b"b")
        assert line.state.total_requests == 2
        assert not line.state.tasks


def test_a_large_answer_is_written_whole() -> None:
    large = b"x" * (2 * BUFFERED_MOST)

    @on_line(echo)
    async def _(line: Line) -> None:
        said = await line.hear(POST % (len(large), large))
        assert said.partition(b"\r\n\r\n")[2] == large


async def stream(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})
    for each in (b"one", b"", b"three"):
        await send({"type": "http.response.body", "body": each, "more_body": True})
    await send({"type": "http.response.body"})


@pytest.mark.parametrize(
    ("request_line", "body", "closes"),
    [
        (b"GET / HTTP/1.1", b"3\r\none\r\n5\r\nthree\r\n0\r\n\r\n", False),
        (b"GET / HTTP/1.0", b"onethree", True),
        (b"HEAD / HTTP/1.1", b"", False),
    ],
)
def test_an_answer_without_a_length_comes_in_chunks_or_to_the_end_of_the_connection(
    request_line: bytes, body: bytes, closes: bool
) -> None:
    @on_line(stream)
    async def _(line: Line) -> None:
        head, _, said = (await line.hear(request_line + b"\r\nHost: localhost\r\n\r\n")).partition(b"\r\n\r\n")
        assert said == body
        assert (b"transfer-encoding: chunked" in head) == (b"\r\n" in body)
        assert line.wire.is_closing() == closes


def test_the_answer_to_head_has_a_head_only() -> None:
    @on_line(echo)
    async def _(line: Line) -> None:
        said = await line.hear(b"HEAD /four HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert said.endswith(b"content-length: 5\r\n\r\n")


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET / HTTP/1.1\r\nConnection: close",
        b"GET / HTTP/1.0",
        b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c",
    ],
)
def test_who_wants_no_other_answer_on_a_connection_gets_none(request_line: bytes) -> None:
    @on_line(echo)
    async def _(line: Line) -> None:
        said = await line.hear(request_line + b"\r\nHost: localhost\r\n\r\n", GET % b"next")
        assert said.count(b"HTTP/1.1 ") == 1
        assert said.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"connection: close\r\n" in said
        assert line.wire.is_closing()


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\n", b"a\r", b"a\0"])
def test_no_header_can_make_another(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"etag", value)]})
        await send({"type": "http.response.body", "body": b""})

    @on_line(app)
    async def _(line: Line) -> None:
        said = await line.hear(GET % b"")
        assert said.startswith(b"HTTP/1.1 500 ")
        assert b"set-cookie" not in said


def test_nothing_is_written_while_nobody_reads() -> None:
    @on_line(stream)
    async def _(line: Line) -> None:
        line.connection.pause_writing()
        assert await line.hear(GET % b"") == b""
        line.connection.resume_writing()
        await line.rest()
        assert line.wire.written.endswith(b"0\r\n\r\n")


# Several requests


def test_requests_sent_at_once_are_answered_one_after_the_other_in_their_order() -> None:
    @on_line(echo)
    async def _(line: Line) -> None:
        said = await line.hear(b"".join(GET % b"%d" % number for number in range(5)) + POST % (3, b"end"))
        assert [each.partition(b"\r\n\r\n")[2] for each in said.split(b"HTTP/1.1 ")[1:]] == [
            *(b"/%d" % number for number in range(5)),
            b"end",
        ]
        assert line.wire.is_read


def test_what_is_asked_behind_something_waits_for_it_and_no_more_is_read() -> None:
    async def main() -> None:
        held = Held()
        line = Line(held)
        assert await line.hear(GET % b"1" + GET % b"2" + GET % b"3") == b""
        assert (held.begun, line.wire.is_read) == (["/1"], False)
        held.free.set()
        await line.rest()
        assert held.ended == ["/1", "/2", "/3"]
        assert line.wire.written.count(b"HTTP/1.1 200 ") == 3
        assert line.wire.is_read

    asyncio.run(main())


def test_a_request_may_come_byte_by_byte_and_end_in_the_middle_of_a_piece() -> None:
    both = POST % (5, b"first") + POST % (6, b"second")

    @on_line(echo)
    async def _(line: Line) -> None:
        await line.hear(*(both[place : place + 1] for place in range(len(both))))
        assert line.wire.written.endswith(b"second")
        assert line.wire.written.count(b"HTTP/1.1 200 ") == 2
        for cut in range(1, len(both)):
            line.wire.writes.clear()
            said = await line.hear(both[:cut], both[cut:])
            assert (said.count(b"first"), said.count(b"second")) == (1, 1), cut


def test_the_body_of_a_request_that_was_answered_without_it_is_not_taken_for_another() -> None:
    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    hidden = GET % b"hidden"

    @on_line(refusing)
    async def _(line: Line) -> None:
        whole = POST % (len(hidden), hidden)
        await line.hear(whole[: -len(hidden)], hidden[:10], hidden[10:])
        assert line.wire.written.count(b"HTTP/1.1 401 ") == 1
        assert (await line.hear(GET % b"next")).count(b"HTTP/1.1 401 ") == 2


def test_no_more_of_a_body_is_kept_than_was_asked_for() -> None:
    async def main() -> None:
        held = Held()
        line = Line(held)
        piece = b"x" * BUFFERED_MOST
        await line.hear(POST % (3 * len(piece), b""), piece, piece)
        assert not line.wire.is_read
        held.free.set()
        await line.rest()
        assert line.wire.is_read
        assert (await line.hear(piece)).endswith(piece * 3)

    asyncio.run(main())


def test_what_comes_behind_chunks_is_no_header_of_the_request() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["headers"])
        await echo(scope, receive, send)

    @on_line(app)
    async def _(line: Line) -> None:
        head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        said = await line.hear(head + b"3\r\nabc\r\n0\r\nAuthorization: Bearer hf_x\r\n\r\n" + GET % b"next")
        assert (b"abc" in said, b"/next" in said) == (True, True)
        assert seen == [[(b"transfer-encoding", b"chunked")], [(b"host", b"localhost")]]


@pytest.mark.parametrize(
    ("target", "path", "raw_path", "query"),
    [
        (b"/a%2Fb?c=%20d?e", "/a/b", b"/a%2Fb", b"c=%20d?e"),
        (b"http://localhost:1/x?y=z", "/x", b"/x", b"y=z"),
        (b"//a/b", "//a/b", b"//a/b", b""),
        (b"/a#b?c", "/a", b"/a", b""),
    ],
)
def test_an_address_is_taken_apart(target: bytes, path: str, raw_path: bytes, query: bytes) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["path"], scope["raw_path"], scope["query_string"]))
        await echo(scope, receive, send)

    @on_line(app)
    async def _(line: Line) -> None:
        await line.hear(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target)
        assert seen == [(path, raw_path, query)]


# Leaving


def test_who_leaves_is_told_to_everybody_who_works_for_them() -> None:
    events: list[str] = []

    async def listening(scope: Any, receive: Any, send: Any) -> None:
        events.append((await receive())["type"])
        events.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200})  # which nobody hears, and nobody minds

    @on_line(listening)
    async def _(line: Line) -> None:
        await line.hear(GET % b"1" + GET % b"2")
        line.connection.connection_lost(None)
        await line.rest()
        assert events == ["http.request", "http.disconnect"]
        assert line.wire.written == b""
        assert not line.state.tasks
        assert not line.state.connections


def test_who_leaves_in_the_middle_of_a_body_or_a_clogged_answer_keeps_nothing_waiting() -> None:
    @on_line(echo)
    async def _(line: Line) -> None:
        await line.hear(POST % (10, b"half"))
        line.connection.connection_lost(ConnectionResetError())
        await line.rest()
        assert not line.state.tasks

    @on_line(stream)
    async def _(line: Line) -> None:
        line.connection.pause_writing()
        await line.hear(GET % b"")
        line.connection.connection_lost(None)
        await line.rest()
        assert not line.state.tasks
        assert line.wire.written == b""


def test_a_server_that_stops_answers_what_it_accepted_and_closes() -> None:
    async def main() -> None:
        held = Held()
        line = Line(held)
        await line.hear(GET % b"1" + GET % b"2")
        line.connection.shutdown()
        assert not line.wire.is_closing()
        held.free.set()
        await line.rest()
        assert held.ended == ["/1", "/2"]
        first, second = line.wire.written.split(b"HTTP/1.1 ")[1:]
        assert b"connection: close" not in first
        assert b"connection: close" in second
        assert line.wire.is_closing()
        idle = Line(held)
        idle.connection.shutdown()
        assert idle.wire.is_closing()

    asyncio.run(main())


def test_who_waits_for_a_word_before_sending_a_body_is_given_it_once() -> None:
    @on_line(echo)
    async def _(line: Line) -> None:
        head = b"POST / HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-Continue\r\n\r\n"
        assert await line.hear(head) == b"HTTP/1.1 100 Continue\r\n\r\n"
        said = await line.hear(b"ab", b"cd")
        assert said.count(b"100 Continue") == 1
        assert said.endswith(b"abcd")


# Waiting


def test_a_connection_is_closed_when_it_has_been_idle_and_not_while_it_answers() -> None:
    async def main() -> None:
        held = Held()
        line = Line(held, ServerLimits(idle_s=0))
        await line.hear(GET % b"1")
        await asyncio.sleep(2.5 * IDLE_LEAST_S)
        assert not line.wire.is_closing(), "it is being answered"
        held.free.set()
        await line.wire.closed.wait()
        assert line.wire.written.endswith(b"/1")

    asyncio.run(main())
