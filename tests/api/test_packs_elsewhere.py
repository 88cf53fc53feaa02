"""Large objects that do not lie beside the file: every command and the server are told where, or say what to tell them."""

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
from tests.api.process import ServerProcess, one_line, refused

LARGE = random.Random(7).randbytes(400_000)
"""Too large for the database, where there are packs."""


class Place(NamedTuple):
    """A database of either engine whose packs are somewhere else, and what lies in them."""

    database: str
    packs: str
    digest: str
    snapshot: str


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
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
    return Place(database, str(packs), digest, snapshot)


def run(place: Place, *arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(
        root,
        [*arguments, "--database", place.database, "--tenant", "acme"],
        env={"HOLDFAST_PACKS": None, **environment},
    )


def test_a_tenant_is_exported_with_what_lies_elsewhere(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "acme.holdfast"
    refused = run(place, "export", "--to", str(file))
    assert refused.exit_code == 1
    assert "--packs (HOLDFAST_PACKS)" in one_line(refused.stderr)
    assert list(tmp_path.glob("acme.holdfast*")) == []
    done = run(place, "export", "--to", str(file), "--packs", place.packs)
    assert done.exit_code == 0, done.output
    import_tenant(str(tmp_path / "other.db"), file)
    with Holdfast(str(tmp_path / "other.db")) as hf:
        assert hf.tenant("acme").objects.get([place.digest]) == [LARGE]


def test_the_library_exports_what_lies_elsewhere(place: Place, tmp_path: Path) -> None:
    with pytest.raises(PackStorageMissing, match="packs= in Python"):
        export_tenant(place.database, "acme", tmp_path / "a")
    assert export_tenant(place.database, "acme", tmp_path / "a", packs=place.packs).rows["objects"] >= 1


def test_a_checkpoint_is_shown_with_what_lies_elsewhere(place: Place) -> None:
    refused = run(place, "checkpoints", "show", "--thread", "t")
    assert "--packs (HOLDFAST_PACKS)" in one_line(refused.stderr)
    done = run(place, "checkpoints", "show", "--thread", "t", HOLDFAST_PACKS=place.packs)
    assert done.exit_code == 0, done.output


def test_the_server_hands_out_what_lies_elsewhere(
    place: Place, tmp_path: Path, start: Callable[..., ServerProcess]
) -> None:
    config = tmp_path / "holdfast.toml"
    config.write_text(f'packs = "{place.packs}"\n')
    archive = f"/v1/tenants/acme/snapshots/{place.snapshot}/archive"
    for told in (["--packs", place.packs], ["--config", str(config)]):
        server = start("--database", place.database, *told)
        assert server.http.get(archive).status_code == 200
        assert server.http.get(f"/v1/tenants/acme/objects/{place.digest}").content == LARGE


def test_the_server_says_that_nobody_said_where_they_lie_and_asks_for_no_retry(
    place: Place, start: Callable[..., ServerProcess]
) -> None:
    server = start("--database", place.database)
    for path in (f"snapshots/{place.snapshot}/archive", f"objects/{place.digest}"):
        response = server.http.get(f"/v1/tenants/acme/{path}")
        problem = refused(response, 500, "PackStorageMissing")
        assert "--packs (HOLDFAST_PACKS)" in problem["detail"]
        assert "retry-after" not in response.headers
