"""Comparing a record with a new one, without writing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import NODEFAULT, UNSET, Struct, structs

from ..actor_context import ActorContext
from .fields import Metadata
from .store import AsyncRecords
from .values import encode_value, is_same


def given_fields(store: AsyncRecords[Any, Any, Any], new: Struct) -> list[str]:
    """Return the editable fields to which a new record gives a value of its own, not the default."""
    defaults = {
        field.name: field.default if field.default_factory is NODEFAULT else field.default_factory()
        for field in structs.fields(new)
    }
    editable = [field.name for field in store.declared.editable]
    return [name for name in editable if getattr(new, name, UNSET) not in (UNSET, defaults.get(name, UNSET))]


def changed_fields(
    store: AsyncRecords[Any, Any, Any], new: Struct, row: Struct | None, only: Collection[str]
) -> dict[str, tuple[Any, Any]]:
    """Return which of these fields a record has with another value, each with its value and the new one. A field called
    ``metadata`` keeps its other keys. Without a record it only checks the values.

    Raises:
        InvalidInput: a value is not valid.
        LimitExceeded: a value is over a limit.
    """
    values = store._new_values(store._checked(new), ActorContext())
    changes = {}
    for field in [] if row is None else store.declared.editable:
        if field.name not in only:
            continue
        before, after, value = getattr(row, field.name), getattr(new, field.name), values[field.column]
        if field.name == "metadata" and field.marker(Metadata):
            after = {**before, **after}
            value = encode_value(field, after, store._scope.limits, store.noun)
        if not is_same(field, value, row):
            changes[field.name] = (before, after)
    return changes
