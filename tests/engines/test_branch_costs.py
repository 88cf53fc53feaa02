"""The cost of a fork does not depend on the length of the history; reading a branch costs as much as reading a plain session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, NewMessage
from holdfast.engines.dialect import Dialect
from holdfast.schema import migrate_up
from holdfast.stores.conversation import branches, log_reading

FEW, MANY = 20, 4_000


def filled(hf: Holdfast, count: int) -> str:
    """A session with so many messages."""
    acme = hf.tenant("acme")
    id = acme.sessions.create().id
    acme.messages.append_many(id, [NewMessage(role="user", content="x", token_count=1)] * count)
    return id


@pytest.fixture
def memory() -> Iterator[Holdfast]:
    with Holdfast(":memory:") as hf:
        yield hf


def steps(hf: Holdfast, call: Callable[[], Any]) -> int:
    """Return the number of instructions that SQLite's virtual machine ran for a call."""
    raw: Any = hf._engine._connection.raw  # type: ignore[attr-defined]
    ran = 0

    def one_more() -> bool:
        nonlocal ran
        ran += 1
        return False

    call()  # so that its statements are prepared
    raw.set_progress_handler(one_more, 1)
    try:
        call()
    finally:
        raw.set_progress_handler(None)
    return ran


def test_a_fork_takes_as_many_steps_in_a_long_session_as_in_a_short_one(memory: Holdfast) -> None:
    acme = memory.tenant("acme")
    short, long = filled(memory, FEW), filled(memory, MANY)
    in_short = steps(memory, lambda: acme.branches.fork(short, at=FEW // 2))
    in_long = steps(memory, lambda: acme.branches.fork(long, at=MANY // 2))
    assert in_short > 20, "nothing was counted"
    assert abs(in_long - in_short) <= in_short // 10


def test_the_last_messages_of_a_branch_take_no_more_steps_in_a_long_session(memory: Holdfast) -> None:
    acme = memory.tenant("acme")
    short, long = filled(memory, FEW), filled(memory, MANY)
    plain = steps(memory, lambda: acme.messages.last(long, 10))
    for id, back in ((short, FEW - 3), (long, MANY - 3)):
        acme.branches.rewind(id, to=back)
        acme.messages.append_many(id, [NewMessage(role="user", content="y")] * 2)
    in_short = steps(memory, lambda: acme.messages.last(short, 10))
    in_long = steps(memory, lambda: acme.messages.last(long, 10))
    assert abs(in_long - in_short) <= in_short // 10
    assert in_long < 3 * plain
    first = steps(memory, lambda: acme.messages.list(long, limit=10))
    assert first < 3 * plain


def test_the_number_of_statements_does_not_depend_on_the_ranges_of_a_branch(memory: Holdfast) -> None:
    acme = memory.tenant("acme")
    id = filled(memory, 2)
    for turn in range(50):
        acme.branches.rewind(id, to=2 + turn)
        acme.messages.append(id, role="user", content="y")
    connection: Any = memory._engine._connection  # type: ignore[attr-defined]
    ran: list[str] = []
    connection.raw.set_exec_trace(lambda cursor, sql, bindings: ran.append(sql) or True)
    try:
        assert len(acme.messages.list(id)) == 52
        assert len(ran) == 3
        ran.clear()
        assert acme.messages.count(id) == 52
        assert len(ran) == 3
    finally:
        connection.raw.set_exec_trace(None)


def plan(connection: Any, statement: Any) -> str:
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names))
    return "; ".join(row[3] for row in rows)


@pytest.mark.parametrize(
    "name", ["lock", "head", "first", "take_block", "message", "create", "find", "remember", "show"]
)
def test_no_statement_of_a_fork_or_a_switch_scans_a_table(memory: Holdfast, name: str) -> None:
    actual = plan(memory._engine._connection, branches.queries.by_name[name].statement(Dialect.SQLITE))  # type: ignore[attr-defined]
    assert "SCAN" not in actual
    if "messages" in actual:
        assert "(tenant_id=? AND session_id=? AND seq=?)" in actual


@pytest.mark.parametrize("name", ["ranges", "count"])
def test_a_range_is_found_by_its_positions(memory: Holdfast, name: str) -> None:
    actual = plan(memory._engine._connection, log_reading.queries.by_name[name].statement(Dialect.SQLITE))  # type: ignore[attr-defined]
    assert "(tenant_id=? AND session_id=? AND seq>? AND seq<?)" in actual
    assert "AUTOMATIC" not in actual


def planned(url: str, queries: Sequence[Any]) -> Iterator[str]:
    """Return PostgreSQL's generic plans of the statements of a call."""
    with psycopg.connect(url) as raw:
        raw.execute("SET plan_cache_mode = force_generic_plan")
        for number, query in enumerate(queries):
            statement = query.statement(Dialect.POSTGRES)
            raw.execute(f"PREPARE planned_{number} AS {statement.sql}".encode())
            nothing = ", ".join(["NULL"] * len(statement.names))
            rows = raw.execute(f"EXPLAIN EXECUTE planned_{number}({nothing})".encode()).fetchall()
            yield "\n".join(row[0] for row in rows)


def test_postgres_uses_primary_keys(bare_postgres_url: str) -> None:
    migrate_up(bare_postgres_url)
    with Holdfast(bare_postgres_url) as hf, psycopg.connect(bare_postgres_url, autocommit=True) as raw:
        for _ in range(200):
            id = filled(hf, FEW)
            hf.tenant("acme").branches.fork(id, at=FEW // 2)
            hf.tenant("acme").compactions.attach(session_id=id)
        raw.execute("ANALYZE")
    by_name = branches.queries.by_name
    names = ["lock", "head", "first", "take_block", "message", "find", "remember", "show"]
    for name, actual in zip(names, planned(bare_postgres_url, [by_name[name] for name in names]), strict=True):
        assert "Seq Scan" not in actual, f"{name}:\n{actual}"
        assert "_pkey on " in actual, f"{name}:\n{actual}"
    for actual in planned(bare_postgres_url, [*log_reading.queries.by_name.values()]):
        assert "Seq Scan" not in actual, actual
        assert "seq >=" not in actual or "messages_pkey" in actual, actual


def test_postgres_fetches_one_message_for_a_fork_of_any_size(postgres_url: str) -> None:
    with Holdfast(postgres_url) as hf, psycopg.connect(postgres_url) as raw:
        acme = hf.tenant("acme")
        id = filled(hf, MANY)
        acme.join(raw).branches.fork(id, at=MANY // 2)
        read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'messages'"
        row = raw.execute(read).fetchone()
        assert row is not None
        assert row[0] <= 1
        acme.join(raw).branches.rewind(id, to=MANY - 2)
        joined = acme.join(raw).messages
        joined.append(id, role="user", content="y")
        before = raw.execute(read).fetchone()
        assert len(joined.last(id, 10)) == 10
        after = raw.execute(read).fetchone()
        assert before is not None
        assert after is not None
        assert after[0] - before[0] <= 12
