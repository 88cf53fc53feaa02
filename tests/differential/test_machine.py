"""Sessions and messages on SQLite and on PostgreSQL, compared with the model by a state machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from holdfast import Filter, Limits, NewMessage
from holdfast.core.paging import Page
from holdfast.types import Message, Messages, Session, Sessions, Tenants
from tests.contract.cases.world import uuid_of
from tests.differential import strategies as given
from tests.differential.sides import Cursor, Sides

LIMITS = Limits(
    key_bytes=60, name_bytes=60, tenant_bytes=60, content_bytes=400, metadata_bytes=300, json_depth=5,
    batch_rows=4, page_rows=10, list_rows=30, filters=4, filter_values=4,
)  # fmt: skip
NUMBER = st.integers(0, 10_000)
TENANTS = ["acme", "zenith", "'; -- \x00\ud800\U0010f801"]


NEW = ["new", "\ud800 new"]
"""Names that become tenants only by registration."""
ELSEWHERE = {
    "sessions.buffered",
    "sessions.prune",
    "tenants.maintain",
    "messages.context",
    "messages.search",
    "messages.deleted",
    "messages.restore",
}
"""Methods that other tests compare."""
ANSWERED: Counter[str] = Counter()
"""How often each method succeeded."""


class Machine(RuleBasedStateMachine):
    """Calls of tenants, sessions and messages in random order."""

    def __init__(self, *urls: str) -> None:
        super().__init__()
        self.sides = Sides(LIMITS, *urls)
        self.sessions: list[tuple[str, str]] = []
        self.messages: list[tuple[str, str]] = []
        self.seen: list[tuple[str, Session]] = []
        self.cursors: list[tuple[str | None, str, tuple[Any, ...], dict[str, Any], Cursor]] = []
        self.move_in()

    def move_in(self) -> None:
        """Create some rows, so that the first calls find data."""
        for number, id in enumerate(given.IDS):
            tenant = TENANTS[number % 2]
            self.call(tenant, "sessions.create", id=id, key=f"k{number // 2}", metadata={"a": number, "b": "pro"})
            new = [
                NewMessage(role="user", content=str(index), metadata={"a": index}, token_count=index)
                for index in range(3)
            ]
            self.call(tenant, "messages.append_many", id, new)

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
            if isinstance(row, Session):
                self.seen.append((str(tenant), row))
                self.sessions.append((str(tenant), row.id))
            elif isinstance(row, Message):
                self.messages.append((str(tenant), row.id))
        if isinstance(answer, Page) and answer.next is not None:
            again = {key: value for key, value in kwargs.items() if key != "cursor"}
            self.cursors.append((tenant, name, args, again, answer.next))  # type: ignore[arg-type]
        return answer

    def session(self, number: int) -> tuple[str, str]:
        """Return a session id and a tenant; sometimes the id is unknown or belongs to another tenant."""
        return self._some(self.sessions, number)

    def message(self, number: int) -> tuple[str, str]:
        """Return a message id and a tenant."""
        return self._some(self.messages, number)

    @staticmethod
    def _some(existing: Sequence[tuple[str, str]], number: int) -> tuple[str, str]:
        tenant, id = existing[-1 - number % min(len(existing), 9)]
        stray = number % 17
        if stray == 16:
            return TENANTS[number % 3], id
        if stray == 15:
            return tenant, uuid_of("unknown") if number % 2 else "not an id"
        return tenant, id

    @rule(seconds=st.sampled_from([0.000001, 1, 59, 61, -1, -3600, 86_400]))
    def time_passes(self, seconds: float) -> None:
        self.sides.clock.advance(seconds)

    @rule(tenant=st.sampled_from(TENANTS), key=st.none() | given.keys, user=given.users, agent=given.agents,
          metadata=given.metadata, id=st.sampled_from([None, None, *given.IDS, "42"]))  # fmt: skip
    def create(self, tenant: str, **new: Any) -> None:
        self.call(tenant, "sessions.create", **new)

    @rule(
        tenant=st.sampled_from(TENANTS), key=given.keys, user=given.users, agent=given.agents, metadata=given.metadata
    )
    def upsert(self, tenant: str, key: str, **new: Any) -> None:
        self.call(tenant, "sessions.upsert", key, **new)

    @rule(number=NUMBER, deleted=given.flags)
    def get(self, number: int, deleted: bool) -> None:
        tenant, id = self.session(number)
        self.call(tenant, "sessions.get", id, deleted=deleted)

    @rule(tenant=st.sampled_from(TENANTS), key=given.keys, user=given.users)
    def find(self, tenant: str, key: str, user: str | None) -> None:
        self.call(tenant, "sessions.find", key, user=user)

    @rule(tenant=st.sampled_from(TENANTS), user=given.users, agent=given.agents, metadata=st.none() | given.metadata,
          where=given.session_filters, deleted=given.flags, limit=given.page_limits)  # fmt: skip
    def list_sessions(self, tenant: str, **how: Any) -> None:
        self.call(tenant, "sessions.list", **how)

    @rule(tenant=st.sampled_from(TENANTS), where=given.session_filters, limit=st.integers(1, 3))
    def filter_sessions(self, tenant: str, where: list[Filter], limit: int) -> None:
        self.call(tenant, "sessions.list", where=where, limit=limit)
        self.call(tenant, "sessions.count", where=where)

    @rule(number=NUMBER)
    def next_page(self, number: int) -> None:
        if self.cursors:
            tenant, name, args, how, cursor = self.cursors[-1 - number % min(len(self.cursors), 4)]
            self.call(tenant, name, *args, cursor=cursor, **how)

    @rule(number=NUMBER, session=NUMBER)
    def page_with_a_cursor_of_anything(self, number: int, session: int) -> None:
        if self.cursors:
            cursor = self.cursors[number % len(self.cursors)][-1]
            tenant, id = self.session(session)
            self.call(tenant, "sessions.list", limit=3, cursor=cursor)
            self.call(tenant, "messages.list", id, limit=3, cursor=cursor)

    @rule(number=NUMBER, agent=given.agents, metadata=st.none() | given.metadata)
    def update(self, number: int, agent: Any, metadata: Any) -> None:
        tenant, id = self.session(number)
        self.call(tenant, "sessions.update", id, agent=agent, metadata=metadata)

    @rule(number=NUMBER, agent=given.agents, metadata=st.none() | given.metadata)
    def compare_and_set(self, number: int, agent: Any, metadata: Any) -> None:
        tenant, expected = self.seen[-1 - number % min(len(self.seen), 6)]
        self.call(tenant, "sessions.update", expected.id, agent=agent, metadata=metadata, expected=expected)

    @rule(number=NUMBER, what=st.sampled_from(["delete", "delete", "delete", "restore", "restore", "purge"]))
    def remove_or_restore(self, number: int, what: str) -> None:
        tenant, id = self.session(number)
        self.call(tenant, f"sessions.{what}", id)

    @rule(number=NUMBER)
    def come_and_go(self, number: int) -> None:
        tenant, id = self.session(number)
        self.call(tenant, "sessions.delete", id)
        self.call(tenant, "sessions.restore", id)

    @rule(number=NUMBER, new=given.new_messages)
    def append(self, number: int, new: NewMessage) -> None:
        tenant, id = self.session(number)
        self.call(tenant, "messages.append", id, **{field: getattr(new, field) for field in new.__struct_fields__})

    @rule(number=NUMBER, text=given.small_text, count=st.integers(1, 4), tokens=st.integers(0, 9))
    def append_plainly(self, number: int, text: str, count: int, tokens: int) -> None:
        tenant, id = self.session(number)
        new = [NewMessage(role="user", content=text, token_count=tokens) for _ in range(count)]
        self.call(tenant, "messages.append_many", id, new)

    @rule(number=NUMBER, new=st.lists(given.new_messages, max_size=5))
    def append_many(self, number: int, new: list[NewMessage]) -> None:
        tenant, id = self.session(number)
        self.call(tenant, "messages.append_many", id, new)

    @rule(number=NUMBER, session=NUMBER, again=given.flags)
    def append_again(self, number: int, session: int, again: bool) -> None:
        """Append an existing message again, like a caller whose response was lost; sometimes to the wrong session."""
        tenant, id = self.message(number)
        existing = self.call(tenant, "messages.get", id)
        if isinstance(existing, Message):
            where = existing.session_id if again else self.session(session)[1]
            what = {
                "kind": existing.kind,
                "role": existing.role,
                "content": existing.content,
                "metadata": existing.metadata,
            }
            self.call(tenant, "messages.append", where, id=id, **what)

    @rule(number=NUMBER)
    def get_message(self, number: int) -> None:
        tenant, id = self.message(number)
        self.call(tenant, "messages.get", id)

    @rule(number=NUMBER, count=st.sampled_from([1, 2, 3, 10, 11, 0]))
    def last(self, number: int, count: int) -> None:
        tenant, id = self.session(number)
        self.call(tenant, "messages.last", id, count)

    @rule(number=NUMBER, where=given.message_filters, after=st.sampled_from([0, 0, 0, 1, 3, -1]),
          before=st.sampled_from([None, None, None, 2, 5, 2**63]), newest_first=given.flags, limit=given.page_limits)  # fmt: skip
    def list_messages(self, number: int, **how: Any) -> None:
        tenant, id = self.session(number)
        self.call(tenant, "messages.list", id, **how)

    @rule(number=NUMBER, newest_first=given.flags, limit=st.integers(1, 2))
    def page_messages(self, number: int, **how: Any) -> None:
        tenant, id = self.session(number)
        self.call(tenant, "messages.list", id, **how)

    @rule(number=NUMBER, where=given.message_filters)
    def filter_messages(self, number: int, where: list[Filter]) -> None:
        tenant, id = self.session(number)
        self.call(tenant, "messages.list", id, where=where)
        self.call(tenant, "messages.count", id, where=where)

    @rule(number=NUMBER, content=given.contents, metadata=st.none() | given.metadata,
          token_count=st.none() | given.token_counts, is_preserved=st.none() | given.flags)  # fmt: skip
    def update_message(self, number: int, **changes: Any) -> None:
        tenant, id = self.message(number)
        self.call(tenant, "messages.update", id, **changes)

    @rule(number=NUMBER, ids=st.lists(NUMBER, max_size=5))
    def delete_messages(self, number: int, ids: list[int]) -> None:
        tenant, id = self.session(number)
        self.call(tenant, "messages.delete", id, [self.message(index)[1] for index in ids])

    @rule(tenant=st.sampled_from([*NEW, *TENANTS]), metadata=given.metadata, what=st.sampled_from(["create", "update"]))
    def keep_a_tenant(self, tenant: str, metadata: Any, what: str) -> None:
        self.call(None, f"tenants.{what}", tenant, metadata=metadata)

    @rule(
        tenant=st.sampled_from([*NEW, *TENANTS]), quota=st.sampled_from([None, 0, 1, 500, 2**39, -1, 2**40, True, "1"])
    )
    def limit_a_tenant(self, tenant: str, quota: Any) -> None:
        self.call(None, "tenants.set_quota", tenant, snapshot_quota_mib=quota)

    @rule(tenant=st.sampled_from([*NEW, *TENANTS]), cascade=given.flags)
    def delete_a_tenant(self, tenant: str, cascade: bool) -> None:
        self.call(None, "tenants.delete", tenant, cascade=cascade)

    @rule(tenant=st.sampled_from([*NEW, *TENANTS]), limit=given.page_limits)
    def read_tenants(self, tenant: str, limit: int | None) -> None:
        self.call(None, "tenants.get", tenant)
        self.call(None, "tenants.list", limit=limit)

    def everything(self) -> None:
        """Compare all rows at the end, then purge the deleted ones."""
        for tenant in self.call(None, "tenants.list"):
            for deleted in (False, True):
                for session in self.call(tenant.id, "sessions.list", deleted=deleted, limit=10):
                    messages = self.call(tenant.id, "messages.list", session.id, limit=10)
                    if not deleted and messages:  # random calls may never have reached these methods
                        self.call(tenant.id, "messages.get", messages[0].id)
                        self.call(tenant.id, "messages.update", messages[0].id, metadata={"a": "changed"})
                        self.call(tenant.id, "messages.delete", session.id, [messages[-1].id])
                        self.call(tenant.id, "sessions.update", session.id, metadata={"a": "changed"})
                    if deleted:
                        self.call(tenant.id, "sessions.purge", session.id)
                        self.call(tenant.id, "sessions.restore", session.id)


def _run(url: str, sqlite: str, **effort: int) -> None:
    bounds = settings(deadline=None, suppress_health_check=[*HealthCheck], **effort)  # type: ignore[arg-type]

    def machine() -> Machine:
        _empty(url)
        return Machine(sqlite, url)

    run_state_machine_as_test(machine, settings=bounds)


def _empty(url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM tenants")
        connection.execute("DELETE FROM sessions")


@pytest.mark.leg("model, sqlite and postgres together")
def test_both_engines_equal_the_model(postgres_url: str) -> None:
    _run(postgres_url, ":memory:", max_examples=60, stateful_step_count=40)
    stores = {"sessions": Sessions, "messages": Messages, "tenants": Tenants}
    methods = [f"{path}.{name}" for path, store in stores.items() for name in dir(store) if not name.startswith("_")]
    seldom = [method for method in methods if ANSWERED[method] < 2 and method not in ELSEWHERE]
    assert not seldom, f"the machine proves nothing about {seldom}"


@pytest.mark.soak
@pytest.mark.leg("model, sqlite and postgres together")
@pytest.mark.timeout(7_200)
def test_both_engines_equal_the_model_for_a_long_time(postgres_url: str) -> None:
    _run(postgres_url, ":memory:", max_examples=2_000, stateful_step_count=100)
