"""Tenant A cannot read, change, count or infer anything of tenant B.

The same calls are made with A's handle in two worlds: in one, B has data in every store; in the other, B has never existed. The
arguments are B's ids, keys, rows and cursors. If any result or error message differs, A has learned something about B. If any row
of B has changed afterwards, A has modified it. Methods and arguments are found by reflection, so that new stores are covered
without being listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from random import Random
from typing import Any
from unittest import mock

import psycopg
import pytest
from msgspec import Struct

from holdfast import FixedClock, Holdfast, Limits, NewAgent, NewMessage, PoolOptions, TenantHandle
from holdfast.core.blocking import Blocking, blocking
from holdfast.core.queries import Query
from holdfast.core.store import TenantStore, reads
from holdfast.engines.dialect import Dialect
from holdfast.engines.protocol import Connection
from holdfast.errors import HoldfastError
from holdfast.ids import parse as parse_id
from holdfast.stores.conversation import (
    agent_messages,
    branches,
    log_reading,
    message_changes,
    message_log,
    sessions,
)
from tests.contract.cases.grant_samples import Table, grant_stores
from tests.contract.cases.record_samples import record_stores, referenced_store
from tests.contract.cases.world import uuid_of
from tests.differential.sides import StepIds, shape
from tests.isolation.arguments import Pool, arguments, methods, stores
from tests.workloads.workloads import ABOVE_TENANTS, KEY, MAKERS, Call, OnEngine, World, possible

MINE, THEIRS = "acme", "zenith"
CALLS = 20
"""Calls of each method per phase, each with its own arguments; there are two phases."""
CALLS_OF_FEW = 5
"""The same for tests of a few stores, and on PostgreSQL, which runs the same statements."""

REMOVING = frozenset(
    (
        "clear",
        "collect",
        "delete",
        "deny",
        "detach",
        "discard",
        "prune",
        "purge",
        "redo",
        "release",
        "revoke",
        "rollback",
    )
)
"""The first words of methods that remove data."""

Rows = dict[str, list[tuple[Any, ...]]]
Planned = tuple[str, str, list[Any], dict[str, Any]]
"""The path of a store, the name of a method, and its arguments."""


class Database:
    """One database, with access to all rows of a tenant."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock, self.ids = FixedClock(), StepIds()
        pool = PoolOptions(min_connections=1, max_connections=2)
        limits = Limits(pack_from_bytes=4_000)
        self.holdfast = Holdfast(
            url, clock=self.clock, ids=self.ids, pool=pool, limits=limits, packs="memory:///", encryption_key=KEY
        )

    @property
    def mine(self) -> TenantHandle:
        return self.holdfast.tenant(MINE)

    def rows_of(self, tenant: str) -> Rows:
        """Return all rows of a tenant, by table."""
        engine = self.holdfast._engine
        tables = self.fetch(
            "SELECT table_name FROM information_schema.columns WHERE column_name = 'tenant_id' ORDER BY 1"
            if engine.dialect is Dialect.POSTGRES
            else "SELECT m.name FROM sqlite_schema AS m, pragma_table_info(m.name) AS c WHERE c.name = 'tenant_id' ORDER BY 1"
        )
        of_all = self.fetch_many([f"SELECT * FROM {table} WHERE tenant_id = '{tenant}'" for (table,) in tables])
        actual = {table: rows for (table,), rows in zip(tables, of_all, strict=True)}
        # SQLite's queue of removals from the search index is empty, because every call flushes it before it returns.
        if not actual.get("message_index_removed"):
            actual.pop("message_index_removed", None)
        actual["tenants"] = self.fetch(f"SELECT * FROM tenants WHERE id = '{tenant}'")
        actual["api_keys"] = self.fetch(f"SELECT * FROM api_keys WHERE tenant = '{tenant}'")
        actual["run_queue"] = self.fetch(f"SELECT * FROM run_queue WHERE tenant = '{tenant}'")
        return {table: sorted(rows, key=repr) for table, rows in actual.items()}

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return self.fetch_many([sql])[0]

    def fetch_many(self, statements: Sequence[str]) -> list[list[tuple[Any, ...]]]:
        if self.holdfast._engine.dialect is Dialect.POSTGRES:
            with psycopg.connect(self.url) as connection:
                return [connection.execute(sql.encode()).fetchall() for sql in statements]
        connection_of_the_writer: Any = self.holdfast._engine._connection  # type: ignore[attr-defined]
        return [[*connection_of_the_writer.execute(sql)] for sql in statements]


@pytest.fixture(params=["sqlite", "postgres"])
def open_database(request: pytest.FixtureRequest) -> Iterator[Callable[[], Database]]:
    """Return a function that opens an empty database."""
    request.node.user_properties.append(("leg", f"{request.param}, isolation of tenants"))
    made: list[Database] = []

    def open_one() -> Database:
        if request.param == "sqlite":
            made.append(Database(":memory:"))
        else:
            url = request.getfixturevalue("postgres_url")
            with psycopg.connect(url, autocommit=True) as connection:
                tables = connection.execute(
                    "SELECT string_agg(DISTINCT table_name, ', ') FROM information_schema.columns"
                    " WHERE column_name = 'tenant_id' AND table_schema = 'public'"
                ).fetchone()
                assert tables is not None
                connection.execute(f"TRUNCATE tenants, api_keys, run_queue, {tables[0]} CASCADE".encode())
            made.append(Database(url))
        return made[-1]

    yield open_one
    for database in made:
        database.holdfast.close()


def populate(database: Database, tenant: str, seed: int, only: Collection[str] = ()) -> None:
    """Write data to all stores, or to some, with every write method."""
    world = World(OnEngine(database.holdfast._engine), Random(seed))
    world.tenant_name = tenant
    work = sorted(method for method in MAKERS if not method.startswith(ABOVE_TENANTS) and _is_chosen(method, only))
    for number in range(8 * len(work)):
        method = work[number % len(work)]
        if _removes(method) and number // len(work) not in (1, 4):
            continue  # create more than is removed, and remove nothing at the end
        method, made = possible(world, method)
        Call(seed * 1_000 + number, method, tenant, *made).make(world.handle)
    for session in world.tenant.sessions.list()[-3:]:
        world.tenant.sessions.delete(session.id)
    database.holdfast.tenant(tenant).objects.put([Random(seed).randbytes(5_000)], holder="a pack")
    if not only:
        database.holdfast.api_keys.create(f"hf_{seed:048x}", name="a key", tenant=tenant)
        _rewind_a_step(database.holdfast.tenant(tenant))


def _rewind_a_step(tenant: TenantHandle) -> None:
    """Create a run with an archived step, which random calls rarely do."""
    run = tenant.runs.start(tenant.sessions.create().id)
    lease = tenant.leases.claim("worker", run_id=run.id)
    assert lease is not None
    tenant.runs.step(run.id, epoch=lease.epoch, iteration=1, state={"n": 1})
    begun = tenant.rewinds.begin(run.id, to_step=0, path="/tree", snapshot="then", epoch=lease.epoch)
    tenant.rewinds.finish(begun.id)


def _removes(method: str) -> bool:
    """Return whether a method removes data."""
    verb = method.rpartition(".")[2].partition("_")[0]
    return verb in REMOVING


def rows_and_cursors(database: Database) -> tuple[list[Struct], list[str]]:
    """Return rows and cursors from B's own handle, which A may have obtained somehow."""
    theirs = database.holdfast.tenant(THEIRS)
    sessions = [*theirs.sessions.list(), *theirs.sessions.list(deleted=True)]
    cursors = [theirs.sessions.list(limit=1).next]
    messages: list[Struct] = []
    for session in theirs.sessions.list():
        messages += theirs.messages.list(session.id)
        cursors += [theirs.messages.list(session.id, limit=1, newest_first=how).next for how in (False, True)]
        messages += theirs.branches.list(session.id)
        cursors.append(theirs.branches.list(session.id, limit=1).next)
        messages += theirs.compactions.history(session.id)
        cursors += [theirs.compactions.archived(session_id=session.id, limit=1).next]
        cursors += [theirs.compactions.history(session.id, limit=1).next]
    groups = theirs.pending_messages.list_groups()
    pending = [message for group in groups for message in theirs.pending_messages.list_by_key(*group.name)]
    channels: list[Struct] = [*groups, *pending, *theirs.contacts.list(), *theirs.feedback.list()]
    cursors += [theirs.pending_messages.list_groups(limit=1).next, theirs.contacts.list(limit=1).next]
    cursors += [theirs.feedback.list(limit=1).next]
    channels += [*theirs.activity.list(), *theirs.snapshots.list()]
    channels += [*theirs.pairing.pending(), *theirs.pairing.paired()]
    cursors += [theirs.pairing.pending(limit=1).next, theirs.pairing.paired(limit=1).next]
    cursors += [theirs.secrets.list(limit=1).next]
    records = [getattr(theirs, name) for name in record_stores()]
    channels += [row for store in records for row in store.list()]
    cursors += [store.list(limit=1).next for store in records]
    for name, kind in grant_stores().items():
        channels += [row for table in kind.grants for row in grants_of(theirs, name, table)]
    channels += [*theirs.mcp_requests.list(), *theirs.mcp_servers.tools()]
    cursors += [theirs.mcp_requests.list(limit=1).next, theirs.mcp_servers.tools(limit=1).next]
    cursors += [theirs.activity.list(limit=1).next, theirs.snapshots.list(limit=1).next]
    driven, more = rows_of_runs(theirs)
    return [*sessions, *messages, *channels, *driven], [cursor for cursor in [*cursors, *more] if cursor]


def grants_of(theirs: TenantHandle, name: str, table: Table) -> list[Struct]:
    """Return the grants of all records to which a grant store refers."""
    store, kind = referenced_store(table.fields[table.resource])
    resources = [getattr(row, kind.declared.key[0].name) for row in getattr(theirs, store).list()]
    grants = getattr(theirs, name)
    return [row for key in resources for row in grants.list(resource=key, kind=table.principal)]


def rows_of_runs(theirs: TenantHandle) -> tuple[list[Struct], list[str | None]]:
    runs, agents = theirs.runs.list(), theirs.agents.list()
    calls = [call for run in runs for call in theirs.tool_calls.list(run.id)]
    steps = [step for run in runs for step in theirs.steps.list(run.id)]
    blocks = [block for agent in agents for block in theirs.blocks.list(agent.id)]
    blocks += [file for agent in agents for file in theirs.context_files.list(agent.id)]
    cursors = [theirs.runs.list(limit=1).next, theirs.agents.list(limit=1).next]
    cursors += [theirs.profiles.users(agent.id, limit=1).next for agent in agents]
    cursors += [
        theirs.agent_messages.list(name, limit=1).next
        for name in {row.agent for row in theirs.sessions.list() if row.agent}
    ]
    cursors += [theirs.steps.list(run.id, limit=1).next for run in runs]
    return [*runs, *agents, *calls, *steps, *blocks], cursors


def attackers_pool(database: Database, seed: int) -> Pool:
    rows, cursors = rows_and_cursors(database)
    texts = sorted({str(value) for table in database.rows_of(THEIRS).values() for row in table for value in row})
    texts += [str(value) for row in database.rows_of(MINE)["messages"] for value in row[:4]]
    texts += sorted({bytes(row[1]).hex() for row in database.rows_of(THEIRS)["objects"]})
    short = [text for text in texts if len(text) < 100]
    return Pool(texts=[*short, uuid_of("unknown")], rows=rows, cursors=cursors, random=Random(seed))


def _is_chosen(path: str, only: Collection[str]) -> bool:
    return not only or path.partition(".")[0] in only


def planned_calls(database: Database, seed: int, only: Collection[str], calls: int) -> list[Planned]:
    """Return shuffled calls of every public method: first with arbitrary arguments, then with ids that both tenants have."""
    pool = attackers_pool(database, seed)
    reached = [(path, store) for path, store in stores(database.mine) if _is_chosen(path, only)]
    actual = [(path, name, method) for path, store in reached for name, method in methods(store)]
    actual *= calls
    strange: list[Planned] = [(path, name, *arguments(method, pool)) for path, name, method in actual]
    strange += calls_with_each_session(database, reached)
    pool.random.shuffle(strange)
    shadows, pool.ids = calls_that_create_equal_ids(database)
    shared: list[Planned] = [(path, name, *arguments(method, pool)) for path, name, method in actual]
    pool.random.shuffle(shared)
    shared.sort(key=lambda call: call[1] == "purge")  # at the end, because no call finds data afterwards
    return [*strange, *shadows, *shared]


def calls_with_each_session(database: Database, reached: Sequence[tuple[str, Blocking[Any]]]) -> list[Planned]:
    """Return calls of every method that requires only a session id, for each session of B, including deleted ones."""
    sessions = [str(row[1]) for row in database.rows_of(THEIRS)["sessions"]]
    needs = [
        (path, name)
        for path, store in reached
        for name, method in methods(store)
        if [
            parameter.name
            for parameter in signature(method).parameters.values()
            if parameter.default is parameter.empty
        ]
        == ["session_id"]
    ]
    return [(path, name, [session], {}) for path, name in needs for session in sessions]


def calls_that_create_equal_ids(database: Database) -> tuple[list[Planned], list[str]]:
    """Return calls that create rows of A with B's ids, so that they differ only in the tenant, and those ids."""
    rows = database.rows_of(THEIRS)
    sessions = [str(row[1]) for row in rows["sessions"]]
    messages = [(str(row[1]), str(row[3])) for row in rows["messages"]]
    plan: list[Planned] = [("sessions", "create", [], {"id": id, "key": f"shadow {id}"}) for id in sessions]
    for session, id in messages:
        plan.append(("messages", "append", [session], {"role": "user", "content": "shadow", "id": id}))
    runs = [(str(row[1]), str(row[2])) for row in rows["runs"]]
    plan += [("runs", "start", [session], {"id": id, "agent": "shadow"}) for id, session in runs]
    plan += [("leases", "claim", ["shadow"], {"run_id": id}) for id, _ in runs[::2]]
    plan += [("agents", "create", [NewAgent(row[1], display_name="Shadow")], {}) for row in rows["agents"]]
    for row in rows["sessions"]:
        plan += calls_for_a_shared_session(str(row[1]), key=row[2], user=row[3])
    return plan, [*sessions, *(id for _, id in messages), *(id for id, _ in runs)]


def calls_for_a_shared_session(session: str, *, key: str, user: str) -> list[Planned]:
    """Return calls for a session that both tenants have, in an order that random calls rarely produce: find it by key, list it,
    append to it, delete it, restore it, and switch branches."""
    new = [NewMessage(role="user", content="shadow") for _ in range(2)]
    return [
        ("sessions", "find", [key], {"user": user}),
        ("messages", "list", [session], {}),
        ("messages", "list", [session], {"newest_first": True}),
        ("messages", "append_many", [session, new], {}),
        *[("branches", "switch", [session, number], {}) for number in (1, 2)],
        ("sessions", "delete", [session], {}),
        ("sessions", "restore", [session], {}),
        ("branches", "fork", [session], {"at": 1}),
        ("branches", "switch", [session, 1], {}),
        *[("messages", name, [session], {}) for name in ("list", "count")],
    ]


def answers(database: Database, plan: list[Planned]) -> list[str]:
    """Make the calls as A and return the exact results and errors."""
    reachable = dict(stores(database.mine))
    results: list[str] = []
    for step, (path, name, args, kwargs) in enumerate(plan):
        database.ids.begin(10_000 + step)
        database.clock.advance(0.5)
        try:
            results.append(repr(shape(getattr(reachable[path], name)(*args, **kwargs))))
        except HoldfastError as error:
            results.append(f"{type(error).__name__}: {error}")
    return results


def results_in_two_worlds(
    open_database: Callable[[], Database],
    seed: int,
    defect: AbstractContextManager[Any] | None = None,
    only: Collection[str] = (),
    calls: int = CALLS_OF_FEW,
) -> tuple[list[str], list[str], Rows, Rows, list[Planned]]:
    """Return A's results with B and without B, B's rows before and after, and the calls."""
    with_them = open_database()
    populate(with_them, MINE, 1, only)
    populate(with_them, THEIRS, 2, only)
    plan = planned_calls(with_them, seed, only, calls)
    before = with_them.rows_of(THEIRS)
    with defect or nullcontext():
        results_with = answers(with_them, plan)
    after = with_them.rows_of(THEIRS)
    without = open_database()
    populate(without, MINE, 1, only)
    with defect or nullcontext():
        return results_with, answers(without, plan), before, after, plan


@pytest.mark.parametrize(
    ("open_database", "seed", "calls"),
    [("sqlite", 1, CALLS), ("postgres", 3, CALLS_OF_FEW)],
    indirect=["open_database"],
)
def test_a_tenant_can_neither_observe_nor_change_another(
    open_database: Callable[[], Database], seed: int, calls: int
) -> None:
    results, results_without, before, after, plan = results_in_two_worlds(open_database, seed, calls=calls)
    for call, one, other in zip(plan, results, results_without, strict=True):
        assert one == other, f"{call}: the result reveals whether {THEIRS} exists"
    assert after == before
    assert [table for table, rows in before.items() if not rows] == [], f"{THEIRS} has no rows in these tables"
    if calls == CALLS:
        _check_coverage(plan, results)


def _check_coverage(plan: Any, results: list[str]) -> None:
    """Check that some calls of each method were executed, not only rejected by validation."""
    outcomes: Counter[tuple[str, bool]] = Counter()
    for (path, name, _, _), output in zip(plan, results, strict=True):
        outcomes[
            f"{path}.{name}", output.startswith(("InvalidInput", "InvalidFilter", "InvalidText", "LimitExceeded"))
        ] += 1
    for method in {method for method, _ in outcomes}:
        assert outcomes[method, False], f"all {outcomes[method, True]} calls of {method} were rejected by validation"


def test_reflection_finds_every_store_and_method(open_database: Callable[[], Database]) -> None:
    actual = {f"{path}.{name}" for path, store in stores(open_database().mine) for name, _ in methods(store)}
    assert {"sessions.create", "sessions.purge", "messages.append", "messages.last"} <= actual
    assert {method for method in MAKERS if not method.startswith(ABOVE_TENANTS)} <= actual


class AsyncLeaky(TenantStore):
    """A new store that does not filter by tenant."""

    @reads
    async def seen(self, connection: Connection, session_id: str) -> int:
        """Return whether such a session exists, in any tenant."""
        rows = await connection.fetch(f"SELECT 1 FROM sessions WHERE id = '{parse_id(session_id)}'", ())
        return len(rows)


class Leaky(Blocking[AsyncLeaky]):
    """The blocking form of ``AsyncLeaky``."""

    seen = blocking(AsyncLeaky.seen)


def test_a_leak_in_a_new_store_is_detected_without_listing_the_store(
    open_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaky(handle: TenantHandle) -> Leaky:
        return Leaky(AsyncLeaky(handle._engine, handle._scope))

    monkeypatch.setattr(TenantHandle, "leaky", property(leaky), raising=False)
    results, results_without, _, _, plan = results_in_two_worlds(
        open_database, 1, only=("sessions", "messages", "leaky")
    )
    assert {path for (path, *_), one, other in zip(plan, results, results_without, strict=True) if one != other} == {
        "leaky"
    }


LEAKY_QUERIES = [
    *[
        ("sqlite", sessions.queries, name)
        for name in ("get", "find", "list", "count", "update", "delete", "restore", "purge")
    ],
    *[("sqlite", message_changes.queries, name) for name in ("get", "update", "delete")],
    *[("sqlite", log_reading.queries, name) for name in ("list", "list_newest", "shown", "ranges", "count")],
    *[("sqlite", branches.queries, name) for name in ("list", "find", "head")],
    ("postgres", log_reading.queries, "ranges"),
    *[(engine, agent_messages.queries, "list") for engine in ("sqlite", "postgres")],
    ("sqlite", message_log.queries, "advance"),
    *[("postgres", message_log.queries, name) for name in ("append_one", "append")],
]


@pytest.mark.parametrize(
    ("open_database", "queries", "name"),
    [
        pytest.param(engine, queries, name, id=f"{engine} {queries._source[1].removesuffix('.sql')} {name}")
        for engine, queries, name in LEAKY_QUERIES
    ],
    indirect=["open_database"],
)
def test_a_query_without_the_tenant_condition_is_detected(
    queries: Any, name: str, open_database: Callable[[], Database]
) -> None:
    query = queries.by_name[name]
    leaky_query = Query(name, {dialect: _without_tenant(text) for dialect, text in query.texts.items()})
    assert leaky_query.texts != query.texts
    defect = mock.patch.multiple(query, **vars(leaky_query))
    results, results_without, before, after, _ = results_in_two_worlds(
        open_database, 1, defect, only=("sessions", "messages", "branches", "agent_messages")
    )
    assert results != results_without or before != after, "the leak was not detected"


def _without_tenant(text: str) -> str:
    for condition in ("m.tenant_id = :tenant_id AND ", "s.tenant_id = :tenant_id AND ", "tenant_id = :tenant_id AND "):
        text = text.replace(condition, "")
    return text
