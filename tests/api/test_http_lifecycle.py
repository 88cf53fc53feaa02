"""Start, readiness and stop of the server."""

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
from holdfast.file_identity import FileIdentity
from tests.api.process import (
    ADMIN_KEY,
    BEARER,
    WAIT_S,
    Api,
    ServerProcess,
    command,
    json_of,
    one_line,
    problem_of,
    run_curl,
)
from tests.errors import raises
from tests.servers import PostgresServer

Start = Callable[..., ServerProcess]


def test_the_printed_curl_command_creates_a_session(start: Start, tmp_path: Path) -> None:
    server = start("--data-dir", "deep/down")
    (line,) = [line for line in server.printed.splitlines() if "curl" in line]
    line = line.replace("$HOLDFAST_KEY", ADMIN_KEY)
    if shutil.which("curl") is None:
        run_curl(server.http, line, server.url)
    else:
        subprocess.run(line, shell=True, stdout=subprocess.DEVNULL, timeout=WAIT_S, check=True)
    (made,) = json_of(server.http.get("/v1/tenants/demo/sessions"))["items"]
    assert (made["user"], made["agent"]) == ("ada", "helper")
    assert run_curl(server.http, line, server.url)["id"] != made["id"], "it can be run twice"
    folder = tmp_path / "deep" / "down"
    assert (folder / "holdfast.db").is_file()
    assert folder.stat().st_mode & 0o777 == 0o700, "only the owner can access the directory"


def test_acknowledged_writes_survive_a_kill(start: Start) -> None:
    first = start()
    session = Api(first.http, "acme").session(user="ada")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = start()
    assert json_of(second.http.get(f"/v1/tenants/acme/sessions/{session['id']}")) == session


def test_it_stops_cleanly_when_interrupted(start: Start, tmp_path: Path) -> None:
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
        # The server sends 100 Continue when the handler reads the body: the request is accepted and in progress.
        assert self._raw.recv(1024).startswith(b"HTTP/1.1 100 ")

    def finish(self) -> bytes:
        """Send the rest, and return all responses until the connection is closed."""
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
        return True  # it was closed at this moment: check again
    return True


def test_requests_in_progress_are_completed_before_it_stops(start: Start, tmp_path: Path) -> None:
    server = start()
    api = Api(server.http, "acme")
    session = api.session()
    path = api.messages_of(session)
    under_way = [_HalfSent(server, path, b'{"role":"user","content":"%d"}' % number) for number in range(8)]
    server.http.close()  # otherwise this idle connection would be waited for as well
    server.terminate()
    while _is_open(server.port):
        pass
    for request in under_way:
        answer = request.finish()
        assert answer.startswith(b"HTTP/1.1 201 "), answer
    assert server.wait() == 0
    with Holdfast(str(tmp_path / "data" / "holdfast.db")) as hf:
        texts = {message.content[0]["text"] for message in hf.tenant("acme").messages.list(session["id"])}
    assert texts == {str(number) for number in range(8)}


def test_every_acknowledged_write_under_load_survives_a_stop(start: Start, tmp_path: Path) -> None:
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
                acknowledged.append(json_of(response, 201)["id"])
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
        kept = {message.id for message in hf.tenant("acme").messages.list(session["id"])}
    assert set(acknowledged) <= kept


@pytest.mark.parametrize("name", ["holdfast.db", "holdfast.db-wal"])
@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_it_is_not_ready_and_writes_nothing_when_the_database_file_is_removed(
    start: Start, tmp_path: Path, how: str, name: str
) -> None:
    server = start()
    file = tmp_path / "data" / name
    json_of(server.http.get("/readyz"))
    file.rename(tmp_path / "elsewhere.db")
    if how == "replaced":
        with Holdfast(str(tmp_path / "another.db")):
            pass
        (tmp_path / "another.db").rename(file)
    response = server.http.get("/readyz")
    problem = problem_of(response, 503, "Unavailable")
    assert int(response.headers["retry-after"]) > 0
    assert str(tmp_path) not in problem["detail"], "the path is only logged"
    assert name in server.log
    problem_of(server.http.post("/v1/tenants/acme/sessions", json={}), 503, "Unavailable")
    assert json_of(server.http.get("/healthz")) == {"status": "ok"}
    if how == "deleted":
        (tmp_path / "elsewhere.db").rename(file)
        json_of(server.http.get("/readyz"))
        json_of(server.http.post("/v1/tenants/acme/sessions", json={}), 201)


def test_it_is_not_ready_while_postgres_is_stopped_and_ready_again_afterwards(
    start: Start, own_postgres: PostgresServer
) -> None:
    url = own_postgres.create_database("agents")
    assert command("migrate", "up", "--database", url).returncode == 0
    server = start(HOLDFAST_DATABASE_URL=url)
    session = Api(server.http, "acme").session(user="ada")
    own_postgres.stop()
    problem_of(server.http.get("/readyz"), 503, "Unavailable")
    response = server.http.post("/v1/tenants/acme/sessions", json={})
    problem_of(response, 503, "Unavailable")
    assert "retry-after" in response.headers
    assert json_of(server.http.get("/healthz")) == {"status": "ok"}
    own_postgres.start()
    json_of(server.http.get("/readyz"))
    assert json_of(server.http.get(f"/v1/tenants/acme/sessions/{session['id']}")) == session
    assert "unexpected error" not in server.log


def test_a_database_without_a_schema_prevents_the_start(bare_postgres_url: str, tmp_path: Path) -> None:
    result = command("serve", "--port", "0", "--database", bare_postgres_url, cwd=tmp_path)
    assert result.returncode == 1
    assert "holdfast migrate up" in one_line(result.stderr)


def test_a_port_in_use_is_one_clear_error(server: ServerProcess, tmp_path: Path) -> None:
    result = command("serve", "--port", str(server.port), cwd=tmp_path)
    assert result.returncode == 1
    message = one_line(result.stderr)
    assert str(server.port) in message
    assert "in use" in message


def test_an_address_that_other_machines_can_reach_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    result = command("serve", "--host", "0.0.0.0", "--port", "0", "--database", "kept.db", cwd=tmp_path)
    assert result.returncode == 1
    assert "--allow-remote" in one_line(result.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["::", "192.0.2.1", "0"])
def test_every_address_that_other_machines_can_reach_is_detected(host: str) -> None:
    with raises(InvalidInput, field="host"):
        bind(host, 0)


def test_an_address_that_other_machines_can_reach_is_used_with_allow_remote(start: Start) -> None:
    server = start("--host", "0.0.0.0", "--allow-remote")
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers={"Host": "agents.example", **BEARER}) as http:
        json_of(http.get("/healthz"))
        problem_of(
            http.post("/v1/tenants", json={"id": "t"}, headers={"Origin": "http://evil.example"}), 403, "Forbidden"
        )


def test_loopback_addresses_of_both_families_are_local() -> None:
    for host in ["localhost", "127.0.0.1", "127.1.2.3"]:
        bind(host, 0).close()
    with raises(InvalidInput, field="host"):
        bind("no.such.host.invalid", 0)


def test_presence_ignores_databases_that_are_not_files() -> None:
    for url in [":memory:", "postgresql:///agents"]:
        FileIdentity(url).check()


def test_each_of_many_concurrent_requests_gets_its_own_response(api: Api, server: ServerProcess) -> None:
    session = api.session()
    wrong: list[Any] = []

    def write(name: int) -> None:
        with httpx.Client(base_url=server.url, timeout=WAIT_S, headers=BEARER) as http:
            for number in range(20):
                text = f"{name}/{number}"
                body = {"role": "user", "content": text}
                answer = json_of(http.post(api.messages_of(session), json=body), 201)
                if answer["content"][0]["text"] != text:
                    wrong.append((text, answer))

    threads = [threading.Thread(target=write, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    listed = json_of(api.http.get(api.messages_of(session), params={"limit": "1000"}))["items"]
    assert [row["seq"] for row in listed] == list(range(1, 161))


def _started_unseen(tmp_path: Path, port: int, how: str, **environment: str) -> subprocess.Popen[str]:
    """Start a server whose standard output is closed or cannot be written."""
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
def test_a_key_that_could_not_be_shown_is_revoked_and_the_next_start_generates_another(
    tmp_path: Path, how: str
) -> None:
    process = _started_unseen(tmp_path, 0, how)
    assert process.wait(WAIT_S) == 1
    assert process.stderr is not None
    with process.stderr as errors:
        assert "could not be shown" in one_line(errors.read())
    with Holdfast(str(tmp_path / "kept.db")) as hf:
        (drawn,) = hf.api_keys.list()
        assert drawn.revoked_at is not None


@pytest.mark.parametrize("how", ["unread", "closed"])
def test_a_server_without_a_generated_key_needs_no_standard_output(tmp_path: Path, how: str) -> None:
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    process = _started_unseen(tmp_path, port, how, HOLDFAST_ADMIN_KEY=ADMIN_KEY)
    while process.poll() is None:
        try:
            json_of(httpx.get(f"http://127.0.0.1:{port}/readyz"))
            break
        except httpx.TransportError:
            continue  # it does not listen yet
    process.terminate()
    assert process.wait(WAIT_S) == 0
    assert process.stderr is not None
    with process.stderr as errors:
        assert errors.read() == ""
