"""Single captures of a directory without a database: the results of a first and a second scan."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.objects import unpack
from holdfast.errors import InvalidInput, LimitExceeded, NotFound
from holdfast.trees import safe_open, stat_cache
from holdfast.trees.entries import TreeEntry
from holdfast.trees.ignore_rules import IgnoreRules
from holdfast.trees.overlay import UpperScan
from holdfast.trees.scan import Scan, ScanResult
from holdfast.trees.walk import SkippedEntry
from tests.errors import raises
from tests.workspaces.worlds import make

TREE: dict[str, bytes | str | None] = {"a": b"1", "d/b": b"22", "d/e/c": b"333", "l": "a", "z": None}
Bodies = dict[bytes, bytes]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make(tmp_path / "tree", TREE)
    return tmp_path / "tree"


@pytest.fixture(autouse=True)
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything has been at rest for a minute."""
    now_ns = stat_cache.now_ns
    monkeypatch.setattr(stat_cache, "now_ns", lambda: now_ns() + 60 * 10**9)


def run_scan(
    root: Path, before: ScanResult | None = None, bodies: Bodies | None = None, kind: type[Scan] = Scan, **other: Any
) -> ScanResult:
    """The result of a scan, based on another."""
    arguments: dict[str, Any] = {
        "entries": before.entries if before else {},
        "stats": before.stats if before else {},
        "ignores": IgnoreRules([]),
        "max_depth": 20,
        "max_entries": 100,
    }
    scan = kind(str(root), **{**arguments, **other})
    for part in scan.parts():
        if bodies is not None:
            bodies |= {packed.digest: unpack(packed.digest, packed.codec, packed.body) for packed in part}
    return scan.result()


def content(entries: Mapping[str, TreeEntry], path: str, bodies: Bodies) -> bytes:
    return b"".join(bodies[piece.object][piece.start : piece.start + piece.length] for piece in entries[path].pieces)


def changed_paths(result: ScanResult) -> list[str]:
    return sorted(entry.path for entry in result.difference.entries)


# First scan


def test_everything_is_new_the_first_time(root: Path) -> None:
    bodies: Bodies = {}
    result = run_scan(root, bodies=bodies)
    assert sorted(result.entries) == changed_paths(result) == ["a", "d", "d/b", "d/e", "d/e/c", "l", "z"]
    assert (result.difference.removed, result.skipped, result.unsettled) == ([], [], [])
    assert [content(result.entries, path, bodies) for path in ("a", "d/b", "d/e/c")] == [b"1", b"22", b"333"]
    assert sorted(result.stats) == ["", "a", "d", "d/b", "d/e", "d/e/c", "l", "z"]


def test_entries_match_the_file_system(root: Path) -> None:
    (root / "a").chmod(0o4751)
    os.utime(root / "a", ns=(5, 1_234_567_891))
    result = run_scan(root).entries
    assert (result["a"].kind, result["a"].mode, result["a"].mtime_ns, result["a"].size) == (
        "file",
        0o4751,
        1_234_567_891,
        1,
    )
    assert (result["l"].kind, result["l"].target, result["l"].size) == ("symlink", "a", 0)
    assert (result["z"].kind, result["z"].size, result["z"].digest, result["z"].pieces) == ("dir", 0, b"", ())


def test_the_result_contains_the_ignore_patterns(root: Path) -> None:
    result = run_scan(root, ignores=IgnoreRules(["d/", "# note"]))
    assert sorted(result.entries) == ["a", "l", "z"]
    assert result.difference.ignore == ("d/", "# note")


def test_an_empty_tree_has_no_entries_and_a_root_state(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = run_scan(tmp_path / "empty")
    assert (result.entries, list(result.stats)) == ({}, [""])


def test_a_missing_tree_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        run_scan(tmp_path / "nowhere")


def test_too_many_entries_are_refused(root: Path) -> None:
    with raises(LimitExceeded, limit="tree_entries"):
        run_scan(root, max_entries=3)


# Second scan


def test_an_unchanged_tree_gives_the_same_objects(root: Path) -> None:
    first = run_scan(root)
    second = run_scan(root, first)
    assert (second.difference.entries, second.difference.removed) == ([], [])
    assert second.entries is first.entries
    assert second.stats is first.stats


@pytest.mark.parametrize("forget", [False, True], ids=["with known states", "without"])
@pytest.mark.parametrize(
    ("change", "new", "gone"),
    [
        (lambda root: (root / "a").write_bytes(b"2"), ["a"], []),
        (lambda root: (root / "a").chmod(0o600), ["a"], []),
        (lambda root: os.utime(root / "d" / "b", ns=(5, 5)), ["d/b"], []),
        (lambda root: os.utime(root / "d" / "e", ns=(5, 5)), ["d/e"], []),
        (lambda root: (root / "a").unlink(), [], ["a"]),
        (lambda root: (root / "z").rmdir(), [], ["z"]),
        (lambda root: shutil.rmtree(root / "d"), [], ["d", "d/b", "d/e", "d/e/c"]),
        (lambda root: make(root, {"x": b"new"}), ["x"], []),
        (lambda root: make(root, {"z/y/x": b"new"}), ["z", "z/y", "z/y/x"], []),
        (lambda root: (root / "a").rename(root / "A"), ["A"], ["a"]),
        (lambda root: [(root / "l").unlink(), (root / "l").symlink_to("b")], ["l"], []),
        (lambda root: [(root / "l").unlink(), (root / "l").write_bytes(b"file")], ["l"], []),
        (lambda root: [(root / "a").unlink(), (root / "a").mkdir()], ["a"], []),
        (lambda root: [shutil.rmtree(root / "d"), (root / "d").touch()], ["d"], ["d/b", "d/e", "d/e/c"]),
        (lambda root: [(root / "a").unlink(), os.mkfifo(root / "a")], [], ["a"]),
        (lambda root: None, [], []),
    ],
    ids=[
        "content", "mode", "time", "time of a directory", "file gone", "directory gone", "tree gone", "file new", "tree new",
        "renamed", "link elsewhere", "link to file", "file to directory", "directory to file", "file to pipe", "nothing",
    ],
)  # fmt: skip
def test_a_difference_contains_exactly_the_changes(
    root: Path, change: Callable[[Path], object], new: list[str], gone: list[str], forget: bool
) -> None:
    first = run_scan(root)
    change(root)
    second = run_scan(root, first, **({"stats": {}} if forget else {}))
    assert (changed_paths(second), sorted(second.difference.removed)) == (new, gone)
    assert second.entries == second.difference.applied(first.entries)
    assert second.entries.keys() == run_scan(root).entries.keys()


def test_a_moved_file_keeps_its_pieces(root: Path) -> None:
    first = run_scan(root)
    (root / "a").rename(root / "moved")
    bodies: Bodies = {}
    second = run_scan(root, first, bodies)
    assert bodies == {}
    assert second.entries["moved"].pieces == first.entries["a"].pieces


def test_a_file_rewritten_with_equal_content_differs_only_in_time(root: Path) -> None:
    first = run_scan(root)
    (root / "a").write_bytes(b"1")
    os.utime(root / "a", ns=(5, first.entries["a"].mtime_ns))
    second = run_scan(root, first)
    assert changed_paths(second) == []
    assert second.stats["a"] != first.stats["a"], "its current state is known"


def test_newly_ignored_paths_are_removed_by_a_full_walk(root: Path) -> None:
    first = run_scan(root)
    second = run_scan(root, first, stats={}, ignores=IgnoreRules(["d"]))
    assert sorted(second.difference.removed) == ["d", "d/b", "d/e", "d/e/c"]


def test_states_of_files_not_at_rest_are_not_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_scan(root)
    (root / "a").write_bytes(b"2")
    monkeypatch.setattr(stat_cache, "now_ns", lambda: (root / "a").stat().st_ctime_ns)
    second = run_scan(root, first)
    assert "a" in second.entries
    assert first.stats.keys() - second.stats.keys() == {"a"}
    third = run_scan(root, second)
    assert (changed_paths(third), third.difference.removed) == ([], []), "it is read again and unchanged"


# Unreadable files


def fail_reading(monkeypatch: pytest.MonkeyPatch, name: str, error: OSError) -> None:
    """Reading this file fails."""
    really = os.open

    def opening(path: Any, *rest: Any, **how: Any) -> int:
        if path == name:
            raise error
        return really(path, *rest, **how)

    monkeypatch.setattr(os, "open", opening)


def test_an_unreadable_file_is_skipped_and_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_reading(monkeypatch, "b", PermissionError(13, "Permission denied"))
    result = run_scan(root)
    assert result.skipped == [SkippedEntry("d/b", "permission denied")]
    assert "d/b" not in result.entries
    assert not {"d/b", "d"} & result.stats.keys(), "its directory is examined again"


def test_a_file_that_became_unreadable_is_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_scan(root)
    (root / "d" / "b").chmod(0o600)
    fail_reading(monkeypatch, "b", PermissionError(13, "Permission denied"))
    second = run_scan(root, first)
    assert (second.difference.removed, second.skipped) == (["d/b"], [SkippedEntry("d/b", "permission denied")])


def test_a_file_removed_before_it_is_read_is_not_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_reading(monkeypatch, "b", FileNotFoundError(2, "No such file or directory"))
    result = run_scan(root)
    assert (result.skipped, "d/b" in result.entries) == ([], False)


def test_an_unreadable_link_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*options: Any, **how: Any) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "readlink", failing)
    result = run_scan(root)
    assert result.skipped == [SkippedEntry("l", "input/output error")]
    assert "l" not in result.entries


def test_a_file_that_keeps_changing_is_captured_as_last_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_open, "is_same", lambda file: file.stat[1] != 2)
    read: list[int] = []
    really = safe_open.content
    monkeypatch.setattr(safe_open, "content", lambda file: [read.append(file.stat[1]), really(file)][1])
    result = run_scan(root)
    assert (read.count(2), read.count(1)) == (safe_open.TRIES, 1)
    assert result.unsettled == ["d/b"]
    assert "d/b" in result.entries
    assert "d/b" not in result.stats


# The upper directory of an overlay


def upper(tmp_path: Path, base: ScanResult, files: Mapping[str, bytes | str | None]) -> ScanResult:
    made = tmp_path / "upper"
    made.mkdir()
    make(made, files)
    return run_scan(made, base, kind=UpperScan, stats={})


@pytest.mark.parametrize(
    ("files", "gone"),
    [
        ({}, []),
        ({".wh.a": b""}, ["a"]),
        ({".wh.never": b""}, []),
        ({".wh.d": b""}, ["d", "d/b", "d/e", "d/e/c"]),
        ({"d/.wh.b": b""}, ["d/b"]),
        ({"d/.wh.e": b""}, ["d/e", "d/e/c"]),
        ({"d/.wh..wh..opq": b""}, ["d/b", "d/e", "d/e/c"]),
        ({"d/.wh..wh..opq": b"", "d/b": b"seen"}, ["d/e", "d/e/c"]),
        ({".wh..wh..opq": b""}, ["a", "d", "d/b", "d/e", "d/e/c", "l", "z"]),
        ({".wh..wh.aufs": b""}, []),
        ({"d": b"a file"}, ["d/b", "d/e", "d/e/c"]),
        ({"d": "a link"}, ["d/b", "d/e", "d/e/c"]),
        ({"a/inside": b"1"}, []),
        ({"d/e/new": b"1"}, []),
    ],
    ids=lambda value: ",".join(value) or "nothing" if isinstance(value, dict) else "",
)
def test_paths_removed_by_an_upper_directory(
    root: Path, tmp_path: Path, files: Mapping[str, bytes | str | None], gone: list[str]
) -> None:
    result = upper(tmp_path, run_scan(root), files)
    assert sorted(result.difference.removed) == gone
    assert not [path for path in result.entries if ".wh." in path]


def test_other_extended_attributes_are_ignored(root: Path, tmp_path: Path) -> None:
    base = run_scan(root)
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper" / "a").touch()
    try:
        os.setxattr(tmp_path / "upper" / "a", "user.other.whiteout", b"y")
    except OSError:
        return  # a file system without attributes
    result = run_scan(tmp_path / "upper", base, kind=UpperScan, stats={})
    assert result.difference.removed == []
    assert result.entries["a"].size == 0


def test_a_renamed_root_is_refused(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listxattr", lambda handle: ["trusted.overlay.redirect"])
    monkeypatch.setattr(os, "getxattr", lambda handle, name: b"/elsewhere")
    with raises(InvalidInput, field="redirect_dir") as caught:
        upper(tmp_path, run_scan(root), {"a": b"1"})
    assert "'.'" in str(caught.value)


def test_a_file_system_without_attributes_has_no_overlay_attributes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(handle: int) -> list[str]:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "listxattr", failing)
    result = upper(tmp_path, run_scan(root), {"a": b"other", ".wh.l": b""})
    assert (changed_paths(result), result.difference.removed) == (["a"], ["l"])
