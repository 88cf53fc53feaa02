"""One caller cannot stop the others: what is under way is shared between tenants, and nothing large is held for anybody."""

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
from tests.api.process import WAIT_S, Api, ServerProcess, answered, refused
from tests.api.test_http_clients import get, slow_reader, wait_until_cut_off
from tests.workspaces.hostile_archives import archive, member

Start = Callable[..., ServerProcess]
ZSTD = {"content-type": "application/zstd"}


def peak_memory(server: ServerProcess) -> int:
    """The most memory a server has used so far, in bytes."""
    (line,) = [each for each in Path(f"/proc/{server.pid}/status").read_text().splitlines() if "VmHWM" in each]
    return int(line.split()[1]) * 1024


def run_of(api: Api) -> str:
    found: str = answered(api.http.post(f"{api.sessions}/{api.session()['id']}/runs", json={}), 201)["id"]
    return found


# Shares


@contextmanager
def half_an_archive(server: ServerProcess, path: str) -> Iterator[socket.socket]:
    """An upload that goes no further."""
    head = get(path, "Content-Type: application/zstd", "Content-Length: 1000", "Expect: 100-continue")
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as raw:
        raw.sendall(head.replace(b"GET", b"POST", 1))
        assert raw.recv(100).startswith(b"HTTP/1.1 100 ")
        yield raw


def test_one_tenant_cannot_take_all_archives_and_gives_back_what_trickles(start: Start) -> None:
    server = start("--limit", "archives=4", "--limit", "stall_s=2")
    mine, other = Api(server.http, "mine"), Api(server.http, "other")
    path = f"{mine.tenant}/runs/{run_of(mine)}/snapshots"
    theirs = f"{other.tenant}/runs/{run_of(other)}/snapshots"
    body = archive(member("a", b"1"))
    with ExitStack() as stack:
        held = [stack.enter_context(half_an_archive(server, path)) for _ in range(2)]
        refused(server.http.post(path, content=body, headers=ZSTD), 503, "Unavailable")
        answered(server.http.post(theirs, content=body, headers=ZSTD), 201)
        for each in held:
            assert each.recv(100).startswith(b"HTTP/1.1 408 ")
    answered(server.http.post(path, content=body, headers=ZSTD), 201)


def test_one_tenant_cannot_take_all_streams(start: Start) -> None:
    server = start("--limit", "streams=4")
    mine, other = Api(server.http, "mine"), Api(server.http, "other")
    path = f"{mine.sessions}/{mine.session()['id']}/events"
    with ExitStack() as stack:
        for _ in range(2):
            assert stack.enter_context(server.http.stream("GET", path)).status_code == 200
        refused(server.http.get(path), 503, "Unavailable")
        theirs = f"{other.sessions}/{other.session()['id']}/events?wait_s=0"
        assert server.http.get(theirs).status_code == 200


def test_what_anybody_may_ask_takes_nothing_of_a_share() -> None:
    async def main() -> set[int]:
        async with running(limits=ServerLimits(connections=2, refusals_per_s=0)) as server:
            asked = [server.ask("GET", path, key=None) for path in ("/openapi.json", "/readyz", "/healthz") * 8]
            return {each.status for each in await asyncio.gather(*asked)}

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
        page = answered(api.http.get(path, params=params))
        seen.append([each["content"][0]["text"][:2] for each in page["items"]])
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [["0 ", "0 ", "1 "], ["1 ", "2 ", "2 ", "sm"]]
    newest = answered(api.http.get(path, params={"limit": "80", "newest_first": "true"}))
    assert [each["content"][0]["text"][:2] for each in newest["items"]] == ["sm", "2 ", "2 ", "1 "]
    problem = refused(api.http.get(path + "/last", params={"count": "7"}), 422, "LimitExceeded")
    assert "request 4" in problem["detail"]
    assert len(answered(api.http.get(path + "/last", params={"count": "4"}))["items"]) == 4


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_page_of_large_deleted_messages_ends_early(start: Start, engine: str, request: pytest.FixtureRequest) -> None:
    database = ["--database", request.getfixturevalue("postgres_url")] if engine == "postgres" else []
    server = start("--limit", "response_bytes=640000", *database)
    api = Api(server.http, "acme")
    session = api.session()
    made = [*api.append(session, *["x" * 150_000] * 2), *api.append(session, *["x" * 150_000] * 2)]
    made += api.append(session, *["small"] * 9)
    path = api.messages_of(session)
    answered(api.http.delete(path, params={"id": [each["id"] for each in made]}))
    sizes, seen, cursor = [], [], None
    while True:
        params = {"limit": "10"} | ({"cursor": cursor} if cursor else {})
        page = answered(api.http.get(path + "/deleted", params=params))
        sizes.append(len(page["items"]))
        seen += [each["message"]["id"] for each in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == sorted(each["id"] for each in made)
    assert sizes == [3, 10]
    assert len(answered(api.http.get(path + "/deleted", params={"limit": "1"}))["items"]) == 1


def test_a_page_loads_no_more_than_an_answer_may_have(start: Start) -> None:
    server = start("--limit", "response_bytes=4000000")
    api = Api(server.http, "acme")
    session = api.session()
    for _ in range(60):
        api.append(session, "x" * 1_000_000)
    before = peak_memory(server)
    assert len(answered(api.http.get(api.messages_of(session), params={"limit": "1000"}))["items"]) == 2
    assert peak_memory(server) - before < 60_000_000, "not 60 messages of a megabyte, each in several forms"


def test_streams_that_are_never_read_hold_little_and_are_cut_off(start: Start) -> None:
    server = start("--limit", "stall_s=1")
    api = Api(server.http, "acme")
    session = api.session()
    for _ in range(12):
        api.append(session, "x" * 2_000_000)
    before = peak_memory(server)
    with ExitStack() as stack:
        held = [stack.enter_context(slow_reader(server)) for _ in range(10)]
        for each in held:
            each.sendall(get(f"{api.sessions}/{session['id']}/events"))
        for each in held:
            wait_until_cut_off(each)
    assert peak_memory(server) - before < 10 * 30_000_000, "each holds one message of the twelve, in several forms"


# What is abandoned


def test_a_read_whose_client_left_is_given_up(start: Start, postgres_url: str) -> None:
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
    assert answered(server.http.get(path))["items"] == []
    assert "Traceback" not in server.log


# File descriptors


def test_idle_connections_leave_files_for_everybody_else(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, open_files=400) as server, ExitStack() as stack:
        api = Api(server.http, "acme")
        run = run_of(api)
        for _ in range(500):
            try:
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port), WAIT_S))
            except OSError:
                break
        assert answered(server.http.get("/readyz")) == {"status": "ready"}
        for _ in range(5):
            api.append(api.session(), "text")
            body = archive(member("a", b"1"))
            answered(server.http.post(f"{api.tenant}/runs/{run}/snapshots", content=body, headers=ZSTD), 201)
        with httpx.Client(base_url=server.url) as another:
            try:
                assert another.get("/healthz").status_code == 503
            except httpx.TransportError:
                pass  # further ones are cut off at once
    assert "Traceback" not in server.log


def test_a_server_without_free_files_is_not_ready_and_says_unavailable() -> None:
    file_descriptors.check_free()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.open(os.devnull, os.O_RDONLY)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + 1, hard))
    try:
        with pytest.raises(Unavailable, match="no file descriptors are free"):
            file_descriptors.check_free()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert answer(OSError(errno.EMFILE, "Too many open files"), ServerLimits()).status_code == 503


def test_a_server_that_may_open_fewer_files_than_it_reserves_does_not_start() -> None:
    with pytest.raises(InvalidInput, match="reserved_files = 999,999,999"):
        file_descriptors.connections(ServerLimits(reserved_files=999_999_999))
