"""A saver on either engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.langgraph import HoldfastSaver

Savers = Callable[..., HoldfastSaver]


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    request.node.user_properties.append(("leg", f"{request.param}, langgraph"))
    return str(tmp_path / "agents.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def savers(address: str) -> Iterator[Savers]:
    """Creates savers on that database, each with its own cache, as in another process."""
    made: list[HoldfastSaver] = []

    def make(**options: Any) -> HoldfastSaver:
        made.append(HoldfastSaver(address, **options))
        return made[-1]

    yield make
    for saver in made:
        saver.close()


@pytest.fixture
def saver(savers: Savers) -> HoldfastSaver:
    return savers()
