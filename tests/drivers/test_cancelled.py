"""A task cancelled while its savepoint is set, released or rolled back: the caller's transaction stays intact.

PostgreSQL fails the whole transaction with a statement that is cancelled, and these are the statements that no savepoint is
around. They are over in microseconds, so here the server is made to wait for a lock in front of one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest

from holdfast.errors import AlreadyExists
from tests.drivers.callers import LEGS, Leg, joined

LOCK = 4711
WAITS = """SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
WHERE = {
    "setting the savepoint": (True, "SAVEPOINT", False, 0),
    "keeping the savepoint": (True, "RELEASE", False, 1),
    "undoing the savepoint": (True, "ROLLBACK TO", True, 0),
    "beginning": (False, "BEGIN", False, 0),
    "committing": (False, "COMMIT", False, 1),
    "rolling back": (False, "ROLLBACK", True, 0),
}
"""Inside a transaction of the caller's, the statement, whether the call fails by itself, how many messages it leaves."""
CASES = [
    pytest.param(leg, *where, id=f"{leg.name}-{name}")
    for leg in LEGS
    if leg.asynchronous and leg.engine == "postgres" and "SQLAlchemy" not in leg.name
    for name, where in WHERE.items()
    if where[0] or leg.name != "psycopg async"  # which is always inside a transaction
]


class Slowed:
    """Statements that begin with a word wait for a lock on the server, in the same message, so that a cancellation hits them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, word: str, holder: psycopg.Connection[Any]) -> None:
        self._word, self._holder = word, holder
        holder.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        for kind in (asyncpg.Connection, psycopg.AsyncRawCursor):
            monkeypatch.setattr(kind, "execute", self._slowing(kind.execute))

    def _slowing(self, execute: Any) -> Any:
        async def slowly(raw: Any, sql: Any, *args: Any, **options: Any) -> Any:
            text = sql.decode() if isinstance(sql, bytes) else sql
            if self._word and text.startswith(self._word):
                text = f"SELECT pg_advisory_lock({LOCK}), pg_advisory_unlock({LOCK}); {text}"
                return await execute(raw, text.encode() if isinstance(sql, bytes) else text, *args, **options)
            return await execute(raw, sql, *args, **options)

        return slowly

    async def under_way(self) -> None:
        """Wait until the server waits."""
        while True:
            if self._holder.execute(WAITS).fetchone() != (0,):
                return
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        """Let the statement continue, and all others pass."""
        self._word = ""
        self._holder.execute("SELECT pg_advisory_unlock(%s)", [LOCK])


@pytest.mark.parametrize(("leg", "inside", "word", "fails", "kept"), CASES)
@pytest.mark.parametrize("times", [1, 3], ids=["once", "again and again"])
def test_a_cancelled_savepoint_is_released_or_rolled_back_completely(
    leg: Leg,
    times: int,
    inside: bool,
    word: str,
    fails: bool,
    kept: int,
    open_stage: Callable[[Leg], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        async with open_stage(leg) as stage:
            with psycopg.connect(stage.url, autocommit=True) as holder:
                await cancel_during(stage, holder)

    async def cancel_during(stage: Any, holder: psycopg.Connection[Any]) -> None:
        session, caller, acme = await joined(stage, inside=inside)
        await acme.messages.append(session.id, role="user", content="first")  # and all statements are prepared
        slowed = Slowed(monkeypatch, word, holder)
        call = acme.sessions.create(key="k") if fails else acme.messages.append(session.id, role="user", content="cut")
        task = asyncio.ensure_future(call)
        await asyncio.wait_for(slowed.under_way(), 60)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.01)
        slowed.stop()
        with suppress(asyncio.CancelledError, AlreadyExists):
            await task
        assert task.cancelled()
        last = await acme.messages.append(session.id, role="user", content="last")
        assert last.seq == 2 + kept
        if inside:
            await caller.commit()
        assert (await stage.tenant().sessions.get(session.id)).message_count == last.seq
        assert await caller.labels() == (["before"] if inside else [])

    asyncio.run(run())
