"""Who may write to a thread: one checkpoint at a time, or any number of tasks.

LangGraph saves what a task wrote while the checkpoint before is still being saved. Such a call waits until it knows what the
other has stored: it then has less to store itself, and knows where (see the store's ``foresight``). Tasks do not wait for
each other, so that those of many branches share a commit where commits can be shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from weakref import WeakValueDictionary

from holdfast.haste import WouldWait, is_hasty


class _Turn:
    """Who writes to one thread at the moment."""

    __slots__ = ("__weakref__", "alone", "together")

    def __init__(self) -> None:
        self.alone = False
        self.together = 0


class Turns:
    """Who writes, to any of the threads of one saver."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()

    @contextmanager
    def of(self, thread_id: str, *, alone: bool) -> Iterator[None]:
        """Write to a thread, alone or together with others who would; a hasty call does not wait for that.

        Raises:
            WouldWait: others are writing, and the call is hasty.
        """
        with self._changed:
            turn = self._turns.get(thread_id)
            if turn is None:
                turn = self._turns[thread_id] = _Turn()
            while turn.alone or (alone and turn.together):
                if is_hasty():
                    raise WouldWait
                self._changed.wait()
            turn.alone = alone
            turn.together += not alone
        try:
            yield
        finally:
            with self._changed:
                turn.alone = False
                turn.together -= not alone
                self._changed.notify_all()
