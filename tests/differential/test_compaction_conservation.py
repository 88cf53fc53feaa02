"""After any number of automatic compactions, every appended message is in the log or in the archive, unchanged."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from msgspec import structs

from holdfast import AsyncHoldfast, AsyncTenantHandle, CompactionPolicy, FixedClock, PoolOptions, SeededIds
from holdfast.types import Message
from tests.contract.cases.values import same
from tests.differential import compaction_oracle as oracle

POOL = PoolOptions(min_connections=1, max_connections=2)


class Life:
    """A session that is compacted automatically."""

    def __init__(self, acme: AsyncTenantHandle, clock: FixedClock, seed: int, counts: Counter[str]) -> None:
        self.acme, self.clock, self.done = acme, clock, counts
        self.random = Random(seed)
        self.tools = [f"call {number}" for number in range(40)]
        self.appended: dict[str, Message] = {}
        self.policy = self.any_policy()

    def any_policy(self) -> CompactionPolicy:
        drawn = oracle.random_policy(self.random)
        return structs.replace(drawn, window_tokens=3_000, target_tokens=min(drawn.target_tokens, 2_000))

    async def summarize(self, messages: Sequence[Message]) -> str:
        """Return a summary, fail, return one that is too long or empty, or append messages in between."""
        how = self.random.random()
        self.done["asked"] += 1
        if how < 0.1:
            raise OSError("no model today")
        if how < 0.2:
            return self.random.choice(("", "x" * 100_000))
        if how < 0.3:
            await self.append(1)
        return oracle.random_text(self.random)

    async def append(self, count: int) -> None:
        self.clock.advance(1)
        new = oracle.random_messages(self.random, count, self.tools)
        if count == 1 and self.random.random() < 0.5:
            fields = {name: getattr(new[0], name) for name in new[0].__struct_fields__}
            created = [await self.acme.messages.append(self.session, **fields)]
        else:
            created = await self.acme.messages.append_many(self.session, new)
        self.appended.update({message.id: message for message in created})

    async def live(self, steps: int) -> None:
        self.session = (await self.acme.sessions.create(agent="helper")).id
        await self.attach()
        for _ in range(steps):
            await self.append(self.random.choice((1, 1, 2, 6)))
            what = self.random.random()
            if what < 0.1:
                await self.attach()
            elif what < 0.2:
                await self.roll_back()
            if what < 0.3:
                await self.check()
        await self.check()

    async def attach(self) -> None:
        self.policy = self.any_policy()
        target: Any = {"agent": "helper"} if self.random.random() < 0.3 else {"session_id": self.session}
        await self.acme.compactions.attach(self.policy, summarize=self.summarize, **target)

    async def roll_back(self) -> None:
        events = await self.acme.compactions.history(self.session)
        live = [event for event in events if event.rolled_back_at is None]
        if live:
            await self.acme.compactions.rollback(live[0].id)
            self.done["rolled back"] += 1

    async def check(self) -> None:
        """Check that every message exists once and is unchanged."""
        log = {message.id: message for message in await self.acme.messages.list(self.session)}
        archived = await self.acme.compactions.archived(session_id=self.session, limit=1_000)
        assert archived.next is None
        events = await self.acme.compactions.history(self.session)
        live = [event for event in events if event.rolled_back_at is None]
        originals: dict[str, Message] = {}
        for original in reversed(
            archived
        ):  # the first copy of a message that was rewritten and then removed is the original
            originals[original.message.id] = original.message
        summaries = {message.summary_message_id for message in live}
        for id, message in self.appended.items():
            stored_message = originals.get(id) or log.get(id)
            assert stored_message is not None, f"message {message.seq} is missing"
            assert same(structs.asdict(stored_message), structs.asdict(message)), f"message {message.seq} was changed"
        assert {*log, *originals} - self.appended.keys() <= summaries
        session = await self.acme.sessions.get(self.session)
        assert session.compaction_count == len(live)
        assert (session.message_count, session.token_count) == (
            len(log),
            sum(message.token_count for message in log.values()),
        )
        self.done["compacted"] = max(self.done["compacted"], len(events))
        self.done["events"] += len(live)


async def lives(url: str, seeds: range, steps: int) -> Counter[str]:
    clock, counts = FixedClock(), Counter[str]()
    async with AsyncHoldfast(url, clock=clock, ids=SeededIds(seeds.start), pool=POOL) as hf:
        for seed in seeds:
            life = Life(hf.tenant(f"tenant {seed}"), clock, seed, counts)
            try:
                await life.live(steps)
            except Exception as error:
                raise AssertionError(f"life {seed}: {error}") from error
    return counts


@pytest.mark.leg("sqlite, random histories")
def test_no_message_is_lost_on_sqlite() -> None:
    counts = asyncio.run(lives(":memory:", range(25), 40))
    assert counts["compacted"] >= 5
    assert min(counts["asked"], counts["rolled back"], counts["events"]) >= 20, counts


@pytest.mark.leg("postgres, random histories")
def test_no_message_is_lost_on_postgres(postgres_url: str) -> None:
    counts = asyncio.run(lives(postgres_url, range(100, 106), 40))
    assert min(counts["asked"], counts["events"]) >= 5, counts


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_no_message_is_lost_in_a_thousand_sessions(postgres_url: str) -> None:
    asyncio.run(lives(":memory:", range(1_000, 2_000), 60))
    asyncio.run(lives(postgres_url, range(1_000, 1_200), 60))
