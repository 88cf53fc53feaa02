"""``holdfast checkpoints``, as the process a person starts, where LangGraph is not installed."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast, Write
from tests.api.process import command, one_line

HERE = {"HOLDFAST_DATABASE_URL": "agents.db", "HOLDFAST_TENANT": "acme"}
pack = msgspec.msgpack.encode


def body(value: Any) -> bytes:
    """A value as HoldfastSaver writes it down; 3 says that it is MessagePack."""
    return b"\x03" + pack(value)


def message(text: str) -> bytes:
    return body(msgspec.msgpack.Ext(5, pack(["langchain_core.messages", "HumanMessage", {"content": text}])))


def state(texts: list[str], notes: dict[str, Any]) -> dict[str, Any]:
    """A graph's checkpoint: its shape, a list of messages, each a piece, and notes."""
    shape = pack([4, ["messages", "notes", "gone"], [0, 1, 2], [["node", [0]]], [0, 1]])
    nodes = [[3, [len(texts)]], [4, list(notes), [body(each) for each in notes.values()]]]
    whole = pack([1, 0, None, ["00002.7", 2, 1], [1], None, nodes])
    return {"state": whole, "pieces": [shape, *map(message, texts)]}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a file in which one thread has three checkpoints, and others have one each."""
    with Holdfast(str(tmp_path / "agents.db")) as hf:
        store = hf.tenant("acme").checkpoints
        talk = [f"message {n} [bold]why[/bold] " + "word " * 30 for n in range(3)]
        store.put("chat", id="a1", **state(talk[:1], {"n": 1, "old": True}), metadata={"step": 1, "source": "input"})
        store.put("chat", id="a2", parent="a1", **state(talk[:2], {"n": 2}), metadata={"step": 2, "source": "loop"})
        store.put("chat", id="a3", parent="a2", **state(talk, {"n": 2, "new": [1]}), metadata={"step": 3})
        new = [Write(0, "messages", pack(1), [message("pending")]), Write(-1, "__error__", pack(body("no power")))]
        store.put_writes("chat", id="a3", task_id="task-1", task_path="~", new=new)
        store.put("below", id="b1", namespace="node:1", **state(talk[:1], {}))
        store.put("theirs", id="c1", user="ada", **state(talk[:1], {}))
        store.put("crewai:crew", id="d1", namespace="main", state=b"", pieces=[b'{"entities": []}'])
        store.put("sealed", id="e1", state=b"\x93\x01\x02", pieces=[b"\x00\xff"])
    return tmp_path


def told(place: Path, *arguments: str) -> Any:
    done = command("checkpoints", *arguments, "--json", cwd=place, **HERE)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def shown(place: Path, *arguments: str) -> str:
    done = command("checkpoints", *arguments, cwd=place, **HERE)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(place: Path, *arguments: str) -> str:
    done = command("checkpoints", *arguments, cwd=place, **HERE)
    assert (done.returncode, done.stdout) == (1, "")
    return one_line(done.stderr)


def test_checkpoints_are_listed_the_newest_first(place: Path) -> None:
    assert find_spec("langgraph") is None, "what is shown here is shown without it"
    found = told(place, "list", "--thread", "chat")
    assert [each["id"] for each in found["checkpoints"]] == ["a3", "a2", "a1"]
    assert found["checkpoints"][0]["writes"] == 2
    assert found["checkpoints"][0]["size_bytes"] > found["checkpoints"][2]["size_bytes"] > 200
    first = told(place, "list", "--limit", "2")
    rest = told(place, "list", "--limit", "50", "--cursor", first["next"])["checkpoints"]
    assert sorted(each["id"] for each in [*first["checkpoints"], *rest]) == ["a1", "a2", "a3", "b1", "d1", "e1"]
    assert [each["id"] for each in told(place, "list", "--user", "ada")["checkpoints"]] == ["c1"]
    assert [each["id"] for each in told(place, "list", "--namespace", "node:1")["checkpoints"]] == ["b1"]
    table = shown(place, "list", "--limit", "2")
    assert "--cursor" in table
    assert "e1" in table


def test_a_checkpoint_is_shown_with_its_values_and_what_was_written(place: Path) -> None:
    newest = told(place, "show", "--thread", "chat")
    assert (newest["id"], newest["parent"], newest["metadata"]) == ("a3", "a2", {"step": 3})
    messages, notes, gone = newest["channels"]
    assert [each["content"][:9] for each in messages["value"]] == ["message 0", "message 1", "message 2"]
    assert messages["value"][0]["$type"] == "langchain_core.messages.HumanMessage"
    assert (messages["version"], notes["value"], notes["version"]) == ("00002.7", {"n": 2, "new": [1]}, 2)
    assert messages["size_bytes"] > 3 * 150
    assert (gone["name"], gone["has_value"]) == ("gone", False)
    (task,) = newest["tasks"]
    assert (task["task_id"], [each["index"] for each in task["writes"]]) == ("task-1", [-1, 0])
    assert task["writes"][0]["value"] == "no power"
    assert task["writes"][1]["value"]["content"] == "pending"
    table = shown(place, "show", "--thread", "chat", "--id", "a1")
    assert "HumanMessage: message 0 [bold]why[/bold]" in table, "what people write is never markup"
    assert "Channels" in table
    assert "Written by tasks" not in table


def test_what_is_no_graphs_state_is_shown_by_its_size(place: Path) -> None:
    crew = told(place, "show", "--thread", "crewai:crew", "--namespace", "main")
    assert (crew["channels"], crew["size_bytes"]) == ([], 16)
    assert "cannot be shown" in shown(place, "show", "--thread", "sealed")
    assert "cannot be shown" in refused(place, "diff", "--thread", "sealed")


def test_a_difference_names_what_was_added_changed_and_removed(place: Path) -> None:
    newest = told(place, "diff", "--thread", "chat")
    assert (newest["from"], newest["to"]) == ("a2", "a3")
    assert [(each["channel"], each["change"], each["where"]) for each in newest["changes"]] == [
        ("messages", "added", "[2]"),
        ("notes", "added", "[new]"),
    ]
    whole = told(place, "diff", "--thread", "chat", "--from", "a3", "--to", "a1")["changes"]
    assert [(each["change"], each["where"]) for each in whole] == [
        ("removed", "[1]"),
        ("removed", "[2]"),
        ("changed", "[n]"),
        ("removed", "[new]"),
        ("added", "[old]"),
    ]
    first = told(place, "diff", "--thread", "chat", "--to", "a1")
    assert (first["from"], [each["change"] for each in first["changes"]]) == (None, ["added", "added"])
    assert "same values" in shown(place, "diff", "--thread", "chat", "--from", "a2", "--to", "a2")
    assert "[new]" in shown(place, "diff", "--thread", "chat")


def test_pruning_asks_and_keeps_the_newest(place: Path) -> None:
    asked = command("checkpoints", "prune", "--thread", "chat", cwd=place, **HERE)
    assert (asked.returncode, "Remove all but the newest 1" in asked.stderr) == (1, True)
    assert told(place, "prune", "--thread", "chat", "--days", "1", "--yes") == {"removed": 0}
    assert told(place, "prune", "--thread", "chat", "--thread", "below", "--keep", "2", "--yes") == {"removed": 1}
    assert "1 checkpoints of thread chat removed" in shown(place, "prune", "--thread", "chat", "--yes")
    assert [each["id"] for each in told(place, "list", "--thread", "chat")["checkpoints"]] == ["a3"]
    assert told(place, "prune", "--thread", "theirs", "--keep", "0", "--yes") == {"removed": 0}
    assert told(place, "prune", "--thread", "theirs", "--user", "ada", "--keep", "0", "--yes") == {"removed": 1}


def test_what_is_not_there_is_one_line(place: Path) -> None:
    assert "'nope' has no checkpoint here" in refused(place, "show", "--thread", "nope")
    assert "no checkpoint zz" in refused(place, "show", "--thread", "chat", "--id", "zz")
    assert "try --namespace node:1" in refused(place, "show", "--thread", "below")


def test_importing_says_what_it_needs(place: Path) -> None:
    done = command("import", "langgraph", "--from", "sqlite:///old.db", cwd=place, **HERE)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'holdfast[langgraph]' langgraph-checkpoint-sqlite" in one_line(done.stderr)
    done = command("import", "langgraph", "--from", "postgresql://x/y", cwd=place, **HERE)
    assert "langgraph-checkpoint-postgres" in one_line(done.stderr)
