"""Random histories are compacted by the rules and rolled back exactly, on both engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from msgspec import structs

from holdfast import CompactionPolicy, FixedClock, Holdfast, PoolOptions, SeededIds, TenantHandle
from holdfast.errors import Conflict, InvalidInput, NothingToCompact
from holdfast.types import CompactionEvent, Message
from tests.contract.cases.values import same
from tests.differential import compaction_oracle as oracle

IN_TESTS = {"sqlite": 240, "postgres": 60}
IN_SOAK = 10_000


class Story:
    """One session with its actions and its expected content."""

    def __init__(self, acme: TenantHandle, clock: FixedClock, seed: int, counts: Counter[str]) -> None:
        self.acme, self.clock, self.done = acme, clock, counts
        self.random = Random(seed)
        self.session = acme.sessions.create().id
        self.tools = [f"call {number}" for number in range(self.random.choice((2, 6)))]
        self.undoable: list[tuple[CompactionEvent, list[Message]]] = []
        self.trace: list[Any] = []

    def shown(self) -> list[Message]:
        """Return the messages of the session, and check all counters against them."""
        messages = [*self.acme.messages.list(self.session)]
        session = self.acme.sessions.get(self.session)
        assert session.message_count == len(messages)
        assert session.token_count == sum(message.token_count for message in messages)
        live = [event for event in self.acme.compactions.history(self.session) if event.rolled_back_at is None]
        assert session.compaction_count == len(live)
        return messages

    def append(self) -> None:
        self.clock.advance(1)
        new = oracle.random_messages(self.random, self.random.choice((0, 1, 2, 5, 14)), self.tools)
        self.acme.messages.append_many(self.session, new)

    def compact(self) -> None:
        self.clock.advance(1)
        policy = oracle.random_policy(self.random)
        summary = oracle.random_text(self.random)
        before = self.shown()
        plan = self.acme.compactions.plan(self.session, policy)
        assert plan.tokens_before == oracle.total(before)
        assert plan.is_due == (oracle.total(before) >= policy.trigger * policy.window_tokens)
        assert identical(self.shown(), before)
        try:
            event = self.acme.compactions.compact(self.session, policy, summary=summary)
        except NothingToCompact:
            assert identical(self.shown(), before)
            self.done["refused"] += 1
            return
        self.undoable.append((event, before))
        after = self.shown()
        check(before, after, event, policy, summary)
        self.trace.append(
            structs.replace(event, id="", session_id="", preserved_message_ids=[], summary_message_id=None)
        )
        self.done["rewritten" if event.messages_rewritten else "removed"] += 1

    def roll_back(self) -> None:
        if not self.undoable:
            return
        if len(self.undoable) > 1:
            with pytest.raises(Conflict, match=self.undoable[-1][0].id):
                self.acme.compactions.rollback(self.undoable[0][0].id)
        event, before = self.undoable.pop()
        last = max((message.seq for message in before), default=0)
        later = [message for message in self.shown() if message.seq > last]
        self.clock.advance(1)
        self.acme.compactions.rollback(event.id)
        assert identical(self.shown(), [*before, *later])
        self.done["rolled back"] += 1

    def fork(self) -> None:
        self.acme.branches.fork(self.session)
        self.done["forked"] += 1

    def run(self, *, forks: bool) -> None:
        """Run random actions, then roll back all compactions."""
        steps = [self.append, self.append, self.compact, self.compact, self.roll_back]
        self.append()
        for _ in range(self.random.choice((2, 4, 7))):
            self.random.choice(steps)()
            if forks and self.random.random() < 0.2:
                self.settle()
                self.fork()
        self.settle()
        assert self.acme.compactions.archived(session_id=self.session) == []
        self.acme.sessions.purge(self.session)

    def settle(self) -> None:
        """Roll back all compactions. Only then is the session forked: a fork keeps the ids that a rollback would restore."""
        while self.undoable:
            self.roll_back()


class BranchyStory(Story):
    """One session with several branches, each with its own compactions, which must not affect the others.

    The rollback of a rewriting that another branch shows inserts copies with new ids; so ids are compared only in
    stories without rewriting.
    """

    def __init__(self, acme: TenantHandle, clock: FixedClock, seed: int, counts: Counter[str]) -> None:
        super().__init__(acme, clock, seed, counts)
        self.rewrites = seed % 2 == 1
        self.current = 0
        self.branches: dict[int, list[Message]] = {0: []}
        self.stacks: dict[int, list[tuple[CompactionEvent, list[Message]]]] = {0: []}

    def look(self) -> None:
        """Check that every branch shows its last known messages."""
        for number in self.random.sample([*self.branches], len(self.branches)):
            self.go_to(number)
            assert identical(self.without_ids(self.shown()), self.without_ids(self.branches[number])), (
                f"branch {number}"
            )

    def without_ids(self, messages: Sequence[Message]) -> list[Message]:
        return [structs.replace(message, id="") for message in messages] if self.rewrites else [*messages]

    def go_to(self, number: int) -> None:
        self.current = self.acme.branches.switch(self.session, number).number

    def note(self) -> None:
        self.branches[self.current] = self.shown()

    def compact(self) -> None:
        self.clock.advance(1)
        policy = oracle.random_policy(self.random)
        policy = policy if self.rewrites else structs.replace(policy, strategy="summarization")
        before = self.shown()
        try:
            event = self.acme.compactions.compact(self.session, policy, summary=oracle.random_text(self.random))
        except NothingToCompact:
            return
        self.stacks[self.current].append((event, before))
        self.done["compacted"] += 1

    def roll_back(self) -> None:
        if not self.stacks[self.current]:
            return
        event, before = self.stacks[self.current].pop()
        last = max((message.seq for message in before), default=0)
        later = [message for message in self.shown() if message.seq > last]
        self.clock.advance(1)
        self.acme.compactions.rollback(event.id)
        self.branches[self.current] = [*before, *later]
        assert identical(self.without_ids(self.shown()), self.without_ids([*before, *later]))
        self.done["rolled back"] += 1

    def fork(self) -> None:
        messages = self.branches[self.current]
        at = (
            self.random.choice([message.seq for message in messages])
            if messages and self.random.random() < 0.5
            else None
        )
        try:
            number = self.acme.branches.fork(self.session, at=at).number
        except InvalidInput:
            return
        except Conflict:
            assert at is not None
            assert {*range(1, at)} - {message.seq for message in messages}, "no message before the fork was removed"
            assert any(message.is_summary and message.seq > at for message in messages)
            self.done["refused"] += 1
            return
        assert not self.loses(at)
        self.branches[number] = [message for message in messages if at is None or message.seq <= at]
        self.stacks[number] = []

    def loses(self, at: int | None) -> bool:
        """Return whether a message before ``at`` is only in a later summary, because of a compaction of this branch."""
        by_seq = {message.seq: message for message in self.branches[self.current]}
        for _, before in self.stacks[self.current] if at is not None else []:
            lost = [message.seq for message in before if message.seq <= at and message.seq not in by_seq]
            if lost and not any(message.is_summary and max(lost) <= message.seq <= at for message in by_seq.values()):
                return True
        return False

    def run(self, *, forks: bool) -> None:
        steps = [self.append, self.compact, self.compact, self.roll_back, self.fork]
        self.append()
        self.note()
        for _ in range(14):
            self.random.choice(steps)()
            self.note()
            if self.random.random() < 0.4:
                self.go_to(self.random.choice([*self.branches]))
        self.look()
        while any(self.stacks.values()):
            self.go_to(self.random.choice([branch for branch, stack in self.stacks.items() if stack]))
            self.roll_back()
        self.look()
        self.done["branches"] += len(self.branches)
        self.acme.sessions.purge(self.session)


def check(
    before: Sequence[Message], after: Sequence[Message], event: CompactionEvent, policy: CompactionPolicy, summary: str
) -> None:
    """Check the effect of a compaction against the oracle."""
    assert (event.original_tokens, event.compacted_tokens) == (oracle.total(before), oracle.total(after))
    assert event.compacted_tokens < event.original_tokens
    by_seq = {message.seq: message for message in after}
    protected = [message for message in before if message.id in oracle.untouchable(before, policy)]
    assert identical([by_seq[message.seq] for message in protected], protected)
    removed = [
        message for message in before if message.seq not in by_seq or by_seq[message.seq].id == event.summary_message_id
    ]
    assert len(removed) == event.messages_removed
    assert event.preserved_message_ids == [
        message.id for message in before if message.id in event.preserved_message_ids
    ]
    summaries = [message for message in after if message.id == event.summary_message_id]
    if event.messages_removed:
        assert identical(removed, oracle.removable(before, policy))
        assert [message.seq for message in summaries] == [removed[-1].seq]
        assert summaries[0].content == [{"type": "text", "text": summary}]
        assert (summaries[0].is_summary, event.summary_content) == (True, summary)
    else:
        assert (summaries, event.summary_content, policy.strategy) == ([], None, "hybrid")
        worth_it = any(not message.is_summary for message in oracle.removable(before, policy))
        assert oracle.total(after) <= policy.target_tokens or not worth_it
    check_rewritten(before, [message for message in after if message not in summaries], event)
    assert oracle.pairs_are_whole(before, [message for message in after if message not in summaries])


def check_rewritten(before: Sequence[Message], after: Sequence[Message], event: CompactionEvent) -> None:
    """Check that the remaining messages are unchanged except for tool outputs."""
    was = {message.seq: message for message in before}
    changed = [message for message in after if message.seq in was and not identical([was[message.seq]], [message])]
    assert len(changed) == event.messages_rewritten
    for message in changed:
        expected = oracle.without_outputs(was[message.seq])
        count = message.token_count if was[message.seq].token_count else 0
        assert same(message.content, expected.content)
        assert count == (oracle.estimate(message.content) if was[message.seq].token_count else 0)
        assert oracle.tokens(message) < oracle.tokens(was[message.seq])
        now = structs.replace(expected, updated_at=message.updated_at, token_count=count, id=message.id)
        assert identical([message], [now])


def identical(one: Sequence[Message], other: Sequence[Message]) -> bool:
    """Return whether messages are equal in every value and type."""
    return same([structs.asdict(message) for message in one], [structs.asdict(message) for message in other])


def tell(url: str, seeds: range, *, forks: bool = False, kind: type[Story] = Story) -> tuple[list[Any], Counter[str]]:
    """Run many random stories in one database; return the numbers of their actions."""
    clock, counts = FixedClock(), Counter[str]()
    trace: list[Any] = []
    pool = PoolOptions(min_connections=1, max_connections=2)
    with Holdfast(url, clock=clock, ids=SeededIds(seeds.start), pool=pool) as hf:
        for seed in seeds:
            story = kind(hf.tenant("acme"), clock, seed, counts)
            try:
                story.run(forks=forks)
            except Exception as error:
                raise AssertionError(f"story {seed}: {error}") from error
            trace.append(story.trace)
    return trace, counts


@pytest.mark.leg("sqlite, random histories")
def test_random_histories_are_compacted_and_rolled_back_exactly_on_sqlite() -> None:
    _, counts = tell(":memory:", range(IN_TESTS["sqlite"]))
    assert min(counts[action] for action in ("refused", "rewritten", "removed")) >= 20, counts
    assert counts["rolled back"] == counts["rewritten"] + counts["removed"]


@pytest.mark.leg("postgres, random histories")
def test_random_histories_are_compacted_and_rolled_back_exactly_on_postgres(postgres_url: str) -> None:
    trace, counts = tell(postgres_url, range(IN_TESTS["postgres"]))
    assert min(counts[action] for action in ("refused", "rewritten", "removed")) >= 5, counts
    same_stories, _ = tell(":memory:", range(IN_TESTS["postgres"]))
    assert trace == same_stories, "the engines ran different actions"


@pytest.mark.leg("sqlite, random histories")
def test_random_histories_that_branches_share_are_rolled_back_exactly_on_sqlite() -> None:
    _, counts = tell(":memory:", range(2_000, 2_120), forks=True)
    assert min(counts[action] for action in ("forked", "rewritten", "removed")) >= 10, counts


@pytest.mark.leg("postgres, random histories")
def test_random_histories_that_branches_share_are_rolled_back_exactly_on_postgres(postgres_url: str) -> None:
    _, counts = tell(postgres_url, range(2_000, 2_040), forks=True)
    assert min(counts[action] for action in ("forked", "rewritten", "removed")) >= 5, counts


@pytest.mark.leg("sqlite, random histories")
def test_compactions_of_one_branch_do_not_change_others_on_sqlite() -> None:
    _, counts = tell(":memory:", range(3_000, 3_100), kind=BranchyStory)
    assert counts["branches"] > 200
    assert counts["rolled back"] == counts["compacted"] > 100


@pytest.mark.leg("postgres, random histories")
def test_compactions_of_one_branch_do_not_change_others_on_postgres(postgres_url: str) -> None:
    _, counts = tell(postgres_url, range(3_000, 3_020), kind=BranchyStory)
    assert counts["rolled back"] == counts["compacted"] > 20


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("kind", [Story, BranchyStory])
def test_ten_thousand_random_histories_with_branches_on_sqlite(kind: type[Story]) -> None:
    tell(":memory:", range(20_000, 20_000 + IN_SOAK), kind=kind)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("forks", [False, True])
def test_ten_thousand_random_histories_on_sqlite(forks: bool) -> None:
    tell(":memory:", range(10_000, 10_000 + IN_SOAK), forks=forks)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("forks", [False, True])
def test_ten_thousand_random_histories_on_postgres(postgres_url: str, forks: bool) -> None:
    tell(postgres_url, range(10_000, 10_000 + IN_SOAK), forks=forks)
