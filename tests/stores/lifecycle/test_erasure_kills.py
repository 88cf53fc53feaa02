"""An erasure that dies at any of its steps is resumed, and in the end no data is left."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import FixedClock, Holdfast
from holdfast.errors import NotFound
from holdfast.stores.lifecycle.erasures import AsyncErasures
from holdfast.stores.lifecycle.retention.sweeps import LEASE_S
from holdfast.types import Erasures
from tests.conftest import SOAK
from tests.stores.lifecycle.conftest import SMALL, Bench, Lines
from tests.stores.lifecycle.test_sweep_kills import Died, DyingEngine

NOW = 1_700_000_000 * 1_000_000


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create two tenants with snapshots and other data, one of which requested its erasure."""
    folder = tmp_path_factory.mktemp("erasure")
    clock = FixedClock(NOW)
    with Holdfast(str(folder / "a.db"), packs=folder / "packs", limits=SMALL, clock=clock) as holdfast:
        bench = Bench(holdfast, clock, folder)
        for name in ("acme", "zenith"):
            run = bench.run(name)
            for _ in range(3):
                bench.capture(run, tenant=name)
            existing = holdfast.tenant(name)
            existing.messages.append(existing.sessions.list()[0].id, role="user", content="Where is my order?")
            existing.objects.put([b"mine" * 2_000], holder="me")
            existing.retention.set_policy(per_run=7)
        holdfast.erasures.request("acme", event_id="e")
    return folder


def open_copy(folder: Path, later_s: int = 0) -> Holdfast:
    clock = FixedClock(NOW + (100 + later_s) * 1_000_000)
    return Holdfast(str(folder / "a.db"), packs=folder / "packs", limits=SMALL, clock=clock)


def mentions(folder: Path, tenant: str) -> dict[str, int]:
    """Return the number of a tenant's rows by table, and of its files."""
    connection = apsw.Connection(str(folder / "a.db"))
    columns = "sqlite_schema AS m, pragma_table_info(m.name) AS c"
    named = f"SELECT m.name, c.name FROM {columns} WHERE c.name IN ('tenant_id', 'tenant')"
    tables = [*connection.execute(named), ("tenants", "id")]
    result = {
        table: connection.execute(f"SELECT COUNT(*) FROM {table} WHERE {column} = ?1", (tenant,)).fetchone()[0]
        for table, column in tables
    }
    connection.close()
    return {table: count for table, count in result.items() if count}


def files(folder: Path) -> int:
    return sum(path.is_file() for path in (folder / "packs").rglob("*"))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_erasure_interrupted_at_any_step_is_resumed(
    prepared: Path, tmp_path: Path, lines: Lines, after: bool
) -> None:
    others = mentions(prepared, "zenith")
    assert mentions(prepared, "acme").keys() >= others.keys()
    for at in range(1, 200, 1 if SOAK else 3 if after else 7):
        lines.raw.clear()
        folder = tmp_path / str(at)
        shutil.copytree(prepared, folder)
        with open_copy(folder) as holdfast:
            dying: Any = DyingEngine(holdfast._engine, at, after=after)
            try:
                Erasures(AsyncErasures(dying, holdfast._setting)).carry_out("acme")
            except Died:
                pass
        check(folder, lines, others)
        shutil.rmtree(folder)
        if dying.left > 0:
            assert at > 8, "too few steps were played"
            return
    raise AssertionError("it never came to an end")


def check(folder: Path, lines: Lines, others: dict[str, int]) -> None:
    with open_copy(folder, 2 * LEASE_S) as holdfast:
        open_ = holdfast.erasures.list(only_open=True)
        for erasure in open_:
            assert holdfast.erasures.carry_out(erasure.tenant).is_finished
        with pytest.raises(NotFound):
            holdfast.erasures.carry_out("acme")
        zenith = holdfast.tenant("zenith")
        assert all(zenith.snapshots.read(snapshot.id, "file") for snapshot in zenith.snapshots.list())
    assert mentions(folder, "acme") == {"erasures": 1}, "only the record is left"
    assert mentions(folder, "zenith") == others, "no other tenant has lost anything"
    assert files(folder) == 3
    assert set(Counter(lines.deleted("erasure")).values()) <= {1}
    assert lines.deleted() == lines.deleted("erasure")


def test_an_erasure_of_snapshots_alone_leaves_the_rest(prepared: Path, tmp_path: Path, lines: Lines) -> None:
    folder = tmp_path / "alone"
    shutil.copytree(prepared, folder)
    with open_copy(folder) as holdfast:
        holdfast.erasures.request("zenith", event_id="f", whole=False)
        erased = holdfast.erasures.carry_out("zenith")
        assert (erased.is_finished, erased.swept.erasure.count) == (True, 3)
        zenith = holdfast.tenant("zenith")
        assert (len(zenith.snapshots.list()), len(zenith.sessions.list())) == (0, 1)
        assert zenith.objects.usage().count == 1, "objects held under other names stay"
        assert len(zenith.activity.list(where=[], action="checkpoint.deleted")) == len(lines.raw) == 3
        assert [erasure.tenant for erasure in holdfast.erasures.list(only_open=True)] == ["acme"]


def test_requests_for_all_data_and_for_snapshots_are_carried_out_together(prepared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    shutil.copytree(prepared, folder)
    with open_copy(folder) as holdfast:
        holdfast.erasures.request("acme", event_id="less", whole=False)
        assert holdfast.erasures.carry_out("acme").is_finished
        assert all(erasure.finished_at is not None for erasure in holdfast.erasures.list())
    assert mentions(folder, "acme") == {"erasures": 2}
