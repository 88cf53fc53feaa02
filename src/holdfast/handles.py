"""``Holdfast`` and ``AsyncHoldfast``: the entry points of a program."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import address
from .clock import Clock, SystemClock
from .core.crypto import KeyRing, Keys
from .core.packs import PackStorage
from .core.scope import Scope, Setting
from .engines import factory
from .engines.factory import AsyncOwnEngine, OwnEngine
from .engines.postgres.options import PoolOptions
from .engines.sqlite.file import Durability
from .errors import InvalidInput
from .ids import IdSource, RandomIds
from .limits import Limits
from .migrations import runner
from .store_lists import AsyncHandle, PlatformStores, SyncHandle
from .stores.conversation.tokens import TokenCounter
from .stores.lifecycle.tenant_engine import TenantEngine
from .stores.wiring import SESSION_DEPENDENTS
from .sync_runner import step
from .tenant_handles import AsyncTenantHandle, TenantHandle


class Holdfast(PlatformStores, SyncHandle):
    """Durable state for agents, for synchronous programs. Safe to share between threads.

    Args:
        url: a path, ``sqlite:///path``, ``":memory:"`` or ``postgresql://...``.
        durability: ``"full"``: a call that returned survives a power cut. ``"normal"``: a power cut may lose the most recent
            commits (SQLite only).
        sqlite: ``"apsw"``, or ``"stdlib"`` to join connections of sqlite3, aiosqlite or SQLAlchemy on the same file.
        auto_migrate: migrate the schema when opening. The default is true for SQLite and false for PostgreSQL.
        pool: size and lifetimes of the PostgreSQL connection pool; overrides the options in the address.
        limits: limits on the inputs of a call.
        clock: the source of the current time.
        ids: the source of new ids.
        count_tokens: counts the tokens of a message's content where the caller does not provide the number. The default is
            an estimate.
        packs: a directory, or a URL such as ``s3://bucket/folder``, for large objects. The default for a SQLite file is a
            directory next to it, with the suffix ``.packs``; for other databases it is the database itself.
        encryption_key: the key for secrets, or several: the first one encrypts, and all of them decrypt. The default is the
            value of ``HOLDFAST_ENCRYPTION_KEY``.

    Raises:
        SchemaMismatch: the schema is newer than this release, or older and ``auto_migrate`` is false.
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
        packs: str | os.PathLike[str] | PackStorage | None = None,
        encryption_key: Keys | None = None,
    ) -> None:
        database = address.parse(url, library=sqlite)
        self._setting = _setting(database, limits, clock, ids, count_tokens, packs, encryption_key)
        self._setting.reopen = _reopener(url, durability=durability, sqlite=sqlite, pool=pool)
        self._engine: OwnEngine = factory.blocking(database, durability=durability, pool=pool)
        self._arguments = (self._engine, self._setting)
        try:
            step(_prepare_schema(self._engine, self._setting.clock, _migrates(database, auto_migrate)))
        except BaseException:
            self.close()
            raise

    def tenant(self, name: str) -> TenantHandle:
        """Return the handle of one tenant, without accessing the database.

        Raises:
            InvalidInput: the name is empty.
        """
        scope = Scope(name, self._setting)
        return TenantHandle(TenantEngine(self._engine, scope), scope)

    @property
    def limits(self) -> Limits:
        """The limits on the inputs of a call."""
        return self._setting.limits

    @property
    def encryption(self) -> KeyRing:
        """The keys that encrypt secrets."""
        return self._setting.keys

    def close(self) -> None:
        """Finish accepted work and close the database. Closing twice is harmless."""
        step(self._engine.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncHoldfast(PlatformStores, AsyncHandle):
    """Durable state for agents, for asyncio. Takes the same arguments as ``Holdfast``; open it with ``async with``."""

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
        packs: str | os.PathLike[str] | PackStorage | None = None,
        encryption_key: Keys | None = None,
    ) -> None:
        database = address.parse(url, library=sqlite)
        self._setting = _setting(database, limits, clock, ids, count_tokens, packs, encryption_key)
        self._setting.reopen = _reopener(url, durability=durability, sqlite=sqlite, pool=pool)
        self._migrates = _migrates(database, auto_migrate)
        self._engine: AsyncOwnEngine = factory.asynchronous(database, durability=durability, pool=pool)
        self._arguments = (self._engine, self._setting)

    async def open(self) -> Self:
        """Open the database, as ``async with`` does. Opening twice is harmless, and a closed handle can be opened again."""
        opened_now = await self._engine.open()
        try:
            await _prepare_schema(self._engine, self._setting.clock, self._migrates)
        except BaseException:
            if opened_now:
                await self.close()
            raise
        return self

    def tenant(self, name: str) -> AsyncTenantHandle:
        """Return the handle of one tenant, without accessing the database.

        Raises:
            InvalidInput: the name is empty.
        """
        scope = Scope(name, self._setting)
        return AsyncTenantHandle(TenantEngine(self._engine, scope), scope)

    @property
    def limits(self) -> Limits:
        """The limits on the inputs of a call."""
        return self._setting.limits

    @property
    def encryption(self) -> KeyRing:
        """The keys that encrypt secrets."""
        return self._setting.keys

    async def close(self) -> None:
        """Finish accepted work and close the database. Closing twice is harmless."""
        await self._engine.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()


def _setting(
    database: address.Address,
    limits: Limits | None,
    clock: Clock | None,
    ids: IdSource | None,
    count_tokens: TokenCounter | None,
    packs: str | os.PathLike[str] | PackStorage | None,
    encryption_key: Keys | None,
) -> Setting:
    if count_tokens is not None and not callable(count_tokens):
        raise InvalidInput(
            "count_tokens must be a function that takes a message's content and returns its number of tokens",
            field="count_tokens",
        )
    return Setting(
        clock=clock or SystemClock(),
        ids=ids or RandomIds(),
        limits=limits or Limits(),
        session_dependents=SESSION_DEPENDENTS,
        count_tokens=count_tokens,
        packs=_pack_place(database, packs),
        caches=None if (file := _file_of(database)) is None else file.with_name(f"{file.name}.cache"),
        keys=KeyRing.of(encryption_key),
    )


class _Reopener:
    """Opens the database of a handle a second time, with the same settings."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments

    @contextmanager
    def sync(self, scope: Scope) -> Iterator[TenantHandle]:
        """Open a synchronous handle of the tenant of a scope."""
        with Holdfast(**self._all(scope)) as hf:
            yield hf.tenant(scope.tenant)

    @asynccontextmanager
    async def asynchronous(self, scope: Scope) -> AsyncIterator[AsyncTenantHandle]:
        """Open an asyncio handle of the tenant of a scope."""
        async with AsyncHoldfast(**self._all(scope)) as hf:
            yield hf.tenant(scope.tenant)

    def _all(self, scope: Scope) -> dict[str, Any]:
        same = {name: getattr(scope, name) for name in ("clock", "count_tokens", "ids", "limits", "packs")}
        return {**self._arguments, **same, "encryption_key": scope.keys, "auto_migrate": False}


def _reopener(url: str, **arguments: Any) -> _Reopener | None:
    """Return ``None`` for a database in memory, which has one connection and cannot be opened a second time."""
    return None if address.is_in_memory(url) else _Reopener({"url": url, **arguments})


def _pack_place(database: address.Address, packs: str | os.PathLike[str] | PackStorage | None) -> PackStorage | None:
    """Return the location of large objects: the one of the caller, or else next to the file, or else in the database."""
    if packs is not None:
        return packs if isinstance(packs, PackStorage) else PackStorage(packs)
    file = _file_of(database)
    if file is None or find_spec("obstore") is None:
        return None
    return PackStorage(file.with_name(f"{file.name}.packs"), when_needed=True)


def _file_of(database: address.Address) -> Path | None:
    """Return the path of a database that is a SQLite file."""
    is_file = database.engine == "sqlite" and database.place and not database.place.startswith((":memory:", "file:"))
    return Path(database.place).absolute() if is_file else None


def _migrates(database: address.Address, auto_migrate: bool | None) -> bool:
    migrates = database.engine == "sqlite" if auto_migrate is None else auto_migrate
    return migrates and not database.read_only


async def _prepare_schema(engine: OwnEngine | AsyncOwnEngine, clock: Clock, migrates: bool) -> None:
    if migrates:
        await engine.exclusive(lambda connection: runner.up(connection, clock))
    else:
        await engine.exclusive(runner.check)
