"""The effect of a rewind on the grace period of an ended run, and of a tenant's own hold on its erasure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import FixedClock
from holdfast.clock import from_us
from tests.api.in_process import running
from tests.stores.lifecycle.conftest import Bench, Lines

DAY = 86_400
T = "/v1/tenants/acme"


def test_a_run_rewound_after_its_end_keeps_its_grace_period(local: Bench, lines: Lines) -> None:
    acme, run = local.tenant(), local.run()
    made = local.capture(run).id
    local.end(run)
    local.clock.advance(3 * DAY)
    acme.workspaces.rewind(run, 0, None, files=False)
    assert acme.runs.get(run).status == "waiting"
    acme.workspaces.rewind(run, 0, None, files=False)
    local.clock.advance(4 * DAY - 1)
    acme.retention.sweep()
    assert local.ids() == [made]
    local.clock.advance(1)
    assert acme.retention.plan().grace_expired.count == 1
    acme.runs.resume(run)
    assert acme.runs.get(run).status == "pending"
    acme.retention.sweep()
    assert local.ids() == [made], "an active run has not ended"
    held = acme.leases.claim("me", run_id=run)
    assert held is not None
    acme.runs.pause(run, epoch=held.epoch)
    acme.retention.sweep()
    assert local.ids() == [made], "nor has one that a worker has claimed since"
    acme.workspaces.rewind(run, 0, None, files=False)
    acme.retention.sweep()
    assert (local.ids(), lines.deleted()) == ([made], [])


def test_a_rewound_run_loses_its_snapshots_after_the_grace_period(local: Bench, lines: Lines) -> None:
    acme, run = local.tenant(), local.run()
    made = local.capture(run).id
    local.end(run)
    acme.workspaces.rewind(run, 0, None, files=False, keep_snapshots_for=10)
    local.clock.advance(10 * DAY - 1)
    acme.retention.sweep()
    assert local.ids() == [made]
    local.clock.advance(1)
    acme.retention.sweep()
    assert (local.ids(), lines.deleted("grace_expired")) == ([], [made])


def test_only_holds_of_an_operator_stop_an_erasure(
    address: str,
) -> None:
    async def play() -> None:
        async with running(address, migrate=True) as server:
            session = (await server.ask("POST", f"{T}/sessions", {})).json["id"]
            own = (await server.ask("POST", f"{T}/keys", {"name": "own", "scopes": ["admin"]})).json["key"]
            hold = {"reason": "mine", "session_id": session}
            placed = await server.ask("POST", f"{T}/retention/holds", hold, key=own)
            assert (placed.status, placed.json["by_tenant"]) == (201, True)
            legal = await server.ask("POST", f"{T}/retention/holds", {"reason": "case 7"})
            assert legal.json["by_tenant"] is False
            await server.ask("POST", f"{T}/erasures", {})
            refused = await server.ask("POST", f"{T}/retention/holds", hold, key=own)
            assert refused.status == 409, "the tenant cannot place another hold then"
            erasures = server.holdfast.erasures
            assert not (await erasures.carry_out("acme")).is_finished
            holds = (await server.ask("GET", f"{T}/retention/holds")).json["items"]
            assert [hold["id"] for hold in holds] == [legal.json["id"]]
            await server.ask("POST", f"{T}/retention/holds/{legal.json['id']}/release", {})
            assert (await erasures.carry_out("acme")).is_finished
            assert await server.holdfast.tenants.list() == []

    asyncio.run(play())


def test_an_overdue_erasure_shows_in_readiness_and_metrics(address: str) -> None:
    async def play() -> None:
        clock = FixedClock()
        async with running(address, migrate=True, clock=clock) as server:
            await server.ask("POST", f"{T}/sessions", {})
            await server.holdfast.erasures.request("acme", requested_at=from_us(clock.now_us()))
            assert (await seen(server)) == ({"status": "ready"}, "holdfast_overdue_erasures 0")
            clock.advance(DAY + 1)
            assert (await seen(server)) == ({"status": "ready", "overdue_erasures": 1}, "holdfast_overdue_erasures 1")
            await server.holdfast.erasures.carry_out("acme")
            assert (await seen(server)) == ({"status": "ready"}, "holdfast_overdue_erasures 0")

    async def seen(server: Any) -> tuple[Any, str]:
        ready = await server.ask("GET", "/readyz")
        assert ready.status == 200
        text = (await server.ask("GET", "/metrics")).body.decode()
        return ready.json, next(line for line in text.splitlines() if line.startswith("holdfast_overdue"))

    asyncio.run(play())


@pytest.mark.parametrize(("days", "kept"), [(30, 30), (90, 90), (91, 90), (10**9, 90)])
def test_keep_snapshots_for_over_http_is_limited_to_ninety_days(days: int, kept: int) -> None:
    async def play() -> None:
        async with running() as server:
            acme = server.holdfast.tenant("acme")
            run = await acme.runs.start((await acme.sessions.create()).id)
            asked = {"to_step": 0, "keep_checkpoints_for": days}
            reply = await server.ask("POST", f"{T}/runs/{run.id}/rewind", asked)
            assert reply.status == 200, reply.json
            assert (await acme.retention.policy(run_id=run.id)).grace_s == kept * DAY

    asyncio.run(play())
