"""Walking a tree: changed paths, ignored paths, limits, errors, and closed handles."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import InvalidInput, LimitExceeded, NotFound
from holdfast.trees import walk as walk_module
from holdfast.trees.walk import SkippedEntry, Stat, Walk, open_root, unusual
from tests.errors import raises
from tests.workspaces.worlds import make

TREE: dict[str, bytes | str | None] = {"a": b"1", "d/b": b"2", "d/e/c": b"3", "l": "a", "z": None}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    return tmp_path / "tree"


@pytest.fixture(autouse=True)
def no_handle_stays_open() -> Iterator[None]:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == len(before)


def ignoring_none(path: str, is_folder: bool) -> bool:
    return False


def walk(root: Path, known_values: Mapping[str, Stat] | None = None, **other: Any) -> Walk:
    arguments: dict[str, Any] = {"ignores": ignoring_none, "max_depth": 20, "max_entries": 100}
    return Walk(str(root), known=known_values or {}, **{**arguments, **other})


def found_paths(walked: Walk) -> list[str]:
    """Return all paths that a walk finds, in order."""
    return [changed.path for folder in walked.folders() for changed in folder.changed]


def known_of(root: Path) -> dict[str, Stat]:
    """Return the current states of a tree."""
    stats = {"": walk_module._stat(os.lstat(root))}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            stats[os.path.relpath(path, root)] = walk_module._stat(os.lstat(path))
    return stats


# Without known states


def test_a_walk_is_ordered_by_names_with_directories_first(root: Path) -> None:
    make(root, TREE)
    assert found_paths(walk(root)) == ["a", "d", "l", "z", "d/b", "d/e", "d/e/c"]


def test_each_directory_is_yielded_once_with_its_names(root: Path) -> None:
    make(root, TREE)
    folders = {folder.prefix: [changed.name for changed in folder.changed] for folder in walk(root).folders()}
    assert folders == {"": ["a", "d", "l", "z"], "d/": ["b", "e"], "d/e/": ["c"], "z/": []}


def test_a_yielded_directory_is_open(root: Path) -> None:
    make(root, TREE)
    for folder in walk(root).folders():
        assert sorted(os.listdir(folder.handle)) == [changed.name for changed in folder.changed]


def test_every_path_has_its_state_and_links_their_own(root: Path) -> None:
    make(root, TREE)
    stats = {changed.path: changed.stat for folder in walk(root).folders() for changed in folder.changed}
    assert stats == {path: stat for path, stat in known_of(root).items() if path}
    assert stat.S_ISLNK(stats["l"][0])


def test_an_empty_tree_is_an_empty_root(root: Path) -> None:
    walked = walk(root)
    assert [(folder.prefix, folder.changed) for folder in walked.folders()] == [("", [])]
    assert walked.root_stat == walk_module._stat(os.lstat(root))


def test_names_of_any_bytes_are_found(root: Path) -> None:
    for name in (b"\xff", b"line\nbreak", "é".encode(), b" ", b"-rf"):
        (root / os.fsdecode(name)).touch()
    assert found_paths(walk(root)) == sorted(["\udcff", "line\nbreak", "é", " ", "-rf"])


def test_a_link_to_a_directory_is_not_entered(root: Path, tmp_path: Path) -> None:
    make(tmp_path / "outside", {"secret": b"s"})
    (root / "link").symlink_to("../outside")
    (root / "self").symlink_to(".")
    assert found_paths(walk(root)) == ["link", "self"]


def test_a_root_may_be_a_link(root: Path, tmp_path: Path) -> None:
    make(root, {"a": b"1"})
    (tmp_path / "link").symlink_to("tree")
    assert found_paths(walk(tmp_path / "link")) == ["a"]


# Ignored paths


def test_an_ignored_directory_is_not_entered(root: Path) -> None:
    make(root, TREE)
    asked: list[tuple[str, bool]] = []

    def ignores(path: str, is_folder: bool) -> bool:
        asked.append((path, is_folder))
        return path == "d"

    assert found_paths(walk(root, ignores=ignores)) == ["a", "l", "z"]
    assert sorted(asked) == [("a", False), ("d", True), ("l", False), ("z", True)]


def test_a_link_to_a_directory_is_matched_as_a_file(root: Path) -> None:
    make(root, {"d/x": b"1", "l": "d"})
    assert found_paths(walk(root, ignores=lambda path, is_folder: is_folder)) == ["l"]


def test_known_paths_are_not_matched_against_patterns(root: Path) -> None:
    make(root, {"a": b"1", "b": b"2"})
    known_values = known_of(root)
    make(root, {"c": b"3"})
    asked: list[str] = []
    walked = walk(root, known_values, ignores=lambda path, is_folder: bool(asked.append(path)))
    assert found_paths(walked) == ["c"]
    assert asked == ["c"]


# With known states


def test_no_directory_of_an_unchanged_tree_is_opened(root: Path) -> None:
    make(root, TREE)
    walked = walk(root, known_of(root))
    assert list(walked.folders()) == []
    assert walked.doubted == []


@pytest.mark.parametrize(
    ("change", "expected", "doubted"),
    [
        (lambda root: (root / "d" / "b").write_bytes(b"22"), ["d/b"], ["d/b"]),
        (lambda root: (root / "d" / "b").chmod(0o600), ["d/b"], ["d/b"]),
        (lambda root: os.utime(root / "a", ns=(5, 5)), ["a"], ["a"]),
        (lambda root: (root / "d" / "b").unlink(), ["d"], ["d", "d/b"]),
        (lambda root: (root / "d" / "new").touch(), ["d", "d/new"], ["d"]),
        (lambda root: (root / "z").rmdir(), [], ["z"]),
        (lambda root: make(root, {"z/y/x": b"1"}), ["z", "z/y", "z/y/x"], ["z"]),
        (lambda root: (root / "d" / "e").chmod(0o700), ["d/e"], ["d/e"]),
        (lambda root: (root / "a").rename(root / "A"), ["A"], ["a"]),
    ],
    ids=["content", "mode", "time", "removed", "new", "folder removed", "folder filled", "folder mode", "renamed"],
)
def test_only_changed_paths_are_found(
    root: Path, change: Callable[[Path], object], expected: list[str], doubted: list[str]
) -> None:
    make(root, TREE)
    known_values = known_of(root)
    change(root)
    walked = walk(root, known_values)
    assert sorted(found_paths(walked)) == expected
    assert sorted(walked.doubted) == doubted


def test_paths_of_unknown_state_are_examined(root: Path) -> None:
    make(root, TREE)
    known_values = known_of(root)
    unsure = [path for path in ("d", "a") if known_values.pop(path)]
    walked = walk(root, known_values, unsure=unsure)
    assert sorted(found_paths(walked)) == ["a", "d"]
    assert sorted(walked.doubted) == ["a", "d"]


def test_a_directory_replaced_by_a_file_is_found_as_a_file(root: Path) -> None:
    make(root, TREE)
    known_values = known_of(root)
    (root / "z").rmdir()
    (root / "z").write_bytes(b"file")
    assert found_paths(walk(root, known_values)) == ["z"]


def test_a_directory_replaced_by_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    make(root, TREE)
    known_values = known_of(root)
    (root / "d").rename(tmp_path / "moved")
    (root / "d").symlink_to("../moved")
    (tmp_path / "moved" / "b").write_bytes(b"changed outside")
    assert found_paths(walk(root, known_values)) == ["d"]


def test_no_path_is_found_twice(root: Path) -> None:
    make(root, {f"{a}/{b}/{c}": b"1" for a in "xyz" for b in "xyz" for c in "xyz"})
    known_values = known_of(root)
    for path in [*root.rglob("*")]:
        os.utime(path, ns=(5, 5))
    make(root, {f"{a}/new/{c}": b"1" for a in "xyz" for c in "xyz"})
    existing = found_paths(walk(root, known_values))
    assert sorted(existing) == sorted({path for path in known_of(root) if path})


# Limits


def deep(root: Path, count: int) -> None:
    (root / "/".join("d" * count)).mkdir(parents=True)


def test_directories_up_to_the_maximum_depth_are_walked(root: Path) -> None:
    deep(root, 5)
    assert len(found_paths(walk(root, max_depth=5))) == 5


def test_a_directory_too_deep_is_refused_with_its_path(root: Path) -> None:
    deep(root, 6)
    with raises(LimitExceeded, limit="tree_depth", maximum=5):
        found_paths(walk(root, max_depth=5))


def test_a_known_directory_too_deep_is_refused(root: Path) -> None:
    deep(root, 6)
    known_values = known_of(root)
    (root / "d/d/d/d/d/d/new").touch()
    with raises(LimitExceeded, limit="tree_depth"):
        found_paths(walk(root, known_values, max_depth=5))


def test_a_tree_far_over_the_limit_is_not_walked_completely(root: Path) -> None:
    make(root, {f"d{number}/{other}": b"" for number in range(10) for other in range(10)})
    seen: list[str] = []
    walked = walk(root, max_entries=20, ignores=lambda path, is_folder: bool(seen.append(path)))
    with raises(LimitExceeded, limit="tree_entries", maximum=20):
        found_paths(walked)
    assert len(seen) == 10 + 20, "the root, and the two directories over the limit"


def test_known_paths_count_towards_the_limit(root: Path) -> None:
    make(root, {f"{number}": b"" for number in range(10)})
    known_values = known_of(root)
    make(root, {"new/a": b"", "new/b": b""})
    with raises(LimitExceeded, limit="tree_entries"):
        found_paths(walk(root, known_values, max_entries=10))


# Errors


@pytest.mark.parametrize(
    ("path", "error", "fields"),
    [
        ("nowhere", NotFound, {"noun": "directory"}),
        ("file", InvalidInput, {"field": "root"}),
        ("file/below", InvalidInput, {"field": "root"}),
        ("loop", InvalidInput, {"field": "root"}),
        ("dangling", NotFound, {"noun": "directory"}),
        ("a\0b", InvalidInput, {"field": "root"}),
        ("x" * 300, InvalidInput, {"field": "root"}),
    ],
    ids=["nowhere", "a file", "below a file", "a loop", "a link to nowhere", "a NUL", "too long"],
)
def test_an_invalid_root_is_refused(root: Path, path: str, error: type[Exception], fields: dict[str, str]) -> None:
    make(root, {"file": b"", "loop": "loop", "dangling": "nowhere"})
    with raises(error, **fields):
        open_root(f"{root}/{path}")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (stat.S_IFSOCK, "a socket"),
        (stat.S_IFIFO, "a pipe"),
        (stat.S_IFCHR, "a device"),
        (stat.S_IFBLK, "a device"),
        (stat.S_IFREG, None),
        (stat.S_IFDIR, None),
        (stat.S_IFLNK, None),
    ],
)
def test_special_files_have_a_reason(kind: int, reason: str | None) -> None:
    assert unusual(kind | 0o644) == reason


def test_a_directory_removed_during_the_walk_is_not_reported(root: Path) -> None:
    make(root, {"a/x": b"1", "b/x": b"2"})
    walked, seen = walk(root), []
    for folder in walked.folders():
        seen.append(folder.prefix)
        if folder.prefix == "a/":
            (root / "b" / "x").unlink()
            (root / "b").rmdir()
    assert (seen, walked.skipped) == (["", "a/"], [])


def test_an_unreadable_directory_is_reported_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(root, {"closed/x": b"1", "open/x": b"2"})
    really = os.open

    def refusing(path: Any, *rest: Any, **how: Any) -> int:
        if path == "closed":
            raise PermissionError(13, "Permission denied")
        return really(path, *rest, **how)

    monkeypatch.setattr(os, "open", refusing)
    walked = walk(root, unsure=["closed", "closed/x"])
    assert "open/x" in found_paths(walked)
    assert walked.skipped == [SkippedEntry("closed", "permission denied")]


def test_an_abandoned_walk_closes_its_handles(root: Path) -> None:
    deep(root, 8)
    before = len(os.listdir("/proc/self/fd"))
    walking_on = walk(root).folders()
    for _ in range(5):
        next(walking_on)
    assert len(os.listdir("/proc/self/fd")) > before
    walking_on.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before
