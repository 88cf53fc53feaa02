"""The state of delta channels is independent of the metadata and of pruning."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.channels import EphemeralValue, UntrackedValue
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from holdfast.adapters.langgraph import HoldfastSaver
from tests.adapters.langgraph.beside import Beside, logging
from tests.adapters.langgraph.conftest import Savers
from tests.adapters.langgraph.graphs import thread

COUNTERS = "counters_since_delta_snapshot"


class WithoutCounters:
    """Saves without the counters of delta channels, as some releases of LangGraph do for some updates."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        left = {name: value for name, value in metadata.items() if name != COUNTERS}
        return super().put(config, checkpoint, left, new_versions)  # type: ignore[misc]


class Uncounted(WithoutCounters, HoldfastSaver):
    pass


class UncountedInMemory(WithoutCounters, InMemorySaver):
    pass


class UncountedInFile(WithoutCounters, SqliteSaver):
    pass


@pytest.mark.parametrize("update", ["END", "__copy__", "__input__", "one"])
def test_an_update_without_counters_loses_nothing(address: str, update: str) -> None:
    with Uncounted(address) as saver:
        graph = logging(saver)
        for name in "abc":
            graph.invoke({"log": [name], "rare": [name]}, thread())
        before = graph.get_state(thread()).values
        assert before["rare"] == ["a", "b", "c", "rare 3"]
        values = {"log": ["more"]} if update in ("__input__", "one") else None
        for _ in range(2):
            graph.update_state(thread(), values, as_node=END if update == "END" else update)
        after = graph.get_state(thread()).values
        assert (after["rare"], after["log"][: len(before["log"])]) == (before["rare"], before["log"])
        saver.prune(["t"])
        assert graph.get_state(thread()).values == after


def test_prune_keeps_no_ancestor_for_channels_that_are_empty(savers: Savers) -> None:
    """For example ephemeral and untracked channels, which have versions but no values."""
    state = {"flag": Annotated[str, EphemeralValue], "memo": Annotated[str, UntrackedValue], "n": int}
    builder = StateGraph(TypedDict("Plain", state, total=False))  # type: ignore[operator]
    builder.add_node("up", lambda state: {"flag": "up", "memo": "m", "n": 1})
    builder.add_node("on", lambda state: {"n": 2})
    builder.add_node("off", lambda state: {"n": 3})
    for one, other in ((START, "up"), ("up", "on"), ("on", "off"), ("off", END)):
        builder.add_edge(one, other)
    saver = savers()
    graph = builder.compile(checkpointer=saver)
    for _ in range(2):
        graph.invoke({"n": 0}, thread())
        saver.prune(["t"])
        assert len(list(saver.list(thread()))) == 1
    assert graph.get_state(thread()).values["n"] == 3


# Any sequence of operations on a thread, compared with LangGraph's own savers

TEXTS = st.lists(st.sampled_from("xyz"), min_size=1, max_size=2)
VALUES = st.fixed_dictionaries({}, optional={"log": TEXTS, "rare": TEXTS, "seen": TEXTS})
BACK = st.none() | st.integers(0, 9)
DURABILITY = st.sampled_from(["sync", "async", "exit"])
STEP = st.one_of(
    st.tuples(st.just("invoke"), VALUES.filter(bool) | st.none(), DURABILITY, BACK),
    st.tuples(st.just("update"), VALUES, st.sampled_from(["one", "two", "__input__"]), BACK),
    st.tuples(st.just("update"), st.none(), st.sampled_from([END, "__copy__"]), BACK),
    st.tuples(st.just("prune"), st.integers(1, 3)),
    st.tuples(st.just("copy_thread")),
)
STEPS = st.lists(STEP, min_size=1, max_size=8)


def check(saver: HoldfastSaver, in_memory: Any, in_a_file: Any, steps: list[Any]) -> None:
    """Run the same operations on our saver and LangGraph's; after every operation, a graph reads the same state.

    LangGraph's own savers differ among themselves where a release of it stores too little. There, one of them is right.
    """
    with in_a_file.from_conn_string(":memory:") as other:
        beside = Beside(saver, in_memory(), other)
        beside.do("invoke", {"log": ["begin"], "rare": ["begin"]}, "sync", None)
        for step in steps:
            beside.do(*step)
            ours, *theirs = beside.shown()
            assert ours in theirs, step
        for pair in beside.pairs:
            ours, *theirs = beside.shown_at(pair)
            assert ours in theirs


@settings(max_examples=30)
@given(STEPS)
def test_any_operations_have_the_same_result_as_with_langgraphs_own_savers(steps: list[Any]) -> None:
    with HoldfastSaver(":memory:") as saver:
        check(saver, InMemorySaver, SqliteSaver, steps)


@settings(max_examples=20)
@given(STEPS)
def test_any_operations_have_the_same_result_without_counters_in_the_metadata(steps: list[Any]) -> None:
    with Uncounted(":memory:") as saver:
        check(saver, UncountedInMemory, UncountedInFile, steps)


# The history of a delta channel, on synthetic chains of checkpoints

CELL = st.sampled_from(["", "", "snapshot", "plain"])
LINK = st.tuples(CELL, CELL, st.booleans(), st.booleans(), st.integers(0, 2))


@pytest.mark.parametrize("is_versioned", [False, True], ids=["without versions", "with versions"])
@settings(max_examples=30)
@given(links=st.lists(LINK, min_size=1, max_size=40))
def test_the_history_of_a_channel_equals_that_of_langgraphs_own_saver(is_versioned: bool, links: list[Any]) -> None:
    """The value is that of the nearest ancestor that has one, with all later writes, including the writes to that ancestor."""
    reference = InMemorySaver()
    with HoldfastSaver(":memory:") as saver:
        made = chain(saver, links, is_versioned)
        assert chain(reference, links, is_versioned) == made
        for config in [made[-1], made[len(made) // 2], made[0]]:
            for channels in (["a"], ["a", "b"], ["b", "never"], []):
                ours = saver.get_delta_channel_history(config=config, channels=channels)
                assert ours == reference.get_delta_channel_history(config=config, channels=channels)


def test_a_cycle_of_ancestors_terminates(savers: Savers) -> None:
    saver = savers()

    def put(parent: Any, number: int) -> Any:
        checkpoint = {**empty_checkpoint(), "id": str(UUID(int=number)), "channel_versions": {"a": number}}
        config = saver.put(parent, checkpoint, {"source": "loop", "step": number}, {"a": number})
        saver.put_writes(config, [("a", number)], str(UUID(int=number)))
        return config

    one = put(thread(checkpoint_ns=""), 1)
    two = put(one, 2)
    put(two, 1)
    history = saver.get_delta_channel_history(config=two, channels=["a"])
    assert [value for _, _, value in history["a"]["writes"]] == [1]


def test_an_empty_id_means_the_newest_checkpoint(savers: Savers) -> None:
    saver = savers()
    made = chain(saver, [("plain", "", True, False, 0), ("", "", False, False, 0)], True)
    newest = thread(checkpoint_ns="", checkpoint_id="")
    assert saver.get_tuple(newest).config == made[-1]  # type: ignore[union-attr]
    history = saver.get_delta_channel_history(config=newest, channels=["a"])
    assert history == saver.get_delta_channel_history(config=made[-1], channels=["a"])
    assert history["a"]["seed"] == [0]


def chain(saver: BaseCheckpointSaver[Any], links: list[Any], is_versioned: bool) -> list[Any]:
    """Create checkpoints with values, snapshots or neither, and writes, each after the previous or a slightly older one."""
    made: list[Any] = []
    for number, (a, b, writes_a, writes_b, back) in enumerate(links):
        values = {name: cell(kind, number) for name, kind in (("a", a), ("b", b)) if kind}
        versions = dict.fromkeys(["a", "b"] if is_versioned else values, number + 1)
        checkpoint = {**empty_checkpoint(), "id": str(UUID(int=number + 1)), "channel_values": values}
        checkpoint["channel_versions"] = versions
        parent = made[max(0, len(made) - 1 - back)] if made else thread(checkpoint_ns="")
        made.append(saver.put(parent, checkpoint, {"source": "loop", "step": number}, versions))
        new = [(name, number) for name, is_written in (("a", writes_a), ("b", writes_b)) if is_written]
        if new:
            saver.put_writes(made[-1], new, str(UUID(int=number)))
    return made


def cell(kind: str, number: int) -> Any:
    return _DeltaSnapshot([number]) if kind == "snapshot" else [number]
