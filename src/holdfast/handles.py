"""``Holdfast`` and ``AsyncHoldfast``: what a program opens, and the handle of a tenant that it works with."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import address
from .clock import Clock, SystemClock
from .core import acting
from .core.acting import Acting, ActingBlock, AgentType, PeerKind
from .core.packs import PackPlace
from .core.scope import Scope, Setting
from .drivers import join, turns
from .engines import opening
from .engines.joined import JoinedEngine
from .engines.opening import AsyncOwnEngine, OwnEngine
from .engines.postgres.options import PoolOptions
from .engines.protocol import Engine
from .engines.sqlite.file import Durability
from .errors import InvalidInput
from .ids import IdSource, RandomIds
from .limits import Limits
from .migrations import runner
from .stepping import step
from .stores.conversation.branches import AsyncBranches, Branches
from .stores.conversation.compaction.compactions import AsyncCompactions, Compactions
from .stores.conversation.contacts import AsyncContacts, Contacts
from .stores.conversation.feedback import AsyncFeedbacks, Feedbacks
from .stores.conversation.messages import AsyncMessages, Messages
from .stores.conversation.pending_messages import AsyncPendingMessages, PendingMessages
from .stores.conversation.remarks import AsyncRemarks, Remarks
from .stores.conversation.sessions import AsyncSessions, Sessions
from .stores.conversation.shares import AsyncSessionShares, SessionShares
from .stores.conversation.tokens import TokenCounter, counter_of
from .stores.execution.a2a_push_configs import A2APushConfigs, AsyncA2APushConfigs
from .stores.execution.a2a_tasks import A2ATasks, AsyncA2ATasks
from .stores.execution.checkpoints.checkpoints import AsyncCheckpoints, Checkpoints
from .stores.execution.flows import AsyncFlows, Flows
from .stores.execution.runs.leases import AsyncLeases, AsyncRunQueue, Leases, RunQueue
from .stores.execution.runs.runs import AsyncRuns, Runs
from .stores.execution.runs.steps import AsyncSteps, Steps
from .stores.execution.runs.tool_calls import AsyncToolCalls, ToolCalls
from .stores.memory.agent_memories import AgentMemories, AsyncAgentMemories
from .stores.memory.blocks import AsyncBlocks, Blocks
from .stores.memory.crew_memories import AsyncCrewMemories, CrewMemories
from .stores.platform.activity import Activities, AsyncActivities
from .stores.platform.api_keys import ApiKeys, AsyncApiKeys
from .stores.platform.checkups import AsyncCheckups, Checkups
from .stores.platform.erasures import AsyncErasures, Erasures
from .stores.platform.objects import AsyncObjects, Objects
from .stores.platform.retention.retention import AsyncRetention, Retention
from .stores.platform.server_settings import AsyncServerSettings, ServerSettings
from .stores.platform.tenant_engine import TenantEngine, behind
from .stores.platform.tenants import AsyncTenants, Tenants
from .stores.registry.agents import Agents, AsyncAgents
from .stores.registry.tool_servers import AsyncToolServers, ToolServers
from .stores.workspace.rewinds import AsyncRewinds, Rewinds
from .stores.workspace.snapshots import AsyncSnapshots, Snapshots
from .workspaces.workspaces import AsyncWorkspaces, Workspaces


class AsyncTenantHandle:
    """Everything of one tenant; no call through it can see another's."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = behind(engine), scope
        self.sessions = AsyncSessions(engine, scope)
        self.messages = AsyncMessages(engine, scope)
        self.branches = AsyncBranches(engine, scope)
        self.compactions = AsyncCompactions(engine, scope)
        self.pending_messages = AsyncPendingMessages(engine, scope)
        self.contacts = AsyncContacts(engine, scope)
        self.feedback = AsyncFeedbacks(engine, scope)
        self.agents = AsyncAgents(engine, scope)
        self.blocks = AsyncBlocks(engine, scope)
        self.runs = AsyncRuns(engine, scope)
        self.steps = AsyncSteps(engine, scope)
        self.leases = AsyncLeases(engine, scope)
        self.tool_calls = AsyncToolCalls(engine, scope)
        self.checkpoints = AsyncCheckpoints(engine, scope)
        self.objects = AsyncObjects(engine, scope)
        self.snapshots = AsyncSnapshots(engine, scope)
        self.workspaces = AsyncWorkspaces(engine, scope)
        self.flows = AsyncFlows(engine, scope)
        self.crew_memories = AsyncCrewMemories(engine, scope)
        self.a2a_tasks = AsyncA2ATasks(engine, scope)
        self.a2a_push_configs = AsyncA2APushConfigs(engine, scope)
        self.session_shares = AsyncSessionShares(engine, scope)
        self.remarks = AsyncRemarks(engine, scope)
        self.tool_servers = AsyncToolServers(engine, scope)
        self.agent_memories = AsyncAgentMemories(engine, scope)
        self.activity = AsyncActivities(engine, scope)
        self.retention = AsyncRetention(engine, scope)
        self.checkups = AsyncCheckups(engine, scope)
        self.rewinds = AsyncRewinds(engine, scope)

    @property
    def name(self) -> str:
        """The tenant's name."""
        return self._scope.tenant

    @property
    def clock(self) -> Clock:
        """Where the time of everything that is stored comes from."""
        return self._scope.clock

    @property
    def limits(self) -> Limits:
        """What one call may carry."""
        return self._scope.limits

    def count_tokens(self, content: Any) -> int:
        """How many tokens the content of a message has, by the counter that this Holdfast was given, or an estimate."""
        return counter_of(self._scope)(content)

    def acting(
        self,
        *,
        user: str | None = None,
        agent: str | None = None,
        agent_type: AgentType | None = None,
        sender: str | None = None,
        channel: str | None = None,
        chat: str | None = None,
        peer_kind: PeerKind | None = None,
    ) -> ActingBlock:
        """Say once who acts in a ``with`` or ``async with`` block, for this tenant, this task and what it starts.

        What is made inside without a user or an agent gets these. Nothing is looked up or filtered by them. Blocks nest:
        the inner one replaces only what it names.

        Raises:
            InvalidInput: a value is not a name, or none of its kind.
        """
        return ActingBlock(
            self._scope,
            user=user,
            agent=agent,
            agent_type=agent_type,
            sender=sender,
            channel=channel,
            chat=chat,
            peer_kind=peer_kind,
        )

    def acting_now(self) -> Acting:
        """Who acts for this tenant here and now; what nobody said is ``None``."""
        return acting.now(self._scope)

    def join(self, connection: Any) -> AsyncTenantHandle:
        """The same tenant on your own connection: what is written lives and dies with your transaction.

        Takes an asyncpg, psycopg (async) or aiosqlite connection, or SQLAlchemy's AsyncConnection or AsyncSession.

        Raises:
            InvalidInput: the object is none of these, or of the other engine.
        """
        joined = join.asynchronous(connection, self._engine.dialect)
        engine = JoinedEngine(joined, turns.of_tasks(connection), blocking=False, owner=self._engine)
        return AsyncTenantHandle(TenantEngine(engine, self._scope), self._scope)

    def as_sync(self) -> AbstractContextManager[TenantHandle]:
        """The same tenant for synchronous code, through a ``Holdfast`` on the same database that the block opens and closes.

        Raises:
            InvalidInput: the database is in memory, or this handle has joined a connection of yours.
        """
        return _opened_sync(_reopening(self._engine, self._scope), self._scope.tenant)


class TenantHandle:
    """Everything of one tenant; no call through it can see another's."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = behind(engine), scope
        self.sessions = Sessions(AsyncSessions(engine, scope))
        self.messages = Messages(AsyncMessages(engine, scope))
        self.branches = Branches(AsyncBranches(engine, scope))
        self.compactions = Compactions(AsyncCompactions(engine, scope))
        self.pending_messages = PendingMessages(AsyncPendingMessages(engine, scope))
        self.contacts = Contacts(AsyncContacts(engine, scope))
        self.feedback = Feedbacks(AsyncFeedbacks(engine, scope))
        self.agents = Agents(AsyncAgents(engine, scope))
        self.blocks = Blocks(AsyncBlocks(engine, scope))
        self.runs = Runs(AsyncRuns(engine, scope))
        self.steps = Steps(AsyncSteps(engine, scope))
        self.leases = Leases(AsyncLeases(engine, scope))
        self.tool_calls = ToolCalls(AsyncToolCalls(engine, scope))
        self.checkpoints = Checkpoints(AsyncCheckpoints(engine, scope))
        self.objects = Objects(AsyncObjects(engine, scope))
        self.snapshots = Snapshots(AsyncSnapshots(engine, scope))
        self.workspaces = Workspaces(AsyncWorkspaces(engine, scope))
        self.flows = Flows(AsyncFlows(engine, scope))
        self.crew_memories = CrewMemories(AsyncCrewMemories(engine, scope))
        self.a2a_tasks = A2ATasks(AsyncA2ATasks(engine, scope))
        self.a2a_push_configs = A2APushConfigs(AsyncA2APushConfigs(engine, scope))
        self.session_shares = SessionShares(AsyncSessionShares(engine, scope))
        self.remarks = Remarks(AsyncRemarks(engine, scope))
        self.tool_servers = ToolServers(AsyncToolServers(engine, scope))
        self.agent_memories = AgentMemories(AsyncAgentMemories(engine, scope))
        self.activity = Activities(AsyncActivities(engine, scope))
        self.retention = Retention(AsyncRetention(engine, scope))
        self.checkups = Checkups(AsyncCheckups(engine, scope))
        self.rewinds = Rewinds(AsyncRewinds(engine, scope))

    @property
    def name(self) -> str:
        """The tenant's name."""
        return self._scope.tenant

    @property
    def clock(self) -> Clock:
        """Where the time of everything that is stored comes from."""
        return self._scope.clock

    @property
    def limits(self) -> Limits:
        """What one call may carry."""
        return self._scope.limits

    def count_tokens(self, content: Any) -> int:
        """How many tokens the content of a message has, by the counter that this Holdfast was given, or an estimate."""
        return counter_of(self._scope)(content)

    def acting(
        self,
        *,
        user: str | None = None,
        agent: str | None = None,
        agent_type: AgentType | None = None,
        sender: str | None = None,
        channel: str | None = None,
        chat: str | None = None,
        peer_kind: PeerKind | None = None,
    ) -> ActingBlock:
        """Say once who acts in a ``with`` or ``async with`` block, for this tenant, this task and what it starts.

        What is made inside without a user or an agent gets these. Nothing is looked up or filtered by them. Blocks nest:
        the inner one replaces only what it names.

        Raises:
            InvalidInput: a value is not a name, or none of its kind.
        """
        return ActingBlock(
            self._scope,
            user=user,
            agent=agent,
            agent_type=agent_type,
            sender=sender,
            channel=channel,
            chat=chat,
            peer_kind=peer_kind,
        )

    def acting_now(self) -> Acting:
        """Who acts for this tenant here and now; what nobody said is ``None``."""
        return acting.now(self._scope)

    def join(self, connection: Any) -> TenantHandle:
        """The same tenant on your own connection: what is written lives and dies with your transaction.

        Takes a psycopg, sqlite3 or apsw connection, or SQLAlchemy's Connection or Session.

        Raises:
            InvalidInput: the object is none of these, or of the other engine.
        """
        joined = join.blocking(connection, self._engine.dialect)
        engine = JoinedEngine(joined, turns.of_threads(connection), blocking=True, owner=self._engine)
        return TenantHandle(TenantEngine(engine, self._scope), self._scope)

    def as_async(self) -> AbstractAsyncContextManager[AsyncTenantHandle]:
        """The same tenant for asyncio, through an ``AsyncHoldfast`` on the same database that the block opens and closes.

        Raises:
            InvalidInput: the database is in memory, or this handle has joined a connection of yours.
        """
        return _opened_async(_reopening(self._engine, self._scope), self._scope.tenant)


class Holdfast:
    """Durable state for agents, for synchronous programs. Safe to share between threads.

    Args:
        url: a path, ``sqlite:///path``, ``":memory:"`` or ``postgresql://...``.
        durability: ``"full"``: what returned survives a power cut. ``"normal"``: the last moments may be lost (SQLite only).
        sqlite: ``"apsw"``, or ``"stdlib"`` to join connections of sqlite3, aiosqlite or SQLAlchemy on the same file.
        auto_migrate: bring the schema up to date when opening. SQLite does so by default, PostgreSQL only when told.
        pool: sizes and lifetimes of PostgreSQL's connections, in place of those that the address names.
        limits: what one call may carry.
        clock: where the time comes from.
        ids: where new ids come from.
        count_tokens: how many tokens the content of a message has, where nobody said; without it, an estimate.
        packs: a directory, or an address such as ``s3://bucket/folder``, where large objects lie. Without it, beside a SQLite
            file, in a directory of its name with ``.packs``; and otherwise in the database.

    Raises:
        SchemaMismatch: the schema is newer than this release, or older and not to be migrated.
        Unavailable: the database cannot be reached.
    """

    def __init__(
        self,
        url: str,
        *,
        durability: Durability = "full",
        sqlite: address.Library | None = None,
        auto_migrate: bool | None = None,
        pool: PoolOptions | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        count_tokens: TokenCounter | None = None,
        packs: str | os.PathLike[str] | PackPlace | None = None,
    ) -> None:
        where = address.parse(url, library=sqlite)
        database = {"url": url, "durability": durability, "sqlite": sqlite, "pool": pool}
        self._setting = _setting(where, limits, clock, ids, count_tokens, packs, database)
        self._engine: OwnEngine = opening.blocking(where, durability=durability, pool=pool)
        try:
            step(_prepare_schema(self._engine, self._setting.clock, _migrates(where, auto_migrate)))
        except BaseException:
            self.close()
            raise

    def tenant(self, name: str) -> TenantHandle:
        """The handle of one tenant. Nothing is read or written by asking for it.

        Raises:
            InvalidInput: the name is empty.
        """
        scope = Scope(name, self._setting)
        return TenantHandle(TenantEngine(self._engine, scope), scope)

    @property
    def limits(self) -> Limits:
        """What one call may carry."""
        return self._setting.limits

    @property
    def tenants(self) -> Tenants:
        """All tenants."""
        return Tenants(AsyncTenants(self._engine, self._setting))

    @property
    def api_keys(self) -> ApiKeys:
        """The API keys of all tenants."""
        return ApiKeys(AsyncApiKeys(self._engine, self._setting))

    @property
    def erasures(self) -> Erasures:
        """The tenants who are to be forgotten."""
        return Erasures(AsyncErasures(self._engine, self._setting))

    @property
    def server_settings(self) -> ServerSettings:
        """What all processes on this database agree on."""
        return ServerSettings(AsyncServerSettings(self._engine, self._setting))

    @property
    def run_queue(self) -> RunQueue:
        """The runs of all tenants that wait for somebody to drive them."""
        return RunQueue(AsyncRunQueue(self._engine, self._setting))

    def close(self) -> None:
        """Finish what was accepted and let go of the database. Closing twice is fine."""
        step(self._engine.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncHoldfast:
    """Durable state for agents, for asyncio. The arguments are those of ``Holdfast``; open it with ``async with``."""

    def __init__(
        self,
        url: str,
        *,
        durability: Durability = "full",
        sqlite: address.Library | None = None,
        auto_migrate: bool | None = None,
        pool: PoolOptions | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        count_tokens: TokenCounter | None = None,
        packs: str | os.PathLike[str] | PackPlace | None = None,
    ) -> None:
        where = address.parse(url, library=sqlite)
        database = {"url": url, "durability": durability, "sqlite": sqlite, "pool": pool}
        self._setting = _setting(where, limits, clock, ids, count_tokens, packs, database)
        self._migrates = _migrates(where, auto_migrate)
        self._engine: AsyncOwnEngine = opening.asynchronous(where, durability=durability, pool=pool)

    async def open(self) -> Self:
        """Open the database; ``async with`` does it too. Opening twice is fine, and so is opening again after a close."""
        opened_now = await self._engine.open()
        try:
            await _prepare_schema(self._engine, self._setting.clock, self._migrates)
        except BaseException:
            if opened_now:
                await self.close()
            raise
        return self

    def tenant(self, name: str) -> AsyncTenantHandle:
        """The handle of one tenant. Nothing is read or written by asking for it.

        Raises:
            InvalidInput: the name is empty.
        """
        scope = Scope(name, self._setting)
        return AsyncTenantHandle(TenantEngine(self._engine, scope), scope)

    @property
    def limits(self) -> Limits:
        """What one call may carry."""
        return self._setting.limits

    @property
    def tenants(self) -> AsyncTenants:
        """All tenants."""
        return AsyncTenants(self._engine, self._setting)

    @property
    def api_keys(self) -> AsyncApiKeys:
        """The API keys of all tenants."""
        return AsyncApiKeys(self._engine, self._setting)

    @property
    def erasures(self) -> AsyncErasures:
        """The tenants who are to be forgotten."""
        return AsyncErasures(self._engine, self._setting)

    @property
    def server_settings(self) -> AsyncServerSettings:
        """What all processes on this database agree on."""
        return AsyncServerSettings(self._engine, self._setting)

    @property
    def run_queue(self) -> AsyncRunQueue:
        """The runs of all tenants that wait for somebody to drive them."""
        return AsyncRunQueue(self._engine, self._setting)

    async def close(self) -> None:
        """Finish what was accepted and let go of the database. Closing twice is fine."""
        await self._engine.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()


def _setting(
    where: address.Address,
    limits: Limits | None,
    clock: Clock | None,
    ids: IdSource | None,
    count_tokens: TokenCounter | None,
    packs: str | os.PathLike[str] | PackPlace | None,
    database: Mapping[str, Any],
) -> Setting:
    if count_tokens is not None and not callable(count_tokens):
        raise InvalidInput("count_tokens must be a function from a message's content to a number of tokens")
    return Setting(
        clock=clock or SystemClock(),
        ids=ids or RandomIds(),
        limits=limits or Limits(),
        count_tokens=count_tokens,
        packs=_pack_place(where, packs),
        caches=None if (file := _file_of(where)) is None else file.with_name(f"{file.name}.cache"),
        database=database,
    )


def _reopening(engine: Engine, scope: Scope) -> dict[str, Any]:
    """The arguments with which the database of a handle is opened a second time."""
    if engine.joined:
        raise InvalidInput("a handle that has joined your connection cannot be opened a second time: join another one")
    if scope.database is None or address.is_in_memory(scope.database["url"]):
        raise InvalidInput("a database in memory has one connection and cannot be opened a second time: use a file")
    packs, limits = scope.packs, scope.limits
    settings = {"clock": scope.clock, "ids": scope.ids, "count_tokens": scope.count_tokens, "packs": packs}
    return {**scope.database, **settings, "limits": limits, "auto_migrate": False}


@contextmanager
def _opened_sync(arguments: dict[str, Any], tenant: str) -> Iterator[TenantHandle]:
    with Holdfast(**arguments) as hf:
        yield hf.tenant(tenant)


@asynccontextmanager
async def _opened_async(arguments: dict[str, Any], tenant: str) -> AsyncIterator[AsyncTenantHandle]:
    async with AsyncHoldfast(**arguments) as hf:
        yield hf.tenant(tenant)


def _pack_place(where: address.Address, packs: str | os.PathLike[str] | PackPlace | None) -> PackPlace | None:
    """Where large objects lie: as the caller says, or else beside the file, or else in the database."""
    if packs is not None:
        return packs if isinstance(packs, PackPlace) else PackPlace(packs)
    file = _file_of(where)
    if file is None or find_spec("obstore") is None:
        return None
    return PackPlace(file.with_name(f"{file.name}.packs"), when_needed=True)


def _file_of(where: address.Address) -> Path | None:
    """The file of a database that is one."""
    is_file = where.engine == "sqlite" and where.place and not where.place.startswith((":memory:", "file:"))
    return Path(where.place).absolute() if is_file else None


def _migrates(where: address.Address, auto_migrate: bool | None) -> bool:
    wanted = where.engine == "sqlite" if auto_migrate is None else auto_migrate
    return wanted and not where.read_only


async def _prepare_schema(engine: OwnEngine | AsyncOwnEngine, clock: Clock, migrates: bool) -> None:
    if migrates:
        await engine.exclusive(lambda connection: runner.up(connection, clock))
    else:
        await engine.exclusive(runner.check)
