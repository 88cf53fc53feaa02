"""Saving a step of a graph takes one round trip to PostgreSQL, and happens once despite other writers and lost answers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, PoolOptions, TenantHandle, Write
from holdfast.drivers.psycopg import PsycopgConnection
from holdfast.errors import Stale
from holdfast.stores.execution.checkpoints import optimistic
from holdfast.types import StoredPieces
from tests.engines.postgres_handles import database_of
from tests.engines.proxy import Moment, Proxy
from tests.servers import PgBouncer, PostgresServer

SMALL = PoolOptions(min_connections=1, max_connections=3, connect_timeout_s=5.0)
CUTS = 24
WAITED_S = 60.0
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def acme(postgres_url: str) -> Iterator[TenantHandle]:
    with Holdfast(postgres_url) as hf:
        yield hf.tenant("acme")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the statements that are sent."""
    sent: list[str] = []
    execute = PsycopgConnection.execute

    def note(self: PsycopgConnection, sql: str, args: Any = ()) -> Any:
        sent.append(sql)
        return execute(self, sql, args)

    monkeypatch.setattr(PsycopgConnection, "execute", note)
    return sent


def put(acme: TenantHandle, id: str, *pieces: Any, **kwargs: Any) -> StoredPieces:
    return acme.checkpoints.put("t", id=id, state=b"", pieces=pieces, **kwargs)


def write(acme: TenantHandle, task: str, *pieces: Any, **kwargs: Any) -> StoredPieces:
    return acme.checkpoints.put_writes("t", id="1", task_id=task, new=[Write(0, "a", b"", pieces)], **kwargs)


def first_words(asked: list[str]) -> list[str]:
    return [sql.split()[0] for sql in asked]


def test_a_step_after_one_of_this_process_is_one_statement(acme: TenantHandle, asked: list[str]) -> None:
    put(acme, "1", b"one")
    last = put(acme, "2", b"one")
    asked.clear()
    for step in range(4):
        new = [b"%d of %d" % (number, step) for number in range(step % 3)]
        last = put(acme, f"3{step}", 1, *new, stamp=last.stamp)
        last = write(acme, f"{step}", 1, b"task %d" % step, stamp=last.stamp)
    assert first_words(asked) == ["WITH"] * 8
    assert acme.checkpoints.verify().damaged == []


def test_log_entries_of_other_processes_are_read(acme: TenantHandle, postgres_url: str, asked: list[str]) -> None:
    put(acme, "1", b"one")
    asked.clear()
    assert put(acme, "2", b"two").positions == [2]
    assert first_words(asked) == ["SELECT", "WITH"]
    with Holdfast(postgres_url) as other:
        put(other.tenant("acme"), "3", b"three")
    asked.clear()
    assert put(acme, "4", b"three", b"four").positions == [3, 4]
    assert first_words(asked) == ["WITH", "SELECT", "WITH"], "another process has added to it"
    asked.clear()
    assert put(acme, "5", b"one").positions == [1]
    assert first_words(asked) == ["WITH", "SELECT", "WITH"], "the log has the piece already"
    assert acme.checkpoints.verify().damaged == []


def test_the_number_of_remembered_logs_is_bounded(acme: TenantHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimistic, "MAX_LOGS", 2)
    for step in range(2):
        for name in "abc":
            acme.checkpoints.put(name, id=f"{step}", state=b"", pieces=[b"%d" % step])
    assert [thread for *_, thread in acme._scope.shared["checkpoint_logs"]] == ["c"]


def test_a_writer_that_always_conflicts_saves_in_a_transaction(
    acme: TenantHandle, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(acme, "1", b"one")

    async def late(*_: Any) -> bool:
        return False

    monkeypatch.setattr(optimistic, "_write", late)
    asked.clear()
    assert put(acme, "2", b"two").positions == [2]
    assert first_words(asked)[: optimistic.MAX_TRIES + 1] == ["SELECT"] * optimistic.MAX_TRIES + ["BEGIN"]


@pytest.mark.parametrize(
    "step",
    [
        lambda acme: put(acme, "2", b"one", b"two", b"three", b"four"),
        lambda acme: put(acme, "2", Random(1).randbytes(9_000)),
        lambda acme: put(acme, "2", parent="1", only_after_head=True),
        lambda acme: acme.checkpoints.put("new", id="1", state=b"", pieces=[b"one"]),
    ],
    ids=["many pieces", "a large piece", "only after the newest", "a new thread"],
)
def test_other_steps_are_saved_in_a_transaction(acme: TenantHandle, asked: list[str], step: Any) -> None:
    put(acme, "1", b"one")
    asked.clear()
    step(acme)
    assert "BEGIN" in asked
    assert acme.checkpoints.verify().damaged == []


def test_a_checkpoint_that_exists_is_replaced(acme: TenantHandle) -> None:
    for piece in (b"one", b"two", b"three"):
        put(acme, "1", piece)
        write(acme, "x", piece)
    (actual,) = acme.checkpoints.list("t")
    assert list(actual.pieces) == [b"three"]
    assert list(actual.tasks[0].writes[0].pieces) == [b"one"], "the first write of an index stays"


def test_with_a_pooler_each_statement_is_a_transaction(
    postgres_url: str, pgbouncer: PgBouncer, asked: list[str]
) -> None:
    with Holdfast(pgbouncer.url(database_of(postgres_url)), auto_migrate=True) as hf:
        last = put(hf.tenant("acme"), "1", b"one")
        asked.clear()
        put(hf.tenant("acme"), "2", 1, b"two", stamp=last.stamp)
        assert first_words(asked[-3:-1]) == ["BEGIN", "WITH"]
        assert asked[-1].endswith("COMMIT")


@pytest.mark.parametrize("moment", ["answer", "request"])
def test_a_step_whose_answer_is_lost_is_saved_once(
    moment: Moment, postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(postgres_server) as proxy, Holdfast(proxy.url(database_of(postgres_url)), pool=SMALL) as hf:
        acme = hf.tenant("acme")
        last = put(acme, "1", b"one")
        execute, armed = PsycopgConnection.execute, list[str]()

        def cut(self: PsycopgConnection, sql: str, args: Any = ()) -> Any:
            if sql.startswith("WITH found") and len(armed) <= number:
                armed.append(sql)
                proxy.arm(moment)
            return execute(self, sql, args)

        monkeypatch.setattr(PsycopgConnection, "execute", cut)
        for number in range(CUTS):
            new = b"%d" % number
            if number % 2:
                last = put(acme, f"2{number:03}", 1, new, stamp=last.stamp)
            else:
                last = write(acme, f"{number:03}", 1, new, stamp=last.stamp)
            assert not proxy.is_armed
            assert last.positions == [1, number + 2]
        assert proxy.cuts == len(armed) == CUTS
        assert len(acme.checkpoints.list("t")) == 1 + CUTS // 2
        assert acme.checkpoints.verify().damaged == []


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_a_writer_that_waited_for_another_transaction_cannot_use_its_old_positions(
    acme: TenantHandle, postgres_url: str, aside: ThreadPoolExecutor
) -> None:
    last = put(acme, "1", b"one")
    with _another_writes(acme, postgres_url) as raw:
        waiting = aside.submit(put, acme, "3", 1, b"own", stamp=last.stamp)
        _until_someone_waits(postgres_url)
        raw.commit()
        assert isinstance(waiting.exception(WAITED_S), Stale)
    assert [checkpoint.id for checkpoint in acme.checkpoints.list("t")] == ["2", "1"]
    assert put(acme, "3", b"own").positions == [3]


def test_a_writer_that_waited_for_a_rolled_back_transaction_continues(
    acme: TenantHandle, postgres_url: str, aside: ThreadPoolExecutor
) -> None:
    last = put(acme, "1", b"one")
    with _another_writes(acme, postgres_url) as raw:
        waiting = aside.submit(put, acme, "3", 1, b"new", b"own", stamp=last.stamp)
        _until_someone_waits(postgres_url)
        raw.rollback()
        answer = waiting.result(WAITED_S)
    assert answer.positions == [1, 2, 3]
    assert [checkpoint.id for checkpoint in acme.checkpoints.list("t")] == ["3", "1"]
    assert acme.checkpoints.verify().damaged == []


def test_a_writer_that_waited_for_another_step_takes_the_positions_after_it(
    acme: TenantHandle, postgres_url: str, aside: ThreadPoolExecutor
) -> None:
    """The statement read the log before another writer added to it, and must not rely on that state."""
    last = put(acme, "1", b"one")
    with psycopg.connect(postgres_url) as raw:
        raw.execute("SELECT 1 FROM lg_log WHERE tenant_id = 'acme' FOR UPDATE")
        raw.execute(
            "INSERT INTO lg_piece (log, place, codec, tenant_id, digest, body) "
            "SELECT log, 2, codec, tenant_id, digest || '\\x00'::bytea, body FROM lg_piece WHERE tenant_id = 'acme'"
        )
        raw.execute("UPDATE lg_log SET next_place = 3 WHERE tenant_id = 'acme'")
        waiting = aside.submit(put, acme, "3", 1, b"own", stamp=last.stamp)
        _until_someone_waits(postgres_url)
        raw.commit()
        answer = waiting.result(WAITED_S)
    assert answer.positions == [1, 3]


def test_a_save_that_adds_nothing_still_waits_for_a_removal_in_progress(
    acme: TenantHandle, postgres_url: str, aside: ThreadPoolExecutor
) -> None:
    put(acme, "1", b"one")
    last = put(acme, "2", b"two")
    with psycopg.connect(postgres_url) as raw:
        assert acme.join(raw).checkpoints.prune(["t"]) == 1
        waiting = aside.submit(put, acme, "3", 1, stamp=last.stamp)
        _until_someone_waits(postgres_url)
        raw.commit()
        assert isinstance(waiting.exception(WAITED_S), Stale)
    assert acme.checkpoints.verify().damaged == []


def test_in_a_joined_transaction_the_stamp_changes(acme: TenantHandle, postgres_url: str) -> None:
    """After a rollback its places are reused, so a caller that remembers them must be refused: the log gets a new stamp."""
    last = put(acme, "1", b"one")
    with psycopg.connect(postgres_url) as raw:
        joined = acme.join(raw).checkpoints.put("t", id="2", state=b"", pieces=[1, b"two"], stamp=last.stamp)
        assert joined.stamp != last.stamp
        raw.rollback()
    assert put(acme, "3", 1, b"three", stamp=last.stamp).positions == [1, 2]
    with pytest.raises(Stale):
        put(acme, "4", 2, stamp=joined.stamp)


@contextmanager
def _another_writes(acme: TenantHandle, url: str) -> Iterator[psycopg.Connection[Any]]:
    """Another writer that has added a checkpoint to the thread in an open transaction."""
    with psycopg.connect(url) as raw:
        acme.join(raw).checkpoints.put("t", id="2", state=b"", pieces=[b"new"])
        yield raw


def _until_someone_waits(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as raw:
        for _ in range(int(WAITED_S * 100)):
            row = raw.execute(WAITING).fetchone()
            if row is not None and row[0]:
                return
            raw.execute("SELECT pg_sleep(0.01)")
    raise AssertionError("no caller waits")
