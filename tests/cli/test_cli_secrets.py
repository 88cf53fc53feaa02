"""``holdfast secrets``, and the key that a server makes for itself."""

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
    """A database with one secret, and one that no key can decrypt."""
    monkeypatch.setattr("holdfast.core.encrypted_columns._DECLARED", {})
    TOKEN.declare()
    database = str(tmp_path / "a.db")
    with Holdfast(database, encryption_key=OLD) as hf:
        stored = TOKEN.encrypt(Scope("acme", hf._setting), "1", Secret("sk-1"))
    connection = apsw.Connection(database)
    connection.execute("CREATE TABLE vault (tenant_id TEXT, id TEXT, token TEXT)")
    connection.execute("INSERT INTO vault VALUES ('acme', '1', ?)", (stored,))
    connection.close()
    return database


def rotate(database: str, *keys: str, expected: int = 0) -> str:
    done = CliRunner().invoke(
        root, ["secrets", "rotate", "--database", database], env={VARIABLE: ",".join(keys) or None}
    )
    assert done.exit_code == expected, done.output
    return done.output


def test_a_new_key_is_printed_alone_so_that_a_shell_can_take_it() -> None:
    done = command("secrets", "new-key")
    assert re.fullmatch(r"[0-9a-f]{64}\n", done.stdout)
    assert len(KeyRing(json.loads(command("secrets", "new-key", "--json").stdout)["key"]).key_ids) == 1


def test_rotating_says_what_was_done_and_can_be_repeated(vault: str) -> None:
    new = KeyRing(NEW).key_ids[0]
    assert f"1 secrets are encrypted with the key {new} now." in rotate(vault, NEW, OLD)
    assert "0 secrets" in rotate(vault, NEW)
    found = json.loads(
        CliRunner().invoke(root, ["secrets", "rotate", "--database", vault, "--json"], env={VARIABLE: NEW}).output
    )
    assert found == {"key_id": new, "rotation": {"renewed": 0, "failed": 0, "failures": []}}


def test_a_key_that_is_missing_is_an_error_that_names_the_value_and_the_key(vault: str) -> None:
    said = rotate(vault, NEW, expected=1)
    assert "acme: vault.token of 1" in said
    assert KeyRing(OLD).key_ids[0] in said
    assert "1 could not be decrypted" in said
    assert "sk-1" not in said


def test_nothing_stored_steers_the_terminal(vault: str) -> None:
    connection = apsw.Connection(vault)
    connection.execute("UPDATE vault SET tenant_id = ?, id = ?", (HOSTILE, HOSTILE))
    connection.close()
    said = rotate(vault, NEW, OLD, expected=1)
    assert "1 could not be decrypted" in said
    assert RAW.search(said) is None


def test_without_any_key_the_error_says_how_to_make_one(vault: str) -> None:
    assert "holdfast secrets new-key" in rotate(vault, expected=1)


def test_the_key_file_beside_a_database_is_found(vault: str) -> None:
    path = Path(vault).with_name(key_file.NAME)
    path.write_text(f"{NEW}\n{OLD}\n")
    path.chmod(0o600)
    assert KeyRing(NEW).key_ids[0] in rotate(vault)
    path.chmod(0o644)
    assert "chmod 600" in rotate(vault, expected=1)
    assert "0 secrets" in rotate(vault, NEW), "the environment comes first"


def test_a_server_makes_a_key_in_its_data_folder_once_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "data" / key_file.NAME
    with ServerProcess(tmp_path) as server:
        assert f"encrypted with the key in data/{key_file.NAME}, made now: keep a copy of it" in server.printed
        assert path.read_text().strip() not in server.printed + server.log
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = path.read_text()
    with ServerProcess(tmp_path) as server:
        assert f"encrypted with the key in data/{key_file.NAME}: keep a copy of it" in server.printed
    assert path.read_text() == written
    path.chmod(0o640)
    refused = command("serve", "--port", "0", cwd=tmp_path)
    assert (refused.returncode, "chmod 600" in refused.stderr) == (1, True)


def test_a_server_with_a_key_of_its_own_or_another_database_makes_none(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, **{VARIABLE: NEW}) as server:
        assert "encrypted" not in server.printed
    with ServerProcess(tmp_path, "--database", str(tmp_path / "data" / "other.db")) as server:
        assert "encrypted" not in server.printed
    assert not (tmp_path / "data" / key_file.NAME).exists()


def test_a_server_whose_data_folder_cannot_be_written_starts_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: str) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    words = serve._key_words(tmp_path)
    assert words is not None
    assert words.startswith("Secrets cannot be stored: there is no encryption key, and ")
    assert "Read-only file system" in words
