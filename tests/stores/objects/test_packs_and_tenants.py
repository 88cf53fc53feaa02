"""The life of a pack from registration to removal, and the tenants that packs belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import FixedClock, Holdfast, Limits, NewAgent, TenantHandle
from holdfast.core import objects as bodies
from holdfast.core.packs import folder_of
from holdfast.core.queries import Query
from holdfast.core.scope import Scope
from holdfast.engines.protocol import Connection
from holdfast.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    CrossTenant,
    InvalidInput,
    LimitExceeded,
    NotFound,
    Unavailable,
)
from holdfast.stores.objects import packs
from holdfast.stores.objects.packs import InPack, Staged
from holdfast.sync_runner import step
from tests.errors import raises

SMALL = Limits(pack_from_bytes=100, tenant_bytes=30)
NAMES = ["acme", "\ud800", "a\udfff", "名前", "\x00", "../acme", "/", ".", "x" * 30, "\U0010f000"]


def body(number: int, size: int = 200) -> bytes:
    return Random(number).randbytes(size)


class Bench:
    """A Holdfast with packs in a directory, and methods to work on the packs directly."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder / "packs", FixedClock()
        self.holdfast = Holdfast(":memory:", packs=self.folder, limits=SMALL, clock=self.clock)
        self.acme, self.engine = self.holdfast.tenant("acme"), self.holdfast._engine
        self.scope = Scope("acme", self.holdfast._setting)

    def files(self, tenant: str = "acme") -> list[str]:
        folder = self.folder / folder_of(tenant)
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def stage(self, *contents: bytes) -> Staged | None:
        return step(packs.stage(self.engine, self.scope, [bodies.pack(content) for content in contents]))

    def seal(self, staged: Staged | None) -> Staged | None:
        return step(self.engine.write(lambda connection: packs.seal(connection, self.scope, staged)))

    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        params = self.scope.params(**values)

        async def run(connection: Connection) -> list[tuple[Any, ...]]:
            return [*await Query("planted", {connection.dialect: sql}).all(connection, params)]

        return step(self.engine.write(run))

    def registered(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT id, is_sealed FROM object_packs WHERE tenant_id = :tenant_id ORDER BY id")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    new_bench = Bench(tmp_path)
    yield new_bench
    new_bench.holdfast.close()


@pytest.fixture(scope="module")
def scope() -> Scope:
    with Holdfast(":memory:") as holdfast:
        return Scope("acme", holdfast._setting)


def test_a_body_is_stored_in_a_pack_from_the_limit_on(bench: Bench) -> None:
    bench.acme.objects.put([body(1, 99)], holder="me")
    assert bench.files() == []
    bench.acme.objects.put([body(2, 100)], holder="me")
    assert len(bench.files()) == 1


def test_a_body_that_compresses_well_is_stored_in_the_database(bench: Bench) -> None:
    bench.acme.objects.put([b"a" * 100_000], holder="me")
    assert (bench.files(), bench.acme.objects.usage().packs) == ([], 0)


def test_a_pack_contains_the_bodies_one_after_the_other(bench: Bench) -> None:
    staged = bench.stage(body(1), b"small", body(2, 300))
    assert staged is not None
    assert (bench.folder / folder_of("acme") / staged.id).read_bytes() == body(1) + body(2, 300)
    assert staged.starts == {bodies.digest_of(body(1)): 0, bodies.digest_of(body(2, 300)): 200}
    assert bench.registered() == [(staged.id, 0)], "registered, and not sealed"


def test_no_pack_is_written_without_new_large_bodies(bench: Bench) -> None:
    assert bench.stage() is None
    assert bench.stage(b"small") is None
    bench.acme.objects.put([body(1)], holder="me")
    assert bench.stage(body(1)) is None, "the body is stored already"
    staged = bench.stage(body(1), body(2))
    assert staged is not None
    assert list(staged.starts) == [bodies.digest_of(body(2))]


def test_a_pack_can_be_sealed_repeatedly_until_it_is_condemned(bench: Bench) -> None:
    staged = bench.stage(body(1))
    assert staged is not None
    assert bench.seal(staged) == staged == bench.seal(staged)
    assert bench.registered() == [(staged.id, 1)]
    bench.acme.objects.prune(grace_s=0)
    assert bench.seal(staged) is None, "the pack was empty, so it was removed"
    assert (bench.seal(None), bench.registered(), bench.files()) == (None, [], [])


def test_an_unsealed_pack_is_removed_after_the_grace_period(bench: Bench) -> None:
    bench.stage(body(1))
    assert (bench.acme.objects.prune().packs, len(bench.files())) == (0, 1)
    bench.clock.advance(3_599)
    assert (bench.acme.objects.prune().packs, len(bench.files())) == (0, 1)
    bench.clock.advance(1)
    assert (bench.acme.objects.prune().packs, bench.files(), bench.registered()) == (1, [], [])


def test_a_body_whose_pack_was_not_sealed_in_time_is_stored_in_the_database(bench: Bench) -> None:
    packed = bodies.pack(body(1))
    staged = bench.stage(body(1))
    bench.acme.objects.prune(grace_s=0)
    step(bench.acme.objects._async._put([packed], "me", staged))
    assert (bench.files(), bench.registered()) == ([], [])
    digest = packed.digest.hex()
    assert bench.acme.objects.get([digest]) == [body(1)]


def test_bodies_of_several_packs_are_read_together(bench: Bench) -> None:
    digests = [bench.acme.objects.put([body(number)], holder="me")[0] for number in range(3)]
    assert len(bench.files()) == 3
    assert bench.acme.objects.get(digests[::-1]) == [body(2), body(1), body(0)]
    rows = bench.rows("SELECT digest, codec, pack, pack_start, stored_bytes FROM objects WHERE tenant_id = :tenant_id")
    references = [InPack(bytes(digest), *location) for digest, *location in rows]
    fetched = step(packs.fetch(bench.engine, bench.scope, references))
    assert sorted(fetched.values()) == sorted(body(number) for number in range(3))
    assert step(packs.read_stored(bench.engine, bench.scope, [])) == {}


def test_a_missing_pack_raises_not_found(bench: Bench) -> None:
    bench.acme.objects.put([body(1)], holder="me")
    reference = InPack(bytes(32), 0, "missing", 0, 5)
    with raises(NotFound, noun="pack"):
        step(packs.read_stored(bench.engine, bench.scope, [reference]))


def test_a_lost_pack_is_reported_as_damage(bench: Bench) -> None:
    (digest,) = bench.acme.objects.put([body(1)], holder="me")
    (name,) = bench.files()
    (bench.folder / folder_of("acme") / name).unlink()
    with pytest.raises(Corrupt, match=name):
        bench.acme.objects.get([digest])
    (damage,) = bench.acme.objects.verify().damaged
    assert (damage.digest, name in damage.reason) == (digest, True)


def failing(times: int, error: Exception, calls: list[int]) -> Callable[[], Awaitable[str]]:
    async def read() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "read"

    return read


def missing_another(times: int, calls: list[int]) -> Callable[[], Awaitable[str]]:
    """Return a reader that finds a missing pack that number of times, another one each time."""

    async def read() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise NotFound(noun="pack", key=f"pack-{len(calls)}")
        return "read"

    return read


@pytest.mark.parametrize("times", [0, 1, packs.MAX_TRIES - 1])
def test_objects_that_moved_during_a_read_are_read_again(times: int) -> None:
    calls: list[int] = []
    assert asyncio.run(packs.retry_moved(missing_another(times, calls))) == "read"
    assert len(calls) == times + 1


def test_a_read_gives_up_after_too_many_moves() -> None:
    calls: list[int] = []
    with pytest.raises(Corrupt, match=f"pack-{packs.MAX_TRIES}"):
        asyncio.run(packs.retry_moved(missing_another(packs.MAX_TRIES, calls)))
    assert len(calls) == packs.MAX_TRIES


def test_a_pack_that_is_missing_twice_is_corrupt() -> None:
    calls: list[int] = []
    with pytest.raises(Corrupt, match="pack-p"):
        asyncio.run(packs.retry_moved(failing(99, NotFound(noun="pack", key="pack-p"), calls)))
    assert len(calls) == 2


@pytest.mark.parametrize("error", [NotFound("missing", noun="object"), Unavailable("away"), Corrupt("hurt")], ids=repr)
def test_other_errors_are_raised_at_once(error: Exception) -> None:
    calls: list[int] = []
    with pytest.raises(type(error), match=str(error)):
        asyncio.run(packs.retry_moved(failing(99, error, calls)))
    assert len(calls) == 1


def test_unregistered_files_are_removed_by_the_next_prune(bench: Bench) -> None:
    (digest,) = bench.acme.objects.put([body(1)], holder="me")
    folder = bench.folder / folder_of("acme")
    for name in ("orphan", "名前"):
        (folder / name).write_bytes(b"x")
    assert bench.acme.objects.prune().packs == 2
    assert len(bench.files()) == 1
    assert bench.acme.objects.get([digest]) == [body(1)]
    assert bench.acme.objects.prune().packs == 0


def test_a_prune_keeps_the_files_of_other_tenants(bench: Bench) -> None:
    bench.holdfast.tenant("zenith").objects.put([body(1)], holder="me")
    (bench.folder / "stray").write_bytes(b"x")
    assert bench.acme.objects.prune(grace_s=0).packs == 0
    assert (len(bench.files("zenith")), (bench.folder / "stray").exists()) == (1, True)


@pytest.mark.parametrize("good", [[], ["{own}/1"], ["{own}/1", "{own}/...", "{own}/a b"]])
def test_paths_in_the_tenants_own_folder_are_accepted(scope: Scope, good: list[str]) -> None:
    paths = [path.format(own=folder_of("acme")) for path in good]
    assert packs.own_paths(scope, paths) == paths


@pytest.mark.parametrize(
    "wrong", ["{other}/1", "1", "{own}", "{own}/.", "{own}/..", "{own}//1", "{own}/1/", "./{own}/1"]
)
def test_any_other_path_is_refused_with_tenant_and_path(scope: Scope, wrong: str) -> None:
    path = wrong.format(own=folder_of("acme"), other=folder_of("zenith"))
    with raises(CrossTenant, tenant="acme", path=path):
        packs.own_paths(scope, [path])


def test_a_half_used_pack_is_not_rewritten(bench: Bench) -> None:
    one, other = bench.acme.objects.put([body(1), body(2)], holder="me")
    before = bench.files()
    bench.acme.objects.release("me", digests=[one])
    bench.acme.objects.prune(grace_s=0)
    assert bench.files() == before
    assert bench.acme.objects.get([other]) == [body(2)]


def test_a_mostly_unused_pack_is_rewritten(bench: Bench) -> None:
    digests = bench.acme.objects.put([body(1), body(2), body(3, 190)], holder="me")
    (before,) = bench.files()
    bench.acme.objects.release("me", digests=digests[:2])
    assert bench.acme.objects.prune(grace_s=0).packs == 1
    (after,) = bench.files()
    assert after != before
    assert (bench.folder / folder_of("acme") / after).read_bytes() == body(3, 190)
    assert bench.acme.objects.get(digests[2:]) == [body(3, 190)]
    assert step(packs.repack(bench.engine, bench.scope)) == 0, "the new pack is fully used"


def test_the_number_of_packs_that_one_prune_rewrites_is_limited(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MAX_REPACKED", 2)
    kept = []
    for number in range(3):
        one, other = bench.acme.objects.put([body(number, 500), body(number + 10)], holder="me")
        bench.acme.objects.release("me", digests=[one])
        kept.append(other)
    bench.acme.objects.prune(grace_s=0)
    sizes = sorted((bench.folder / folder_of("acme") / name).stat().st_size for name in bench.files())
    assert sizes == [200, 200, 700]
    bench.acme.objects.prune(grace_s=0)
    assert len(bench.files()) == 3
    assert bench.acme.objects.get(kept) == [body(number + 10) for number in range(3)]


def test_a_truncated_pack_is_not_rewritten(bench: Bench) -> None:
    one, other = bench.acme.objects.put([body(1, 500), body(2)], holder="me")
    (name,) = bench.files()
    path = bench.folder / folder_of("acme") / name
    path.write_bytes(path.read_bytes()[:600])
    bench.acme.objects.release("me", digests=[one])
    assert bench.acme.objects.prune(grace_s=0).packs == 0
    assert bench.files() == [name], "a damaged pack is kept"
    assert [damage.digest for damage in bench.acme.objects.verify().damaged] == [other]


@pytest.mark.parametrize("left", [None, 0, 400, 600], ids=["gone", "empty", "before", "within"])
def test_a_damaged_pack_does_not_prevent_pruning_the_rest(bench: Bench, left: int | None) -> None:
    one, other = bench.acme.objects.put([body(1, 500), body(2)], holder="me")
    (name,) = bench.files()
    path = bench.folder / folder_of("acme") / name
    path.unlink() if left is None else path.write_bytes(path.read_bytes()[:left])
    (free,) = bench.acme.objects.put([body(3)], holder="you")
    bench.acme.objects.release("me", digests=[one])
    bench.acme.objects.release("you")
    pruned = bench.acme.objects.prune(grace_s=0)
    assert (pruned.removed, pruned.packs) == (2, 1)
    assert bench.acme.objects.has([other, free]) == [True, False]
    assert [damage.digest for damage in bench.acme.objects.verify().damaged] == [other]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_tenant_of_any_name_can_have_packs(bench: Bench, name: str) -> None:
    tenant = bench.holdfast.tenant(name)
    (digest,) = tenant.objects.put([body(1)], holder="me")
    assert (tenant.objects.get([digest]), len(bench.files(name))) == ([body(1)], 1)
    assert tenant.diagnostics.look().is_sound
    bench.holdfast.tenants.delete(name, cascade=True)
    assert bench.files(name) == []


def test_no_two_tenants_share_a_folder() -> None:
    assert len({folder_of(name) for name in [*NAMES, "", "Acme", "acme ", "\udfff", "?"]}) == len(NAMES) + 5
    assert folder_of("acme") == bodies.digest_of(b"acme", 16).hex(), "the folder follows from the tenant's name"


@pytest.mark.parametrize("quota", [0, 1, 2**31, 2**40 - 1, None])
def test_a_quota_is_stored(bench: Bench, quota: int | None) -> None:
    bench.holdfast.tenants.create("acme", metadata={"a": 1})
    bench.clock.advance(5)
    found = bench.holdfast.tenants.set_quota("acme", snapshot_quota_mib=quota)
    assert (found.snapshot_quota_mib, found.metadata) == (quota, {"a": 1})
    assert (found.updated_at - found.created_at).total_seconds() == 5
    assert bench.holdfast.tenants.get("acme") == found
    assert bench.acme.retention.policy().quota_mib == (500 if quota is None else quota)


@pytest.mark.parametrize("quota", [-1, 2**40, 1.5, "1", True, [1]], ids=repr)
def test_an_invalid_quota_changes_nothing(bench: Bench, quota: Any) -> None:
    made = bench.holdfast.tenants.create("acme")
    with raises(InvalidInput, field="snapshot_quota_mib"):
        bench.holdfast.tenants.set_quota("acme", snapshot_quota_mib=quota)
    assert bench.holdfast.tenants.get("acme") == made


def test_a_quota_needs_an_existing_tenant(bench: Bench) -> None:
    with raises(NotFound, noun="tenant", key="missing"):
        bench.holdfast.tenants.set_quota("missing", snapshot_quota_mib=1)
    assert bench.holdfast.tenants.list() == []


def test_an_update_of_the_metadata_keeps_the_quota(bench: Bench) -> None:
    bench.holdfast.tenants.create("acme")
    bench.holdfast.tenants.set_quota("acme", snapshot_quota_mib=7)
    assert bench.holdfast.tenants.update("acme", metadata={"\x00": "\ud800"}).snapshot_quota_mib == 7
    assert bench.holdfast.tenants.get("acme").metadata == {"\x00": "\ud800"}
    with raises(AlreadyExists, noun="tenant", key="acme"):
        bench.holdfast.tenants.create("acme")


Call = Callable[[TenantHandle], object]


@pytest.mark.parametrize(
    "make",
    [
        lambda tenant: tenant.sessions.create(),
        lambda tenant: tenant.contacts.upsert("telegram", "7"),
        lambda tenant: tenant.agents.create(NewAgent("helper")),
    ],
    ids=["session", "contact", "agent"],
)
def test_a_tenant_with_data_is_deleted_only_with_cascade(bench: Bench, make: Call) -> None:
    make(bench.acme)
    with raises(Conflict, reason="not_empty"):
        bench.holdfast.tenants.delete("acme")
    assert bench.holdfast.tenants.get("acme").id == "acme"
    bench.holdfast.tenants.delete("acme", cascade=True)
    with pytest.raises(NotFound):
        bench.holdfast.tenants.delete("acme", cascade=True)


def test_deleting_a_tenant_again_removes_leftover_files(bench: Bench) -> None:
    bench.acme.objects.put([body(1)], holder="me")
    (name,) = bench.files()
    path = bench.folder / folder_of("acme") / name
    kept = path.read_bytes()
    bench.holdfast.tenants.delete("acme", cascade=True)
    path.write_bytes(kept)
    bench.acme.sessions.create()
    bench.holdfast.tenants.delete("acme", cascade=True)
    assert bench.files() == []


def test_every_call_refuses_a_name_over_the_limit(bench: Bench) -> None:
    tenants, long = bench.holdfast.tenants, "x" * 31
    calls: list[Callable[[], object]] = [
        lambda: tenants.create(long),
        lambda: tenants.get(long),
        lambda: tenants.update(long, metadata={}),
        lambda: tenants.set_quota(long, snapshot_quota_mib=1),
        lambda: tenants.delete(long),
        lambda: bench.holdfast.erasures.request(long),
    ]
    for call in calls:
        with raises(LimitExceeded, limit="tenant_bytes", maximum=30):
            call()
