"""Differences between two JSON values, by path. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ...core import text
from ...core.crypto import MASK


class FieldChange(Struct, frozen=True):
    """A field that differs. A value that is ``None`` is missing; a secret is shown as asterisks."""

    path: str
    before: Any
    after: Any


def differences(before: Any, after: Any, path: str) -> Iterator[FieldChange]:
    """Yield what differs, in the order of the paths. Lists are compared item by item."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            yield from differences(before.get(name), after.get(name), f"{path}.{name}")
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            one, other = (values[index] if index < len(values) else None for values in (before, after))
            yield from differences(one, other, f"{path}[{index}]")
    elif not text.identical(before, after):
        yield FieldChange(path, before, after)


def secret_differences(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Sequence[FieldChange]:
    """Return the secrets that differ, by their names, without their values."""
    changes = []
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            masks = [MASK if name in secrets else None for secrets in (before, after)]
            changes.append(FieldChange(f"{path}.{name.replace('/', '.')}", *masks))
    return changes
