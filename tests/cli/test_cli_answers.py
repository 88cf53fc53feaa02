"""What commands answer at the edges: what is not theirs, what is not there, what was said twice, and what is no answer."""

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

NOBODY = "01900000-0000-7000-8000-000000000000"
LIKE_AN_ID = "01900000-0000-7000-8000-00000000000a"


class Place(NamedTuple):
    """A database in which a tenant has sessions, a run that waits, checkpoints and a snapshot."""

    database: str
    session: str
    run: str
    snapshot: str
    tree: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Nothing that is tested with it changes it."""
    return make(tmp_path_factory.mktemp("there"))


@pytest.fixture
def own(tmp_path: Path) -> Place:
    """One that may be changed."""
    return make(tmp_path)


def make(folder: Path) -> Place:
    tree = folder / "tree"
    tree.mkdir()
    (tree / "a").write_bytes(b"1")
    with Holdfast(str(folder / "agents.db"), durability="normal") as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create(key="talk", agent="helper")
        acme.sessions.create(key=LIKE_AN_ID)
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
    return Place(str(folder / "agents.db"), session.id, run.id, snapshot.id, tree)


def call(place: Place, *arguments: str, tenant: str = "acme", input: str | None = None) -> Result:
    """A command, called in this process."""
    env = {"HOLDFAST_DATABASE_URL": place.database, "HOLDFAST_TENANT": tenant, "COLUMNS": "200"}
    return CliRunner().invoke(root, arguments, env=env, input=input, catch_exceptions=False)


def shown(place: Place, *arguments: str, **how: Any) -> str:
    done = call(place, *arguments, **how)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def told(place: Place, *arguments: str, **how: Any) -> Any:
    return json.loads(shown(place, *arguments, "--json", **how))


def refused(place: Place, *arguments: str, **how: Any) -> str:
    done = call(place, *arguments, **how)
    assert (done.exit_code, done.stdout) == (1, "")
    return one_line(done.stderr)


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
        ["runs", "show", "--run", NOBODY, "--last", "many"],
        ["runs", "resume"],
        ["checkpoints", "prune"],
        ["checkpoints", "prune", "--thread", "one", "--keep", "-1"],
        ["checkpoints", "show"],
        ["workspace", "rewind", "--run", NOBODY, "."],
        ["workspace", "rewind", "--run", NOBODY, ".", "--to", "-1"],
        ["workspace", "capture", "--run", NOBODY, "no/such/folder"],
        ["workspace", "import", "--run", NOBODY, "no-such-file"],
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
def test_what_is_not_understood_exits_with_2_and_says_how_it_is_meant(place: Place, arguments: Sequence[str]) -> None:
    done = call(place, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Usage:" in done.stderr
    assert "Error:" in done.stderr


@pytest.mark.parametrize("group", ["sessions", "runs", "checkpoints", "workspace"])
@pytest.mark.parametrize("missing", ["HOLDFAST_TENANT", "HOLDFAST_DATABASE_URL"])
def test_whose_and_where_must_be_said(place: Place, group: str, missing: str) -> None:
    env: dict[str, str | None] = {"HOLDFAST_DATABASE_URL": place.database, "HOLDFAST_TENANT": "acme", missing: None}
    done = CliRunner().invoke(root, [group, "list"], env=env)
    assert done.exit_code == 2
    assert missing in done.stderr


def test_what_is_said_comes_before_the_environment(place: Place) -> None:
    assert told(place, "runs", "list", "--tenant", "zenith") == {"runs": [], "next": None}


# ------------------------------------------------------------------------------------------------------ not theirs, not there


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
def test_a_tenant_sees_what_is_its_own(place: Place, arguments: Sequence[str], key: str) -> None:
    assert told(place, *arguments)[key] != []
    assert told(place, *arguments, tenant="zenith")[key] == []


@pytest.mark.parametrize("tenant", ["acme", "zenith"])
def test_what_is_not_there_and_what_is_anothers_cannot_be_told_apart(place: Place, tenant: str) -> None:
    run, session, snapshot = (NOBODY,) * 3 if tenant == "acme" else (place.run, place.session, place.snapshot)
    for arguments, says in (
        (["sessions", "show", "--session", session], session),
        (["sessions", "fork", "--session", session], session),
        (["sessions", "rollback", "--session", session], session),
        (["runs", "show", "--run", run], run),
        (["runs", "resume", "--run", run], run),
        (["runs", "cancel", "--run", run], run),
        (["workspace", "capture", "--run", run, str(place.tree)], run),
        (["workspace", "restore", snapshot, str(place.tree)], snapshot),
        (["workspace", "diff", snapshot, snapshot], snapshot),
        (["checkpoints", "show", "--thread", "none"], "thread 'none' has no checkpoint here"),
    ):
        assert says in refused(place, *arguments, tenant=tenant)


def test_a_key_that_looks_like_an_id_is_found_as_a_key(place: Place) -> None:
    assert told(place, "sessions", "show", "--session", LIKE_AN_ID)["session"]["key"] == LIKE_AN_ID


@pytest.mark.parametrize("step", ["@", "@-1", "@1.0", "@²", "@ 1"])
def test_what_is_no_step_is_said(place: Place, step: str) -> None:
    says = refused(place, "workspace", "diff", "--run", place.run, step, "@0")
    assert f"{step} is no step: a step is @ and its number" in says


def test_a_snapshot_and_itself_have_nothing_to_show(place: Place) -> None:
    assert shown(place, "workspace", "diff", "--run", place.run, "@0", place.snapshot) == ""


# ------------------------------------------------------------------------------------------------------------ sessions


def test_a_fork_without_a_place_goes_on_after_the_last_message(own: Place) -> None:
    branch = told(own, "sessions", "fork", "--session", "talk")["branch"]
    assert (branch["number"], branch["forked_after"], branch["parent"]) == (1, 1, 0)
    again = shown(own, "sessions", "fork", "--session", "talk")
    assert again == "Branch 2 goes on after message 1 of branch 0.\n"


def test_a_summary_is_read_from_standard_input(own: Place) -> None:
    with Holdfast(own.database) as hf:
        for _ in range(4):
            hf.tenant("acme").messages.append(own.session, role="user", content="why " * 300)
    small = ("--target", "500", "--keep-last", "1", "--protect", "0")
    said = shown(own, "sessions", "compact", "--session", "talk", *small, "--summary", "-", input="They asked why.\n")
    assert said.startswith("Compacted: ")
    messages = told(own, "sessions", "show", "--session", "talk")["messages"]
    assert any("They asked why." in json.dumps(each["content"]) for each in messages if each["is_summary"])


def test_where_nothing_would_get_smaller_a_plan_says_so(place: Place) -> None:
    assert "nothing would get smaller" in shown(place, "sessions", "compact", "--session", "talk", "--plan")


# ---------------------------------------------------------------------------------------------------------------- runs


def test_a_call_that_is_not_there_is_refused_with_those_that_are_and_the_run_goes_on_waiting(own: Place) -> None:
    says = refused(own, "runs", "resume", "--run", own.run, "--allow", "third")
    assert says.endswith("has no call 'third'; open are: first, second")
    assert told(own, "runs", "show", "--run", own.run)["run"]["status"] == "waiting"


def test_several_calls_are_allowed_at_once(own: Place) -> None:
    said = shown(own, "runs", "resume", "--run", own.run, "--allow", "first", "--allow", "second")
    assert said == f"Run {own.run} can be claimed.\n"
    calls = told(own, "runs", "show", "--run", own.run)["tool_calls"]
    assert [each["status"] for each in calls] == ["ready", "ready"]


def test_a_run_that_is_cancelled_twice_is_cancelled(own: Place) -> None:
    for _ in range(2):
        assert shown(own, "runs", "cancel", "--run", own.run, "--reason", "ä") == (
            f"Run {own.run} is cancelled at step 0.\n"
        )
    assert told(own, "runs", "list")["runs"][0]["error"] == "ä"


# ---------------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ([], "Remove all but the newest 1 checkpoints of every namespace of thread one of acme?"),
        (["--keep", "0"], "Remove everything of thread one of acme?"),
        (
            ["--keep", "3", "--thread", "two"],
            "all but the newest 3 checkpoints of every namespace of 2 threads of acme?",
        ),
    ],
    ids=["one", "everything", "two threads"],
)
def test_pruning_asks_what_it_would_do_and_takes_no_for_an_answer(
    place: Place, options: Sequence[str], asks: str
) -> None:
    done = call(place, "checkpoints", "prune", "--thread", "one", *options, input="n\n")
    assert (done.exit_code, done.stdout) == (1, "")
    assert asks in done.stderr
    assert len(told(place, "checkpoints", "list")["checkpoints"]) == 4


def test_whatever_is_young_enough_stays(own: Place) -> None:
    prune = ("checkpoints", "prune", "--thread", "one", "--thread", "two", "--keep", "0", "--yes")
    assert shown(own, *prune, "--days", "1") == "0 checkpoints of 2 threads removed.\n"
    assert shown(own, *prune) == "4 checkpoints of 2 threads removed.\n"


def test_a_list_goes_on_where_the_page_before_ended(place: Place) -> None:
    seen: list[str] = []
    page = told(place, "checkpoints", "list", "--limit", "3")
    seen += [each["id"] for each in page["checkpoints"]]
    assert f"There are more: --cursor {page['next']}" in shown(place, "checkpoints", "list", "--limit", "3")
    page = told(place, "checkpoints", "list", "--limit", "3", "--cursor", page["next"])
    seen += [each["id"] for each in page["checkpoints"]]
    assert (sorted(seen), page["next"]) == (["one-1", "one-2", "two-1", "two-2"], None)


# -------------------------------------------------------------------------------------------------------------- schema


def test_a_schema_that_is_up_to_date_is_left_alone(place: Place) -> None:
    assert shown(place, "migrate", "up") == "The schema is up to date.\n"
    assert told(place, "migrate", "up") == {"migrations": []}
    assert all(each["applied"] for each in told(place, "migrate", "status")["migrations"])


def test_going_down_to_where_it_is_asks_nothing_and_undoes_nothing(place: Place) -> None:
    newest = str(max(each["version"] for each in told(place, "migrate", "status")["migrations"]))
    assert shown(place, "migrate", "down", "--to", newest) == "There is nothing to undo.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["sessions", "list"],
        ["sessions", "show", "--session", NOBODY],
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
def test_a_database_that_is_not_there_is_not_made(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(root, [*arguments, "--database", "typo.db", "--tenant", "acme"])
    assert done.exit_code == 1
    assert one_line(done.stderr).startswith("Error: there is no database typo.db: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [["migrate", "status"], ["migrate", "down", "--yes"], ["keys", "revoke", "--id", NOBODY]],
    ids=" ".join,
)
def test_nor_by_those_who_ask_for_no_tenant(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(root, [*arguments, "--database", "sqlite:///typo.db"])
    assert one_line(done.stderr).startswith("Error: there is no database typo.db: ")
    assert list(tmp_path.iterdir()) == []
