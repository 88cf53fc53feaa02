"""CrewAI on either engine, without a model and without a word to anybody outside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what CrewAI and its libraries warn of is theirs
    import crewai.memory.storage.lancedb_storage  # noqa: F401

from holdfast import Holdfast, TenantHandle


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nor do their warnings fail a test."""
    for item in items:
        if "adapters/crewai" in item.nodeid:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(autouse=True)
def _nothing_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path / "crewai"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    request.node.user_properties.append(("leg", f"{request.param}, crewai"))
    return str(tmp_path / "agents.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def acme(address: str) -> Iterator[TenantHandle]:
    """A tenant on that database."""
    with Holdfast(address, auto_migrate=True) as hf:
        yield hf.tenant("acme")
