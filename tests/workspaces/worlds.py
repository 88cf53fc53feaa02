"""Trees on disk and in snapshots in one form, and handles of either engine, blocking or asynchronous."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast import AsyncHoldfast, Holdfast
from holdfast.trees import stat_cache
from holdfast.types import CaptureResult, Snapshot, Tree

Described = dict[str, tuple[Any, ...]]
AN_HOUR_AGO = 3_600 * 10**9


class World:
    """One tenant with a run, on a blocking or on an asynchronous handle; every call is made as if it blocked."""

    def __init__(self, url: str, *, is_async: bool = False, tenant: str = "acme", **options: Any) -> None:
        self.runner = asyncio.Runner() if is_async else None
        self.holdfast: Any = AsyncHoldfast(url, **options) if is_async else Holdfast(url, **options)
        if self.runner is not None:
            self.runner.run(self.holdfast.open())
        self.acme: Any = self.holdfast.tenant(tenant)
        self.session = self.do(self.acme.sessions.create())
        self.run_id: str = self.do(self.acme.runs.start(self.session.id)).id

    def do(self, called: Any) -> Any:
        """Return the result of a call."""
        return called if self.runner is None else self.runner.run(called)

    def capture(self, path: Path | str, **arguments: Any) -> CaptureResult:
        """A snapshot of a directory, for the run."""
        captured: CaptureResult = self.do(
            self.acme.workspaces.capture(arguments.pop("run_id", self.run_id), path, **arguments)
        )
        return captured

    def described(self, snapshot: Snapshot | str) -> Described:
        """Return the content of a snapshot."""
        id = snapshot if isinstance(snapshot, str) else snapshot.id
        tree: Tree = self.do(self.acme.snapshots.tree(id))
        return {path: self._described(id, tree, path) for path in sorted(tree.entries)}

    def _described(self, id: str, tree: Tree, path: str) -> tuple[Any, ...]:
        entry = tree.entries[path]
        rest = {"dir": "", "symlink": entry.target}.get(entry.kind)
        content = self.do(self.acme.snapshots.read(id, path)) if rest is None else rest
        return entry.kind, entry.mode, entry.mtime_ns, content

    def close(self) -> None:
        """Close all handles."""
        self.do(self.holdfast.close())
        if self.runner is not None:
            self.runner.close()


def on_disk(root: Path) -> Described:
    """Return the content of a directory, in the form of ``World.described``."""
    result: Described = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            now = os.lstat(path)
            if stat.S_ISLNK(now.st_mode):
                kind, content = "symlink", os.readlink(path)
            elif stat.S_ISDIR(now.st_mode):
                kind, content = "dir", ""
            elif stat.S_ISREG(now.st_mode):
                kind, content = "file", Path(path).read_bytes()  # type: ignore[assignment]
            else:
                continue
            result[os.path.relpath(path, root)] = (kind, stat.S_IMODE(now.st_mode), now.st_mtime_ns, content)
    return dict(sorted(result.items()))


def make(root: Path, files: Mapping[str, bytes | str | None]) -> None:
    """Files by their paths; a string is where a link points to, and ``None`` a directory."""
    for path, content in files.items():
        at = root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            at.mkdir(exist_ok=True)
        elif isinstance(content, str):
            at.symlink_to(content)
        else:
            at.write_bytes(content)


def at_rest(root: Path) -> None:
    """As if nothing in the tree had been written to for long. (A ctime cannot be set, so the walk is told another time.)"""
    for folder, _, files in os.walk(root):
        for name in files:
            path = os.path.join(folder, name)
            now = os.lstat(path).st_mtime_ns
            os.utime(path, ns=(now - AN_HOUR_AGO, now - AN_HOUR_AGO), follow_symlinks=False)


def wait_for_tick() -> None:
    """Wait until the clock of files has moved on: what changes now shows it."""
    before = stat_cache.now_ns()
    while stat_cache.now_ns() == before:
        pass
