"""Benchmark of records and access checks: 10,000 agents with 1,000 shares, by Holdfast and by hand with the raw driver.

By hand means the same statements with the same rows, in one transaction for each write, and the same objects as the result.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, time_ns
from typing import Any

import msgspec

from .case import Case, Job, Result
from .workload import SEED, middle_us

GROUPS = ("agents-sqlite", "agents-postgres")
OURS, HAND = "Holdfast", "by hand"
METRICS = ("access_us", "accessible_us", "get_us", "create_us", "update_us")
AGENTS, SHARES, OWNERS, USERS = 10_000, 1_000, 1_000, 50
PAGE = 100
_MIN_CALLS = 20

Call = Callable[[str, str], Any]
"""A call about an agent and a user."""
_COLUMNS = """id, key, display_name, owner_id, agent_type, status, is_default, description, provider, model, system,
    frontmatter, context_window, max_tool_iterations, budget_monthly_cents, workspace, restrict_to_workspace, tool_ids,
    tools_config, sandbox_config, subagents_config, memory_config, compaction_config, context_pruning, other_config, tags,
    metadata, version, created_at, updated_at"""
_LIVE = "tenant_id = 'bench' AND deleted_at IS NULL"
_GET = f"SELECT {_COLUMNS} FROM agents WHERE {_LIVE} AND id = ?"
_ACCESS = """SELECT owner_id, is_default, role FROM agents LEFT JOIN agent_shares AS s
    ON s.tenant_id = 'bench' AND s.agent_id = agents.id AND s.user_id = ?
    WHERE agents.tenant_id = 'bench' AND deleted_at IS NULL AND id = ?"""
_ACCESSIBLE = f"""SELECT {_COLUMNS} FROM agents WHERE {_LIVE} AND (owner_id = ? OR is_default OR id IN (
    SELECT agent_id FROM agent_shares WHERE tenant_id = 'bench' AND user_id = ?)) ORDER BY id LIMIT {PAGE + 1}"""
_CREATE = f"""INSERT INTO agents (tenant_id, id, key, owner_id, created_at, updated_at) VALUES ('bench', ?, ?, 'user 1', ?, ?)
    RETURNING {_COLUMNS}"""
_UPDATE = f"""UPDATE agents SET description = ?, version = version + 1, updated_at = ? WHERE {_LIVE} AND id = ?
    RETURNING {_COLUMNS}"""
_TENANT = "INSERT INTO tenants (id, created_at, updated_at) VALUES ('bench', ?, ?) ON CONFLICT (id) DO NOTHING"
_LOG = """INSERT INTO activity (tenant_id, id, action, subject_kind, subject_id, details, created_at)
    VALUES ('bench', ?, ?, 'agent', ?, ?, ?)"""
_NUMBERS = {
    "sqlite": "(WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < {}) SELECT n FROM g)",
    "postgres": "(SELECT * FROM generate_series(1, {}) AS n)",
}
_FILL = """INSERT INTO agents (tenant_id, id, key, owner_id, is_default, created_at, updated_at)
    SELECT 'bench', 'agent ' || n, 'key ' || n, 'user ' || n % {owners}, n = 1, {now}, {now} FROM {numbers} AS g"""
_FILL_SHARES = """INSERT INTO agent_shares (tenant_id, agent_id, user_id, role, granted_by, created_at, updated_at)
    SELECT 'bench', 'agent ' || n, 'user ' || n % {users}, 'user', '', {now}, {now} FROM {numbers} AS g"""


def cases() -> list[Case]:
    """Return both contenders on both engines."""
    return [
        Case(group, contender, engine="postgres" if group == "agents-postgres" else "sqlite")
        for group in GROUPS
        for contender in (OURS, HAND)
    ]


def run(job: Job) -> Result:
    """Return the median time of each call."""
    with _holdfast(job) as ours, _by_hand(job) as by_hand:
        calls = ours if job.contender == OURS else by_hand
        return {metric: _time(calls[metric], job.seconds / len(METRICS)) for metric in METRICS}


def _time(call: Call, seconds: float) -> float:
    which, end = random.Random(SEED), perf_counter() + seconds
    took: list[float] = []
    while perf_counter() < end or len(took) < _MIN_CALLS:
        agent, user = f"agent {which.randrange(AGENTS) + 1}", f"user {which.randrange(USERS)}"
        before = perf_counter()
        call(agent, user)
        took.append(perf_counter() - before)
    return middle_us(took)


def _place(job: Job) -> str:
    return job.place if job.group == "agents-postgres" else str(Path(job.place) / "agents.db")


@contextmanager
def _holdfast(job: Job) -> Iterator[dict[str, Call]]:
    from holdfast import AgentChange, Holdfast, NewAgent

    with Holdfast(_place(job), auto_migrate=True) as hf:
        hf.tenants.create("bench")
        agents = hf.tenant("bench").agents
        yield {
            "access_us": agents.access,
            "accessible_us": lambda agent, user: agents.list_accessible(user, limit=PAGE),
            "get_us": lambda agent, user: agents.get(agent),
            "create_us": lambda agent, user: agents.create(NewAgent(str(uuid.uuid4()), owner="user 1")),
            "update_us": lambda agent, user: agents.update(agent, change=AgentChange(description=str(time_ns()))),
        }


@contextmanager
def _by_hand(job: Job) -> Iterator[dict[str, Call]]:
    on_postgres = job.group == "agents-postgres"
    execute, now = _postgres(_place(job)) if on_postgres else _sqlite(_place(job))
    engine, fill_time = ("postgres", "now()") if on_postgres else ("sqlite", "0")
    for statement, rows in ((_FILL, AGENTS), (_FILL_SHARES, SHARES)):
        numbers = _NUMBERS[engine].format(rows)
        execute(statement.format(numbers=numbers, now=fill_time, owners=OWNERS, users=USERS), ())
    execute("ANALYZE" if on_postgres else "PRAGMA optimize", ())
    begin = "BEGIN" if on_postgres else "BEGIN IMMEDIATE"
    lock = f"{_GET} FOR UPDATE" if on_postgres else _GET

    def log(action: str, agent: str, details: str) -> None:
        execute(_LOG, (str(uuid.uuid4()), action, agent, details, now()))

    def create(agent: str, user: str) -> Any:
        id = str(uuid.uuid4())
        execute(begin, ())
        execute(_TENANT, (now(), now()))
        rows = execute(_CREATE, (id, id, now(), now()))
        log("agent.created", id, "{}")
        execute("COMMIT", ())
        return _agents(rows)

    def update(agent: str, user: str) -> Any:
        execute(begin, ())
        _agents(execute(lock, (agent,)))
        rows = execute(_UPDATE, (str(time_ns()), now(), agent))
        log("agent.changed", agent, '{"fields": ["description"]}')
        execute("COMMIT", ())
        return _agents(rows)

    yield {
        "access_us": lambda agent, user: execute(_ACCESS, (user, agent)),
        "accessible_us": lambda agent, user: _agents(execute(_ACCESSIBLE, (user, user))),
        "get_us": lambda agent, user: _agents(execute(_GET, (agent,))),
        "create_us": create,
        "update_us": update,
    }


def _sqlite(path: str) -> tuple[Callable[..., list[Any]], Callable[[], Any]]:
    import apsw

    connection = apsw.Connection(path)
    for pragma in ("busy_timeout = 30000", "foreign_keys = ON", "cache_size = -65536", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return lambda sql, values: connection.execute(sql, values).fetchall(), lambda: time_ns() // 1_000


def _postgres(url: str) -> tuple[Callable[..., list[Any]], Callable[[], Any]]:
    import psycopg

    connection = psycopg.connect(url, autocommit=True)

    def execute(sql: str, values: tuple[Any, ...]) -> list[Any]:
        cursor = connection.execute(sql.replace("?", "%s").encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    return execute, lambda: datetime.now(UTC)


def _agents(rows: list[Any]) -> list[Any]:
    """Return rows as objects, with decoded JSON and times."""
    from holdfast.types import Agent

    return [Agent(*map(_decode, Agent.__struct_fields__, row)) for row in rows]


def _decode(field: str, value: Any) -> Any:
    if isinstance(value, str) and value[:1] in "{[" and field in _JSON:
        return msgspec.json.decode(value)
    if isinstance(value, int) and field in ("created_at", "updated_at"):
        return datetime.fromtimestamp(value / 1_000_000, UTC)
    return bool(value) if field in ("is_default", "restrict_to_workspace") else value


_JSON = ("tool_ids", "tags", "metadata")
