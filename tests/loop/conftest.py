"""Worlds for tests of the loop: on both engines, driven in a thread and in an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.loop.worlds import World


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database of either engine."""
    if request.param == "sqlite":
        return str(tmp_path / "loop.db")
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture(params=["blocking", "asynchronous"])
def small_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A world for what does not depend on the engine: on SQLite, driven either way."""
    made = World(str(tmp_path / "loop.db"), is_async=request.param == "asynchronous")
    yield made
    made.close()


@pytest.fixture(params=["blocking", "asynchronous"])
def world(request: pytest.FixtureRequest, url: str, record_leg: Callable[[str], None]) -> Iterator[World]:
    """A world of either engine, driven either way."""
    record_leg(f"{'postgres' if '://' in url else 'sqlite'}, loop, {request.param}")
    made = World(url, is_async=request.param == "asynchronous")
    yield made
    made.close()
