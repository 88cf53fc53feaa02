"""Walking over a tree: what is found, what is not looked at again, what is refused, and that no handle stays open."""

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


def walk(root: Path, known: Mapping[str, Stat] | None = None, **other: Any) -> Walk:
    arguments: dict[str, Any] = {"ignores": ignoring_none, "max_depth": 20, "max_entries": 100}
    return Walk(str(root), known=known or {}, **{**arguments, **other})


def found(walked: Walk) -> list[str]:
    """All paths that a walk finds, in its order."""
    return [each.path for folder in walked.folders() for each in folder.found]


def known_of(root: Path) -> dict[str, Stat]:
    """Everything about a tree as it is now."""
    stats = {"": walk_module._stat(os.lstat(root))}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            stats[os.path.relpath(path, root)] = walk_module._stat(os.lstat(path))
    return stats


# Where nothing is known


def test_everything_is_found_in_the_order_of_names_and_directories_before_what_is_in_them(root: Path) -> None:
    make(root, TREE)
    assert found(walk(root)) == ["a", "d", "l", "z", "d/b", "d/e", "d/e/c"]


def test_each_directory_is_given_once_with_its_own_names(root: Path) -> None:
    make(root, TREE)
    folders = {folder.prefix: [each.name for each in folder.found] for folder in walk(root).folders()}
    assert folders == {"": ["a", "d", "l", "z"], "d/": ["b", "e"], "d/e/": ["c"], "z/": []}


def test_a_directory_can_be_read_by_its_handle_while_it_is_given(root: Path) -> None:
    make(root, TREE)
    for folder in walk(root).folders():
        assert sorted(os.listdir(folder.handle)) == [each.name for each in folder.found]


def test_of_everything_the_state_is_told_and_of_a_link_its_own(root: Path) -> None:
    make(root, TREE)
    stats = {each.path: each.stat for folder in walk(root).folders() for each in folder.found}
    assert stats == {path: each for path, each in known_of(root).items() if path}
    assert stat.S_ISLNK(stats["l"][0])


def test_an_empty_tree_is_a_root_with_nothing_in_it(root: Path) -> None:
    walked = walk(root)
    assert [(folder.prefix, folder.found) for folder in walked.folders()] == [("", [])]
    assert walked.root_stat == walk_module._stat(os.lstat(root))


def test_names_of_any_bytes_are_found(root: Path) -> None:
    for name in (b"\xff", b"line\nbreak", "é".encode(), b" ", b"-rf"):
        (root / os.fsdecode(name)).touch()
    assert found(walk(root)) == sorted(["\udcff", "line\nbreak", "é", " ", "-rf"])


def test_a_link_to_a_directory_is_not_entered(root: Path, tmp_path: Path) -> None:
    make(tmp_path / "outside", {"secret": b"s"})
    (root / "link").symlink_to("../outside")
    (root / "self").symlink_to(".")
    assert found(walk(root)) == ["link", "self"]


def test_a_root_that_is_reached_through_a_link_is_walked_over(root: Path, tmp_path: Path) -> None:
    make(root, {"a": b"1"})
    (tmp_path / "link").symlink_to("tree")
    assert found(walk(tmp_path / "link")) == ["a"]


# What is ignored


def test_an_ignored_directory_is_not_entered(root: Path) -> None:
    make(root, TREE)
    asked: list[tuple[str, bool]] = []

    def ignores(path: str, is_folder: bool) -> bool:
        asked.append((path, is_folder))
        return path == "d"

    assert found(walk(root, ignores=ignores)) == ["a", "l", "z"]
    assert sorted(asked) == [("a", False), ("d", True), ("l", False), ("z", True)]


def test_a_link_to_a_directory_is_no_directory_when_it_is_asked_about(root: Path) -> None:
    make(root, {"d/x": b"1", "l": "d"})
    assert found(walk(root, ignores=lambda path, is_folder: is_folder)) == ["l"]


def test_what_is_known_is_not_asked_about(root: Path) -> None:
    make(root, {"a": b"1", "b": b"2"})
    known = known_of(root)
    make(root, {"c": b"3"})
    asked: list[str] = []
    walked = walk(root, known, ignores=lambda path, is_folder: bool(asked.append(path)))
    assert found(walked) == ["c"]
    assert asked == ["c"]


# Where something is known


def test_where_everything_is_as_it_was_no_directory_is_opened(root: Path) -> None:
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
def test_only_what_is_other_is_found(
    root: Path, change: Callable[[Path], object], expected: list[str], doubted: list[str]
) -> None:
    make(root, TREE)
    known = known_of(root)
    change(root)
    walked = walk(root, known)
    assert sorted(found(walked)) == expected
    assert sorted(walked.doubted) == doubted


def test_of_what_was_there_and_is_not_known_everything_is_looked_at(root: Path) -> None:
    make(root, TREE)
    known = known_of(root)
    unsure = [path for path in ("d", "a") if known.pop(path)]
    walked = walk(root, known, unsure=unsure)
    assert sorted(found(walked)) == ["a", "d"]
    assert sorted(walked.doubted) == ["a", "d"]


def test_a_directory_that_became_a_file_is_found_as_a_file(root: Path) -> None:
    make(root, TREE)
    known = known_of(root)
    (root / "z").rmdir()
    (root / "z").write_bytes(b"file")
    assert found(walk(root, known)) == ["z"]


def test_a_directory_that_became_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    make(root, TREE)
    known = known_of(root)
    (root / "d").rename(tmp_path / "moved")
    (root / "d").symlink_to("../moved")
    (tmp_path / "moved" / "b").write_bytes(b"changed outside")
    assert found(walk(root, known)) == ["d"]


def test_the_same_thing_is_not_found_twice(root: Path) -> None:
    make(root, {f"{a}/{b}/{c}": b"1" for a in "xyz" for b in "xyz" for c in "xyz"})
    known = known_of(root)
    for path in [*root.rglob("*")]:
        os.utime(path, ns=(5, 5))
    make(root, {f"{a}/new/{c}": b"1" for a in "xyz" for c in "xyz"})
    there = found(walk(root, known))
    assert sorted(there) == sorted({path for path in known_of(root) if path})


# Limits


def deep(root: Path, count: int) -> None:
    (root / "/".join("d" * count)).mkdir(parents=True)


def test_as_many_directories_in_each_other_as_allowed(root: Path) -> None:
    deep(root, 5)
    assert len(found(walk(root, max_depth=5))) == 5


def test_one_directory_too_deep_is_refused_with_its_path(root: Path) -> None:
    deep(root, 6)
    with pytest.raises(LimitExceeded, match="'d/d/d/d/d/d/' lies deeper than tree_depth = 5"):
        found(walk(root, max_depth=5))


def test_a_known_directory_that_is_too_deep_by_now_is_refused(root: Path) -> None:
    deep(root, 6)
    known = known_of(root)
    (root / "d/d/d/d/d/d/new").touch()
    with pytest.raises(LimitExceeded, match="tree_depth"):
        found(walk(root, known, max_depth=5))


def test_a_tree_that_goes_on_far_beyond_the_limit_is_not_walked_to_its_end(root: Path) -> None:
    make(root, {f"d{number}/{other}": b"" for number in range(10) for other in range(10)})
    seen: list[str] = []
    walked = walk(root, max_entries=20, ignores=lambda path, is_folder: bool(seen.append(path)))
    with pytest.raises(LimitExceeded, match="more entries than tree_entries = 20"):
        found(walked)
    assert len(seen) == 10 + 20, "the root, and the two directories that were too much"


def test_what_is_known_counts_as_well(root: Path) -> None:
    make(root, {f"{number}": b"" for number in range(10)})
    known = known_of(root)
    make(root, {"new/a": b"", "new/b": b""})
    with pytest.raises(LimitExceeded, match="tree_entries"):
        found(walk(root, known, max_entries=10))


# What cannot be


@pytest.mark.parametrize(
    ("path", "error", "match"),
    [
        ("nowhere", NotFound, "there is no directory"),
        ("file", InvalidInput, "cannot be captured"),
        ("file/below", InvalidInput, "cannot be captured"),
        ("loop", InvalidInput, "cannot be captured"),
        ("dangling", NotFound, "there is no directory"),
        ("a\0b", InvalidInput, "cannot be captured"),
        ("x" * 300, InvalidInput, "cannot be captured"),
    ],
    ids=["nowhere", "a file", "below a file", "a loop", "a link to nowhere", "a NUL", "too long"],
)
def test_a_root_that_is_none_is_refused(root: Path, path: str, error: type[Exception], match: str) -> None:
    make(root, {"file": b"", "loop": "loop", "dangling": "nowhere"})
    with pytest.raises(error, match=match):
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
def test_what_cannot_be_in_a_snapshot_has_a_name(kind: int, reason: str | None) -> None:
    assert unusual(kind | 0o644) == reason


def test_a_directory_that_goes_while_its_neighbours_are_looked_at_is_gone(root: Path) -> None:
    make(root, {"a/x": b"1", "b/x": b"2"})
    walked, seen = walk(root), []
    for folder in walked.folders():
        seen.append(folder.prefix)
        if folder.prefix == "a/":
            (root / "b" / "x").unlink()
            (root / "b").rmdir()
    assert (seen, walked.skipped) == (["", "a/"], [])


def test_a_directory_that_cannot_be_opened_is_named_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(root, {"closed/x": b"1", "open/x": b"2"})
    really = os.open

    def refusing(path: Any, *rest: Any, **how: Any) -> int:
        if path == "closed":
            raise PermissionError(13, "Permission denied")
        return really(path, *rest, **how)

    monkeypatch.setattr(os, "open", refusing)
    walked = walk(root, unsure=["closed", "closed/x"])
    assert "open/x" in found(walked)
    assert walked.skipped == [SkippedEntry("closed", "permission denied")]


def test_who_stops_in_the_middle_leaves_nothing_open(root: Path) -> None:
    deep(root, 8)
    before = len(os.listdir("/proc/self/fd"))
    walking_on = walk(root).folders()
    for _ in range(5):
        next(walking_on)
    assert len(os.listdir("/proc/self/fd")) > before
    walking_on.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before
