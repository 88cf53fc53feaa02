"""Fields that only records of one variant have: the URL of a server that is reached over HTTP, for example."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...errors import InvalidInput
from .fields import Declaration, OnlyFor


def check_variants(declared: Declaration[Any], row: Struct, a_noun: str) -> None:
    """Check that a record has the fields of its variant, and no others.

    The record is the one that was written, so that a change is checked together with the fields that it leaves unchanged. An
    error undoes the call.

    Raises:
        InvalidInput: a field is missing, or belongs to another variant.
    """
    for field in declared.variants:
        marker, value = field.marker(OnlyFor), getattr(row, field.name)
        variant = getattr(row, marker.of)
        is_set = value is not None if field.kind == "secret" else bool(value)
        if is_set and variant not in marker.values:
            raise InvalidInput(
                f"{field.name} of {a_noun} must be empty, because its {marker.of} is {variant!r}: "
                f"{field.name} is for {' and '.join(marker.values)}",
                field=field.name,
            )
        if marker.required and not is_set and variant in marker.values:
            raise InvalidInput(
                f"{field.name} of {a_noun} must not be empty, because its {marker.of} is {variant!r}", field=field.name
            )
