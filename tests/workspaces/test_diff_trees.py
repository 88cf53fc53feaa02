"""Differences between two snapshots: listed, and shown as git would."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Holdfast, Limits
from holdfast.errors import NotFound
from tests.workspaces.fingerprints import change, fingerprint, grow, put
from tests.workspaces.worlds import World


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    return tmp_path / "tree"


def diff_after(world: World, root: Path, change: Any, **how: Any) -> dict[str, Any]:
    """The changes that something makes to a tree."""
    before = world.capture(root).snapshot.id
    change()
    after = world.capture(root).snapshot.id
    return {change.path: change for change in world.do(world.acme.workspaces.diff(before, after, **how))}


def test_every_kind_of_change_is_listed_and_shown(world: World, root: Path) -> None:
    put(root, "changed.txt", b"one\ntwo\nthree\n")
    put(root, "removed.txt", b"gone\n")
    put(root, "bits.sh", b"#!/bin/sh\n")
    put(root, "old/name.txt", b"the same content\n" * 5)
    put(root, "picture", b"\x89PNG\0\1\2")
    put(root, "touched", b"same")
    (root / "link").symlink_to("changed.txt")
    (root / "folder").mkdir()

    def changes() -> None:
        put(root, "changed.txt", b"one\n2\nthree")
        (root / "removed.txt").unlink()
        (root / "bits.sh").chmod(0o755)
        (root / "old" / "name.txt").rename(root / "new name.txt")
        (root / "old").rmdir()
        put(root, "picture", b"\x89PNG\0\1\3")
        put(root, "added.txt", b"new\n")
        (root / "link").unlink()
        (root / "link").symlink_to("elsewhere")
        os.utime(root / "touched", ns=(5, 5))

    result = diff_after(world, root, changes)
    assert {path: change.kind for path, change in result.items()} == {
        "added.txt": "added",
        "bits.sh": "mode",
        "changed.txt": "changed",
        "link": "changed",
        "new name.txt": "renamed",
        "old": "removed",
        "picture": "changed",
        "removed.txt": "removed",
    }
    assert result["changed.txt"].text == (
        "diff --git a/changed.txt b/changed.txt\n"
        "--- a/changed.txt\n+++ b/changed.txt\n@@ -1,3 +1,3 @@\n one\n-two\n-three\n+2\n+three\n\\ No newline at end of file\n"
    )
    assert result["added.txt"].text == (
        "diff --git a/added.txt b/added.txt\nnew file mode 100644\n--- /dev/null\n+++ b/added.txt\n@@ -0,0 +1 @@\n+new\n"
    )
    assert "Binary files a/picture and b/picture differ" in result["picture"].text
    assert result["bits.sh"].text == "diff --git a/bits.sh b/bits.sh\nold mode 100644\nnew mode 100755\n"
    assert (result["new name.txt"].old_path, result["new name.txt"].size_before) == ("old/name.txt", 85)
    assert "rename from old/name.txt\nrename to new name.txt\n" in result["new name.txt"].text
    assert "-changed.txt" in result["link"].text
    assert "+elsewhere" in result["link"].text
    assert result["removed.txt"].size_after is None


def test_without_text_contents_are_not_read(small: World, root: Path) -> None:
    put(root, "a", b"1")
    result = diff_after(small, root, lambda: put(root, "a", b"2"), text=False)
    assert (result["a"].kind, result["a"].text) == ("changed", None)


def test_a_large_file_is_only_reported_to_differ(tmp_path: Path, root: Path) -> None:
    world = World(str(tmp_path / "agents.db"), limits=Limits(diff_bytes=100))
    put(root, "large", b"line\n" * 30)
    put(root, "small", b"line\n" * 20)

    def changes() -> None:
        put(root, "large", b"other\n" * 30)
        put(root, "small", b"other\n" * 10)

    result = diff_after(world, root, changes)
    assert result["large"].text.endswith("Files of more than 100 bytes differ\n")
    assert "@@" in result["small"].text
    world.close()


def test_names_and_lines_that_are_not_text_can_be_printed(small: World, root: Path) -> None:
    def changes() -> None:
        put(root, b"\xff name", b"text\n")
        put(root, "lines", b"one\r\ntwo\rthree\n")
        put(root, "latin", b"gr\xfcn\n")

    result = diff_after(small, root, changes)
    for text_change in result.values():
        text_change.text.encode()
    assert "Binary files" in result["latin"].text
    assert "+one\r" in result["lines"].text


def test_a_snapshot_does_not_differ_from_itself(small: World, root: Path) -> None:
    grow(root, Random(2))
    assert diff_after(small, root, lambda: None) == {}
    with pytest.raises(NotFound):
        small.acme.workspaces.diff("00000000-0000-7000-8000-000000000000", small.capture(root).snapshot.id)


@pytest.mark.parametrize("seed", range(4))
def test_git_applies_the_diff_to_the_same_tree(small: World, root: Path, tmp_path: Path, seed: int) -> None:
    """A patch that is made of all texts, for files of lines: whatever was changed, git makes the one tree of the other."""
    random = Random(seed)
    for number in range(12):
        put(root, f"d{number % 3}/f{number}", "".join(f"line {random.randrange(9)}\n" for _ in range(20)).encode())
    existing = tmp_path / "git"
    subprocess.run(["cp", "-a", str(root), str(existing)], check=True)

    def changes() -> None:
        for number in random.sample(range(12), 5):
            path = root / f"d{number % 3}/f{number}"
            lines = path.read_text().splitlines(keepends=True)
            lines[random.randrange(20)] = f"changed {number}\n"
            path.write_text("".join(lines[random.randrange(3) :]))
        (root / "d0" / "f0").chmod(0o755)
        (root / "d1" / "f1").unlink()
        (root / "d2" / "f2").rename(root / "moved")
        put(root, "new/file", b"last line without end")

    result = diff_after(small, root, changes)
    patch = "".join(change.text for change in result.values() if "040" not in change.text.split("\n", 2)[1])
    command = ["git", "apply", "--unsafe-paths", "--directory", str(existing), "-"]
    outcome = subprocess.run(
        command, input=patch, text=True, capture_output=True, cwd=tmp_path, timeout=60, check=False
    )
    assert outcome.returncode == 0, outcome.stderr + patch
    expected = {path: entry for path, entry in fingerprint(root, times=False).items() if entry[0] == "file"}
    assert {path: entry for path, entry in fingerprint(existing, times=False).items() if entry[0] == "file"} == expected


def test_the_diff_of_any_two_trees_lists_the_changes(tmp_path: Path) -> None:
    random = Random(11)
    root = tmp_path / "tree"
    grow(root, random)
    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        run = acme.runs.start(acme.sessions.create().id).id
        for _ in range(15):
            before, first = fingerprint(root, times=False), acme.workspaces.capture(run, root, ignore_defaults=False)
            for _ in range(random.randint(1, 4)):
                change(root, random)
            after, second = fingerprint(root, times=False), acme.workspaces.capture(run, root, ignore_defaults=False)
            result = acme.workspaces.diff(first.snapshot.id, second.snapshot.id)
            named = {change.path for change in result} | {change.old_path for change in result if change.old_path}
            changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
            assert {os.fsencode(path) for path in named} == changed
            assert all(change.text for change in result)


def test_after_the_byte_limit_files_are_only_reported_to_differ(tmp_path: Path, root: Path) -> None:
    for name in "abc":
        put(root, name, b"before\n" * 10)
    with Holdfast(str(tmp_path / "agents.db"), limits=Limits(diff_total_bytes=200)) as hf:
        acme = hf.tenant("acme")
        run = acme.runs.start(acme.sessions.create().id).id
        before = acme.workspaces.capture(run, root).snapshot.id
        for name in "abc":
            put(root, name, b"after\n" * 10)
        after = acme.workspaces.capture(run, root).snapshot.id
        displayed = [change.text or "" for change in acme.workspaces.diff(before, after)]
    assert ["Files differ, after 200 bytes of others" in text for text in displayed] == [False, True, True]
    assert "-before" in displayed[0]
