"""Who waits for something to be written, and is told when it was: for streams of events within one server."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class News:
    """Things by name, such as a session's log. What other servers write, nobody here is told: it has to be looked for."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self.is_over = False

    @property
    def listeners(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    def tell(self, name: str) -> None:
        """There is something new under this name."""
        for each in self._waiting.get(name, ()):
            each.set()

    def close(self) -> None:
        """Let nobody wait any longer."""
        self.is_over = True
        for name in self._waiting:
            self.tell(name)

    def listen(self, name: str) -> Listener:
        """Somebody who waits for this, until closed."""
        return Listener(self, name)

    def _add(self, name: str, event: asyncio.Event) -> None:
        self._waiting.setdefault(name, set()).add(event)

    def _remove(self, name: str, event: asyncio.Event) -> None:
        there = self._waiting.get(name, set())
        there.discard(event)
        if not there:
            self._waiting.pop(name, None)


class Listener:
    """One who waits. Nothing that is told between two waits is missed."""

    def __init__(self, news: News, name: str) -> None:
        self._news, self._name, self._event = news, name, asyncio.Event()
        news._add(name, self._event)

    async def wait(self, seconds: float) -> None:
        """Until there is something new, or so long."""
        if not self._news.is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._event.wait()
        self._event.clear()

    def close(self) -> None:
        """Wait no longer."""
        self._news._remove(self._name, self._event)
