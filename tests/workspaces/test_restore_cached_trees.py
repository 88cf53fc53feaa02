"""Restoring with a cached tree: unchanged files are not read, and no change is overlooked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from holdfast import Holdfast, TenantHandle
from holdfast.trees import safe_open, stat_cache
from holdfast.trees.prefetch import ObjectBodies
from holdfast.types import Snapshot
from holdfast.workspaces.restore import Restorer
from tests.workspaces.fingerprints import change, fingerprint, grow, put
from tests.workspaces.worlds import wait_for_tick


def a_run(acme: TenantHandle) -> str:
    """A run to capture for."""
    return acme.runs.start(acme.sessions.create(agent="helper").id).id


@pytest.fixture
def young() -> Iterator[None]:
    """Use the states of files although they were written recently."""
    with mock.patch.object(stat_cache, "GRAIN_NS", 0):
        yield


@pytest.fixture
def read() -> Iterator[list[str]]:
    """The names of files that were read."""
    result: list[str] = []
    really = safe_open.open_file

    def opened(handle: int, name: str) -> object:
        result.append(name)
        return really(handle, name)

    with mock.patch.object(safe_open, "open_file", opened):
        yield result


@contextmanager
def a_tree(folders: pytest.TempPathFactory, random: Random) -> Iterator[tuple[TenantHandle, str, Path]]:
    """A random tree, and a run to capture it for; file states are used at once."""
    place = folders.mktemp("any")
    grow(place / "tree", random)
    with mock.patch.object(stat_cache, "GRAIN_NS", 0), Holdfast(":memory:") as hf:
        acme = hf.tenant("acme")
        yield acme, a_run(acme), place / "tree"
    shutil.rmtree(place)


def capture_tree(acme: TenantHandle, run: str, root: Path) -> Snapshot:
    """A snapshot, before which and after which some time has passed."""
    wait_for_tick()
    result = acme.workspaces.capture(run, root, ignore_defaults=False).snapshot
    wait_for_tick()
    return result


def several(acme: TenantHandle, root: Path) -> tuple[Snapshot, Snapshot]:
    """Two snapshots of a directory with fifty files, two of which differ."""
    run = a_run(acme)
    for number in range(50):
        put(root, f"folder {number % 5}/file {number}", b"%d" % number)
    first = capture_tree(acme, run, root)
    put(root, "folder 1/file 1", b"ONE")
    put(root, "folder 2/new", b"new")
    return first, capture_tree(acme, run, root)


def test_unchanged_files_are_not_read(tmp_path: Path, young: None, read: list[str]) -> None:
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        first, second = several(acme, root)
        put(root, "folder 3/file 3", b"3")  # rewritten with its content
        wait_for_tick()
        read.clear()
        result = acme.workspaces.restore(first.id, root, replace=True)
        assert (result.written, result.removed) == (1, 1)
        assert set(read) == {"file 3"}
        read.clear()
        acme.workspaces.restore(second.id, root, replace=True)
        assert set(read) <= {"file 1", "file 3", "new"}
        assert (root / "folder 1" / "file 1").read_bytes() == b"ONE"


def test_another_process_uses_the_cache_file(tmp_path: Path, young: None, read: list[str]) -> None:
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        first, _ = several(hf.tenant("acme"), root)
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        read.clear()
        hf.tenant("acme").workspaces.restore(first.id, root, replace=True)
    assert read == []
    assert (root / "folder 1" / "file 1").read_bytes() == b"1"
    assert not (root / "folder 2" / "new").exists()


def test_the_cache_is_not_used_with_other_ignore_patterns(tmp_path: Path, young: None) -> None:
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        run = a_run(acme)
        put(root, "kept", b"1")
        all_of_it = capture_tree(acme, run, root)
        put(root, "made.log", b"1")
        wait_for_tick()
        acme.workspaces.capture(run, root, ignore=["*.log"], ignore_defaults=False)
        acme.workspaces.restore(all_of_it.id, root, replace=True)
        assert sorted(os.listdir(root)) == ["kept"], "the rules of the snapshot do not ignore the log"


def test_a_removed_snapshot_of_the_cached_tree_is_no_error(tmp_path: Path, young: None) -> None:
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        first, second = several(acme, root)
        acme.snapshots.delete([second.id], reason="test")
        acme.workspaces.restore(first.id, root, replace=True)
    assert (root / "folder 1" / "file 1").read_bytes() == b"1"
    assert not (root / "folder 2" / "new").exists()


def test_a_directory_replaced_by_a_link_to_itself_is_restored(tmp_path: Path, young: None) -> None:
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
def test_any_tree_is_restored_after_any_change(
    seed: int, steps: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    random, taken = Random(seed), list[tuple[Snapshot, object]]()
    with a_tree(tmp_path_factory, random) as (acme, run, root):
        for changes in steps:
            taken.append((capture_tree(acme, run, root), fingerprint(root)))
            for _ in range(changes):
                change(root, random)
            wait_for_tick()
        for _ in range(4):
            snapshot, was = random.choice(taken)
            acme.workspaces.restore(snapshot.id, root, replace=True)
            assert fingerprint(root) == was, seed
            wait_for_tick()
            change(root, random)
            wait_for_tick()


# What a restore leaves is known


def test_the_next_capture_is_based_on_the_restored_snapshot(tmp_path: Path, young: None) -> None:
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        first, _ = several(acme, root)
        acme.workspaces.restore(first.id, root, replace=True)
        wait_for_tick()
        again = acme.workspaces.capture(first.run_id, root, ignore_defaults=False)
        assert (again.changed, again.removed) == (0, 0)
        assert (again.snapshot.parent_id, again.snapshot.layer_id) == (first.id, first.layer_id)
        put(root, "folder 4/file 4", b"four")
        wait_for_tick()
        changed = acme.workspaces.capture(first.run_id, root, ignore_defaults=False)
        assert (changed.changed, changed.removed) == (1, 0)


def test_a_rewind_and_its_redo_update_the_cache(tmp_path: Path, young: None) -> None:
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        first, second = several(acme, root)
        claimed = acme.leases.claim("test", run_id=first.run_id)
        assert claimed is not None
        for number, snapshot in enumerate((first, second), 1):
            acme.runs.step(first.run_id, epoch=claimed.epoch, iteration=number, state={}, snapshot=snapshot.id)
        acme.leases.release(first.run_id, epoch=claimed.epoch)
        acme.workspaces.rewind(first.run_id, 1, root)
        wait_for_tick()
        assert acme.workspaces.capture(first.run_id, root, ignore_defaults=False).snapshot.layer_id == first.layer_id
        acme.workspaces.redo(first.run_id, root)
        wait_for_tick()
        assert acme.workspaces.capture(first.run_id, root, ignore_defaults=False).snapshot.layer_id == second.layer_id


def test_paths_ignored_only_while_restoring_are_captured_afterwards(tmp_path: Path, young: None) -> None:
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        run = a_run(acme)
        put(root, "folder/file", b"1")
        put(root, ".holdfastignore", b"*.tmp\n")
        first = capture_tree(acme, run, root)
        put(root, ".holdfastignore", b"*.tmp\n*.log\n")
        put(root, "folder/made.log", b"1")
        wait_for_tick()
        acme.workspaces.restore(first.id, root, replace=True)
        assert (root / ".holdfastignore").read_bytes() == b"*.tmp\n"
        assert (root / "folder" / "made.log").exists(), "ignored files stay"
        wait_for_tick()
        after = capture_tree(acme, run, root)
        assert "folder/made.log" in acme.snapshots.tree(after.id).entries


def test_a_directory_kept_for_ignored_paths_is_captured_afterwards(tmp_path: Path, young: None) -> None:
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        run = a_run(acme)
        put(root, ".holdfastignore", b"*.log\n")
        first = capture_tree(acme, run, root)
        put(root, "folder/file", b"1")
        put(root, "folder/made.log", b"1")
        capture_tree(acme, run, root)
        result = acme.workspaces.restore(first.id, root, replace=True)
        assert list(result.kept) == ["folder"]
        wait_for_tick()
        after = capture_tree(acme, run, root)
        assert sorted(acme.snapshots.tree(after.id).entries) == [".holdfastignore", "folder"]


def test_only_the_end_of_an_appended_file_is_fetched(tmp_path: Path, young: None) -> None:
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        run = a_run(acme)
        put(root, "notes", Random(1).randbytes(40_000))
        first = capture_tree(acme, run, root)
        with (root / "notes").open("ab") as notes:
            notes.write(Random(2).randbytes(1_000))
        second = capture_tree(acme, run, root)
        long = {piece.object for piece in acme.snapshots.tree(first.id).entries["notes"].pieces}
        asked: list[bytes] = []
        really = Restorer.contents

        async def contents(self: Restorer, digests: Sequence[bytes]) -> ObjectBodies:
            asked.extend(digests)
            return await really(self, digests)

        with mock.patch.object(Restorer, "contents", contents):
            for _ in range(2):
                acme.workspaces.restore(first.id, root, replace=True)
                assert (root / "notes").read_bytes() == Random(1).randbytes(40_000)
                assert asked == []
                wait_for_tick()
                acme.workspaces.restore(second.id, root, replace=True)
                assert (root / "notes").stat().st_size == 41_000
                assert asked
                assert long.isdisjoint(asked)
                asked.clear()
                wait_for_tick()


def test_a_restored_snapshot_may_be_removed(tmp_path: Path, young: None) -> None:
    root = tmp_path / "tree"
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        first, _ = several(acme, root)
        acme.workspaces.restore(first.id, root, replace=True)
        was = fingerprint(root)
        acme.snapshots.delete([first.id], reason="test")
        acme.snapshots.collect()
        wait_for_tick()
        after = capture_tree(acme, first.run_id, root)
        shutil.rmtree(root)
        acme.workspaces.restore(after.id, root)
        assert fingerprint(root) == was


@examples(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), moves=st.lists(st.booleans(), min_size=4, max_size=10))
def test_captures_and_restores_in_any_order_lose_nothing(
    seed: int, moves: list[bool], tmp_path_factory: pytest.TempPathFactory
) -> None:
    random, taken = Random(seed), list[tuple[Snapshot, object]]()
    with a_tree(tmp_path_factory, random) as (acme, run, root):
        for is_capture in [True, *moves]:
            if is_capture:
                taken.append((capture_tree(acme, run, root), fingerprint(root)))
                change(root, random)
            else:
                snapshot, was = random.choice(taken)
                acme.workspaces.restore(snapshot.id, root, replace=True)
                assert fingerprint(root) == was, seed
            wait_for_tick()
        for number, (snapshot, was) in enumerate(taken):
            acme.workspaces.restore(snapshot.id, root.parent / f"again {number}")
            assert fingerprint(root.parent / f"again {number}") == was, seed
