"""Patching files: existing pieces are not fetched, and the result is always correct."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from holdfast.core.objects import digest_of
from holdfast.trees import restore
from holdfast.trees.contents import CHUNK
from holdfast.trees.entries import ZEROS, ContentPiece, TreeEntry
from holdfast.trees.patch import patch

FIRST, SECOND = digest_of(b"first"), digest_of(b"second")
BODIES = {FIRST: bytes(range(256)) * 4, SECOND: bytes(reversed(range(256))) * 4}


def file(*pieces: tuple[bytes, int, int], name: str = "file") -> TreeEntry:
    """A file of these pieces, with the digest that it has then."""
    made = tuple(ContentPiece(*piece) for piece in pieces)
    return TreeEntry(name, "file", 0o644, 0, len(content(made)), "", digest_of(content(made)), made)


def content(pieces: tuple[ContentPiece, ...]) -> bytes:
    """Return the content of pieces."""
    return b"".join(
        BODIES[piece.object][piece.start :][: piece.length] if piece.object else bytes(piece.length) for piece in pieces
    )


def restore_over(root: Path, entry: TreeEntry, existing: TreeEntry | None) -> list[bytes]:
    """Restore a file in the place of another; return the requested objects."""
    entries: Mapping[str, TreeEntry] = {entry.path: entry}
    plan = restore.plan(entries, {} if existing is None else {existing.path: existing}, [entry])
    steps, asked = restore.restore(str(root), plan, entries), list[bytes]()
    try:
        now = next(steps)
        while True:
            asked += now.now
            now = steps.send({digest: BODIES[digest] for digest in now.now})
    except StopIteration:
        return asked


@pytest.mark.parametrize(
    ("was", "becomes", "fetched"),
    [
        ([(FIRST, 0, 100)], [(FIRST, 0, 100), (SECOND, 0, 20)], {SECOND}),
        ([(FIRST, 0, 100), (SECOND, 0, 20)], [(FIRST, 0, 100)], set()),
        ([(FIRST, 0, 100), (SECOND, 0, 20)], [(SECOND, 5, 10), (FIRST, 50, 50)], set()),
        ([(FIRST, 10, 50)], [(FIRST, 9, 50)], {FIRST}),
        ([(FIRST, 10, 50)], [(FIRST, 11, 50)], {FIRST}),
        ([(FIRST, 10, 50)], [(SECOND, 10, 50)], {SECOND}),
        ([(FIRST, 10, 50)], [(ZEROS, 0, 7), (FIRST, 20, 5), (ZEROS, 0, 9)], set()),
        ([(ZEROS, 0, 50), (FIRST, 0, 9)], [(FIRST, 3, 6)], set()),
        ([(ZEROS, 0, 50)], [(ZEROS, 0, 20)], set()),
    ],
    ids=[
        "longer",
        "shorter",
        "turned round",
        "begins before",
        "ends after",
        "another",
        "holes",
        "after a hole",
        "hole",
    ],
)
def test_pieces_in_the_existing_file_are_not_fetched(
    tmp_path: Path,
    was: list[tuple[bytes, int, int]],
    becomes: list[tuple[bytes, int, int]],
    fetched: set[bytes],
) -> None:
    existing, expected = file(*was), file(*becomes)
    (tmp_path / "file").write_bytes(content(existing.pieces))
    assert set(restore_over(tmp_path, expected, existing)) == fetched
    assert (tmp_path / "file").read_bytes() == content(expected.pieces)


def test_a_file_with_unexpected_content_is_fetched_whole(tmp_path: Path) -> None:
    existing, expected = file((FIRST, 0, 100)), file((FIRST, 0, 90), (SECOND, 0, 20))
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert set(restore_over(tmp_path, expected, existing)) == {FIRST, SECOND}
    assert (tmp_path / "file").read_bytes() == content(expected.pieces)


def test_a_shortened_file_is_fetched_whole(tmp_path: Path) -> None:
    existing, expected = file((FIRST, 0, 100)), file((FIRST, 0, 90))
    (tmp_path / "file").write_bytes(content(existing.pieces)[:89])
    assert restore_over(tmp_path, expected, existing) == [FIRST]
    assert (tmp_path / "file").read_bytes() == content(expected.pieces)


def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    existing, expected = file((FIRST, 0, 100)), file((FIRST, 0, 90))
    (tmp_path / "aside").write_bytes(content(existing.pieces))
    (tmp_path / "link").symlink_to("aside")
    os.mkfifo(tmp_path / "pipe")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        how = patch(expected, existing)
        assert how.content(folder, "aside", {}) == content(expected.pieces)
        assert [how.content(folder, name, {}) for name in ("link", "pipe", "none", ".")] == [None] * 4
    finally:
        os.close(folder)


def test_another_hard_link_of_a_patched_file_is_unchanged(tmp_path: Path) -> None:
    existing, expected = file((FIRST, 0, 100)), file((FIRST, 0, 90))
    (tmp_path / "aside").write_bytes(content(existing.pieces))
    (tmp_path / "file").hardlink_to(tmp_path / "aside")
    assert restore_over(tmp_path, expected, existing) == []
    assert (tmp_path / "file").read_bytes() == content(expected.pieces)
    assert (tmp_path / "aside").read_bytes() == content(existing.pieces)


@pytest.mark.parametrize("longer", ["wanted", "there"])
def test_files_longer_than_a_chunk_are_not_patched(longer: str) -> None:
    small, large = (
        file((FIRST, 0, 100)),
        TreeEntry("file", "file", 0, 0, CHUNK + 1, "", b"", (ContentPiece(FIRST, 0, CHUNK + 1),)),
    )
    expected, existing = (large, small) if longer == "wanted" else (small, large)
    assert patch(expected, existing).offsets == {}
    assert patch(expected, existing).fetched == list(expected.pieces)


def test_without_a_known_existing_file_everything_is_fetched() -> None:
    expected = file((FIRST, 0, 100))
    for existing in (None, TreeEntry("file", "dir", 0, 0), TreeEntry("file", "file", 0, 0, 100, "", b"other")):
        assert patch(expected, existing).fetched == list(expected.pieces)


pieces = st.lists(
    st.tuples(st.sampled_from([FIRST, SECOND, ZEROS]), st.integers(0, 900), st.integers(1, 100)), min_size=1, max_size=6
)


@examples(max_examples=300, deadline=None)
@given(was=pieces, becomes=pieces, is_damaged=st.booleans())
def test_any_existing_file_is_patched_to_the_wanted_one(
    was: list[tuple[bytes, int, int]],
    becomes: list[tuple[bytes, int, int]],
    is_damaged: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    existing, expected = file(*was), file(*becomes)
    assume(existing.digest != expected.digest)
    root = tmp_path_factory.mktemp("any", numbered=True)
    (root / "file").write_bytes(content(existing.pieces)[::-1] if is_damaged else content(existing.pieces))
    asked = restore_over(root, expected, existing)
    assert (root / "file").read_bytes() == content(expected.pieces)
    if not is_damaged:
        assert set(asked) == {piece.object for piece in patch(expected, existing).fetched}
    assert os.listdir(root) == ["file"]
