"""Exports and imports of a tenant: complete, atomic, and between engines."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
import zstandard
from click.testing import CliRunner

from holdfast import Holdfast, NewAgent, NewMessage, NewToolCall, TenantHandle, bundle_format, new_api_key
from holdfast.bundles import check_bundle, export_tenant, import_tenant
from holdfast.cli.commands import root
from holdfast.core.encrypted_columns import EncryptedColumn
from holdfast.errors import AlreadyExists, Corrupt, InvalidInput, NotFound, SchemaMismatch
from tests.errors import raises

LARGE = random.Random(7).randbytes(400_000)
"""Large enough to be stored in a pack."""


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either engine."""
    return str(tmp_path / "there.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def fill(acme: TenantHandle) -> dict[str, str]:
    """Create a few rows of every kind, with unusual text."""
    session = acme.sessions.create(key="k", user="a\x00d\ud800a", metadata={"n": 1.5, "deep": [None, True, "\x00"]})
    acme.messages.append_many(
        session.id, [NewMessage(role="user", content=f"message {number}") for number in range(600)]
    )
    acme.branches.fork(session.id, at=300, label="other")
    message = acme.messages.last(session.id, 1)[0]
    acme.feedback.create(message.id, is_positive=True, user="ada")
    acme.agents.create(NewAgent("helper", display_name="Helper", tags=["all"]))
    acme.blocks.set("helper", "persona", "kind")
    run = acme.runs.start(session.id, agent="helper")
    claimed = acme.leases.claim("w", run_id=run.id)
    assert claimed is not None
    acme.tool_calls.intend(
        run.id, epoch=claimed.epoch, calls=[NewToolCall(id="c", tool_name="mail", tool_input={"a": 1})]
    )
    acme.runs.step(run.id, epoch=claimed.epoch, iteration=1, state={"n": 1})
    acme.checkpoints.put("t", id="c1", state=b"\x00\xff", pieces=[b"piece", LARGE])
    (digest,) = acme.objects.put([LARGE], holder="test")
    acme.flows.save("f", method="begin", state={"n": 1})
    acme.contacts.upsert("telegram", "7", display_name="Ada")
    acme.activity.record("report.sent", actor="ada")
    return {"session": session.id, "run": run.id, "digest": digest}


def seen(acme: TenantHandle, ids: dict[str, str]) -> list[Any]:
    """Return the data of a tenant."""
    return [
        acme.sessions.get(ids["session"]),
        list(acme.messages.list(ids["session"])),
        list(acme.branches.list(ids["session"])),
        list(acme.feedback.list()),
        acme.agents.get("helper"),
        list(acme.blocks.list("helper")),
        acme.runs.load(ids["run"]),
        list(acme.steps.list(ids["run"])),
        msgspec.structs.replace(acme.checkpoints.history("t")[0], stamp="", positions=[]),
        list(acme.objects.get([ids["digest"]])),
        list(acme.flows.history("f")),
        list(acme.contacts.list()),
        list(acme.activity.list()),
    ]


def test_an_export_is_imported_on_either_engine_and_back(empty_database: str, tmp_path: Path) -> None:
    here, first, second = str(tmp_path / "here.db"), tmp_path / "first.holdfast", tmp_path / "second.holdfast"
    with Holdfast(here) as hf:
        ids = fill(hf.tenant("acme"))
        fill(hf.tenant("zenith"))
        expected = seen(hf.tenant("acme"), ids)
        assert hf.tenant("acme").objects.usage().count > 0
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 390_000], (
        "the object is in a pack"
    )
    bundle = export_tenant(here, "acme", first)
    assert (bundle.tenant, bundle.rows["messages"], bundle.rows["tenants"]) == ("acme", 600, 1)
    assert import_tenant(empty_database, first) == bundle
    with Holdfast(empty_database) as hf:
        assert seen(hf.tenant("acme"), ids) == expected
        assert [tenant.id for tenant in hf.tenants.list()] == ["acme"]
        (hit,) = hf.tenant("acme").messages.search('"message 599"')
        assert hit.message.seq == 600
        claimed = hf.tenant("acme").runs.get(ids["run"])
        assert claimed.epoch == 1
        hf.tenant("acme").messages.append(ids["session"], role="user", content="more")
    assert export_tenant(empty_database, "acme", second).rows["messages"] == 601
    import_tenant(here, second, tenant="back again")
    with Holdfast(here) as hf:
        assert hf.tenant("back again").messages.count(ids["session"]) == 601
        assert seen(hf.tenant("acme"), ids) == expected, "the other tenant is unchanged"


def test_an_existing_tenant_is_not_changed_and_api_keys_are_not_exported(empty_database: str, tmp_path: Path) -> None:
    key = new_api_key()
    with Holdfast(empty_database) as hf:
        hf.tenant("acme").sessions.create(key="mine")
        hf.api_keys.create(key, name="k", tenant="acme")
    export_tenant(empty_database, "acme", tmp_path / "a.holdfast")
    with raises(AlreadyExists, noun="tenant", key="acme"):
        import_tenant(empty_database, tmp_path / "a.holdfast")
    import_tenant(empty_database, tmp_path / "a.holdfast", tenant="copy")
    with Holdfast(empty_database) as hf:
        assert [session.key for session in hf.tenant("copy").sessions.list()] == ["mine"]
        assert [api_key.tenant for api_key in hf.api_keys.list()] == ["acme"]


def test_a_bundle_contains_no_secrets(empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.encrypted_columns._DECLARED", {})
    EncryptedColumn("contacts", "avatar_url").declare()
    with Holdfast(empty_database) as hf:
        hf.tenant("acme").contacts.upsert(
            "telegram", "7", avatar_url="stored before a key was configured", username="ada"
        )
    export_tenant(empty_database, "acme", tmp_path / "a.holdfast")
    lines = bundle_format.read(tmp_path / "a.holdfast")
    (row,) = [line for line in lines if isinstance(line, list) and "telegram" in line]
    assert "ada" in row
    assert "stored before a key was configured" not in row


@pytest.mark.parametrize("where", ["pack", "row"])
def test_a_damaged_body_is_not_exported(where: str, tmp_path: Path) -> None:
    here = tmp_path / "here.db"
    with Holdfast(str(here)) as hf:
        digests = hf.tenant("acme").objects.put([LARGE, LARGE[:2_000]], holder="test")
    if where == "pack":
        (pack,) = (path for path in tmp_path.rglob("*") if path.is_file() and 390_000 < path.stat().st_size < 500_000)
        content = bytearray(pack.read_bytes())
        content[len(content) // 2] ^= 1
        pack.write_bytes(content)
    else:
        raw = apsw.Connection(str(here))
        raw.execute("UPDATE objects SET body = zeroblob(length(body)) WHERE pack IS NULL")
        raw.close()
    with pytest.raises(Corrupt, match=digests[where != "pack"]):
        export_tenant(str(here), "acme", tmp_path / "acme.holdfast")
    assert not (tmp_path / "acme.holdfast").exists()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    with Holdfast(str(tmp_path / "here.db")) as hf:
        fill(hf.tenant("acme"))
    export_tenant(str(tmp_path / "here.db"), "acme", tmp_path / "acme.holdfast")
    return tmp_path / "acme.holdfast"


def lines_of(bundle: Path) -> list[bytes]:
    return zstandard.ZstdDecompressor().stream_reader(bundle.read_bytes()).read().splitlines()


def write(bundle: Path, lines: list[bytes]) -> None:
    bundle.write_bytes(zstandard.ZstdCompressor().compress(b"".join(line + b"\n" for line in lines)))


def with_another_message(lines: list[bytes]) -> list[bytes]:
    """Change the text of one line, which remains valid JSON."""
    (number,) = [number for number, line in enumerate(lines) if b"message 517" in line]
    return [*lines[:number], lines[number].replace(b"message 517", b"message 518"), *lines[number + 1 :]]


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: lines[:-1],
        lambda lines: lines[1:],
        lambda lines: [*lines[:50], *lines[51:]],
        lambda lines: [*lines, b"[]"],
        with_another_message,
        lambda lines: [b'{"holdfast_bundle":2}', *lines[1:]],
        lambda lines: [b"not json", *lines],
        lambda lines: [],
    ],
)
def test_a_modified_bundle_is_refused_and_changes_nothing(
    damage: Callable[[list[bytes]], list[bytes]], bundle: Path, tmp_path: Path
) -> None:
    check_bundle(bundle)
    write(bundle, damage(lines_of(bundle)))
    place = str(tmp_path / "there.db")
    for call in (lambda: check_bundle(bundle), lambda: import_tenant(place, bundle)):
        with pytest.raises(Corrupt):
            call()
    assert not Path(place).exists()


def test_flipped_bits_are_detected(bundle: Path) -> None:
    """Except for the few bits that do not affect decompression: the lines are then the same, byte for byte."""
    data, lines = bytearray(bundle.read_bytes()), lines_of(bundle)
    noticed = 0
    for place in range(0, len(data), max(1, len(data) // 60)):
        data[place] ^= 0x10
        bundle.write_bytes(data)
        try:
            check_bundle(bundle)
        except Corrupt:
            noticed += 1
        else:
            assert lines_of(bundle) == lines
        data[place] ^= 0x10
    assert noticed > 55
    bundle.write_bytes(data)
    check_bundle(bundle)


def test_a_bundle_of_another_schema_names_the_release_to_use(bundle: Path, tmp_path: Path) -> None:
    from blake3 import blake3

    head, *rest, last = lines_of(bundle)
    header = {**json.loads(head), "schema": 9999}
    lines = [json.dumps(header).encode(), *rest]
    digest = blake3(b"".join(line + b"\n" for line in lines)).hexdigest()
    write(bundle, [*lines, json.dumps({**json.loads(last), "digest": digest}).encode()])
    with pytest.raises(SchemaMismatch, match=re.escape(header["release"])):
        import_tenant(str(tmp_path / "there.db"), bundle)


def test_a_failed_export_leaves_no_file(tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(tmp_path / "here.db")
    with pytest.raises(NotFound):
        export_tenant(here, "missing", tmp_path / "x")
    with raises(InvalidInput, field="path"):
        export_tenant(here, "acme", bundle)
    with raises(NotFound, noun="file"):
        check_bundle(tmp_path / "x")

    def fail(table: str, count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_tenant(here, "acme", tmp_path / "x", on_progress=fail)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("x")]


def test_an_interrupted_import_leaves_nothing(empty_database: str, bundle: Path) -> None:
    def fail(table: str, count: int) -> None:
        if table == "run_steps":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_tenant(empty_database, bundle, on_progress=fail)
    with Holdfast(empty_database) as hf:
        assert hf.tenants.list() == []
    import_tenant(empty_database, bundle)


def test_export_and_import_commands(tmp_path: Path) -> None:
    here, file, other = str(tmp_path / "here.db"), str(tmp_path / "acme.holdfast"), str(tmp_path / "other.db")
    with Holdfast(here) as hf:
        fill(hf.tenant("acme"))

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(root, [*arguments], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())  # a title is wrapped at the width of the table

    assert "messages" in run("export", "--database", here, "--tenant", "acme", "--to", file)
    assert Path(file).stat().st_mode & 0o777 == 0o600
    assert "is complete and contains tenant acme" in run("import", "bundle", "--from", file, "--check")
    assert not Path(other).exists()
    output = json.loads(run("import", "bundle", "--database", other, "--from", file, "--as", "new", "--json"))
    assert output["bundle"]["rows"]["messages"] == 600
    assert output["bundle"]["tenant"] == "new", "the name in the target database"
    assert "Imported tenant third" in run(
        "import", "bundle", "--database", str(tmp_path / "third.db"), "--from", file, "--as", "third"
    )
    nowhere = CliRunner().invoke(root, ["import", "bundle", "--from", file])
    assert (nowhere.exit_code, "--database" in nowhere.output) == (2, True)
    with Holdfast(other) as hf:
        assert [tenant.id for tenant in hf.tenants.list()] == ["new"]
    failed = CliRunner().invoke(root, ["import", "bundle", "--database", other, "--from", here])
    assert (failed.exit_code, here in failed.output) == (1, True)


def test_the_error_describes_the_damage(bundle: Path, tmp_path: Path) -> None:
    whole = zstandard.ZstdDecompressor().decompressobj().decompress(bundle.read_bytes())
    lines = whole.splitlines(keepends=True)
    descriptions = set()
    for content, cause in (
        (b"{}\n", ValueError),
        (b"no\n", msgspec.DecodeError),
        (b"".join(lines[:-1]), ValueError),
        (whole[:-5], ValueError),
        (b"".join([*lines[:3], *lines[4:]]), ValueError),
        (whole + b"{}\n", ValueError),
        (lines[0] + b"[1]\n", KeyError),
    ):
        file = tmp_path / "damaged"
        file.write_bytes(zstandard.ZstdCompressor().compress(content))
        with pytest.raises(Corrupt) as caught:
            check_bundle(file)
        assert isinstance(caught.value.__cause__, cause)
        descriptions.add(str(caught.value))
    assert len(descriptions) == 7, "each kind of damage has its own description"
