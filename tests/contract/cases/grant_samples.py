"""Sample values for any grant store, generated from its types, so that new stores need no code here."""

from __future__ import annotations

from functools import cache
from typing import Any

from holdfast.core.grants import AsyncGrants, Grants, GrantTable
from holdfast.core.records.fields import Field, References
from holdfast.handles import Holdfast
from tests.contract.cases.record_samples import Samples, create_referenced, referenced_store, value_of

Store = AsyncGrants[Any, Any]
Table = GrantTable[Any]
SIDES = 5
"""The number of resources and of principals that samples name."""


@cache
def grant_stores() -> dict[str, type[Store]]:
    """Return every grant store of a tenant, by its name on a handle."""
    with Holdfast(":memory:") as holdfast:
        handle = holdfast.tenant("acme")
        result = [(name, getattr(handle, name)) for name in dir(handle) if not name.startswith("_")]
        return {name: type(store._async) for name, store in result if isinstance(store, Grants)}


class GrantSamples:
    """Sample values for one table. Equal numbers give equal values; different numbers give different values."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.resource_field, self.principal_field = table.fields[table.resource], table.fields[table.principal]
        self.attributes = [table.fields[name] for name in table.attributes if name in table.new.__struct_fields__]

    def new(self, resource: int, principal: int, number: int = 1, **values: Any) -> Any:
        """Return a new grant with attributes of this number."""
        made = {field.name: value_of(field, number) for field in self.attributes}
        made |= {self.table.resource: self.resource(resource), self.table.principal: self.principal(principal)}
        return self.table.new(**(made | values))

    def resource(self, number: int) -> Any:
        """Return the key of a resource."""
        return _side(self.resource_field, number)

    def principal(self, number: int) -> Any:
        """Return the key of a principal."""
        return _side(self.principal_field, number)

    def sides(self, grant: Any) -> tuple[Any, Any]:
        """Return the resource and the principal of a grant."""
        return getattr(grant, self.table.resource), getattr(grant, self.table.principal)


def _side(field: Field, number: int) -> Any:
    if field.marker(References):
        return value_of(referenced_store(field)[1].declared.key[0], number)
    return value_of(field, number)


async def create_sides(tenant: Any, table: Table) -> None:
    """Create the records that the grants of a table refer to."""
    for field in table.references:
        name, target = referenced_store(field)
        await create_referenced(tenant, target)
        for number in range(SIDES):
            await getattr(tenant, name).upsert(Samples(target).new(number))
