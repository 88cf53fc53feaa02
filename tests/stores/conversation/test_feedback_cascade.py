"""Feedback is deleted with its message, also on a caller's SQLite connection without foreign keys."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import Holdfast, TenantHandle
from holdfast.stores.lifecycle import purge_statements
from holdfast.types import Message


class Place(NamedTuple):
    """A tenant on a caller's connection, and that connection."""

    acme: TenantHandle
    connection: sqlite3.Connection
    holdfast: Holdfast

    def rows(self) -> int:
        """Return the rows in the table, visible or hidden."""
        return int(self.connection.execute("SELECT COUNT(*) FROM feedback").fetchone()[0])


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    path = str(tmp_path / "a.db")
    with Holdfast(path, sqlite="stdlib") as hf:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA foreign_keys = OFF")
        assert connection.execute("PRAGMA foreign_keys").fetchone() == (0,)
        connection.execute("BEGIN IMMEDIATE")
        yield Place(hf.tenant("acme").join(connection), connection, hf)
        connection.close()


def with_feedback(acme: TenantHandle) -> Message:
    session = acme.sessions.create()
    created = [acme.messages.append(session.id, role="user", content=str(n)) for n in range(2)]
    for message in created:
        acme.feedback.create(message.id, is_positive=True, user="ada")
    return created[0]


def test_deleting_a_message_deletes_its_feedback(place: Place) -> None:
    message = with_feedback(place.acme)
    place.acme.messages.delete(message.session_id, [message.id])
    assert place.rows() == 1
    assert [row.message_id for row in place.acme.feedback.list()] != [message.id]


def test_purging_a_session_deletes_its_feedback(place: Place) -> None:
    message = with_feedback(place.acme)
    with_feedback(place.acme)
    place.acme.sessions.purge(message.session_id)
    assert place.rows() == 2


def test_deleting_a_tenant_deletes_all_of_its_rows(place: Place) -> None:
    """The statements that delete a tenant, without foreign keys that cascade."""
    with_feedback(place.acme)
    place.acme.contacts.upsert("telegram", "7")
    for query in purge_statements.unbounded():
        place.connection.execute(query.texts[place.acme._engine.dialect], {"tenant_id": "acme"})
    tables = ("feedback", "messages", "sessions", "contacts", "pending_messages", "pending_groups")
    left = {table: place.connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in tables}
    assert left == dict.fromkeys(tables, 0)
