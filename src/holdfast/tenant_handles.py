"""The handle of one tenant, for synchronous programs and for asyncio."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from .clock import Clock
from .core import actor_context
from .core.actor_context import ActingBlock, ActorContext, AgentType, PeerKind
from .core.crypto import KeyRing
from .core.scope import Scope
from .drivers import connection_lock, join
from .engines.joined import JoinedEngine
from .engines.protocol import Engine
from .errors import InvalidInput
from .limits import Limits
from .store_lists import AsyncHandle, SyncHandle, TenantStores
from .stores.conversation.tokens import counter_of
from .stores.lifecycle.tenant_engine import TenantEngine, inner_engine


class _AnyTenantHandle(TenantStores):
    """What both handles of a tenant have."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = inner_engine(engine), scope
        self._arguments = (engine, scope)

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

    @property
    def encryption(self) -> KeyRing:
        """The keys that encrypt secrets."""
        return self._scope.keys

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

    def acting_now(self) -> ActorContext:
        """Who acts for this tenant here and now; what nobody said is ``None``."""
        return actor_context.now(self._scope)

    def _reopening(self) -> Any:
        if self._engine.joined:
            raise InvalidInput(
                "a handle that has joined your connection cannot be opened a second time: join another one"
            )
        if self._scope.reopen is None:
            raise InvalidInput("a database in memory has one connection and cannot be opened a second time: use a file")
        return self._scope.reopen


class AsyncTenantHandle(_AnyTenantHandle, AsyncHandle):
    """Everything of one tenant; no call through it can see another's."""

    def join(self, connection: Any) -> AsyncTenantHandle:
        """The same tenant on your own connection: what is written lives and dies with your transaction.

        Takes an asyncpg, psycopg (async) or aiosqlite connection, or SQLAlchemy's AsyncConnection or AsyncSession.

        Raises:
            InvalidInput: the object is none of these, or of the other engine.
        """
        joined = join.asynchronous(connection, self._engine.dialect)
        engine = JoinedEngine(joined, connection_lock.of_tasks(connection), blocking=False, owner=self._engine)
        return AsyncTenantHandle(TenantEngine(engine, self._scope), self._scope)

    def as_sync(self) -> AbstractContextManager[TenantHandle]:
        """The same tenant for synchronous code, through a ``Holdfast`` on the same database that the block opens and closes.

        Raises:
            InvalidInput: the database is in memory, or this handle has joined a connection of yours.
        """
        opened: AbstractContextManager[TenantHandle] = self._reopening().sync(self._scope)
        return opened


class TenantHandle(_AnyTenantHandle, SyncHandle):
    """Everything of one tenant; no call through it can see another's."""

    def join(self, connection: Any) -> TenantHandle:
        """The same tenant on your own connection: what is written lives and dies with your transaction.

        Takes a psycopg, sqlite3 or apsw connection, or SQLAlchemy's Connection or Session.

        Raises:
            InvalidInput: the object is none of these, or of the other engine.
        """
        joined = join.blocking(connection, self._engine.dialect)
        engine = JoinedEngine(joined, connection_lock.of_threads(connection), blocking=True, owner=self._engine)
        return TenantHandle(TenantEngine(engine, self._scope), self._scope)

    def as_async(self) -> AbstractAsyncContextManager[AsyncTenantHandle]:
        """The same tenant for asyncio, through an ``AsyncHoldfast`` on the same database that the block opens and closes.

        Raises:
            InvalidInput: the database is in memory, or this handle has joined a connection of yours.
        """
        opened: AbstractAsyncContextManager[AsyncTenantHandle] = self._reopening().asynchronous(self._scope)
        return opened
