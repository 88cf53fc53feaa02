"""The real server and the real command line, each in its own process."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

WAIT_S = 60.0
_ADDRESS = re.compile(r"http://\S+")
_WITH_FILES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""
ADMIN_KEY = "hf_" + "0123456789abcdef" * 3
"""The admin key of every server that is started without another one."""
BEARER = {"Authorization": f"Bearer {ADMIN_KEY}"}


def command(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m holdfast`` until it exits."""
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        cwd=cwd,
        env=_environment(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


class ServerProcess:
    """``holdfast serve`` on a free port."""

    def __init__(self, cwd: Path, *arguments: str, open_files: int | None = None, **environment: str) -> None:
        environment = {"HOLDFAST_ADMIN_KEY": ADMIN_KEY, "HOLDFAST_LIMITS": "refusals_per_s=0", **environment}
        self._errors = cwd / "stderr.txt"
        limited = [] if open_files is None else [sys.executable, "-c", _WITH_FILES, str(open_files)]
        with open(self._errors, "a") as errors:
            self._process = subprocess.Popen(
                [*limited, sys.executable, "-m", "holdfast", "serve", "--port", "0", *arguments],
                cwd=cwd,
                env=_environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.printed = self._first_lines()
        hits = _ADDRESS.search(self.printed)
        if hits is None:
            raise AssertionError(f"the server did not start: {self.printed}{self.log}")
        self.url = hits.group()
        self.http = httpx.Client(base_url=self.url, timeout=WAIT_S, headers=BEARER)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """Its standard error so far."""
        return self._errors.read_text()

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait until it has exited, and return its exit code."""
        return self._process.wait(WAIT_S)

    def close(self) -> None:
        """Stop it, with SIGTERM if it is still running."""
        self.http.close()
        if self._process.poll() is None:
            self.terminate()
        try:
            self.wait()
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _first_lines(self) -> str:
        """Return its output up to the curl command, or all of it if it exits before."""
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if "curl" in line:
                break
        return "".join(lines)


class Api:
    """One tenant of a server, for tests over a socket."""

    def __init__(self, http: httpx.Client, tenant: str) -> None:
        self.http, self.name = http, tenant
        self.tenant = f"/v1/tenants/{tenant}"
        self.sessions = f"{self.tenant}/sessions"

    def session(self, **body: Any) -> dict[str, Any]:
        """Create a session."""
        return json_of(self.http.post(self.sessions, **json_body(body)), 201)

    def messages_of(self, session: Mapping[str, Any]) -> str:
        """Return the path of a session's messages."""
        return f"{self.sessions}/{session['id']}/messages"

    def append(self, session: Mapping[str, Any], *texts: str) -> list[dict[str, Any]]:
        """Append messages to a session."""
        body = {"messages": [{"role": "user", "content": text} for text in texts]}
        answer = json_of(self.http.post(self.messages_of(session), **json_body(body)), 201)
        items: list[dict[str, Any]] = answer["items"]
        return items


def json_of(response: httpx.Response, status: int = 200) -> Any:
    """Check the status of a response and return its JSON body."""
    assert response.status_code == status, f"{response.status_code}: {response.text}"
    if status == 204:
        assert response.content == b""
        return None
    assert response.headers["content-type"] == "application/json"
    return response.json()


def problem_of(response: httpx.Response, status: int, type: str) -> dict[str, Any]:
    """Check the status and the error of a response and return the problem."""
    assert response.status_code == status, f"{response.status_code}: {response.text}"
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert (problem["type"], problem["status"]) == (type, status), problem
    assert problem["title"]
    assert problem["detail"]
    return problem


def to_json(value: Any) -> str:
    """Encode a value for a query parameter."""
    return json.dumps(value)


def json_body(value: Any) -> dict[str, Any]:
    """Encode a value as the body of a request; httpx itself cannot encode a lone surrogate."""
    return {"content": json.dumps(value).encode(), "headers": {"Content-Type": "application/json"}}


def run_curl(http: httpx.Client, line: str, base: str) -> Any:
    """Send the request of a curl command line; ``base`` is the server's URL in it."""
    program, *rest = shlex.split(line)
    assert program == "curl"
    words = iter(rest)
    method, params, headers, body, path = "GET", [], {}, None, ""
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-d":
            body, method = next(words), "POST" if method == "GET" else method
        elif word == "--data-urlencode":
            name, _, value = next(words).partition("=")
            params.append((name, value))
        elif word.startswith(base):
            path = word.removeprefix(base)
        else:
            assert word in ("-s", "-G"), word
    response = http.request(method, path, params=params or None, headers=headers, content=body)
    return json_of(response, 201 if method == "POST" else 200)


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
    return {**kept, "COLUMNS": "200", **more}


def one_line(text: str) -> str:
    """Return the only line of a text."""
    lines: Sequence[str] = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]
