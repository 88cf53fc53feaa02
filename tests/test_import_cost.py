"""Importing Holdfast is cheap, and does not import libraries that only the server or PostgreSQL need."""

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
# Not getrusage: its peak includes that of the parent process.
peak_mb = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
print(json.dumps({"spent_ms": spent_ms, "peak_mb": peak_mb, "modules": sorted(sys.modules)}))
"""
NOT_NEEDED = {
    "aiosqlite",
    "asyncio",
    "asyncpg",
    "click",
    "httptools",
    "jsonschema_rs",
    "psycopg",
    "psycopg_pool",
    "rich",
    "sqlalchemy",
    "starlette",
    "uvicorn",
    "uvloop",
}
MAX_MS = 150.0
SLACK = 3.0
"""Factor by which the limit is raised, because the tests share their processors with other tests."""
TRIES = 10
"""Most imports, of which the fastest counts. The first may have to compile."""


def _measure() -> dict[str, object]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.run(
        [sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    measurement: dict[str, object] = json.loads(process.stdout)
    return measurement


def test_importing_is_fast_small_and_loads_no_unneeded_library() -> None:
    runs = [_measure()]
    while float(str(runs[-1]["spent_ms"])) >= MAX_MS * SLACK:
        assert len(runs) < TRIES, [run["spent_ms"] for run in runs]
        runs.append(_measure())
    assert max(float(str(run["peak_mb"])) for run in runs) < 40
    modules = runs[0]["modules"]
    assert isinstance(modules, list)
    assert NOT_NEEDED & {name.partition(".")[0] for name in modules} == set()


def test_migrate_does_not_load_the_libraries_of_the_server() -> None:
    assert {"starlette", "uvicorn", "rich"} & _loaded_by("migrate", "--help") == set()


def test_a_command_does_not_load_the_other_commands() -> None:
    loaded = {name for name in _loaded_by("serve", "--help") if name.startswith("holdfast.cli.")}
    assert loaded == {
        f"holdfast.cli.{name}" for name in ("commands", "serve", "database", "logs", "output", "parameters")
    }


def _loaded_by(*arguments: str) -> set[str]:
    code = f"""
import sys
from holdfast.cli.commands import root
root({list(arguments)!r}, standalone_mode=False)
print("loaded:", *sys.modules)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(process.stdout.rpartition("loaded:")[2].split())
