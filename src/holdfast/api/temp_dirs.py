"""Temporary directories for archives, which are too large for memory, and a limit on their number."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from .limits import ServerLimits
from .slots import Slots, TakenSlot


class TempDirs:
    """The temporary directories in use."""

    def __init__(self, limits: ServerLimits) -> None:
        self._slots = Slots("archives", limits.archives, limits.tenant_share)

    @property
    def in_use(self) -> int:
        """The number of directories."""
        return self._slots.in_use

    async def create(self, tenant: str) -> TempDir:
        """Create an empty directory.

        Raises:
            Unavailable: the limit of directories in total or of this tenant is reached.
        """
        slot = self._slots.take(tenant)
        try:
            return TempDir(slot, await asyncio.to_thread(TemporaryDirectory, prefix="holdfast-"))
        except BaseException:
            slot.release()
            raise


class TempDir:
    """A temporary directory. Closing it removes it with its content."""

    def __init__(self, slot: TakenSlot, directory: TemporaryDirectory[str]) -> None:
        self._slot, self._directory = slot, directory
        self.path = Path(directory.name)

    async def close(self) -> None:
        """Remove the directory and release its slot."""
        try:
            await asyncio.to_thread(self._directory.cleanup)
        finally:
            self._slot.release()
