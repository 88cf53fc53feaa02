"""Calls for every write method of every store, found by reflection, so that no store can be forgotten.

The fault tests need work that touches every write path. A *maker* chooses the arguments of one call from the contents of the
database at that moment; it is registered under the name of its method, such as ``messages.append``. A store added later
is found by walking the handles; a write method without a maker fails the tests by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from random import Random
from typing import Any

from msgspec import Struct

from holdfast.clock import FixedClock
from holdfast.core.blocking import Blocking
from holdfast.core.crypto import KeyRing
from holdfast.core.scope import Scope, Setting
from holdfast.engines.dialect import Dialect
from holdfast.engines.factory import OwnEngine
from holdfast.errors import HoldfastError
from holdfast.ids import SeededIds
from holdfast.limits import Limits
from holdfast.migrations import runner
from holdfast.store_lists import PlatformStores, SyncHandle, store_names
from holdfast.stores.conversation.buffer.buffered import AsyncBufferedSession, Buffer, BufferedSession
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.stores.conversation.sessions import Session
from holdfast.stores.execution.runs.leases import AsyncRunQueue, RunQueue
from holdfast.stores.lifecycle.api_keys import ApiKeys, AsyncApiKeys
from holdfast.stores.lifecycle.erasures import AsyncErasures, Erasures
from holdfast.stores.lifecycle.server_settings import AsyncServerSettings, ServerSettings
from holdfast.stores.lifecycle.tenants import AsyncTenants, Tenants
from holdfast.stores.wiring import SESSION_DEPENDENTS
from holdfast.sync_runner import step
from holdfast.tenant_handles import TenantHandle

KEY = "5e" * 32
"""The key for secrets."""
TENANTS = ("acme", "zenith")
ABOVE_TENANTS = ("tenants.", "erasures.", "api_keys.", "run_queue.", "server_settings.")
"""Prefixes of the methods of stores without a tenant."""


class OnEngine:
    """A Holdfast on a given engine.

    Ids and time belong to the call in hand (see ``begin``), so a call does the same whatever became of those before it.
    """

    def __init__(self, engine: OwnEngine) -> None:
        self.engine = engine
        self._setting = _setting_of(0)

    async def migrate(self) -> None:
        """Migrate the schema; ``on_engine`` does this for a blocking engine."""
        await self.engine.exclusive(lambda connection: runner.up(connection, FixedClock()))

    def begin(self, number: int) -> None:
        """Set the number of the next call, which determines its ids and its time."""
        self._setting = _setting_of(number)

    @property
    def tenants(self) -> Tenants:
        """Return the store of tenants."""
        return Tenants(AsyncTenants(self.engine, self._setting))

    @property
    def api_keys(self) -> ApiKeys:
        """Return the store of all API keys."""
        return ApiKeys(AsyncApiKeys(self.engine, self._setting))

    @property
    def erasures(self) -> Erasures:
        """Return the store of erasure requests."""
        return Erasures(AsyncErasures(self.engine, self._setting))

    @property
    def run_queue(self) -> RunQueue:
        """Return the queue of runs of all tenants."""
        return RunQueue(AsyncRunQueue(self.engine, self._setting))

    @property
    def server_settings(self) -> ServerSettings:
        """Return the store of shared settings."""
        return ServerSettings(AsyncServerSettings(self.engine, self._setting))

    def tenant(self, name: str) -> TenantHandle:
        """Return the handle of a tenant."""
        return TenantHandle(self.engine, Scope(name, self._setting))

    def close(self) -> None:
        """Close the engine."""
        step(self.engine.close())


def on_engine(engine: OwnEngine) -> OnEngine:
    """Return a Holdfast on a blocking engine, with a migrated schema."""
    handle = OnEngine(engine)
    step(handle.migrate())
    return handle


class Call(Struct, frozen=True):
    """A call of a store method that has not been made yet."""

    number: int
    method: str
    tenant: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def make(self, handle: OnEngine) -> Any:
        """Make the call on a blocking engine; return its result or its typed error."""
        return self.bind(handle)()

    def bind(self, handle: OnEngine) -> Callable[[], Any]:
        """Return ``make`` as a function that any thread can call."""
        method = getattr(self._store(handle), self.method.rpartition(".")[2])

        def make() -> Any:
            try:
                answer = method(*self.args, **self.kwargs)
                if isinstance(answer, BufferedSession):
                    _use(answer, self.number)
                    answer.save()
                return answer
            except HoldfastError as error:
                return error

        return make

    def coroutine(self, handle: OnEngine) -> Coroutine[Any, Any, Any]:
        """Return ``make`` as a coroutine for an asynchronous engine."""
        method = getattr(self._store(handle)._async, self.method.rpartition(".")[2])

        async def make() -> Any:
            try:
                answer = await method(*self.args, **self.kwargs)
                if isinstance(answer, AsyncBufferedSession):
                    _use(answer, self.number)
                    await answer.save()
                return answer
            except HoldfastError as error:
                return error

        return make()

    def _store(self, handle: OnEngine) -> Blocking[Any]:
        handle.begin(self.number)
        target: Any = handle if self.method.startswith(ABOVE_TENANTS) else handle.tenant(self.tenant)
        for part in self.method.split(".")[:-1]:
            target = getattr(target, part)
        store: Blocking[Any] = target
        return store


class World:
    """The input of a maker: the current database, a seeded random generator, and new names."""

    def __init__(self, handle: OnEngine, random: Random) -> None:
        self.handle, self.random = handle, random
        self.tenant_name = random.choice(TENANTS)
        self._names = 0

    @property
    def tenant(self) -> TenantHandle:
        """Return the tenant of the next call."""
        return self.handle.tenant(self.tenant_name)

    def name(self, prefix: str) -> str:
        """Return a new name."""
        self._names += 1
        return f"{prefix}-{self._names}"

    def session(self, *, deleted: bool = False, filled: bool = False) -> Session | None:
        """Return a random session of the tenant, or ``None``; with ``filled``, one with messages."""
        actual = [item for item in self.tenant.sessions.list(deleted=deleted) if item.message_count or not filled]
        return self.random.choice(actual) if actual else None

    def text(self) -> str:
        """Return content of random size: usually a line, sometimes several pages of the file."""
        size = self.random.choice((3, 40, 40, 400, 400, 9_000))
        return "".join(self.random.choice("abc defgh\u00e9\u4e16\n") for _ in range(size))


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Maker = Callable[[World], Arguments | None]
"""Returns the arguments of a call, or ``None`` if the database lacks a row to call the method on."""

MAKERS: dict[str, Maker] = {}
_BEFORE: dict[str, str] = {}


def maker(method: str, *, before: str = "sessions.create") -> Callable[[Maker], Maker]:
    """Register the maker of a method with its path from the handle: ``store.method``.

    If the maker returns ``None``, the method ``before`` is called first, which creates such a row.
    """

    def register(function: Maker) -> Maker:
        MAKERS[method], _BEFORE[method] = function, before
        return function

    return register


def _setting_of(number: int) -> Setting:
    clock = FixedClock()
    clock.advance(7.0 * number)
    ids = SeededIds(number, start_ms=clock.now_us() // 1000)
    keys = KeyRing(KEY, nonces=Random(number).randbytes)
    return Setting(clock=clock, ids=ids, limits=Limits(), session_dependents=SESSION_DEPENDENTS, keys=keys)


_STEPS_BEFORE = 5
"""The maximum number of calls that prepare one call."""


WITH_FILES = frozenset(f"workspaces.{name}" for name in ("finish_rewinds", "import_archive", "redo", "rewind"))
"""Methods that read or change files. They write through methods of other stores, which have makers; ``tests/workspaces`` tests
crashes between those writes."""


def write_methods() -> list[str]:
    """Return the public methods of all stores that may write, by path, except for those with files.

    A method counts as a reader only if it calls nothing but the engine's ``read``, which engines enforce. Methods that consist of
    several transactions by design are excluded: they guarantee to continue from the state after any of them.
    """
    probe = _Probe()
    setting = _setting_of(0)
    actual = dict(_stores(TenantHandle(probe, Scope("probe", setting)), ""))
    own = _AllTenants(probe, setting)
    actual |= {name: getattr(own, name) for name in store_names(_AllTenants)}
    named = {
        f"{path}.{name}"
        for path, store in actual.items()
        for name in dir(type(store))
        if not name.startswith("_") and not probe.is_excluded(getattr(store._async, name))
    }
    return sorted(named - WITH_FILES)


class _AllTenants(PlatformStores, SyncHandle):
    """The stores without a tenant, without a database."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments


def methods_without_maker() -> list[str]:
    """Return the write methods without a maker."""
    return [method for method in write_methods() if method not in MAKERS]


def calls(world: World, count: int, stores: Collection[str] | None = None) -> Iterator[Call]:
    """Yield calls of all write methods, or of those of some stores, in an order drawn from the world's seed. Arguments come
    from the current database."""
    waiting: list[str] = []
    made = 0
    while made < count:
        if not waiting:
            waiting = sorted(method for method in MAKERS if stores is None or method.partition(".")[0] in stores)
            world.random.shuffle(waiting)
        expected = waiting.pop()
        world.tenant_name = world.random.choice(TENANTS)
        for _ in range(_STEPS_BEFORE):
            made += 1
            method, arguments = possible(world, expected)
            yield Call(made, method, world.tenant_name, *arguments)
            if method in (expected, "sessions.create") or made >= count:
                break


def possible(world: World, method: str) -> tuple[str, Arguments]:
    """Return the method, or the preparing method that can be called now, with its arguments."""
    while (arguments := MAKERS[method](world)) is None:
        method = _BEFORE[method]
    return method, arguments


class _Probe:
    """An engine that runs nothing and records which of its methods are called."""

    dialect = Dialect.SQLITE
    distributed: bool | None = False
    blocking = True
    joined = False

    def __init__(self) -> None:
        self._calls: list[str] = []

    def is_excluded(self, method: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
        if getattr(method, "only_reads", False) or getattr(method, "in_steps", False):
            return True
        self._calls.clear()
        try:
            method().close()
        except TypeError:
            return False  # it validates its arguments before it calls the engine
        return self._calls == ["read"]

    def read(self, call: Any) -> Coroutine[Any, Any, Any]:
        return self._note("read")

    def write(self, call: Any) -> Coroutine[Any, Any, Any]:
        return self._note("write")

    def grouped(self, group: Any, item: Any) -> Coroutine[Any, Any, Any]:
        return self._note("grouped")

    def _note(self, operation: str) -> Coroutine[Any, Any, Any]:
        self._calls.append(operation)
        return _return_none()


async def _return_none() -> None: ...


def _stores(holder: object, prefix: str) -> Iterator[tuple[str, Blocking[Any]]]:
    names = [*store_names(type(holder)), *vars(holder)]
    for name in dict.fromkeys(names):
        if name.startswith("_"):
            continue
        value = getattr(holder, name)
        if isinstance(value, Blocking):
            yield prefix + name, value
        elif type(value).__module__.startswith("holdfast.") and hasattr(value, "__dict__"):
            yield from _stores(value, f"{prefix}{name}.")


# Sessions


@maker("sessions.create")
def _create_session(world: World) -> Arguments:
    kwargs = {
        "key": world.name("key"),
        "user": world.random.choice(("ada", "grace")),
        "metadata": {"text": world.text()},
    }
    return (), kwargs


@maker("sessions.upsert")
def _upsert_session(world: World) -> Arguments:
    existing = world.session()
    key, user = (existing.key, existing.user) if existing else (world.name("key"), "ada")
    return (key,), {"user": user or None, "agent": "helper", "metadata": {"text": world.text()}}


@maker("sessions.update")
def _update_session(world: World) -> Arguments | None:
    existing = world.session()
    return ((existing.id,), {"agent": world.name("agent"), "metadata": {"text": world.text()}}) if existing else None


@maker("sessions.delete")
def _delete_session(world: World) -> Arguments | None:
    existing = world.session()
    return ((existing.id,), {}) if existing else None


@maker("sessions.restore", before="sessions.delete")
def _restore_session(world: World) -> Arguments | None:
    existing = world.session(deleted=True)
    return ((existing.id,), {}) if existing else None


@maker("sessions.purge")
def _purge_session(world: World) -> Arguments | None:
    existing = world.session(deleted=True) or world.session(filled=True)
    return ((existing.id,), {}) if existing else None


@maker("sessions.buffered")
def _save_buffer(world: World) -> Arguments:
    """Open a buffer, which ``Call`` fills and saves."""
    existing = world.session(filled=world.random.random() < 0.7)
    key, user = (existing.key, existing.user) if existing else (world.name("key"), "ada")
    return (key,), {"user": user or None}


def _use(buffer: Buffer, number: int) -> None:
    """Fill a buffer with all kinds of data that it supports."""
    if number % 2:
        buffer.truncate_history(number % 3)
    for turn in range(1 + number % 4):
        buffer.add_message(role="user", content=f"{number} {turn} " * (200 if number % 5 == 0 else 1), token_count=turn)
    buffer.set_summary(f"up to {number}")
    buffer.update_metadata({"saved": number})
    buffer.accumulate_tokens(input_tokens=number, output_tokens=1)
    buffer.increment_compaction()
    buffer.set_memory_flush_done()


# Messages


@maker("messages.append")
def _append(world: World) -> Arguments | None:
    existing = world.session()
    return ((existing.id,), {"role": "user", "content": world.text(), "token_count": 7}) if existing else None


@maker("messages.append_many")
def _append_many(world: World) -> Arguments | None:
    existing = world.session()
    messages = [NewMessage(role="assistant", content=world.text(), token_count=n) for n in range(3)]
    return ((existing.id, [*messages, NewMessage(kind="adk.event", content={"n": 1})]), {}) if existing else None


@maker("messages.update", before="messages.append")
def _update_message(world: World) -> Arguments | None:
    existing = world.session(filled=True)
    if existing is None:
        return None
    message = world.random.choice(_messages(world, existing))
    return (message,), {"metadata": {"text": world.text()}, "token_count": 11, "is_preserved": True}


@maker("messages.delete", before="messages.append")
def _delete_messages(world: World) -> Arguments | None:
    existing = world.session(filled=True)
    return ((existing.id, _messages(world, existing)[:2]), {}) if existing else None


@maker("messages.restore", before="messages.delete")
def _restore_messages(world: World) -> Arguments | None:
    """Restore one deleted message; another remains deleted."""
    actual = [
        (session.id, item.message.id)
        for session in world.tenant.sessions.list()
        for item in world.tenant.messages.deleted(session.id)
    ]
    return ((actual[0][0], [actual[0][1]]), {}) if len(actual) > 1 else None


# Branches


@maker("branches.fork", before="messages.append")
def _fork(world: World) -> Arguments | None:
    existing = world.session(filled=True)
    if existing is None:
        return None
    message = world.random.choice(world.tenant.messages.list(existing.id))
    return (existing.id,), {"at": message.seq, "label": world.random.choice((None, world.name("branch")))}


@maker("branches.rewind", before="messages.append")
def _rewind(world: World) -> Arguments | None:
    existing = world.session(filled=True)
    if existing is None:
        return None
    message = world.random.choice(world.tenant.messages.list(existing.id))
    return (existing.id,), {"to": world.random.choice((0, message.seq))}


@maker("branches.switch", before="branches.fork")
def _switch(world: World) -> Arguments | None:
    """Switch to another branch; if the session has none, create one first."""
    choice = [
        (session.id, branch.number)
        for session in world.tenant.sessions.list()
        for branch in world.tenant.branches.list(session.id)
        if branch.number != world.tenant.branches.current(session.id)
    ]
    return (world.random.choice(choice), {}) if choice else None


@maker("branches.redo", before="branches.rewind")
def _redo(world: World) -> Arguments | None:
    choice = [
        session.id
        for session in world.tenant.sessions.list()
        for branch in world.tenant.branches.list(session.id)
        if branch.origin == "rewind" and branch.number == world.tenant.branches.current(session.id)
    ]
    return ((world.random.choice(choice),), {}) if choice else None


@maker("messages.search")
def _search(world: World) -> Arguments:
    """Search, which also indexes the messages appended since the last search."""
    existing = world.session() if world.random.random() < 0.3 else None
    return (world.random.choice(("a*", "b*", "\u4e16", "e -g*")),), {"session_id": existing.id if existing else None}


def _messages(world: World, session: Session) -> Sequence[str]:
    return [message.id for message in world.tenant.messages.list(session.id)]


# Importing these modules registers their makers. The imports are last, because the modules import this one.
from tests.workloads import (  # noqa: E402
    workload_agent_context,  # noqa: F401
    workload_channels,  # noqa: F401
    workload_checkpoints,  # noqa: F401
    workload_compactions,  # noqa: F401
    workload_config,  # noqa: F401
    workload_crewai,  # noqa: F401
    workload_declared,  # noqa: F401
    workload_grants,  # noqa: F401
    workload_kagent,  # noqa: F401
    workload_keys,  # noqa: F401
    workload_mcp,  # noqa: F401
    workload_records,  # noqa: F401
    workload_retention,  # noqa: F401
    workload_rewinds,  # noqa: F401
    workload_runs,  # noqa: F401
    workload_tenants,  # noqa: F401
    workload_tools,  # noqa: F401
    workload_workspaces,  # noqa: F401
)
