"""``Holdfast`` and ``AsyncHoldfast``: what a program opens."""

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
        encryption_key: the key for secrets, or several: the first one encrypts, all of them decrypt. Without it, what
            ``HOLDFAST_ENCRYPTION_KEY`` holds.

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
        packs: str | os.PathLike[str] | PackStorage | None = None,
        encryption_key: Keys | None = None,
    ) -> None:
        where = address.parse(url, library=sqlite)
        self._setting = _setting(where, limits, clock, ids, count_tokens, packs, encryption_key)
        self._setting.reopen = _reopening(url, durability=durability, sqlite=sqlite, pool=pool)
        self._engine: OwnEngine = factory.blocking(where, durability=durability, pool=pool)
        self._arguments = (self._engine, self._setting)
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
    def encryption(self) -> KeyRing:
        """The keys that encrypt secrets."""
        return self._setting.keys

    def close(self) -> None:
        """Finish what was accepted and let go of the database. Closing twice is fine."""
        step(self._engine.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncHoldfast(PlatformStores, AsyncHandle):
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
        packs: str | os.PathLike[str] | PackStorage | None = None,
        encryption_key: Keys | None = None,
    ) -> None:
        where = address.parse(url, library=sqlite)
        self._setting = _setting(where, limits, clock, ids, count_tokens, packs, encryption_key)
        self._setting.reopen = _reopening(url, durability=durability, sqlite=sqlite, pool=pool)
        self._migrates = _migrates(where, auto_migrate)
        self._engine: AsyncOwnEngine = factory.asynchronous(where, durability=durability, pool=pool)
        self._arguments = (self._engine, self._setting)

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
    def encryption(self) -> KeyRing:
        """The keys that encrypt secrets."""
        return self._setting.keys

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
    packs: str | os.PathLike[str] | PackStorage | None,
    encryption_key: Keys | None,
) -> Setting:
    if count_tokens is not None and not callable(count_tokens):
        raise InvalidInput("count_tokens must be a function from a message's content to a number of tokens")
    return Setting(
        clock=clock or SystemClock(),
        ids=ids or RandomIds(),
        limits=limits or Limits(),
        session_dependents=SESSION_DEPENDENTS,
        count_tokens=count_tokens,
        packs=_pack_place(where, packs),
        caches=None if (file := _file_of(where)) is None else file.with_name(f"{file.name}.cache"),
        keys=KeyRing.of(encryption_key),
    )


class _Reopening:
    """Opens the database of a handle a second time, with the same settings."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments

    @contextmanager
    def sync(self, scope: Scope) -> Iterator[TenantHandle]:
        """The tenant of a scope for synchronous programs."""
        with Holdfast(**self._all(scope)) as hf:
            yield hf.tenant(scope.tenant)

    @asynccontextmanager
    async def asynchronous(self, scope: Scope) -> AsyncIterator[AsyncTenantHandle]:
        """The tenant of a scope for asyncio."""
        async with AsyncHoldfast(**self._all(scope)) as hf:
            yield hf.tenant(scope.tenant)

    def _all(self, scope: Scope) -> dict[str, Any]:
        same = {name: getattr(scope, name) for name in ("clock", "count_tokens", "ids", "limits", "packs")}
        return {**self._arguments, **same, "encryption_key": scope.keys, "auto_migrate": False}


def _reopening(url: str, **arguments: Any) -> _Reopening | None:
    """A database in memory has one connection, and cannot be opened a second time."""
    return None if address.is_in_memory(url) else _Reopening({"url": url, **arguments})


def _pack_place(where: address.Address, packs: str | os.PathLike[str] | PackStorage | None) -> PackStorage | None:
    """Where large objects lie: as the caller says, or else beside the file, or else in the database."""
    if packs is not None:
        return packs if isinstance(packs, PackStorage) else PackStorage(packs)
    file = _file_of(where)
    if file is None or find_spec("obstore") is None:
        return None
    return PackStorage(file.with_name(f"{file.name}.packs"), when_needed=True)


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
