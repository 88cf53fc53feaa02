"""Old databases of LangGraph's own savers, and new databases, on either engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver

Official = Callable[[], AbstractContextManager[Any]]


@pytest.fixture(params=["sqlite", "postgres"])
def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty old database."""
    request.node.user_properties.append(("leg", f"{request.param}, import from langgraph"))
    return (
        f"sqlite:///{tmp_path / 'old.db'}"
        if request.param == "sqlite"
        else request.getfixturevalue("bare_postgres_url")
    )


@pytest.fixture
def official(old_url: str) -> Official:
    """Opens LangGraph's own saver on the old database."""

    @contextmanager
    def opened() -> Iterator[Any]:
        kind: Any = SqliteSaver if old_url.startswith("sqlite") else PostgresSaver
        with kind.from_conn_string(old_url.removeprefix("sqlite:///")) as saver:
            saver.setup()
            yield saver

    return opened


@pytest.fixture(params=["to sqlite", "to postgres"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty Holdfast database."""
    return str(tmp_path / "new.db") if request.param == "to sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def execute(old_url: str) -> Callable[[str], None]:
    """Executes a statement in the old database."""

    def run(sql: str) -> None:
        if old_url.startswith("sqlite"):
            import sqlite3

            with sqlite3.connect(old_url.removeprefix("sqlite:///")) as connection:
                connection.execute(sql)
            connection.close()
        else:
            with psycopg.connect(old_url) as other:
                other.execute(sql.encode())

    return run
