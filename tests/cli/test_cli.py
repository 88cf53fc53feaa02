"""The command line, mostly as a process."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import holdfast
from holdfast import Holdfast
from holdfast.cli.commands import root
from holdfast.cli.database import describe
from holdfast.engines.dialect import Dialect
from holdfast.extras import needs
from holdfast.migrations.files import migrations
from holdfast.schema import migrate_up, migration_sql, migration_status
from tests.api.process import command, one_line
from tests.cli.commands import commands

COMMANDS = list(commands(root))
LATEST = len(migrations(Dialect.SQLITE))
"""The newest migration."""


@pytest.mark.parametrize(("path", "documented"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_every_command_and_option_has_a_help_text(path: tuple[str, ...], documented: click.Command) -> None:
    assert documented.help, path
    for option in documented.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
        else:
            assert option.human_readable_name in documented.help, "the help of the command explains its arguments"
    result = CliRunner().invoke(root, [*path, "--help"])
    assert result.exit_code == 0
    assert documented.help.splitlines()[0][:40] in " ".join(result.output.split())


def test_version_prints_the_version_of_the_package() -> None:
    result = command("version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"holdfast {holdfast.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["serve", "--port", "many"],
        ["serve", "--port", "70000"],
        ["serve", "--colour", "red"],
        ["migrate", "sideways"],
        ["migrate", "up"],
        ["migrate", "up", "--database", "a.db", "--to", "-1"],
    ],
    ids=" ".join,
)
def test_a_usage_error_exits_with_2(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DATABASE_URL", raising=False)
    result = CliRunner().invoke(root, arguments)
    assert result.exit_code == 2
    assert "Error:" in result.stderr
    assert "Traceback" not in result.output


def test_migrations_are_applied_listed_and_reverted(tmp_path: Path) -> None:
    up = command("migrate", "up", "--database", "agents.db", cwd=tmp_path)
    assert (up.returncode, up.stderr) == (0, "")
    assert "0001" in up.stdout
    assert "conversation" in up.stdout
    again = command("migrate", "up", "--json", "--database", "agents.db", cwd=tmp_path)
    assert json.loads(again.stdout) == {"migrations": []}
    status = command("migrate", "status", "--json", cwd=tmp_path, HOLDFAST_DATABASE_URL="agents.db")
    migrations = json.loads(status.stdout)["migrations"]
    assert migrations[0] == {"version": 1, "name": "conversation", "applied": True}
    assert all(migration["applied"] for migration in migrations)
    down = command("migrate", "down", "--to", "0", "--yes", "--database", "agents.db", cwd=tmp_path)
    assert "not applied" in down.stdout
    assert [migration.applied for migration in migration_status(str(tmp_path / "agents.db"))] == [False] * len(
        migrations
    )


def test_a_schema_created_from_the_printed_sql_is_adopted(tmp_path: Path) -> None:
    printed = command("migrate", "print", "--engine", "sqlite", cwd=tmp_path)
    assert (printed.returncode, printed.stderr) == (0, "")
    connection = sqlite3.connect(tmp_path / "agents.db")
    connection.executescript(printed.stdout)
    connection.close()
    adopted = command("migrate", "adopt", "--json", "--database", "agents.db", cwd=tmp_path)
    assert [migration["applied"] for migration in json.loads(adopted.stdout)["migrations"]] == [True] * LATEST
    again = command("migrate", "adopt", "--database", "agents.db", cwd=tmp_path)
    assert again.stdout == "The schema is already recorded.\n"
    newest = CliRunner().invoke(root, ["migrate", "print", "--engine", "postgres", "--after", str(LATEST - 1)])
    assert newest.stdout == migration_sql("postgres", after=LATEST - 1)
    beyond = CliRunner().invoke(root, ["migrate", "print", "--engine", "postgres", "--after", "99"])
    assert (beyond.exit_code, "schema version 99 does not exist" in beyond.output) == (1, True)


def test_make_migrate_migrates_a_database_and_requires_its_address(tmp_path: Path) -> None:
    make = ["make", "--no-print-directory", "migrate"]
    root_folder = Path(__file__).parents[2]
    without = subprocess.run(make, cwd=root_folder, capture_output=True, text=True, check=False)
    assert (without.returncode, "make migrate DATABASE=postgresql://" in without.stdout) == (2, True)
    file = tmp_path / "agents.db"
    subprocess.run([*make, f"DATABASE={file}"], cwd=root_folder, capture_output=True, text=True, check=True)
    assert all(migration.applied for migration in migration_status(str(file)))


def test_postgres_is_migrated_only_explicitly(bare_postgres_url: str) -> None:
    result = CliRunner().invoke(root, ["migrate", "status", "--json", "--database", bare_postgres_url])
    assert [migration["applied"] for migration in json.loads(result.stdout)["migrations"]].count(True) == 0
    result = CliRunner().invoke(root, ["migrate", "up", "--database", bare_postgres_url])
    assert (result.exit_code, "applied" in result.stdout) == (0, True)
    with Holdfast(bare_postgres_url) as hf:
        hf.tenant("acme").sessions.create(user="ada")
    result = CliRunner().invoke(
        root, ["migrate", "down", "--to", "0", "--yes", "--json", "--database", bare_postgres_url]
    )
    undone = [migration["version"] for migration in json.loads(result.stdout)["migrations"]]
    assert undone == sorted(undone, reverse=True)
    assert undone[-1] == 1


def test_migrate_down_asks_for_confirmation(tmp_path: Path) -> None:
    file = str(tmp_path / "agents.db")
    migrate_up(file)
    result = CliRunner().invoke(root, ["migrate", "down", "--database", file], input="n\n")
    assert result.exit_code == 1
    newest = migration_status(file)[-1]
    assert f"{newest.version:04}_{newest.name}" in result.output
    assert newest.applied
    unanswered = command("migrate", "down", "--database", file)
    assert unanswered.returncode == 1
    assert all(migration.applied for migration in migration_status(file))


def test_migrate_down_without_a_version_reverts_only_the_newest(tmp_path: Path) -> None:
    file = str(tmp_path / "agents.db")
    count = len(migrate_up(file))
    result = CliRunner().invoke(root, ["migrate", "down", "--json", "--database", file], input="y\n")
    assert result.exit_code == 0
    assert [migration["version"] for migration in json.loads(result.stdout)["migrations"]] == [count]


def test_migrate_up_stops_at_the_given_version(tmp_path: Path) -> None:
    file = str(tmp_path / "agents.db")
    assert CliRunner().invoke(root, ["migrate", "up", "--to", "0", "--database", file]).exit_code == 0
    assert not any(migration.applied for migration in migration_status(file))


@pytest.mark.parametrize("verb", ["status", "down"])
def test_inspecting_a_missing_file_does_not_create_it(tmp_path: Path, verb: str) -> None:
    result = command("migrate", verb, "--database", "nope.db", cwd=tmp_path)
    assert result.returncode == 1
    assert "nope.db" in one_line(result.stderr)
    assert list(tmp_path.iterdir()) == []


def test_errors_are_one_line_with_exit_code_1(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"this is no database" * 100)
    (tmp_path / "file").write_text("")
    broken = [
        ["migrate", "up", "--database", str(garbage)],
        ["migrate", "status", "--database", str(garbage)],
        ["migrate", "up", "--database", "mysql://root@db/agents"],
        ["migrate", "up", "--database", "postgresql://ada:hunter2@localhost:1/agents"],
        ["migrate", "up", "--database", "no/such/folder/agents.db"],
        ["migrate", "down", "--to", "99", "--yes", "--database", str(tmp_path / "agents.db")],
        ["migrate", "distribute", "--database", str(tmp_path / "agents.db")],
        ["serve", "--port", "0", "--data-dir", str(tmp_path / "file" / "below")],
        ["serve", "--port", "0", "--database", str(garbage)],
        ["serve", "--port", "0", "--database", "postgresql://ada:hunter2@localhost:1/agents"],
        ["serve", "--port", "0", "--host", "no.such.host.invalid", "--database", ":memory:"],
    ]
    migrate_up(str(tmp_path / "agents.db"))
    for arguments in broken:
        result = CliRunner().invoke(root, arguments)
        assert result.exit_code == 1, arguments
        assert one_line(result.stderr).startswith("Error: ")
        assert "hunter2" not in result.output
        assert result.stdout == ""


def test_a_process_prints_the_same_errors(tmp_path: Path) -> None:
    (tmp_path / "garbage.db").write_bytes(b"this is no database" * 100)
    result = command("serve", "--port", "0", "--database", "garbage.db", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert one_line(result.stderr).startswith("Error: ")


def test_an_edited_or_newer_schema_is_refused(tmp_path: Path) -> None:
    import apsw

    file = str(tmp_path / "agents.db")
    migrate_up(file)
    connection = apsw.Connection(file)
    connection.execute("INSERT INTO schema_migrations VALUES (9999, 'tomorrow', 'x', 0)")
    connection.close()
    for verb in ["up", "status", "down"]:
        result = CliRunner().invoke(root, ["migrate", verb, "--database", file])
        assert result.exit_code == 1
        assert "9999_tomorrow" in one_line(result.stderr)


def test_an_unexpected_error_is_one_line_unless_debugging_is_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise ZeroDivisionError("of all\nthings")

    monkeypatch.setattr(root.commands["version"], "callback", fails)
    result = CliRunner().invoke(root, ["version"])
    assert result.exit_code == 1
    assert (
        one_line(result.stderr)
        == "Error: unexpected ZeroDivisionError: of all things (HOLDFAST_DEBUG=1 prints the traceback)"
    )
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        CliRunner().invoke(root, ["version"], catch_exceptions=False)


def test_a_missing_library_is_reported_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        with needs("postgres"):
            raise ModuleNotFoundError("No module named 'psycopg_pool'", name="psycopg_pool")

    monkeypatch.setattr(root.commands["version"], "callback", fails)
    result = CliRunner().invoke(root, ["version"])
    assert one_line(result.stderr) == "Error: psycopg_pool is not installed: pip install 'holdfast[postgres]'"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://ada:hunter2@db.example:5432/agents?password=hunter2", "postgresql://db.example:5432/agents"),
        ("postgresql:///agents", "postgresql:///agents"),
        ("sqlite:///agents.db?mode=ro", "sqlite:///agents.db"),
        ("agents.db", "agents.db"),
    ],
)
def test_the_description_of_a_database_contains_no_secrets(url: str, expected: str) -> None:
    assert describe(url) == expected


@pytest.mark.parametrize("mark", ["%", " ", "@", "#", "?", "/"])
@pytest.mark.parametrize("arguments", [("doctor",), ("serve", "--port", "0"), ("migrate", "up"), ("migrate", "status")])
def test_errors_never_contain_the_password_of_an_address(arguments: tuple[str, ...], mark: str, tmp_path: Path) -> None:
    url = f"postgresql://u:Sek{mark}ret9@127.0.0.1:1/db"
    result = CliRunner().invoke(root, [*arguments, "--database", url], env={"HOLDFAST_DATA_DIR": str(tmp_path)})
    assert result.exit_code == 1
    assert "percent-encode the password" in one_line(result.stderr)
    assert "Sek" not in result.output


@pytest.mark.parametrize("options", ["sslmode=Sekret9", "Sekret9=1", "host=/no/where&sslmode=Sekret9"])
def test_driver_messages_that_quote_an_address_are_not_printed(options: str) -> None:
    for arguments in (["doctor"], ["serve", "--port", "0"]):
        result = CliRunner().invoke(root, [*arguments, "--database", f"postgresql://u:p@127.0.0.1:1/db?{options}"])
        assert result.exit_code == 1
        assert "Sekret9" not in result.output


def test_commands_do_not_print_the_password_of_a_working_database(postgres_url: str) -> None:
    url = postgres_url.replace("postgres@", "postgres:Sek%23ret9@")
    result = CliRunner().invoke(root, ["doctor", "--database", url])
    assert result.exit_code == 0, result.output
    assert "Sek" not in result.output
