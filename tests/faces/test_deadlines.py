"""Deadlines: what is done in time is left alone, and what is late is told so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.api.bodies import Disconnected
from holdfast.api.deadlines import Deadlines
from holdfast.errors import InvalidInput
from tests.faces.in_process import running


def _under(seconds: float, work: Any) -> Any:
    async def main() -> Any:
        deadlines = Deadlines(seconds)
        with deadlines.begin():
            return await work()

    return asyncio.run(main())


def test_what_is_done_in_time_is_left_alone() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert _under(60, work) == 7


def test_what_takes_too_long_is_ended() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        _under(0.02, work)


def test_what_is_done_for_a_client_that_left_is_ended() -> None:
    async def main() -> None:
        events = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            return next(events)

        with Deadlines(60).begin() as deadline:
            deadline.needs_client(receive)
            await asyncio.Event().wait()

    with pytest.raises(Disconnected):
        asyncio.run(main())


def test_who_is_cancelled_by_somebody_else_is_not_told_that_it_was_late() -> None:
    async def main() -> None:
        deadlines = Deadlines(60)

        async def work() -> None:
            with deadlines.begin():
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not deadlines._under_way

    asyncio.run(main())


def test_an_error_that_comes_at_the_same_moment_is_the_one_that_is_told() -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise InvalidInput("this") from None

    with pytest.raises(InvalidInput, match="this"):
        _under(0.02, work)


def test_many_deadlines_pass_each_at_its_time() -> None:
    async def main() -> list[bool]:
        deadlines = Deadlines(0.03)

        async def work(quick: bool) -> bool:
            try:
                with deadlines.begin():
                    await asyncio.sleep(0 if quick else 60)
                    return True
            except TimeoutError:
                return False

        return list(await asyncio.gather(*(work(number % 2 == 0) for number in range(20))))

    assert asyncio.run(main()) == [True, False] * 10


@pytest.mark.parametrize(("method", "type"), [("POST", "OutcomeUnknown"), ("GET", "Unavailable")])
def test_a_request_that_a_stopping_server_cuts_off_is_answered(method: str, type: str) -> None:
    async def main() -> None:
        async with running() as server:
            session = await server.holdfast.tenant("acme").sessions.create()
            begun, path = asyncio.Event(), f"/v1/tenants/acme/sessions/{session.id}/messages"

            async def never(*arguments: Any, **options: Any) -> None:
                begun.set()
                await asyncio.Event().wait()

            messages = server.service.tenant("acme").messages
            messages.append = messages.list = never  # type: ignore[assignment,method-assign]
            body = {"role": "user", "content": "one"} if method == "POST" else None
            asking = asyncio.create_task(server.ask(method, path, body))
            await begun.wait()
            server.service.stop()
            asking.cancel()
            reply = await asking
            assert (reply.status, reply.json["type"]) == (503, type)
            assert "retry-after" in reply.headers
            assert bool(reply.json.get("id")) is (method == "POST"), "with what to ask again"

    asyncio.run(main())


def test_a_request_that_is_ended_while_the_server_goes_on_is_not_answered() -> None:
    async def main() -> None:
        async with running() as server:
            asking = asyncio.create_task(server.ask("GET", "/v1/tenants"))
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(main())
