"""The retention histories detect each planted defect."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

import pytest
from msgspec import structs

from holdfast import FixedClock, Holdfast
from holdfast.core.queries import Query
from holdfast.stores.lifecycle.retention import plans, quota, sweeps
from holdfast.stores.workspace import retention_rules as rules
from holdfast.stores.workspace import squash
from tests.stores.lifecycle.test_retention_histories import Model, Real, play

Defect = Callable[[], AbstractContextManager[Any]]
Step = tuple[Any, ...]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("holdfast.retention")
    before = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(before)


def captures(run: int, count: int, *, fresh: bool = True, first: int = 0) -> list[Step]:
    """Captures of one body each, as whole trees or as differences."""
    return [("capture", run, {first + number}, fresh) for number in range(count)]


def without(query: Query, text: str, instead: str) -> AbstractContextManager[Any]:
    """Patch a query so that a condition is missing."""
    changed = Query(query.name, {dialect: sql.replace(text, instead) for dialect, sql in query.texts.items()})
    assert changed.texts != query.texts
    return mock.patch.multiple(query, **vars(changed))


def ignoring_holds() -> AbstractContextManager[Any]:
    really = rules.run_of

    def run_of(connection: Any, row: Any) -> Any:
        return structs.replace(really(connection, row), is_held=False)

    return mock.patch.object(rules, "run_of", run_of)


def capping_what_is_held() -> AbstractContextManager[Any]:
    really = rules.run_snapshots

    async def look(*args: Any) -> Any:
        result = await really(*args)
        return None if result is None else structs.replace(result, is_held=False)

    return mock.patch.object(rules, "run_snapshots", look)


def unclamped() -> AbstractContextManager[Any]:
    really = rules.of_run

    def of_run(policy: Any, run: Any, scope: Any) -> Any:
        return structs.replace(really(policy, run, scope), grace_s=max(policy.grace_s, run.keep_s or 0))

    stack = ExitStack()
    stack.enter_context(mock.patch.object(rules, "of_run", of_run))
    stack.enter_context(mock.patch.object(rules, "min", lambda asked, most: asked, create=True))
    return stack


def shorter_grace() -> AbstractContextManager[Any]:
    really = rules.of_run

    def of_run(policy: Any, run: Any, scope: Any) -> Any:
        kept = really(policy, run, scope)
        return structs.replace(kept, grace_s=run.keep_s if run.keep_s is not None else kept.grace_s)

    return mock.patch.object(rules, "of_run", of_run)


def taking_everything() -> AbstractContextManager[Any]:
    async def take(self: Any, layer_id: str, quota: int | None) -> bool:
        return True

    return mock.patch.object(quota._Needs, "_take", take)


def counting_twice() -> AbstractContextManager[Any]:
    really = quota._Needs._take

    async def take(self: Any, layer_id: str, quota: int | None) -> bool:
        self._bodies = set()
        self._layers = set()
        return await really(self, layer_id, quota)

    return mock.patch.object(quota._Needs, "_take", take)


def never_squashing() -> AbstractContextManager[Any]:
    async def nothing(self: Any, *, always: bool = False) -> int:
        return 0

    return mock.patch.object(squash.Squasher, "all", nothing)


def forgetting_what_a_layer_needs() -> AbstractContextManager[Any]:
    async def nothing(self: Any, layer_id: str, digests: Any) -> None:
        return None

    return mock.patch.object(squash.Squasher, "_hold", nothing)


def planning_without_room() -> AbstractContextManager[Any]:
    async def nothing(self: Any) -> Any:
        return self._result

    return mock.patch.object(plans.RetentionPlan, "_fit_quota", nothing)


def newest_first() -> AbstractContextManager[Any]:
    return without(rules.queries.oldest_of_run, "ORDER BY o.created_at, o.id", "ORDER BY o.created_at DESC, o.id DESC")


def newest_of_runs_too() -> AbstractContextManager[Any]:
    stack = ExitStack()
    stack.enter_context(without(quota.queries.newest, "(n.created_at, n.id) > (s.created_at, s.id)", "1 = 1"))
    for query in (quota.queries.up_to, quota.queries.may_go):
        stack.enter_context(without(query, "(n.created_at, n.id) > (s.created_at, s.id)", "1 = 1"))
    return stack


def one_page_only() -> AbstractContextManager[Any]:
    stack = ExitStack()
    stack.enter_context(mock.patch.object(sweeps, "RUNS_PAGE", 1))
    stack.enter_context(mock.patch.object(sweeps, "next_page", return_value=None))
    return stack


def one_batch_only() -> AbstractContextManager[Any]:
    really = sweeps.Sweep._remove_from_run

    async def once(self: Any, run_id: str) -> int:
        await really(self, run_id)
        return 0

    stack = ExitStack()
    stack.enter_context(mock.patch.object(sweeps, "BATCH", 1))
    stack.enter_context(mock.patch.object(sweeps.Sweep, "_remove_from_run", once))
    return stack


HELD: list[Step] = [*captures(0, 3), ("hold", 0), ("per_run", 1, None), ("sweep",)]
HELD_ON_CAPTURE: list[Step] = [("per_run", 2, None), ("hold", 0), *captures(0, 4)]
KEPT: list[Step] = [*captures(0, 1), ("end", 0), ("keep", 0, 100), *([("days", 12)] * 8), ("sweep",)]
SHORT: list[Step] = [*captures(0, 1), ("keep", 0, 1), ("end", 0), ("days", 2), ("sweep",)]
OVER: list[Step] = [("quota", 1), *captures(0, 3, first=2), *captures(1, 5, first=5), ("sweep",)]
AGAIN: list[Step] = [("capture", 0, {2, 5, number % 2}, True) for number in range(6)]
SHARED: list[Step] = [("quota", 1), *captures(1, 1, first=8), *captures(1, 1), *AGAIN, ("sweep",)]
CHAIN: list[Step] = [("per_run", 1, None), *captures(0, 5, fresh=False), ("sweep",)]
CARRIED: list[Step] = [("per_run", 1, None), *[("capture", 0, {0, number}, False) for number in (1, 2, 3)], ("sweep",)]
LIVE: list[Step] = [("quota", 0), *captures(0, 1), *captures(1, 1, first=1), ("sweep",)]
PAGES: list[Step] = [*captures(0, 2), *captures(1, 2), *captures(2, 2), ("per_run", 1, None), ("sweep",)]

DEFECTS: list[tuple[Defect, list[Step]]] = [
    (ignoring_holds, HELD),
    (capping_what_is_held, HELD_ON_CAPTURE),
    (unclamped, KEPT),
    (shorter_grace, SHORT),
    (taking_everything, OVER),
    (counting_twice, SHARED),
    (never_squashing, CHAIN),
    (forgetting_what_a_layer_needs, CARRIED),
    (planning_without_room, OVER),
    (newest_first, HELD_ON_CAPTURE[:1] + captures(0, 4)),
    (newest_of_runs_too, LIVE),
    (one_page_only, PAGES),
    (one_batch_only, [*captures(0, 6), ("per_run", 1, None), ("sweep",)]),
]


def play_steps(steps: list[Step]) -> None:
    clock = FixedClock()
    with Holdfast(":memory:", clock=clock) as holdfast:
        play(Model(), Real(holdfast, clock, "acme"), steps)


@pytest.mark.parametrize(("defect", "steps"), [pytest.param(*case, id=case[0].__name__) for case in DEFECTS])
def test_a_planted_defect_is_reported(defect: Defect, steps: list[Step]) -> None:
    play_steps(steps)
    with defect(), pytest.raises(Exception):  # noqa: B017
        play_steps(steps)
