"""The cost of runs: the number of statements, and the index that each uses, independently of the amount of data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, Limits, NewMessage, NewToolCall, TenantHandle, ToolOutcome, Usage
from holdfast.core.filters import column
from holdfast.core.queries import Query, Statement
from holdfast.drivers.apsw import ApswConnection
from holdfast.drivers.psycopg import PsycopgConnection
from holdfast.engines.dialect import Dialect
from holdfast.schema import migrate_up
from holdfast.stores.agents import agents, blocks
from holdfast.stores.execution.runs import ledger, step_log
from holdfast.stores.execution.runs import states as run_states
from holdfast.types import Run

RUNS, QUEUE, STEPS, CALLS = run_states.queries, run_states.queue, step_log.queries, ledger.queries
CONTROL = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "PRAGMA")


class Counted:
    """The statements that were sent, without those that only begin and end transactions."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def note(self, sql: str) -> None:
        if not sql.startswith(CONTROL) and not sql.endswith("COMMIT"):
            self.sent.append(sql)

    def of(self, call: Callable[[], Any]) -> int:
        """Return the number of statements that one call sends."""
        self.sent.clear()
        call()
        return len(self.sent)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    for kind in (ApswConnection, PsycopgConnection):
        execute, many = kind.execute, kind.many

        def counting_execute(self: Any, sql: str, args: Any = (), _execute: Any = execute) -> Any:
            counted.note(sql)
            return _execute(self, sql, args)

        async def counting_many(self: Any, sql: str, rows: Any, _many: Any = many) -> None:
            counted.note(sql)
            await _many(self, sql, rows)

        monkeypatch.setattr(kind, "execute", counting_execute)
        monkeypatch.setattr(kind, "many", counting_many)
    return counted


@pytest.fixture(params=["sqlite", "postgres"])
def acme(request: pytest.FixtureRequest) -> Iterator[TenantHandle]:
    url = ":memory:" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with Holdfast(url) as hf:
        yield hf.tenant("acme")


def claimed(acme: TenantHandle) -> Run:
    run = acme.leases.claim("w", run_id=acme.runs.start(acme.sessions.create().id).id)
    assert run is not None
    return run


def whole_step(acme: TenantHandle, run: Run, iteration: int) -> None:
    """State, two messages, one finished tool call and usage."""
    acme.runs.step(
        run.id,
        epoch=run.epoch,
        iteration=iteration,
        state={"n": iteration},
        messages=[NewMessage(role="assistant", content="a"), NewMessage(role="user", content="b")],
        tool_calls=[ToolOutcome(id=str(iteration), result="done")],
        usage=Usage(input_tokens=1, output_tokens=1),
    )


def intend(acme: TenantHandle, run: Run, iteration: int) -> None:
    calls = [NewToolCall(id=str(iteration), tool_name="t")]
    acme.tool_calls.intend(run.id, epoch=run.epoch, calls=calls)


def test_an_iteration_is_two_commits_of_few_statements(acme: TenantHandle, counted: Counted) -> None:
    on_postgres = acme._engine.dialect is Dialect.POSTGRES
    run = claimed(acme)
    for iteration in range(1, 4):
        assert counted.of(lambda n=iteration: intend(acme, run, n)) == (1 if on_postgres else 2)  # type: ignore[misc]
        assert counted.of(lambda n=iteration: whole_step(acme, run, n)) == (1 if on_postgres else 5)  # type: ignore[misc]
    plain = counted.of(lambda: acme.runs.step(run.id, epoch=run.epoch, iteration=4, state=4))
    assert plain == (1 if on_postgres else 2)


def test_other_calls_of_a_run_take_few_statements(acme: TenantHandle, counted: Counted) -> None:
    session = acme.sessions.create()
    assert counted.of(lambda: acme.runs.start(session.id)) == 2
    assert counted.of(lambda: acme.leases.claim("w")) == 4
    assert counted.of(lambda: acme.leases.claim("w")) == 1, "nothing to be had: one look"
    run = acme.runs.list()[0]
    assert counted.of(lambda: acme.leases.renew(run.id, epoch=run.epoch)) == 2
    assert counted.of(lambda: acme.runs.pause(run.id, epoch=run.epoch)) == 3
    assert counted.of(lambda: acme.runs.resume(run.id)) == 3
    assert counted.of(lambda: acme.runs.load(run.id)) == 2


def test_resuming_costs_the_same_for_any_number_of_steps(acme: TenantHandle, counted: Counted) -> None:
    run = claimed(acme)
    seen = []
    for iteration in range(1, 31):
        intend(acme, run, iteration)
        whole_step(acme, run, iteration)
        if iteration in (3, 30):
            seen.append((counted.of(lambda: acme.runs.load(run.id)), len(acme.runs.load(run.id).tool_calls)))
    assert seen == [(3, 0), (3, 0)]


# SQLite


@pytest.fixture
def sqlite() -> Iterator[Any]:
    with Holdfast(":memory:") as hf:
        yield hf._engine._connection  # type: ignore[attr-defined]


def plan(connection: Any, statement: Statement) -> str:
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names))
    return "; ".join(row[3] for row in rows)


BY_ID = [
    *((RUNS, name) for name in ("get", "lock", "look", "move", "renew", "doubt", "is_there")),
    (STEPS, "advance_run"),
    (CALLS, "hold_run"),
]


@pytest.mark.parametrize(("queries", "name"), BY_ID, ids=lambda item: item if isinstance(item, str) else "")
def test_a_run_is_found_by_its_primary_key(sqlite: Any, queries: Any, name: str) -> None:
    actual = plan(sqlite, queries.by_name[name].statement(Dialect.SQLITE))
    assert "USING PRIMARY KEY (tenant_id=? AND id=?)" in actual or "PRIMARY KEY (tenant_id=? AND id=?)" in actual
    assert "SCAN runs" not in actual
    assert "SCAN sessions" not in actual
    assert "SCAN c" not in actual


@pytest.mark.parametrize(
    ("index", "where"),
    [
        ("run_queue_by_turn", ""),
        ("run_queue_by_agent", " AND agent = :agent_id"),
        ("run_queue_by_tenant", " AND tenant = :tenant_id"),
        ("run_queue_by_tenant_agent", " AND tenant = :tenant_id AND agent = :agent_id"),
    ],
)
def test_the_next_run_is_found_by_an_index(sqlite: Any, index: str, where: str) -> None:
    actual = plan(sqlite, QUEUE.peek.statement(Dialect.SQLITE, where, index))
    parts = [part for part in actual.split("; ") if "run_queue" in part]
    assert len(parts) == 4
    for part in parts:
        assert f"USING COVERING INDEX {index}" in part or f"USING INDEX {index}" in part
        assert re.search(r"\(?due_at(,run_id\))?>", part), "and starts where the last look ended"


@pytest.mark.parametrize(
    ("index", "where"),
    [
        ("runs_by_start", ""),
        ("runs_by_session", " AND session_id = :session"),
        ("runs_by_status", " AND status = :status"),
        ("runs_by_start", " AND (started_at, id) < (:after, :after_id)"),
    ],
)
def test_runs_are_listed_from_an_index_in_order(sqlite: Any, index: str, where: str) -> None:
    actual = plan(sqlite, RUNS.list.statement(Dialect.SQLITE, where, index))
    assert f"USING INDEX {index}" in actual
    assert "B-TREE" not in actual


def test_child_runs_are_found_by_their_parent(sqlite: Any) -> None:
    actual = plan(sqlite, RUNS.children.statement(Dialect.SQLITE, "", "runs_by_parent"))
    assert "runs_by_parent (tenant_id=? AND parent_run_id=?)" in actual


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (CALLS.open, "c USING INDEX tool_calls_open (tenant_id=? AND run_id=?)"),
        (CALLS.take_in_calls, "tool_calls USING INDEX tool_calls_open (tenant_id=? AND run_id=?)"),
        (CALLS.cancel_open, "tool_calls USING INDEX tool_calls_open (tenant_id=? AND run_id=?)"),
        (CALLS.get, "(tenant_id=? AND run_id=? AND id=?)"),
        (RUNS.of_call, "runs_by_parent (tenant_id=? AND parent_run_id=? AND parent_call_id=?)"),
        (STEPS.get, "(tenant_id=? AND run_id=? AND iteration=?)"),
        (STEPS.list_newest, "(tenant_id=? AND run_id=? AND iteration<?)"),
        (blocks.queries.get, "(tenant_id=? AND agent_id=? AND label=?)"),
    ],
)
def test_rows_of_a_run_or_an_agent_are_found_by_an_index(sqlite: Any, query: Query, says: str) -> None:
    assert says in plan(sqlite, query.statement(Dialect.SQLITE))


@pytest.mark.parametrize("name", ["list", "list_after"])
def test_agents_with_a_tag_are_listed_from_keys_in_order(sqlite: Any, name: str) -> None:
    kind = agents.AsyncAgents
    clause = kind.filters.compile([column("tags").contains("x")], {}, Dialect.SQLITE, Limits())
    actual = plan(sqlite, kind.queries.by_name[name].statement(Dialect.SQLITE, clause))
    assert "t USING PRIMARY KEY (tenant_id=? AND tag=?)" in actual
    assert "agents USING INDEX sqlite_autoindex_agents_1 (tenant_id=? AND id=?)" in actual, "by the primary key"
    assert "SCAN" not in actual
    assert "B-TREE" not in actual


# PostgreSQL


OTHERS = {
    "sessions": "id = gen_random_uuid(), identifier = gen_random_uuid()::text",
    "runs": "id = gen_random_uuid()",
    "run_queue": "run_id = gen_random_uuid()",
    "tool_calls": "id = gen_random_uuid()::text",
}
"""What tells a row from the one it is a copy of."""


@pytest.fixture
def filled_url(bare_postgres_url: str) -> str:
    """A database of several tenants with many runs, of which the server knows how many there are."""
    migrate_up(bare_postgres_url)
    with Holdfast(bare_postgres_url) as hf:
        for tenant in map(hf.tenant, ("acme", "zenith", "umbrella")):
            sessions = [tenant.sessions.create(agent=agent).id for agent in ("a", "b", "c", "d")]
            for session in sessions:
                run = tenant.leases.claim("w", run_id=tenant.runs.start(session).id)
                assert run is not None
                intend(tenant, run, 1)
                whole_step(tenant, run, 1)
                tenant.runs.start(session)
    with psycopg.connect(bare_postgres_url, autocommit=True) as raw:
        for table, change in OTHERS.items():
            for _ in range(7):
                raw.execute(f"CREATE TEMP TABLE more AS SELECT * FROM {table}".encode())
                raw.execute(f"UPDATE more SET {change}".encode())
                raw.execute(f"INSERT INTO {table} SELECT * FROM more".encode())
                raw.execute("DROP TABLE more")
        raw.execute("ANALYZE")
    return bare_postgres_url


def planned(url: str, statement: Statement) -> str:
    """Return the plan that a prepared statement keeps."""
    with psycopg.connect(url) as raw:
        raw.execute("SET plan_cache_mode = force_generic_plan")
        raw.execute(b"PREPARE planned AS " + statement.sql.encode())
        nothing = ", ".join(["NULL"] * len(statement.names))
        return "\n".join(row[0] for row in raw.execute(f"EXPLAIN EXECUTE planned({nothing})".encode()).fetchall())


def test_postgres_finds_a_run_by_its_primary_key(filled_url: str) -> None:
    for queries, name in [
        *BY_ID[:-2],
        (CALLS, "hold_run"),
        (CALLS, "intend_all"),
        (STEPS, "commit_all"),
        (STEPS, "commit_bare"),
        (STEPS, "commit_one_bare"),
    ]:
        actual = planned(filled_url, queries.by_name[name].statement(Dialect.POSTGRES))
        assert "runs_pkey" in actual, f"{name}:\n{actual}"
        assert "Seq Scan" not in actual, f"{name}:\n{actual}"


def test_postgres_commits_a_step_by_primary_keys_only(filled_url: str) -> None:
    actual = planned(filled_url, STEPS.commit_all.statement(Dialect.POSTGRES))
    assert "Seq Scan" not in actual
    for index in ("runs_pkey", "sessions_pkey"):
        assert index in actual
    assert "tool_calls_open" in actual or "tool_calls_pkey" in actual


def test_postgres_finds_the_next_run_by_an_index(filled_url: str) -> None:
    for where in ("", " AND tenant = :tenant_id", " AND agent = :agent_id"):
        assert "Seq Scan" not in planned(filled_url, QUEUE.peek.statement(Dialect.POSTGRES, where)), where
