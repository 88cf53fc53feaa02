"""Deleting a tenant while others write to it: nothing of it stays behind, and whoever comes next begins anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import Holdfast, PoolOptions, TenantHandle
from holdfast.errors import NotFound

WAITING = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
TABLES = (
    "tenants", "lg_thread", "lg_log", "lg_checkpoint", "lg_checkpoint_write", "lg_piece",
    "objects", "object_refs", "object_totals", "object_packs",
)  # fmt: skip
SECRET = b"what only alice may know " * 9
LARGE = Random(7).randbytes(20_000)


class Place:
    """A database, opened by Holdfast and, behind its back, by plain connections."""

    def __init__(self, url: str, holdfast: Holdfast, pool: ThreadPoolExecutor) -> None:
        self.url, self.hf, self._pool = url, holdfast, pool
        self.is_sqlite = "://" not in url
        self.acme = holdfast.tenant("acme")

    def left(self) -> dict[str, int]:
        """How many rows of the tenant there are in tables that have some."""
        found: dict[str, int] = {}
        for table in TABLES:
            column = "id" if table == "tenants" else "tenant_id"
            (row,) = self.execute(f"SELECT COUNT(*) FROM {table} WHERE {column} = 'acme'")
            found |= {table: row[0]} if row[0] else {}
        return found

    def execute(self, sql: str) -> list[Any]:
        if self.is_sqlite:
            connection = apsw.Connection(self.url)
            try:
                return list(connection.execute(sql))
            finally:
                connection.close()
        with psycopg.connect(self.url, autocommit=True) as plain:
            return plain.execute(sql.encode()).fetchall()

    def joined(self) -> tuple[TenantHandle, Callable[[], Any]]:
        """The tenant in a transaction of a caller's own, and how to commit it."""
        connection: Any = apsw.Connection(self.url) if self.is_sqlite else psycopg.connect(self.url)
        if self.is_sqlite:
            connection.execute("BEGIN IMMEDIATE")

        def commit() -> None:
            connection.execute("COMMIT")
            connection.close()

        return self.acme.join(connection), commit

    def begin(self, call: Callable[[], Any]) -> Future[Any]:
        """Begin a call that must wait; where that can be seen, return when it waits."""
        begun = self._pool.submit(call)
        deadline = time.monotonic() + 20
        while not self.is_sqlite and self.execute(WAITING) != [(1,)]:
            assert not begun.done(), f"it waited for nobody: {begun.result()}"
            assert time.monotonic() < deadline, "it never came to wait"
        return begun


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    request.node.user_properties.append(("leg", f"{request.param}, deletions of tenants"))
    url = str(tmp_path / "a.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    options = PoolOptions(min_connections=1, max_connections=8)
    with Holdfast(url, auto_migrate=True, pool=options) as opened, ThreadPoolExecutor(8) as pool:
        yield Place(url, opened, pool)


@pytest.mark.parametrize("piece", [SECRET, LARGE], ids=["small", "large"])
def test_a_checkpoint_that_is_being_saved_goes_with_its_tenant(place: Place, piece: bytes) -> None:
    place.acme.checkpoints.put("alice", id="1", state=b"s", pieces=[b"first" * 20])
    joined, commit = place.joined()
    joined.checkpoints.put("alice", id="2", parent="1", state=b"of alice", pieces=[piece])
    deleted = place.begin(lambda: place.hf.tenants.delete("acme", cascade=True))
    commit()
    deleted.result(20)
    assert place.left() == {}
    place.acme.checkpoints.put("bob", id="1", state=b"of bob", pieces=[b"hello " * 20])
    found = place.acme.checkpoints.find("bob")
    assert found is not None
    assert (found.id, found.state, found.pieces) == ("1", b"of bob", [b"hello " * 20])


def test_a_thread_that_is_being_made_goes_with_its_tenant(place: Place) -> None:
    place.acme.checkpoints.put("alice", id="1", state=b"s")
    joined, commit = place.joined()
    joined.checkpoints.put("new", id="1", state=b"s", pieces=[SECRET, LARGE])
    deleted = place.begin(lambda: place.hf.tenants.delete("acme", cascade=True))
    commit()
    deleted.result(20)
    assert place.left() == {}


def test_whoever_saves_while_the_tenant_goes_begins_anew(place: Place) -> None:
    for thread in ("old", "other"):
        place.acme.checkpoints.put(thread, id="1", state=b"s", pieces=[SECRET])
    joined, commit = place.joined()
    joined.checkpoints.put("other", id="2", parent="1", state=b"s", pieces=[SECRET])
    deleted = place.begin(lambda: place.hf.tenants.delete("acme", cascade=True))
    saved = [
        place._pool.submit(place.acme.checkpoints.put, thread, id="9", state=b"new life", pieces=[b"new " * 30])
        for thread in ("old", "new")
    ]
    commit()
    deleted.result(20)
    for each in saved:
        each.result(20)
    assert place.hf.tenants.get("acme").id == "acme"
    for thread in ("old", "new"):
        (found,) = place.acme.checkpoints.list(thread)
        assert (found.id, found.pieces) == ("9", [b"new " * 30])
    assert place.acme.checkpoints.list("other") == []


def test_an_object_that_is_being_put_again_goes_with_its_tenant(place: Place) -> None:
    place.acme.objects.put([LARGE], holder="first")
    joined, commit = place.joined()
    joined.objects.put([LARGE], holder="second")
    deleted = place.begin(lambda: place.hf.tenants.delete("acme", cascade=True))
    commit()
    deleted.result(20)
    assert place.left() == {}


def test_many_save_while_the_tenant_is_deleted_again_and_again(place: Place) -> None:
    stop = Event()

    def save(number: int) -> int:
        random, count = Random(number), 0
        while not stop.is_set():
            count += 1
            pieces = [random.randbytes(200), random.randbytes(20_000) if count % 3 == 0 else b"the same " * 20]
            place.acme.checkpoints.put(f"t{number % 3}", id=f"{number}-{count:06}", state=b"s", pieces=pieces)
        return count

    savers = [place._pool.submit(save, number) for number in range(4)]
    for _ in range(12):
        try:
            place.hf.tenants.delete("acme", cascade=True)
        except NotFound:
            continue
    stop.set()
    assert all(each.result(60) for each in savers)
    assert place.acme.checkpoints.verify().damaged == []
    place.acme.checkpoints.put("t0", id="zz", state=b"s", pieces=[b"quiet " * 20])
    assert place.acme.checkpoints.verify().damaged == []
    place.hf.tenants.delete("acme", cascade=True)
    assert place.left() == {}
