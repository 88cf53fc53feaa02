"""Misbehaving clients: they do not read, half-close the connection, disconnect, or open as many connections as they can."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.api.process import BEARER, WAIT_S, Api, ServerProcess, json_of
from tests.api.test_http_connections import HEAD, RawConnection, connected

Start = Callable[..., ServerProcess]
OPENAPI = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
PIPELINED = 100
LARGE = 12_000_000
"""Characters of a message that no socket buffer can hold."""


@contextmanager
def slow_reader(server: ServerProcess) -> Iterator[socket.socket]:
    """Return a connection with a receive buffer of a few kilobytes."""
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.settimeout(WAIT_S)
        raw.connect(("127.0.0.1", server.port))
        yield raw


def wait_until_reset(raw: socket.socket) -> None:
    """Wait for the reset of a connection whose data is not read."""
    poll = select.poll()
    poll.register(raw, 0)
    assert poll.poll(WAIT_S * 1_000), "the connection is still open"


def get(path: str, *headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", f"Authorization: {BEARER['Authorization']}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def large_message(server: ServerProcess) -> str:
    """Return the path of a message that no socket buffer can hold."""
    api = Api(server.http, "acme")
    (message,) = api.append(api.session(), "x" * LARGE)
    return f"{api.tenant}/messages/{message['id']}"


def test_connections_whose_clients_never_read_are_closed(start: Start) -> None:
    server = start("--limit", "connections=4", "--limit", "stall_s=1")
    server.http.close()
    with ExitStack() as stack:
        held = [stack.enter_context(slow_reader(server)) for _ in range(4)]
        for item in held:
            item.sendall(OPENAPI * PIPELINED)
        for item in held:
            wait_until_reset(item)
        with connected(server) as raw:
            raw.send(HEAD + b"\r\n")
            assert raw.read_response() == (200, {"status": "ok"})


def test_the_last_response_of_a_connection_has_the_same_time_limit(start: Start) -> None:
    server = start("--limit", "connections=2", "--limit", "stall_s=1")
    path = large_message(server)
    with slow_reader(server) as raw:
        raw.sendall(get(path, "Connection: close"))
        wait_until_reset(raw)
        with connected(server) as other:
            other.send(HEAD + b"\r\n")
            assert other.read_response() == (200, {"status": "ok"})


def test_a_client_that_reads_slowly_but_steadily_gets_its_whole_response(start: Start) -> None:
    server = start("--limit", "stall_s=1", "--limit", "transfer_bytes_per_s=1000")
    path = large_message(server)
    with slow_reader(server) as raw:
        raw.sendall(get(path, "Connection: close"))
        size = 0
        while chunk := raw.recv(65_536):
            size += len(chunk)
    assert size > LARGE


@pytest.mark.parametrize("requests", [1, 3])
def test_a_half_closed_connection_still_gets_its_responses(server: ServerProcess, requests: int) -> None:
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
        raw.sendall(get("/v1/tenants") * requests)
        raw.shutdown(socket.SHUT_WR)
        text = RawConnection(raw).read_all()
    assert text.count(b"HTTP/1.1 200 ") == requests


def test_an_incomplete_request_on_a_half_closed_connection_is_dropped(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
        raw.sendall(b"POST /v1/tenants HTTP/1.1\r\nHost: localhost\r\n")
        raw.sendall(f"Authorization: {BEARER['Authorization']}\r\n".encode())
        raw.sendall(b'Content-Type: application/json\r\nContent-Length: 20\r\n\r\n{"id":')
        raw.shutdown(socket.SHUT_WR)
        assert RawConnection(raw).read_all() == b""


def test_trailers_of_a_body_are_not_headers_of_the_request(server: ServerProcess) -> None:
    body = json.dumps({"id": "trailers"}).encode()
    with connected(server) as raw:
        raw.send(
            b"POST /v1/tenants HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
            + b"%x\r\n%b\r\n0\r\nAuthorization: %b\r\n\r\n"
            % (len(body), body, BEARER["Authorization"].encode())
        )
        assert raw.read_response()[0] == 401


def test_a_stream_ends_with_its_client_even_with_a_pipelined_request(start: Start) -> None:
    server = start("--limit", "streams=1", "--limit", "stream_beat_s=0.1")
    api = Api(server.http, "acme")
    path = f"{api.sessions}/{api.session()['id']}/events?wait_s=3600"
    with connected(server) as raw:
        raw.send(get(path) + HEAD + b"\r\n")
        assert raw._more().startswith(b"HTTP/1.1 200 ")
    for _ in range(int(WAIT_S * 100)):  # until the server has noticed
        with server.http.stream("GET", path.replace("3600", "0")) as answer:
            if answer.status_code == 200:
                break
    else:
        pytest.fail("the stream goes on")
    assert json_of(server.http.get("/healthz")) == {"status": "ok"}
