"""API keys: a key grants access until it is revoked or expires, and cannot be recovered from the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from holdfast.clock import from_us
from holdfast.errors import Conflict, Forbidden, InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.ids import new_api_key
from holdfast.limits import Limits
from holdfast.stores.lifecycle.api_keys import ApiKey
from tests.contract.cases.suite import contract
from tests.contract.cases.values import GARBAGE_CURSORS
from tests.contract.cases.world import World, raises, uuid_of


async def made(world: World, **fields: Any) -> tuple[str, ApiKey]:
    """Create a key; return it and its stored row."""
    key = new_api_key()
    return key, await world.api_keys.create(key, **{"name": "a key", **fields})


@contract("tenants")
async def a_new_key_has_the_given_fields(world: World) -> None:
    until = from_us(world.clock.now_us()) + timedelta(days=1)
    key, kept = await made(world, name="ci", tenant="acme", scopes=["write", "read", "runs:read"], expires_at=until)
    assert (kept.name, kept.tenant, kept.scopes) == ("ci", "acme", ["read", "runs:read", "write"])
    assert (kept.created_at, kept.expires_at) == (from_us(world.clock.now_us()), until)
    assert (kept.last_used_at, kept.revoked_at) == (None, None)
    assert kept.prefix == key[:11]
    assert await world.api_keys.get(kept.id) == kept
    assert await world.api_keys.verify(key) == kept
    assert (await world.tenants.get("acme")).id == "acme"


@contract("tenants")
async def a_key_reads_and_writes_in_all_tenants_by_default(world: World) -> None:
    _, kept = await made(world)
    assert (kept.tenant, kept.scopes, kept.expires_at) == ("", ["read", "write"], None)


@contract("tenants")
async def no_result_contains_the_key_or_its_digest(world: World) -> None:
    key, kept = await made(world, tenant="acme")
    seen = repr(
        [kept, await world.api_keys.verify(key), await world.api_keys.list(), await world.api_keys.revoke(kept.id)]
    )
    assert key not in seen
    assert key[11:] not in seen
    assert "hash" not in seen


@contract("tenants")
async def only_the_exact_key_grants_access(world: World) -> None:
    key, _ = await made(world)
    wrong: list[Any] = [new_api_key(), key[:-1], key + "0", key[:-1] + ("0" if key[-1] != "0" else "1"), key.upper()]
    for other in [*wrong, "", "hf_", " " + key, key + "\n", "hf_" + "g" * 48, "\ud800", None, 7]:
        with raises(Forbidden, reason="unknown") as refused:
            await world.api_keys.verify(other)
        assert key[11:] not in str(refused.error)


@contract("tenants")
async def keys_with_the_same_prefix_are_distinguished(world: World) -> None:
    one, other = "hf_" + "0" * 48, "hf_" + "0" * 47 + "1"
    first = await world.api_keys.create(one, name="one", tenant="acme")
    second = await world.api_keys.create(other, name="other", tenant="zenith")
    assert first.prefix == second.prefix
    assert await world.api_keys.verify(one) == first
    assert await world.api_keys.verify(other) == second


@contract("tenants")
async def creating_a_key_can_be_repeated_with_the_same_arguments(world: World) -> None:
    until = from_us(world.clock.now_us()) + timedelta(days=1)
    key, kept = await made(world, tenant="acme", expires_at=until)
    world.clock.advance(60)
    elsewhere = until.astimezone(timezone(timedelta(hours=5)))
    again = await world.api_keys.create(
        key, name="a key", tenant="acme", scopes=["write", "read"], expires_at=elsewhere
    )
    assert again == kept
    others: list[dict[str, Any]] = [
        {"tenant": "zenith"},
        {"name": "other"},
        {"scopes": ["admin"]},
        {"expires_at": None},
    ]
    for other in others:
        with raises(Conflict):
            await world.api_keys.create(key, **{"name": "a key", "tenant": "acme", "expires_at": until, **other})
    assert await world.api_keys.verify(key) == kept


@contract("tenants")
async def a_revoked_key_grants_no_access_and_keeps_its_first_revocation_time(world: World) -> None:
    key, kept = await made(world, tenant="acme")
    world.clock.advance(60)
    revoked = await world.api_keys.revoke(kept.id)
    assert revoked.revoked_at == from_us(world.clock.now_us())
    with raises(Forbidden, reason="revoked"):
        await world.api_keys.verify(key)
    world.clock.advance(60)
    assert await world.api_keys.revoke(kept.id) == revoked
    assert await world.api_keys.get(kept.id) == revoked


@contract("tenants")
async def a_key_expires_exactly_at_its_time(world: World) -> None:
    key, kept = await made(world, expires_at=from_us(world.clock.now_us()) + timedelta(seconds=10))
    world.clock.advance(9.999_999)
    assert await world.api_keys.verify(key) == kept
    world.clock.advance(0.000_001)
    with raises(Forbidden, reason="expired"):
        await world.api_keys.verify(key)


@contract("tenants")
async def touch_records_the_last_use_of_a_key(world: World) -> None:
    key, kept = await made(world)
    world.clock.advance(60)
    await world.api_keys.touch(kept.id)
    assert (await world.api_keys.verify(key)).last_used_at == from_us(world.clock.now_us())
    with raises(NotFound):
        await world.api_keys.touch(uuid_of("unknown"))


@contract("tenants")
async def a_deleted_key_does_not_exist(world: World) -> None:
    key, kept = await made(world)
    await world.api_keys.delete(kept.id)
    with raises(Forbidden):
        await world.api_keys.verify(key)
    for call in (world.api_keys.get, world.api_keys.revoke, world.api_keys.delete):
        with raises(NotFound):
            await call(kept.id)


@contract("tenants")
async def a_tenant_does_not_see_the_keys_of_another(world: World) -> None:
    key, kept = await made(world, tenant="acme")
    _, above = await made(world)
    for other in (kept, above):
        for call in (world.api_keys.get, world.api_keys.revoke, world.api_keys.delete):
            with raises(NotFound):
                await call(other.id, tenant="zenith")
    assert await world.api_keys.verify(key) == kept
    assert await world.api_keys.get(kept.id, tenant="acme") == kept
    assert await world.api_keys.get(above.id, tenant="") == above
    await world.api_keys.revoke(kept.id, tenant="acme")
    await world.api_keys.delete(kept.id, tenant="acme")


@contract("tenants")
async def keys_are_listed_oldest_first_for_all_tenants_or_one(world: World) -> None:
    before = list(await world.api_keys.list())
    kept = [(await made(world, tenant=tenant))[1] for tenant in ("acme", "", "zenith", "acme")]
    assert await world.api_keys.list() == before + kept
    assert await world.api_keys.list(tenant="acme") == [kept[0], kept[3]]
    assert [item for item in await world.api_keys.list(tenant="") if item in kept] == [kept[1]]
    page = await world.api_keys.list(tenant="acme", limit=1)
    assert (page, page.next is None) == ([kept[0]], False)
    rest = await world.api_keys.list(tenant="acme", limit=1, cursor=page.next)
    assert (rest, rest.next) == ([kept[3]], None)


@contract("tenants", limits=Limits(list_rows=2, page_rows=5))
async def a_list_of_keys_is_limited_and_accepts_only_its_own_cursors(world: World) -> None:
    for _ in range(3):
        await made(world, tenant="acme")
    with raises(LimitExceeded):
        await world.api_keys.list(tenant="acme")
    with raises(LimitExceeded):
        await world.api_keys.list(limit=6)
    for cursor in GARBAGE_CURSORS:
        with raises(InvalidFilter):
            await world.api_keys.list(limit=1, cursor=cursor)


@contract("tenants")
async def deleting_a_tenant_deletes_its_keys(world: World) -> None:
    key, _ = await made(world, tenant="acme")
    other, kept = await made(world, tenant="zenith")
    await world.tenants.delete("acme", cascade=True)
    with raises(Forbidden):
        await world.api_keys.verify(key)
    assert await world.api_keys.verify(other) == kept


@contract("tenants", limits=Limits(name_bytes=10, tenant_bytes=10))
async def invalid_keys_scopes_and_times_are_refused_and_not_repeated(world: World) -> None:
    before = await world.api_keys.list()
    good: dict[str, Any] = {"name": "a key"}
    naive = datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    for key, fields in [
        ("secret", good),
        ("hf_" + "A" * 48, good),
        (new_api_key(), {"name": ""}),
        (new_api_key(), {**good, "scopes": []}),
        (new_api_key(), {**good, "scopes": "read"}),
        (new_api_key(), {**good, "scopes": ["everything"]}),
        (new_api_key(), {**good, "scopes": [":read"]}),
        (new_api_key(), {**good, "scopes": ["read\n"]}),
        (new_api_key(), {**good, "expires_at": naive}),
        (new_api_key(), {**good, "expires_at": "tomorrow"}),
        (new_api_key(), {**good, "tenant": None}),
    ]:
        with raises(InvalidInput) as refused:
            await world.api_keys.create(key, **fields)
        assert key not in str(refused.error)
    for fields in ({"name": "n" * 11}, {**good, "tenant": "t" * 11}):
        with raises(LimitExceeded):
            await world.api_keys.create(new_api_key(), **fields)
    assert await world.api_keys.list() == before
