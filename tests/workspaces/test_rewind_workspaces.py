"""A run is rewound and redone with its files and its conversation: both engines, blocking and asynchronous."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Limits, NewMessage
from holdfast.errors import Conflict, Fenced, InvalidInput, NotFound, Stale
from holdfast.trees import restore
from holdfast.workspaces.rewind import DAY_S, Rewinder
from tests.errors import raises
from tests.workspaces.fingerprints import Fingerprint, fingerprint, put
from tests.workspaces.worlds import World

STEPS = 4


class Work:
    """A run that writes files, with the state after each of its steps."""

    def __init__(self, world: World, root: Path, *, steps: int = STEPS) -> None:
        self.world, self.root, self.acme = world, root, world.acme
        self.then: dict[int, Any] = {}
        self.files: dict[int, Fingerprint] = {}
        root.mkdir(exist_ok=True)
        put(root, "README", b"first\n")
        world.do(self.acme.messages.append(world.session.id, role="user", content="go"))
        world.capture(root, step=0)
        run = world.do(self.acme.leases.claim("me", run_id=world.run_id))
        self.epoch = run.epoch
        self.note(0)
        for number in range(1, steps + 1):
            self.step(number)
        world.do(self.acme.leases.release(world.run_id, epoch=self.epoch))

    def step(self, number: int) -> None:
        put(self.root, f"made by {number}", f"{number}\n".encode() * number)
        put(self.root, "shared/counter", f"{number}".encode())
        if number > 1:
            (self.root / f"made by {number - 1}").chmod(0o755)
        snapshot = self.world.capture(self.root, step=number).snapshot
        self.world.do(
            self.acme.runs.step(
                self.world.run_id,
                epoch=self.epoch,
                iteration=number,
                state={"number": number},
                messages=[NewMessage(role="assistant", content=f"step {number}")],
                snapshot=snapshot.id,
            )
        )
        self.note(number)

    def note(self, number: int) -> None:
        self.then[number], self.files[number] = self.everything()[1:], fingerprint(self.root)

    def everything(self) -> list[Any]:
        """Everything that a rewind changes, except files and the epoch."""
        do, acme, run = self.world.do, self.acme, self.world.run_id
        return [
            replace(do(acme.runs.get(run)), epoch=0),
            [*do(acme.steps.list(run))],
            do(acme.tool_calls.list(run)),
            [*do(acme.messages.list(self.world.session.id))],
        ]

    def is_at(self, number: int) -> bool:
        """Return whether files, state and conversation equal those after a step."""
        same = self.everything()[1:] == self.then[number]
        return same and fingerprint(self.root) == self.files[number] and self.run.iteration == number

    @property
    def run(self) -> Any:
        return self.world.do(self.acme.runs.get(self.world.run_id))

    def rewind(self, to_step: int, **how: Any) -> Any:
        return self.world.do(self.acme.workspaces.rewind(self.world.run_id, to_step, how.pop("path", self.root), **how))

    def redo(self, **how: Any) -> Any:
        return self.world.do(self.acme.workspaces.redo(self.world.run_id, **how))


@pytest.fixture
def work(world: World, tmp_path: Path) -> Work:
    return Work(world, tmp_path / "tree")


@pytest.fixture
def plain(small: World, tmp_path: Path) -> Work:
    return Work(small, tmp_path / "tree")


def test_files_state_and_conversation_are_rewound_and_redone_together(work: Work) -> None:
    put(work.root, "not captured yet", b"dirty")
    (work.root / "README").unlink()
    before, files = work.everything(), fingerprint(work.root)
    result = work.rewind(2)
    assert work.is_at(2)
    assert (result.rewind.status, result.rewind.from_step, result.rewind.to_step) == ("rewound", 4, 2)
    assert (result.rewind.path, result.rewind.dirty) == (str(work.root), result.dirty.id)
    assert (result.dirty.kind, result.dirty.step) == ("dirty", 4)
    assert work.run.status == "waiting"
    back = work.redo()
    assert back.rewind.status == "redone"
    assert work.everything() == before
    assert fingerprint(work.root) == files
    for number in (3, 1, 0):
        work.rewind(number)
        assert work.is_at(number)
    for number in (1, 3):
        work.redo()
        assert work.is_at(number)
    work.redo()
    assert work.everything() == before
    assert fingerprint(work.root) == files


def test_a_rewound_run_can_continue_differently_and_both_histories_are_kept(plain: Work) -> None:
    work = plain
    first = work.rewind(1)
    work.world.do(work.acme.runs.resume(work.world.run_id))
    work.epoch = work.world.do(work.acme.leases.claim("me", run_id=work.world.run_id)).epoch
    put(work.root, "another way", b"!")
    work.step(2)
    work.world.do(work.acme.leases.release(work.world.run_id, epoch=work.epoch))
    another, files = work.everything()[1:], fingerprint(work.root)
    with pytest.raises(Conflict):
        work.redo()
    second = work.rewind(1)
    work.redo(id=first.rewind.id)
    assert work.run.iteration == STEPS
    assert fingerprint(work.root) == work.files[STEPS]
    work.rewind(1)
    work.redo(id=second.rewind.id)
    assert work.everything()[1:] == another
    assert fingerprint(work.root) == files


def test_changes_after_a_rewind_are_captured_before_the_redo(plain: Work) -> None:
    work = plain
    work.rewind(2)
    put(work.root, "tried by hand", b"precious")
    redone = work.redo()
    assert not (work.root / "tried by hand").exists()
    assert work.acme.snapshots.read(redone.dirty.id, "tried by hand") == b"precious"


def test_a_rewind_may_use_another_directory(plain: Work, tmp_path: Path) -> None:
    work, elsewhere = plain, tmp_path / "elsewhere"
    work.rewind(3)
    shutil.copytree(work.root, elsewhere, symlinks=True)
    shutil.rmtree(work.root)
    with pytest.raises(NotFound):
        work.redo()
    assert work.run.iteration == 3, "no rewind was begun"
    work.redo(path=elsewhere)
    assert fingerprint(elsewhere) == work.files[4]
    assert work.run.iteration == 4


def test_a_rewind_without_a_path_leaves_the_files(plain: Work) -> None:
    work = plain
    result = work.rewind(1, path=None)
    assert (result.dirty, result.rewind.path, work.run.iteration) == (None, None, 1)
    assert fingerprint(work.root) == work.files[4]
    work.redo()
    assert work.is_at(4)


def test_a_step_without_a_snapshot_uses_the_previous_step(plain: Work) -> None:
    work = plain
    work.epoch = work.world.do(work.acme.leases.claim("me", run_id=work.world.run_id)).epoch
    for number in (5, 6):
        work.acme.runs.step(work.world.run_id, epoch=work.epoch, iteration=number, state=None)
    work.acme.leases.release(work.world.run_id, epoch=work.epoch)
    put(work.root, "after", b"all")
    work.rewind(5)
    assert fingerprint(work.root) == work.files[4]


def test_a_rewind_without_a_snapshot_is_not_begun(small: World, tmp_path: Path) -> None:
    run = small.do(small.acme.leases.claim("me", run_id=small.run_id))
    small.acme.runs.step(small.run_id, epoch=run.epoch, iteration=1, state=None)
    small.acme.leases.release(small.run_id, epoch=run.epoch)
    put(tmp_path / "tree", "file", b"1")
    with raises(NotFound, noun="snapshot"):
        small.acme.workspaces.rewind(small.run_id, 1, tmp_path / "tree")
    assert [*small.acme.rewinds.list(small.run_id)] == []
    assert small.acme.snapshots.find(small.run_id) is None


def test_a_run_held_by_another_worker_is_not_rewound(plain: Work) -> None:
    work = plain
    held = work.acme.leases.claim("me", run_id=work.world.run_id)
    with raises(Conflict, reason="run_held"):
        work.rewind(2)
    with pytest.raises(Fenced):
        work.rewind(2, epoch=held.epoch - 1)
    assert fingerprint(work.root) == work.files[4]
    work.rewind(2, epoch=held.epoch)
    assert (work.run.status, work.run.holder) == ("running", "me")
    assert work.is_at(2)


def test_a_rewind_keeps_snapshots_as_long_as_requested(plain: Work) -> None:
    work = plain
    for days, kept in ((30, 30), (90, 90), (365, 90)):
        work.rewind(2, keep_snapshots_for=days)
        policy = work.acme.retention.policy(run_id=work.world.run_id)
        assert policy.grace_s == kept * DAY_S, f"{days} days"
    for wrong in (-1, True, 1.5, "7"):
        with raises(InvalidInput, field="keep_snapshots_for"):
            work.rewind(1, keep_snapshots_for=wrong)
    assert work.is_at(2)


def test_a_full_run_can_be_rewound_to_its_oldest_snapshot(tmp_path: Path) -> None:
    small = World(str(tmp_path / "agents.db"), limits=Limits(snapshots_per_run=10))
    work = Work(small, tmp_path / "tree", steps=12)
    kept = [snapshot.step for snapshot in small.acme.snapshots.list(run_id=small.run_id)]
    assert len(kept) == 10
    put(work.root, "dirty", b"1")
    work.rewind(min(kept))
    assert fingerprint(work.root) == work.files[min(kept)]
    work.redo()
    assert (work.root / "dirty").exists()
    small.close()


class Died(BaseException):
    """Raised to simulate a crash of the process."""


POINTS = ("captured", "begun", "removing", "written", "settled", "restored")


def test_a_crash_between_any_two_operations_is_recovered(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    put(work.root, "dirty", b"precious")
    before, files = work.everything(), fingerprint(work.root)
    for point in POINTS:
        for way in ("rewind", "redo"):
            if way == "redo":
                work.rewind(2)
            with monkeypatch.context() as patched:
                _die(patched, point)
                with pytest.raises(Died):
                    work.rewind(2) if way == "rewind" else work.redo()
            _recover(work, point, way)
            assert work.everything() == before, (point, way)
            assert fingerprint(work.root) == files, (point, way)


def _recover(work: Work, point: str, way: str) -> None:
    """Finish the interrupted rewind, as another process would, and redo it."""
    work.acme._scope.shared.pop("workspaces", None)  # what a process knew that has died
    is_begun = point != "captured"
    assert len(work.world.do(work.acme.rewinds.pending())) == is_begun
    if is_begun:
        assert work.run.status == "waiting", "no worker drives it on files of another step"
    assert len(work.world.do(work.acme.workspaces.finish_rewinds())) == is_begun
    if way == "rewind":
        if not is_begun:
            work.rewind(2)
        assert work.is_at(2)
    if way == "rewind" or not is_begun:
        work.redo()


def test_the_next_rewind_finishes_an_interrupted_one(plain: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    work = plain
    with monkeypatch.context() as patched:
        _die(patched, "begun")
        with pytest.raises(Died):
            work.rewind(3)
    work.rewind(1)
    assert work.is_at(1)
    work.redo()
    assert work.is_at(3)
    work.redo()
    assert work.is_at(4)


def _die(patched: pytest.MonkeyPatch, point: str) -> None:
    """Simulate a crash at a point of the next rewind or redo."""

    def dies(*_: Any, **__: Any) -> Any:
        raise Died

    async def dies_waiting(*_: Any, **__: Any) -> Any:
        raise Died

    if point == "captured":
        for name in ("begin", "redo"):
            patched.setattr(f"holdfast.stores.workspace.rewinds.AsyncRewinds.{name}", dies_waiting)
    elif point == "begun":
        patched.setattr(Rewinder, "_restore", dies_waiting)
    elif point == "restored":
        patched.setattr("holdfast.stores.workspace.rewinds.AsyncRewinds.finish", dies_waiting)
    else:
        name = {"removing": "_write_files", "written": "_touch", "settled": "_settle"}[point]
        patched.setattr(restore._Restorer, name, dies)


def test_a_file_changed_during_a_rewind_is_captured_again(
    plain: Work, monkeypatch: pytest.MonkeyPatch, later: None
) -> None:
    work = plain
    run = restore._Restorer.run
    turns = []

    def disturbed(self: Any, plan: Any) -> Any:
        turns.append(1)
        if len(turns) == 1:
            put(work.root, "shared/counter", b"written at the last moment")
        return run(self, plan)

    monkeypatch.setattr(restore._Restorer, "run", disturbed)
    work.rewind(2)
    assert work.is_at(2)
    assert len(turns) == 2
    dirty = [snapshot.id for snapshot in work.acme.snapshots.list(run_id=work.world.run_id, kind="dirty")]
    contents = [work.acme.snapshots.read(snapshot_id, "shared/counter") for snapshot_id in dirty]
    assert b"written at the last moment" in contents


def test_a_rewind_of_a_constantly_changing_directory_fails_without_loss(
    plain: Work, monkeypatch: pytest.MonkeyPatch, later: None
) -> None:
    work = plain
    run = restore._Restorer.run
    turns: list[int] = []

    def disturbed(self: Any, plan: Any) -> Any:
        turns.append(1)
        put(work.root, "shared/counter", f"turn {len(turns)}".encode())
        return run(self, plan)

    with monkeypatch.context() as patched:
        patched.setattr(restore._Restorer, "run", disturbed)
        with pytest.raises(Stale):
            work.rewind(2)
    assert work.run.status == "waiting"
    work.acme.workspaces.finish_rewinds(work.world.run_id)
    assert work.is_at(2)


def test_progress_is_reported(plain: Work) -> None:
    told: list[int] = []
    plain.rewind(1, on_progress=told.append)
    assert sum(told) > 3
    assert os.path.exists(plain.root / "README")
