"""Comparing a record with the input of ``upsert``, without writing."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from .fields import Field
from .store import AsyncRecords
from .values import is_same


def changed_fields(store: AsyncRecords[Any, Any, Any], new: Struct, row: Struct | None) -> dict[str, tuple[Any, Any]]:
    """Return the fields that ``upsert`` would change, each with its value and the new one. Without a row it only checks the
    values.

    Raises:
        InvalidInput: a value is not valid.
        LimitExceeded: a value is over a limit.
    """
    values = store._new_values(store._checked(new))
    if row is None:
        return {}
    return {
        field.name: (getattr(row, field.name), getattr(new, field.name))
        for field in store.declared.editable
        if _is_given(field, new) and not is_same(field, values[field.column], row)
    }


def _is_given(field: Field, new: Struct) -> bool:
    return getattr(new, field.name, UNSET) is not UNSET
