"""Layers of snapshots, and the parts of a capture: stored layers, collected layers, and caches."""

from __future__ import annotations

import asyncio
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import FixedClock, Holdfast, Limits, TenantHandle, offload
from holdfast.core.objects import digest_of, pack
from holdfast.errors import Corrupt, InvalidInput, NotFound, Stale
from holdfast.stores.workspace import layers
from holdfast.stores.workspace import squash as squash_module
from holdfast.stores.workspace.layers import LayerPart, NewLayer
from holdfast.stores.workspace.squash import Squasher
from holdfast.sync_runner import step
from holdfast.trees import archives, stat_cache
from holdfast.trees.entries import ContentPiece, Difference, TreeEntry
from holdfast.trees.scan import ScanResult
from holdfast.trees.stat_cache import CachedTree
from holdfast.types import Snapshot
from holdfast.workspaces import capture
from tests.errors import raises
from tests.stores.lifecycle.forging import body, forge, intact
from tests.workspaces.worlds import make

NEVER = "00000000-0000-7000-8000-000000000000"


@pytest.fixture
def acme() -> Iterator[TenantHandle]:
    with Holdfast(":memory:", clock=FixedClock()) as holdfast:
        yield holdfast.tenant("acme")


@pytest.fixture
def run(acme: TenantHandle) -> str:
    return acme.runs.start(acme.sessions.create().id).id


def file(path: str, size: int = 0, **fields: Any) -> TreeEntry:
    return replace(TreeEntry(path, "file", 0o644, 7, size, "", digest_of(path.encode())), **fields)


def chain(acme: TenantHandle, run: str, count: int) -> list[Snapshot]:
    """Snapshots on each other, each with one body of its own."""
    made: list[Snapshot] = []
    for number in range(count):
        acme.clock.advance(1)  # type: ignore[attr-defined]
        made.append(forge(acme, run, [body(0, 2_000), body(number + 1, 2_000)], on=made[-1] if made else None))
    return made


def add(acme: TenantHandle, new: NewLayer) -> layers.AddedLayer:
    return step(acme._engine.write(lambda connection: layers.add(connection, acme._scope, new)))


def delete(acme: TenantHandle, *snapshot: Snapshot) -> None:
    acme.snapshots.delete([kept_snapshot.id for kept_snapshot in snapshot], reason="test")


# Layers


def test_a_tree_combines_all_manifests_and_the_last_ignore_patterns() -> None:
    written = [
        Difference([file("a"), file("b")], [], ["old"]),
        Difference([file("b", mode=0o600)], ["a"], ["new", "newer"]),
        Difference([file("c")], ["never there"], []),
    ]
    bodies = [layers.manifests.write(difference) for difference in written]
    assert layers.tree_of(bodies[:2]).ignore == ["new", "newer"]
    assert layers.tree_of(bodies).entries == {"b": file("b", mode=0o600), "c": file("c")}
    assert layers.tree_of(bodies).ignore == []
    assert layers.tree_of([]).entries == {}


def test_a_layer_is_one_deeper_than_its_parent(acme: TenantHandle) -> None:
    manifest = layers.manifest_of(Difference([file("a")]))
    whole = add(acme, NewLayer(manifest))
    above = add(acme, NewLayer(layers.manifest_of(Difference([file("b")])), whole.id))
    assert (whole.depth, above.depth) == (0, 1)
    assert whole.stored_bytes == manifest.length
    assert step(acme._engine.read(lambda connection: layers.lock(connection, acme._scope, above.id))) == 1


def test_an_object_shared_by_layers_is_stored_once(acme: TenantHandle) -> None:
    new = NewLayer(layers.manifest_of(Difference([file("a")])), None, [LayerPart([pack(b"x" * 50)])])
    assert (add(acme, new).stored_bytes > 50, add(acme, new).stored_bytes) == (True, 0)
    assert acme.snapshots.usage().layers == 2


def test_a_layer_that_needs_a_missing_object_is_not_added(acme: TenantHandle) -> None:
    new = NewLayer(layers.manifest_of(Difference([])), None, [], [digest_of(b"never stored")])
    with pytest.raises(Stale):
        add(acme, new)
    assert acme.snapshots.usage().layers == 0
    assert acme.objects.usage().count == 0


def test_all_unneeded_layers_are_collected_and_counted(acme: TenantHandle, run: str) -> None:
    kept = chain(acme, run, 2)
    lowest = add(acme, NewLayer(layers.manifest_of(Difference([file("a")]))))
    add(acme, NewLayer(layers.manifest_of(Difference([file("b")])), lowest.id))
    add(acme, NewLayer(layers.manifest_of(Difference([file("c")])), kept[1].layer_id))
    assert acme.snapshots.collect() == 3
    assert acme.snapshots.collect() == 0
    assert acme.snapshots.usage().layers == 2
    assert intact(acme, [kept_snapshot.id for kept_snapshot in kept])


def test_objects_of_collected_layers_are_freed(acme: TenantHandle) -> None:
    add(acme, NewLayer(layers.manifest_of(Difference([])), None, [LayerPart([pack(b"x" * 50)])]))
    acme.objects.prune(grace_s=0)
    assert acme.objects.usage().count == 2
    acme.snapshots.collect()
    acme.objects.prune(grace_s=0)
    acme.objects.prune(grace_s=0)
    assert acme.objects.usage().count == 0


def test_a_deleted_snapshot_removes_layers_down_to_the_next_needed_one(acme: TenantHandle, run: str) -> None:
    made = chain(acme, run, 4)
    delete(acme, made[1], made[2])
    assert acme.snapshots.usage().layers == 4, "the last is based on all of them"
    delete(acme, made[3])
    assert acme.snapshots.usage().layers == 1
    assert intact(acme, [made[0].id])


def test_a_layer_of_two_snapshots_stays_for_the_other(acme: TenantHandle, run: str) -> None:
    (first,) = chain(acme, run, 1)
    new = capture.NewSnapshot(run, None, "step", first.id, first.layer_id, 2, 4_000, acme._scope.ids.new())
    second = step(acme.snapshots._async._record(new))
    assert (second.size_bytes, second.layer_id) == (0, first.layer_id)
    delete(acme, first)
    assert intact(acme, [second.id])
    assert acme.snapshots.get(second.id).parent_id == first.id, "it keeps the id of a removed parent"


def test_a_chain_with_a_layer_missing_is_corrupt(acme: TenantHandle, run: str) -> None:
    made = chain(acme, run, 3)
    connection = acme._engine._connection  # type: ignore[attr-defined]
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("DELETE FROM snapshot_layers WHERE depth = 1")
    with raises(Corrupt):
        acme.snapshots.tree(made[2].id)
    assert intact(acme, [made[0].id]), "the layers below are intact"


def test_a_missing_layer_has_no_tree(acme: TenantHandle, run: str) -> None:
    with raises(NotFound, noun="layer", key=NEVER):
        step(acme.snapshots._async._layer_tree(NEVER))
    (made,) = chain(acme, run, 1)
    tree, depth = step(acme.snapshots._async._layer_tree(made.layer_id))
    assert (len(tree.entries), depth) == (2, 0)


# Squashing


def squash(acme: TenantHandle, **how: Any) -> int:
    return step(Squasher(acme._engine, acme._scope).all(**how))


def test_needed_layers_are_not_squashed(acme: TenantHandle, run: str) -> None:
    made = chain(acme, run, 3)
    assert squash(acme, always=True) == 0
    assert [acme.snapshots.get(kept_snapshot.id).depth for kept_snapshot in made] == [0, 1, 2]


def test_always_squashes_at_any_cost(acme: TenantHandle, run: str) -> None:
    first = forge(acme, run, [])
    second = forge(acme, run, [bytes([number]) * 10 for number in range(50)], on=first)
    delete(acme, first)
    assert squash(acme) == 0
    assert squash(acme, always=True) == 1
    assert acme.snapshots.get(second.id).depth == 0
    assert intact(acme, [second.id])


def test_a_layer_can_have_more_objects_than_one_batch(
    acme: TenantHandle, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(squash_module, "HELD_BATCH", 3)
    many = [body(number, 500) for number in range(10)]
    first = forge(acme, run, [*many, body(99, 20_000)])
    second = forge(acme, run, many, on=first)
    delete(acme, first)
    assert squash(acme) == 1
    acme.objects.prune(grace_s=0)
    acme.objects.prune(grace_s=0)
    assert intact(acme, [second.id])
    assert acme.objects.usage().count == 11, "the bodies, and the manifest"


def test_an_unreadable_chain_does_not_stop_squashing_others(acme: TenantHandle, run: str) -> None:
    broken, well = chain(acme, run, 2), chain(acme, run, 2)
    connection = acme._engine._connection  # type: ignore[attr-defined]
    connection.execute("UPDATE snapshot_layers SET depth = 7 WHERE id = ?", (broken[1].layer_id,))
    delete(acme, broken[0], well[0])
    with pytest.raises(Corrupt):
        acme.snapshots.tree(broken[1].id)
    assert squash(acme, always=True) == 1
    assert intact(acme, [well[1].id])
    assert acme.snapshots.get(well[1].id).depth == 0


# Parts of a capture


@pytest.mark.parametrize("given", ["", None, 7, b"bytes", "a\0b", PurePosixPath("a\0b"), ["a"]])
def test_an_invalid_path_is_refused(given: object) -> None:
    with raises(InvalidInput, field="path"):
        capture.root_of(given)


def test_a_directory_has_one_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "link").symlink_to("tree")
    monkeypatch.chdir(tmp_path)
    forms = [tmp_path / "tree", f"{tmp_path}/tree/", "tree", "./tree/.", "link", Path("link"), "tree/../link"]
    assert {capture.root_of(form) for form in forms} == {os.path.realpath(tmp_path / "tree")}


def scan_result(
    *new: TreeEntry, removed: tuple[str, ...] = (), before: dict[str, TreeEntry] | None = None
) -> ScanResult:
    difference = Difference(new, removed, ("*.o",))
    return ScanResult(difference, difference.applied(before or {}), {}, (), ())


def make_cached_tree(*entries: TreeEntry, depth: int = 0, ignore: tuple[str, ...] = ("*.o",)) -> CachedTree:
    size = sum(entry.size for entry in entries)
    return CachedTree("s", "layer", depth, ignore, {entry.path: entry for entry in entries}, {}, size)


def test_the_bytes_of_a_tree_are_counted_from_what_changed() -> None:
    was = make_cached_tree(file("a", 5), file("b", 7), file("c", 11))
    now = scan_result(file("a", 50), file("new", 100), removed=("b",), before=dict(was.entries))
    assert capture._tree_bytes(was, now) == sum(entry.size for entry in now.entries.values()) == 161
    assert capture._tree_bytes(None, now) == 161


@pytest.mark.parametrize(
    ("before", "new", "removed", "parent"),
    [
        (make_cached_tree(file("a"), file("b")), (), (), "the same"),
        (make_cached_tree(file("a"), file("b"), ignore=()), (), (), "layer"),
        (make_cached_tree(file("a"), file("b")), (file("c"),), (), "layer"),
        (make_cached_tree(file("a"), file("b"), depth=3), (file("c"),), (), None),
        (make_cached_tree(file("a"), file("b"), depth=2), (file("c"),), (), "layer"),
        (make_cached_tree(file("a"), file("b")), (file("c"),), ("a", "b"), None),
        (make_cached_tree(file("a"), file("b")), (), ("a",), "layer"),
        (None, (file("a"),), (), None),
    ],
    ids=["nothing", "patterns", "one", "too deep", "just not", "more than there is", "one gone", "the first"],
)
def test_a_tree_is_stored_as_a_difference_or_as_a_whole(
    before: CachedTree | None, new: tuple[TreeEntry, ...], removed: tuple[str, ...], parent: str | None
) -> None:
    now = scan_result(*new, removed=removed, before=dict(before.entries) if before else {})
    layer = capture._layer(before, now, [], 3)
    if parent == "the same":
        assert layer == "layer"
        return
    assert isinstance(layer, NewLayer)
    assert layer.parent_id == parent


def test_a_whole_tree_references_stored_objects_and_adds_new_ones() -> None:
    here, new = pack(b"here"), pack(b"new")
    entries = [
        file("a", 4, pieces=(ContentPiece(here.digest, 0, 4),)),
        file("b", 3, pieces=(ContentPiece(new.digest, 0, 3),)),
    ]
    layer = capture._layer(None, scan_result(*entries), [LayerPart([new])], 3)
    assert isinstance(layer, NewLayer)
    assert (layer.held, layer.parts) == ([here.digest], [LayerPart([new])])


def test_a_blocking_caller_accesses_files_in_its_own_thread(acme: TenantHandle) -> None:
    assert step(offload.work(acme._engine, lambda: 7)) == 7


def test_an_error_in_a_worker_thread_is_raised_to_the_caller() -> None:
    def failing() -> int:
        raise KeyError("from the thread")

    engine: Any = SimpleNamespace(blocking=False)
    with pytest.raises(KeyError, match="from the thread"):
        asyncio.run(offload.work(engine, failing))


def test_a_cancelled_caller_waits_for_the_worker_thread() -> None:
    import threading

    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    engine: Any = SimpleNamespace(blocking=False)

    def slow() -> None:
        begun.set()
        may_end.wait(60)
        ended.set()

    async def cancelled() -> bool:
        task = asyncio.ensure_future(offload.work(engine, slow))
        assert await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        asyncio.get_running_loop().call_soon(may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        return ended.is_set()

    assert asyncio.run(cancelled())


def test_a_dirty_capture_removes_no_snapshot_and_the_next_step_does(tmp_path: Path) -> None:
    make(tmp_path / "tree", {"a": b"1"})
    with Holdfast(":memory:", limits=Limits(snapshots_per_run=2)) as holdfast:
        acme = holdfast.tenant("acme")
        run = acme.runs.start(acme.sessions.create().id).id
        made = [acme.workspaces.capture(run, tmp_path / "tree").snapshot.id for _ in range(2)]
        dirty = acme.workspaces.capture(run, tmp_path / "tree", kind="dirty").snapshot.id
        assert {snapshot.id for snapshot in acme.snapshots.list()} == {*made, dirty}
        last = acme.workspaces.capture(run, tmp_path / "tree").snapshot.id
        assert len(acme.snapshots.list()) == 2
        assert last in {snapshot.id for snapshot in acme.snapshots.list()}
        assert {deed.reason for deed in acme.activity.list()} == {"per_run_cap"}


# The cache file


def test_each_tenant_and_directory_has_its_own_cache_file(tmp_path: Path) -> None:
    owners_and_roots = [
        ("acme", "/a"),
        ("acme", "/b"),
        ("zenith", "/a"),
        ("acme/", "a"),
        ("acm", "e/a"),
        ("acme", "/\udcff"),
    ]
    places = [stat_cache.path_of(tmp_path, *owner_and_root) for owner_and_root in owners_and_roots]
    assert len(set(places)) == len(owners_and_roots)
    assert {place.parent for place in places} == {tmp_path}
    assert places == [stat_cache.path_of(tmp_path, *owner_and_root) for owner_and_root in owners_and_roots]


def test_a_cache_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    stat_cache.save(tmp_path / "file" / "cache", make_cached_tree())
    (tmp_path / "cache").mkdir()
    stat_cache.save(tmp_path / "cache", make_cached_tree())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "file"]
    assert stat_cache.load(tmp_path / "cache") is None
    assert stat_cache.load(tmp_path / "never") is None


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"columns": [b""] * 4}, {"columns": [b"\0" * 8] * 5, "paths": b"a\0b"}]
)
def test_an_inconsistent_cache_file_is_ignored(tmp_path: Path, change: dict[str, Any]) -> None:
    import msgspec

    fields = {"version": 1, "snapshot_id": "s", "layer_id": "l", "paths": b"a", "columns": [b"\0" * 8] * 5}
    for arguments, is_believed in ((fields, True), ({**fields, **change}, False)):
        written = msgspec.msgpack.encode([*arguments.values()])
        (tmp_path / "cache").write_bytes(written + digest_of(written))
        assert (stat_cache.load(tmp_path / "cache") is not None) is is_believed


@pytest.mark.parametrize(("kind", "bits"), [("file", stat.S_IFREG), ("dir", stat.S_IFDIR), ("symlink", stat.S_IFLNK)])
def test_only_sizes_of_files_are_compared(kind: Any, bits: int) -> None:
    entry = TreeEntry("x", kind, 0o755, 7, 0)
    known_values = {"x": (bits | 0o755, 4_096, 7, 1, 1)}
    assert (stat_cache.matching_stats(known_values, {"x": entry}) == known_values) is (kind != "file")


# Archives


def archive(*entries: TreeEntry) -> bytes:
    file = io.BytesIO()
    with pytest.raises(StopIteration) as result:
        next(archives.write(file, {entry.path: entry for entry in entries}))
    assert result.value.value == len(entries)
    return file.getvalue()


def read_archive(content: bytes) -> dict[str, TreeEntry]:
    unpacking = archives.ArchiveReader(io.BytesIO(content), Limits())
    for _ in unpacking.parts():
        pass
    return dict(unpacking.result().entries)


def test_an_empty_tree_makes_a_valid_archive() -> None:
    assert read_archive(archive()) == {}


@pytest.mark.parametrize("mtime_ns", [0, 1, -1, 999_999_999, 1_700_000_000_123_456_789, -1_500_000_001])
def test_archives_keep_times_to_the_nanosecond(mtime_ns: int) -> None:
    entry = TreeEntry("d", "dir", 0o755, mtime_ns)
    assert read_archive(archive(entry)) == {"d": entry}


def test_archives_keep_zeros_and_long_names() -> None:
    name = "/".join(["n" * 100] * 3)
    zeros = TreeEntry("zeros", "file", 0o600, 5, 70_000, "", b"", (ContentPiece(b"", 0, 70_000),))
    existing = read_archive(archive(zeros, TreeEntry(name, "symlink", 0o777, 5, 0, "t" * 300 + "é\udcff")))
    assert existing["zeros"].digest == digest_of(bytes(70_000))
    assert existing[name].target == "t" * 300 + "é\udcff"
    assert [existing[path].kind for path in ("n" * 100, "/".join(["n" * 100] * 2))] == ["dir", "dir"]


def test_an_archive_truncated_anywhere_is_refused() -> None:
    whole = archive(TreeEntry("d", "dir", 0o755, 5), TreeEntry("l", "symlink", 0o777, 5, 0, "d"))
    for end in range(len(whole)):
        with pytest.raises(InvalidInput):
            read_archive(whole[:end])
