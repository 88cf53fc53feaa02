"""A saver for one thread of a graph that hands the last checkpoints back as they are: what LangGraph takes by itself."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

Config = Any


class Unsaved(BaseCheckpointSaver[int]):
    """Never writes anything down, and forgets what tasks wrote."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self._last: deque[CheckpointTuple] = deque(maxlen=kept)

    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        """The newest."""
        return self._last[0] if self._last else None

    def list(self, config: Config, **_: Any) -> Iterator[CheckpointTuple]:
        """All that are left, the newest first."""
        return iter(self._last)

    def put(self, config: Config, checkpoint: Any, metadata: Any, new_versions: Any) -> Config:
        """One more."""
        new = {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}
        mine = {**checkpoint, "channel_values": {**checkpoint["channel_values"]}}
        self._last.appendleft(CheckpointTuple(new, mine, metadata, config, []))
        return new

    def put_writes(self, config: Config, writes: Any, task_id: str, task_path: str = "") -> None:
        """Nothing comes of it: no task fails here."""

    async def aget_tuple(self, config: Config) -> CheckpointTuple | None:
        """``get_tuple`` for asyncio."""
        return self.get_tuple(config)

    async def alist(self, config: Config, **_: Any) -> AsyncIterator[CheckpointTuple]:
        """``list`` for asyncio."""
        for item in self._last:
            yield item

    async def aput(self, config: Config, checkpoint: Any, metadata: Any, new_versions: Any) -> Config:
        """``put`` for asyncio."""
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(self, config: Config, writes: Any, task_id: str, task_path: str = "") -> None:
        """``put_writes`` for asyncio."""
