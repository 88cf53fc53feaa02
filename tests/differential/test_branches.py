"""Branches on SQLite and on PostgreSQL, compared with a model of lists over random forks, rewinds and switches."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from holdfast import Filter, Limits, NewMessage, column, meta
from holdfast.core.paging import Page
from holdfast.stores.conversation.branches import Branches
from holdfast.types import Message
from tests.differential.sides import Cursor, Sides
from tests.differential.test_machine import _empty

LIMITS = Limits(name_bytes=20, batch_rows=6, page_rows=20, list_rows=40)
NUMBER = st.integers(0, 10_000)
TENANT = "acme"
ANSWERED: Counter[str] = Counter()
"""How often each method succeeded."""

small = st.integers(0, 12)
odd = st.sampled_from([-1, True, "1", 2**40, 2**70, None])
filters = st.lists(
    st.one_of(
        st.builds(lambda op, value: Filter(op, value, column="seq"), st.sampled_from(["eq", "ne", "lt", "ge"]), small),
        st.lists(small, max_size=4).map(column("seq").is_in),
        st.integers(0, 3).map(meta("n").eq),
        st.sampled_from(["user", "assistant"]).map(column("role").eq),
        st.booleans().map(column("is_preserved").eq),
    ),
    max_size=2,
)


class Machine(RuleBasedStateMachine):
    """Two sessions, so that they can be confused, and few messages, so that branches share them."""

    def __init__(self, *urls: str) -> None:
        super().__init__()
        self.sides = Sides(LIMITS, *urls)
        self.sessions: list[str] = [self.call("sessions.create", key=key).id for key in ("one", "two")]
        self.messages: list[str] = []
        self.cursors: list[tuple[str, dict[str, Any], Cursor]] = []
        self.append_some(0, 3, 1)

    def teardown(self) -> None:
        try:
            if not self.sides.differed:
                self.everything()
        finally:
            self.sides.close()

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        answer = self.sides.call(TENANT, name, *args, **kwargs)
        if not isinstance(answer, Exception):
            ANSWERED[name] += 1
        for row in answer if isinstance(answer, list) else [answer]:
            if isinstance(row, Message) and name.startswith("messages.append"):
                self.messages.append(row.id)
        return answer

    def session(self, number: int) -> str:
        return self.sessions[number % 5 == 4]

    def counters(self, number: int) -> None:
        self.call("sessions.get", self.session(number), deleted=True)

    @rule(number=NUMBER, count=st.integers(1, 5), tokens=st.integers(0, 9))
    def append_some(self, number: int, count: int, tokens: int) -> None:
        new = [
            NewMessage(
                role=("user", "assistant")[(number + index) % 2],
                content=f"{self.sides.step} {index}",
                metadata={"n": (number + index) % 4},
                token_count=tokens,
                is_preserved=number % 3 == 0,
            )
            for index in range(count)
        ]
        if count == 1:
            self.call("messages.append", self.session(number), role="user", content="alone", token_count=tokens)
        else:
            self.call("messages.append_many", self.session(number), new)
        self.counters(number)

    @rule(number=NUMBER, which=NUMBER)
    def append_again(self, number: int, which: int) -> None:
        """Repeat a call whose response was lost, whatever branch the session shows by now."""
        existing = self.call("messages.get", self.some_message(which))
        if isinstance(existing, Message):
            what = {
                "role": existing.role,
                "content": existing.content,
                "metadata": existing.metadata,
                "id": existing.id,
            }
            self.call("messages.append", existing.session_id, **what)
            self.call("messages.append", self.session(number), **what)
            self.counters(number)

    @rule(number=NUMBER, at=st.none() | small | small | odd, label=st.sampled_from([None, None, "x", "", "x" * 21]))
    def fork(self, number: int, at: Any, label: Any) -> None:
        self.call("branches.fork", self.session(number), at=at, label=label)
        self.counters(number)

    @rule(number=NUMBER, to=small | small | small | odd)
    def rewind(self, number: int, to: Any) -> None:
        self.call("branches.rewind", self.session(number), to=to)
        self.counters(number)

    @rule(number=NUMBER, back=st.integers(0, 3), again=st.booleans())
    def rewind_a_little(self, number: int, back: int, again: bool) -> None:
        last = self.call("messages.last", self.session(number), 4)
        if last:
            self.call("branches.rewind", self.session(number), to=last[-1 - back % len(last)].seq)
            self.append_some(number, 2, 1)
        if again:
            self.redo(number)

    @rule(number=NUMBER, back=st.integers(0, 7))
    def fork_and_switch(self, number: int, back: int) -> None:
        existing = self.call("messages.list", self.session(number))
        at = existing[-1 - back % len(existing)].seq if existing else 0
        made = self.call("branches.fork", self.session(number), at=at)
        self.call("branches.switch", self.session(number), made.number)

    @rule(number=NUMBER)
    def redo(self, number: int) -> None:
        self.call("branches.redo", self.session(number))
        self.counters(number)

    @rule(number=NUMBER, to=st.integers(0, 6) | st.integers(0, 6) | odd)
    def switch(self, number: int, to: Any) -> None:
        self.call("branches.switch", self.session(number), to)
        self.call("branches.current", self.session(number))
        self.counters(number)

    @rule(number=NUMBER, limit=st.none() | st.integers(1, 3))
    def list_branches(self, number: int, limit: int | None) -> None:
        page = self.call("branches.list", self.session(number), limit=limit)
        while isinstance(page, Page) and page.next is not None:
            page = self.call("branches.list", self.session(number), limit=limit, cursor=page.next)

    @rule(number=NUMBER, which=st.lists(NUMBER, min_size=1, max_size=3))
    def delete(self, number: int, which: list[int]) -> None:
        self.call("messages.delete", self.session(number), [self.some_message(index) for index in which])
        self.counters(number)

    @rule(number=NUMBER, which=NUMBER, tokens=st.none() | st.integers(0, 9), preserved=st.none() | st.booleans())
    def update(self, number: int, which: int, tokens: int | None, preserved: bool | None) -> None:
        self.call("messages.update", self.some_message(which), token_count=tokens, is_preserved=preserved)
        self.counters(number)

    @rule(number=NUMBER, where=filters, newest_first=st.booleans())
    def read(self, number: int, where: list[Filter], newest_first: bool) -> None:
        self.call("messages.list", self.session(number), where=where, newest_first=newest_first)
        self.call("messages.count", self.session(number), where=where)

    @rule(number=NUMBER, count=st.integers(1, 9))
    def last(self, number: int, count: int) -> None:
        self.call("messages.last", self.session(number), count)

    @rule(number=NUMBER, after=small, before=st.none() | small, newest_first=st.booleans())
    def stretch(self, number: int, **how: Any) -> None:
        self.call("messages.list", self.session(number), **how)

    @rule(number=NUMBER, limit=st.integers(1, 4), newest_first=st.booleans(), where=filters)
    def page(self, number: int, **how: Any) -> None:
        page = self.call("messages.list", self.session(number), **how)
        if isinstance(page, Page) and page.next is not None:
            self.cursors.append((self.session(number), how, page.next))  # type: ignore[arg-type]

    @rule(number=NUMBER)
    def next_page(self, number: int) -> None:
        """Read the next page, possibly on another branch than the previous page."""
        if self.cursors:
            session, how, cursor = self.cursors[-1 - number % min(len(self.cursors), 4)]
            self.call("messages.list", session, cursor=cursor, **how)

    @rule(number=NUMBER, to=small)
    def come_and_go(self, number: int, to: int) -> None:
        session = self.session(number)
        self.call("sessions.delete", session)
        self.call("branches.fork", session, at=to)
        self.call("branches.list", session)
        self.call("messages.list", session)
        self.call("sessions.restore", session)

    @rule(seconds=st.sampled_from([0.000001, 1, 61, -1]))
    def time_passes(self, seconds: float) -> None:
        self.sides.clock.advance(seconds)

    def some_message(self, number: int) -> str:
        return self.messages[-1 - number % min(len(self.messages), 15)]

    def everything(self) -> None:
        """Compare every branch of every session in both directions, after a rewind and its redo."""
        for session in self.sessions:
            self.call("sessions.restore", session)
            existing = self.call("messages.last", session, 3)
            if existing:
                self.call("branches.rewind", session, to=existing[0].seq)
                self.call("branches.redo", session)
            branches = self.call("branches.list", session, limit=20)
            for branch in branches:
                self.call("branches.switch", session, branch.number)
                self.call("sessions.get", session)
                self.call("messages.list", session, limit=20)
                self.call("messages.list", session, limit=20, newest_first=True)
                self.call("messages.count", session)


def _run(url: str, **effort: int) -> None:
    bounds = settings(deadline=None, suppress_health_check=[*HealthCheck], **effort)  # type: ignore[arg-type]

    def machine() -> Machine:
        _empty(url)
        return Machine(":memory:", url)

    run_state_machine_as_test(machine, settings=bounds)


@pytest.mark.leg("model, sqlite and postgres together")
def test_branches_on_both_engines_equal_the_model(postgres_url: str) -> None:
    _run(postgres_url, max_examples=25, stateful_step_count=40)
    methods = [f"branches.{name}" for name in dir(Branches) if not name.startswith("_")]
    seldom = [method for method in [*methods, "messages.append", "messages.update"] if ANSWERED[method] < 5]
    assert not seldom, f"the machine proves nothing about {seldom}: {ANSWERED}"


@pytest.mark.soak
@pytest.mark.leg("model, sqlite and postgres together")
@pytest.mark.timeout(7_200)
def test_branches_on_both_engines_equal_the_model_for_a_long_time(postgres_url: str) -> None:
    _run(postgres_url, max_examples=2_000, stateful_step_count=100)


WALKS = [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 10))]


@pytest.mark.leg("model, sqlite and postgres together")
@pytest.mark.parametrize("seed", WALKS)
def test_many_nested_branches_equal_the_model(postgres_url: str, seed: int) -> None:
    """Compare dozens of nested branches, more than the state machine creates."""
    random = Random(seed)
    sides = Sides(Limits(), ":memory:", postgres_url)
    try:
        id = sides.call(TENANT, "sessions.create").id
        for _ in range(150):
            last = sides.call(TENANT, "messages.list", id)
            seqs = [0, *(message.seq for message in last)]
            many = len(sides.call(TENANT, "branches.list", id))
            match random.randrange(8):
                case 0 | 1 | 2:
                    new = [NewMessage(role="user", content="x", token_count=random.randrange(9)) for _ in range(4)]
                    sides.call(TENANT, "messages.append_many", id, new)
                case 3:
                    sides.call(TENANT, "branches.fork", id, at=random.choice(seqs))
                case 4:
                    sides.call(TENANT, "branches.rewind", id, to=random.choice(seqs[len(seqs) // 2 :]))
                case 5:
                    sides.call(TENANT, "branches.switch", id, random.randrange(many))
                case 6:
                    sides.call(TENANT, "branches.redo", id)
                case 7 if last:
                    sides.call(TENANT, "messages.delete", id, [random.choice(last).id])
            sides.call(TENANT, "sessions.get", id)
            sides.call(TENANT, "messages.last", id, random.randrange(1, 30))
            sides.call(TENANT, "messages.count", id)
    finally:
        sides.close()
