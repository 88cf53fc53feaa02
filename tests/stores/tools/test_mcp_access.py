"""Access to MCP servers: any grants compared with a plain model, and the cost of the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, product
from random import Random
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Holdfast, NewAgent, TenantHandle
from holdfast.core.queries import Statement
from holdfast.engines.dialect import Dialect
from holdfast.stores.tools import mcp_servers
from holdfast.types import McpAccess, McpServerChange, NewMcpAgentGrant, NewMcpServer, NewMcpUserGrant
from tests.conftest import SOAK

NAMES = ("s0", "s1", "s2")
AGENTS = ("ada", "bob")
USERS = ("u0", "u1")
TOOLS = ("a", "b", "c")

Lists = st.tuples(
    st.booleans() | st.just(True),
    st.none() | st.lists(st.sampled_from(TOOLS), max_size=3),
    st.lists(st.sampled_from(TOOLS), max_size=2),
)
"""Whether a grant is enabled, its allowed and its denied tools."""
Worlds = st.tuples(
    st.lists(st.sampled_from(["live", "live", "disabled", "deleted"]), min_size=len(NAMES), max_size=len(NAMES)),
    st.dictionaries(st.tuples(st.sampled_from(NAMES), st.sampled_from(AGENTS)), Lists, max_size=6),
    st.dictionaries(st.tuples(st.sampled_from(NAMES), st.sampled_from(USERS)), Lists, max_size=6),
)
Grants = dict[tuple[str, str], tuple[bool, list[str] | None, list[str]]]


NUMBERS = count()


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    url = ":memory:" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with Holdfast(url) as holdfast:
        yield holdfast


def usable(states: Sequence[str], agents: Grants, users: Grants, agent: str, user: str | None) -> dict[str, set[str]]:
    """Return the tools that an agent may use for a user, by server: the rules, one after the other."""
    result = {}
    for name, state in zip(NAMES, states, strict=True):
        to_agent = agents.get((name, agent))
        to_user = users.get((name, user)) if user is not None else None
        if state != "live" or to_agent is None or not to_agent[0] or (to_user is not None and not to_user[0]):
            continue
        tools = set(TOOLS)
        for grant in (to_agent, to_user):
            if grant is not None:
                _, allow, deny = grant
                tools &= set(TOOLS if allow is None else allow)
                tools -= set(deny)
        result[name] = tools
    return result


def build(acme: TenantHandle, states: Sequence[str], agents: Grants, users: Grants) -> None:
    for agent in AGENTS:
        acme.agents.create(NewAgent(agent))
    ids = {name: acme.mcp_servers.create(NewMcpServer(name)).id for name in NAMES}
    for (name, agent), (enabled, allow, deny) in agents.items():
        acme.mcp_grants.grant(NewMcpAgentGrant(ids[name], agent, enabled, allow, deny))
    for (name, user), (enabled, allow, deny) in users.items():
        acme.mcp_grants.grant(NewMcpUserGrant(ids[name], user, enabled, allow, deny))
    for name, state in zip(NAMES, states, strict=True):
        if state == "disabled":
            acme.mcp_servers.update(ids[name], change=McpServerChange(is_enabled=False))
        if state == "deleted":
            acme.mcp_servers.delete(ids[name])


def tools_of(access: McpAccess) -> set[str]:
    return {tool for tool in TOOLS if access.allows(tool)}


@settings(
    max_examples=2_000 if SOAK else 60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(world=Worlds)
def test_any_grants_give_what_a_plain_model_gives(opened: Holdfast, world: Any) -> None:
    acme = opened.tenant(f"t{next(NUMBERS)}")
    states, agents, users = world
    build(acme, states, agents, users)
    for agent, user in product(AGENTS, (*USERS, None)):
        accessible = acme.mcp_servers.list_accessible(agent, user)
        given = {access.server.name: tools_of(access) for access in accessible}
        assert given == usable(states, agents, users, agent, user), (agent, user)


def sqlite_plan(statement: Statement) -> str:
    with Holdfast(":memory:") as hf:
        connection: Any = hf._engine._connection  # type: ignore[attr-defined]
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names))
        return "; ".join(row[3] for row in rows)


@pytest.mark.parametrize("name", ["accessible", "accessible_after"])
def test_accessible_servers_are_read_from_indexes_in_order_on_sqlite(name: str) -> None:
    plan = sqlite_plan(mcp_servers.queries.by_name[name].statement(Dialect.SQLITE))
    assert "g USING INDEX mcp_agent_grants_by_agent" in plan, plan
    assert "SCAN" not in plan
    assert "B-TREE" not in plan


AFTER = "\n  AND (s.name, s.group_kind) >= (:a, :b) AND (s.name, s.group_kind, t.name) > (:a, :b, :c)"


@pytest.mark.parametrize("clause", ["", AFTER, " AND s.name = :filter_0 AND s.group_kind = :filter_1"])
def test_tools_are_read_from_indexes_in_order_on_sqlite(clause: str) -> None:
    tools = mcp_servers.queries.tools
    plan = sqlite_plan(tools.statement(Dialect.SQLITE, clause, mcp_servers.SERVERS_IN_ORDER))
    assert "s USING INDEX mcp_servers_by_name" in plan, plan
    assert "SCAN" not in plan
    assert "B-TREE" not in plan
    plan = sqlite_plan(tools.statement(Dialect.SQLITE, " AND t.server_id = :filter_0"))
    assert "AND server_id=?" in plan, plan


def test_accessible_servers_are_read_from_indexes_on_postgres(new_postgres_url: str) -> None:
    random = Random(7)
    with Holdfast(new_postgres_url) as hf:
        acme = hf.tenant("acme")
        for number in range(40):
            acme.agents.create(NewAgent(f"a{number}"))
        for number in range(60):
            server = acme.mcp_servers.create(NewMcpServer(f"s{number}")).id
            for agent in random.sample(range(40), 6):
                acme.mcp_grants.grant(NewMcpAgentGrant(server, f"a{agent}"))
            acme.mcp_grants.grant(NewMcpUserGrant(server, "u"))
    statement = mcp_servers.queries.accessible.statement(Dialect.POSTGRES)
    sql = statement.sql
    values = {"tenant_id": "acme", "agent_id": "a1", "user_id": "u", "limit": 51}
    for position, name in enumerate(statement.names, 1):
        sql = sql.replace(f"${position}", repr(values[name]))
    with psycopg.connect(new_postgres_url) as connection:
        for table in ("mcp_servers", "mcp_agent_grants", "mcp_user_grants", "agents"):
            connection.execute(f"ANALYZE {table}".encode())
        connection.execute("SET enable_seqscan = off")
        plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {sql}".encode()))
    assert "mcp_agent_grants_by_agent" in plan, plan
    assert "Seq Scan" not in plan, plan


def test_an_answer_is_one_statement() -> None:
    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        build(acme, ["live"] * 3, {(name, "ada"): (True, None, []) for name in NAMES}, {})
        connection: Any = hf._engine._connection  # type: ignore[attr-defined]
        statements: list[str] = []
        connection.raw.set_exec_trace(lambda cursor, sql, bindings: statements.append(sql) or True)
        assert len(acme.mcp_servers.list_accessible("ada", "u0")) == 3
        connection.raw.set_exec_trace(None)
    assert len([sql for sql in statements if "mcp_" in sql]) == 1, statements
