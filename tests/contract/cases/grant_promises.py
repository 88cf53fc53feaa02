"""The promises of every grant store. ``grants.py`` checks them on every store of a handle."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from msgspec import structs

from holdfast.clock import FixedClock, from_us
from holdfast.core.records.fields import Limited, Names, References
from holdfast.errors import InvalidFilter, InvalidInput, LimitExceeded, NotFound
from holdfast.limits import Limits
from holdfast.stores.objects.activity import Audited
from tests.contract.cases.grant_samples import SIDES, GrantSamples, Store, Table
from tests.contract.cases.record_samples import Samples, large_value, referenced_store, value_of, wrong_values
from tests.contract.cases.values import GARBAGE_CURSORS, TEXTS
from tests.contract.cases.world import flat, raises, uuid_of


class GrantKit:
    """One table of a grant store, opened for two tenants."""

    def __init__(
        self,
        kind: type[Store],
        table: Table,
        stores: tuple[Any, Any],
        tenants: tuple[Any, Any],
        clock: FixedClock,
        limits: Limits,
    ) -> None:
        self.kind, self.table, self.samples = kind, table, GrantSamples(table)
        self.store, self.other = stores
        self.tenant, self.other_tenant = tenants
        self.clock, self.limits = clock, limits

    def find(self, resource: int, principal: int) -> Any:
        """Find the grant of a sample resource to a sample principal."""
        sides = self.samples.resource(resource), self.samples.principal(principal)
        return self.store.find(*sides, kind=self.table.principal)

    def revoke(self, resource: int, principal: int) -> Any:
        """Revoke the grant of a sample resource to a sample principal."""
        sides = self.samples.resource(resource), self.samples.principal(principal)
        return self.store.revoke(*sides, kind=self.table.principal)

    def of_resource(self, number: int, **how: Any) -> Any:
        """List the grants of a sample resource."""
        return self.store.list(resource=self.samples.resource(number), kind=self.table.principal, **how)

    def to_principal(self, number: int, **how: Any) -> Any:
        """List the grants to a sample principal."""
        return self.store.list(principal=self.samples.principal(number), kind=self.table.principal, **how)


Promise = Callable[[GrantKit], Coroutine[Any, Any, None]]


async def grants_are_returned_as_they_were_made(kit: GrantKit) -> None:
    """grant, find and both lists return every value, for any text."""
    for number, text in enumerate(TEXTS):
        texts = [field for field in kit.samples.attributes if field.kind == "text"]
        texts += [] if kit.samples.principal_field.marker(References) else [kit.samples.principal_field]
        new = kit.samples.new(1, 1, number, **{field.name: text for field in texts})
        row = await kit.store.grant(new)
        assert {name: getattr(row, name) for name in structs.asdict(new)} == structs.asdict(new)
        assert await kit.store.find(*kit.samples.sides(new), kind=kit.table.principal) == row
        assert row in await kit.of_resource(1)
        listed = await kit.store.list(principal=kit.samples.sides(new)[1], kind=kit.table.principal)
        assert listed == [row]
    assert await kit.find(2, 1) is None


async def granting_again_replaces_the_attributes(kit: GrantKit) -> None:
    """A grant keeps the time at which it was first made; without a difference nothing is written."""
    first, bystander = await kit.store.grant(kit.samples.new(1, 1, 1)), await kit.store.grant(kit.samples.new(1, 2, 1))
    kit.clock.advance(5)
    assert await kit.store.grant(kit.samples.new(1, 1, 1)) == first
    second = await kit.store.grant(kit.samples.new(1, 1, 2))
    expected = {field.name: value_of(field, 2) for field in kit.samples.attributes}
    expected |= {"updated_at": from_us(kit.clock.now_us())} if "updated_at" in kit.table.fields else {}
    assert structs.asdict(second) == structs.asdict(first) | expected
    assert await kit.find(1, 1) == second
    assert await kit.of_resource(1) == [second, bystander]


async def a_grant_is_revoked_once_and_alone(kit: GrantKit) -> None:
    """Other principals and other resources keep their grants."""
    for resource, principal in ((1, 1), (1, 2), (2, 1)):
        await kit.store.grant(kit.samples.new(resource, principal))
    assert await kit.revoke(1, 1) is True
    assert await kit.revoke(1, 1) is False
    assert await kit.find(1, 1) is None
    assert [kit.samples.sides(row)[1] for row in await kit.of_resource(1)] == [kit.samples.principal(2)]
    assert [kit.samples.sides(row)[0] for row in await kit.to_principal(1)] == [kit.samples.resource(2)]
    assert await kit.revoke(2, 2) is False


async def both_sides_are_listed_in_order_and_in_pages(kit: GrantKit) -> None:
    """Pages of any size contain the same grants in the order of the other side."""
    for number in (3, 1, 4, 2, 0):
        await kit.store.grant(kit.samples.new(1, number, number))
        await kit.store.grant(kit.samples.new(number, 1, number))
    for side, ordered in ((kit.of_resource, kit.table.principal), (kit.to_principal, kit.table.resource)):
        rows = await side(1)
        keys = [getattr(row, ordered) for row in rows]
        assert len(keys) == SIDES
        assert keys == sorted(keys)
        for limit in (1, 2, SIDES):
            pages = [await side(1, limit=limit)]
            while pages[-1].next is not None:
                assert len(pages) <= SIDES, "the pages do not end"
                pages.append(await side(1, limit=limit, cursor=pages[-1].next))
            assert flat(pages) == rows, f"pages of {limit}"
        for cursor in GARBAGE_CURSORS:
            with raises(InvalidFilter):
                await side(1, cursor=cursor)
        for wrong in (0, -1, "3", True):
            with raises(InvalidInput):
                await side(1, limit=wrong)


async def grants_of_tenants_are_separate(kit: GrantKit) -> None:
    """The same pair in two tenants is two grants."""
    row = await kit.store.grant(kit.samples.new(1, 1, 1))
    theirs = await kit.other.grant(kit.samples.new(1, 1, 2))
    await kit.other.grant(kit.samples.new(1, 2))
    await kit.other.grant(kit.samples.new(2, 1))
    assert await kit.find(1, 1) == row
    assert await kit.find(1, 2) is None
    assert await kit.of_resource(1) == await kit.to_principal(1) == [row]
    assert await kit.revoke(1, 2) is False
    assert await kit.revoke(1, 1) is True
    sides = kit.samples.sides(theirs)
    assert await kit.other.find(*sides, kind=kit.table.principal) == theirs


async def a_grant_names_records_that_exist(kit: GrantKit) -> None:
    """A record that does not exist, is deleted, or belongs to another tenant is refused by one error."""
    for field in kit.table.references:
        name, target = referenced_store(field)
        foreign = Samples(target).new(77)
        await getattr(kit.other_tenant, name).create(foreign)
        gone = await getattr(kit.tenant, name).create(Samples(target).new(78))
        await getattr(kit.tenant, name).delete(*Samples(target).key(gone))
        missing = uuid_of("missing") if field.kind == "id" else "missing"
        for key in (missing, Samples(target).key(foreign)[0], Samples(target).key(gone)[0]):
            with raises(NotFound, noun=field.marker(References).noun, key=key):
                await kit.store.grant(kit.samples.new(1, 1, 1, **{field.name: key}))
    assert await kit.of_resource(1) == []


async def a_grant_follows_the_records_it_names(kit: GrantKit) -> None:
    """The grants of a deleted record are gone; they return with the record if that is restored, and not otherwise."""
    for field in kit.table.references:
        name, target = referenced_store(field)
        records = getattr(kit.tenant, name)
        row = await kit.store.grant(kit.samples.new(1, 1))
        side = getattr(row, field.name)
        key = (side, *Samples(target).key(Samples(target).new(1))[1:])
        await records.delete(*key)
        assert await kit.find(1, 1) is None, field.name
        assert await kit.of_resource(1) == await kit.to_principal(1) == []
        if Samples(target).is_soft:
            await records.restore(*key)
            assert await kit.find(1, 1) == row
        else:
            await records.create(Samples(target).new(1))
            assert await kit.find(1, 1) is None
        await kit.revoke(1, 1)


async def every_change_of_an_audited_grant_is_logged(kit: GrantKit) -> None:
    """An entry names the actor, the grant and the changed attributes, and no value of one."""
    if not issubclass(kit.kind, Audited):
        return
    kind = kit.table.noun.replace(" ", "_").lower()
    before = {entry.id for entry in await kit.tenant.activity.list()}
    with kit.tenant.acting(user="ada", address="10.0.0.1"):
        row = await kit.store.grant(kit.samples.new(1, 1, 1))
        await kit.store.grant(kit.samples.new(1, 1, 1))
        await kit.store.grant(kit.samples.new(1, 1, 2))
        await kit.revoke(1, 1)
        await kit.revoke(1, 1)
    entries = [entry for entry in reversed(await kit.tenant.activity.list()) if entry.id not in before]
    assert {(entry.actor_type, entry.actor, entry.address) for entry in entries} == {("user", "ada", "10.0.0.1")}
    assert {(entry.subject_kind, entry.subject_id) for entry in entries} == {(kind, "/".join(kit.samples.sides(row)))}
    changed = sorted(field.name for field in kit.samples.attributes)
    actions = ["granted", *(["granted"] if changed else []), "revoked"]
    assert [entry.action for entry in entries] == [f"{kind}.{action}" for action in actions]
    details = [{}, *([{"fields": changed}] if changed else []), {}]
    assert [{name: sorted(values) for name, values in entry.details.items()} for entry in entries] == details


async def a_grant_names_the_actor_who_made_it(kit: GrantKit) -> None:
    """``granted_by`` is the actor, unless the caller names another one."""
    if "granted_by" not in kit.table.fields:
        return
    new = kit.samples.new(1, 1)
    values = {name: value for name, value in structs.asdict(new).items() if name != "granted_by"}
    assert (await kit.store.grant(kit.table.new(**values))).granted_by == ""
    with kit.tenant.acting(agent="helper"):
        assert (await kit.store.grant(kit.table.new(**values))).granted_by == "helper"


PROMISES: tuple[Promise, ...] = (
    grants_are_returned_as_they_were_made,
    granting_again_replaces_the_attributes,
    a_grant_is_revoked_once_and_alone,
    both_sides_are_listed_in_order_and_in_pages,
    grants_of_tenants_are_separate,
    a_grant_names_records_that_exist,
    a_grant_follows_the_records_it_names,
    every_change_of_an_audited_grant_is_logged,
    a_grant_names_the_actor_who_made_it,
)
"""The promises that hold under the default limits."""


async def wrong_grants_are_rejected(kit: GrantKit) -> None:
    """Rejected grants are not stored, and the error names the field; needs a ``list_rows`` of 3."""
    for field in [kit.samples.resource_field, kit.samples.principal_field, *kit.samples.attributes]:
        wrong: list[tuple[Any, type[Exception]]] = [(value, InvalidInput) for value in wrong_values(field)]
        if limited := field.marker(Limited):
            wrong.append((large_value(field, getattr(kit.limits, limited.limit) + 1), LimitExceeded))
        elif field.marker(Names):
            wrong += [(["a", "b", "c"], LimitExceeded), ([""], InvalidInput), ([7], InvalidInput)]
        for value, error in wrong:
            with raises(error, saying=kit.table.noun) as caught:
                await kit.store.grant(kit.samples.new(1, 1, **{field.name: value}))
            assert isinstance(caught.error, InvalidInput)
            assert caught.error.field.split()[0] == field.name
    resource, principal = kit.samples.resource(1), kit.samples.principal(1)
    not_new: list[Any] = [{}, None, "text"]
    calls = [partial(kit.store.grant, new) for new in not_new]
    calls += [partial(kit.store.list, kind=kit.table.principal)]
    calls += [partial(kit.store.list, resource=resource, principal=principal, kind=kit.table.principal)]
    calls += [partial(kit.store.find, resource, 7, kind=kit.table.principal)]
    calls += [partial(kit.store.revoke, "", principal, kind=kit.table.principal)]
    calls += [partial(kit.store.find, resource, principal, kind="kind")]
    calls += [partial(kit.store.revoke, resource, principal)] if len(kit.kind.grants) > 1 else []
    for call in calls:
        with raises(InvalidInput):
            await call()
    assert await kit.of_resource(1) == []
    for number in range(SIDES - 1):
        await kit.store.grant(kit.samples.new(1, number))
    with raises(LimitExceeded, limit="list_rows"):
        await kit.of_resource(1)
    assert len(await kit.of_resource(1, limit=SIDES)) == SIDES - 1
