"""The rows that a compaction changes, on both engines: each removed row has a copy, and a rollback restores every byte."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import apsw
import psycopg
import pytest
from msgspec.structs import replace

from holdfast import AsyncHoldfast, CompactionPolicy, Holdfast, NewMessage, PoolOptions, TenantHandle
from holdfast.core.queries import Query
from holdfast.errors import Conflict, Corrupt, InvalidInput, NotFound
from holdfast.stores.conversation import message_log, originals
from holdfast.stores.conversation.compaction.events import queries
from holdfast.types import Message
from tests.contract.cases.compactions import LONG, call, result
from tests.errors import raises

ALL = CompactionPolicy(
    strategy="summarization", preserve_last=0, protected_tokens=0, window_tokens=1_000, target_tokens=100
)
PRUNE = CompactionPolicy(preserve_last=0, protected_tokens=0, window_tokens=10_000, target_tokens=9_999, prune_tokens=1)
POOL = PoolOptions(min_connections=1, max_connections=6)
TABLES = ("messages", "feedback", "message_archive", "compaction_events", "compaction_policies", "sessions", "branches")


class _Never(Exception):
    pass


class FileLocation:
    """A database, opened by Holdfast and, behind its back, by a plain connection."""

    def __init__(self, url: str) -> None:
        self.url, self.is_sqlite = url, "://" not in url
        self.holdfast = Holdfast(url, pool=POOL)
        self.acme = self.holdfast.tenant("acme")

    def execute(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        """Run a statement of one's own. Placeholders are question marks."""
        if self.is_sqlite:
            connection = apsw.Connection(self.url)
            try:
                connection.execute("PRAGMA busy_timeout = 10000; PRAGMA foreign_keys = ON").fetchall()
                return [tuple(row) for row in connection.execute(sql, args)]
            finally:
                connection.close()
        with psycopg.connect(self.url, autocommit=True) as plain:
            cursor = plain.execute(sql.replace("?", "%s").encode(), args)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def committed(self) -> Iterator[TenantHandle]:
        """Return the tenant in a transaction of the caller, which is committed."""
        opened: Any = apsw.Connection(self.url) if self.is_sqlite else psycopg.connect(self.url)
        try:
            opened.execute("BEGIN")
            yield self.acme.join(opened)
            opened.execute("COMMIT")
        finally:
            opened.close()

    @contextmanager
    def rolled_back(self) -> Iterator[TenantHandle]:
        """Return the tenant in a transaction of the caller, which is rolled back."""
        with suppress(_Never), self.committed() as joined:
            yield joined
            raise _Never

    def rows(self, table: str) -> list[str]:
        """Every row of a table as text: on SQLite the stored bytes, on PostgreSQL what the server prints."""
        if self.is_sqlite:
            return sorted(map(repr, self.execute(f"SELECT * FROM {table}")))
        return sorted(str(row[0]) for row in self.execute(f"SELECT t::text FROM {table} AS t"))

    def columns(self, table: str) -> set[str]:
        if self.is_sqlite:
            return {row[1] for row in self.execute(f"PRAGMA table_info({table})")}
        return {
            row[0]
            for row in self.execute("SELECT column_name FROM information_schema.columns WHERE table_name = ?", table)
        }


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileLocation]:
    request.node.user_properties.append(("leg", f"{request.param}, rows of compactions"))
    actual = FileLocation(
        str(tmp_path / "a.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    )
    yield actual
    actual.holdfast.close()


def told(acme: TenantHandle, *contents: Any, **more: Any) -> tuple[str, list[Message]]:
    session = acme.sessions.create().id
    new = [NewMessage(role="user", content=content, **more) for content in contents]
    return session, acme.messages.append_many(session, new)


ODD = [
    '[{"type": "text",   "text": "spaces between"}]',
    '[{"type":"text","text":"\\u00e9 \\ud83d\\ude00 \\/ \\" \\\\ \\b\\f\\n\\r\\t"}]',
    '[{"type":"n","n":[1e5,1E+5,-0,0.10,1.0,123456789012345678901234567890,1e300,-1.5e-300,9007199254740993]}]',
    '[{"type":"n","a":1,"a":2,"":{},"z":[],"A":null,"true":true}]',
    '[ ]',
    '[{"type":"tool_result","tool_use_id":"t","content":"' + "0123456789" * 60 + '"},{"type":"x","n":1.50}]',
]  # fmt: skip
"""Content in a form that Holdfast would not write, stored through another connection."""


@pytest.mark.parametrize("policy", [ALL, PRUNE], ids=["removed", "rewritten"])
def test_a_rollback_restores_every_stored_byte(place: FileLocation, policy: CompactionPolicy) -> None:
    session, made = told(place.acme, *[LONG] * len(ODD))
    for message, content in zip(made, ODD, strict=True):
        cast = "?" if place.is_sqlite else "?::jsonb"
        place.execute(
            f"UPDATE messages SET content = {cast}, metadata = {cast} WHERE id = ?",
            content,
            '{ "k" : 1.10 }',
            message.id,
        )
    place.acme.messages.search("a")
    place.acme.feedback.create(made[0].id, is_positive=True, metadata={"n": 10**30})
    before = {table: place.rows(table) for table in ("messages", "feedback")}
    event = place.acme.compactions.compact(session, policy, summary="s")
    assert place.rows("messages") != before["messages"]
    place.acme.compactions.rollback(event.id)
    assert {table: place.rows(table) for table in before} == before


def test_the_archive_has_every_column_of_the_original_and_the_feedback_on_it(place: FileLocation) -> None:
    session, made = told(place.acme, LONG, LONG, metadata={"k": "v"})
    arguments = place.acme.feedback.create(made[0].id, is_positive=False, feedback_text="why?")
    place.acme.compactions.compact(session, ALL, summary="s")
    keys = "json_each(original_message)" if place.is_sqlite else "jsonb_each(original_message)"
    actual = {row[0] for row in place.execute(f"SELECT DISTINCT e.key FROM message_archive, {keys} AS e")}
    assert actual == place.columns("messages") | {"feedback"}
    path = (
        "json_extract(original_message, '$.feedback[0]')" if place.is_sqlite else "original_message -> 'feedback' -> 0"
    )
    item = f"json_each({path})" if place.is_sqlite else f"jsonb_each({path})"
    kept = {
        row[0]: row[1]
        for row in place.execute(
            f"SELECT e.key, e.value FROM message_archive, {item} AS e WHERE message_archive.id = ?", made[0].id
        )
    }
    assert kept.keys() | {"tenant_id"} == place.columns("feedback")
    assert (kept["id"], kept["feedback_text"]) == (arguments.id, "why?")


@pytest.mark.parametrize("broken", ["archive", "create", "remove", "insert", "settle", "overwrite"])
def test_a_compaction_that_fails_anywhere_changes_nothing(place: FileLocation, broken: str) -> None:
    session, _ = told(place.acme, LONG, call("a"), result("a"), LONG)
    before = {table: place.rows(table) for table in TABLES}
    with _failing(broken), pytest.raises(OSError, match=broken):
        place.acme.compactions.compact(session, PRUNE if broken == "overwrite" else ALL, summary="s")
    assert {table: place.rows(table) for table in TABLES} == before


@pytest.mark.parametrize("broken", ["drop", "insert", "insert_feedback", "empty_archive", "mark_rolled_back", "settle"])
def test_a_rollback_that_fails_anywhere_changes_nothing(place: FileLocation, broken: str) -> None:
    session, made = told(place.acme, LONG, call("a"), result("a"), LONG)
    place.acme.feedback.create(made[0].id, is_positive=True)
    event = place.acme.compactions.compact(session, ALL, summary="s")
    before = {table: place.rows(table) for table in TABLES}
    with _failing(broken), pytest.raises(OSError, match=broken):
        place.acme.compactions.rollback(event.id)
    assert {table: place.rows(table) for table in TABLES} == before
    place.acme.compactions.rollback(event.id)
    assert place.acme.messages.count(session) == len(made)


def _failing(name: str) -> Any:
    """Patch a query so that it fails after its work, which must then be rolled back."""
    names = {"insert", "insert_many"} if name == "insert" else {name}

    def failing(method: str) -> Any:
        real = getattr(Query, method)

        async def call(self: Query, *args: Any, **kwargs: Any) -> Any:
            completed = await real(self, *args, **kwargs)
            if self.name in names:
                raise OSError(f"{name} failed")
            return completed

        return call

    initial = {*queries.by_name, *message_log.queries.by_name, *originals.queries.by_name}
    assert names <= initial, "there is no such query"
    return mock.patch.multiple(Query, **{method: failing(method) for method in ("all", "one", "many", "many_in_order")})


def test_no_transaction_is_open_while_the_summariser_runs(place: FileLocation) -> None:
    session, _ = told(place.acme, LONG, LONG)
    seen: list[Any] = []

    def summarize(messages: Sequence[Message]) -> str:
        if place.is_sqlite:  # which a writer or a reader in the middle of something would not let go through
            seen.extend(place.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
            place.execute("BEGIN EXCLUSIVE")
        else:
            seen.extend(
                place.execute(
                    "SELECT COUNT(*), 0 FROM pg_stat_activity WHERE datname = current_database()"
                    " AND pid <> pg_backend_pid() AND (state <> 'idle' OR xact_start IS NOT NULL)"
                )
            )
            place.execute("LOCK TABLE sessions, messages IN ACCESS EXCLUSIVE MODE NOWAIT; SELECT 1")
        return "s"

    place.acme.compactions.compact(session, ALL, summarize=summarize)
    assert [row[0] for row in seen] == [0]


@pytest.mark.leg("postgres, rows of compactions")
def test_uncommitted_feedback_on_a_compacted_message_is_not_lost(postgres_url: str) -> None:
    """Another transaction has added feedback and not yet committed when the compaction removes the message."""
    place = FileLocation(postgres_url)
    session, made = told(place.acme, LONG, LONG)
    with psycopg.connect(place.url) as connection:
        arguments = place.acme.join(connection).feedback.create(made[0].id, is_positive=True)
        completed: list[Any] = []
        thread = threading.Thread(
            target=lambda: completed.append(place.acme.compactions.compact(session, ALL, summary="s")), daemon=True
        )
        thread.start()
        while not place.execute("SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert thread.is_alive(), "the compaction did not wait"
        connection.commit()
        thread.join(60)
    assert place.acme.feedback.list(session_id=session) == []
    place.acme.compactions.rollback(completed[0].id)
    assert place.acme.feedback.list(session_id=session) == [arguments]
    place.holdfast.close()


def test_a_purge_leaves_no_row(place: FileLocation) -> None:
    for purge in (
        place.acme.sessions.purge,
        lambda session: place.holdfast.tenants.delete("acme", cascade=True),
    ):
        session, made = told(place.acme, LONG, LONG, LONG)
        place.acme.feedback.create(made[0].id, is_positive=True)
        place.acme.compactions.attach(ALL, session_id=session)
        place.acme.compactions.compact(session, ALL, summary="s")
        assert all(place.rows(table) for table in TABLES if table not in ("feedback", "branches"))
        purge(session)
        left = {table: place.rows(table) for table in TABLES}
        assert left == {table: [] for table in TABLES}, left
    place.acme.compactions.attach(ALL, agent="helper")
    place.acme.sessions.create()
    place.holdfast.tenants.delete("acme", cascade=True)
    assert place.rows("compaction_policies") == []


def test_a_purge_without_foreign_keys_leaves_no_row(tmp_path: Path) -> None:
    place = FileLocation(str(tmp_path / "a.db"))
    session, _ = told(place.acme, LONG, LONG, LONG)
    place.acme.compactions.attach(ALL, session_id=session)
    place.acme.compactions.compact(session, ALL, summary="s")
    connection = apsw.Connection(place.url)
    connection.execute("PRAGMA foreign_keys = OFF; BEGIN").fetchall()
    place.acme.join(connection).sessions.purge(session)
    connection.execute("COMMIT").fetchall()
    connection.close()
    assert {table: place.rows(table) for table in TABLES} == {table: [] for table in TABLES}
    place.holdfast.close()


def test_without_its_originals_a_compaction_cannot_be_undone(place: FileLocation) -> None:
    session, _ = told(place.acme, LONG, LONG, LONG)
    event = place.acme.compactions.compact(session, ALL, summary="s")
    place.execute("DELETE FROM message_archive WHERE seq = 2")
    before = {table: place.rows(table) for table in TABLES}
    with raises(Conflict, reason="originals_missing"):
        place.acme.compactions.rollback(event.id)
    assert {table: place.rows(table) for table in TABLES} == before
    assert len(place.acme.compactions.archived(event_id=event.id)) == 2


def test_a_damaged_policy_is_reported_as_damaged(place: FileLocation) -> None:
    session, _ = told(place.acme, LONG)
    place.acme.compactions.attach(ALL, session_id=session, summarize=lambda messages: "s")
    for damaged in ('{"trigger": 7}', '{"unknown": 7}', "[]"):
        cast = "?" if place.is_sqlite else "?::jsonb"
        place.execute(f"UPDATE compaction_policies SET policy = {cast}", damaged)
        with pytest.raises(Corrupt, match=session):
            place.acme.compactions.attached(session)
        place.acme.messages.append(session, role="user", content=LONG, token_count=900)  # all the same


def test_errors_in_the_background_are_logged(place: FileLocation, caplog: pytest.LogCaptureFixture) -> None:
    session, _ = told(place.acme, LONG)

    def fails(messages: Sequence[Message]) -> str:
        raise OSError("no model today")

    place.acme.compactions.attach(ALL, session_id=session, summarize=fails)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        place.acme.messages.append(session, role="user", content="due", token_count=900)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("holdfast", "WARNING")
    assert record.getMessage() == f"automatic compaction of session {session} failed: OSError: no model today"


def test_concurrent_appends_call_the_summariser_once(place: FileLocation) -> None:
    asked: list[int] = []

    async def summarize(messages: Sequence[Message]) -> str:
        asked.append(len(messages))
        for _ in range(20):
            await asyncio.sleep(0)
        return "s"

    async def story() -> int:
        async with AsyncHoldfast(place.url, pool=POOL) as hf:
            acme = hf.tenant("acme")
            session = (await acme.sessions.create()).id
            await acme.messages.append(session, role="user", content=LONG, token_count=800)
            await acme.compactions.attach(ALL, session_id=session, summarize=summarize)
            appends = [
                acme.messages.append(session, role="user", content=str(number), token_count=60) for number in range(8)
            ]
            await asyncio.gather(*appends)
            return (await acme.sessions.get(session)).compaction_count

    assert asyncio.run(story()) == 1
    assert len(asked) == 1


def test_a_policy_applies_to_all_processes_and_a_function_to_its_own_holdfast(place: FileLocation) -> None:
    session, _ = told(place.acme, LONG, LONG)
    place.acme.compactions.attach(ALL, session_id=session, summarize=lambda messages: "s")
    with Holdfast(place.url, pool=POOL) as second:
        acme = second.tenant("acme")
        assert acme.compactions.attached(session) == ALL
        acme.messages.append(session, role="user", content="due", token_count=900)
        assert acme.sessions.get(session).compaction_count == 0
        assert second.tenant("acme").compactions.attached(session) == ALL
    place.holdfast.tenant("acme").messages.append(session, role="user", content="more", token_count=90)
    assert place.acme.sessions.get(session).compaction_count == 1
    with pytest.raises(NotFound):
        place.holdfast.tenant("other").compactions.attached(session)


def test_attached_policies_follow_the_callers_transaction(place: FileLocation) -> None:
    """The functions attached in this process always match the stored policy."""
    acme, asked = place.acme, list[str]()
    other = replace(ALL, preserve_last=1)

    def saying(word: str) -> Any:
        def summarize(messages: Sequence[Message]) -> str:
            asked.append(word)
            return word

        return summarize

    def due(agent: str) -> list[str]:
        asked.clear()
        session = acme.sessions.create(agent=agent).id
        acme.messages.append_many(session, [NewMessage(role="user", content=LONG, token_count=500)] * 2)
        return [*asked]

    acme.compactions.attach(ALL, agent="writer", summarize=saying("first"))
    with place.rolled_back() as joined:
        joined.compactions.detach(agent="writer")
    assert due("writer") == ["first"]
    with place.rolled_back() as joined:
        joined.compactions.attach(other, agent="writer", summarize=saying("second"))
        joined.compactions.attach(ALL, agent="reader", summarize=saying("left over"))
    assert (due("writer"), due("reader")) == (["first"], [])
    assert place.execute("SELECT name FROM compaction_policies") == [("writer",)]
    with place.committed() as joined:
        joined.compactions.attach(other, agent="writer", summarize=saying("third"))
    assert due("writer") == ["third"]
    with place.committed() as joined:
        joined.compactions.detach(agent="writer")
    assert due("writer") == []
    acme.compactions.attach(ALL, agent="writer")
    assert due("writer") == [], "the remaining row was deleted"


def test_tokens_are_counted_by_the_given_function(place: FileLocation) -> None:
    seen: list[Any] = []

    def count(content: Any) -> int:
        seen.append(content)
        return 1_000

    with Holdfast(place.url, pool=POOL, count_tokens=count) as hf:
        session, _ = told(hf.tenant("acme"), "a", "b", "c")
        plan = hf.tenant("acme").compactions.plan(session, ALL)
        assert (plan.tokens_before, plan.estimated, len(seen)) == (3_000, 0, 3)
        event = hf.tenant("acme").compactions.compact(session, ALL, summary="s")
        assert (event.original_tokens, event.compacted_tokens) == (3_000, 1_000)
        assert hf.tenant("acme").messages.last(session)[0].token_count == 1_000
    with raises(InvalidInput, field="count_tokens"):
        Holdfast(place.url, pool=POOL, count_tokens=7)  # type: ignore[arg-type]


def test_a_counter_that_fails_does_not_fail_an_append(place: FileLocation, caplog: pytest.LogCaptureFixture) -> None:
    def count(content: Any) -> int:
        if broken:
            raise OSError("no tokenizer")
        return 500

    broken = True
    with Holdfast(place.url, pool=POOL, count_tokens=count) as hf:
        acme = hf.tenant("acme")
        acme.compactions.attach(ALL, agent="writer", summarize=lambda messages: "s")
        session, other = acme.sessions.create(agent="writer"), acme.sessions.create()
        with caplog.at_level(logging.WARNING, "holdfast"):
            assert acme.messages.append(other.id, role="user", content=LONG).token_count == 0
        assert "without a token count: OSError: no tokenizer" in caplog.text
        caplog.clear()
        many = [NewMessage(role="user", content=LONG), NewMessage(role="user", content=LONG, token_count=7)]
        assert [item.token_count for item in acme.messages.append_many(session.id, many)] == [0, 7]
        buffer = acme.sessions.buffered("buffered", agent="writer")
        buffer.add_message(role="user", content=LONG)
        buffer.save()
        assert len(caplog.records) == 2
        with pytest.raises(OSError, match="no tokenizer"):
            acme.messages.context(session.id, max_tokens=1_000)
        broken = False
        assert acme.messages.append(session.id, role="user", content="back").token_count == 500


def test_search_finds_existing_messages_and_no_deleted_ones(place: FileLocation) -> None:
    session, _ = told(place.acme, "zebra " + LONG, call("a"), result("a", output="ostrich " * 200))
    actual = {word: len(place.acme.messages.search(word)) for word in ("zebra", "ostrich", "giraffe")}
    assert actual == {"zebra": 1, "ostrich": 1, "giraffe": 0}
    pruned = place.acme.compactions.compact(session, PRUNE)
    assert (len(place.acme.messages.search("ostrich")), len(place.acme.messages.search("zebra"))) == (0, 1)
    event = place.acme.compactions.compact(session, ALL, summary="a giraffe")
    assert (len(place.acme.messages.search("zebra")), len(place.acme.messages.search("giraffe"))) == (0, 1)
    place.acme.compactions.rollback(event.id)
    place.acme.compactions.rollback(pruned.id)
    assert {word: len(place.acme.messages.search(word)) for word in actual} == actual
