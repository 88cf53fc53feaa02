"""Layers below snapshots, and what a capture makes of what it found: what is kept, what goes, and what is remembered."""

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


def delete(acme: TenantHandle, *gone: Snapshot) -> None:
    acme.snapshots.delete([each.id for each in gone], reason="test")


# Layers


def test_the_last_manifest_decides_what_is_ignored_and_all_what_there_is() -> None:
    written = [
        Difference([file("a"), file("b")], [], ["old"]),
        Difference([file("b", mode=0o600)], ["a"], ["new", "newer"]),
        Difference([file("c")], ["never there"], []),
    ]
    bodies = [layers.manifests.write(each) for each in written]
    assert layers.tree_of(bodies[:2]).ignore == ["new", "newer"]
    assert layers.tree_of(bodies).entries == {"b": file("b", mode=0o600), "c": file("c")}
    assert layers.tree_of(bodies).ignore == []
    assert layers.tree_of([]).entries == {}


def test_a_layer_lies_one_deeper_than_the_one_below_it(acme: TenantHandle) -> None:
    manifest = layers.manifest_of(Difference([file("a")]))
    whole = add(acme, NewLayer(manifest))
    above = add(acme, NewLayer(layers.manifest_of(Difference([file("b")])), whole.id))
    assert (whole.depth, above.depth) == (0, 1)
    assert whole.stored_bytes == manifest.length
    assert step(acme._engine.read(lambda connection: layers.lock(connection, acme._scope, above.id))) == 1


def test_what_is_stored_already_takes_no_room_in_another_layer(acme: TenantHandle) -> None:
    new = NewLayer(layers.manifest_of(Difference([file("a")])), None, [LayerPart([pack(b"x" * 50)])])
    assert (add(acme, new).stored_bytes > 50, add(acme, new).stored_bytes) == (True, 0)
    assert acme.snapshots.usage().layers == 2


def test_a_layer_that_counts_on_an_object_that_is_not_here_is_not_added(acme: TenantHandle) -> None:
    new = NewLayer(layers.manifest_of(Difference([])), None, [], [digest_of(b"never stored")])
    with pytest.raises(Stale):
        add(acme, new)
    assert acme.snapshots.usage().layers == 0
    assert acme.objects.usage().count == 0


def test_of_layers_that_nothing_needs_all_are_collected_and_counted(acme: TenantHandle, run: str) -> None:
    kept = chain(acme, run, 2)
    lowest = add(acme, NewLayer(layers.manifest_of(Difference([file("a")]))))
    add(acme, NewLayer(layers.manifest_of(Difference([file("b")])), lowest.id))
    add(acme, NewLayer(layers.manifest_of(Difference([file("c")])), kept[1].layer_id))
    assert acme.snapshots.collect() == 3
    assert acme.snapshots.collect() == 0
    assert acme.snapshots.usage().layers == 2
    assert intact(acme, [each.id for each in kept])


def test_what_collected_layers_held_is_free(acme: TenantHandle) -> None:
    add(acme, NewLayer(layers.manifest_of(Difference([])), None, [LayerPart([pack(b"x" * 50)])]))
    acme.objects.prune(grace_s=0)
    assert acme.objects.usage().count == 2
    acme.snapshots.collect()
    acme.objects.prune(grace_s=0)
    acme.objects.prune(grace_s=0)
    assert acme.objects.usage().count == 0


def test_a_snapshot_that_goes_takes_only_what_lies_above_the_next_that_is_needed(acme: TenantHandle, run: str) -> None:
    made = chain(acme, run, 4)
    delete(acme, made[1], made[2])
    assert acme.snapshots.usage().layers == 4, "the last lies on all of them"
    delete(acme, made[3])
    assert acme.snapshots.usage().layers == 1
    assert intact(acme, [made[0].id])


def test_a_layer_that_two_snapshots_need_stays_for_the_other(acme: TenantHandle, run: str) -> None:
    (first,) = chain(acme, run, 1)
    new = capture.NewSnapshot(run, None, "step", first.id, first.layer_id, 2, 4_000, acme._scope.ids.new())
    second = step(acme.snapshots._async._record(new))
    assert (second.size_bytes, second.layer_id) == (0, first.layer_id)
    delete(acme, first)
    assert intact(acme, [second.id])
    assert acme.snapshots.get(second.id).parent_id == first.id, "it says so although that is gone"


def test_a_chain_with_a_layer_missing_is_corrupt(acme: TenantHandle, run: str) -> None:
    made = chain(acme, run, 3)
    connection = acme._engine._connection  # type: ignore[attr-defined]
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("DELETE FROM snapshot_layers WHERE depth = 1")
    with pytest.raises(Corrupt, match="are not all there"):
        acme.snapshots.tree(made[2].id)
    assert intact(acme, [made[0].id]), "what is below is not touched by it"


def test_a_layer_that_is_not_here_comes_to_no_tree(acme: TenantHandle, run: str) -> None:
    with pytest.raises(NotFound, match=NEVER):
        step(acme.snapshots._async._layer_tree(NEVER))
    (made,) = chain(acme, run, 1)
    tree, depth = step(acme.snapshots._async._layer_tree(made.layer_id))
    assert (len(tree.entries), depth) == (2, 0)


# Squashing


def squash(acme: TenantHandle, **how: Any) -> int:
    return step(Squasher(acme._engine, acme._scope).all(**how))


def test_where_every_layer_is_needed_nothing_is_squashed(acme: TenantHandle, run: str) -> None:
    made = chain(acme, run, 3)
    assert squash(acme, always=True) == 0
    assert [acme.snapshots.get(each.id).depth for each in made] == [0, 1, 2]


def test_where_it_must_be_it_is_done_whatever_it_costs(acme: TenantHandle, run: str) -> None:
    first = forge(acme, run, [])
    second = forge(acme, run, [bytes([number]) * 10 for number in range(50)], on=first)
    delete(acme, first)
    assert squash(acme) == 0
    assert squash(acme, always=True) == 1
    assert acme.snapshots.get(second.id).depth == 0
    assert intact(acme, [second.id])


def test_more_objects_than_are_held_at_once(acme: TenantHandle, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(squash_module, "HELD_BATCH", 3)
    many = [body(number, 500) for number in range(10)]
    first = forge(acme, run, [*many, body(99, 20_000)])
    second = forge(acme, run, many, on=first)
    delete(acme, first)
    assert squash(acme) == 1
    acme.objects.prune(grace_s=0)
    acme.objects.prune(grace_s=0)
    assert intact(acme, [second.id])
    assert acme.objects.usage().count == 11, "the bodies, and the list of what there is"


def test_a_chain_that_cannot_be_read_does_not_keep_others_from_being_squashed(acme: TenantHandle, run: str) -> None:
    broken, well = chain(acme, run, 2), chain(acme, run, 2)
    connection = acme._engine._connection  # type: ignore[attr-defined]
    connection.execute("UPDATE snapshot_layers SET depth = 7 WHERE id = ?", (broken[1].layer_id,))
    delete(acme, broken[0], well[0])
    with pytest.raises(Corrupt):
        acme.snapshots.tree(broken[1].id)
    assert squash(acme, always=True) == 1
    assert intact(acme, [well[1].id])
    assert acme.snapshots.get(well[1].id).depth == 0


# What a capture makes of what it found


@pytest.mark.parametrize("given", ["", None, 7, b"bytes", "a\0b", PurePosixPath("a\0b"), ["a"]])
def test_a_path_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(InvalidInput, match="the path of a workspace is a directory"):
        capture.root_of(given)


def test_a_directory_has_one_form_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "link").symlink_to("tree")
    monkeypatch.chdir(tmp_path)
    forms = [tmp_path / "tree", f"{tmp_path}/tree/", "tree", "./tree/.", "link", Path("link"), "tree/../link"]
    assert {capture.root_of(each) for each in forms} == {os.path.realpath(tmp_path / "tree")}


def found(*new: TreeEntry, removed: tuple[str, ...] = (), before: dict[str, TreeEntry] | None = None) -> ScanResult:
    difference = Difference(new, removed, ("*.o",))
    return ScanResult(difference, difference.applied(before or {}), {}, (), ())


def picture(*entries: TreeEntry, depth: int = 0, ignore: tuple[str, ...] = ("*.o",)) -> CachedTree:
    size = sum(each.size for each in entries)
    return CachedTree("s", "layer", depth, ignore, {each.path: each for each in entries}, {}, size)


def test_the_bytes_of_a_tree_are_counted_from_what_changed() -> None:
    was = picture(file("a", 5), file("b", 7), file("c", 11))
    now = found(file("a", 50), file("new", 100), removed=("b",), before=dict(was.entries))
    assert capture._bytes(was, now) == sum(each.size for each in now.entries.values()) == 161
    assert capture._bytes(None, now) == 161


@pytest.mark.parametrize(
    ("before", "new", "removed", "parent"),
    [
        (picture(file("a"), file("b")), (), (), "the same"),
        (picture(file("a"), file("b"), ignore=()), (), (), "layer"),
        (picture(file("a"), file("b")), (file("c"),), (), "layer"),
        (picture(file("a"), file("b"), depth=3), (file("c"),), (), None),
        (picture(file("a"), file("b"), depth=2), (file("c"),), (), "layer"),
        (picture(file("a"), file("b")), (file("c"),), ("a", "b"), None),
        (picture(file("a"), file("b")), (), ("a",), "layer"),
        (None, (file("a"),), (), None),
    ],
    ids=["nothing", "patterns", "one", "too deep", "just not", "more than there is", "one gone", "the first"],
)
def test_on_what_a_tree_is_written_down(
    before: CachedTree | None, new: tuple[TreeEntry, ...], removed: tuple[str, ...], parent: str | None
) -> None:
    now = found(*new, removed=removed, before=dict(before.entries) if before else {})
    layer = capture._layer(before, now, [], 3)
    if parent == "the same":
        assert layer == "layer"
        return
    assert isinstance(layer, NewLayer)
    assert layer.parent_id == parent


def test_a_tree_that_is_written_as_a_whole_holds_what_is_here_and_brings_what_is_new() -> None:
    here, new = pack(b"here"), pack(b"new")
    entries = [
        file("a", 4, pieces=(ContentPiece(here.digest, 0, 4),)),
        file("b", 3, pieces=(ContentPiece(new.digest, 0, 3),)),
    ]
    layer = capture._layer(None, found(*entries), [LayerPart([new])], 3)
    assert isinstance(layer, NewLayer)
    assert (layer.held, layer.parts) == ([here.digest], [LayerPart([new])])


def test_what_takes_files_is_done_where_the_caller_is_if_it_blocks(acme: TenantHandle) -> None:
    assert step(offload.work(acme._engine, lambda: 7)) == 7


def test_an_error_in_a_thread_is_the_callers() -> None:
    def failing() -> int:
        raise KeyError("from the thread")

    engine: Any = SimpleNamespace(blocking=False)
    with pytest.raises(KeyError, match="from the thread"):
        asyncio.run(offload.work(engine, failing))


def test_who_is_cancelled_waits_for_the_thread() -> None:
    import threading

    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    engine: Any = SimpleNamespace(blocking=False)

    def slow() -> None:
        begun.set()
        may_end.wait(30)
        ended.set()

    async def cancelled() -> bool:
        task = asyncio.ensure_future(offload.work(engine, slow))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        asyncio.get_running_loop().call_soon(may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        return ended.is_set()

    assert asyncio.run(cancelled())


def test_a_dirty_tree_removes_no_snapshot_and_the_next_step_does(tmp_path: Path) -> None:
    make(tmp_path / "tree", {"a": b"1"})
    with Holdfast(":memory:", limits=Limits(snapshots_per_run=2)) as holdfast:
        acme = holdfast.tenant("acme")
        run = acme.runs.start(acme.sessions.create().id).id
        made = [acme.workspaces.capture(run, tmp_path / "tree").snapshot.id for _ in range(2)]
        dirty = acme.workspaces.capture(run, tmp_path / "tree", kind="dirty").snapshot.id
        assert {each.id for each in acme.snapshots.list()} == {*made, dirty}
        last = acme.workspaces.capture(run, tmp_path / "tree").snapshot.id
        assert len(acme.snapshots.list()) == 2
        assert last in {each.id for each in acme.snapshots.list()}
        assert {each.reason for each in acme.activity.list()} == {"per_run_cap"}


# What is kept beside the database


def test_every_tenant_and_every_directory_has_a_file_of_its_own(tmp_path: Path) -> None:
    given = [("acme", "/a"), ("acme", "/b"), ("zenith", "/a"), ("acme/", "a"), ("acm", "e/a"), ("acme", "/\udcff")]
    places = [stat_cache.place_of(tmp_path, *each) for each in given]
    assert len(set(places)) == len(given)
    assert {place.parent for place in places} == {tmp_path}
    assert places == [stat_cache.place_of(tmp_path, *each) for each in given]


def test_what_cannot_be_kept_is_not_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    stat_cache.save(tmp_path / "file" / "cache", picture())
    (tmp_path / "cache").mkdir()
    stat_cache.save(tmp_path / "cache", picture())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cache", "file"]
    assert stat_cache.load(tmp_path / "cache") is None
    assert stat_cache.load(tmp_path / "never") is None


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"columns": [b""] * 4}, {"columns": [b"\0" * 8] * 5, "paths": b"a\0b"}]
)
def test_what_is_whole_and_says_something_else_is_not_believed(tmp_path: Path, change: dict[str, Any]) -> None:
    import msgspec

    fields = {"version": 1, "snapshot_id": "s", "layer_id": "l", "paths": b"a", "columns": [b"\0" * 8] * 5}
    for given, is_believed in ((fields, True), ({**fields, **change}, False)):
        written = msgspec.msgpack.encode([*given.values()])
        (tmp_path / "cache").write_bytes(written + digest_of(written))
        assert (stat_cache.load(tmp_path / "cache") is not None) is is_believed


@pytest.mark.parametrize(("kind", "bits"), [("file", stat.S_IFREG), ("dir", stat.S_IFDIR), ("symlink", stat.S_IFLNK)])
def test_the_size_of_what_is_no_file_is_not_compared(kind: Any, bits: int) -> None:
    entry = TreeEntry("x", kind, 0o755, 7, 0)
    known = {"x": (bits | 0o755, 4_096, 7, 1, 1)}
    assert (stat_cache.matching_stats(known, {"x": entry}) == known) is (kind != "file")


# Archives


def archive(*entries: TreeEntry) -> bytes:
    file = io.BytesIO()
    with pytest.raises(StopIteration) as done:
        next(archives.write(file, {each.path: each for each in entries}))
    assert done.value.value == len(entries)
    return file.getvalue()


def unpacked(content: bytes) -> dict[str, TreeEntry]:
    unpacking = archives.ArchiveReader(io.BytesIO(content), Limits())
    for _ in unpacking.parts():
        pass
    return dict(unpacking.result().entries)


def test_an_archive_of_nothing_is_an_archive() -> None:
    assert unpacked(archive()) == {}


@pytest.mark.parametrize("mtime_ns", [0, 1, -1, 999_999_999, 1_700_000_000_123_456_789, -1_500_000_001])
def test_times_come_back_to_the_nanosecond(mtime_ns: int) -> None:
    entry = TreeEntry("d", "dir", 0o755, mtime_ns)
    assert unpacked(archive(entry)) == {"d": entry}


def test_zeros_and_long_names_come_back() -> None:
    name = "/".join(["n" * 100] * 3)
    zeros = TreeEntry("zeros", "file", 0o600, 5, 70_000, "", b"", (ContentPiece(b"", 0, 70_000),))
    there = unpacked(archive(zeros, TreeEntry(name, "symlink", 0o777, 5, 0, "t" * 300 + "é\udcff")))
    assert there["zeros"].digest == digest_of(bytes(70_000))
    assert there[name].target == "t" * 300 + "é\udcff"
    assert [there[path].kind for path in ("n" * 100, "/".join(["n" * 100] * 2))] == ["dir", "dir"]


def test_an_archive_that_was_cut_off_anywhere_is_refused() -> None:
    whole = archive(TreeEntry("d", "dir", 0o755, 5), TreeEntry("l", "symlink", 0o777, 5, 0, "d"))
    for end in range(len(whole)):
        with pytest.raises(InvalidInput):
            unpacked(whole[:end])
