"""``holdfast sessions``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from tests.api.process import one_line
from tests.cli.in_process import command

HERE = {"HOLDFAST_DATABASE_URL": "agents.db", "HOLDFAST_TENANT": "acme"}
SMALL = ("--target", "500", "--keep-last", "2", "--protect", "0")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a database in which one session has nine messages."""
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create(key="support:42", user="ada", agent="helper")
        acme.messages.append(session.id, role="system", content="You help with parcels.", is_preserved=True)
        for number in range(4):
            acme.messages.append(session.id, role="user", content=f"Question {number} [bold]why[/bold] " + "why " * 300)
            acme.messages.append(session.id, role="assistant", content=f"Answer {number} " + "because " * 300)
        acme.sessions.create(key="other", user="bob")
    return tmp_path


def json_of(directory: Path, *arguments: str) -> Any:
    result = command("sessions", *arguments, "--json", cwd=directory, **HERE)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


def output_of(directory: Path, *arguments: str) -> str:
    result = command("sessions", *arguments, cwd=directory, **HERE)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def error_of(directory: Path, *arguments: str) -> str:
    result = command("sessions", *arguments, cwd=directory, **HERE)
    assert (result.returncode, result.stdout) == (1, "")
    return one_line(result.stderr)


def test_sessions_are_listed_the_most_recently_used_first(directory: Path) -> None:
    assert [session["key"] for session in json_of(directory, "list")["sessions"]] == ["other", "support:42"]
    assert [session["key"] for session in json_of(directory, "list", "--user", "ada")["sessions"]] == ["support:42"]
    assert [session["key"] for session in json_of(directory, "list", "--agent", "absent")["sessions"]] == []
    first = json_of(directory, "list", "--limit", "1")
    assert (len(first["sessions"]), bool(first["next"])) == (1, True)
    table = output_of(directory, "list")
    assert "support:42" in table
    assert "helper" in table


def test_a_session_is_shown_by_id_and_by_key_with_its_last_messages(directory: Path) -> None:
    by_key = json_of(directory, "show", "--session", "support:42", "--last", "3")
    assert [message["seq"] for message in by_key["messages"]] == [7, 8, 9]
    assert json_of(directory, "show", "--session", by_key["session"]["id"], "--last", "3") == by_key
    table = output_of(directory, "show", "--session", "support:42")
    assert "Question 3 [bold]why[/bold]" in table, "messages are not interpreted as markup"
    assert "9 messages" in table


def test_a_fork_creates_a_branch_and_switches_to_it_on_request(directory: Path) -> None:
    branch = json_of(directory, "fork", "--session", "support:42", "--at", "3", "--label", "again")["branch"]
    assert (branch["forked_after"], branch["parent"], branch["label"]) == (3, 0, "again")
    assert json_of(directory, "show", "--session", "support:42")["branch"] == 0
    assert "is the current branch" in output_of(directory, "fork", "--session", "support:42", "--at", "2", "--switch")
    now = json_of(directory, "show", "--session", "support:42")
    assert [message["seq"] for message in now["messages"]] == [1, 2]
    assert "Branches" in output_of(directory, "show", "--session", "support:42")
    assert "99" in error_of(directory, "fork", "--session", "support:42", "--at", "99")


def test_a_compaction_is_planned_applied_and_rolled_back(directory: Path) -> None:
    before = json_of(directory, "show", "--session", "support:42")["messages"]
    plan = json_of(directory, "compact", "--session", "support:42", "--plan", *SMALL)["plan"]
    assert (plan["needs_summary"], len(plan["removed"])) == (True, 6)
    assert "needs a summary" in output_of(directory, "compact", "--session", "support:42", "--plan", *SMALL)
    assert json_of(directory, "show", "--session", "support:42")["messages"] == before

    assert "summary=" in error_of(directory, "compact", "--session", "support:42", *SMALL)
    event = json_of(directory, "compact", "--session", "support:42", *SMALL, "--summary", "They asked why.")["event"]
    assert event["messages_removed"] == 6
    after = json_of(directory, "show", "--session", "support:42")
    assert [message["seq"] for message in after["messages"]] == [1, 7, 8, 9]
    assert [compaction["id"] for compaction in after["compactions"]] == [event["id"]]
    assert "Compactions" in output_of(directory, "show", "--session", "support:42")

    assert event["id"] in output_of(directory, "rollback", "--session", "support:42")
    assert json_of(directory, "show", "--session", "support:42")["messages"] == before
    assert "no compaction" in error_of(directory, "rollback", "--session", "support:42")
    assert event["id"] in error_of(directory, "rollback", "--session", "support:42", "--event", event["id"])


def test_messages_are_found_by_their_words(directory: Path) -> None:
    hits = json_of(directory, "search", "--query", '"question 2"')["hits"]
    assert [hit["message"]["seq"] for hit in hits] == [6]
    assert "**Question" in output_of(directory, "search", "--query", '"question 2"')
    assert json_of(directory, "search", "--query", "parcels", "--session", "other")["hits"] == []
    assert [
        hit["message"]["seq"] for hit in json_of(directory, "search", "--query", "parcels", "--user", "ada")["hits"]
    ] == [1]


def test_a_missing_session_is_a_one_line_error(directory: Path) -> None:
    assert "'nope'" in error_of(directory, "show", "--session", "nope")
    missing = "01890000-0000-7000-8000-000000000000"
    assert missing in error_of(directory, "show", "--session", missing)
    assert "'nope'" in error_of(directory, "compact", "--session", "nope", "--plan")


def test_old_sessions_are_pruned_after_confirmation(directory: Path) -> None:
    assert json_of(directory, "prune", "--idle-days", "1", "--yes")["pruned"]["sessions"] == 0
    asked = command("sessions", "prune", "--idle-days", "0", cwd=directory, **HERE)
    assert asked.returncode == 1
    assert len(json_of(directory, "list")["sessions"]) == 2
    words = output_of(directory, "prune", "--idle-days", "0", "--archive-days", "0", "--yes")
    assert words.startswith("Removed 2 sessions, 0 originals and 0 deleted messages")
    assert json_of(directory, "list")["sessions"] == []


def test_prune_requires_an_age(directory: Path) -> None:
    result = command("sessions", "prune", "--yes", cwd=directory, **HERE)
    assert result.returncode == 2
    assert "--idle-days" in result.stderr


def test_pruning_requires_an_age_and_a_confirmation(directory: Path) -> None:
    nothing = {"sessions": 0, "originals": 0, "deleted_messages": 0, "kept": 0, "more": False}
    assert json_of(directory, "prune", "--idle-days", "1", "--archive-days", "1", "--yes") == {"pruned": nothing}
    result = command("sessions", "prune", "--yes", cwd=directory, **HERE)
    assert result.returncode == 2
    assert "--idle-days" in result.stderr
    assert command("sessions", "prune", "--idle-days", "0", cwd=directory, **HERE).returncode == 1, (
        "the removal was not confirmed"
    )
    assert len(json_of(directory, "list")["sessions"]) == 2
    assert output_of(directory, "prune", "--idle-days", "0", "--yes").startswith("Removed 2 sessions,")
    assert json_of(directory, "list")["sessions"] == []


def test_new_messages_are_indexed_once(directory: Path) -> None:
    assert json_of(directory, "index") == {"indexed": 9}
    assert output_of(directory, "index") == "0 messages indexed.\n"
