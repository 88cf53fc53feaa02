"""Limits of a connection outside of a request, and the responses when they are exceeded."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.api.process import BEARER, WAIT_S, ServerProcess, json_of, problem_of

Start = Callable[..., ServerProcess]
LIMIT = 4_096
HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


class RawConnection:
    """A connection on which bytes are sent unchanged."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw

    def send(self, *pieces: bytes) -> None:
        for chunk in pieces:
            self._raw.sendall(chunk)

    def read_all(self) -> bytes:
        """Read everything up to the end of the connection."""
        text = b""
        while chunk := self._raw.recv(65_536):
            text += chunk
        return text

    def read_response(self) -> tuple[int, Any]:
        """Read the status and the body of one response with a length."""
        text = b""
        while b"\r\n\r\n" not in text:
            text += self._more()
        head, _, body = text.partition(b"\r\n\r\n")
        (length,) = [int(line[16:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: ")]
        while len(body) < length:
            body += self._more()
        assert len(body) == length
        return int(head.split()[1]), json.loads(body)

    def drip(self, piece: bytes) -> None:
        """Send something repeatedly until the connection is closed."""
        for _ in range(int(WAIT_S * 20)):
            if select.select([self._raw], [], [], 0.05)[0]:
                return
            self._raw.sendall(piece)
        pytest.fail("the connection is still open")

    def _more(self) -> bytes:
        chunk = self._raw.recv(65_536)
        assert chunk, "the connection was closed"
        return chunk


@contextmanager
def connected(server: ServerProcess) -> Iterator[RawConnection]:
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
        yield RawConnection(raw)


def refused_as_too_large(said: bytes) -> None:
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 "), said[:200]
    assert b"content-type: application/problem+json" in head
    assert b"connection: close" in head
    problem = json.loads(body)
    assert (problem["type"], problem["status"], problem["limit"]) == ("LimitExceeded", 431, "header_bytes")
    assert f"{LIMIT:,}" in problem["detail"]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("strict"), "--limit", f"header_bytes={LIMIT}") as server:
        yield server


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD + b"X: " + b"a" * LIMIT + b"\r\n\r\n"],
        [HEAD + b"X: y\r\n" * LIMIT + b"\r\n"],
        [b"GET /" + b"a" * LIMIT + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"],
        [HEAD + b"X: ", *[b"a" * 1_000_000] * 40, b"\r\n\r\n"],
    ],
    ids=["one", "many", "address", "without end"],
)
def test_a_head_over_the_limit_is_refused_and_the_connection_closed(strict: ServerProcess, pieces: list[bytes]) -> None:
    with connected(strict) as raw:
        raw.send(*pieces)
        refused_as_too_large(raw.read_all())
    assert json_of(strict.http.get("/healthz")) == {"status": "ok"}


def test_a_head_within_the_limit_can_arrive_byte_by_byte_with_pipelined_requests(strict: ServerProcess) -> None:
    head = HEAD + b"X: " + b"a" * 3_000 + b"\r\n\r\n"
    with connected(strict) as raw:
        raw.send(*(head[place : place + 100] for place in range(0, len(head), 100)))
        assert raw.read_response() == (200, {"status": "ok"})
        for _ in range(3):
            raw.send(head)
            assert raw.read_response() == (200, {"status": "ok"})


def test_a_body_does_not_count_as_headers(strict: ServerProcess) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "a" * 10 * LIMIT}]}).encode()
    session = json_of(strict.http.post("/v1/tenants/acme/sessions", json={}), 201)
    head = (
        f"POST /v1/tenants/acme/sessions/{session['id']}/messages HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: {BEARER['Authorization']}\r\nContent-Type: application/json\r\n"
    ).encode()
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunks = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    with connected(strict) as raw:
        for request in (whole, chunks, whole):
            raw.send(*(request[place : place + 5_000] for place in range(0, len(request), 5_000)))
            assert raw.read_response()[0] == 201
        raw.send(whole + HEAD[:10])
        assert raw.read_response()[0] == 201
        raw.send(HEAD[10:] + b"\r\n")
        assert raw.read_response() == (200, {"status": "ok"})


def test_headers_after_a_body_have_the_same_limit(strict: ServerProcess) -> None:
    with connected(strict) as raw, pytest.raises(OSError):  # noqa: PT012
        raw.send(b"POST /v1/tenants HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ")
        assert raw.read_response()[0] == 401
        for _ in range(1_000):
            raw.send(b"a" * 100_000)


@pytest.mark.parametrize(
    "request_",
    [
        b"HELO localhost\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HEAD + b"\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab" + HEAD + b"\r\n",
        HEAD + b"Content-Length: +1\r\n\r\na" + HEAD + b"\r\n",
        HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HEAD + b"\r\n",
        HEAD + b"X : y\r\n\r\n" + HEAD + b"\r\n",
        HEAD + b"X\x00Y: z\r\n\r\n",
    ],
    ids=["method", "version", "both lengths", "two lengths", "signed length", "coding", "space", "NUL"],
)
def test_a_malformed_or_ambiguous_request_gets_one_400_and_closes_the_connection(
    strict: ServerProcess, request_: bytes
) -> None:
    with connected(strict) as raw:
        raw.send(request_)
        answers = raw.read_all().split(b"HTTP/1.1 ")[1:]
    assert [response[:3] for response in answers] == [b"400"], "the bytes after it are not taken for another request"
    assert b"connection: close" in answers[0]


def test_a_bad_chunk_ends_the_connection_and_stores_nothing(strict: ServerProcess) -> None:
    session = json_of(strict.http.post("/v1/tenants/acme/sessions", json={}), 201)["id"]
    head, _, body = appending(session, "smuggled").partition(b"\r\n\r\n")
    head = head.rpartition(b"\r\n")[0] + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(strict) as raw:
        raw.send(head + b"%x\r\n%b\r\nzz\r\n\r\n" % (len(body), body))
        assert raw.read_all().startswith(b"HTTP/1.1 400 ")
    assert texts(strict, session) == []


def test_a_connection_with_too_many_pipelined_requests_is_closed(strict: ServerProcess) -> None:
    session = json_of(strict.http.post("/v1/tenants/acme/sessions", json={}), 201)["id"]
    path = f"/v1/tenants/acme/sessions/{session}/events?wait_s=3600"
    waiting = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BEARER['Authorization']}\r\n\r\n".encode()
    with connected(strict) as raw:
        raw.send(waiting + (HEAD + b"\r\n") * 1_000)
        raw.read_all()


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("impatient"), "--limit", "idle_s=1") as server:
        yield server


@pytest.mark.parametrize("said", [b"", b"GET /hea", HEAD, HEAD + b"X: y"])
@pytest.mark.parametrize("asked_before", [False, True])
def test_an_idle_connection_is_closed(impatient: ServerProcess, said: bytes, asked_before: bool) -> None:
    with connected(impatient) as raw:
        if asked_before:
            raw.send(HEAD + b"\r\n")
            raw.read_response()
        raw.send(said)
        assert raw.read_all() == b""


@pytest.mark.parametrize("begun", [HEAD + b"X: y", b""])
def test_incomplete_headers_do_not_keep_a_connection_open(impatient: ServerProcess, begun: bytes) -> None:
    with connected(impatient) as raw:
        if not begun:
            raw.send(HEAD + b"\r\n")
            raw.read_response()
        raw.send(begun)
        raw.drip(b"y" if begun else b"\r\n")


def test_a_slow_response_is_not_cut_off_by_a_pipelined_request(impatient: ServerProcess) -> None:
    session = json_of(impatient.http.post("/v1/tenants/acme/sessions", json={}), 201)
    path = f"/v1/tenants/acme/sessions/{session['id']}/events?wait_s=3"
    with connected(impatient) as raw:
        raw.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BEARER['Authorization']}\r\n\r\n".encode())
        raw.send(HEAD)
        text = raw.read_all()
    assert text.startswith(b"HTTP/1.1 200 ")
    assert text.endswith(b"0\r\n\r\n"), "the stream ended by itself"


def test_a_connection_over_the_limit_gets_503_and_the_others_continue(start: Start) -> None:
    server = start("--limit", "connections=2")
    with connected(server) as first, connected(server) as second:
        for value in (first, second):
            value.send(HEAD + b"\r\n")
            assert value.read_response() == (200, {"status": "ok"})
        with httpx.Client(base_url=server.url) as third:
            read_response = third.get("/healthz")
            problem_of(read_response, 503, "Unavailable")
            assert int(read_response.headers["retry-after"]) > 0
            assert read_response.headers["connection"] == "close"
        first.send(HEAD + b"\r\n")
        assert first.read_response() == (200, {"status": "ok"})
    assert "Traceback" not in server.log


@pytest.mark.parametrize(
    ("request_line", "type"),
    [("POST /v1/tenants/acme/sessions", "Unavailable"), ("POST /api/sessions", None)],
)
def test_a_request_that_exceeds_the_grace_period_gets_an_error(
    start: Start, request_line: str, type: str | None
) -> None:
    server = start("--limit", "grace_s=1")
    with connected(server) as raw:
        raw.send(
            f"{request_line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BEARER['Authorization']}\r\n".encode(),
            b"Content-Type: application/json\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",
        )
        assert raw._more().startswith(b"HTTP/1.1 100 ")
        server.http.close()
        server.terminate()
        head, _, body = raw.read_all().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 "), head
    assert b"retry-after: " in head
    assert json.loads(body).get("type") == type
    assert server.wait() == 0
    assert "Traceback" not in server.log


@pytest.mark.parametrize("path", ["/v1/tenants/acme/sessions", "/api/sessions"])
def test_a_body_that_does_not_arrive_gets_408_and_closes_the_connection(start: Start, path: str) -> None:
    server = start("--limit", "answer_s=0.3")
    with connected(server) as raw:
        raw.send(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BEARER['Authorization']}\r\n".encode(),
            b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{",
        )
        text = raw.read_all()
    assert text.startswith(b"HTTP/1.1 408 "), text
    assert b"connection: close" in text
    assert b"answer_s = 0.3 s" in text


def appending(session: str, text: str) -> bytes:
    """Return the bytes of a request that appends a message."""
    body = json.dumps({"role": "user", "content": text}).encode()
    head = (
        f"POST /v1/tenants/acme/sessions/{session}/messages HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: {BEARER['Authorization']}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def texts(server: ServerProcess, session: str) -> list[str]:
    """Return the texts of a session's messages, in the order of the log."""
    page = json_of(server.http.get(f"/v1/tenants/acme/sessions/{session}/messages"))
    return [row["content"][0]["text"] for row in page["items"]]


def test_pipelined_appends_are_executed_and_answered_in_order(strict: ServerProcess) -> None:
    session = json_of(strict.http.post("/v1/tenants/acme/sessions", json={}), 201)["id"]
    words = [f"text {number}" for number in range(40)]
    requests = b"".join(appending(session, word) for word in words)
    with connected(strict) as raw:
        raw.send(*(requests[place : place + 700] for place in range(0, len(requests), 700)), HEAD)
        raw.send(b"Connection: close\r\n\r\n")
        answers = raw.read_all().split(b"HTTP/1.1 ")[1:]
    assert [response[:3] for response in answers] == [b"201"] * 40 + [b"200"]
    told = [json.loads(response.partition(b"\r\n\r\n")[2])["content"][0]["text"] for response in answers[:-1]]
    assert told == words == texts(strict, session)


@pytest.mark.parametrize("how", ["half a body", "half a head", "unread answers"])
def test_disconnecting_clients_leave_no_partial_changes(strict: ServerProcess, how: str) -> None:
    session = json_of(strict.http.post("/v1/tenants/acme/sessions", json={}), 201)["id"]
    whole = appending(session, "whole")
    for _ in range(20):
        with connected(strict) as raw:
            if how == "unread answers":
                raw.send(whole * 3)
            else:
                raw.send(whole[: -10 if how == "half a body" else 60])
    assert json_of(strict.http.get("/healthz")) == {"status": "ok"}
    assert set(texts(strict, session)) <= ({"whole"} if how == "unread answers" else set())
    assert "Traceback" not in strict.log


def test_an_upgrade_request_is_answered_over_http(strict: ServerProcess) -> None:
    with connected(strict) as raw:
        raw.send(HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        text = raw.read_all()
    assert text.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in text
    assert text.endswith(b'{"status":"ok"}')


def test_pipelined_requests_are_completed_when_the_server_stops(start: Start) -> None:
    server = start()
    session = json_of(server.http.post("/v1/tenants/acme/sessions", json={}), 201)["id"]
    server.http.close()
    path = f"/v1/tenants/acme/sessions/{session}/events?wait_s=20"
    listening = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BEARER['Authorization']}\r\n\r\n".encode()
    with connected(server) as raw:
        raw.send(listening + appending(session, "behind"))
        assert raw._more().startswith(b"HTTP/1.1 200 ")
        server.terminate()
        text = raw.read_all()
    stream, _, appended = text.partition(b"HTTP/1.1 ")
    assert stream.endswith(b"0\r\n\r\n"), "the stream ends"
    assert appended.startswith(b"201 "), "and the requests accepted after it are completed"
    assert b"connection: close" in appended
    assert server.wait() == 0
    assert "Traceback" not in server.log
