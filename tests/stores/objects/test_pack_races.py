"""A prune that runs beside writers in the middle of their transactions condemns no pack that is used afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.errors import Corrupt, NotFound
from holdfast.ids import RandomIds
from holdfast.stores.objects import packs
from holdfast.sync_runner import step
from tests.stores.objects.conftest import SMALL

WAITING = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@contextmanager
def sealing(url: str, pack: str, digest: bytes) -> Iterator[psycopg.Connection[Any]]:
    """A writer that has registered a pack, and is about to commit its seal and its objects."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO object_packs (tenant_id, id, size_bytes, is_sealed, created_at)"
            " VALUES ('acme', %s, 4, FALSE, '2001-01-01')",
            (pack,),
        )
        connection.commit()
        connection.execute("UPDATE object_packs SET is_sealed = TRUE WHERE id = %s", (pack,))
        connection.execute(
            "INSERT INTO objects (tenant_id, digest, codec, size_bytes, stored_bytes, pack, pack_start, created_at)"
            " VALUES ('acme', %s, 0, 4, 4, %s, 0, '2001-01-01')",
            (digest, pack),
        )
        yield connection


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_pack_that_is_sealed_during_a_prune_is_not_condemned(postgres_url: str, tmp_path: Path) -> None:
    ids = RandomIds()
    one, other = ids.new(), ids.new()
    with (
        Holdfast(postgres_url, packs=tmp_path / "packs", limits=SMALL) as holdfast,
        psycopg.connect(postgres_url, autocommit=True) as watcher,
        ThreadPoolExecutor(1) as pool,
    ):
        acme = holdfast.tenant("acme")
        acme.objects.put([b"so that there is a tenant"], holder="h")

        def is_stuck_or_done(pruning: Future[Any]) -> bool:
            row = watcher.execute(WAITING).fetchone()
            return pruning.done() or (row is not None and row[0] == 1)

        with sealing(postgres_url, one, b"1" * 32) as first:
            pruning = pool.submit(acme.objects.prune, grace_s=0)
            wait_for(lambda: is_stuck_or_done(pruning))
            assert not pruning.done()
            with sealing(postgres_url, other, b"2" * 32) as second:
                first.commit()
                time.sleep(0.1)
                wait_for(lambda: is_stuck_or_done(pruning))
                second.commit()
            pruning.result(60)
        rows = watcher.execute("SELECT id::text FROM object_packs WHERE condemned_at IS NULL").fetchall()
        assert {row[0] for row in rows} == {one, other}


def test_objects_that_move_between_packs_are_read_eventually() -> None:
    moves = iter(range(packs.MAX_TRIES - 1))

    async def read() -> str:
        for move in moves:
            raise NotFound(noun="pack", key=f"{move}")
        return "read"

    assert step(packs.retry_moved(read)) == "read"


def test_a_pack_that_is_missing_twice_is_corrupt() -> None:
    reads = 0

    async def read() -> str:
        nonlocal reads
        reads += 1
        raise NotFound(noun="pack", key="pack-1")

    with pytest.raises(Corrupt, match="pack-1"):
        step(packs.retry_moved(read))
    assert reads == 2
