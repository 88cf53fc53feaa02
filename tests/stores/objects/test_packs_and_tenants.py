"""Packs step by step, from their note to their removal, and the tenants they go with."""

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

SMALL = Limits(pack_from_bytes=100, tenant_bytes=30)
NAMES = ["acme", "\ud800", "a\udfff", "名前", "\x00", "../acme", "/", ".", "x" * 30, "\U0010f000"]


def body(number: int, size: int = 200) -> bytes:
    return Random(number).randbytes(size)


class Bench:
    """A Holdfast whose packs lie in a directory, and what it takes to work on packs themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder / "packs", FixedClock()
        self.holdfast = Holdfast(":memory:", packs=self.folder, limits=SMALL, clock=self.clock)
        self.acme, self.engine = self.holdfast.tenant("acme"), self.holdfast._engine
        self.scope = Scope("acme", self.holdfast._setting)

    def files(self, tenant: str = "acme") -> list[str]:
        there = self.folder / folder_of(tenant)
        return sorted(each.name for each in there.iterdir()) if there.exists() else []

    def stage(self, *contents: bytes) -> Staged | None:
        return step(packs.stage(self.engine, self.scope, [bodies.pack(each) for each in contents]))

    def seal(self, staged: Staged | None) -> Staged | None:
        return step(self.engine.write(lambda connection: packs.seal(connection, self.scope, staged)))

    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        params = self.scope.params(**values)

        async def run(connection: Connection) -> list[tuple[Any, ...]]:
            return [*await Query("planted", {connection.dialect: sql}).all(connection, params)]

        return step(self.engine.write(run))

    def notes(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT id, is_sealed FROM object_packs WHERE tenant_id = :tenant_id ORDER BY id")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.holdfast.close()


@pytest.fixture(scope="module")
def scope() -> Scope:
    with Holdfast(":memory:") as holdfast:
        return Scope("acme", holdfast._setting)


def test_a_body_lies_in_a_pack_from_the_limit_on(bench: Bench) -> None:
    bench.acme.objects.put([body(1, 99)], holder="me")
    assert bench.files() == []
    bench.acme.objects.put([body(2, 100)], holder="me")
    assert len(bench.files()) == 1


def test_what_is_large_only_before_it_is_compressed_lies_in_the_database(bench: Bench) -> None:
    bench.acme.objects.put([b"a" * 100_000], holder="me")
    assert (bench.files(), bench.acme.objects.usage().packs) == ([], 0)


def test_a_pack_is_the_bodies_one_after_the_other_and_nothing_else(bench: Bench) -> None:
    staged = bench.stage(body(1), b"small", body(2, 300))
    assert staged is not None
    assert (bench.folder / folder_of("acme") / staged.id).read_bytes() == body(1) + body(2, 300)
    assert staged.starts == {bodies.digest_of(body(1)): 0, bodies.digest_of(body(2, 300)): 200}
    assert bench.notes() == [(staged.id, 0)], "noted, and not sealed"


def test_nothing_large_or_nothing_new_makes_no_pack(bench: Bench) -> None:
    assert bench.stage() is None
    assert bench.stage(b"small") is None
    bench.acme.objects.put([body(1)], holder="me")
    assert bench.stage(body(1)) is None, "it is stored already"
    staged = bench.stage(body(1), body(2))
    assert staged is not None
    assert list(staged.starts) == [bodies.digest_of(body(2))]


def test_a_pack_is_sealed_as_often_as_one_likes_until_it_is_condemned(bench: Bench) -> None:
    staged = bench.stage(body(1))
    assert staged is not None
    assert bench.seal(staged) == staged == bench.seal(staged)
    assert bench.notes() == [(staged.id, 1)]
    bench.acme.objects.prune(grace_s=0)
    assert bench.seal(staged) is None, "nothing lay in it, so it is gone"
    assert (bench.seal(None), bench.notes(), bench.files()) == (None, [], [])


def test_a_pack_that_nobody_seals_goes_after_the_grace_and_not_before(bench: Bench) -> None:
    bench.stage(body(1))
    assert (bench.acme.objects.prune().packs, len(bench.files())) == (0, 1)
    bench.clock.advance(3_599)
    assert (bench.acme.objects.prune().packs, len(bench.files())) == (0, 1)
    bench.clock.advance(1)
    assert (bench.acme.objects.prune().packs, bench.files(), bench.notes()) == (1, [], [])


def test_a_body_whose_pack_went_before_it_was_sealed_lies_in_the_database(bench: Bench) -> None:
    packed = bodies.pack(body(1))
    staged = bench.stage(body(1))
    bench.acme.objects.prune(grace_s=0)
    step(bench.acme.objects._async._put([packed], "me", staged))
    assert (bench.files(), bench.notes()) == ([], [])
    digest = packed.digest.hex()
    assert bench.acme.objects.get([digest]) == [body(1)]


def test_bodies_are_read_out_of_several_packs_in_one_go(bench: Bench) -> None:
    digests = [bench.acme.objects.put([body(number)], holder="me")[0] for number in range(3)]
    assert len(bench.files()) == 3
    assert bench.acme.objects.get(digests[::-1]) == [body(2), body(1), body(0)]
    rows = bench.rows("SELECT digest, codec, pack, pack_start, stored_bytes FROM objects WHERE tenant_id = :tenant_id")
    wanted = [InPack(bytes(digest), *more) for digest, *more in rows]
    found = step(packs.fetch(bench.engine, bench.scope, wanted))
    assert sorted(found.values()) == sorted(body(number) for number in range(3))
    assert step(packs.read_stored(bench.engine, bench.scope, [])) == {}


def test_a_pack_that_never_was_is_not_found(bench: Bench) -> None:
    bench.acme.objects.put([body(1)], holder="me")
    nowhere = InPack(bytes(32), 0, "never", 0, 5)
    with pytest.raises(NotFound, match="there is no pack"):
        step(packs.read_stored(bench.engine, bench.scope, [nowhere]))


def test_a_pack_that_is_lost_is_damage_and_says_which(bench: Bench) -> None:
    (digest,) = bench.acme.objects.put([body(1)], holder="me")
    (name,) = bench.files()
    (bench.folder / folder_of("acme") / name).unlink()
    with pytest.raises(Corrupt, match=f"there is no pack .*{name}, and objects lie in it"):
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
    """A reader who so many times finds that a pack is gone, another one each time."""

    async def read() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise NotFound(f"there is no pack {len(calls)}")
        return "read"

    return read


@pytest.mark.parametrize("times", [0, 1, packs.MAX_TRIES - 1])
def test_what_moved_while_it_was_read_is_read_again(times: int) -> None:
    calls: list[int] = []
    assert asyncio.run(packs.retry_moved(missing_another(times, calls))) == "read"
    assert len(calls) == times + 1


def test_what_moves_each_time_is_given_up() -> None:
    calls: list[int] = []
    with pytest.raises(Corrupt, match=f"there is no pack {packs.MAX_TRIES}, and objects lie in it"):
        asyncio.run(packs.retry_moved(missing_another(packs.MAX_TRIES, calls)))
    assert len(calls) == packs.MAX_TRIES


def test_a_pack_that_is_missing_twice_is_damage() -> None:
    calls: list[int] = []
    with pytest.raises(Corrupt, match="there is no pack p, and objects lie in it"):
        asyncio.run(packs.retry_moved(failing(99, NotFound("there is no pack p"), calls)))
    assert len(calls) == 2


@pytest.mark.parametrize("error", [NotFound("there is no object"), Unavailable("away"), Corrupt("hurt")], ids=repr)
def test_any_other_error_is_passed_on_at_once(error: Exception) -> None:
    calls: list[int] = []
    with pytest.raises(type(error), match=str(error)):
        asyncio.run(packs.retry_moved(failing(99, error, calls)))
    assert len(calls) == 1


def test_files_that_nobody_noted_go_with_the_next_prune(bench: Bench) -> None:
    (digest,) = bench.acme.objects.put([body(1)], holder="me")
    there = bench.folder / folder_of("acme")
    for name in ("orphan", "名前"):
        (there / name).write_bytes(b"x")
    assert bench.acme.objects.prune().packs == 2
    assert len(bench.files()) == 1
    assert bench.acme.objects.get([digest]) == [body(1)]
    assert bench.acme.objects.prune().packs == 0


def test_a_prune_leaves_the_files_of_others(bench: Bench) -> None:
    bench.holdfast.tenant("zenith").objects.put([body(1)], holder="me")
    (bench.folder / "stray").write_bytes(b"x")
    assert bench.acme.objects.prune(grace_s=0).packs == 0
    assert (len(bench.files("zenith")), (bench.folder / "stray").exists()) == (1, True)


@pytest.mark.parametrize("good", [[], ["{own}/1"], ["{own}/1", "{own}/...", "{own}/a b"]])
def test_paths_in_the_tenants_own_folder_are_its_own(scope: Scope, good: list[str]) -> None:
    paths = [each.format(own=folder_of("acme")) for each in good]
    assert packs.own_paths(scope, paths) == paths


@pytest.mark.parametrize(
    "wrong", ["{other}/1", "1", "{own}", "{own}/.", "{own}/..", "{own}//1", "{own}/1/", "./{own}/1"]
)
def test_any_other_path_is_refused_with_whose_and_which(scope: Scope, wrong: str) -> None:
    path = wrong.format(own=folder_of("acme"), other=folder_of("zenith"))
    with pytest.raises(CrossTenant, match="not its own") as refused:
        packs.own_paths(scope, [path])
    assert (refused.value.tenant, refused.value.path) == ("acme", path)


def test_a_pack_that_is_just_half_used_is_left_as_it_is(bench: Bench) -> None:
    one, other = bench.acme.objects.put([body(1), body(2)], holder="me")
    before = bench.files()
    bench.acme.objects.release("me", digests=[one])
    bench.acme.objects.prune(grace_s=0)
    assert bench.files() == before
    assert bench.acme.objects.get([other]) == [body(2)]


def test_what_is_left_of_a_pack_that_is_mostly_dead_moves(bench: Bench) -> None:
    digests = bench.acme.objects.put([body(1), body(2), body(3, 190)], holder="me")
    (before,) = bench.files()
    bench.acme.objects.release("me", digests=digests[:2])
    assert bench.acme.objects.prune(grace_s=0).packs == 1
    (after,) = bench.files()
    assert after != before
    assert (bench.folder / folder_of("acme") / after).read_bytes() == body(3, 190)
    assert bench.acme.objects.get(digests[2:]) == [body(3, 190)]
    assert step(packs.repack(bench.engine, bench.scope)) == 0, "it is full now"


def test_one_prune_rewrites_so_many_packs_and_the_next_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_pack_that_is_cut_short_is_not_rewritten(bench: Bench) -> None:
    one, other = bench.acme.objects.put([body(1, 500), body(2)], holder="me")
    (name,) = bench.files()
    path = bench.folder / folder_of("acme") / name
    path.write_bytes(path.read_bytes()[:600])
    bench.acme.objects.release("me", digests=[one])
    assert bench.acme.objects.prune(grace_s=0).packs == 0
    assert bench.files() == [name], "what is left of it is for people to look at"
    assert [each.digest for each in bench.acme.objects.verify().damaged] == [other]


@pytest.mark.parametrize("left", [None, 0, 400, 600], ids=["gone", "empty", "before", "within"])
def test_a_damaged_pack_keeps_nobody_from_pruning_the_rest(bench: Bench, left: int | None) -> None:
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
    assert [each.digest for each in bench.acme.objects.verify().damaged] == [other]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_tenant_of_any_name_has_packs_that_come_and_go(bench: Bench, name: str) -> None:
    there = bench.holdfast.tenant(name)
    (digest,) = there.objects.put([body(1)], holder="me")
    assert (there.objects.get([digest]), len(bench.files(name))) == ([body(1)], 1)
    assert there.diagnostics.look().is_sound
    bench.holdfast.tenants.delete(name, cascade=True)
    assert bench.files(name) == []


def test_no_two_names_share_a_folder() -> None:
    assert len({folder_of(each) for each in [*NAMES, "", "Acme", "acme ", "\udfff", "?"]}) == len(NAMES) + 5
    assert folder_of("acme") == bodies.digest_of(b"acme", 16).hex(), "what lies there is found again by its name"


@pytest.mark.parametrize("quota", [0, 1, 2**31, 2**40 - 1, None])
def test_a_quota_is_what_was_set(bench: Bench, quota: int | None) -> None:
    bench.holdfast.tenants.create("acme", metadata={"a": 1})
    bench.clock.advance(5)
    found = bench.holdfast.tenants.set_quota("acme", snapshot_quota_mib=quota)
    assert (found.snapshot_quota_mib, found.metadata) == (quota, {"a": 1})
    assert (found.updated_at - found.created_at).total_seconds() == 5
    assert bench.holdfast.tenants.get("acme") == found
    assert bench.acme.retention.policy().quota_mib == (500 if quota is None else quota)


@pytest.mark.parametrize("quota", [-1, 2**40, 1.5, "1", True, [1]], ids=repr)
def test_a_quota_that_is_no_number_changes_nothing(bench: Bench, quota: Any) -> None:
    made = bench.holdfast.tenants.create("acme")
    with pytest.raises(InvalidInput, match="snapshot_quota_mib must be a whole number from 0 on"):
        bench.holdfast.tenants.set_quota("acme", snapshot_quota_mib=quota)
    assert bench.holdfast.tenants.get("acme") == made


def test_a_quota_is_for_tenants_there_are(bench: Bench) -> None:
    with pytest.raises(NotFound, match="nobody"):
        bench.holdfast.tenants.set_quota("nobody", snapshot_quota_mib=1)
    assert bench.holdfast.tenants.list() == []


def test_an_update_of_the_metadata_leaves_the_quota(bench: Bench) -> None:
    bench.holdfast.tenants.create("acme")
    bench.holdfast.tenants.set_quota("acme", snapshot_quota_mib=7)
    assert bench.holdfast.tenants.update("acme", metadata={"\x00": "\ud800"}).snapshot_quota_mib == 7
    assert bench.holdfast.tenants.get("acme").metadata == {"\x00": "\ud800"}
    with pytest.raises(AlreadyExists, match="acme"):
        bench.holdfast.tenants.create("acme")


Call = Callable[[TenantHandle], object]


@pytest.mark.parametrize(
    "make",
    [
        lambda there: there.sessions.create(),
        lambda there: there.contacts.upsert("telegram", "7"),
        lambda there: there.agents.create(NewAgent(name="helper")),
    ],
    ids=["session", "contact", "agent"],
)
def test_a_tenant_on_which_something_hangs_is_not_deleted_without_a_word(bench: Bench, make: Call) -> None:
    make(bench.acme)
    with pytest.raises(Conflict, match="cascade=True removes them too"):
        bench.holdfast.tenants.delete("acme")
    assert bench.holdfast.tenants.get("acme").id == "acme"
    bench.holdfast.tenants.delete("acme", cascade=True)
    with pytest.raises(NotFound):
        bench.holdfast.tenants.delete("acme", cascade=True)


def test_deleting_a_tenant_again_still_clears_what_was_left_of_its_files(bench: Bench) -> None:
    bench.acme.objects.put([body(1)], holder="me")
    (name,) = bench.files()
    path = bench.folder / folder_of("acme") / name
    kept = path.read_bytes()
    bench.holdfast.tenants.delete("acme", cascade=True)
    path.write_bytes(kept)
    bench.acme.sessions.create()
    bench.holdfast.tenants.delete("acme", cascade=True)
    assert bench.files() == []


def test_a_name_over_the_limit_is_refused_by_every_call(bench: Bench) -> None:
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
        with pytest.raises(LimitExceeded, match="tenant_bytes = 30"):
            call()
