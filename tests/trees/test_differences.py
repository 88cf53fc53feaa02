"""Differences between two lists of entries, and their text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.objects import digest_of
from holdfast.trees.differences import Change, changes, content_of, too_large, unified_diff
from holdfast.trees.entries import Kind, TreeEntry
from holdfast.trees.line_diff import StepBudget


def file(path: str, content: bytes = b"content", **fields: Any) -> TreeEntry:
    return replace(TreeEntry(path, "file", 0o644, 7, len(content), "", digest_of(content)), **fields)


def folder(path: str, **fields: Any) -> TreeEntry:
    return replace(TreeEntry(path, "dir", 0o755, 7), **fields)


def link(path: str, target: str = "target", **fields: Any) -> TreeEntry:
    return replace(TreeEntry(path, "symlink", 0o777, 7, 0, target), **fields)


def tree(*entries: TreeEntry) -> dict[str, TreeEntry]:
    return {entry.path: entry for entry in entries}


def described(before: dict[str, TreeEntry], after: dict[str, TreeEntry]) -> list[tuple[str, str]]:
    return [(change.kind, change.path) for change in changes(before, after)]


# Listed changes


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([], [], []),
        ([file("a")], [file("a")], []),
        ([file("a")], [file("a", mtime_ns=9)], []),
        ([], [file("a")], [("added", "a")]),
        ([file("a")], [], [("removed", "a")]),
        ([file("a")], [file("a", b"other")], [("changed", "a")]),
        ([file("a")], [file("a", mode=0o755)], [("mode", "a")]),
        ([file("a")], [file("a", b"other", mode=0o755)], [("changed", "a")]),
        ([file("a")], [folder("a")], [("changed", "a")]),
        ([file("a", b"")], [link("a")], [("changed", "a")]),
        ([folder("a")], [link("a")], [("changed", "a")]),
        ([folder("a")], [folder("a", mode=0o700)], [("mode", "a")]),
        ([link("a")], [link("a", "elsewhere")], [("changed", "a")]),
        ([link("a")], [link("a", mtime_ns=9)], []),
        ([file("b"), file("a", b"1")], [file("a", b"2"), file("c", b"3")], [("changed", "a"), ("removed", "b"), ("added", "c")]),
    ],
    ids=[
        "nothing", "same", "time", "added", "removed", "content", "mode", "content and mode", "file to directory",
        "file to link", "directory to link", "mode of a directory", "target", "time of a link", "in the order of paths",
    ],
)  # fmt: skip
def test_listed_changes(before: list[TreeEntry], after: list[TreeEntry], expected: list[tuple[str, str]]) -> None:
    assert described(tree(*before), tree(*after)) == expected


def test_a_change_has_both_sides() -> None:
    was, now = file("a"), file("a", b"other")
    assert changes(tree(was), tree(now)) == [Change("a", "changed", was, now)]
    assert changes({}, tree(now)) == [Change("a", "added", None, now)]
    assert changes(tree(was), {}) == [Change("a", "removed", was, None)]


def test_a_moved_file_with_equal_content_is_a_rename() -> None:
    was, now = file("old"), file("new", mode=0o755, mtime_ns=9)
    assert changes(tree(was), tree(now)) == [Change("new", "renamed", was, now, "old")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([file("a", b"")], [file("b", b"")]),
        ([link("a")], [link("b")]),
        ([folder("a")], [folder("b")]),
        ([file("a")], [file("b", b"other")]),
        ([file("a", b"")], [folder("b")]),
    ],
    ids=["empty files", "links", "directories", "another content", "another kind"],
)
def test_without_equal_content_there_is_no_rename(before: list[TreeEntry], after: list[TreeEntry]) -> None:
    assert described(tree(*before), tree(*after)) == [("removed", "a"), ("added", "b")]


def test_a_copied_file_is_not_a_rename() -> None:
    assert described(tree(file("a")), tree(file("a"), file("b"))) == [("added", "b")]


def test_equal_files_are_renamed_once_in_order_of_paths() -> None:
    before = tree(*(file(f"old{number}") for number in range(3)))
    after = tree(*(file(f"new{number}") for number in range(2)))
    result = changes(before, after)
    assert [(change.kind, change.path, change.old_path) for change in result] == [
        ("renamed", "new0", "old0"),
        ("renamed", "new1", "old1"),
        ("removed", "old2", None),
    ]


KINDS: list[Kind] = ["file", "dir", "symlink"]
ENTRIES = st.builds(
    lambda path, kind, mode, said: (
        file(path, said.encode(), mode=mode)
        if kind == "file"
        else folder(path, mode=mode)
        if kind == "dir"
        else link(path, said)
    ),
    st.sampled_from("abcde"),
    st.sampled_from(KINDS),
    st.sampled_from([0o644, 0o755]),
    st.sampled_from(["x", "y"]),
)
TREES = st.lists(ENTRIES, max_size=5).map(lambda entries: tree(*entries))


@settings(max_examples=60)
@given(TREES, TREES)
def test_applying_all_changes_gives_the_other_tree(before: dict[str, TreeEntry], after: dict[str, TreeEntry]) -> None:
    made = dict(before)
    for change in changes(before, after):
        if change.before is not None:
            assert made.pop(change.old_path or change.path) == change.before
        if change.after is not None:
            made[change.path] = change.after
    assert made == after


# Text


def diff_text(before: TreeEntry | None, after: TreeEntry | None, old: bytes = b"", new: bytes = b"") -> str:
    """The text of the one change between two."""
    (change,) = changes(tree(*([before] if before else [])), tree(*([after] if after else [])))
    return unified_diff(change, old, new, StepBudget(1_000_000))


def test_an_added_file_comes_from_dev_null() -> None:
    assert diff_text(None, file("a", b"x\n"), b"", b"x\n") == (
        "diff --git a/a b/a\nnew file mode 100644\n--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x\n"
    )


def test_a_removed_file_goes_to_dev_null() -> None:
    assert diff_text(file("a", b"x\n", mode=0o755), None, b"x\n", b"") == (
        "diff --git a/a b/a\ndeleted file mode 100755\n--- a/a\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )


def test_an_empty_file_has_a_header_and_no_lines() -> None:
    assert diff_text(None, file("a", b"")) == "diff --git a/a b/a\nnew file mode 100644\n"


def test_a_changed_file_shows_three_lines_around() -> None:
    old = [b"%d\n" % number for number in range(20)]
    new = [*old[:10], b"changed\n", *old[11:]]
    text = diff_text(file("a"), file("a", b"other"), b"".join(old), b"".join(new))
    assert text.splitlines()[3:] == [
        "@@ -8,7 +8,7 @@", " 7", " 8", " 9", "-10", "+changed", " 11", " 12", " 13",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "end"),
    [
        (b"a", b"a\n", "-a\n\\ No newline at end of file\n+a\n"),
        (b"a\n", b"a", "-a\n+a\n\\ No newline at end of file\n"),
        (b"a", b"b", "-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n"),
    ],
)
def test_a_missing_newline_at_the_end_is_marked(old: bytes, new: bytes, end: str) -> None:
    assert diff_text(file("a"), file("a", b"other"), old, new).endswith(f"@@ -1 +1 @@\n{end}")


@pytest.mark.parametrize(
    ("content", "is_text"),
    [
        (b"plain\n", True),
        ("grün\n".encode(), True),
        (b"gr\xfcn\n", False),
        (b"a\0b", False),
        (b"x" * 7_999 + b"\0", False),
        (b"x" * 8_000 + b"\0", True),
        (b"\xed\xa0\x80", False),
    ],
    ids=["plain", "utf-8", "latin", "NUL", "NUL within", "NUL beyond", "a surrogate"],
)
def test_binary_files_are_only_reported_to_differ(content: bytes, is_text: bool) -> None:
    for old, new in ((b"before\n", content), (content, b"after\n")):
        text = diff_text(file("a"), file("a", b"other"), old, new)
        assert ("Binary files a/a and b/a differ\n" in text) is not is_text


def test_only_the_mode_is_shown_where_only_that_changed() -> None:
    assert diff_text(file("a"), file("a", mode=0o600)) == "diff --git a/a b/a\nold mode 100644\nnew mode 100600\n"


def test_bits_beside_the_permissions_are_not_shown() -> None:
    assert "new mode 100755" in diff_text(file("a"), file("a", mode=0o4755))


def test_a_rename_shows_both_names_and_no_lines() -> None:
    assert diff_text(file("old name"), file("new"), b"content", b"content") == (
        "diff --git a/old name b/new\nrename from old name\nrename to new\n"
    )


def test_a_rename_with_another_mode_shows_that_too() -> None:
    assert "old mode 100644\nnew mode 100755\nrename from a\n" in diff_text(file("a"), file("b", mode=0o755))


def test_a_directory_has_only_a_header() -> None:
    assert diff_text(None, folder("d")) == "diff --git a/d b/d\nnew file mode 040755\n"
    assert diff_text(folder("d"), None) == "diff --git a/d b/d\ndeleted file mode 040755\n"


def test_a_link_is_shown_by_its_target() -> None:
    text = diff_text(link("l", "one"), link("l", "two"), b"one", b"two")
    assert text.endswith("-one\n\\ No newline at end of file\n+two\n\\ No newline at end of file\n")
    assert diff_text(None, link("l"), b"", b"target").splitlines()[1] == "new file mode 120777"


def test_a_file_that_became_a_directory_loses_its_lines() -> None:
    text = diff_text(file("a", b"x\n"), folder("a"), b"x\n", b"")
    assert "old mode 100644\nnew mode 040755\n" in text
    assert text.endswith("@@ -1 +0,0 @@\n-x\n")


def test_a_file_too_large_has_a_header_and_a_note() -> None:
    (change,) = changes({}, tree(file("a")))
    assert (
        too_large(change, 1_500) == "diff --git a/a b/a\nnew file mode 100644\nFiles of more than 1,500 bytes differ\n"
    )


def test_paths_with_any_name_can_be_printed() -> None:
    for path in ("\udcff", "a\udc80b/é", "line\nbreak"):
        for text in (
            diff_text(None, file(path), b"", b"x\n"),
            diff_text(None, file(path), b"", b"\0"),
            diff_text(file(path), None),
        ):
            assert text.encode().decode() == text
    assert "b/\\udcff" in diff_text(None, file("\udcff"), b"", b"x\n")


@pytest.mark.parametrize(
    ("entry", "content"),
    [
        (None, b""),
        (folder("d"), b""),
        (link("l", "é\udcff"), b"\xc3\xa9\xff"),
        (file("f"), None),
    ],
    ids=["nothing", "directory", "link", "file"],
)
def test_the_content_of_an_entry_without_pieces_is_known(entry: TreeEntry | None, content: bytes | None) -> None:
    assert content_of(entry) == content
