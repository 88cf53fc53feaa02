"""Deleting tenants: in small transactions, continued after a kill, invisible from the first one on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import AsyncHoldfast, Holdfast, NewAgent, NewMessage, PoolOptions
from holdfast.core.scope import Scope
from holdfast.drivers.psycopg import PsycopgConnection
from holdfast.errors import Conflict, HoldfastError, NotFound, Unavailable
from holdfast.stores.lifecycle import tenants
from holdfast.sync_runner import step
from tests.errors import raises

POOL = PoolOptions(min_connections=1, max_connections=4)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "a.db") if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "PURGED_ROWS", 6)
    monkeypatch.setattr(tenants, "HIDDEN_ROWS", 2)


@pytest.fixture
def fetch(url: str) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    """Return rows, read on a separate connection."""
    if not url.startswith("postgresql:"):
        with Holdfast(url):
            pass
        sqlite = apsw.Connection(url)
        yield lambda sql: [*sqlite.execute(sql)]
        sqlite.close()
        return
    with psycopg.connect(url, autocommit=True) as postgres:
        yield lambda sql: [*postgres.execute(sql.encode())]


class Dying:
    """An engine that commits so many transactions and then is no more."""

    def __init__(self, engine: Any, transactions: int) -> None:
        self._engine, self.left, self.done = engine, transactions, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def write(self, call: Any) -> Any:
        if not self.left:
            raise Unavailable("as planned")
        self.left, self.done = self.left - 1, self.done + 1
        return await self._engine.write(call)


def fill(hf: Holdfast, tenant: str) -> str:
    acme = hf.tenant(tenant)
    for _ in range(3):
        session = acme.sessions.create().id
        acme.messages.append_many(session, [NewMessage(role="user", content=f"word {n}") for n in range(5)])
        acme.runs.start(agent="helper", session_id=session)
    acme.messages.search("word")
    acme.agents.create(NewAgent("helper"))
    acme.checkpoints.put("thread", id="1", state=b"state")
    acme.activity.record("something", actor="ada")
    return session


def left_of(fetch: Callable[[str], list[tuple[Any, ...]]], url: str, tenant: str) -> dict[str, int]:
    """Return the number of a tenant's rows in each table that has some."""
    names = (
        "SELECT table_name FROM information_schema.columns WHERE column_name = 'tenant_id' AND table_schema = 'public'"
        if url.startswith("postgresql:")
        else "SELECT m.name FROM sqlite_schema AS m, pragma_table_info(m.name) AS c WHERE c.name = 'tenant_id'"
    )
    counts = {
        name: fetch(f"SELECT COUNT(*) FROM {name} WHERE tenant_id = '{tenant}'")[0][0]  # type: ignore[str-bytes-safe]
        for (name,) in fetch(names)
    }
    counts["tenants"] = fetch(f"SELECT COUNT(*) FROM tenants WHERE id = '{tenant}'")[0][0]
    counts["run_queue"] = fetch(f"SELECT COUNT(*) FROM run_queue WHERE tenant = '{tenant}'")[0][0]
    return {name: count for name, count in counts.items() if count}


def refused(acme: Any, session: str) -> None:
    """Check that every call about a tenant that is being deleted is refused."""
    reads: list[Callable[[], Any]] = [
        acme.sessions.list,
        lambda: acme.sessions.get(session),
        lambda: acme.messages.list(session),
        lambda: acme.messages.search("word"),
        lambda: acme.agents.get("helper"),
    ]
    for read in reads:
        with raises(NotFound, noun="tenant", key="acme"):
            read()
    writes: list[Callable[[], Any]] = [
        acme.sessions.create,
        lambda: acme.messages.append(session, role="user", content="late"),
        lambda: acme.agents.create(NewAgent("other")),
        lambda: acme.activity.record("late", actor="ada"),
    ]
    for write in writes:
        with raises(Conflict, reason="being_deleted"):
            write()


@pytest.mark.usefixtures("small_steps")
def test_a_deletion_interrupted_after_any_transaction_is_continued(
    url: str, fetch: Callable[[str], list[tuple[Any, ...]]]
) -> None:
    with Holdfast(url, pool=POOL) as hf:
        fill(hf, "zenith")
        theirs = left_of(fetch, url, "zenith")
    transactions, finished = 1, False
    while not finished:
        with Holdfast(url, pool=POOL) as hf:
            acme = hf.tenant("acme")
            session = fill(hf, "acme")
            dying: Any = Dying(hf._engine, transactions)
            store = tenants.AsyncTenants(dying, hf._setting)
            try:
                tenants.Tenants(store).delete("acme", cascade=True)
                finished = True
            except Unavailable:
                refused(acme, session)
                with raises(Conflict, reason="being_deleted"):
                    hf.tenants.create("acme")
        if not finished:
            with Holdfast(url, pool=POOL) as other:
                refused(other.tenant("acme"), session)
                with pytest.raises(NotFound):
                    other.tenants.get("acme")
                assert [tenant.id for tenant in other.tenants.list()] == ["zenith"]
                assert fetch("SELECT COUNT(*) FROM run_queue WHERE tenant = 'acme'") == [(0,)], "no worker looks there"
                if transactions % 2:
                    other.tenants.delete("acme", cascade=True)
                else:
                    while not other.tenants.maintain().is_done:
                        pass
        assert left_of(fetch, url, "acme") == {}
        assert left_of(fetch, url, "zenith") == theirs
        transactions += 1
    assert transactions > 8


def test_a_deletion_removes_a_bounded_number_of_rows_in_each_transaction(
    url: str, fetch: Callable[[str], list[tuple[Any, ...]]], small_steps: None
) -> None:
    with Holdfast(url, pool=POOL) as hf:
        session = fill(hf, "acme")
        hf.tenant("acme").messages.append_many(session, [NewMessage(role="user", content="x") for _ in range(40)])
        counting: Any = Dying(hf._engine, 1_000)
        messages = fetch("SELECT COUNT(*) FROM messages")[0][0]
        write = counting.write

        async def watched(call: Any) -> Any:
            nonlocal messages
            answer = await write(call)
            now = fetch("SELECT COUNT(*) FROM messages")[0][0]
            assert messages - now <= tenants.PURGED_ROWS
            messages = now
            return answer

        counting.write = watched
        tenants.Tenants(tenants.AsyncTenants(counting, hf._setting)).delete("acme", cascade=True)
        assert messages == 0
        assert counting.done > 55 / tenants.PURGED_ROWS


def test_a_deletion_on_sqlite_works_outside_of_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    for name in ("_remove_some", "_remove_rest"):
        real = getattr(tenants, name)

        def spy(*args: Any, real: Any = real) -> Any:
            threads.add(threading.get_ident())
            return real(*args)

        monkeypatch.setattr(tenants, name, spy)

    async def main() -> None:
        async with AsyncHoldfast(str(tmp_path / "a.db")) as hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            await acme.messages.append(session.id, role="user", content="x")
            await hf.tenants.delete("acme", cascade=True)
            assert await acme.sessions.list() == []

    asyncio.run(main())
    assert threads
    assert threading.get_ident() not in threads


def test_open_handles_can_use_the_name_of_a_deleted_tenant_again(url: str) -> None:
    with Holdfast(url, pool=POOL) as hf, Holdfast(url, pool=POOL) as other:
        here, existing = hf.tenant("acme"), other.tenant("acme")
        session = fill(hf, "acme")
        assert existing.sessions.get(session).id == session
        hf.tenants.delete("acme", cascade=True)
        for handle in (here, existing):
            with pytest.raises(NotFound):
                handle.sessions.get(session)
            handle.sessions.create(key="new")
            assert [item.message_count for item in handle.sessions.list()] == [0]
            hf.tenants.delete("acme", cascade=True)


def test_handles_of_other_processes_see_nothing_once_the_sessions_are_hidden(url: str, small_steps: None) -> None:
    with Holdfast(url, pool=POOL) as hf, Holdfast(url, pool=POOL) as other:
        existing = other.tenant("acme")
        session = fill(hf, "acme")
        assert len(existing.messages.list(session)) == 5
        dying: Any = Dying(hf._engine, 3)  # the mark, and two sessions hidden at a time
        with pytest.raises(Unavailable):
            tenants.Tenants(tenants.AsyncTenants(dying, hf._setting)).delete("acme", cascade=True)
        assert existing.sessions.list() == []
        assert existing.messages.search("word") == []
        reads: list[Callable[[], Any]] = [
            lambda: existing.messages.list(session),
            lambda: existing.messages.append(session, role="user", content="late"),
        ]
        for read in reads:
            with pytest.raises(HoldfastError):
                read()


def test_messages_committed_during_the_wait_are_deleted_too(postgres_url: str) -> None:
    """The last transaction deletes states before flows, and waits at the flow for a writer that has added a state."""
    with (
        Holdfast(postgres_url, pool=POOL) as hf,
        psycopg.connect(postgres_url) as writer,
        psycopg.connect(postgres_url) as deleter,
        psycopg.connect(postgres_url, autocommit=True) as watcher,
    ):
        hf.tenant("acme").flows.save("f", method="begin", state={"n": 1})
        watcher.execute("UPDATE tenants SET deleted_at = now() WHERE id = 'acme'")
        watcher.execute("DELETE FROM crewai_flow_state")
        writer.execute("UPDATE crewai_flow SET seq = seq + 1")
        writer.execute(
            "INSERT INTO crewai_flow_state (tenant_id, flow_uuid, method_name, seq, state_data, created_at, updated_at) "
            "VALUES ('acme', 'f', 'next', 2, '{}', now(), now())"
        )
        scope = Scope("acme", hf._setting)
        with ThreadPoolExecutor(1) as thread:
            completed = thread.submit(lambda: step(tenants._remove_rest(PsycopgConnection(deleter), scope)))
            blocked = "SELECT 1 FROM pg_locks WHERE NOT granted AND pid = %s"
            while not watcher.execute(blocked, (deleter.info.backend_pid,)).fetchall():
                assert not completed.done(), "it did not wait"
            writer.commit()
            completed.result()
        deleter.commit()
        for table in ("crewai_flow", "crewai_flow_state", "tenants"):
            assert watcher.execute(f"SELECT COUNT(*) FROM {table}".encode()).fetchall() == [(0,)], table
