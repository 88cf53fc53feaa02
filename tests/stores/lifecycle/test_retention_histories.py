"""Random histories of captures, ends, holds, policies and sweeps leave the same snapshots as a model of the rules."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import FixedClock, Holdfast, TenantHandle
from holdfast.types import Snapshot
from tests.conftest import SOAK
from tests.stores.lifecycle.conftest import MIB, POOL
from tests.stores.lifecycle.forging import body, forge, intact

DAY = 86_400
SIZES = (90_000, 200_000, 350_000)
"""Of bodies 0, 1, 2, 0 ...: of a MiB, a few fit."""

Steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("capture"), st.integers(0, 2), st.sets(st.integers(0, 11), min_size=1, max_size=3), st.booleans()
        ),
        st.tuples(st.just("end"), st.integers(0, 2)),
        st.tuples(st.just("hold"), st.one_of(st.none(), st.integers(0, 2))),
        st.tuples(st.just("release"), st.integers(0, 3)),
        st.tuples(st.just("per_run"), st.integers(1, 4), st.one_of(st.none(), st.integers(0, 2))),
        st.tuples(st.just("grace"), st.integers(0, 10)),
        st.tuples(st.just("keep"), st.integers(0, 2), st.integers(0, 100)),
        st.tuples(st.just("quota"), st.integers(0, 3)),
        st.tuples(st.just("days"), st.integers(1, 12)),
        st.tuples(st.just("sweep")),
    ),
    min_size=6,
    max_size=24,
)


def size_of(number: int) -> int:
    return SIZES[number % len(SIZES)] + number


class Model:
    """The rules, as a person would say them."""

    def __init__(self) -> None:
        self.now = 0
        self.runs: dict[int, list[tuple[int, str, frozenset[int]]]] = {0: [], 1: [], 2: []}
        self.ended: dict[int, int] = {}
        self.holds: list[int | None] = []
        self.per_run: dict[int | None, int] = {None: 10}
        self.grace, self.keep, self.quota = 7, dict.fromkeys(range(3), 0), 500

    def held(self, run: int) -> bool:
        return None in self.holds or run in self.holds

    def capped(self, run: int) -> None:
        most = self.per_run.get(run, self.per_run[None])
        if not self.held(run):
            self.runs[run] = self.runs[run][-most:]

    def sweep(self) -> None:
        for run, existing in self.runs.items():
            days = max(self.grace, min(self.keep[run], 90))
            if run in self.ended and self.ended[run] + days * DAY <= self.now and not self.held(run):
                existing.clear()
            self.capped(run)
        stays = [
            snapshot for run, existing in self.runs.items() for snapshot in existing if self._must_stay(run, snapshot)
        ]
        needed = {number for _, _, tree in stays for number in tree}
        for snapshot in sorted(
            (snapshot for existing in self.runs.values() for snapshot in existing if snapshot not in stays),
            reverse=True,
        ):
            more = needed | snapshot[2]
            if sum(map(size_of, more)) > self.quota * MIB:
                self._remove_up_to(snapshot, stays)
                return
            needed = more

    def _must_stay(self, run: int, snapshot: Any) -> bool:
        return self.held(run) or snapshot == self.runs[run][-1]

    def _remove_up_to(self, last: Any, stays: list[Any]) -> None:
        for run, existing in self.runs.items():
            self.runs[run] = [snapshot for snapshot in existing if snapshot in stays or snapshot > last]

    def left(self) -> list[str]:
        return [id for _, id, _ in sorted(snapshot for run in self.runs.values() for snapshot in run)]


class Real:
    """The same on a database."""

    def __init__(self, holdfast: Holdfast, clock: FixedClock, name: str) -> None:
        self.holdfast, self.clock = holdfast, clock
        self.acme: TenantHandle = holdfast.tenant(name)
        session = self.acme.sessions.create()
        self.runs = [self.acme.runs.start(session.id).id for _ in range(3)]
        self.holds: list[str] = []
        self.last: dict[int, Snapshot] = {}

    def capture(self, run: int, tree: frozenset[int], fresh: bool) -> str:
        existing = {snapshot.id for snapshot in self.acme.snapshots.list(run_id=self.runs[run])}
        before = self.last.get(run)
        on = before if not fresh and before is not None and before.id in existing else None
        bodies = [body(number, size_of(number)) for number in sorted(tree)]
        self.last[run] = forge(self.acme, self.runs[run], bodies, on=on)
        return self.last[run].id

    def sweep(self) -> None:
        planned = self.acme.retention.plan()
        assert self.acme.retention.sweep() == planned, "a plan equals the result of the sweep"

    def left(self) -> list[str]:
        return [snapshot.id for snapshot in self.acme.snapshots.list()][::-1]


def play(model: Model, real: Real, steps: list[tuple[Any, ...]]) -> None:
    for name, *arguments in steps:
        real.clock.advance(1)
        model.now += 1
        _STEPS[name](model, real, *arguments)
        assert real.left() == model.left(), name
    real.sweep()
    model.sweep()
    assert real.left() == model.left()
    assert intact(real.acme, real.left())
    real.acme.objects.prune(grace_s=0)
    assert intact(real.acme, real.left()), "no needed object was removed"
    needed = {number for run in model.runs.values() for _, _, tree in run for number in tree}
    stored_value, content = real.acme.objects.usage().stored_bytes, sum(map(size_of, needed))
    assert content <= stored_value <= content + 20_000, "no unneeded object is kept, except manifests"


def _capture(model: Model, real: Real, run: int, tree: set[int], fresh: bool) -> None:
    if run in model.ended:
        return
    model.runs[run].append((model.now, real.capture(run, frozenset(tree), fresh), frozenset(tree)))
    model.capped(run)


def _end(model: Model, real: Real, run: int) -> None:
    if run not in model.ended:
        real.acme.runs.cancel(real.runs[run])
        model.ended[run] = model.now


def _hold(model: Model, real: Real, run: int | None) -> None:
    real.holds.append(real.acme.retention.hold("why", run_id=None if run is None else real.runs[run]).id)
    model.holds.append(run)


def _release(model: Model, real: Real, which: int) -> None:
    if which < len(model.holds):
        real.acme.retention.release(real.holds.pop(which))
        model.holds.pop(which)


def _per_run(model: Model, real: Real, most: int, run: int | None) -> None:
    real.acme.retention.set_policy(per_run=most, run_id=None if run is None else real.runs[run])
    model.per_run[run] = most


def _grace(model: Model, real: Real, days: int) -> None:
    real.acme.retention.set_policy(grace_s=days * DAY)
    model.grace = days


def _keep(model: Model, real: Real, run: int, days: int) -> None:
    real.acme.retention.keep_snapshots_for(real.runs[run], seconds=days * DAY)
    model.keep[run] = days


def _quota(model: Model, real: Real, mib: int) -> None:
    real.holdfast.tenants.set_quota(real.acme.name, snapshot_quota_mib=mib)
    model.quota = mib


def _days(model: Model, real: Real, days: int) -> None:
    real.clock.advance(days * DAY)
    model.now += days * DAY


def _sweep(model: Model, real: Real) -> None:
    real.sweep()
    model.sweep()


_STEPS: dict[str, Any] = {
    "capture": _capture, "end": _end, "hold": _hold, "release": _release, "per_run": _per_run, "grace": _grace,
    "keep": _keep, "quota": _quota, "days": _days, "sweep": _sweep,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("holdfast.retention")
    before = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(before)


@settings(max_examples=1_000 if SOAK else 16, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(steps=Steps)
def test_random_histories_on_sqlite_follow_the_retention_rules(steps: list[tuple[Any, ...]]) -> None:
    clock = FixedClock()
    with Holdfast(":memory:", clock=clock) as holdfast:
        play(Model(), Real(holdfast, clock, "acme"), steps)


def test_random_histories_on_postgres_follow_the_retention_rules(postgres_url: str) -> None:
    clock = FixedClock()
    count = iter(range(10**9))
    with Holdfast(postgres_url, clock=clock, pool=POOL) as holdfast:

        @settings(
            max_examples=200 if SOAK else 3, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
        )
        @given(steps=Steps)
        def history(steps: list[tuple[Any, ...]]) -> None:
            play(Model(), Real(holdfast, clock, f"acme {next(count)}"), steps)

        history()
