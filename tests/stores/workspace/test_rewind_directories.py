"""Restores and rewinds of directories of every kind, and arguments refused before anything is changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from holdfast import Holdfast, Limits, TenantHandle
from holdfast.errors import Conflict, InvalidInput, NotFound, Stale
from holdfast.trees import restore as tree_restoring
from holdfast.trees.restore import RestoreResult
from holdfast.types import Run
from holdfast.workspaces import restore, rewind
from tests.errors import raises

UNKNOWN_ID = "01900000-0000-7000-8000-000000000000"
NUMBERS = count(1)
Files = dict[str, bytes]


class Place(NamedTuple):
    """Two tenants, a run without a holder, and a captured directory with two files."""

    acme: TenantHandle
    zenith: TenantHandle
    run: Run
    tree: Path
    snapshot: str


@pytest.fixture(scope="module")
def _open(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holdfast]:
    """One database for all: each test has tenants of its own."""
    packs = tmp_path_factory.mktemp("packs")
    limits = Limits(pack_from_bytes=1_000, snapshots_per_run=100)
    with Holdfast(":memory:", packs=str(packs), limits=limits) as hf:
        yield hf


@pytest.fixture
def place(_open: Holdfast, tmp_path: Path) -> Place:
    number = next(NUMBERS)
    acme = _open.tenant(f"acme {number}")
    run = acme.runs.start(acme.sessions.create().id)
    tree = tmp_path / "tree"
    write(tree, {"a": b"1", "sub/b": b"2"})
    snapshot = acme.workspaces.capture(run.id, tree, step=0).snapshot
    return Place(acme, _open.tenant(f"zenith {number}"), run, tree, snapshot.id)


def write(root: Path, files: Files) -> None:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)


def read(root: Path) -> Files:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


BOTH = {"a": b"1", "sub/b": b"2"}


# ------------------------------------------------------------------------------------------------- where to restore to


@pytest.mark.parametrize("path", ["new", "deep/er/new", "ünï 🙂", os.fsdecode(b"\xff"), "./x/../new", "new/"])
def test_a_missing_directory_is_created(place: Place, tmp_path: Path, path: str) -> None:
    result = place.acme.workspaces.restore(place.snapshot, f"{tmp_path}/{path}")
    assert (result.written, result.removed, result.bytes) == (3, 0, 2)
    assert read(tmp_path / os.path.normpath(path)) == BOTH


def test_a_path_may_be_path_like(place: Place, tmp_path: Path) -> None:
    place.acme.workspaces.restore(place.snapshot, tmp_path / "new")
    assert read(tmp_path / "new") == BOTH


def test_an_empty_directory_is_restored_without_replace(place: Place, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    place.acme.workspaces.restore(place.snapshot, tmp_path / "empty")
    assert read(tmp_path / "empty") == BOTH


def test_a_link_to_a_directory_is_followed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    place.acme.workspaces.restore(place.snapshot, tmp_path / "link")
    assert read(tmp_path / "real") == BOTH
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("name", ["hidden", ".dot", "folder"])
def test_a_directory_with_any_content_is_not_replaced_without_replace(place: Place, tmp_path: Path, name: str) -> None:
    existing = tmp_path / "there"
    existing.mkdir()
    (existing / name).mkdir() if name == "folder" else (existing / name).write_bytes(b"mine")
    with raises(Conflict, reason="not_empty"):
        place.acme.workspaces.restore(place.snapshot, existing)
    assert os.listdir(existing) == [name]


@pytest.mark.parametrize("below", ["", "below", "be/low"])
def test_a_path_below_a_file_cannot_be_restored_to(place: Place, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with raises(InvalidInput, field="path"):
        place.acme.workspaces.restore(place.snapshot, tmp_path / "file" / below, replace=True)
    assert (tmp_path / "file").read_bytes() == b"mine"


@pytest.mark.parametrize("path", ["", "a\0b", 7, None, b"bytes", ["x"]])
def test_an_invalid_path_is_refused_by_every_method(place: Place, path: Any) -> None:
    spaces = place.acme.workspaces
    calls: list[Callable[[], object]] = [
        lambda: spaces.restore(place.snapshot, path, replace=True),
        lambda: spaces.capture(place.run.id, path),
        lambda: spaces.capture_upper(place.run.id, path, base=place.snapshot),
    ]
    if path is not None:
        calls.append(lambda: spaces.rewind(place.run.id, 0, path))
    for call in calls:
        with raises(InvalidInput, field="path"):
            call()


# -------------------------------------------------------------------------------------------------------- choosing the snapshot


@pytest.mark.parametrize("wrong", ["", "7", "not an id", 7, None])
def test_an_invalid_snapshot_id_creates_no_directory(place: Place, tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        place.acme.workspaces.restore(wrong, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_unknown_or_foreign_snapshot_creates_no_directory(place: Place, tmp_path: Path) -> None:
    for whose, id in ((place.acme, UNKNOWN_ID), (place.zenith, place.snapshot)):
        with pytest.raises(NotFound):
            whose.workspaces.restore(id, tmp_path / "new")
        with pytest.raises(NotFound):
            whose.workspaces.diff(place.snapshot, id)
        with pytest.raises(NotFound):
            whose.workspaces.export(id, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_second_restore_writes_nothing(place: Place, tmp_path: Path) -> None:
    place.acme.workspaces.restore(place.snapshot, tmp_path / "new")
    steps: list[int] = []
    again = place.acme.workspaces.restore(place.snapshot, tmp_path / "new", replace=True, on_progress=steps.append)
    assert again == RestoreResult()
    assert sum(steps) == 0


def test_an_empty_tree_empties_a_directory(place: Place, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    empty = place.acme.workspaces.capture(place.run.id, tmp_path / "empty").snapshot
    assert empty.entry_count == 0
    result = place.acme.workspaces.restore(empty.id, place.tree, replace=True)
    assert (result.written, result.removed) == (0, 3)
    assert os.listdir(place.tree) == []


@pytest.mark.parametrize("files", [restore.THREADS_FROM - 1, restore.THREADS_FROM, 3 * restore.MAX_THREADS])
def test_files_in_packs_are_restored(place: Place, tmp_path: Path, files: int) -> None:
    large = {f"{number}.bin": Random(number).randbytes(3_000) for number in range(files)}
    write(tmp_path / "large", large)
    snapshot = place.acme.workspaces.capture(place.run.id, tmp_path / "large").snapshot
    place.acme.workspaces.restore(snapshot.id, tmp_path / "new")
    assert read(tmp_path / "new") == large


def test_progress_adds_up_to_the_result(place: Place, tmp_path: Path) -> None:
    steps: list[int] = []
    result = place.acme.workspaces.restore(place.snapshot, tmp_path / "new", on_progress=steps.append)
    assert sum(steps) == result.written + result.removed == 3


# ------------------------------------------------------------------------------------------------- a directory in use


def fail_restores(times: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have the directory change a number of times while it is restored."""
    tries: list[int] = []
    real = tree_restoring.restore

    def restore(*arguments: Any, **named: Any) -> Any:
        tries.append(1)
        if len(tries) <= times:
            raise Stale("changed by another process")
        return real(*arguments, **named)

    monkeypatch.setattr(tree_restoring, "restore", restore)
    return tries


def test_a_directory_that_changes_during_a_restore_is_examined_again(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = fail_restores(restore.TRIES - 1, monkeypatch)
    place.acme.workspaces.restore(place.snapshot, tmp_path / "new")
    assert (len(tries), read(tmp_path / "new")) == (restore.TRIES, BOTH)


def test_a_restore_gives_up_on_a_directory_that_keeps_changing(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = fail_restores(99, monkeypatch)
    with raises(Stale):
        place.acme.workspaces.restore(place.snapshot, tmp_path / "new")
    assert len(tries) == restore.TRIES


# ------------------------------------------------------------------------------------------------------ runs and steps


def commit_steps(place: Place, steps: int, **snapshots: str) -> None:
    """So many steps; those that are named have a snapshot."""
    held = place.acme.leases.claim("me", run_id=place.run.id)
    assert held is not None
    for number in range(1, steps + 1):
        snapshot = snapshots.get(f"at_{number}")
        place.acme.runs.step(held.id, epoch=held.epoch, iteration=number, state=number, snapshot=snapshot)
    place.acme.leases.release(held.id, epoch=held.epoch)


@pytest.mark.parametrize(
    ("to_step", "expected"), [(9, b"second"), (5, b"second"), (4, b"first"), (1, b"first"), (0, b"1")]
)
def test_a_step_without_a_snapshot_uses_the_last_one_before_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, to_step: int, expected: bytes
) -> None:
    monkeypatch.setattr(rewind, "PAGE_STEPS", 2)
    taken = []
    for content in (b"first", b"second"):
        (place.tree / "a").write_bytes(content)
        taken.append(place.acme.workspaces.capture(place.run.id, place.tree).snapshot.id)
    commit_steps(place, 10, at_1=taken[0], at_5=taken[1])
    (place.tree / "a").write_bytes(b"latest")
    place.acme.workspaces.rewind(place.run.id, to_step, place.tree)
    assert (place.tree / "a").read_bytes() == expected


def test_a_snapshot_captured_for_a_step_is_found_by_its_number(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewind, "PAGE_STEPS", 2)
    commit_steps(place, 6)
    (place.tree / "a").write_bytes(b"two")
    place.acme.workspaces.capture(place.run.id, place.tree, step=2)
    (place.tree / "a").write_bytes(b"latest")
    place.acme.workspaces.rewind(place.run.id, 4, place.tree)
    assert (place.tree / "a").read_bytes() == b"two"


@pytest.mark.parametrize("days", [-1, True, 1.5, "7", 2**31])
def test_invalid_days_are_refused_before_anything_is_captured(place: Place, days: Any) -> None:
    commit_steps(place, 1)
    before = len(place.acme.snapshots.list(limit=100))
    with raises(InvalidInput, field="keep_snapshots_for"):
        place.acme.workspaces.rewind(place.run.id, 0, place.tree, keep_snapshots_for=days)
    assert len(place.acme.snapshots.list(limit=100)) == before


def test_a_rewind_of_a_missing_directory_leaves_the_run_unchanged(place: Place, tmp_path: Path) -> None:
    commit_steps(place, 2)
    with pytest.raises(NotFound):
        place.acme.workspaces.rewind(place.run.id, 1, tmp_path / "nowhere")
    assert (place.acme.runs.get(place.run.id).iteration, [*place.acme.rewinds.list(place.run.id)]) == (2, [])


def test_a_redo_without_a_rewind_changes_nothing(place: Place) -> None:
    commit_steps(place, 1)
    with raises(Conflict, reason="nothing_to_redo"):
        place.acme.workspaces.redo(place.run.id, place.tree)
    with pytest.raises(NotFound):
        place.acme.workspaces.redo(place.run.id, place.tree, id=UNKNOWN_ID)
    assert read(place.tree) == BOTH


def test_without_pending_rewinds_nothing_is_finished(place: Place) -> None:
    assert place.acme.workspaces.finish_rewinds() == []
    assert place.acme.workspaces.finish_rewinds(place.run.id) == []
    assert place.zenith.workspaces.finish_rewinds(place.run.id) == []


def test_a_rewind_interrupted_without_files_is_finished_without_files(place: Place) -> None:
    commit_steps(place, 1)
    rewind = place.acme.rewinds.begin(place.run.id, to_step=0)
    finished = place.acme.workspaces.finish_rewinds()
    assert [(rewound.id, rewound.status) for rewound in finished] == [(rewind.id, "rewound")]
    assert read(place.tree) == BOTH


def test_a_tenant_cannot_finish_rewinds_of_another(place: Place) -> None:
    commit_steps(place, 1)
    place.acme.rewinds.begin(place.run.id, to_step=0, path=str(place.tree), snapshot=place.snapshot)
    (place.tree / "a").write_bytes(b"latest")
    assert place.zenith.workspaces.finish_rewinds() == []
    assert (place.tree / "a").read_bytes() == b"latest"
    assert len(place.acme.workspaces.finish_rewinds(place.run.id)) == 1
    assert read(place.tree) == BOTH
