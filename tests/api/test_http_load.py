"""Many concurrent connections: each gets its own responses, although some disconnect, and all can be held open."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable

import pytest

from tests.api.process import ADMIN_KEY, WAIT_S, Api, ServerProcess, json_of

HEAD = f"Host: localhost\r\nAuthorization: Bearer {ADMIN_KEY}\r\nContent-Type: application/json"


class Impatient:
    """A connection that requests its own message and sometimes disconnects before the response."""

    def __init__(self, port: int, path: str, name: str, seed: int) -> None:
        self._port, self._path, self._name, self._random = port, path, name, random.Random(seed)
        self.heard = self.left = 0

    async def request_repeatedly(self, times: int) -> None:
        """Send this many requests. A response must belong to the last request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        for number in range(times):
            text = f"{self._name} {number}"
            body = f'{{"role": "user", "content": "{text}"}}'
            request = f"POST {self._path} HTTP/1.1\r\n{HEAD}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            writer.write(request.encode())
            if self._random.random() < 0.5:
                await asyncio.sleep(
                    self._random.random() * 0.004
                )  # without a wait: whether it disconnects in time is chance
                writer.transport.abort()
                self.left += 1
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                continue
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            assert head.startswith("http/1.1 201"), head
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            assert f'"{text}"'.encode() in await reader.readexactly(length), (
                "the response to another connection's request"
            )
            self.heard += 1
        writer.close()
        await writer.wait_closed()


def _everybody_asks(server: ServerProcess, api: Api, *, connections: int, times: int) -> tuple[int, int]:
    path = api.messages_of(api.session())
    who = [Impatient(server.port, path, f"caller {number}", number) for number in range(connections)]

    async def main() -> None:
        async with asyncio.timeout(WAIT_S * 20):
            await asyncio.gather(*(item.request_repeatedly(times) for item in who))

    asyncio.run(main())
    heard, left = sum(item.heard for item in who), sum(item.left for item in who)
    session = path.removesuffix("/messages").rpartition("/")[2]
    counted = json_of(api.http.get(f"{api.sessions}/{session}/messages/count"))["count"]
    assert heard <= counted <= heard + left, "every counted response exists, and none twice"
    return heard, left


def test_no_client_gets_the_response_to_an_abandoned_request(server: ServerProcess, api: Api) -> None:
    heard, left = _everybody_asks(server, api, connections=16, times=20)
    assert left > 100
    assert heard > 100


@pytest.mark.soak
def test_after_ten_thousand_abandoned_requests_every_response_is_the_clients_own(
    server: ServerProcess, api: Api
) -> None:
    _, left = _everybody_asks(server, api, connections=50, times=420)
    assert left > 10_000


def _ask(held: list[socket.socket]) -> None:
    """Send a request on every connection, and only then read the responses."""
    for item in held:
        item.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for item in held:
        answer = b""
        while not answer.endswith(b'{"status":"ok"}'):
            more = item.recv(4096)
            assert more, "it was closed"
            answer += more
        assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_thousand_connections_are_held_open_and_answered_again(start: Callable[..., ServerProcess]) -> None:
    server = start()
    held = [socket.create_connection(("127.0.0.1", server.port), WAIT_S) for _ in range(1_000)]
    try:
        _ask(held)
        _ask(held)
        json_of(server.http.get("/readyz"))
    finally:
        for item in held:
            item.close()
    assert "error" not in server.log.lower()
