"""Rotation of keys: every encrypted value is encrypted again with the first key of the ring.

Nothing is noted about how far it came: a value begins with the id of its key, so what is left to do can be read from the columns
themselves. A rotation that was broken off is finished by starting another. A value is replaced only if it is still the one that
was read, so writers go on beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from ..engines.dialect import Dialect
from ..engines.protocol import Connection
from ..errors import DecryptionFailed
from .crypto import KeyRing
from .encrypted_columns import EncryptedColumn
from .queries import Query
from .scope import Scope

ROWS_PER_TRANSACTION = 100


class Renewed(Struct, frozen=True):
    """What came of one transaction."""

    rows: int
    """Values that were looked at; fewer than ``ROWS_PER_TRANSACTION`` were the last of their tenant."""
    renewed: int
    failures: Sequence[str]
    """Why values could not be decrypted; they stay as they are."""
    after: Sequence[str]
    """The last row that was looked at."""


async def outdated(connection: Connection, column: EncryptedColumn, keys: KeyRing) -> list[tuple[str, int]]:
    """The tenants, as they are stored, with values that the first key did not encrypt, and how many they have."""
    rows = await _queries(column).outdated.all(connection, _current(keys))
    return [(row[0], row[1]) for row in rows]


async def renew_some(
    connection: Connection, column: EncryptedColumn, scope: Scope, after: Sequence[str] | None
) -> Renewed:
    """Encrypt the next values of a tenant with the first key, from the row behind ``after`` on."""
    queries = _queries(column)
    params = scope.params(**_current(scope.keys), limit=ROWS_PER_TRANSACTION)
    page = queries.first if after is None else queries.next
    rows = await page.all(connection, params | _key(after or ()))
    failures: list[str] = []
    renewed = 0
    for *row, stored in rows:
        try:
            changed = column.renew(scope, row, stored)
        except DecryptionFailed as error:
            failures.append(str(error))
            continue
        values = scope.params(**_key(row), stored=stored, renewed=changed)
        renewed += await queries.replace.one(connection, values) is not None
    return Renewed(len(rows), renewed, failures, rows[-1][:-1] if rows else ())


class _Queries(Struct, frozen=True):
    outdated: Query
    first: Query
    next: Query
    replace: Query


@lru_cache
def _queries(column: EncryptedColumn) -> _Queries:
    table, name, row = column.table, column.column, column.row
    # Not LIKE, which knows no case on SQLite.
    is_outdated = f"{name} IS NOT NULL AND substr({name}, 1, :length) <> :current"
    marks = ", ".join(f":row_{place}" for place in range(len(row)))
    keys, as_text = ", ".join(row), ", ".join(f"CAST({each} AS TEXT)" for each in row)
    by_key = " AND ".join(f"{each} = :row_{place}" for place, each in enumerate(row))
    page = f"SELECT {as_text}, {name} FROM {table} WHERE tenant_id = :tenant_id AND {is_outdated}"
    order = f"ORDER BY {keys} LIMIT :limit"
    texts = {
        "outdated": f"SELECT tenant_id, COUNT(*) FROM {table} WHERE {is_outdated} GROUP BY tenant_id ORDER BY tenant_id",
        "first": f"{page} {order}",
        "next": f"{page} AND ({keys}) > ({marks}) {order}",
        "replace": f"UPDATE {table} SET {name} = :renewed WHERE tenant_id = :tenant_id AND {by_key} AND {name} = :stored "
        "RETURNING 1",
    }
    made = {each: Query(f"{table}.{name}.{each}", dict.fromkeys(Dialect, sql)) for each, sql in texts.items()}
    return _Queries(**made)


def _current(keys: KeyRing) -> dict[str, Any]:
    return {"current": keys.current_prefix, "length": len(keys.current_prefix)}


def _key(row: Sequence[str]) -> dict[str, str]:
    return {f"row_{place}": value for place, value in enumerate(row)}
