"""Making a file of the one in its place: nothing is fetched that is there already, and nothing wrong comes of it."""

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
    """What pieces come to."""
    return b"".join(
        BODIES[piece.object][piece.start :][: piece.length] if piece.object else bytes(piece.length) for piece in pieces
    )


def restored(root: Path, wanted: TreeEntry, there: TreeEntry | None) -> list[bytes]:
    """Restore a file where another is; the objects that were asked for."""
    entries: Mapping[str, TreeEntry] = {wanted.path: wanted}
    plan = restore.plan(entries, {} if there is None else {there.path: there}, [wanted])
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
def test_what_is_in_the_place_is_not_fetched(
    tmp_path: Path,
    was: list[tuple[bytes, int, int]],
    becomes: list[tuple[bytes, int, int]],
    fetched: set[bytes],
) -> None:
    there, wanted = file(*was), file(*becomes)
    (tmp_path / "file").write_bytes(content(there.pieces))
    assert set(restored(tmp_path, wanted, there)) == fetched
    assert (tmp_path / "file").read_bytes() == content(wanted.pieces)


def test_a_file_that_is_not_what_it_was_thought_to_be_is_fetched_whole(tmp_path: Path) -> None:
    there, wanted = file((FIRST, 0, 100)), file((FIRST, 0, 90), (SECOND, 0, 20))
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert set(restored(tmp_path, wanted, there)) == {FIRST, SECOND}
    assert (tmp_path / "file").read_bytes() == content(wanted.pieces)


def test_a_file_that_became_shorter_is_fetched_whole(tmp_path: Path) -> None:
    there, wanted = file((FIRST, 0, 100)), file((FIRST, 0, 90))
    (tmp_path / "file").write_bytes(content(there.pieces)[:89])
    assert restored(tmp_path, wanted, there) == [FIRST]
    assert (tmp_path / "file").read_bytes() == content(wanted.pieces)


def test_nothing_is_read_through_a_link_or_out_of_a_pipe(tmp_path: Path) -> None:
    there, wanted = file((FIRST, 0, 100)), file((FIRST, 0, 90))
    (tmp_path / "aside").write_bytes(content(there.pieces))
    (tmp_path / "link").symlink_to("aside")
    os.mkfifo(tmp_path / "pipe")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        how = patch(wanted, there)
        assert how.content(folder, "aside", {}) == content(wanted.pieces)
        assert [how.content(folder, name, {}) for name in ("link", "pipe", "none", ".")] == [None] * 4
    finally:
        os.close(folder)


def test_a_file_with_a_second_name_is_left_alone_under_that(tmp_path: Path) -> None:
    there, wanted = file((FIRST, 0, 100)), file((FIRST, 0, 90))
    (tmp_path / "aside").write_bytes(content(there.pieces))
    (tmp_path / "file").hardlink_to(tmp_path / "aside")
    assert restored(tmp_path, wanted, there) == []
    assert (tmp_path / "file").read_bytes() == content(wanted.pieces)
    assert (tmp_path / "aside").read_bytes() == content(there.pieces)


@pytest.mark.parametrize("longer", ["wanted", "there"])
def test_files_longer_than_a_chunk_are_not_made_so(longer: str) -> None:
    small, large = (
        file((FIRST, 0, 100)),
        TreeEntry("file", "file", 0, 0, CHUNK + 1, "", b"", (ContentPiece(FIRST, 0, CHUNK + 1),)),
    )
    wanted, there = (large, small) if longer == "wanted" else (small, large)
    assert patch(wanted, there).there == {}
    assert patch(wanted, there).fetched == list(wanted.pieces)


def test_where_nothing_or_something_unknown_is_everything_is_fetched() -> None:
    wanted = file((FIRST, 0, 100))
    for there in (None, TreeEntry("file", "dir", 0, 0), TreeEntry("file", "file", 0, 0, 100, "", b"other")):
        assert patch(wanted, there).fetched == list(wanted.pieces)


pieces = st.lists(
    st.tuples(st.sampled_from([FIRST, SECOND, ZEROS]), st.integers(0, 900), st.integers(1, 100)), min_size=1, max_size=6
)


@examples(max_examples=300, deadline=None)
@given(was=pieces, becomes=pieces, is_damaged=st.booleans())
def test_whatever_is_there_what_is_wanted_comes_of_it(
    was: list[tuple[bytes, int, int]],
    becomes: list[tuple[bytes, int, int]],
    is_damaged: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    there, wanted = file(*was), file(*becomes)
    assume(there.digest != wanted.digest)
    root = tmp_path_factory.mktemp("any", numbered=True)
    (root / "file").write_bytes(content(there.pieces)[::-1] if is_damaged else content(there.pieces))
    asked = restored(root, wanted, there)
    assert (root / "file").read_bytes() == content(wanted.pieces)
    if not is_damaged:
        assert set(asked) == {piece.object for piece in patch(wanted, there).fetched}
    assert os.listdir(root) == ["file"]
