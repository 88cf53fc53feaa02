"""Trees that change while they are captured: files are consistent, or reported as unsettled."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.trees import contents, safe_open
from holdfast.trees.safe_open import OpenFile
from tests.workspaces.worlds import World, make, on_disk


def after_reading(patch: pytest.MonkeyPatch, path: Path, change: Callable[[int], object]) -> list[int]:
    """Have a change made right after a file was read, before it is known that it stayed as it was; how often it was read."""
    inode = path.stat().st_ino
    turns: list[int] = []
    content, chunks = safe_open.content, safe_open.chunks

    def noted(file: OpenFile) -> None:
        if file.stat[4] == inode:
            turns.append(file.stat[1])
            change(len(turns))

    def read(file: OpenFile) -> bytes:
        result = content(file)
        noted(file)
        return result

    def read_chunks(file: OpenFile) -> object:
        yield from chunks(file)
        noted(file)

    patch.setattr(safe_open, "content", read)
    patch.setattr(safe_open, "chunks", read_chunks)
    return turns


@pytest.mark.parametrize("size", [100, 3 * contents.CHUNK], ids=["small", "large"])
def test_a_file_changed_while_being_read_is_read_again(small: World, tree: Path, size: int) -> None:
    path = tree / "busy"
    path.write_bytes(b"1" * size)

    def change(turn: int) -> None:
        if turn < 3:
            path.write_bytes(b"%d" % (turn + 1) * size)

    with pytest.MonkeyPatch.context() as patch:
        turns = after_reading(patch, path, change)
        captured = small.capture(tree)
    assert len(turns) == 3
    assert captured.unsettled == []
    assert small.described(captured.snapshot) == on_disk(tree)


@pytest.mark.parametrize("size", [100, 3 * contents.CHUNK], ids=["small", "large"])
def test_a_file_that_keeps_changing_is_reported_and_read_next_time(
    small: World, tree: Path, later: None, size: int
) -> None:
    path = tree / "log"
    path.write_bytes(b"." * size)

    def append(turn: int) -> None:
        with open(path, "ab") as file:
            file.write(b"more")

    with pytest.MonkeyPatch.context() as patch:
        turns = after_reading(patch, path, append)
        captured = small.capture(tree)
    assert (len(turns), captured.unsettled) == (safe_open.TRIES, ["log"])
    entry = small.acme.snapshots.tree(captured.snapshot.id).entries["log"]
    content = small.acme.snapshots.read(captured.snapshot.id, "log")
    assert len(content) == entry.size == sum(piece.length for piece in entry.pieces)
    assert content.startswith(b"." * size)
    again = small.capture(tree)
    assert again.unsettled == []
    assert small.described(again.snapshot) == on_disk(tree)


def test_files_that_cross_the_chunk_size_while_changing(small: World, tree: Path) -> None:
    make(tree, {"grows": b"a" * 10, "shrinks": b"b" * (2 * contents.CHUNK)})
    with pytest.MonkeyPatch.context() as patch:
        after_reading(patch, tree / "grows", lambda turn: turn > 1 or os.truncate(tree / "grows", 2 * contents.CHUNK))
        captured = small.capture(tree)
    assert small.described(captured.snapshot) == on_disk(tree), "the second read was consistent"
    with pytest.MonkeyPatch.context() as patch:
        after_reading(patch, tree / "shrinks", lambda turn: turn > 1 or os.truncate(tree / "shrinks", 10))
        (tree / "shrinks").touch()
        captured = small.capture(tree)
    assert small.described(captured.snapshot) == on_disk(tree)


def test_paths_removed_during_a_capture_are_left_out(small: World, tree: Path) -> None:
    make(tree, {"aa": b"first", "zz/inside": b"last", "zz/deeper/one": b"x"})
    with pytest.MonkeyPatch.context() as patch:
        after_reading(
            patch, tree / "README.md", lambda turn: (shutil.rmtree(tree / "zz"), (tree / "not \udcff utf-8").unlink())
        )
        captured = small.capture(tree)
    assert captured.skipped == []
    existing = small.described(captured.snapshot)
    assert not {"zz/inside", "zz/deeper", "not \udcff utf-8"} & existing.keys()
    again = small.capture(tree)
    assert small.described(again.snapshot) == on_disk(tree)


def test_no_link_leads_out_of_the_root(small: World, tree: Path, tmp_path: Path) -> None:
    """Directories and files that become links while the walk is on its way to them."""
    outside = tmp_path / "outside"
    make(outside, {"secret": b"outside", "deep/secret": b"outside"})
    make(tree, {"zz/secret": b"of the tree", "zz/deep/secret": b"of the tree", "yy": b"a file"})

    def swap(turn: int) -> None:
        shutil.rmtree(tree / "zz")
        (tree / "zz").symlink_to(outside)
        (tree / "yy").unlink()
        (tree / "yy").symlink_to(outside / "secret")

    with pytest.MonkeyPatch.context() as patch:
        after_reading(patch, tree / "README.md", swap)
        captured = small.capture(tree)
    for snapshot in (captured.snapshot, small.capture(tree).snapshot):
        contents = [entry[3] for entry in small.described(snapshot).values()]
        assert b"outside" not in contents
    assert small.described(small.capture(tree).snapshot)["zz"][0] == "symlink"


def test_a_file_replaced_by_a_pipe_does_not_block(small: World, tree: Path) -> None:
    def swap(turn: int) -> None:
        (tree / "not \udcff utf-8").unlink()
        os.mkfifo(tree / "not \udcff utf-8")

    with pytest.MonkeyPatch.context() as patch:
        after_reading(patch, tree / "README.md", swap)
        captured = small.capture(tree)
    assert [skipped.path for skipped in captured.skipped] == ["not \udcff utf-8"]


def test_a_tree_under_constant_writes(small: World, tmp_path: Path) -> None:
    """Every captured file is consistent: it consists of one letter, as written by one writer."""
    root = tmp_path / "tree"
    make(root, {f"{number % 7}/{number}": b"a" * 3_000 for number in range(120)})
    stop = threading.Event()

    def write() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            path = root / f"{turn % 7}/{turn % 120}"
            if path.exists():
                made = path.with_suffix(".new")
                made.write_bytes(bytes([97 + turn % 26]) * (3_000 + turn % 5))
                os.replace(made, path)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        taken = [small.capture(root) for _ in range(4)]
    finally:
        stop.set()
        writer.join()
    for captured in taken:
        for path, (kind, _, _, content) in small.described(captured.snapshot).items():
            if kind == "file" and not path.endswith(".new") and path not in captured.unsettled:
                assert len(set(content)) == 1, path
    assert small.described(small.capture(root).snapshot) == on_disk(root)
