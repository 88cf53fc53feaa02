"""How the server starts, tells whether it is ready, and stops."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.api.server import bind
from holdfast.errors import InvalidInput
from holdfast.file_identity import Presence
from tests.api.process import (
    ADMIN_KEY,
    BEARER,
    WAIT_S,
    Api,
    ServerProcess,
    answered,
    command,
    one_line,
    pasted,
    refused,
)
from tests.errors import raises
from tests.servers import PostgresServer

Start = Callable[..., ServerProcess]


def test_the_line_it_prints_makes_a_session_as_pasted(start: Start, tmp_path: Path) -> None:
    server = start("--data-dir", "deep/down")
    (line,) = [each for each in server.printed.splitlines() if "curl" in each]
    line = line.replace("$HOLDFAST_KEY", ADMIN_KEY)
    if shutil.which("curl") is None:
        pasted(server.http, line, server.url)
    else:
        subprocess.run(line, shell=True, stdout=subprocess.DEVNULL, timeout=WAIT_S, check=True)
    (made,) = answered(server.http.get("/v1/tenants/demo/sessions"))["items"]
    assert (made["user"], made["agent"]) == ("ada", "helper")
    assert pasted(server.http, line, server.url)["id"] != made["id"], "it can be pasted twice"
    folder = tmp_path / "deep" / "down"
    assert (folder / "holdfast.db").is_file()
    assert folder.stat().st_mode & 0o777 == 0o700, "the folder is its owner's only"


def test_what_was_answered_is_there_after_a_kill(start: Start) -> None:
    first = start()
    session = Api(first.http, "acme").session(user="ada")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = start()
    assert answered(second.http.get(f"/v1/tenants/acme/sessions/{session['id']}")) == session


def test_it_stops_in_good_order_when_interrupted(start: Start, tmp_path: Path) -> None:
    server = start()
    os.kill(server.pid, signal.SIGINT)
    assert server.wait() == 0
    assert server.log == ""
    assert not list((tmp_path / "data").glob("*-wal")), "the file was not closed"


class _HalfSent:
    """A request whose head the server has read, and whose body it is waiting for."""

    def __init__(self, server: ServerProcess, path: str, body: bytes) -> None:
        self._body = body
        self._raw = socket.create_connection(("127.0.0.1", server.port), WAIT_S)
        head = [
            f"POST {path} HTTP/1.1",
            f"Authorization: {BEARER['Authorization']}",
            "Host: localhost",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Expect: 100-continue",
        ]
        self._raw.sendall("\r\n".join([*head, "", ""]).encode())
        # The server says "go on" when the handler asks for the body: so the request is accepted, and under way.
        assert self._raw.recv(1024).startswith(b"HTTP/1.1 100 ")

    def finish(self) -> bytes:
        """Send the rest, and return everything that is answered until the connection is closed."""
        self._raw.sendall(self._body)
        answer = b""
        while chunk := self._raw.recv(65536):
            answer += chunk
        self._raw.close()
        return answer


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), WAIT_S).close()
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:
        return True  # it was closed at this very moment: look again
    return True


def test_requests_under_way_are_finished_before_it_stops(start: Start, tmp_path: Path) -> None:
    server = start()
    api = Api(server.http, "acme")
    session = api.session()
    path = api.messages_of(session)
    under_way = [_HalfSent(server, path, b'{"role":"user","content":"%d"}' % number) for number in range(8)]
    server.http.close()  # or this idle connection would be waited for as well
    server.terminate()
    while _is_open(server.port):
        pass
    for request in under_way:
        answer = request.finish()
        assert answer.startswith(b"HTTP/1.1 201 "), answer
    assert server.wait() == 0
    with Holdfast(str(tmp_path / "data" / "holdfast.db")) as hf:
        texts = {each.content[0]["text"] for each in hf.tenant("acme").messages.list(session["id"])}
    assert texts == {str(number) for number in range(8)}


def test_every_answer_under_load_is_kept_when_it_is_told_to_stop(start: Start, tmp_path: Path) -> None:
    server = start()
    session = Api(server.http, "acme").session()
    path = f"{server.url}/v1/tenants/acme/sessions/{session['id']}/messages"
    acknowledged: list[str] = []
    enough = threading.Event()

    def write(name: int) -> None:
        with httpx.Client(timeout=WAIT_S, headers=BEARER) as http:
            for number in range(100_000):
                try:
                    response = http.post(path, json={"role": "user", "content": f"{name}/{number}"})
                except httpx.TransportError:
                    return  # the server has stopped
                acknowledged.append(answered(response, 201)["id"])
                if len(acknowledged) > 100:
                    enough.set()

    threads = [threading.Thread(target=write, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    assert enough.wait(WAIT_S)
    server.terminate()
    assert server.wait() == 0
    for thread in threads:
        thread.join(WAIT_S)
    with Holdfast(str(tmp_path / "data" / "holdfast.db")) as hf:
        kept = {each.id for each in hf.tenant("acme").messages.list(session["id"])}
    assert set(acknowledged) <= kept


@pytest.mark.parametrize("name", ["holdfast.db", "holdfast.db-wal"])
@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_it_is_not_ready_and_writes_nothing_when_a_file_is_gone(
    start: Start, tmp_path: Path, how: str, name: str
) -> None:
    server = start()
    file = tmp_path / "data" / name
    answered(server.http.get("/readyz"))
    file.rename(tmp_path / "elsewhere.db")
    if how == "replaced":
        with Holdfast(str(tmp_path / "another.db")):
            pass
        (tmp_path / "another.db").rename(file)
    response = server.http.get("/readyz")
    problem = refused(response, 503, "Unavailable")
    assert int(response.headers["retry-after"]) > 0
    assert str(tmp_path) not in problem["detail"], "the path is for the log"
    assert name in server.log
    refused(server.http.post("/v1/tenants/acme/sessions", json={}), 503, "Unavailable")
    assert answered(server.http.get("/healthz")) == {"status": "ok"}
    if how == "deleted":
        (tmp_path / "elsewhere.db").rename(file)
        answered(server.http.get("/readyz"))
        answered(server.http.post("/v1/tenants/acme/sessions", json={}), 201)


def test_it_is_not_ready_while_postgres_is_stopped_and_ready_again_after(
    start: Start, own_postgres: PostgresServer
) -> None:
    url = own_postgres.create_database("agents")
    assert command("migrate", "up", "--database", url).returncode == 0
    server = start(HOLDFAST_DATABASE_URL=url)
    session = Api(server.http, "acme").session(user="ada")
    own_postgres.stop()
    refused(server.http.get("/readyz"), 503, "Unavailable")
    response = server.http.post("/v1/tenants/acme/sessions", json={})
    refused(response, 503, "Unavailable")
    assert "retry-after" in response.headers
    assert answered(server.http.get("/healthz")) == {"status": "ok"}
    own_postgres.start()
    answered(server.http.get("/readyz"))
    assert answered(server.http.get(f"/v1/tenants/acme/sessions/{session['id']}")) == session
    assert "unexpected error" not in server.log


def test_a_database_without_a_schema_is_refused_at_the_start(bare_postgres_url: str, tmp_path: Path) -> None:
    done = command("serve", "--port", "0", "--database", bare_postgres_url, cwd=tmp_path)
    assert done.returncode == 1
    assert "holdfast migrate up" in one_line(done.stderr)


def test_a_busy_port_is_one_clear_error(server: ServerProcess, tmp_path: Path) -> None:
    done = command("serve", "--port", str(server.port), cwd=tmp_path)
    assert done.returncode == 1
    message = one_line(done.stderr)
    assert str(server.port) in message
    assert "in use" in message


def test_an_address_that_others_can_reach_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = command("serve", "--host", "0.0.0.0", "--port", "0", "--database", "kept.db", cwd=tmp_path)
    assert done.returncode == 1
    assert "--allow-remote" in one_line(done.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["::", "192.0.2.1", "0"])
def test_every_address_that_others_can_reach_is_seen_for_what_it_is(host: str) -> None:
    with pytest.raises(InvalidInput, match="--allow-remote"):
        bind(host, 0)


def test_an_address_that_others_can_reach_is_used_when_said_so_by_name(start: Start) -> None:
    server = start("--host", "0.0.0.0", "--allow-remote")
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers={"Host": "agents.example", **BEARER}) as http:
        answered(http.get("/healthz"))
        refused(http.post("/v1/tenants", json={"id": "t"}, headers={"Origin": "http://evil.example"}), 403, "Forbidden")


def test_this_machine_by_name_and_in_both_families_is_local() -> None:
    for host in ["localhost", "127.0.0.1", "127.1.2.3"]:
        bind(host, 0).close()
    with raises(InvalidInput, field="host"):
        bind("no.such.host.invalid", 0)


def test_presence_has_no_opinion_on_other_databases() -> None:
    for url in [":memory:", "postgresql:///agents"]:
        Presence(url).check()


def test_concurrent_requests_each_get_their_own_answer(api: Api, server: ServerProcess) -> None:
    session = api.session()
    wrong: list[Any] = []

    def write(name: int) -> None:
        with httpx.Client(base_url=server.url, timeout=WAIT_S, headers=BEARER) as http:
            for number in range(20):
                text = f"{name}/{number}"
                body = {"role": "user", "content": text}
                found = answered(http.post(api.messages_of(session), json=body), 201)
                if found["content"][0]["text"] != text:
                    wrong.append((text, found))

    threads = [threading.Thread(target=write, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    listed = answered(api.http.get(api.messages_of(session), params={"limit": "1000"}))["items"]
    assert [each["seq"] for each in listed] == list(range(1, 161))


def _started_unseen(tmp_path: Path, port: int, how: str, **environment: str) -> subprocess.Popen[str]:
    """A server whose standard output nobody reads, or that has none."""
    line = [sys.executable, "-m", "holdfast", "serve", "--port", str(port), "--database", "kept.db"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
    if how == "closed":
        line = ["sh", "-c", 'exec "$@" >&-', "sh", *line]
    process = subprocess.Popen(
        line, cwd=tmp_path, env={**kept, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    return process


@pytest.mark.parametrize("how", ["unread", "closed"])
def test_a_key_that_nobody_could_see_is_revoked_and_the_next_start_draws_another(tmp_path: Path, how: str) -> None:
    process = _started_unseen(tmp_path, 0, how)
    assert process.wait(WAIT_S) == 1
    assert process.stderr is not None
    with process.stderr as errors:
        assert "could not be shown" in one_line(errors.read())
    with Holdfast(str(tmp_path / "kept.db")) as hf:
        (drawn,) = hf.api_keys.list()
        assert drawn.revoked_at is not None


@pytest.mark.parametrize("how", ["unread", "closed"])
def test_a_server_that_has_no_key_to_show_needs_nobody_to_see_it(tmp_path: Path, how: str) -> None:
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    process = _started_unseen(tmp_path, port, how, HOLDFAST_ADMIN_KEY=ADMIN_KEY)
    while process.poll() is None:
        try:
            answered(httpx.get(f"http://127.0.0.1:{port}/readyz"))
            break
        except httpx.TransportError:
            continue  # it does not listen yet
    process.terminate()
    assert process.wait(WAIT_S) == 0
    assert process.stderr is not None
    with process.stderr as errors:
        assert errors.read() == ""
