"""Background jobs of a server: retention sweeps and erasures, run by one leader among several processes."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import redis
from click.testing import CliRunner

from holdfast import AsyncHoldfast, FixedClock, Holdfast, Limits, TenantHandle
from holdfast.background import Background, PeriodicJob
from holdfast.cli.commands import root
from tests.api.process import ServerProcess, command

PATIENCE_S = 60.0
R6 = ["event", "run_id", "checkpoint_id", "koder_user_id", "size_bytes", "reason"]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database on either engine."""
    result: str = request.getfixturevalue("postgres_url") if request.param == "postgres" else str(tmp_path / "b.db")
    return result


def wait_until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def capture_run(acme: TenantHandle, tree: Path, count: int = 1) -> tuple[str, list[str]]:
    """Create a run with snapshots."""
    run = acme.runs.start(acme.sessions.create().id)
    tree.mkdir(exist_ok=True)
    made = []
    for number in range(count):
        (tree / "file").write_text(f"{number}")
        made.append(acme.workspaces.capture(run.id, tree).snapshot.id)
    return run.id, made


def deletions(log: str) -> list[dict[str, Any]]:
    """Return the log lines of deletions, each a JSON object."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith('{"event":"checkpoint.deleted"')]
    assert all(list(row) == R6 for row in lines)
    return lines


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_server_deletes_old_snapshots_and_logs_each_in_a_line(url: str, tmp_path: Path, form: str) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        run, made = capture_run(acme, tmp_path / "tree")
        acme.retention.set_policy(grace_s=0)
        acme.runs.cancel(run)
        server = ServerProcess(tmp_path, "--database", url, "--log-format", form, "--retention-every", "0.1")
        try:
            wait_until(lambda: len(acme.snapshots.list()) == 0)
            wait_until(lambda: deletions(server.log))
            assert [line["checkpoint_id"] for line in deletions(server.log)] == made
        finally:
            server.close()


def test_a_server_erases_tenants_named_in_its_redis_stream(url: str, tmp_path: Path, redis_url: str) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        capture_run(hf.tenant("u1"), tmp_path / "tree")
        hf.tenant("u2").sessions.create()
        with redis.Redis.from_url(redis_url) as stream:
            stream.xadd("koder:events:id", {"type": "identity.user.erased", "koder_user_id": "u1"})
        server = ServerProcess(tmp_path, "--database", url, REDIS_URL=redis_url)
        try:
            wait_until(lambda: [tenant.id for tenant in hf.tenants.list()] == ["u2"])
            wait_until(lambda: deletions(server.log))
            assert [line["reason"] for line in deletions(server.log)] == ["erasure"]
        finally:
            server.close()


def test_a_single_round_reads_the_stream_and_also_works_without_redis(url: str, tmp_path: Path, redis_url: str) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        capture_run(hf.tenant("u1"), tmp_path / "tree")
        acme = hf.tenant("acme")
        run, made = capture_run(acme, tmp_path / "tree")
        acme.retention.set_policy(grace_s=0)
        acme.runs.cancel(run)
        result = command("retention", "run", "--database", url, REDIS_URL="redis://127.0.0.1:1/0")
        assert (result.returncode, [line["checkpoint_id"] for line in deletions(result.stderr)]) == (1, made)
        assert "the stream of erasures cannot be read" in result.stderr
        with redis.Redis.from_url(redis_url) as stream:
            stream.xadd("koder:events:id", {"type": "identity.user.erased", "koder_user_id": "u1"})
        result = command("retention", "run", "--database", url, REDIS_URL=redis_url)
        assert (result.returncode, [line["reason"] for line in deletions(result.stderr)]) == (0, ["erasure"])
        assert [tenant.id for tenant in hf.tenants.list()] == ["acme"]


def test_one_of_several_processes_leads_and_another_takes_over_when_it_stops(url: str) -> None:
    async def play() -> None:
        by_name: dict[str, int] = {"a": 0, "b": 0, "everybody": 0}
        moved = asyncio.Condition()

        def jobs(name: str) -> list[PeriodicJob]:
            async def count(what: str) -> None:
                async with moved:
                    by_name[what] += 1
                    moved.notify_all()

            return [
                PeriodicJob("leader's", 0.01, lambda: count(name)),
                PeriodicJob("everybody's", 0.01, lambda: count("everybody"), leader_only=False),
            ]

        async def reached(what: Callable[[], bool]) -> None:
            async with asyncio.timeout(PATIENCE_S), moved:
                await moved.wait_for(what)

        clock = FixedClock()  # the clock stands still, so no lease expires, however slow the machine is
        async with AsyncHoldfast(url, auto_migrate=True, clock=clock) as one, AsyncHoldfast(url, clock=clock) as other:
            both = {"a": Background(one, jobs("a"), lease_s=3), "b": Background(other, jobs("b"), lease_s=3)}
            for value in both.values():
                value.start()
            await reached(lambda: by_name["a"] + by_name["b"] > 2)
            (first, second) = ("a", "b") if by_name["a"] else ("b", "a")
            await reached(lambda: by_name["everybody"] > 20)
            assert (both[first].is_leader, both[second].is_leader, by_name[second]) == (True, False, 0)
            await both[first].stop()
            stopped = by_name[first]
            await reached(lambda: by_name[second] > 2)
            assert by_name[first] == stopped
            await both[second].stop()

    asyncio.run(play())


def test_a_lease_belongs_to_its_holder_until_it_expires(url: str) -> None:
    clock = FixedClock()
    with Holdfast(url, auto_migrate=True, clock=clock) as hf:
        settings = hf.server_settings
        assert settings.lead("one", lease_s=60)
        assert not settings.lead("other", lease_s=60)
        clock.advance(50)
        assert settings.lead("one", lease_s=60)
        clock.advance(59)
        assert not settings.lead("other", lease_s=60)
        clock.advance(1)
        assert settings.lead("other", lease_s=60)
        assert not settings.lead("one", lease_s=60)
        settings.resign("one")
        assert not settings.lead("one", lease_s=60), "only the holder can release a lease"
        settings.resign("other")
        assert settings.lead("one", lease_s=60)


def test_a_failing_job_is_retried_and_does_not_delay_others(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        turns, enough = {"bad": 0, "good": 0}, asyncio.Event()

        async def bad() -> None:
            turns["bad"] += 1
            raise OSError("nothing there")

        async def good() -> None:
            turns["good"] += 1
            if min(turns.values()) >= 3:
                enough.set()

        async with AsyncHoldfast(":memory:") as hf:
            doing = Background(hf, [PeriodicJob("bad", 0.01, bad), PeriodicJob("good", 0.01, good)])
            doing.start()
            await asyncio.wait_for(enough.wait(), PATIENCE_S)
            await doing.stop()

    asyncio.run(play())
    assert "bad failed: OSError: nothing there" in caplog.text


def policy_of(url: str, *options: str) -> int:
    body = CliRunner().invoke(root, ["retention", "policy", "--database", url, "--tenant", "acme", "--json", *options])
    assert body.exit_code == 0, body.output
    answer: int = json.loads(body.stdout)["policy"]["per_run"]
    return answer


def test_a_retention_setting_of_one_command_applies_to_all_others(url: str, tmp_path: Path) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        assert (acme.retention.policy().per_run, policy_of(url)) == (10, 10)
        assert policy_of(url, "--snapshots-per-run", "12") == 12
        _, made = capture_run(acme, tmp_path / "tree", 12)
        result = command("retention", "run", "--database", url)
        assert (result.returncode, deletions(result.stderr)) == (0, [])
        assert len(acme.snapshots.list()) == len(made) == 12, "commands have no defaults of their own"
        with Holdfast(url, limits=Limits(snapshots_per_run=2)) as other:
            assert other.tenant("acme").retention.policy().per_run == 12
        result = command("retention", "run", "--database", url, HOLDFAST_SNAPSHOTS_PER_RUN="11")
        assert [line["checkpoint_id"] for line in deletions(result.stderr)] == made[:1]
        acme.retention.set_policy(per_run=20)
        assert (policy_of(url), acme.retention.policy().per_run) == (20, 20), "a tenant's own policy takes precedence"


@pytest.mark.parametrize("words", [["migrate", "up"], ["keys", "create", "--name", "x"]], ids=" ".join)
def test_commands_that_create_a_database_store_their_retention_setting(tmp_path: Path, words: list[str]) -> None:
    url = str(tmp_path / "a.db")
    result = CliRunner().invoke(root, [*words, "--database", url, "--snapshots-per-run", "3"])
    assert (result.exit_code, policy_of(url)) == (0, 3), result.output


def test_the_former_option_and_variable_for_snapshots_per_run_are_accepted(tmp_path: Path) -> None:
    url = str(tmp_path / "a.db")
    Holdfast(url, auto_migrate=True).close()
    assert policy_of(url, "--checkpoint-retention-per-run", "3") == 3
    result = command("retention", "plan", "--database", url, "--tenant", "x", HOLDFAST_CHECKPOINT_RETENTION_PER_RUN="4")
    assert (result.returncode, policy_of(url)) == (0, 4), result.stderr


def test_a_capture_on_the_command_line_prints_what_it_deleted(tmp_path: Path) -> None:
    url, tree = str(tmp_path / "a.db"), tmp_path / "tree"
    with Holdfast(url) as hf:
        run, made = capture_run(hf.tenant("acme"), tree)
    (tree / "file").write_text("more")
    options = ["--database", url, "--tenant", "acme", "--run", run, "--snapshots-per-run", "1"]
    result = command("workspace", "capture", str(tree), *options)
    assert result.returncode == 0, result.stderr
    (line,) = result.stderr.splitlines()
    assert [one_line["checkpoint_id"] for one_line in deletions(line)] == made


def commands_with_a_database(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Parameter]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        result = group.get_command(context, name)
        if isinstance(result, click.Group):
            yield from commands_with_a_database(result, (*path, name))
        elif result is not None:
            for parameter in result.params:
                if parameter.name == "database" and (*path, name) != ("serve",):
                    yield " ".join((*path, name)), parameter


@pytest.mark.parametrize(
    ("environment", "database"),
    [
        ({"HOLDFAST_DATABASE_URL": "/a.db", "DATABASE_TYPE": "sqlite", "SQLITE_DATABASE_PATH": "/b.db"}, "/a.db"),
        ({"SQLITE_DATABASE_PATH": "/b.db"}, "/b.db"),
        ({"DATABASE_TYPE": "postgres", "POSTGRES_DATABASE_URL": "postgresql://k", "SQLITE_DATABASE_PATH": "/b"}, "postgresql://k"),
        ({"HOLDFAST_DATA_DIR": "/data"}, "/data/holdfast.db"),
    ],
    ids=["ours", "sqlite", "postgres", "folder"],
)  # fmt: skip
def test_every_command_finds_its_database_by_the_same_variables(
    environment: dict[str, str], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*os.environ]:
        if "DATABASE" in name or name.startswith("HOLDFAST_"):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert isinstance(root, click.Group)
    result = dict(commands_with_a_database(root))
    assert len(result) > 30
    for name, parameter in result.items():
        if name == "import bundle":
            continue  # a file is checked before its database is required
        value, _ = parameter.handle_parse_result(click.Context(click.Command(name)), {}, [])
        assert value == database, name
