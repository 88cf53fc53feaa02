"""The word index: when it is written, what remains after deletions, and where it cannot be used."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import apsw
import psycopg
import pytest

from holdfast import AsyncHoldfast, Holdfast, NewMessage, PoolOptions, TenantHandle
from holdfast.engines.dialect import Dialect
from holdfast.engines.sqlite.engine import SqliteEngine
from holdfast.errors import InvalidInput, Unavailable
from holdfast.limits import Limits
from holdfast.stores.conversation.search import index as search_index
from holdfast.stores.conversation.search.index import drain, queries
from holdfast.stores.conversation.search.query import Matcher, parse, tag_of
from holdfast.stores.conversation.search.searchable_text import Marker
from holdfast.sync_runner import step
from tests.engines.sqlite_handles import in_threads
from tests.errors import raises

RARE = "zyxwvut"
Fetch = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a.db")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, path: str) -> str:
    return path if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with Holdfast(url, pool=PoolOptions(min_connections=1, max_connections=8)) as opened:
        yield opened


@pytest.fixture
def fetch(url: str) -> Fetch:
    """Return rows, read on a separate connection."""

    def rows(sql: str) -> list[tuple[Any, ...]]:
        if url.startswith("postgresql:"):
            with psycopg.connect(url, autocommit=True) as postgres:
                return [*postgres.execute(sql.encode())]
        sqlite = apsw.Connection(url)
        try:
            return [*sqlite.execute(sql)]
        finally:
            sqlite.close()

    return rows


def fill(acme: TenantHandle, *texts: str) -> str:
    session = acme.sessions.create().id
    acme.messages.append_many(session, [NewMessage(role="user", content=text) for text in texts])
    return session


def count(fetch: Fetch, table: str) -> int:
    ((actual,),) = fetch(f"SELECT COUNT(*) FROM {table}")
    return int(actual)


def test_an_append_indexes_nothing_and_the_next_search_does_it_once(hf: Holdfast, fetch: Fetch) -> None:
    acme = hf.tenant("acme")
    session = fill(acme, "one", "two")
    assert count(fetch, "message_texts") == 0
    acme.messages.search("one")
    assert count(fetch, "message_texts") == 2
    assert fetch("SELECT COUNT(*) FROM sessions WHERE search_behind") == [(0,)]
    acme.messages.append(session, role="user", content="three")
    assert count(fetch, "message_texts") == 2
    assert fetch("SELECT COUNT(*) FROM sessions WHERE search_behind") == [(1,)]
    assert len(acme.messages.search("three")) == 1
    assert fetch("SELECT block, seq FROM search_progress") == [(0, 3)]


def test_a_search_in_one_session_indexes_only_that_session(hf: Holdfast, fetch: Fetch) -> None:
    acme = hf.tenant("acme")
    one, _ = fill(acme, "word"), fill(acme, "word")
    assert len(acme.messages.search("word", session_id=one)) == 1
    assert count(fetch, "message_texts") == 1
    assert len(acme.messages.search("word")) == 2


class Counting:
    """An engine that counts writes, and fails on request."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.writes, self.fail_at = engine, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def write(self, call: Any) -> Any:
        self.writes += 1
        if self.writes == self.fail_at:
            raise Unavailable("as planned")
        return await self._engine.write(call)


def drained(acme: TenantHandle) -> int:
    """Index all messages and return the number of batches."""
    pieces = 0
    while step(drain(acme._engine, acme._scope)).more:
        pieces += 1
    return pieces + 1


def test_the_backlog_is_indexed_in_bounded_transactions(
    hf: Holdfast, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "BATCH_MESSAGES", 20)
    monkeypatch.setattr(search_index, "BATCH_SESSIONS", 3)
    acme = hf.tenant("acme")
    for size in (1, 50, 0, 19, 20, 21, 40, 3, 3, 3, 3):
        fill(acme, *(f"word {number}" for number in range(size)))
    counting: Any = Counting(hf._engine)
    counting.fail_at = 4
    before = 0
    for _ in range(3):
        assert step(drain(counting, acme._scope)).more
        indexed = count(fetch, "message_texts")
        assert before <= indexed <= before + 20
        before = indexed
    with pytest.raises(Unavailable, match="as planned"):
        step(drain(counting, acme._scope))
    assert count(fetch, "message_texts") == before > 20, "three pieces are there to stay"
    assert drained(acme) > (163 - before) // 20
    assert count(fetch, "message_texts") == 163
    assert fetch("SELECT COUNT(*) FROM sessions WHERE search_behind") == [(0,)]
    acme.messages._async._engine, counting.writes = counting, 0
    hits = acme.messages.search("word", limit=1_000)
    assert len(hits) == len({hit.message.id for hit in hits}) == 163
    assert counting.writes == 0, "where nothing is new, nothing is written"


def _drain_all(url: str) -> int:
    with Holdfast(url, pool=PoolOptions(min_connections=1, max_connections=1)) as hf:
        indexed, is_done = 0, False
        while not is_done:
            piece = hf.tenants.maintain()
            indexed, is_done = indexed + piece.indexed, piece.is_done
        return indexed


def test_several_processes_drain_one_backlog_at_the_same_time(hf: Holdfast, url: str, fetch: Fetch) -> None:
    for name in ("acme", "zenith"):
        for _ in range(6):
            fill(hf.tenant(name), *(f"word {number}" for number in range(60)))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        indexed = [*processes.map(_drain_all, [url] * 2)]
    _drain_all(url)  # sessions that one worker held while the other looked
    assert sum(indexed) <= 720
    assert count(fetch, "message_texts") == 720
    assert fetch("SELECT COUNT(*) FROM sessions WHERE search_behind") == [(0,)]
    for name in ("acme", "zenith"):
        hits = hf.tenant(name).messages.search("word", limit=1_000)
        assert len(hits) == len({hit.message.id for hit in hits}) == 360


def test_a_batch_of_long_messages_is_bounded_by_their_size(
    hf: Holdfast, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "BATCH_CHARS", 10_000)
    monkeypatch.setattr(search_index, "FIRST_READ", 2)
    acme = hf.tenant("acme")
    fill(acme, *("word " * 1_000 for _ in range(12)))
    step(drain(acme._engine, acme._scope))
    assert count(fetch, "message_texts") in (2, 3, 6)
    drained(acme)
    assert count(fetch, "message_texts") == 12


def test_a_search_with_a_large_backlog_returns_immediately_and_is_marked_incomplete(
    url: str, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "BATCH_MESSAGES", 20)
    with Holdfast(url, limits=Limits(search_tail=50)) as hf:
        acme = hf.tenant("acme")
        sessions = [fill(acme, *(f"word {number}" for number in range(60))) for _ in range(4)]
        counting: Any = Counting(hf._engine)
        acme.messages._async._engine = counting
        page = acme.messages.search("word", limit=1_000)
        assert counting.writes == 1, "one piece is indexed by a search"
        assert count(fetch, "message_texts") == 20
        assert len(page) == 70, "the piece that it indexed, and fifty messages that it read"
        assert (page.complete, page.sessions_behind) == (False, 3)
        assert len(acme.messages.search("word", session_id=sessions[0], limit=1_000)) == 60
        drained(acme)
        page = acme.messages.search("word", limit=1_000)
        assert (len(page), page.complete, page.sessions_behind) == (240, True, 0)


def test_messages_that_are_not_indexed_are_found_too(
    hf: Holdfast, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hits, their order, pages and cursors are the same whatever part of the messages is indexed."""
    acme = hf.tenant("acme")
    for number in range(6):
        long = "filler " * 500
        fill(acme, *(f"word {number} {place}" + (long if place % 3 == 0 else "") for place in range(15)))
    acme.branches.rewind(acme.sessions.list()[0].id, to=4)

    def pages(query: str) -> list[tuple[str, float, str]]:
        result: list[tuple[str, float, str]] = []
        cursor: str | None = None
        while True:
            page = acme.messages.search(query, limit=7, cursor=cursor)
            assert page.complete
            result += [(hit.message.id, hit.score, hit.snippet) for hit in page]
            cursor = page.next
            if cursor is None:
                return result

    queries = ("word", "word fill*", '"word 3"', "word -filler", "wo* -5", '"word 2" filler')
    monkeypatch.setattr(search_index, "BATCH_MESSAGES", 0)
    unindexed = [pages(query) for query in queries]
    assert count(fetch, "message_texts") == 0
    monkeypatch.setattr(search_index, "BATCH_MESSAGES", 1)
    indexing = [pages(query) for query in queries]
    assert 0 < count(fetch, "message_texts") < 90
    monkeypatch.setattr(search_index, "BATCH_MESSAGES", 500)
    drained(acme)
    assert unindexed == indexing == [pages(query) for query in queries]
    assert all(unindexed)


def test_a_page_of_very_long_messages_ends_early_and_the_next_continues(url: str) -> None:
    with Holdfast(url, limits=Limits(search_chars=100_000)) as hf:
        acme = hf.tenant("acme")
        fill(acme, *(f"word {number} " + "filler " * 300 for number in range(120)))
        drained(acme)
        first = acme.messages.search("word", limit=100)
        assert 32 <= len(first) < 100
        seen = [hit.message.seq for hit in first]
        cursor = first.next
        while cursor is not None:
            page = acme.messages.search("word", limit=100, cursor=cursor)
            seen += [hit.message.seq for hit in page]
            cursor = page.next
        assert seen == [*range(120, 0, -1)]


LETTERS = 199_000
PREFIXES = " ".join(f"{chr(97 + number % 26)}{'a' * (number // 26)}*" for number in range(50))


def test_marking_many_terms_takes_time_linear_in_the_text() -> None:
    """Work is counted in comparisons with the terms: one for each distinct word, and at most one more for each letter."""
    texts = ["a" * LETTERS, "a " * (LETTERS // 2), " ".join("a" * (1 + n % 60) for n in range(6_000))]
    query = parse(" ".join("a" * length + "*" for length in range(1, 51)), Limits())
    for text in texts:
        looked = 0
        marker = Marker(query.required, "[", "]")

        def counted(word: str, look: Any = marker._terms_of) -> int:
            nonlocal looked
            looked += 1
            return int(look(word))

        marker._terms_of = counted  # type: ignore[method-assign]
        assert len(marker.snippet(text)) < 1_000
        assert looked <= 60


@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "not indexed"])
def test_searching_very_long_messages_does_not_block_the_event_loop(
    url: str, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty messages of 199,000 letters and fifty beginnings of words, on both engines; the work is done in other threads."""
    busy: dict[str, set[int]] = {}
    for owner, name in ((Marker, "snippet"), (Matcher, "rank"), (search_index, "words_for")):
        real = getattr(owner, name)

        def spy(*args: Any, real: Any = real, name: str = name) -> Any:
            busy.setdefault(name, set()).add(threading.get_ident())
            return real(*args)

        monkeypatch.setattr(owner, name, spy)
    if not indexed:
        monkeypatch.setattr(search_index, "BATCH_MESSAGES", 0)
    words = " ".join(chr(97 + number % 26) + "a" * (number // 26 % 3) for number in range(LETTERS // 3))[:LETTERS]

    async def main() -> None:
        async with AsyncHoldfast(url) as hf:
            acme = hf.tenant("acme")
            session = await acme.sessions.create()
            for _ in range(20):
                await acme.messages.append(session.id, role="user", content=words)
            beats, page = 0, asyncio.ensure_future(acme.messages.search(PREFIXES, limit=20))
            while not page.done():
                beats += 1
                await asyncio.sleep(0)
            assert beats > 10
            assert len(await page) > 0

    asyncio.run(main())
    assert busy.keys() >= ({"snippet", "words_for"} if indexed else {"snippet", "rank"})
    assert not any(threading.get_ident() in threads for threads in busy.values())


def test_other_callers_write_between_two_batches(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "BATCH_MESSAGES", 10)
    with Holdfast(path) as hf, Holdfast(path) as other:
        acme = hf.tenant("acme")
        session = fill(acme, *(f"word {number}" for number in range(30)))
        appended = 0
        while step(drain(acme._engine, acme._scope)).more and appended < 5:
            other.tenant("acme").messages.append(session, role="user", content="word between")
            appended += 1
        assert len(acme.messages.search("word", limit=100)) == 30 + appended


def test_messages_with_the_same_preferred_number_get_distinct_numbers(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "_preferred_number", lambda *message: 7)
    acme = hf.tenant("acme")
    for start in range(3):
        fill(acme, *(f"word {start} {number}" for number in range(10)))
        assert len(acme.messages.search("word", limit=100)) == 10 * (start + 1)
    assert len(acme.messages.search("word 2 9")) == 1


def test_numbers_wrap_around_at_the_maximum(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "_preferred_number", lambda *message: search_index.MAX_NUMBER - 2)
    acme = hf.tenant("acme")
    fill(acme, *(f"word {number}" for number in range(6)))
    assert len(acme.messages.search("word")) >= 5


def test_concurrent_searches_do_not_block_each_other(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even if all messages prefer the same number and half of the searches are in one session."""
    monkeypatch.setattr(search_index, "_preferred_number", lambda *message: 1_000)
    acme = hf.tenant("acme")
    sessions = [fill(acme, "word") for _ in range(6)]

    def append_and_search(number: int) -> list[int]:
        session, result = sessions[number], []
        for turn in range(4):
            acme.messages.append(session, role="user", content=f"word {turn}")
            where = session if (number + turn) % 2 else None
            result.append(len(acme.messages.search(f"word {turn}", session_id=where)))
        return result

    for result in in_threads([lambda number=number: append_and_search(number) for number in range(6)]):  # type: ignore[misc]
        assert isinstance(result, list), result
        assert all(result)
    assert len(acme.messages.search("word", limit=100)) == 30


def is_in_the_index(path: str, word: str, tenant: str = "acme") -> bool:
    connection = apsw.Connection(path)
    actual = connection.execute(
        "SELECT 1 FROM message_index WHERE message_index MATCH ?", (f'"{tag_of(tenant)}{word}"',)
    )
    try:
        return bool(actual.fetchall())
    finally:
        connection.close()


def tables_that_hold(path: str, word: str) -> set[str]:
    """Return every table with the word in a row, including the tables of the index."""
    connection = apsw.Connection(path)
    names = [
        row[0] for row in connection.execute("SELECT name FROM pragma_table_list WHERE type IN ('table', 'shadow')")
    ]
    result = {
        name
        for name in names
        for row in connection.execute(f'SELECT * FROM "{name}"')
        for value in row
        if word in (value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))
    }
    connection.close()
    return result


def _delete(hf: Holdfast, session: str, message: str) -> None:
    hf.tenant("acme").messages.delete(session, [message], purge=True)


def _update(hf: Holdfast, session: str, message: str) -> None:
    hf.tenant("acme").messages.update(message, content="nothing of it")


def _purge(hf: Holdfast, session: str, message: str) -> None:
    hf.tenant("acme").sessions.purge(session)


def _remove_tenant(hf: Holdfast, session: str, message: str) -> None:
    hf.tenants.delete("acme", cascade=True)


@pytest.mark.parametrize("remove", [_delete, _update, _purge, _remove_tenant])
@pytest.mark.parametrize("library", ["apsw", "stdlib"])
def test_removed_messages_leave_no_rows_in_any_table(path: str, library: Any, remove: Callable[..., None]) -> None:
    with Holdfast(path, sqlite=library) as hf:
        acme, zenith = hf.tenant("acme"), hf.tenant("zenith")
        session = fill(acme, f"first {RARE}", "second")
        fill(zenith, "first second")
        (hit,) = acme.messages.search(RARE)
        assert zenith.messages.search("first")
        remove(hf, session, hit.message.id)
    assert not is_in_the_index(path, RARE)
    # SQLite removes a deleted word permanently when it merges segments of the index, which it does automatically at times.
    assert tables_that_hold(path, RARE) <= {"message_index_data"}
    connection = apsw.Connection(path)
    connection.execute("INSERT INTO message_index (message_index) VALUES ('optimize')")
    connection.close()
    assert tables_that_hold(path, RARE) == set()
    assert is_in_the_index(path, "first", "zenith")
    with Holdfast(path) as hf:
        assert hf.tenant("acme").messages.search(RARE) == []
        assert len(hf.tenant("zenith").messages.search("second")) == 1


def test_a_message_that_can_be_restored_is_in_no_table_of_the_index(path: str) -> None:
    with Holdfast(path) as hf:
        acme = hf.tenant("acme")
        session = fill(acme, f"first {RARE}", "second")
        (hit,) = acme.messages.search(RARE)
        acme.messages.delete(session, [hit.message.id])
        assert not is_in_the_index(path, RARE)
        assert tables_that_hold(path, RARE) <= {"message_index_data", "deleted_messages"}
        acme.messages.restore(session, [hit.message.id])
        assert [item.message.id for item in acme.messages.search(RARE)] == [hit.message.id]


def test_removed_messages_leave_no_rows_without_foreign_keys(path: str) -> None:
    with Holdfast(path, sqlite="stdlib") as hf:
        session = fill(hf.tenant("acme"), f"one {RARE}", "two")
        other = fill(hf.tenant("acme"), f"three {RARE}")
        connection = sqlite3.connect(path, isolation_level=None)
        assert connection.execute("PRAGMA foreign_keys").fetchall() == [(0,)]
        joined = hf.tenant("acme").join(connection)
        for hit in joined.messages.search(RARE, session_id=session):
            joined.messages.delete(session, [hit.message.id], purge=True)
        joined.messages.search(RARE)
        joined.sessions.purge(other)
        assert joined.messages.search(RARE) == []
        connection.close()
    assert not is_in_the_index(path, RARE)
    assert tables_that_hold(path, RARE) <= {"message_index_data"}


def test_a_cascade_on_postgres_deletes_the_words(postgres_url: str) -> None:
    with Holdfast(postgres_url) as hf, psycopg.connect(postgres_url, autocommit=True) as connection:
        acme = hf.tenant("acme")
        session = fill(acme, f"one {RARE}", "two")
        (hit,) = acme.messages.search(RARE)
        acme.messages.delete(session, [hit.message.id])
        ((left,),) = connection.execute("SELECT COUNT(*) FROM message_texts WHERE words::text LIKE '%zyxwvut%'")
        assert left == 0
        acme.sessions.purge(session)
        assert connection.execute("SELECT COUNT(*) FROM message_texts").fetchall() == [(0,)]
        assert connection.execute("SELECT COUNT(*) FROM search_progress").fetchall() == [(0,)]


@pytest.mark.parametrize("library", ["apsw", "stdlib"])
def test_a_read_only_file_can_be_searched(path: str, library: Any) -> None:
    with Holdfast(path) as hf:
        session = fill(hf.tenant("acme"), "indexed word")
        hf.tenant("acme").messages.search("word")
        hf.tenant("acme").messages.append(session, role="user", content="later word")
    with Holdfast(f"sqlite:///{path}?mode=ro", sqlite=library) as hf:
        hits = hf.tenant("acme").messages.search("word")
        assert {hit.snippet for hit in hits} == {"indexed **word**", "later **word**"}
    with Holdfast(path) as hf:
        assert len(hf.tenant("acme").messages.search("word")) == 2


def test_a_read_only_postgres_can_be_searched(postgres_url: str) -> None:
    with Holdfast(postgres_url) as hf:
        session = fill(hf.tenant("acme"), "indexed word")
        hf.tenant("acme").messages.search("word")
        hf.tenant("acme").messages.append(session, role="user", content="later word")
        with psycopg.connect(postgres_url) as connection:
            connection.execute("SET default_transaction_read_only = on")
            connection.commit()
            joined = hf.tenant("acme").join(connection)
            assert {hit.snippet for hit in joined.messages.search("word")} == {"indexed **word**", "later **word**"}
            connection.rollback()
        assert len(hf.tenant("acme").messages.search("word")) == 2


def without_fts5(path: str) -> apsw.Connection:
    connection = apsw.Connection(path)
    connection.drop_modules([name for (name,) in connection.execute("PRAGMA module_list") if name != "fts5"])
    return connection


def test_an_sqlite_without_fts5_raises_for_searches_only(path: str) -> None:
    with Holdfast(path) as hf:
        acme = hf.tenant("acme")
        session = fill(acme, f"one {RARE}", "two words")
        (hit,) = acme.messages.search(RARE)
        connection = without_fts5(path)
        joined = acme.join(connection)
        joined.messages.append(session, role="user", content="three words")
        assert joined.messages.delete(session, [hit.message.id]) == 1
        joined.messages.update(joined.messages.last(session, 1)[0].id, content="four words")
        with raises(InvalidInput, field="sqlite"):
            joined.messages.search("words")
        connection.close()
        assert is_in_the_index(path, RARE), "it is left to the next that can"
        assert acme.messages.search(RARE) == []
        assert not is_in_the_index(path, RARE)
        assert len(acme.messages.search("words")) == 2


@pytest.mark.parametrize("messages", [6_000, pytest.param(60_000, marks=pytest.mark.soak)])
def test_an_index_built_in_batches_is_as_small_as_one_built_at_once(messages: int, path: str) -> None:
    random = Random(1)
    with Holdfast(path) as hf:
        acme = hf.tenant("acme")
        for _ in range(messages // 500):
            words = [
                f"word{random.randrange(130)}" if random.random() < 0.9 else str(random.randrange(9_999))
                for _ in range(10_000)
            ]
            fill(acme, *(" ".join(random.choices(words, k=120)) for _ in range(500)))
        assert drained(acme) >= messages / search_index.BATCH_MESSAGES
        raw = hf._engine
        assert isinstance(raw, SqliteEngine)
        asked = (
            "SELECT COUNT(DISTINCT segid), (SELECT SUM(LENGTH(block)) FROM message_index_data) FROM message_index_idx"
        )
        ((parts, size),) = raw._connection.execute(asked)
        raw._connection.execute("INSERT INTO message_index (message_index) VALUES ('optimize')")
        ((one, least),) = raw._connection.execute(asked)
        assert one == 1
        assert parts <= 32
        assert size <= 1.5 * least


def plan(connection: Any, name: str, where: str = "") -> str:
    statement = queries.by_name[name].statement(Dialect.SQLITE, where, search_index.BEHIND_INDEX)
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", [None] * len(statement.names))
    return "; ".join(str(row[3]) for row in rows)


def test_sqlite_searches_by_keys_only(path: str) -> None:
    with Holdfast(path) as hf:
        connection = hf._engine._connection  # type: ignore[union-attr]
        actual = plan(connection, "find", " AND s.user_id = :user_id")
        assert "SCAN f VIRTUAL TABLE INDEX" in actual
        assert "SEARCH t USING PRIMARY KEY (tenant_id=? AND number=?)" in actual
        assert "SEARCH s USING PRIMARY KEY (tenant_id=? AND id=?)" in actual
        assert "messages_by_id (tenant_id=? AND id=?)" in actual
        assert "B-TREE" not in actual, "hits come out of the index in their order"
        for name in ("behind", "lock_behind"):
            for where in ("", " AND id = :session_id"):
                assert "sessions_search_behind (tenant_id=?" in plan(connection, name, where)
        assert "sessions_search_behind (tenant_id=?" in plan(connection, "list_behind")
        unindexed = plan(connection, "places")
        assert "(tenant_id=? AND session_id=? AND seq>? AND seq<?)" in unindexed
        assert "message_texts_by_message (tenant_id=? AND message_id=?)" in unindexed


def test_postgres_finds_rare_and_absent_words_by_the_index_over_words(new_postgres_url: str) -> None:
    """A plan must not read all messages backwards until enough contain the word."""
    with Holdfast(new_postgres_url) as hf, psycopg.connect(new_postgres_url, autocommit=True) as connection:
        acme = hf.tenant("acme")
        fill(acme, *(f"word {number} " + "filler " * 20 for number in range(3_000)))
        drained(acme)
        connection.execute("ANALYZE")
        connection.execute("SET plan_cache_mode = force_generic_plan")
        statement = queries.find.statement(Dialect.POSTGRES)
        types = {"tenant_id": "text", "query": "text", "before_number": "bigint", "limit": "bigint"}
        declared = ", ".join(types[name] for name in statement.names)
        connection.execute(f"PREPARE find ({declared}) AS {statement.sql}".encode())
        for word in ("1234", "absent"):
            arguments = {
                "tenant_id": "'acme'",
                "query": f"$q$'{tag_of('acme', Dialect.POSTGRES)}{word}'$q$",
                "before_number": str(2**63 - 1),
                "limit": "21",
            }
            asked = f"EXPLAIN EXECUTE find ({', '.join(arguments[name] for name in statement.names)})"
            actual = "\n".join(row[0] for row in connection.execute(asked.encode()))
            newest, _, rest = actual.partition("CTE near")
            assert "message_texts_pkey" in newest
            assert "message_texts_words" in rest
            assert "message_texts_pkey" not in rest
            assert "Seq Scan on message" not in actual
