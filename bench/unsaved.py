"""A saver that keeps the last checkpoints of one thread in memory, to measure LangGraph's own time."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

Config = Any


class Unsaved(BaseCheckpointSaver[int]):
    """A saver that stores nothing durably and ignores the writes of tasks."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self._last: deque[CheckpointTuple] = deque(maxlen=kept)

    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        """Return the newest checkpoint."""
        return self._last[0] if self._last else None

    def list(self, config: Config, **_: Any) -> Iterator[CheckpointTuple]:
        """Return the kept checkpoints, newest first."""
        return iter(self._last)

    def put(self, config: Config, checkpoint: Any, metadata: Any, new_versions: Any) -> Config:
        """Keep a checkpoint in memory."""
        new = {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}
        mine = {**checkpoint, "channel_values": {**checkpoint["channel_values"]}}
        self._last.appendleft(CheckpointTuple(new, mine, metadata, config, []))
        return new

    def put_writes(self, config: Config, writes: Any, task_id: str, task_path: str = "") -> None:
        """Ignore the writes, because no task fails in the benchmark."""

    async def aget_tuple(self, config: Config) -> CheckpointTuple | None:
        """Run ``get_tuple`` for asynchronous callers."""
        return self.get_tuple(config)

    async def alist(self, config: Config, **_: Any) -> AsyncIterator[CheckpointTuple]:
        """Run ``list`` for asynchronous callers."""
        for item in self._last:
            yield item

    async def aput(self, config: Config, checkpoint: Any, metadata: Any, new_versions: Any) -> Config:
        """Run ``put`` for asynchronous callers."""
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(self, config: Config, writes: Any, task_id: str, task_path: str = "") -> None:
        """Ignore the writes, because no task fails in the benchmark."""
