"""The engine behind a tenant's handle: it refuses every call while the tenant is being deleted.

A deletion takes many transactions, and no caller should see a partly deleted tenant. A new handle checks once whether
its tenant is being deleted, and every call checks again once this process has started to delete that tenant;
otherwise a call has no extra cost. Handles that other processes opened earlier find no data once the sessions are
hidden, which is the first step of a deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ...clock import monotonic_s
from ...core.queries import Queries
from ...core.scope import Scope, Setting
from ...engines.dialect import Dialect
from ...engines.protocol import Call, Connection, Engine, Group
from ...errors import Conflict, HoldfastError, NotFound

T = TypeVar("T")
Item = TypeVar("Item")

KNOWN_S = 1.0
"""Seconds for which one check serves all new handles of a tenant in this process."""
MAX_KNOWN = 10_000
"""Number of tenants whose checks are cached."""

queries = Queries(__package__, "tenants.sql")


def tenants_being_deleted(setting: Setting) -> set[str]:
    """Return the tenants that this process has started to delete, by their stored names."""
    tenants: set[str] = setting.shared.setdefault("tenants being deleted", set())
    return tenants


class TenantEngine:
    """An engine for the calls of one tenant."""

    __slots__ = ("_deleting", "_engine", "_is_known", "_known", "_scope")

    def __init__(self, engine: Engine, scope: Scope) -> None:
        self._engine, self._scope = engine, scope
        self._deleting = tenants_being_deleted(scope)
        self._known: dict[str, float] = scope.shared.setdefault("tenants not being deleted", {})
        self._is_known = False

    @property
    def dialect(self) -> Dialect:
        """The dialect of the wrapped engine."""
        return self._engine.dialect

    @property
    def blocking(self) -> bool:
        return self._engine.blocking

    @property
    def joined(self) -> bool:
        return self._engine.joined

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def read(self, call: Call[T]) -> Coroutine[Any, Any, T]:
        if self._is_known and not self._deleting:
            return self._engine.read(call)
        return self._checked(NotFound, self._engine.read, call)

    def write(self, call: Call[T]) -> Coroutine[Any, Any, T]:
        if self._is_known and not self._deleting:
            return self._engine.write(call)
        return self._checked(Conflict, self._engine.write, call)

    def grouped(self, group: Group[Item, T], item: Item) -> Coroutine[Any, Any, T]:
        if self._is_known and not self._deleting:
            return self._engine.grouped(group, item)
        return self._checked(Conflict, self._engine.grouped, group, item)

    def _deletion_error(self, error: type[HoldfastError]) -> HoldfastError:
        message = deletion_message(self._scope.tenant)
        if error is Conflict:
            return Conflict(message, reason="being_deleted")
        return NotFound(message, noun="tenant", key=self._scope.tenant)

    async def _checked(
        self, error: type[HoldfastError], method: Callable[..., Coroutine[Any, Any, T]], *args: Any
    ) -> T:
        tenant = self._scope.stored_tenant
        if tenant in self._deleting or not (self._is_known or self._known.get(tenant, 0.0) > monotonic_s()):
            # In a caller's transaction a failing statement must not abort it: a write has a savepoint, a read has none.
            execute = self._engine.write if self._engine.joined and error is Conflict else self._engine.read
            if await execute(self._is_deleted):
                raise self._deletion_error(error)
            self._deleting.discard(tenant)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[tenant] = monotonic_s() + KNOWN_S
        self._is_known = True
        return await method(*args)

    async def _is_deleted(self, connection: Connection) -> bool:
        return await queries.is_deleted.one(connection, self._scope.params()) is not None


def inner_engine(engine: Engine) -> Engine:
    """Return the wrapped engine, or ``engine`` itself if it is not wrapped."""
    return engine._engine if isinstance(engine, TenantEngine) else engine


def deletion_message(tenant: str) -> str:
    """Return the error message for calls that use the name of a tenant while it is being deleted."""
    return (
        f"tenant {tenant!r} was deleted and is being removed; its name can be used again when that is finished: "
        "call tenants.delete again to finish it now, or leave it to `holdfast serve` or `holdfast worker`"
    )
