"""Round trips: every text and every JSON value is returned unchanged, from every field."""

from __future__ import annotations

from typing import Any

from holdfast.stores.conversation.new_entries import NewMessage
from tests.contract.cases.suite import contract
from tests.contract.cases.values import NUMBERS, TEXTS, documents, nested, same
from tests.contract.cases.world import World


@contract()
async def any_text_can_be_a_key_a_user_or_an_agent(world: World) -> None:
    acme = world.tenant()
    created = {text: await acme.sessions.create(key=text, user=text, agent=text) for text in TEXTS}
    assert await acme.sessions.count() == len(TEXTS)
    for text in TEXTS:
        assert (created[text].key, created[text].user, created[text].agent) == (text, text, text)
        assert await acme.sessions.get(created[text].id) == created[text]
        assert await acme.sessions.find(text) == created[text]
        assert await acme.sessions.list(user=text) == [created[text]]
        assert await acme.sessions.list(agent=text) == [created[text]]
        assert (await acme.sessions.upsert(text, user=text)).id == created[text].id
        assert (await acme.sessions.update(created[text].id, agent=text + "!")).agent == text + "!"


@contract()
async def any_text_can_name_a_tenant(world: World) -> None:
    for text in TEXTS:
        handle = world.tenant(text)
        assert handle.name == text
        created = await handle.sessions.create(key="k")
        await handle.messages.append(created.id, role="user", content=text)
        assert [session.id for session in await handle.sessions.list()] == [created.id]
        assert (await handle.messages.last(created.id))[0].content == [{"type": "text", "text": text}]


@contract()
async def any_text_can_be_content(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    created = await acme.messages.append_many(session.id, [NewMessage(role="user", content=text) for text in TEXTS])
    for message, text in zip(created, TEXTS, strict=True):
        assert message.content == [{"type": "text", "text": text}]
        assert (await acme.messages.get(message.id)).content == message.content
    assert await acme.messages.list(session.id) == created
    changed = await acme.messages.append(session.id, role="user", content="x")
    for text in TEXTS:
        assert (await acme.messages.update(changed.id, content=text)).content == [{"type": "text", "text": text}]
        assert (await acme.messages.get(changed.id)).content == [{"type": "text", "text": text}]


@contract()
async def any_json_can_be_metadata_or_content(world: World) -> None:
    acme, document = world.tenant(), documents()
    session = await acme.sessions.create(key="k", metadata=document)
    assert same(session.metadata, document)
    assert same((await acme.sessions.get(session.id)).metadata, document)
    assert same((await acme.sessions.upsert("k", metadata=document)).metadata, document)
    assert same((await acme.sessions.update(session.id, metadata=document)).metadata, document)
    assert same((await acme.sessions.list())[0].metadata, document)
    blocks = [{"type": "any", "document": document}]
    created = await acme.messages.append(session.id, role="user", content=blocks, metadata=document)
    other = await acme.messages.append(session.id, kind="any", content=document)
    for value in (created, await acme.messages.get(created.id), (await acme.messages.list(session.id))[0]):
        assert same([value.content, value.metadata], [blocks, document])
    for value in (other, await acme.messages.get(other.id), (await acme.messages.last(session.id))[-1]):
        assert same(value.content, document)
    changed = await acme.messages.update(created.id, content=blocks, metadata=document)
    assert same([changed.content, changed.metadata], [blocks, document])


@contract()
async def every_json_value_can_be_content_by_itself(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    values: list[Any] = [*TEXTS, *NUMBERS, None, True, False, "", [], {}, [[]], [None], nested(90), nested(90, "\x00")]
    await acme.messages.append_many(session.id, [NewMessage(kind="v", content=value) for value in values])
    for message, value in zip(await acme.messages.list(session.id), values, strict=True):
        assert same(message.content, value), value
        repeated = await acme.messages.append(session.id, kind="v", content=value, id=message.id)
        assert same(repeated.content, value), value


@contract()
async def unusual_values_do_not_affect_other_rows(world: World) -> None:
    acme = world.tenant()
    arguments: list[dict[str, Any]] = [{}, {"plain": 1}, {"\x00": "\ud800"}, {}, {"漢": [1e300]}, {"a": {"b": None}}]
    messages = [await acme.sessions.create(metadata=metadata) for metadata in arguments]
    result = {session.id: session.metadata for session in await acme.sessions.list()}
    assert all(same(result[session.id], metadata) for session, metadata in zip(messages, arguments, strict=True))


@contract()
async def negative_zero_is_stored_as_zero(world: World) -> None:
    created = await world.tenant().sessions.create(metadata={"v": [-0.0, [-0.0]]})
    assert same(created.metadata, {"v": [0.0, [0.0]]})
    assert same((await world.tenant().sessions.get(created.id)).metadata, {"v": [0.0, [0.0]]})
