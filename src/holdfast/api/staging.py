"""Temporary folders for what is too large to be held in memory, and no more of them at once than fit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.errors import Unavailable


class Staging:
    """Folders that are in use now."""

    def __init__(self, most: int) -> None:
        self._most, self.in_use = most, 0

    async def folder(self) -> Folder:
        """A new, empty folder.

        Raises:
            Unavailable: there are too many already.
        """
        if self.in_use >= self._most:
            raise Unavailable(f"there are archives = {self._most} under way already; come back later")
        self.in_use += 1
        try:
            return Folder(self, await asyncio.to_thread(TemporaryDirectory, prefix="holdfast-"))
        except BaseException:
            self.in_use -= 1
            raise


class Folder:
    """A folder until it is closed, which removes it with everything in it."""

    def __init__(self, staging: Staging, folder: TemporaryDirectory[str]) -> None:
        self._staging, self._folder = staging, folder
        self.path = Path(folder.name)

    async def close(self) -> None:
        """Remove it."""
        try:
            await asyncio.to_thread(self._folder.cleanup)
        finally:
            self._staging.in_use -= 1
