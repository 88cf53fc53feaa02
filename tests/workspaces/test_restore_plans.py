"""The parts of a restore: plans, validation, requested objects, and the current state."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import Limits
from holdfast.core.objects import digest_of
from holdfast.errors import Conflict, Corrupt, InvalidInput, LimitExceeded, NotFound, Stale
from holdfast.trees import current_state, entries, prefetch, restore, validation
from holdfast.trees.entries import ContentPiece
from holdfast.trees.ignore_rules import IgnoreRules
from holdfast.trees.prefetch import ObjectRequest, Prefetch
from holdfast.trees.restore import RestorePlan, RestoreResult
from holdfast.types import TreeEntry
from tests.errors import raises
from tests.workspaces.fingerprints import fingerprint, put

LIMITS = Limits()
Tree = dict[str, TreeEntry]


def file(path: str, content: bytes = b"content", **fields: Any) -> TreeEntry:
    lies_in = digest_of(content)
    pieces = (ContentPiece(lies_in, 0, len(content)),) if content else ()
    made = TreeEntry(path, "file", 0o644, 1_000, len(content), "", lies_in, pieces)
    return replace(made, **fields)


def folder(path: str, **fields: Any) -> TreeEntry:
    return replace(TreeEntry(path, "dir", 0o755, 1_000), **fields)


def link(path: str, target: str = "elsewhere", **fields: Any) -> TreeEntry:
    return replace(TreeEntry(path, "symlink", 0o777, 1_000, 0, target), **fields)


def tree(*entries: TreeEntry) -> Tree:
    return {entry.path: entry for entry in entries}


def make_plan(expected: Tree, existing: Tree) -> RestorePlan:
    return restore.plan(expected, existing, validation.check(expected, LIMITS, known=existing))


def paths(entries: Sequence[TreeEntry]) -> list[str]:
    return [entry.path for entry in entries]


# Plans


def test_equal_trees_need_no_changes() -> None:
    existing = tree(folder("d"), file("d/f"), link("l"))
    assert make_plan(existing, dict(existing)).count == 0


def test_paths_are_created_from_the_top_and_removed_from_the_bottom() -> None:
    expected = tree(folder("a/b/c"), folder("a/b"), folder("a"), file("a/b/c/f"), link("a/l"))
    plan = make_plan(expected, {})
    assert paths(plan.folders) == ["a", "a/b", "a/b/c"]
    assert (paths(plan.files), paths(plan.links)) == (["a/b/c/f"], ["a/l"])
    back = make_plan({}, expected)
    assert back.remove == ["a/b/c/f", "a/b/c", "a/b", "a/l", "a"]
    assert back.count == 5


@pytest.mark.parametrize(
    ("now", "part"),
    [
        (file("x", b"other!!"), "files"),
        (file("x", b"longer content"), "files"),
        (file("x", mode=0o600), "touch"),
        (file("x", mtime_ns=2_000), "touch"),
        (link("x"), "files"),
        (folder("x"), "files"),
    ],
)
def test_a_file_is_written_only_if_its_content_differs(now: TreeEntry, part: str) -> None:
    plan = make_plan(tree(file("x")), tree(now))
    assert paths(getattr(plan, part)) == ["x"]
    assert plan.count == (2 if now.kind == "dir" else 1)
    assert plan.remove == (["x"] if now.kind == "dir" else []), "only a directory cannot be replaced atomically"


@pytest.mark.parametrize(
    ("now", "part"), [(folder("x", mode=0o700), "settle"), (folder("x", mtime_ns=5), "settle"), (file("x"), "folders")]
)
def test_a_directory_is_created_only_if_it_is_missing(now: TreeEntry, part: str) -> None:
    plan = make_plan(tree(folder("x")), tree(now))
    assert paths(getattr(plan, part)) == ["x"]
    assert plan.remove == ([] if now.kind == "dir" else ["x"])


@pytest.mark.parametrize("now", [link("x", "other"), link("x", mtime_ns=5), file("x")])
def test_a_changed_link_is_replaced(now: TreeEntry) -> None:
    plan = make_plan(tree(link("x")), tree(now))
    assert paths(plan.links) == ["x"]


def test_mode_bits_that_are_never_set_are_ignored() -> None:
    assert make_plan(tree(folder("x", mode=0o2755)), tree(folder("x", mode=0o755))).count == 0


# Validation


@pytest.mark.parametrize(
    "path", ["a", "a/b", "...", "..a", "a..", "-", "a b", "\udcff", "ä", "a\n", "~", "C:", "a\\b", "n" * 255]
)
def test_valid_paths_are_accepted(path: str) -> None:
    validation.check_path(path, LIMITS)


@pytest.mark.parametrize(
    "path",
    ["", "/", "/a", "a/", "//", "a//b", ".", "..", "./a", "a/.", "a/..", "../a", "a/../b", "a\0", "n" * 256, "ä" * 128],
)
def test_path_components_that_are_not_names_are_refused(path: str) -> None:
    with raises(InvalidInput, field=path):
        validation.check_path(path, LIMITS)


def test_existing_entries_are_not_checked_again() -> None:
    odd = file("sh", mode=0o4755)
    expected = tree(odd, file("new"))
    assert paths(validation.check(expected, LIMITS, known=tree(odd))) == ["new"]
    with raises(InvalidInput, field="sh"):
        validation.check(expected, LIMITS, known={})


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        (Limits(tree_entries=1), "tree_entries"),
        (Limits(tree_bytes=10), "tree_bytes"),
        (Limits(tree_path_bytes=3), "tree_path_bytes"),
    ],
)
def test_limits_are_counted_over_the_whole_tree(limits: Limits, named: str) -> None:
    expected = tree(file("a"), file("long name"))
    with raises(LimitExceeded, limit=named):
        validation.check(expected, limits, known={})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Makefile", "makefile", True),
        ("straße", "STRASSE", True),
        ("e\u0301", "\u00e9", True),
        ("a", "b", False),
        ("a/B", "A/b", True),
        ("ﬁ", "fi", True),
        ("\udcff", "\udcfe", False),
    ],
)
def test_names_that_some_file_systems_cannot_distinguish(one: str, other: str, same: bool) -> None:
    assert (validation.find_twins(tree(file(one), file(other))) is not None) is same


LINKS: dict[str, tuple[Tree, bool]] = {
    "to a file beside it": (tree(file("f"), link("l", "f")), False),
    "to nothing": (tree(link("l", "nowhere/at/all")), False),
    "to the root itself": (tree(folder("d"), link("d/l", "..")), False),
    "above the root": (tree(folder("d"), link("d/l", "../..")), True),
    "absolute": (tree(link("l", "/")), True),
    "through another": (tree(folder("d"), link("a", "d"), link("l", "a/../..")), True),
    "through another that stays inside": (tree(folder("d"), folder("d/e"), link("a", "d/e"), link("l", "a/..")), False),
    "round and round": (tree(link("a", "b"), link("b", "a")), True),
    "to itself": (tree(link("l", "l")), True),
    "with steps that mean nothing": (tree(folder("d"), link("l", "./d/.//")), False),
    "by a link that is absolute": (tree(link("a", "/etc"), link("l", "a/passwd")), True),
    "down and up as often": (tree(link("l", "x/y/../../z")), False),
    "down and up once more": (tree(link("l", "x/y/../../..")), True),
}


def leads_out(entries: Tree) -> bool:
    try:
        validation.check_links(entries)
    except InvalidInput:
        return True
    return False


@pytest.mark.parametrize("name", LINKS)
def test_links_are_followed_through_other_links(name: str) -> None:
    entries, out = LINKS[name]
    assert leads_out(entries) is out


@given(st.lists(st.sampled_from(["a", "b", "..", ".", "", "c"]), max_size=8), st.integers(0, 3))
def test_links_are_resolved_as_by_the_system(steps: list[str], depth: int) -> None:
    """Without other links, only climbing above the root leads out of it."""
    at = "/".join(["d"] * depth)
    path = f"{at}/l" if at else "l"
    entries = {path: link(path, "/".join(steps) or "x")}
    level, out = depth, entries[path].target.startswith("/")
    for step in entries[path].target.split("/"):
        level += {"..": -1, ".": 0, "": 0}.get(step, 1)
        out = out or level < 0
    assert leads_out(entries) is out


# Requested objects


def run_steps(
    steps: Generator[ObjectRequest, Mapping[bytes, bytes], Any], bodies: Mapping[bytes, bytes]
) -> tuple[list[ObjectRequest], Any]:
    """Run a generator; return its requests and its result."""
    asked: list[ObjectRequest] = []
    try:
        request = next(steps)
        while True:
            asked.append(request)
            request = steps.send({digest: bodies[digest] for digest in request.now})
    except StopIteration as restore_tree:
        return asked, restore_tree.value


def read_all(files: Sequence[TreeEntry]) -> Generator[ObjectRequest, Mapping[bytes, bytes], list[bytes]]:
    contents = Prefetch(piece for entry in files for piece in entry.pieces)
    result = []
    for entry in files:
        parts = []
        for piece in entry.pieces:
            parts.append(bytes((yield from contents.of(piece))))
        result.append(b"".join(parts))
    return result


def objects(count: int, size: int) -> dict[bytes, bytes]:
    bodies = [Random(number).randbytes(size) for number in range(count)]
    return {digest_of(body): body for body in bodies}


def in_pieces(name: str, bodies: Mapping[bytes, bytes], pieces: Sequence[tuple[int, int, int]]) -> TreeEntry:
    digests = list(bodies)
    made = tuple(ContentPiece(digests[number], start, length) for number, start, length in pieces)
    return TreeEntry(name, "file", 0o644, 0, sum(piece[2] for piece in pieces), "", b"x" * 32, made)


def test_each_object_is_requested_once_with_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "BATCH_BYTES", 250)
    bodies = objects(10, 100)
    files = [in_pieces(f"{number}", bodies, [(number // 2, number % 2 * 50, 50)]) for number in range(20)]
    asked, result = run_steps(read_all(files), bodies)
    assert b"".join(result) == b"".join(bodies.values())
    assert [digest for request in asked for digest in request.now] == list(bodies)
    assert [len(request.now) for request in asked] == [2] * 5
    assert [request.next for request in asked[:-1]] == [request.now for request in asked[1:]]
    assert asked[-1].next == []


def test_objects_needed_again_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "BATCH_BYTES", 100)
    bodies = objects(8, 100)
    files = [in_pieces(f"{number}", bodies, [(number, 0, 100), (7, number, 5)]) for number in range(7)]
    asked, result = run_steps(read_all(files), bodies)
    last = list(bodies.values())[7]
    assert result == [body + last[at : at + 5] for at, body in enumerate(list(bodies.values())[:7])]
    assert sum(len(request.now) for request in asked) == 8, "no object is requested twice"


def test_objects_over_the_memory_limit_are_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "BATCH_BYTES", 10)
    monkeypatch.setattr(prefetch, "MAX_HELD", 150)
    bodies = objects(6, 100)
    files = [in_pieces(f"{turn} {number}", bodies, [(number, turn, 10)]) for turn in range(3) for number in range(6)]
    asked, result = run_steps(read_all(files), bodies)
    assert result == [body[turn : turn + 10] for turn in range(3) for body in bodies.values()]
    assert sum(len(request.now) for request in asked) > 6


def test_an_object_too_short_is_corrupt() -> None:
    bodies = objects(1, 10)
    with raises(Corrupt):
        run_steps(read_all([in_pieces("x", bodies, [(0, 5, 6)])]), bodies)


# Current state, and carrying out plans


def read_directory(root: Path, expected: Tree, ignored: Sequence[str] = ()) -> Tree:
    result = current_state.read_directory(
        str(root), entries.Tree(expected, ignored), now=IgnoreRules([]), limits=LIMITS
    )
    assert result.apart is None
    return dict(result.entries)


def test_only_files_that_may_match_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "same", b"content", at_ns=1_000)
    put(tmp_path, "other", b"CONTENT", at_ns=1_000)
    put(tmp_path, "longer", b"content and more")
    put(tmp_path, "unknown", b"1")
    put(tmp_path, "ignored", b"1")
    opened: list[str] = []
    really = os.open
    monkeypatch.setattr(
        os,
        "open",
        lambda path, *rest, **how: opened.append(str(path)) or really(path, *rest, **how),  # type: ignore[func-returns-value]
    )
    expected = tree(file("same"), file("other"), file("longer"))
    existing = read_directory(tmp_path, expected, ["ignored"])
    assert {name for name in opened if name in {"same", "other", "longer", "unknown", "ignored"}} == {"same", "other"}
    assert sorted(existing) == ["longer", "other", "same", "unknown"]
    assert existing["same"].digest == expected["same"].digest
    assert existing["other"].digest == current_state.OTHER


def test_wanted_paths_are_examined_although_ignored(tmp_path: Path) -> None:
    put(tmp_path, "x", b"content")
    assert sorted(read_directory(tmp_path, tree(file("x")), ["x"])) == ["x"]
    assert read_directory(tmp_path, {}, ["x"]) == {}


def test_large_files_are_compared_piece_by_piece(tmp_path: Path) -> None:
    chunk = 1024 * 1024
    body = Random(1).randbytes(chunk)
    content = body + bytes(chunk + 7) + b"end"
    pieces = (
        ContentPiece(digest_of(body), 0, chunk),
        ContentPiece(b"", 0, chunk + 7),
        ContentPiece(digest_of(b"end"), 0, 3),
    )
    expected = TreeEntry("x", "file", 0o644, 0, len(content), "", b"d" * 32, pieces)
    for at in (None, 5, chunk + 5, len(content) - 1):
        changed = bytearray(content)
        if at is not None:
            changed[at] ^= 1
        put(tmp_path, "x", bytes(changed))
        existing = read_directory(tmp_path, tree(expected))["x"]
        assert (existing.digest == expected.digest) is (at is None), at


def restore_tree(root: Path, wanted: Tree, bodies: Mapping[bytes, bytes], **how: Any) -> RestoreResult:
    existing = read_directory(root, wanted)
    return run_steps(restore.restore(str(root), make_plan(wanted, existing), wanted, **how), bodies)[1]


CONTENT = {digest_of(b"content"): b"content"}


def test_a_restore_counts_its_changes(tmp_path: Path) -> None:
    told: list[int] = []
    put(tmp_path, "gone", b"1")
    expected = tree(folder("d"), file("d/f"), link("l"))
    result = restore_tree(tmp_path, expected, CONTENT, advance=told.append)
    assert result == RestoreResult(written=3, removed=1, touched=0, bytes=7, kept=[])
    assert sum(told) == 4
    (tmp_path / "d" / "f").chmod(0o600)
    assert restore_tree(tmp_path, expected, {}) == RestoreResult(touched=1, kept=[])
    assert restore_tree(tmp_path, expected, {}) == RestoreResult(kept=[])


def test_a_file_changed_since_its_capture_is_not_replaced(tmp_path: Path) -> None:
    put(tmp_path, "x", b"changed meanwhile")
    now = os.stat(tmp_path / "x")
    known_values = (now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino)
    for expected in (tree(file("x")), {}, tree(link("x"))):
        with raises(Stale):
            restore_tree(tmp_path, expected, CONTENT, expected={"x": (*known_values[:4], known_values[4] + 1)})
        assert (tmp_path / "x").read_bytes() == b"changed meanwhile"
    restore_tree(tmp_path, tree(file("x")), CONTENT, expected={"x": known_values})
    assert (tmp_path / "x").read_bytes() == b"content"


def test_leftovers_of_an_interrupted_restore_are_harmless(tmp_path: Path) -> None:
    expected = tree(*(file(f"{number}") for number in range(3)))
    plan = make_plan(expected, {})
    steps = restore.restore(str(tmp_path), plan, expected)
    next(steps)
    with pytest.raises(RuntimeError):
        steps.throw(RuntimeError("killed"))
    assert [path.name for path in tmp_path.iterdir()] == [], "the temporary file is removed"
    put(tmp_path, f".holdfast-{os.getpid()}-1", b"left by one that was really killed")
    steps = restore.restore(str(tmp_path), plan, expected)
    run_steps(steps, CONTENT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_indistinguishable_names_are_refused_before_any_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.stat
    monkeypatch.setattr(  # a file system that does not tell case apart
        os, "stat", lambda path, **how: really(str(path).lower() if "CASE" in str(path) else path, **how)
    )
    expected = tree(file("Name"), file("name"))
    with raises(Conflict, reason="file_system"):
        restore_tree(tmp_path, expected, CONTENT)
    assert fingerprint(tmp_path) == {}


def test_handles_are_closed(tmp_path: Path) -> None:
    expected = tree(*(folder(f"d{number}") for number in range(150)), *(file(f"d{number}/f") for number in range(150)))
    before = len(os.listdir("/proc/self/fd"))
    restore_tree(tmp_path, expected, CONTENT)
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(NotFound):
        restore_tree(tmp_path / "nowhere", expected, CONTENT)
    assert len(os.listdir("/proc/self/fd")) == before
