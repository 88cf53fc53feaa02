"""Token counts: a message without a count is estimated when it is appended."""

from __future__ import annotations

from typing import Any

from holdfast.core import text
from holdfast.stores.conversation.new_entries import NewMessage
from holdfast.stores.conversation.tokens import MESSAGE_TOKENS, estimate
from tests.contract.cases.suite import contract
from tests.contract.cases.values import documents
from tests.contract.cases.world import World

TALK: list[tuple[dict[str, Any], int]] = [
    ({"role": "user", "content": ""}, MESSAGE_TOKENS),
    ({"role": "user", "content": "x" * 401}, MESSAGE_TOKENS + 101),
    ({"role": "assistant", "content": "\u00e9" * 8}, MESSAGE_TOKENS + 4),
    ({"role": "user", "content": "\ud800"}, MESSAGE_TOKENS + 1),
    ({"role": "assistant", "content": [{"type": "text", "text": "abcd"}] * 3}, MESSAGE_TOKENS + 3),
    ({"role": "user", "content": [{"type": "image", "source": "x" * 4_000}]}, MESSAGE_TOKENS + 200),
    ({"kind": "adk.event", "content": {"a": "bcde"}}, MESSAGE_TOKENS + 3),
    ({"kind": "adk.event", "content": None}, MESSAGE_TOKENS + 1),
]
"""Contents, each with its estimate."""


@contract()
async def a_message_without_a_count_is_estimated_and_counted_in_its_session(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    for number, (new, tokens) in enumerate(TALK):
        created = await acme.messages.append(session.id, **new)
        assert created.token_count == tokens == estimate(created.content), new
        so_far = sum(value for _, value in TALK[: number + 1])
        assert (await acme.sessions.get(session.id)).token_count == so_far
    many = await acme.sessions.create()
    made_together = await acme.messages.append_many(many.id, [NewMessage(**new) for new, _ in TALK])
    assert [item.token_count for item in made_together] == [tokens for _, tokens in TALK]
    assert await acme.messages.list(many.id) == made_together


@contract()
async def a_given_count_takes_precedence_even_zero(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    for count in (0, 7):
        created = await acme.messages.append(session.id, role="user", content="x" * 400, token_count=count)
        assert created.token_count == count
    assert (await acme.sessions.get(session.id)).token_count == 7


@contract()
async def new_content_is_estimated_again_unless_a_count_is_given(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    created = await acme.messages.append(session.id, role="user", content="x", token_count=50)
    changed = await acme.messages.update(created.id, content="x" * 400)
    assert changed.token_count == (await acme.sessions.get(session.id)).token_count == MESSAGE_TOKENS + 100
    assert (await acme.messages.update(created.id, content="y", token_count=3)).token_count == 3
    assert (await acme.messages.update(created.id, metadata={"a": 1})).token_count == 3


@contract()
async def the_estimate_is_the_same_before_and_after_storing(world: World) -> None:
    acme = world.tenant()
    session = await acme.sessions.create()
    for value in (documents(), [documents()], "text", 7, [1, "a"], {"deep": [[{"a": text.dump(documents())}]]}):
        created = await acme.messages.append(session.id, kind="x", content=value)
        assert created.token_count == estimate(value) == estimate((await acme.messages.get(created.id)).content)
