"""Append groups: each append of a group has the result and effect it would have alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Holdfast, TenantHandle
from holdfast.clock import FixedClock
from holdfast.engines.protocol import Connection
from holdfast.errors import NotFound
from holdfast.ids import RandomIds
from holdfast.stores.conversation.message_log import Append, AppendResult, LogEntry, append_group
from holdfast.sync_runner import step

NOWHERE = "00000000-0000-7000-8000-000000000000"
START_US, HALF_A_MINUTE_US = 1_700_000_000_000_000, 30_000_000

Plan = Sequence[tuple[int, int, int]]
"""For each append: the index of a session (the fourth does not exist), the number of messages, and the delay in half minutes."""
PLANS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def acme() -> Iterator[TenantHandle]:
    with Holdfast(":memory:", clock=FixedClock(START_US)) as hf:
        yield hf.tenant("acme")


def planned(plan: Plan, sessions: Sequence[str]) -> list[Append]:
    return [
        Append(
            "acme", [*sessions, NOWHERE][which], [_entry(n) for n in range(count)], START_US + halves * HALF_A_MINUTE_US
        )
        for which, count, halves in plan
    ]


def _entry(number: int) -> LogEntry:
    content = f'[{{"type":"text","text":"{number}"}}]'
    return LogEntry(RandomIds().new(), "message", "user", content, number % 3, "{}", False, False)


def done(acme: TenantHandle, appends: Sequence[Append]) -> list[AppendResult | Exception]:
    """Run the appends as one group, in one transaction."""

    async def run(connection: Connection) -> list[AppendResult | Exception]:
        return [*await append_group.run(connection, appends, careful=False)]

    return step(acme.messages._async._engine.write(run))


def stored(acme: TenantHandle, session_id: str) -> tuple[Any, ...]:
    """Return everything that appends change in a session, except ids."""
    session = acme.sessions.get(session_id)
    log = [
        (message.seq, message.content, message.token_count, message.created_at)
        for message in acme.messages.list(session_id)
    ]
    return log, session.message_count, session.token_count, session.updated_at


@settings(max_examples=150, deadline=None)
@given(plan=PLANS)
def test_a_group_has_the_same_effect_as_single_appends(acme: TenantHandle, plan: Plan) -> None:
    plan = sorted(
        plan, key=lambda item: item[2]
    )  # the time of a session is that of its last append, or of the latest one in the group
    here, existing = ([acme.sessions.create().id for _ in range(3)] for _ in range(2))
    group = planned(plan, here)
    answers = done(acme, group)
    for append in planned(plan, existing):
        done(acme, [append])
    assert [stored(acme, session) for session in here] == [stored(acme, session) for session in existing]
    for append, answer in zip(group, answers, strict=True):
        if append.session_id == NOWHERE:
            assert isinstance(answer, NotFound)
        else:
            assert isinstance(answer, AppendResult)
            assert answer.messages == [acme.messages.get(entry.id) for entry in append.entries]


@pytest.mark.parametrize("missing", ["first", "last"])
def test_missing_sessions_do_not_affect_the_others_of_a_group(acme: TenantHandle, missing: str) -> None:
    session = acme.sessions.create().id
    plan = [(3, 2, 0), (0, 11, 0)]
    answers = done(acme, planned(plan if missing == "first" else plan[::-1], [session] * 3))
    assert {type(answer) for answer in answers} == {AppendResult, NotFound}
    assert len(acme.messages.list(session)) == 11
