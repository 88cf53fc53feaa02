"""Statements that stay prepared, because preparing one takes many times as long as running it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Holdfast
from holdfast.drivers.apsw import MIN_CACHED_CHARS, ApswConnection
from holdfast.engines.sqlite.file import STATEMENTS

APPENDS = STATEMENTS // 2 - 32
"""An append runs two statements that stay prepared; so many leave room for everything else that a program does."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[apsw.Connection]:
    """The connections that are opened, in order."""
    connections: list[apsw.Connection] = []
    begin = ApswConnection.__init__

    def noting(self: ApswConnection, raw: apsw.Connection) -> None:
        connections.append(raw)
        begin(self, raw)

    monkeypatch.setattr(ApswConnection, "__init__", noting)
    return connections


def prepared_anew(connections: list[apsw.Connection]) -> int:
    """Return the number of long statements that were prepared again so far."""
    stats: list[dict[str, Any]] = [connection.cache_stats() for connection in connections]
    return sum(stat["misses"] - stat["no_cache"] for stat in stats)


def test_a_statement_run_before_many_appends_is_still_prepared_after_them(
    tmp_path: Path, opened: list[apsw.Connection]
) -> None:
    with Holdfast(str(tmp_path / "a.db")) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create(key="k").id
        buffer = acme.sessions.buffered("other")

        def one_of_each(number: int) -> None:
            buffer.add_message(role="user", content=f"hello {number}")
            buffer.save()
            acme.messages.append(session, role="user", content="hello")
            acme.sessions.get(session)

        for number in range(3):
            one_of_each(number)
        before = prepared_anew(opened)
        for _ in range(APPENDS):
            acme.messages.append(session, role="user", content="hello")
        one_of_each(3)
        assert prepared_anew(opened) - before <= 1, "at most the one that a new minute needs"


def test_short_statements_do_not_evict_prepared_ones(tmp_path: Path) -> None:
    raw = apsw.Connection(str(tmp_path / "a.db"), statementcachesize=2)
    connection = ApswConnection(raw)
    long = "SELECT 'a statement of so many words'"
    assert len(long) >= MIN_CACHED_CHARS > len("ROLLBACK TO holdfast_100")
    connection.execute(long)
    for _ in range(10):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("SAVEPOINT holdfast_1")
        connection.execute("RELEASE holdfast_1")
        connection.execute("COMMIT")
    hits = raw.cache_stats()["hits"]
    connection.execute(long)
    assert raw.cache_stats()["hits"] == hits + 1
    raw.close()
