"""How errors name a record: by its noun, and by its key or its natural key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ...errors import AlreadyExists, NotFound
from .. import text
from .fields import Declaration, Field


class NamedRecords:
    """The part of a record store that names its records in errors."""

    noun: ClassVar[str]
    a_noun: ClassVar[str]
    declared: ClassVar[Declaration[Any]]

    def _named(self, key: Sequence[str]) -> str:
        return f"{self.noun} {key[0]!r}" + "".join(
            f", {field.name} {value!r}" for field, value in zip(self.declared.key[1:], key[1:], strict=False)
        )

    def _missing(self, key: Sequence[str]) -> NotFound:
        return NotFound(f"{self._named(key)} does not exist", noun=self.noun, key=str(key[0]))

    def _taken(self, params: dict[str, Any], hint: str, fields: Sequence[Field] = ()) -> AlreadyExists:
        fields = fields or self.declared.natural or self.declared.key
        values = [text.unescape(str(params[field.column])) for field in fields]
        names = ", ".join(f"{field.name} {value!r}" for field, value in zip(fields, values, strict=True))
        return AlreadyExists(f"{self.a_noun} with {names} exists: {hint}", noun=self.noun, key=values[0])
