"""The store of snapshots: reading, listing and deleting, with any arguments of a caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import structs

from holdfast import AsyncHoldfast, FixedClock, Holdfast, Limits, TenantHandle
from holdfast.core import objects as bodies
from holdfast.errors import Conflict, InvalidFilter, InvalidInput, LimitExceeded, NotFound, Stale
from holdfast.stores.workspace import layers, snapshot_rows, snapshots
from holdfast.stores.workspace.layers import LayerPart, NewLayer
from holdfast.stores.workspace.snapshot_rows import NewSnapshot, SnapshotUsage
from holdfast.sync_runner import step
from holdfast.trees import manifests
from holdfast.trees.entries import ZEROS, ContentPiece, Difference, TreeEntry
from holdfast.types import Snapshot
from tests.errors import raises

NEVER = "00000000-0000-7000-8000-000000000000"
LIMITS = Limits(list_rows=8, page_rows=5, batch_rows=4, content_bytes=50, snapshots_per_run=100)


class World:
    """A tenant with a run; its clock advances with every snapshot."""

    def __init__(self, url: str) -> None:
        self.clock = FixedClock()
        self.holdfast = Holdfast(url, clock=self.clock, limits=LIMITS)
        self.acme = self.holdfast.tenant("acme")
        self.run_id = self.run()

    def run(self, existing: TenantHandle | None = None) -> str:
        existing = existing or self.acme
        return existing.runs.start(existing.sessions.create().id).id

    def new(self, content: bytes = b"content", **fields: Any) -> NewSnapshot:
        """A snapshot of one file, about to be recorded."""
        packed = bodies.pack(content)
        pieces = (ContentPiece(packed.digest, 0, len(content)),) if content else ()
        entry = TreeEntry("file", "file", 0o644, 0, len(content), "", packed.digest, pieces)
        layer = NewLayer(layers.manifest_of(Difference([entry])), None, [LayerPart([packed])] if content else [])
        new = NewSnapshot(self.run_id, None, "step", None, layer, 1, len(content), self.acme._scope.ids.new())
        return structs.replace(new, **fields)

    def record(self, content: bytes = b"content", **fields: Any) -> Snapshot:
        self.clock.advance(fields.pop("after", 1))
        return step(self.acme.snapshots._async._record(self.new(content, **fields)))

    def tree(self, *entries: TreeEntry, parts: list[LayerPart] | None = None) -> Snapshot:
        """A snapshot of these."""
        layer = NewLayer(layers.manifest_of(Difference(entries)), None, parts or [])
        return self.record(layer=layer, entry_count=len(entries))


@pytest.fixture
def world() -> Iterator[World]:
    made = World(":memory:")
    yield made
    made.holdfast.close()


@pytest.fixture(params=["sqlite", "postgres"])
def either(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(":memory:" if request.param == "sqlite" else request.getfixturevalue("postgres_url"))
    yield made
    made.holdfast.close()


# Single snapshots


def test_a_snapshot_contains_the_recorded_values(world: World) -> None:
    made = world.record(b"twelve bytes", step=3, kind="imported", parent_id=NEVER)
    assert world.acme.snapshots.get(made.id) == made
    assert (made.step, made.kind, made.parent_id, made.depth) == (3, "imported", NEVER, 0)
    assert (made.entry_count, made.tree_bytes, made.run_id) == (1, 12, world.run_id)
    assert made.size_bytes > 12, "the file, and the manifest"


def test_an_id_may_be_any_form_of_a_uuid(world: World) -> None:
    made = world.record()
    assert world.acme.snapshots.get(made.id.upper()) == made
    assert world.acme.snapshots.get(made.id.replace("-", "")) == made


@pytest.mark.parametrize("given", ["", "nonsense", "\0", NEVER + "0", "\ud800"])
def test_an_invalid_id_is_refused(world: World, given: str) -> None:
    snapshots = world.acme.snapshots
    for call, field in ((snapshots.get, "snapshot id"), (snapshots.tree, "snapshot id"), (snapshots.find, "run id")):
        with raises(InvalidInput, field=field):
            call(given)


def test_an_unknown_snapshot_is_not_found(world: World) -> None:
    world.record()
    with raises(NotFound, key=NEVER):
        world.acme.snapshots.get(NEVER)
    with raises(NotFound, key=NEVER):
        world.acme.snapshots.tree(NEVER)
    assert world.acme.snapshots.find(NEVER) is None


def test_a_snapshot_of_another_tenant_is_not_found(world: World) -> None:
    made, zenith = world.record(), world.holdfast.tenant("zenith")
    for call in (zenith.snapshots.get, zenith.snapshots.tree, lambda id: zenith.snapshots.read(id, "file")):
        with raises(NotFound, noun="snapshot"):
            call(made.id)
    assert zenith.snapshots.find(world.run_id) is None
    assert zenith.snapshots.list(run_id=world.run_id) == []
    assert zenith.snapshots.usage() == SnapshotUsage(0, 0, 0)


def test_a_snapshot_of_a_deleted_session_is_not_found(either: World) -> None:
    session = either.acme.sessions.create()
    run_id = either.acme.runs.start(session.id).id
    made = either.record(run_id=run_id)
    either.acme.sessions.delete(session.id)
    with pytest.raises(NotFound):
        either.acme.snapshots.get(made.id)
    assert (either.acme.snapshots.find(run_id), either.acme.snapshots.list()) == (None, [])
    with raises(NotFound, noun="run"):
        either.record(run_id=run_id)


# Recording


def test_recording_again_returns_the_snapshot(world: World) -> None:
    new = world.new(step=1)
    first = step(world.acme.snapshots._async._record(new))
    world.clock.advance(60)
    assert step(world.acme.snapshots._async._record(new)) == first
    assert world.acme.snapshots.usage().count == 1
    assert world.acme.snapshots.usage().layers == 1, "nothing was added"


@pytest.mark.parametrize("other", [{"step": 2}, {"step": None}, {"kind": "dirty"}, {"run_id": ""}])
def test_another_snapshot_with_the_same_id_is_a_conflict(world: World, other: dict[str, Any]) -> None:
    made = world.record(step=1)
    if "run_id" in other:
        other = {"run_id": world.run()}
    with raises(Conflict, reason="other_content"):
        world.record(**{"step": 1, "id": made.id, **other})
    assert world.acme.snapshots.list() == [made]


def test_the_same_id_is_free_for_another_tenant(world: World) -> None:
    made, zenith = world.record(), world.holdfast.tenant("zenith")
    theirs = step(zenith.snapshots._async._record(world.new(b"theirs", id=made.id, run_id=world.run(zenith))))
    assert theirs.id == made.id
    assert zenith.snapshots.read(made.id, "file") == b"theirs"
    assert world.acme.snapshots.read(made.id, "file") == b"content"


def test_an_unknown_run_gets_no_snapshot(world: World) -> None:
    with raises(NotFound, noun="run", key=NEVER):
        world.record(run_id=NEVER)
    assert world.acme.objects.usage().count == 0


def test_no_snapshot_is_recorded_on_a_removed_layer(world: World) -> None:
    made = world.record()
    world.acme.snapshots.delete([made.id], reason="test")
    for layer in (made.layer_id, NewLayer(layers.manifest_of(Difference([])), made.layer_id)):
        with raises(Stale):
            world.record(layer=layer)
    assert world.acme.snapshots.usage() == SnapshotUsage(0, 0, 0)


def test_a_layer_of_another_tenant_is_not_found(world: World) -> None:
    made, zenith = world.record(), world.holdfast.tenant("zenith")
    run_id = world.run(zenith)
    for layer in (made.layer_id, NewLayer(layers.manifest_of(Difference([])), made.layer_id)):
        with pytest.raises(Stale):
            step(zenith.snapshots._async._record(world.new(run_id=run_id, layer=layer)))


@pytest.mark.parametrize("given", [-1, 2**62, True, "1", 1.0])
def test_an_invalid_step_is_refused_everywhere(world: World, given: Any) -> None:
    for call in (
        lambda: world.record(step=given),
        lambda: world.acme.snapshots.find(world.run_id, step=given),
        lambda: world.acme.snapshots.list(step=given),
    ):
        with raises(InvalidInput, field="step"):
            call()


@pytest.mark.parametrize("given", [0, 1, 2**62 - 1])
def test_the_smallest_and_largest_steps_are_stored(world: World, given: int) -> None:
    made = world.record(step=given)
    assert world.acme.snapshots.find(world.run_id, step=given) == made
    assert world.acme.snapshots.list(step=given) == [made]


@pytest.mark.parametrize("given", ["", "Step", "other", 7, b"step", []])
def test_an_unknown_kind_is_refused(world: World, given: Any) -> None:
    with raises(InvalidInput, field="kind"):
        snapshot_rows.kind_of(given)
    with raises(InvalidInput, field="kind"):
        world.acme.snapshots.list(kind=given)


# The newest


def test_the_newest_of_a_run_of_a_step_and_of_a_kind(either: World) -> None:
    made = [either.record(step=number, kind=kind) for number, kind in ((1, "step"), (1, "dirty"), (2, "step"))]
    other = either.record(run_id=either.run(), step=1)
    find = either.acme.snapshots.find
    assert find(either.run_id) == made[2]
    assert find(either.run_id, step=1) == made[1]
    assert find(either.run_id, step=1, kind="step") == made[0]
    assert find(either.run_id, kind="dirty") == made[1]
    assert find(either.run_id, kind="imported") is None
    assert find(either.run_id, step=3) is None
    assert find(other.run_id) == other


def test_equal_times_are_ordered_by_id(world: World) -> None:
    made = [world.record(after=0) for _ in range(4)]
    newest = max(made, key=lambda snapshot: snapshot.id)
    assert world.acme.snapshots.find(world.run_id) == newest
    assert world.acme.snapshots.list()[0] == newest


# Lists


def test_snapshots_are_listed_the_newest_first(world: World) -> None:
    made = [world.record() for _ in range(3)]
    assert world.acme.snapshots.list() == made[::-1]


def test_lists_of_a_run_a_step_and_a_kind(world: World) -> None:
    other = world.run()
    made = {
        (run, number, kind): world.record(run_id=run, step=number, kind=kind)
        for run in (world.run_id, other)
        for number in (1, 2)
        for kind in ("step", "dirty")
    }

    def listed(**asked: Any) -> set[str]:
        return {snapshot.id for snapshot in world.acme.snapshots.list(**asked)}

    assert listed(run_id=other) == {snapshot.id for (run, _, _), snapshot in made.items() if run == other}
    assert listed(step=1) == {snapshot.id for (_, number, _), snapshot in made.items() if number == 1}
    assert listed(kind="dirty") == {snapshot.id for (_, _, kind), snapshot in made.items() if kind == "dirty"}
    assert listed(run_id=other, step=2, kind="step") == {made[other, 2, "step"].id}
    assert listed(run_id=NEVER) == set()


def list_pages(tenant: TenantHandle, limit: int, **asked: Any) -> list[list[Snapshot]]:
    """All pages of a list."""
    page = tenant.snapshots.list(limit=limit, **asked)
    pages = [page]
    while page.next is not None:
        page = tenant.snapshots.list(limit=limit, cursor=page.next, **asked)
        pages.append(page)
    return [[*page] for page in pages]


def test_pages_return_each_snapshot_once(either: World) -> None:
    """Some have equal times, so that only the id tells where a page ended."""
    made = [either.record(after=number % 2) for number in range(6)]
    made.sort(key=lambda snapshot: (snapshot.created_at, snapshot.id), reverse=True)
    for limit in (1, 2, 4, 5):
        expected_pages = [made[at : at + limit] for at in range(0, 6, limit)]
        assert list_pages(either.acme, limit) == expected_pages
        assert list_pages(either.acme, limit, run_id=either.run_id, kind="step") == expected_pages


def test_pages_continue_after_newer_snapshots_were_added(world: World) -> None:
    made = [world.record() for _ in range(4)]
    page = world.acme.snapshots.list(limit=2)
    world.record()
    world.acme.snapshots.delete([made[2].id], reason="the one the page ended with")
    assert world.acme.snapshots.list(limit=2, cursor=page.next) == made[1::-1]


def test_a_list_is_limited(world: World) -> None:
    for _ in range(LIMITS.list_rows):
        world.record()
    assert len(world.acme.snapshots.list()) == LIMITS.list_rows
    world.record()
    with raises(LimitExceeded, limit="list_rows", maximum=8):
        world.acme.snapshots.list()
    assert len(world.acme.snapshots.list(limit=5)) == 5


@pytest.mark.parametrize("limit", [0, -1, True, "2", 1.5])
def test_an_invalid_limit_is_refused(world: World, limit: Any) -> None:
    with raises(InvalidInput, field="limit"):
        world.acme.snapshots.list(limit=limit)


def test_a_page_over_the_limit_is_refused(world: World) -> None:
    with raises(LimitExceeded, limit="page_rows"):
        world.acme.snapshots.list(limit=LIMITS.page_rows + 1)


def test_a_cursor_of_another_list_is_refused(world: World) -> None:
    for number in range(2):
        world.record()
        world.acme.snapshots.delete([world.record().id], reason=f"{number}")
    theirs = world.acme.activity.list(limit=1).next
    assert theirs is not None
    for cursor in (theirs, "", "nonsense", "\0", "é" * 20):
        with pytest.raises(InvalidFilter):
            world.acme.snapshots.list(cursor=cursor)


# Content


def test_a_tree_has_its_entries_by_their_paths(world: World) -> None:
    entries = [TreeEntry("d", "dir", 0o755, 5), TreeEntry("d/l", "symlink", 0o777, 6, 0, "\udcff/é")]
    assert world.acme.snapshots.tree(world.tree(*entries).id).entries == {entry.path: entry for entry in entries}


NAMES = [f"{letter}{digit}" for letter in "ab\uffff\udcff" for digit in "012345"]


@pytest.mark.parametrize("seed", range(20))
def test_pages_of_a_tree_on_many_layers_are_the_tree(world: World, seed: int) -> None:
    random = Random(seed)
    below: str | None = None
    made = None
    for number in range(random.randint(1, 5)):
        chosen = random.sample(NAMES, random.randint(0, len(NAMES)))
        removed = chosen[: len(chosen) // 2]
        present = [
            TreeEntry(path, "dir", number, 0) for path in chosen[len(removed) // 2 :]
        ]  # some are removed and there again
        new = NewLayer(layers.manifest_of(Difference(present, removed, [f"{number}"])), below, [])
        made = world.record(layer=new)
        below = made.layer_id
    assert made is not None
    whole = world.acme.snapshots.tree(made.id)
    result, cursor = [], None
    while True:
        page = world.acme.snapshots.entries(made.id, limit=random.randint(1, 5), cursor=cursor)
        assert page.ignore == whole.ignore
        result += page.entries
        cursor = page.next
        if cursor is None:
            break
    assert result == [whole.entries[path] for path in sorted(whole.entries)]


def test_a_page_or_a_file_of_a_large_tree_decodes_a_few_of_its_entries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world.tree(*(TreeEntry(f"{number:05}", "dir", 0o755, 0) for number in range(20_000)))
    decoded = 0
    real = manifests._decode_line

    def counted(line: Any) -> Any:
        nonlocal decoded
        decoded += 1
        return real(line)

    monkeypatch.setattr(manifests, "_decode_line", counted)
    first = world.acme.snapshots.entries(made.id, limit=1)
    assert [entry.path for entry in first.entries] == ["00000"]
    second = world.acme.snapshots.entries(made.id, limit=1, cursor=first.next)
    assert [entry.path for entry in second.entries] == ["00001"]
    with pytest.raises(NotFound):
        world.acme.snapshots.read(made.id, "10000")
    assert decoded < 200


def test_a_tree_is_decoded_outside_of_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    real = manifests._decode
    monkeypatch.setattr(manifests, "_decode", lambda body: (threads.add(threading.get_ident()), real(body))[1])
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "file").write_bytes(b"content")

    async def run() -> None:
        async with AsyncHoldfast(str(tmp_path / "agents.db")) as hf:
            acme = hf.tenant("acme")
            run = await acme.runs.start((await acme.sessions.create()).id)
            made = (await acme.workspaces.capture(run.id, tmp_path / "w")).snapshot
            assert (await acme.snapshots.entries(made.id, limit=1)).entries[0].path == "file"
            assert [*(await acme.snapshots.tree(made.id)).entries] == ["file"]
            assert await acme.snapshots.read(made.id, "file") == b"content"

    asyncio.run(run())
    assert threads
    assert threading.get_ident() not in threads


def test_zeros_are_read_although_they_are_stored_nowhere(world: World) -> None:
    packed = bodies.pack(b"0123456789")
    pieces = (ContentPiece(packed.digest, 2, 3), ContentPiece(ZEROS, 0, 4), ContentPiece(packed.digest, 9, 1))
    made = world.tree(TreeEntry("f", "file", 0o644, 0, 8, "", b"d" * 32, pieces), parts=[LayerPart([packed])])
    assert world.acme.snapshots.read(made.id, "f") == b"234\0\0\0\x009"


def test_an_empty_file_is_read(world: World) -> None:
    assert world.acme.snapshots.read(world.record(b"").id, "file") == b""


@pytest.mark.parametrize("path", ["", "d", "d/l", "f/", "/f", "./f", "F", "\0", "\ud800", "never"])
def test_only_the_exact_path_of_a_file_is_read(world: World, path: str) -> None:
    entries = [
        TreeEntry("d", "dir", 0o755, 5),
        TreeEntry("d/l", "symlink", 0o777, 6, 0, "../f"),
        TreeEntry("f", "file", 0o644, 0),
    ]
    with raises(NotFound, noun="file", key=path):
        world.acme.snapshots.read(world.tree(*entries).id, path)


def test_a_file_is_read_up_to_the_content_limit(world: World) -> None:
    assert len(world.acme.snapshots.read(world.record(b"x" * 50).id, "file")) == 50
    with raises(LimitExceeded, field="file", limit="content_bytes", maximum=50):
        world.acme.snapshots.read(world.record(b"x" * 51).id, "file")


# Deleting


def test_deleted_snapshots_are_returned_and_logged(world: World) -> None:
    made = [world.record(b"%d" % number) for number in range(3)]
    removed = world.acme.snapshots.delete([made[0].id, NEVER, made[2].id], reason="wörds \0 of the caller")
    assert sorted(snapshot.id for snapshot in removed) == sorted([made[0].id, made[2].id])
    noted = world.acme.activity.list(action=snapshots.DELETED)
    assert {deed.subject_id for deed in noted} == {made[0].id, made[2].id}
    assert {deed.reason for deed in noted} == {"wörds \0 of the caller"}
    assert [deed.details["run_id"] for deed in noted] == [world.run_id] * 2
    assert world.acme.snapshots.list() == [made[1]]


def test_deleting_again_changes_and_logs_nothing(world: World) -> None:
    made = world.record()
    assert len(world.acme.snapshots.delete([made.id, made.id, made.id.upper()], reason="once")) == 1
    assert world.acme.snapshots.delete([made.id], reason="again") == []
    assert [deed.reason for deed in world.acme.activity.list()] == ["once"]


def test_deleting_nothing_is_no_error(world: World) -> None:
    assert world.acme.snapshots.delete([], reason="none") == []


@pytest.mark.parametrize("given", [NEVER, None, {NEVER}, 7])
def test_ids_that_are_not_a_list_are_refused(world: World, given: Any) -> None:
    with raises(InvalidInput, field="snapshot_ids"):
        world.acme.snapshots.delete(given, reason="test")


@pytest.mark.parametrize("reason", ["", None, 7, b"bytes"])
def test_a_deletion_needs_a_reason(world: World, reason: Any) -> None:
    made = world.record()
    with raises(InvalidInput, field="reason"):
        world.acme.snapshots.delete([made.id], reason=reason)
    assert world.acme.snapshots.list() == [made]


def test_an_invalid_id_prevents_the_whole_deletion(world: World) -> None:
    made = world.record()
    with raises(InvalidInput, field="snapshot id"):
        world.acme.snapshots.delete([made.id, "nonsense"], reason="test")
    assert world.acme.snapshots.list() == [made]


def test_the_number_deleted_at_once_is_limited(world: World) -> None:
    made = [world.record() for _ in range(5)]
    with raises(LimitExceeded, limit="batch_rows"):
        world.acme.snapshots.delete([snapshot.id for snapshot in made], reason="test")
    assert len(world.acme.snapshots.delete([snapshot.id for snapshot in made[:4]], reason="test")) == 4


def test_a_held_snapshot_prevents_the_whole_deletion(world: World) -> None:
    made, free = world.record(), world.record(run_id=world.run())
    hold = world.acme.retention.hold("a case", run_id=world.run_id)
    with pytest.raises(Conflict):
        world.acme.snapshots.delete([free.id, made.id], reason="test")
    assert world.acme.snapshots.usage().count == 2
    world.acme.retention.release(hold.id)
    assert len(world.acme.snapshots.delete([free.id, made.id], reason="test")) == 2
