"""``holdfast checkpoints`` shows without LangGraph the values that LangGraph has saved."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from langgraph.checkpoint.base import empty_checkpoint

from holdfast import Holdfast
from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.cli import graph_values
from tests.adapters.langgraph_import.old_graphs import asking, chat, config, fill
from tests.errors import raises

VALUES: dict[str, Any] = {
    "none": None,
    "text": "é" * 500,
    "numbers": [1, -(2**40), 2.5, True],
    "many": [f"element {n}" for n in range(300)],
    "large": [{"text": "x" * 200, "n": n} for n in range(5)],
    "deep": {"a": {"b": {"c": {"d": {"e": ["f"]}}}}, "": [[], {}]},
    "empty": [],
}


def test_plain_values_are_shown_unchanged(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db")) as hf, HoldfastSaver(hf.tenant("acme")) as saver:
        checkpoint = {**empty_checkpoint(), "channel_values": VALUES, "channel_versions": dict.fromkeys(VALUES, 3)}
        saver.put(config("t", checkpoint_ns=""), checkpoint, {"step": 1}, {})
        stored_checkpoint = hf.tenant("acme").checkpoints.find("t")
    assert stored_checkpoint is not None
    channels = {channel.name: channel for channel in graph_values.channels(stored_checkpoint)}
    assert {name: channel.value for name, channel in channels.items()} == VALUES
    assert {channel.version for channel in channels.values()} == {3}
    assert channels["text"].size_bytes > 1_000 > channels["none"].size_bytes


def test_objects_are_shown_with_the_name_of_their_class(tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    values = {"when": moment, "id": UUID(int=7), "set": {1}, "raw": b"12345", "keys": {1: {"x": b"1"}}}
    with Holdfast(str(tmp_path / "a.db")) as hf, HoldfastSaver(hf.tenant("acme")) as saver:
        fill(saver, threads=1, turns=2)
        saver.put(config("t", checkpoint_ns=""), {**empty_checkpoint(), "channel_values": values}, {}, {})
        store = hf.tenant("acme").checkpoints
        mixed, talk, waits = store.find("t"), store.find("chat-0"), store.list("waiting", namespace="")[0]
    assert mixed is not None
    assert talk is not None
    shown_values = {channel.name: channel.value for channel in graph_values.channels(mixed)}
    assert shown_values["raw"] == {"$bytes": 5}
    assert shown_values["keys"] == {"1": {"x": {"$bytes": 1}}}
    assert "2026-01-02" in str(shown_values["when"])
    assert "UUID" in shown_values["id"]["$type"]
    messages = next(channel.value for channel in graph_values.channels(talk) if channel.name == "messages")
    assert [message["$type"].rpartition(".")[2] for message in messages] == [
        "HumanMessage",
        "HumanMessage",
        "AIMessage",
    ]
    assert messages[0]["content"] == "hello 0"
    written = {write.channel: graph_values.write_value(write) for task in waits.tasks for write in task.writes}
    assert written["seen"] == ["quick"]
    assert "ok?" in str(written["__interrupt__"])


def test_encrypted_values_are_not_shown(tmp_path: Path) -> None:
    with Holdfast(str(tmp_path / "a.db")) as hf:
        saver = HoldfastSaver(hf.tenant("acme"), encryption_key="11" * 32)
        chat(saver).invoke({"messages": []}, config("t"))
        asking(saver).invoke({"seen": ["secret"]}, config("u"))
        checkpoint, waits = hf.tenant("acme").checkpoints.find("t"), hf.tenant("acme").checkpoints.find("u")
    assert checkpoint is not None
    assert waits is not None
    with raises(graph_values.Unreadable) as caught:
        graph_values.channels(checkpoint)
    assert caught.value.__cause__ is not None
    assert all("$unreadable" in graph_values.write_value(write) for task in waits.tasks for write in task.writes)
