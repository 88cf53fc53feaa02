"""Pytest plugin: the tests of LangGraph's savers get a `HoldfastSaver` under the names of those savers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import uuid4

import langgraph.checkpoint.postgres as postgres
import langgraph.checkpoint.postgres.aio as postgres_aio
import langgraph.checkpoint.sqlite as sqlite
import langgraph.checkpoint.sqlite.aio as sqlite_aio
from coroutine_tests import pytest_configure, pytest_pyfunc_call  # noqa: F401 - hooks of this plugin

from holdfast.adapters.langgraph import HoldfastSaver


class Blocking(HoldfastSaver):
    """Ours, made as theirs are. Every test has a tenant of its own."""

    def setup(self) -> None:
        """There is nothing to do: the database is opened when it is needed."""

    @classmethod
    @contextmanager
    def from_conn_string(cls, address: str, **options: Any) -> Iterator[Blocking]:
        with cls(":memory:", tenant=f"t{uuid4().hex}") as saver:
            yield saver


class Asynchronous(HoldfastSaver):
    """The same, to be awaited."""

    async def setup(self) -> None:
        """There is nothing to do: the database is opened when it is needed."""

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, address: str, **options: Any) -> AsyncIterator[Asynchronous]:
        async with cls(":memory:", tenant=f"t{uuid4().hex}") as saver:
            yield saver


sqlite.SqliteSaver = Blocking
sqlite_aio.AsyncSqliteSaver = Asynchronous
postgres.PostgresSaver = Blocking
postgres_aio.AsyncPostgresSaver = Asynchronous


@contextmanager
def _blocking(name: str, *_: Any) -> Iterator[Blocking]:
    with Blocking.from_conn_string("") as saver:
        yield saver


@asynccontextmanager
async def _asynchronous(name: str, *_: Any) -> AsyncIterator[Asynchronous]:
    async with Asynchronous.from_conn_string("") as saver:
        yield saver


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """The tests for PostgreSQL make their savers with a function of their own."""
    made = {"tests.test_sync": _blocking, "tests.test_async": _asynchronous}
    for item in items:
        if item.module.__name__ in made:
            item.module._saver = made[item.module.__name__]
