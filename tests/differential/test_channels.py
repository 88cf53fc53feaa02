"""Pending messages, contacts and feedback on SQLite and on PostgreSQL, compared with a model in plain Python."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from holdfast import GroupKey, Limits, NewPendingMessage, column, meta
from holdfast.core.paging import Page
from holdfast.types import Contact, Contacts, Feedback, FeedbackStore, Message, PendingMessage, PendingMessages
from tests.contract.cases.world import uuid_of
from tests.differential import strategies as given
from tests.differential.sides import Cursor, Sides

LIMITS = Limits(
    name_bytes=40, key_bytes=40, display_bytes=60, url_bytes=20, text_bytes=20, content_bytes=60, metadata_bytes=200,
    json_depth=5, batch_rows=5, page_rows=6, list_rows=25, filters=4,
)  # fmt: skip
NUMBER = st.integers(0, 10_000)
TENANTS = st.sampled_from(["acme", "acme", "acme", "zenith"])
ANSWERED: Counter[str] = Counter()
"""How often each method succeeded."""

rooms = st.one_of(
    st.sampled_from([("telegram", "-100"), ("telegram", "-1001"), ("discord", "-100")]),
    st.tuples(given.names, given.names),
)
ids = st.one_of(st.none(), st.none(), st.none(), st.sampled_from([uuid_of(number) for number in range(6)]))
people = st.sampled_from(
    ["ada", "Ada Lovelace", "ADALBERT", "straße", "STRASSE", "100%", "100 percent", "a_b", "aXb", "\\"]
)
shown = st.one_of(st.none(), st.just(""), people, given.small_text)
users = st.sampled_from([None, "ada", "bob", "bob", ""])
searches = st.one_of(st.none(), people.map(lambda name: name[:2].swapcase()), people, given.small_text)
limits = st.one_of(st.none(), st.integers(1, 3), st.sampled_from([0, 6, 7]))


class Machine(RuleBasedStateMachine):
    """Few groups, contacts and messages, so that calls concern the same rows."""

    def __init__(self, *urls: str) -> None:
        super().__init__()
        self.sides = Sides(LIMITS, *urls)
        self.seen: dict[type, list[str]] = {PendingMessage: [], Contact: [], Feedback: [], Message: []}
        self.batches: list[tuple[str, list[NewPendingMessage]]] = []
        self.pages: list[tuple[str, str, tuple[Any, ...], dict[str, Any], Cursor]] = []
        self.sessions = [self.call("acme", "sessions.create").id for _ in range(2)]
        for number, session in enumerate(self.sessions):
            self.call("acme", "messages.append", session, role="user", content="x")
            self.change_my_mind("acme", number, "ada", True)
        for number in range(6):
            self.meet_plainly(number, f"Name {number}")

    def teardown(self) -> None:
        try:
            if not self.sides.differed:
                self.everything()
        finally:
            self.sides.close()

    def call(self, tenant: str | None, name: str, *args: Any, **kwargs: Any) -> Any:
        answer = self.sides.call(tenant, name, *args, **kwargs)
        if not isinstance(answer, Exception):
            ANSWERED[name] += 1
        for row in answer if isinstance(answer, list) else [answer]:
            if type(row) in self.seen and row.id not in self.seen[type(row)]:
                self.seen[type(row)].append(row.id)
        if isinstance(answer, Page) and answer.next is not None and tenant is not None:
            self.pages.append((tenant, name, args, {**kwargs, "cursor": answer.next}, answer.next))  # type: ignore[arg-type]
        return answer

    def id(self, kind: type, number: int) -> str:
        """Return usually an existing item, more often a recent one."""
        known = self.seen[kind][-8:]
        return known[number % len(known)] if known else uuid_of(number)

    @rule(seconds=st.sampled_from([0.000001, 1, 30, 60]))
    def wait(self, seconds: float) -> None:
        self.sides.clock.advance(seconds)

    @rule(number=NUMBER)
    def next_page(self, number: int) -> None:
        if self.pages:
            tenant, name, args, how, _ = self.pages[number % len(self.pages)]
            self.call(tenant, name, *args, **how)

    @rule(tenant=TENANTS, new=st.lists(st.tuples(rooms, given.small_text, ids), max_size=6))
    def append(self, tenant: str, new: list[Any]) -> None:
        batch = [NewPendingMessage(channel_name=c, history_key=k, body=body, id=id) for (c, k), body, id in new]
        self.call(tenant, "pending_messages.append_batch", batch)
        self.batches.append((tenant, batch))

    @rule(room=rooms, count=st.integers(1, 4), sender=shown)
    def talk(self, room: Any, count: int, sender: Any) -> None:
        new = [
            NewPendingMessage(channel_name=room[0], history_key=room[1], body=str(n), sender=sender or "")
            for n in range(count)
        ]
        self.call("acme", "pending_messages.append_batch", new)

    @rule(number=NUMBER)
    def append_again(self, number: int) -> None:
        if self.batches:
            tenant, batch = self.batches[-1 - number % min(len(self.batches), 3)]
            self.call(tenant, "pending_messages.append_batch", batch)

    @rule(tenant=TENANTS, which=st.lists(NUMBER, max_size=6), summary=given.small_text, id=ids)
    def compact(self, tenant: str, which: list[int], summary: str, id: str | None) -> None:
        chosen = [self.id(PendingMessage, index) for index in which]
        self.call(tenant, "pending_messages.compact", chosen, summary, id=id)

    @rule(room=rooms, count=st.integers(1, 4), id=ids)
    def compact_a_group(self, room: Any, count: int, id: str | None) -> None:
        existing = self.call("acme", "pending_messages.list_by_key", *room, limit=5)
        if isinstance(existing, Page):
            chosen = [message.id for message in existing[:count]]
            self.call("acme", "pending_messages.compact", chosen, "summary", id=id)
            self.call("acme", "pending_messages.list_groups")

    @rule(tenant=TENANTS, room=rooms, limit=limits)
    def look_into_a_group(self, tenant: str, room: Any, limit: int | None) -> None:
        self.call(tenant, "pending_messages.list_by_key", *room, limit=limit)
        self.call(tenant, "pending_messages.count_by_key", *room)
        self.call(tenant, "pending_messages.count_all")
        self.call(tenant, "pending_messages.list_groups", limit=limit)

    @rule(room=rooms, title=given.json_values, agent=st.sampled_from(["a", "b"]))
    def title(self, room: Any, title: Any, agent: str) -> None:
        try:
            key = GroupKey(agent=agent, channel=room[0], peer=room[1])
        except Exception:
            return
        self.call("acme", "sessions.upsert", str(key), metadata={"chat_title": title})
        self.call("acme", "pending_messages.resolve_group_titles", [room, ("telegram", "-100")])

    @rule(tenant=TENANTS, room=rooms)
    def clear(self, tenant: str, room: Any) -> None:
        self.call(tenant, "pending_messages.delete_by_key", *room)

    @rule(tenant=TENANTS, seconds=st.sampled_from([0, 30, 60, 90, 10**9]))
    def forget_what_is_stale(self, tenant: str, seconds: int) -> None:
        self.call(tenant, "pending_messages.delete_stale", older_than=timedelta(seconds=seconds))

    @rule(tenant=TENANTS, channel=st.sampled_from(["telegram", "discord", ""]), sender=people | given.names,
          display_name=shown, username=shown, peer_kind=st.sampled_from([None, "direct", "group"]),
          metadata=given.metadata, avatar_url=st.sampled_from([None, "http://a", "x" * 21]))  # fmt: skip
    def meet(self, tenant: str, channel: str, sender: str, **known: Any) -> None:
        self.call(tenant, "contacts.upsert", channel, sender, **known)
        self.call(tenant, "contacts.find", channel, sender)

    @rule(number=st.integers(0, 9), name=people)
    def meet_plainly(self, number: int, name: str) -> None:
        self.call("acme", "contacts.upsert", ("telegram", "discord")[number % 2], f"s{number // 2}", display_name=name)

    @rule(first=NUMBER, second=NUMBER)
    def merge_two(self, first: int, second: int) -> None:
        self.call("acme", "contacts.merge", [self.id(Contact, first), self.id(Contact, second)])

    @rule(which=st.lists(NUMBER, min_size=1, max_size=3))
    def take_out(self, which: list[int]) -> None:
        self.call("acme", "contacts.unmerge", [self.id(Contact, index) for index in which])

    @rule(tenant=TENANTS, search=searches, channel_type=st.sampled_from([None, None, "telegram"]), limit=limits,
          peer_kind=st.sampled_from([None, None, "group", ""]), where=st.sampled_from([[], [], [column("username").ne("")],
          [meta("a").eq(1)], [column("merged_id").eq(None)], [column("nothing").eq(1)]]))  # fmt: skip
    def look_for_people(self, tenant: str, limit: int | None, **how: Any) -> None:
        self.call(tenant, "contacts.list", limit=limit, **how)
        self.call(tenant, "contacts.count", **how)

    @rule(tenant=TENANTS, senders=st.lists(people | given.names, max_size=6), number=NUMBER)
    def look_up(self, tenant: str, senders: list[str], number: int) -> None:
        self.call(tenant, "contacts.get_many", senders)
        self.call(tenant, "contacts.get", self.id(Contact, number))

    @rule(tenant=TENANTS, which=st.lists(NUMBER, max_size=6), what=st.sampled_from(["merge", "merge", "unmerge"]))
    def same_person(self, tenant: str, which: list[int], what: str) -> None:
        chosen = [self.id(Contact, index) for index in which]
        answer = self.call(tenant, f"contacts.{what}", chosen)
        if isinstance(answer, str):
            self.call(tenant, "contacts.list", merged_id=answer, limit=6)
            self.call(tenant, "contacts.count", merged_id=answer)

    @rule(number=NUMBER, text=given.small_text)
    def say(self, number: int, text: str) -> None:
        self.call("acme", "messages.append", self.sessions[number % 2], role="user", content=text)

    @rule(number=NUMBER, what=st.sampled_from(["delete", "restore", "restore", "purge"]))
    def lose_a_session(self, number: int, what: str) -> None:
        self.call("acme", f"sessions.{what}", self.sessions[number % 2])
        if what == "purge":
            self.call("acme", "sessions.create", id=self.sessions[number % 2])

    @rule(number=NUMBER, which=st.lists(NUMBER, max_size=2))
    def lose_messages(self, number: int, which: list[int]) -> None:
        chosen = [self.id(Message, index) for index in which]
        self.call("acme", "messages.delete", self.sessions[number % 2], chosen)
        for index in chosen:  # and another one with the same name that was not chosen
            self.call("acme", "messages.append", self.sessions[0], role="user", content="again", id=index)

    @rule(tenant=TENANTS, number=NUMBER, user=users, id=ids, is_positive=given.flags, text=given.small_text,
          issue_type=st.sampled_from([None, None, "tool", "factual", "", "no"]), metadata=given.metadata)  # fmt: skip
    def give(self, tenant: str, number: int, user: Any, id: Any, text: str, **opinion: Any) -> None:
        message = self.id(Message, number)
        self.call(tenant, "feedback.create", message, user=user, id=id, feedback_text=text, **opinion)
        self.call(tenant, "feedback.create", message, user=user, id=id, feedback_text=text, **opinion)

    @rule(number=NUMBER, is_positive=given.flags)
    def give_plainly(self, number: int, is_positive: bool) -> None:
        self.say(number, "x")
        self.call("acme", "feedback.create", self.id(Message, number), is_positive=is_positive)

    @rule(tenant=TENANTS, number=NUMBER, user=users, is_positive=given.flags)
    def change_my_mind(self, tenant: str, number: int, user: Any, is_positive: bool) -> None:
        self.call(tenant, "feedback.upsert", self.id(Message, number), user=user, is_positive=is_positive)

    @rule(number=NUMBER, is_positive=st.none() | given.flags, feedback_text=st.none() | given.small_text,
          issue_type=st.sampled_from([None, "", "tool", "no"]), metadata=st.none() | given.metadata)  # fmt: skip
    def change_feedback(self, number: int, **changes: Any) -> None:
        self.call("acme", "feedback.get", self.id(Feedback, number))
        self.call("acme", "feedback.update", self.id(Feedback, number), **changes)

    @rule(tenant=TENANTS, number=NUMBER)
    def take_back(self, tenant: str, number: int) -> None:
        self.call(tenant, "feedback.delete", self.id(Feedback, number))

    @rule(tenant=TENANTS, number=NUMBER, by=st.sampled_from(["", "", "message_id", "session_id", "user", "both"]),
          where=st.sampled_from([[], [column("is_positive").eq(True)], [meta("a").ne(1)]]), limit=limits)  # fmt: skip
    def ask_around(self, tenant: str, number: int, by: str, where: list[Any], limit: int | None) -> None:
        choices = {
            "message_id": self.id(Message, number),
            "session_id": self.sessions[number % 2],
            "user": ["ada", "bob"][number % 2],
        }
        how = {name: value for name, value in choices.items() if by == name or (by == "both" and name != "message_id")}
        self.call(tenant, "feedback.list", limit=limit, where=where, **how)
        self.call(tenant, "feedback.count", where=where, **how)

    @rule(cascade=given.flags)
    def lose_a_tenant(self, cascade: bool) -> None:
        self.call(None, "tenants.delete", "zenith", cascade=cascade)
        self.call(None, "tenants.list")

    def everything(self) -> None:
        """Compare all rows at the end."""
        for tenant in ("acme", "zenith"):
            groups = self.call(tenant, "pending_messages.list_groups", limit=6)
            for group in groups:
                self.call(tenant, "pending_messages.list_by_key", *group.name, limit=6)
            self.call(tenant, "contacts.list", limit=6)
            for feedback in self.call(tenant, "feedback.list", limit=6):
                self.call(tenant, "feedback.get", feedback.id)
                self.call(tenant, "feedback.update", feedback.id, is_positive=not feedback.is_positive)


def _empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("tenants", "sessions", "contacts", "pending_groups", "pending_messages"):
            connection.execute(f"DELETE FROM {table}".encode())


def _run(url: str, **effort: int) -> None:
    bounds = settings(deadline=None, suppress_health_check=[*HealthCheck], **effort)  # type: ignore[arg-type]

    def machine() -> Machine:
        _empty(url)
        return Machine(":memory:", url)

    run_state_machine_as_test(machine, settings=bounds)


@pytest.mark.leg("model, sqlite and postgres together")
def test_channels_on_both_engines_equal_the_model(postgres_url: str) -> None:
    _run(postgres_url, max_examples=35, stateful_step_count=40)
    stores = {"pending_messages": PendingMessages, "contacts": Contacts, "feedback": FeedbackStore}
    methods = [f"{path}.{name}" for path, store in stores.items() for name in dir(store) if not name.startswith("_")]
    seldom = [method for method in methods if ANSWERED[method] < 5]
    assert not seldom, f"the machine proves nothing about {seldom}"


@pytest.mark.soak
@pytest.mark.leg("model, sqlite and postgres together")
@pytest.mark.timeout(7_200)
def test_channels_on_both_engines_equal_the_model_for_a_long_time(postgres_url: str) -> None:
    _run(postgres_url, max_examples=1_500, stateful_step_count=80)
