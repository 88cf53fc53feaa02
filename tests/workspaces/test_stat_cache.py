"""The cache of file states: used only where it is valid, and only to save time."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from holdfast.trees import safe_open, stat_cache
from holdfast.trees.entries import TreeEntry
from holdfast.trees.stat_cache import COARSE_NS, GRAIN_NS, CachedTree
from tests.workspaces.conftest import SMALL
from tests.workspaces.worlds import World, make, on_disk

SECOND = 10**9


def cache_file(tmp_path: Path) -> Path:
    (result,) = (tmp_path / "w.db.cache").iterdir()
    return result


def rewrite_hidden(path: Path, content: bytes) -> None:
    """Other bytes in the same file, of the same length and with the same time of the last change."""
    before = path.stat()
    assert len(content) == before.st_size
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_hidden_change_is_detected_by_the_ctime(small: World, tree: Path, later: None) -> None:
    small.capture(tree)
    rewrite_hidden(tree / "README.md", b"# B tree\n")
    second = small.capture(tree)
    assert second.changed == 1
    assert small.acme.snapshots.read(second.snapshot.id, "README.md") == b"# B tree\n"


def test_recently_written_files_are_read_again(small: World, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the file system stands still: nothing tells a second change from the first but the content."""
    monkeypatch.setattr(stat_cache, "GRAIN_NS", 600 * SECOND)  # however long it takes to get here
    small.capture(tree)
    key = next(iter(small.acme.workspaces._async._scope.shared["workspaces"]))
    pictures = small.acme.workspaces._async._scope.shared["workspaces"]
    assert not pictures[key].stats, "all files were written recently"
    # With a stopped clock, the content changes and every examined field stays the same.
    before = safe_open.stat_of(os.lstat(tree / "README.md"))
    (tree / "README.md").write_bytes(b"# B tree\n")
    monkeypatch.setattr(safe_open, "stat_of", _frozen(safe_open.stat_of, before))
    second = small.capture(tree)
    assert small.acme.snapshots.read(second.snapshot.id, "README.md") == b"# B tree\n"


def _frozen(stat_of: object, was: stat_cache.Stat) -> object:
    def frozen(now: os.stat_result) -> stat_cache.Stat:
        return was if now.st_ino == was[4] else stat_of(now)  # type: ignore[operator, no-any-return]

    return frozen


@pytest.mark.parametrize(
    ("ctime", "started", "is_at_rest"),
    [
        (5 * SECOND + 1, 5 * SECOND + 1, False),
        (5 * SECOND + 1, 5 * SECOND + 1 + GRAIN_NS, False),
        (5 * SECOND + 1, 5 * SECOND + 2 + GRAIN_NS, True),
        (5 * SECOND, 5 * SECOND + GRAIN_NS + 2, False),  # a file system that counts in seconds
        (5 * SECOND, 5 * SECOND + COARSE_NS, False),
        (5 * SECOND, 5 * SECOND + COARSE_NS + 1, True),
        (9 * SECOND + 1, 5 * SECOND, False),  # from the future
    ],
)
def test_a_file_is_at_rest_after_a_tick(ctime: int, started: int, is_at_rest: bool) -> None:
    assert stat_cache.at_rest((0, 0, 0, ctime, 0), started) is is_at_rest


def test_the_clock_is_that_of_the_file_system(tmp_path: Path) -> None:
    before = stat_cache.now_ns()
    (tmp_path / "file").touch()
    written = (tmp_path / "file").stat().st_mtime_ns
    assert before <= written <= stat_cache.now_ns()
    assert written - before < 10 * SECOND


def test_another_process_uses_the_known_states(tmp_path: Path, tree: Path, later: None) -> None:
    first = World(str(tmp_path / "w.db"), limits=SMALL)
    taken = first.capture(tree).snapshot
    run_id = first.run_id
    first.close()
    second = World(str(tmp_path / "w.db"), limits=SMALL)
    read: list[str] = []
    content = safe_open.content
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(safe_open, "content", lambda file: [read.append("x"), content(file)][1])
        again = second.capture(tree, run_id=run_id)
    assert (read, again.changed, again.snapshot.layer_id) == ([], 0, taken.layer_id)
    second.close()


def test_a_lost_cache_costs_time_and_no_space(tmp_path: Path, tree: Path, later: None) -> None:
    first = World(str(tmp_path / "w.db"), limits=SMALL)
    taken = first.capture(tree).snapshot
    run_id = first.run_id
    first.close()
    cache_file(tmp_path).unlink()
    second = World(str(tmp_path / "w.db"), limits=SMALL)
    again = second.capture(tree, run_id=run_id)
    assert (again.changed, again.snapshot.layer_id, again.snapshot.size_bytes) == (0, taken.layer_id, 0)
    second.close()


def test_a_damaged_cache_is_ignored(tmp_path: Path, tree: Path, later: None) -> None:
    first = World(str(tmp_path / "w.db"), limits=SMALL)
    first.capture(tree)
    run_id = first.run_id
    first.close()
    file, random = cache_file(tmp_path), Random(7)
    whole = file.read_bytes()
    assert stat_cache.load(file) is not None
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        file.write_bytes(damaged)
        assert stat_cache.load(file) is None
    for cut in (0, 1, 31, 32, 33, len(whole) - 1):
        file.write_bytes(whole[:cut])
        assert stat_cache.load(file) is None
    second = World(str(tmp_path / "w.db"), limits=SMALL)
    again = second.capture(tree, run_id=run_id)
    assert second.described(again.snapshot) == on_disk(tree)
    second.close()


def test_a_cache_of_another_tree_hides_no_changes(tmp_path: Path, tree: Path, later: None) -> None:
    """It has states of files that the layer does not contain, or contains differently."""
    first = World(str(tmp_path / "w.db"), limits=SMALL)
    first.capture(tree)
    (picture,) = first.acme.workspaces._async._scope.shared["workspaces"].values()
    run_id = first.run_id
    first.close()
    make(tree, {"unknown": b"never captured"})
    (tree / "README.md").write_bytes(b"another text")
    stats = {path: safe_open.stat_of(os.lstat(tree / path)) for path in [*picture.stats, "unknown", "README.md"]}
    stat_cache.save(cache_file(tmp_path), structs.replace(picture, stats=stats))
    second = World(str(tmp_path / "w.db"), limits=SMALL)
    again = second.capture(tree, run_id=run_id)
    assert second.described(again.snapshot) == on_disk(tree)
    second.close()


def test_a_cache_of_a_removed_layer_is_ignored(tmp_path: Path, tree: Path, later: None) -> None:
    first = World(str(tmp_path / "w.db"), limits=SMALL)
    taken = first.capture(tree).snapshot
    run_id = first.run_id
    first.acme.snapshots.delete([taken.id], reason="test")
    again = first.capture(tree)
    assert again.snapshot.layer_id != taken.layer_id, "the tree cached in memory was not used"
    first.acme.snapshots.delete([again.snapshot.id], reason="test")
    first.close()
    second = World(str(tmp_path / "w.db"), limits=SMALL)
    once_more = second.capture(tree, run_id=run_id)
    assert second.described(once_more.snapshot) == on_disk(tree)
    second.close()


def test_an_unwritable_cache_directory_is_no_error(tmp_path: Path, tree: Path) -> None:
    (tmp_path / "w.db.cache").write_bytes(b"a file where the directory should be")
    world = World(str(tmp_path / "w.db"), limits=SMALL)
    captured = world.capture(tree)
    assert world.described(captured.snapshot) == on_disk(tree)
    world.close()


def test_the_number_of_cached_trees_is_limited(tmp_path: Path) -> None:
    world = World(str(tmp_path / "w.db"), limits=SMALL)
    for number in range(12):
        make(tmp_path / f"tree {number}", {"file": b"%d" % number})
        world.capture(tmp_path / f"tree {number}")
    kept = world.acme.workspaces._async._scope.shared["workspaces"]
    assert [Path(root).name for _, root in kept] == [f"tree {number}" for number in range(4, 12)]
    assert len(list((tmp_path / "w.db.cache").iterdir())) == 12
    world.close()


def test_a_saved_cache_is_loaded_unchanged(tmp_path: Path) -> None:
    stats = {
        "plain": (stat.S_IFREG | 0o644, 5, 7, 11, 13),
        "not \udcff utf-8": (stat.S_IFLNK | 0o777, 2**40, -5, 2**62, 2**62),
        "folder/line\nbreak": (stat.S_IFDIR | 0o755, 0, 0, 0, 0),
    }
    picture = CachedTree("s", "l", 0, (), {}, stats, 0)
    stat_cache.save(tmp_path / "new" / "cache", picture)
    loaded = stat_cache.load(tmp_path / "new" / "cache")
    assert loaded is not None
    assert (loaded.snapshot_id, loaded.layer_id, loaded.stats) == ("s", "l", stats)
    stat_cache.save(tmp_path / "new" / "cache", structs.replace(picture, stats={}))
    empty = stat_cache.load(tmp_path / "new" / "cache")
    assert empty is not None
    assert empty.stats == {}


def test_an_inode_of_sixty_four_bits_is_read_again(tmp_path: Path) -> None:
    stats = {"file": (stat.S_IFREG | 0o644, 5, 7, 11, 2**64 - 1)}
    stat_cache.save(tmp_path / "cache", CachedTree("s", "l", 0, (), {}, stats, 0))
    loaded = stat_cache.load(tmp_path / "cache")
    assert loaded is not None
    assert loaded.stats["file"][:4] == stats["file"][:4]


def test_only_states_that_match_an_entry_are_used() -> None:
    entry = TreeEntry("file", "file", 0o644, 7, 5)
    good = (stat.S_IFREG | 0o644, 5, 7, 11, 13)
    assert stat_cache.matching_stats({"file": good}, {"file": entry}) == {"file": good}
    for number, value in ((0, stat.S_IFREG | 0o600), (0, stat.S_IFDIR | 0o644), (1, 6), (2, 8)):
        other = (*good[:number], value, *good[number + 1 :])
        assert stat_cache.matching_stats({"file": other}, {"file": entry}) == {}
    assert stat_cache.matching_stats({"other": good}, {"file": entry}) == {}
