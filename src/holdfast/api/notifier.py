"""Wakes the streams of this server when a topic they follow was written to."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Notifier:
    """Topics, such as a session's log, and their listeners. It does not see writes of other servers: streams poll for them."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self.is_closed = False

    @property
    def listeners(self) -> int:
        """The number of listeners."""
        return sum(map(len, self._waiting.values()))

    def publish(self, topic: str) -> None:
        """Wake the listeners of a topic."""
        for event in self._waiting.get(topic, ()):
            event.set()

    def close(self) -> None:
        """Wake all listeners; later waits return immediately."""
        self.is_closed = True
        for topic in self._waiting:
            self.publish(topic)

    def listen(self, topic: str) -> TopicListener:
        """Return a listener of a topic, which must be closed."""
        return TopicListener(self, topic)

    def _add(self, topic: str, event: asyncio.Event) -> None:
        self._waiting.setdefault(topic, set()).add(event)

    def _remove(self, topic: str, event: asyncio.Event) -> None:
        events = self._waiting.get(topic, set())
        events.discard(event)
        if not events:
            self._waiting.pop(topic, None)


class TopicListener:
    """Waits for publications on a topic. One that happens between two waits ends the second wait."""

    def __init__(self, notifier: Notifier, topic: str) -> None:
        self._notifier, self._topic, self._event = notifier, topic, asyncio.Event()
        notifier._add(topic, self._event)

    async def wait(self, seconds: float) -> None:
        """Wait for a publication, at most this long."""
        if not self._notifier.is_closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._event.wait()
        self._event.clear()

    def close(self) -> None:
        """Stop listening."""
        self._notifier._remove(self._topic, self._event)
