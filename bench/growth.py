"""Benchmark of growth: appends to a long log, pages anywhere in it, and opening one of a million sessions.

Holdfast is compared with itself. The databases are filled by SQL, because 100,000 appends would take longer than everything
else. Before the measurement the files are read into the operating system's cache, because some machines evict it at any time and
the cost of the disk is not the cost of size.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

from .case import Case, Engine, Job, Result
from .workload import SEED, messages, middle_us

GROUPS: dict[str, Engine] = {"growth-sqlite": "sqlite", "growth-postgres": "postgres"}
TENANT = "bench"
LONG, SHORT = 100_000, 100
SHORT_SESSIONS = 50
FEW, MANY = 1_000, 1_000_000
PAGE = 50
_BLOCK = 20  # consecutive appends to one session


def cases() -> list[Case]:
    """Return the case with one long log, and the two cases with few and with many sessions."""
    result = []
    for group, engine in GROUPS.items():
        result.append(Case(group, "log", engine=engine, kept=True))
        result += [Case(group, "sessions", engine=engine, kept=True, params={"sessions": n}) for n in (FEW, MANY)]
    return result


def run(job: Job) -> Result:
    """Fill the database on the first repeat, then measure."""
    from holdfast import Holdfast

    url = job.place if job.place.startswith("postgresql:") else str(Path(job.place) / "agents.db")
    if job.fresh:
        _fill(url, job.params.get("sessions"))
    if job.place != url:
        _warm(Path(url))
    with Holdfast(url) as hf:
        tenant = hf.tenant(TENANT)
        if job.contender == "sessions":
            return _opening(tenant, job.params["sessions"], job.seconds)
        appends, pages = _appending(tenant, job.seconds), _paging(tenant, job.seconds)
    growth = appends["append_long_us"] / appends["append_short_us"]
    spread = max(pages.values()) / min(pages.values())
    return {**appends, **pages, "append_growth": round(growth, 3), "page_spread": round(spread, 3)}


def _warm(file: Path) -> None:
    """Read a SQLite database into the operating system's cache."""
    with file.open("rb") as opened:
        while opened.read(1_048_576):
            pass


def _appending(tenant: Any, seconds: float) -> Result:
    """Measure appends to the long log and to short ones in turn, so that both run under the same conditions."""
    supply, end = messages(_BLOCK), perf_counter() + seconds * 2
    took: dict[str, list[float]] = {"append_long_us": [], "append_short_us": []}
    place = 0
    while perf_counter() < end:
        place = place % SHORT_SESSIONS + 1
        for name, number in (("append_short_us", place), ("append_long_us", 0)):
            for message in supply:
                before = perf_counter()
                tenant.messages.append(_id(number), role=message["role"], content=message["content"])
                took[name].append(perf_counter() - before)
    return {name: middle_us(item) for name, item in took.items()}


def _paging(tenant: Any, seconds: float) -> Result:
    """Measure a page at the start, in the middle and at the end of the long log, in both directions."""
    pages = {}
    for direction, newest_first in (("oldest", False), ("newest", True)):
        for name, seq in (("start", 0), ("middle", LONG // 2), ("end", LONG - PAGE)):
            pages[f"page_{direction}_{name}_us"] = _page(tenant, seq, newest_first)
    return _take_turns(pages, seconds * 2)


def _page(tenant: Any, seq: int, newest_first: bool) -> Callable[[], Any]:
    """Return a call that reads the page of 50 messages after a position, with the cursor for it."""
    options: dict[str, Any] = {"limit": PAGE, "newest_first": newest_first}
    cursor = None
    if newest_first:
        cursor = tenant.messages.list(_id(0), before=seq + 2 * PAGE + 1, **options).next
    elif seq:
        cursor = tenant.messages.list(_id(0), after=seq - PAGE, **options).next
    page = tenant.messages.list(_id(0), cursor=cursor, **options)
    assert {message.seq for message in page} == set(range(seq + 1, seq + PAGE + 1))
    return lambda: tenant.messages.list(_id(0), cursor=cursor, **options)


def _opening(tenant: Any, count: int, seconds: float) -> Result:
    """Measure opening a random session by its id and by its key."""
    which = random.Random(SEED)
    return _take_turns(
        {
            "get_us": lambda: tenant.sessions.get(_id(which.randrange(count))),
            "find_us": lambda: tenant.sessions.find(f"key-{which.randrange(count)}"),
        },
        seconds,
    )


def _take_turns(calls: dict[str, Callable[[], Any]], seconds: float) -> Result:
    took: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        assert call()
    end = perf_counter() + seconds
    while perf_counter() < end:
        for name, call in calls.items():
            before = perf_counter()
            call()
            took[name].append(perf_counter() - before)
    return {name: middle_us(item) for name, item in took.items()}


def _id(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:012x}"


def _fill(url: str, sessions: int | None) -> None:
    from holdfast import Holdfast

    with Holdfast(url, auto_migrate=True) as hf:
        hf.tenant(TENANT).sessions.create(key="the tenant's first")
    if url.startswith("postgresql:"):
        _fill_postgres(url, sessions)
    else:
        _fill_sqlite(url, sessions)


def _fill_sqlite(path: str, sessions: int | None) -> None:
    # Close it explicitly: the garbage collector would close it while Holdfast has the file open through another SQLite
    # library, and the last connection of a library deletes the write-ahead log when it closes.
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA cache_size = -400000")
        for statement in _statements(sessions, "printf('00000000-0000-7000-8000-%012x', {})", "1700000000000000"):
            connection.execute(statement)
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _fill_postgres(url: str, sessions: int | None) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for statement in _statements(
            sessions, "('00000000-0000-7000-8000-' || lpad(to_hex({}), 12, '0'))::uuid", "now()"
        ):
            connection.execute(statement.encode())
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def _statements(sessions: int | None, id_of: str, now: str) -> Iterator[str]:
    """Yield the statements that create many sessions, or one session with a long log and some with short ones."""
    yield f"""
        INSERT INTO sessions (tenant_id, id, identifier, user_id, agent_id, created_at, updated_at, updated_minute)
        SELECT '{TENANT}', {id_of.format("n")}, 'key-' || n, 'user-' || (n % 1000), 'agent-' || (n % 10), {now}, {now},
               28000000 + n / 1000
        FROM ({_numbers(sessions or SHORT_SESSIONS + 1)}) AS numbers
    """
    if sessions:
        return
    content = '[{"type":"text","text":"' + messages(1)[0]["content"] + '"}]'
    for number in range(SHORT_SESSIONS + 1):
        length, session = SHORT if number else LONG, id_of.format(number)
        yield f"UPDATE sessions SET message_count = {length}, next_seq = {length + 1} WHERE id = {session}"
        yield f"""
            INSERT INTO messages (tenant_id, session_id, seq, id, role, content, created_at, updated_at)
            SELECT '{TENANT}', {session}, n + 1, {id_of.format(f"n + {number * LONG}")}, 'user', '{content}', {now}, {now}
            FROM ({_numbers(length)}) AS numbers
        """


def _numbers(count: int) -> str:
    """Return a query for the numbers from 0 to ``count - 1`` that both engines accept."""
    return f"WITH RECURSIVE c (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n + 1 < {count}) SELECT n FROM c"
