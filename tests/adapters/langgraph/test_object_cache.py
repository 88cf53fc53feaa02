"""The object cache: concurrent use, objects changed in place, and objects that cannot be copied."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Lock
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, ConfigDict, Field

from holdfast.adapters.langgraph import HoldfastSaver, ThreadRetention, object_cache
from holdfast.adapters.langgraph.object_cache import MAX_SHAPES, MAX_THREADS, CachedThread, ObjectCache
from holdfast.errors import InvalidInput
from tests.adapters.langgraph.graphs import thread
from tests.errors import raises


class Locked(BaseModel):
    """An object with a field that cannot be copied and is not serialized."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    name: str
    lock: Any = Field(default_factory=Lock, exclude=True)


class Unlike(BaseModel):
    """An object that cannot be compared."""

    name: str

    def __eq__(self, other: object) -> bool:
        raise ValueError("not today")

    def __hash__(self) -> int:
        return 1


class Holder(BaseModel):
    """An object that contains another object."""

    name: str
    inside: Any


class Mine(BaseModel):
    """A class that is only allowed by the schema of a graph."""

    a: int = 1


class Theirs(BaseModel):
    """A class that is not allowed."""


@pytest.fixture
def saver(tmp_path: Path) -> HoldfastSaver:
    return HoldfastSaver(str(tmp_path / "a.db"), allow=[Locked, Unlike, Holder])


def put(saver: HoldfastSaver, value: Any, name: str = "t", parent: Any = None) -> Any:
    checkpoint = empty_checkpoint()
    checkpoint |= {"channel_values": {"v": value}, "channel_versions": {"v": 1}}
    at = {"thread_id": name, "checkpoint_ns": "", **({} if parent is None else parent["configurable"])}
    return saver.put({"configurable": at}, checkpoint, {"source": "loop", "step": 1}, {"v": 1})


def value_of(saver: HoldfastSaver, name: str = "t") -> Any:
    checkpoint = saver.get_tuple(thread(name))
    assert checkpoint is not None
    return checkpoint.checkpoint["channel_values"]["v"]


def elsewhere(saver: HoldfastSaver) -> HoldfastSaver:
    """Return a saver with an empty cache, as in another process."""
    return HoldfastSaver(str(saver._database._where), allow=[Locked, Unlike, Holder])


class Meanwhile:
    """A store that runs a callback after each result, before the caller receives it."""

    def __init__(self, saver: HoldfastSaver, happens: Callable[[], Any]) -> None:
        self._store, self._happens = saver._database.sync_store(), [happens]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def find(self, **arguments: Any) -> Any:
        checkpoint = self._store.find(**arguments)
        while self._happens:
            self._happens.pop()()
        return checkpoint


@pytest.mark.parametrize("what", ["pruned", "forgotten", "deleted"])
def test_concurrent_changes_do_not_affect_a_reader(
    saver: HoldfastSaver, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put(saver, [HumanMessage("a" * 100), HumanMessage("b" * 100)])
    value_of(saver)

    def pruned() -> None:
        put(saver, [HumanMessage("c" * 100)], parent=first)
        saver.prune(["t"])
        put(saver, [HumanMessage("d" * 100)], parent=first)

    def forgotten() -> None:
        for number in range(MAX_THREADS):
            put(saver, [1], name=f"other {number}")

    happens = {"pruned": pruned, "forgotten": forgotten, "deleted": lambda: saver.delete_thread("t")}[what]
    store = Meanwhile(saver, happens)
    monkeypatch.setattr(saver._database, "sync_store", lambda: store)
    assert [message.content[0] for message in value_of(saver)] == ["a", "b"]


def test_many_threads_use_one_saver(saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [str(number) for number in range(2 * MAX_THREADS)]
    for name in names:
        put(saver, [HumanMessage("a" * 100, id=str(number)) for number in range(3)], name)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def work(seed: int) -> None:
        random = Random(seed)
        for _ in range(40):
            name = random.choice(names)
            checkpoint = saver.get_tuple(thread(name))
            assert checkpoint is not None
            if random.random() < 0.3:
                put(
                    saver, [*checkpoint.checkpoint["channel_values"]["v"], AIMessage("x" * 90)], name, checkpoint.config
                )
            if random.random() < 0.1:
                saver.prune([name])

    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(before)


def test_a_cache_is_used_by_many_threads() -> None:
    cache, keeping = ObjectCache(), HoldfastSaver(":memory:", retention=ThreadRetention(last=1))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(seed: int) -> None:
        for number in range(5_000):
            name = str((number * 7 + seed * 31) % 100)
            cache.under(name, "stamp")
            keeping._operations._is_due(name)

    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize(
    ("old", "new"),
    [(1, True), (0, 0.0), (False, 0), ([1], [True]), ({"a": {"b": 1}}, {"a": {"b": 1.0}})],
    ids=repr,
)
def test_a_change_in_place_to_an_equal_value_is_detected(tmp_path: Path, old: Any, new: Any) -> None:
    saver = HoldfastSaver(str(tmp_path / "a.db"))
    message = AIMessage("x" * 100, additional_kwargs={"v": old})
    first = put(saver, [message])
    message.additional_kwargs["v"] = new
    put(saver, [message], parent=first)
    restored = value_of(elsewhere(saver))[0].additional_kwargs["v"]
    assert repr(restored) == repr(new)


def test_objects_that_cannot_be_copied_or_compared_are_saved(saver: HoldfastSaver) -> None:
    values = [Holder(name="h" * 100, inside={"n": Unlike(name="u" * 100)}), Locked(name="l" * 100)]
    first = put(saver, values)
    put(saver, values, parent=first)
    for reader in (saver, elsewhere(saver)):
        restored = value_of(reader)
        assert restored[0].inside == {"n": {"name": "u" * 100}}
        assert restored[1].name == "l" * 100
        assert restored[1].lock is not values[1].lock, "a field that is not serialized is created again"


class State(TypedDict, total=False):
    m: Annotated[Mine, "a value of that class"]
    other: Any


@pytest.mark.parametrize("strict", ["true", "false"])
def test_environment_variables_do_not_change_the_allowed_types(strict: str) -> None:
    code = """
from tests.adapters.langgraph.test_object_cache import Mine, Theirs, compiled, thread
from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.errors import InvalidInput
graph = compiled(HoldfastSaver(":memory:"))
graph.invoke({"m": Mine()}, thread())
print(graph.get_state(thread()).values)
try:
    graph.invoke({"other": Theirs()}, thread())
except InvalidInput as error:
    print(error)
"""
    environment = {**os.environ, "LANGGRAPH_STRICT_MSGPACK": strict, "PYTHONPATH": ":".join(["src", ".", *sys.path])}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert "{'m': Mine(a=2)}" in ran.stdout, ran.stderr
    assert "Theirs is not on the list" in ran.stdout, ran.stderr


def compiled(saver: HoldfastSaver) -> Any:
    graph = StateGraph(State)
    graph.add_node("node", lambda state: {"m": Mine(a=2)})
    graph.add_edge(START, "node")
    return graph.compile(checkpointer=saver)


def test_the_types_of_one_graph_are_not_allowed_for_others_on_the_same_saver(saver: HoldfastSaver) -> None:
    """LangGraph gives each graph a clone of the saver that allows the types of that graph."""
    clone = saver.with_allowlist([(Mine.__module__, "Mine")])
    put(clone, [Mine()])
    assert value_of(clone) == [Mine()]
    for other in (saver, elsewhere(saver)):
        with raises(InvalidInput, field="allow") as caught:
            put(other, [Mine()])
        assert "allow=[Mine]" in str(caught.value)
    with raises(InvalidInput, field="allow") as caught:
        value_of(elsewhere(saver))
    assert "allow=[Mine]" in str(caught.value)
    saver.close()
    assert value_of(clone) == [Mine()], "the closed database is opened again"
    clone.close()


class Counted:
    """A store that counts the pieces that it saves and reads."""

    def __init__(self, saver: HoldfastSaver) -> None:
        self._store = saver._database.sync_store()
        self.new: list[int] = []
        self.read: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, *args: Any, **arguments: Any) -> Any:
        self.new.append(sum(isinstance(piece, bytes) for piece in arguments["pieces"]))
        return self._store.put(*args, **arguments)

    def find(self, **arguments: Any) -> Any:
        checkpoint = self._store.find(**arguments)
        self.read.append(sum(piece is not None for piece in checkpoint.pieces))
        return checkpoint


def test_no_piece_of_a_cached_state_is_sent_or_read(saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(saver)
    monkeypatch.setattr(saver._database, "sync_store", lambda: counted)
    messages = [HumanMessage("a" * 100), HumanMessage("b" * 100)]
    first = put(saver, messages)
    put(saver, messages, parent=first)
    assert counted.new == [3, 0]
    assert value_of(saver) == messages
    assert counted.read == [0]
    another = elsewhere(saver)
    counted = Counted(another)
    monkeypatch.setattr(another._database, "sync_store", lambda: counted)
    assert [value_of(another), value_of(another)] == [messages, messages]
    assert counted.read == [3, 0]


def test_another_state_has_another_shape(saver: HoldfastSaver) -> None:
    put(saver, ["a" * 100])
    config = thread("t", checkpoint_ns="")
    for names in (["v", "w"], ["w"], ["v"], ["w", "v"]):
        checkpoint = empty_checkpoint()
        checkpoint |= {"channel_values": dict.fromkeys(names, "x"), "channel_versions": dict.fromkeys(names, 1)}
        saver.put(config, checkpoint, {"source": "loop", "step": 1}, {})
        for reader in (saver, elsewhere(saver)):
            read = reader.get_tuple(thread("t", checkpoint_ns="", checkpoint_id=checkpoint["id"]))
            assert read is not None
            assert list(read.checkpoint["channel_values"]) == names


def test_the_number_of_cached_shapes_is_limited() -> None:
    cached = CachedThread("stamp")
    for place in range(1, MAX_SHAPES + 3):
        cached.keep_shape(place, b"shape %d" % place)
    cached.keep_shape(1, b"something else")
    assert cached.shape_at(1) == b"shape 1"
    assert cached.place_of_shape(b"shape 1") == 1
    assert cached.shape_at(MAX_SHAPES) is not None
    assert cached.shape_at(MAX_SHAPES + 1) is None
    assert cached.place_of_shape(b"something else") is None
    assert [list(span) for span in cached.held()] == [[1, MAX_SHAPES]]


@pytest.mark.parametrize(
    ("source", "new_versions", "looks"),
    [("input", {}, 0), ("input", {"other": 2}, 0), ("input", {"v": 2}, 2), ("loop", {}, 2), ("loop", {"v": 2}, 2)],
)
def test_objects_are_not_compared_when_an_input_is_saved(
    saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch, source: Any, new_versions: dict[str, int], looks: int
) -> None:
    put(saver, [HumanMessage("a" * 100), HumanMessage("b" * 100)])
    read = value_of(saver)
    looked: list[Any] = []
    is_unchanged = object_cache.is_unchanged

    def look(value: Any, was: Any) -> bool:
        looked.append(value)
        return is_unchanged(value, was)

    monkeypatch.setattr(object_cache, "is_unchanged", look)
    checkpoint = empty_checkpoint()
    checkpoint |= {"channel_values": {"v": read}, "channel_versions": {"v": 1} | new_versions}
    saver.put(thread("t", checkpoint_ns=""), checkpoint, {"source": source, "step": 2}, new_versions)
    assert len(looked) == looks
    assert value_of(elsewhere(saver)) == read


@pytest.mark.parametrize(("source", "new_versions"), [("input", {"v": 2}), ("loop", {}), ("update", {})])
def test_an_object_changed_in_place_is_saved(saver: HoldfastSaver, source: Any, new_versions: dict[str, int]) -> None:
    put(saver, [HumanMessage("a" * 100), HumanMessage("b" * 100)])
    read = value_of(saver)
    read[0].content = "c" * 100
    checkpoint = empty_checkpoint()
    checkpoint |= {"channel_values": {"v": read}, "channel_versions": {"v": 2}}
    saver.put(thread("t", checkpoint_ns=""), checkpoint, {"source": source, "step": 2}, new_versions)
    assert [message.content for message in value_of(elsewhere(saver))] == ["c" * 100, "b" * 100]
