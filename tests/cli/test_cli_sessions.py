"""``holdfast sessions``, as the process a person starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from tests.api.process import command, one_line

HERE = {"HOLDFAST_DATABASE_URL": "agents.db", "HOLDFAST_TENANT": "acme"}
SMALL = ("--target", "500", "--keep-last", "2", "--protect", "0")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a file in which one session has nine messages."""
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create(key="support:42", user="ada", agent="helper")
        acme.messages.append(session.id, role="system", content="You help with parcels.", is_preserved=True)
        for number in range(4):
            acme.messages.append(session.id, role="user", content=f"Question {number} [bold]why[/bold] " + "why " * 300)
            acme.messages.append(session.id, role="assistant", content=f"Answer {number} " + "because " * 300)
        acme.sessions.create(key="other", user="bob")
    return tmp_path


def told(place: Path, *arguments: str) -> Any:
    done = command("sessions", *arguments, "--json", cwd=place, **HERE)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def shown(place: Path, *arguments: str) -> str:
    done = command("sessions", *arguments, cwd=place, **HERE)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(place: Path, *arguments: str) -> str:
    done = command("sessions", *arguments, cwd=place, **HERE)
    assert (done.returncode, done.stdout) == (1, "")
    return one_line(done.stderr)


def test_sessions_are_listed_the_one_used_last_first(place: Path) -> None:
    assert [each["key"] for each in told(place, "list")["sessions"]] == ["other", "support:42"]
    assert [each["key"] for each in told(place, "list", "--user", "ada")["sessions"]] == ["support:42"]
    assert [each["key"] for each in told(place, "list", "--agent", "nobody")["sessions"]] == []
    first = told(place, "list", "--limit", "1")
    assert (len(first["sessions"]), bool(first["next"])) == (1, True)
    table = shown(place, "list")
    assert "support:42" in table
    assert "helper" in table


def test_a_session_is_shown_by_id_and_by_key_with_its_last_messages(place: Path) -> None:
    by_key = told(place, "show", "--session", "support:42", "--last", "3")
    assert [each["seq"] for each in by_key["messages"]] == [7, 8, 9]
    assert told(place, "show", "--session", by_key["session"]["id"], "--last", "3") == by_key
    table = shown(place, "show", "--session", "support:42")
    assert "Question 3 [bold]why[/bold]" in table, "what people write is never markup"
    assert "9 messages" in table


def test_a_fork_starts_a_branch_and_shows_it_if_told_to(place: Path) -> None:
    branch = told(place, "fork", "--session", "support:42", "--at", "3", "--label", "again")["branch"]
    assert (branch["forked_after"], branch["parent"], branch["label"]) == (3, 0, "again")
    assert told(place, "show", "--session", "support:42")["branch"] == 0
    assert "shows now" in shown(place, "fork", "--session", "support:42", "--at", "2", "--switch")
    now = told(place, "show", "--session", "support:42")
    assert [each["seq"] for each in now["messages"]] == [1, 2]
    assert "Branches" in shown(place, "show", "--session", "support:42")
    assert "99" in refused(place, "fork", "--session", "support:42", "--at", "99")


def test_a_compaction_is_planned_done_and_taken_back(place: Path) -> None:
    before = told(place, "show", "--session", "support:42")["messages"]
    plan = told(place, "compact", "--session", "support:42", "--plan", *SMALL)["plan"]
    assert (plan["needs_summary"], len(plan["removed"])) == (True, 6)
    assert "needs a summary" in shown(place, "compact", "--session", "support:42", "--plan", *SMALL)
    assert told(place, "show", "--session", "support:42")["messages"] == before

    assert "summary=" in refused(place, "compact", "--session", "support:42", *SMALL)
    event = told(place, "compact", "--session", "support:42", *SMALL, "--summary", "They asked why.")["event"]
    assert event["messages_removed"] == 6
    after = told(place, "show", "--session", "support:42")
    assert [each["seq"] for each in after["messages"]] == [1, 7, 8, 9]
    assert [each["id"] for each in after["compactions"]] == [event["id"]]
    assert "Compactions" in shown(place, "show", "--session", "support:42")

    assert event["id"] in shown(place, "rollback", "--session", "support:42")
    assert told(place, "show", "--session", "support:42")["messages"] == before
    assert "no compaction" in refused(place, "rollback", "--session", "support:42")
    assert event["id"] in refused(place, "rollback", "--session", "support:42", "--event", event["id"])


def test_messages_are_found_by_their_words(place: Path) -> None:
    hits = told(place, "search", "--query", '"question 2"')["hits"]
    assert [each["message"]["seq"] for each in hits] == [6]
    assert "**Question" in shown(place, "search", "--query", '"question 2"')
    assert told(place, "search", "--query", "parcels", "--session", "other")["hits"] == []
    assert [
        each["message"]["seq"] for each in told(place, "search", "--query", "parcels", "--user", "ada")["hits"]
    ] == [1]


def test_what_is_not_there_is_one_line(place: Path) -> None:
    assert "'nope'" in refused(place, "show", "--session", "nope")
    missing = "01890000-0000-7000-8000-000000000000"
    assert missing in refused(place, "show", "--session", missing)
    assert "there is no session" in refused(place, "compact", "--session", "nope", "--plan")


def test_old_sessions_are_pruned_when_that_is_confirmed(place: Path) -> None:
    assert told(place, "prune", "--idle-days", "1", "--yes")["pruned"]["sessions"] == 0
    asked = command("sessions", "prune", "--idle-days", "0", cwd=place, **HERE)
    assert asked.returncode == 1
    assert len(told(place, "list")["sessions"]) == 2
    words = shown(place, "prune", "--idle-days", "0", "--archive-days", "0", "--yes")
    assert words.startswith("Removed 2 sessions, 0 originals and 0 deleted messages")
    assert told(place, "list")["sessions"] == []


def test_pruning_says_what_is_missing(place: Path) -> None:
    done = command("sessions", "prune", "--yes", cwd=place, **HERE)
    assert done.returncode == 2
    assert "--idle-days" in done.stderr


def test_what_is_old_is_removed_when_it_is_confirmed(place: Path) -> None:
    nothing = {"sessions": 0, "originals": 0, "deleted_messages": 0, "kept": 0, "more": False}
    assert told(place, "prune", "--idle-days", "1", "--archive-days", "1", "--yes") == {"pruned": nothing}
    done = command("sessions", "prune", "--yes", cwd=place, **HERE)
    assert done.returncode == 2
    assert "--idle-days" in done.stderr
    assert command("sessions", "prune", "--idle-days", "0", cwd=place, **HERE).returncode == 1, "nobody has said yes"
    assert len(told(place, "list")["sessions"]) == 2
    assert shown(place, "prune", "--idle-days", "0", "--yes").startswith("Removed 2 sessions,")
    assert told(place, "list")["sessions"] == []


def test_what_is_not_indexed_yet_is_indexed_once(place: Path) -> None:
    assert told(place, "index") == {"indexed": 9}
    assert shown(place, "index") == "0 messages indexed.\n"
