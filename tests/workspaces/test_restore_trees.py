"""A captured tree is restored whatever has become of the directory, and only differences are written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from holdfast import AsyncHoldfast, Holdfast, Limits, TenantHandle
from holdfast.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from tests.errors import raises
from tests.workspaces.fingerprints import SECOND_NS, change, fingerprint, grow, put, surroundings


def a_run(acme: TenantHandle) -> str:
    """A run to capture for."""
    return acme.runs.start(acme.sessions.create(agent="helper").id).id


@pytest.fixture
def acme(tmp_path: Path, closing: object) -> TenantHandle:
    hf = closing(Holdfast(str(tmp_path / "agents.db")))  # type: ignore[operator]
    return hf.tenant("acme")  # type: ignore[no-any-return]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with canaries around it."""
    around = tmp_path / "around"
    (around / "tree").mkdir(parents=True)
    put(around, "canary", b"untouched", at_ns=SECOND_NS)
    put(around, "other/canary", b"untouched", at_ns=SECOND_NS)
    return around / "tree"


def test_every_kind_of_entry_is_restored(acme: TenantHandle, root: Path, tmp_path: Path) -> None:
    put(root, "deep/er/and/deeper/file", b"x" * 10, at_ns=123_456_789_012_345_678)
    put(root, "script.sh", b"#!/bin/sh\n", mode=0o755)
    put(root, b"not \xff utf-8 \x80", b"bytes")
    put(root, "secret", b"s", mode=0o400)
    put(root, "empty")
    put(root, "before 1970", b"old", at_ns=-1_500_000_000)
    (root / "hollow").mkdir(mode=0o700)
    os.symlink("deep/er", root / "link")
    os.symlink(b"\xff\xfe", os.fsencode(root / "to bytes"))
    os.symlink("/etc/passwd", root / "outside")
    with open(root / "sparse", "wb") as file:
        file.seek(3_000_000)
        file.write(b"end")
    put(root, "large", Random(1).randbytes(2_500_000))
    os.utime(root / "hollow", ns=(1, 1))
    before = fingerprint(root)
    snapshot = acme.workspaces.capture(a_run(acme), root).snapshot
    out = tmp_path / "new" / "place"
    result = acme.workspaces.restore(snapshot.id, out)
    assert fingerprint(out) == before
    assert result.written == len(before)
    assert os.stat(out / "sparse").st_blocks * 512 < 1_000_000, "holes are restored as holes"
    again = acme.workspaces.restore(snapshot.id, out, replace=True)
    assert (again.written, again.removed, again.touched) == (0, 0, 0), "existing entries are not written"


def test_only_differences_are_written(acme: TenantHandle, root: Path) -> None:
    for number in range(20):
        put(root, f"folder {number % 3}/file {number}", f"{number}".encode(), at_ns=SECOND_NS * (number + 1))
    snapshot = acme.workspaces.capture(a_run(acme), root).snapshot
    before = fingerprint(root)
    inodes = {path: os.lstat(root / os.fsdecode(path)).st_ino for path in before}
    put(root, "folder 0/file 0", b"changed")
    put(root, "folder 1/new", b"new")
    (root / "folder 1" / "file 1").chmod(0o755)
    os.utime(root / "folder 2" / "file 2", ns=(5, 5))
    (root / "folder 2" / "file 5").unlink()
    result = acme.workspaces.restore(snapshot.id, root, replace=True)
    assert fingerprint(root) == before
    assert (result.written, result.removed) == (2, 1)
    same = [path for path in before if os.lstat(root / os.fsdecode(path)).st_ino == inodes[path]]
    assert len(same) >= len(before) - 2


def test_ignored_paths_stay_unless_a_wanted_path_needs_their_place(acme: TenantHandle, root: Path) -> None:
    put(root, "kept/file", b"1")
    put(root, "becomes a folder", b"2")
    put(root, ".holdfastignore", b"*.log\nbuild/\n")
    snapshot = acme.workspaces.capture(a_run(acme), root).snapshot
    put(root, "kept/today.log", b"log")
    put(root, "build/out.o", b"object")
    put(root, "created/today.log", b"log")
    put(root, "created/file", b"since")
    (root / "becomes a folder").unlink()
    put(root, "becomes a folder/in it.log", b"log")
    result = acme.workspaces.restore(snapshot.id, root, replace=True)
    assert (root / "kept" / "today.log").read_bytes() == b"log"
    assert (root / "build" / "out.o").read_bytes() == b"object"
    assert (root / "created" / "today.log").exists()
    assert not (root / "created" / "file").exists()
    assert result.kept == ["created"]
    assert (root / "becomes a folder").read_bytes() == b"2"


def test_entries_change_their_kind(acme: TenantHandle, root: Path) -> None:
    kinds = ("file", "dir", "link")
    for one in kinds:
        for other in kinds:
            _as(root / f"{one} {other}", one)
    before = fingerprint(root)
    snapshot = acme.workspaces.capture(a_run(acme), root).snapshot
    for one in kinds:
        for other in kinds:
            path = root / f"{one} {other}"
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            _as(path, other)
    acme.workspaces.restore(snapshot.id, root, replace=True)
    assert fingerprint(root) == before


def _as(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_bytes(b"content")
    elif kind == "link":
        path.symlink_to("elsewhere")
    else:
        put(path, "in it", b"1")


def test_another_hard_link_of_a_restored_file_is_unchanged(acme: TenantHandle, root: Path) -> None:
    put(root, "file", b"then", mode=0o600, at_ns=SECOND_NS)
    put(root, "bits", b"same", mode=0o600, at_ns=SECOND_NS)
    snapshot = acme.workspaces.capture(a_run(acme), root).snapshot
    for name, content in (("file", b"now"), ("bits", b"same")):
        (root / name).unlink()
        put(root.parent, f"other/{name}", content, mode=0o644)
        os.link(root.parent / "other" / name, root / name)
    around = surroundings(root)
    acme.workspaces.restore(snapshot.id, root, replace=True)
    assert surroundings(root) == around
    assert (root / "file").read_bytes() == b"then"
    assert os.stat(root / "bits").st_mode & 0o777 == 0o600


def test_a_directory_replaced_by_a_link_is_not_followed(acme: TenantHandle, root: Path) -> None:
    put(root, "folder/canary", b"inside")
    put(root, "folder/other", b"inside")
    snapshot = acme.workspaces.capture(a_run(acme), root).snapshot
    before = fingerprint(root)
    shutil.rmtree(root / "folder")
    (root / "folder").symlink_to(root.parent / "other")
    around = surroundings(root)
    acme.workspaces.restore(snapshot.id, root, replace=True)
    assert surroundings(root) == around
    assert fingerprint(root) == before


def test_special_files_are_replaced_by_wanted_paths(acme: TenantHandle, root: Path) -> None:
    put(root, "file", b"1")
    (root / "folder").mkdir()
    snapshot = acme.workspaces.capture(a_run(acme), root).snapshot
    before = fingerprint(root, times=False)
    (root / "file").unlink()
    os.mkfifo(root / "file")
    (root / "folder").rmdir()
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(root):  # the name of a socket must be short
        made.bind("folder")
    acme.workspaces.restore(snapshot.id, root, replace=True)
    assert fingerprint(root, times=False) == before


def test_a_non_empty_directory_needs_replace(acme: TenantHandle, root: Path) -> None:
    put(root, "file", b"1")
    snapshot = acme.workspaces.capture(a_run(acme), root).snapshot
    put(root, "new", b"2")
    with raises(Conflict, reason="not_empty"):
        acme.workspaces.restore(snapshot.id, root)
    assert (root / "new").exists()
    with raises(InvalidInput, field="path"):
        acme.workspaces.restore(snapshot.id, root / "file")
    with pytest.raises(NotFound):
        acme.workspaces.restore(a_run(acme), root, replace=True)


def test_read_only_directories_are_restored(acme: TenantHandle, root: Path) -> None:
    put(root, "locked/file", b"then")
    (root / "locked").chmod(0o555)
    snapshot = acme.workspaces.capture(a_run(acme), root).snapshot
    before = fingerprint(root)
    (root / "locked").chmod(0o755)
    put(root, "locked/file", b"now")
    (root / "locked").chmod(0o500)
    acme.workspaces.restore(snapshot.id, root, replace=True)
    assert fingerprint(root) == before
    (root / "locked").chmod(0o755)


def test_a_tree_over_a_limit_is_not_restored(root: Path, tmp_path: Path) -> None:
    put(root, "a", b"12345")
    put(root, "b", b"12345")
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        snapshot = hf.tenant("acme").workspaces.capture(a_run(hf.tenant("acme")), root).snapshot
    for limits, name in ((Limits(tree_entries=1), "tree_entries"), (Limits(tree_bytes=9), "tree_bytes")):
        with Holdfast(str(tmp_path / "agents.db"), limits=limits) as hf:
            with raises(LimitExceeded, limit=name):
                hf.tenant("acme").workspaces.restore(snapshot.id, tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []


@examples(max_examples=25)
@given(seed=st.integers(0, 2**32), changes=st.integers(1, 15))
def test_any_tree_is_restored_after_any_change(
    seed: int, changes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.mktemp("any")
    random, root = Random(seed), tmp_path / "around" / "tree"
    root.parent.mkdir()
    put(root.parent, "a", b"canary", at_ns=SECOND_NS)
    grow(root, random)
    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        run = a_run(acme)
        before, first = fingerprint(root), acme.workspaces.capture(run, root, ignore_defaults=False).snapshot
        around = surroundings(root)
        for _ in range(changes):
            change(root, random)
        after, second = fingerprint(root), acme.workspaces.capture(run, root, ignore_defaults=False).snapshot
        for snapshot, expected in ((first, before), (second, after), (first, before)):
            acme.workspaces.restore(snapshot.id, root, replace=True)
            assert fingerprint(root) == expected, seed
        acme.workspaces.restore(second.id, tmp_path / "new")
        assert fingerprint(tmp_path / "new") == after
        assert surroundings(root) == around
    shutil.rmtree(tmp_path)


def test_an_async_restore_works(root: Path, tmp_path: Path) -> None:
    grow(root, Random(4), 30)
    put(root, "large", Random(2).randbytes(20_000_000))
    before = fingerprint(root)

    async def restored() -> None:
        async with AsyncHoldfast(str(tmp_path / "agents.db")) as hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            run = await acme.runs.start(session.id)
            captured = await acme.workspaces.capture(run.id, root, ignore_defaults=False)
            await acme.workspaces.restore(captured.snapshot.id, tmp_path / "out")

    asyncio.run(restored())
    assert fingerprint(tmp_path / "out") == before
