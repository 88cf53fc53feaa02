"""``holdfast checkpoints``, without LangGraph."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast, Write
from tests.api.process import one_line
from tests.cli.in_process import command

HERE = {"HOLDFAST_DATABASE_URL": "agents.db", "HOLDFAST_TENANT": "acme"}
pack = msgspec.msgpack.encode


def body(value: Any) -> bytes:
    """Encode a value as HoldfastSaver does; 3 is the code of MessagePack."""
    return b"\x03" + pack(value)


def message(text: str) -> bytes:
    return body(msgspec.msgpack.Ext(5, pack(["langchain_core.messages", "HumanMessage", {"content": text}])))


def state(texts: list[str], notes: dict[str, Any]) -> dict[str, Any]:
    """Return the state and pieces of a checkpoint: its shape, a list of messages, each a piece, and notes."""
    shape = pack([4, ["messages", "notes", "gone"], [0, 1, 2], [["node", [0]]], [0, 1]])
    nodes = [[3, [len(texts)]], [4, list(notes), [body(note) for note in notes.values()]]]
    whole = pack([1, 0, None, ["00002.7", 2, 1], [1], None, nodes])
    return {"state": whole, "pieces": [shape, *map(message, texts)]}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a database in which one thread has three checkpoints and other threads have one each."""
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


def json_of(directory: Path, *arguments: str) -> Any:
    result = command("checkpoints", *arguments, "--json", cwd=directory, **HERE)
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


def output_of(directory: Path, *arguments: str) -> str:
    result = command("checkpoints", *arguments, cwd=directory, **HERE)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def error_of(directory: Path, *arguments: str) -> str:
    result = command("checkpoints", *arguments, cwd=directory, **HERE)
    assert (result.returncode, result.stdout) == (1, "")
    return one_line(result.stderr)


def test_checkpoints_are_listed_the_newest_first(directory: Path) -> None:
    assert find_spec("langgraph") is None, "values are decoded without LangGraph"
    listing = json_of(directory, "list", "--thread", "chat")
    assert [checkpoint["id"] for checkpoint in listing["checkpoints"]] == ["a3", "a2", "a1"]
    assert listing["checkpoints"][0]["writes"] == 2
    assert listing["checkpoints"][0]["size_bytes"] > listing["checkpoints"][2]["size_bytes"] > 200
    first = json_of(directory, "list", "--limit", "2")
    rest = json_of(directory, "list", "--limit", "50", "--cursor", first["next"])["checkpoints"]
    assert sorted(checkpoint["id"] for checkpoint in [*first["checkpoints"], *rest]) == [
        "a1",
        "a2",
        "a3",
        "b1",
        "d1",
        "e1",
    ]
    assert [checkpoint["id"] for checkpoint in json_of(directory, "list", "--user", "ada")["checkpoints"]] == ["c1"]
    assert [checkpoint["id"] for checkpoint in json_of(directory, "list", "--namespace", "node:1")["checkpoints"]] == [
        "b1"
    ]
    table = output_of(directory, "list", "--limit", "2")
    assert "--cursor" in table
    assert "e1" in table


def test_a_checkpoint_is_shown_with_its_values_and_writes(directory: Path) -> None:
    newest = json_of(directory, "show", "--thread", "chat")
    assert (newest["id"], newest["parent"], newest["metadata"]) == ("a3", "a2", {"step": 3})
    messages, notes, absent = newest["channels"]
    assert [message["content"][:9] for message in messages["value"]] == ["message 0", "message 1", "message 2"]
    assert messages["value"][0]["$type"] == "langchain_core.messages.HumanMessage"
    assert (messages["version"], notes["value"], notes["version"]) == ("00002.7", {"n": 2, "new": [1]}, 2)
    assert messages["size_bytes"] > 3 * 150
    assert (absent["name"], absent["has_value"]) == ("gone", False)
    (task,) = newest["tasks"]
    assert (task["task_id"], [write["index"] for write in task["writes"]]) == ("task-1", [-1, 0])
    assert task["writes"][0]["value"] == "no power"
    assert task["writes"][1]["value"]["content"] == "pending"
    table = output_of(directory, "show", "--thread", "chat", "--id", "a1")
    assert "HumanMessage: message 0 [bold]why[/bold]" in table, "messages are not interpreted as markup"
    assert "Channels" in table
    assert "Writes of tasks" not in table


def test_a_checkpoint_of_another_format_is_shown_by_its_size(directory: Path) -> None:
    crew = json_of(directory, "show", "--thread", "crewai:crew", "--namespace", "main")
    assert (crew["channels"], crew["size_bytes"]) == ([], 16)
    assert "cannot be shown" in output_of(directory, "show", "--thread", "sealed")
    assert "cannot be shown" in error_of(directory, "diff", "--thread", "sealed")


def test_a_difference_lists_additions_changes_and_removals(directory: Path) -> None:
    newest = json_of(directory, "diff", "--thread", "chat")
    assert (newest["from"], newest["to"]) == ("a2", "a3")
    assert [(change["channel"], change["change"], change["where"]) for change in newest["changes"]] == [
        ("messages", "added", "[2]"),
        ("notes", "added", "[new]"),
    ]
    whole = json_of(directory, "diff", "--thread", "chat", "--from", "a3", "--to", "a1")["changes"]
    assert [(change["change"], change["where"]) for change in whole] == [
        ("removed", "[1]"),
        ("removed", "[2]"),
        ("changed", "[n]"),
        ("removed", "[new]"),
        ("added", "[old]"),
    ]
    first = json_of(directory, "diff", "--thread", "chat", "--to", "a1")
    assert (first["from"], [change["change"] for change in first["changes"]]) == (None, ["added", "added"])
    assert "same values" in output_of(directory, "diff", "--thread", "chat", "--from", "a2", "--to", "a2")
    assert "[new]" in output_of(directory, "diff", "--thread", "chat")


def test_pruning_asks_for_confirmation_and_keeps_the_newest(directory: Path) -> None:
    asked = command("checkpoints", "prune", "--thread", "chat", cwd=directory, **HERE)
    assert (asked.returncode, "Remove all but the newest 1" in asked.stderr) == (1, True)
    assert json_of(directory, "prune", "--thread", "chat", "--days", "1", "--yes") == {"removed": 0}
    assert json_of(directory, "prune", "--thread", "chat", "--thread", "below", "--keep", "2", "--yes") == {
        "removed": 1
    }
    assert "1 checkpoints of thread chat removed" in output_of(directory, "prune", "--thread", "chat", "--yes")
    assert [checkpoint["id"] for checkpoint in json_of(directory, "list", "--thread", "chat")["checkpoints"]] == ["a3"]
    assert json_of(directory, "prune", "--thread", "theirs", "--keep", "0", "--yes") == {"removed": 0}
    assert json_of(directory, "prune", "--thread", "theirs", "--user", "ada", "--keep", "0", "--yes") == {"removed": 1}


def test_a_missing_checkpoint_is_a_one_line_error(directory: Path) -> None:
    assert "'nope' has no checkpoints" in error_of(directory, "show", "--thread", "nope")
    assert "checkpoint zz of thread 'chat'" in error_of(directory, "show", "--thread", "chat", "--id", "zz")
    assert "try --namespace node:1" in error_of(directory, "show", "--thread", "below")


def test_import_names_the_libraries_to_install(directory: Path) -> None:
    result = command("import", "langgraph", "--from", "sqlite:///old.db", cwd=directory, **HERE)
    assert (result.returncode, result.stdout) == (1, "")
    assert "pip install 'holdfast[langgraph]' langgraph-checkpoint-sqlite" in one_line(result.stderr)
    result = command("import", "langgraph", "--from", "postgresql://x/y", cwd=directory, **HERE)
    assert "langgraph-checkpoint-postgres" in one_line(result.stderr)
