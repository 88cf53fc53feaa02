"""Feedback: opinions of messages, which are deleted with their messages."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from holdfast.clock import from_us
from holdfast.core.filters import column, meta
from holdfast.core.paging import encode_cursor
from holdfast.errors import AlreadyExists, Conflict, InvalidFilter, InvalidInput, InvalidText, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.conversation.feedback import ISSUE_TYPES, Feedback
from holdfast.stores.conversation.message_log import Message
from holdfast.tenant_handles import AsyncTenantHandle
from tests.contract.cases.suite import contract
from tests.contract.cases.values import GARBAGE_CURSORS, TEXTS, documents, same
from tests.contract.cases.world import World, flat, raises, uuid_of


async def answers(acme: AsyncTenantHandle, count: int = 1) -> list[Message]:
    """Create messages in a new session."""
    session = await acme.sessions.create()
    return [await acme.messages.append(session.id, role="assistant", content=str(n)) for n in range(count)]


@contract()
async def feedback_is_returned_as_it_was_given(world: World) -> None:
    acme = world.tenant()
    (message,) = await answers(acme)
    created = await acme.feedback.create(
        message.id, is_positive=False, feedback_text="wrong", issue_type="factual", user="ada", metadata={"n": 1}
    )
    assert (created.message_id, created.session_id, created.user) == (message.id, message.session_id, "ada")
    assert (created.is_positive, created.feedback_text, created.issue_type) == (False, "wrong", "factual")
    assert (created.metadata, created.created_at, created.updated_at) == (
        {"n": 1},
        created.created_at,
        created.created_at,
    )
    assert created.created_at == from_us(world.clock.now_us())
    assert await acme.feedback.get(created.id) == created
    plain = await acme.feedback.create(message.id.upper(), is_positive=True)
    assert (plain.user, plain.feedback_text, plain.issue_type, plain.metadata) == ("", "", "", {})
    for issue_type in ISSUE_TYPES:
        assert (
            await acme.feedback.create(message.id, is_positive=False, issue_type=issue_type)
        ).issue_type == issue_type
    with raises(NotFound):
        await acme.feedback.get(uuid_of("missing"))
    with raises(NotFound):
        await world.tenant("zenith").feedback.get(created.id)


@contract()
async def feedback_needs_an_existing_message(world: World) -> None:
    acme = world.tenant()
    (message,) = await answers(acme)
    create = partial(acme.feedback.create, is_positive=True)
    upsert = partial(acme.feedback.upsert, is_positive=True, user="ada")
    for call in (create, upsert, partial(world.tenant("zenith").feedback.create, is_positive=True)):
        with raises(NotFound):
            await call(uuid_of("missing"))
    with raises(NotFound):
        await world.tenant("zenith").feedback.create(message.id, is_positive=True)
    await acme.sessions.delete(message.session_id)
    for call in (create, upsert):
        with raises(NotFound):
            await call(message.id)
    await acme.sessions.restore(message.session_id)
    assert (await create(message.id)).message_id == message.id


@contract()
async def invalid_feedback_is_rejected(world: World) -> None:
    acme = world.tenant()
    (message,) = await answers(acme)
    created = await acme.feedback.create(message.id, is_positive=True, user="ada")
    wrong: list[dict[str, Any]] = [
        {"is_positive": 1},
        {"is_positive": "yes"},
        {"feedback_text": 7},
        {"issue_type": "Factual"},
        {"issue_type": 7},
        {"metadata": ["x"]},
    ]
    for value in wrong:
        with raises(InvalidInput):
            await acme.feedback.create(message.id, **{"is_positive": True, **value})
        with raises(InvalidInput):
            await acme.feedback.upsert(message.id, **{"is_positive": True, "user": "ada", **value})
        with raises(InvalidInput):
            await acme.feedback.update(created.id, **value)
    nameless: list[Any] = ["", None, 7]
    for user in nameless:
        with raises(InvalidInput):
            await acme.feedback.upsert(message.id, is_positive=True, user=user)
    with raises(InvalidText):
        await acme.feedback.create(message.id, is_positive=True, metadata={"v": float("nan")})
    for call in (acme.feedback.get, acme.feedback.delete, acme.feedback.update):
        with raises(InvalidInput):
            await call("no id")
    assert await acme.feedback.list() == [created]


@contract(limits=Limits(name_bytes=4, text_bytes=5, metadata_bytes=20, list_rows=2, page_rows=2))
async def feedback_has_limits(world: World) -> None:
    acme = world.tenant()
    (message,) = await answers(acme)
    too_much: list[tuple[dict[str, Any], tuple[str, int]]] = [
        ({"user": "Grace"}, ("name_bytes", 4)),
        ({"feedback_text": "x" * 6}, ("text_bytes", 5)),
        ({"metadata": {"k": "x" * 20}}, ("metadata_bytes", 20)),
    ]
    for arguments, (limit, maximum) in too_much:
        with raises(LimitExceeded, limit=limit, maximum=maximum):
            await acme.feedback.create(message.id, is_positive=True, **arguments)
    for _ in range(3):
        await acme.feedback.create(message.id, is_positive=True, feedback_text="x" * 5)
    with raises(LimitExceeded, limit="list_rows", maximum=2):
        await acme.feedback.list()
    with raises(LimitExceeded, limit="page_rows", maximum=2):
        await acme.feedback.list(limit=3)
    assert len(await acme.feedback.list(limit=2)) == 2


@contract()
async def any_text_can_be_feedback(world: World) -> None:
    acme = world.tenant()
    (message,) = await answers(acme)
    for text in TEXTS:
        created = await acme.feedback.create(message.id, is_positive=True, feedback_text=text, user=text)
        assert (created.feedback_text, created.user) == (text, text)
        assert await acme.feedback.list(user=text) == [created]
    strange = documents()
    assert same((await acme.feedback.create(message.id, is_positive=True, metadata=strange)).metadata, strange)


@contract()
async def feedback_can_be_repeated_by_its_id(world: World) -> None:
    acme = world.tenant()
    message, other = await answers(acme, 2)
    arguments: dict[str, Any] = {"is_positive": True, "feedback_text": "t", "issue_type": "tool", "metadata": {"n": 1}}
    for user in ("ada", None):
        arguments.update(user=user, id=uuid_of(user))
        created = await acme.feedback.create(message.id, **arguments)
        world.clock.advance(60)
        assert await acme.feedback.create(message.id, **arguments) == created
        changes: list[dict[str, Any]] = [
            {"is_positive": False}, {"feedback_text": ""}, {"issue_type": None}, {"metadata": {"n": 1.0}}, {"user": "bob"}
        ]  # fmt: skip
        for change in changes:
            with raises(Conflict):
                await acme.feedback.create(message.id, **{**arguments, **change})
        with raises(Conflict):
            await acme.feedback.create(other.id, **arguments)
        assert await acme.feedback.get(created.id) == created
    (elsewhere,) = await answers(acme)
    await acme.sessions.delete(message.session_id)
    with raises(Conflict):
        await acme.feedback.create(elsewhere.id, **arguments)
    theirs, zenith = {**arguments, "id": uuid_of("ada")}, world.tenant("zenith")
    assert (await zenith.feedback.create((await answers(zenith))[0].id, **theirs)).id == uuid_of("ada")


@contract()
async def a_user_has_one_opinion_of_a_message(world: World) -> None:
    acme = world.tenant()
    message, other = await answers(acme, 2)
    first = await acme.feedback.upsert(
        message.id, user="ada", is_positive=True, feedback_text="good", metadata={"n": 1}
    )
    with raises(AlreadyExists, noun="feedback", key=message.id):
        await acme.feedback.create(message.id, is_positive=False, user="ada")
    with raises(AlreadyExists):
        await acme.feedback.create(message.id, is_positive=False, user="ada", id=uuid_of("new"))
    world.clock.advance(60)
    second = await acme.feedback.upsert(message.id, user="ada", is_positive=False, issue_type="tool")
    assert (second.id, second.created_at) == (first.id, first.created_at)
    assert second.updated_at == from_us(world.clock.now_us())
    assert (second.is_positive, second.feedback_text, second.issue_type, second.metadata) == (False, "", "tool", {})
    assert await acme.feedback.list() == [second]
    others = [
        await acme.feedback.upsert(other.id, user="ada", is_positive=True),
        await acme.feedback.upsert(message.id, user="bob", is_positive=True),
        await acme.feedback.create(message.id, is_positive=True),
        await acme.feedback.create(message.id, is_positive=True),
    ]
    assert len({second.id, *(other.id for other in others)}) == 5, "anonymous feedback may be given twice"


@contract()
async def feedback_is_listed_oldest_first(world: World) -> None:
    acme = world.tenant()
    messages = [*await answers(acme, 3), *await answers(acme, 2)]
    rows: list[Feedback] = []
    for number, message in enumerate(messages):
        for user in ("ada", "bob", None):
            rows.append(await acme.feedback.create(message.id, is_positive=bool(number % 2), user=user))
            world.clock.advance(number % 2)
    rows.sort(key=lambda row: (row.created_at, row.id))
    choices: list[tuple[dict[str, Any], Any]] = [
        ({}, lambda row: True),
        ({"message_id": messages[0].id}, lambda row: row.message_id == messages[0].id),
        ({"session_id": messages[0].session_id.upper()}, lambda row: row.session_id == messages[0].session_id),
        ({"user": "ada"}, lambda row: row.user == "ada"),
        ({"user": "bob", "session_id": messages[3].session_id},
         lambda row: row.user == "bob" and row.session_id == messages[3].session_id),
        ({"message_id": uuid_of("missing")}, lambda row: False),
        ({"where": [column("is_positive").eq(True)]}, lambda row: row.is_positive),
    ]  # fmt: skip
    for arguments, matches in choices:
        expected = [feedback for feedback in rows if matches(feedback)]
        assert await acme.feedback.list(**arguments) == expected
        assert await acme.feedback.count(**arguments) == len(expected)
        for limit in (2, 4):
            page = await acme.feedback.list(limit=limit, **arguments)
            pages: list[Any] = [page]
            while page.next is not None:
                page = await acme.feedback.list(limit=limit, cursor=page.next, **arguments)
                pages.append(page)
            assert flat(pages) == expected
    assert await world.tenant("zenith").feedback.list() == []
    assert await world.tenant("zenith").feedback.count() == 0


@contract()
async def lists_of_feedback_reject_unknown_filters_and_cursors(world: World) -> None:
    acme = world.tenant()
    (message,) = await answers(acme)
    created = await acme.feedback.create(message.id, is_positive=True, metadata={"page": 3})
    assert await acme.feedback.list(where=[meta("page").ge(3), column("issue_type").eq("")]) == [created]
    assert await acme.feedback.count(where=[meta("page").lt(3)]) == 0
    for cursor in [*GARBAGE_CURSORS, encode_cursor("feedback", "x"), encode_cursor("contacts", 1, uuid_of(1))]:
        with raises(InvalidFilter):
            await acme.feedback.list(cursor=cursor)
    for call in (acme.feedback.list, acme.feedback.count):
        with raises(InvalidFilter):
            await call(message_id="no id")
        with raises(InvalidFilter):
            await call(where=[column("nothing").eq(1)])


@contract()
async def feedback_can_be_changed_and_removed(world: World) -> None:
    acme = world.tenant()
    (message,) = await answers(acme)
    created = await acme.feedback.create(
        message.id, is_positive=True, feedback_text="t", issue_type="tool", user="ada", metadata={"n": 1}
    )
    world.clock.advance(60)
    changed = await acme.feedback.update(created.id, is_positive=False)
    assert (changed.is_positive, changed.feedback_text, changed.issue_type) == (False, "t", "tool")
    assert (changed.metadata, changed.user, changed.created_at) == ({"n": 1}, "ada", created.created_at)
    assert changed.updated_at == from_us(world.clock.now_us())
    changed = await acme.feedback.update(created.id, feedback_text="", issue_type="", metadata={})
    assert (changed.is_positive, changed.feedback_text, changed.issue_type, changed.metadata) == (False, "", "", {})
    assert (await acme.feedback.update(created.id, issue_type="incomplete")).issue_type == "incomplete"
    for call in (acme.feedback.update, acme.feedback.delete):
        with raises(NotFound):
            await call(uuid_of("missing"))
    for call in (world.tenant("zenith").feedback.update, world.tenant("zenith").feedback.delete):
        with raises(NotFound):
            await call(created.id)
    await acme.feedback.delete(created.id)
    with raises(NotFound):
        await acme.feedback.delete(created.id)
    assert await acme.feedback.list() == []
    assert (await acme.messages.get(message.id)) == message


@contract()
async def feedback_is_deleted_with_its_message(world: World) -> None:
    acme = world.tenant()
    messages, others = await answers(acme, 3), await answers(acme)
    for message in [*messages, *others]:
        await acme.feedback.create(message.id, is_positive=True, user="ada")
    ids = [messages[0].id, messages[2].id, others[0].id]
    assert await acme.messages.delete(messages[0].session_id, ids) == 2
    assert [row.message_id for row in await acme.feedback.list()] == [messages[1].id, others[0].id]
    again = await acme.messages.append(messages[0].session_id, role="user", content="x", id=messages[0].id)
    assert await acme.feedback.list(message_id=again.id) == [], (
        "feedback on the old message is not feedback on the new one"
    )
    assert (await acme.feedback.create(again.id, is_positive=True, user="ada")).message_id == again.id


@contract()
async def feedback_is_hidden_and_purged_with_its_session(world: World) -> None:
    acme = world.tenant()
    (message,), (other,) = await answers(acme), await answers(acme)
    created = await acme.feedback.create(message.id, is_positive=True, user="ada")
    left = await acme.feedback.create(other.id, is_positive=True, user="ada")
    await acme.sessions.delete(message.session_id)
    calls: list[Any] = [acme.feedback.get, partial(acme.feedback.update, is_positive=False), acme.feedback.delete]
    for call in calls:
        with raises(NotFound):
            await call(created.id)
    assert await acme.feedback.list(user="ada") == [left]
    assert await acme.feedback.list(session_id=message.session_id) == []
    assert await acme.feedback.count() == 1
    await acme.sessions.restore(message.session_id)
    assert await acme.feedback.get(created.id) == created
    await acme.sessions.purge(message.session_id)
    assert await acme.feedback.list() == [left]
    session = await acme.sessions.create(id=message.session_id)
    again = await acme.messages.append(session.id, role="user", content="x", id=message.id)
    assert await acme.feedback.count(message_id=again.id) == 0


@contract("tenants")
async def feedback_is_deleted_with_its_tenant(world: World) -> None:
    acme, zenith = world.tenant(), world.tenant("zenith")
    for handle in (acme, zenith):
        (message,) = await answers(handle)
        await handle.feedback.create(message.id, is_positive=True, id=uuid_of("same"))
    await world.tenants.delete("acme", cascade=True)
    assert await acme.feedback.count() == 0
    assert await zenith.feedback.count() == 1
    session = await acme.sessions.create()
    again = await acme.messages.append(session.id, role="user", content="x")
    assert (await acme.feedback.create(again.id, is_positive=False, id=uuid_of("same"))).is_positive is False


@contract("concurrency")
async def concurrent_feedback_of_one_user_is_counted_once(world: World) -> None:
    acme = world.tenant()
    (message,) = await answers(acme)
    upsert = partial(acme.feedback.upsert, message.id, user="ada")
    results: list[Any] = await world.together(*[partial(upsert, is_positive=bool(n % 2)) for n in range(8)])
    assert len({result.id for result in results}) == 1, results
    create = partial(acme.feedback.create, message.id, user="bob", is_positive=True)
    kinds = Counter(type(result) for result in await world.together(*[create] * 8))
    assert kinds == {Feedback: 1, AlreadyExists: 7}, kinds
    repeated = await world.together(*[partial(create, user="eve", id=uuid_of("eve"))] * 8)
    assert all(item == repeated[0] for item in repeated), repeated
    assert await acme.feedback.count() == 3


@contract("concurrency")
async def feedback_concurrent_with_a_removal_is_removed_or_rejected(world: World) -> None:
    acme = world.tenant()
    messages = await answers(acme, 6)
    gives = [
        partial(acme.feedback.upsert, message.id, user=user, is_positive=True)
        for message in messages
        for user in ("ada", "bob")
    ]
    removes: list[Any] = [partial(acme.messages.delete, message.session_id, [message.id]) for message in messages[:3]]
    for _ in range(2):  # the second time there is feedback to replace
        results: list[Any] = await world.together(*gives[:4], *removes, *gives[4:])
        assert all(isinstance(result, (Feedback, NotFound, int)) for result in results), results
    existing = {message.id for message in await acme.messages.list(messages[0].session_id)}
    assert existing == {message.id for message in messages[3:]}
    assert {row.message_id for row in await acme.feedback.list()} == existing
    assert await acme.feedback.count() == 6
