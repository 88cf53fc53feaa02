"""Forged bundles with a valid digest and invalid lines are refused, and nothing is changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from blake3 import blake3
from click.testing import CliRunner

from holdfast import Holdfast, NewAgent, NewMessage, bundle_format
from holdfast.bundle_format import FORMAT
from holdfast.bundles import Bundle, check_bundle, export_tenant, import_tenant
from holdfast.cli.commands import root
from holdfast.errors import (
    AlreadyExists,
    Corrupt,
    HoldfastError,
    InvalidInput,
    LimitExceeded,
    NotFound,
    SchemaMismatch,
    Unavailable,
)
from tests.errors import raises

Lines = list[Any]
Forgery = Callable[[Lines], Lines]


def lines_of(bundle: Path) -> Lines:
    """Return the lines of a bundle without the last one."""
    with zstandard.ZstdDecompressor().stream_reader(bundle.read_bytes()) as reader:
        return [json.loads(line) for line in reader.read().splitlines()[:-1]]


def raw(bundle: Path, data: bytes) -> None:
    bundle.write_bytes(zstandard.ZstdCompressor(level=1).compress(data))


def seal(bundle: Path, lines: Lines, **last: Any) -> None:
    """Write lines followed by a valid end, of which ``last`` overrides some fields."""
    rows: dict[str, int] = {}
    table = ""
    for line in lines[1:]:
        if isinstance(line, dict):
            table = line["table"]
            rows[table] = 0
        else:
            rows[table] = rows.get(table, 0) + 1
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    end = {"rows": rows, "digest": blake3(data).hexdigest(), **last}
    raw(bundle, data + json.dumps(end).encode() + b"\n")


def place_of(lines: Lines, table: str) -> int:
    return next(place for place, line in enumerate(lines) if isinstance(line, dict) and line.get("table") == table)


def changed(table: str, column: str, value: Any) -> Forgery:
    """Return a forgery that changes a value in the first row of a table."""

    def forge(lines: Lines) -> Lines:
        at = place_of(lines, table)
        lines[at + 1][lines[at]["columns"].index(column)] = value
        return lines

    return forge


def headed(**changes: Any) -> Forgery:
    return lambda lines: [{**lines[0], **changes}, *lines[1:]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a database and a bundle, created once; each test gets copies."""
    folder = tmp_path_factory.mktemp("made")
    with Holdfast(str(folder / "here.db")) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create(key="k", metadata={"n": 1})
        acme.messages.append_many(session.id, [NewMessage(role="user", content=f"m{number}") for number in range(3)])
        acme.objects.put([b"body" * 9], holder="me")
        hf.tenant("zenith").sessions.create(key="theirs")
    export_tenant(str(folder / "here.db"), "acme", folder / "acme.holdfast")
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path) -> str:
    return str(shutil.copy(made / "here.db", tmp_path))


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made / "acme.holdfast", tmp_path))


def tenants(place: str) -> list[str]:
    with Holdfast(place) as hf:
        return [tenant.id for tenant in hf.tenants.list()]


def test_a_bundle_sealed_again_without_changes_is_valid(bundle: Path, tmp_path: Path) -> None:
    before = check_bundle(bundle)
    seal(bundle, lines_of(bundle))
    assert check_bundle(bundle) == before
    assert import_tenant(str(tmp_path / "there.db"), bundle) == before


def test_the_header_describes_the_bundle_and_each_table_its_columns(bundle: Path) -> None:
    head, *rest = lines_of(bundle)
    assert (head["holdfast_bundle"], head["tenant"]) == (FORMAT, "acme")
    assert abs((datetime.now(UTC) - datetime.fromisoformat(head["created_at"])).total_seconds()) < 600
    tables = [line for line in rest if isinstance(line, dict)]
    assert tables[0]["table"] == "tenants", "parents come before children"
    assert all(len(table["columns"]) == len(table["types"]) for table in tables)
    assert {kind for table in tables for kind in table["types"]} == {"text", "integer", "real", "blob"}
    names = [table["table"] for table in tables]
    assert len(names) == len(set(names))
    assert not {"api_keys", "message_texts", "object_packs", "schema_migrations"} & set(names)


def test_rows_do_not_contain_the_tenant(bundle: Path) -> None:
    lines = lines_of(bundle)
    assert all("tenant_id" not in line["columns"] for line in lines[1:] if isinstance(line, dict))
    assert not any("zenith" in json.dumps(line) or "theirs" in json.dumps(line) for line in lines)


@pytest.mark.parametrize(
    "forge",
    [
        headed(holdfast_bundle=2),
        headed(holdfast_bundle="1"),
        headed(holdfast_bundle=None),
        headed(tenant=7),
        headed(tenant=None),
        headed(tenant=["acme"]),
        headed(schema=None),
        headed(schema="new"),
        headed(schema=[]),
        lambda lines: [7, *lines[1:]],
        lambda lines: ["text", *lines[1:]],
        lambda lines: [lines[0], ["a row before any table"], *lines[1:]],
        lambda lines: [{key: value for key, value in lines[0].items() if key != "tenant"}, *lines[1:]],
        lambda lines: [{key: value for key, value in lines[0].items() if key != "schema"}, *lines[1:]],
        lambda lines: [{key: value for key, value in lines[0].items() if key != "release"}, *lines[1:]],
    ],
    ids=["format", "format-text", "format-null", "tenant-number", "tenant-null", "tenant-list", "schema-null",
         "schema-text", "schema-list", "number-first", "text-first", "row-of-no-table", "no-tenant",
         "no-schema", "no-release"],
)  # fmt: skip
def test_a_malformed_header_or_order_is_corrupt(forge: Forgery, bundle: Path, tmp_path: Path) -> None:
    seal(bundle, forge(lines_of(bundle)))
    for call in (lambda: check_bundle(bundle), lambda: import_tenant(str(tmp_path / "there.db"), bundle)):
        with pytest.raises(Corrupt, match=r"acme\.holdfast") as refused:
            call()
        assert refused.value.__cause__ is not None
    assert not (tmp_path / "there.db").exists()


@pytest.mark.parametrize(
    "last",
    [{"rows": {}}, {"rows": None}, {"digest": ""}, {"digest": None}, {"digest": 7}, {"digest": "é" * 64}],
    ids=["no-rows", "rows-null", "empty", "null", "number", "not-ascii"],
)
def test_an_end_that_does_not_match_is_corrupt(last: dict[str, Any], bundle: Path) -> None:
    seal(bundle, lines_of(bundle), **last)
    with pytest.raises(Corrupt):
        check_bundle(bundle)


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"{}\n", b"[" * 50_000 + b"\n", b"\xff\xfe\n", b'{"holdfast_bundle":1}', b'{"holdfast_bundle":1}\n'],
    ids=["nothing", "empty-line", "no-head", "deep", "no-text", "cut-off", "no-end"],
)
def test_bytes_that_are_not_bundle_lines_are_corrupt(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x.holdfast"
    raw(file, data)
    with pytest.raises(Corrupt):
        check_bundle(file)
    file.write_bytes(data)
    with pytest.raises(Corrupt):
        check_bundle(file)


def test_a_directory_is_not_accepted_as_a_bundle(tmp_path: Path) -> None:
    with pytest.raises((OSError, HoldfastError)):
        check_bundle(tmp_path)


@pytest.mark.parametrize(
    ("forge", "error"),
    [
        (lambda lines: [*lines, {"table": "secrets", "columns": [], "types": []}], SchemaMismatch),
        (lambda lines: [*lines, {"table": "api_keys", "columns": ["id"], "types": ["text"]}], SchemaMismatch),
        (lambda lines: [*lines, {"table": "sqlite_master", "columns": ["sql"], "types": ["text"]}], SchemaMismatch),
        (changed("tenants", "created_at", None), HoldfastError),
        (changed("sessions", "created_at", None), HoldfastError),
    ],
    ids=["no-such-table", "keys", "the-schema", "nothing-where-a-time-is", "a-session-without-a-beginning"],
)
def test_rows_that_do_not_match_a_table_are_refused_and_nothing_is_imported(
    forge: Forgery, error: type[Exception], bundle: Path, tmp_path: Path
) -> None:
    seal(bundle, forge(lines_of(bundle)))
    target = str(tmp_path / "there.db")
    with pytest.raises(error):
        import_tenant(target, bundle)
    assert tenants(target) == []


@pytest.mark.parametrize("columns", [["id"], [], ["nothing"]], ids=["one", "none", "unknown"])
def test_a_table_with_other_columns_is_refused(columns: list[str], bundle: Path, tmp_path: Path) -> None:
    lines = lines_of(bundle)
    at = place_of(lines, "sessions")
    lines[at] = {**lines[at], "columns": columns}
    seal(bundle, lines)
    with pytest.raises(SchemaMismatch, match="'sessions'"):
        import_tenant(str(tmp_path / "there.db"), bundle)
    assert tenants(str(tmp_path / "there.db")) == []


@pytest.mark.parametrize("row", [[], [None], ["x"] * 500], ids=["empty", "short", "long"])
def test_a_row_with_a_wrong_number_of_columns_is_corrupt(row: list[Any], bundle: Path, tmp_path: Path) -> None:
    lines = lines_of(bundle)
    lines[place_of(lines, "messages") + 1] = row
    seal(bundle, lines)
    with pytest.raises(Corrupt, match=rf"messages\b.*\b{len(row)}\b"):
        import_tenant(str(tmp_path / "there.db"), bundle)
    assert tenants(str(tmp_path / "there.db")) == []


@pytest.mark.parametrize("value", ["plain text", "aes-gcm:AAAA"])
def test_a_bundle_with_a_secret_is_corrupt(value: str, bundle: Path, tmp_path: Path) -> None:
    lines = lines_of(bundle)
    at = place_of(lines, "config_secrets")
    assert lines[at]["columns"] == ["key", "value", "created_at", "updated_at"]
    seal(bundle, [*lines[: at + 1], ["openai", value, 1, 1], *lines[at + 1 :]])
    with pytest.raises(Corrupt, match=r"config_secrets\.value") as refused:
        import_tenant(str(tmp_path / "there.db"), bundle)
    assert value not in str(refused.value)
    assert tenants(str(tmp_path / "there.db")) == []


def test_rows_are_not_imported_into_an_existing_tenant(here: str, bundle: Path) -> None:
    lines = lines_of(bundle)
    at = place_of(lines, "tenants")
    seal(bundle, [*lines[:at], *lines[at + 2 :]])  # a bundle without the row of the tenant
    with raises(AlreadyExists, noun="tenant", key="zenith"):
        import_tenant(here, bundle, tenant="zenith")
    with Holdfast(here) as hf:
        assert [session.key for session in hf.tenant("zenith").sessions.list()] == ["theirs"]


@pytest.mark.parametrize(
    ("name", "error"), [("", InvalidInput), (7, InvalidInput), ("x" * 256, LimitExceeded)], ids=["", "number", "long"]
)
def test_the_new_name_of_a_tenant_must_be_valid(
    name: Any, error: type[Exception], bundle: Path, tmp_path: Path
) -> None:
    with raises(error, field="tenant"):
        import_tenant(str(tmp_path / "there.db"), bundle, tenant=name)


@pytest.mark.parametrize("name", ["a\x00b\ud800", "漢字", "x" * 255], ids=["nul", "kanji", "255"])
def test_any_valid_tenant_name_is_exported_and_imported(name: str, tmp_path: Path) -> None:
    here, target, file = str(tmp_path / "a.db"), str(tmp_path / "b.db"), tmp_path / "x.holdfast"
    with Holdfast(here) as hf:
        hf.tenant(name).agents.create(NewAgent(name, display_name="Ada"))
    assert export_tenant(here, name, file).tenant == name
    assert import_tenant(target, file).tenant == name
    with Holdfast(target) as hf:
        assert hf.tenant(name).agents.get(name).display_name == "Ada"


def test_an_empty_tenant_is_one_row(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db")) as hf:
        hf.tenants.create("empty")
    bundle = export_tenant(str(tmp_path / "a.db"), "empty", tmp_path / "x")
    assert {name: count for name, count in bundle.rows.items() if count} == {"tenants": 1}
    assert isinstance(bundle, Bundle)


@pytest.mark.parametrize("count", [500, 501])
def test_progress_counts_rows_at_the_boundary_of_a_page(count: int, tmp_path: Path) -> None:
    here, progress = str(tmp_path / "a.db"), list[tuple[str, int]]()
    with Holdfast(here) as hf:
        session = hf.tenant("acme").sessions.create(key="k")
        new = [NewMessage(role="user", content=str(number)) for number in range(count)]
        hf.tenant("acme").messages.append_many(session.id, new)
    export_tenant(here, "acme", tmp_path / "x", on_progress=lambda table, rows: progress.append((table, rows)))
    parts = [rows for table, rows in progress if table == "messages"]
    assert parts == [*range(500, count, 500), count]
    progress.clear()
    import_tenant(
        str(tmp_path / "b.db"), tmp_path / "x", on_progress=lambda table, rows: progress.append((table, rows))
    )
    assert [rows for table, rows in progress if table == "messages"][-1] == count
    with Holdfast(str(tmp_path / "b.db")) as hf:
        contents = [message.content for message in hf.tenant("acme").messages.list(session.id)]
    assert contents == [[{"type": "text", "text": str(number)}] for number in range(count)]


def test_an_export_from_a_missing_database_creates_no_file(tmp_path: Path) -> None:
    with pytest.raises((NotFound, Unavailable)):
        export_tenant(f"sqlite:///{tmp_path}/absent.db?mode=ro", "acme", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_an_export_follows_no_symlink_and_is_readable_by_its_owner_only(here: str, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (folder / "x.part").symlink_to(victim)
    before = os.umask(0)
    try:
        export_tenant(here, "acme", folder / "x")
    finally:
        os.umask(before)
    assert check_bundle(folder / "x").tenant == "acme"
    assert (folder / "x").stat().st_mode & 0o777 == 0o600
    assert victim.read_bytes() == b"precious"
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    with raises(InvalidInput, field="path"):
        export_tenant(here, "acme", folder / "dangling")
    assert sorted(path.name for path in folder.iterdir()) == ["dangling", "x", "x.part"]


HEAD = b'{"holdfast_bundle":1,"tenant":"acme","release":"1","schema":1}\n'
BOMBS: dict[str, tuple[bytes, bytes, int]] = {
    "rows of nothing": (b'{"table":"messages","columns":[],"types":[]}\n', b"[]\n", 20_000_000),
    "one endless line": (b"[", b" ", 60_000_000),
    "tables": (b"", b'{"table":"messages"}\n', 3_000_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_decompression_bomb_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    file = tmp_path / "bomb.holdfast"
    begins, part, count = BOMBS[name]
    file.write_bytes(zstandard.ZstdCompressor(level=3).compress(HEAD + begins + part * count))
    assert file.stat().st_size < 20_000
    decoded = 0
    real = msgspec.json.decode

    def counted(data: bytes) -> object:
        nonlocal decoded
        decoded += len(data) + 1
        return real(data)

    monkeypatch.setattr(msgspec.json, "decode", counted)
    for call in (lambda: check_bundle(file), lambda: import_tenant(str(tmp_path / "there.db"), file)):
        with raises(LimitExceeded, limit="bundle_ratio", maximum=200):
            call()
    assert decoded <= 2 * (bundle_format.FREE_BYTES + bundle_format.RATIO * file.stat().st_size)
    assert not (tmp_path / "there.db").exists()


def test_a_tenant_with_extremely_compressible_data_is_exported_and_imported(here: str, tmp_path: Path) -> None:
    with Holdfast(here) as hf:
        session = hf.tenant("acme").sessions.create()
        for _ in range(40):
            hf.tenant("acme").messages.append(session.id, role="user", content="x" * 1_000_000)
    bundle = tmp_path / "large.holdfast"
    export_tenant(here, "acme", bundle)
    assert bundle.stat().st_size < 1_000_000
    import_tenant(str(tmp_path / "there.db"), bundle)
    with Holdfast(str(tmp_path / "there.db")) as hf:
        assert hf.tenant("acme").messages.count(session.id) == 40


def test_the_same_bundle_may_be_imported_under_many_names(bundle: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "there.db")
    for name in ("one", "two", "three"):
        import_tenant(target, bundle, tenant=name)
    with Holdfast(target) as hf:
        session_ids = [hf.tenant(name).sessions.list()[0].id for name in ("one", "two", "three")]
        assert len(set(session_ids)) == 1, "ids are preserved"
        hf.tenant("one").sessions.delete(session_ids[0])
        assert hf.tenant("two").messages.count(session_ids[0]) == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["export", "--tenant", "acme"], "--to"),
        (["export", "--to", "x"], "--tenant"),
        (["import", "bundle"], "--from"),
        (["import", "bundle", "--from", "absent"], "file absent does not exist"),
        (["export", "--tenant", "missing", "--to", "x"], "missing"),
    ],
    ids=["no-file", "no-tenant", "no-source", "absent", "missing"],
)
def test_the_command_line_names_the_missing_argument_or_file(
    arguments: list[str], says: str, here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(root, [*arguments, "--database", here], env={"COLUMNS": "200"})
    assert result.exit_code in (1, 2)
    assert says in result.output
    assert not Path("x").exists()
