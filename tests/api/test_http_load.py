"""Many at once: nobody gets another's answer, whoever gives up in between, and connections can be held open."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable

import pytest

from tests.api.process import ADMIN_KEY, WAIT_S, Api, ServerProcess, answered

HEAD = f"Host: localhost\r\nAuthorization: Bearer {ADMIN_KEY}\r\nContent-Type: application/json"


class Impatient:
    """One connection that asks for its own message and sometimes leaves before the answer."""

    def __init__(self, port: int, path: str, name: str, seed: int) -> None:
        self._port, self._path, self._name, self._random = port, path, name, random.Random(seed)
        self.heard = self.left = 0

    async def ask(self, times: int) -> None:
        """Ask so often. An answer must be the answer to the last question."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        for number in range(times):
            text = f"{self._name} {number}"
            body = f'{{"role": "user", "content": "{text}"}}'
            request = f"POST {self._path} HTTP/1.1\r\n{HEAD}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            writer.write(request.encode())
            if self._random.random() < 0.5:
                await asyncio.sleep(self._random.random() * 0.004)  # no waiting for anything: when it leaves is chance
                writer.transport.abort()
                self.left += 1
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                continue
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            assert head.startswith("http/1.1 201"), head
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            assert f'"{text}"'.encode() in await reader.readexactly(length), "the answer to somebody else's question"
            self.heard += 1
        writer.close()
        await writer.wait_closed()


def _everybody_asks(server: ServerProcess, api: Api, *, connections: int, times: int) -> tuple[int, int]:
    path = api.messages_of(api.session())
    who = [Impatient(server.port, path, f"caller {number}", number) for number in range(connections)]

    async def main() -> None:
        async with asyncio.timeout(WAIT_S * 20):
            await asyncio.gather(*(each.ask(times) for each in who))

    asyncio.run(main())
    heard, left = sum(each.heard for each in who), sum(each.left for each in who)
    session = path.removesuffix("/messages").rpartition("/")[2]
    counted = answered(api.http.get(f"{api.sessions}/{session}/messages/count"))["count"]
    assert heard <= counted <= heard + left, "what was answered is there, and nothing is there twice"
    return heard, left


def test_nobody_gets_the_answer_to_a_request_that_was_given_up(server: ServerProcess, api: Api) -> None:
    heard, left = _everybody_asks(server, api, connections=16, times=20)
    assert left > 100
    assert heard > 100


@pytest.mark.soak
def test_ten_thousand_requests_are_given_up_and_nobody_gets_a_foreign_answer(server: ServerProcess, api: Api) -> None:
    _, left = _everybody_asks(server, api, connections=50, times=420)
    assert left > 10_000


def _ask(held: list[socket.socket]) -> None:
    """Have every connection ask, and only then hear what each is answered."""
    for each in held:
        each.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for each in held:
        answer = b""
        while not answer.endswith(b'{"status":"ok"}'):
            more = each.recv(4096)
            assert more, "it was let go"
            answer += more
        assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_thousand_connections_are_held_open_and_answered_again(start: Callable[..., ServerProcess]) -> None:
    server = start()
    held = [socket.create_connection(("127.0.0.1", server.port), WAIT_S) for _ in range(1_000)]
    try:
        _ask(held)
        _ask(held)
        answered(server.http.get("/readyz"))
    finally:
        for each in held:
            each.close()
    assert "error" not in server.log.lower()
