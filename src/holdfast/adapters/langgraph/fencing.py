"""State of ``single_writer``: deliberate forks from older checkpoints, and errors that LangGraph has dropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from langgraph.checkpoint.base import get_checkpoint_id

from holdfast.errors import HoldfastError

Config = Any
CheckpointPath = tuple[str, str, str]
"""A thread, a namespace, and a checkpoint id, which is empty before the first checkpoint."""
MAX_REMEMBERED = 1_024
"""Maximum number of entries of each kind; the oldest is dropped first."""


class ForkPoints:
    """Older checkpoints that the graph has read.

    Continuing from one of them is a deliberate fork, provided that no other writer has continued from the newest checkpoint.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._heads: dict[CheckpointPath, str] = {}

    def choose(self, path: CheckpointPath, head: str) -> None:
        """Record that a checkpoint was read while ``head`` was the newest."""
        with self._lock:
            _remember(self._heads, path, head)

    def forget(self, path: CheckpointPath) -> None:
        """Forget a checkpoint that is the newest one, or that the graph has continued from."""
        with self._lock:
            self._heads.pop(path, None)

    def head(self, path: CheckpointPath) -> str | None:
        """Return the checkpoint that was the newest when this one was read; ``None`` if it was not read or was the newest."""
        return self._heads.get(path)


class SubgraphFailures:
    """Failed calls for subgraphs, by the checkpoint of the root graph that they belong to.

    LangGraph saves in the background. If a subgraph is interrupted at the same time, LangGraph drops the error. The next call for
    the root graph therefore raises it again, because LangGraph never drops the errors of those calls.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._errors: dict[tuple[str, str], HoldfastError] = {}

    @contextmanager
    def guard(self, config: Config) -> Iterator[None]:
        """Wrap a call that saves: raise the error of an earlier failed call for a subgraph, and remember a new error."""
        configurable = config["configurable"]
        thread = str(configurable.get("thread_id"))
        if not configurable.get("checkpoint_ns"):
            with self._lock:
                earlier = self._errors.pop((thread, str(get_checkpoint_id(config))), None)
            if earlier is not None:
                raise earlier
        try:
            yield
        except HoldfastError as error:
            root_checkpoint = configurable.get("checkpoint_map", {}).get("")
            if configurable.get("checkpoint_ns") and root_checkpoint:
                with self._lock:
                    _remember(self._errors, (thread, str(root_checkpoint)), error)
            raise


def _remember(entries: dict[Any, Any], key: Any, value: Any) -> None:
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > MAX_REMEMBERED:
        del entries[next(iter(entries))]
