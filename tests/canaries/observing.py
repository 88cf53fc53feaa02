"""The scene of the canary tests: a real server, real commands, and everything that they show."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import psycopg
import zstandard

from holdfast import Filter, Holdfast, NewAgent, bundle_format, column
from holdfast.bundles import export_tenant
from holdfast.core import objects
from holdfast.core.crypto import VARIABLE
from holdfast.errors import HoldfastError
from tests.api.process import ADMIN_KEY, WAIT_S, ServerProcess
from tests.core.disclosure import everything_about

WATCH_S = 0.05
"""Seconds between two looks at the arguments of processes; a command takes several times as long to start."""
TENANT, KAGENT_TENANT, AGENT = "acme", "default", "helper"


class Scene:
    """A database, a server on it, and all output: by the place where a secret must not appear."""

    def __init__(self, url: str, folder: Path, key: str) -> None:
        self.url, self.key, self._folder = url, key, folder
        self.places: dict[str, list[bytes]] = {}
        self._numbers = count(1)
        environment = {VARIABLE: key}
        options = ("--database", url, "--log-level", "debug", "--log-format", "json")
        self.server = ServerProcess(folder, *options, **environment)  # type: ignore[arg-type]
        with self.library() as hf:
            for tenant in (TENANT, KAGENT_TENANT):
                hf.tenant(tenant).agents.create(NewAgent(id=AGENT))

    def say(self, output: str, place: str = "output of the library") -> None:
        """Record output."""
        self.places.setdefault(place, []).append(output.encode("utf-8", "backslashreplace"))

    def expect(self, is_true: object) -> None:
        """Check that a secret was stored: a door that stores nothing leaks nothing."""
        assert is_true

    def name(self, word: str) -> str:
        """Return a new name."""
        return f"{word}-{next(self._numbers)}"

    def of_task(self, task: str) -> list[Filter]:
        """Return the filter for the push configurations of a task."""
        return [column("task_id").eq(task)]

    # The library

    @contextmanager
    def library(self) -> Iterator[Holdfast]:
        """Open the database in this process, with every log line recorded."""
        with self.logged(), Holdfast(self.url, encryption_key=self.key) as hf:
            yield hf

    @contextmanager
    def logged(self) -> Iterator[None]:
        """Record what this process logs."""
        stream, root = io.StringIO(), logging.getLogger()
        handler, level = logging.StreamHandler(stream), root.level
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            root.setLevel(level)
            root.removeHandler(handler)
            self.say(stream.getvalue(), "logs of the library")

    def refused(self, call: Callable[[], Any], *, variables: bool = True) -> None:
        """Make a call that fails, and record all that its error discloses, or its message only."""
        try:
            with self.logged():
                call()
        except HoldfastError as error:
            self.say(everything_about(error) if variables else str(error), "errors and tracebacks")
        else:
            raise AssertionError("the call was not refused")

    # The server

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the tenant and return the answer."""
        response = self._send(method, f"/v1/tenants/{TENANT}{path}", body)
        assert response.status_code < 300, response.text
        return response.json() if response.content else None

    def ask_refused(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> None:
        """Send a request that is refused."""
        response = self._send(method, f"/v1/tenants/{TENANT}{path}", body, headers)
        assert 400 <= response.status_code < 600, response.text

    def reveal(self, path: str) -> Any:
        """Reveal a secret: the only answer that may contain it, so it is not recorded."""
        response = self.server.http.post(f"/v1/tenants/{TENANT}{path}")
        assert response.status_code == 200, response.text
        return response.json()

    def kagent(self, method: str, path: str, body: Any, *, shows: bool = False) -> Any:
        """Send a request to kagent's API. An answer to the owner of a secret may show it, and is not recorded then."""
        response = self.server.http.request(
            method,
            path,
            content=json.dumps(body).encode(),
            headers={"X-User-Id": "ada", "Content-Type": "application/json"},
        )
        assert response.status_code < 300, response.text
        if not shows:
            self.say(response.text, "answers")
        return response.json()["data"]

    def _send(self, method: str, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Any:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        response = self.server.http.request(method, path, content=content, headers={**kind, **(headers or {})})
        self.say(f"{response.headers!r}\n{response.text}", "answers")
        return response

    # The command line

    def command(self, *arguments: str, input: str = "", fails: bool = False, **environment: str) -> None:
        """Run a command, and record its output and the arguments of its processes."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
        holdfast = {"HOLDFAST_DATABASE_URL": self.url, "HOLDFAST_TENANT": TENANT, VARIABLE: self.key}
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments],
            cwd=self._folder,
            env={**inherited, **holdfast, "HOLDFAST_DEBUG": "1" if fails else "", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with _watching_arguments(process.pid) as seen:
            output, _ = process.communicate(input.encode(), timeout=WAIT_S)
        assert (process.returncode != 0) is fails, output.decode()
        assert any(b"holdfast" in line for line in seen), "the arguments of the command were seen"
        self.places.setdefault("output of commands", []).append(output)
        self.places.setdefault("arguments of processes", []).extend(seen)

    def secret_file(self, content: str, suffix: str = "") -> str:
        """Write a file that is not searched, and return its name."""
        folder = self._folder.with_name(f"{self._folder.name} secrets")
        folder.mkdir(exist_ok=True)
        file = folder / f"{self.name('file')}{suffix}"
        file.write_text(content)
        return str(file)

    def forged_bundle(self, secret: str) -> str:
        """Return a bundle in which every encrypted column of one table has a value in plain text."""
        file = Path(self.secret_file(""))
        file.unlink()
        with Holdfast(":memory:") as hf:
            hf.tenant("forged").sessions.create()
        return forge(file, secret)

    # What is left

    def collect(self) -> dict[str, bytes]:
        """Return everything that was shown or stored, by place."""
        with self.library() as hf:
            self.say(repr(list(hf.tenant(TENANT).activity.list())), "activity")
        self.say(self.server.http.get(f"/v1/tenants/{TENANT}/activity?limit=1000").text, "activity")
        for tenant in (TENANT, KAGENT_TENANT):
            file = Path(self.secret_file(""))
            file.unlink()
            export_tenant(self.url, tenant, file)
            self.places.setdefault("exports", []).append(unpacked(file))
        self.command("export", "--to", f"{self.secret_file('')}.holdfast")
        self.say(self.server.log, "logs of the server")
        self.say(self.server.printed, "logs of the server")
        self.places["database"] = [*_rows(self.url), *_files(self._folder)]
        return {place: b"\n".join(parts) for place, parts in self.places.items()}

    def close(self) -> None:
        """Stop the server."""
        self.server.close()


@contextmanager
def _watching_arguments(session: int) -> Iterator[list[bytes]]:
    """Yield the arguments of all processes of a session, read again and again until the block ends."""
    seen: dict[bytes, None] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(WATCH_S):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    if os.getsid(int(process.name)) == session:
                        seen[(process / "cmdline").read_bytes()] = None
                except OSError:
                    continue  # it has ended

    watcher = threading.Thread(target=watch)
    watcher.start()
    found: list[bytes] = []
    try:
        yield found
    finally:
        done.set()
        watcher.join()
        found += seen


def forge(file: Path, secret: str) -> str:
    """Write a bundle with a secret in it, sealed like a real one, and return its name."""
    source = file.with_suffix(".source")
    database = file.with_suffix(".db")
    with Holdfast(str(database)) as hf:
        hf.tenant("forged").sessions.create()
    export_tenant(str(database), "forged", source)
    with bundle_format.line_writer(file) as write:
        for line in bundle_format.read(source):
            if isinstance(line, bundle_format.BundleEnd):
                break
            write(line)
            if isinstance(line, dict) and line.get("table") == "config_secrets":
                write(["forged", secret, 1, 1])
    return str(file)


def unpacked(file: Path) -> bytes:
    """Return the decompressed content of a bundle."""
    with file.open("rb") as compressed:
        reader = zstandard.ZstdDecompressor().stream_reader(compressed, read_across_frames=True)
        return bytes(reader.read())


def _files(folder: Path) -> Iterator[bytes]:
    """Yield every file of the server's folder, the database and its WAL among them."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "stderr.txt":
            yield path.read_bytes()


def _rows(url: str) -> Iterator[bytes]:
    """Yield every row of every table as text, bytes in hexadecimal, and every packed object unpacked."""
    if url.startswith("postgresql"):
        with psycopg.connect(url) as connection:
            tables = connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
            ).fetchall()
            for (table,) in tables:
                for (row,) in connection.execute(f"SELECT t::text FROM {table} AS t".encode()):
                    yield row.encode()
            yield from _bodies(connection.execute("SELECT digest, codec, body FROM objects WHERE body IS NOT NULL"))
        return
    database = apsw.Connection(url, flags=apsw.SQLITE_OPEN_READONLY)
    stored = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL %'"
    names = [name for (name,) in database.execute(stored)]
    for name in names:
        yield from (repr(row).encode() for row in database.execute(f'SELECT * FROM "{name}"'))
    yield from _bodies(database.execute("SELECT digest, codec, body FROM objects WHERE body IS NOT NULL"))
    database.close()


def _bodies(rows: Any) -> Iterator[bytes]:
    for digest, codec, body in rows:
        yield objects.unpack(bytes(digest), codec, bytes(body))


__all__ = ["ADMIN_KEY", "AGENT", "KAGENT_TENANT", "TENANT", "Scene"]
