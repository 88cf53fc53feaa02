"""The cost of a step depends only on its new data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import apsw
import psycopg

from holdfast import Holdfast
from holdfast.adapters.langgraph import HoldfastSaver
from tests.adapters.langgraph.conftest import Savers
from tests.adapters.langgraph.graphs import chat_graph, say, text, thread

TURNS, TIDY_EACH = 100, 10
TABLES = ("lg_log", "lg_thread", "lg_piece", "lg_checkpoint", "lg_checkpoint_write", "objects", "object_refs")


def stored_bytes(address: str) -> int:
    """Return the size of the checkpoint tables on disk, with their indexes."""
    if address.startswith("postgresql"):
        with psycopg.connect(address, autocommit=True) as connection:
            sizes = "SELECT sum(pg_total_relation_size(name::regclass))::bigint FROM unnest(%s::text[]) AS name"
            row = connection.execute(sizes, [list(TABLES)]).fetchone()
            assert row is not None
            return int(row[0])
    connection = apsw.Connection(address)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return os.path.getsize(address)


def tidy(address: str) -> None:
    """Vacuum the tables, as the autovacuum of a production server does."""
    if address.startswith("postgresql"):
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"VACUUM {', '.join(TABLES)}".encode())


def talk(saver: Any, first: int, last: int) -> None:
    graph = chat_graph(saver)
    for turn in range(first, last + 1):
        graph.invoke(say(turn), thread(), durability="sync")


def test_a_conversation_takes_little_more_space_than_its_text(address: str, savers: Savers) -> None:
    Holdfast(address, auto_migrate=True).close()
    empty = stored_bytes(address)
    for first in range(1, TURNS // 2, TIDY_EACH):
        talk(savers(), first, first + TIDY_EACH - 1)
        tidy(address)
    half = stored_bytes(address) - empty
    for first in range(TURNS // 2 + 1, TURNS, TIDY_EACH):
        talk(savers(), first, first + TIDY_EACH - 1)
        tidy(address)
    whole = stored_bytes(address) - empty
    words = sum(len(text(n)) for n in range(1, 2 * TURNS + 1))
    if address.startswith("postgresql"):
        # PostgreSQL rows have a header of 28 bytes, and tables a free space map: only the growth is compared.
        assert whole - half <= 2.5 * (words / 2)
    else:
        assert whole <= 1.5 * words
    assert whole - half <= 1.3 * half, "the second half costs as much as the first"


def test_forks_and_copies_cost_next_to_nothing(tmp_path: Path) -> None:
    address = str(tmp_path / "a.db")
    with HoldfastSaver(address) as saver:
        talk(saver, 1, 30)
        before = stored_bytes(address)
        history = list(saver.list(thread()))
        graph = chat_graph(saver)
        for old in history[20:60:4]:
            graph.update_state(old.config, {"notes": {"fork": "here"}})
        saver.copy_thread("t", "copy")
        assert stored_bytes(address) - before < 0.6 * before
        assert len(graph.get_state(thread("copy")).values["messages"]) > 10


def test_pruning_frees_unused_pieces(tmp_path: Path) -> None:
    address = str(tmp_path / "a.db")
    with HoldfastSaver(address) as saver:
        talk(saver, 1, 20)
        latest = chat_graph(saver).get_state(thread()).values
        saver.prune(["t"])
        assert chat_graph(saver).get_state(thread()).values == latest
        assert len(list(saver.list(thread()))) == 1
        connection = apsw.Connection(address)
        (pieces,) = next(iter(connection.execute("SELECT COUNT(*) FROM lg_piece")))
        connection.close()
        assert pieces <= 42, "forty messages and the shape of one checkpoint"
        saver.delete_thread("t")
        connection = apsw.Connection(address)
        for table in TABLES:
            assert next(iter(connection.execute(f"SELECT COUNT(*) FROM {table}"))) == (0,), table
        connection.close()
