"""Makers for the write methods of every grant store, generated from its types, so that new stores are covered too."""

from __future__ import annotations

from typing import Any

from holdfast.core.records.fields import References
from tests.contract.cases.grant_samples import SIDES, GrantSamples, Store, grant_stores
from tests.contract.cases.record_samples import referenced_store
from tests.workloads.workloads import Arguments, World, maker


class GrantMakers:
    """Registers the makers of one store."""

    def __init__(self, name: str, kind: type[Store]) -> None:
        self._name = name
        self._samples = [GrantSamples(table) for table in kind.grants]
        references = [field for table in kind.grants for field in table.references]
        before = {"before": f"{referenced_store(references[0])[0]}.create"} if references else {}
        maker(f"{name}.grant", **before)(self.new)
        maker(f"{name}.revoke", before=f"{name}.grant")(self.sides)

    def new(self, world: World) -> Arguments | None:
        """Return arguments for grant."""
        samples = world.random.choice(self._samples)
        sides = [self._side(world, samples, name) for name in (samples.table.resource, samples.table.principal)]
        if None in sides:
            return None
        values = {samples.table.resource: sides[0], samples.table.principal: sides[1]}
        return (samples.new(0, 0, world.random.randrange(4), **values),), {}

    def sides(self, world: World) -> Arguments | None:
        """Return arguments for revoke: usually of an existing grant."""
        samples = world.random.choice(self._samples)
        resource = self._side(world, samples, samples.table.resource)
        if resource is None:
            return None
        store = getattr(world.tenant, self._name)
        existing = store.list(resource=resource, kind=samples.table.principal)
        row = world.random.choice(existing) if existing else samples.new(0, 0)
        return (resource, samples.sides(row)[1]), {"kind": samples.table.principal}

    def _side(self, world: World, samples: GrantSamples, name: str) -> Any:
        """Return a resource or a principal, or ``None`` if there is no record to refer to."""
        field = samples.table.fields[name]
        if not field.marker(References):
            make = samples.resource if name == samples.table.resource else samples.principal
            return make(world.random.randrange(SIDES))
        store, target = referenced_store(field)
        records = getattr(world.tenant, store).list()
        return getattr(world.random.choice(records), target.declared.key[0].name) if records else None


for store_name, store_kind in grant_stores().items():
    GrantMakers(store_name, store_kind)
