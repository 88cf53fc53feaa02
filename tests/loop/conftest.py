"""Fixtures of the loop's tests: both engines, driven in a thread and in an event loop."""

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
    postgres_url: str = request.getfixturevalue("postgres_url")
    return postgres_url


@pytest.fixture(params=["blocking", "asynchronous"])
def small_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A world for behaviour that does not depend on the engine: on SQLite, driven either way."""
    world = World(str(tmp_path / "loop.db"), is_async=request.param == "asynchronous")
    yield world
    world.close()


@pytest.fixture(params=["blocking", "asynchronous"])
def world(request: pytest.FixtureRequest, url: str, record_leg: Callable[[str], None]) -> Iterator[World]:
    """A world of either engine, driven either way."""
    record_leg(f"{'postgres' if '://' in url else 'sqlite'}, loop, {request.param}")
    new_world = World(url, is_async=request.param == "asynchronous")
    yield new_world
    new_world.close()
