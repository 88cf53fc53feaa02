"""What the messages of an agent cost: neither other agents' messages nor the length of the logs matter to the last ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast import FixedClock, Holdfast, NewMessage, TenantHandle
from holdfast.clock import from_us
from holdfast.engines.dialect import Dialect
from holdfast.stores.conversation import agent_messages
from tests.engines.test_branch_costs import steps
from tests.engines.test_run_costs import Counted, counted  # noqa: F401

FEW, MANY = 20, 4_000


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def memory(clock: FixedClock) -> Iterator[Holdfast]:
    with Holdfast(":memory:", clock=clock) as hf:
        yield hf


def fill(acme: TenantHandle, agent: str, sessions: int, messages: int) -> list[str]:
    """Create sessions of an agent with so many messages each."""
    ids = [acme.sessions.create(agent=agent).id for _ in range(sessions)]
    for id in ids:
        acme.messages.append_many(id, [NewMessage(role="user", content="x", token_count=1)] * messages)
    return ids


def test_other_agents_and_older_messages_cost_nothing(memory: Holdfast, clock: FixedClock) -> None:
    acme = memory.tenant("acme")
    calls: list[Callable[[str], Any]] = [
        lambda agent: acme.agent_messages.last(agent, 10),
        lambda agent: acme.agent_messages.list(agent, limit=10),
        lambda agent: acme.agent_messages.list(agent, since=from_us(clock.now_us()) - timedelta(seconds=1)),
    ]
    fill(acme, "short", 3, FEW)
    clock.advance(7_200)
    fill(acme, "short", 1, 5)
    before = [steps(memory, lambda call=call: call("short")) for call in calls]  # type: ignore[misc]
    assert min(before) > 100, "nothing was counted"
    fill(acme, "other", 20, MANY // 10)
    fill(memory.tenant("zenith"), "short", 3, MANY // 10)
    after = [steps(memory, lambda call=call: call("short")) for call in calls]  # type: ignore[misc]
    for was, now in zip(before, after, strict=True):
        assert abs(now - was) <= was // 10, (before, after)
    clock.advance(-7_200)
    fill(acme, "long", 3, MANY)
    clock.advance(7_200)
    fill(acme, "long", 1, 5)
    in_long = [steps(memory, lambda call=call: call("long")) for call in calls]  # type: ignore[misc]
    for was, now in zip(before, in_long, strict=True):
        assert abs(now - was) <= was // 5, (before, in_long)


def test_sessions_of_long_ago_are_not_read(memory: Holdfast, clock: FixedClock) -> None:
    acme = memory.tenant("acme")
    few, many = fill(acme, "few", 40, 1), fill(acme, "many", 400, 1)
    clock.advance(86_400)
    for id in (few[0], many[0]):
        acme.messages.append_many(id, [NewMessage(role="user", content="x", token_count=1)] * 12)
    in_few = steps(memory, lambda: acme.agent_messages.last("few", 10))
    in_many = steps(memory, lambda: acme.agent_messages.last("many", 10))
    assert abs(in_many - in_few) <= in_few // 10


def test_one_statement_reads_the_messages_of_all_sessions(memory: Holdfast, counted: Counted) -> None:  # noqa: F811
    acme = memory.tenant("acme")
    fill(acme, "a", 30, 3)
    assert counted.of(lambda: acme.agent_messages.list("a", limit=50)) == 1
    assert counted.of(lambda: acme.agent_messages.last("a", 50)) == 1


def test_sqlite_reads_agents_by_their_index_and_logs_by_their_key(memory: Holdfast) -> None:
    raw: Any = memory._engine._connection  # type: ignore[attr-defined]
    for query in (agent_messages.queries.list, agent_messages.queries.sizes):
        for clause in ("", " AND kind = :kind AND created_at > :value_at"):
            statement = query.statement(Dialect.SQLITE, clause, "sessions_by_agent")
            rows = raw.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names))
            plan = [row[3] for row in rows]
            sessions = [line for line in plan if "sessions" in line]
            assert sessions == [
                "SEARCH sessions USING INDEX sessions_by_agent (tenant_id=? AND agent_id=? AND updated_minute>?)"
            ], plan
            logs = [line for line in plan if line.startswith(("SEARCH m ", "SCAN m "))]
            assert len(logs) == 5, plan
            assert all("(tenant_id=? AND session_id=? AND seq" in line for line in logs), plan


def test_planned_on_empty_tables_postgres_uses_the_same_indexes(new_postgres_url: str) -> None:
    for query in (agent_messages.queries.list, agent_messages.queries.sizes):
        statement = query.statement(Dialect.POSTGRES)
        with psycopg.connect(new_postgres_url) as raw:
            raw.execute("SET plan_cache_mode = force_generic_plan")
            raw.execute(b"PREPARE planned AS " + statement.sql.encode())
            nothing = ", ".join(["NULL"] * len(statement.names))
            rows = raw.execute(f"EXPLAIN EXECUTE planned({nothing})".encode()).fetchall()
        plan = "\n".join(row[0] for row in rows)
        assert "Seq Scan" not in plan, plan
        assert "sessions_by_agent" in plan, plan
        assert plan.count("messages_pkey") == 4, plan
