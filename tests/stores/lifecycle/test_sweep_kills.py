"""A sweep that dies at any of its steps is resumed by the next, with the same result as one that never died."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast import FixedClock, Holdfast, TenantHandle
from holdfast.core.scope import Scope
from holdfast.stores.lifecycle.retention.sweeps import LEASE_S
from tests.conftest import SOAK
from tests.stores.lifecycle.conftest import SMALL, Bench, Lines

NOW = 1_700_000_000 * 1_000_000
DAY = 86_400


class Died(BaseException):
    """The process is gone: nothing that follows happens."""


class DyingEngine:
    """An engine whose user dies before or after the n-th call, and that does nothing for the dead."""

    def __init__(self, engine: Any, at: int, *, after: bool) -> None:
        self._engine, self.left, self._after = engine, at, after
        self.dialect, self.blocking, self.joined = engine.dialect, engine.blocking, engine.joined

    async def read(self, call: Any) -> Any:
        return await self._do(self._engine.read, call)

    async def write(self, call: Any) -> Any:
        return await self._do(self._engine.write, call)

    async def _do(self, how: Any, call: Any) -> Any:
        self.left -= 1
        if self.left < 0 or (self.left == 0 and not self._after):
            raise Died
        result = await how(call)
        if self.left == 0:
            raise Died
        return result


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a file with snapshots that each rule removes, and some that are held."""
    folder = tmp_path_factory.mktemp("kills")
    clock = FixedClock(NOW)
    with Holdfast(str(folder / "a.db"), packs=folder / "packs", limits=SMALL, clock=clock) as holdfast:
        bench = Bench(holdfast, clock, folder)
        acme, (old, live, other, held) = bench.tenant(), [bench.run() for _ in range(4)]
        for run in (old, live, held, other, old, live, other, held, live, live):
            bench.capture(run, size=250_000, of="one tree of all")
        acme.retention.hold("a case", run_id=held)
        acme.retention.set_policy(per_run=3)
        bench.end(old)
        clock.advance(8 * DAY)
        bench.capture(other, size=250_000)
        bench.quota(1)
    return folder


def open_copy(folder: Path, *, later_s: int = 0) -> Holdfast:
    clock = FixedClock(NOW + (9 * DAY + later_s) * 1_000_000)
    return Holdfast(str(folder / "a.db"), packs=folder / "packs", limits=SMALL, clock=clock)


def state(acme: TenantHandle) -> list[Any]:
    """The remaining snapshots with all their files, and their size."""
    snapshots = acme.snapshots.list()
    files = [[acme.snapshots.read(snapshot.id, "file") for snapshot in snapshots]]
    return [[snapshot.id for snapshot in snapshots], files, acme.objects.usage().stored_bytes, acme.diagnostics.look()]


def finish(folder: Path, lines: Lines) -> list[Any]:
    """Sweep until nothing is left to remove; no needed object may be missing in between."""
    with open_copy(folder, later_s=2 * LEASE_S) as holdfast:
        acme = holdfast.tenant("acme")
        assert acme.diagnostics.look().is_sound
        assert all(acme.snapshots.read(snapshot.id, "file") for snapshot in acme.snapshots.list())
        acme.retention.sweep()
    with open_copy(folder, later_s=3_600 + 4 * LEASE_S) as holdfast:
        acme = holdfast.tenant("acme")
        acme.retention.sweep()
        noted = Counter(deed.subject_id for deed in acme.activity.list(action="checkpoint.deleted"))
        message = Counter(lines.deleted())
        assert set(noted.values()) == {1}, "each removal is in the activity log exactly once"
        assert set(message.values()) <= {1}, "and in the retention log at most once"
        assert message.keys() <= noted.keys()
        return state(acme)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_sweep_interrupted_at_any_step_is_resumed(prepared: Path, tmp_path: Path, lines: Lines, after: bool) -> None:
    twin = tmp_path / "twin"
    shutil.copytree(prepared, twin)
    expected = finish(twin, lines)
    assert {event["reason"] for event in lines.said} == {"per_run_cap", "grace_expired", "per_tenant_cap"}
    for at in range(1, 200, 1 if SOAK else 4 if after else 15):
        lines.raw.clear()
        folder = tmp_path / str(at)
        shutil.copytree(prepared, folder)
        with open_copy(folder) as holdfast:
            dying = DyingEngine(holdfast._engine, at, after=after)
            try:
                TenantHandle(dying, Scope("acme", holdfast._setting)).retention.sweep()
            except Died:
                pass
        assert finish(folder, lines) == expected, at
        shutil.rmtree(folder)
        if dying.left > 0:
            assert at > 20, "too few steps were played"
            return
    raise AssertionError("it never came to an end")


@pytest.mark.soak
def test_a_killed_sweep_is_resumed(prepared: Path, tmp_path: Path, lines: Lines) -> None:
    twin = tmp_path / "twin"
    shutil.copytree(prepared, twin)
    expected = finish(twin, lines)
    program = textwrap.dedent("""
        import sys
        from holdfast import FixedClock, Holdfast, Limits
        holdfast = Holdfast("a.db", packs="packs", limits=Limits(pack_from_bytes=1_000), clock=FixedClock(int(sys.argv[1])))
        print("begin", flush=True)
        holdfast.tenant("acme").retention.sweep()
    """)
    for number in range(40):
        lines.raw.clear()
        folder = tmp_path / str(number)
        shutil.copytree(prepared, folder)
        at = str(NOW + 9 * DAY * 1_000_000)
        process = subprocess.Popen([sys.executable, "-c", program, at], cwd=folder, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        try:
            process.wait(number / 400)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert finish(folder, lines) == expected, number
