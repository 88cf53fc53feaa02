"""Filters on content blocks; ``tests/differential`` compares them with PostgreSQL's own operator on many contents."""

from __future__ import annotations

from typing import Any

from holdfast.core.filters import Filter, content
from holdfast.errors import InvalidFilter, LimitExceeded
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises

CALL = {"type": "tool_use", "id": "t1", "name": "search", "input": {"query": "it's", "tags": ["a", "b"], "n": 1}}


async def _found(acme: AsyncTenantHandle, session_id: str, value: Any) -> list[int]:
    return [message.seq for message in await acme.messages.list(session_id, where=[content.contains(value)])]


@contract()
async def messages_are_found_by_parts_of_their_blocks(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    await acme.messages.append(session, role="user", content="hello")
    await acme.messages.append(session, role="assistant", content=[{"type": "text", "text": "hi"}, CALL])
    await acme.messages.append(session, kind="adk.event", content={"type": "tool_use", "input": {"n": 2}})
    await acme.messages.append(session, kind="adk.event", content="tool_use")
    expected: list[tuple[Any, list[int]]] = [
        ({"type": "tool_use"}, [2, 3]),
        ([{"type": "tool_use"}], [2]),
        ([{"type": "text"}, {"input": {}}], [2]),
        ({"type": "text", "name": "search"}, []),
        ({"input": {"tags": ["b"]}}, [2]),
        ({"input": {"tags": ["b", "b", "a"]}}, [2]),
        ({"input": {"tags": ["c"]}}, []),
        ({"input": {"tags": "b"}}, []),
        ({"input": {"n": 1.0}}, [2]),
        ({"input": {"n": True}}, []),
        ({"input": {"query": "it's"}}, [2]),
        ({"input": {"query": "it"}}, []),
        ({}, [1, 2, 3]),
        ([], [1, 2]),
        (["tool_use"], []),
    ]
    for value, seqs in expected:
        assert await _found(acme, session, value) == seqs, value
        assert await acme.messages.count(session, where=[content.contains(value)]) == len(seqs)


@contract()
async def invalid_content_filters_are_rejected(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    for value in ("tool_use", 7, None, True):
        with raises(InvalidFilter, field="content"):
            await _found(acme, session, value)
    wrong: list[Any] = [
        content.eq({}),
        content.ne({}),
        content.lt({}),
        content.is_in([{}]),
        Filter("eq", None, column="content"),
    ]
    for item in wrong:
        with raises(InvalidFilter, field="content"):
            await acme.messages.list(session, where=[item])
    for bad in ({"n": 10**16}, {"n": float("nan")}, {"n": {1, 2}}, {1: 2}):
        with raises(InvalidFilter):
            await _found(acme, session, bad)
    with raises(InvalidFilter, field="column", saying="'content'"):
        await acme.sessions.list(where=[content.contains({})])


@contract()
async def a_content_filter_may_be_as_large_and_deep_as_the_limits(world: World) -> None:
    acme = world.tenant()
    session = (await acme.sessions.create()).id
    limits = world.limits
    wide = [{"type": "x", "n": number} for number in range((limits.filter_parts - 1) // 3)]
    deep: Any = "leaf"
    for level in range(limits.filter_depth - 1):
        deep = [deep] if level % 2 else {"type": deep}
    deep = {"type": "x", "in": deep} if isinstance(deep, list) else deep
    await acme.messages.append(session, kind="x", content=[*wide, deep])
    assert await _found(acme, session, wide) == [1]
    assert await _found(acme, session, deep) == [1]
    with raises(LimitExceeded, limit="filter_parts"):
        await _found(acme, session, [{"type": "x"}] * limits.filter_parts)
    with raises(LimitExceeded, limit="filter_depth"):
        await _found(acme, session, [{"a": [deep]}])
