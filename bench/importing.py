"""What importing costs: time and memory, in a fresh interpreter each time."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from .case import Case, Environment, Job, Result

GROUP = "import"
_TIMES = 3

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
    """Ourselves, the interpreter alone, and the others for comparison."""
    return [Case(GROUP, name, environment, "none") for name, (environment, _) in _STATEMENTS.items()]


def run(job: Job) -> Result:
    """The middle of a few; the first only warms the caches."""
    code = _MEASURE.format(statement=_STATEMENTS[job.contender][1])
    runs = [_once(code) for _ in range(_TIMES + 1)][1:]
    took, resident = zip(*runs, strict=True)
    return {"import_ms": round(statistics.median(took), 1), "resident_mb": round(statistics.median(resident), 1)}


def _once(code: str) -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    took, resident = json.loads(done.stdout.splitlines()[-1])
    return took, resident
