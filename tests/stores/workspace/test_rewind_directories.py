"""What directories and snapshots can be brought to each other, and what is refused before anything is touched."""

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

NOBODY = "01900000-0000-7000-8000-000000000000"
NUMBERS = count(1)
Files = dict[str, bytes]


class Place(NamedTuple):
    """A tenant, another, a run that nobody drives, and a directory with two files of which there is a snapshot."""

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
    return {each.relative_to(root).as_posix(): each.read_bytes() for each in root.rglob("*") if each.is_file()}


BOTH = {"a": b"1", "sub/b": b"2"}


# ------------------------------------------------------------------------------------------------- where to restore to


@pytest.mark.parametrize("path", ["new", "deep/er/new", "ünï 🙂", os.fsdecode(b"\xff"), "./x/../new", "new/"])
def test_a_directory_that_is_not_there_is_made(place: Place, tmp_path: Path, path: str) -> None:
    done = place.acme.workspaces.restore(place.snapshot, f"{tmp_path}/{path}")
    assert (done.written, done.removed, done.bytes) == (3, 0, 2)
    assert read(tmp_path / os.path.normpath(path)) == BOTH


def test_a_path_may_be_an_object(place: Place, tmp_path: Path) -> None:
    place.acme.workspaces.restore(place.snapshot, tmp_path / "new")
    assert read(tmp_path / "new") == BOTH


def test_an_empty_directory_needs_no_word(place: Place, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    place.acme.workspaces.restore(place.snapshot, tmp_path / "empty")
    assert read(tmp_path / "empty") == BOTH


def test_a_link_to_a_directory_is_the_directory(place: Place, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    place.acme.workspaces.restore(place.snapshot, tmp_path / "link")
    assert read(tmp_path / "real") == BOTH
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("name", ["hidden", ".dot", "folder"])
def test_whatever_is_in_a_directory_it_is_not_replaced_unasked(place: Place, tmp_path: Path, name: str) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / name).mkdir() if name == "folder" else (there / name).write_bytes(b"mine")
    with pytest.raises(Conflict, match="empty directory, or say replace"):
        place.acme.workspaces.restore(place.snapshot, there)
    assert os.listdir(there) == [name]


@pytest.mark.parametrize("below", ["", "below", "be/low"])
def test_what_is_no_directory_cannot_become_one(place: Place, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(InvalidInput, match="cannot be restored to"):
        place.acme.workspaces.restore(place.snapshot, tmp_path / "file" / below, replace=True)
    assert (tmp_path / "file").read_bytes() == b"mine"


@pytest.mark.parametrize("path", ["", "a\0b", 7, None, b"bytes", ["x"]])
def test_what_is_no_path_is_refused_by_every_verb(place: Place, path: Any) -> None:
    spaces = place.acme.workspaces
    calls: list[Callable[[], object]] = [
        lambda: spaces.restore(place.snapshot, path, replace=True),
        lambda: spaces.capture(place.run.id, path),
        lambda: spaces.capture_upper(place.run.id, path, base=place.snapshot),
    ]
    if path is not None:
        calls.append(lambda: spaces.rewind(place.run.id, 0, path))
    for call in calls:
        with pytest.raises(InvalidInput, match="the path of a workspace is a directory"):
            call()


# -------------------------------------------------------------------------------------------------------- what to restore


@pytest.mark.parametrize("wrong", ["", "7", "not an id", 7, None])
def test_what_is_no_id_is_refused_and_no_directory_is_made(place: Place, tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        place.acme.workspaces.restore(wrong, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_snapshot_that_never_was_or_is_anothers_is_not_found_and_no_directory_is_made(
    place: Place, tmp_path: Path
) -> None:
    for whose, id in ((place.acme, NOBODY), (place.zenith, place.snapshot)):
        with pytest.raises(NotFound):
            whose.workspaces.restore(id, tmp_path / "new")
        with pytest.raises(NotFound):
            whose.workspaces.diff(place.snapshot, id)
        with pytest.raises(NotFound):
            whose.workspaces.export(id, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_restoring_twice_does_nothing_the_second_time(place: Place, tmp_path: Path) -> None:
    place.acme.workspaces.restore(place.snapshot, tmp_path / "new")
    steps: list[int] = []
    again = place.acme.workspaces.restore(place.snapshot, tmp_path / "new", replace=True, on_progress=steps.append)
    assert again == RestoreResult()
    assert sum(steps) == 0


def test_an_empty_tree_empties_a_directory(place: Place, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    empty = place.acme.workspaces.capture(place.run.id, tmp_path / "empty").snapshot
    assert empty.entry_count == 0
    done = place.acme.workspaces.restore(empty.id, place.tree, replace=True)
    assert (done.written, done.removed) == (0, 3)
    assert os.listdir(place.tree) == []


@pytest.mark.parametrize("files", [restore.THREADS_FROM - 1, restore.THREADS_FROM, 3 * restore.MAX_THREADS])
def test_files_out_of_packs_come_back_whether_few_or_many(place: Place, tmp_path: Path, files: int) -> None:
    large = {f"{number}.bin": Random(number).randbytes(3_000) for number in range(files)}
    write(tmp_path / "large", large)
    snapshot = place.acme.workspaces.capture(place.run.id, tmp_path / "large").snapshot
    place.acme.workspaces.restore(snapshot.id, tmp_path / "new")
    assert read(tmp_path / "new") == large


def test_progress_comes_to_what_was_done(place: Place, tmp_path: Path) -> None:
    steps: list[int] = []
    done = place.acme.workspaces.restore(place.snapshot, tmp_path / "new", on_progress=steps.append)
    assert sum(steps) == done.written + done.removed == 3


# ------------------------------------------------------------------------------------------------- a directory in use


def failing(times: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have somebody change the directory so many times while it is brought to a snapshot."""
    tries: list[int] = []
    real = tree_restoring.restore

    def restore(*arguments: Any, **named: Any) -> Any:
        tries.append(1)
        if len(tries) <= times:
            raise Stale("somebody was here")
        return real(*arguments, **named)

    monkeypatch.setattr(tree_restoring, "restore", restore)
    return tries


def test_a_directory_that_changes_meanwhile_is_looked_at_again(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = failing(restore.TRIES - 1, monkeypatch)
    place.acme.workspaces.restore(place.snapshot, tmp_path / "new")
    assert (len(tries), read(tmp_path / "new")) == (restore.TRIES, BOTH)


def test_a_directory_that_never_rests_is_given_up(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = failing(99, monkeypatch)
    with pytest.raises(Stale, match="somebody was here"):
        place.acme.workspaces.restore(place.snapshot, tmp_path / "new")
    assert len(tries) == restore.TRIES


# ------------------------------------------------------------------------------------------------------ runs and steps


def stepped(place: Place, steps: int, **snapshots: str) -> None:
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
def test_a_step_without_a_snapshot_has_the_last_one_before_it_however_long_ago(
    place: Place, monkeypatch: pytest.MonkeyPatch, to_step: int, expected: bytes
) -> None:
    monkeypatch.setattr(rewind, "LOOKED_AT", 2)
    taken = []
    for content in (b"first", b"second"):
        (place.tree / "a").write_bytes(content)
        taken.append(place.acme.workspaces.capture(place.run.id, place.tree).snapshot.id)
    stepped(place, 10, at_1=taken[0], at_5=taken[1])
    (place.tree / "a").write_bytes(b"latest")
    place.acme.workspaces.rewind(place.run.id, to_step, place.tree)
    assert (place.tree / "a").read_bytes() == expected


def test_a_snapshot_that_was_taken_for_a_step_is_found_without_the_step_naming_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewind, "LOOKED_AT", 2)
    stepped(place, 6)
    (place.tree / "a").write_bytes(b"two")
    place.acme.workspaces.capture(place.run.id, place.tree, step=2)
    (place.tree / "a").write_bytes(b"latest")
    place.acme.workspaces.rewind(place.run.id, 4, place.tree)
    assert (place.tree / "a").read_bytes() == b"two"


@pytest.mark.parametrize("days", [-1, True, 1.5, "7", 2**31])
def test_days_that_are_none_are_refused_and_nothing_is_captured(place: Place, days: Any) -> None:
    stepped(place, 1)
    before = len(place.acme.snapshots.list(limit=100))
    with pytest.raises(InvalidInput, match="a whole number of days"):
        place.acme.workspaces.rewind(place.run.id, 0, place.tree, keep_snapshots_for=days)
    assert len(place.acme.snapshots.list(limit=100)) == before


def test_a_directory_that_is_not_there_is_not_rewound_and_the_run_stays_where_it_is(
    place: Place, tmp_path: Path
) -> None:
    stepped(place, 2)
    with pytest.raises(NotFound):
        place.acme.workspaces.rewind(place.run.id, 1, tmp_path / "nowhere")
    assert (place.acme.runs.get(place.run.id).iteration, [*place.acme.rewinds.list(place.run.id)]) == (2, [])


def test_a_redo_of_nothing_touches_nothing(place: Place) -> None:
    stepped(place, 1)
    with pytest.raises(Conflict, match="no rewind led run"):
        place.acme.workspaces.redo(place.run.id, place.tree)
    with pytest.raises(NotFound):
        place.acme.workspaces.redo(place.run.id, place.tree, id=NOBODY)
    assert read(place.tree) == BOTH


def test_where_nothing_was_broken_off_there_is_nothing_to_finish(place: Place) -> None:
    assert place.acme.workspaces.finish_rewinds() == []
    assert place.acme.workspaces.finish_rewinds(place.run.id) == []
    assert place.zenith.workspaces.finish_rewinds(place.run.id) == []


def test_what_was_broken_off_without_files_is_finished_without_files(place: Place) -> None:
    stepped(place, 1)
    rewind = place.acme.rewinds.begin(place.run.id, to_step=0)
    done = place.acme.workspaces.finish_rewinds()
    assert [(each.id, each.status) for each in done] == [(rewind.id, "rewound")]
    assert read(place.tree) == BOTH


def test_another_tenant_finishes_nothing_of_ours(place: Place) -> None:
    stepped(place, 1)
    place.acme.rewinds.begin(place.run.id, to_step=0, path=str(place.tree), snapshot=place.snapshot)
    (place.tree / "a").write_bytes(b"latest")
    assert place.zenith.workspaces.finish_rewinds() == []
    assert (place.tree / "a").read_bytes() == b"latest"
    assert len(place.acme.workspaces.finish_rewinds(place.run.id)) == 1
    assert read(place.tree) == BOTH
