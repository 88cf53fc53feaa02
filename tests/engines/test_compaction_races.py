"""Concurrent compactions, concurrent writers and lost answers: every message is in the log or in the archive at any time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import CompactionPolicy, Holdfast, NewMessage, PoolOptions, TenantHandle
from holdfast.errors import Conflict, HoldfastError, NotFound, NothingToCompact, OutcomeUnknown
from holdfast.ids import SeededIds
from holdfast.types import Message
from tests.engines.postgres_handles import ask, both_styles, database_of, opened, outcome, soon
from tests.engines.proxy import Proxy
from tests.servers import PostgresServer

POLICY = CompactionPolicy(
    strategy="summarization", preserve_last=2, protected_tokens=0, window_tokens=1_000, target_tokens=100
)
PRUNE = CompactionPolicy(preserve_last=1, protected_tokens=0, window_tokens=10**6, target_tokens=10**5, prune_tokens=1)
THREADS = 6
EXPECTED = (Conflict, NothingToCompact, NotFound)
"""Errors that a caller which was too late may get."""


@pytest.fixture(params=["sqlite", "postgres"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    request.node.user_properties.append(("leg", f"{request.param}, races of compactions"))
    url = str(tmp_path / "a.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with Holdfast(url, pool=PoolOptions(min_connections=1, max_connections=THREADS + 2)) as opened_one:
        yield opened_one


class Worker:
    """One of many workers on the same session, with the calls that it committed."""

    def __init__(self, acme: TenantHandle, session: str, seed: int) -> None:
        self.acme, self.session, self.random = acme, session, Random(seed)
        self.appended: list[Message] = []
        self.deleted: set[str] = set()
        self.done: Counter[str] = Counter()

    def run(self, count: int) -> Worker:
        """Do work of every kind; a conflict is not a failure."""
        steps: list[Callable[[], Any]] = [
            self.append,
            self.append,
            self.compact,
            self.prune,
            self.roll_back,
            self.delete,
        ]
        for _ in range(count):
            step = self.random.choice(steps)
            try:
                step()
            except EXPECTED as error:
                self.done[type(error).__name__] += 1
            else:
                self.done[step.__name__] += 1
        return self

    def append(self) -> None:
        tool = SeededIds(self.random.randrange(2**32)).new()
        blocks = [{"type": "tool_use", "id": tool, "name": "n", "input": {}}]
        answers = [{"type": "tool_result", "tool_use_id": tool, "content": "output " * 30}]
        new = [NewMessage(role="user", content="a question " * 20, token_count=60), NewMessage(role="assistant", content=blocks),
               NewMessage(role="user", content=answers)]  # fmt: skip
        self.appended += self.acme.messages.append_many(self.session, new)

    def compact(self) -> None:
        self.acme.compactions.compact(self.session, POLICY, summarize=lambda messages: f"of {len(messages)}")

    def prune(self) -> None:
        self.acme.compactions.compact(self.session, PRUNE, summary="s")

    def roll_back(self) -> None:
        live = [item for item in self.acme.compactions.history(self.session) if item.rolled_back_at is None]
        if live:
            self.acme.compactions.rollback(live[0].id)

    def delete(self) -> None:
        existing = [message for message in self.acme.messages.list(self.session) if not message.is_summary]
        if len(existing) > 8:
            chosen = self.random.choice(existing[-4:]).id
            if self.acme.messages.delete(self.session, [chosen]):
                self.deleted.add(chosen)


def test_concurrent_writes_and_compactions_lose_no_message(hf: Holdfast) -> None:
    acme = hf.tenant("acme")
    session = acme.sessions.create().id
    with ThreadPoolExecutor(THREADS) as pool:
        workers = list(pool.map(lambda seed: Worker(acme, session, seed).run(40), range(THREADS)))
    completed = sum((worker.done for worker in workers), Counter[str]())
    assert min(completed["append"], completed["compact"] + completed["prune"], completed["roll_back"]) >= 1, completed
    appended = {message.id: message for worker in workers for message in worker.appended}
    deleted = set().union(*(worker.deleted for worker in workers))
    check_counters(acme, session)
    in_log = {message.id for message in acme.messages.list(session)}
    archived = archived_ids(acme, session)
    assert appended.keys() - deleted <= in_log | archived
    while live := [item for item in acme.compactions.history(session) if item.rolled_back_at is None]:
        acme.compactions.rollback(live[0].id)
    check_counters(acme, session)
    existing = {message.id: message for message in acme.messages.list(session)}
    assert existing.keys() == appended.keys() - deleted
    assert {id: message.content for id, message in existing.items()} == {id: appended[id].content for id in existing}
    assert [message.seq for message in acme.messages.list(session)] == sorted(
        message.seq for message in existing.values()
    )


def check_counters(acme: TenantHandle, session: str) -> None:
    existing, now = acme.messages.list(session), acme.sessions.get(session)
    assert (now.message_count, now.token_count) == (len(existing), sum(message.token_count for message in existing))
    live = [item for item in acme.compactions.history(session) if item.rolled_back_at is None]
    assert now.compaction_count == len(live)
    for event in live:
        archived = acme.compactions.archived(event_id=event.id, limit=1_000)
        assert len(archived) == event.messages_removed + event.messages_rewritten
        assert sum(item.is_rewritten for item in archived) == event.messages_rewritten


def archived_ids(acme: TenantHandle, session: str) -> set[str]:
    result: set[str] = set()
    page = acme.compactions.archived(session_id=session, limit=7)
    while True:
        result |= {item.message.id for item in page}
        if page.next is None:
            return result
        page = acme.compactions.archived(session_id=session, limit=7, cursor=page.next)


def test_a_concurrently_repeated_rollback_happens_once(hf: Holdfast) -> None:
    acme = hf.tenant("acme")
    session = acme.sessions.create().id
    made = acme.messages.append_many(session, [NewMessage(role="user", content="word " * 50) for _ in range(9)])
    event = acme.compactions.compact(session, POLICY, summary="s")

    def roll_back(_: int) -> Any:
        try:
            return acme.compactions.rollback(event.id)
        except HoldfastError as error:
            return type(error)

    with ThreadPoolExecutor(THREADS) as pool:
        outcomes = list(pool.map(roll_back, range(THREADS)))
    assert outcomes.count(Conflict) == THREADS - 1
    assert [message.id for message in acme.messages.list(session)] == [item.id for item in made]
    check_counters(acme, session)


def test_sessions_are_compacted_concurrently(hf: Holdfast) -> None:
    acme = hf.tenant("acme")
    sessions = [acme.sessions.create().id for _ in range(THREADS * 2)]
    for session in sessions:
        acme.messages.append_many(session, [NewMessage(role="user", content="word " * 50) for _ in range(12)])
    with ThreadPoolExecutor(THREADS) as pool:
        events = list(pool.map(lambda session: acme.compactions.compact(session, POLICY, summary="s"), sessions))
        list(pool.map(lambda event: acme.compactions.rollback(event.id), events))
    for session in sessions:
        check_counters(acme, session)
        assert acme.messages.count(session) == 12


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres_server) as proxy:
        yield proxy


@both_styles
@pytest.mark.leg("postgres, races of compactions")
def test_a_compaction_whose_answer_is_lost_is_settled_by_its_id(style: str, proxy: Proxy, postgres_url: str) -> None:
    async def main() -> None:
        async with opened(style, proxy.url(database_of(postgres_url))) as hf:
            acme = hf.tenant("acme")
            session = (await ask(acme.sessions.create())).id
            for number in range(6):
                new = [NewMessage(role="user", content="word " * 50) for _ in range(4)]
                await ask(acme.messages.append_many(session, new))
                plan = await ask(acme.compactions.plan(session, POLICY))
                proxy.arm("commit")
                lost = await soon(outcome(acme.compactions.compact, session, plan=plan, summary="s"))
                assert isinstance(lost, OutcomeUnknown), f"cut {number}: {lost!r}"
                again = await soon(ask(acme.compactions.compact(session, plan=plan, summary="s", id=lost.id)))
                assert (again.id, again.number) == (lost.id, number + 1)
            assert len(await ask(acme.compactions.history(session))) == 6
            assert (await ask(acme.sessions.get(session))).compaction_count == 6

    asyncio.run(main())


@both_styles
@pytest.mark.leg("postgres, races of compactions")
def test_a_connection_lost_before_the_commit_changes_nothing_or_is_retried(
    style: str, proxy: Proxy, postgres_url: str
) -> None:
    async def main() -> None:
        async with opened(style, proxy.url(database_of(postgres_url))) as hf:
            acme = hf.tenant("acme")
            for _ in range(4):
                session = (await ask(acme.sessions.create())).id
                new = [NewMessage(role="user", content="word " * 50) for _ in range(5)]
                made = await ask(acme.messages.append_many(session, new))
                plan = await ask(acme.compactions.plan(session, POLICY))
                proxy.arm("answer")
                event = await soon(ask(acme.compactions.compact(session, plan=plan, summary="s")))
                assert len(await ask(acme.messages.list(session))) == 3
                proxy.arm("request")
                await soon(ask(acme.compactions.rollback(event.id)))
                assert await ask(acme.messages.list(session)) == made
                assert len(await ask(acme.compactions.history(session))) == 1

    asyncio.run(main())
