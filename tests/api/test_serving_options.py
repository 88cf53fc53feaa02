"""Options and sockets of ``holdfast serve``, output of key commands, and one-line error messages."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast, new_api_key
from holdfast.api import ServerLimits, server
from holdfast.api.server import address_of, bind
from holdfast.api.state import Service
from holdfast.background import BackgroundOptions
from holdfast.cli import keys as keys_commands
from holdfast.cli import serve as serve_command
from holdfast.cli.commands import _in_one_line, root
from holdfast.cli.output import shorten
from holdfast.errors import InvalidInput, MissingExtra, NotFound, Unavailable
from holdfast.types import ApiKey
from tests.api.process import ServerProcess
from tests.errors import raises

KEY = "hf_" + "0123456789abcdef" * 3


# Listening


def test_port_0_binds_a_free_port() -> None:
    with bind("127.0.0.1", 0) as listening:
        host, port = listening.getsockname()
        assert port > 0
        assert address_of(listening) == f"http://{host}:{port}"
        with socket.create_connection((host, port), 5):
            pass


def test_an_ipv6_address_is_printed_in_brackets() -> None:
    class Listening:
        def getsockname(self) -> tuple[str, int, int, int]:
            return "::1", 8420, 0, 0

    assert address_of(Listening()) == "http://[::1]:8420"  # type: ignore[arg-type]


def test_a_port_in_use_is_named_and_can_be_bound_after_its_release() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(Unavailable, match=rf"{port} .*127\.0\.0\.1.* --port") as caught:
            bind("127.0.0.1", port)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == errno.EADDRINUSE
    bind("127.0.0.1", port).close()


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EADDRINUSE, "is in use"),
        (errno.EACCES, "Permission denied"),
        (errno.EADDRNOTAVAIL, "cannot listen on h port 7"),
    ],
)
def test_the_reason_why_a_port_cannot_be_bound_is_named(number: int, says: str) -> None:
    result = server._bind_error(OSError(number, os.strerror(number)), "h", 7)
    assert says in str(result)
    assert "7" in str(result)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1", "224.0.0.1"])
def test_an_address_that_other_machines_can_reach_is_refused_with_alternatives(host: str) -> None:
    with raises(InvalidInput, field="host") as refused:
        bind(host, 0)
    assert "--host 127.0.0.1" in str(refused.value)
    assert "--allow-remote" in str(refused.value)


def test_an_address_that_other_machines_can_reach_is_bound_with_allow_remote() -> None:
    with bind("0.0.0.0", 0, allow_remote=True) as listening:
        assert listening.getsockname()[0] == "0.0.0.0"


def test_an_address_of_another_machine_cannot_be_bound() -> None:
    with pytest.raises(Unavailable, match=r"192\.0\.2\.1") as caught:
        bind("192.0.2.1", 0, allow_remote=True)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EADDRNOTAVAIL


@pytest.mark.parametrize("host", ["a..b", "x" * 300, ".", "\udc80"])
def test_an_invalid_host_is_refused(host: str) -> None:
    with raises(InvalidInput, field="host"):
        bind(host, 0)


def test_a_failed_bind_leaves_no_socket_open() -> None:
    with bind("127.0.0.1", 0) as first:
        before = _next_number()
        for _ in range(5):
            with pytest.raises(Unavailable):
                bind("127.0.0.1", first.getsockname()[1])
        assert _next_number() == before


def _next_number() -> int:
    """Return the file descriptor that the next open file gets: the lowest free one."""
    with socket.socket() as probe:
        return probe.fileno()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_serve_and_its_handler_is_restored_afterwards(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(server._Stopped), server._stopped_by_signals():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_uvicorns_log_is_silent_only_after_the_database_has_failed() -> None:
    service = Service(":memory:", ServerLimits())
    seen: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    server.log.addHandler(handler := Keep())
    try:
        with server._silent_after_failure(service):
            server.log.error("before")
            service.failure = NotFound("gone")
            server.log.error("after")
        server.log.error("later")
    finally:
        server.log.removeHandler(handler)
    assert seen == ["before", "later"]


def test_a_server_that_cannot_bind_opens_no_database(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        server.serve(str(tmp_path / "a.db"), host="0.0.0.0", port=0)
    assert [*tmp_path.iterdir()] == []


# Options


class Started:
    """The arguments that ``holdfast serve`` would have started the server with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.options: dict[str, Any] = {}
        self.folder = folder
        monkeypatch.setattr("holdfast.api.serve", lambda place, **options: self.options.update(options, place=place))
        monkeypatch.chdir(folder)
        monkeypatch.delenv("HOLDFAST_ADMIN_KEY", raising=False)

    def serve(self, *arguments: str, **environment: str) -> Result:
        self.options.clear()
        return CliRunner().invoke(root, ["serve", *arguments], env=environment)

    def file(self, written: str) -> Result:
        (self.folder / "h.toml").write_text(written, "utf-8")
        return self.serve("--config", "h.toml")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    return Started(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("written", "option", "value"),
    [
        ("host = '::1'", "host", "::1"),
        ("port = 9", "port", 9),
        ("migrate = true", "migrate", True),
        ("allow-remote = true", "allow_remote", True),
        ("allow_remote = true", "allow_remote", True),
        ("database = 'other.db'", "place", "other.db"),
        ("sqlite-database-path = 'kagent.db'", "place", "kagent.db"),
        ("database-type = 'postgres'\npostgres-database-url = 'postgresql:///k'", "place", "postgresql:///k"),
        ("[limits]\nstreams = 3", "limits", ServerLimits(streams=3)),
        ("limits = ['streams=3', 'key_s=0']", "limits", ServerLimits(streams=3, key_s=0.0)),
        ("", "limits", ServerLimits()),
        ("", "snapshots_per_run", None),
        ("snapshots-per-run = 3", "snapshots_per_run", 3),
        ("checkpoint-retention-per-run = 3", "snapshots_per_run", 3),
        ("", "background", BackgroundOptions()),
        ("retention-every = 60", "background", BackgroundOptions(retention_every_s=60.0)),
        ("redis = 'redis://r'\nstream = 's'", "background", BackgroundOptions(redis_url="redis://r", stream="s")),
        ("# only a remark: 漢\n", "port", 8420),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_every_option_can_be_set_in_the_file(written: str, option: str, value: Any, started: Started) -> None:
    result = started.file(written)
    assert result.exit_code == 0, result.output
    assert started.options[option] == value


def test_the_default_tenant_and_the_trusted_ranges_can_be_set_in_the_file(started: Started) -> None:
    assert started.file("default-tenant = 'acme'\ntrust = ['10.0.0.0/8', '::1']").exit_code == 0
    access = started.options["access"]
    assert (access.tenant, [str(item) for item in access.trusted]) == ("acme", ["10.0.0.0/8", "::1/128"])


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (b"\xff\xfe", "cannot be read as TOML"),
        (b"host = 'a'\nhost = 'b'", "cannot be read as TOML"),
        (b"admin-key = 'x'", "unknown options: admin_key"),
        (b"zeal = 1\ncolour = 2", "unknown options: colour, zeal;"),
        (b"port = 70000", "70000"),
        (b"port = -1", "-1"),
        (b"log-level = 'loud'", "loud"),
        (b"log-format = 'xml'", "xml"),
        (b"database-type = 'oracle'", "oracle"),
        (b"database-type = 'postgres'", "requires --postgres-database-url"),
        (b"limits = ['streams']", "must be a whole number, not ''"),
        (b"snapshots-per-run = 0", "0 is not in the range"),
        (b"limits = ['streams=1.5']", "must be a whole number, not '1.5'"),
        (b"limits = ['answer_s=0']", "limit answer_s cannot be 0"),
        (b"limits = ['connections=0']", "limit connections cannot be 0"),
        (b"config = 'other.toml'", "unknown options: config"),
        (b"default-tenant = ['a']", "default_tenant must be a single value"),
    ],
)
def test_an_invalid_file_is_refused_with_the_reason(written: bytes, says: str, started: Started) -> None:
    (started.folder / "h.toml").write_bytes(written)
    failed = started.serve("--config", "h.toml")
    assert failed.exit_code == 2
    assert says in " ".join(failed.output.split())
    assert started.options == {}


def test_a_directory_is_not_an_options_file(started: Started) -> None:
    failed = started.serve("--config", str(started.folder))
    assert failed.exit_code == 2
    assert "is a directory" in failed.output


@pytest.mark.parametrize("limit", ServerLimits.__struct_fields__)
def test_every_limit_of_the_server_can_be_set_and_keeps_its_type(limit: str, started: Started) -> None:
    assert started.serve("--limit", f"{limit}=7").exit_code == 0
    result = getattr(started.options["limits"], limit)
    assert (result, type(result)) == (7, type(getattr(ServerLimits(), limit)))


def test_the_last_value_of_a_repeated_limit_is_used(started: Started) -> None:
    assert started.serve("--limit", "streams=1", "--limit", "streams=2").exit_code == 0
    assert started.options["limits"].streams == 2


@pytest.mark.parametrize(
    "said",
    [
        "streams=nan",
        "streams=",
        "streams=1e3",
        "key_s=one",
        "=1",
        "Streams=1",
        "streams=-1",
        "key_s=nan",
        "key_s=inf",
        "key_s=-inf",
    ],
)
def test_an_invalid_limit_is_refused(said: str, started: Started) -> None:
    failed = started.serve("--limit", said)
    assert failed.exit_code == 2
    assert "limit" in failed.output


def test_the_admin_key_file_precedes_the_environment_and_its_newline_is_removed(started: Started) -> None:
    (started.folder / "key").write_text(f"  {KEY}\n")
    assert started.serve("--admin-key-file", "key", HOLDFAST_ADMIN_KEY="hf_other").exit_code == 0
    assert started.options["admin_key"] == KEY
    assert started.serve(HOLDFAST_ADMIN_KEY=KEY).exit_code == 0
    assert started.options["admin_key"] == KEY
    assert started.serve(HOLDFAST_ADMIN_KEY="").exit_code == 0
    assert started.options["admin_key"] is None
    missing = started.serve("--admin-key-file", "nowhere")
    assert missing.exit_code == 1
    assert missing.stderr == "Error: nowhere: No such file or directory\n"


def test_the_data_directory_is_created_for_its_owner_only_and_an_existing_one_stays_unchanged(started: Started) -> None:
    (current := started.folder / "there").mkdir(mode=0o755)
    for name, mode in (("new", 0o700), ("there", 0o755)):
        assert started.serve("--data-dir", name).exit_code == 0
        assert started.options["place"] == str(started.folder / name / "holdfast.db")
        assert (started.folder / name).stat().st_mode & 0o777 == mode
    assert [path.name for path in current.iterdir()] == ["encryption.key"]
    assert started.serve("--data-dir", "unused", "--database", ":memory:").exit_code == 0
    assert not (started.folder / "unused").exists()


@pytest.mark.parametrize("key", [KEY, None])
def test_the_start_message_shows_a_generated_key_and_never_the_databases_password(
    key: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_command._print_announcement("http://127.0.0.1:1", "postgresql://ada:hunter2@db/agents", key)
    printed = capsys.readouterr().out
    assert "hunter2" not in printed
    assert "postgresql://db/agents" in printed
    assert printed.count(KEY) == (2 if key else 0)
    assert ("$HOLDFAST_KEY" in printed) is (key is None)


# Keys


def made(**given: Any) -> ApiKey:
    with Holdfast(":memory:") as hf:
        return hf.api_keys.create(new_api_key(), name="ci", **given)


def test_the_state_of_a_key_is_shown() -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert keys_commands._state(made()) == "valid"
    assert keys_commands._state(made(expires_at=tomorrow)) == f"valid until {tomorrow:%Y-%m-%d %H:%M}"
    row = keys_commands._row(made(tenant="acme", scopes=["read", "runs:write"]))
    assert row[2:] == ["ci", "acme", "read runs:write", "never", "valid"]
    assert keys_commands._row(made())[3] == "(all)"


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(root, [*arguments], env={"COLUMNS": "200", **environment})


def test_keys_can_be_listed_by_tenant(tmp_path: Path) -> None:
    database = str(tmp_path / "a.db")
    for name, tenant in (("one", "acme"), ("two", "zenith"), ("three", "")):
        result = run("keys", "create", "--name", name, HOLDFAST_DATABASE_URL=database, HOLDFAST_TENANT=tenant)
        assert (f"the tenant {tenant}" if tenant else "all tenants") in result.output
    body = json.loads(run("keys", "list", "--database", database, "--tenant", "acme", "--json").output)["keys"]
    assert [row["name"] for row in body] == ["one"]
    everyone = json.loads(run("keys", "list", "--database", database, "--json").output)["keys"]
    assert {item["name"] for item in everyone} == {"one", "two", "three"}
    assert all("key" not in item and "digest" not in item for item in everyone)


@pytest.mark.parametrize("days", ["0", "-1", "36501", "1.5", "soon"])
def test_an_invalid_validity_is_refused_before_a_key_is_created(days: str, tmp_path: Path) -> None:
    result = run("keys", "create", "--database", str(tmp_path / "a.db"), "--name", "x", "--days", days)
    assert result.exit_code == 2
    assert "hf_" not in result.output
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("days", [1, keys_commands.MAX_DAYS])
def test_a_key_can_be_valid_for_a_day_or_a_century(days: int, tmp_path: Path) -> None:
    database = str(tmp_path / "a.db")
    result = json.loads(
        run("keys", "create", "--database", database, "--name", "x", "--days", str(days), "--json").output
    )
    until = datetime.fromisoformat(result["kept"]["expires_at"])
    assert abs(until - datetime.now(UTC) - timedelta(days=days)) < timedelta(minutes=5)


# Errors and messages


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NotFound("one\n  two\tthree"), "one two three"),
        (NotFound(""), NotFound.__doc__),
        (ValueError(""), "ValueError"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.db"), "a.db: No such file"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError("plain"), "plain"),
        (
            MissingExtra("redis is not installed: pip install 'holdfast[erasure]'"),
            "redis is not installed: pip install 'holdfast[erasure]'",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_an_error_is_shown_in_one_line(error: Exception, says: str) -> None:
    assert _in_one_line(error) == says


@pytest.mark.parametrize("error", [click.Abort(), click.UsageError("odd"), click.exceptions.Exit(3), NotFound("gone")])
def test_only_errors_unknown_to_click_are_wrapped(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(root.commands["version"], "callback", fails)
    result = CliRunner().invoke(root, ["version"])
    codes = {click.Abort: 1, click.UsageError: 2, click.exceptions.Exit: 3, NotFound: 1}
    assert result.exit_code == codes[type(error)]
    assert "unexpected" not in result.output


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("a\n b\t c", 9, "a b c"), ("", 5, ""), ("漢字漢字", 3, "漢字…")],
)
def test_a_text_is_shortened_to_one_line_of_this_length(text: str, most: int, shown: str) -> None:
    assert shorten(text, most) == shown
    assert len(shown) <= most


def test_a_server_stores_its_number_of_snapshots_per_run(start: Callable[..., ServerProcess]) -> None:
    server = start("--snapshots-per-run", "3")
    where = "/v1/tenants/acme/retention/policy"
    assert server.http.get(where).json()["per_run"] == 3
    server.http.put(where, json={"per_run": 5}).raise_for_status()
    assert server.http.get(where).json()["per_run"] == 5, "a policy takes precedence"


def test_an_address_in_a_forwarding_header_is_not_trusted(tmp_path: Path) -> None:
    """A proxy may be on this machine, and may pass on any header of its callers."""
    claimed = {"X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3", "X-Real-Ip": "10.1.2.3"}
    with ServerProcess(tmp_path, "--trust", "10.0.0.0/8", FORWARDED_ALLOW_IPS="*") as server:
        answer = httpx.get(f"{server.url}/v1/tenants/default/sessions", headers=claimed)
        assert (answer.status_code, answer.json()["type"]) == (401, "Forbidden")
