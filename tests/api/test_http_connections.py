"""What a connection may do before anything is asked on it, and what it hears when that is too much."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.api.process import BEARER, WAIT_S, ServerProcess, answered, refused

Start = Callable[..., ServerProcess]
LIMIT = 4_096
HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


class Raw:
    """A connection on which bytes are said as they are."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw

    def say(self, *pieces: bytes) -> None:
        for each in pieces:
            self._raw.sendall(each)

    def hear(self) -> bytes:
        """Everything up to the end of the connection."""
        said = b""
        while chunk := self._raw.recv(65_536):
            said += chunk
        return said

    def answer(self) -> tuple[int, Any]:
        """The status and the body of one answer that has a length."""
        said = b""
        while b"\r\n\r\n" not in said:
            said += self._more()
        head, _, body = said.partition(b"\r\n\r\n")
        (length,) = [int(each[16:]) for each in head.lower().split(b"\r\n") if each.startswith(b"content-length: ")]
        while len(body) < length:
            body += self._more()
        assert len(body) == length
        return int(head.split()[1]), json.loads(body)

    def drip(self, piece: bytes) -> None:
        """Say something again and again until the connection is closed."""
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
def connected(server: ServerProcess) -> Iterator[Raw]:
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
        yield Raw(raw)


def refused_as_too_large(said: bytes) -> None:
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 "), said[:200]
    assert b"content-type: application/problem+json" in head
    assert b"connection: close" in head
    problem = json.loads(body)
    assert (problem["type"], problem["status"]) == ("LimitExceeded", 431)
    assert f"header_bytes = {LIMIT:,}" in problem["detail"]


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
        raw.say(*pieces)
        refused_as_too_large(raw.hear())
    assert answered(strict.http.get("/healthz")) == {"status": "ok"}


def test_a_head_within_the_limit_may_come_byte_by_byte_and_with_others_behind_it(strict: ServerProcess) -> None:
    head = HEAD + b"X: " + b"a" * 3_000 + b"\r\n\r\n"
    with connected(strict) as raw:
        raw.say(*(head[place : place + 100] for place in range(0, len(head), 100)))
        assert raw.answer() == (200, {"status": "ok"})
        for _ in range(3):
            raw.say(head)
            assert raw.answer() == (200, {"status": "ok"})


def test_a_body_is_not_counted_with_the_headers(strict: ServerProcess) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "a" * 10 * LIMIT}]}).encode()
    session = answered(strict.http.post("/v1/tenants/acme/sessions", json={}), 201)
    head = (
        f"POST /v1/tenants/acme/sessions/{session['id']}/messages HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: {BEARER['Authorization']}\r\nContent-Type: application/json\r\n"
    ).encode()
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunks = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    with connected(strict) as raw:
        for request in (whole, chunks, whole):
            raw.say(*(request[place : place + 5_000] for place in range(0, len(request), 5_000)))
            assert raw.answer()[0] == 201
        raw.say(whole + HEAD[:10])
        assert raw.answer()[0] == 201
        raw.say(HEAD[10:] + b"\r\n")
        assert raw.answer() == (200, {"status": "ok"})


def test_headers_behind_a_body_have_the_same_limit(strict: ServerProcess) -> None:
    with connected(strict) as raw, pytest.raises(OSError):  # noqa: PT012
        raw.say(b"POST /v1/tenants HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ")
        assert raw.answer()[0] == 401
        for _ in range(1_000):
            raw.say(b"a" * 100_000)


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
def test_a_malformed_or_ambiguous_request_gets_one_400_and_the_connection_is_closed(
    strict: ServerProcess, request_: bytes
) -> None:
    with connected(strict) as raw:
        raw.say(request_)
        answers = raw.hear().split(b"HTTP/1.1 ")[1:]
    assert [each[:3] for each in answers] == [b"400"], "nothing behind it is taken for a request of its own"
    assert b"connection: close" in answers[0]


def test_a_bad_chunk_ends_the_connection_and_stores_nothing(strict: ServerProcess) -> None:
    session = answered(strict.http.post("/v1/tenants/acme/sessions", json={}), 201)["id"]
    head, _, body = appending(session, "smuggled").partition(b"\r\n\r\n")
    head = head.rpartition(b"\r\n")[0] + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(strict) as raw:
        raw.say(head + b"%x\r\n%b\r\nzz\r\n\r\n" % (len(body), body))
        assert raw.hear().startswith(b"HTTP/1.1 400 ")
    assert texts(strict, session) == []


def test_a_connection_with_too_many_waiting_requests_is_closed(strict: ServerProcess) -> None:
    session = answered(strict.http.post("/v1/tenants/acme/sessions", json={}), 201)["id"]
    path = f"/v1/tenants/acme/sessions/{session}/events?wait_s=3600"
    waiting = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BEARER['Authorization']}\r\n\r\n".encode()
    with connected(strict) as raw:
        raw.say(waiting + (HEAD + b"\r\n") * 1_000)
        raw.hear()


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("impatient"), "--limit", "idle_s=1") as server:
        yield server


@pytest.mark.parametrize("said", [b"", b"GET /hea", HEAD, HEAD + b"X: y"])
@pytest.mark.parametrize("asked_before", [False, True])
def test_a_connection_on_which_nothing_is_asked_is_closed(
    impatient: ServerProcess, said: bytes, asked_before: bool
) -> None:
    with connected(impatient) as raw:
        if asked_before:
            raw.say(HEAD + b"\r\n")
            raw.answer()
        raw.say(said)
        assert raw.hear() == b""


@pytest.mark.parametrize("begun", [HEAD + b"X: y", b""])
def test_saying_a_little_now_and_then_keeps_no_connection_open(impatient: ServerProcess, begun: bytes) -> None:
    with connected(impatient) as raw:
        if not begun:
            raw.say(HEAD + b"\r\n")
            raw.answer()
        raw.say(begun)
        raw.drip(b"y" if begun else b"\r\n")


def test_an_answer_that_takes_longer_is_not_cut_off_by_the_next_request(impatient: ServerProcess) -> None:
    session = answered(impatient.http.post("/v1/tenants/acme/sessions", json={}), 201)
    path = f"/v1/tenants/acme/sessions/{session['id']}/events?wait_s=3"
    with connected(impatient) as raw:
        raw.say(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BEARER['Authorization']}\r\n\r\n".encode())
        raw.say(HEAD)
        said = raw.hear()
    assert said.startswith(b"HTTP/1.1 200 ")
    assert said.endswith(b"0\r\n\r\n"), "the stream came to its own end"


def test_a_connection_too_many_is_told_when_to_come_back_and_the_others_go_on(start: Start) -> None:
    server = start("--limit", "connections=2")
    with connected(server) as first, connected(server) as second:
        for each in (first, second):
            each.say(HEAD + b"\r\n")
            assert each.answer() == (200, {"status": "ok"})
        with httpx.Client(base_url=server.url) as third:
            answer = third.get("/healthz")
            refused(answer, 503, "Unavailable")
            assert int(answer.headers["retry-after"]) > 0
            assert answer.headers["connection"] == "close"
        first.say(HEAD + b"\r\n")
        assert first.answer() == (200, {"status": "ok"})
    assert "Traceback" not in server.log


@pytest.mark.parametrize(
    ("request_line", "type"),
    [("POST /v1/tenants/acme/sessions", "Unavailable"), ("POST /api/sessions", None)],
)
def test_what_is_not_done_in_time_when_the_server_stops_is_told_so(
    start: Start, request_line: str, type: str | None
) -> None:
    server = start("--limit", "grace_s=1")
    with connected(server) as raw:
        raw.say(
            f"{request_line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BEARER['Authorization']}\r\n".encode(),
            b"Content-Type: application/json\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",
        )
        assert raw._more().startswith(b"HTTP/1.1 100 ")
        server.http.close()
        server.terminate()
        head, _, body = raw.hear().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 "), head
    assert b"retry-after: " in head
    assert json.loads(body).get("type") == type
    assert server.wait() == 0
    assert "Traceback" not in server.log


@pytest.mark.parametrize("path", ["/v1/tenants/acme/sessions", "/api/sessions"])
def test_a_body_that_does_not_come_is_the_callers_fault_and_ends_the_connection(start: Start, path: str) -> None:
    server = start("--limit", "answer_s=0.3")
    with connected(server) as raw:
        raw.say(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BEARER['Authorization']}\r\n".encode(),
            b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{",
        )
        said = raw.hear()
    assert said.startswith(b"HTTP/1.1 408 "), said
    assert b"connection: close" in said
    assert b"answer_s = 0.3 s" in said


def appending(session: str, text: str) -> bytes:
    """A request to append a message."""
    body = json.dumps({"role": "user", "content": text}).encode()
    head = (
        f"POST /v1/tenants/acme/sessions/{session}/messages HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: {BEARER['Authorization']}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def texts(server: ServerProcess, session: str) -> list[str]:
    """What a session's messages say, in the order of the log."""
    page = answered(server.http.get(f"/v1/tenants/acme/sessions/{session}/messages"))
    return [each["content"][0]["text"] for each in page["items"]]


def test_appends_sent_without_waiting_are_done_and_answered_in_their_order(strict: ServerProcess) -> None:
    session = answered(strict.http.post("/v1/tenants/acme/sessions", json={}), 201)["id"]
    words = [f"text {number}" for number in range(40)]
    requests = b"".join(appending(session, each) for each in words)
    with connected(strict) as raw:
        raw.say(*(requests[place : place + 700] for place in range(0, len(requests), 700)), HEAD)
        raw.say(b"Connection: close\r\n\r\n")
        answers = raw.hear().split(b"HTTP/1.1 ")[1:]
    assert [each[:3] for each in answers] == [b"201"] * 40 + [b"200"]
    told = [json.loads(each.partition(b"\r\n\r\n")[2])["content"][0]["text"] for each in answers[:-1]]
    assert told == words == texts(strict, session)


@pytest.mark.parametrize("how", ["half a body", "half a head", "unread answers"])
def test_who_goes_away_leaves_the_server_well_and_nothing_half_done(strict: ServerProcess, how: str) -> None:
    session = answered(strict.http.post("/v1/tenants/acme/sessions", json={}), 201)["id"]
    whole = appending(session, "whole")
    for _ in range(20):
        with connected(strict) as raw:
            if how == "unread answers":
                raw.say(whole * 3)
            else:
                raw.say(whole[: -10 if how == "half a body" else 60])
    assert answered(strict.http.get("/healthz")) == {"status": "ok"}
    assert set(texts(strict, session)) <= ({"whole"} if how == "unread answers" else set())
    assert "Traceback" not in strict.log


def test_who_wants_another_protocol_is_answered_in_this_one(strict: ServerProcess) -> None:
    with connected(strict) as raw:
        raw.say(HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        said = raw.hear()
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in said
    assert said.endswith(b'{"status":"ok"}')


def test_requests_sent_without_waiting_are_finished_when_the_server_stops(start: Start) -> None:
    server = start()
    session = answered(server.http.post("/v1/tenants/acme/sessions", json={}), 201)["id"]
    server.http.close()
    path = f"/v1/tenants/acme/sessions/{session}/events?wait_s=20"
    listening = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {BEARER['Authorization']}\r\n\r\n".encode()
    with connected(server) as raw:
        raw.say(listening + appending(session, "behind"))
        assert raw._more().startswith(b"HTTP/1.1 200 ")
        server.terminate()
        said = raw.hear()
    stream, _, appended = said.partition(b"HTTP/1.1 ")
    assert stream.endswith(b"0\r\n\r\n"), "the stream comes to its end"
    assert appended.startswith(b"201 "), "and what was accepted behind it is done"
    assert b"connection: close" in appended
    assert server.wait() == 0
    assert "Traceback" not in server.log
