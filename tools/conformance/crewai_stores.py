"""Pytest plugin: CrewAI's tests get our stores under the names of CrewAI's own, each on a file of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import crewai.flow.persistence as persistence
import crewai.flow.persistence.sqlite as sqlite
import crewai.memory.storage.lancedb_storage as lancedb
from coroutine_tests import pytest_configure, pytest_pyfunc_call  # noqa: F401 - hooks of this plugin

from holdfast.adapters.crewai import HoldfastFlowPersistence, HoldfastMemory


class Memories(HoldfastMemory):
    """Ours, made as theirs is: with the path of a folder."""

    def __init__(self, path: Any = None, **more: Any) -> None:
        folder = Path(path or tempfile.mkdtemp())
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(str(folder / "memories.db"))


def flows(db_path: Any = None, **more: Any) -> HoldfastFlowPersistence:
    """The same for the states of flows: with the path of a file."""
    return HoldfastFlowPersistence(str(db_path or Path(tempfile.mkdtemp()) / "flows.db"))


persistence.SQLiteFlowPersistence = flows
sqlite.SQLiteFlowPersistence = flows
lancedb.LanceDBStorage = Memories
