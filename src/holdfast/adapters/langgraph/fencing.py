"""What ``single_writer`` needs to know: who goes back on purpose, and which failure nobody has heard of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from langgraph.checkpoint.base import get_checkpoint_id

from holdfast.errors import HoldfastError

Config = Any
Place = tuple[str, str, str]
"""A thread, a namespace, and a checkpoint in it; empty where there is none before."""
MAX_REMEMBERED = 1_024
"""Entries of each kind that are kept; the oldest goes first."""


class Choices:
    """Older checkpoints that were asked for: going on from one is meant, as long as nobody else goes on from the newest."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._heads: dict[Place, str] = {}

    def choose(self, place: Place, head: str) -> None:
        """A checkpoint was asked for, while another was the newest."""
        with self._lock:
            _remember(self._heads, place, head)

    def forget(self, place: Place) -> None:
        """It is the newest itself, or has been gone on from."""
        with self._lock:
            self._heads.pop(place, None)

    def head(self, place: Place) -> str | None:
        """The newest checkpoint when this one was asked for; ``None`` if it was not, or was the newest."""
        return self._heads.get(place)


class Failures:
    """Calls for subgraphs that failed, by the checkpoint of the graph itself that they belong to.

    LangGraph saves in the background. If a subgraph is interrupted at the same time, LangGraph drops the error. So the next call
    for the graph itself, which it never drops, raises the error again.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._errors: dict[tuple[str, str], HoldfastError] = {}

    @contextmanager
    def noticed(self, config: Config) -> Iterator[None]:
        """Save something, unless something of a subgraph could not be saved; and remember an error."""
        given = config["configurable"]
        thread = str(given.get("thread_id"))
        if not given.get("checkpoint_ns"):
            with self._lock:
                earlier = self._errors.pop((thread, str(get_checkpoint_id(config))), None)
            if earlier is not None:
                raise earlier
        try:
            yield
        except HoldfastError as error:
            above = given.get("checkpoint_map", {}).get("")
            if given.get("checkpoint_ns") and above:
                with self._lock:
                    _remember(self._errors, (thread, str(above)), error)
            raise


def _remember(entries: dict[Any, Any], key: Any, value: Any) -> None:
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > MAX_REMEMBERED:
        del entries[next(iter(entries))]
