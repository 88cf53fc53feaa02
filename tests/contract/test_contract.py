"""Every case of the contract on every leg that has the capabilities the case needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest import SkipTest

import pytest

from holdfast.limits import Limits
from tests.contract import citus
from tests.contract.cases import CAPABILITIES, Case, Leg, Skipped, World, can, cases, contract, play
from tests.contract.legs import JoinedLeg, MemoryPlace, OwnLeg, postgres_legs, sqlite_legs

LEGS = {leg.name: leg for leg in [*sqlite_legs(Path("nowhere")), *postgres_legs("nowhere")]}
if citus.COORDINATOR or citus.INSTALLED:
    LEGS |= {leg.name: leg for leg in citus.citus_legs("nowhere")}
SQLALCHEMY = ("transactions", "sessions", "messages", "round_trips", "runs")
"""The cases that always run on SQLAlchemy, which finds the connection of a driver whose own leg runs every case: what differs is
the transaction, and the values of each type on a connection that SQLAlchemy configured. The rest runs in ``make soak``."""


def marks(leg: str, case: Case) -> list[pytest.MarkDecorator]:
    """Return the markers of a case on a leg: the leg, and whether it belongs to the soak run or the quick run."""
    waits = "sqlalchemy" in leg and str(case).partition(".")[0] not in SQLALCHEMY
    is_quick = leg.startswith("sqlite memory")
    return [pytest.mark.leg(leg), *([pytest.mark.soak] if waits else []), *([pytest.mark.quick] if is_quick else [])]


PLAYED = [
    pytest.param(leg.name, case, id=f"{leg.name}: {case}", marks=marks(leg.name, case))
    for leg in LEGS.values()
    for case in cases()
    if can(leg, case)
]


@pytest.mark.parametrize(("leg", "case"), PLAYED)
def test_the_contract_holds(leg: str, case: Case, leg_by_name: Callable[[str], OwnLeg | JoinedLeg]) -> None:
    play(case, leg_by_name(leg))


def test_the_contract_runs_on_citus_if_a_cluster_is_configured() -> None:
    if not any(name.startswith("citus") for name in LEGS):
        pytest.skip(citus.ABSENT)


def test_every_capability_is_used_by_a_case_and_a_leg_of_each_engine() -> None:
    needed = set().union(*(case.needs for case in cases()))
    assert needed == set(CAPABILITIES)
    for engine in ("sqlite", "postgres"):
        legs = [leg for leg in LEGS.values() if leg.name.startswith(engine)]
        for capability in CAPABILITIES:
            assert any(capability not in leg.missing for leg in legs), f"nothing on {engine} has {capability}"


def test_a_leg_lacks_only_known_capabilities_and_gives_reasons() -> None:
    for leg in LEGS.values():
        assert set(leg.missing) <= set(CAPABILITIES), leg.name
        assert all(len(reason) > 10 for reason in leg.missing.values()), leg.name


def test_every_case_runs_on_both_engines_sync_and_async() -> None:
    always = [item.values for item in PLAYED if pytest.mark.soak not in item.marks]
    runs = Counter((case, name.split()[0], LEGS[name].asynchronous) for name, case in always)
    for case in cases():
        for engine in ("sqlite", "postgres"):
            for asynchronous in (True, False):
                assert runs[case, engine, asynchronous], f"{case} never runs on {engine}, asynchronous={asynchronous}"


def test_every_driver_has_a_leg() -> None:
    from holdfast.drivers import join

    drivers = {driver.replace("_", " ") for driver in {*join._BLOCKING.values(), *join._ASYNCHRONOUS.values()}}
    always = Counter(name for name, _ in (item.values for item in PLAYED if pytest.mark.soak not in item.marks))
    for driver in drivers:
        legs = [leg for leg in LEGS.values() if f"joined {driver}" in leg.name]
        assert legs, f"no leg joins {driver}"
        if driver != "sqlalchemy":
            assert any(always[leg.name] == sum(can(leg, case) for case in cases()) for leg in legs), driver


@contract("joining")
async def _needs_a_caller(world: World) -> None:
    await world.caller.commit()


@contract()
async def _skips_itself(world: World) -> None:
    raise SkipTest("not today")


@contract()
async def _breaks_its_promise(world: World) -> None:
    assert await world.tenant().sessions.count() == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_case_that_does_not_run_fails(asynchronous: bool) -> None:
    leg: Leg = OwnLeg("memory", MemoryPlace(), asynchronous)
    with pytest.raises(Skipped, match="has no joining: the connection is our own"):
        play(_needs_a_caller, leg)
    with pytest.raises(Skipped, match="skipped itself on memory: not today"):
        play(_skips_itself, leg)
    with pytest.raises(AssertionError):
        play(_breaks_its_promise, leg)


def test_an_unknown_capability_is_rejected() -> None:
    with pytest.raises(ValueError, match="telepathy"):
        contract("telepathy")


@contract()
async def _commits_behind_the_legs_back(world: World) -> None:
    await world.tenant().sessions.create()
    await world.caller.execute("COMMIT")
    await world.caller.execute("BEGIN")


@contract()
async def _harms_the_resident(world: World) -> None:
    resident = world.tenant("resident")
    await resident.sessions.purge((await resident.sessions.list())[0].id)


@contract()
async def _finds_no_session(world: World) -> None:
    assert await world.tenant().sessions.count() == 0


@pytest.mark.parametrize("name", ["sqlite joined apsw", "sqlite joined sqlite3", "postgres joined psycopg"])
def test_a_leg_detects_rows_left_after_the_rollback(
    name: str, leg_by_name: Callable[[str], OwnLeg | JoinedLeg]
) -> None:
    with pytest.raises(AssertionError, match="the caller rolled back, but the database has changed"):
        play(_commits_behind_the_legs_back, leg_by_name(name))
    play(_finds_no_session, leg_by_name(name))


@pytest.mark.parametrize("name", ["sqlite file sync", "sqlite file async", "postgres sync", "postgres async"])
def test_a_leg_detects_changes_to_other_tenants(name: str, leg_by_name: Callable[[str], OwnLeg | JoinedLeg]) -> None:
    try:
        with pytest.raises(AssertionError, match=r"a row of another tenant in .* was changed or removed"):
            play(_harms_the_resident, leg_by_name(name))
    finally:
        leg_by_name(name).place.renew()


def test_the_limits_of_a_case_apply_to_its_handles() -> None:
    seen: list[Limits] = []

    @contract(limits=Limits(filters=3))
    async def case(world: World) -> None:
        seen.append(world.tenant()._scope.limits)

    play(case, OwnLeg("memory", MemoryPlace(), False))
    assert seen == [Limits(filters=3)]
