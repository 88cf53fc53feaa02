"""A client for /v1 of a server in this process, and shared helpers of the tests of /v1."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from holdfast import AsyncTenantHandle, new_api_key
from holdfast.api.limits import ServerLimits
from holdfast.api.operations import Operation
from holdfast.api.resources import OPERATIONS
from holdfast.api.responses import ARCHIVE_TYPE
from tests.api.in_process import CALM, Reply, Running, running

NOW = "2030-01-31T12:00:00Z"
NEVER = "0190f8b4-7c1e-4d2a-9f63-5b8e2a7c4d10"
"""An id that does not exist."""
POLICY = {"target_tokens": 1, "preserve_last": 1, "protected_tokens": 0, "window_tokens": 1000, "summary_tokens": 50}
ZSTD = {"content-type": ARCHIVE_TYPE}
_NUMBERS = count(1)


class V1Client:
    """One tenant of a server in this process; paths are relative to the tenant."""

    def __init__(self, runner: asyncio.Runner, server: Running, name: str) -> None:
        self.runner, self.server, self.name = runner, server, name

    @property
    def tenant(self) -> AsyncTenantHandle:
        """The handle of the same tenant, without the server."""
        return self.server.holdfast.tenant(self.name)

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def ask(self, method: str, path: str, body: Any = None, **how: Any) -> Reply:
        """Send one request."""
        whole = path if path.startswith(("/v1", "//")) else f"/v1/tenants/{self.name}{path}"
        return self.runner.run(self.server.ask(method, whole.replace("//", "/"), body, **how))

    def good(self, method: str, path: str, body: Any = None, status: int = 200, **how: Any) -> Any:
        """Send a request that must succeed, and return its JSON."""
        reply = self.ask(method, path, body, **how)
        assert reply.status == status, f"{method} {path}: {reply.status} {reply.body!r}"
        assert reply.headers["cache-control"] == "no-store"
        return reply.json if reply.body else None

    def bad(self, method: str, path: str, body: Any = None, status: int = 400, **how: Any) -> dict[str, Any]:
        """Send a request that must be refused, and return the problem."""
        reply = self.ask(method, path, body, **how)
        assert reply.status == status, f"{method} {path}: {reply.status} {reply.body!r}"
        return problem(reply)

    def session(self, *texts: str) -> str:
        """Create a session with these messages of a user."""
        made = self.good("POST", "/sessions", {}, 201)
        if texts:
            all_texts = [{"role": "user", "content": text} for text in texts]
            self.good("POST", f"/sessions/{made['id']}/messages", {"messages": all_texts}, 201)
        return str(made["id"])

    def claimed_run(self) -> tuple[str, int]:
        """Start and claim a run; return its id and the epoch of the lease."""
        run = self.good("POST", f"/sessions/{self.session()}/runs", {}, 201)["id"]
        return run, self.good("POST", f"/runs/{run}/claim", {"holder": "w"})["epoch"]

    def step(self, run: str, epoch: int, number: int, **more: Any) -> Any:
        """Append a step to a run."""
        body = {"epoch": epoch, "iteration": number, "state": {"n": number}, **more}
        return self.good("POST", f"/runs/{run}/steps", body, 201)

    def key(self, *scopes: str) -> str:
        """Create a key of this tenant."""
        key = new_api_key()
        self.run(self.server.holdfast.api_keys.create(key, name="test", tenant=self.name, scopes=list(scopes)))
        return key

    def another(self) -> V1Client:
        """Return another tenant of the same server."""
        return V1Client(self.runner, self.server, f"tenant-{next(_NUMBERS)}")


def problem(reply: Reply) -> dict[str, Any]:
    """Check the form of a refusal and return its body."""
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.headers["cache-control"] == "no-store"
    body: dict[str, Any] = reply.json
    assert set(body) - {"id", "field", "limit", "reason"} == {"type", "title", "status", "detail"}
    assert body["status"] == reply.status
    assert body["title"]
    return body


def open_here(limits: ServerLimits = CALM) -> Iterator[V1Client]:
    """Yield a server for the tests of a module."""
    with asyncio.Runner() as runner:
        server = running(limits=limits)
        yield V1Client(runner, runner.run(server.__aenter__()), "unused")
        runner.run(server.__aexit__(None, None, None))


def pages(v1: V1Client, path: str, limit: int) -> list[Any]:
    """Return all rows of a list, fetched in pages, and check the size of each page."""
    results: list[Any] = []
    cursor = ""
    while True:
        more = f"&cursor={quote(cursor)}" if cursor else ""
        page = v1.good("GET", f"{path}{'&' if '?' in path else '?'}limit={limit}{more}")
        assert len(page["items"]) <= limit
        results += page["items"]
        if page["next"] is None:
            return results
        cursor = page["next"]


def where(*filters: dict[str, Any]) -> str:
    return f"where={quote(json.dumps(filters))}"


def texts(page: Any) -> list[str]:
    return [row["content"][0]["text"] for row in page["items"]]


def tree(root: Path) -> Path:
    """Create a small directory."""
    root.mkdir()
    (root / "src").mkdir()
    (root / "src" / "a.py").write_bytes(b"print(1)\n")
    (root / "empty").write_bytes(b"")
    (root / "link").symlink_to("src/a.py")
    return root


def capture(v1: V1Client, root: Path) -> tuple[str, str]:
    """Create a run with a snapshot of a directory."""
    run, _ = v1.claimed_run()
    return run, v1.run(v1.tenant.workspaces.capture(run, root)).snapshot.id


def send_archive(v1: V1Client, run: str, body: bytes, query: str = "", **headers: str) -> Reply:
    """Import an archive as a snapshot of a run."""
    return v1.ask("POST", f"/runs/{run}/snapshots{query}", body, headers={**ZSTD, **headers})


def operation_named(name: str) -> Operation:
    return next(operation for operation in OPERATIONS if operation.function.__name__ == name)
