"""Entries and how they are written down: what comes back is what was written, and what is none is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.errors import Corrupt
from holdfast.trees import manifests
from holdfast.trees.entries import ContentPiece, Difference, TreeEntry, folders_of, raw, shown

ONE = b"1" * 32


def file(path: str, *pieces: ContentPiece, **fields: Any) -> TreeEntry:
    size = sum(piece.length for piece in pieces)
    return msgspec.structs.replace(TreeEntry(path, "file", 0o644, 7, size, "", b"d" * 32, pieces), **fields)


def listed(*, version: object = 1, entries: object = (), objects: object = (), removed: object = ()) -> bytes:
    """What a manifest looks like, with one thing in it as the caller says."""
    return msgspec.msgpack.encode([version, [], objects, entries, removed])


def line(**other: object) -> list[object]:
    """What one entry looks like, with one thing in it as the caller says."""
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
def test_the_bytes_of_a_name_have_one_text_and_that_stands_for_them(name: bytes, text: str) -> None:
    assert shown(name) == text
    assert raw(text) == name


@pytest.mark.parametrize("text", ["\ud800", "a\udc7fb"])
def test_a_surrogate_that_stands_for_no_byte_has_no_bytes(text: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        raw(text)


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
def test_a_path_lies_in_the_root_and_in_every_directory_on_the_way(path: str, folders: list[str]) -> None:
    assert list(folders_of(path)) == folders


# Entries together


def test_a_difference_removes_then_adds() -> None:
    before = {each.path: each for each in (file("keep"), file("change"), file("remove"), file("both"))}
    new, changed, both = file("new"), file("change", mtime_ns=9), file("both", mode=0o600)
    found = Difference([new, changed, both], ["remove", "both"]).applied(before)
    assert found == {"keep": before["keep"], "change": changed, "new": new, "both": both}


def test_to_remove_a_directory_removes_only_itself() -> None:
    before = {"d": TreeEntry("d", "dir", 0o755, 0), "d/f": file("d/f")}
    assert Difference([], ["d"]).applied(before) == {"d/f": before["d/f"]}


# Written down


def test_nothing_is_a_difference_too() -> None:
    assert manifests.read(manifests.write(Difference([]))) == Difference([], [], [])


def test_patterns_keep_their_order_because_the_last_one_decides() -> None:
    there, back = (manifests.write(Difference([], [], each)) for each in (["*.o", "!a.o"], ["!a.o", "*.o"]))
    assert there != back
    assert manifests.read(there).ignore == ["*.o", "!a.o"]


def test_an_object_is_written_once_however_many_pieces_lie_in_it() -> None:
    body = manifests.write(Difference([file(f"{number}", ContentPiece(ONE, number, 1)) for number in range(50)]))
    assert body.count(ONE) == 1
    assert {piece.object for entry in manifests.read(body).entries for piece in entry.pieces} == {ONE}


def test_a_pattern_with_what_is_no_text_is_written_in_a_way_that_is() -> None:
    body = manifests.write(Difference([], [], ["a\udcff"]))
    assert manifests.read(body).ignore == ["a\\udcff"]


def test_the_digest_of_a_link_is_not_kept_because_it_has_none() -> None:
    link = TreeEntry("l", "symlink", 0o777, 1, 0, "target", b"d" * 32)
    (found,) = manifests.read(manifests.write(Difference([link]))).entries
    assert (found.target, found.digest) == ("target", b"")


# What is none


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"nonsense",
        b"\xc1",
        msgspec.msgpack.encode({"version": 1}),
        msgspec.msgpack.encode([1, [], [], []]),
        listed(version="1"),
        listed() + b"\x00",
        listed()[:-1],
        listed(objects=[5]),
        listed(removed=["text and no bytes"]),
        listed(entries=[[b"x", 0]]),
        listed(entries=[line(path="text")]),
        listed(entries=[line(mode="rw")]),
        listed(entries=[line(mtime=1.5)]),
        listed(entries=[line(kind=3)]),
        listed(entries=[line(kind=99)]),
        listed(entries=[line(pieces=[1, 0, 5])]),
        listed(entries=[line(pieces=[2, 0, 5])], objects=[ONE]),
        listed(entries=[line(pieces=[0, "a", 5])]),
        listed(entries=[line(kind=-1)]),
        listed(entries=[line(pieces=[-1, 0, 5])], objects=[ONE]),
        listed(entries=[line(pieces=[1, -1, 5])], objects=[ONE]),
        listed(entries=[line(pieces=[1, 0, -5])], objects=[ONE]),
        listed(entries=[line(pieces=[1, 0])], objects=[ONE]),
        listed(entries=[line(pieces=[1, 0, 5, 1])], objects=[ONE]),
    ],
    ids=lambda body: body[:24].hex(),
)
def test_what_is_no_tree_is_corrupt(body: bytes) -> None:
    with pytest.raises(Corrupt, match="cannot be read"):
        manifests.read(body)


@pytest.mark.parametrize("version", [0, 2, -1, 2**31])
def test_a_tree_of_another_release_is_named_as_such(version: int) -> None:
    with pytest.raises(Corrupt, match=f"does not know: {version}$"):
        manifests.read(listed(version=version))


# What is remembered


def read_twice(body: bytes) -> Sequence[Difference]:
    return manifests.read(body), manifests.read(bytes(bytearray(body)))


def test_what_was_read_last_is_not_read_again() -> None:
    first, second = read_twice(manifests.write(Difference([file("remembered")])))
    assert first is second


def test_what_is_long_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    body = manifests.write(Difference([file("forgotten")]))
    monkeypatch.setattr(manifests, "REMEMBERED_BYTES", len(body) - 1)
    first, second = read_twice(body)
    assert first is not second
    assert first == second


def test_of_many_only_the_last_are_remembered() -> None:
    bodies = [manifests.write(Difference([file(f"{number}")])) for number in range(manifests.MAX_REMEMBERED + 1)]
    found = [manifests.read(body) for body in bodies]
    assert manifests.read(bodies[-1]) is found[-1]
    assert manifests.read(bodies[0]) is not found[0]
    assert manifests.read(bodies[0]) == found[0]
