"""Two concurrent transactions on PostgreSQL: which one waits, and the state after both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast, NewPendingMessage, PoolOptions, TenantHandle
from holdfast.errors import NotFound
from tests.errors import raises

ROOM = ("telegram", "-100")
WAITING = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class Two:
    """A caller with an open transaction, and another caller that must wait for it."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._url = url
        holdfast = stack.enter_context(Holdfast(url, pool=PoolOptions(min_connections=1, max_connections=3)))
        self.acme = holdfast.tenant("acme")
        self._stack, self._pool = stack, stack.enter_context(ThreadPoolExecutor(4))

    def caller(self) -> tuple[psycopg.Connection[Any], TenantHandle]:
        """A transaction of a caller's own. It is not run again after a deadlock, so one would show."""
        connection = self._stack.enter_context(psycopg.connect(self._url))
        return connection, self.acme.join(connection)

    def wait(self, call: Callable[[], Any], waiting: int = 1) -> Future[Any]:
        """Begin a call, and return when it waits for a lock."""
        begun = self._pool.submit(call)
        with psycopg.connect(self._url, autocommit=True) as watching:
            deadline = time.monotonic() + 60
            while watching.execute(WAITING).fetchone() != (waiting,):
                assert not begun.done(), f"it did not wait: {begun.result()}"
                assert time.monotonic() < deadline, "it never came to wait"
        return begun


@pytest.fixture
def two(postgres_url: str) -> Iterator[Two]:
    with ExitStack() as stack:
        yield Two(postgres_url, stack)


def said(*bodies: str) -> list[NewPendingMessage]:
    return [NewPendingMessage(channel_name=ROOM[0], history_key=ROOM[1], body=body) for body in bodies]


def groups_of(acme: TenantHandle) -> list[set[str]]:
    actual: dict[str, set[str]] = {}
    for contact in acme.contacts.list():
        if contact.merged_id is not None:
            actual.setdefault(contact.merged_id, set()).add(contact.sender_id)
    return sorted(actual.values(), key=min)


def test_a_merge_includes_contacts_merged_while_it_waited(two: Two) -> None:
    a, b, c, d = (two.acme.contacts.upsert("telegram", name).id for name in "abcd")
    older = two.acme.contacts.merge([c, d])
    connection, caller = two.caller()
    caller.contacts.merge([a, b])
    merging = two.wait(lambda: two.acme.contacts.merge([b, c]))
    connection.commit()
    assert merging.result(20) == older
    assert groups_of(two.acme) == [{"a", "b", "c", "d"}], "a was b's before the merge, and must not be left behind"


def test_an_unmerge_dissolves_a_group_that_shrank_while_it_waited(two: Two) -> None:
    a, b, c = (two.acme.contacts.upsert("telegram", name).id for name in "abc")
    two.acme.contacts.merge([a, b, c])
    connection, caller = two.caller()
    caller.contacts.unmerge([a])
    parting = two.wait(lambda: two.acme.contacts.unmerge([b]))
    connection.commit()
    assert parting.result(20) == 1
    assert groups_of(two.acme) == [], "c is left alone"


def test_merges_of_crossing_groups_wait_in_one_order(two: Two) -> None:
    """Each names the highest of one group and the lowest of another: locked in the given order, they would deadlock."""
    for _ in range(5):
        names = [f"{number}" for number in range(8)]
        ids = sorted(two.acme.contacts.upsert("telegram", name).id for name in names)
        for n in range(4):
            two.acme.contacts.merge([ids[n], ids[7 - n]])
        both = [two.caller() for _ in range(2)]

        def merge(number: int, both: list[Any] = both, ids: list[str] = ids) -> None:
            connection, caller = both[number]
            caller.contacts.merge([[ids[7], ids[1]], [ids[6], ids[0]]][number])
            connection.commit()

        with ThreadPoolExecutor(2) as pool:
            for completed in [pool.submit(merge, number) for number in range(2)]:
                completed.result(20)
        assert len(groups_of(two.acme)) == 3
        two.acme.contacts.unmerge(ids)


def test_an_append_waits_for_its_position(two: Two) -> None:
    connection, caller = two.caller()
    caller.pending_messages.append_batch(said("1", "2"))
    appending = two.wait(lambda: two.acme.pending_messages.append_batch(said("3", "4")))
    connection.commit()
    assert [message.seq for message in appending.result(20)] == [3, 4]
    assert [message.body for message in two.acme.pending_messages.list_by_key(*ROOM)] == ["1", "2", "3", "4"]


def test_an_append_that_waited_for_a_rolled_back_append_is_numbered_from_one(two: Two) -> None:
    connection, caller = two.caller()
    caller.pending_messages.append_batch(said("1", "2"))
    appending = two.wait(lambda: two.acme.pending_messages.append_batch(said("3")))
    connection.rollback()
    assert [message.seq for message in appending.result(20)] == [1]


def test_clearing_waits_for_a_summary_and_deletes_it(two: Two) -> None:
    made = two.acme.pending_messages.append_batch(said(*"abc"))
    connection, caller = two.caller()
    caller.pending_messages.compact([message.id for message in made[:2]], "S")
    clearing = two.wait(lambda: two.acme.pending_messages.delete_by_key(*ROOM))
    connection.commit()
    assert clearing.result(20) == 2
    assert two.acme.pending_messages.list_by_key(*ROOM) == []


def test_a_summary_of_cleared_messages_is_not_written(two: Two) -> None:
    made = two.acme.pending_messages.append_batch(said(*"abc"))
    connection, caller = two.caller()
    caller.pending_messages.delete_by_key(*ROOM)
    compacting = two.wait(lambda: two.acme.pending_messages.compact([made[0].id], "S"))
    appending = two.wait(lambda: two.acme.pending_messages.append_batch(said("new")), waiting=2)
    connection.commit()
    assert compacting.result(20) is None
    assert [message.seq for message in appending.result(20)] == [1]
    assert [message.body for message in two.acme.pending_messages.list_by_key(*ROOM)] == ["new"]


def test_messages_that_arrive_during_expiry_stay_in_order(two: Two) -> None:
    two.acme.pending_messages.append_batch(said("old"))
    connection, caller = two.caller()
    caller.pending_messages.append_batch(said("new"))
    removing = two.wait(lambda: two.acme.pending_messages.delete_stale(older_than=timedelta(0)))
    connection.commit()
    assert removing.result(20) >= 1
    (last,) = two.acme.pending_messages.append_batch(said("last"))
    existing = [message.seq for message in two.acme.pending_messages.list_by_key(*ROOM)]
    assert existing == sorted(existing)
    assert existing[-1] == last.seq


def test_feedback_that_waits_for_a_removal_finds_nothing(two: Two) -> None:
    session = two.acme.sessions.create()
    message = two.acme.messages.append(session.id, role="user", content="x")
    two.acme.feedback.upsert(message.id, user="ada", is_positive=True)
    connection, caller = two.caller()
    caller.messages.delete(session.id, [message.id])

    def give() -> object:
        with raises(NotFound, noun="message", key=message.id):
            two.acme.feedback.upsert(message.id, user="ada", is_positive=False)
        return "refused"

    giving = two.wait(give)
    connection.commit()
    assert giving.result(20) == "refused"
    assert two.acme.feedback.count() == 0


def test_a_removal_waits_for_feedback_and_deletes_it(two: Two) -> None:
    session = two.acme.sessions.create()
    message = two.acme.messages.append(session.id, role="user", content="x")
    two.acme.feedback.upsert(message.id, user="ada", is_positive=True)
    connection, caller = two.caller()
    caller.feedback.upsert(message.id, user="bob", is_positive=True)
    removing = two.wait(lambda: two.acme.messages.delete(session.id, [message.id]))
    caller.feedback.upsert(message.id, user="ada", is_positive=False)
    connection.commit()
    assert removing.result(20) == 1
    with psycopg.connect(two._url) as raw:
        assert raw.execute("SELECT COUNT(*) FROM feedback").fetchone() == (0,)
