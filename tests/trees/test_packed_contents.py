"""Packing contents into objects: bundles, shared and appended content, chunks, and files as they are read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.objects import DIGEST_BYTES, Packed, digest_of, unpack
from holdfast.trees import contents, safe_open
from holdfast.trees.contents import (
    CHUNK,
    MAX_BUNDLE,
    MAX_BUNDLED,
    MAX_PIECES,
    MIN_BUNDLE,
    ChunkedContent,
    Packer,
    SmallContent,
)
from holdfast.trees.entries import ZEROS, ContentPiece, TreeEntry
from holdfast.trees.safe_open import OpenFile


@pytest.fixture
def packer() -> Iterator[Packer]:
    made = Packer()
    yield made
    made.close()


def body(number: int, size: int) -> bytes:
    return Random(number).randbytes(size)


def unpack_all(packed: Sequence[Packed]) -> dict[bytes, bytes]:
    return {pack.digest: unpack(pack.digest, pack.codec, pack.body) for pack in packed}


def join_pieces(pieces: Sequence[ContentPiece], bodies: dict[bytes, bytes]) -> bytes:
    """Return the content of pieces."""
    return b"".join(
        bodies[lies_in][start : start + length] if lies_in else bytes(length) for lies_in, start, length in pieces
    )


def entry(path: str, content: SmallContent | ChunkedContent, size: int) -> TreeEntry:
    digest, pieces = content.digest_and_pieces()
    return TreeEntry(path, "file", 0o644, 0, size, "", digest, pieces)


def chunks_of(content: bytes) -> list[bytes]:
    return [content[at : at + CHUNK] for at in range(0, len(content), CHUNK)]


def add_chunks(packer: Packer, chunks: Sequence[bytes | int]) -> ChunkedContent:
    made = packer.start_large()
    for chunk in chunks:
        made.add(chunk)
    return made


# Small contents


def test_small_contents_are_bundled_in_one_object(packer: Packer) -> None:
    slots = [packer.add_small(content) for content in (b"one", b"four", b"sixteen")]
    (packed,) = packer.finish()
    assert unpack_all([packed]) == {packed.digest: b"onefoursixteen"}
    assert [slot.pieces for slot in slots] == [
        (ContentPiece(packed.digest, 0, 3),),
        (ContentPiece(packed.digest, 3, 4),),
        (ContentPiece(packed.digest, 7, 7),),
    ]


def test_a_content_has_its_digest_at_once_and_its_pieces_at_the_end(packer: Packer) -> None:
    slot = packer.add_small(b"content")
    assert slot.digest_and_pieces() == (digest_of(b"content"), ())
    packer.finish()
    assert [piece.length for piece in slot.digest_and_pieces()[1]] == [7]


def test_equal_contents_have_equal_pieces(packer: Packer) -> None:
    assert packer.add_small(b"content") is packer.add_small(bytes(bytearray(b"content")))
    (packed,) = packer.finish()
    assert packed.size_bytes == 7


def test_empty_content_has_no_pieces(packer: Packer) -> None:
    slot = packer.add_small(b"")
    assert packer.finish() == []
    assert slot.digest_and_pieces() == (digest_of(b""), ())


def test_a_packer_without_contents_returns_nothing(packer: Packer) -> None:
    assert packer.finish() == []
    assert packer.take() == []
    assert not packer.is_full


@pytest.mark.parametrize(("size", "objects"), [(MAX_BUNDLED, 1), (MAX_BUNDLED + 1, 2)])
def test_a_content_too_large_for_a_bundle_is_an_object_of_its_own(packer: Packer, size: int, objects: int) -> None:
    small, large = packer.add_small(b"small"), packer.add_small(body(9, size))
    result = packer.finish()
    assert len(result) == objects
    assert (large.pieces[0].start == 0) is (objects == 2)
    assert join_pieces(small.pieces, unpack_all(result)) == b"small"


def test_a_full_bundle_ends(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MIN_BUNDLE", 10**9)
    monkeypatch.setattr(contents, "MAX_BUNDLE", 100)
    for number in range(10):
        packer.add_small(body(number, 30))
    assert [packed.size_bytes for packed in packer.finish()] == [120, 120, 60]


def test_a_large_enough_bundle_ends_by_digest(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MIN_BUNDLE", 60)
    monkeypatch.setattr(contents, "ENDS_ONE_IN", 1)
    for number in range(5):
        packer.add_small(body(number, 30))
    assert [packed.size_bytes for packed in packer.finish()] == [60, 60, 30]


def test_trees_that_have_most_in_common_have_most_bundles_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MIN_BUNDLE", 200)
    monkeypatch.setattr(contents, "ENDS_ONE_IN", 4)
    one, other = Packer(), Packer()
    for number in range(200):
        one.add_small(body(number, 50))
    other.add_small(b"something new at the very beginning")
    for number in range(200):
        other.add_small(body(number, 50))
    first, second = ({packed.digest for packed in packer.finish()} for packer in (one, other))
    assert len(first) > 10
    assert len(first - second) <= 2


def test_sizes_of_bundles_fit_into_each_other() -> None:
    assert MIN_BUNDLE <= MAX_BUNDLE <= CHUNK
    assert MAX_BUNDLED < CHUNK


# Stored content


def test_content_of_an_earlier_snapshot_is_not_stored_again() -> None:
    first = Packer()
    slot = first.add_small(b"content")
    first.finish()
    was = entry("old", slot, 7)
    second = Packer([was])
    assert second.add_small(b"content").pieces == was.pieces
    assert second.finish() == []


def append_lines(times: int) -> tuple[TreeEntry, bytes, list[list[Packed]]]:
    """A file to which a line is appended each time."""
    lines, was, arguments = b"", None, []
    for number in range(times):
        lines += b"line %d\n" % number
        packer = Packer([] if was is None else [was])
        slot = packer.add_small(lines, was)
        arguments.append(packer.finish())
        was = entry("log", slot, len(lines))
    assert was is not None
    return was, lines, arguments


def test_only_the_end_of_appended_content_is_stored() -> None:
    was, lines, arguments = append_lines(3)
    assert [[packed.size_bytes for packed in packed_parts] for packed_parts in arguments] == [[7], [7], [7]]
    assert (
        join_pieces(was.pieces, unpack_all([packed for packed_parts in arguments for packed in packed_parts])) == lines
    )


@pytest.mark.parametrize(("times", "pieces"), [(MAX_PIECES, MAX_PIECES), (MAX_PIECES + 1, 1)])
def test_after_the_maximum_of_pieces_the_whole_is_stored_again(times: int, pieces: int) -> None:
    was, lines, arguments = append_lines(times)
    assert len(was.pieces) == pieces
    assert (
        join_pieces(was.pieces, unpack_all([packed for packed_parts in arguments for packed in packed_parts])) == lines
    )


@pytest.mark.parametrize(
    "content", [b"Other and longer", b"before", b"befor", b"", b"x"], ids=["other", "same", "shorter", "empty", "one"]
)
def test_content_changed_in_another_way_is_stored_whole(content: bytes) -> None:
    was = TreeEntry("x", "file", 0o644, 0, 6, "", digest_of(b"before"), (ContentPiece(b"o" * 32, 0, 6),))
    packer = Packer()
    slot = packer.add_small(content, was)
    packer.finish()
    assert sum(piece.length for piece in slot.pieces) == len(content)
    assert b"o" * 32 not in {piece.object for piece in slot.pieces}


def test_content_appended_to_an_empty_file_is_stored_whole() -> None:
    was = TreeEntry("x", "file", 0o644, 0, 0, "", digest_of(b""), ())
    packer = Packer()
    slot = packer.add_small(b"now", was)
    (packed,) = packer.finish()
    assert slot.pieces == (ContentPiece(packed.digest, 0, 3),)


# Large contents


def test_large_content_is_chunked_and_restored(packer: Packer) -> None:
    content = body(1, 2 * CHUNK + 5)
    made = add_chunks(packer, chunks_of(content))
    result = unpack_all(packer.finish())
    digest, pieces = made.digest_and_pieces()
    assert [piece.length for piece in pieces] == [CHUNK, CHUNK, 5]
    assert join_pieces(pieces, result) == content
    assert (made.size, len(digest)) == (len(content), DIGEST_BYTES)


@pytest.mark.parametrize(
    "chunks",
    [[bytes(CHUNK)] * 3, [3 * CHUNK], [CHUNK, bytes(CHUNK), CHUNK], [bytes(CHUNK), 2 * CHUNK]],
    ids=["read", "told", "both", "read first"],
)
def test_zeros_are_never_stored(packer: Packer, chunks: list[bytes | int]) -> None:
    made = add_chunks(packer, chunks)
    assert packer.finish() == []
    assert made.digest_and_pieces() == add_chunks(packer, [3 * CHUNK]).digest_and_pieces()
    assert made.digest_and_pieces()[1] == (ContentPiece(ZEROS, 0, 3 * CHUNK),)


def test_trailing_zeros_are_not_stored(packer: Packer) -> None:
    made = add_chunks(packer, [b"x" * CHUNK, bytes(7)])
    assert len(packer.finish()) == 1
    assert made.digest_and_pieces()[1][1] == ContentPiece(ZEROS, 0, 7)


def test_zeros_after_a_chunk_that_is_not_placed_yet_are_not_joined_to_it(packer: Packer) -> None:
    made = add_chunks(packer, [b"x" * CHUNK, bytes(CHUNK), b"y" * CHUNK, CHUNK, CHUNK])
    packer.finish()
    assert [(bool(piece.object), piece.length) for piece in made.digest_and_pieces()[1]] == [
        (True, CHUNK),
        (False, CHUNK),
        (True, CHUNK),
        (False, 2 * CHUNK),
    ]


def test_different_files_have_different_digests(packer: Packer) -> None:
    x, y = b"x" * CHUNK, b"y" * CHUNK
    many: list[list[bytes | int]] = [
        [x, y],
        [y, x],
        [x, y, 1],
        [x, y, 2],
        [CHUNK, x, y],
        [x, CHUNK, y],
        [x, x],
        [x, x, x],
    ]
    made = [add_chunks(packer, content) for content in many]
    packer.finish()
    assert len({chunked_content.digest_and_pieces()[0] for chunked_content in made}) == len(many)


def test_equal_chunks_are_returned_once(packer: Packer) -> None:
    add_chunks(packer, [b"x" * CHUNK] * 5)
    assert len(packer.finish()) == 1


def test_a_chunk_of_an_earlier_snapshot_is_not_returned() -> None:
    first = Packer()
    made = add_chunks(first, [b"x" * CHUNK, b"end"])
    first.finish()
    first.close()
    second = Packer([entry("old", made, CHUNK + 3)])
    again = add_chunks(second, [b"x" * CHUNK, b"another end"])
    result = second.finish()
    second.close()
    assert [packed.size_bytes for packed in result] == [11]
    assert again.digest_and_pieces()[1][0] == made.digest_and_pieces()[1][0]


def test_packing_in_threads_gives_the_same_pieces(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    contents_given = [body(number, 2_000) for number in range(100)]
    monkeypatch.setattr(contents, "MAX_BUNDLED", 100)
    monkeypatch.setattr(contents, "THREADS_FROM", 3_000)
    slots = [packer.add_small(content) for content in contents_given]
    assert packer._pool is not None
    assert len(packer._jobs) == contents.MAX_WAITING, "no more jobs may wait"
    result = unpack_all(packer.finish())
    assert [join_pieces(slot.pieces, result) for slot in slots] == contents_given


def test_taking_while_packing_returns_each_object_once(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MAX_BUNDLED", 100)
    monkeypatch.setattr(contents, "THREADS_FROM", 0)
    monkeypatch.setattr(contents, "PART_BYTES", 5_000)
    taken, times = [], 0
    for number in range(100):
        packer.add_small(body(number % 60, 1_000))
        if packer.is_full:
            taken += packer.take()
            times += 1
            assert not packer.is_full
    taken += packer.finish()
    assert times > 5
    assert sorted(packed.digest for packed in taken) == sorted(digest_of(body(number, 1_000)) for number in range(60))


# Files as they are read


@contextmanager
def open_path(path: Path) -> Iterator[OpenFile]:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with safe_open.open_file(folder, path.name) as file:
            yield file
    finally:
        os.close(folder)


@pytest.mark.parametrize("size", [0, 1, 4_096, CHUNK])
def test_a_small_file_is_read_at_once(tmp_path: Path, size: int) -> None:
    content = body(2, size)
    (tmp_path / "x").write_bytes(content)
    with open_path(tmp_path / "x") as file:
        assert safe_open.content(file) == content
        assert safe_open.is_same(file)


def test_a_file_whose_size_changed_is_not_the_same(tmp_path: Path) -> None:
    for change in (b"longer than before", b"short"):
        (tmp_path / "x").write_bytes(b"before it")
        with open_path(tmp_path / "x") as file:
            (tmp_path / "x").write_bytes(change)
            assert len(safe_open.content(file)) != file.stat[1]
            assert not safe_open.is_same(file)


def test_a_replaced_file_is_read_by_its_handle(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"before")
    (tmp_path / "y").write_bytes(b"after")
    with open_path(tmp_path / "x") as file:
        os.replace(tmp_path / "y", tmp_path / "x")
        assert safe_open.content(file) == b"before"


@pytest.mark.parametrize(
    ("name", "number"),
    [("nowhere", errno.ENOENT), ("link", errno.ELOOP), ("pipe", errno.EINVAL), ("folder", errno.EINVAL)],
)
def test_only_regular_files_are_opened(tmp_path: Path, name: str, number: int) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r".") as caught, open_path(tmp_path / name):
        pass
    assert caught.value.errno == number
    assert len(os.listdir("/proc/self/fd")) == before


def holes(path: Path, written: Sequence[tuple[int, bytes]], size: int) -> bytes:
    """A sparse file with only this content."""
    with open(path, "wb") as file:
        file.truncate(size)
        for at, content in written:
            file.seek(at)
            file.write(content)
    return path.read_bytes()


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3)), max_size=4), st.integers(0, 9_000))
def test_a_sparse_file_is_restored_from_its_chunks(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[int, int]], more: int
) -> None:
    path = tmp_path_factory.mktemp("holes") / "x"
    end = max((at * 4_096 + length for at, length in written), default=0)
    content = holes(path, [(at * 4_096, b"x" * length) for at, length in written], end + more)
    with pytest.MonkeyPatch.context() as patch, open_path(path) as file:
        patch.setattr(safe_open, "CHUNK", 4_096)
        result = list(safe_open.chunks(file))
    assert b"".join(bytes(chunk) if isinstance(chunk, int) else chunk for chunk in result) == content


def test_holes_are_not_read(tmp_path: Path) -> None:
    holes(tmp_path / "x", [(5 * CHUNK, b"in the middle")], 9 * CHUNK)
    with open_path(tmp_path / "x") as file:
        result = [chunk if isinstance(chunk, int) else "read" for chunk in safe_open.chunks(file)]
    assert result == [5 * CHUNK, "read", 3 * CHUNK]


def test_a_file_shorter_than_its_stat_gives_its_content(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * (CHUNK + 10))
    with open_path(tmp_path / "x") as file:
        parts = safe_open.chunks(file)
        assert next(parts) == b"x" * CHUNK
        os.truncate(tmp_path / "x", CHUNK + 4)
        assert [*parts] == [b"x" * 4]
