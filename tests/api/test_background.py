"""What a server does beside answering: it removes what must go and carries out erasures, one leader among several processes."""

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
from holdfast.background import Background, Job
from holdfast.cli.commands import root
from tests.api.process import ServerProcess, command

PATIENCE_S = 60.0
R6 = ["event", "run_id", "checkpoint_id", "koder_user_id", "size_bytes", "reason"]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database of either engine."""
    found: str = request.getfixturevalue("postgres_url") if request.param == "postgres" else str(tmp_path / "b.db")
    return found


def until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def captured(acme: TenantHandle, tree: Path, count: int = 1) -> tuple[str, list[str]]:
    """A run with snapshots."""
    run = acme.runs.start(acme.sessions.create().id)
    tree.mkdir(exist_ok=True)
    made = []
    for number in range(count):
        (tree / "file").write_text(f"{number}")
        made.append(acme.workspaces.capture(run.id, tree).snapshot.id)
    return run.id, made


def deletions(log: str) -> list[dict[str, Any]]:
    """The lines of deletions, each a JSON object of its own."""
    found = [json.loads(line) for line in log.splitlines() if line.startswith('{"event":"checkpoint.deleted"')]
    assert all(list(each) == R6 for each in found)
    return found


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_server_removes_what_must_go_and_says_so_in_a_line_of_its_own(url: str, tmp_path: Path, form: str) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        run, made = captured(acme, tmp_path / "tree")
        acme.retention.set_policy(grace_s=0)
        acme.runs.cancel(run)
        server = ServerProcess(tmp_path, "--database", url, "--log-format", form, "--retention-every", "0.1")
        try:
            until(lambda: len(acme.snapshots.list()) == 0)
            until(lambda: deletions(server.log))
            assert [each["checkpoint_id"] for each in deletions(server.log)] == made
        finally:
            server.close()


def test_a_server_erases_who_is_named_in_the_stream_of_its_redis(url: str, tmp_path: Path, redis_url: str) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        captured(hf.tenant("u1"), tmp_path / "tree")
        hf.tenant("u2").sessions.create()
        with redis.Redis.from_url(redis_url) as stream:
            stream.xadd("koder:events:id", {"type": "identity.user.erased", "koder_user_id": "u1"})
        server = ServerProcess(tmp_path, "--database", url, REDIS_URL=redis_url)
        try:
            until(lambda: [each.id for each in hf.tenants.list()] == ["u2"])
            until(lambda: deletions(server.log))
            assert [each["reason"] for each in deletions(server.log)] == ["erasure"]
        finally:
            server.close()


def test_a_single_round_reads_the_stream_too_and_is_done_without_it(url: str, tmp_path: Path, redis_url: str) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        captured(hf.tenant("u1"), tmp_path / "tree")
        acme = hf.tenant("acme")
        run, made = captured(acme, tmp_path / "tree")
        acme.retention.set_policy(grace_s=0)
        acme.runs.cancel(run)
        done = command("retention", "run", "--database", url, REDIS_URL="redis://127.0.0.1:1/0")
        assert (done.returncode, [each["checkpoint_id"] for each in deletions(done.stderr)]) == (1, made)
        assert "the stream cannot be read" in done.stderr
        with redis.Redis.from_url(redis_url) as stream:
            stream.xadd("koder:events:id", {"type": "identity.user.erased", "koder_user_id": "u1"})
        done = command("retention", "run", "--database", url, REDIS_URL=redis_url)
        assert (done.returncode, [each["reason"] for each in deletions(done.stderr)]) == (0, ["erasure"])
        assert [each.id for each in hf.tenants.list()] == ["acme"]


def test_of_several_processes_one_leads_and_another_follows_when_it_stops(url: str) -> None:
    async def play() -> None:
        done: dict[str, int] = {"a": 0, "b": 0, "everybody": 0}
        moved = asyncio.Condition()

        def jobs(name: str) -> list[Job]:
            async def count(what: str) -> None:
                async with moved:
                    done[what] += 1
                    moved.notify_all()

            return [
                Job("leader's", 0.01, lambda: count(name)),
                Job("everybody's", 0.01, lambda: count("everybody"), leader_only=False),
            ]

        async def reached(what: Callable[[], bool]) -> None:
            async with asyncio.timeout(PATIENCE_S), moved:
                await moved.wait_for(what)

        clock = FixedClock()  # it stands still, so no lease lapses, however long the machine takes
        async with AsyncHoldfast(url, auto_migrate=True, clock=clock) as one, AsyncHoldfast(url, clock=clock) as other:
            both = {"a": Background(one, jobs("a"), lease_s=3), "b": Background(other, jobs("b"), lease_s=3)}
            for each in both.values():
                each.start()
            await reached(lambda: done["a"] + done["b"] > 2)
            (first, second) = ("a", "b") if done["a"] else ("b", "a")
            await reached(lambda: done["everybody"] > 20)
            assert (both[first].is_leader, both[second].is_leader, done[second]) == (True, False, 0)
            await both[first].stop()
            stopped = done[first]
            await reached(lambda: done[second] > 2)
            assert done[first] == stopped
            await both[second].stop()

    asyncio.run(play())


def test_a_lease_is_its_holders_until_it_lapses(url: str) -> None:
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
        assert not settings.lead("one", lease_s=60), "nobody gives up what another holds"
        settings.resign("other")
        assert settings.lead("one", lease_s=60)


def test_a_job_that_fails_is_done_again_and_keeps_no_other_from_its_turn(caplog: pytest.LogCaptureFixture) -> None:
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
            doing = Background(hf, [Job("bad", 0.01, bad), Job("good", 0.01, good)])
            doing.start()
            await asyncio.wait_for(enough.wait(), PATIENCE_S)
            await doing.stop()

    asyncio.run(play())
    assert "bad failed: OSError: nothing there" in caplog.text


def policy_of(url: str, *options: str) -> int:
    shown = CliRunner().invoke(root, ["retention", "policy", "--database", url, "--tenant", "acme", "--json", *options])
    assert shown.exit_code == 0, shown.output
    found: int = json.loads(shown.stdout)["policy"]["per_run"]
    return found


def test_what_one_command_is_told_to_keep_holds_for_every_other(url: str, tmp_path: Path) -> None:
    with Holdfast(url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        assert (acme.retention.policy().per_run, policy_of(url)) == (10, 10)
        assert policy_of(url, "--snapshots-per-run", "12") == 12
        _, made = captured(acme, tmp_path / "tree", 12)
        done = command("retention", "run", "--database", url)
        assert (done.returncode, deletions(done.stderr)) == (0, [])
        assert len(acme.snapshots.list()) == len(made) == 12, "no command goes by its own default"
        with Holdfast(url, limits=Limits(snapshots_per_run=2)) as other:
            assert other.tenant("acme").retention.policy().per_run == 12
        done = command("retention", "run", "--database", url, HOLDFAST_SNAPSHOTS_PER_RUN="11")
        assert [each["checkpoint_id"] for each in deletions(done.stderr)] == made[:1]
        acme.retention.set_policy(per_run=20)
        assert (policy_of(url), acme.retention.policy().per_run) == (20, 20), "a tenant's own policy wins"


@pytest.mark.parametrize("words", [["migrate", "up"], ["keys", "create", "--name", "x"]], ids=" ".join)
def test_commands_that_make_a_database_store_what_they_are_told_to_keep(tmp_path: Path, words: list[str]) -> None:
    url = str(tmp_path / "a.db")
    done = CliRunner().invoke(root, [*words, "--database", url, "--snapshots-per-run", "3"])
    assert (done.exit_code, policy_of(url)) == (0, 3), done.output


def test_the_former_option_and_variable_for_snapshots_per_run_are_accepted(tmp_path: Path) -> None:
    url = str(tmp_path / "a.db")
    Holdfast(url, auto_migrate=True).close()
    assert policy_of(url, "--checkpoint-retention-per-run", "3") == 3
    done = command("retention", "plan", "--database", url, "--tenant", "x", HOLDFAST_CHECKPOINT_RETENTION_PER_RUN="4")
    assert (done.returncode, policy_of(url)) == (0, 4), done.stderr


def test_a_capture_in_a_terminal_says_what_it_removed(tmp_path: Path) -> None:
    url, tree = str(tmp_path / "a.db"), tmp_path / "tree"
    with Holdfast(url) as hf:
        run, made = captured(hf.tenant("acme"), tree)
    (tree / "file").write_text("more")
    options = ["--database", url, "--tenant", "acme", "--run", run, "--snapshots-per-run", "1"]
    done = command("workspace", "capture", str(tree), *options)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert [each["checkpoint_id"] for each in deletions(line)] == made


def commands_with_a_database(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Parameter]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from commands_with_a_database(found, (*path, name))
        elif found is not None:
            for parameter in found.params:
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
    found = dict(commands_with_a_database(root))
    assert len(found) > 30
    for name, parameter in found.items():
        if name == "import bundle":
            continue  # its database is not needed to look at a file, and is asked for later
        value, _ = parameter.handle_parse_result(click.Context(click.Command(name)), {}, [])
        assert value == database, name
