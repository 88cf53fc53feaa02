"""The base of all stores: a scope, an engine, and methods that each run as one call of that engine.

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
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..engines.heavy_calls import HeavyCall
from ..engines.protocol import Connection, Engine
from . import actor_context
from .actor_context import ActorContext
from .scope import Scope

P = ParamSpec("P")
T = TypeVar("T")
AnyStore = TypeVar("AnyStore", bound="Store")
AnyTenantStore = TypeVar("AnyTenantStore", bound="TenantStore")
Composed = TypeVar("Composed", bound=Callable[..., Coroutine[Any, Any, Any]])
Method = Callable[Concatenate[AnyStore, Connection, P], Coroutine[Any, Any, T]]
ActorMethod = Callable[Concatenate[AnyTenantStore, Connection, ActorContext, P], Coroutine[Any, Any, T]]
PublicMethod = Callable[Concatenate[AnyStore, P], Coroutine[Any, Any, T]]


class Store:
    """An object whose methods run as calls of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine


class TenantStore(Store):
    """A store of one tenant's data. Every store is one, except the few whose data is outside of tenants."""

    def __init__(self, engine: Engine, scope: Scope) -> None:
        super().__init__(engine)
        self._scope = scope


def reads(method: Method[AnyStore, P, T]) -> PublicMethod[AnyStore, P, T]:
    """Decorate a method that only reads."""

    @wraps(method)
    def call(self: AnyStore, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._engine.read(lambda connection: method(self, connection, *args, **kwargs))

    return _public(call, method)


def writes(method: Method[AnyStore, P, T]) -> PublicMethod[AnyStore, P, T]:
    """Decorate a method that is one transaction: durable when it returns, without any effect when it raises."""

    @wraps(method)
    def call(self: AnyStore, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._engine.write(lambda connection: method(self, connection, *args, **kwargs))

    return _public(call, method)


def writes_in_thread(method: Method[AnyStore, P, T]) -> PublicMethod[AnyStore, P, T]:
    """``writes`` for a method whose statements may take long: under asyncio it runs in a thread, whatever the disk is like."""

    @wraps(method)
    def call(self: AnyStore, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._engine.write(HeavyCall(lambda connection: method(self, connection, *args, **kwargs)))

    return _public(call, method)


def only_reads(method: Composed) -> Composed:
    """Mark a method that makes several calls, or does more than its call, and only reads in all of them."""
    method.only_reads = True  # type: ignore[attr-defined]
    return method


def in_steps(method: Composed) -> Composed:
    """Mark a method that consists of several transactions: each is complete, and another call resumes after an interruption."""
    method.in_steps = True  # type: ignore[attr-defined]
    return method


def writes_with_actor(method: ActorMethod[AnyTenantStore, P, T]) -> PublicMethod[AnyTenantStore, P, T]:
    """``writes`` for a method that also receives the actor context, for the arguments that the caller left out.

    The context is read in the caller's thread: the method itself may run in a thread that also writes for other callers.
    """

    @wraps(method)
    def call(self: AnyTenantStore, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        now = actor_context.now(self._scope)
        return self._engine.write(lambda connection: method(self, connection, now, *args, **kwargs))

    return _public(call, method)


def within(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of another store as one that takes the connection, and the actor context if it writes: it runs in the
    transaction of the caller."""
    store: Any = method.__self__  # type: ignore[attr-defined]
    return partial(method.__wrapped__, store)  # type: ignore[attr-defined]


def _public(call: PublicMethod[AnyStore, P, T], method: Callable[..., Any]) -> PublicMethod[AnyStore, P, T]:
    """Set the signature that callers see: without the connection and the actor context."""
    signature = inspect.signature(method)
    parameters = [p for p in signature.parameters.values() if p.name not in ("connection", "acting")]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call
