"""A tenant of a server that runs in this process, asked through /v1, and what the tests of /v1 ask for again and again."""

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
"""An id that nothing has."""
POLICY = {"target_tokens": 1, "preserve_last": 1, "protected_tokens": 0, "window_tokens": 1000, "summary_tokens": 50}
ZSTD = {"content-type": ARCHIVE_TYPE}
_NUMBERS = count(1)


class Here:
    """One tenant of a server that runs in this process; paths are those below the tenant."""

    def __init__(self, runner: asyncio.Runner, server: Running, name: str) -> None:
        self.runner, self.server, self.name = runner, server, name

    @property
    def tenant(self) -> AsyncTenantHandle:
        """The same tenant, past the server."""
        return self.server.holdfast.tenant(self.name)

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def ask(self, method: str, path: str, body: Any = None, **how: Any) -> Reply:
        """One request."""
        whole = path if path.startswith(("/v1", "//")) else f"/v1/tenants/{self.name}{path}"
        return self.runner.run(self.server.ask(method, whole.replace("//", "/"), body, **how))

    def good(self, method: str, path: str, body: Any = None, status: int = 200, **how: Any) -> Any:
        """What a request is answered with that must succeed."""
        reply = self.ask(method, path, body, **how)
        assert reply.status == status, f"{method} {path}: {reply.status} {reply.body!r}"
        assert reply.headers["cache-control"] == "no-store"
        return reply.json if reply.body else None

    def bad(self, method: str, path: str, body: Any = None, status: int = 400, **how: Any) -> dict[str, Any]:
        """The problem that a request is answered with, which must be one."""
        reply = self.ask(method, path, body, **how)
        assert reply.status == status, f"{method} {path}: {reply.status} {reply.body!r}"
        return problem(reply)

    def session(self, *texts: str) -> str:
        """A session with these messages of a user."""
        made = self.good("POST", "/sessions", {}, 201)
        if texts:
            said = [{"role": "user", "content": each} for each in texts]
            self.good("POST", f"/sessions/{made['id']}/messages", {"messages": said}, 201)
        return str(made["id"])

    def claimed(self) -> tuple[str, int]:
        """A run that is driven, and the epoch of its driver."""
        run = self.good("POST", f"/sessions/{self.session()}/runs", {}, 201)["id"]
        return run, self.good("POST", f"/runs/{run}/claim", {"holder": "w"})["epoch"]

    def step(self, run: str, epoch: int, number: int, **more: Any) -> Any:
        """A step of a run."""
        body = {"epoch": epoch, "iteration": number, "state": {"n": number}, **more}
        return self.good("POST", f"/runs/{run}/steps", body, 201)

    def key(self, *scopes: str) -> str:
        """A key of this tenant."""
        key = new_api_key()
        self.run(self.server.holdfast.api_keys.create(key, name="test", tenant=self.name, scopes=list(scopes)))
        return key

    def another(self) -> Here:
        """Another tenant of the same server."""
        return Here(self.runner, self.server, f"tenant-{next(_NUMBERS)}")


def problem(reply: Reply) -> dict[str, Any]:
    """The body of a refusal, which has everything a problem has and nothing else."""
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.headers["cache-control"] == "no-store"
    found: dict[str, Any] = reply.json
    assert set(found) - {"id"} == {"type", "title", "status", "detail"}
    assert found["status"] == reply.status
    assert found["title"]
    return found


def open_here(limits: ServerLimits = CALM) -> Iterator[Here]:
    """A server for the tests of a module."""
    with asyncio.Runner() as runner:
        server = running(limits=limits)
        yield Here(runner, runner.run(server.__aenter__()), "nobody")
        runner.run(server.__aexit__(None, None, None))


def pages(here: Here, path: str, limit: int) -> list[Any]:
    """All rows of a list, page by page, none of which is larger than asked for."""
    found: list[Any] = []
    cursor = ""
    while True:
        more = f"&cursor={quote(cursor)}" if cursor else ""
        page = here.good("GET", f"{path}{'&' if '?' in path else '?'}limit={limit}{more}")
        assert len(page["items"]) <= limit
        found += page["items"]
        if page["next"] is None:
            return found
        cursor = page["next"]


def where(*filters: dict[str, Any]) -> str:
    return f"where={quote(json.dumps(filters))}"


def texts(page: Any) -> list[str]:
    return [each["content"][0]["text"] for each in page["items"]]


def tree(root: Path) -> Path:
    """A small directory."""
    root.mkdir()
    (root / "src").mkdir()
    (root / "src" / "a.py").write_bytes(b"print(1)\n")
    (root / "empty").write_bytes(b"")
    (root / "link").symlink_to("src/a.py")
    return root


def captured(here: Here, root: Path) -> tuple[str, str]:
    """A run, and a snapshot of a directory for it."""
    run, _ = here.claimed()
    return run, here.run(here.tenant.workspaces.capture(run, root)).snapshot.id


def sent(here: Here, run: str, body: bytes, query: str = "", **headers: str) -> Reply:
    """An archive, sent to become a snapshot of a run."""
    return here.ask("POST", f"/runs/{run}/snapshots{query}", body, headers={**ZSTD, **headers})


def named(name: str) -> Operation:
    return next(each for each in OPERATIONS if each.function.__name__ == name)
