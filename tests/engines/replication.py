"""A primary and its standby, which tests may stop, freeze and promote."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

from tests.servers import PostgresServer, _postgres, _unprivileged

STANDBY = "standby"
"""The name by which a primary knows its standby."""


class TcpPostgres(PostgresServer):
    """A server that listens on 127.0.0.1 too."""

    def __init__(self) -> None:
        self.port = _free_port()
        settings = {"listen_addresses": "127.0.0.1", "port": str(self.port), "wal_retrieve_retry_interval": "100ms"}
        super().__init__(settings=settings)

    def url(self, database: str = "postgres") -> str:
        """Return the address of one of its databases."""
        return f"{super().url(database)}&port={self.port}"


class Standby(TcpPostgres):
    """A copy of a primary that follows it."""

    def __init__(self, primary: TcpPostgres) -> None:
        super().__init__()
        self._primary = primary

    def catch_up(self) -> None:
        """Wait until it has all data that is on the primary now."""
        ((place,),) = self._primary.execute("SELECT pg_current_wal_flush_lsn()::text")
        while self.execute(f"SELECT pg_last_wal_replay_lsn() >= '{place}'::pg_lsn") != [(True,)]:
            time.sleep(0.01)

    def promote(self) -> None:
        """Make it a primary."""
        assert self.execute("SELECT pg_promote(true, 60)") == [(True,)]

    def _initialise(self) -> None:
        primary = f"host={self._primary.folder} port={self._primary.port} user=postgres application_name={STANDBY}"
        command: list[str | Path] = [
            _postgres(self.folder) / "pg_basebackup",
            "-d",
            primary,
            "-D",
            self.folder / "data",
        ]
        completed = subprocess.run(
            [*map(str, command), "--checkpoint=fast", "--no-sync", "--write-recovery-conf"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **_unprivileged(self.folder),
        )
        assert completed.returncode == 0, completed.stderr


def require_standby(primary: PostgresServer) -> None:
    """From now on, commits on the primary wait for the standby."""
    primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'")
    primary.execute("SELECT pg_reload_conf()")


def freeze(server: PostgresServer) -> list[psutil.Process]:
    """Stop every process of a server without ending it; its connections stay open and are not served."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    children: list[psutil.Process] = psutil.Process(server.pid).children()
    for child in children:
        child.suspend()
    return children


def thaw(server: PostgresServer, children: list[psutil.Process]) -> None:
    """Resume a frozen server."""
    for child in children:
        if child.is_running():
            child.resume()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGCONT)


_next_port = itertools.count(20_000 + os.getpid() % 1_000 * 12)


def _free_port() -> int:
    """Return a port that no other test run uses, nor an outgoing connection while a server is stopped."""
    for port in _next_port:
        with socket.socket() as existing:
            try:
                existing.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError
