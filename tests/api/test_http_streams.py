"""Event streams: stored events, new events, and no missed events after a reconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

from holdfast import FixedClock, new_api_key
from holdfast.api.limits import ServerLimits
from holdfast.clock import from_us
from holdfast.errors import Unavailable
from tests.api.in_process import Running, running
from tests.api.process import ADMIN_KEY, BEARER, WAIT_S, Api, ServerProcess

T = "/v1/tenants/acme"
PATIENT = ServerLimits(stream_poll_s=1_000, stream_beat_s=1_000)
"""Streams do not poll: every event that arrives was published."""


class StreamClient:
    """A client of a stream."""

    def __init__(self) -> None:
        self.status = 0
        self.arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.leave = asyncio.Event()
        self._rest = b""

    async def receive(self) -> Any:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: Any) -> None:
        if event["type"] == "http.response.start":
            self.status = event["status"]
        else:
            self.arrived.put_nowait(event.get("body", b"") if event.get("more_body") else None)

    async def event(self) -> tuple[int, str, Any]:
        """Return the next event, without a rewind."""
        id, name, text = await self.any_event()
        return int(id), name, text

    async def any_event(self) -> tuple[str, str, Any]:
        """Return the next event, skipping comments."""
        async with asyncio.timeout(WAIT_S):
            while True:
                block, result, rest = self._rest.partition(b"\n\n")
                if not result:
                    more = await self.arrived.get()
                    assert more is not None, "the stream has ended"
                    self._rest += more
                    continue
                self._rest = rest
                if not block.startswith(b":"):
                    fields = dict(line.split(b": ", 1) for line in block.split(b"\n"))
                    return fields[b"id"].decode(), fields[b"event"].decode(), msgspec.json.decode(fields[b"data"])

    async def end(self) -> list[bytes]:
        """Return everything up to the end."""
        results: list[bytes] = []
        async with asyncio.timeout(WAIT_S):
            while (more := await self.arrived.get()) is not None:
                results.append(more)
        return results


@asynccontextmanager
async def listening(server: Running, path: str, **headers: str) -> AsyncIterator[StreamClient]:
    """Follow a stream until the block ends."""
    raw, _, query = path.partition("?")
    sent = [(b"host", b"localhost"), (b"authorization", f"Bearer {ADMIN_KEY}".encode())]
    sent += [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": "GET",
        "path": raw,
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "headers": sent,
        "client": ("127.0.0.1", 1),
        "path_params": {},
    }
    who = StreamClient()
    task = asyncio.create_task(server._app(scope, who.receive, who.send))
    try:
        yield who
    finally:
        who.leave.set()
        async with asyncio.timeout(WAIT_S):
            await task


def run_server(play: Callable[[Running], Coroutine[Any, Any, None]], limits: ServerLimits = PATIENT) -> None:
    async def main() -> None:
        async with running(limits=limits) as server:
            await play(server)

    asyncio.run(main())


async def session_of(server: Running, *texts: str) -> str:
    session = await server.holdfast.tenant("acme").sessions.create()
    for text in texts:
        await server.holdfast.tenant("acme").messages.append(session.id, role="user", content=text)
    return session.id


async def append(server: Running, session: str, text: str) -> None:
    body = {"role": "user", "content": text}
    assert (await server.ask("POST", f"{T}/sessions/{session}/messages", body)).status == 201


def test_stored_events_come_first_and_then_new_ones() -> None:
    async def play(server: Running) -> None:
        session = await session_of(server, "one", "two")
        async with listening(server, f"{T}/sessions/{session}/events") as who:
            first, second = await who.event(), await who.event()
            assert [(id, name, value["content"][0]["text"]) for id, name, value in (first, second)] == [
                (1, "message", "one"),
                (2, "message", "two"),
            ]
            await append(server, session, "three")
            assert (await who.event())[0] == 3

    run_server(play)


@pytest.mark.parametrize(
    ("query", "header"), [("", {"Last_Event_ID": "2"}), ("?after=2", {}), ("?after=9", {"Last_Event_ID": "2"})]
)
def test_a_client_that_reconnects_continues_after_its_last_event(query: str, header: dict[str, str]) -> None:
    async def play(server: Running) -> None:
        session = await session_of(server, "one", "two", "three")
        async with listening(server, f"{T}/sessions/{session}/events{query}", **header) as who:
            assert (await who.event())[0] == 3

    run_server(play)


def test_no_event_is_missed_or_repeated_during_concurrent_writes() -> None:
    async def play(server: Running) -> None:
        session = await session_of(server)
        writing = asyncio.gather(*(append(server, session, str(number)) for number in range(250)))
        seen: list[int] = []
        while len(seen) < 250:
            last = {"Last_Event_ID": str(seen[-1])} if seen else {}
            async with listening(server, f"{T}/sessions/{session}/events", **last) as who:
                for _ in range(min(60, 250 - len(seen))):
                    seen.append((await who.event())[0])
        await writing
        assert seen == list(range(1, 251))

    run_server(play)


def test_steps_of_a_run_are_streamed_as_they_are_committed() -> None:
    async def play(server: Running) -> None:
        acme = server.holdfast.tenant("acme")
        run = await acme.runs.start(await session_of(server))
        claimed = await acme.leases.claim("w", run_id=run.id)
        assert claimed is not None
        await acme.runs.step(run.id, epoch=claimed.epoch, iteration=1, state={"n": 1})
        async with listening(server, f"{T}/runs/{run.id}/events") as who:
            assert (await who.event())[:2] == (1, "step")
            body = {"epoch": claimed.epoch, "iteration": 2, "state": {"n": 2}}
            assert (await server.ask("POST", f"{T}/runs/{run.id}/steps", body)).status == 201
            id, _, text = await who.event()
            assert (id, text["state"]) == (2, {"n": 2})

    run_server(play)


async def read_events(who: StreamClient, count: int) -> list[tuple[str, Any]]:
    """Read this many events: their ids, and the text of a message, the state of a step or the position of a rewind."""
    results: list[tuple[str, Any]] = []
    for _ in range(count):
        id, name, text = await who.any_event()
        if name != "rewound":
            text = text["content"][0]["text"] if name == "message" else text["state"]["n"]
        results.append((id, text))
    return results


DONE = (200, 201)
REWOUND = ("1.1", {"place": 1})


def test_a_rewind_is_announced_and_the_new_rows_follow() -> None:
    async def play(server: Running) -> None:
        session = await session_of(server, "one", "two", "three")
        current = f"{T}/sessions/{session}"
        async with listening(server, f"{current}/events") as who:
            assert await read_events(who, 3) == [("1", "one"), ("2", "two"), ("3", "three")]
            assert (await server.ask("POST", f"{current}/rewind", {"to": 1})).status in DONE
            await append(server, session, "other")
            assert await read_events(who, 2) == [REWOUND, ("1.2", "other")]
            assert (await server.ask("POST", f"{current}/redo")).status in DONE
            assert await read_events(who, 3) == [("1", {"place": 1}), ("2", "two"), ("3", "three")]
            assert (await server.ask("POST", f"{current}/branches/1/switch")).status in DONE
            assert await read_events(who, 2) == [REWOUND, ("1.2", "other")]
            await append(server, session, "more")
            assert await read_events(who, 1) == [("1.3", "more")]

    run_server(play)


@pytest.mark.parametrize(
    ("last", "comes"),
    [
        ("3", [REWOUND, ("1.2", "other")]),
        ("1", [REWOUND, ("1.2", "other")]),
        ("0", [("1.0", {"place": 0}), ("1.1", "one"), ("1.2", "other")]),
        ("1.1", [("1.2", "other")]),
        ("1.0", [("1.1", "one"), ("1.2", "other")]),
        ("77.3", [("1.0", {"place": 0}), ("1.1", "one"), ("1.2", "other")]),
        (None, [("1.1", "one"), ("1.2", "other")]),
    ],
)
def test_a_client_that_missed_a_rewind_continues_from_the_common_position(last: str | None, comes: list[Any]) -> None:
    async def play(server: Running) -> None:
        session = await session_of(server, "one", "two", "three")
        acme = server.holdfast.tenant("acme")
        await acme.branches.rewind(session, to=1)
        await acme.messages.append(session, role="user", content="other")
        sent = {} if last is None else {"Last_Event_ID": last}
        async with listening(server, f"{T}/sessions/{session}/events", **sent) as who:
            assert await read_events(who, len(comes)) == comes

    run_server(play)


def test_two_branches_share_what_their_common_ancestor_had_at_both_forks() -> None:
    async def play(server: Running) -> None:
        session = await session_of(server, *"abcdef")
        branches = server.holdfast.tenant("acme").branches
        low = await branches.fork(session, at=2)
        await branches.switch(session, low.number)
        await append(server, session, "low 3")
        under = await branches.fork(session, at=3)
        await branches.switch(session, 0)
        high = await branches.fork(session, at=5)
        await branches.switch(session, high.number)
        current = f"{T}/sessions/{session}/events"
        async with listening(server, current, Last_Event_ID=f"{under.number}.3") as who:
            assert (await who.any_event())[2] == {"place": 2}
        async with listening(server, current, Last_Event_ID="6") as who:
            assert (await who.any_event())[2] == {"place": 5}

    run_server(play)


def test_rewound_steps_are_announced_and_their_replacements_follow() -> None:
    async def play(server: Running) -> None:
        acme = server.holdfast.tenant("acme")
        run = await acme.runs.start(await session_of(server))

        async def steps(*wanted: tuple[int, str]) -> None:
            claimed = await acme.leases.claim("w", run_id=run.id)
            assert claimed is not None
            for number, item in wanted:
                await acme.runs.step(run.id, epoch=claimed.epoch, iteration=number, state={"n": item})
            await acme.runs.pause(run.id, epoch=claimed.epoch)

        await steps((1, "a"), (2, "b"), (3, "c"))
        current = f"{T}/runs/{run.id}"
        async with listening(server, f"{current}/events") as who:
            assert await read_events(who, 3) == [("1", "a"), ("2", "b"), ("3", "c")]
            assert (await server.ask("POST", f"{current}/rewind", {"to_step": 1})).status in DONE
            assert await read_events(who, 1) == [REWOUND]
            assert (await server.ask("POST", f"{current}/redo")).status in DONE
            assert await read_events(who, 3) == [("2.1", {"place": 1}), ("2.2", "b"), ("2.3", "c")]
            await acme.workspaces.rewind(run.id, to_step=1, path=None)
            await acme.runs.resume(run.id)
            await steps((2, "B"), (3, "C"), (4, "D"))
            server.service.notifier.publish(f"acme/{run.id}")
            assert await read_events(who, 4) == [("3.1", {"place": 1}), ("3.2", "B"), ("3.3", "C"), ("3.4", "D")]
        async with listening(server, f"{current}/events", Last_Event_ID="2.3") as who:
            assert await read_events(who, 2) == [("3.1", {"place": 1}), ("3.2", "B")]

    run_server(play)


def test_writes_of_another_process_are_found_by_polling() -> None:
    async def play(server: Running) -> None:
        session = await session_of(server)
        async with listening(server, f"{T}/sessions/{session}/events") as who:
            await server.holdfast.tenant("acme").messages.append(session, role="user", content="from elsewhere")
            assert (await who.event())[0] == 1

    run_server(play, ServerLimits(stream_poll_s=0.01))


def test_a_stream_without_events_sends_comments_and_ends_in_time() -> None:
    async def play(server: Running) -> None:
        session = await session_of(server)
        async with listening(server, f"{T}/sessions/{session}/events?wait_s=1") as who:
            text = await who.end()
        assert text[0] == b": welcome\n\n"
        assert b": nothing new\n\n" in text
        async with listening(server, f"{T}/sessions/{session}/events?wait_s=0") as who:
            assert await who.end() == [b": welcome\n\n"]

    run_server(play, ServerLimits(stream_poll_s=0.05, stream_beat_s=0.05))


def test_streams_end_when_the_server_stops_and_listeners_are_removed() -> None:
    async def play(server: Running) -> None:
        session = await session_of(server, "one")
        async with listening(server, f"{T}/sessions/{session}/events") as who:
            await who.event()
            assert server.service.notifier.listeners == 1
        assert server.service.notifier.listeners == 0
        async with listening(server, f"{T}/sessions/{session}/events") as who:
            await who.event()
            server.service.stop()
            assert await who.end() == []

    run_server(play)


@pytest.mark.parametrize("how", ["revoked", "deleted"])
def test_a_stream_ends_before_the_next_event_when_its_key_becomes_invalid(how: str) -> None:
    async def play(server: Running) -> None:
        session = await session_of(server, "one")
        key = new_api_key()
        keys = server.holdfast.api_keys
        made = await keys.create(key, name="listener", tenant="acme", scopes=["read"])
        async with listening(server, f"{T}/sessions/{session}/events", Authorization=f"Bearer {key}") as who:
            await who.event()
            await append(server, session, "two")
            assert (await who.event())[0] == 2
            await (keys.revoke(made.id) if how == "revoked" else keys.delete(made.id))
            await append(server, session, "three")
            assert await who.end() == []

    run_server(play, ServerLimits(stream_poll_s=1_000, key_s=0))


def test_a_quiet_stream_ends_when_its_key_expires() -> None:
    async def main() -> None:
        clock = FixedClock(datetime.now(UTC))
        async with running(limits=ServerLimits(stream_poll_s=0.01), clock=clock) as server:
            session = await session_of(server, "one")
            key, until = new_api_key(), from_us(clock.now_us()) + timedelta(hours=1)
            await server.holdfast.api_keys.create(key, name="listener", tenant="acme", expires_at=until)
            async with listening(server, f"{T}/sessions/{session}/events", Authorization=f"Bearer {key}") as who:
                await who.event()
                clock.advance(3_600)
                assert await who.end() == []

    asyncio.run(main())


def streamed(start: Callable[..., ServerProcess]) -> tuple[ServerProcess, Api, dict[str, Any]]:
    """A server, and a session with a message."""
    server = start()
    api = Api(server.http, "acme")
    session = api.session()
    api.append(session, "one")
    return server, api, session


def test_a_stream_ends_cleanly_when_its_session_is_deleted(start: Callable[..., ServerProcess]) -> None:
    server, api, session = streamed(start)
    with server.http.stream("GET", f"{api.sessions}/{session['id']}/events") as response:
        lines = response.iter_lines()
        while next(lines) != "id: 1":
            pass
        with httpx.Client(base_url=server.url, headers=BEARER) as other:
            assert other.delete(f"{api.sessions}/{session['id']}").status_code < 300
        assert [line for line in lines if line.startswith("id")] == []
    server.close()
    assert server.log == ""


def test_a_failing_stream_is_ended_cleanly_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def play(server: Running) -> None:
        session = await session_of(server, "one")
        async with listening(server, f"{T}/sessions/{session}/events") as who:
            await who.event()
            server.service.key_cache.is_valid = _unavailable  # type: ignore[method-assign]
            await append(server, session, "two")
            assert await who.end() == []

    run_server(play)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "a stream ended: Unavailable"
    ]


async def _unavailable(key_id: str) -> bool:
    raise Unavailable("not now")


def test_the_number_of_streams_is_limited() -> None:
    async def play(server: Running) -> None:
        session = await session_of(server, "one")
        async with listening(server, f"{T}/sessions/{session}/events") as who:
            await who.event()
            refused = await server.ask("GET", f"{T}/sessions/{session}/events")
            assert (refused.status, refused.json["type"]) == (503, "Unavailable")

    run_server(play, ServerLimits(streams=1, stream_poll_s=1_000))


@pytest.mark.parametrize("last", ["x", "-1", "1.", ".5", "1.2.3", "1.-1", "9" * 20, "٣"])
def test_an_invalid_event_id_is_refused(last: str) -> None:
    async def play(server: Running) -> None:
        session = await session_of(server, "one")
        reply = await server.ask("GET", f"{T}/sessions/{session}/events", headers={"Last-Event-ID": last})
        assert (reply.status, reply.json["type"]) == (400, "InvalidInput")

    run_server(play)


def test_streams_of_missing_objects_get_404() -> None:
    async def play(server: Running) -> None:
        missing = "00000000-0000-7000-8000-000000000000"
        for path in (f"/sessions/{missing}/events", f"/runs/{missing}/events"):
            assert (await server.ask("GET", T + path)).status == 404

    run_server(play)


def test_a_real_stream_ends_cleanly_when_the_server_stops(start: Callable[..., ServerProcess]) -> None:
    server, api, session = streamed(start)
    with server.http.stream("GET", f"{api.sessions}/{session['id']}/events") as response:
        lines = response.iter_lines()
        assert response.headers["content-type"] == "text/event-stream"
        while next(lines) != "id: 1":
            pass
        server.terminate()
        assert any(line.startswith("data: ") for line in lines)
    assert server.wait() == 0
