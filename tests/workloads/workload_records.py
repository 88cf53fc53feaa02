"""Makers for the write methods of every record store, generated from its types, so that new stores are covered too."""

from __future__ import annotations

from typing import Any

from holdfast.core.records.fields import Limited
from tests.contract.cases.record_samples import Samples, record_stores
from tests.workloads.workloads import Arguments, World, maker

NUMBERS = 6
"""The number of different records of one store; few, so that calls concern the same records."""
LONG = ("text_bytes", "system_bytes")
"""Limits of texts that may fill several pages of the file."""


class RecordMakers:
    """Registers the makers of one store."""

    def __init__(self, name: str, samples: Samples) -> None:
        self._name, self._samples = name, samples
        long = [
            each for each in samples.declared.new_fields if each.marker(Limited) and each.marker(Limited).limit in LONG
        ]
        self._long = [each.name for each in long]
        maker(f"{name}.create")(self.new)
        maker(f"{name}.upsert")(self.new)
        maker(f"{name}.update", before=f"{name}.create")(self.update)
        maker(f"{name}.delete", before=f"{name}.create")(self.key)
        if samples.is_soft:
            maker(f"{name}.restore", before=f"{name}.create")(self.any_key)

    def new(self, world: World) -> Arguments:
        """Return arguments for create and upsert."""
        texts = {each: world.text() or "text" for each in self._long}
        return (self._samples.new(world.random.randrange(NUMBERS), **texts),), {}

    def update(self, world: World) -> Arguments | None:
        """Return arguments for update."""
        key = self._existing(world)
        change = self._samples.change(world.random.randrange(NUMBERS))
        return None if key is None else (key, {"change": change})

    def key(self, world: World) -> Arguments | None:
        """Return the key of an existing record."""
        key = self._existing(world)
        return None if key is None else (key, {})

    def any_key(self, world: World) -> Arguments:
        """Return the key of a record that may exist or be deleted."""
        return self._samples.key(self._samples.new(world.random.randrange(NUMBERS))), {}

    def _existing(self, world: World) -> Any:
        rows = getattr(world.tenant, self._name).list()
        return self._samples.key(world.random.choice(rows)) if rows else None


for store_name, store_kind in record_stores().items():
    RecordMakers(store_name, Samples(store_kind))
