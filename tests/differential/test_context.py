"""Contexts on both engines, compared with a selection from the whole log: the same messages, numbers and errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from holdfast import FixedClock, Holdfast, NewMessage, PoolOptions, TenantHandle
from holdfast.errors import LimitExceeded
from holdfast.types import Context, Message
from tests.differential.sides import StepIds, shape
from tests.stores.conversation.test_context_selection import check, check_choice, with_partners

HISTORIES = 25
BUDGETS = 6


class Side:
    """One engine."""

    def __init__(self, url: str) -> None:
        self.ids = StepIds()
        pool = PoolOptions(min_connections=1, max_connections=1)
        self.holdfast = Holdfast(
            url, clock=FixedClock(), ids=self.ids, pool=pool, auto_migrate=True, count_tokens=count
        )

    def begin(self, seed: int) -> None:
        self.ids.begin(seed)
        self.handle: TenantHandle = self.holdfast.tenant(f"tenant {seed}")
        self.session = self.handle.sessions.create().id

    def context(self, most: int) -> Context | str:
        try:
            return self.handle.messages.context(self.session, max_tokens=most)
        except LimitExceeded:
            return "too much"


def count(content: Any) -> int:
    return 10 * len(content)


@pytest.fixture
def sides(postgres_url: str) -> Iterator[list[Side]]:
    created = [Side(":memory:"), Side(postgres_url)]
    yield created
    for side in created:
        side.holdfast.close()


@pytest.mark.leg("contexts, sqlite and postgres together")
def test_contexts_are_the_same_on_both_engines(sides: list[Side]) -> None:
    count = sum(_compare(sides, seed) for seed in range(HISTORIES))
    assert count > HISTORIES * BUDGETS // 2, "too few contexts were returned for a meaningful comparison"


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_contexts_are_the_same_on_both_engines_for_a_long_time(sides: list[Side]) -> None:
    first = int.from_bytes(os.urandom(4))
    for seed in range(first, first + 3_000):
        _compare(sides, seed)


def _compare(sides: list[Side], seed: int) -> int:
    """Compare one history; return the number of contexts that were not refused."""
    for side in sides:
        side.begin(seed)
        _converse(side, Random(seed))
    history = [*sides[0].handle.messages.list(sides[0].session)]
    assert history == [*sides[1].handle.messages.list(sides[1].session)]
    random, count = Random(seed), 0
    for _ in range(BUDGETS):
        most = random.choice([random.randrange(1, 300), random.randrange(1, 3_000), 10**9])
        answers = [side.context(most) for side in sides]
        assert shape(answers[0]) == shape(answers[1]), f"history {seed}, {most} tokens"
        count += _judge(answers[0], history, most)
    return count


def _judge(answer: Context | str, history: list[Message], most: int) -> int:
    if isinstance(answer, str):
        made_up = sum(10 for message in with_partners(history) for block in message.content if "id" in block)
        assert sum(message.token_count or count(message.content) for message in with_partners(history)) + made_up > most
        return 0
    check(answer, history, most)
    check_choice(answer, history, most)
    return 1


def _converse(side: Side, random: Random) -> None:
    """Create a history longer than a page, with tools and several branches; delete and flag some messages."""
    for _ in range(random.randrange(1, 5)):
        side.handle.messages.append_many(side.session, [*_turns(random, random.randrange(60))])
        messages = side.handle.messages.list(side.session)
        if messages and random.random() < 0.5:
            side.handle.branches.rewind(side.session, to=random.choice(messages).seq)
        messages = side.handle.messages.list(side.session)
        if messages and random.random() < 0.3:
            side.handle.messages.delete(side.session, [random.choice(messages).id, messages[-1].id])
        messages = side.handle.messages.list(side.session)
        if messages and random.random() < 0.3:
            side.handle.messages.update(random.choice(messages).id, is_preserved=True)


def _turns(random: Random, turns: int) -> Iterator[NewMessage]:
    for turn in range(turns):
        tokens, flag = random.choice([0, 5, 20]), random.random()
        if random.random() < 0.3:
            ids = [f"{turn % 7} {number}" for number in range(random.randrange(1, 3))]  # some ids repeat
            calls: list[Any] = [{"type": "tool_use", "id": id, "name": "look", "input": {}} for id in ids]
            yield NewMessage(role="assistant", content=calls, token_count=tokens, is_preserved=flag < 0.02)
            answered = [id for id in ids if random.random() < 0.8]
            results: list[Any] = [{"type": "tool_result", "tool_use_id": id, "content": "found"} for id in answered]
            if results:
                yield NewMessage(role="user", content=results, token_count=tokens, is_preserved=0.02 < flag < 0.04)
        else:
            role = "system" if flag < 0.01 else random.choice(["user", "assistant"])
            yield NewMessage(role=role, content="words", token_count=tokens, is_summary=flag > 0.98)
