"""CrewAI on either engine, without a model and without network access."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings of CrewAI and its libraries
    import crewai.memory.storage.lancedb_storage  # noqa: F401

from holdfast import Holdfast, TenantHandle


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings in the tests of CrewAI."""
    for item in items:
        if "adapters/crewai" in item.nodeid:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(autouse=True)
def _isolated_from_user_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path / "crewai"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    request.node.user_properties.append(("leg", f"{request.param}, crewai"))
    return str(tmp_path / "agents.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def acme(address: str) -> Iterator[TenantHandle]:
    """A tenant in that database."""
    with Holdfast(address, auto_migrate=True) as hf:
        yield hf.tenant("acme")
