"""Going back in place where it is known what the directory was: what is as it was is not read, and nothing is overlooked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from holdfast import Holdfast, Snapshot, TenantHandle
from holdfast.trees import reading, stat_cache
from tests.workspace.fingerprints import change, fingerprint, grow, put
from tests.workspace.worlds import ticked


def a_run(acme: TenantHandle) -> str:
    """A run to capture for."""
    return acme.runs.start(acme.sessions.create(agent="helper").id).id


@pytest.fixture
def young() -> Iterator[None]:
    """What is known of files is used although they were written a moment ago."""
    with mock.patch.object(stat_cache, "GRAIN_NS", 0):
        yield


@pytest.fixture
def read() -> Iterator[list[str]]:
    """The names of files that were read."""
    found: list[str] = []
    really = reading.opened

    def opened(handle: int, name: str) -> object:
        found.append(name)
        return really(handle, name)

    with mock.patch.object(reading, "opened", opened):
        yield found


def captured(acme: TenantHandle, run: str, root: Path) -> Snapshot:
    """A snapshot, before which and after which some time has passed."""
    ticked()
    found = acme.workspaces.capture(run, root, ignore_defaults=False).snapshot
    ticked()
    return found


def several(acme: TenantHandle, root: Path) -> tuple[Snapshot, Snapshot]:
    """Two snapshots of a directory with fifty files, two of which differ."""
    run = a_run(acme)
    for number in range(50):
        put(root, f"folder {number % 5}/file {number}", b"%d" % number)
    first = captured(acme, run, root)
    put(root, "folder 1/file 1", b"ONE")
    put(root, "folder 2/new", b"new")
    return first, captured(acme, run, root)


def test_what_is_as_it_was_captured_is_not_read(tmp_path: Path, young: None, read: list[str]) -> None:
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        first, second = several(acme, root)
        put(root, "folder 3/file 3", b"3")  # written anew with what was in it
        ticked()
        read.clear()
        done = acme.workspaces.restore(first.id, root, replace=True)
        assert (done.written, done.removed) == (1, 1)
        assert set(read) == {"file 3"}
        read.clear()
        acme.workspaces.restore(second.id, root, replace=True)
        assert set(read) <= {"file 1", "file 3", "new"}
        assert (root / "folder 1" / "file 1").read_bytes() == b"ONE"


def test_another_process_knows_it_from_the_file_beside_the_database(
    tmp_path: Path, young: None, read: list[str]
) -> None:
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        first, _ = several(hf.tenant("acme"), root)
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        read.clear()
        hf.tenant("acme").workspaces.restore(first.id, root, replace=True)
    assert read == []
    assert (root / "folder 1" / "file 1").read_bytes() == b"1"
    assert not (root / "folder 2" / "new").exists()


def test_what_was_known_is_not_used_when_other_things_were_ignored(tmp_path: Path, young: None) -> None:
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        run = a_run(acme)
        put(root, "kept", b"1")
        all_of_it = captured(acme, run, root)
        put(root, "made.log", b"1")
        ticked()
        acme.workspaces.capture(run, root, ignore=["*.log"], ignore_defaults=False)
        acme.workspaces.restore(all_of_it.id, root, replace=True)
        assert sorted(os.listdir(root)) == ["kept"], "by its rules, the log is not wanted"


def test_a_snapshot_that_is_gone_is_not_missed(tmp_path: Path, young: None) -> None:
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        first, second = several(acme, root)
        acme.snapshots.delete([second.id], reason="test")
        acme.workspaces.restore(first.id, root, replace=True)
    assert (root / "folder 1" / "file 1").read_bytes() == b"1"
    assert not (root / "folder 2" / "new").exists()


def test_a_directory_that_became_a_link_to_itself_elsewhere_is_one_again(tmp_path: Path, young: None) -> None:
    """All paths still lead to the files as they were known."""
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        first, _ = several(acme, root)
        (root / "folder 4").rename(tmp_path / "aside")
        (root / "folder 4").symlink_to(tmp_path / "aside")
        aside = fingerprint(tmp_path / "aside")
        acme.workspaces.restore(first.id, root, replace=True)
        assert not (root / "folder 4").is_symlink()
        assert (root / "folder 4" / "file 4").read_bytes() == b"4"
        assert fingerprint(tmp_path / "aside") == aside


@examples(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.lists(st.integers(0, 8), min_size=1, max_size=4))
def test_any_tree_comes_back_from_any_change(
    seed: int, steps: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.mktemp("any")
    random, root = Random(seed), tmp_path / "tree"
    grow(root, random)
    with mock.patch.object(stat_cache, "GRAIN_NS", 0), Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        run, taken = a_run(acme), list[tuple[Snapshot, object]]()
        for changes in steps:
            taken.append((captured(acme, run, root), fingerprint(root)))
            for _ in range(changes):
                change(root, random)
            ticked()
        for _ in range(4):
            snapshot, was = random.choice(taken)
            acme.workspaces.restore(snapshot.id, root, replace=True)
            assert fingerprint(root) == was, seed
            ticked()
            change(root, random)
            ticked()
    shutil.rmtree(tmp_path)
