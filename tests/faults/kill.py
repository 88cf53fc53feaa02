"""Writers in separate processes, which tests kill at any moment, and the ledger of their acknowledged writes.

A writer reports on a pipe that it is about to append, appends, and reports the acknowledgement. When it is killed, the
ledger on the other side knows which appends must be there, and which may be.

All writers are forked from one nursery process that has imported everything already, so starting one costs
milliseconds; the process that runs the tests is never forked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from queue import Empty, Queue
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Struct

from holdfast.handles import AsyncHoldfast, Holdfast
from holdfast.ids import RandomIds
from holdfast.stores.conversation.message_log import Message
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.stores.conversation.sessions import Session
from holdfast.tenant_handles import TenantHandle

TENANT = "killed"
SEVERAL = 3
"""Messages of one ``append_many``."""
PAUSE_S = 0.01
"""After a refusal, so that a server that is down is not asked in a tight loop."""
SILENCE_S = 60.0
"""A writer that says nothing for so long hangs."""


class Work(Struct, frozen=True):
    """What a writer does until it is killed: appends to its sessions, from several threads or tasks."""

    url: str
    sessions: list[str]
    style: str = "threads"
    """``threads`` on a ``Holdfast``, or ``tasks`` on an ``AsyncHoldfast``."""
    width: int = 3
    """How many of them."""


class Line(Struct, frozen=True):
    """What a writer says, or the nursery about it."""

    what: str
    """``started``, ``trying``, ``acknowledged``, ``refused`` or ``gone``."""
    writer: int
    session: str = ""
    ids: list[str] = []
    seqs: list[int] = []
    detail: str = ""


class Ledger:
    """The messages that writers tried to append, and the acknowledged ones."""

    def __init__(self) -> None:
        self._tried: dict[str, list[list[str]]] = {}
        self._acknowledged: dict[str, dict[str, int]] = {}
        self.acknowledgements = 0

    def note(self, line: Line) -> None:
        """Record a line of a writer."""
        if line.what == "trying":
            self._tried.setdefault(line.session, []).append(line.ids)
        elif line.what == "acknowledged":
            self.acknowledgements += 1
            self._acknowledged.setdefault(line.session, {}).update(zip(line.ids, line.seqs, strict=True))

    def problems(self, tenant: TenantHandle) -> list[str]:
        """Return the broken promises: lost, duplicate, foreign, incomplete or miscounted messages."""
        result: list[str] = []
        for session, calls in self._tried.items():
            result += self._session_problems(tenant, session, calls)
        return result

    def _session_problems(self, tenant: TenantHandle, session: str, calls: Sequence[Sequence[str]]) -> list[str]:
        counted, existing = _at_rest(tenant, session)
        seqs = {message.id: message.seq for message in existing}
        result = [
            f"lost: {item} was acknowledged at {seq} and is at {seqs.get(item)}"
            for item, seq in self._acknowledged.get(session, {}).items()
            if seqs.get(item) != seq
        ]
        for ids in calls:
            if sum(item in seqs for item in ids) not in (0, len(ids)):
                result.append(f"half done: of {ids} only {[item for item in ids if item in seqs]} are there")
        tried = {item for ids in calls for item in ids}
        result += [f"no writer wrote {item}" for item in seqs if item not in tried]
        result += [
            f"not as written: {item.id}"
            for item in existing
            if item.content != [{"type": "text", "text": _text(item.id)}]
        ]
        if [message.seq for message in existing] != list(range(1, len(existing) + 1)):
            result.append(f"the places of {session} have gaps: {[message.seq for message in existing]}")
        if (counted.message_count, counted.token_count) != (len(existing), len(existing)):
            result.append(
                f"{session} counts {counted.message_count} messages, {counted.token_count} tokens, of {len(existing)}"
            )
        return result


class Writers:
    """The nursery and its writers, seen from the process that kills them."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.refusals: list[str] = []
        self._pids: dict[int, int] = {}
        self._said: Queue[Line] = Queue()
        self._started = 0

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.faults.kill"]
        self._nursery = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for writer in list(self._pids):
            self.kill(writer)
        assert self._nursery.stdin is not None
        self._nursery.stdin.close()
        self._nursery.wait()
        self._listener.join()
        assert self._nursery.stdout is not None
        self._nursery.stdout.close()

    @property
    def alive(self) -> list[int]:
        """Return the writers that were not killed."""
        return sorted(self._pids)

    def start(self, work: Work) -> int:
        """Start a writer and return its number."""
        self._started += 1
        self._tell({"writer": self._started, "work": work})
        while self._started not in self._pids:
            self._take()
        return self._started

    def work(self, acknowledgements: int) -> None:
        """Let the writers work until a number of further appends were acknowledged.

        Raises:
            AssertionError: they hang.
        """
        enough = self.ledger.acknowledgements + acknowledgements
        while self.ledger.acknowledgements < enough:
            self._take()

    def kill(self, *writers: int) -> None:
        """Kill writers with SIGKILL, and record all of their output."""
        for writer in writers:
            os.kill(self._pids[writer], signal.SIGKILL)
        for writer in writers:
            self._tell({"reap": self._pids[writer], "writer": writer})
            while writer in self._pids:
                self._take()

    def _tell(self, command: dict[str, object]) -> None:
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(msgspec.json.encode(command) + b"\n")
        self._nursery.stdin.flush()

    def _listen(self) -> None:
        assert self._nursery.stdout is not None
        for line in self._nursery.stdout:
            self._said.put(msgspec.json.decode(line, type=Line))

    def _take(self) -> None:
        try:
            line = self._said.get(timeout=SILENCE_S)
        except Empty:
            raise AssertionError(f"the writers hang; refused: {self.refusals[-3:]}") from None
        if line.what == "started":
            self._pids[line.writer] = int(line.detail)
        elif line.what == "gone":
            del self._pids[line.writer]
        elif line.what == "refused":
            self.refusals.append(line.detail)
        else:
            self.ledger.note(line)


def _say(line: Line) -> None:
    # A write of less than a page is atomic, so a killed process has written a whole line or none.
    os.write(1, msgspec.json.encode(line) + b"\n")


def _at_rest(tenant: TenantHandle, session: str) -> tuple[Session, Sequence[Message]]:
    """Return a session and its messages once they no longer change: a server finishes requests of a dead writer."""
    while True:
        before, existing = tenant.sessions.get(session), tenant.messages.list(session)
        if tenant.sessions.get(session) == before:
            return before, existing


def _text(message_id: str) -> str:
    return f"the text of {message_id} " * 20


class _Pen:
    """What one thread or task writes: single messages and small batches in turn."""

    def __init__(self, writer: int, session: str) -> None:
        self._writer, self._session = writer, session
        self._ids = RandomIds()
        self._turn = 0

    def next(self) -> list[NewMessage]:
        self._turn += 1
        ids = [self._ids.new() for _ in range(SEVERAL if self._turn % 3 == 0 else 1)]
        _say(Line("trying", self._writer, self._session, ids))
        return [NewMessage(role="user", content=_text(item), id=item, token_count=1) for item in ids]

    def done(self, ids: list[str], seqs: list[int]) -> None:
        _say(Line("acknowledged", self._writer, self._session, ids, seqs))

    def refused(self, error: Exception) -> None:
        _say(Line("refused", self._writer, self._session, detail=f"{type(error).__name__}: {error}"[:1_000]))


def _write_in_threads(writer: int, work: Work) -> None:
    handle = Holdfast(work.url).tenant(TENANT)
    pause = threading.Event()

    def write(pen: _Pen, session: str) -> None:
        while True:
            new = pen.next()
            try:
                messages = handle.messages.append_many(session, new)
            except Exception as error:
                pen.refused(error)
                pause.wait(PAUSE_S)
                continue
            pen.done([item.id for item in messages], [item.seq for item in messages])

    places = [work.sessions[number % len(work.sessions)] for number in range(work.width)]
    threads = [threading.Thread(target=write, args=(_Pen(writer, place), place)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def _write_in_tasks(writer: int, work: Work) -> None:
    handle = (await AsyncHoldfast(work.url).open()).tenant(TENANT)

    async def write(pen: _Pen, session: str) -> None:
        while True:
            new = pen.next()
            try:
                messages = await handle.messages.append_many(session, new)
            except Exception as error:
                pen.refused(error)
                await asyncio.sleep(PAUSE_S)
                continue
            pen.done([item.id for item in messages], [item.seq for item in messages])

    places = [work.sessions[number % len(work.sessions)] for number in range(work.width)]
    await asyncio.gather(*[write(_Pen(writer, place), place) for place in places])


class _Command(Struct):
    writer: int
    work: Work | None = None
    reap: int | None = None


def _be_nursery() -> None:
    """Fork writers and collect them, as requested on the standard input, until it ends."""
    logging.disable()  # what pools log while a server is away: the ledger says it better
    for text in sys.stdin.buffer:
        command = msgspec.json.decode(text, type=_Command)
        if command.reap is not None:
            os.waitpid(command.reap, 0)
            _say(Line("gone", command.writer))
        elif command.work is not None:
            pid = os.fork()
            if pid == 0:
                _be_writer(command.writer, command.work)
            _say(Line("started", command.writer, detail=str(pid)))


def _be_writer(writer: int, work: Work) -> None:
    try:
        if work.style == "tasks":
            asyncio.run(_write_in_tasks(writer, work))
        else:
            _write_in_threads(writer, work)
    except BaseException as error:
        _say(Line("refused", writer, detail=f"{type(error).__name__}: {error}"[:1_000]))
    finally:
        os._exit(1)  # never back into the nursery's loop


if __name__ == "__main__":
    _be_nursery()
