"""The contract of retention, clause by clause, on both engines, with packs in a directory and in a bucket."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from holdfast import AsyncHoldfast, PackStorage, TenantHandle
from holdfast.core.packs import folder_of
from holdfast.core.scope import Scope
from holdfast.erasure import ErasureConsumer
from holdfast.errors import Conflict, CrossTenant, InvalidInput, NotFound
from holdfast.stores.objects import packs
from holdfast.types import Snapshot
from tests.errors import raises
from tests.stores.lifecycle.conftest import MIB, POOL, SMALL, Bench, Lines

DAY = 86_400
LINE = re.compile(
    r'\{"event":"checkpoint\.deleted","run_id":"[0-9a-f-]{36}","checkpoint_id":"[0-9a-f-]{36}","koder_user_id":"[^"]+",'
    r'"size_bytes":\d+,"reason":"(per_run_cap|per_tenant_cap|grace_expired|erasure)"\}'
)


def files(place: PackStorage, tenant: str) -> list[str]:
    """The packs of a tenant."""
    return asyncio.run(place.names(folder_of(tenant), blocking=False))


def whole(existing: TenantHandle, snapshots: list[str]) -> bool:
    """Whether these can be read."""
    return all(existing.snapshots.read(snapshot, "file") for snapshot in snapshots)


def test_t1_capturing_the_eleventh_snapshot_deletes_the_oldest(bench: Bench, place: PackStorage, lines: Lines) -> None:
    acme, run, other = bench.tenant(), bench.run(), bench.run()
    first = bench.capture(other)
    made = [bench.capture(run).id for _ in range(10)]
    assert (bench.ids(run), lines.raw) == (made, [])
    made.append(bench.capture(run).id)
    assert bench.ids(run) == made[1:]
    assert lines.deleted("per_run_cap") == made[:1]
    assert bench.ids(other) == [first.id], "another run is not affected"
    assert whole(acme, made[1:])
    acme.retention.sweep()
    bench.clock.advance(3_600)
    acme.retention.sweep()
    assert len(files(place, "acme")) == 11, "its pack was removed too"
    assert whole(acme, made[1:])
    with pytest.raises(NotFound):
        acme.snapshots.get(made[0])


def test_t2_the_cap_deletes_the_oldest_across_runs_first_and_never_the_newest(
    bench: Bench, place: PackStorage, lines: Lines
) -> None:
    acme, one, other = bench.tenant(), bench.run(), bench.run()
    assert acme.retention.policy().quota_mib == 500
    made = [bench.capture(run, size=400_000).id for run in (one, other, one, other, one)]
    bench.quota(1)
    acme.retention.sweep()
    assert bench.ids() == made[3:], "of five, two fit"
    assert lines.deleted() == lines.deleted("per_tenant_cap") == made[:3]
    bench.quota(0)
    acme.retention.sweep()
    assert bench.ids() == made[3:], "the newest of a run stays even over the quota"
    bench.end(other)
    swept = acme.retention.sweep()
    assert bench.ids() == made[3:], "whether the run has ended or not"
    assert swept.over_bytes == swept.used_bytes > 0, "the tenant is over its quota, which is reported"
    assert acme.retention.plan().over_bytes == swept.over_bytes
    assert whole(acme, made[3:])
    assert len(files(place, "acme")) == 2
    assert acme.objects.usage().stored_bytes < MIB


def test_t3_the_grace_of_a_done_run_is_seven_days_and_at_most_ninety(bench: Bench, lines: Lines) -> None:
    acme = bench.tenant()
    usual, longer, clamped, live = (bench.run() for _ in range(4))
    made = {run: bench.capture(run).id for run in (usual, longer, clamped, live)}
    for run in (usual, longer, clamped):
        bench.end(run)
    assert acme.retention.policy(run_id=usual).grace_s == 7 * DAY
    assert acme.retention.keep_snapshots_for(longer, seconds=30 * DAY).grace_s == 30 * DAY
    assert acme.retention.keep_snapshots_for(clamped, seconds=10_000 * DAY).grace_s == 90 * DAY
    assert acme.retention.keep_snapshots_for(usual, seconds=DAY).grace_s == 7 * DAY, "it is never shortened"
    assert _gone_after(bench, lines, 7 * DAY - 1) == []
    assert _gone_after(bench, lines, 1) == [made[usual]]
    assert _gone_after(bench, lines, 23 * DAY) == [made[longer]]
    assert _gone_after(bench, lines, 60 * DAY - 1) == []
    assert _gone_after(bench, lines, 1) == [made[clamped]]
    assert _gone_after(bench, lines, 1_000 * DAY) == []
    assert bench.ids() == [made[live]], "an active run has not ended"
    with raises(InvalidInput, field="seconds"):
        acme.retention.keep_snapshots_for(usual, seconds=-1)


def _gone_after(bench: Bench, lines: Lines, seconds: int) -> list[str]:
    """What a sweep removes when so much time has passed."""
    bench.clock.advance(seconds)
    before = len(lines.raw)
    bench.tenant().retention.sweep()
    assert {event["reason"] for event in lines.said[before:]} <= {"grace_expired"}
    return lines.deleted()[before:]


def test_t4_the_erasure_event_removes_every_blob_of_the_tenant_within_24_hours(
    bench: Bench, address: str, place: PackStorage, redis_url: str, lines: Lines
) -> None:
    run, theirs = bench.run(), bench.run("zenith")
    made = [bench.capture(run).id for _ in range(3)]
    kept = bench.capture(theirs, tenant="zenith")
    assert files(place, "acme")
    publish(redis_url, {"type": "identity.user.erased", "data": '{"koder_user_id": "acme"}'})
    publish(redis_url, {"type": "identity.user.created", "koder_user_id": "zenith"})
    asyncio.run(consume(address, place, redis_url))
    assert lines.deleted("erasure") == lines.deleted() == made
    assert files(place, "acme") == []
    assert (bench.ids(), bench.tenant().objects.usage().count) == ([], 0)
    with pytest.raises(NotFound):
        bench.holdfast.tenants.get("acme")
    (erasure,) = bench.holdfast.erasures.list()
    assert erasure.finished_at is not None
    assert (erasure.due_at - erasure.requested_at).total_seconds() == DAY
    assert whole(bench.tenant("zenith"), [kept.id])
    assert len(files(place, "zenith")) == 1


def publish(redis_url: str, fields: dict[str, str]) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.xadd("koder:events:id", fields)  # type: ignore[arg-type]


async def consume(address: str, place: PackStorage, redis_url: str) -> None:
    async with AsyncHoldfast(address, packs=place, limits=SMALL, pool=POOL) as holdfast:
        consumer = ErasureConsumer(holdfast, redis_url)
        assert await consumer.once() == 2
        await consumer.close()


def test_t5_a_cross_tenant_delete_attempt_is_refused_with_a_structured_error(
    bench: Bench, place: PackStorage, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.capture(bench.run())
    theirs = bench.capture(bench.run("zenith"), tenant="zenith")
    (path,) = files(place, "zenith")
    listed = place.names

    async def everything(folder: str, *, blocking: bool) -> list[str]:
        """A storage that returns files of another tenant."""
        return [*await listed(folder, blocking=blocking), path]

    monkeypatch.setattr(place, "names", everything)
    with raises(CrossTenant, tenant="acme", path=path):
        bench.tenant().retention.sweep()
    refusal = {"koder_user_id": "acme", "path": path, "reason": "cross_tenant"}
    assert lines.said == [{"event": "checkpoint.delete_refused", **refusal}]
    monkeypatch.undo()
    assert files(place, "zenith") == [path]
    assert whole(bench.tenant("zenith"), [theirs.id])
    scope = Scope("acme", bench.holdfast._setting)
    own = folder_of("acme")
    for wrong in (
        f"{own}x/1",
        f"{own}/../{path}",
        f"{own}/..",
        f"{own}",
        f"{own}/",
        "",
        "/",
        f"/{own}/1",
        f"{own}/a/b",
    ):
        with pytest.raises(CrossTenant):
            packs.own_paths(scope, [f"{own}/1", wrong])
    assert bench.tenant().snapshots.delete([theirs.id], reason="mine now") == []
    assert bench.ids(tenant="zenith") == [theirs.id]


def test_t6_every_line_of_the_audit_log_has_the_shape_of_r6(bench: Bench, lines: Lines) -> None:
    acme, run, other = bench.tenant(), bench.run(), bench.run()
    acme.retention.set_policy(per_run=2)
    made: dict[str, Snapshot] = {}
    for size in (2_000, 400_000, 400_000):
        made |= {snapshot.id: snapshot for snapshot in [bench.capture(run, size=size)]}
    made |= {snapshot.id: snapshot for snapshot in [bench.capture(other, size=900_000)]}
    bench.quota(1)
    acme.retention.sweep()
    bench.end(other)
    bench.clock.advance(8 * DAY)
    acme.retention.sweep()
    bench.holdfast.erasures.request("acme", event_id="1-0", whole=False)
    assert bench.holdfast.erasures.carry_out("acme").is_finished
    assert [event["reason"] for event in lines.said] == ["per_run_cap", "per_tenant_cap", "grace_expired", "erasure"]
    for raw, message in zip(lines.raw, lines.said, strict=True):
        assert LINE.fullmatch(raw), raw
        removed = made[message["checkpoint_id"]]
        assert (message["run_id"], message["koder_user_id"], message["size_bytes"]) == (
            removed.run_id,
            "acme",
            removed.size_bytes,
        )
    noted = {deed.subject_id: deed for deed in acme.activity.list(action="checkpoint.deleted")}
    assert {id: deed.reason for id, deed in noted.items()} == {
        event["checkpoint_id"]: event["reason"] for event in lines.said
    }, "the activity log has the same"
    for id, deed in noted.items():
        assert deed.details == {"run_id": made[id].run_id, "size_bytes": made[id].size_bytes}


def test_held_snapshots_outlive_every_rule_and_the_erasure_of_the_tenant(
    local: Bench, lines: Lines, tmp_path: Path
) -> None:
    acme, run, other = local.tenant(), local.run(), local.run()
    held = [local.capture(run, size=400_000).id for _ in range(3)]
    free = local.capture(other, size=400_000).id
    hold = acme.retention.hold("case 7", run_id=run, placed_by="ada")
    acme.retention.set_policy(per_run=1, grace_s=0)
    local.quota(0)
    held.append(local.capture(run, size=400_000).id)
    for run_id in (run, other):
        local.end(run_id)
    plan = acme.retention.plan()
    assert (plan.count, plan.held_runs) == (1, 1)
    assert acme.retention.sweep() == plan
    assert lines.deleted() == [free]
    for remove in (
        lambda: local.holdfast.tenants.delete("acme", cascade=True),
        lambda: acme.sessions.purge(acme.runs.get(run).session_id),
        lambda: acme.snapshots.delete([held[0]], reason="by hand"),
    ):
        with raises(Conflict, reason="held"):
            remove()
    local.holdfast.erasures.request("acme", event_id="e")
    assert not local.holdfast.erasures.carry_out("acme").is_finished
    assert whole(acme, held)
    assert local.ids() == held
    assert acme.retention.release(hold.id, reason="closed") == hold
    assert local.holdfast.erasures.carry_out("acme").is_finished
    assert lines.deleted("erasure") == held
