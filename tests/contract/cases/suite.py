"""The contract suite: its cases, their discovery, and running one of them on a leg."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol
from unittest import SkipTest

from msgspec import Struct

from holdfast.limits import Limits
from holdfast.sync_runner import step
from tests.contract.cases.world import World

CAPABILITIES: Mapping[str, str] = {
    "concurrency": "several calls at once",
    "tenants": "the store that keeps the list of tenants",
    "reopening": "data that outlives the handle",
    "joining": "a caller's transaction around everything",
}
"""The capabilities that a case may need and a leg may lack."""


class Skipped(AssertionError):
    """A case did not run, although its leg declares every capability it needs."""


class Case(Struct, frozen=True):
    """One promise of the contract."""

    name: str
    promise: Callable[[World], Coroutine[Any, Any, None]]
    needs: frozenset[str]
    limits: Limits

    def __str__(self) -> str:
        return self.name


class Leg(Protocol):
    """An engine with a driver and a calling style (sync or async)."""

    @property
    def name(self) -> str: ...

    @property
    def asynchronous(self) -> bool:
        """Whether worlds must be opened inside an event loop."""

    @property
    def missing(self) -> Mapping[str, str]:
        """The capabilities this leg lacks, each with the reason."""

    def open(self, limits: Limits) -> AbstractAsyncContextManager[World]:
        """Open a fresh world. Leaving it checks that a rolled-back case left no rows."""


def contract(
    *needs: str, limits: Limits | None = None
) -> Callable[[Callable[[World], Coroutine[Any, Any, None]]], Case]:
    """Register a coroutine function as a case; ``needs`` names the capabilities it requires."""
    unknown = set(needs) - set(CAPABILITIES)
    if unknown:
        raise ValueError(f"no such capability: {', '.join(unknown)}")

    def case(promise: Callable[[World], Coroutine[Any, Any, None]]) -> Case:
        module = promise.__module__.rpartition(".")[2]
        return Case(f"{module}.{promise.__name__}", promise, frozenset(needs), limits or Limits())

    return case


@cache
def cases() -> tuple[Case, ...]:
    """Return every case in the modules of this package, so that new modules need no registration."""
    package = import_module(__package__)
    results: list[Case] = []
    for module in iter_modules(package.__path__):
        members = vars(import_module(f"{__package__}.{module.name}"))
        results += [value for value in members.values() if isinstance(value, Case)]
    return tuple(results)


def can(leg: Leg, case: Case) -> bool:
    """Return whether a leg has all capabilities that a case needs."""
    return not case.needs & set(leg.missing)


def play(case: Case, leg: Leg) -> None:
    """Run one case on one leg.

    Raises:
        Skipped: the leg lacks what the case needs, or the case skipped itself.
        AssertionError: the promise is not kept.
    """
    lacking = case.needs & set(leg.missing)
    if lacking:
        raise Skipped(f"{leg.name} has no {', '.join(sorted(lacking))}: {leg.missing[min(lacking)]}")
    playing = _play(case, leg)
    try:
        if leg.asynchronous:
            asyncio.run(playing)
        else:
            step(playing)
    except SkipTest as skip:
        raise Skipped(f"{case} skipped itself on {leg.name}: {skip}") from skip


async def _play(case: Case, leg: Leg) -> None:
    async with leg.open(case.limits) as world:
        await case.promise(world)
