"""One caller cannot block the others: tenants share the capacity, and large data is not held in memory."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from holdfast.api import file_descriptors
from holdfast.api.limits import ServerLimits
from holdfast.api.problems import answer
from holdfast.errors import InvalidInput, Unavailable
from tests.api.in_process import running
from tests.api.process import WAIT_S, Api, ServerProcess, json_of, problem_of
from tests.api.test_http_clients import get, slow_reader, wait_until_reset
from tests.errors import raises
from tests.workspaces.hostile_archives import archive, member

Start = Callable[..., ServerProcess]
ZSTD = {"content-type": "application/zstd"}


def peak_memory(server: ServerProcess) -> int:
    """Return the peak memory of a server, in bytes."""
    (line,) = [line for line in Path(f"/proc/{server.pid}/status").read_text().splitlines() if "VmHWM" in line]
    return int(line.split()[1]) * 1024


def run_of(api: Api) -> str:
    body: str = json_of(api.http.post(f"{api.sessions}/{api.session()['id']}/runs", json={}), 201)["id"]
    return body


# Shares


@contextmanager
def half_an_archive(server: ServerProcess, path: str) -> Iterator[socket.socket]:
    """Start an upload that does not continue."""
    head = get(path, "Content-Type: application/zstd", "Content-Length: 1000", "Expect: 100-continue")
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
        raw.sendall(head.replace(b"GET", b"POST", 1))
        assert raw.recv(100).startswith(b"HTTP/1.1 100 ")
        yield raw


def test_one_tenant_cannot_use_all_archives_and_slow_uploads_are_released(start: Start) -> None:
    server = start("--limit", "archives=4", "--limit", "stall_s=2")
    mine, other = Api(server.http, "mine"), Api(server.http, "other")
    path = f"{mine.tenant}/runs/{run_of(mine)}/snapshots"
    theirs = f"{other.tenant}/runs/{run_of(other)}/snapshots"
    body = archive(member("a", b"1"))
    with ExitStack() as stack:
        held = [stack.enter_context(half_an_archive(server, path)) for _ in range(2)]
        problem_of(server.http.post(path, content=body, headers=ZSTD), 503, "Unavailable")
        json_of(server.http.post(theirs, content=body, headers=ZSTD), 201)
        for item in held:
            assert item.recv(100).startswith(b"HTTP/1.1 408 ")
    json_of(server.http.post(path, content=body, headers=ZSTD), 201)


def test_one_tenant_cannot_use_all_streams(start: Start) -> None:
    server = start("--limit", "streams=4")
    mine, other = Api(server.http, "mine"), Api(server.http, "other")
    path = f"{mine.sessions}/{mine.session()['id']}/events"
    with ExitStack() as stack:
        for _ in range(2):
            assert stack.enter_context(server.http.stream("GET", path)).status_code == 200
        problem_of(server.http.get(path), 503, "Unavailable")
        theirs = f"{other.sessions}/{other.session()['id']}/events?wait_s=0"
        assert server.http.get(theirs).status_code == 200


def test_open_operations_use_no_share() -> None:
    async def main() -> set[int]:
        async with running(limits=ServerLimits(connections=2, refusals_per_s=0)) as server:
            asked = [server.ask("GET", path, key=None) for path in ("/openapi.json", "/readyz", "/healthz") * 8]
            return {item.status for item in await asyncio.gather(*asked)}

    assert asyncio.run(main()) == {200}


# Memory


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_page_of_large_messages_ends_early(start: Start, engine: str, request: pytest.FixtureRequest) -> None:
    database = ["--database", request.getfixturevalue("postgres_url")] if engine == "postgres" else []
    server = start("--limit", "response_bytes=640000", *database)
    api = Api(server.http, "acme")
    session = api.session()
    for number in range(3):
        api.append(session, *[f"{number} " + "x" * 150_000] * 2)
    api.append(session, "small")
    path, seen, cursor = api.messages_of(session), [], None
    while True:
        params = {"limit": "80"} | ({"cursor": cursor} if cursor else {})
        page = json_of(api.http.get(path, params=params))
        seen.append([row["content"][0]["text"][:2] for row in page["items"]])
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [["0 ", "0 ", "1 "], ["1 ", "2 ", "2 ", "sm"]]
    newest = json_of(api.http.get(path, params={"limit": "80", "newest_first": "true"}))
    assert [item["content"][0]["text"][:2] for item in newest["items"]] == ["sm", "2 ", "2 ", "1 "]
    problem = problem_of(api.http.get(path + "/last", params={"count": "7"}), 422, "LimitExceeded")
    assert (problem["limit"], " 4" in problem["detail"]) == ("response_bytes", True)
    assert len(json_of(api.http.get(path + "/last", params={"count": "4"}))["items"]) == 4


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_page_of_large_deleted_messages_ends_early(start: Start, engine: str, request: pytest.FixtureRequest) -> None:
    database = ["--database", request.getfixturevalue("postgres_url")] if engine == "postgres" else []
    server = start("--limit", "response_bytes=640000", *database)
    api = Api(server.http, "acme")
    session = api.session()
    made = [*api.append(session, *["x" * 150_000] * 2), *api.append(session, *["x" * 150_000] * 2)]
    made += api.append(session, *["small"] * 9)
    path = api.messages_of(session)
    json_of(api.http.delete(path, params={"id": [item["id"] for item in made]}))
    sizes, seen, cursor = [], [], None
    while True:
        params = {"limit": "10"} | ({"cursor": cursor} if cursor else {})
        page = json_of(api.http.get(path + "/deleted", params=params))
        sizes.append(len(page["items"]))
        seen += [row["message"]["id"] for row in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == sorted(item["id"] for item in made)
    assert sizes == [3, 10]
    assert len(json_of(api.http.get(path + "/deleted", params={"limit": "1"}))["items"]) == 1


def test_a_page_loads_no_more_than_a_response_may_contain(start: Start) -> None:
    server = start("--limit", "response_bytes=4000000")
    api = Api(server.http, "acme")
    session = api.session()
    for _ in range(60):
        api.append(session, "x" * 1_000_000)
    before = peak_memory(server)
    assert len(json_of(api.http.get(api.messages_of(session), params={"limit": "1000"}))["items"]) == 2
    assert peak_memory(server) - before < 60_000_000, "not 60 messages of a megabyte, each in several copies"


def test_streams_that_are_never_read_buffer_little_and_are_closed(start: Start) -> None:
    server = start("--limit", "stall_s=1")
    api = Api(server.http, "acme")
    session = api.session()
    for _ in range(12):
        api.append(session, "x" * 2_000_000)
    before = peak_memory(server)
    with ExitStack() as stack:
        held = [stack.enter_context(slow_reader(server)) for _ in range(10)]
        for item in held:
            item.sendall(get(f"{api.sessions}/{session['id']}/events"))
        for item in held:
            wait_until_reset(item)
    assert peak_memory(server) - before < 10 * 30_000_000, "each buffers one message of the twelve, in several copies"


# Abandoned requests


def test_a_read_whose_client_disconnected_is_cancelled(start: Start, postgres_url: str) -> None:
    server = start("--database", postgres_url, "--limit", "half_closed_s=0.1")
    api = Api(server.http, "acme")
    path = api.messages_of(api.session())

    def waiting(connection: psycopg.Connection) -> int:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])

    with psycopg.connect(postgres_url) as locking, psycopg.connect(postgres_url, autocommit=True) as looking:
        locking.execute("LOCK TABLE messages")
        with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
            raw.sendall(get(path))
            while not waiting(looking):
                pass
        for _ in range(int(WAIT_S * 100)):
            if 'operation="list_messages",status="0"} 1' in server.http.get("/metrics").text:
                break
        else:
            pytest.fail("the request is still worked on")
    assert json_of(server.http.get(path))["items"] == []
    assert "Traceback" not in server.log


# File descriptors


def test_idle_connections_leave_file_descriptors_free(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, open_files=400) as server, ExitStack() as stack:
        api = Api(server.http, "acme")
        run = run_of(api)
        for _ in range(500):
            try:
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port), WAIT_S))
            except OSError:
                break
        assert json_of(server.http.get("/readyz")) == {"status": "ready"}
        for _ in range(5):
            api.append(api.session(), "text")
            body = archive(member("a", b"1"))
            json_of(server.http.post(f"{api.tenant}/runs/{run}/snapshots", content=body, headers=ZSTD), 201)
        with httpx.Client(base_url=server.url) as another:
            try:
                assert another.get("/healthz").status_code == 503
            except httpx.TransportError:
                pass  # further ones are closed immediately
    assert "Traceback" not in server.log


def test_a_server_without_free_file_descriptors_is_not_ready() -> None:
    file_descriptors.check_free()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open(os.devnull, os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + 1, hard))
    try:
        with pytest.raises(Unavailable) as refused:
            file_descriptors.check_free()
        assert isinstance(refused.value.__cause__, OSError)
        assert refused.value.__cause__.errno == errno.EMFILE
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert answer(OSError(errno.EMFILE, "Too many open files"), ServerLimits()).status_code == 503


def test_a_server_that_may_open_fewer_files_than_it_reserves_does_not_start() -> None:
    with raises(InvalidInput, field="reserved_files"):
        file_descriptors.connections(ServerLimits(reserved_files=999_999_999))
