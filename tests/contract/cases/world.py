"""The world of a case: handles, clock and the helpers that cases share."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol, TypeVar
from uuid import UUID

from holdfast.clock import FixedClock
from holdfast.limits import Limits
from holdfast.stores.conversation.message_log import Message
from holdfast.stores.conversation.sessions import Session
from holdfast.stores.execution.runs.leases import AsyncRunQueue
from holdfast.stores.lifecycle.api_keys import AsyncApiKeys
from holdfast.stores.lifecycle.tenants import AsyncTenants
from holdfast.sync_runner import step
from holdfast.tenant_handles import AsyncTenantHandle

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

THREADS = 8
"""The number of threads that a synchronous leg uses for concurrent calls."""


class Caller(Protocol):
    """The owner of the connection and the transaction that a leg has joined."""

    @property
    def connection(self) -> Any:
        """The argument of ``join``."""

    async def execute(self, sql: str) -> Sequence[Sequence[Any]]:
        """Run one statement of the caller's own and return its rows."""

    async def begin(self) -> None:
        """Begin the next transaction, after a commit or a rollback."""

    async def commit(self) -> None:
        """End the transaction and keep everything."""

    async def rollback(self) -> None:
        """End the transaction and undo everything."""


class World:
    """A database for one case, accessed through one leg.

    Args:
        handle: makes the handle of a tenant by its name.
        clock: the clock of every handle; it stands still until the case moves it.
        limits: the limits of every handle.
        blocking: whether calls block instead of suspending.
        tenants: the store of all tenants, where the leg has it.
        api_keys: the keys of all tenants, where the leg has the store of all tenants.
        run_queue: the runs of all tenants, where the leg has the store of all tenants.
        reopen: closes the database and opens it again, where the leg can.
        caller: the owner of the transaction, where the leg has joined one.
        outside: makes the handle of a tenant on a connection of its own, where the leg has joined one.
    """

    def __init__(
        self,
        handle: Callable[[str], AsyncTenantHandle],
        *,
        clock: FixedClock,
        limits: Limits,
        blocking: bool,
        tenants: Callable[[], AsyncTenants] | None = None,
        api_keys: Callable[[], AsyncApiKeys] | None = None,
        run_queue: Callable[[], AsyncRunQueue] | None = None,
        reopen: Callable[[], Awaitable[None]] | None = None,
        caller: Caller | None = None,
        outside: Callable[[str], Awaitable[AsyncTenantHandle]] | None = None,
    ) -> None:
        self._handle, self.clock, self.limits, self.blocking = handle, clock, limits, blocking
        self._run_queue, self._api_keys = run_queue, api_keys
        self._tenants, self._reopen, self._caller, self._outside = tenants, reopen, caller, outside

    def tenant(self, name: str = "acme") -> AsyncTenantHandle:
        """The handle of a tenant."""
        return self._handle(name)

    @property
    def tenants(self) -> AsyncTenants:
        """All tenants."""
        return _there(self._tenants)()

    @property
    def api_keys(self) -> AsyncApiKeys:
        """The API keys of all tenants."""
        return _there(self._api_keys)()

    @property
    def run_queue(self) -> AsyncRunQueue:
        """The runs of all tenants that wait for a worker."""
        return _there(self._run_queue)()

    async def reopen(self) -> None:
        """Close and reopen the database; earlier handles can no longer be used."""
        await _there(self._reopen)()

    @property
    def is_joined(self) -> bool:
        """Whether a caller's transaction was joined."""
        return self._caller is not None

    @property
    def caller(self) -> Caller:
        """The owner of the transaction that was joined."""
        return _there(self._caller)

    async def outside(self, name: str = "acme") -> AsyncTenantHandle:
        """Return a tenant on a separate connection, outside of the caller's transaction."""
        return await _there(self._outside)(name)

    async def together(self, *calls: Callable[[], Awaitable[T]]) -> list[T | Exception]:
        """Make several calls concurrently; return the result or the error of each."""
        if not self.blocking:
            outcomes = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
            return [_no_interruption(outcome) for outcome in outcomes]
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(lambda call: step(_outcome(call)), calls))


class Caught:
    """The error that ``raises`` has caught."""

    error: BaseException


@contextmanager
def raises(kind: type[BaseException], *, saying: str = "", **fields: Any) -> Iterator[Caught]:
    """Check that the block raises exactly this error, not a subclass, with these words and these values of its fields."""
    caught = Caught()
    try:
        yield caught
    except BaseException as error:
        if type(error) is not kind:
            raise
        caught.error = error
    else:
        raise AssertionError(f"{kind.__name__} was not raised")
    assert saying in str(caught.error), f"{str(caught.error)!r} does not contain {saying!r}"
    assert {name: getattr(caught.error, name) for name in fields} == fields, str(caught.error)


@contextmanager
def raises_kind_of(kind: type[BaseException]) -> Iterator[None]:
    """Check that the block raises this error or a subclass of it."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def uuid_of(name: object) -> str:
    """Return an id for a name; equal names give equal ids."""
    return str(UUID(bytes=hashlib.blake2b(str(name).encode(), digest_size=16).digest(), version=4))


def flat(pages: Iterable[Sequence[T]]) -> list[T]:
    """Return the rows of several pages."""
    return [*chain.from_iterable(pages)]


async def everything(handle: AsyncTenantHandle) -> list[tuple[Session, list[Message]]]:
    """Return all sessions of a tenant, including deleted ones, and the messages of the live ones."""
    live = await handle.sessions.list()
    result = [(session, [*await handle.messages.list(session.id)]) for session in live]
    return result + [(session, []) for session in await handle.sessions.list(deleted=True)]


async def _outcome(call: Callable[[], Awaitable[T]]) -> T | Exception:
    try:
        return await call()
    except Exception as error:
        return error


def _no_interruption(outcome: T | BaseException) -> T | Exception:
    if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
        raise outcome
    return outcome


def _there(found: T | None) -> T:
    if found is None:
        raise AssertionError("this leg has no such thing: the case must say that it needs it")
    return found
