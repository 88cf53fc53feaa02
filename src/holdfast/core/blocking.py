"""Synchronous store classes: one typed line for each method of the asynchronous class.

``get = blocking(AsyncSessions.get)`` keeps the exact signature of the method; ``sync_runner`` runs its coroutine.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from ..sync_runner import step

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
F = TypeVar("F")


class Blocking(Generic[A]):
    """Base of the synchronous wrappers of asynchronous objects that run on a blocking engine."""

    def __init__(self, asynchronous: A) -> None:
        self._async = asynchronous


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[Any], P], T]:
    """Return the method as one that is called without ``await``."""

    @wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return step(method(self._async, *args, **kwargs))

    return call


def blocking_as(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]], wrap: Callable[[T], F]
) -> Callable[Concatenate[Blocking[A], P], F]:
    """Return the method as one that is called without ``await`` and wraps its asynchronous result in a synchronous class."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> F:
        return wrap(step(method(self._async, *args, **kwargs)))

    return call
