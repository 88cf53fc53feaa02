"""Applications at fault: each is answered for, and nobody takes half an answer for a whole one, or another's for theirs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.faces.wire import GET, App, Held, Line, on_line


async def raising(scope: Any, receive: Any, send: Any) -> None:
    raise ZeroDivisionError("hunter2")


async def raising_late(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await raising(scope, receive, send)


async def silent(scope: Any, receive: Any, send: Any) -> None:
    pass


async def too_long(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
    await send({"type": "http.response.body", "body": b"ab"})


async def without_a_head(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.body", "body": b"ab"})


async def with_two_heads(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.start", "status": 200})


@pytest.mark.parametrize("app", [raising, raising_late, silent, too_long, without_a_head, with_two_heads])
def test_an_application_that_fails_before_anything_was_written_is_answered_for(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @on_line(app)
    async def _(line: Line) -> None:
        with caplog.at_level(logging.ERROR):
            said = await line.hear(GET % b"1" + GET % b"2")
        assert said.startswith(b"HTTP/1.1 500 ")
        assert said.count(b"HTTP/1.1 ") == 1
        assert b"application/problem+json" in said
        assert b"hunter2" not in said
        assert line.wire.is_closing()
        assert len(caplog.records) == 1


def test_an_application_that_fails_half_way_leaves_no_answer_that_looks_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"ab", "more_body": True})
        raise ZeroDivisionError

    @on_line(app)
    async def _(line: Line) -> None:
        said = await line.hear(GET % b"1" + GET % b"2")
        assert said.endswith(b"2\r\nab\r\n")
        assert line.wire.is_closing()


def test_a_request_that_is_cancelled_is_answered_and_nobody_behind_it_gets_its_answer() -> None:
    async def main() -> None:
        held = Held()
        line = Line(held)
        await line.hear(GET % b"1" + GET % b"2")
        (task,) = line.state.tasks
        task.cancel()
        await line.rest()
        assert task.cancelled()
        assert line.wire.written.startswith(b"HTTP/1.1 500 ")
        assert line.wire.is_closing()
        held.free.set()
        await line.rest()
        assert line.wire.written.count(b"HTTP/1.1 ") == 1
        assert not line.state.tasks

    asyncio.run(main())
