"""Contents of files as objects: where each lies, what is stored once, what is stored nowhere, and files as they are read."""

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


def unpacked(packed: Sequence[Packed]) -> dict[bytes, bytes]:
    return {each.digest: unpack(each.digest, each.codec, each.body) for each in packed}


def joined(pieces: Sequence[ContentPiece], bodies: dict[bytes, bytes]) -> bytes:
    """What pieces come to."""
    return b"".join(
        bodies[lies_in][start : start + length] if lies_in else bytes(length) for lies_in, start, length in pieces
    )


def entry(path: str, content: SmallContent | ChunkedContent, size: int) -> TreeEntry:
    digest, pieces = content.placed()
    return TreeEntry(path, "file", 0o644, 0, size, "", digest, pieces)


def chunks_of(content: bytes) -> list[bytes]:
    return [content[at : at + CHUNK] for at in range(0, len(content), CHUNK)]


def chunked(packer: Packer, chunks: Sequence[bytes | int]) -> ChunkedContent:
    made = packer.chunked()
    for chunk in chunks:
        made.add(chunk)
    return made


# Small contents


def test_small_contents_lie_one_after_the_other_in_one_object(packer: Packer) -> None:
    slots = [packer.whole(each) for each in (b"one", b"four", b"sixteen")]
    (packed,) = packer.finish()
    assert unpacked([packed]) == {packed.digest: b"onefoursixteen"}
    assert [slot.pieces for slot in slots] == [
        (ContentPiece(packed.digest, 0, 3),),
        (ContentPiece(packed.digest, 3, 4),),
        (ContentPiece(packed.digest, 7, 7),),
    ]


def test_a_content_is_known_by_its_digest_at_once_and_by_its_place_at_the_end(packer: Packer) -> None:
    slot = packer.whole(b"content")
    assert slot.placed() == (digest_of(b"content"), ())
    packer.finish()
    assert [piece.length for piece in slot.placed()[1]] == [7]


def test_the_same_content_has_the_same_place(packer: Packer) -> None:
    assert packer.whole(b"content") is packer.whole(bytes(bytearray(b"content")))
    (packed,) = packer.finish()
    assert packed.size_bytes == 7


def test_the_empty_content_lies_nowhere(packer: Packer) -> None:
    slot = packer.whole(b"")
    assert packer.finish() == []
    assert slot.placed() == (digest_of(b""), ())


def test_who_gives_nothing_gets_nothing(packer: Packer) -> None:
    assert packer.finish() == []
    assert packer.take() == []
    assert not packer.is_full


@pytest.mark.parametrize(("size", "objects"), [(MAX_BUNDLED, 1), (MAX_BUNDLED + 1, 2)])
def test_a_content_too_large_for_a_bundle_is_an_object_of_its_own(packer: Packer, size: int, objects: int) -> None:
    small, large = packer.whole(b"small"), packer.whole(body(9, size))
    found = packer.finish()
    assert len(found) == objects
    assert (large.pieces[0].start == 0) is (objects == 2)
    assert joined(small.pieces, unpacked(found)) == b"small"


def test_a_bundle_that_is_full_ends(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MIN_BUNDLE", 10**9)
    monkeypatch.setattr(contents, "MAX_BUNDLE", 100)
    for number in range(10):
        packer.whole(body(number, 30))
    assert [packed.size_bytes for packed in packer.finish()] == [120, 120, 60]


def test_a_bundle_that_has_enough_ends_where_a_content_says_so(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MIN_BUNDLE", 60)
    monkeypatch.setattr(contents, "ENDS_ONE_IN", 1)
    for number in range(5):
        packer.whole(body(number, 30))
    assert [packed.size_bytes for packed in packer.finish()] == [60, 60, 30]


def test_trees_that_have_most_in_common_have_most_bundles_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MIN_BUNDLE", 200)
    monkeypatch.setattr(contents, "ENDS_ONE_IN", 4)
    one, other = Packer(), Packer()
    for number in range(200):
        one.whole(body(number, 50))
    other.whole(b"something new at the very beginning")
    for number in range(200):
        other.whole(body(number, 50))
    first, second = ({packed.digest for packed in each.finish()} for each in (one, other))
    assert len(first) > 10
    assert len(first - second) <= 2


def test_sizes_of_bundles_fit_into_each_other() -> None:
    assert MIN_BUNDLE <= MAX_BUNDLE <= CHUNK
    assert MAX_BUNDLED < CHUNK


# What is there already


def test_what_was_there_before_is_not_stored_again() -> None:
    first = Packer()
    slot = first.whole(b"content")
    first.finish()
    was = entry("old", slot, 7)
    second = Packer([was])
    assert second.whole(b"content").pieces == was.pieces
    assert second.finish() == []


def grown(times: int) -> tuple[TreeEntry, bytes, list[list[Packed]]]:
    """A file that gets longer, each time by a line."""
    lines, was, given = b"", None, []
    for number in range(times):
        lines += b"line %d\n" % number
        packer = Packer([] if was is None else [was])
        slot = packer.whole(lines, was)
        given.append(packer.finish())
        was = entry("log", slot, len(lines))
    assert was is not None
    return was, lines, given


def test_of_a_content_that_only_got_longer_the_end_is_stored() -> None:
    was, lines, given = grown(3)
    assert [[packed.size_bytes for packed in each] for each in given] == [[7], [7], [7]]
    assert joined(was.pieces, unpacked([packed for each in given for packed in each])) == lines


@pytest.mark.parametrize(("times", "pieces"), [(MAX_PIECES, MAX_PIECES), (MAX_PIECES + 1, 1)])
def test_after_so_many_pieces_the_whole_is_stored_again(times: int, pieces: int) -> None:
    was, lines, given = grown(times)
    assert len(was.pieces) == pieces
    assert joined(was.pieces, unpacked([packed for each in given for packed in each])) == lines


@pytest.mark.parametrize(
    "content", [b"Other and longer", b"before", b"befor", b"", b"x"], ids=["other", "same", "shorter", "empty", "one"]
)
def test_a_content_that_did_not_only_grow_is_stored_as_a_whole(content: bytes) -> None:
    was = TreeEntry("x", "file", 0o644, 0, 6, "", digest_of(b"before"), (ContentPiece(b"o" * 32, 0, 6),))
    packer = Packer()
    slot = packer.whole(content, was)
    packer.finish()
    assert sum(piece.length for piece in slot.pieces) == len(content)
    assert b"o" * 32 not in {piece.object for piece in slot.pieces}


def test_what_was_empty_did_not_grow() -> None:
    was = TreeEntry("x", "file", 0o644, 0, 0, "", digest_of(b""), ())
    packer = Packer()
    slot = packer.whole(b"now", was)
    (packed,) = packer.finish()
    assert slot.pieces == (ContentPiece(packed.digest, 0, 3),)


# Large contents


def test_a_large_content_is_cut_into_chunks_and_comes_back(packer: Packer) -> None:
    content = body(1, 2 * CHUNK + 5)
    made = chunked(packer, chunks_of(content))
    found = unpacked(packer.finish())
    digest, pieces = made.placed()
    assert [piece.length for piece in pieces] == [CHUNK, CHUNK, 5]
    assert joined(pieces, found) == content
    assert (made.size, len(digest)) == (len(content), DIGEST_BYTES)


@pytest.mark.parametrize(
    "chunks",
    [[bytes(CHUNK)] * 3, [3 * CHUNK], [CHUNK, bytes(CHUNK), CHUNK], [bytes(CHUNK), 2 * CHUNK]],
    ids=["read", "told", "both", "read first"],
)
def test_zeros_are_stored_nowhere_however_they_come(packer: Packer, chunks: list[bytes | int]) -> None:
    made = chunked(packer, chunks)
    assert packer.finish() == []
    assert made.placed() == chunked(packer, [3 * CHUNK]).placed()
    assert made.placed()[1] == (ContentPiece(ZEROS, 0, 3 * CHUNK),)


def test_a_short_end_of_zeros_is_stored_nowhere(packer: Packer) -> None:
    made = chunked(packer, [b"x" * CHUNK, bytes(7)])
    assert len(packer.finish()) == 1
    assert made.placed()[1][1] == ContentPiece(ZEROS, 0, 7)


def test_zeros_after_a_chunk_that_is_not_placed_yet_are_not_joined_to_it(packer: Packer) -> None:
    made = chunked(packer, [b"x" * CHUNK, bytes(CHUNK), b"y" * CHUNK, CHUNK, CHUNK])
    packer.finish()
    assert [(bool(piece.object), piece.length) for piece in made.placed()[1]] == [
        (True, CHUNK),
        (False, CHUNK),
        (True, CHUNK),
        (False, 2 * CHUNK),
    ]


def test_files_that_differ_have_digests_that_do(packer: Packer) -> None:
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
    made = [chunked(packer, each) for each in many]
    packer.finish()
    assert len({each.placed()[0] for each in made}) == len(many)


def test_the_same_chunk_is_given_away_once(packer: Packer) -> None:
    chunked(packer, [b"x" * CHUNK] * 5)
    assert len(packer.finish()) == 1


def test_a_chunk_that_an_earlier_snapshot_has_is_not_given_away() -> None:
    first = Packer()
    made = chunked(first, [b"x" * CHUNK, b"end"])
    first.finish()
    first.close()
    second = Packer([entry("old", made, CHUNK + 3)])
    again = chunked(second, [b"x" * CHUNK, b"another end"])
    found = second.finish()
    second.close()
    assert [packed.size_bytes for packed in found] == [11]
    assert again.placed()[1][0] == made.placed()[1][0]


def test_what_threads_pack_is_placed_as_if_there_were_none(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    contents_given = [body(number, 2_000) for number in range(100)]
    monkeypatch.setattr(contents, "MAX_BUNDLED", 100)
    monkeypatch.setattr(contents, "THREADS_FROM", 3_000)
    slots = [packer.whole(each) for each in contents_given]
    assert packer._pool is not None
    assert len(packer._jobs) == contents.MAX_WAITING, "no more may wait"
    found = unpacked(packer.finish())
    assert [joined(slot.pieces, found) for slot in slots] == contents_given


def test_who_takes_as_soon_as_there_is_much_gets_each_object_once(
    packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MAX_BUNDLED", 100)
    monkeypatch.setattr(contents, "THREADS_FROM", 0)
    monkeypatch.setattr(contents, "PART_BYTES", 5_000)
    taken, times = [], 0
    for number in range(100):
        packer.whole(body(number % 60, 1_000))
        if packer.is_full:
            taken += packer.take()
            times += 1
            assert not packer.is_full
    taken += packer.finish()
    assert times > 5
    assert sorted(packed.digest for packed in taken) == sorted(digest_of(body(number, 1_000)) for number in range(60))


# Files as they are read


@contextmanager
def opened(path: Path) -> Iterator[OpenFile]:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with safe_open.open_file(folder, path.name) as file:
            yield file
    finally:
        os.close(folder)


@pytest.mark.parametrize("size", [0, 1, 4_096, CHUNK])
def test_a_file_of_a_chunk_at_most_is_read_at_once(tmp_path: Path, size: int) -> None:
    content = body(2, size)
    (tmp_path / "x").write_bytes(content)
    with opened(tmp_path / "x") as file:
        assert safe_open.content(file) == content
        assert safe_open.is_same(file)


def test_a_file_that_got_longer_or_shorter_since_it_was_opened_is_not_the_same(tmp_path: Path) -> None:
    for change in (b"longer than before", b"short"):
        (tmp_path / "x").write_bytes(b"before it")
        with opened(tmp_path / "x") as file:
            (tmp_path / "x").write_bytes(change)
            assert len(safe_open.content(file)) != file.stat[1]
            assert not safe_open.is_same(file)


def test_a_file_that_is_replaced_is_read_as_it_was_when_it_was_opened(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"before")
    (tmp_path / "y").write_bytes(b"after")
    with opened(tmp_path / "x") as file:
        os.replace(tmp_path / "y", tmp_path / "x")
        assert safe_open.content(file) == b"before"


@pytest.mark.parametrize(
    ("name", "number"),
    [("nowhere", errno.ENOENT), ("link", errno.ELOOP), ("pipe", errno.EINVAL), ("folder", errno.EINVAL)],
)
def test_what_is_no_file_is_not_opened(tmp_path: Path, name: str, number: int) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r".") as caught, opened(tmp_path / name):
        pass
    assert caught.value.errno == number
    assert len(os.listdir("/proc/self/fd")) == before


def holes(path: Path, written: Sequence[tuple[int, bytes]], size: int) -> bytes:
    """A file in which only this was ever written."""
    with open(path, "wb") as file:
        file.truncate(size)
        for at, content in written:
            file.seek(at)
            file.write(content)
    return path.read_bytes()


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3)), max_size=4), st.integers(0, 9_000))
def test_a_file_with_holes_comes_back_from_its_chunks(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[int, int]], more: int
) -> None:
    path = tmp_path_factory.mktemp("holes") / "x"
    end = max((at * 4_096 + length for at, length in written), default=0)
    content = holes(path, [(at * 4_096, b"x" * length) for at, length in written], end + more)
    with pytest.MonkeyPatch.context() as patch, opened(path) as file:
        patch.setattr(safe_open, "CHUNK", 4_096)
        found = list(safe_open.chunks(file))
    assert b"".join(bytes(each) if isinstance(each, int) else each for each in found) == content


def test_where_nothing_was_written_nothing_is_read(tmp_path: Path) -> None:
    holes(tmp_path / "x", [(5 * CHUNK, b"in the middle")], 9 * CHUNK)
    with opened(tmp_path / "x") as file:
        found = [each if isinstance(each, int) else "read" for each in safe_open.chunks(file)]
    assert found == [5 * CHUNK, "read", 3 * CHUNK]


def test_a_file_that_ends_sooner_than_it_said_gives_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * (CHUNK + 10))
    with opened(tmp_path / "x") as file:
        parts = safe_open.chunks(file)
        assert next(parts) == b"x" * CHUNK
        os.truncate(tmp_path / "x", CHUNK + 4)
        assert [*parts] == [b"x" * 4]
