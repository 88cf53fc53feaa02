"""Tenant A cannot read, change, count or infer anything of tenant B.

The same calls are made with A's handle in two worlds: in one, B is there with data in every store; in the other, B has
never been. The arguments are B's own ids, keys, rows and cursors. If any answer, any error or any word of it differs, A
has learned something; if any row of B differs afterwards, A has done something. Methods and arguments are found by
reflection, so that a store added later is covered without being named.
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
from holdfast.stores.conversation import branches, log_reading, message_changes, message_log, sessions
from tests.contract.cases.record_samples import record_stores
from tests.contract.cases.world import uuid_of
from tests.differential.sides import StepIds, shape
from tests.isolation.arguments import Pool, arguments, methods, stores
from tests.workloads.workloads import ABOVE_TENANTS, KEY, MAKERS, Call, OnEngine, World, possible

MINE, THEIRS = "acme", "zenith"
CALLS = 20
"""Calls of each method, each with arguments of its own; twice as many in all."""
CALLS_OF_FEW = 5
"""The same, where some stores are enough and another try is cheap, and on PostgreSQL, which runs the same statements."""

Rows = dict[str, list[tuple[Any, ...]]]
Planned = tuple[str, str, list[Any], dict[str, Any]]
"""The way to a store, the name of a method, and its arguments."""


class Database:
    """One database, and every row in it that belongs to a tenant."""

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
        """Every row of a tenant, in every table that has tenants."""
        engine = self.holdfast._engine
        tables = self.fetch(
            "SELECT table_name FROM information_schema.columns WHERE column_name = 'tenant_id' ORDER BY 1"
            if engine.dialect is Dialect.POSTGRES
            else "SELECT m.name FROM sqlite_schema AS m, pragma_table_info(m.name) AS c WHERE c.name = 'tenant_id' ORDER BY 1"
        )
        of_all = self.fetch_many([f"SELECT * FROM {table} WHERE tenant_id = '{tenant}'" for (table,) in tables])
        actual = {table: rows for (table,), rows in zip(tables, of_all, strict=True)}
        # What waits to leave SQLite's index over words: nothing, because every call has sent it before it returns.
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
def opened(request: pytest.FixtureRequest) -> Iterator[Callable[[], Database]]:
    """A function that opens an empty database."""
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
    """Data in every store or in some, by every write method there is."""
    world = World(OnEngine(database.holdfast._engine), Random(seed))
    world.tenant_name = tenant
    work = sorted(method for method in MAKERS if not method.startswith(ABOVE_TENANTS) and _is_chosen(method, only))
    for number in range(8 * len(work)):
        method = work[number % len(work)]
        if _removes(method) and number // len(work) not in (1, 4):
            continue  # more is made than removed, and nothing is removed at the end
        method, made = possible(world, method)
        Call(seed * 1_000 + number, method, tenant, *made).make(world.handle)
    for session in world.tenant.sessions.list()[-3:]:
        world.tenant.sessions.delete(session.id)
    database.holdfast.tenant(tenant).objects.put([Random(seed).randbytes(5_000)], holder="a pack")
    if not only:
        database.holdfast.api_keys.create(f"hf_{seed:048x}", name="a key", tenant=tenant)
        _rewind_a_step(database.holdfast.tenant(tenant))


def _rewind_a_step(tenant: TenantHandle) -> None:
    """A run whose step was set aside, which random calls rarely do."""
    run = tenant.runs.start(tenant.sessions.create().id)
    lease = tenant.leases.claim("worker", run_id=run.id)
    assert lease is not None
    tenant.runs.step(run.id, epoch=lease.epoch, iteration=1, state={"n": 1})
    begun = tenant.rewinds.begin(run.id, to_step=0, path="/tree", snapshot="then", epoch=lease.epoch)
    tenant.rewinds.finish(begun.id)


def _removes(method: str) -> bool:
    """Whether a method takes something away."""
    verb = method.rpartition(".")[2].partition("_")[0]
    return verb in ("clear", "collect", "delete", "detach", "discard", "prune", "purge", "redo", "release", "rollback")


def seen_by_owner(database: Database) -> tuple[list[Struct], list[str]]:
    """Rows and cursors as B's own handle shows them: what A may have got hold of somehow."""
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
    records = [getattr(theirs, name) for name in record_stores()]
    channels += [row for store in records for row in store.list()]
    cursors += [store.list(limit=1).next for store in records]
    cursors += [theirs.activity.list(limit=1).next, theirs.snapshots.list(limit=1).next]
    driven, more = seen_of_runs(theirs)
    return [*sessions, *messages, *channels, *driven], [cursor for cursor in [*cursors, *more] if cursor]


def seen_of_runs(theirs: TenantHandle) -> tuple[list[Struct], list[str | None]]:
    runs, agents = theirs.runs.list(), theirs.agents.list()
    calls = [call for run in runs for call in theirs.tool_calls.list(run.id)]
    steps = [step for run in runs for step in theirs.steps.list(run.id)]
    blocks = [block for agent in agents for block in theirs.blocks.list(agent.id)]
    cursors = [theirs.runs.list(limit=1).next, theirs.agents.list(limit=1).next]
    cursors += [theirs.steps.list(run.id, limit=1).next for run in runs]
    return [*runs, *agents, *calls, *steps, *blocks], cursors


def strangers_pool(database: Database, seed: int) -> Pool:
    rows, cursors = seen_by_owner(database)
    texts = sorted({str(value) for table in database.rows_of(THEIRS).values() for row in table for value in row})
    texts += [str(value) for row in database.rows_of(MINE)["messages"] for value in row[:4]]
    texts += sorted({bytes(row[1]).hex() for row in database.rows_of(THEIRS)["objects"]})
    short = [text for text in texts if len(text) < 100]
    return Pool(texts=[*short, uuid_of("nobody")], rows=rows, cursors=cursors, random=Random(seed))


def _is_chosen(path: str, only: Collection[str]) -> bool:
    return not only or path.partition(".")[0] in only


def planned_calls(database: Database, seed: int, only: Collection[str], calls: int) -> list[Planned]:
    """Calls of every public method of every store, mixed: first with anything, then with ids that both tenants have."""
    pool = strangers_pool(database, seed)
    reached = [(path, store) for path, store in stores(database.mine) if _is_chosen(path, only)]
    actual = [(path, name, method) for path, store in reached for name, method in methods(store)]
    actual *= calls
    strange: list[Planned] = [(path, name, *arguments(method, pool)) for path, name, method in actual]
    strange += aimed(database, reached)
    pool.random.shuffle(strange)
    shadows, pool.ids = shadowing(database)
    shared: list[Planned] = [(path, name, *arguments(method, pool)) for path, name, method in actual]
    pool.random.shuffle(shared)
    shared.sort(key=lambda call: call[1] == "purge")  # at the end: afterwards there is nothing left to be about
    return [*strange, *shadows, *shared]


def aimed(database: Database, reached: Sequence[tuple[str, Blocking[Any]]]) -> list[Planned]:
    """Every method that needs nothing but a session, with each of theirs, the deleted ones included."""
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


def shadowing(database: Database) -> tuple[list[Planned], list[str]]:
    """Namesakes of their sessions and messages, so that nothing but the tenant tells the two apart."""
    rows = database.rows_of(THEIRS)
    sessions = [str(row[1]) for row in rows["sessions"]]
    messages = [(str(row[1]), str(row[3])) for row in rows["messages"]]
    plan: list[Planned] = [("sessions", "create", [], {"id": id, "key": f"shadow {id}"}) for id in sessions]
    for session, id in messages:
        plan.append(("messages", "append", [session], {"role": "user", "content": "shadow", "id": id}))
    runs = [(str(row[1]), str(row[2])) for row in rows["runs"]]
    plan += [("runs", "start", [session], {"id": id, "agent": "shadow"}) for id, session in runs]
    plan += [("leases", "claim", ["shadow"], {"run_id": id}) for id, _ in runs[::2]]
    plan += [("agents", "create", [NewAgent("Shadow", id=row[1])], {}) for row in rows["agents"]]
    for row in rows["sessions"]:
        plan += directed(str(row[1]), key=row[2], user=row[3])
    return plan, [*sessions, *(id for _, id in messages), *(id for id, _ in runs)]


def directed(session: str, *, key: str, user: str) -> list[Planned]:
    """What chance hardly ever does to one session that both tenants have: it is looked up by its name, listed, appended to,
    deleted and restored, and shows another branch."""
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
    """What A hears, word for word."""
    reachable = dict(stores(database.mine))
    heard: list[str] = []
    for step, (path, name, args, kwargs) in enumerate(plan):
        database.ids.begin(10_000 + step)
        database.clock.advance(0.5)
        try:
            heard.append(repr(shape(getattr(reachable[path], name)(*args, **kwargs))))
        except HoldfastError as error:
            heard.append(f"{type(error).__name__}: {error}")
    return heard


def in_two_worlds(
    opened: Callable[[], Database],
    seed: int,
    defect: AbstractContextManager[Any] | None = None,
    only: Collection[str] = (),
    calls: int = CALLS_OF_FEW,
) -> tuple[list[str], list[str], Rows, Rows, list[Planned]]:
    """What A hears where B is and where B never was, B's rows before and after, and the calls."""
    with_them = opened()
    populate(with_them, MINE, 1, only)
    populate(with_them, THEIRS, 2, only)
    plan = planned_calls(with_them, seed, only, calls)
    before = with_them.rows_of(THEIRS)
    with defect or nullcontext():
        heard_with = answers(with_them, plan)
    after = with_them.rows_of(THEIRS)
    without = opened()
    populate(without, MINE, 1, only)
    with defect or nullcontext():
        return heard_with, answers(without, plan), before, after, plan


@pytest.mark.parametrize(
    ("opened", "seed", "calls"), [("sqlite", 1, CALLS), ("postgres", 3, CALLS_OF_FEW)], indirect=["opened"]
)
def test_a_tenant_learns_and_changes_nothing_of_another(opened: Callable[[], Database], seed: int, calls: int) -> None:
    heard, elsewhere, before, after, plan = in_two_worlds(opened, seed, calls=calls)
    for call, one, other in zip(plan, heard, elsewhere, strict=True):
        assert one == other, f"{call}: the answer tells whether {THEIRS} is there"
    assert after == before
    assert [table for table, rows in before.items() if not rows] == [], f"{THEIRS} has nothing to lose there"
    if calls == CALLS:
        _enough_was_tried(plan, heard)


def _enough_was_tried(plan: Any, heard: list[str]) -> None:
    """Each method was really reached: some of its calls were answered, not only refused for their form."""
    outcomes: Counter[tuple[str, bool]] = Counter()
    for (path, name, _, _), output in zip(plan, heard, strict=True):
        outcomes[
            f"{path}.{name}", output.startswith(("InvalidInput", "InvalidFilter", "InvalidText", "LimitExceeded"))
        ] += 1
    for method in {method for method, _ in outcomes}:
        assert outcomes[method, False], f"{method} was only ever refused: {outcomes[method, True]} times"


def test_every_store_and_method_is_found(opened: Callable[[], Database]) -> None:
    actual = {f"{path}.{name}" for path, store in stores(opened().mine) for name, _ in methods(store)}
    assert {"sessions.create", "sessions.purge", "messages.append", "messages.last"} <= actual
    assert {method for method in MAKERS if not method.startswith(ABOVE_TENANTS)} <= actual


class AsyncLeaky(TenantStore):
    """A store that a later change adds, and that forgets the tenant."""

    @reads
    async def seen(self, connection: Connection, session_id: str) -> int:
        """Return whether such a session exists, in any tenant."""
        rows = await connection.fetch(f"SELECT 1 FROM sessions WHERE id = '{parse_id(session_id)}'", ())
        return len(rows)


class Leaky(Blocking[AsyncLeaky]):
    """The same, for those who do not await."""

    seen = blocking(AsyncLeaky.seen)


def test_a_store_added_later_is_covered_without_being_named(
    opened: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaky(handle: TenantHandle) -> Leaky:
        return Leaky(AsyncLeaky(handle._engine, handle._scope))

    monkeypatch.setattr(TenantHandle, "leaky", property(leaky), raising=False)
    heard, elsewhere, _, _, plan = in_two_worlds(opened, 1, only=("sessions", "messages", "leaky"))
    assert {path for (path, *_), one, other in zip(plan, heard, elsewhere, strict=True) if one != other} == {"leaky"}


FORGETFUL = [
    *[
        ("sqlite", sessions.queries, name)
        for name in ("get", "find", "list", "count", "update", "delete", "restore", "purge")
    ],
    *[("sqlite", message_changes.queries, name) for name in ("get", "update", "delete")],
    *[("sqlite", log_reading.queries, name) for name in ("list", "list_newest", "shown", "ranges", "count")],
    *[("sqlite", branches.queries, name) for name in ("list", "find", "head")],
    ("postgres", log_reading.queries, "ranges"),
    ("sqlite", message_log.queries, "advance"),
    *[("postgres", message_log.queries, name) for name in ("append_one", "append")],
]


@pytest.mark.parametrize(
    ("opened", "queries", "name"),
    [
        pytest.param(engine, queries, name, id=f"{engine} {queries._source[1].removesuffix('.sql')} {name}")
        for engine, queries, name in FORGETFUL
    ],
    indirect=["opened"],
)
def test_a_query_that_forgets_the_tenant_is_noticed(queries: Any, name: str, opened: Callable[[], Database]) -> None:
    query = queries.by_name[name]
    forgetful = Query(name, {dialect: _forget(text) for dialect, text in query.texts.items()})
    assert forgetful.texts != query.texts
    defect = mock.patch.multiple(query, **vars(forgetful))
    heard, elsewhere, before, after, _ = in_two_worlds(opened, 1, defect, only=("sessions", "messages", "branches"))
    assert heard != elsewhere or before != after, "the test did not notice"


def _forget(text: str) -> str:
    for condition in ("m.tenant_id = :tenant_id AND ", "s.tenant_id = :tenant_id AND ", "tenant_id = :tenant_id AND "):
        text = text.replace(condition, "")
    return text
