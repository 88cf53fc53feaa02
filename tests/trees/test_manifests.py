"""Manifests are decoded unchanged, and anything else is refused."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Corrupt
from holdfast.trees import manifests
from holdfast.trees.entries import ZEROS, ContentPiece, Difference, TreeEntry, objects_of, path_bytes, path_text

DIGESTS = st.binary(min_size=32, max_size=32)
PATHS = st.binary(min_size=1, max_size=20).map(path_text)
PIECES = st.builds(ContentPiece, st.one_of(DIGESTS, st.just(ZEROS)), st.integers(0, 2**40), st.integers(0, 2**60))
NUMBERS = {"mode": st.integers(0, 0o7777), "mtime_ns": st.integers(-(2**62), 2**62)}
ENTRIES = st.one_of(
    st.builds(
        TreeEntry,
        path=PATHS,
        kind=st.just("file"),
        size=st.integers(0, 2**60),
        digest=DIGESTS,
        pieces=st.lists(PIECES, max_size=4).map(tuple),
        **NUMBERS,
    ),
    st.builds(TreeEntry, path=PATHS, kind=st.just("dir"), **NUMBERS),
    st.builds(TreeEntry, path=PATHS, kind=st.just("symlink"), target=PATHS, **NUMBERS),
)
DIFFERENCES = st.builds(
    Difference,
    st.lists(ENTRIES, max_size=8, unique_by=lambda entry: entry.path),
    st.lists(PATHS, max_size=5, unique=True),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=3),
)


@settings(max_examples=40, deadline=None)
@given(DIFFERENCES)
def test_a_difference_is_decoded_unchanged(difference: Difference) -> None:
    result = manifests.read(manifests.write(difference))
    assert list(result.entries) == sorted(difference.entries, key=lambda entry: entry.path)
    assert list(result.removed) == sorted(difference.removed)
    assert list(result.ignore) == list(difference.ignore)


@settings(max_examples=25, deadline=None)
@given(DIFFERENCES)
def test_a_tree_has_one_manifest_in_any_order_of_entries(difference: Difference) -> None:
    turned = Difference(difference.entries[::-1], difference.removed[::-1], difference.ignore)
    assert manifests.write(turned) == manifests.write(difference)


@given(st.binary(max_size=30))
def test_a_name_is_its_bytes(name: bytes) -> None:
    assert path_bytes(path_text(name)) == name


def test_anything_but_a_manifest_is_refused() -> None:
    entries = [TreeEntry("a", "file", 0o644, 1, 3, "", b"d" * 32, (ContentPiece(b"o" * 32, 0, 3),))]
    whole, random = manifests.write(Difference(entries, ["gone"], ["*.x"])), Random(4)
    refused = 0
    for _ in range(2_000):
        damaged = bytearray(whole)
        damaged[random.randrange(len(damaged))] = random.randrange(256)
        try:
            manifests.read(bytes(damaged[: random.choice((len(damaged), random.randrange(len(damaged))))]))
        except Corrupt:
            refused += 1
    assert refused > 500
    for body in (
        b"",
        b"\xc0",
        msgspec.msgpack.encode([2, [], [], [], []]),
        msgspec.msgpack.encode([1, [], [], [[b"a", 7, 0, 0, 0, b"", []]], []]),
    ):
        with pytest.raises(Corrupt):
            manifests.read(body)


def test_a_piece_of_an_unlisted_object_is_refused() -> None:
    line = [b"a", 0, 0o644, 0, 3, b"d" * 32, [5, 0, 3]]
    with pytest.raises(Corrupt):
        manifests.read(msgspec.msgpack.encode([1, [], [], [line], []]))


def test_differences_add_up() -> None:
    one, two, other = (
        TreeEntry("one", "dir", 0o755, 1),
        TreeEntry("two", "dir", 0o755, 1),
        TreeEntry("one", "dir", 0o700, 2),
    )
    first = Difference([one, two]).applied({})
    assert first == {"one": one, "two": two}
    assert Difference([other], ["two", "never there"]).applied(first) == {"one": other}
    assert first == {"one": one, "two": two}, "the original is unchanged"


def test_the_objects_that_entries_need() -> None:
    entries = [
        TreeEntry("a", "file", 0, 0, 5, "", b"", (ContentPiece(b"x", 0, 3), ContentPiece(ZEROS, 0, 2))),
        TreeEntry("b", "file", 0, 0, 3, "", b"", (ContentPiece(b"x", 3, 3), ContentPiece(b"y", 0, 1))),
        TreeEntry("c", "dir", 0, 0),
    ]
    assert objects_of(entries) == {b"x", b"y"}
