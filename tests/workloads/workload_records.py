"""Makers for the write methods of every record store, generated from its types, so that new stores are covered too."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from holdfast.core.records.fields import Limited
from tests.contract.cases.record_samples import Samples, record_stores, referenced_store
from tests.workloads.workloads import Arguments, World, maker

NUMBERS = 6
"""The number of different records of one store; few, so that calls concern the same records."""
LONG = ("text_bytes", "system_bytes")
"""Limits of texts that may fill several pages of the file."""


class RecordMakers:
    """Registers the makers of one store."""

    def __init__(self, name: str, samples: Samples) -> None:
        self._name, self._samples = name, samples
        texts = [item for item in samples.declared.new_fields if item.kind == "text" and item.marker(Limited)]
        self._long = [item.name for item in texts if item.marker(Limited).limit in LONG]
        self._references = [(item.name, referenced_store(item)[0]) for item in samples.declared.references]
        before = {"before": f"{self._references[0][1]}.create"} if self._references else {}
        maker(f"{name}.create", **before)(self.new)
        maker(f"{name}.upsert", **before)(self.new)
        maker(f"{name}.update", before=f"{name}.create")(self.update)
        maker(f"{name}.delete", before=f"{name}.create")(self.key)
        if samples.has_secrets:
            maker(f"{name}.reveal", before=f"{name}.create")(self.key)
        if samples.is_soft:
            maker(f"{name}.restore", before=f"{name}.create")(self.any_key)

    def new(self, world: World) -> Arguments | None:
        """Return arguments for create and upsert."""
        values = {item: world.text() or "text" for item in self._long}
        references = self._existing_references(world)
        if references is None:
            return None
        return (self._samples.new(world.random.randrange(NUMBERS), **values, **references),), {}

    def update(self, world: World) -> Arguments | None:
        """Return arguments for update."""
        key = self._existing(world)
        references = self._existing_references(world)
        if key is None or references is None:
            return None
        change = self._samples.change(world.random.randrange(NUMBERS))
        editable = {item.name for item in self._samples.declared.editable}
        references = {name: value for name, value in references.items() if name in editable}
        return key, {"change": structs.replace(change, **references)}

    def key(self, world: World) -> Arguments | None:
        """Return the key of an existing record."""
        key = self._existing(world)
        return None if key is None else (key, {})

    def any_key(self, world: World) -> Arguments:
        """Return the key of a record that may exist or be deleted."""
        return self._samples.key(self._samples.new(world.random.randrange(NUMBERS))), {}

    def _existing_references(self, world: World) -> dict[str, Any] | None:
        """Return values for the fields that refer to other records, or ``None`` if there is no record to refer to."""
        values = {}
        for field, store in self._references:
            records = getattr(world.tenant, store).list()
            if not records:
                return None
            values[field] = world.random.choice(records).id
        return values

    def _existing(self, world: World) -> Any:
        rows = getattr(world.tenant, self._name).list()
        return self._samples.key(world.random.choice(rows)) if rows else None


for store_name, store_kind in record_stores().items():
    RecordMakers(store_name, Samples(store_kind))
