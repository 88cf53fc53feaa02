"""Selection of a context: for random histories, it is valid for a provider and includes all required messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import FixedClock, Holdfast, NewMessage, PoolOptions, SeededIds, TenantHandle
from holdfast.core.scope import Scope
from holdfast.errors import LimitExceeded, Unavailable
from holdfast.stores.conversation import context as contexts
from holdfast.stores.conversation.tool_pairs import calls_in, results_in
from holdfast.types import Context, ContextMessage, Message
from tests.differential import compaction_oracle as oracle
from tests.errors import raises


def calls(*ids: str) -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": id, "name": "look", "input": {}} for id in ids]


def results(*ids: str) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": id, "content": "found"} for id in ids]


IDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=2, unique=True)
CONTENTS = st.one_of(
    st.just("words"),
    st.just("words"),
    IDS.map(lambda ids: calls(*ids)),
    IDS.map(lambda ids: results(*ids)),
    st.tuples(IDS, IDS).map(lambda both: [*results(*both[0]), {"type": "text", "text": "and"}, *calls(*both[1])]),
)
MESSAGES = st.lists(
    st.builds(
        NewMessage,
        role=st.sampled_from(["user", "user", "assistant", "assistant", "system"]),
        content=CONTENTS,
        token_count=st.integers(0, 30),
        is_preserved=st.sampled_from([False, False, False, False, True]),
        is_summary=st.sampled_from([False, False, False, False, True]),
    ),
    max_size=25,
)


def ten_for_each_block(content: Any) -> int:
    return 10 * len(content)


def size(message: Message) -> int:
    return message.token_count or ten_for_each_block(message.content)


def must_be_there(history: list[Message]) -> list[Message]:
    summaries = [message for message in history if message.is_summary]
    return [
        message for message in history if message.is_preserved or message.role == "system" or message in summaries[-1:]
    ]


def with_partners(history: list[Message]) -> list[Message]:
    """Return the required messages and all messages connected to them by tool pairs."""
    seqs = oracle.bound(history, {message.seq for message in must_be_there(history)})
    return [message for message in history if message.seq in seqs]


def acceptable(messages: list[ContextMessage]) -> None:
    """Check that a provider accepts it: each result has a call before it, and each call a result after it."""
    answers = 0
    for message in messages:
        assert message.content != [], "a message without content"
        answers += len({block["tool_use_id"] for block in message.content if block["type"] == "tool_result"})
    numbered: list[Any] = [
        SimpleNamespace(seq=number, kind=message.kind, content=message.content)
        for number, message in enumerate(messages)
    ]
    pairs = oracle.pairs(numbered)
    assert None not in [result for _, result in pairs], "a call without a result"
    assert len(pairs) == answers, "a result without its call"


def check(context: Context, history: list[Message], most: int) -> None:
    by_id = {message.id: message for message in history}
    acceptable(context.messages)
    assert context.token_count == sum(message.token_count for message in context.messages) <= most
    stored_messages = [message for message in context.messages if message.message_id is not None]
    assert context.left_out == len(history) - len(stored_messages)
    places = [message.seq for message in stored_messages]
    assert places == sorted(set(places))
    for message in stored_messages:
        original = by_id[message.message_id or ""]
        assert (message.seq, message.role, message.kind) == (original.seq, original.role, original.kind)
        left = [block for block in original.content if block in message.content]
        real = [block for block in message.content if block.get("tool_use_id") not in message.made_up]
        assert real == left
        missing = [block for block in original.content if block not in left]
        assert all(block["type"] == "tool_result" for block in missing), "only results may be removed from a message"
    for message in context.messages:
        created = [block for block in message.content if block.get("is_error")]
        assert [block["tool_use_id"] for block in created] == [*message.made_up]
        assert message.message_id is not None or created


def check_choice(context: Context, history: list[Message], most: int) -> None:
    """All required messages are included, and of the others the newest without a gap, except for messages of orphans only."""
    chosen_ids = {message.message_id for message in context.messages}
    always = must_be_there(history)
    matched = {result for _, result in oracle.pairs(history)}
    for message in always:
        orphan = is_all_results(message) and message.seq not in matched
        assert message.id in chosen_ids or orphan
    rest = [message for message in history if message not in with_partners(history)]
    chosen = [message.id in chosen_ids for message in rest if not is_all_results(message)]
    assert chosen == sorted(chosen), "a message in between is missing"
    if not any(calls_in(message) or results_in(message) for message in history):
        room = most - sum(map(size, always))
        expected = 0
        for message in reversed(rest):
            if size(message) > room or not room:
                break
            room, expected = room - size(message), expected + 1
        assert sum(message.id in chosen_ids for message in rest) == expected


def is_all_results(message: Message) -> bool:
    return all(block["type"] == "tool_result" for block in message.content)


@settings(max_examples=120, deadline=None)
@given(MESSAGES, st.integers(1, 400), st.booleans())
def test_every_context_is_acceptable_complete_and_within_its_budget(
    new: list[NewMessage], most: int, rewound: bool
) -> None:
    with Holdfast(":memory:", clock=FixedClock(), ids=SeededIds(), count_tokens=ten_for_each_block) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create().id
        acme.messages.append_many(session, new)
        if rewound and new:
            acme.branches.rewind(session, to=len(new) // 2)
            acme.messages.append_many(session, new[::-1])
        before = history = [*acme.messages.list(session)]
        try:
            context = acme.messages.context(session, max_tokens=most)
        except LimitExceeded:
            always = with_partners(history)
            made_up = sum(10 * len(calls_in(message)) for message in always)
            assert sum(map(size, always)) + made_up > most
            return
        check(context, history, most)
        check_choice(context, history, most)
        assert [*acme.messages.list(session)] == before, "the stored messages are unchanged"


class Interrupted:
    """A connection that runs a callback after its first statement."""

    def __init__(self, connection: Any, happens: Any) -> None:
        self._connection, self._happens, self.statements = connection, happens, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetch(self, sql: str, args: Any) -> Any:
        rows = await self._connection.fetch(sql, args)
        self.statements += 1
        if self._happens is not None:
            self._happens()
        return rows


class Engine:
    """An engine whose readers are interrupted."""

    def __init__(self, engine: Any, happens: Any) -> None:
        self._engine, self.happens, self.seen = engine, happens, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def read(self, call: Any) -> Any:
        async def interrupted(connection: Any) -> Any:
            self.seen.append(Interrupted(connection, self.happens))
            return await call(self.seen[-1])

        return await self._engine.read(interrupted)


@pytest.fixture
def opened(tmp_path: Any) -> Any:
    yield from filled(str(tmp_path / "a.db"))


@pytest.fixture(params=["sqlite", "postgres"])
def either(request: Any, tmp_path: Any) -> Any:
    """Return a tenant on each engine."""
    sqlite = request.param == "sqlite"
    yield from filled(str(tmp_path / "a.db") if sqlite else request.getfixturevalue("postgres_url"))


def filled(url: str) -> Any:
    with Holdfast(url, pool=PoolOptions(min_connections=1, max_connections=3)) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create().id
        acme.messages.append_many(
            session, [NewMessage(role="user", content=f"m{n}", token_count=1) for n in range(300)]
        )
        yield hf, acme, session


def through(hf: Holdfast, happens: Any) -> tuple[TenantHandle, Engine]:
    engine = Engine(hf._engine, happens)
    return TenantHandle(engine, Scope("acme", hf._setting)), engine


def test_a_context_on_the_first_page_takes_one_statement(opened: Any) -> None:
    hf, _, session = opened
    handle, engine = through(hf, None)
    assert len(handle.messages.context(session, max_tokens=50).messages) == 50
    assert [statement.statements for statement in engine.seen] == [1]


@pytest.mark.parametrize(
    ("flags", "statements"),
    [
        ([False, False, False], 1),
        ([True, True, False], 1),
        ([True, False, False], 3),
        ([False, True, False], 3),
        ([False, True, True], 4),
        ([False, False, True], 4),
    ],
)
def test_tool_pairs_are_looked_up_only_if_a_half_is_missing(tmp_path: Any, flags: list[bool], statements: int) -> None:
    with Holdfast(str(tmp_path / "a.db")) as hf:
        acme = hf.tenant("acme")
        session = acme.sessions.create().id
        contents = [calls("a"), results("a"), *["words"] * 20, calls("b"), *["words"] * 20, results("b")]
        preserved = dict(zip((0, 1, len(contents) - 1), flags, strict=True))
        acme.messages.append_many(
            session,
            [
                NewMessage(role="user", content=content, token_count=1, is_preserved=preserved.get(place, False))
                for place, content in enumerate([*contents, *["words"] * 60])
            ],
        )
        handle, engine = through(hf, None)
        handle.messages.context(session, max_tokens=10)
        assert [statement.statements for statement in engine.seen] == [statements]


def test_a_branch_switch_during_the_pair_lookup_restarts_the_read(either: Any) -> None:
    hf, acme, session = either
    acme.branches.rewind(session, to=100)
    acme.messages.append(session, role="assistant", content=calls("a"), token_count=1)
    acme.messages.append(session, role="user", content=results("a"), token_count=1, is_preserved=True)
    acme.messages.append_many(session, [NewMessage(role="user", content="m", token_count=1) for _ in range(60)])
    turns = iter([False, False, False, False, True])

    def switch() -> None:
        if next(turns, None):
            acme.branches.rewind(session, to=150)

    handle, _ = through(hf, switch)
    context = handle.messages.context(session, max_tokens=4)
    assert [message.seq for message in context.messages] == [101, 102, 149, 150]
    assert context.left_out == 146


@pytest.mark.parametrize(("most", "statements"), [(51, 3), (200, 3), (299, 3), (300, 3), (1_000, 3)])
def test_more_is_read_in_pages_as_long_as_needed(opened: Any, most: int, statements: int) -> None:
    hf, _, session = opened
    handle, engine = through(hf, None)
    assert len(handle.messages.context(session, max_tokens=most).messages) == min(most, 300)
    assert [statement.statements for statement in engine.seen] == [statements]


def test_the_rest_of_the_log_is_not_read(opened: Any) -> None:
    """Damaged messages that are not needed do no harm."""
    hf, acme, session = opened
    hf._engine._connection.raw.execute("UPDATE messages SET content = 'not JSON' WHERE seq <= 200")
    assert len(acme.messages.context(session, max_tokens=60).messages) == 60


def test_a_branch_switch_during_the_read_restarts_it(opened: Any) -> None:
    hf, acme, session = opened
    turns = iter([True])

    def switch() -> None:
        if next(turns, None):
            acme.branches.rewind(session, to=100)

    handle, _ = through(hf, switch)
    context = handle.messages.context(session, max_tokens=200)
    assert [message.seq for message in context.messages] == [*range(1, 101)]
    assert context.left_out == 0


def test_a_session_that_changes_at_every_read_is_unavailable(opened: Any) -> None:
    hf, acme, session = opened
    numbers = iter(range(1, 10_000))
    handle, _ = through(hf, lambda: acme.branches.rewind(session, to=300 - next(numbers)))
    with raises(Unavailable):
        handle.messages.context(session, max_tokens=200)


def test_a_concurrent_append_does_no_harm(opened: Any) -> None:
    hf, acme, session = opened
    handle, _ = through(hf, lambda: acme.messages.append(session, role="user", content="new", token_count=1))
    context = handle.messages.context(session, max_tokens=200)
    assert [message.seq for message in context.messages] == [*range(101, 301)]


@pytest.mark.parametrize("preserved", [False, True])
def test_concurrent_appends_to_a_branch_are_neither_sent_nor_counted(either: Any, preserved: bool) -> None:
    hf, acme, session = either
    acme.branches.rewind(session, to=200)
    new: dict[str, Any] = {"role": "user", "content": "new", "token_count": 1, "is_preserved": preserved}
    handle, _ = through(hf, lambda: acme.messages.append(session, **new))
    for room in (1_000, 120, 60):
        last = acme.sessions.get(session).message_count
        context = handle.messages.context(session, max_tokens=room)
        assert [message.seq for message in context.messages] == [*range(max(0, last - room) + 1, last + 1)]
        assert context.left_out == max(0, last - room)
        assert acme.sessions.get(session).message_count > last


def test_concurrently_deleted_messages_are_not_counted(either: Any) -> None:
    hf, acme, session = either
    acme.branches.rewind(session, to=200)
    ids_to_delete = iter([message.id for message in acme.messages.list(session)[:3]])
    handle, _ = through(hf, lambda: [acme.messages.delete(session, [id]) for id in ids_to_delete])
    context = handle.messages.context(session, max_tokens=1_000)
    assert [message.seq for message in context.messages] == [*range(4, 201)]
    assert context.left_out == 0


def test_the_placeholder_result_says_what_happened() -> None:
    assert "interrupted" in contexts.UNFINISHED
