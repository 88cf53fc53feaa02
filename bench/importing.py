"""Benchmark of imports: time and memory, each in a fresh interpreter."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from .case import Case, Environment, Job, Result

GROUP = "import"
_TIMES = 3
_CORE = ("apsw", "msgspec", "uuid_utils")

_STATEMENTS: dict[str, tuple[Environment, str]] = {
    "Python itself": ("main", "pass"),
    "Holdfast": ("main", "import holdfast"),
    "SQLiteSession": ("openai", "from agents import SQLiteSession"),
    "ADK DatabaseSessionService": ("adk", "from google.adk.sessions import DatabaseSessionService"),
}
_MEASURE = """
import sys, time
before = time.perf_counter()
{statement}
took = time.perf_counter() - before
resident = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
print([took * 1000, int(resident.split()[1]) / 1024])
"""


def cases() -> list[Case]:
    """Return the cases: the interpreter alone, Holdfast, and other libraries."""
    return [Case(GROUP, name, environment, "none") for name, (environment, _) in _STATEMENTS.items()]


def run(job: Job) -> Result:
    """Return the medians of a few imports, after one that warms the caches."""
    code = _MEASURE.format(statement=_STATEMENTS[job.contender][1])
    with _paths(job.contender) as paths:
        runs = [_once(code, paths) for _ in range(_TIMES + 1)][1:]
    took, resident = zip(*runs, strict=True)
    return {"import_ms": round(statistics.median(took), 1), "resident_mb": round(statistics.median(resident), 1)}


@contextmanager
def _paths(contender: str) -> Iterator[list[str] | None]:
    """Yield a contender's import path. For Holdfast, it contains only the dependencies of the core."""
    if contender != "Holdfast":
        yield None
        return
    with TemporaryDirectory() as folder:
        for name in _CORE:
            result = find_spec(name)
            assert result is not None
            (where,) = result.submodule_search_locations or ()
            (Path(folder) / name).symlink_to(where)
        yield [str(Path(__file__).parent.parent / "src"), folder]


def _once(code: str, paths: list[str] | None) -> tuple[float, float]:
    alone = [] if paths is None else ["-S"]
    environment = os.environ | ({} if paths is None else {"PYTHONPATH": os.pathsep.join(paths)})
    command = [sys.executable, *alone, "-c", code]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    took, resident = json.loads(completed.stdout.splitlines()[-1])
    return took, resident
