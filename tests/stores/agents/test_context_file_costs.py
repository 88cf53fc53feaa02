"""What context files cost: reading them does not depend on other users, and transactions of ``propagate`` are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, Limits, NewAgent, TenantHandle
from holdfast.core.queries import Query
from holdfast.engines.dialect import Dialect
from holdfast.stores.agents import context_files, profiles
from holdfast.stores.agents.context_files import AsyncContextFiles
from tests.engines.test_branch_costs import steps


@pytest.fixture
def holdfast() -> Iterator[Holdfast]:
    with Holdfast(":memory:", limits=Limits(batch_rows=2)) as hf:
        yield hf


def filled(hf: Holdfast, users: int) -> TenantHandle:
    """Return a tenant with an agent and so many users who have copies of its files."""
    acme = hf.tenant("acme")
    acme.agents.create(NewAgent("ada"))
    for name in ("SOUL.md", "USER.md"):
        acme.context_files.set("ada", name, "template")
    for number in range(users):
        acme.profiles.get_or_create("ada", f"u{number:03}", seed=True)
    return acme


def contents(acme: TenantHandle, users: int) -> list[str]:
    return [acme.context_files.get("ada", "SOUL.md", user=f"u{number:03}").content for number in range(users)]


def test_the_next_call_continues_after_an_interruption(holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    acme = filled(holdfast, 5)
    acme.context_files.set("ada", "SOUL.md", "new")
    original, batches = AsyncContextFiles._log, []

    async def failing(*args: Any, **details: Any) -> None:
        if len(batches) == 1:
            raise KeyboardInterrupt
        batches.append(details["copies"])
        await original(*args, **details)

    with monkeypatch.context() as patched:
        patched.setattr(AsyncContextFiles, "_log", failing)
        with pytest.raises(KeyboardInterrupt):
            acme.context_files.propagate("ada", "SOUL.md")
    assert contents(acme, 5) == ["new", "new", "template", "template", "template"]
    assert acme.activity.count(action="context_file.propagated") == 1, "logged in the transaction of the change"
    assert acme.context_files.propagate("ada", "SOUL.md") == 5
    assert contents(acme, 5) == ["new"] * 5
    entries = acme.activity.list(action="context_file.propagated")
    assert [entry.details["copies"] for entry in reversed(entries)] == [2, 2, 1]


def test_a_transaction_writes_few_large_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_files, "PROPAGATED_BYTES", 250)
    with Holdfast(":memory:") as hf:
        acme = filled(hf, 5)
        for content, sizes in (("x" * 100, [2, 2, 1]), ("y" * 1_000, [1, 1, 1, 1, 1]), ("", [5])):
            before = acme.activity.count()
            acme.context_files.set("ada", "SOUL.md", content)
            assert acme.context_files.propagate("ada", "SOUL.md") == 5
            entries = acme.activity.list()[: acme.activity.count() - before - 1]
            assert [entry.details["copies"] for entry in reversed(entries)] == sizes


def test_reading_and_writing_files_does_not_depend_on_other_users() -> None:
    with Holdfast(":memory:") as hf:
        acme = filled(hf, 4)
        calls = [
            lambda: acme.context_files.list("ada", user="u001"),
            lambda: acme.context_files.get("ada", "SOUL.md", user="u001"),
            lambda: acme.context_files.set("ada", "SOUL.md", "mine", user="u001"),
            lambda: acme.context_files.seed("ada", "u001"),
            lambda: acme.profiles.get_or_create("ada", "u001"),
            lambda: acme.profiles.users("ada", limit=3),
        ]
        before = [steps(hf, call) for call in calls]
        for number in range(4, 300):
            acme.profiles.get_or_create("ada", f"u{number:03}", seed=True)
        after = [steps(hf, call) for call in calls]
    for was, now in zip(before, after, strict=True):
        assert now <= was * 1.15, (before, after)


PLANNED: list[tuple[Query, str]] = [
    (context_files.FILES.by_name["read"], " AND agent_id = :agent_id AND user_id = :user_id"),
    (context_files.queries.copies, ""),
    (context_files.queries.overwrite, ""),
    (context_files.queries.seed, ""),
    (profiles.queries.users, ""),
    (profiles.queries.visit, ""),
]


@pytest.mark.parametrize(("query", "where"), PLANNED, ids=lambda value: getattr(value, "name", ""))
def test_planned_on_empty_tables_postgres_uses_keys(new_postgres_url: str, query: Query, where: str) -> None:
    statement = query.statement(Dialect.POSTGRES, where)
    with psycopg.connect(new_postgres_url) as raw:
        raw.execute("SET plan_cache_mode = force_generic_plan")
        raw.execute(b"PREPARE planned AS " + statement.sql.encode())
        nothing = ", ".join(["NULL"] * len(statement.names))
        rows = raw.execute(f"EXPLAIN EXECUTE planned({nothing})".encode()).fetchall()
    plan = "\n".join(row[0] for row in rows)
    assert "Seq Scan" not in plan, plan
