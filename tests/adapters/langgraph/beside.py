"""Runs one graph on several savers step by step: after every operation, all savers must return the same state."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from langgraph.channels import DeltaChannel, EphemeralValue, UntrackedValue
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.pregel import _checkpoint
from typing_extensions import TypedDict

from tests.adapters.langgraph.graphs import thread

DELTAS = ("log", "rare")
IS_ORDERED = hasattr(_checkpoint, "exit_delta_late_task_id")
"""Whether this release of LangGraph orders the writes of parallel branches."""


def add_up(values: list[str] | None, writes: Sequence[list[str]]) -> list[str]:
    return [*(values or []), *(line for write in writes for line in write)]


class Log(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(add_up, snapshot_frequency=3)]
    rare: Annotated[list[str], DeltaChannel(add_up, snapshot_frequency=100)]
    seen: Annotated[list[str], operator.add]
    flag: Annotated[str, EphemeralValue]
    memo: Annotated[str, UntrackedValue]
    n: int


def logging(saver: Any) -> Any:
    """Return a graph of two nodes that write to channels of all kinds, and to different ones each time."""

    def one(state: Log) -> dict[str, Any]:
        n = state.get("n", 0) + 1
        new: dict[str, Any] = {"n": n, "log": [f"one {n}"], "memo": f"memo {n}"}
        return new | ({"flag": "up"} if n % 2 else {}) | ({"rare": [f"rare {n}"]} if n % 3 == 0 else {})

    def two(state: Log) -> dict[str, Any]:
        n = state.get("n", 0)
        return {"seen": [f"two {n} {state.get('flag')}"]} | ({"log": [f"two {n}"]} if n % 2 else {})

    graph = StateGraph(Log)
    graph.add_node("one", one)
    graph.add_node("two", two)
    graph.add_edge(START, "one")
    graph.add_edge("one", "two")
    graph.add_edge("two", END)
    return graph.compile(checkpointer=saver)


def shown(graph: Any, config: Any) -> Any:
    """Return the state that a graph reads. Old releases order parallel writes by random ids, so their order is ignored."""
    state = graph.get_state(config)
    values = (
        state.values if IS_ORDERED else state.values | {name: sorted(state.values.get(name, ())) for name in DELTAS}
    )
    return values, state.next


class Beside:
    """The same thread with several savers, the first of which is ours, and the correspondence of their checkpoints."""

    def __init__(self, *savers: BaseCheckpointSaver[Any]) -> None:
        self.savers, self.graphs = savers, [logging(saver) for saver in savers]
        self.pairs: list[list[Any]] = []
        """The configs of each checkpoint by saver, oldest first."""
        self._seen: list[set[str]] = [set() for _ in savers]
        self._copies = 0

    def do(self, kind: str, *args: Any) -> None:
        """Do the same with every saver: it succeeds with all of them, or fails with the same error."""
        outcomes = getattr(self, f"_{kind}")(*args) or [None]
        assert len({type(outcome) for outcome in outcomes}) == 1, outcomes
        self._learn()

    def shown(self) -> list[Any]:
        """Return the state of the newest checkpoint by saver."""
        return [shown(graph, thread()) for graph in self.graphs]

    def shown_at(self, pair: Sequence[Any]) -> list[Any]:
        """Return the state of an older checkpoint by saver."""
        return [shown(graph, config) for graph, config in zip(self.graphs, pair, strict=True)]

    def _invoke(self, values: Any, durability: str, back: int | None) -> Any:
        return self._each(lambda graph, config: graph.invoke(values, config, durability=durability), back)

    def _update(self, values: Any, node: str, back: int | None) -> Any:
        return self._each(lambda graph, config: graph.update_state(config, values, as_node=node), back)

    def _prune(self, keep: int) -> None:
        self.savers[0].prune(["t"], keep=keep)  # type: ignore[call-arg]
        # Older checkpoints are only kept because these depend on them, and may be incomplete.
        self.pairs = sorted(self.pairs, key=lambda pair: _id(pair[0]))[-keep:]

    def _copy_thread(self) -> None:
        self._copies += 1
        name = f"copy {self._copies}"
        self.savers[0].copy_thread("t", name)
        assert shown(self.graphs[0], thread(name)) == shown(self.graphs[0], thread())

    def _each(self, do: Callable[[Any, Any], Any], back: int | None) -> list[Exception | None]:
        """Do it from the newest checkpoint, or from the one ``back`` steps before it."""
        pair = [thread() for _ in self.savers]
        # Old releases read the writes to the first checkpoint even if no descendant has the channel.
        past = self.pairs if IS_ORDERED else self.pairs[1:]
        if back is not None and past:
            pair = past[-1 - back % len(past)]
        outcomes: list[Exception | None] = []
        for graph, config in zip(self.graphs, pair, strict=True):
            try:
                do(graph, config)
                outcomes.append(None)
            except Exception as error:
                outcomes.append(error)
        return outcomes

    def _learn(self) -> None:
        """Pair the new checkpoints in the order of their creation."""
        new: list[list[Any]] = []
        for seen, saver in zip(self._seen, self.savers, strict=True):
            fresh = sorted(
                (checkpoint.config for checkpoint in saver.list(thread()) if _id(checkpoint.config) not in seen),
                key=_id,
            )
            seen.update(map(_id, fresh))
            new.append(fresh)
        assert len({len(configs) for configs in new}) == 1
        self.pairs += map(list, zip(*new, strict=True))


def _id(config: Any) -> str:
    return str(config["configurable"]["checkpoint_id"])
