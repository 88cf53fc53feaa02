"""Entries and manifests: names, differences, the stored form, invalid manifests, and the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.errors import Corrupt
from holdfast.trees import manifests
from holdfast.trees.entries import ContentPiece, Difference, TreeEntry, folders_of, path_bytes, path_text
from tests.errors import raises

ONE = b"1" * 32


def file(path: str, *pieces: ContentPiece, **fields: Any) -> TreeEntry:
    size = sum(piece.length for piece in pieces)
    return msgspec.structs.replace(TreeEntry(path, "file", 0o644, 7, size, "", b"d" * 32, pieces), **fields)


def manifest_bytes(*, version: object = 1, entries: object = (), objects: object = (), removed: object = ()) -> bytes:
    """A serialized manifest with the given values."""
    return msgspec.msgpack.encode([version, [], objects, entries, removed])


def line(**other: object) -> list[object]:
    """A serialized entry with the given values."""
    fields: dict[str, object] = {
        "path": b"x",
        "kind": 0,
        "mode": 0o644,
        "mtime": 7,
        "size": 0,
        "rest": b"",
        "pieces": [],
    }
    return [*{**fields, **other}.values()]


# Names


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"", ""),
        (b"plain", "plain"),
        ("grün".encode(), "grün"),
        ("\U0001f332".encode(), "\U0001f332"),
        (b"\xff", "\udcff"),
        (b"a\x80b", "a\udc80b"),
        (b"\xed\xb3\xbf", "\udced\udcb3\udcbf"),
        (b"line\nbreak", "line\nbreak"),
    ],
)
def test_names_convert_between_bytes_and_text(name: bytes, text: str) -> None:
    assert path_text(name) == text
    assert path_bytes(text) == name


@pytest.mark.parametrize("text", ["\ud800", "a\udc7fb"])
def test_other_surrogates_have_no_bytes(text: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        path_bytes(text)


@pytest.mark.parametrize(
    ("path", "folders"),
    [
        ("", [""]),
        ("a", [""]),
        ("a/b", ["", "a/"]),
        ("a/b/c", ["", "a/", "a/b/"]),
        ("é/\udcff/x", ["", "é/", "é/\udcff/"]),
        ("a/", ["", "a/"]),
    ],
)
def test_the_directories_that_contain_a_path(path: str, folders: list[str]) -> None:
    assert list(folders_of(path)) == folders


# Differences


def test_a_difference_removes_then_adds() -> None:
    before = {entry.path: entry for entry in (file("keep"), file("change"), file("remove"), file("both"))}
    new, changed, both = file("new"), file("change", mtime_ns=9), file("both", mode=0o600)
    result = Difference([new, changed, both], ["remove", "both"]).applied(before)
    assert result == {"keep": before["keep"], "change": changed, "new": new, "both": both}


def test_removing_a_directory_removes_only_its_entry() -> None:
    before = {"d": TreeEntry("d", "dir", 0o755, 0), "d/f": file("d/f")}
    assert Difference([], ["d"]).applied(before) == {"d/f": before["d/f"]}


# Stored form


def test_an_empty_difference_is_valid() -> None:
    assert manifests.read(manifests.write(Difference([]))) == Difference([], [], [])


def test_patterns_keep_their_order_because_the_last_one_decides() -> None:
    existing, back = (manifests.write(Difference([], [], patterns)) for patterns in (["*.o", "!a.o"], ["!a.o", "*.o"]))
    assert existing != back
    assert manifests.read(existing).ignore == ["*.o", "!a.o"]


def test_a_digest_is_written_once_for_all_its_pieces() -> None:
    body = manifests.write(Difference([file(f"{number}", ContentPiece(ONE, number, 1)) for number in range(50)]))
    assert body.count(ONE) == 1
    assert {piece.object for entry in manifests.read(body).entries for piece in entry.pieces} == {ONE}


def test_a_pattern_with_surrogates_is_written_as_printable_text() -> None:
    body = manifests.write(Difference([], [], ["a\udcff"]))
    assert manifests.read(body).ignore == ["a\\udcff"]


def test_the_digest_of_a_link_is_not_stored() -> None:
    link = TreeEntry("l", "symlink", 0o777, 1, 0, "target", b"d" * 32)
    (result,) = manifests.read(manifests.write(Difference([link]))).entries
    assert (result.target, result.digest) == ("target", b"")


# Invalid manifests


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"nonsense",
        b"\xc1",
        msgspec.msgpack.encode({"version": 1}),
        msgspec.msgpack.encode([1, [], [], []]),
        manifest_bytes(version="1"),
        manifest_bytes() + b"\x00",
        manifest_bytes()[:-1],
        manifest_bytes(objects=[5]),
        manifest_bytes(removed=["text and no bytes"]),
        manifest_bytes(entries=[[b"x", 0]]),
        manifest_bytes(entries=[line(path="text")]),
        manifest_bytes(entries=[line(mode="rw")]),
        manifest_bytes(entries=[line(mtime=1.5)]),
        manifest_bytes(entries=[line(kind=3)]),
        manifest_bytes(entries=[line(kind=99)]),
        manifest_bytes(entries=[line(pieces=[1, 0, 5])]),
        manifest_bytes(entries=[line(pieces=[2, 0, 5])], objects=[ONE]),
        manifest_bytes(entries=[line(pieces=[0, "a", 5])]),
        manifest_bytes(entries=[line(kind=-1)]),
        manifest_bytes(entries=[line(pieces=[-1, 0, 5])], objects=[ONE]),
        manifest_bytes(entries=[line(pieces=[1, -1, 5])], objects=[ONE]),
        manifest_bytes(entries=[line(pieces=[1, 0, -5])], objects=[ONE]),
        manifest_bytes(entries=[line(pieces=[1, 0])], objects=[ONE]),
        manifest_bytes(entries=[line(pieces=[1, 0, 5, 1])], objects=[ONE]),
    ],
    ids=lambda body: body[:24].hex(),
)
def test_anything_but_a_manifest_is_corrupt(body: bytes) -> None:
    with raises(Corrupt):
        manifests.read(body)


@pytest.mark.parametrize("version", [0, 2, -1, 2**31])
def test_an_unknown_manifest_version_is_reported(version: int) -> None:
    with pytest.raises(Corrupt, match=rf" {version}\b"):
        manifests.read(manifest_bytes(version=version))


# The cache


def read_twice(body: bytes) -> Sequence[Difference]:
    return manifests.read(body), manifests.read(bytes(bytearray(body)))


def test_recent_manifests_are_cached() -> None:
    first, second = read_twice(manifests.write(Difference([file("remembered")])))
    assert first is second


def test_long_manifests_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    body = manifests.write(Difference([file("forgotten")]))
    monkeypatch.setattr(manifests, "REMEMBERED_BYTES", len(body) - 1)
    first, second = read_twice(body)
    assert first is not second
    assert first == second


def test_only_the_latest_manifests_are_cached() -> None:
    bodies = [manifests.write(Difference([file(f"{number}")])) for number in range(manifests.MAX_REMEMBERED + 1)]
    differences = [manifests.read(body) for body in bodies]
    assert manifests.read(bodies[-1]) is differences[-1]
    assert manifests.read(bodies[0]) is not differences[0]
    assert manifests.read(bodies[0]) == differences[0]
