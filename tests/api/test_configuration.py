"""Sources of options: the command line takes precedence over the environment, and the environment over the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.api import ServerLimits
from holdfast.cli.commands import root
from tests.api.process import ADMIN_KEY


class Started:
    """The arguments that ``holdfast serve`` would have started the server with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.options: dict[str, Any] = {}
        monkeypatch.setattr("holdfast.api.serve", lambda place, **options: self.options.update(options, place=place))
        monkeypatch.chdir(folder)
        for name in ("DATABASE_TYPE", "SQLITE_DATABASE_PATH", "POSTGRES_DATABASE_URL", "HOLDFAST_ADMIN_KEY"):
            monkeypatch.delenv(name, raising=False)

    def serve(self, *arguments: str, **environment: str) -> Result:
        self.options.clear()
        return CliRunner().invoke(root, ["serve", *arguments], env=environment)

    def place(self, *arguments: str, **environment: str) -> str:
        result = self.serve(*arguments, **environment)
        assert result.exit_code == 0, result.output
        return str(self.options["place"])


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    return Started(monkeypatch, tmp_path)


def test_the_default_database_is_one_file_in_the_data_directory(started: Started, tmp_path: Path) -> None:
    assert started.place() == str(tmp_path / "data" / "holdfast.db")
    assert (started.options["host"], started.options["port"], started.options["allow_remote"]) == (
        "127.0.0.1",
        8420,
        False,
    )
    assert started.options["limits"] == ServerLimits()
    assert started.options["access"].trusted == ()


def test_kagents_settings_are_supported(started: Started) -> None:
    url = "postgres://postgres:kagent@db:5432/crud"
    assert started.place(SQLITE_DATABASE_PATH="kagent.db") == "kagent.db"
    assert (
        started.place(DATABASE_TYPE="sqlite", SQLITE_DATABASE_PATH="kagent.db", POSTGRES_DATABASE_URL=url)
        == "kagent.db"
    )
    assert started.place(DATABASE_TYPE="postgres", POSTGRES_DATABASE_URL=url, SQLITE_DATABASE_PATH="kagent.db") == url
    assert started.place("--database-type", "postgres", "--postgres-database-url", url) == url
    assert started.place("--sqlite-database-path", "other.db", SQLITE_DATABASE_PATH="kagent.db") == "other.db"
    assert started.place("--database", "mine.db", DATABASE_TYPE="postgres", POSTGRES_DATABASE_URL=url) == "mine.db"
    missing = started.serve(DATABASE_TYPE="postgres")
    assert missing.exit_code == 2
    assert "POSTGRES_DATABASE_URL" in missing.output


def test_the_command_line_precedes_the_environment_and_the_environment_precedes_the_file(
    started: Started, tmp_path: Path
) -> None:
    (tmp_path / "h.toml").write_text('port = 1\nhost = "::1"\ndata-dir = "file"\nlog_level = "error"\n')
    started.place("--config", "h.toml", "--port", "3", HOLDFAST_PORT="2", HOLDFAST_DATA_DIR="environment")
    assert (started.options["port"], started.options["host"]) == (3, "::1")
    assert "environment" in started.options["place"]
    started.place(HOLDFAST_CONFIG="h.toml", HOLDFAST_PORT="2")
    assert started.options["port"] == 2


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("colour = 1", "unknown options: colour"),
        ("port = ", "cannot be read as TOML"),
        ("port = 'many'", "many"),
        ("[limits]\nspeed = 1", "unknown limit 'speed'"),
        ("[limits]\nkey_s = 'x'", "must be a number"),
        ("[limits]\nkey_s = -1", "cannot be negative"),
        ("trust = ['everywhere']", "address range"),
    ],
)
def test_an_invalid_file_is_refused(written: str, says: str, started: Started, tmp_path: Path) -> None:
    (tmp_path / "h.toml").write_text(written)
    failed = started.serve("--config", "h.toml")
    assert failed.exit_code in (1, 2)
    assert says in " ".join(failed.output.split())
    assert started.options == {}


def test_a_missing_file_is_named(started: Started) -> None:
    failed = started.serve("--config", "nowhere.toml")
    assert failed.exit_code == 2
    assert "nowhere.toml" in failed.output


def test_the_admin_key_is_read_from_a_file_or_the_environment_only(started: Started, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{ADMIN_KEY}\n")
    started.place("--admin-key-file", "key")
    assert started.options["admin_key"] == ADMIN_KEY
    started.place(HOLDFAST_ADMIN_KEY=ADMIN_KEY)
    assert started.options["admin_key"] == ADMIN_KEY
    started.place()
    assert started.options["admin_key"] is None
    refused = started.serve("--admin-key", ADMIN_KEY)
    assert refused.exit_code == 2
    assert ADMIN_KEY not in refused.output


def test_ranges_and_limits_can_be_repeated(started: Started) -> None:
    started.place("--trust", "10.0.0.0/8", "--trust", "fd00::/8", "--limit", "key_s=0.1", "--limit", "streams=5")
    assert [str(item) for item in started.options["access"].trusted] == ["10.0.0.0/8", "fd00::/8"]
    assert (started.options["limits"].key_s, started.options["limits"].streams) == (0.1, 5)
    started.place(HOLDFAST_TRUST="10.0.0.0/8 127.0.0.1", HOLDFAST_LIMITS="key_s=0.2")
    assert [str(item) for item in started.options["access"].trusted] == ["10.0.0.0/8", "127.0.0.1/32"]
    assert started.options["limits"].key_s == 0.2


def test_any_database_option_precedes_the_environment(started: Started) -> None:
    named = {"HOLDFAST_DATABASE_URL": "environment.db"}
    assert started.place("--sqlite-database-path", "line.db", **named) == "line.db"
    assert started.place("--sqlite-database-path", "line.db", "--database", "first.db", **named) == "first.db"
    assert started.place(**named, SQLITE_DATABASE_PATH="other.db") == "environment.db"


def test_a_single_trusted_range_need_not_be_a_list(started: Started, tmp_path: Path) -> None:
    (tmp_path / "h.toml").write_text('trust = "10.0.0.0/8"')
    started.place("--config", "h.toml")
    assert [str(item) for item in started.options["access"].trusted] == ["10.0.0.0/8"]
