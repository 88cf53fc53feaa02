"""What ``holdfast serve`` is told and listens on, what keys say of themselves, and what an error looks like in one line."""

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


def test_any_free_port_is_one_that_is_then_known() -> None:
    with bind("127.0.0.1", 0) as listening:
        host, port = listening.getsockname()
        assert port > 0
        assert address_of(listening) == f"http://{host}:{port}"
        with socket.create_connection((host, port), 5):
            pass


def test_an_address_of_the_newer_kind_stands_in_brackets() -> None:
    class Listening:
        def getsockname(self) -> tuple[str, int, int, int]:
            return "::1", 8420, 0, 0

    assert address_of(Listening()) == "http://[::1]:8420"  # type: ignore[arg-type]


def test_a_port_that_is_taken_is_named_and_free_again_once_it_is_let_go() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(Unavailable, match=rf"port {port} on 127.0.0.1 is in use: .* --port") as caught:
            bind("127.0.0.1", port)
        assert isinstance(caught.value.__cause__, OSError)
    bind("127.0.0.1", port).close()


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EADDRINUSE, "is in use"),
        (errno.EACCES, "Permission denied"),
        (errno.EADDRNOTAVAIL, "cannot listen on h port 7"),
    ],
)
def test_why_a_port_cannot_be_had_is_said(number: int, says: str) -> None:
    found = server._bind_error(OSError(number, os.strerror(number)), "h", 7)
    assert says in str(found)
    assert "7" in str(found)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1", "224.0.0.1"])
def test_an_address_that_others_can_reach_is_refused_with_what_to_say_instead(host: str) -> None:
    with pytest.raises(InvalidInput, match=r"--host 127\.0\.0\.1, or add --allow-remote"):
        bind(host, 0)


def test_an_address_that_others_can_reach_is_bound_when_that_is_wanted() -> None:
    with bind("0.0.0.0", 0, allow_remote=True) as listening:
        assert listening.getsockname()[0] == "0.0.0.0"


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(Unavailable, match=r"cannot listen on 192\.0\.2\.1 port"):
        bind("192.0.2.1", 0, allow_remote=True)


@pytest.mark.parametrize("host", ["a..b", "x" * 300, ".", "\udc80"])
def test_what_is_no_host_is_refused_by_name(host: str) -> None:
    with raises(InvalidInput, field="host"):
        bind(host, 0)


def test_nothing_is_left_open_by_a_port_that_could_not_be_had() -> None:
    with bind("127.0.0.1", 0) as first:
        before = _next_number()
        for _ in range(5):
            with pytest.raises(Unavailable):
                bind("127.0.0.1", first.getsockname()[1])
        assert _next_number() == before


def _next_number() -> int:
    """The number that the next file to be opened gets: the lowest that is free."""
    with socket.socket() as probe:
        return probe.fileno()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_the_orderly_end_and_afterwards_means_what_it_meant(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(server._Stopped), server._stopped_by_signals():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_the_server_s_own_log_is_silent_only_once_the_database_has_failed() -> None:
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


def test_a_server_that_may_not_listen_opens_no_database(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        server.serve(str(tmp_path / "a.db"), host="0.0.0.0", port=0)
    assert [*tmp_path.iterdir()] == []


# Options


class Started:
    """What ``holdfast serve`` would have been started with."""

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
def test_every_option_may_stand_in_the_file(written: str, option: str, value: Any, started: Started) -> None:
    done = started.file(written)
    assert done.exit_code == 0, done.output
    assert started.options[option] == value


def test_the_default_tenant_and_the_trusted_ranges_may_stand_in_the_file(started: Started) -> None:
    assert started.file("default-tenant = 'acme'\ntrust = ['10.0.0.0/8', '::1']").exit_code == 0
    access = started.options["access"]
    assert (access.tenant, [str(each) for each in access.trusted]) == ("acme", ["10.0.0.0/8", "::1/128"])


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (b"\xff\xfe", "cannot be read as TOML"),
        (b"host = 'a'\nhost = 'b'", "cannot be read as TOML"),
        (b"admin-key = 'x'", "admin_key, which is not an option"),
        (b"zeal = 1\ncolour = 2", "says colour, zeal,"),
        (b"port = 70000", "70000"),
        (b"port = -1", "-1"),
        (b"log-level = 'loud'", "loud"),
        (b"log-format = 'xml'", "xml"),
        (b"database-type = 'oracle'", "oracle"),
        (b"database-type = 'postgres'", "needs --postgres-database-url"),
        (b"limits = ['streams']", "is a whole number, not ''"),
        (b"snapshots-per-run = 0", "0 is not in the range"),
        (b"limits = ['streams=1.5']", "is a whole number, not '1.5'"),
        (b"limits = ['answer_s=0']", "the limit answer_s cannot be 0"),
        (b"limits = ['connections=0']", "the limit connections cannot be 0"),
        (b"config = 'other.toml'", "config, which is not an option"),
        (b"default-tenant = ['a']", "default_tenant is one value, not several"),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused_with_the_reason(
    written: bytes, says: str, started: Started
) -> None:
    (started.folder / "h.toml").write_bytes(written)
    failed = started.serve("--config", "h.toml")
    assert failed.exit_code == 2
    assert says in " ".join(failed.output.split())
    assert started.options == {}


def test_a_folder_is_no_file_of_options(started: Started) -> None:
    failed = started.serve("--config", str(started.folder))
    assert failed.exit_code == 2
    assert "is a directory" in failed.output


@pytest.mark.parametrize("limit", ServerLimits.__struct_fields__)
def test_every_limit_of_the_server_can_be_said_and_keeps_its_type(limit: str, started: Started) -> None:
    assert started.serve("--limit", f"{limit}=7").exit_code == 0
    found = getattr(started.options["limits"], limit)
    assert (found, type(found)) == (7, type(getattr(ServerLimits(), limit)))


def test_of_a_limit_that_is_said_twice_the_last_counts(started: Started) -> None:
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
def test_what_is_no_limit_is_refused(said: str, started: Started) -> None:
    failed = started.serve("--limit", said)
    assert failed.exit_code == 2
    assert "limit" in failed.output


def test_the_first_key_comes_from_the_file_before_the_environment_and_without_its_line_end(started: Started) -> None:
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


def test_the_data_folder_is_made_for_its_owner_only_and_one_that_is_there_stays_as_it_is(started: Started) -> None:
    (there := started.folder / "there").mkdir(mode=0o755)
    for name, mode in (("new", 0o700), ("there", 0o755)):
        assert started.serve("--data-dir", name).exit_code == 0
        assert started.options["place"] == str(started.folder / name / "holdfast.db")
        assert (started.folder / name).stat().st_mode & 0o777 == mode
    assert [each.name for each in there.iterdir()] == ["encryption.key"]
    assert started.serve("--data-dir", "unused", "--database", ":memory:").exit_code == 0
    assert not (started.folder / "unused").exists()


@pytest.mark.parametrize("key", [KEY, None])
def test_what_is_announced_shows_a_key_once_it_was_drawn_and_never_the_database_s_password(
    key: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_command._announce("http://127.0.0.1:1", "postgresql://ada:hunter2@db/agents", key)
    printed = capsys.readouterr().out
    assert "hunter2" not in printed
    assert "postgresql://db/agents" in printed
    assert printed.count(KEY) == (2 if key else 0)
    assert ("$HOLDFAST_KEY" in printed) is (key is None)


# Keys


def made(**given: Any) -> ApiKey:
    with Holdfast(":memory:") as hf:
        return hf.api_keys.create(new_api_key(), name="ci", **given)


def test_what_a_key_is_good_for_is_told_by_its_state() -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert keys_commands._state(made()) == "good"
    assert keys_commands._state(made(expires_at=tomorrow)) == f"good until {tomorrow:%Y-%m-%d %H:%M}"
    row = keys_commands._row(made(tenant="acme", scopes=["read", "runs:write"]))
    assert row[2:] == ["ci", "acme", "read runs:write", "never", "good"]
    assert keys_commands._row(made())[3] == "(all)"


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(root, [*arguments], env={"COLUMNS": "200", **environment})


def test_keys_may_be_asked_for_by_their_tenant_and_each_has_its_own(tmp_path: Path) -> None:
    database = str(tmp_path / "a.db")
    for name, tenant in (("one", "acme"), ("two", "zenith"), ("three", "")):
        done = run("keys", "create", "--name", name, HOLDFAST_DATABASE_URL=database, HOLDFAST_TENANT=tenant)
        assert (f"the tenant {tenant}" if tenant else "all tenants") in done.output
    shown = json.loads(run("keys", "list", "--database", database, "--tenant", "acme", "--json").output)["keys"]
    assert [each["name"] for each in shown] == ["one"]
    everyone = json.loads(run("keys", "list", "--database", database, "--json").output)["keys"]
    assert {each["name"] for each in everyone} == {"one", "two", "three"}
    assert all("key" not in each and "digest" not in each for each in everyone)


@pytest.mark.parametrize("days", ["0", "-1", "36501", "1.5", "soon"])
def test_days_that_no_key_can_be_good_for_are_refused_before_a_key_is_drawn(days: str, tmp_path: Path) -> None:
    done = run("keys", "create", "--database", str(tmp_path / "a.db"), "--name", "x", "--days", days)
    assert done.exit_code == 2
    assert "hf_" not in done.output
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("days", [1, keys_commands.MAX_DAYS])
def test_a_key_may_be_good_for_a_day_or_for_a_century(days: int, tmp_path: Path) -> None:
    database = str(tmp_path / "a.db")
    done = json.loads(
        run("keys", "create", "--database", database, "--name", "x", "--days", str(days), "--json").output
    )
    until = datetime.fromisoformat(done["kept"]["expires_at"])
    assert abs(until - datetime.now(UTC) - timedelta(days=days)) < timedelta(minutes=5)


# Errors and words


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
            MissingExtra("this needs redis: pip install 'holdfast[erasure]'"),
            "this needs redis: pip install 'holdfast[erasure]'",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_an_error_is_told_in_one_line(error: Exception, says: str) -> None:
    assert _in_one_line(error) == says


@pytest.mark.parametrize("error", [click.Abort(), click.UsageError("odd"), click.exceptions.Exit(3), NotFound("gone")])
def test_only_errors_that_click_does_not_know_are_wrapped(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(root.commands["version"], "callback", fails)
    done = CliRunner().invoke(root, ["version"])
    codes = {click.Abort: 1, click.UsageError: 2, click.exceptions.Exit: 3, NotFound: 1}
    assert done.exit_code == codes[type(error)]
    assert "unexpected" not in done.output


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("a\n b\t c", 9, "a b c"), ("", 5, ""), ("漢字漢字", 3, "漢字…")],
)
def test_a_text_is_shortened_to_one_line_of_that_length(text: str, most: int, shown: str) -> None:
    assert shorten(text, most) == shown
    assert len(shown) <= most


def test_a_server_keeps_as_many_snapshots_of_a_run_as_it_was_told(start: Callable[..., ServerProcess]) -> None:
    server = start("--snapshots-per-run", "3")
    where = "/v1/tenants/acme/retention/policy"
    assert server.http.get(where).json()["per_run"] == 3
    server.http.put(where, json={"per_run": 5}).raise_for_status()
    assert server.http.get(where).json()["per_run"] == 5, "a policy wins"


def test_an_address_that_only_a_header_claims_is_not_trusted(tmp_path: Path) -> None:
    """Whoever passes requests on may sit on this machine, and hand down whatever its callers wrote."""
    claimed = {"X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3", "X-Real-Ip": "10.1.2.3"}
    with ServerProcess(tmp_path, "--trust", "10.0.0.0/8", FORWARDED_ALLOW_IPS="*") as server:
        answer = httpx.get(f"{server.url}/v1/tenants/default/sessions", headers=claimed)
        assert (answer.status_code, answer.json()["type"]) == (401, "Forbidden")
