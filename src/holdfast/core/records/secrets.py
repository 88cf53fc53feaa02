"""Secret fields of records: encrypted in their columns, decrypted when they are revealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

from msgspec import Struct, structs

from .. import text
from ..crypto import Secret
from ..encrypted_columns import EncryptedColumn
from ..scope import Scope
from .fields import Declaration, Field, Merged
from .values import stored_again

R = TypeVar("R", bound=Struct)


def encrypted_column(table: str, field: Field, declared: Declaration[Any]) -> EncryptedColumn:
    """The column of a secret field, made known to the rotation of keys and to exports."""
    is_object = any(get_origin(each) is dict for each in get_args(field.type))
    key = tuple(each.column for each in declared.key)
    return EncryptedColumn(table, field.column, row=key, json=is_object).declare()


def with_secrets(
    rows: Sequence[R], declared: Declaration[Any], columns: Mapping[str, EncryptedColumn], scope: Scope
) -> Sequence[R]:
    """Rows with a ``Secret`` in place of each stored text. Nothing is decrypted until one is revealed."""
    found = []
    for row in rows:
        key = [stored_again(each, getattr(row, each.name)) for each in declared.key]
        loaded = {
            each.name: columns[each.column].load(scope, key, getattr(row, each.name)) for each in declared.secrets
        }
        found.append(structs.replace(row, **loaded))
    return found


def merged(declared: Declaration[Any], row: Struct, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes in which objects that are to be merged are merged into those of the row."""
    found = dict(changes)
    for name, value in changes.items():
        field = declared.fields[name]
        if not field.marker(Merged):
            continue
        if field.kind == "secret":
            found[name] = _merged_secret(getattr(row, name), value)
        else:
            change = text.load(value)
            found[name] = text.dump({**getattr(row, name), **change} if change else {})
    return found


def _merged_secret(there: Secret[Any] | None, change: Any) -> Any:
    if not isinstance(change, Secret) or not isinstance(change.reveal(), Mapping):
        return change  # None clears it, and anything else is refused when it is encrypted
    if not change.reveal():
        return None
    return Secret({**({} if there is None else there.reveal()), **change.reveal()})
