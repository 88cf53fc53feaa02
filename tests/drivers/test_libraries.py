"""A file is used through one SQLite library at a time: two in one process would both write at once, and lose commits."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import AsyncHoldfast, Holdfast
from holdfast.engines.sqlite import stdlib
from holdfast.errors import InvalidInput, ReadOnly, SchemaMismatch, Unavailable
from tests.drivers.callers import SQLITE_LEGS, Leg, done, leg
from tests.errors import raises

JOINED = [pytest.param(item, id=item.name) for item in SQLITE_LEGS]


@pytest.mark.parametrize("leg", JOINED)
def test_a_connection_of_the_other_library_is_refused_and_writes_nothing(leg: Leg, sqlite_path: str) -> None:
    other: Any = "stdlib" if leg.library == "apsw" else "apsw"

    async def run() -> None:
        kind = AsyncHoldfast if leg.asynchronous else Holdfast
        hf: Any = kind(sqlite_path, sqlite=other)
        await done(hf.open() if leg.asynchronous else None)
        async with leg.connect(sqlite_path) as caller:
            acme = hf.tenant("acme").join(caller.raw)
            for call in (lambda: acme.sessions.create(key="k"), acme.sessions.list, acme.sessions.list):
                with raises(InvalidInput, field="library"):
                    await done(call())
        assert await done(hf.tenant("acme").sessions.count()) == 0
        await done(hf.close())

    asyncio.run(run())


def test_the_refusal_names_the_option_to_use(sqlite_path: str) -> None:
    caller = sqlite3.connect(sqlite_path)
    with Holdfast(sqlite_path) as hf, pytest.raises(InvalidInput) as caught:
        hf.tenant("acme").join(caller).sessions.create(key="k")
    assert f"Holdfast({sqlite_path!r}, sqlite='stdlib')" in str(caught.value)
    with Holdfast(sqlite_path, sqlite="stdlib") as hf:  # and so it works
        hf.tenant("acme").join(caller).sessions.create(key="k")
        caller.commit()
        assert hf.tenant("acme").sessions.count() == 1
    caller.close()


@pytest.mark.parametrize("how", ["symlink", "hard link", "relative"])
def test_a_second_name_of_a_file_is_the_same_file(how: str, sqlite_path: str, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    if how == "symlink":
        other.symlink_to(sqlite_path)
    elif how == "hard link":
        other.hardlink_to(sqlite_path)
    else:
        other = Path(os.path.relpath(sqlite_path))
    caller = sqlite3.connect(other)
    with Holdfast(sqlite_path) as hf, raises(InvalidInput, field="library"):
        hf.tenant("acme").join(caller).sessions.create(key="k")
    caller.close()


def test_an_attached_file_is_claimed_too(sqlite_path: str) -> None:
    caller = sqlite3.connect(":memory:")
    caller.execute("ATTACH ? AS theirs", (sqlite_path,))
    with Holdfast(sqlite_path) as hf, raises(InvalidInput, field="library"):
        hf.tenant("acme").join(caller).sessions.create(key="k")
    caller.close()


@pytest.mark.parametrize(("first", "second"), [("apsw", "stdlib"), ("stdlib", "apsw")])
def test_two_holdfasts_of_one_process_agree_on_the_library(first: Any, second: Any, sqlite_path: str) -> None:
    with Holdfast(sqlite_path, sqlite=first) as hf, Holdfast(sqlite_path, sqlite=first) as same:
        with raises(InvalidInput, field="library"):
            Holdfast(sqlite_path, sqlite=second)
        hf.tenant("acme").sessions.create(key="k")
        assert same.tenant("acme").sessions.count() == 1
    with Holdfast(sqlite_path, sqlite=second) as hf:  # once it is closed, another may be used
        assert hf.tenant("acme").sessions.count() == 1


def test_a_file_that_was_joined_is_not_opened_with_the_other_library(sqlite_path: str) -> None:
    caller = sqlite3.connect(sqlite_path)
    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme").join(caller)
        acme.sessions.create(key="k")
        with raises(InvalidInput, field="library"):
            Holdfast(sqlite_path)
        caller.commit()
        caller.close()
        with Holdfast(sqlite_path) as own:
            assert own.tenant("acme").sessions.count() == 1


def test_refusing_to_open_a_file_does_not_release_its_locks(sqlite_path: str) -> None:
    """Opening and closing a file releases every lock that this process has on it, so it is not even opened."""
    caller = sqlite3.connect(sqlite_path, isolation_level=None)
    caller.execute("PRAGMA journal_mode = DELETE")  # so that the lock is one on the file itself
    with Holdfast(":memory:") as hf:
        acme = hf.tenant("acme").join(caller)
        acme.sessions.create(key="k")
        caller.execute("BEGIN IMMEDIATE")
        with pytest.raises(InvalidInput):
            Holdfast(sqlite_path)
        probe = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
        assert _fails_as_locked(probe, sqlite_path)
    caller.close()


def _fails_as_locked(code: str, path: str) -> bool:
    completed = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    return completed.returncode != 0 and "database is locked" in completed.stderr


def test_a_deleted_file_does_not_claim_its_successor(tmp_path: Path) -> None:
    """A new file is often given the number of one that was just deleted."""
    path, kept = tmp_path / "a.db", []
    with Holdfast(":memory:") as hf:
        for _ in range(5):
            caller = sqlite3.connect(path)
            kept.append(hf.tenant("acme").join(caller))
            with pytest.raises(SchemaMismatch):
                kept[-1].sessions.list()
            caller.close()
            path.unlink()
            Holdfast(str(path)).close()
            for item in tmp_path.iterdir():
                item.unlink()


def test_a_closed_connection_claims_no_file(sqlite_path: str) -> None:
    caller = sqlite3.connect(sqlite_path)
    with Holdfast(":memory:") as hf:
        handle = hf.tenant("acme").join(caller)
        assert handle.sessions.list() == []
        caller.close()
        Holdfast(sqlite_path).close()


def test_an_unreferenced_connection_claims_no_file(sqlite_path: str) -> None:
    Holdfast(sqlite_path)  # never closed
    gc.collect()
    with Holdfast(sqlite_path, sqlite="stdlib") as hf:
        hf.tenant("acme").sessions.create(key="k")


def test_a_write_of_holdfast_waits_for_the_callers_transaction(sqlite_path: str) -> None:
    """Without the wait, both commits were acknowledged and one of them was lost."""
    caller = sqlite3.connect(sqlite_path, check_same_thread=False)
    with Holdfast(sqlite_path, sqlite="stdlib") as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create(key="k")
        acme.join(caller).messages.append(session.id, role="user", content="joined")
        own = threading.Thread(target=lambda: acme.messages.append(session.id, role="user", content="own"))
        own.start()
        assert acme.messages.list(session.id) == []
        caller.commit()
        own.join()
        assert [(message.seq, message.content[0]["text"]) for message in acme.messages.list(session.id)] == [
            (1, "joined"),
            (2, "own"),
        ]
    caller.close()


class TestStdlib:
    """Holdfast on Python's own SQLite, apart from what the contract says about every leg."""

    def test_the_address_can_name_the_library(self, sqlite_path: str) -> None:
        caller = sqlite3.connect(sqlite_path)
        with Holdfast(f"sqlite:///{sqlite_path}?library=stdlib") as hf:
            hf.tenant("acme").join(caller).sessions.create(key="k")
        caller.close()

    @pytest.mark.parametrize(
        ("open_it", "field"),
        [
            (lambda path: Holdfast(path, sqlite="mysql"), "sqlite"),  # type: ignore[arg-type]
            (lambda path: Holdfast(f"sqlite:///{path}?library=mysql"), "url"),
        ],
    )
    def test_an_unknown_library_is_refused(self, open_it: Callable[[str], Any], field: str, sqlite_path: str) -> None:
        with raises(InvalidInput, field=field):
            open_it(sqlite_path)

    def test_a_new_file_is_migrated_and_durable(self, tmp_path: Path) -> None:
        path = str(tmp_path / "new.db")
        with Holdfast(path, sqlite="stdlib") as hf:
            session = hf.tenant("acme").sessions.create(key="k")
        reader = apsw.Connection(path)
        assert reader.execute("PRAGMA journal_mode").fetchall() == [("wal",)]
        reader.close()
        with Holdfast(path) as hf:
            assert hf.tenant("acme").sessions.get(session.id) == session

    def test_a_read_only_file_can_be_read(self, sqlite_path: str) -> None:
        with Holdfast(f"sqlite:///{sqlite_path}?mode=ro&library=stdlib") as hf:
            assert hf.tenant("acme").sessions.list() == []
            with pytest.raises(ReadOnly):
                hf.tenant("acme").sessions.create(key="k")

    def test_the_error_for_a_missing_folder_names_it(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match="no/such/folder"):
            Holdfast(str(tmp_path / "no/such/folder/a.db"), sqlite="stdlib")

    def test_an_old_sqlite_of_python_is_refused_with_the_required_version(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(stdlib, "MIN_SQLITE_VERSION", (99, 0, 0))
        with raises(InvalidInput, field="sqlite"):
            Holdfast(str(tmp_path / "a.db"), sqlite="stdlib")

    def test_threads_share_commits_through_the_standard_library(self, sqlite_path: str) -> None:
        with Holdfast(sqlite_path, sqlite="stdlib") as hf:
            acme = hf.tenant("acme")
            session = acme.sessions.create(key="k")

            def one() -> None:
                for _ in range(10):
                    acme.messages.append(session.id, role="user", content="x")

            threads = [threading.Thread(target=one) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [message.seq for message in acme.messages.list(session.id)] == list(range(1, 61))

    def test_an_asynchronous_write_waits_in_a_thread_and_not_in_the_event_loop(self, sqlite_path: str) -> None:
        async def run() -> None:
            async with (
                AsyncHoldfast(sqlite_path, sqlite="stdlib") as hf,
                leg("aiosqlite").connect(sqlite_path) as caller,
            ):
                acme = hf.tenant("acme")
                session = await acme.sessions.create(key="k")
                await acme.join(caller.raw).messages.append(session.id, role="user", content="joined")
                own = asyncio.ensure_future(acme.messages.append(session.id, role="user", content="own"))
                for _ in range(10):
                    await asyncio.sleep(0)  # the loop goes on while the write waits for the caller
                assert not own.done()
                await caller.commit()
                assert (await own).seq == 2

        asyncio.run(run())
