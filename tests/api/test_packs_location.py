"""Packs that are not beside the database file: commands and the server use the configured location, or name the option."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast
from holdfast.bundles import export_tenant, import_tenant
from holdfast.cli.commands import root
from holdfast.errors import PackStorageMissing
from tests.api.process import ServerProcess, one_line, problem_of

LARGE = random.Random(7).randbytes(400_000)
"""Too large for the database if there are packs."""


class PackedDatabase(NamedTuple):
    """A database on either engine with packs in another directory, and their content."""

    database: str
    packs: str
    digest: str
    snapshot: str


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> PackedDatabase:
    is_file = request.param == "sqlite"
    database = str(tmp_path / "agents.db") if is_file else request.getfixturevalue("postgres_url")
    tree, packs = tmp_path / "tree", tmp_path / "elsewhere"
    tree.mkdir()
    (tree / "large.bin").write_bytes(LARGE)
    with Holdfast(database, packs=packs) as hf:
        acme = hf.tenant("acme")
        run = acme.runs.start(acme.sessions.create().id)
        snapshot = acme.workspaces.capture(run.id, tree, step=0).snapshot.id
        (digest,) = acme.objects.put([LARGE], holder="test")
        acme.checkpoints.put("t", id="c1", state=b"\x00", pieces=[LARGE])
    return PackedDatabase(database, str(packs), digest, snapshot)


def run(place: PackedDatabase, *arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(
        root,
        [*arguments, "--database", place.database, "--tenant", "acme"],
        env={"HOLDFAST_PACKS": None, **environment},
    )


def test_an_export_includes_objects_in_packs(place: PackedDatabase, tmp_path: Path) -> None:
    file = tmp_path / "acme.holdfast"
    refused = run(place, "export", "--to", str(file))
    assert refused.exit_code == 1
    assert "--packs (HOLDFAST_PACKS)" in one_line(refused.stderr)
    assert list(tmp_path.glob("acme.holdfast*")) == []
    result = run(place, "export", "--to", str(file), "--packs", place.packs)
    assert result.exit_code == 0, result.output
    import_tenant(str(tmp_path / "other.db"), file)
    with Holdfast(str(tmp_path / "other.db")) as hf:
        assert hf.tenant("acme").objects.get([place.digest]) == [LARGE]


def test_an_export_by_the_library_includes_objects_in_packs(place: PackedDatabase, tmp_path: Path) -> None:
    with pytest.raises(PackStorageMissing, match="packs="):
        export_tenant(place.database, "acme", tmp_path / "a")
    assert export_tenant(place.database, "acme", tmp_path / "a", packs=place.packs).rows["objects"] >= 1


def test_a_checkpoint_in_packs_is_shown(place: PackedDatabase) -> None:
    refused = run(place, "checkpoints", "show", "--thread", "t")
    assert "--packs (HOLDFAST_PACKS)" in one_line(refused.stderr)
    result = run(place, "checkpoints", "show", "--thread", "t", HOLDFAST_PACKS=place.packs)
    assert result.exit_code == 0, result.output


def test_the_server_returns_objects_in_packs(
    place: PackedDatabase, tmp_path: Path, start: Callable[..., ServerProcess]
) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text(f'packs = "{place.packs}"\n')
    archive = f"/v1/tenants/acme/snapshots/{place.snapshot}/archive"
    for told in (["--packs", place.packs], ["--config", str(config)]):
        server = start("--database", place.database, *told)
        assert server.http.get(archive).status_code == 200
        assert server.http.get(f"/v1/tenants/acme/objects/{place.digest}").content == LARGE


def test_the_server_names_the_missing_option_and_sends_no_retry_after(
    place: PackedDatabase, start: Callable[..., ServerProcess]
) -> None:
    server = start("--database", place.database)
    for path in (f"snapshots/{place.snapshot}/archive", f"objects/{place.digest}"):
        response = server.http.get(f"/v1/tenants/acme/{path}")
        problem = problem_of(response, 500, "PackStorageMissing")
        assert "--packs (HOLDFAST_PACKS)" in problem["detail"]
        assert "retry-after" not in response.headers
