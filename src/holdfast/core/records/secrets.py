"""Secret fields of records: encrypted in the database, decrypted when they are revealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

from msgspec import Struct, structs

from .. import text
from ..crypto import Secret
from ..encrypted_columns import EncryptedColumn
from ..scope import Scope
from .fields import Declaration, Field, KeyOptional, Merged
from .values import encode_row_value

R = TypeVar("R", bound=Struct)


def encrypted_column(table: str, field: Field, declared: Declaration[Any]) -> EncryptedColumn:
    """Declare the column of a secret field, for key rotation and exports, and return it."""
    content = next((arg for arg in get_args(field.type) if get_origin(arg) is dict), None)
    key = tuple(part.column for part in declared.key)
    has_strings = content is not None and get_args(content)[1] is str
    return EncryptedColumn(
        table,
        field.column,
        row=key,
        json=content is not None,
        strings=has_strings,
        needs_key=field.marker(KeyOptional) is None,
    ).declare()


def wrap_secrets(
    rows: Sequence[R], declared: Declaration[Any], columns: Mapping[str, EncryptedColumn], scope: Scope
) -> Sequence[R]:
    """Return the rows with a ``Secret`` in place of each stored text. Nothing is decrypted until one is revealed."""
    wrapped = []
    for row in rows:
        key = [encode_row_value(part, getattr(row, part.name)) for part in declared.key]
        secrets = {
            field.name: columns[field.column].load(scope, key, getattr(row, field.name)) for field in declared.secrets
        }
        wrapped.append(structs.replace(row, **secrets))
    return wrapped


def merge_changes(declared: Declaration[Any], row: Struct, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes, with objects marked ``Merged`` merged into those of the row."""
    result = dict(changes)
    for name, value in changes.items():
        field = declared.fields[name]
        if not field.marker(Merged):
            continue
        if field.kind == "secret":
            result[name] = _merge_secret(getattr(row, name), value)
        else:
            change = text.load(value)
            result[name] = text.dump({**getattr(row, name), **change} if change else {})
    return result


def _merge_secret(current: Secret[Any] | None, change: Any) -> Any:
    if not isinstance(change, Secret) or not isinstance(change.reveal(), Mapping):
        return change  # None clears it; any other value is rejected when it is encrypted
    if not change.reveal():
        return None
    return Secret({**({} if current is None else current.reveal()), **change.reveal()})
