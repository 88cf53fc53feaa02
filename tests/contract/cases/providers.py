"""Model providers and their models. ``records.py`` tests the promises of all record stores."""

from __future__ import annotations

from holdfast.core.crypto import Secret
from holdfast.core.filters import column
from holdfast.errors import InvalidInput, NotFound
from holdfast.types import ModelChange, NewModel, NewProvider, Provider, ProviderChange
from tests.contract.cases.suite import contract
from tests.contract.cases.world import World, raises, uuid_of


async def _provider(world: World, name: str = "openai") -> Provider:
    created: Provider = await world.tenant().providers.create(NewProvider(name, api_key=Secret("sk-secret")))
    return created


@contract()
async def keys_of_providers_are_never_in_lists_and_are_kept_by_other_changes(world: World) -> None:
    providers = world.tenant().providers
    created = await _provider(world)
    renamed = await providers.update(created.id, change=ProviderChange(display_name="OpenAI"))
    assert "sk-secret" not in repr([created, renamed, await providers.list(), await providers.find("openai")])
    assert await providers.reveal(created.id) == {"api_key": "sk-secret"}
    await providers.update(created.id, change=ProviderChange(api_key=None))
    assert await providers.reveal(created.id) == {"api_key": None}


@contract()
async def each_provider_has_its_own_default_model(world: World) -> None:
    models = world.tenant().models
    one, other = await _provider(world, "one"), await _provider(world, "other")
    assert await models.default(one.id) is None
    first = await models.create(NewModel(one.id, "first", is_default=True))
    theirs = await models.create(NewModel(other.id, "first", is_default=True))
    second = await models.create(NewModel(one.id, "second", is_default=True))
    assert (await models.default(one.id), await models.default(other.id)) == (second, theirs)
    assert not (await models.get(first.id)).is_default
    await models.update(second.id, change=ModelChange(is_default=False))
    assert await models.default(one.id) is None
    assert await models.default(uuid_of("unknown")) is None
    with raises(InvalidInput, field="provider"):
        await models.default("one")


@contract()
async def a_price_of_zero_is_not_an_unknown_price(world: World) -> None:
    models, provider = world.tenant().models, await _provider(world)
    free = await models.create(NewModel(provider.id, "free", input_price_micros=0, output_price_micros=0))
    unknown = await models.create(NewModel(provider.id, "unknown"))
    assert (free.input_price_micros, unknown.input_price_micros) == (0, None)
    assert list(await models.list(where=[column("input_price_micros").eq(0)])) == [free]
    changed = await models.update(free.id, change=ModelChange(input_price_micros=None))
    assert (changed.input_price_micros, changed.output_price_micros) == (None, 0)


@contract()
async def models_are_deleted_with_their_provider_and_each_deletion_is_logged(world: World) -> None:
    acme = world.tenant()
    provider, other = await _provider(world), await _provider(world, "other")
    gone = [await acme.models.create(NewModel(provider.id, name)) for name in ("large", "small")]
    stays = await acme.models.create(NewModel(other.id, "large"))
    with acme.acting(user="ada"):
        await acme.providers.delete(provider.id)
    assert list(await acme.models.list()) == [stays]
    with raises(NotFound, noun="model"):
        await acme.models.get(gone[0].id)
    logged = await acme.activity.list(action="model.deleted")
    assert {(entry.subject_id, entry.actor) for entry in logged} == {(model.id, "ada") for model in gone}
