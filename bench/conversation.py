"""Benchmark of long conversations: reading the context, compaction and its rollback, forks, and buffered appends.

Holdfast is compared with itself, and with a transaction by hand that deletes and inserts the same rows. Both sides of a ratio
take turns in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

from .case import Case, Job, Result
from .workload import messages, middle_us

GROUP = "conversation"
TENANT = "bench"
LONG, SHORT, COMPACTED, BUFFERED = 10_000, 100, 1_000, 100
CONTEXT_TOKENS = 50 * 256
"""About the number of tokens of 50 messages of 1 KB."""
SLOW_FLUSH_US = 1_000
"""Microseconds added to every flush in the case that measures buffering on a disk of usual speed."""
_MIN_ROUNDS = 3


def cases() -> list[Case]:
    """Return one case per part, so that no part warms the caches of another."""
    delays = (0, SLOW_FLUSH_US)
    buffering = [Case(GROUP, "buffering", params={"flush_delay_us": delay}, flush_delay_us=delay) for delay in delays]
    return [*(Case(GROUP, name) for name in _PARTS if name != "buffering"), *buffering]


def run(job: Job) -> Result:
    """Measure one part."""
    from holdfast import Holdfast

    path = str(Path(job.place) / "agents.db")
    with Holdfast(path) as hf:
        return _PARTS[job.contender](hf.tenant(TENANT), path, job.seconds)


def _filled(tenant: Any, length: int) -> str:
    from holdfast import NewMessage

    session: str = tenant.sessions.create().id
    new = [NewMessage(role=message["role"], content=message["content"], token_count=256) for message in messages(1_000)]
    for start in range(0, length, 1_000):
        tenant.messages.append_many(session, new[: min(1_000, length - start)])
    return session


def _context(tenant: Any, path: str, seconds: float) -> Result:
    """Compare reading the context of a session of 10,000 messages with reading its last 50 messages."""
    session = _filled(tenant, LONG)
    took = _in_turns(
        {
            "context_us": lambda: tenant.messages.context(session, max_tokens=CONTEXT_TOKENS),
            "last_50_us": lambda: tenant.messages.last(session, 50),
        },
        seconds,
    )
    return {**took, "context_ratio": round(took["context_us"] / took["last_50_us"], 3)}


def _compaction(tenant: Any, path: str, seconds: float) -> Result:
    """Compare compacting 1,000 messages, and rolling back, with deleting and inserting the same rows by hand."""
    from holdfast import CompactionPolicy

    policy = CompactionPolicy(strategy="summarization", target_tokens=1_000, preserve_last=0, protected_tokens=0)
    took: dict[str, list[float]] = {"compact_us": [], "rollback_us": [], "raw_compact_us": [], "raw_rollback_us": []}
    end = perf_counter() + seconds * 3
    while perf_counter() < end or len(took["compact_us"]) < _MIN_ROUNDS:
        session = _filled(tenant, COMPACTED)
        _checkpoint_wal(path)
        started = perf_counter()
        event = tenant.compactions.compact(session, policy, summary="what happened")
        took["compact_us"].append(perf_counter() - started)
        assert event.messages_removed == COMPACTED
        _checkpoint_wal(path)
        started = perf_counter()
        tenant.compactions.rollback(event.id)
        took["rollback_us"].append(perf_counter() - started)
        assert tenant.sessions.get(session).message_count == COMPACTED
        by_hand = _by_hand(path, session)
        took["raw_compact_us"].append(by_hand[0])
        took["raw_rollback_us"].append(by_hand[1])
    middle = {name: middle_us(item) for name, item in took.items()}
    ratios = {
        "compact_ratio": round(middle["compact_us"] / middle["raw_compact_us"], 3),
        "rollback_ratio": round(middle["rollback_us"] / middle["raw_rollback_us"], 3),
    }
    return {**middle, **ratios}


def _by_hand(path: str, session: str) -> tuple[float, float]:
    """Return the seconds of a raw transaction that archives the messages, and of one that restores them."""
    import apsw

    connection = apsw.Connection(path)
    for pragma in ("busy_timeout = 30000", "foreign_keys = ON", "cache_size = -65536", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    columns = "tenant_id, session_id, seq, id, kind, role, content, token_count, metadata, is_preserved, is_summary"
    rows = connection.execute(
        f"SELECT {columns}, created_at, updated_at FROM messages WHERE tenant_id = ? AND session_id = ?",
        (TENANT, session),
    ).fetchall()
    event = f"{session[:-4]}ffff"
    archived = [(TENANT, event, row[2], row[3], session, f'{{"content":{row[6]}}}', 0) for row in rows]
    _checkpoint_wal(path)
    started = perf_counter()
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "INSERT INTO compaction_events (tenant_id, id, session_id, number, strategy, original_tokens, compacted_tokens,"
        " messages_removed, created_at, updated_at) VALUES (?, ?, ?, 1000000, 'raw', 0, 0, ?, 0, 0)",
        (TENANT, event, session, len(rows)),
    )
    connection.executemany(
        "INSERT INTO message_archive (tenant_id, compaction_event_id, seq, id, session_id, original_message,"
        " is_rewritten, archived_at)"
        " VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
        archived,
    )
    connection.execute("DELETE FROM messages WHERE tenant_id = ? AND session_id = ?", (TENANT, session))
    connection.execute("COMMIT")
    archiving = perf_counter() - started
    _checkpoint_wal(path)
    started = perf_counter()
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        f"INSERT INTO messages ({columns}, created_at, updated_at) VALUES ({', '.join('?' * 13)})", rows
    )
    connection.execute("DELETE FROM compaction_events WHERE tenant_id = ? AND id = ?", (TENANT, event))
    connection.execute("COMMIT")
    restoring = perf_counter() - started
    connection.close()
    return archiving, restoring


def _checkpoint_wal(path: str) -> None:
    """Run a WAL checkpoint, so that each measurement starts with an empty log and no commit pays for earlier writes."""
    import apsw

    connection = apsw.Connection(path)
    # A connection opens the write-ahead log with its first read.
    connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
    written, moved = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    assert written == moved >= 0
    connection.close()


def _forking(tenant: Any, path: str, seconds: float) -> Result:
    """Compare a fork in the middle of 10,000 messages with one in the middle of 100."""
    long, short = _filled(tenant, LONG), _filled(tenant, SHORT)
    took = _in_turns(
        {
            "fork_long_us": lambda: tenant.branches.fork(long, at=LONG // 2),
            "fork_short_us": lambda: tenant.branches.fork(short, at=SHORT // 2),
        },
        seconds,
    )
    return {**took, "fork_growth": round(took["fork_long_us"] / took["fork_short_us"], 3)}


def _buffering(tenant: Any, path: str, seconds: float) -> Result:
    """Compare saving 100 buffered messages at once with 100 durable appends, both to an empty session."""
    supply, numbers = messages(BUFFERED), count()

    def buffered() -> float:
        session = tenant.sessions.create(key=f"conversation {next(numbers)}")
        buffer = tenant.sessions.buffered(session.key)
        started = perf_counter()
        for message in supply:
            buffer.add_message(role=message["role"], content=message["content"])
        buffer.save()
        return perf_counter() - started

    def durable() -> float:
        session = tenant.sessions.create().id
        started = perf_counter()
        for message in supply:
            tenant.messages.append(session, role=message["role"], content=message["content"])
        return perf_counter() - started

    took: dict[str, list[float]] = {"buffered_us": [], "durable_us": []}
    end = perf_counter() + seconds
    while perf_counter() < end or len(took["durable_us"]) < _MIN_ROUNDS:
        took["buffered_us"].append(buffered())
        took["durable_us"].append(durable())
    middle = {name: middle_us(item) for name, item in took.items()}
    return {**middle, "buffered_speedup": round(middle["durable_us"] / middle["buffered_us"], 1)}


def _in_turns(calls: dict[str, Callable[[], Any]], seconds: float) -> Result:
    took: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    end = perf_counter() + seconds
    while perf_counter() < end or len(next(iter(took.values()))) < _MIN_ROUNDS:
        for name, call in calls.items():
            before = perf_counter()
            call()
            took[name].append(perf_counter() - before)
    return {name: middle_us(item) for name, item in took.items()}


_PARTS: dict[str, Callable[[Any, str, float], Result]] = {
    "context": _context,
    "compaction": _compaction,
    "forking": _forking,
    "buffering": _buffering,
}
