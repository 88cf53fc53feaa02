"""Temporary folders for archives, which are too large for memory, and a limit on how many exist at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from .limits import ServerLimits
from .slots import Slot, Slots


class TempDirs:
    """The temporary folders in use."""

    def __init__(self, limits: ServerLimits) -> None:
        self._slots = Slots("archives", limits.archives, limits.tenant_share)

    @property
    def in_use(self) -> int:
        """The number of folders."""
        return self._slots.in_use

    async def folder(self, tenant: str) -> Folder:
        """A new, empty folder.

        Raises:
            Unavailable: there are too many already, of all tenants or of this one.
        """
        slot = self._slots.take(tenant)
        try:
            return Folder(slot, await asyncio.to_thread(TemporaryDirectory, prefix="holdfast-"))
        except BaseException:
            slot.give_back()
            raise


class Folder:
    """A folder until it is closed, which removes it with everything in it."""

    def __init__(self, slot: Slot, folder: TemporaryDirectory[str]) -> None:
        self._slot, self._folder = slot, folder
        self.path = Path(folder.name)

    async def close(self) -> None:
        """Remove it."""
        try:
            await asyncio.to_thread(self._folder.cleanup)
        finally:
            self._slot.give_back()
