"""Key rotation: every encrypted value is encrypted again with the first key of the ring.

No progress is recorded: a value begins with the id of its key, so the remaining work can be read from the columns
themselves, and another rotation finishes one that was interrupted. A value is replaced only if it is still the one that
was read, so writers may run concurrently.
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


class RenewalBatch(Struct, frozen=True):
    """The result of one transaction."""

    rows: int
    """The number of values read; fewer than ``ROWS_PER_TRANSACTION`` means that the tenant has no more."""
    renewed: int
    failures: Sequence[str]
    """Why values could not be decrypted; they were left unchanged."""
    after: Sequence[str]
    """The key and the value of the last row that was read. Rows can share a key: a deleted one and its successor."""


async def count_outdated(connection: Connection, column: EncryptedColumn, keys: KeyRing) -> list[tuple[str, int]]:
    """Return the tenants (in stored form) that have values not encrypted with the first key, and how many each has."""
    rows = await _queries(column).outdated.all(connection, _current(keys))
    return [(row[0], row[1]) for row in rows]


async def renew_batch(
    connection: Connection, column: EncryptedColumn, scope: Scope, after: Sequence[str] | None
) -> RenewalBatch:
    """Encrypt the next values of a tenant, after the row with this key and value, with the first key."""
    queries = _queries(column)
    params = scope.params(**_current(scope.keys), limit=ROWS_PER_TRANSACTION)
    page = queries.first if after is None else queries.next
    if after is not None:
        *key, params["after"] = after
        params |= _key(key)
    rows = await page.all(connection, params)
    failures: list[str] = []
    renewed = 0
    for *row, value in rows:
        try:
            changed = column.renew(scope, row, value)
        except DecryptionFailed as error:
            failures.append(str(error))
            continue
        values = scope.params(**_key(row), stored=value, renewed=changed)
        renewed += await queries.replace.one(connection, values) is not None
    return RenewalBatch(len(rows), renewed, failures, rows[-1] if rows else ())


class _Queries(Struct, frozen=True):
    outdated: Query
    first: Query
    next: Query
    replace: Query


@lru_cache
def _queries(column: EncryptedColumn) -> _Queries:
    table, name, row = column.table, column.column, column.row
    # Not LIKE, which ignores case on SQLite.
    is_outdated = f"{name} IS NOT NULL AND substr({name}, 1, :length) <> :current"
    placeholders = ", ".join(f":row_{i}" for i in range(len(row)))
    keys, as_text = ", ".join(row), ", ".join(f"CAST({key} AS TEXT)" for key in row)
    by_key = " AND ".join(f"{key} = :row_{i}" for i, key in enumerate(row))
    page = f"SELECT {as_text}, {name} FROM {table} WHERE tenant_id = :tenant_id AND {is_outdated}"
    order = f"ORDER BY {keys}, {name} LIMIT :limit"
    texts = {
        "outdated": f"SELECT tenant_id, COUNT(*) FROM {table} WHERE {is_outdated} GROUP BY tenant_id ORDER BY tenant_id",
        "first": f"{page} {order}",
        "next": f"{page} AND ({keys}, {name}) > ({placeholders}, :after) {order}",
        "replace": f"UPDATE {table} SET {name} = :renewed WHERE tenant_id = :tenant_id AND {by_key} AND {name} = :stored "
        "RETURNING 1",
    }
    queries = {key: Query(f"{table}.{name}.{key}", dict.fromkeys(Dialect, sql)) for key, sql in texts.items()}
    return _Queries(**queries)


def _current(keys: KeyRing) -> dict[str, Any]:
    return {"current": keys.current_prefix, "length": len(keys.current_prefix)}


def _key(row: Sequence[str]) -> dict[str, str]:
    return {f"row_{i}": value for i, value in enumerate(row)}
