"""Sessions: listing, filtering, counting, paging."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from holdfast.clock import from_us
from holdfast.core.filters import Filter, column, meta
from holdfast.core.paging import encode_cursor
from holdfast.errors import InvalidFilter, InvalidInput, LimitExceeded
from holdfast.limits import Limits
from holdfast.stores.conversation.sessions import Session
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.values import GARBAGE_CURSORS, TEXTS
from tests.contract.cases.world import World, flat, raises, raises_kind_of, uuid_of


async def some_sessions(world: World, count: int, *, every_s: float = 1.0) -> list[Session]:
    """Create sessions one after the other; return them newest first."""
    acme = world.tenant()
    sessions: list[Session] = []
    for number in range(count):
        world.clock.advance(every_s)
        sessions.insert(0, await acme.sessions.create(key=f"k{number}", user=f"u{number % 3}", metadata={"n": number}))
    return sessions


async def pages(handle: AsyncTenantHandle, limit: int, **filters: Any) -> list[list[Session]]:
    """Return all pages of a list."""
    page = await handle.sessions.list(limit=limit, **filters)
    results = [[*page]]
    while page.next is not None:
        page = await handle.sessions.list(limit=limit, cursor=page.next, **filters)
        results.append([*page])
    return results


async def keys(handle: AsyncTenantHandle, *where: Filter, **filters: Any) -> set[str]:
    """Return the keys of the sessions that ``list`` returns; check that ``count`` agrees."""
    sessions = await handle.sessions.list(where=where, **filters)
    assert await handle.sessions.count(where=where, **filters) == len(sessions)
    return {session.key for session in sessions}


@contract()
async def sessions_are_listed_most_recently_used_first(world: World) -> None:
    acme = world.tenant()
    created = await some_sessions(world, 5)
    assert await acme.sessions.list() == created
    world.clock.advance(1)
    await acme.messages.append(created[3].id, role="user", content="hi")
    world.clock.advance(1)
    await acme.sessions.update(created[4].id, agent="a")
    order = [session.id for session in await acme.sessions.list()]
    assert order == [created[4].id, created[3].id, created[0].id, created[1].id, created[2].id]


@contract()
async def sessions_used_at_the_same_time_are_sorted_by_id(world: World) -> None:
    created = await some_sessions(world, 6, every_s=0)
    listed = await world.tenant().sessions.list()
    assert [item.id for item in listed] == sorted((session.id for session in created), reverse=True)


@contract()
async def lists_are_correct_after_the_clock_goes_back(world: World) -> None:
    acme = world.tenant()
    created = await some_sessions(world, 7, every_s=-47)
    expected = sorted(created, key=lambda session: (session.updated_at, session.id), reverse=True)
    assert await acme.sessions.list() == expected
    for limit in (1, 2, 3):
        assert flat(await pages(acme, limit)) == expected


@contract()
async def pages_of_every_size_make_the_whole_list(world: World) -> None:
    acme = world.tenant()
    created = await some_sessions(world, 7, every_s=17.5)
    for limit in range(1, 9):
        result = await pages(acme, limit)
        assert flat(result) == created
        assert [len(page) for page in result[:-1]] == [limit] * (len(result) - 1)
        assert 0 < len(result[-1]) <= limit
    filtered = [session for session in created if session.user == "u1"]
    assert flat(await pages(acme, 1, user="u1")) == filtered
    assert await pages(acme, 3, user="unknown") == [[]]


@contract()
async def pages_are_not_shifted_by_changes_between_them(world: World) -> None:
    acme = world.tenant()
    created = await some_sessions(world, 6)
    first = await acme.sessions.list(limit=2)
    await two_newer_sessions(world, acme)
    await acme.sessions.delete(created[0].id)
    await acme.sessions.purge(created[1].id)
    second = await acme.sessions.list(limit=2, cursor=first.next)
    assert [*second] == created[2:4]
    await acme.sessions.delete(created[3].id)
    third = await acme.sessions.list(limit=2, cursor=second.next)
    assert [*third] == created[4:6]
    assert third.next is None


async def two_newer_sessions(world: World, acme: AsyncTenantHandle) -> None:
    """Create two sessions newer than any other."""
    for key in ("late 1", "late 2"):
        world.clock.advance(100)
        await acme.sessions.create(key=key)


@contract(limits=Limits(page_rows=5, list_rows=6))
async def pages_and_lists_have_limits(world: World) -> None:
    acme = world.tenant()
    await some_sessions(world, 6)
    assert len(await acme.sessions.list()) == 6
    page = await acme.sessions.list(limit=5)
    assert (len(page), page.next is None) == (5, False)
    with raises(LimitExceeded, limit="page_rows", maximum=5):
        await acme.sessions.list(limit=6)
    wrong: list[Any] = [0, -1, True, 1.5, "5", [1]]
    for limit in wrong:
        with raises(InvalidInput):
            await acme.sessions.list(limit=limit)
    await acme.sessions.create(key="one too many")
    with raises(LimitExceeded, limit="list_rows", maximum=6):
        await acme.sessions.list()
    assert len(await acme.sessions.list(where=[column("key").ne("one too many")])) == 6


@contract()
async def only_cursors_of_this_list_are_accepted(world: World) -> None:
    acme = world.tenant()
    created = await some_sessions(world, 3)
    for seq in range(2):
        await acme.messages.append(created[0].id, role="user", content=str(seq))
    foreign = [(await acme.messages.list(created[0].id, limit=1)).next]
    forged = [
        encode_cursor("sessions", 2**64 - 1, uuid_of("x")),
        encode_cursor("sessions", 2**62, uuid_of("x")),
        encode_cursor("sessions", -1, uuid_of("x")),
        encode_cursor("sessions", 1, "not an id"),
        encode_cursor("sessions", "1", uuid_of("x")),
        encode_cursor("sessions", 1.5, uuid_of("x")),
        encode_cursor("sessions", True, uuid_of("x")),
        encode_cursor("sessions", 1),
        encode_cursor("sessions", 1, uuid_of("x"), 3),
        encode_cursor("tenants", "acme"),
    ]
    for cursor in [*GARBAGE_CURSORS, *foreign, *forged]:
        with raises_kind_of(InvalidInput):
            await acme.sessions.list(limit=1, cursor=cursor)
        with raises_kind_of(InvalidInput):
            await acme.sessions.list(cursor=cursor)


@contract()
async def a_cursor_of_another_tenant_reveals_nothing_of_it(world: World) -> None:
    await some_sessions(world, 4)
    theirs = (await world.tenant().sessions.list(limit=2)).next
    zenith = world.tenant("zenith")
    world.clock.advance(-3600)
    mine = await zenith.sessions.create(key="mine")
    assert [*await zenith.sessions.list(limit=2, cursor=theirs)] == [mine]


@contract()
async def deleted_sessions_are_listed_separately(world: World) -> None:
    acme = world.tenant()
    created = await some_sessions(world, 5)
    for value in (created[1], created[3]):
        await acme.sessions.delete(value.id)
    assert [session.id for session in await acme.sessions.list()] == [created[n].id for n in (0, 2, 4)]
    assert [session.id for session in await acme.sessions.list(deleted=True)] == [created[1].id, created[3].id]
    assert [session.id for session in await acme.sessions.list(deleted=True, user=created[3].user)] == [created[3].id]
    assert [[item.id for item in page] for page in await pages(acme, 1, deleted=True)] == [
        [created[1].id],
        [created[3].id],
    ]
    assert await acme.sessions.count() == 3


@contract()
async def sessions_are_listed_by_user_agent_and_metadata(world: World) -> None:
    acme = world.tenant()
    await acme.sessions.create(key="1", user="ada", agent="a", metadata={"plan": "pro", "seats": 5})
    await acme.sessions.create(key="2", user="ada", agent="b", metadata={"plan": "free", "seats": 5})
    await acme.sessions.create(key="3", user="bob", agent="a", metadata={"plan": "pro"})
    await acme.sessions.create(key="4")
    assert await keys(acme, user="ada") == {"1", "2"}
    assert await keys(acme, user="ad") == set()
    assert await keys(acme, agent="a") == {"1", "3"}
    assert await keys(acme, metadata={"plan": "pro"}) == {"1", "3"}
    assert await keys(acme, metadata={"plan": "pro", "seats": 5}) == {"1"}
    assert await keys(acme, metadata={}) == {"1", "2", "3", "4"}
    assert await keys(acme, user="ada", agent="a", metadata={"plan": "pro"}) == {"1"}
    assert await keys(acme, column("key").gt("1"), user="ada", metadata={"seats": 5}) == {"2"}
    assert await keys(acme, user="") == {"4"}


@contract()
async def every_column_can_be_filtered_on(world: World) -> None:
    acme = world.tenant()
    one = await acme.sessions.create(key="alpha", user="ada", agent="x")
    world.clock.advance(60)
    two = await acme.sessions.create(key="beta", user="bob", agent="y")
    await acme.messages.append(two.id, role="user", content="hi", token_count=10)
    between = one.created_at + timedelta(seconds=30)
    only_two: Sequence[Filter] = [
        column("id").eq(two.id.upper()),
        column("id").ne(one.id),
        column("id").is_in([two.id, uuid_of("missing")]),
        column("id").gt(min(one.id, two.id)) if two.id > one.id else column("id").lt(max(one.id, two.id)),
        column("key").eq("beta"),
        column("key").gt("alpha"),
        column("key").ge("b"),
        column("key").contains("et"),
        column("key").is_in(["beta", "gamma", None]),
        column("user").ne("ada"),
        column("user").contains("ob"),
        column("agent").gt("x"),
        column("message_count").eq(1),
        column("message_count").gt(0),
        column("message_count").is_in([1, 2]),
        column("token_count").ge(10),
        column("token_count").ne(0),
        column("created_at").gt(between),
        column("created_at").eq(two.created_at),
        column("created_at").is_in([two.created_at, between]),
        column("updated_at").ge(from_us(world.clock.now_us())),
    ]
    for item in only_two:
        assert await keys(acme, item) == {"beta"}, item
    assert await keys(acme, column("compaction_count").eq(0)) == {"alpha", "beta"}
    assert await keys(acme, column("created_at").le(datetime.max.replace(tzinfo=UTC))) == {"alpha", "beta"}
    assert await keys(acme, column("created_at").lt(datetime.min.replace(tzinfo=UTC))) == set()
    assert await keys(acme, column("key").eq(None)) == set()
    assert await keys(acme, column("key").ne(None)) == {"alpha", "beta"}
    assert await keys(acme, column("key").is_in([])) == set()
    assert await keys(acme, *only_two) == {"beta"}


@contract()
async def metadata_values_are_compared_with_their_types(world: World) -> None:
    acme = world.tenant()
    values: dict[str, Any] = {
        "true": True, "false": False, "null": None, "one": 1, "one.0": 1.0, "zero": 0, "text": "1", "empty": "",
        "list": [1, "a", True, None, 2.5], "object": {"a": 1}, "float": 2.5, "large": 1e300, "-large": -1e300,
    }  # fmt: skip
    for key, value in values.items():
        await acme.sessions.create(key=key, metadata={"v": value})
    await acme.sessions.create(key="missing", metadata={"w": 1})
    v, all_keys = meta("v"), {*values, "missing"}
    assert await keys(acme, v.eq(True)) == {"true"}
    assert await keys(acme, v.eq(1)) == await keys(acme, v.eq(1.0)) == {"one", "one.0"}
    assert await keys(acme, v.eq("1")) == {"text"}
    assert await keys(acme, v.eq(None)) == {"null"}
    assert await keys(acme, v.eq(False)) == {"false"}
    assert await keys(acme, v.eq(0)) == {"zero"}
    assert await keys(acme, v.ne(1)) == all_keys - {"one", "one.0"}
    assert await keys(acme, v.ne(None)) == all_keys - {"null"}
    assert await keys(acme, v.gt(1)) == {"float", "large"}
    assert await keys(acme, v.lt(0)) == {"-large"}
    assert await keys(acme, v.ge(0), v.le(1)) == {"one", "one.0", "zero"}
    assert await keys(acme, v.ge("")) == {"text", "empty"}
    assert await keys(acme, v.gt("")) == {"text"}
    assert await keys(acme, v.is_in([1, "1", None])) == {"one", "one.0", "text", "null"}
    assert await keys(acme, v.is_in([True])) == {"true"}
    assert await keys(acme, v.is_in([])) == set()
    assert await keys(acme, v.contains(1)) == await keys(acme, v.contains(True)) == {"list"}
    assert await keys(acme, v.contains(None)) == await keys(acme, v.contains(2.5)) == {"list"}
    assert await keys(acme, v.contains("a")) == {"list"}
    assert await keys(acme, v.contains("")) == {"text", "empty"}
    assert await keys(acme, v.contains(7)) == set()


@contract()
async def metadata_keys_have_no_special_characters(world: World) -> None:
    acme = world.tenant()
    await acme.sessions.create(key="nested", metadata={"a": {"b": [{"c": 1}], "": 1}, "": {"x": 1}})
    for number, text in enumerate(TEXTS):
        await acme.sessions.create(key=str(number), metadata={text: text, "n": number})
    for number, text in enumerate(TEXTS):
        assert await keys(acme, meta(text).eq(text)) == {str(number)}, text
        assert await keys(acme, meta(text).is_in([text])) == {str(number)}, text
        assert await keys(acme, meta(text).contains(text)) == {str(number)}, text
        assert await keys(acme, metadata={text: text, "n": number}) == {str(number)}, text
        assert await keys(acme, meta("n").eq(text)) == set(), text
    for path in ("a.b", "$.a.b", "a.b[0].c", "$", "a", "", "{}", "[0]", "#", "*"):
        assert await keys(acme, meta(path).eq(1)) == set(), path


@contract()
async def invalid_filters_are_rejected(world: World) -> None:
    acme = world.tenant()
    await some_sessions(world, 1)
    wrong: list[Any] = [
        column("metadata").eq(1),
        column("tenant_id").eq("acme"),
        column("user_id").eq("ada"),
        column("").eq(1),
        column("key").eq(1),
        column("key").lt(None),
        column("message_count").eq("1"),
        column("message_count").eq(1.5),
        column("message_count").eq(True),
        column("message_count").eq(10**16),
        column("message_count").contains(1),
        column("created_at").eq("2020-01-01"),
        column("created_at").eq(from_us(world.clock.now_us()).replace(tzinfo=None)),
        column("created_at").eq(1_700_000_000),
        column("created_at").eq(datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))),
        column("id").eq("42"),
        column("id").contains(uuid_of("x")),
        column("key").is_in("beta"),
        column("key").is_in([1]),
        meta("v").eq([1]),
        meta("v").eq({"a": 1}),
        meta("v").eq(float("nan")),
        meta("v").eq(float("inf")),
        meta("v").eq(10**16),
        meta("v").eq(-(10**400)),
        meta("v").eq(10**5000),
        meta("v").lt(True),
        meta("v").gt(None),
        meta("v").is_in([[1]]),
        meta("v").contains({"a": 1}),
        meta("v").eq(b"bytes"),
        Filter("like", "a", column="key"),  # type: ignore[arg-type]
        Filter("", "a", meta="key"),  # type: ignore[arg-type]
        Filter("in", "abc", meta="v"),
        Filter("in", 7, column="key"),
        Filter("eq", 1),
        Filter("eq", 1, column="key", meta="v"),
        Filter("eq", 1, column=7),  # type: ignore[arg-type]
        Filter("eq", 1, meta=7),  # type: ignore[arg-type]
        "key = 'k'",
        {"op": "eq", "column": "key", "value": "k0"},
        None,
    ]
    for item in wrong:
        with raises(InvalidFilter):
            await acme.sessions.list(where=[item])
        with raises(InvalidFilter):
            await acme.sessions.count(where=[column("key").eq("k0"), item])
    not_lists: list[Any] = [column("key").eq("k0"), "key", None, 7]
    for item in not_lists:
        with raises(InvalidFilter):
            await acme.sessions.list(where=item)
        with raises(InvalidFilter):
            await acme.sessions.count(where=item)
    not_filters: list[Any] = [["plan"], "plan", 7]
    for item in not_filters:
        with raises(InvalidFilter):
            await acme.sessions.list(metadata=item)


@contract(limits=Limits(filters=4, filter_values=5))
async def filters_have_limits(world: World) -> None:
    acme = world.tenant()
    await some_sessions(world, 3)
    assert await keys(acme, *[column("key").ne("k1")] * 4) == {"k0", "k2"}
    with raises(LimitExceeded, limit="filters", maximum=4):
        await acme.sessions.list(where=[column("key").ne("k1")] * 5)
    with raises(LimitExceeded, limit="filters", maximum=4):
        await acme.sessions.count(where=[column("key").ne("k1")] * 3, user="u0", metadata={"n": 0})
    for target in (column("key"), meta("n")):
        await acme.sessions.list(where=[target.is_in(["k1"] * 5)])
        with raises(LimitExceeded, limit="filter_values", maximum=5):
            await acme.sessions.list(where=[target.is_in(["k1"] * 6)])


@contract()
async def the_default_maximum_of_filters_is_supported(world: World) -> None:
    acme = world.tenant()
    await some_sessions(world, 3)
    most = world.limits
    many: list[Any] = [*range(most.filter_values - 1), 1]
    assert await keys(acme, *[meta("n").is_in(many)] * most.filters) == {"k0", "k1", "k2"}
    named = [f"k{n}" for n in range(1, most.filter_values + 1)]
    assert await keys(acme, *[column("key").is_in(named)] * most.filters) == {"k1", "k2"}
    ids = [uuid_of(n) for n in range(most.filter_values)]
    assert await keys(acme, column("id").is_in(ids)) == set()
