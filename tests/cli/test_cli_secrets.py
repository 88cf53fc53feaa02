"""``holdfast secrets``, and the key file that a server creates."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner

from holdfast import Holdfast, key_file
from holdfast.cli import serve
from holdfast.cli.commands import root
from holdfast.core.crypto import VARIABLE, KeyRing, Secret
from holdfast.core.encrypted_columns import EncryptedColumn
from holdfast.core.scope import Scope
from tests.api.process import ServerProcess, command
from tests.cli.test_cli_hostile_text import HOSTILE, RAW

OLD, NEW = "0" * 64, "1" * 64
TOKEN = EncryptedColumn("vault", "token")


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with one secret, encrypted with the key ``OLD``."""
    monkeypatch.setattr("holdfast.core.encrypted_columns._DECLARED", {})
    TOKEN.declare()
    database = str(tmp_path / "a.db")
    with Holdfast(database, encryption_key=OLD) as hf:
        ciphertext = TOKEN.encrypt(Scope("acme", hf._setting), "1", Secret("sk-1"))
    connection = apsw.Connection(database)
    connection.execute("CREATE TABLE vault (tenant_id TEXT, id TEXT, token TEXT)")
    connection.execute("INSERT INTO vault VALUES ('acme', '1', ?)", (ciphertext,))
    connection.close()
    return database


def rotate(database: str, *keys: str, expected: int = 0) -> str:
    result = CliRunner().invoke(
        root, ["secrets", "rotate", "--database", database], env={VARIABLE: ",".join(keys) or None}
    )
    assert result.exit_code == expected, result.output
    return result.output


def test_new_key_prints_only_the_key() -> None:
    result = command("secrets", "new-key")
    assert re.fullmatch(r"[0-9a-f]{64}\n", result.stdout)
    assert len(KeyRing(json.loads(command("secrets", "new-key", "--json").stdout)["key"]).key_ids) == 1


def test_a_rotation_is_reported_and_can_be_repeated(vault: str) -> None:
    new = KeyRing(NEW).key_ids[0]
    assert f"1 secrets were encrypted with key {new}." in rotate(vault, NEW, OLD)
    assert "0 secrets" in rotate(vault, NEW)
    result = json.loads(
        CliRunner().invoke(root, ["secrets", "rotate", "--database", vault, "--json"], env={VARIABLE: NEW}).output
    )
    assert result == {"key_id": new, "rotation": {"renewed": 0, "failed": 0, "failures": []}}


def test_a_missing_key_is_reported_with_the_row_and_the_key_id(vault: str) -> None:
    output = rotate(vault, NEW, expected=1)
    assert "acme: vault.token of 1" in output
    assert KeyRing(OLD).key_ids[0] in output
    assert "1 could not be decrypted" in output
    assert "sk-1" not in output


def test_control_characters_in_stored_names_are_escaped(vault: str) -> None:
    connection = apsw.Connection(vault)
    connection.execute("UPDATE vault SET tenant_id = ?, id = ?", (HOSTILE, HOSTILE))
    connection.close()
    output = rotate(vault, NEW, OLD, expected=1)
    assert "1 could not be decrypted" in output
    assert RAW.search(output) is None


def test_without_a_key_the_error_names_the_command_that_creates_one(vault: str) -> None:
    assert "holdfast secrets new-key" in rotate(vault, expected=1)


def test_the_key_file_next_to_a_database_is_used(vault: str) -> None:
    path = Path(vault).with_name(key_file.NAME)
    path.write_text(f"{NEW}\n{OLD}\n")
    path.chmod(0o600)
    assert KeyRing(NEW).key_ids[0] in rotate(vault)
    path.chmod(0o644)
    assert "chmod 600" in rotate(vault, expected=1)
    assert "0 secrets" in rotate(vault, NEW), "the environment comes first"


def test_a_server_creates_a_key_file_in_its_data_directory_once(tmp_path: Path) -> None:
    path = tmp_path / "data" / key_file.NAME
    with ServerProcess(tmp_path) as server:
        assert (
            f"encrypted with the key in data/{key_file.NAME}, which was just created: keep a copy of it"
            in server.printed
        )
        assert path.read_text().strip() not in server.printed + server.log
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = path.read_text()
    with ServerProcess(tmp_path) as server:
        assert f"encrypted with the key in data/{key_file.NAME}: keep a copy of it" in server.printed
    assert path.read_text() == written
    path.chmod(0o640)
    refused = command("serve", "--port", "0", cwd=tmp_path)
    assert (refused.returncode, "chmod 600" in refused.stderr) == (1, True)


def test_a_server_with_a_key_or_another_database_creates_no_key_file(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, **{VARIABLE: NEW}) as server:
        assert "encrypted" not in server.printed
    with ServerProcess(tmp_path, "--database", str(tmp_path / "data" / "other.db")) as server:
        assert "encrypted" not in server.printed
    assert not (tmp_path / "data" / key_file.NAME).exists()


def test_a_server_whose_data_directory_is_read_only_starts_and_reports_the_missing_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: str) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    notice = serve._key_notice(tmp_path)
    assert notice is not None
    assert notice.startswith("Secrets cannot be stored: no encryption key is configured, and ")
    assert "Read-only file system" in notice
