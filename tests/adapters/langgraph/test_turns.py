"""Checkpoints of a thread are saved one after the other, and what tasks wrote between them, all at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from holdfast.adapters.langgraph.turns import Turns
from holdfast.haste import WouldWait, hastily

SOON_S = 0.05
WAITED_S = 10.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


class _Writer:
    """Somebody who writes until told to stop."""

    def __init__(self, turns: Turns, pool: ThreadPoolExecutor, thread_id: str = "t", *, alone: bool) -> None:
        self.writes, self._stop = threading.Event(), threading.Event()
        self._done: Future[None] = pool.submit(self._write, turns, thread_id, alone)

    def _write(self, turns: Turns, thread_id: str, alone: bool) -> None:
        with turns.of(thread_id, alone=alone):
            self.writes.set()
            assert self._stop.wait(WAITED_S)

    def stop(self) -> None:
        self._stop.set()
        self._done.result(WAITED_S)


@contextmanager
def _waits(writer: _Writer) -> Iterator[None]:
    """It begins when the block is over, and not before."""
    assert not writer.writes.wait(SOON_S)
    yield
    assert writer.writes.wait(WAITED_S)


def test_tasks_write_together(pool: ThreadPoolExecutor) -> None:
    turns = Turns()
    writers = [_Writer(turns, pool, alone=False) for _ in range(4)]
    assert all(writer.writes.wait(WAITED_S) for writer in writers)
    for writer in writers:
        writer.stop()


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_a_checkpoint_is_saved_alone(pool: ThreadPoolExecutor, first: bool, second: bool) -> None:
    turns = Turns()
    one = _Writer(turns, pool, alone=first)
    assert one.writes.wait(WAITED_S)
    other = _Writer(turns, pool, alone=second)
    with _waits(other):
        one.stop()
    other.stop()


def test_a_checkpoint_waits_for_the_last_of_the_tasks(pool: ThreadPoolExecutor) -> None:
    turns = Turns()
    tasks = [_Writer(turns, pool, alone=False) for _ in range(3)]
    assert all(task.writes.wait(WAITED_S) for task in tasks)
    checkpoint = _Writer(turns, pool, alone=True)
    tasks[1].stop()
    tasks[0].stop()
    with _waits(checkpoint):
        tasks[2].stop()
    checkpoint.stop()


def test_threads_of_graphs_have_nothing_to_do_with_each_other(pool: ThreadPoolExecutor) -> None:
    turns = Turns()
    one, other = _Writer(turns, pool, "a", alone=True), _Writer(turns, pool, "b", alone=True)
    assert one.writes.wait(WAITED_S)
    assert other.writes.wait(WAITED_S)
    one.stop()
    other.stop()


def test_a_hasty_call_does_not_wait(pool: ThreadPoolExecutor) -> None:
    turns = Turns()
    one = _Writer(turns, pool, alone=True)
    assert one.writes.wait(WAITED_S)
    for alone in (True, False):
        with hastily(), pytest.raises(WouldWait), turns.of("t", alone=alone):
            pass
    one.stop()
    with hastily(), turns.of("t", alone=True):
        pass


def test_whoever_fails_lets_the_next_one_write(pool: ThreadPoolExecutor) -> None:
    turns = Turns()
    for alone in (True, False):
        with pytest.raises(ZeroDivisionError), turns.of("t", alone=alone):
            _ = 1 / 0
    after = _Writer(turns, pool, alone=True)
    assert after.writes.wait(WAITED_S)
    after.stop()


def test_nothing_is_kept_of_a_thread_that_nobody_writes_to() -> None:
    turns = Turns()
    for number in range(100):
        with turns.of(f"thread {number}", alone=True):
            pass
    assert len(turns._turns) == 0
