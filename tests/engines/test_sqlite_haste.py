"""Hasty calls, which an event loop makes: at once, or given up with nothing done."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Holdfast, TenantHandle
from holdfast.errors import NotFound
from holdfast.haste import BUSY_WAIT_S, QUICK_S, Pace, WouldWait, can_hurry, hastily
from tests.engines.sqlite_handles import in_threads

AT_ONCE_S = 20.0
"""Far less than anybody waits who does."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a.db")


@pytest.fixture
def acme(path: str) -> Iterator[TenantHandle]:
    with Holdfast(path) as hf:
        yield hf.tenant("acme")


def _say(acme: TenantHandle, session: str, text: str) -> Any:
    return acme.messages.append(session, role="user", content=text)


def _texts(acme: TenantHandle, session: str) -> list[str]:
    return [message.content[0]["text"] for message in acme.messages.list(session)]


def _hastily(acme: TenantHandle, session: str, text: str) -> float:
    """Try, and be refused; how long that took."""
    began = time.monotonic()
    with hastily(), pytest.raises(WouldWait):
        _say(acme, session, text)
    return time.monotonic() - began


def test_who_is_alone_is_served_and_errors_are_its_own(acme: TenantHandle) -> None:
    session = acme.sessions.create().id
    with hastily():
        assert _say(acme, session, "one").seq == 1
        assert acme.sessions.get(session).message_count == 1
        with pytest.raises(NotFound):
            _say(acme, "0190b5a8-0000-7000-8000-000000000000", "nobody")
    assert _texts(acme, session) == ["one"]


def test_while_another_thread_writes_it_gives_up_at_once_and_nothing_of_it_is_done(acme: TenantHandle) -> None:
    session = acme.sessions.create().id
    inside, on = threading.Event(), threading.Event()

    async def slow(connection: Any) -> None:
        inside.set()
        assert on.wait(30)

    async def write() -> None:
        await acme._engine.write(slow)

    def hasty() -> float:
        assert inside.wait(30)
        try:
            return _hastily(acme, session, "in vain")
        finally:
            on.set()

    def patient() -> Any:
        assert inside.wait(30)
        return _say(acme, session, "waited")  # and is led by whoever comes first

    def writer() -> None:
        with pytest.raises(StopIteration):
            write().send(None)

    _, took, said = in_threads([writer, hasty, patient])
    assert took < AT_ONCE_S
    assert said.seq == 1
    assert _texts(acme, session) == ["waited"]


def test_while_another_process_writes_it_gives_up_at_once_and_the_others_still_wait(
    acme: TenantHandle, path: str
) -> None:
    session = acme.sessions.create().id
    other = apsw.Connection(path)
    other.execute("BEGIN IMMEDIATE")
    assert _hastily(acme, session, "in vain") < AT_ONCE_S
    threading.Timer(0.3, lambda: other.execute("COMMIT")).start()
    assert _say(acme, session, "waited").seq == 1
    with hastily():
        assert _say(acme, session, "at once").seq == 2
    other.close()
    assert _texts(acme, session) == ["waited", "at once"]


def test_what_a_leader_has_taken_already_is_waited_for_and_done_once(
    acme: TenantHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between queueing and trying to lead, another thread leads, and takes the hasty call along."""
    session = acme.sessions.create().id
    engine: Any = acme._engine
    mine, leading, taken = threading.get_ident(), engine._leading, []

    class Overtaken:
        def acquire(self, blocking: bool = True) -> bool:
            if threading.get_ident() == mine and not taken:
                taken.append(True)
                in_threads([lambda: _say(acme, session, "overtaking")])
                return False
            return bool(leading.acquire(blocking))

        def __getattr__(self, name: str) -> Any:
            return getattr(leading, name)

    monkeypatch.setattr(engine, "_leading", Overtaken())
    with hastily():
        assert _say(acme, session, "hasty").seq == 1
    assert taken
    assert _texts(acme, session) == ["hasty", "overtaking"]


def test_haste_ends_with_its_block_and_is_nobody_elses(acme: TenantHandle, path: str) -> None:
    session = acme.sessions.create().id
    with hastily():
        other = apsw.Connection(path)
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(0.2, lambda: other.execute("COMMIT")).start()
        (said,) = in_threads([lambda: _say(acme, session, "of another thread")])
    assert said.seq == 1
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.2, lambda: other.execute("COMMIT")).start()
    assert _say(acme, session, "later").seq == 2
    other.close()


def test_only_a_sqlite_file_of_our_own_can_be_hurried(acme: TenantHandle, path: str, postgres_url: str) -> None:
    assert can_hurry(acme)
    connection = apsw.Connection(path)
    assert not can_hurry(acme.join(connection))
    connection.close()
    with Holdfast(postgres_url) as hf:
        assert not can_hurry(hf.tenant("acme"))


def test_a_pace_is_quick_until_calls_wait_and_again_when_they_no_longer_do() -> None:
    pace = Pace()
    assert pace.quick()
    pace.observe(BUSY_WAIT_S)
    assert not pace.quick()
    calls = 0
    while not pace.quick():
        pace.observe(0.0)
        calls += 1
    assert 10 <= calls <= 20
    for _ in range(100):
        pace.observe(QUICK_S * 0.9)
    assert pace.quick()
