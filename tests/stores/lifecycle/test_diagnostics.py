"""Diagnostics find and report every defect, and a repair removes unneeded data and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import Holdfast, PackStorage, PoolOptions
from holdfast.core.packs import folder_of
from holdfast.errors import Unavailable
from holdfast.schema import check_integrity, migrate_down
from holdfast.sync_runner import step
from holdfast.types import DiagnosticReport
from tests.stores.lifecycle.conftest import SMALL, Bench, Opens
from tests.stores.objects.test_pack_faults import Died, Dying

FOLDER = folder_of("acme")


def test_an_intact_tenant_has_no_findings(local: Bench) -> None:
    run = local.run()
    for _ in range(3):
        local.capture(run)
    assert local.tenant().diagnostics.look() == DiagnosticReport() == local.tenant("absent").diagnostics.look()
    assert local.tenant().diagnostics.look().is_sound
    assert local.tenant().diagnostics.repair().is_tidy


def test_leftovers_of_killed_processes_are_found_and_removed(opens: Opens, tmp_path: Path) -> None:
    bench = opens()
    run = bench.run()
    kept = bench.capture(run)
    dying = opens(Dying(tmp_path / "packs", 1, after=True))
    with pytest.raises(Died):
        dying.capture(run, size=3_000)
    place = PackStorage(tmp_path / "packs")
    asyncio.run(place.write(f"{FOLDER}/orphan", b"unknown", blocking=False))
    acme = bench.tenant()
    assert acme.diagnostics.look() == DiagnosticReport(orphan_packs=("orphan",)), "a new file may still be in use"
    bench.clock.advance(3_600)
    result = acme.diagnostics.look()
    assert (result.orphan_packs, len(result.unsealed_packs), result.is_sound, result.is_tidy) == (
        ("orphan",),
        1,
        True,
        False,
    )
    assert acme.diagnostics.look() == result, "look changes nothing"
    assert acme.diagnostics.repair() == DiagnosticReport()
    assert len(asyncio.run(place.names("", blocking=False))) == 1
    assert acme.snapshots.read(kept.id, "file")


def test_layers_of_removed_runs_are_found_and_removed(local: Bench) -> None:
    run = local.run()
    local.capture(run)
    acme = local.tenant()
    acme.sessions.purge(acme.runs.get(run).session_id)
    assert acme.diagnostics.look() == DiagnosticReport(loose_layers=1)
    assert acme.diagnostics.repair().unheld_objects == 2
    local.clock.advance(3_600)
    assert acme.diagnostics.repair() == DiagnosticReport()
    assert acme.objects.usage().count == 0


def test_lost_data_is_reported_and_left_unchanged(local: Bench, tmp_path: Path) -> None:
    run = local.run()
    hurt, well = local.capture(run), local.capture(local.run())
    (pack,) = [path for path in (tmp_path / "packs" / FOLDER).iterdir() if _is_of(local, path.name, hurt.layer_id)]
    pack.unlink()
    acme = local.tenant()
    result = acme.diagnostics.repair()
    assert (result.missing_packs, result.is_sound) == ((pack.name,), False)
    assert [(damaged_snapshot.id, damaged_snapshot.reason) for damaged_snapshot in result.damaged_snapshots] == [
        (hurt.id, "1 of the objects it needs do not exist")
    ]
    assert acme.snapshots.read(well.id, "file")
    engine, params = local.holdfast._engine, acme._scope.params(layer_id=hurt.layer_id)
    removed = "DELETE FROM objects WHERE digest IN (SELECT manifest FROM snapshot_layers WHERE id = :layer_id)"
    step(engine.write(lambda connection: _run(connection, removed, params)))
    result = acme.diagnostics.look()
    assert result.dangling_refs == 1
    assert "does not exist" in result.damaged_snapshots[0].reason


async def _run(connection: object, sql: str, params: dict[str, object]) -> list[tuple[object, ...]]:
    from holdfast.core.queries import Query

    dialect = connection.dialect  # type: ignore[attr-defined]
    return [*await Query("planted", {dialect: sql}).all(connection, params)]  # type: ignore[arg-type]


def _is_of(bench: Bench, pack: str, layer_id: str) -> bool:
    acme = bench.tenant()
    joined = "objects AS o JOIN object_refs AS r ON r.digest = o.digest"
    asked = f"SELECT 1 FROM {joined} WHERE r.holder = :holder AND o.pack = :pack"
    params = acme._scope.params(holder=f"layer:{layer_id}", pack=pack)
    return bool(step(bench.holdfast._engine.read(lambda connection: _run(connection, asked, params))))


def test_unreachable_pack_storage_is_an_error_and_not_a_finding(opens: Opens) -> None:
    nowhere = {
        "aws_region": "x",
        "aws_access_key_id": "x",
        "aws_secret_access_key": "x",
        "aws_endpoint": "http://127.0.0.1:9",
    }
    options = {"config": nowhere, "client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
    with pytest.raises(Unavailable):
        opens(PackStorage("s3://bucket/folder", options)).tenant().diagnostics.look()


def test_the_integrity_of_a_database_is_checked(address: str, tmp_path: Path) -> None:
    pool = PoolOptions(min_connections=1, max_connections=1)
    with Holdfast(address, limits=SMALL, pool=pool) as holdfast:
        holdfast.tenant("acme").sessions.create()
    assert check_integrity(address) == []
    if address.startswith("postgres"):
        return
    with open(address, "r+b") as file:
        file.seek(4_096 * 20)
        file.write(b"\xff" * 4_096 * 20)
    assert check_integrity(address)
    empty = str(tmp_path / "old.db")
    Holdfast(empty).close()
    undone = migrate_down(empty, to=1)
    assert len(check_integrity(empty)) == len(undone) >= 5
    with pytest.raises(Unavailable):
        check_integrity(str(tmp_path / "none.db"))
