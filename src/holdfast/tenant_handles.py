"""Tenant handles, for synchronous programs and for asyncio."""

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
    """The common part of both tenant handles."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = inner_engine(engine), scope
        self._arguments = (engine, scope)

    @property
    def name(self) -> str:
        """The tenant's name."""
        return self._scope.tenant

    @property
    def clock(self) -> Clock:
        """The source of all stored times."""
        return self._scope.clock

    @property
    def limits(self) -> Limits:
        """The limits on the inputs of a call."""
        return self._scope.limits

    @property
    def encryption(self) -> KeyRing:
        """The keys that encrypt secrets."""
        return self._scope.keys

    def count_tokens(self, content: Any) -> int:
        """Return the number of tokens of a message's content, by the ``count_tokens`` of this Holdfast, or an estimate."""
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
        api_key: str | None = None,
        address: str | None = None,
        workspace: str | None = None,
        sandbox_key: str | None = None,
        async_callback: Any = None,
    ) -> ActingBlock:
        """Set the actor of a ``with`` or ``async with`` block, for this tenant, the current task and the tasks that it starts.

        Rows that are created in the block without a user or an agent get these, and the activity log names them. Queries are
        not filtered by them. Blocks nest: the inner one overrides only the values that it sets. ``workspace``,
        ``sandbox_key`` and ``async_callback`` are for your tools, which read them with ``acting_now()``.

        Raises:
            InvalidInput: a value is not a valid name, or not a valid ``agent_type`` or ``peer_kind``.
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
            api_key=api_key,
            address=address,
            workspace=workspace,
            sandbox_key=sandbox_key,
            async_callback=async_callback,
        )

    def acting_now(self) -> ActorContext:
        """Return the current actor for this tenant; values that are not set are ``None``."""
        return actor_context.now(self._scope)

    def _reopener(self) -> Any:
        if self._engine.joined:
            raise InvalidInput(
                "a handle that has joined a connection cannot be opened a second time: join another connection instead",
                field="connection",
            )
        if self._scope.reopen is None:
            raise InvalidInput(
                "an in-memory database has one connection and cannot be opened a second time: use a file", field="url"
            )
        return self._scope.reopen


class AsyncTenantHandle(_AnyTenantHandle, AsyncHandle):
    """Access to the data of one tenant; no call can reach the data of another tenant."""

    def join(self, connection: Any) -> AsyncTenantHandle:
        """Return a handle of the same tenant on your own connection: writes commit or roll back with your transaction.

        Takes an asyncpg, psycopg (async) or aiosqlite connection, or SQLAlchemy's AsyncConnection or AsyncSession.

        Raises:
            InvalidInput: the connection is of an unsupported type, or of the other engine.
        """
        joined = join.asynchronous(connection, self._engine.dialect)
        engine = JoinedEngine(joined, connection_lock.for_tasks(connection), blocking=False, owner=self._engine)
        return AsyncTenantHandle(TenantEngine(engine, self._scope), self._scope)

    def as_sync(self) -> AbstractContextManager[TenantHandle]:
        """Open the same tenant for synchronous code, through a ``Holdfast`` that the ``with`` block opens and closes.

        Raises:
            InvalidInput: the database is in memory, or this handle has joined a connection.
        """
        handle: AbstractContextManager[TenantHandle] = self._reopener().sync(self._scope)
        return handle


class TenantHandle(_AnyTenantHandle, SyncHandle):
    """Access to the data of one tenant; no call can reach the data of another tenant."""

    def join(self, connection: Any) -> TenantHandle:
        """Return a handle of the same tenant on your own connection: writes commit or roll back with your transaction.

        Takes a psycopg, sqlite3 or apsw connection, or SQLAlchemy's Connection or Session.

        Raises:
            InvalidInput: the connection is of an unsupported type, or of the other engine.
        """
        joined = join.blocking(connection, self._engine.dialect)
        engine = JoinedEngine(joined, connection_lock.for_threads(connection), blocking=True, owner=self._engine)
        return TenantHandle(TenantEngine(engine, self._scope), self._scope)

    def as_async(self) -> AbstractAsyncContextManager[AsyncTenantHandle]:
        """Open the same tenant for asyncio, through an ``AsyncHoldfast`` that the ``async with`` block opens and closes.

        Raises:
            InvalidInput: the database is in memory, or this handle has joined a connection.
        """
        handle: AbstractAsyncContextManager[AsyncTenantHandle] = self._reopener().asynchronous(self._scope)
        return handle
