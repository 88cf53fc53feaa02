"""Importing Holdfast is cheap, and brings in nothing that a program without a server or PostgreSQL does not need."""

from __future__ import annotations

import json
import os
import subprocess
import sys

MEASURE = """
import json, re, sys, time
before = time.process_time()
import holdfast
spent_ms = (time.process_time() - before) * 1000
# Not getrusage: there, a process starts with the peak of whoever started it.
peak_mb = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
print(json.dumps({"spent_ms": spent_ms, "peak_mb": peak_mb, "modules": sorted(sys.modules)}))
"""
NOT_NEEDED = {
    "aiosqlite",
    "asyncio",
    "asyncpg",
    "click",
    "httptools",
    "psycopg",
    "psycopg_pool",
    "rich",
    "sqlalchemy",
    "starlette",
    "uvicorn",
    "uvloop",
}
MOST_MS = 150.0
SLACK = 3.0
"""The tests share their processors with other tests, so a run can be this much slower than the figure promised."""
TRIES = 10
"""Imports of which the quickest counts. The first may have to compile."""


def _measure() -> dict[str, object]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_importing_is_quick_small_and_brings_nothing_unneeded() -> None:
    runs = [_measure() for _ in range(TRIES)]
    assert min(float(str(run["spent_ms"])) for run in runs) < MOST_MS * SLACK
    assert max(float(str(run["peak_mb"])) for run in runs) < 40
    modules = runs[0]["modules"]
    assert isinstance(modules, list)
    assert NOT_NEEDED & {name.partition(".")[0] for name in modules} == set()


def test_the_command_line_for_migrations_does_without_the_server_s_libraries() -> None:
    assert {"starlette", "uvicorn", "rich"} & _loaded_by("migrate", "--help") == set()


def test_a_command_loads_no_other() -> None:
    loaded = {name for name in _loaded_by("serve", "--help") if name.startswith("holdfast.cli.")}
    assert loaded == {f"holdfast.cli.{name}" for name in ("commands", "serve", "database", "logs", "output")}


def _loaded_by(*arguments: str) -> set[str]:
    code = f"""
import sys
from holdfast.cli.commands import root
root({list(arguments)!r}, standalone_mode=False)
print("loaded:", *sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.rpartition("loaded:")[2].split())
