"""What every store is made of: a scope, an engine, and methods that each run as one call of that engine.

A method is written once::

    class AsyncSessions(TenantStore):
        @reads
        async def get(self, connection: Connection, session_id: str) -> Session: ...

``@reads`` and ``@writes`` take the connection out of the signature: callers write ``await sessions.get(id)`` and the engine
decides where the call runs, in which transaction, and whether it is run again. The synchronous class beside it is one
line for each method: ``get = blocking(AsyncSessions.get)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..engines.heavy_calls import HeavyCall
from ..engines.protocol import Connection, Engine
from . import actor_context
from .actor_context import Acting
from .scope import Scope

P = ParamSpec("P")
T = TypeVar("T")
AnyStore = TypeVar("AnyStore", bound="Store")
AnyTenantStore = TypeVar("AnyTenantStore", bound="TenantStore")
Composed = TypeVar("Composed", bound=Callable[..., Coroutine[Any, Any, Any]])
Method = Callable[Concatenate[AnyStore, Connection, P], Coroutine[Any, Any, T]]
ActingMethod = Callable[Concatenate[AnyTenantStore, Connection, Acting, P], Coroutine[Any, Any, T]]
PublicMethod = Callable[Concatenate[AnyStore, P], Coroutine[Any, Any, T]]


class Store:
    """Something that runs its methods as calls of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine


class TenantStore(Store):
    """One kind of thing in one tenant. Every store is one, except the few that keep what is above all tenants."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        super().__init__(engine)
        self._scope = scope


def reads(method: Method[AnyStore, P, T]) -> PublicMethod[AnyStore, P, T]:
    """A method that only reads."""

    @wraps(method)
    def call(self: AnyStore, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._engine.read(lambda connection: method(self, connection, *args, **kwargs))

    return _public(call, method)


def writes(method: Method[AnyStore, P, T]) -> PublicMethod[AnyStore, P, T]:
    """A method that is one transaction: durable when it returns, without a trace when it raises."""

    @wraps(method)
    def call(self: AnyStore, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._engine.write(lambda connection: method(self, connection, *args, **kwargs))

    return _public(call, method)


def writes_heavily(method: Method[AnyStore, P, T]) -> PublicMethod[AnyStore, P, T]:
    """``writes``, for a method whose statements may take long: under asyncio it runs in a thread, whatever the disk is like."""

    @wraps(method)
    def call(self: AnyStore, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._engine.write(HeavyCall(lambda connection: method(self, connection, *args, **kwargs)))

    return _public(call, method)


def only_reads(method: Composed) -> Composed:
    """Says of a method that makes several calls, or does something beside its call, that all of them only read."""
    method.only_reads = True  # type: ignore[attr-defined]
    return method


def in_steps(method: Composed) -> Composed:
    """Says of a method that it is many transactions on purpose: each is whole, and what was broken off is gone on with."""
    method.in_steps = True  # type: ignore[attr-defined]
    return method


def writes_acting(method: ActingMethod[AnyTenantStore, P, T]) -> PublicMethod[AnyTenantStore, P, T]:
    """``writes``, for a method that is also told who acts, and fills in with it what the caller left out.

    It is looked up where the call is made: the method itself may run in a thread that writes for somebody else as well.
    """

    @wraps(method)
    def call(self: AnyTenantStore, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        now = actor_context.now(self._scope)
        return self._engine.write(lambda connection: method(self, connection, now, *args, **kwargs))

    return _public(call, method)


def _public(call: PublicMethod[AnyStore, P, T], method: Callable[..., Any]) -> PublicMethod[AnyStore, P, T]:
    """Show the signature callers use: without the connection and without who acts."""
    whole = inspect.signature(method)
    parameters = [each for each in whole.parameters.values() if each.name not in ("connection", "acting")]
    call.__signature__ = whole.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call
