"""Snapshots are taken, forked, pruned and restored in any order, and processes die at each step: no needed chunk is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import FixedClock, Holdfast, Limits, NewMessage, TenantHandle
from holdfast.core import packs
from holdfast.errors import Conflict, HoldfastError
from tests.workspaces.fingerprints import Fingerprint, change, fingerprint, grow

LIMITS = Limits(pack_from_bytes=600, snapshots_per_run=1_000)
"""So that small trees lie in packs too."""
GRACE_S = 60
TURNS = 60


class Died(BaseException):
    """The process, here."""


class History:
    """Two runs that work in trees, whatever happens; and what each snapshot was like when it was taken."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, Random(seed)
        folder.mkdir(exist_ok=True)
        self.clock = FixedClock()
        self.known: dict[str, Fingerprint] = {}
        self.roots = [folder / "one", folder / "two"]
        for root in self.roots:
            grow(root, self.random, 8)
        self.open()
        self.sessions = [self.acme.sessions.create() for _ in self.roots]
        self.runs = [self.acme.runs.start(session.id).id for session in self.sessions]

    def open(self) -> None:
        """Another process."""
        self.hf = Holdfast(
            str(self.folder / "agents.db"),
            clock=self.clock,
            limits=LIMITS,
            packs=self.folder / "packs",
            durability="normal",
        )
        self.acme: TenantHandle = self.hf.tenant("acme")

    def turn(self) -> None:
        """One operation of a process, which may die during it."""
        what = self.random.choice(
            (
                self.capture,
                self.capture,
                self.step,
                self.fork,
                self.delete,
                self.prune,
                self.restore,
                self.rewind,
                self.redo,
            )
        )
        self.clock.advance(self.random.choice((1, GRACE_S // 2, 2 * GRACE_S)))
        if self.random.random() < 0.35:
            self.dying(what)
        else:
            what()

    def dying(self, what: Callable[[], None]) -> None:
        """Have the process die before some statement or some access to a pack, and another one go on."""
        left = self.random.randrange(25)

        def burn() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Died

        with pytest.MonkeyPatch.context() as patched:
            _before_each(patched, burn)
            try:
                what()
            except Died:
                pass
        try:
            self.hf.close()
        except (HoldfastError, Died):
            pass
        self.open()
        self.acme.workspaces.finish_rewinds()

    def _place(self) -> tuple[Path, str]:
        number = self.random.randrange(len(self.roots))
        return self.roots[number], self.runs[number]

    def capture(self) -> None:
        root, run = self._place()
        for _ in range(self.random.randrange(4)):
            change(root, self.random)
        before = fingerprint(root)
        taken = self.acme.workspaces.capture(run, root, ignore_defaults=False)
        assert fingerprint(root) == before
        self.known[taken.snapshot.id] = before

    def step(self) -> None:
        root, run = self._place()
        held = self.acme.leases.claim("me", run_id=run)
        if held is None:
            self.acme.runs.resume(run) if self.acme.runs.get(run).status == "waiting" else None
            return
        before = fingerprint(root)
        taken = self.acme.workspaces.capture(run, root, ignore_defaults=False, step=held.iteration + 1)
        self.known[taken.snapshot.id] = before
        self.acme.runs.step(
            run,
            epoch=held.epoch,
            iteration=held.iteration + 1,
            state=None,
            messages=[NewMessage(role="assistant", content="x")],
            snapshot=taken.snapshot.id,
        )
        self.acme.leases.release(run, epoch=held.epoch)

    def fork(self) -> None:
        """A tree goes on from a snapshot of the other one."""
        result = self._some()
        if result is None:
            return
        (root, run), other = self._place(), result
        self.acme.workspaces.restore(other, root, replace=True)
        before = fingerprint(root)
        taken = self.acme.workspaces.capture(run, root, ignore_defaults=False)
        self.known[taken.snapshot.id] = before

    def delete(self) -> None:
        result = self._some()
        if result is not None and not self.acme.rewinds.pending():
            self.acme.snapshots.delete([result], reason="test")
            self.known.pop(result, None)

    def prune(self) -> None:
        self.acme.snapshots.collect()
        self.acme.objects.prune(grace_s=GRACE_S)

    def restore(self) -> None:
        result = self._some()
        if result is not None:
            root, _ = self._place()
            self.acme.workspaces.restore(result, root, replace=True)
            assert fingerprint(root) == self.known[result]

    def rewind(self) -> None:
        root, run = self._place()
        existing = self.acme.runs.get(run)
        steps = [step for step in self.acme.steps.list(run) if step.snapshot in self.known]
        if existing.status != "running" and steps:
            expected = self.random.choice(steps)
            self.acme.workspaces.rewind(run, expected.iteration, root)
            assert fingerprint(root) == self.known[str(expected.snapshot)]

    def redo(self) -> None:
        root, run = self._place()
        rewound = [rewind for rewind in self.acme.rewinds.list(run) if rewind.status == "rewound"]
        if rewound and self._is_there(rewound[0].dirty):
            try:
                self.acme.workspaces.redo(run, root)
            except Conflict as error:
                assert error.reason in ("run_continued", "nothing_to_redo", "run_held")  # noqa: PT017

    def _is_there(self, snapshot: str | None) -> bool:
        return snapshot is not None and any(taken.id == snapshot for taken in self.acme.snapshots.list())

    def _some(self) -> str | None:
        """A snapshot with known content."""
        existing = [snapshot.id for snapshot in self.acme.snapshots.list() if snapshot.id in self.known]
        return self.random.choice(existing) if existing else None

    def check(self) -> None:
        """Check that every listed snapshot is unchanged, and that nothing is left after all are removed."""
        out = self.folder / "out"
        for taken in self.acme.snapshots.list():
            shutil.rmtree(out, ignore_errors=True)
            self.acme.workspaces.restore(taken.id, out)
            if taken.id in self.known:
                assert fingerprint(out) == self.known[taken.id]
        assert self.acme.objects.verify().damaged == []

    def clear(self) -> None:
        """Remove everything, and look that nothing is left."""
        ids = [snapshot.id for snapshot in self.acme.snapshots.list()]
        self.acme.snapshots.delete(ids, reason="the end")
        for _ in range(3):
            self.acme.snapshots.collect()
            self.acme.objects.prune(grace_s=0)
            self.clock.advance(1)
        assert self.acme.objects.usage().count == 0
        assert [path for path in (self.folder / "packs").rglob("*") if path.is_file()] == []


def _before_each(patched: pytest.MonkeyPatch, burn: Callable[[], None]) -> None:
    """Do something before every statement and every access to a pack."""
    from holdfast.drivers.apsw import ApswConnection

    fetch, do = ApswConnection.fetch, packs.PackStorage._do

    async def fetching(self: Any, *args: Any, **kwargs: Any) -> Any:
        burn()
        return await fetch(self, *args, **kwargs)

    async def doing(self: Any, *args: Any, **kwargs: Any) -> Any:
        burn()
        return await do(self, *args, **kwargs)

    patched.setattr(ApswConnection, "fetch", fetching)
    patched.setattr(packs.PackStorage, "_do", doing)


def play(folder: Path, seed: int, turns: int) -> None:
    history = History(folder, seed)
    try:
        for turn in range(turns):
            history.turn()
            if turn % 20 == 19:
                history.check()
        history.check()
        history.clear()
    finally:
        history.hf.close()


@pytest.mark.parametrize("seed", range(4))
def test_no_needed_chunk_is_lost_by_a_death(seed: int, tmp_path: Path) -> None:
    play(tmp_path, seed, TURNS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 400))
def test_no_needed_chunk_is_lost_in_many_histories(seed: int, tmp_path: Path) -> None:
    play(tmp_path, seed, 150)


def test_a_chunk_released_too_early_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same histories, with a defect planted: a removed snapshot also removes objects that others need."""
    from holdfast.stores.objects import objects
    from holdfast.stores.workspace import layers

    async def careless(connection: Any, scope: Any, layer_id: str | None, released: Any = None) -> int:
        params = scope.params(holder=f"layer:{layer_id}")
        await objects.queries.release_all.all(connection, params)
        return 0

    monkeypatch.setattr(layers, "collect_from", careless)
    noticed = 0
    for seed in range(4):
        try:
            play(tmp_path / str(seed), seed, TURNS)
        except (AssertionError, HoldfastError):
            noticed += 1
    assert noticed >= 2
