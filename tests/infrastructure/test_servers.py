"""The servers that tests use behave as the tests expect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from holdfast import Holdfast
from tests import servers
from tests.servers import PgBouncer, PostgresServer, RedisServer, ServerError


def wait_until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_an_own_server_keeps_the_default_durability(own_postgres: PostgresServer) -> None:
    for name in ("fsync", "synchronous_commit", "full_page_writes"):
        assert own_postgres.execute(f"SHOW {name}") == [("on",)]


def test_server_has_a_private_socket_and_no_port(postgres_server: PostgresServer) -> None:
    assert postgres_server.execute("SHOW listen_addresses") == [("",)]
    assert postgres_server.folder.stat().st_mode & 0o077 == 0


def test_database_of_a_test_is_migrated(postgres_url: str) -> None:
    with Holdfast(postgres_url) as hf:
        assert hf.tenant("acme").sessions.list() == []


@pytest.mark.parametrize("again", [1, 2])
def test_the_database_of_a_test_is_empty_after_another_test_wrote(postgres_url: str, again: int) -> None:
    with Holdfast(postgres_url) as hf:
        assert hf.tenants.list() == []
        hf.tenant("acme").sessions.create(key="left behind")


@pytest.mark.parametrize("again", [1, 2])
def test_a_database_with_a_changed_schema_is_not_reused(postgres_url: str, again: int) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT to_regclass('leftover')").fetchone() == (None,)
        connection.execute("CREATE TABLE leftover (id int)")


def test_bare_database_has_no_tables(bare_postgres_url: str) -> None:
    with psycopg.connect(bare_postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_killed_server_restarts_with_all_committed_data(own_postgres: PostgresServer) -> None:
    own_postgres.execute("CREATE TABLE kept (id int)")
    own_postgres.kill()
    assert own_postgres.pid is None
    with pytest.raises(psycopg.OperationalError):
        own_postgres.execute("SELECT 1")
    own_postgres.start()
    assert own_postgres.execute("SELECT count(*) FROM kept") == [(0,)]
    own_postgres.stop()
    assert own_postgres.pid is None


def test_a_server_that_cannot_start_reports_the_reason() -> None:
    server = PostgresServer(settings={"shared_buffers": "nonsense"})
    with pytest.raises(ServerError, match="shared_buffers"), server:
        pass
    assert not server.folder.exists()


OWNER = """
import sys, time
from tests.servers import PostgresServer
server = PostgresServer()
server.start()
print(server.pid, server.folder, flush=True)
time.sleep(600)
"""


def test_a_server_ends_when_its_owner_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        assert servers._is_alive(int(pid))
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not servers._is_alive(int(pid)) and not Path(folder).exists())


@pytest.mark.usefixtures("redis_url")
def test_redis_answers_and_leaves_no_files() -> None:
    with RedisServer() as redis:
        assert redis.execute("SET", "a", "1") in (True, b"OK")
        assert redis.execute("GET", "a") == b"1"
    assert not redis.folder.exists()


def test_redis_of_a_test_is_empty(redis_url: str) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_pooler_reaches_the_server_behind_it(pgbouncer: PgBouncer, postgres_server: PostgresServer) -> None:
    with psycopg.connect(pgbouncer.url(), prepare_threshold=None) as connection:
        place = connection.execute("SHOW data_directory").fetchone()
    assert place == (str(postgres_server.folder / "data"),)


@pytest.mark.parametrize("closed", [True, False])
def test_a_program_in_an_inaccessible_folder_is_copied(tmp_path: Path, closed: bool) -> None:
    package = servers.private_folder()
    program = package / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    package.chmod(0o700 if closed else 0o755)
    actual = servers._reachable_copy(program, package, tmp_path)
    moved = closed and os.geteuid() == 0
    assert actual == (tmp_path / "programs" / package.name / "program" if moved else program)
    assert package.stat().st_mode & 0o777 == (0o700 if closed else 0o755)
    program.unlink()
    package.rmdir()


def test_server_runs_from_a_copy_of_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_is_reachable", lambda path: "site-packages" not in path.parts)
    with PostgresServer() as server:
        assert servers._postgres(server.folder).is_relative_to(server.folder)
        assert server.execute("SELECT 1") == [(1,)]
