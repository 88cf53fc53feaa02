"""An import copies everything that LangGraph's own savers have stored, and resumes after an interruption."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from holdfast import Holdfast, TenantHandle
from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.adapters.langgraph.translate import DeltaHistory
from holdfast.adapters.langgraph_import import ImportedThread, import_threads, open_source
from holdfast.cli.commands import root
from holdfast.errors import InvalidInput
from tests.adapters.langgraph_import.conftest import Official
from tests.adapters.langgraph_import.old_graphs import asking, chat, config, delta, fill
from tests.errors import raises


@dataclass
class Mine:
    """A class of the application."""

    x: int


class Own(TypedDict, total=False):
    """A state that contains such an object."""

    mine: Any


def moved(old_url: str, target: TenantHandle, **options: Any) -> list[ImportedThread]:
    with open_source(old_url, options.get("allow", ())) as source:
        return [*import_threads(source, target, **options)]


def test_every_history_is_equal_and_every_thread_continues(old_url: str, new_url: str, official: Official) -> None:
    with official() as saver:
        fill(saver)
        histories = {
            thread: [*chat(saver).get_state_history(config(thread))] for thread in ("chat-0", "chat-1", "chat-2")
        }
        waiting = asking(saver).get_state(config("waiting"), subgraphs=True)
        rows = {thread: len([*saver.list(config(thread))]) for thread in (*histories, "waiting", "failed", "early")}
    with Holdfast(new_url, auto_migrate=True) as hf:
        results = moved(old_url, hf.tenant("acme"))
        assert {imported.thread_id: imported.checkpoints for imported in results} == rows
        assert all(
            imported.copied == imported.verified == imported.checkpoints and not imported.problem
            for imported in results
        ), results
        saver = HoldfastSaver(hf.tenant("acme"))
        for thread, history in histories.items():
            assert [*chat(saver).get_state_history(config(thread))] == history
        assert len(histories["chat-0"]) > len(histories["chat-1"]), "the fork was copied, too"
        assert asking(saver).get_state(config("waiting"), subgraphs=True) == waiting

        after = chat(saver).invoke({"messages": [HumanMessage("more", id="more")]}, config("chat-1"))
        assert (after["turns"], len(after["messages"])) == (4, 8)
        with pytest.raises(RuntimeError, match="no power"):
            asking(saver).invoke(Command(resume="yes"), config("waiting"))
        assert asking(saver).get_state(config("waiting")).values["seen"].count("asked: yes") == 1
        early = hf.tenant("acme").checkpoints
        assert early.list("early") == []
        assert early.prune(["early"], keep=0) == 0


def test_values_stored_with_ancestors_are_found(old_url: str, official: Official, tmp_path: Path) -> None:
    with official() as saver:
        for turn in range(7):
            delta(saver).invoke({"seen": [f"in {turn}"]}, config("t"))
        history = [*delta(saver).get_state_history(config("t"))]
    assert len(history[0].values["seen"]) == 14
    with Holdfast(str(tmp_path / "new.db")) as hf:
        (imported,) = moved(old_url, hf.tenant("acme"))
        assert (imported.verified, imported.problem) == (imported.checkpoints, "")
        saver = HoldfastSaver(hf.tenant("acme"))
        assert [*delta(saver).get_state_history(config("t"))] == history
        saver.prune(["t"])
        assert delta(saver).get_state(config("t")) == history[0], (
            "the ancestors that the newest checkpoint needs are kept"
        )
        assert len(delta(saver).invoke({"seen": ["here"]}, config("t"))["seen"]) == 16


def test_writes_keep_their_task_path_and_position(old_url: str, official: Official, tmp_path: Path) -> None:
    with official() as saver:
        at = config("t", checkpoint_ns="", checkpoint_id="1f000000-0000-6000-8000-000000000001")
        saver.put_writes(at, [("b", 1), ("__interrupt__", [2]), ("c", b"3"), ("d", None)], "task", "~z")
        saver.put_writes(at, [("e", {"x": 1})], "another", "~a")
    with Holdfast(str(tmp_path / "new.db")) as hf:
        moved(old_url, hf.tenant("acme"))
        new = hf.tenant("acme").checkpoints
        new.put("t", id="1f000000-0000-6000-8000-000000000001", state=b"")
        checkpoint = new.find("t")
    assert checkpoint is not None
    written = [(task.task_id, task.task_path, [(w.index, w.channel) for w in task.writes]) for task in checkpoint.tasks]
    assert written == [
        ("another", "~a", [(0, "e")]),
        ("task", "~z", [(-3, "__interrupt__"), (0, "b"), (2, "c"), (3, "d")]),
    ]


def test_existing_checkpoints_are_not_copied_again_and_new_ones_not_removed(
    old_url: str, new_url: str, official: Official
) -> None:
    with official() as saver:
        fill(saver, threads=2, turns=1)
    with Holdfast(new_url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        moved(old_url, acme)
        chat(HoldfastSaver(acme)).invoke({"messages": [HumanMessage("here", id="x")]}, config("chat-1"))
        with official() as saver:
            chat(saver).invoke({"messages": [HumanMessage("there", id="y")]}, config("chat-0"))
        again = {imported.thread_id: imported for imported in moved(old_url, acme)}
        assert again["chat-0"].copied == 3
        assert sum(imported.copied for imported in again.values()) == 3
        assert not any(imported.problem for imported in again.values())
        assert chat(HoldfastSaver(acme)).get_state(config("chat-1")).values["turns"] == 2


def test_later_writes_to_an_existing_checkpoint_are_copied(old_url: str, new_url: str, official: Official) -> None:
    with official() as saver:
        at = saver.put(config("t", checkpoint_ns=""), empty_checkpoint(), {"source": "loop", "step": 1}, {})
        saver.put_writes(at, [("a", 1)], "first")
    with Holdfast(new_url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        moved(old_url, acme)
        with official() as saver:
            saver.put_writes(at, [("a", 1), ("b", 2)], "first")
            saver.put_writes(at, [("c", "later" * 30)], "second")
            saver.put_writes(at, [("__error__", "old")], "third")
        HoldfastSaver(acme).put_writes(at, [("__error__", "new")], "third")
        moved(old_url, acme)
        checkpoint = HoldfastSaver(acme).get_tuple(at)
        assert checkpoint is not None
        expected = [("first", "a", 1), ("first", "b", 2), ("second", "c", "later" * 30), ("third", "__error__", "new")]
        assert sorted(checkpoint.pending_writes or []) == expected, "existing writes are not overwritten"


def test_a_difference_is_detected_and_reported(
    old_url: str, new_url: str, official: Official, execute: Callable[[str], None]
) -> None:
    with official() as saver:
        fill(saver, threads=1, turns=2)
        newest = saver.get_tuple(config("chat-0")).checkpoint["id"]
    with Holdfast(new_url, auto_migrate=True) as hf:
        acme = hf.tenant("acme")
        moved(old_url, acme)
        changed = '\'{"source": "loop", "step": 77}\''
        execute(f"UPDATE checkpoints SET metadata = {changed} WHERE checkpoint_id = '{newest}'")
        results = {imported.thread_id: imported for imported in moved(old_url, acme)}
        assert newest in results["chat-0"].problem
        assert results["chat-0"].verified == results["chat-0"].checkpoints - 1
        assert not results["waiting"].problem


def without_counters(put: Any) -> Any:
    """Save without the counters of delta channels, as some releases of LangGraph do."""

    def saved(config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        left = {name: value for name, value in metadata.items() if name != "counters_since_delta_snapshot"}
        return put(config, checkpoint, left, new_versions)

    return saved


def test_delta_channels_are_copied_with_and_without_counters_in_the_metadata(
    old_url: str, new_url: str, official: Official
) -> None:
    with official() as saver:
        saver.put = without_counters(saver.put)
        for _ in range(4):
            delta(saver).invoke({"seen": ["asked"]}, config("delta"))
        delta(saver).update_state(config("delta"), None, as_node=END)
        before = delta(saver).get_state(config("delta")).values
        assert len(before["seen"]) == 8
    with Holdfast(new_url, auto_migrate=True) as hf:
        (imported,) = moved(old_url, hf.tenant("acme"))
        assert (imported.verified, imported.problem) == (imported.checkpoints, "")
        new = HoldfastSaver(hf.tenant("acme"))
        assert delta(new).get_state(config("delta")).values == before
        new.prune(["delta"])
        assert delta(new).get_state(config("delta")).values == before


def test_a_state_that_a_graph_would_read_differently_is_detected(
    old_url: str, tmp_path: Path, official: Official
) -> None:
    """Even if every row is equal in both databases, an ancestor may be missing in one."""
    with official() as saver:
        delta(saver).invoke({"seen": ["asked"]}, config("delta"))
        newest = delta(saver).update_state(config("delta"), None, as_node=END)
    with Holdfast(str(tmp_path / "new.db")) as hf, pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaHistory, "add", lambda *_: False)
        (imported,) = moved(old_url, hf.tenant("acme"))
        assert newest["configurable"]["checkpoint_id"] in imported.problem
        assert imported.verified == imported.checkpoints - 1


def test_a_class_that_is_not_allowed_stops_only_its_thread(old_url: str, official: Official, tmp_path: Path) -> None:
    with official() as saver:
        fill(saver, threads=1, turns=1)
        graph = StateGraph(Own)
        graph.add_node("node", lambda state: {"mine": Mine(7)})
        graph.add_edge(START, "node")
        graph.compile(checkpointer=saver).invoke({}, config("own"))
    with Holdfast(str(tmp_path / "new.db")) as hf:
        acme = hf.tenant("acme")
        results = {imported.thread_id: imported for imported in moved(old_url, acme)}
        assert "Mine is not on the list" in results["own"].problem
        assert [thread for thread, imported in results.items() if imported.problem] == ["own"]
        allowed = [(Mine.__module__, "Mine")]
        (own,) = moved(old_url, acme, threads=["own"], allow=allowed)
        assert (own.verified, own.problem) == (own.checkpoints, "")
        state = HoldfastSaver(acme, allow=[Mine]).get_tuple(config("own"))
        assert state is not None
        assert state.checkpoint["channel_values"]["mine"] == Mine(7)


def test_threads_are_imported_for_one_user_and_tenant(old_url: str, official: Official, tmp_path: Path) -> None:
    with official() as saver:
        fill(saver, threads=1, turns=1)
    with Holdfast(str(tmp_path / "new.db")) as hf:
        steps: list[int] = []
        results = moved(old_url, hf.tenant("acme"), user="ada", threads=["chat-0"], advance=steps.append)
        assert [imported.thread_id for imported in results] == ["chat-0"]
        assert sum(steps) == 2 * results[0].checkpoints
        assert HoldfastSaver(hf.tenant("acme"), user="ada").get_tuple(config("chat-0")) is not None
        assert HoldfastSaver(hf.tenant("acme")).get_tuple(config("chat-0")) is None
        assert HoldfastSaver(hf.tenant("zenith"), user="ada").get_tuple(config("chat-0")) is None


def test_a_source_without_checkpoints_is_refused(tmp_path: Path, postgres_url: str, bare_postgres_url: str) -> None:
    (tmp_path / "text.db").write_text("not a database at all")
    with psycopg.connect(bare_postgres_url) as connection:  # the schema of ShallowPostgresSaver, which keeps no history
        connection.execute("CREATE TABLE checkpoints (thread_id TEXT, checkpoint_ns TEXT, checkpoint JSONB)")
        connection.execute("CREATE TABLE checkpoint_writes (thread_id TEXT, idx INTEGER)")
        connection.execute("CREATE TABLE checkpoint_blobs (thread_id TEXT, version TEXT)")
    Holdfast(str(tmp_path / "holdfast.db")).close()
    causes: dict[str, tuple[str, type[BaseException] | None]] = {
        f"sqlite:///{tmp_path}/absent.db": ("absent.db", None),
        str(tmp_path / "text.db"): ("text.db", sqlite3.DatabaseError),
        f"sqlite:///{tmp_path}/holdfast.db": ("SqliteSaver", None),
        postgres_url: ("PostgresSaver", None),
        bare_postgres_url: ("PostgresSaver", None),
        "postgresql://127.0.0.1:1/none": ("", psycopg.OperationalError),
    }
    for url, (value, cause) in causes.items():
        with raises(InvalidInput, field="source") as caught, open_source(url):
            pass
        assert value in str(caught.value)
        assert isinstance(caught.value.__cause__, cause or type(None))


def run(*arguments: str) -> Any:
    return CliRunner().invoke(root, ["import", "langgraph", *arguments])


@pytest.mark.parametrize(
    ("old_url", "new_url"), [("sqlite", "to postgres"), ("postgres", "to sqlite")], indirect=["old_url", "new_url"]
)
def test_the_command_resumes_after_a_kill(old_url: str, new_url: str, official: Official) -> None:
    with official() as saver:
        fill(saver, threads=3, turns=8)
    where = ("--from", old_url, "--database", new_url, "--tenant", "acme")
    Holdfast(new_url, auto_migrate=True).close()
    killed = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "import", "langgraph", *where],
        cwd=Path(__file__).resolve().parents[3],
        env={**os.environ, "PYTHONPATH": "src"},
    )
    with Holdfast(new_url) as hf:
        while killed.poll() is None and len(hf.tenant("acme").checkpoints.list("chat-0", limit=50)) < 3:
            pass
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    result = run(*where, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert report["is_complete"] is True
    assert all(thread["verified"] == thread["checkpoints"] for thread in report["threads"])
    copied, total = (sum(thread[name] for thread in report["threads"]) for name in ("copied", "checkpoints"))
    assert 0 < copied < total
    again = " ".join(run(*where).stdout.split())
    assert f"0 checkpoints copied, {total} already present, {total} verified as identical" in again


def test_a_terminal_gets_a_progress_bar(official: Official, old_url: str, tmp_path: Path) -> None:
    with official() as saver:
        fill(saver, threads=1, turns=1)
    where = ("--from", old_url, "--database", str(tmp_path / "new.db"), "--tenant", "acme")
    result = CliRunner().invoke(root, ["import", "langgraph", *where], env={"FORCE_COLOR": "1"})  # as on a terminal
    total = 2 * sum(imported.checkpoints for imported in _again(old_url, tmp_path))
    assert "copying and comparing" in result.stderr
    assert f"{total}/{total}" in result.stderr
    assert "copying" not in result.stdout


def _again(old_url: str, tmp_path: Path) -> list[ImportedThread]:
    with Holdfast(str(tmp_path / "new.db")) as hf:
        return moved(old_url, hf.tenant("acme"))


def test_errors_of_the_command_are_one_line(tmp_path: Path, official: Official, old_url: str) -> None:
    to = ("--database", str(tmp_path / "new.db"), "--tenant", "acme")
    missing = run("--from", str(tmp_path / "absent.db"), *to)
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert missing.stderr.startswith("Error: file ")
    wrong = run("--from", "x", *to, "--allow", "nonsense")
    assert (wrong.exit_code, "package.module:Class" in wrong.stderr) == (2, True)
    with official() as saver:
        graph = StateGraph(Own)
        graph.add_node("node", lambda state: {"mine": Mine(7)})
        graph.add_edge(START, "node")
        graph.compile(checkpointer=saver).invoke({}, config("own"))
    partly = run("--from", old_url, *to)
    assert (partly.exit_code, "1 of 1 threads are incomplete" in partly.stdout) == (1, True)
    assert "Mine" in partly.stdout
    unknown = run("--from", old_url, *to, "--thread", "absent")
    assert (unknown.exit_code, "thread 'absent' does not exist" in unknown.stderr) == (1, True)
