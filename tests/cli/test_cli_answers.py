"""Edge cases of commands: invalid arguments, missing objects, objects of other tenants, repeated commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from holdfast import Holdfast, NewToolCall
from holdfast.cli.commands import root
from tests.api.process import one_line

MISSING_ID = "01900000-0000-7000-8000-000000000000"
KEY_THAT_IS_A_UUID = "01900000-0000-7000-8000-00000000000a"


class Setup(NamedTuple):
    """A database in which a tenant has sessions, a waiting run, checkpoints and a snapshot."""

    database: str
    session: str
    run: str
    snapshot: str
    tree: Path


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """A database for tests that change nothing."""
    return make(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def own(tmp_path: Path) -> Setup:
    """A database that the test may change."""
    return make(tmp_path)


def make(folder: Path) -> Setup:
    tree = folder / "tree"
    tree.mkdir()
    (tree / "a").write_bytes(b"1")
    with Holdfast(str(folder / "agents.db"), durability="normal") as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create(key="talk", agent="helper")
        acme.sessions.create(key=KEY_THAT_IS_A_UUID)
        acme.messages.append(session.id, role="user", content="where is the parcel")
        run = acme.leases.claim("w1", run_id=acme.runs.start(session.id).id)
        assert run is not None
        calls = [NewToolCall(id=name, tool_name="pay", safety="ask", hold=True) for name in ("first", "second")]
        acme.tool_calls.intend(run.id, epoch=run.epoch, calls=calls)
        acme.runs.pause(run.id, epoch=run.epoch)
        for thread in ("one", "two"):
            for number in (1, 2):
                acme.checkpoints.put(thread, id=f"{thread}-{number}", state=b"x", pieces=[])
        snapshot = acme.workspaces.capture(run.id, tree, step=0).snapshot
    return Setup(str(folder / "agents.db"), session.id, run.id, snapshot.id, tree)


def call(setup: Setup, *arguments: str, tenant: str = "acme", input: str | None = None) -> Result:
    """Run a command in this process."""
    env = {"HOLDFAST_DATABASE_URL": setup.database, "HOLDFAST_TENANT": tenant, "COLUMNS": "200"}
    return CliRunner().invoke(root, arguments, env=env, input=input, catch_exceptions=False)


def output_of(setup: Setup, *arguments: str, **how: Any) -> str:
    result = call(setup, *arguments, **how)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def json_of(setup: Setup, *arguments: str, **how: Any) -> Any:
    return json.loads(output_of(setup, *arguments, "--json", **how))


def error_of(setup: Setup, *arguments: str, **how: Any) -> str:
    result = call(setup, *arguments, **how)
    assert (result.exit_code, result.stdout) == (1, "")
    return one_line(result.stderr)


# ------------------------------------------------------------------------------------------------------ not understood


@pytest.mark.parametrize(
    "arguments",
    [
        ["sessions", "list", "--limit", "0"],
        ["sessions", "list", "--limit", "1001"],
        ["sessions", "show"],
        ["sessions", "show", "--session", "talk", "--last", "0"],
        ["sessions", "fork", "--session", "talk", "--at", "-1"],
        ["sessions", "compact", "--session", "talk", "--target", "0"],
        ["sessions", "search"],
        ["runs", "list", "--status", "asleep"],
        ["runs", "show", "--run", MISSING_ID, "--last", "many"],
        ["runs", "resume"],
        ["checkpoints", "prune"],
        ["checkpoints", "prune", "--thread", "one", "--keep", "-1"],
        ["checkpoints", "show"],
        ["workspace", "rewind", "--run", MISSING_ID, "."],
        ["workspace", "rewind", "--run", MISSING_ID, ".", "--to", "-1"],
        ["workspace", "capture", "--run", MISSING_ID, "no/such/folder"],
        ["workspace", "import", "--run", MISSING_ID, "no-such-file"],
        ["workspace", "restore", "@1"],
        ["sim", "--seed", "-1"],
        ["sim", "--minutes", "-1"],
        ["worker"],
        ["worker", "--handler", "json:dumps", "--concurrency", "0"],
        ["worker", "--handler", "json:dumps", "--lease", "901"],
        ["worker", "--handler", "json:dumps", "--grace", "-1"],
        ["import", "langgraph"],
    ],
    ids=" ".join,
)
def test_a_usage_error_exits_with_2_and_prints_the_usage(setup: Setup, arguments: Sequence[str]) -> None:
    result = call(setup, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage:" in result.stderr
    assert "Error:" in result.stderr


@pytest.mark.parametrize("group", ["sessions", "runs", "checkpoints", "workspace"])
@pytest.mark.parametrize("missing", ["HOLDFAST_TENANT", "HOLDFAST_DATABASE_URL"])
def test_the_tenant_and_the_database_are_required(setup: Setup, group: str, missing: str) -> None:
    env: dict[str, str | None] = {"HOLDFAST_DATABASE_URL": setup.database, "HOLDFAST_TENANT": "acme", missing: None}
    result = CliRunner().invoke(root, [group, "list"], env=env)
    assert result.exit_code == 2
    assert missing in result.stderr


def test_options_take_precedence_over_the_environment(setup: Setup) -> None:
    assert json_of(setup, "runs", "list", "--tenant", "zenith") == {"runs": [], "next": None}


# ------------------------------------------------------------------------------------------------------ of other tenants, missing


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["sessions", "list"], "sessions"),
        (["sessions", "search", "--query", "parcel"], "hits"),
        (["runs", "list"], "runs"),
        (["checkpoints", "list"], "checkpoints"),
        (["workspace", "list"], "snapshots"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_tenant_sees_only_its_own_data(setup: Setup, arguments: Sequence[str], key: str) -> None:
    assert json_of(setup, *arguments)[key] != []
    assert json_of(setup, *arguments, tenant="zenith")[key] == []


@pytest.mark.parametrize("tenant", ["acme", "zenith"])
def test_an_object_of_another_tenant_looks_like_a_missing_one(setup: Setup, tenant: str) -> None:
    run, session, snapshot = (MISSING_ID,) * 3 if tenant == "acme" else (setup.run, setup.session, setup.snapshot)
    for arguments, message in (
        (["sessions", "show", "--session", session], session),
        (["sessions", "fork", "--session", session], session),
        (["sessions", "rollback", "--session", session], session),
        (["runs", "show", "--run", run], run),
        (["runs", "resume", "--run", run], run),
        (["runs", "cancel", "--run", run], run),
        (["workspace", "capture", "--run", run, str(setup.tree)], run),
        (["workspace", "restore", snapshot, str(setup.tree)], snapshot),
        (["workspace", "diff", snapshot, snapshot], snapshot),
        (["checkpoints", "show", "--thread", "none"], "'none'"),
    ):
        assert message in error_of(setup, *arguments, tenant=tenant)


def test_a_session_key_that_looks_like_an_id_is_found(setup: Setup) -> None:
    assert json_of(setup, "sessions", "show", "--session", KEY_THAT_IS_A_UUID)["session"]["key"] == KEY_THAT_IS_A_UUID


@pytest.mark.parametrize("step", ["@", "@-1", "@1.0", "@²", "@ 1"])
def test_an_invalid_step_is_refused(setup: Setup, step: str) -> None:
    message = error_of(setup, "workspace", "diff", "--run", setup.run, step, "@0")
    assert f"{step} is not a step" in message


def test_a_snapshot_does_not_differ_from_itself(setup: Setup) -> None:
    assert output_of(setup, "workspace", "diff", "--run", setup.run, "@0", setup.snapshot) == ""


# ------------------------------------------------------------------------------------------------------------ sessions


def test_a_fork_starts_after_the_last_message_by_default(own: Setup) -> None:
    branch = json_of(own, "sessions", "fork", "--session", "talk")["branch"]
    assert (branch["number"], branch["forked_after"], branch["parent"]) == (1, 1, 0)
    again = output_of(own, "sessions", "fork", "--session", "talk")
    assert again == "Branch 2 starts after message 1 of branch 0.\n"


def test_a_summary_is_read_from_standard_input(own: Setup) -> None:
    with Holdfast(own.database) as hf:
        for _ in range(4):
            hf.tenant("acme").messages.append(own.session, role="user", content="why " * 300)
    small = ("--target", "500", "--keep-last", "1", "--protect", "0")
    output = output_of(
        own, "sessions", "compact", "--session", "talk", *small, "--summary", "-", input="They asked why.\n"
    )
    assert output.startswith("Compacted: ")
    messages = json_of(own, "sessions", "show", "--session", "talk")["messages"]
    assert any("They asked why." in json.dumps(message["content"]) for message in messages if message["is_summary"])


def test_a_plan_states_that_no_reduction_is_possible(setup: Setup) -> None:
    assert "no reduction possible" in output_of(setup, "sessions", "compact", "--session", "talk", "--plan")


# ---------------------------------------------------------------------------------------------------------------- runs


def test_an_unknown_call_is_refused_with_the_open_calls_and_the_run_keeps_waiting(own: Setup) -> None:
    message = error_of(own, "runs", "resume", "--run", own.run, "--allow", "third")
    assert message.endswith("has no tool call 'third'; open calls: first, second")
    assert json_of(own, "runs", "show", "--run", own.run)["run"]["status"] == "waiting"


def test_several_calls_are_approved_at_once(own: Setup) -> None:
    output = output_of(own, "runs", "resume", "--run", own.run, "--allow", "first", "--allow", "second")
    assert output == f"Run {own.run} can be claimed.\n"
    calls = json_of(own, "runs", "show", "--run", own.run)["tool_calls"]
    assert [call["status"] for call in calls] == ["ready", "ready"]


def test_cancelling_a_run_twice_is_harmless(own: Setup) -> None:
    for _ in range(2):
        assert output_of(own, "runs", "cancel", "--run", own.run, "--reason", "ä") == (
            f"Run {own.run} is cancelled at step 0.\n"
        )
    assert json_of(own, "runs", "list")["runs"][0]["error"] == "ä"


# ---------------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ([], "Remove all but the newest 1 checkpoints of every namespace of thread one of tenant acme?"),
        (["--keep", "0"], "Remove all checkpoints of thread one of tenant acme?"),
        (
            ["--keep", "3", "--thread", "two"],
            "all but the newest 3 checkpoints of every namespace of 2 threads of tenant acme?",
        ),
    ],
    ids=["one", "all", "two threads"],
)
def test_pruning_asks_for_confirmation(setup: Setup, options: Sequence[str], asks: str) -> None:
    result = call(setup, "checkpoints", "prune", "--thread", "one", *options, input="n\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert asks in result.stderr
    assert len(json_of(setup, "checkpoints", "list")["checkpoints"]) == 4


def test_young_checkpoints_are_not_pruned(own: Setup) -> None:
    prune = ("checkpoints", "prune", "--thread", "one", "--thread", "two", "--keep", "0", "--yes")
    assert output_of(own, *prune, "--days", "1") == "0 checkpoints of 2 threads removed.\n"
    assert output_of(own, *prune) == "4 checkpoints of 2 threads removed.\n"


def test_a_list_continues_after_the_previous_page(setup: Setup) -> None:
    seen: list[str] = []
    page = json_of(setup, "checkpoints", "list", "--limit", "3")
    seen += [checkpoint["id"] for checkpoint in page["checkpoints"]]
    assert f"More checkpoints: --cursor {page['next']}" in output_of(setup, "checkpoints", "list", "--limit", "3")
    page = json_of(setup, "checkpoints", "list", "--limit", "3", "--cursor", page["next"])
    seen += [checkpoint["id"] for checkpoint in page["checkpoints"]]
    assert (sorted(seen), page["next"]) == (["one-1", "one-2", "two-1", "two-2"], None)


# -------------------------------------------------------------------------------------------------------------- schema


def test_migrating_a_current_schema_changes_nothing(setup: Setup) -> None:
    assert output_of(setup, "migrate", "up") == "The schema is up to date.\n"
    assert json_of(setup, "migrate", "up") == {"migrations": []}
    assert all(migration["applied"] for migration in json_of(setup, "migrate", "status")["migrations"])


def test_migrating_down_to_the_current_version_asks_and_changes_nothing(setup: Setup) -> None:
    newest = str(max(migration["version"] for migration in json_of(setup, "migrate", "status")["migrations"]))
    assert output_of(setup, "migrate", "down", "--to", newest) == "No migration to revert.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["sessions", "list"],
        ["sessions", "show", "--session", MISSING_ID],
        ["runs", "list"],
        ["checkpoints", "list"],
        ["workspace", "list"],
        ["retention", "plan"],
        ["retention", "run"],
        ["retention", "policy"],
        ["retention", "holds"],
        ["retention", "hold", "--reason", "r"],
        ["keys", "list"],
        ["export", "--to", "acme.holdfast"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_a_missing_database_is_not_created(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(root, [*arguments, "--database", "typo.db", "--tenant", "acme"])
    assert result.exit_code == 1
    assert one_line(result.stderr).startswith("Error: database typo.db does not exist: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [["migrate", "status"], ["migrate", "down", "--yes"], ["keys", "revoke", "--id", MISSING_ID]],
    ids=" ".join,
)
def test_a_missing_database_is_not_created_by_commands_without_a_tenant(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(root, [*arguments, "--database", "sqlite:///typo.db"])
    assert one_line(result.stderr).startswith("Error: database typo.db does not exist: ")
    assert list(tmp_path.iterdir()) == []
