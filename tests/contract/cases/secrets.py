"""Secrets of a tenant: encrypted, returned by one call only, and logged."""

from __future__ import annotations

from typing import Any

from holdfast.core.crypto import MASK, Secret
from holdfast.errors import InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from tests.contract.cases.suite import contract
from tests.contract.cases.values import TEXTS
from tests.contract.cases.world import World, raises


@contract()
async def a_secret_is_returned_as_it_was_set(world: World) -> None:
    secrets = world.tenant().secrets
    for number, text in enumerate(TEXTS):
        await secrets.set(f"key {text}" if text else "key", Secret(text))
        assert (await secrets.get(f"key {text}" if text else "key")).reveal() == text, number
    await secrets.set("key", Secret("first"))
    await secrets.set("key", Secret("second"))
    assert await secrets.get("key") == Secret("second")
    assert "second" not in repr(await secrets.get("key"))
    assert await secrets.delete("key")
    assert not await secrets.delete("key")
    with raises(NotFound, noun="secret", key="key"):
        await secrets.get("key")


@contract()
async def names_of_secrets_are_listed_in_order_and_in_pages(world: World) -> None:
    secrets = world.tenant().secrets
    for name in ("b", "a", "\x00", "c", "A"):
        await secrets.set(name, Secret("value"))
    names = await secrets.list()
    assert sorted(names) == ["\x00", "A", "a", "b", "c"]
    pages = [await secrets.list(limit=2)]
    while pages[-1].next is not None:
        pages.append(await secrets.list(limit=2, cursor=pages[-1].next))
    assert [name for page in pages for name in page] == names
    with raises(InvalidFilter, field="cursor"):
        await secrets.list(cursor=(await world.tenant().providers.list(limit=1)).next or "x")
    assert await world.tenant("other").secrets.list() == []


@contract()
async def every_use_of_a_secret_is_logged_and_its_value_is_not(world: World) -> None:
    acme = world.tenant()
    with acme.acting(user="ada", address="10.0.0.1"):
        await acme.secrets.set("openai", Secret("sk-secret"))
        await acme.secrets.get("openai")
        await acme.secrets.delete("openai")
        await acme.secrets.delete("openai")
        with raises(NotFound):
            await acme.secrets.get("openai")
    entries = [*reversed(await acme.activity.list(subject_kind="secret"))]
    assert [(entry.action, entry.subject_id) for entry in entries] == [
        (f"secret.{action}", "openai") for action in ("set", "revealed", "deleted")
    ]
    assert {(entry.actor, entry.address) for entry in entries} == {("ada", "10.0.0.1")}
    assert "sk-secret" not in repr(entries)


@contract(limits=Limits(name_bytes=20, secret_bytes=8, list_rows=1))
async def a_secret_that_cannot_be_stored_is_refused(world: World) -> None:
    secrets = world.tenant().secrets
    await secrets.set("key", Secret("kept"))
    wrong: list[Any] = ["plain", None, Secret({"a": "b"}), Secret(MASK), 7]
    for value in wrong:
        with raises(InvalidInput, field="value"):
            await secrets.set("key", value)
    with raises(LimitExceeded, limit="secret_bytes"):
        await secrets.set("key", Secret("x" * 9))
    with raises(LimitExceeded, limit="name_bytes"):
        await secrets.set("x" * 21, Secret("x"))
    for name in ("", None, 7):
        with raises(InvalidInput):
            await secrets.get(name)  # type: ignore[arg-type]
    assert await secrets.get("key") == Secret("kept")
    await secrets.set("other", Secret("x"))
    with raises(LimitExceeded, limit="list_rows"):
        await secrets.list()
