"""The stores of an A2A server on either engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncHoldfast, AsyncTenantHandle

Use = Callable[[Callable[[AsyncTenantHandle], Awaitable[Any]]], Awaitable[Any]]


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    request.node.user_properties.append(("leg", f"{request.param}, a2a"))
    return str(tmp_path / "agents.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def on(address: str) -> Use:
    """Return a function that runs work on a tenant of that database, which is opened for each call."""

    async def use(work: Callable[[AsyncTenantHandle], Awaitable[Any]]) -> Any:
        async with AsyncHoldfast(address, auto_migrate=True) as hf:
            return await work(hf.tenant("acme"))

    return use
