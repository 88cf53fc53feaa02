"""An agent for worker processes that works in a directory, ``TREE``.

Each time its model is asked, it records the next step and the existing files in ``SEEN``, outside of any database.

Run as a program, it is a worker that dies: ``python -m tests.loop.writers DATABASE RUN COPY`` forks a process for every point at
which a worker can die while it takes over a run (before each statement and each file operation), kills it there, and lets another
process drive the run to its end. ``COPY`` is a directory with the original database and tree.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import FixedClock, Holdfast
from holdfast.drivers.apsw import ApswConnection
from holdfast.loop import Loop, ModelTurn, Reply, ToolRequest, tool

STEPS = 4
TTL_MS = 1_000
TAKEOVER_S = 10
MAX_POINTS = 1_000
OPERATIONS = ("rename", "unlink", "mkdir", "symlink", "chmod", "utime", "replace", "link")


def tree() -> Path:
    """Return the directory that the agent works in."""
    return Path(os.environ["TREE"])


@tool(safety="idempotent")
def write(number: int) -> str:
    """Write a file."""
    (tree() / f"file {number}").write_text(f"{number}\n" * number)
    return f"wrote {number}"


def model(turn: ModelTurn) -> Reply | str:
    """Write a file in each step but the last."""
    with open(os.environ["SEEN"], "a", encoding="utf-8") as file:
        file.write(json.dumps([turn.iteration, sorted(path.name for path in tree().iterdir())]) + "\n")
    if turn.iteration >= STEPS:
        return "done"
    return Reply(f"{turn.iteration}", calls=[ToolRequest("write", {"number": turn.iteration})])


loop = Loop(model, tools=[write], workspace=lambda run: tree())
without_files = Loop(model, tools=[write])


def in_another_process(do: Callable[[], None]) -> bool:
    """Do something in a forked process, and return whether the process survived."""
    pid = os.fork()
    if pid == 0:
        try:
            do()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == 0


def die_at(point: int) -> None:
    """Kill this process before its n-th statement or file operation."""
    left = point

    def counted(do: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return do(*args, **kwargs)

        return call

    ApswConnection.execute = counted(ApswConnection.execute)  # type: ignore[method-assign]
    for name in OPERATIONS:
        setattr(os, name, counted(getattr(os, name)))


def drive(database: str, run_id: str, *, at_s: int, point: int | None = None) -> None:
    """Claim a run and drive it as the only worker. ``point`` is a point to die at before the model is asked."""
    clock = FixedClock()
    clock.advance(at_s)
    with Holdfast(database, clock=clock, durability="normal") as hf:
        acme = hf.tenant("acme")
        if point is not None:
            die_at(point)
            Loop(lambda turn: os._exit(0), tools=[write], workspace=tree()).drive(acme, run_id, ttl_ms=TTL_MS)
        ending = loop.drive(acme, run_id, ttl_ms=TTL_MS)
        if ending.status == "busy":  # the first claim after a lease has expired only doubts it
            clock.advance(TAKEOVER_S)
            ending = loop.drive(acme, run_id, ttl_ms=TTL_MS)
        assert ending.status == "completed", ending


def main(database: str, run_id: str, copy: str) -> None:
    """Die at every point, and print the files that the next process found and left."""
    folder, start = Path(database).parent, 86_400
    for point in range(1, MAX_POINTS):
        shutil.rmtree(folder)
        shutil.copytree(copy, folder, symlinks=True)
        has_lived = in_another_process(lambda point=point: drive(database, run_id, at_s=start, point=point))  # type: ignore[misc]
        assert in_another_process(lambda: drive(database, run_id, at_s=start + TAKEOVER_S))
        seen = [json.loads(line) for line in Path(os.environ["SEEN"]).read_text().splitlines()]
        left = sorted(path.name for path in tree().iterdir())
        print(json.dumps({"point": point, "seen": seen, "left": left}), flush=True)
        if has_lived:
            return
    raise AssertionError("the worker never survived")


if __name__ == "__main__":
    main(*sys.argv[1:])
